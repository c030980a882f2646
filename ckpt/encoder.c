#include "ckpt/encoder.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/encoding_internal.h"
#include "common/checked.h"
#include "common/half.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"

enum {
    RUN = 8192,           /* elements at once */
    LONGEST_GROUP = 2048, /* in one row, that is looked at whole each time */
    HULL = RUN + 2 * LONGEST_GROUP,
    WIDEST = 8, /* bytes of an element */
};

struct encoder {
    const struct encoded *form;
    const struct tensor *weight;
    enum encoder_rule rule;
    struct encoder *next; /* a ring of those that share a global scale */
    atomic_uint_fast64_t renewed;
    /* The sizes of groups that are no short run of a row. */
    pthread_mutex_t lock;
    float *amax;
    float largest; /* element, where the global scale is made of it */
    bool has_largest;
    atomic_uint_fast64_t unread; /* bytes of codes, and scales; at 0 amax is freed */
};

struct encoder *encoder_create(const struct encoded *form, const struct tensor *weight,
                               enum encoder_rule rule)
{
    struct encoder *e = must_calloc(1, sizeof *e);
    e->form = form;
    e->weight = weight;
    e->rule = rule;
    e->next = e;
    atomic_store(&e->unread, encoded_num_matrices(form) *
                                 (form->rows * form->row_bytes + form->grid[0] * form->grid[1]));
    pthread_mutex_init(&e->lock, NULL);
    return e;
}

void encoder_free(struct encoder *e)
{
    if (!e) return;
    pthread_mutex_destroy(&e->lock);
    free(e->amax);
    free(e);
}

void encoder_share_global(struct encoder *a, struct encoder *b)
{
    for (const struct encoder *x = a->next; x != a; x = x->next)
        if (x == b) return;
    struct encoder *next = a->next; /* two rings become one */
    a->next = b->next;
    b->next = next;
}

uint64_t encoder_num_renewed(const struct encoder *e)
{
    return atomic_load(&e->renewed);
}

const struct encoded *encoder_form(const struct encoder *e)
{
    return e->form;
}

const struct tensor *encoder_weight(const struct encoder *e)
{
    return e->weight;
}

static void add_whole(struct encoder *e, struct arena *a, struct tensor *t, enum origin_id origin)
{
    const struct piece piece = {.origin = origin, .dtype = t->dtype, .encoder = e};
    const struct pair whole = pair_whole(0, 0, t->numel);
    tensor_add_piece(a, t, &piece, &whole);
    t->stored_name = e->weight->stored_name;
    t->stored_names = e->weight->stored_names;
    t->num_stored_names = e->weight->num_stored_names;
}

void encoder_add_codes(struct encoder *e, struct arena *a, struct tensor *t)
{
    add_whole(e, a, t, ORIGIN_CODES);
}

void encoder_add_scales(struct encoder *e, struct arena *a, struct tensor *t)
{
    add_whole(e, a, t, ORIGIN_SCALES);
}

void encoder_add_global(struct encoder *e, struct arena *a, struct tensor *t)
{
    add_whole(e, a, t, ORIGIN_GLOBAL_SCALE);
}

/* ---- amax ---- */

static bool is_short(const struct encoded *f)
{
    return f->block[0] == 1 && f->block[1] <= LONGEST_GROUP;
}

/* Reads elements of the weight as F32. */
static enum status read_weight(struct panel_reader *r, const struct encoder *e, uint64_t low,
                               uint64_t count, float *out, struct error *err)
{
    char raw[HULL * WIDEST];
    const bool has_nan = e->form->code == QUANT_E4M3;
    const size_t element = dtype_bytes(e->weight->dtype);
    uint64_t at = 0;
    do { /* as much as the reader's buffers hold */
        const uint64_t n = min_u64(count - at, max_u64(r->buffer_bytes / WIDEST, 1));
        TRY(panel_read(r, e->weight, low + at, n, raw + at * element, err));
        at += n;
    } while (at < count);
    (void)cast_elements(out, DT_F32, raw, e->weight->dtype, count);
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(out[i]) && !(has_nan && isnan(out[i])))
            return fail(err, ERR_UNSUPPORTED, "element %" PRIu64 " is %g, which %s has no code for",
                        low + i, (double)out[i], e->form->name);
    return OK;
}

/* The largest of numbers[n] and `amax`. compressed-tensors takes both sides of
 * whole numbers alike. */
static float largest_of(const struct encoder *e, const float *numbers, uint64_t n, float amax)
{
    const bool alike = e->rule == ENCODER_COMPRESSED_TENSORS;
    return quant_amax(alike ? QUANT_E4M3 : e->form->code, numbers, n, amax);
}

