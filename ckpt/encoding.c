#include "ckpt/encoding_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/checked.h"

enum {
    RUN_BYTES = 256 << 10, /* of codes and scales at once: they stay in the second-level cache */
    ZEROS = 512,           /* gathered at once */
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
    if (num_dims == 1 && lead == 0 && e->rows == 1 && shape[0] == e->grid[1]) return true;
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
    if (e->lines) return e->lines[row];
    return row / e->rows * e->grid[0] + row % e->rows / e->block[0];
}

/* Codes of several rows in each word. */
static bool has_tall_words(const struct encoded *e)
{
    return e->words.rows > 1;
}

/* The byte with the code of an element, or where its word begins. */
static uint64_t code_byte(const struct encoded *e, uint64_t row, uint64_t col)
{
    const uint64_t rows = has_tall_words(e) ? e->words.rows : 1;
    return row / rows * e->row_bytes + col * rows * quant_infos[e->code].bits / 8;
}

struct encoded_span encoded_span_of(const struct encoded *e, uint64_t low, uint64_t count)
{
    const uint64_t last = low + count - 1, first_col = low % e->cols, last_col = last % e->cols;
    struct encoded_span s = {
        .low = low, .count = count, .first_row = low / e->cols, .last_row = last / e->cols};
    const bool one_row = s.first_row == s.last_row, whole = !one_row && has_tall_words(e);
    s.first_byte = code_byte(e, s.first_row, whole ? 0 : first_col);
    s.bytes = code_byte(e, s.last_row, whole ? e->cols - 1 : last_col) + 1 - s.first_byte;
    s.first_line = encoded_line(e, s.first_row);
    s.lines = encoded_line(e, s.last_row) - s.first_line + 1;
    s.first_group = one_row ? first_col / e->block[1] : 0;
    s.groups = one_row ? last_col / e->block[1] - s.first_group + 1 : e->grid[1];
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
    float *scales, *zeros; /* [lines, groups] */
    char *raw;             /* scales as stored, then words of zeros */
    char *gathered;        /* codes of a row, if they are in words */
    char *codes;
};

/* The words of a span's zeros: `lines` of `count` words. */
struct zero_words {
    uint64_t first, lines, count;
};

static struct zero_words zero_words_of(const struct encoded *e, const struct encoded_span *s)
{
    if (!e->zeros) return (struct zero_words){0};
    const struct quant_words *z = &e->zero_words;
    const uint64_t across = (e->grid[1] + z->cols - 1) / z->cols, word = s->first_group / z->cols;
    const uint64_t line = s->first_line / z->rows;
    return (struct zero_words){
        .first = line * across + word,
        .lines = (s->first_line + s->lines - 1) / z->rows - line + 1,
        .count = (s->first_group + s->groups - 1) / z->cols - word + 1,
    };
}

