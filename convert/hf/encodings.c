#include "convert/hf/encodings.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "common/checked.h"
#include "common/strbuf.h"

const char *encodings_pattern(struct arena *a, const char *name)
{
    char *out = arena_alloc(a, strlen(name) + 1), *to = out;
    for (const char *p = name; *p;) {
        const size_t digits = strspn(p, "0123456789");
        const bool whole = digits && (p == name || p[-1] == '.') && p[digits] == '.';
        *to++ = whole ? '*' : *p;
        p += whole ? digits : 1;
    }
    *to = '\0';
    return out;
}

struct decoding {
    struct checkpoint *c;
    struct quantization *q;
    enum dtype dtype;   /* of decoded weights */
    const char **names; /* [native tensors] */
    bool *used;         /* [native tensors] a companion of decoded codes */
    size_t num_decoded;
    size_t *counts;              /* [rows] decoded tensors */
    const struct quant_row **by; /* [native tensors] the row that decoded it */
};

/* Codes that are being decoded by a row. */
struct attempt {
    struct decoding *x;
    const struct quant_row *row;
    const struct native_tensor *codes;
    const char *name; /* of the weight */
    const struct native_tensor *scales, *global, *zeros, *shape;
    uint64_t rows, cols;     /* of a matrix */
    uint64_t dims[MAX_AXES]; /* of the decoded elements */
    unsigned num_dims;
};

static const struct native_tensor *find(const struct decoding *x, const char *name)
{
    return catalog_find_native(&x->c->catalog, name, NULL);
}

static const char *codes_shape(const struct attempt *t, const struct native_tensor *n)
{
    return shape_text(&t->x->c->arena, n->num_dims, n->shape);
}

/* ---- companions ---- */

/* Sets *out to a companion by its template; ERR_UNSUPPORTED if it is not there. */
static enum status find_companion(const struct attempt *t, const char *template, const char *what,
                                  const struct native_tensor **out, struct error *err)
{
    const char *name = template ? quant_fill(&t->x->c->arena, template, t->name) : NULL;
    *out = name ? find(t->x, name) : NULL;
    if (!name || *out) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s is %s, encoding %s, and %s, its %s, is missing",
                t->codes->name, dtype_infos[t->codes->dtype].name, t->row->name, name, what);
}

static enum status find_scales(struct attempt *t, struct error *err)
{
    for (size_t i = 0; t->row->scales[i] && !t->scales; i++)
        t->scales = find(t->x, quant_fill(&t->x->c->arena, t->row->scales[i], t->name));
    if (!t->scales) return find_companion(t, t->row->scales[0], "scale", &t->scales, err);
    if (t->row->scale_dtypes >> t->scales->dtype & 1) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s is %s, which is no scale of encoding %s", t->scales->name,
                dtype_infos[t->scales->dtype].name, t->row->name);
}

/* A companion of one F32. */
static enum status check_global(const struct attempt *t, struct error *err)
{
    if (!t->global || (t->global->numel == 1 && t->global->dtype == DT_F32)) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s is %s %s, expected one F32", t->global->name,
                dtype_infos[t->global->dtype].name, codes_shape(t, t->global));
}

static const struct stored_tensor *stored_companion(const struct attempt *t,
                                                    const struct native_tensor *n)
{
    return &t->x->c->catalog.stored.tensors[n->parts[0].stored];
}

static enum status readable(const struct attempt *t, const struct native_tensor *n,
                            struct tensor **out, struct error *err)
{
    *out = NULL;
    if (!n) return OK;
    return catalog_wrap_stored(&t->x->c->catalog, &t->x->c->arena, stored_companion(t, n), out,
                               err);
}

/* ---- shapes ---- */

/* Elements of one stored element of the codes. */
static uint64_t per_unit(const struct attempt *t)
{
    return 8 * dtype_bytes(t->codes->dtype) / quant_infos[t->row->code].bits;
}

/* Takes the stored [rows, cols] of codes whose rows are filled up. */
static enum status read_shape(struct attempt *t, struct error *err)
{
    struct tensor *shape;
    double n[2];
    const uint64_t units = t->codes->shape[t->codes->num_dims - 1], per = per_unit(t);
    if (t->shape->numel != 2 || (t->shape->dtype != DT_I64 && t->shape->dtype != DT_I32))
        return fail(err, ERR_UNSUPPORTED, "%s is %s %s, expected two whole numbers", t->shape->name,
                    dtype_infos[t->shape->dtype].name, codes_shape(t, t->shape));
    TRY(readable(t, t->shape, &shape, err));
    TRY(panel_read_numbers(&t->x->c->catalog, shape, 2, n, err));
    const bool whole = n[0] >= 0 && n[1] >= 0 && n[0] <= 0x1p53 && n[1] <= 0x1p53;
    const uint64_t rows = whole ? (uint64_t)n[0] : 0, cols = whole ? (uint64_t)n[1] : 0;
    if (!whole || rows != t->rows || cols / per + (cols % per != 0) != units)
        return fail(err, ERR_CORRUPT,
                    "%s says [%.0f, %.0f], but %s has shape %s, %" PRIu64 " elements in each %s",
                    t->shape->name, n[0], n[1], t->codes->name, codes_shape(t, t->codes), per,
                    dtype_infos[t->codes->dtype].name);
    t->cols = cols;
    return OK;
}

