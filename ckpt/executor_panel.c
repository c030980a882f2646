/* executor_panel.c - casts a panel, writes it to its target pieces, and adds it
 * to the digests. */
#include <libdeflate.h>

#include "ckpt/digest.h"
#include "ckpt/executor_internal.h"
#include "common/checked.h"
#include "common/memory.h"
#include "kernels/cpu/finite.h"

/* ---- runs of bytes ---- */

static bool is_shared(const struct executor *x, uint64_t segment)
{
    return x->plan->files[x->plan->segments[segment].file].shared;
}

void executor_report_run(struct executor *x, const struct journal_run *run)
{
    if (!is_shared(x, run->segment)) x->sink->add_run(x->sink, run);
}

void executor_end_chain(struct executor *x, struct worker *w, uint32_t segment, struct chain *c)
{
    struct journal_run run = {segment, c->offset, c->bytes, c->crc};
    if (!c->bytes) return;
    executor_report_run(x, &run);
    *c = (struct chain){0};
    if (!x->options->journal_path) return;
    if (w->num_runs == w->runs_capacity) {
        w->runs_capacity = 2 * w->runs_capacity + 16;
        w->runs = must_realloc(w->runs, w->runs_capacity * sizeof *w->runs);
    }
    w->runs[w->num_runs++] = run;
}

static void add_to_chain(struct executor *x, struct worker *w, uint32_t segment, struct chain *c,
                         const void *from, uint64_t offset, uint64_t bytes)
{
    const bool wants_crc = x->plan->segments[segment].wants_crc;
    if (wants_crc && c->offset + c->bytes != offset) executor_end_chain(x, w, segment, c);
    if (!c->bytes) c->offset = offset;
    if (wants_crc) c->crc = libdeflate_crc32(c->crc, from, bytes);
    c->bytes += bytes;
}

struct writing {
    struct executor *x;
    struct worker *w;
    const struct target_piece *piece;
    const char *panel; /* in the target's dtype */
    char *temp;        /* as large */
    enum dtype dtype;
    struct chain *chain;
};

static enum status write_run(const struct writing *wr, const void *from, uint64_t at,
                             uint64_t count, struct error *err)
{
    struct executor *x = wr->x;
    uint32_t segment = wr->piece->segment;
    const uint64_t offset = dtype_run_bytes(wr->dtype, at),
                   bytes = dtype_run_bytes(wr->dtype, count);
    if (x->plan->segments[segment].wants_crc || is_shared(x, segment))
        add_to_chain(x, wr->w, segment, wr->chain, from, offset, bytes);
    TRY(x->sink->write(x->sink, segment, offset, from, bytes, err));
    progress_add(x->progress, bytes);
    return OK;
}

/* Writes the block (a: the segment, from element `to`; b: the panel, from
 * `from`) if it is one run of the segment. */
static enum status write_block(void *context, const struct block *b, uint64_t to, uint64_t from,
                               bool *taken, struct error *err)
{
    const struct writing *wr = context;
    const char *source = wr->panel + dtype_run_bytes(wr->dtype, from);
    uint64_t count = block_count(b);
    if (block_is_run(b)) return write_run(wr, source, to, count, err);
    *taken = block_file_run(b) == count; /* fits temp, since it fits the panel */
    if (!*taken) return OK;
    struct block out = *b; /* copy_axes goes from a to b */
    for (unsigned k = 0; k < out.num_axes; k++) {
        out.axes[k].a_stride = b->axes[k].b_stride;
        out.axes[k].b_stride = b->axes[k].a_stride;
    }
    copy_axes(wr->temp, source, dtype_bytes(wr->dtype), out.num_axes, out.axes);
    return write_run(wr, wr->temp, to, count, err);
}

static enum status write_joined(void *context, const struct pair *p, struct error *err)
{
    struct block b = block_of(p, false); /* p.a: the panel, p.b: the segment */
    return block_split(&b, p->b_offset, p->a_offset, write_block, context, err);
}

/* ---- panels ---- */

/* Visits the parts of a panel that this rank casts and counts, as pairs (panel,
 * panel): all of it, or the rank's parts of a held tensor. */
static enum status visit_parts(const struct executor *x, const struct scan_panel *p,
                               pair_visit *visit, void *context, struct error *err)
{
    const struct scan_item *item = &x->items[p->task->item];
    const struct pair window = pair_whole(p->low, 0, p->count), all = pair_whole(0, 0, p->count);
    if (!item->parts) return visit(context, &all, err);
    for (size_t i = 0; i < item->num_parts; i++)
        TRY(pair_join(&window, &item->parts[i], "counting", visit, context, err));
    return OK;
}

static enum status cast_part(void *context, const struct pair *p, struct error *err)
{
    const struct pair same = pair_onto_itself(p);
    (void)err;
    cast_pair(context, &same);
    return OK;
}

/* Casts the panel, unless it is as the target has it. */
static enum status cast_panel(const struct executor *x, const struct scan_panel *p, enum dtype to,
                              const char **panel, struct error *err)
{
    struct worker *w = &x->workers[p->task->worker];
    const struct plan_copy *c = &x->plan->copies[p->task->item];
    const enum dtype from = c->source->dtype;
    struct casting casting = {p->cast, p->elements[0], to, from, &w->casts, c->add};
    const bool same = to == from && c->add == 0;
    *panel = same ? p->elements[0] : p->cast;
    return same ? OK : visit_parts(x, p, cast_part, &casting, err);
}