static uint64_t room_bytes(const struct encoded *e, const struct encoded_span *s, struct room *room,
                           char *buffer)
{
    const uint64_t groups = s->lines * s->groups, scales = groups * sizeof(float);
    const uint64_t zeros = e->zeros ? scales : 0;
    const struct zero_words z = zero_words_of(e, s);
    const uint64_t words = e->zeros ? z.lines * z.count * dtype_bytes(e->zeros->dtype) : 0;
    const uint64_t raw = max_u64(groups * LARGEST_SCALE, words);
    const uint64_t gathered = e->words.rows ? min_u64(s->count, e->cols) : 0;
    uint64_t first, count;
    unit_range(e, s, &first, &count);
    *room = (struct room){(float *)(void *)buffer, (float *)(void *)(buffer + scales),
                          buffer + scales + zeros, buffer + scales + zeros + raw,
                          buffer + scales + zeros + raw + gathered};
    return scales + zeros + raw + gathered + dtype_run_bytes(e->codes->dtype, count);
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

/* Makes scales `first` on of their codes. */
static enum status decode_scales(struct panel_reader *r, const struct encoded *e, uint64_t first,
                                 uint64_t n, const char *raw, float *scales, struct error *err)
{
    const struct encoded_nested *x = e->nested;
    for (uint64_t i = 0; i < n;) {
        float scale;
        const uint64_t end = min_u64(n, ((first + i) / x->block + 1) * x->block - first);
        TRY(panel_read(r, x->scales, (first + i) / x->block, 1, &scale, err));
        for (; i < end; i++) {
            const float product = x->numbers[(unsigned char)raw[i]] * scale;
            scales[i] = product + x->offset;
        }
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
    for (uint64_t i = 0; i < n && !e->nested; i++)
        room->scales[i] =
            encoded_with_global(e, encoded_scale(e->scales->dtype, room->raw, i), global);
    if (e->nested) TRY(decode_scales(r, e, first, n, room->raw, room->scales, err));
    for (uint64_t i = 0; i < n; i++) {
        if (e->mistake == MISTAKE_NO_SCALE) room->scales[i] = 1;
        if (e->mistake == MISTAKE_INVERSE_SCALE) room->scales[i] = 1 / room->scales[i];
        if (!isfinite(room->scales[i]))
            return fail(err, ERR_CORRUPT, "%s: scale %" PRIu64 " is %g", e->scales->stored_name,
                        first + i, (double)room->scales[i]);
    }
    return OK;
}

/* Decodes up to ZEROS zeros of a line of groups from its words. */
static void read_zeros_of_line(const struct encoded *e, const char *words, uint64_t line,
                               uint64_t first, uint64_t count, float *zeros)
{
    unsigned char codes[ZEROS];
    const float one = 1;
    const struct quant_run run = {
        .code = e->code, .count = count, .group = count, .scales = &one, .numbers = e->numbers};
    quant_gather(&e->zero_words, e->code, words, line, first, count, codes);
    quant_decode(&run, codes, DT_F32, zeros);
    for (uint64_t i = 0; i < count; i++)
        zeros[i] += e->zero_offset;
}

enum status encoded_read_zeros(struct panel_reader *r, const struct encoded *e,
                               const struct encoded_span *s, char *raw, float *zeros,
                               struct error *err)
{
    const struct quant_words *z = &e->zero_words;
    const struct zero_words words = zero_words_of(e, s);
    const uint64_t line_bytes = dtype_run_bytes(e->zeros->dtype, words.count);
    TRY(panel_read(r, e->zeros, words.first, words.lines * words.count, raw, err));
    for (uint64_t i = 0; i < s->lines; i++) {
        const uint64_t line = s->first_line + i;
        const char *from = raw + (line / z->rows - s->first_line / z->rows) * line_bytes;
        for (uint64_t g = 0, n; g < s->groups; g += n, zeros += n) {
            n = min_u64(s->groups - g, ZEROS);
            read_zeros_of_line(e, from, line, s->first_group % z->cols + g, n, zeros);
        }
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

/* Codes of elements [col, col + n) of a row, one after another. */
static const char *codes_of_row(const struct encoded *e, const struct encoded_span *s,
                                const struct room *room, uint64_t row, uint64_t col, uint64_t n)
{
    const uint64_t unit = dtype_bytes(e->codes->dtype), begin = s->first_byte / unit * unit;
    if (!e->words.rows) return room->codes + (code_byte(e, row, col) - begin);
    const uint64_t word = code_byte(e, row, col) / unit * unit;
    quant_gather(&e->words, e->code, room->codes + (word - begin), row, col % e->words.cols, n,
                 room->gathered);
    return room->gathered;
}

/* Decodes a span's elements, row by row. */
static enum status decode_rows(const struct encoded *e, const struct encoded_span *s,
                               const struct room *room, enum dtype dtype, char *out,
                               struct error *err)
{
    const bool zero = has_zero(room->scales, s->lines * s->groups);
    uint64_t at = s->low;
    for (uint64_t row = s->first_row; row <= s->last_row; row++) {
        const uint64_t col = at % e->cols, n = min_u64(e->cols - col, s->low + s->count - at);
        const char *codes = codes_of_row(e, s, room, row, col, n);
        const uint64_t line = encoded_line(e, row) - s->first_line;
        const struct quant_run run = {
            .code = e->code,
            .numbers = e->numbers,
            .factor = e->factor,
            .first = quant_infos[e->code].bits == 4 && !e->words.rows ? col % 2 : 0,
            .count = n,
            .group = e->block[1],
            .phase = col - s->first_group * e->block[1],
            .scales = room->scales + line * s->groups,
            .zeros = e->zeros ? room->zeros + line * s->groups : NULL,
            .steps = e->steps,
        };
        if (zero) TRY(check_zero_scales(e, &run, codes, row, err));
        quant_decode(&run, codes, dtype, out);
        out += dtype_run_bytes(dtype, n);
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
        swap_halves(room->codes, dtype_run_bytes(e->codes->dtype, count));
    return decode_rows(e, s, room, dtype, out, err);
}

enum status encoded_read(struct panel_reader *r, const struct encoded *e, uint64_t low,
                         uint64_t count, enum dtype dtype, void *out, struct error *err)
{
    char *to = out;
    for (uint64_t end = low + count, n; low < end; low += n, to += dtype_run_bytes(dtype, n)) {
        struct room room;
        struct encoded_span s = encoded_span_of(e, low, n = min_u64(end - low, RUN_BYTES));
        const uint64_t most = min_u64(r->buffer_bytes, RUN_BYTES);
        if (e->lines) s = encoded_span_of(e, low, n = min_u64(n, e->cols - low % e->cols));
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
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *piece = &t->pieces[i];
        if (piece->origin != ORIGIN_ENCODED) return NULL;
    }
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