/* Sets dims to those of the decoded elements. */
static enum status take_shape(struct attempt *t, struct error *err)
{
    const struct native_tensor *n = t->codes;
    const unsigned last = t->row->in_blocks ? 2 : 1;
    const uint64_t per = per_unit(t);
    uint64_t cols = per;
    if (n->num_dims < last + 1 || n->num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED,
                    "%s has shape %s and is encoded as %s, which is for matrices", n->name,
                    codes_shape(t, n), t->row->name);
    if (t->row->in_blocks && n->shape[n->num_dims - 1] * per != t->row->block[1])
        return fail(err, ERR_UNSUPPORTED, "%s has shape %s, expected blocks of %" PRIu64 " bytes",
                    n->name, codes_shape(t, n), t->row->block[1] / per);
    for (unsigned k = 0; k < last; k++)
        if (!mul_u64(cols, n->shape[n->num_dims - 1 - k], &cols) || cols > MAX_ELEMENTS)
            return fail(err, ERR_CORRUPT, "%s: its shape %s overflows", n->name, codes_shape(t, n));
    t->num_dims = n->num_dims - last + 1;
    memcpy(t->dims, n->shape, (t->num_dims - 1) * sizeof *t->dims);
    t->rows = t->dims[t->num_dims - 2];
    t->cols = cols;
    if (t->shape) TRY(read_shape(t, err));
    t->dims[t->num_dims - 1] = t->cols;
    return OK;
}

static enum status check_grid(const struct attempt *t, const struct encoded *e, struct error *err)
{
    uint64_t expected[MAX_AXES];
    memcpy(expected, e->shape, e->num_dims * sizeof *expected);
    expected[e->num_dims - 2] = e->grid[0];
    expected[e->num_dims - 1] = e->grid[1];
    if (!encoded_is_grid(e, t->scales->num_dims, t->scales->shape))
        return fail(err, ERR_UNSUPPORTED,
                    "%s has shape %s, expected %s: one scale for each %" PRIu64 " x %" PRIu64
                    " elements of %s %s",
                    t->scales->name, codes_shape(t, t->scales),
                    shape_text(&t->x->c->arena, e->num_dims, expected), e->block[0], e->block[1],
                    t->codes->name, shape_text(&t->x->c->arena, e->num_dims, e->shape));
    if (!t->zeros) return OK;
    const uint64_t words = e->rows / 8 + (e->rows % 8 != 0);
    if (t->zeros->dtype == DT_I32 && t->zeros->num_dims == 2 && e->num_dims == 2 &&
        e->block[0] == 1 && t->zeros->shape[0] == words && t->zeros->shape[1] == e->grid[1])
        return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s is %s %s, expected I32 [%" PRIu64 ", %" PRIu64 "] for groups of %s",
                t->zeros->name, dtype_infos[t->zeros->dtype].name, codes_shape(t, t->zeros), words,
                e->grid[1], t->codes->name);
}

/* ---- one tensor ---- */

static enum status make_encoded(struct attempt *t, struct encoded **out, struct error *err)
{
    struct arena *a = &t->x->c->arena;
    struct tensor *codes, *scales, *global, *zeros;
    struct encoded *e = *out = arena_alloc(a, sizeof *e);
    const struct native_tensor *n = t->codes;
    TRY(find_scales(t, err));
    TRY(find_companion(t, t->row->global, "global scale", &t->global, err));
    TRY(find_companion(t, t->row->zeros, "zero point", &t->zeros, err));
    TRY(find_companion(t, t->row->shape, "shape", &t->shape, err));
    TRY(check_global(t, err));
    TRY(take_shape(t, err));
    *e = (struct encoded){
        .name = t->row->name, .code = t->row->code, .global_divides = t->row->global_divides};
    encoded_set_grid(e, t->num_dims, arena_copy(a, t->dims, t->num_dims * sizeof *t->dims),
                     t->row->block);
    TRY(check_grid(t, e, err));
    TRY(readable(t, n, &codes, err));
    TRY(readable(t, t->scales, &scales, err));
    TRY(readable(t, t->global, &global, err));
    TRY(readable(t, t->zeros, &zeros, err));
    const uint64_t matrix_rows = encoded_num_matrices(e) * e->rows;
    e->row_bytes = matrix_rows ? n->numel / matrix_rows * dtype_bytes(n->dtype) : 0;
    e->codes = codes;
    e->scales = scales;
    e->global = global;
    e->zeros = zeros;
    return OK;
}

