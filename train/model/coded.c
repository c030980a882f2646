#include "train/model/coded.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "common/checked.h"
#include "common/memory.h"
#include "kernels/cpu/coded.h"
#include "train/engine/memory_plan.h"
#include "train/model/bind.h"

static const char no_product[] = "no product reads it",
                  other_encoding[] = "its encoding has more than codes and a scale for each group",
                  several_encodings[] = "its elements are encoded in several ways",
                  cut_groups[] = "its groups of scales are cut";

static uint64_t columns_of(const struct parameter *x)
{
    return x->shape[x->num_dims - 1];
}

static unsigned bits_of(const struct encoded *e)
{
    return quant_infos[e->code].bits;
}

/* ---- segments ---- */

/* Elements of one row of `encoded` and of the parameter. */
struct segment {
    const struct encoded *encoded;
    uint64_t from, to, count; /* first element, in each */
};
typedef enum status segment_visit(void *context, const struct segment *s, struct error *err);

static enum status cut_run(const struct encoded *e, uint64_t from, uint64_t to, uint64_t count,
                           uint64_t columns, segment_visit *visit, void *context, struct error *err)
{
    for (uint64_t n; count; from += n, to += n, count -= n) {
        n = min_u64(count, min_u64(e->cols - from % e->cols, columns - to % columns));
        TRY(visit(context, &(struct segment){e, from, to, n}, err));
    }
    return OK;
}

/* Whether successive elements of a part are neighbours on both sides. */
static bool has_runs(const struct pair *p)
{
    return p->num_axes && p->axes[p->num_axes - 1].a_stride == 1 &&
           p->axes[p->num_axes - 1].b_stride == 1;
}

/* Visits a part that has runs. */
static enum status each_segment(const struct coded_part *x, uint64_t columns, segment_visit *visit,
                                void *context, struct error *err)
{
    const struct pair *p = &x->part;
    const unsigned last = p->num_axes - 1;
    const uint64_t runs = pair_count(p) / p->axes[last].extent;
    for (uint64_t i = 0; i < runs; i++) {
        uint64_t from = p->a_offset, to = p->b_offset, rest = i;
        for (unsigned k = last; k-- > 0; rest /= p->axes[k].extent) {
            const uint64_t at = rest % p->axes[k].extent;
            from += at * p->axes[k].a_stride;
            to += at * p->axes[k].b_stride;
        }
        TRY(cut_run(x->encoded, from, to, p->axes[last].extent, columns, visit, context, err));
    }
    return OK;
}

/* ---- whether a weight can stay coded ---- */

struct choosing {
    struct parameters *p;
    struct parameter *x;
    struct weight_coding coding;
    const struct encoded *encoded; /* of the piece at hand */
    const char *why;               /* NULL: it can */
    bool has_codes;
};

static enum status add_coded_part(void *context, const struct pair *pair, struct error *err)
{
    struct choosing *c = context;
    struct parameter *x = c->x;
    struct coded_part part = {c->encoded, *pair};
    (void)err;
    if (!pair_nest(&part.part) || !has_runs(&part.part)) c->why = cut_groups;
    *ARENA_PUSH(&c->p->arena, x->coded_parts, x->num_coded_parts, x->coded_capacity) = part;
    return OK;
}

static bool scales_are_e8m0(const struct encoded *e)
{
    return e->scales->dtype == DT_F8_E8M0 || e->scales->dtype == DT_U8;
}

static bool is_plain(const struct encoded *e)
{
    const enum dtype scale = e->scales->dtype;
    const bool has_more = e->zeros || e->global || e->nested || e->lines || e->words.rows ||
                          e->factor != 0 || e->code == QUANT_TABLE;
    return !has_more && e->mistake == MISTAKE_NONE && dtype_bytes(e->codes->dtype) == 1 &&
           e->row_bytes * 8 == e->cols * bits_of(e) &&
           (scales_are_e8m0(e) || scale == DT_F32 || scale == DT_BF16 || scale == DT_F16);
}

