/* collect.c - what came out of a pass, from all ranks to rank 0.
 *
 * Stage by stage and output by output, each rank of a stage that has a part of it sends a header
 * and its rows; rank 0 takes them in the order of ranks, and knows from the layout alone which rows
 * of the batch they are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/threads.h"
#include "kernels/cpu/cast.h"
#include "train/model/model.h"

/* A rank's part of an output. */
struct part {
    char name[96];
    uint64_t rows, columns, all_columns; /* of the part; columns of all ranks together */
    uint64_t copied;
    unsigned sharers;
    bool slice, last, shard, sum, real;
};

struct collecting {
    struct pass *pass;
    struct comm_group *world;
    pass_visit *visit;
    void *context;
};

static bool is_wide(const struct pass *p)
{
    return p->model->options.elem == ELEM_F64;
}

static uint64_t part_bytes(const struct collecting *x, const struct part *part)
{
    enum operand_type type = part->real ? OPERAND_REAL : OPERAND_ELEM;
    return part->rows * part->columns * operand_bytes_of(type, x->pass->model->options.elem);
}

static struct part part_of(const struct built *b, const struct output *o)
{
    const struct program_value *v = &b->program.values[o->value];
    struct part part = {.rows = v->shape[0],
                        .columns = v->num_dims > 1 ? v->shape[1] : 1,
                        .all_columns = o->columns,
                        .copied = o->copied,
                        .sharers = o->sharers,
                        .slice = o->slice,
                        .last = o->last,
                        .shard = o->shard,
                        .sum = o->sum,
                        .real = v->type == OPERAND_REAL};
    snprintf(part.name, sizeof part.name, "%s", o->name);
    return part;
}

/* Whether the rank at a place has a part that no other has. */
static bool contributes(const struct part *part, const struct group_place *at)
{
    return part->slice || part->shard || at->tp == 0;
}

/* The elements of a part: where they lie, or on the heap. */
struct elements {
    const void *data;
    void *heap; /* to be freed; NULL: nothing is */
};

static enum status on_heap(struct elements *e, uint64_t bytes, const char *name, struct error *err)
{
    e->data = e->heap = malloc(bytes + 1);
    return e->heap ? OK : fail(err, ERR_MEMORY, "no memory for a part of %s", name);
}

/* Of this rank, in the host's memory. */
static enum status own_elements(const struct collecting *x, const struct run *r,
                                const struct output *o, uint64_t bytes, struct elements *e,
                                struct error *err)
{
    const struct device *device = x->pass->model->device;
    *e = (struct elements){.data = run_data(r, o->value)};
    if (device->is_host) return OK;
    TRY(on_heap(e, bytes, o->name, err));
    return device->download(e->heap, run_data(r, o->value), bytes, err);
}

static enum status send_output(const struct collecting *x, const struct run *r,
                               const struct output *o, uint64_t bytes, struct error *err)
{
    struct elements e;
    enum status st = own_elements(x, r, o, bytes, &e, err);
    if (!st) st = comm_send(x->world, 0, e.data, bytes, err);
    free(e.heap);
    return st;
}

static enum status send_outputs(const struct collecting *x, const struct built *b,
                                const struct run *r, struct error *err)
{
    const struct group_place *at = &x->pass->model->groups.place;
    uint64_t count = b->num_outputs;
    TRY(comm_send(x->world, 0, &count, sizeof count, err));
    for (size_t i = 0; i < b->num_outputs; i++) {
        struct part part = part_of(b, &b->outputs[i]);
        TRY(comm_send(x->world, 0, &part, sizeof part, err));
        if (contributes(&part, at))
            TRY(send_output(x, r, &b->outputs[i], part_bytes(x, &part), err));
    }
    return OK;
}

/* ---- rank 0 ---- */

/* An output that is being put together. */
struct whole {
    struct part part; /* as the first rank has it */
    struct collected c;
    void *values; /* c.data, where it is put together */
};

static enum dtype dtype_of(const struct collecting *x, const struct part *part)
{
    const enum dtype elem = elem_dtype(x->pass->model->options.elem);
    return elem == DT_F64 || !part->real ? elem : DT_F32;
}

/* Which row of the whole a row of a rank's part is; UINT64_MAX: none. */
static uint64_t row_in_batch(const struct collecting *x, const struct part *part,
                             const struct group_place *at, const struct token_shape *shape,
                             const struct token_origin *origins, uint64_t row)
{
    const struct batch *b = &x->pass->batch;
    const uint64_t sequence = tokens_first_sequence(b, at, shape) + row;
    if (part->last) return sequence < b->num_sequences ? sequence : UINT64_MAX;
    if (part->slice) row += at->tp * part->rows;
    const struct token_origin *o = &origins[row];
    return o->sequence == UINT64_MAX ? UINT64_MAX : o->sequence * b->length + o->position;
}

