#include "ckpt/encoding_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/checked.h"

enum {
    RUN_BYTES = 256 << 10, /* of codes and scales at once: they stay in the second-level cache */
    ZERO_ROWS = 8,         /* of a word of zeros */
};

void encoded_set_grid(struct encoded *e, unsigned num_dims, const uint64_t *shape,
                      const uint64_t block[2])
{
    e->num_dims = num_dims;
    e->shape = shape;
    e->rows = num_dims > 1 ? shape[num_dims - 2] : 1;
    e->cols = shape[num_dims - 1];
    const uint64_t sizes[2] = {e->rows, e->cols};
    for (int k = 0; k < 2; k++) {
        e->block[k] = block[k] ? block[k] : max_u64(sizes[k], 1);
        e->grid[k] = sizes[k] / e->block[k] + (sizes[k] % e->block[k] != 0);
    }
}

uint64_t encoded_num_matrices(const struct encoded *e)
{
    uint64_t n = 1;
    for (unsigned k = 0; k + 2 < e->num_dims; k++)
        n *= e->shape[k];
    return n;
}

bool encoded_is_grid(const struct encoded *e, unsigned num_dims, const uint64_t *shape)
{
    const unsigned lead = e->num_dims - 2;
    const bool rows = e->grid[1] == 1 && e->block[1] >= e->cols;
    const bool one = rows && e->grid[0] == 1 && e->block[0] >= e->rows && lead == 0;
    if (one && (num_dims == 0 || (num_dims == 1 && shape[0] == 1))) return true;
    if (num_dims != e->num_dims && !(rows && num_dims == lead + 1)) return false;
    return !memcmp(shape, e->shape, lead * sizeof *shape) && shape[lead] == e->grid[0] &&
           (num_dims == lead + 1 || shape[lead + 1] == e->grid[1]);
}

struct pair encoded_transposed(const struct encoded *e)
{
    const uint64_t size = e->rows * e->cols;
    struct pair p = {.num_axes = 3,
                     .axes = {{encoded_num_matrices(e), size, size},
                              {e->cols, e->rows, 1},
                              {e->rows, 1, e->cols}}};
    (void)pair_nest(&p);
    return p;
}

bool encoded_may_be(const struct encoded *e, enum encoded_mistake mistake)
{
    switch (mistake) {
    case MISTAKE_HALVES_SWAPPED:
        return quant_infos[e->code].bits == 4;
    case MISTAKE_GRID_TRANSPOSED:
        return e->grid[0] == e->grid[1] && e->grid[0] > 1;
    default:
        return true;
    }
}

/* ---- which codes and scales a run of elements has ---- */

uint64_t encoded_line(const struct encoded *e, uint64_t row)
{
    return row / e->rows * e->grid[0] + row % e->rows / e->block[0];
}

static uint64_t code_bytes(const struct encoded *e, uint64_t codes)
{
    return codes * quant_infos[e->code].bits / 8;
}

struct encoded_span encoded_span_of(const struct encoded *e, uint64_t low, uint64_t count)
{
    const uint64_t last = low + count - 1, first_col = low % e->cols, last_col = last % e->cols;
    struct encoded_span s = {
        .low = low, .count = count, .first_row = low / e->cols, .last_row = last / e->cols};
    const bool one_row = s.first_row == s.last_row;
    const uint64_t end = s.last_row * e->row_bytes + code_bytes(e, last_col) + 1;
    s.first_byte = s.first_row * e->row_bytes + code_bytes(e, first_col);
    s.bytes = end - s.first_byte;
    s.first_line = encoded_line(e, s.first_row);
    s.lines = encoded_line(e, s.last_row) - s.first_line + 1;
    s.first_group = one_row ? first_col / e->block[1] : 0;
    s.groups = one_row ? last_col / e->block[1] - s.first_group + 1 : e->grid[1];
    s.first_word = s.first_row / ZERO_ROWS;
    s.num_words = e->zeros ? s.last_row / ZERO_ROWS - s.first_word + 1 : 0;
    return s;
}

/* Whole elements of the codes' dtype around the bytes of a span. */
static void unit_range(const struct encoded *e, const struct encoded_span *s, uint64_t *first,
                       uint64_t *count)
{
    const uint64_t unit = dtype_bytes(e->codes->dtype);
    *first = s->first_byte / unit;
    *count = (s->first_byte + s->bytes - 1) / unit + 1 - *first;
}

/* Buffers of a run within the reader's. */
struct room {
    float *scales, *zeros; /* [lines, groups]; zeros of [rows, groups] */
    char *raw;             /* scales as stored, then words of zeros */
    char *codes;
};