/* Takes the coding of the first piece; others must have the same. */
static void take_coding(struct choosing *c, enum dtype dtype)
{
    const struct encoded *e = c->encoded;
    const struct weight_coding own = {.code = e->code,
                                      .dtype = dtype,
                                      .scales_are_e8m0 = scales_are_e8m0(e),
                                      .group = min_u64(e->block[1], columns_of(c->x))};
    if (!is_plain(e)) c->why = other_encoding;
    if (!c->coding.group) c->coding = own;
    if (own.code != c->coding.code || own.dtype != c->coding.dtype ||
        own.scales_are_e8m0 != c->coding.scales_are_e8m0 || own.group != c->coding.group)
        c->why = several_encodings;
}

static enum status add_piece(struct choosing *c, const struct parameter_part *part,
                             const struct piece *piece, struct error *err)
{
    const struct pair pair = pair_unpack(&piece->pair);
    if (piece->origin != ORIGIN_ENCODED) {
        if (pair_overlap(&pair, &part->part)) c->why = several_encodings;
        return OK;
    }
    c->has_codes = true;
    c->encoded = piece->encoded;
    take_coding(c, part->tensor->dtype);
    return pair_join(&pair, &part->part, part->tensor->name, add_coded_part, c, err);
}

/* Each group of the parameter lies in one group of the checkpoint. */
static enum status check_segment(void *context, const struct segment *s, struct error *err)
{
    struct choosing *c = context;
    const uint64_t group = c->coding.group, block = s->encoded->block[1],
                   column = s->from % s->encoded->cols;
    bool whole = s->to % columns_of(c->x) % group == 0;
    (void)err;
    whole &= (s->from | s->to | s->count) * bits_of(s->encoded) % 8 == 0;
    for (uint64_t i = 0; i < s->count && whole; i += group)
        whole = (column + i) / block == (column + min_u64(i + group, s->count) - 1) / block;
    if (!whole) c->why = cut_groups;
    return OK;
}

static enum status check_groups(struct choosing *c, struct error *err)
{
    const struct parameter *x = c->x;
    uint64_t count = 0;
    for (size_t i = 0; i < x->num_coded_parts && !c->why; i++) {
        count += pair_count(&x->coded_parts[i].part);
        TRY(each_segment(&x->coded_parts[i], columns_of(x), check_segment, c, err));
    }
    if (!c->why && count != x->numel) c->why = several_encodings;
    return OK;
}

static enum status choose(struct choosing *c, struct error *err)
{
    for (size_t i = 0; i < c->x->num_parts; i++)
        for (size_t k = 0; k < c->x->parts[i].tensor->num_pieces; k++)
            TRY(add_piece(c, &c->x->parts[i], &c->x->parts[i].tensor->pieces[k], err));
    if (!c->has_codes) c->why = several_encodings;
    return c->why ? OK : check_groups(c, err);
}

