/* testing_hf.h - makes Hugging Face models of random bits for the tests of this folder, and
 * compares models bit by bit. */
#ifndef FERRY_CONVERT_TESTING_HF_H
#define FERRY_CONVERT_TESTING_HF_H

#include "ckpt/panel.h"
#include "common/count.h"
#include "convert/source.h"
#include "convert/testing_convert.h"
#include "formats/hf_folder.h"
#include "formats/safetensors.h"

/* ---- reading ---- */

static inline uint64_t numel_of(const struct stored_tensor *s)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < s->num_dims; d++)
        n *= s->shape[d];
    return n;
}

/* All elements of a stored tensor of c, row-major. In the scratch arena. */
static inline void *stored_elements(struct checkpoint *c, const struct stored_tensor *s)
{
    uint64_t n = numel_of(s), bytes = stored_tensor_bytes(s);
    struct tensor *t;
    struct stored_reader *reader = stored_reader_create(&c->catalog.stored, 4);
    struct panel_reader r = {.reader = reader,
                             .buffer_bytes = bytes,
                             .temp = arena_alloc(&scratch, bytes + 1),
                             .cast = arena_alloc(&scratch, bytes + 1)};
    void *out = arena_alloc(&scratch, bytes + 1);
    assert_ok(catalog_wrap_stored(&c->catalog, &c->arena, s, &t, &err));
    if (n) assert_ok(panel_read(&r, t, 0, n, out, &err));
    stored_reader_free(reader);
    return out;
}

/* Compares the first `rows` rows (UINT64_MAX: all) of two stored tensors. */
static inline void check_same_stored(struct checkpoint *a, const struct stored_tensor *x,
                                     struct checkpoint *b, const struct stored_tensor *y,
                                     uint64_t rows)
{
    uint64_t bytes = stored_tensor_bytes(x);
    if (x->dtype != y->dtype || x->num_dims != y->num_dims ||
        memcmp(x->shape, y->shape, x->num_dims * sizeof *x->shape))
        fail_msg("%s: %s %s here, %s %s there", x->name, dtype_infos[x->dtype].name,
                 shape_text(&scratch, x->num_dims, x->shape), dtype_infos[y->dtype].name,
                 shape_text(&scratch, y->num_dims, y->shape));
    if (x->num_dims && rows < x->shape[0]) bytes = bytes / x->shape[0] * rows;
    const unsigned char *p = stored_elements(a, x), *q = stored_elements(b, y);
    for (uint64_t i = 0; i < bytes; i++)
        if (p[i] != q[i]) fail_msg("%s differs at byte %llu", x->name, (unsigned long long)i);
}

static inline void open_hf_folder(struct checkpoint *c, const char *folder)
{
    checkpoint_init(c, folder);
    assert_ok(hf_folder_open(&c->catalog.stored, folder, NULL, &err));
}

/* Checks that two Hugging Face folders hold the same tensors, bit by bit. */
static inline void check_same_weights(const char *folder, const char *expected)
{
    struct checkpoint a, b;
    open_hf_folder(&a, folder);
    open_hf_folder(&b, expected);
    for (size_t i = 0; i < b.catalog.stored.num_tensors; i++) {
        const struct stored_tensor *y = &b.catalog.stored.tensors[i],
                                   *x = stored_find(&a.catalog.stored, y->name);
        if (!x) fail_msg("%s: no %s", folder, y->name);
        check_same_stored(&a, x, &b, y, UINT64_MAX);
    }
    assert_int_equal(a.catalog.stored.num_tensors, b.catalog.stored.num_tensors);
    checkpoint_release(&a);
    checkpoint_release(&b);
}

static inline void check_same_file(const char *a, const char *b)
{
    struct strbuf x = {0}, y = {0};
    assert_ok(file_read_all(a, 1 << 24, &x, &err));
    assert_ok(file_read_all(b, 1 << 24, &y, &err));
    if (x.length != y.length || memcmp(x.data, y.data, x.length)) fail_msg("%s is not %s", a, b);
    strbuf_release(&x);
    strbuf_release(&y);
}

/* ---- making ---- */

/* The dtype of a logical tensor. */
typedef enum dtype dtype_choice(void *context, const char *logical);

struct making_hf {
    dtype_choice *choose;
    void *context;
    struct safetensors_out tensors[4096];
    size_t count;
};

static inline enum status add_hf_tensor(void *context, const struct mapped_tensor *t,
                                        struct error *e)
{
    struct making_hf *m = context;
    (void)e;
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct mapped_part *p = &t->parts[i];
        if (i && strcmp(p->hf_name, t->parts[i - 1].hf_name) == 0) continue;
        assert_true(m->count < COUNT(m->tensors));
        m->tensors[m->count++] = (struct safetensors_out){
            .name = arena_printf(&scratch, "%s", p->hf_name),
            .dtype = m->choose(m->context, t->name),
            .num_dims = p->num_dims,
            .shape = arena_copy(&scratch, p->shape, p->num_dims * sizeof *p->shape)};
    }
    return OK;
}

/* Writes a model of random bits with this config.json to the new folder. */
static inline void make_hf(const char *folder, const struct model_map *map, const cJSON *config,
                           dtype_choice *choose, void *context, uint64_t *seed)
{
    struct making_hf *m = arena_alloc(&scratch, sizeof *m);
    struct strbuf text = {0}, file = {0};
    struct model_config c;
    uint64_t bytes;
    m->choose = choose;
    m->context = context;
    assert_ok(model_config_from_hf(map, config, &scratch, &c, &err));
    assert_ok(model_map_expand(map, &c, NULL, add_hf_tensor, m, &err));
    assert_ok(safetensors_layout(m->tensors, m->count, &file, &bytes, &err));
    while (file.length < bytes) {
        uint64_t random = test_random(seed);
        strbuf_add(&file, &random, bytes - file.length < 8 ? bytes - file.length : 8);
    }
    json_print(&text, config, 2);
    assert_ok(folder_create(folder, &err));
    assert_ok(file_write_all(path_join(&scratch, folder, "model.safetensors"), file.data,
                             file.length, false, &err));
    assert_ok(file_write_all(path_join(&scratch, folder, "config.json"), text.data, text.length,
                             false, &err));
    strbuf_release(&text);
    strbuf_release(&file);
}

#endif
