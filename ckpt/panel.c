#include "ckpt/panel.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/block.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"

enum {
    NUMBERS = 32 << 10,  /* elements that panel_read_numbers reads at once */
    WIDEST_ELEMENT = 16, /* bytes of any dtype */
};

struct reading {
    struct fetching fetching; /* to `panel`, or to reader->cast before a cast */
    const struct tensor *tensor;
    char *panel; /* the caller's */
};

/* Casts the fetched elements of a block, p.b, to their place in the panel. */
static void cast_fetched(const struct reading *r, const struct pair *p)
{
    const struct fetching *f = &r->fetching;
    struct casting c = {r->panel, f->buffer,         r->tensor->dtype,
                        f->dtype, &f->reader->casts, (double)f->piece->add};
    struct pair swapped = *p;
    pair_swap(&swapped);
    const struct pair same = pair_onto_itself(&swapped);
    cast_pair(&c, &same);
}

static enum status read_joined(void *context, const struct pair *p, struct error *err)
{
    const struct reading *r = context;
    struct block b = block_of(p, true);
    TRY(piece_origin(r->fetching.piece)->fetch(&r->fetching, &b, p->a_offset, p->b_offset, err));
    if (r->fetching.buffer != r->panel) cast_fetched(r, p);
    return OK;
}

/* A panel being read. */
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
    const uint64_t span = pair_a_span(wanted);
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *piece = &t->pieces[i];
        struct reading r = {
            {f->reader, piece, piece_dtype(piece, t->dtype), f->panel}, t, f->panel};
        if (pair_is_apart(&piece->pair, wanted->a_offset, span)) continue;
        if (!piece_origin(piece)->fetch) continue;
        if (r.fetching.dtype != t->dtype || piece->add != 0) r.fetching.buffer = f->reader->cast;
        const struct pair pair = pair_unpack(&piece->pair);
        TRY(pair_join(&pair, wanted, "reading", read_joined, &r, err));
    }
    return OK;
}

/* Reads the elements of the panel, p.a, in one of the parts. */
static enum status read_part(void *context, const struct pair *p, struct error *err)
{
    const struct filling *f = context;
    struct pair wanted = pair_onto_itself(p);
    wanted.a_offset += f->low;
    (void)pair_nest(&wanted);
    return read_pieces(f, &wanted, err);
}

/* Elements of a fraction of a byte move in runs of whole blocks. */
static enum status check_blocks(const struct tensor *t, struct error *err)
{
    for (size_t i = 0; i < t->num_pieces && !dtype_bytes(t->dtype); i++)
        if (!pair_is_blocks(&t->pieces[i].pair, dtype_block(t->dtype)))
            return fail(err, ERR_UNSUPPORTED, "%s: a piece of dtype %s is not in whole bytes",
                        t->name, dtype_infos[t->dtype].name);
    return OK;
}

enum status panel_read_parts(struct panel_reader *reader, const struct tensor *t, uint64_t low,
                             uint64_t count, const struct pair *parts, size_t num_parts,
                             void *panel, struct error *err)
{
    struct pair window = pair_whole(low, 0, count);
    struct filling f = {reader, t, low, panel};
    TRY(check_blocks(t, err));
    for (size_t i = 0; i < t->num_pieces; i++)
        if (!piece_origin(&t->pieces[i])->fetch) {
            memset(panel, 0, dtype_run_bytes(t->dtype, count));
            break;
        }
    for (size_t i = 0; i < num_parts; i++)
        TRY(pair_join(&window, &parts[i], "reading", read_part, &f, err));
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

/* Whether a dtype holds the numbers exactly. */
static bool holds_exactly(enum dtype dtype, const double *values, uint64_t count)
{
    char cast[NUMBERS];
    const uint64_t most = NUMBERS / WIDEST_ELEMENT;
    for (uint64_t at = 0; at < count; at += most)
        if (cast_elements(cast, dtype, values + at, DT_F64, min_u64(count - at, most)))
            return false;
    return true;
}

enum status panel_exact_dtype(const struct catalog *c, const struct tensor *t, double add,
                              enum dtype from, enum dtype *out, struct error *err)
{
    const enum dtype dtypes[] = {from, DT_F32, DT_F64};
    struct tensor exact = *t;
    size_t i = 0;
    exact.dtype = DT_F64; /* what it is cast to when read */
    double *values = must_calloc(t->numel + 1, sizeof *values);
    enum status st = panel_read_numbers(c, &exact, t->numel, values, err);
    for (uint64_t k = 0; k < t->numel; k++)
        values[k] += add;
    while (!st && i + 1 < COUNT(dtypes) && !holds_exactly(dtypes[i], values, t->numel))
        i++;
    *out = dtypes[i];
    free(values);
    return st;
}

bool tensor_takes_cast(const struct tensor *t)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (piece_dtype(&t->pieces[i], t->dtype) != t->dtype || t->pieces[i].add != 0 ||
            piece_origin(&t->pieces[i])->is_joined)
            return true;
    return false;
}

bool tensor_is_hole(const struct tensor *t)
{
    return t->num_pieces && piece_origin(&t->pieces[0])->is_hole;
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
    TRY(check_blocks(t, err));
    TRY(check_cast(t, to, t->dtype, err));
    for (size_t i = 0; i < t->num_pieces; i++)
        TRY(check_cast(t, t->dtype, piece_dtype(&t->pieces[i], t->dtype), err));
    return OK;
}