static void keep(struct choosing *c)
{
    struct parameter *x = c->x;
    const uint64_t columns = columns_of(x);
    struct weight_coding *coding = arena_array(&c->p->arena, 1, sizeof *coding);
    *coding = c->coding;
    if (!coding_place(coding, x->numel / columns, columns)) {
        c->why = cut_groups;
        return;
    }
    x->coding = coding;
    x->num_parts = 0;
    c->p->bytes = x->offset + ceil_div_u64(coding->bytes, MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT;
}

enum status coded_keep(struct parameters *p, const struct checkpoint *c, struct error *err)
{
    TRY(parameters_bind(p, c, err));
    struct choosing x = {.p = p, .x = &p->items[p->count - 1]};
    TRY(choose(&x, err));
    if (!x.why) keep(&x);
    if (x.why) x.x->num_coded_parts = 0;
    if (x.has_codes) x.x->why_decoded = x.why;
    return OK;
}

/* ---- loading ---- */

struct coded_loading {
    const struct parameter *x;
    char *data;      /* of the parameter */
    char *scales;    /* as stored, or F32: those of each part, one after the other */
    const char *own; /* those of the part at hand */
    uint64_t first_line;
    struct load_target *targets; /* two for each part */
};

/* The row of scales of a row of all matrices. */
static uint64_t line_of(const struct encoded *e, uint64_t row)
{
    return row / e->rows * e->grid[0] + row % e->rows / e->block[0];
}

/* The scales of the rows that a part has. */
static struct pair scales_of(const struct coded_part *part)
{
    const struct encoded *e = part->encoded;
    const uint64_t from = part->part.a_offset, last = from + pair_a_span(&part->part) - 1;
    const uint64_t first = line_of(e, from / e->cols), end = line_of(e, last / e->cols) + 1;
    return pair_whole(first * e->grid[1], 0, (end - first) * e->grid[1]);
}

static uint64_t scale_bytes(const struct weight_coding *c)
{
    return c->scales_are_e8m0 ? 1 : sizeof(float);
}

/* A part in bytes of codes. */
static struct pair bytes_of(const struct coded_part *part)
{
    const uint64_t codes = 8 / bits_of(part->encoded); /* in a byte */
    struct pair p = part->part;
    p.a_offset /= codes;
    p.b_offset /= codes;
    for (unsigned k = 0; k + 1 < p.num_axes; k++) {
        p.axes[k].a_stride /= codes;
        p.axes[k].b_stride /= codes;
    }
    p.axes[p.num_axes - 1].extent /= codes;
    return p;
}

/* Lists the targets of a parameter; returns the bytes of its scales. */
static uint64_t list_coded_targets(struct coded_loading *l)
{
    const struct parameter *x = l->x;
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->num_coded_parts; i++) {
        const struct coded_part *part = &x->coded_parts[i];
        const struct encoded *e = part->encoded;
        const struct pair scales = scales_of(part);
        l->targets[2 * i] = (struct load_target){.tensor = e->codes,
                                                 .part = bytes_of(part),
                                                 .dtype = e->codes->dtype,
                                                 .memory = l->data};
        l->targets[2 * i + 1] =
            (struct load_target){.tensor = e->scales,
                                 .part = scales,
                                 .dtype = x->coding->scales_are_e8m0 ? e->scales->dtype : DT_F32,
                                 .memory = l->scales ? l->scales + bytes : NULL};
        bytes += pair_count(&scales) * scale_bytes(x->coding);
    }
    return bytes;
}

/* Elements [column, column + count) of a row, which share a scale. */
static bool has_numbers(const struct coded_loading *l, uint64_t row, uint64_t column,
                        uint64_t count)
{
    const struct weight_coding *c = l->x->coding;
    const float zero = 0;
    const struct quant_run run = {.code = c->code, .count = count, .group = count, .scales = &zero};
    return quant_has_numbers(&run, l->data + (row * columns_of(l->x) + column) * c->bits / 8);
}

static enum status check_scale(const struct coded_loading *l, const struct segment *s, uint64_t at,
                               uint64_t i, struct error *err)
{
    const struct weight_coding *c = l->x->coding;
    const char *name = s->encoded->scales->stored_name, *from = l->own + at * scale_bytes(c);
    const uint64_t columns = columns_of(l->x);
    float scale;
    if (c->scales_are_e8m0)
        scale = quant_e8m0(*(const uint8_t *)from);
    else
        memcpy(&scale, from, sizeof scale);
    if (!isfinite(scale))
        return fail(err, ERR_CORRUPT, "%s: scale %" PRIu64 " is %g", name,
                    l->first_line * s->encoded->grid[1] + at, (double)scale);
    if (scale == 0 &&
        has_numbers(l, s->to / columns, s->to % columns + i, min_u64(c->group, s->count - i)))
        return fail(err, ERR_CORRUPT, "%s: scale %" PRIu64 " is 0, but not all its codes", name,
                    l->first_line * s->encoded->grid[1] + at);
    return OK;
}

/* Places the scales of a segment. */
static enum status place_scales(void *context, const struct segment *s, struct error *err)
{
    const struct coded_loading *l = context;
    const struct weight_coding *c = l->x->coding;
    const struct encoded *e = s->encoded;
    const uint64_t columns = columns_of(l->x), bytes = scale_bytes(c);
    const uint64_t line = line_of(e, s->from / e->cols) - l->first_line, column = s->from % e->cols;
    const uint64_t row = s->to / columns, first = s->to % columns / c->group;
    char *to = l->data + c->scales_at + (row * coding_groups(c, columns) + first) * bytes;
    for (uint64_t i = 0; i < s->count; i += c->group, to += bytes) {
        const uint64_t at = line * e->grid[1] + (column + i) / e->block[1];
        TRY(check_scale(l, s, at, i, err));
        memcpy(to, l->own + at * bytes, bytes);
    }
    return OK;
}