/* Increases amax[lines, groups] of a span to those of elements [low, low +
 * count), which are numbers[]. */
static void take_sizes(const struct encoder *e, const struct encoded_span *s, uint64_t low,
                       uint64_t count, const float *numbers, float *amax)
{
    const struct encoded *f = e->form;
    for (uint64_t at = low, n; at < low + count; at += n) {
        const uint64_t row = at / f->cols, col = at % f->cols, group = col / f->block[1];
        const uint64_t line = encoded_line(f, row);
        n = min_u64(f->cols - col, low + count - at);
        n = min_u64(n, (group + 1) * f->block[1] - col);
        float *most = &amax[(line - s->first_line) * s->groups + group - s->first_group];
        *most = largest_of(e, numbers + (at - low), n, *most);
    }
}

static uint64_t numel_of(const struct encoded *f)
{
    return encoded_num_matrices(f) * f->rows * f->cols;
}

static enum status make_amax(struct panel_reader *r, struct encoder *e, float *amax,
                             struct error *err)
{
    const struct encoded *f = e->form;
    const uint64_t numel = numel_of(f);
    const struct encoded_span all = {.groups = f->grid[1]};
    float numbers[RUN];
    for (uint64_t low = 0, n; low < numel; low += n) {
        n = min_u64(numel - low, RUN);
        TRY(read_weight(r, e, low, n, numbers, err));
        take_sizes(e, &all, low, n, numbers, amax);
    }
    return OK;
}

/* Copies amax of groups from `first` on. Other threads wait for the first that
 * wants it, which reads the weight. */
static enum status copy_amax(struct panel_reader *r, struct encoder *e, uint64_t first, uint64_t n,
                             float *out, struct error *err)
{
    const struct encoded *f = e->form;
    const uint64_t groups = encoded_num_matrices(f) * f->grid[0] * f->grid[1];
    enum status st = OK;
    pthread_mutex_lock(&e->lock);
    if (!e->amax) {
        e->amax = must_calloc(groups + 1, sizeof *e->amax);
        st = make_amax(r, e, e->amax, err);
    }
    if (!st) memcpy(out, e->amax + first, n * sizeof *out);
    if (st) {
        free(e->amax);
        e->amax = NULL;
    }
    pthread_mutex_unlock(&e->lock);
    return st;
}

/* The largest element of a weight. */
static enum status find_largest(struct panel_reader *r, struct encoder *e, float *out,
                                struct error *err)
{
    const uint64_t numel = numel_of(e->form);
    enum status st = OK;
    float numbers[RUN], largest = 0;
    pthread_mutex_lock(&e->lock);
    for (uint64_t low = 0, n; low < numel && !e->has_largest && !st; low += n) {
        n = min_u64(numel - low, RUN);
        st = read_weight(r, e, low, n, numbers, err);
        if (!st) largest = largest_of(e, numbers, n, largest);
    }
    if (!st && !e->has_largest) {
        e->largest = largest;
        e->has_largest = true;
    }
    *out = e->largest;
    pthread_mutex_unlock(&e->lock);
    return st;
}

/* Each byte of codes and each scale is read once; if not, amax is made again. */
static void count_read(struct encoder *e, uint64_t count)
{
    if (atomic_fetch_sub(&e->unread, count) != count) return;
    pthread_mutex_lock(&e->lock);
    free(e->amax);
    e->amax = NULL;
    pthread_mutex_unlock(&e->lock);
}

/* ---- scales ---- */

/* The least power of two that is no smaller, as E8M0. */
static unsigned char e8m0_above(float x)
{
    int exponent;
    const float fraction = frexpf(x, &exponent);
    if (x <= 0x1p-127f) return 0;
    return (unsigned char)(exponent - (fraction <= .5f) + 127);
}

static bool is_power(enum dtype dtype)
{
    return dtype == DT_U8 || dtype == DT_F8_E8M0;
}

static char e4m3_of(float x)
{
    char code;
    const float one = 1;
    const struct quant_run run = {.code = QUANT_E4M3, .count = 1, .group = 1, .scales = &one};
    quant_encode(&run, &x, &code);
    return code;
}

static enum status store_scale(const struct encoder *e, float scale, char *raw, struct error *err)
{
    const enum dtype dtype = e->form->scales->dtype;
    if (is_power(dtype)) {
        *raw = (char)e8m0_above(scale);
        return OK;
    }
    if (dtype != DT_F8_E4M3) {
        (void)cast_elements(raw, dtype, &scale, DT_F32, 1);
        return OK;
    }
    *raw = e4m3_of(scale);
    if (fabsf(scale) <= quant_infos[QUANT_E4M3].largest) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "a scale of %g does not fit F8_E4M3 beside the kept global scale: its weights "
                "became too large for %s",
                (double)scale, e->form->name);
}

