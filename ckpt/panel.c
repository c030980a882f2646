#include "ckpt/panel.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/block.h"
#include "common/checked.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/random.h"

enum {
    CALL_BYTES = 4 << 10,  /* what one more system call costs, in bytes copied */
    SEEK_BYTES = 64 << 10, /* what one more access costs, in bytes that come from a disk */
    NUMBERS = 32 << 10,    /* elements that panel_read_numbers reads at once */
    WIDEST_ELEMENT = 16,   /* bytes of any dtype's */
};

struct reading {
    struct panel_reader *r;
    const struct tensor *tensor;
    const struct piece *piece;
    size_t element_bytes; /* of the piece */
    char *panel; /* where the piece's elements go: the caller's panel, or r->cast to be cast from */
    char *result; /* the caller's panel */
};

/* A complex element is two numbers. */
static bool dtype_is_complex(enum dtype dtype)
{
    return dtype == DT_C64 || dtype == DT_C128;
}

static enum status read_bytes(const struct reading *r, uint64_t from, void *to, uint64_t count,
                              struct error *err)
{
    size_t bytes = count * r->element_bytes;
    TRY(stored_read(r->r->reader, r->piece->file, r->piece->offset_bytes + from * r->element_bytes,
                    to, bytes, err));
    r->r->read_bytes += bytes;
    if (r->piece->byte_swapped) {
        size_t parts = dtype_is_complex(r->piece->dtype) ? 2 : 1;
        swap_bytes(to, r->element_bytes / parts, count * parts);
    }
    return OK;
}

/* Reads the runs that the file has of the block to `to`, one behind the other. */
static enum status read_runs(const struct reading *r, const struct block *b, uint64_t from,
                             char **to, struct error *err)
{
    uint64_t count = block_count(b);
    if (block_file_run(b) == count) {
        TRY(read_bytes(r, from, *to, count, err));
        *to += count * r->element_bytes;
        return OK;
    }
    struct block step = block_part(b, 1);
    for (uint64_t i = 0; i < b->axes[0].extent; i++)
        TRY(read_runs(r, &step, from + i * b->axes[0].a_stride, to, err));
    return OK;
}

static void pack_strides(struct block *b)
{
    uint64_t stride = 1;
    for (unsigned k = b->num_axes; k-- > 0;) {
        b->axes[k].a_stride = stride;
        stride *= b->axes[k].extent;
    }
}

/* Reads what `from` (element of the piece) and the axes say to element `to` of the panel: directly
 * where runs of the file are runs of the panel; else through temp, with one call for all that the
 * block spans where that is cheaper than one for each run. What does not fit temp is halved. */
static enum status read_block(const struct reading *r, const struct block *b, uint64_t from,
                              uint64_t to, struct error *err)
{
    char *target = r->panel + to * r->element_bytes, *temp = r->r->temp;
    if (block_is_run(b)) return read_bytes(r, from, target, block_count(b), err);

    uint64_t room = r->r->buffer_bytes / r->element_bytes;
    uint64_t count = block_count(b), span = block_span(b), run = block_file_run(b);
    uint64_t call = CALL_BYTES / r->element_bytes;
    bool span_is_cheaper = call + span <= count / run * (call + run);
    bool direct = run > 1 && b->axes[b->num_axes - 1].b_stride == 1;
    if (span_is_cheaper && span <= room) {
        TRY(read_bytes(r, from, temp, span, err));
        copy_axes(target, temp, r->element_bytes, b->num_axes, b->axes);
        return OK;
    }
    if (!span_is_cheaper && !direct) { /* count elements fit temp as they fit the panel */
        struct block packed = *b;
        TRY(read_runs(r, b, from, &temp, err));
        pack_strides(&packed);
        copy_axes(target, r->r->temp, r->element_bytes, packed.num_axes, packed.axes);
        return OK;
    }
    uint64_t extent = b->axes[0].extent, half = (extent + 1) / 2;
    for (uint64_t i = 0; i < extent; i += half) {
        struct block part = block_part(b, min_u64(half, extent - i));
        TRY(read_block(r, &part, from + i * b->axes[0].a_stride, to + i * b->axes[0].b_stride,
                       err));
    }
    return OK;
}