/* Where the columns of a rank's part begin; *count: how many of them. The last of those that have
 * copies gives them. */
static uint64_t first_column(const struct part *part, const struct group_place *at, uint64_t *count)
{
    *count = part->columns;
    if (!part->shard) return 0;
    if (!part->copied) return at->tp * part->columns;
    const uint64_t own = part->columns - part->copied, turn = at->tp % part->sharers,
                   group = at->tp / part->sharers;
    if (turn + 1 < part->sharers) *count = own;
    return group * (part->sharers * own + part->copied) + turn * own;
}

static enum status place_rows(const struct collecting *x, struct whole *w, const struct part *part,
                              const struct group_place *at, const struct token_shape *shape,
                              const struct token_origin *origins, const void *data,
                              struct error *err)
{
    const enum dtype from = dtype_of(x, part), to = w->c.wide ? DT_F64 : DT_F32;
    uint64_t columns, first = first_column(part, at, &columns);
    uint64_t end = min_u64(first + columns, w->c.columns), count = end > first ? end - first : 0;
    for (uint64_t i = 0; i < part->rows; i++) {
        uint64_t row = row_in_batch(x, part, at, shape, origins, i);
        if (row == UINT64_MAX || !count) continue;
        TRY(work_check(err));
        (void)cast_elements((char *)w->values + (row * w->c.columns + first) * dtype_bytes(to), to,
                            (const char *)data + i * part->columns * dtype_bytes(from), from,
                            count);
    }
    return OK;
}

static void add_sum(struct whole *w, const void *data)
{
    if (w->c.wide)
        *(double *)w->values += *(const double *)data;
    else
        *(float *)w->values += *(const float *)data;
}

static enum status place_part(const struct collecting *x, struct whole *w, const struct part *part,
                              const struct group_place *at, const void *data, struct error *err)
{
    const struct group_sizes *sizes = &x->pass->model->groups.sizes;
    struct arena scratch;
    if (part->sum) {
        add_sum(w, data);
        return OK;
    }
    arena_init(&scratch);
    struct token_shape shape = tokens_shape(&x->pass->batch, sizes, sizes->tp);
    struct token_origin *origins = tokens_origins(&scratch, &x->pass->batch, at, &shape);
    enum status st = place_rows(x, w, part, at, &shape, origins, data, err);
    arena_release(&scratch);
    return st;
}

static uint64_t vocab_size(const struct pass *p)
{
    return p->model->config.vocab_size;
}

/* Columns behind the vocabulary are padding. */
static uint64_t true_columns(const struct collecting *x, const struct part *part)
{
    return strcmp(part->name, "logits") == 0 ? vocab_size(x->pass) : part->all_columns;
}

static void begin_whole(const struct collecting *x, struct whole *w, const struct part *part)
{
    const struct batch *b = &x->pass->batch;
    w->part = *part;
    w->c =
        (struct collected){.name = w->part.name,
                           .rows = part->sum ? 1 : b->num_sequences * (part->last ? 1 : b->length),
                           .columns = true_columns(x, part),
                           .wide = is_wide(x->pass)};
}

static enum status allocate_whole(struct whole *w, struct error *err)
{
    w->c.data = w->values =
        calloc(w->c.rows * w->c.columns + 1, w->c.wide ? sizeof(double) : sizeof(float));
    if (w->values) return OK;
    return fail(err, ERR_MEMORY, "no memory for %s of %" PRIu64 " tokens", w->c.name, w->c.rows);
}

/* One rank's part is all of it, as it is given: rows in the order of the batch, no padding. */
static bool is_whole(const struct collecting *x, const struct whole *w, const struct part *part)
{
    return x->world->size == 1 && part->rows == w->c.rows && part->columns == w->c.columns &&
           dtype_of(x, part) == (w->c.wide ? DT_F64 : DT_F32);
}

static enum status take_part(const struct collecting *x, struct whole *w, const struct part *part,
                             const struct group_place *at, const void *data, struct error *err)
{
    if (!w->values) TRY(allocate_whole(w, err));
    return place_part(x, w, part, at, data, err);
}

/* The part of rank r, as a message. */
static enum status receive_part(const struct collecting *x, struct whole *w, unsigned r,
                                struct error *err)
{
    const struct group_place at = groups_place(&x->pass->model->groups.sizes, r);
    struct part part;
    struct elements e;
    TRY(comm_receive(x->world, r, &part, sizeof part, err));
    if (!w->c.name) begin_whole(x, w, &part);
    if (!contributes(&part, &at)) return OK;
    uint64_t bytes = part_bytes(x, &part);
    enum status st = on_heap(&e, bytes, part.name, err);
    if (!st) st = comm_receive(x->world, r, e.heap, bytes, err);
    if (!st) st = take_part(x, w, &part, &at, e.data, err);
    free(e.heap);
    return st;
}

/* A stage on rank 0 itself. */
struct own {
    const struct built *built; /* NULL: it has none of it */
    const struct run *run;
};