/* Whether elements up to amax have codes by a scale. Whole numbers are rounded;
 * rounding to BF16 may have made the largest float larger. */
static bool fits(const struct encoder *e, float amax, float scale)
{
    const struct quant_info *info = &quant_infos[e->form->code];
    const bool is_whole = info->least + info->largest < 0;
    const float most = is_whole ? info->largest + .5f : info->largest * (1 + 0x1p-8f);
    return e->form->zeros || amax <= fabsf(scale) * most;
}

/* Makes the scale of a group fit its amax: raw, as stored, and *scale, with the
 * global one. */
static enum status settle_scale(struct encoder *e, float amax, float global, char *raw,
                                float *scale, bool *renewed, struct error *err)
{
    const struct encoded *f = e->form;
    const enum dtype dtype = f->scales->dtype;
    *scale = encoded_with_global(f, encoded_scale(dtype, raw, 0), global);
    *renewed = !fits(e, amax, *scale);
    if (!*renewed) return OK;
    const float wanted = amax / quant_infos[f->code].largest;
    TRY(store_scale(e, f->global_divides ? wanted * global : wanted / global, raw, err));
    *scale = encoded_with_global(f, encoded_scale(dtype, raw, 0), global);
    return OK;
}

/* Makes a scale as transformers does: raw, as stored, and what elements are
 * multiplied by. */
static void make_by_reciprocal(const struct encoder *e, float amax, char *raw, float *factor)
{
    const enum dtype dtype = e->form->scales->dtype;
    /* torch divides a number by a tensor so */
    const float wanted = amax > 0 ? 1 / amax * quant_infos[e->form->code].largest : 1;
    const float by = isfinite(wanted) ? wanted : 1, scale = 1 / by; /* of the least: codes of 0 */
    *factor = by;
    if (!is_power(dtype)) {
        (void)cast_elements(raw, dtype, &scale, DT_F32, 1);
        return;
    }
    const float exponent = ceilf(log2f(scale < FLT_MIN ? FLT_MIN : scale));
    *raw = (char)(unsigned char)((int)exponent + 127);
    *factor = 1 / encoded_scale(dtype, raw, 0);
}

/* A number as a dtype keeps it. */
static float kept_as(enum dtype dtype, float x)
{
    char raw[WIDEST];
    if (dtype == DT_F32) return x;
    if (dtype == DT_BF16) return bf16_load(bf16_store(x));
    (void)cast_elements(raw, dtype, &x, DT_F32, 1);
    (void)cast_elements(&x, DT_F32, raw, dtype, 1);
    return x;
}

/* The exponent of amax, and 1 more from 1.75 times its power of two. */
static int exponent_of(float amax)
{
    int exponent;
    const float fraction = frexpf(amax, &exponent);
    return exponent - (fraction < .875f);
}

/* 1 where a dtype has no scale for the weight. */
static float make_global(const struct encoder *e, float largest)
{
    const enum dtype dtype = e->weight->dtype;
    const float span = quant_infos[QUANT_E4M3].largest * quant_infos[e->form->code].largest;
    const float global = kept_as(dtype, kept_as(dtype, 1 / largest) * span);
    return isfinite(global) ? global : 1;
}

/* Makes a scale as compressed-tensors does: raw, as stored, and what elements
 * are divided by. */
static void make_by_range(const struct encoder *e, float amax, float global, char *raw,
                          float *divisor)
{
    const struct quant_info *info = &quant_infos[e->form->code];
    const enum dtype dtype = e->form->scales->dtype;
    float scale = kept_as(e->weight->dtype, amax / ((info->largest - info->least) / 2));
    if (is_power(dtype)) {
        const int code = exponent_of(amax) - ilogbf(info->largest) + 127;
        const int within = amax <= 0 || code < 0 ? 0 : code; /* F16 has no 2^-127: 1 instead */
        const bool has = kept_as(e->weight->dtype, ldexpf(1, within - 127)) > 0;
        *raw = (char)(unsigned char)(has ? within : 127);
    } else if (dtype == DT_F8_E4M3) {
        *raw = e4m3_of(scale * global);
        if (*raw == 0) *raw = 0x20; /* 1/8 */
    } else {
        if (scale <= 0)
            scale = dtype == DT_BF16 ? 0x1p-7f : dtype == DT_F16 ? 0x1p-10f : FLT_EPSILON;
        (void)cast_elements(raw, dtype, &scale, DT_F32, 1);
    }
    *divisor = encoded_with_global(e->form, encoded_scale(dtype, raw, 0), global);
}

