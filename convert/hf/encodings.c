#include "convert/hf/encodings.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/json.h"
#include "common/memory.h"
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

/* A state of bitsandbytes. */
struct json_state {
    uint64_t shape[2], block, nested_block;
    double nested_offset;
};

/* Codes that are being decoded by a row. */
struct attempt {
    struct decoding *x;
    const struct quant_row *row;
    const struct native_tensor *codes;
    const char *name; /* of the weight */
    const struct native_tensor *scales, *global, *zeros, *shape, *groups, *table, *state;
    const struct native_tensor *nested_scales, *nested_table;
    uint64_t rows, cols;     /* of a matrix */
    uint64_t dims[MAX_AXES]; /* of the decoded elements */
    unsigned num_dims;
    uint64_t block[2];
    struct json_state json; /* if there is a state */
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

/* Reads the text of a companion as JSON, which the caller deletes. */
static enum status read_json(const struct attempt *t, const struct native_tensor *n, cJSON **out,
                             struct error *err)
{
    enum { MOST = 4096 };
    struct tensor *bytes;
    double numbers[MOST];
    char text[MOST];
    if (n->dtype != DT_U8 || n->numel > MOST)
        return fail(err, ERR_UNSUPPORTED, "%s is %s %s, expected U8 of at most %d bytes", n->name,
                    dtype_infos[n->dtype].name, codes_shape(t, n), MOST);
    TRY(readable(t, n, &bytes, err));
    TRY(panel_read_numbers(&t->x->c->catalog, bytes, n->numel, numbers, err));
    for (uint64_t i = 0; i < n->numel; i++)
        text[i] = (char)(unsigned char)numbers[i];
    if (!json_parse(text, n->numel, JSON_STRICT, out, err)) return OK;
    return fail_in(err, "%s", n->name);
}

/* Reads what a state says of shape and groups. */
static enum status read_state(struct attempt *t, struct error *err)
{
    struct json_state *s = &t->json;
    cJSON *tree;
    TRY(read_json(t, t->state, &tree, err));
    const cJSON *shape = json_get(tree, "shape");
    const bool nested = t->scales->dtype == DT_U8;
    const bool fits =
        cJSON_GetArraySize(shape) == 2 && json_as_u64(shape->child, &s->shape[0]) &&
        json_as_u64(shape->child->next, &s->shape[1]) &&
        json_as_u64(json_get(tree, "blocksize"), &s->block) && s->block &&
        (!nested ||
         (json_as_u64(json_get(tree, "nested_blocksize"), &s->nested_block) && s->nested_block &&
          json_as_double(json_get(tree, "nested_offset"), &s->nested_offset)));
    cJSON_Delete(tree);
    uint64_t numel;
    const uint64_t per = per_unit(t);
    if (!fits || !mul_u64(s->shape[0], s->shape[1], &numel) || numel > MAX_ELEMENTS)
        return fail(err, ERR_UNSUPPORTED, "%s has no shape of two dims, blocksize, or %s",
                    t->state->name, "nested_blocksize and nested_offset of scales that are U8");
    if (numel / per + (numel % per != 0) != t->codes->numel)
        return fail(err, ERR_CORRUPT,
                    "%s says [%" PRIu64 ", %" PRIu64 "], but %s has shape %s, %" PRIu64
                    " elements in each %s",
                    t->state->name, s->shape[0], s->shape[1], t->codes->name,
                    codes_shape(t, t->codes), per, dtype_infos[t->codes->dtype].name);
    t->num_dims = 2;
    t->dims[0] = t->rows = 1;
    t->dims[1] = t->cols = numel;
    t->block[1] = s->block;
    return OK;
}

/* Sets dims to those of the decoded elements. */
static enum status take_shape(struct attempt *t, struct error *err)
{
    if (t->state) return read_state(t, err);
    const struct native_tensor *n = t->codes;
    const unsigned last = t->row->in_blocks ? 2 : 1;
    const uint64_t per = per_unit(t), tall = max_u64(t->row->words.rows, 1);
    uint64_t cols = per / tall, rows;
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
    if (!mul_u64(t->dims[t->num_dims - 2], tall, &rows) || rows > MAX_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: its shape %s overflows", n->name, codes_shape(t, n));
    t->rows = t->dims[t->num_dims - 2] = rows;
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
    const struct quant_words *z = &t->row->zero_words;
    const uint64_t rows = e->grid[0] / z->rows + (e->grid[0] % z->rows != 0);
    const uint64_t cols = e->grid[1] / z->cols + (e->grid[1] % z->cols != 0);
    if (t->zeros->dtype == t->row->zeros_dtype && t->zeros->num_dims == 2 && e->num_dims == 2 &&
        t->zeros->shape[0] == rows && t->zeros->shape[1] == cols)
        return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s is %s %s, expected %s [%" PRIu64 ", %" PRIu64 "] for groups of %s",
                t->zeros->name, dtype_infos[t->zeros->dtype].name, codes_shape(t, t->zeros),
                dtype_infos[t->row->zeros_dtype].name, rows, cols, t->codes->name);
}

/* Sets e->lines, unless groups follow one another. */
static enum status read_row_groups(const struct attempt *t, struct encoded *e, struct error *err)
{
    struct tensor *groups;
    if (!t->groups) return OK;
    if (t->groups->dtype != DT_I32 || t->groups->num_dims != 1 || e->num_dims != 2 ||
        t->groups->numel != e->rows)
        return fail(err, ERR_UNSUPPORTED, "%s is %s %s, expected I32 [%" PRIu64 "], as %s has rows",
                    t->groups->name, dtype_infos[t->groups->dtype].name, codes_shape(t, t->groups),
                    e->rows, t->codes->name);
    TRY(readable(t, t->groups, &groups, err));
    double *lines = must_malloc(e->rows * sizeof *lines);
    uint32_t *out = arena_array(&t->x->c->arena, e->rows + 1, sizeof *out);
    enum status st = panel_read_numbers(&t->x->c->catalog, groups, e->rows, lines, err);
    for (uint64_t i = 0; i < e->rows && !st; i++) {
        if (lines[i] < 0 || lines[i] >= (double)e->grid[0])
            st = fail(err, ERR_CORRUPT, "%s: row %" PRIu64 " is of group %.0f of %" PRIu64,
                      t->groups->name, i, lines[i], e->grid[0]);
        else if ((out[i] = (uint32_t)lines[i]) != i / e->block[0])
            e->lines = out;
    }
    free(lines);
    return st;
}

/* ---- tables ---- */

/* Fails if a companion is not F32 [count]. */
static enum status check_floats(const struct attempt *t, const struct native_tensor *n,
                                uint64_t count, struct error *err)
{
    if (n->dtype == DT_F32 && n->num_dims == 1 && n->numel == count) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s is %s %s, expected F32 [%" PRIu64 "]", n->name,
                dtype_infos[n->dtype].name, codes_shape(t, n), count);
}