static uint64_t room_bytes(const struct encoded *e, const struct encoded_span *s, struct room *room,
                           char *buffer)
{
    const uint64_t groups = s->lines * s->groups, rows = s->last_row - s->first_row + 1;
    const uint64_t scales = groups * sizeof(float);
    const uint64_t zeros = e->zeros ? rows * s->groups * sizeof(float) : 0;
    const uint64_t words = s->num_words * s->groups * sizeof(uint32_t);
    const uint64_t raw = max_u64(groups * LARGEST_SCALE, words);
    uint64_t first, count;
    unit_range(e, s, &first, &count);
    *room = (struct room){(float *)(void *)buffer, (float *)(void *)(buffer + scales),
                          buffer + scales + zeros, buffer + scales + zeros + raw};
    return scales + zeros + raw + count * dtype_bytes(e->codes->dtype);
}

/* ---- scales ---- */

float encoded_scale(enum dtype dtype, const void *raw, uint64_t i)
{
    if (dtype == DT_U8) return quant_e8m0(((const unsigned char *)raw)[i]);
    return (float)dtype_load(dtype, raw, i);
}

float encoded_with_global(const struct encoded *e, float scale, float global)
{
    return e->global_divides ? scale / global : scale * global;
}

enum status encoded_read_global(struct panel_reader *r, const struct encoded *e, float *out,
                                struct error *err)
{
    float number = 1;
    *out = number;
    if (!e->global) return OK;
    TRY(panel_read(r, e->global, 0, 1, &number, err));
    *out = number;
    if (isfinite(number) && number != 0) return OK;
    return fail(err, ERR_CORRUPT, "%s is %g, and no scale", e->global->stored_name, (double)number);
}

/* Reads the scales of a span from the transposed place of each group. */
static enum status read_transposed(struct panel_reader *r, const struct encoded *e,
                                   const struct encoded_span *s, char *raw, struct error *err)
{
    const size_t bytes = dtype_bytes(e->scales->dtype);
    for (uint64_t i = 0; i < s->lines * s->groups; i++) {
        const uint64_t line = s->first_line + i / s->groups, group = s->first_group + i % s->groups;
        const uint64_t first = line / e->grid[0] * e->grid[0] * e->grid[1];
        TRY(panel_read(r, e->scales, first + group * e->grid[1] + line % e->grid[0], 1,
                       raw + i * bytes, err));
    }
    return OK;
}

/* Reads the scales of a span to room->scales. */
static enum status read_scales(struct panel_reader *r, const struct encoded *e,
                               const struct encoded_span *s, const struct room *room,
                               struct error *err)
{
    float global;
    const uint64_t n = s->lines * s->groups; /* several lines are whole */
    const uint64_t first = s->first_line * e->grid[1] + s->first_group;
    TRY(encoded_read_global(r, e, &global, err));
    if (e->mistake == MISTAKE_GRID_TRANSPOSED)
        TRY(read_transposed(r, e, s, room->raw, err));
    else
        TRY(panel_read(r, e->scales, first, n, room->raw, err));
    for (uint64_t i = 0; i < n; i++) {
        const float scale = encoded_scale(e->scales->dtype, room->raw, i);
        room->scales[i] = encoded_with_global(e, scale, global);
        if (e->mistake == MISTAKE_NO_SCALE) room->scales[i] = 1;
        if (e->mistake == MISTAKE_INVERSE_SCALE) room->scales[i] = 1 / room->scales[i];
        if (!isfinite(room->scales[i]))
            return fail(err, ERR_CORRUPT, "%s: scale %" PRIu64 " is %g", e->scales->stored_name,
                        first + i, (double)room->scales[i]);
    }
    return OK;
}

enum status encoded_read_zeros(struct panel_reader *r, const struct encoded *e,
                               const struct encoded_span *s, char *raw, float *zeros,
                               struct error *err)
{
    const uint64_t first = s->first_word * e->grid[1] + s->first_group;
    TRY(panel_read(r, e->zeros, first, s->num_words * s->groups, raw, err));
    for (uint64_t row = s->first_row, i = 0; row <= s->last_row; row++)
        for (uint64_t g = 0; g < s->groups; g++, i++) {
            uint32_t word;
            const uint64_t line = row / ZERO_ROWS - s->first_word;
            memcpy(&word, raw + (line * s->groups + g) * sizeof word, sizeof word);
            zeros[i] = (float)(word >> row % ZERO_ROWS * 4 & 15) - 8;
        }
    return OK;
}

/* ---- elements ---- */

/* Fails if codes of the run are scaled by 0: their numbers are lost. */
static enum status check_zero_scales(const struct encoded *e, const struct quant_run *run,
                                     const char *codes, uint64_t row, struct error *err)
{
    for (size_t i = 0, n; i < run->count; i += n) {
        struct quant_run group = *run;
        const size_t within = run->phase + i, left = run->group - within % run->group;
        n = left < run->count - i ? left : run->count - i;
        group.first += i;
        group.count = n;
        group.phase = within;
        if (run->scales[within / run->group] != 0 || !quant_has_numbers(&group, codes)) continue;
        return fail(err, ERR_CORRUPT, "%s: a scale of row %" PRIu64 " is 0, but not all its codes",
                    e->scales->stored_name, row);
    }
    return OK;
}

