/* collect.c - gathers the outputs of a pass from all ranks on rank 0.
 *
 * Stage by stage and output by output, each rank of a stage with a part of it
 * sends a header and its rows. Rank 0 receives them in rank order; the layout
 * alone tells their rows in the batch. */
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
    const struct pass_taking *how;
    pass_visit *visit;
    void *context;
};

/* Dtype of sums and of outputs, except logits with their own dtype. */
static enum dtype real_dtype(const struct pass *p)
{
    return p->model->options.elem == ELEM_F64 ? DT_F64 : DT_F32;
}

static enum dtype logits_dtype(const struct pass *p)
{
    return p->options.logits_dtype ? p->options.logits_dtype : real_dtype(p);
}

/* Dtype of the program's logits (builder.h). */
static enum dtype own_logits_dtype(const struct pass *p)
{
    const enum dtype elem = elem_dtype(p->model->options.elem);
    return !p->options.loss && p->options.logits_dtype == elem ? elem : real_dtype(p);
}

static bool is_logits(const struct part *part)
{
    return strcmp(part->name, "logits") == 0;
}

static uint64_t part_bytes(const struct collecting *x, const struct part *part)
{
    enum operand_type type = part->real ? OPERAND_REAL : OPERAND_ELEM;
    return part->rows * part->columns * operand_bytes_of(type, x->pass->model->options.elem);
}

static struct part output_part(const struct built *b, const struct output *o)
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

/* Whether the rank has a part of its own. */
static bool has_own_part(const struct part *part, const struct group_place *at)
{
    return part->slice || part->shard || at->tp == 0;
}

/* Elements of a part, in place or on the heap. */
struct elements {
    const void *data;
    void *heap; /* to be freed, or NULL */
};

static enum status on_heap(struct elements *e, uint64_t bytes, const char *name, struct error *err)
{
    e->data = e->heap = malloc(bytes + 1);
    return e->heap ? OK : fail(err, ERR_MEMORY, "no memory for a part of %s", name);
}

/* Elements of this rank's output, in host memory. */
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
        struct part part = output_part(b, &b->outputs[i]);
        TRY(comm_send(x->world, 0, &part, sizeof part, err));
        if (has_own_part(&part, at))
            TRY(send_output(x, r, &b->outputs[i], part_bytes(x, &part), err));
    }
    return OK;
}

/* ---- rank 0 ---- */

/* An output being assembled. */
struct whole {
    struct part part; /* as the first rank has it */
    struct collected c;
    void *values; /* c.data, if assembled */
};

static enum dtype dtype_of(const struct collecting *x, const struct part *part)
{
    const enum dtype elem = elem_dtype(x->pass->model->options.elem);
    return elem == DT_F64 || !part->real ? elem : DT_F32;
}

/* Row of the whole for a row of a rank's part; UINT64_MAX: none. */
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

/* First column of a rank's part; *count: its columns. Of ranks with copies of
 * columns, only the last one gives them. */
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

enum { RUN_BYTES = 16 << 20 }; /* between two checks of the job */

/* Rows to copy between two arrays. */
struct rows {
    void *to;
    const void *from;
    uint64_t count, columns;
    uint64_t to_stride, from_stride; /* columns of the arrays */
    enum dtype to_dtype, from_dtype;
};

/* ERR_NUMERIC if a cast to 16 bits overflows. */
static enum status copy_rows(const struct rows *r, const char *name, struct error *err)
{
    const bool dense = r->columns == r->to_stride && r->columns == r->from_stride;
    const uint64_t calls = dense ? 1 : r->count, count = dense ? r->count * r->columns : r->columns;
    const bool may_overflow = r->to_dtype != r->from_dtype && dtype_bytes(r->to_dtype) == 2;
    uint64_t infinite = 0;
    for (uint64_t i = 0; i < calls; i++) {
        void *to = (char *)r->to + i * r->to_stride * dtype_bytes(r->to_dtype);
        const void *from = (const char *)r->from + i * r->from_stride * dtype_bytes(r->from_dtype);
        (void)cast_elements(to, r->to_dtype, from, r->from_dtype, count);
        if (may_overflow) infinite += cast_overflows(to, r->to_dtype, from, r->from_dtype, count);
    }
    if (!infinite) return OK;
    return fail(err, ERR_NUMERIC, "%s: %" PRIu64 " elements are too large for %s", name, infinite,
                dtype_infos[r->to_dtype].torch);
}

