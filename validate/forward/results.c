#include "validate/forward/results.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"
#include "validate/forward/difference.h"

static const char *const telling[] = {"logits", "final_norm", "hidden.0"};

void results_open(struct results *r, const char *path, bool *found)
{
    const struct source_options none = {0};
    *r = (struct results){.path = path};
    *found = false;
    r->is_open = path_is_file(path);
    if (!r->is_open || opened_open(&r->opened, path, &none, NULL, true, true, NULL)) return;
    for (size_t i = 0; i < COUNT(telling); i++)
        *found |= results_have(r, telling[i]);
}

void results_close(struct results *r)
{
    if (r->is_open) opened_close(&r->opened);
}

bool results_have(const struct results *r, const char *name)
{
    return stored_find(&r->opened.checkpoint.catalog.stored, name);
}

enum { LOOKED_AT = 1 << 20, TOO_FEW = 16 };

/* Whether a coarser dtype represents all elements; too few may be so by chance. */
static bool are_all(const double *values, size_t count, enum dtype dtype)
{
    for (size_t i = 0; i < count; i++) {
        double back;
        char coarse[8];
        (void)cast_elements(coarse, dtype, &values[i], DT_F64, 1);
        (void)cast_elements(&back, DT_F64, coarse, dtype, 1);
        if (back != values[i]) return false;
    }
    return count >= TOO_FEW;
}

/* The coarsest dtype that represents the stored values. */
static enum status dtype_of_numbers(struct results *r, const struct stored_tensor *s,
                                    enum dtype *out, struct error *err)
{
    static const enum dtype coarser[] = {DT_BF16, DT_F16};
    struct tensor *t;
    *out = s->dtype;
    if (dtype_unit(s->dtype) == 0 || dtype_unit(s->dtype) >= dtype_unit(DT_F16)) return OK;
    TRY(catalog_wrap_stored(&r->opened.checkpoint.catalog, &r->opened.checkpoint.arena, s, &t,
                            err));
    const size_t count = min_u64(t->numel, LOOKED_AT);
    double *values = must_malloc(count * sizeof *values + 1);
    enum status st = panel_read_numbers(&r->opened.checkpoint.catalog, t, count, values, err);
    for (size_t i = 0; i < COUNT(coarser) && !st; i++)
        if (*out == s->dtype && are_all(values, count, coarser[i])) *out = coarser[i];
    free(values);
    return st;
}

static bool is_finer(enum dtype a, enum dtype b)
{
    return dtype_unit(a) < dtype_unit(b);
}

bool results_is_output(const char *name)
{
    return strncmp(name, "hidden.", 7) == 0 || strcmp(name, "final_norm") == 0 ||
           strcmp(name, "logits") == 0;
}

enum status results_dtype(struct results *r, enum dtype *out, struct error *err)
{
    const struct stored *all = &r->opened.checkpoint.catalog.stored;
    enum dtype stored = DT_F64, computed = DT_F8_E5M2, dtype;
    bool any = false;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct stored_tensor *s = &all->tensors[i];
        bool is_embedding = strcmp(s->name, "hidden.0") == 0;
        if (!results_is_output(s->name)) continue;
        if (is_finer(stored, s->dtype)) stored = s->dtype;
        if (is_embedding) continue;
        TRY(dtype_of_numbers(r, s, &dtype, err));
        if (is_finer(dtype, computed)) computed = dtype;
        any = true;
    }
    *out = any && is_finer(stored, computed) ? computed : stored;
    return OK;
}

static enum status check_shape(const struct results *r, const struct stored_tensor *s,
                               const struct tensor *t, uint64_t rows, uint64_t columns,
                               struct error *err)
{
    uint64_t last = s->num_dims ? s->shape[s->num_dims - 1] : 1;
    if (dtype_unit(s->dtype) == 0)
        return fail(err, ERR_UNSUPPORTED, "%s: %s has elements of %s, which are not floats",
                    r->path, s->name, dtype_infos[s->dtype].name);
    if (t->numel == rows * columns && (last == columns || columns == 1)) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s of A is %" PRIu64 " tokens by %" PRIu64 ", in B (%s) it is %" PRIu64
                " by %" PRIu64,
                s->name, rows, columns, r->path, last ? t->numel / last : 0, last);
}

enum status results_read(struct results *r, const char *name, uint64_t rows, uint64_t columns,
                         double **values, struct error *err)
{
    struct checkpoint *c = &r->opened.checkpoint;
    const struct stored_tensor *s = stored_find(&c->catalog.stored, name);
    struct tensor *t;
    TRY(catalog_wrap_stored(&c->catalog, &c->arena, s, &t, err));
    TRY(check_shape(r, s, t, rows, columns, err));
    *values = malloc(t->numel * sizeof **values + 1);
    if (!*values) return fail(err, ERR_MEMORY, "%s: no memory for %s", r->path, name);
    enum status st = panel_read_numbers(&c->catalog, t, t->numel, *values, err);
    if (!st) return OK;
    free(*values);
    *values = NULL;
    return st;
}