/* Places the scales that were loaded for each part. */
static enum status place_all_scales(struct coded_loading *l, struct error *err)
{
    const struct parameter *x = l->x;
    l->own = l->scales;
    for (size_t i = 0; i < x->num_coded_parts; i++) {
        const struct coded_part *part = &x->coded_parts[i];
        const struct pair scales = scales_of(part);
        l->first_line = scales.a_offset / part->encoded->grid[1];
        TRY(each_segment(part, columns_of(x), place_scales, l, err));
        l->own += pair_count(&scales) * scale_bytes(x->coding);
    }
    return OK;
}

/* Loads a parameter to l->data, on the host. */
static enum status load_coded(struct coded_loading *l, const struct checkpoint *c,
                              const struct load_options *o, struct error *err)
{
    struct load_result result;
    l->scales = must_malloc(list_coded_targets(l) + 1);
    (void)list_coded_targets(l);
    enum status st = load_run(&c->catalog, l->targets, 2 * l->x->num_coded_parts, o, &result, err);
    if (!st && place_all_scales(l, err)) st = fail_in(err, "%s", l->x->name);
    coding_write_numbers(l->x->coding, l->data);
    free(l->scales);
    l->scales = NULL;
    return st;
}

static enum status load_parameter(const struct parameter *x, const struct checkpoint *c,
                                  const struct device *device, char *to,
                                  const struct load_options *o, struct error *err)
{
    struct coded_loading l = {
        .x = x, .targets = must_calloc(2 * x->num_coded_parts + 1, sizeof *l.targets)};
    l.data = device->is_host ? to : must_calloc(x->coding->bytes, 1);
    enum status st = load_coded(&l, c, o, err);
    if (!st && !device->is_host) st = device->upload(to, l.data, x->coding->bytes, err);
    if (!device->is_host) free(l.data);
    free(l.targets);
    return st;
}

enum status coded_load(const struct parameters *p, const struct checkpoint *c,
                       const struct device *device, void *region, const struct load_options *o,
                       struct error *err)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        if (x->coding) TRY(load_parameter(x, c, device, (char *)region + x->offset, o, err));
    }
    return OK;
}

enum status coded_load_bytes(const struct parameters *p, const struct device *device,
                             const struct load_options *o, uint64_t *bytes, struct error *err)
{
    enum status st = OK;
    *bytes = 0;
    for (size_t i = 0; i < p->count && !st; i++) {
        const struct parameter *x = &p->items[i];
        uint64_t own = 0;
        if (!x->coding) continue;
        struct coded_loading l = {
            .x = x, .targets = must_calloc(2 * x->num_coded_parts + 1, sizeof *l.targets)};
        const uint64_t scales = list_coded_targets(&l);
        st = load_own_bytes(l.targets, 2 * x->num_coded_parts, o, &own, err);
        *bytes = max_u64(*bytes, own + scales + (device->is_host ? 0 : x->coding->bytes));
        free(l.targets);
    }
    return st;
}

/* ---- for people ---- */

static bool is_decoded(const struct parameter *x)
{
    for (size_t i = 0; i < x->num_parts; i++)
        if (tensor_is_decoded(x->parts[i].tensor)) return true;
    return false;
}

struct coded_summary coded_summarise(const struct parameters *p)
{
    struct coded_summary s = {.coded = 0};
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        const uint64_t decoded = x->numel * operand_bytes_of(x->type, p->elem);
        if (x->coding) {
            s.coded++;
            s.bytes += x->coding->bytes;
            s.decoded_bytes += decoded;
        } else if (is_decoded(x)) {
            s.not_coded++;
            s.not_coded_bytes += decoded;
            if (!s.first) s.first = x;
        }
    }
    return s;
}

const char *coded_reason(const struct parameter *x)
{
    return x->why_decoded ? x->why_decoded : no_product;
}