/* *e is the caller's to free when it has been visited. */
static enum status take_own_part(const struct collecting *x, struct whole *w, const struct own *own,
                                 size_t output, struct elements *e, struct error *err)
{
    const struct group_place at = groups_place(&x->pass->model->groups.sizes, 0);
    const struct output *o = &own->built->outputs[output];
    const struct part part = part_of(own->built, o);
    begin_whole(x, w, &part);
    TRY(own_elements(x, own->run, o, part_bytes(x, &part), e, err));
    if (is_whole(x, w, &part)) {
        w->c.data = e->data;
        return OK;
    }
    enum status st = take_part(x, w, &part, &at, e->data, err);
    free(e->heap);
    e->heap = NULL;
    return st;
}

/* Output number `output` of ranks [first, end). */
static enum status take_output(const struct collecting *x, unsigned first, unsigned end,
                               const struct own *own, size_t output, struct error *err)
{
    struct whole w = {0};
    struct elements e = {0};
    enum status st = OK;
    for (unsigned r = first; r < end && !st; r++)
        st = r ? receive_part(x, &w, r, err) : take_own_part(x, &w, own, output, &e, err);
    if (!st) st = x->visit(x->context, &w.c, err);
    free(w.values);
    free(e.heap);
    return st;
}

/* All outputs of one stage. */
static enum status take_stage(const struct collecting *x, unsigned pp_rank, const struct own *own,
                              struct error *err)
{
    const struct group_sizes *s = &x->pass->model->groups.sizes;
    unsigned per_stage = s->tp * s->cp * s->dp, first = pp_rank * per_stage;
    uint64_t count = own->built ? own->built->num_outputs : 0;
    enum status st = OK;
    for (unsigned r = first; r < first + per_stage && !st; r++)
        if (r) st = comm_receive(x->world, r, &count, sizeof count, err);
    for (size_t i = 0; i < count && !st; i++)
        st = take_output(x, first, first + per_stage, own, i, err);
    return st;
}

enum status pass_collect(struct pass *p, pass_visit *visit, void *context, struct error *err)
{
    struct collecting x = {p, &p->model->groups.of[GROUP_WORLD], visit, context};
    unsigned rank = x.world->comm->rank, pp = p->model->groups.sizes.pp;
    for (size_t i = 0; i < p->num_chunks; i++) {
        if (rank) {
            TRY(send_outputs(&x, &p->chunks[i], &p->runs[i], err));
            continue;
        }
        TRY(take_stage(&x, 0, &(struct own){&p->chunks[i], &p->runs[i]}, err));
        for (unsigned s = 1; s < pp; s++)
            TRY(take_stage(&x, s, &(struct own){NULL, NULL}, err));
    }
    return OK;
}

/* ---- what it takes ---- */

/* The columns of the widest output, and of all of them together. */
static void count_columns(const struct pass *p, uint64_t *widest, uint64_t *all)
{
    const struct model_config *c = &p->model->config;
    *widest = *all = p->options.loss ? 1 : 0;
    if (p->options.logits) {
        *widest = max_u64(*widest, vocab_size(p));
        *all += vocab_size(p);
    }
    if (p->options.hidden) {
        *widest = max_u64(*widest, c->hidden_size);
        *all += c->hidden_size * (c->num_layers + 2);
    }
}

/* Columns that are copied where one rank has all of an output: those of another type, or with
 * padding behind them. */
static uint64_t copied_columns(const struct pass *p)
{
    const bool padded = vocab_size(p) % 8 != 0,
               cast = operand_bytes_of(OPERAND_ELEM, p->model->options.elem) == 2;
    uint64_t columns = p->options.logits && padded ? vocab_size(p) : 0;
    return p->options.hidden && cast ? max_u64(columns, p->model->config.hidden_size) : columns;
}

uint64_t pass_collect_bytes(const struct pass *p, bool visitor_keeps)
{
    const struct model *m = p->model;
    const struct group_sizes *s = &m->groups.sizes;
    const uint64_t rows = p->batch.num_sequences * (p->options.last_only ? 1 : p->batch.length);
    const uint64_t row_bytes = rows * (is_wide(p) ? sizeof(double) : sizeof(float));
    const bool alone = groups_world_size(s) == 1, on_host = m->device->is_host;
    uint64_t widest, all;
    count_columns(p, &widest, &all);
    const uint64_t part = row_bytes * widest / ((uint64_t)s->tp * s->cp * s->dp);
    if (m->groups.of[GROUP_WORLD].index > 0) return on_host ? 0 : part;
    uint64_t bytes = visitor_keeps ? row_bytes * all : 0;
    if (!on_host) bytes += row_bytes * widest; /* in the caller (subprocess.c) */
    if (!alone) return bytes + row_bytes * widest + part;
    return bytes + row_bytes * copied_columns(p) + (on_host ? 0 : part);
}