/* Number of rows from i on, at most `most`, that are consecutive in the batch
 * from row `first` on. */
static uint64_t count_run(const struct collecting *x, const struct part *part,
                          const struct group_place *at, const struct token_shape *shape,
                          const struct token_origin *origins, uint64_t i, uint64_t first,
                          uint64_t most)
{
    uint64_t n = 1;
    while (n < most && i + n < part->rows &&
           row_in_batch(x, part, at, shape, origins, i + n) == first + n)
        n++;
    return n;
}

static enum status place_rows(const struct collecting *x, struct whole *w, const struct part *part,
                              const struct group_place *at, const struct token_shape *shape,
                              const struct token_origin *origins, const void *data,
                              struct error *err)
{
    const enum dtype from = dtype_of(x, part), to = w->c.dtype;
    uint64_t columns, first = first_column(part, at, &columns);
    uint64_t end = min_u64(first + columns, w->c.columns), count = end > first ? end - first : 0;
    const uint64_t most = RUN_BYTES / dtype_run_bytes(to, w->c.columns) + 1;
    for (uint64_t i = 0, n; i < part->rows && count; i += n) {
        const uint64_t row = row_in_batch(x, part, at, shape, origins, i);
        n = 1;
        if (row == UINT64_MAX) continue;
        n = count_run(x, part, at, shape, origins, i, row, most);
        TRY(work_check(err));
        const struct rows rows = {
            .to = (char *)w->values + dtype_run_bytes(to, row * w->c.columns + first),
            .from = (const char *)data + i * part->columns * dtype_bytes(from),
            .count = n,
            .columns = count,
            .to_stride = w->c.columns,
            .from_stride = part->columns,
            .to_dtype = to,
            .from_dtype = from};
        TRY(copy_rows(&rows, part->name, err));
    }
    return OK;
}