static void use(struct decoding *x, const struct native_tensor *companion)
{
    if (companion) x->used[companion - x->c->catalog.native] = true;
}

static enum status decode_by(struct attempt *t, struct error *err)
{
    struct encoded *e;
    TRY(make_encoded(t, &e, err));
    struct pair pair = pair_whole(0, 0, e->rows * e->cols * encoded_num_matrices(e));
    uint64_t shape[MAX_AXES];
    memcpy(shape, e->shape, e->num_dims * sizeof *shape);
    if (t->row->transposed) {
        shape[e->num_dims - 2] = e->cols;
        shape[e->num_dims - 1] = e->rows;
        pair = encoded_transposed(e);
    }
    TRY(catalog_decode_native(&t->x->c->catalog, t->codes, e, t->x->dtype, e->num_dims, shape,
                              &pair, err));
    t->x->names[t->codes - t->x->c->catalog.native] = t->name;
    use(t->x, t->scales);
    use(t->x, t->global);
    use(t->x, t->zeros);
    use(t->x, t->shape);
    t->x->by[t->codes - t->x->c->catalog.native] = t->row;
    t->x->counts[t->row - t->x->q->rows]++;
    t->x->num_decoded++;
    return OK;
}

/* Whether a tensor is a companion by a template of the row; *name is then its
 * weight's. */
static bool is_companion_of(struct arena *a, const struct quant_row *row, const char *text,
                            const char **name)
{
    const char *const others[] = {row->global, row->zeros, row->shape};
    for (size_t i = 0; row->scales[i]; i++)
        if (row->scales[i][1] == 'n' && (*name = quant_unfill(a, row->scales[i], text)))
            return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] && (*name = quant_unfill(a, others[i], text))) return true;
    return false;
}

/* Whether a tensor is a companion of codes that are there: a scale may have
 * their dtype. */
static bool is_companion(const struct decoding *x, const struct native_tensor *n)
{
    struct arena *a = &x->c->arena;
    const char *name;
    for (size_t k = 0; k < x->q->num_rows; k++)
        if (is_companion_of(a, &x->q->rows[k], n->name, &name) &&
            find(x, quant_fill(a, x->q->rows[k].codes, name)))
            return true;
    return false;
}

/* Decodes native tensor i by the first row that fits, if it has codes. */
static enum status decode(struct decoding *x, size_t i, struct error *err)
{
    struct error first = {0};
    const struct native_tensor *n = &x->c->catalog.native[i];
    for (size_t k = 0; k < x->q->num_rows; k++) {
        const struct quant_row *row = &x->q->rows[k];
        struct error e = {0};
        struct attempt t = {.x = x, .row = row, .codes = n};
        if (n->state || n->dtype != row->dtype || is_companion(x, n)) continue;
        t.name = strcmp(row->codes, "{name}") ? quant_unfill(&x->c->arena, row->codes, n->name)
                                              : n->name;
        if (!t.name) continue;
        if (!decode_by(&t, &e)) return OK;
        if (!first.code) first = e;
    }
    if (!first.code) return OK;
    *err = first;
    return first.code;
}

/* ---- what is left ---- */

/* Marks a companion; refuses one of no codes. */
static enum status mark(struct decoding *x, size_t i, struct error *err)
{
    struct native_tensor *n = &x->c->catalog.native[i];
    const char *name;
    if (n->state || n->parts[0].encoded) return OK;
    if (fnmatch("*.weight_g_idx", n->name, 0) == 0)
        return fail(err, ERR_UNSUPPORTED,
                    "%s gives columns groups of their own (act-order), which is not supported",
                    n->name);
    n->of_encoding = x->used[i] || quantization_is_activation(x->q, n->name);
    for (size_t k = 0; k < x->q->num_rows && !n->of_encoding; k++) {
        if (!is_companion_of(&x->c->arena, &x->q->rows[k], n->name, &name)) continue;
        const size_t length = strlen(name), end = strlen(".weight");
        if (length < end || strcmp(name + length - end, ".weight")) continue; /* a name like it */
        const struct native_tensor *weight = find(x, name);
        if (weight)
            return fail(err, ERR_UNSUPPORTED, "%s is there, but %s is %s and not encoded", n->name,
                        name, dtype_infos[weight->dtype].name);
        return fail(err, ERR_UNSUPPORTED, "%s is there without %s, whose scale it is", n->name,
                    quant_fill(&x->c->arena, x->q->rows[k].codes, name));
    }
    return OK;
}

