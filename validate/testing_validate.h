/* testing_validate.h - for the tests of this folder: small checkpoints made in
 * memory, written as safetensors files, and compared. */
#ifndef FERRY_VALIDATE_TESTING_VALIDATE_H
#define FERRY_VALIDATE_TESTING_VALIDATE_H

#include <math.h>

#include "convert/testing_convert.h"
#include "formats/safetensors.h"
#include "kernels/cpu/cast.h"
#include "validate/hints/hints.h"

enum { MAX_MADE = 256, MADE_DIMS = 4 };

/* One tensor of a side, with its elements in memory. */
struct made_tensor {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    uint64_t shape[MADE_DIMS], numel, bytes;
    void *elements; /* in the scratch arena */
};
struct made {
    struct made_tensor tensors[MAX_MADE];
    size_t count;
    const char *config; /* config.json beside it, with ' for "; NULL: none */
};

static inline struct made_tensor *made_find(struct made *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->tensors[i].name, name) == 0) return &m->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Adds a tensor of zeros. */
static inline struct made_tensor *made_add(struct made *m, const char *name, enum dtype dtype,
                                           unsigned num_dims, const uint64_t *shape)
{
    assert_true(m->count < MAX_MADE && num_dims <= MADE_DIMS);
    struct made_tensor *t = &m->tensors[m->count++];
    *t = (struct made_tensor){
        .name = arena_printf(&scratch, "%s", name), .dtype = dtype, .num_dims = num_dims};
    t->numel = 1;
    for (unsigned d = 0; d < num_dims; d++) {
        t->shape[d] = shape[d];
        t->numel *= shape[d];
    }
    t->bytes = t->numel * dtype_infos[dtype].bits / 8;
    t->elements = arena_alloc(&scratch, t->bytes + 16);
    return t;
}
#define SHAPE(...)                                                                                 \
    sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (const uint64_t[])                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* A random number, about normal, with a standard deviation of 1. */
static inline double random_normal(uint64_t *seed)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(test_random(seed) >> 11) * 0x1p-53;
    return sum;
}

/* One element of a float tensor, rounded to its dtype. */
static inline void made_set(struct made_tensor *t, uint64_t i, double value)
{
    cast_elements((char *)t->elements + dtype_run_bytes(t->dtype, i), t->dtype, &value, DT_F64, 1);
}

static inline double made_get(const struct made_tensor *t, uint64_t i)
{
    return dtype_load(t->dtype, t->elements, i);
}

static inline struct made_tensor *made_fill(struct made_tensor *t, uint64_t *seed)
{
    for (uint64_t i = 0; i < t->numel; i++)
        made_set(t, i, random_normal(seed));
    return t;
}

/* A copy of a side, whose elements can be changed. */
static inline struct made *made_copy(const struct made *m)
{
    struct made *out = arena_copy(&scratch, m, sizeof *m);
    for (size_t i = 0; i < out->count; i++)
        out->tensors[i].elements =
            arena_copy(&scratch, m->tensors[i].elements, m->tensors[i].bytes + 16);
    return out;
}

/* Writes FOLDER/m.safetensors and its config.json; returns the file's path. */
static inline const char *made_write(const struct made *m, const char *folder)
{
    struct safetensors_out *out = arena_array(&scratch, m->count + 1, sizeof *out);
    struct strbuf file = {0};
    uint64_t bytes;
    const char *path = in_scratch(folder);
    assert_ok(path_remove(path, &err));
    assert_ok(folder_create(path, &err));
    for (size_t i = 0; i < m->count; i++) {
        const struct made_tensor *t = &m->tensors[i];
        out[i] = (struct safetensors_out){t->name, t->dtype, t->num_dims, t->shape, 0};
    }
    assert_ok(safetensors_layout(out, m->count, &file, &bytes, &err));
    strbuf_add_repeated(&file, '\0', bytes - file.length);
    for (size_t i = 0; i < m->count; i++) {
        const struct made_tensor *t = made_find((struct made *)(uintptr_t)m, out[i].name);
        memcpy(file.data + out[i].offset_bytes, t->elements, t->bytes);
    }
    if (m->config) {
        const char *text = json_text(m->config);
        assert_ok(file_write_all(path_join(&scratch, path, "config.json"), text, strlen(text),
                                 false, &err));
    }
    path = path_join(&scratch, path, "m.safetensors");
    assert_ok(file_write_all(path, file.data, file.length, false, &err));
    strbuf_release(&file);
    return path;
}

/* Two sides, opened and compared. */
struct compared_sides {
    struct side sides[2];
    struct comparison comparison;
    struct model_maps maps;
};

static inline struct compare_options plain_options(void)
{
    return (struct compare_options){
        .threads = 2, .max_memory = UINT64_C(4) << 30, .progress = PROGRESS_NONE};
}

/* Compares two sides and looks for hints. */
static inline struct comparison *compare_sides(struct compared_sides *x, const struct made *a,
                                               const struct made *b,
                                               const struct compare_options *o)
{
    const char *const paths[2] = {made_write(a, "a"), made_write(b, "b")};
    struct sides_options open = {.no_optim = false};
    sides_init(x->sides);
    assert_ok(model_maps_load(&x->maps, NULL, &err));
    assert_ok(sides_open(x->sides, paths, &open, &x->maps, &err));
    assert_ok(compare_run(&x->comparison, x->sides, o, &err));
    assert_ok(hints_find(&x->comparison, &err));
    return &x->comparison;
}

static inline void release_sides(struct compared_sides *x)
{
    compare_release(&x->comparison);
    sides_release(x->sides);
    model_maps_release(&x->maps);
}

static inline const struct compared *compared_find(const struct comparison *c, const char *name)
{
    for (size_t i = 0; i < c->num_tensors; i++)
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    fail_msg("%s was not compared", name);
    return NULL;
}

#endif