/* Casts what was read of a block into the panel, run by run of the panel. */
static void cast_block(const struct reading *r, const struct pair *p)
{
    struct pair q = *p;
    pair_swap(&q); /* a: the panel */
    (void)pair_nest(&q);
    uint64_t run = q.num_axes ? q.axes[q.num_axes - 1].extent : 1, changed = 0, overflowed = 0;
    bool runs = q.num_axes && q.axes[q.num_axes - 1].a_stride == 1;
    if (!runs) run = 1;
    for (uint64_t i = 0; i < pair_count(&q); i += run) {
        uint64_t rest = i / (runs ? run : 1), at = q.a_offset;
        for (unsigned k = q.num_axes - runs; k-- > 0; rest /= q.axes[k].extent)
            at += rest % q.axes[k].extent * q.axes[k].a_stride;
        char *to = r->result + at * dtype_bytes(r->tensor->dtype);
        const char *from = r->panel + at * r->element_bytes;
        changed += cast_elements(to, r->tensor->dtype, from, r->piece->dtype, run);
        overflowed += cast_overflows(to, r->tensor->dtype, from, r->piece->dtype, run);
    }
    r->r->cast_elements += pair_count(&q);
    r->r->changed_elements += changed;
    r->r->overflowed += overflowed;
}

/* Numbers `from` of the stream, and what the axes say, to element `to` of the panel. */
static void make_block(const struct reading *r, const struct block *b, uint64_t from, uint64_t to)
{
    if (block_is_run(b)) {
        random_elements(r->panel + to * r->element_bytes, r->tensor->dtype, r->piece->file,
                        r->piece->source == PIECE_RANDOM_ONE, from, block_count(b));
        return;
    }
    struct block step = block_part(b, 1);
    for (uint64_t i = 0; i < b->axes[0].extent; i++)
        make_block(r, &step, from + i * b->axes[0].a_stride, to + i * b->axes[0].b_stride);
}

/* Runs with gaps between them that a disk would rather read than pass by are fetched at once; what
 * is copied of them is read_block's decision. */
static void expect_block(const struct reading *r, const struct block *b, uint64_t from)
{
    uint64_t count = block_count(b), span = block_span(b), runs = count / block_file_run(b);
    if (span <= count || (span - count) / runs > SEEK_BYTES / r->element_bytes) return;
    stored_expect(r->r->reader, r->piece->file, r->piece->offset_bytes + from * r->element_bytes,
                  span * r->element_bytes);
}

static enum status read_joined(void *context, const struct pair *p, struct error *err)
{
    const struct reading *r = context;
    struct block b = block_of(p, true);
    if (r->piece->source != PIECE_STORED) {
        make_block(r, &b, p->a_offset, p->b_offset);
        return OK;
    }
    expect_block(r, &b, p->a_offset);
    TRY(read_block(r, &b, p->a_offset, p->b_offset, err));
    if (r->panel != r->result) cast_block(r, p);
    return OK;
}

static bool is_zero(const struct piece *piece)
{
    return piece->source == PIECE_ZERO || piece->source == PIECE_HOLE;
}

/* A panel that is being read. */
struct filling {
    struct panel_reader *reader;
    const struct tensor *tensor;
    uint64_t low;
    void *panel;
};

static enum status read_pieces(const struct filling *f, const struct pair *wanted,
                               struct error *err)
{
    const struct tensor *t = f->tensor;
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *piece = &t->pieces[i];
        struct reading r = {f->reader, t, piece, dtype_bytes(t->dtype), f->panel, f->panel};
        if (is_zero(piece)) continue;
        if (piece->source == PIECE_STORED && piece->dtype != t->dtype) {
            r.element_bytes = dtype_bytes(piece->dtype);
            r.panel = f->reader->cast;
        }
        TRY(pair_join(&piece->pair, wanted, read_joined, &r, err));
    }
    return OK;
}