/* Settles n scales from flat index `first` on: raw[] and scales[] (or NULL). */
static enum status settle_scales(struct panel_reader *r, struct encoder *e, uint64_t first,
                                 uint64_t n, const float *amax, char *raw, float *scales,
                                 bool counts, struct error *err)
{
    const size_t bytes = dtype_bytes(e->form->scales->dtype);
    float global;
    TRY(encoder_read_global(r, e, &global, err));
    if (e->rule == ENCODER_KEEPS) TRY(panel_read(r, e->form->scales, first, n, raw, err));
    for (uint64_t i = 0; i < n; i++) {
        float scale;
        bool renewed = false;
        if (e->rule == ENCODER_KEEPS)
            TRY(settle_scale(e, amax[i], global, raw + i * bytes, &scale, &renewed, err));
        else if (e->rule == ENCODER_TRANSFORMERS)
            make_by_reciprocal(e, amax[i], raw + i * bytes, &scale);
        else
            make_by_range(e, amax[i], global, raw + i * bytes, &scale);
        if (scales) scales[i] = scale;
        if (counts && renewed) atomic_fetch_add(&e->renewed, 1);
    }
    return OK;
}

/* ---- runs ---- */

/* A run being encoded. */
struct encoding_run {
    struct encoded_span s;
    uint64_t low, count; /* elements of whole groups, around it */
    float numbers[HULL]; /* of these */
    float amax[HULL], scales[HULL], zeros[HULL];
    char raw[HULL * LARGEST_SCALE];
};

/* Reads a run's elements, in whole groups if these are short, and settles its
 * scales. */
static enum status read_run(struct panel_reader *r, struct encoder *e, struct encoding_run *x,
                            struct error *err)
{
    const struct encoded *f = e->form;
    const struct encoded_span *s = &x->s;
    const uint64_t n = s->lines * s->groups, first = s->first_line * f->grid[1] + s->first_group;
    uint64_t end = s->low + s->count;
    x->low = s->low;
    if (is_short(f)) {
        const uint64_t last_col = (end - 1) % f->cols;
        x->low -= s->low % f->cols % f->block[1];
        end += min_u64(f->block[1] - 1 - last_col % f->block[1], f->cols - 1 - last_col);
    }
    x->count = end - x->low;
    TRY(read_weight(r, e, x->low, x->count, x->numbers, err));
    if (is_short(f)) {
        memset(x->amax, 0, n * sizeof *x->amax);
        take_sizes(e, s, x->low, x->count, x->numbers, x->amax);
    } else {
        TRY(copy_amax(r, e, first, n, x->amax, err));
    }
    if (e->rule == ENCODER_COMPRESSED_TENSORS) memset(x->zeros, 0, n * sizeof *x->zeros);
    if (f->zeros) TRY(encoded_read_zeros(r, f, s, x->raw, x->zeros, err));
    return settle_scales(r, e, first, n, x->amax, x->raw, x->scales, false, err);
}

/* Fails if an element has no code by its scale and zero, which are both kept. */
static enum status check_zeros(const struct encoded *f, const struct quant_run *run,
                               const float *numbers, struct error *err)
{
    const struct quant_info *info = &quant_infos[f->code];
    for (uint64_t i = 0; i < run->count; i++) {
        const uint64_t group = (run->phase + i) / run->group;
        const float code = numbers[i] / run->scales[group] + run->zeros[group];
        if (code < info->least - .5f || code > info->largest + .5f)
            return fail(
                err, ERR_UNSUPPORTED, "%g has no code of %s by the kept scale %g and zero point %g",
                (double)numbers[i], f->name, (double)run->scales[group], (double)run->zeros[group]);
    }
    return OK;
}