/* A digest of elements of a panel. */
struct summing {
    struct digest *digest;
    uint64_t *non_finite; /* NULL: not counted */
    enum dtype dtype;
    const char *panel;
    uint64_t low;
};

static enum status sum_run(void *context, const struct block *b, uint64_t at, uint64_t same,
                           bool *taken, struct error *err)
{
    const struct summing *s = context;
    const char *elements = s->panel + dtype_run_bytes(s->dtype, at);
    uint64_t count = block_count(b);
    (void)same, (void)err;
    *taken = block_file_run(b) == count;
    if (!*taken) return OK;
    digest_add_elements(s->digest, s->dtype, elements, count, s->low + at);
    if (s->non_finite) *s->non_finite += count_non_finite(s->dtype, elements, count);
    return OK;
}

static enum status sum_part(void *context, const struct pair *p, struct error *err)
{
    struct block b = block_of(p, true);
    return block_split(&b, p->a_offset, 0, sum_run, context, err);
}

static enum status sum_panel(const struct executor *x, const struct scan_panel *p,
                             struct summing sums, struct error *err)
{
    sums.low = p->low;
    return visit_parts(x, p, sum_part, &sums, err);
}

/* Writes the pieces of one target dtype from a panel in that dtype. */
static enum status write_pieces(struct executor *x, const struct scan_panel *p, enum dtype dtype,
                                const char *panel, struct error *err)
{
    const struct plan_copy *c = &x->copies[p->task->item];
    struct worker *w = &x->workers[p->task->worker];
    struct pair window = pair_whole(p->low, 0, p->count);
    for (size_t i = 0; i < c->num_pieces; i++) {
        const struct target_piece *piece = &c->pieces[i];
        struct writing wr = {x, w, piece, panel, p->temp, dtype, &w->chains[i]};
        if (!w->bytes[i] || plan_piece_dtype(x->plan, piece) != dtype) continue;
        if (pair_is_apart(&piece->pair, p->low, p->count)) continue;
        progress_file(x->progress, x->plan->files[x->plan->segments[piece->segment].file].path);
        const struct pair pair = pair_unpack(&piece->pair);
        TRY(pair_join(&window, &pair, "writing", write_joined, &wr, err));
    }
    return OK;
}

/* Casts the panel once for each target dtype. The digest of written elements is
 * of the first. */
enum status executor_write_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct executor *x = context;
    const struct plan_copy *c = &x->plan->copies[p->task->item];
    struct worker *w = &x->workers[p->task->worker];
    const enum dtype from = c->source->dtype;
    const bool sums = x->options->digests && w->counts;
    const char *panel = p->elements[0];
    uint64_t dtypes = 0; /* bit d: dtype d is done */
    cast_counts_join(&w->casts, &p->casts);
    if (sums) {
        struct summing read = {&w->read, &w->non_finite, from, panel, 0};
        TRY(sum_panel(x, p, read, err));
        w->non_finite -= p->casts.overflowed;
    }
    for (size_t i = 0; i < c->num_pieces; i++) {
        enum dtype to = plan_piece_dtype(x->plan, &c->pieces[i]);
        if (dtypes >> to & 1) continue;
        TRY(cast_panel(x, p, to, &panel, err));
        struct summing written = {&w->written, NULL, to, panel, 0};
        if (sums && !dtypes && c->add == 0 && to != from) TRY(sum_panel(x, p, written, err));
        dtypes |= UINT64_C(1) << to;
        TRY(write_pieces(x, p, to, panel, err));
    }
    return OK;
}

/* Elements of a panel that go to one array. */
struct filling {
    struct casting casting;
    uint64_t elements;
};

static enum status fill_joined(void *context, const struct pair *p, struct error *err)
{
    struct filling *f = context; /* p.a: the panel, p.b: memory */
    (void)err;
    cast_pair(&f->casting, p);
    f->elements += pair_count(p);
    return OK;
}

enum status executor_fill_memory(void *context, const struct scan_panel *p, struct error *err)
{
    struct executor *x = context;
    const struct plan_copy *c = &x->copies[p->task->item];
    struct pair window = pair_whole(p->low, 0, p->count);
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->num_pieces; i++) {
        if (pair_is_apart(&c->pieces[i].pair, p->low, p->count)) continue;
        uint32_t segment = c->pieces[i].segment;
        enum dtype to = x->plan->segments[segment].dtype;
        struct filling f = {.casting = {x->sink->address(x->sink, segment), p->elements[0], to,
                                        c->source->dtype, NULL, c->add}};
        const struct pair pair = pair_unpack(&c->pieces[i].pair);
        TRY(pair_join(&window, &pair, "loading", fill_joined, &f, err));
        bytes += dtype_run_bytes(to, f.elements);
    }
    atomic_fetch_add_explicit(&x->sink->written_bytes, bytes, memory_order_relaxed);
    progress_add(x->progress, bytes);
    return OK;
}