/* Elements of the panel, p.a, that a part has. */
static enum status read_part(void *context, const struct pair *p, struct error *err)
{
    const struct filling *f = context;
    struct pair wanted = *p;
    wanted.b_offset = p->a_offset;
    wanted.a_offset = f->low + p->a_offset;
    for (unsigned k = 0; k < wanted.num_axes; k++)
        wanted.axes[k].b_stride = wanted.axes[k].a_stride;
    (void)pair_nest(&wanted);
    return read_pieces(f, &wanted, err);
}

enum status panel_read_parts(struct panel_reader *reader, const struct tensor *t, uint64_t low,
                             uint64_t count, const struct pair *parts, size_t num_parts,
                             void *panel, struct error *err)
{
    struct pair window = pair_whole(low, 0, count);
    struct filling f = {reader, t, low, panel};
    if (!dtype_bytes(t->dtype))
        return fail(err, ERR_UNSUPPORTED, "elements of %s have no whole bytes",
                    dtype_infos[t->dtype].name);
    for (size_t i = 0; i < t->num_pieces; i++)
        if (is_zero(&t->pieces[i])) {
            memset(panel, 0, count * dtype_bytes(t->dtype));
            break;
        }
    for (size_t i = 0; i < num_parts; i++)
        TRY(pair_join(&window, &parts[i], read_part, &f, err));
    return OK;
}

enum status panel_read(struct panel_reader *reader, const struct tensor *t, uint64_t low,
                       uint64_t count, void *panel, struct error *err)
{
    struct pair window = pair_whole(low, 0, count);
    return panel_read_parts(reader, t, low, count, &window, 1, panel, err);
}

static enum status read_numbers(struct panel_reader *r, const struct tensor *t, uint64_t count,
                                void *panel, double *values, struct error *err)
{
    for (uint64_t low = 0, n; low < count; low += n) {
        n = min_u64(count - low, NUMBERS);
        TRY(panel_read(r, t, low, n, panel, err));
        for (uint64_t i = 0; i < n; i++)
            values[low + i] = dtype_load(t->dtype, panel, i);
    }
    return OK;
}

enum status panel_read_numbers(const struct catalog *c, const struct tensor *t, uint64_t count,
                               double *values, struct error *err)
{
    struct panel_reader r = {.reader = stored_reader_create(&c->stored, 4),
                             .buffer_bytes = NUMBERS * WIDEST_ELEMENT,
                             .temp = must_malloc(NUMBERS * WIDEST_ELEMENT),
                             .cast = must_malloc(NUMBERS * WIDEST_ELEMENT)};
    void *panel = must_malloc(NUMBERS * WIDEST_ELEMENT);
    enum status st = read_numbers(&r, t, count, panel, values, err);
    free(panel);
    free(r.temp);
    free(r.cast);
    stored_reader_free(r.reader);
    return st;
}

bool tensor_is_mixed(const struct tensor *t)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].source == PIECE_STORED && t->pieces[i].dtype != t->dtype) return true;
    return false;
}

static enum status check_cast(const struct tensor *t, enum dtype to, enum dtype from,
                              struct error *err)
{
    if (cast_exists(to, from)) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: %s cannot be cast to %s", t->name,
                dtype_infos[from].name, dtype_infos[to].name);
}

enum status tensor_check_cast(const struct tensor *t, enum dtype to, struct error *err)
{
    if (!dtype_bytes(t->dtype))
        return fail(err, ERR_UNSUPPORTED, "%s: elements of %s have no whole bytes", t->name,
                    dtype_infos[t->dtype].name);
    TRY(check_cast(t, to, t->dtype, err));
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].source == PIECE_STORED)
            TRY(check_cast(t, t->dtype, t->pieces[i].dtype, err));
    return OK;
}