/* ---- which rows were chosen ---- */

static void add_chosen(const struct decoding *x, const struct quant_row *row, const char *name)
{
    struct arena *a = &x->c->arena;
    *ARENA_PUSH(a, x->q->chosen, x->q->num_chosen, x->q->chosen_capacity) =
        arena_printf(a, "%s %s", quant_label(a, row), name);
}

/* A pattern of names, and the row of all of them; NULL: they have several. */
struct pattern {
    const char *text;
    const struct quant_row *row;
};

/* Lists which row each weight has, if there are several. */
static void list_chosen(const struct decoding *x)
{
    struct arena *a = &x->c->arena;
    const size_t count = x->c->catalog.num_native;
    struct map patterns = {0};
    struct pattern *all = arena_array(a, count + 1, sizeof *all);
    size_t n = 0, at;
    for (size_t i = 0; i < count && x->q->num_rows > 1; i++) {
        if (!x->by[i]) continue;
        const char *text = encodings_pattern(a, x->names[i]);
        if (map_add(&patterns, text, n, &at))
            all[n++] = (struct pattern){text, x->by[i]};
        else if (all[at].row != x->by[i])
            all[at].row = NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (all[i].row) add_chosen(x, all[i].row, all[i].text);
    for (size_t i = 0; i < count && n; i++)
        if (x->by[i] && map_get(&patterns, encodings_pattern(a, x->names[i]), &at) && !all[at].row)
            add_chosen(x, x->by[i], x->names[i]);
    map_release(&patterns);
}

/* Names weights that are encoded though the config excludes their module: its
 * readers take the codes for numbers. */
static void note_excluded(const struct decoding *x)
{
    const char *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < x->c->catalog.num_native; i++) {
        const char *dot = x->by[i] ? strrchr(x->names[i], '.') : NULL;
        if (!dot) continue;
        const char *module = arena_text(&x->c->arena, x->names[i], (size_t)(dot - x->names[i]));
        if (!quantization_excludes(x->q, module)) continue;
        if (!count++) first = x->names[i];
    }
    if (count)
        checkpoint_note(x->c,
                        "%zu weight%s %s encoded, though the config excludes %s from that: %s%s",
                        count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
                        count == 1 ? "it" : "them", first, count > 1 ? ", ..." : "");
}

static void note_decoded(const struct decoding *x)
{
    struct strbuf text = {0};
    size_t companions = 0;
    for (size_t i = 0; i < x->c->catalog.num_native; i++)
        companions += x->c->catalog.native[i].of_encoding;
    for (size_t k = 0; k < x->q->num_rows; k++)
        if (x->counts[k])
            strbuf_printf(&text, "%s%zu %s", text.length ? ", " : "", x->counts[k],
                          x->q->rows[k].name);
    if (x->num_decoded)
        checkpoint_note(x->c,
                        "encoded weights are read as %s: %s; %zu scales and the like are kept",
                        dtype_infos[x->dtype].name, text.data, companions);
    else
        checkpoint_note(x->c, "config.json names a quantisation (%s), but no weight is encoded",
                        x->q->method);
    strbuf_release(&text);
}

enum status encodings_decode(const struct naming_import *import, struct error *err)
{
    struct checkpoint *c = import->c;
    struct arena *a = &c->arena;
    const size_t count = c->catalog.num_native;
    const struct source_options *o = import->o;
    struct decoding x = {.c = c, .q = import->quantization, .dtype = DT_BF16};
    if (!x.q) return OK;
    if (o->casts && o->dtype != DT_BF16) x.dtype = DT_F32;
    x.names = arena_array(a, count + 1, sizeof *x.names);
    x.used = arena_array(a, count + 1, sizeof *x.used);
    x.by = arena_array(a, count + 1, sizeof *x.by);
    x.counts = arena_array(a, x.q->num_rows + 1, sizeof *x.counts);
    for (size_t i = 0; i < count; i++)
        x.names[i] = c->catalog.native[i].name;
    for (size_t i = 0; i < count; i++)
        TRY(decode(&x, i, err));
    for (size_t i = 0; i < count; i++)
        TRY(mark(&x, i, err));
    list_chosen(&x);
    note_decoded(&x);
    note_excluded(&x);
    return x.num_decoded ? catalog_rename_native(&c->catalog, x.names, err) : OK;
}