static bool has_zero(const float *scales, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (scales[i] == 0) return true;
    return false;
}

/* Decodes a span's elements, row by row. */
static enum status decode_rows(const struct encoded *e, const struct encoded_span *s,
                               const struct room *room, const char *codes, enum dtype dtype,
                               char *out, struct error *err)
{
    const bool zero = has_zero(room->scales, s->lines * s->groups);
    uint64_t at = s->low;
    for (uint64_t row = s->first_row; row <= s->last_row; row++) {
        const uint64_t col = at % e->cols, n = min_u64(e->cols - col, s->low + s->count - at);
        const uint64_t byte = row * e->row_bytes + code_bytes(e, col) - s->first_byte;
        const uint64_t line = encoded_line(e, row) - s->first_line;
        const struct quant_run run = {
            .code = e->code,
            .first = quant_infos[e->code].bits == 4 ? col % 2 : 0,
            .count = n,
            .group = e->block[1],
            .phase = col - s->first_group * e->block[1],
            .scales = room->scales + line * s->groups,
            .zeros = e->zeros ? room->zeros + (row - s->first_row) * s->groups : NULL,
            .steps = e->steps,
        };
        if (zero) TRY(check_zero_scales(e, &run, codes + byte, row, err));
        quant_decode(&run, codes + byte, dtype, out);
        out += n * dtype_bytes(dtype);
        at += n;
    }
    return OK;
}

static void swap_halves(char *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const unsigned byte = (unsigned char)bytes[i];
        bytes[i] = (char)(unsigned char)(byte >> 4 | byte << 4);
    }
}

static enum status read_span(struct panel_reader *r, const struct encoded *e,
                             const struct encoded_span *s, const struct room *room,
                             enum dtype dtype, char *out, struct error *err)
{
    uint64_t first, count;
    unit_range(e, s, &first, &count);
    if (e->zeros) TRY(encoded_read_zeros(r, e, s, room->raw, room->zeros, err));
    TRY(read_scales(r, e, s, room, err));
    TRY(panel_read(r, e->codes, first, count, room->codes, err));
    if (e->mistake == MISTAKE_HALVES_SWAPPED)
        swap_halves(room->codes, count * dtype_bytes(e->codes->dtype));
    const char *codes = room->codes + (s->first_byte - first * dtype_bytes(e->codes->dtype));
    return decode_rows(e, s, room, codes, dtype, out, err);
}

enum status encoded_read(struct panel_reader *r, const struct encoded *e, uint64_t low,
                         uint64_t count, enum dtype dtype, void *out, struct error *err)
{
    char *to = out;
    for (uint64_t end = low + count, n; low < end; low += n, to += n * dtype_bytes(dtype)) {
        struct room room;
        struct encoded_span s = encoded_span_of(e, low, n = min_u64(end - low, RUN_BYTES));
        const uint64_t most = min_u64(r->buffer_bytes, RUN_BYTES);
        while (room_bytes(e, &s, &room, r->cast) > most && n > 1)
            s = encoded_span_of(e, low, n /= 2);
        if (room_bytes(e, &s, &room, r->cast) > most)
            return fail(err, ERR_OURS, "%s: no room for a code and its scale",
                        e->codes->stored_name);
        TRY(read_span(r, e, &s, &room, dtype, to, err));
    }
    return OK;
}

/* ---- catalogs ---- */

bool tensor_is_decoded(const struct tensor *t)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].origin == ORIGIN_ENCODED) return true;
    return false;
}

struct tensor *tensor_steps(const struct tensor *t, struct arena *a)
{
    struct tensor *out = arena_copy(a, t, sizeof *t);
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].origin != ORIGIN_ENCODED) return NULL;
    out->dtype = DT_F32;
    out->pieces = arena_copy(a, t->pieces, t->num_pieces * sizeof *t->pieces);
    for (size_t i = 0; i < t->num_pieces; i++) {
        struct encoded *e = arena_copy(a, t->pieces[i].encoded, sizeof *e);
        e->steps = true;
        out->pieces[i].encoded = e;
        out->pieces[i].dtype = DT_F32;
    }
    return t->num_pieces ? out : NULL;
}

struct catalog catalog_undecoded(const struct catalog *c, struct arena *a)
{
    struct catalog out = *c;
    size_t n = 0;
    out.tensors = arena_array(a, c->num_tensors + c->num_native + 1, sizeof *out.tensors);
    for (size_t i = 0; i < c->num_tensors; i++)
        if (!tensor_is_decoded(&c->tensors[i])) out.tensors[n++] = c->tensors[i];
    for (size_t i = 0; i < c->num_native; i++) {
        const struct native_tensor *native = &c->native[i];
        if (native->num_parts && native->parts[0].encoded)
            out.tensors[n++] = *native->parts[0].encoded->codes;
    }
    out.num_tensors = n;
    return out;
}
