/* testing_legacy.h - a small model with the states of an optimizer, written as
 * a legacy checkpoint, and its files. */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_TESTING_LEGACY_H
#define FERRY_CONVERT_MEGATRON_LEGACY_TESTING_LEGACY_H

#include "convert/map/testing_models.h"
#include "formats/torch.h"

/* A model with states, and a legacy checkpoint of it. */
static struct checkpoint hf, legacy;
static const char *iteration; /* its folder */

static inline void open_both(const char *model, const char *tied, const char *optim_format,
                             const char *layout)
{
    const struct source_options o = {.true_vocab_size = 11};
    const char *from = make_trained("hf", model, tied), *to = in_scratch("legacy");
    assert_ok(CONVERT(from, to, "--to=torch", "--optim", "--make-vocab-size-divisible-by=1",
                      optim_format, layout, "--tp=2"));
    assert_ok(source_open(&hf, from, &(struct source_options){0}, &maps, &err));
    assert_ok(source_open(&legacy, to, &o, &maps, &err));
    assert_null(legacy.training.optimizer.unread);
    iteration = legacy.folder;
}

static inline void close_both(void)
{
    checkpoint_release(&hf);
    checkpoint_release(&legacy);
    assert_ok(path_remove(in_scratch("hf"), &err));
    assert_ok(path_remove(in_scratch("legacy"), &err));
}

/* All elements of a logical tensor of F32. */
static inline const float *elements_of(const struct checkpoint *c, const char *name)
{
    const struct tensor *t = catalog_find(&c->catalog, name);
    if (!t) fail_msg("no %s", name);
    const size_t bytes = t->numel * sizeof(float);
    struct stored_reader *reader = stored_reader_create(&c->catalog.stored, 4);
    struct panel_reader r = {.reader = reader,
                             .buffer_bytes = bytes,
                             .temp = arena_alloc(&scratch, bytes),
                             .cast = arena_alloc(&scratch, bytes)};
    float *out = arena_alloc(&scratch, bytes);
    assert_int_equal(t->dtype, DT_F32);
    assert_ok(panel_read(&r, t, 0, t->numel, out, &err));
    stored_reader_free(reader);
    return out;
}

/* ---- one file ---- */

struct opened {
    struct checkpoint c;
    struct torch_file t;
};

static inline void open_file(struct opened *f, const char *rank, const char *name)
{
    const char *path = path_join(&scratch, path_join(&scratch, iteration, rank), name);
    checkpoint_init(&f->c, "file");
    assert_ok(torch_open(&f->t, &f->c.catalog.stored, path, 0, UINT64_MAX, &err));
}

static inline void close_file(struct opened *f)
{
    torch_close(&f->t);
    checkpoint_release(&f->c);
}

static inline const void *tensor_elements(struct opened *f, const struct value *v, uint64_t *numel)
{
    const char *name = arena_printf(&scratch, "%zu", f->c.catalog.stored.num_tensors);
    assert_ok(torch_add_tensor(&f->t, &f->c.catalog.stored, name, v, &err));
    const struct stored_tensor *s = stored_find(&f->c.catalog.stored, name);
    *numel = stored_numel(s);
    return stored_elements(&f->c, s);
}

#endif