/* Fails if the table is not the row's: programs take their own. */
static enum status check_table(const struct attempt *t, struct error *err)
{
    struct tensor *table;
    double numbers[QUANT_NUMBERS];
    if (!t->table) return OK;
    TRY(check_floats(t, t->table, QUANT_NUMBERS, err));
    TRY(readable(t, t->table, &table, err));
    TRY(panel_read_numbers(&t->x->c->catalog, table, QUANT_NUMBERS, numbers, err));
    for (int i = 0; i < QUANT_NUMBERS; i++) {
        const double expected = t->row->numbers[i];
        if (!(numbers[i] >= expected && numbers[i] <= expected))
            return fail(err, ERR_UNSUPPORTED, "%s: number %d is %.9g, expected %.9g of encoding %s",
                        t->table->name, i, numbers[i], expected, t->row->name);
    }
    return OK;
}

/* Sets e->nested, of scales that are bytes. */
static enum status make_nested(struct attempt *t, struct encoded *e, struct error *err)
{
    enum { NUMBERS = 256 };
    struct arena *a = &t->x->c->arena;
    struct tensor *table, *scales;
    double numbers[NUMBERS];
    if (!t->row->nested_scales || t->scales->dtype != DT_U8) return OK;
    TRY(find_companion(t, t->row->nested_scales, "scale of scales", &t->nested_scales, err));
    TRY(find_companion(t, t->row->nested_table, "table of scales", &t->nested_table, err));
    const uint64_t groups = e->grid[0] * e->grid[1], block = t->json.nested_block;
    TRY(check_floats(t, t->nested_scales, groups / block + (groups % block != 0), err));
    TRY(check_floats(t, t->nested_table, NUMBERS, err));
    TRY(readable(t, t->nested_scales, &scales, err));
    TRY(readable(t, t->nested_table, &table, err));
    TRY(panel_read_numbers(&t->x->c->catalog, table, NUMBERS, numbers, err));
    float *out = arena_array(a, NUMBERS, sizeof *out);
    struct encoded_nested *nested = arena_alloc(a, sizeof *nested);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = (float)numbers[i];
    *nested = (struct encoded_nested){
        .numbers = out, .scales = scales, .block = block, .offset = (float)t->json.nested_offset};
    e->nested = nested;
    return OK;
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
    TRY(find_companion(t, t->row->groups, "index of groups", &t->groups, err));
    TRY(find_companion(t, t->row->state, "state", &t->state, err));
    TRY(find_companion(t, t->row->table, "table", &t->table, err));
    TRY(check_global(t, err));
    TRY(check_table(t, err));
    memcpy(t->block, t->row->block, sizeof t->block);
    TRY(take_shape(t, err));
    *e = (struct encoded){.name = t->row->name,
                          .code = t->row->code,
                          .numbers = t->row->numbers,
                          .factor = t->row->factor,
                          .global_divides = t->row->global_divides,
                          .words = t->row->words,
                          .zero_words = t->row->zero_words,
                          .zero_offset = (float)t->row->zero_offset};
    encoded_set_grid(e, t->num_dims, arena_copy(a, t->dims, t->num_dims * sizeof *t->dims),
                     t->block);
    TRY(check_grid(t, e, err));
    TRY(read_row_groups(t, e, err));
    TRY(make_nested(t, e, err));
    TRY(readable(t, n, &codes, err));
    TRY(readable(t, t->scales, &scales, err));
    TRY(readable(t, t->global, &global, err));
    TRY(readable(t, t->zeros, &zeros, err));
    const uint64_t lines = encoded_num_matrices(e) * e->rows / max_u64(e->words.rows, 1);
    e->row_bytes = lines ? n->numel / lines * dtype_bytes(n->dtype) : 0;
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
    memcpy(shape, t->state ? t->json.shape : e->shape, e->num_dims * sizeof *shape);
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
    use(t->x, t->groups);
    use(t->x, t->table);
    use(t->x, t->state);
    use(t->x, t->nested_scales);
    use(t->x, t->nested_table);
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
    const char *const others[] = {row->global, row->zeros, row->shape,         row->groups,
                                  row->table,  row->state, row->nested_scales, row->nested_table};
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

/* Refuses a tensor by which other programs change decoded weights. */
static enum status check_companion(const char *name, struct error *err)
{
    static const struct {
        const char *glob, *does;
    } refused[] = {{"*.weight_g_idx", "gives columns groups of their own (act-order)"},
                   {"*pre_quant_scale", "scales the columns of decoded weights"}};
    for (size_t i = 0; i < COUNT(refused); i++)
        if (fnmatch(refused[i].glob, name, 0) == 0)
            return fail(err, ERR_UNSUPPORTED, "%s %s, which is not supported", name,
                        refused[i].does);
    return OK;
}

/* Marks a companion; refuses one of no codes. */
static enum status mark(struct decoding *x, size_t i, struct error *err)
{
    struct native_tensor *n = &x->c->catalog.native[i];
    const char *name;
    if (n->state || n->parts[0].encoded) return OK;
    TRY(check_companion(n->name, err));
    n->of_encoding = x->used[i] || quantization_is_activation(x->q, n->name);
    for (size_t k = 0; k < x->q->num_rows && !n->of_encoding; k++) {
        if (!is_companion_of(&x->c->arena, &x->q->rows[k], n->name, &name)) continue;
        const size_t length = strlen(name), end = strlen(".weight");
        if (length < end || strcmp(name + length - end, ".weight")) continue; /* a name like it */
        const struct native_tensor *weight = find(x, name);
        if (weight)
            return fail(err, ERR_UNSUPPORTED, "%s is there, but %s is %s and not encoded", n->name,
                        name, dtype_infos[weight->dtype].name);
        const char *codes_name = quant_fill(&x->c->arena, x->q->rows[k].codes, name);
        const struct native_tensor *codes = find(x, codes_name);
        if (codes)
            return fail(err, ERR_UNSUPPORTED, "%s is %s, and no codes of encoding %s", codes_name,
                        dtype_infos[codes->dtype].name, x->q->rows[k].name);
        return fail(err, ERR_UNSUPPORTED, "%s is there without %s, which it belongs to", n->name,
                    codes_name);
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