static void add_up(const struct collecting *x, struct whole *w, const struct part *part,
                   const void *data)
{
    const bool wide = dtype_of(x, part) == DT_F64;
    for (uint64_t i = 0; i < part->rows; i++)
        *(double *)w->values += wide ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static enum status place_part(const struct collecting *x, struct whole *w, const struct part *part,
                              const struct group_place *at, const void *data, struct error *err)
{
    const struct group_sizes *sizes = &x->pass->model->groups.sizes;
    struct arena scratch;
    if (part->sum) {
        add_up(x, w, part, data);
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
    return is_logits(part) ? vocab_size(x->pass) : part->all_columns;
}

static void begin_whole(const struct collecting *x, struct whole *w, const struct part *part)
{
    const struct batch *b = &x->pass->batch;
    w->part = *part;
    w->c =
        (struct collected){.name = w->part.name,
                           .rows = part->sum ? 1 : b->num_sequences * (part->last ? 1 : b->length),
                           .columns = true_columns(x, part),
                           .dtype = part->sum         ? DT_F64
                                    : is_logits(part) ? logits_dtype(x->pass)
                                                      : real_dtype(x->pass)};
    w->c.num_rows = w->c.rows;
}

static enum status allocate_whole(struct whole *w, struct error *err)
{
    w->c.data = w->values = calloc(1, collected_bytes(&w->c) + 1);
    if (w->values) return OK;
    return fail(err, ERR_MEMORY, "no memory for %s of %" PRIu64 " tokens", w->c.name, w->c.rows);
}

static enum status take_part(const struct collecting *x, struct whole *w, const struct part *part,
                             const struct group_place *at, const void *data, struct error *err)
{
    if (!w->values) TRY(allocate_whole(w, err));
    return place_part(x, w, part, at, data, err);
}

/* Receives the part of rank r. */
static enum status receive_part(const struct collecting *x, struct whole *w, unsigned r,
                                struct error *err)
{
    const struct group_place at = groups_place(&x->pass->model->groups.sizes, r);
    struct part part;
    struct elements e;
    TRY(comm_receive(x->world, r, &part, sizeof part, err));
    if (!w->c.name) begin_whole(x, w, &part);
    if (!has_own_part(&part, &at)) return OK;
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

/* An output of a single rank, its rows in batch order: given in place, or in
 * pieces. */
struct alone {
    const struct collecting *x;
    const struct part *part;
    struct collected c; /* the piece */
    const char *from;   /* of the device */
    enum dtype from_dtype;
    struct elements source, target; /* of a piece: downloaded; as given */
};

/* It needs no cast and has no padding of columns. */
static bool is_as_given(const struct alone *a)
{
    return a->part->columns == a->c.columns && a->from_dtype == a->c.dtype;
}

/* Memory for the piece. */
static enum status take_room(struct alone *a, void **to, struct error *err)
{
    const uint64_t bytes = collected_bytes(&a->c);
    if (a->x->how->room) return a->x->how->room(a->x->context, bytes, to, err);
    if (!a->target.heap) TRY(on_heap(&a->target, bytes, a->c.name, err));
    *to = a->target.heap;
    return OK;
}

static enum status bring_piece(struct alone *a, void *to, struct error *err)
{
    const struct device *device = a->x->pass->model->device;
    const uint64_t stride = a->part->columns, row_bytes = dtype_run_bytes(a->from_dtype, stride);
    const char *from = a->from + a->c.first_row * row_bytes;
    const uint64_t bytes = a->c.num_rows * row_bytes;
    if (is_as_given(a)) return device->download(to, from, bytes, err);
    if (!device->is_host) {
        if (!a->source.heap) TRY(on_heap(&a->source, bytes, a->c.name, err));
        TRY(device->download(a->source.heap, from, bytes, err));
        from = a->source.heap;
    }
    const struct rows rows = {.to = to,
                              .from = from,
                              .count = a->c.num_rows,
                              .columns = a->c.columns,
                              .to_stride = a->c.columns,
                              .from_stride = stride,
                              .to_dtype = a->c.dtype,
                              .from_dtype = a->from_dtype};
    return copy_rows(&rows, a->c.name, err);
}

static enum status give_pieces(struct alone *a, struct error *err)
{
    const uint64_t most = a->x->how->piece_bytes,
                   row_bytes = max_u64(dtype_run_bytes(a->c.dtype, a->c.columns),
                                       dtype_run_bytes(a->from_dtype, a->part->columns)),
                   at_once = most ? max_u64(most / max_u64(row_bytes, 1), 1) : a->c.rows;
    for (uint64_t n; a->c.first_row < a->c.rows; a->c.first_row += n) {
        void *to;
        a->c.num_rows = n = min_u64(at_once, a->c.rows - a->c.first_row);
        TRY(work_check(err));
        TRY(take_room(a, &to, err));
        TRY(bring_piece(a, to, err));
        a->c.data = to;
        TRY(a->x->visit(a->x->context, &a->c, err));
    }
    return OK;
}

static enum status give_alone(const struct collecting *x, const struct whole *w,
                              const struct run *run, const struct output *o, struct error *err)
{
    struct alone a = {.x = x,
                      .part = &w->part,
                      .c = w->c,
                      .from = run_data(run, o->value),
                      .from_dtype = dtype_of(x, &w->part)};
    if (x->pass->model->device->is_host && is_as_given(&a)) {
        a.c.data = a.from;
        return x->visit(x->context, &a.c, err);
    }
    enum status st = give_pieces(&a, err);
    free(a.source.heap);
    free(a.target.heap);
    return st;
}

static bool is_alone(const struct collecting *x, const struct whole *w)
{
    return x->world->size == 1 && w->part.rows == w->c.rows;
}

static enum status take_own_part(const struct collecting *x, struct whole *w, const struct own *own,
                                 size_t output, struct error *err)
{
    const struct group_place at = groups_place(&x->pass->model->groups.sizes, 0);
    const struct output *o = &own->built->outputs[output];
    struct elements e;
    TRY(own_elements(x, own->run, o, part_bytes(x, &w->part), &e, err));
    enum status st = take_part(x, w, &w->part, &at, e.data, err);
    free(e.heap);
    return st;
}

/* Gathers output number `output` of ranks [first, end). */
static enum status take_output(const struct collecting *x, unsigned first, unsigned end,
                               const struct own *own, size_t output, struct error *err)
{
    struct whole w = {0};
    enum status st = OK;
    if (first == 0) {
        const struct part part = output_part(own->built, &own->built->outputs[output]);
        begin_whole(x, &w, &part);
        if (is_alone(x, &w)) return give_alone(x, &w, own->run, &own->built->outputs[output], err);
    }
    for (unsigned r = first; r < end && !st; r++)
        st = r ? receive_part(x, &w, r, err) : take_own_part(x, &w, own, output, err);
    if (!st) st = x->visit(x->context, &w.c, err);
    free(w.values);
    return st;
}

/* Gathers all outputs of one stage. */
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

enum status pass_collect(struct pass *p, const struct pass_taking *how, pass_visit *visit,
                         void *context, struct error *err)
{
    struct collecting x = {p, &p->model->groups.of[GROUP_WORLD], how, visit, context};
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

/* ---- memory ---- */

/* Bytes of a row of the widest output, and of all outputs, as given. */
static void count_row_bytes(const struct pass *p, uint64_t *widest, uint64_t *all)
{
    const struct model_config *c = &p->model->config;
    const uint64_t real = dtype_bytes(real_dtype(p)),
                   logits = dtype_run_bytes(logits_dtype(p), vocab_size(p));
    *widest = *all = p->options.loss ? real : 0;
    if (p->options.logits) {
        *widest = max_u64(*widest, logits);
        *all += logits;
    }
    if (p->options.hidden) {
        *widest = max_u64(*widest, c->hidden_size * real);
        *all += c->hidden_size * real * (c->num_layers + 2);
    }
}

/* Bytes of a row of the widest output on all ranks together; of hidden states
 * as given. */
static uint64_t own_row_bytes(const struct pass *p, uint64_t widest)
{
    const uint64_t logits = dtype_run_bytes(own_logits_dtype(p), vocab_size(p));
    return p->options.logits ? max_u64(widest, logits) : widest;
}

/* Bytes of a copied row on a single rank, before or after the copy, the larger
 * one: rows are copied to change the type or to drop padding. */
static uint64_t copied_row_bytes(const struct pass *p)
{
    const enum dtype given = logits_dtype(p), own = own_logits_dtype(p);
    const bool logits = vocab_size(p) % 8 != 0 || given != own,
               hidden = operand_bytes_of(OPERAND_ELEM, p->model->options.elem) == 2;
    uint64_t bytes = 0;
    if (p->options.logits && logits)
        bytes = vocab_size(p) * max_u64(dtype_bytes(given), dtype_bytes(own));
    if (p->options.hidden && hidden)
        bytes = max_u64(bytes, dtype_run_bytes(real_dtype(p), p->model->config.hidden_size));
    return bytes;
}

/* Bytes on rank 0 while it assembles an output of several ranks. */
static uint64_t together_bytes(const struct pass_taking *how, uint64_t whole, uint64_t part)
{
    return whole + part + (how->room ? 2 * min_u64(whole, how->piece_bytes) : 0);
}

/* Bytes on a single rank: a piece as given and as downloaded. */
static uint64_t alone_bytes(const struct pass_taking *how, uint64_t whole, uint64_t copied,
                            bool on_host)
{
    const uint64_t most = how->piece_bytes ? how->piece_bytes : UINT64_MAX;
    const uint64_t given = min_u64(on_host ? copied : whole, most) * (how->room ? 2 : 1);
    return given + (on_host ? 0 : min_u64(copied, most));
}

uint64_t pass_collect_bytes(const struct pass *p, const struct pass_taking *how)
{
    const struct model *m = p->model;
    const struct group_sizes *s = &m->groups.sizes;
    const uint64_t rows = p->batch.num_sequences * (p->options.last_only ? 1 : p->batch.length);
    const bool on_host = m->device->is_host;
    uint64_t widest, all;
    count_row_bytes(p, &widest, &all);
    const uint64_t whole = rows * widest,
                   part = rows * own_row_bytes(p, widest) / ((uint64_t)s->tp * s->cp * s->dp);
    if (m->groups.of[GROUP_WORLD].index > 0) return on_host ? 0 : part;
    const uint64_t visitor = (how->keeps ? rows * all : 0) + (how->puts_together ? whole : 0);
    return visitor + (groups_world_size(s) > 1
                          ? together_bytes(how, whole, part)
                          : alone_bytes(how, whole, rows * copied_row_bytes(p), on_host));
}