/* Encodes a run's rows; out[0] is byte s.first_byte. */
static enum status encode_rows(const struct encoder *e, const struct encoding_run *x, char *out,
                               struct error *err)
{
    const struct encoded *f = e->form;
    const struct encoded_span *s = &x->s;
    const bool by_range = e->rule == ENCODER_COMPRESSED_TENSORS;
    const bool rounds = by_range && !f->global;
    const bool has_zeros = by_range || f->zeros; /* of 0: -0 becomes 0 */
    uint64_t at = s->low;
    for (uint64_t row = s->first_row; row <= s->last_row; row++) {
        const uint64_t col = at % f->cols, n = min_u64(f->cols - col, s->low + s->count - at);
        const uint64_t line = encoded_line(f, row);
        const bool half = quant_infos[f->code].bits == 4;
        const struct quant_run run = {
            .code = f->code,
            .first = half ? col % 2 : 0,
            .count = n,
            .group = f->block[1],
            .phase = col - s->first_group * f->block[1],
            .scales = x->scales + (line - s->first_line) * s->groups,
            .multiplies = e->rule == ENCODER_TRANSFORMERS,
            .quotient = rounds ? e->weight->dtype : DT_F32,
            .zeros = has_zeros ? x->zeros + (line - s->first_line) * s->groups : NULL,
        };
        const uint64_t byte = row * f->row_bytes + col * quant_infos[f->code].bits / 8;
        if (f->zeros) TRY(check_zeros(f, &run, x->numbers + (at - x->low), err));
        quant_encode(&run, x->numbers + (at - x->low), out + (byte - s->first_byte));
        at += n;
    }
    return OK;
}

/* The first element of a byte of codes; of what fills a row up, the end of the
 * row. */
static uint64_t element_at(const struct encoded *f, uint64_t byte)
{
    const uint64_t col = byte % f->row_bytes * 8 / quant_infos[f->code].bits;
    return byte / f->row_bytes * f->cols + min_u64(col, f->cols);
}

/* Bytes of codes from `byte` on that are encoded at once. Their scales fit
 * HULL: of rows with many only parts are. */
static uint64_t bytes_at_once(const struct encoded *f, uint64_t byte, uint64_t end)
{
    const uint64_t most = min_u64(end - byte, RUN * quant_infos[f->code].bits / 8);
    return f->grid[1] <= RUN / 4 ? most : min_u64(most, f->row_bytes - byte % f->row_bytes);
}

enum status encoder_read_codes(struct panel_reader *r, struct encoder *e, enum dtype dtype,
                               uint64_t low, uint64_t count, void *out, struct error *err)
{
    const struct encoded *f = e->form;
    const uint64_t unit = dtype_bytes(dtype), end = (low + count) * unit;
    struct encoding_run x;
    char *to = out;
    memset(out, 0, count * unit);
    for (uint64_t byte = low * unit, n; byte < end; byte += n, to += n) {
        n = bytes_at_once(f, byte, end);
        const uint64_t first = element_at(f, byte), last = element_at(f, byte + n);
        if (first == last) continue; /* nothing but what fills a row up */
        x.s = encoded_span_of(f, first, last - first);
        TRY(read_run(r, e, &x, err));
        TRY(encode_rows(e, &x, to + (x.s.first_byte - byte), err));
    }
    count_read(e, count * unit);
    return OK;
}

enum status encoder_read_scales(struct panel_reader *r, struct encoder *e, uint64_t low,
                                uint64_t count, void *out, struct error *err)
{
    const struct encoded *f = e->form;
    const size_t bytes = dtype_bytes(f->scales->dtype);
    char *to = out;
    if (!is_short(f)) {
        for (uint64_t at = low, end = low + count, n; at < end; at += n, to += n * bytes) {
            float amax[RUN];
            n = min_u64(end - at, RUN);
            TRY(copy_amax(r, e, at, n, amax, err));
            TRY(settle_scales(r, e, at, n, amax, to, NULL, true, err));
        }
        count_read(e, count);
        return OK;
    }
    for (uint64_t at = low, end = low + count, n; at < end; at += n, to += n * bytes) {
        float numbers[HULL], amax[RUN] = {0};
        n = max_u64(min_u64(end - at, RUN / f->block[1]), 1);
        n = min_u64(n, f->grid[1] - at % f->grid[1]); /* of one row */
        const uint64_t row = at / f->grid[1], col = at % f->grid[1] * f->block[1];
        const uint64_t elements = min_u64(n * f->block[1], f->cols - col);
        const struct encoded_span s = {
            .first_line = row, .first_group = at % f->grid[1], .groups = n};
        TRY(read_weight(r, e, row * f->cols + col, elements, numbers, err));
        take_sizes(e, &s, row * f->cols + col, elements, numbers, amax);
        TRY(settle_scales(r, e, at, n, amax, to, NULL, true, err));
    }
    return OK;
}

enum status encoder_read_global(struct panel_reader *r, struct encoder *e, float *out,
                                struct error *err)
{
    struct encoder *x = e;
    float all = 0, largest;
    if (!e->form->global || e->rule == ENCODER_KEEPS)
        return encoded_read_global(r, e->form, out, err);
    do {
        TRY(find_largest(r, x, &largest, err));
        all = fmaxf(all, largest);
        x = x->next;
    } while (x != e);
    *out = make_global(e, all);
    return OK;
}
