/* testing_hf.h - makes Hugging Face models of random bits for the tests of this
 * folder, and compares models bit by bit. */
#ifndef FERRY_CONVERT_TESTING_HF_H
#define FERRY_CONVERT_TESTING_HF_H

#include "ckpt/panel.h"
#include "common/count.h"
#include "convert/source.h"
#include "convert/testing_convert.h"
#include "formats/hf_folder.h"
#include "formats/safetensors.h"
#include "kernels/cpu/cast.h"

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

static inline void write_file(const char *folder, const char *name, const struct strbuf *bytes)
{
    assert_ok(
        file_write_all(path_join(&scratch, folder, name), bytes->data, bytes->length, false, &err));
}

static inline void add_random(struct strbuf *file, uint64_t bytes, uint64_t *seed)
{
    while (file->length < bytes) {
        uint64_t random = test_random(seed);
        strbuf_add(file, &random, bytes - file->length < 8 ? bytes - file->length : 8);
    }
}

/* Sets a master to the value of its weight in `model`. */
static inline void set_master(struct strbuf *file, const struct safetensors_out *master,
                              const struct making_hf *m, const struct strbuf *model)
{
    for (size_t k = 0; k < m->count; k++) {
        const struct safetensors_out *t = &m->tensors[k];
        uint64_t numel = 1;
        if (strcmp(t->name, master->name + strlen("fp32."))) continue;
        for (unsigned d = 0; d < t->num_dims; d++)
            numel *= t->shape[d];
        (void)cast_elements(file->data + master->offset_bytes, DT_F32,
                            model->data + t->offset_bytes, t->dtype, numel);
    }
}

/* Writes optimizer.safetensors beside the weights in `model`: moments of random
 * bits, and for weights that are narrower than F32 masters of their value. */
static inline void make_optimizer(const char *folder, const struct making_hf *m,
                                  const struct strbuf *model, uint64_t *seed)
{
    static const char *const states[] = {"exp_avg", "exp_avg_sq", "fp32"};
    struct safetensors_out *all = arena_array(&scratch, 3 * m->count + 1, sizeof *all);
    struct strbuf file = {0};
    const int64_t step = 7;
    uint64_t bytes;
    size_t n = 0;
    for (size_t i = 0; i < m->count; i++)
        for (size_t k = 0; k < 2u + (dtype_bytes(m->tensors[i].dtype) < 4); k++) {
            all[n] = m->tensors[i];
            all[n].dtype = DT_F32;
            all[n++].name = arena_printf(&scratch, "%s.%s", states[k], m->tensors[i].name);
        }
    all[n++] = (struct safetensors_out){.name = "step", .dtype = DT_I64};
    assert_ok(safetensors_layout(all, n, &file, &bytes, &err));
    add_random(&file, bytes, seed);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(all[i].name, "step") == 0)
            memcpy(file.data + all[i].offset_bytes, &step, sizeof step);
        if (strncmp(all[i].name, "fp32.", 5) == 0) set_master(&file, &all[i], m, model);
    }
    write_file(folder, "optimizer.safetensors", &file);
    strbuf_release(&file);
}

/* Writes a model of random bits with this config.json to the new folder;
 * trained: with the states of an optimizer. */
static inline void make_hf(const char *folder, const struct model_map *map, const cJSON *config,
                           dtype_choice *choose, void *context, bool trained, uint64_t *seed)
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
    add_random(&file, bytes, seed);
    json_print(&text, config, 2);
    assert_ok(folder_create(folder, &err));
    write_file(folder, "model.safetensors", &file);
    write_file(folder, "config.json", &text);
    if (trained) make_optimizer(folder, m, &file, seed);
    strbuf_release(&text);
    strbuf_release(&file);
}

#endif
