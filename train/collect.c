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
#include "common/memory.h"
#include "train/model.h"

/* A rank's part of an output. */
struct part {
    char name[96];
    uint64_t rows, columns, all_columns; /* of the part; columns of all ranks together */
    bool slice, last, shard, real;
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
                        .slice = o->slice,
                        .last = o->last,
                        .shard = o->shard,
                        .real = v->type == OPERAND_REAL};
    snprintf(part.name, sizeof part.name, "%s", o->name);
    return part;
}

/* Whether the rank at a place has a part that no other has. */
static bool contributes(const struct part *part, const struct group_place *at)
{
    return part->slice || part->shard || at->tp == 0;
}

/* The elements of an output in the host's memory, on the heap. */
static enum status host_copy(const struct collecting *x, const struct run *r,
                             const struct output *o, uint64_t bytes, void **out, struct error *err)
{
    *out = malloc(bytes + 1);
    if (!*out) return fail(err, ERR_MEMORY, "no memory for a part of %s", o->name);
    return x->pass->model->device->download(*out, run_data(r, o->value), bytes, err);
}

static enum status send_output(const struct collecting *x, const struct run *r,
                               const struct output *o, uint64_t bytes, struct error *err)
{
    void *copy;
    enum status st = host_copy(x, r, o, bytes, &copy, err);
    if (!st) st = x->world->comm->backend->send(x->world, 0, copy, bytes, err);
    free(copy);
    return st;
}

static enum status send_outputs(const struct collecting *x, const struct built *b,
                                const struct run *r, struct error *err)
{
    const struct comm_backend *comm = x->world->comm->backend;
    const struct group_place *at = &x->pass->model->groups.place;
    uint64_t count = b->num_outputs;
    TRY(comm->send(x->world, 0, &count, sizeof count, err));
    for (size_t i = 0; i < b->num_outputs; i++) {
        struct part part = part_of(b, &b->outputs[i]);
        TRY(comm->send(x->world, 0, &part, sizeof part, err));
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
};

static double element(const struct collecting *x, const struct part *part, const void *data,
                      uint64_t i)
{
    enum elem_type elem = x->pass->model->options.elem;
    enum dtype dtype = elem == ELEM_F64                   ? DT_F64
                       : elem == ELEM_BF16 && !part->real ? DT_BF16
                                                          : DT_F32;
    return dtype_load(dtype, data, i);
}

/* Which row of the whole a row of a rank's part is; UINT64_MAX: none. */
static uint64_t row_in_batch(const struct collecting *x, const struct part *part,
                             const struct group_place *at, const struct token_shape *shape,
                             const struct token_origin *origins, uint64_t row)
{
    const struct batch *b = &x->pass->batch;
    uint64_t sequence = at->dp * shape->sequences + row;
    if (part->last) return sequence < b->num_sequences ? sequence : UINT64_MAX;
    if (part->slice) row += at->tp * part->rows;
    const struct token_origin *o = &origins[row];
    return o->sequence == UINT64_MAX ? UINT64_MAX : o->sequence * b->length + o->position;
}

static void place_part(const struct collecting *x, struct whole *w, const struct part *part,
                       const struct group_place *at, const void *data)
{
    const struct group_sizes *sizes = &x->pass->model->groups.sizes;
    struct arena scratch;
    arena_init(&scratch);
    struct token_shape shape = tokens_shape(&x->pass->batch, sizes, sizes->tp);
    struct token_origin *origins = tokens_origins(&scratch, &x->pass->batch, at, &shape);
    uint64_t first = part->shard ? at->tp * part->columns : 0;
    uint64_t end = min_u64(first + part->columns, w->c.columns);
    for (uint64_t i = 0; i < part->rows; i++) {
        uint64_t row = row_in_batch(x, part, at, &shape, origins, i);
        if (row == UINT64_MAX) continue;
        for (uint64_t k = first; k < end; k++) {
            double v = element(x, part, data, i * part->columns + k - first);
            if (w->c.wide)
                ((double *)w->c.data)[row * w->c.columns + k] = v;
            else
                ((float *)w->c.data)[row * w->c.columns + k] = (float)v;
        }
    }
    arena_release(&scratch);
}

/* Columns behind the vocabulary are padding. */
static uint64_t true_columns(const struct collecting *x, const struct part *part)
{
    const struct tensor *t =
        catalog_find(x->pass->model->catalog, "embedding.word_embeddings.weight");
    return strcmp(part->name, "logits") == 0 && t ? t->shape[0] : part->all_columns;
}

static enum status begin_whole(const struct collecting *x, struct whole *w, const struct part *part,
                               struct error *err)
{
    const struct batch *b = &x->pass->batch;
    w->part = *part;
    w->c = (struct collected){.name = w->part.name,
                              .rows = b->num_sequences * (part->last ? 1 : b->length),
                              .columns = true_columns(x, part),
                              .wide = is_wide(x->pass)};
    w->c.data = calloc(w->c.rows * w->c.columns + 1, w->c.wide ? sizeof(double) : sizeof(float));
    if (w->c.data) return OK;
    return fail(err, ERR_MEMORY, "no memory for %s of %" PRIu64 " tokens", part->name, w->c.rows);
}

/* The elements of rank r's part, on the heap. */
static enum status receive_part(const struct collecting *x, unsigned r, const struct built *own,
                                const struct run *run, size_t output, uint64_t bytes, void **data,
                                struct error *err)
{
    if (r == 0) return host_copy(x, run, &own->outputs[output], bytes, data, err);
    *data = malloc(bytes + 1);
    if (!*data) return fail(err, ERR_MEMORY, "no memory for a part of rank %u", r);
    return x->world->comm->backend->receive(x->world, r, *data, bytes, err);
}

/* The part of rank r, from its memory or from a message. */
static enum status take_part(const struct collecting *x, struct whole *w, unsigned r,
                             const struct built *own, const struct run *run, size_t output,
                             struct error *err)
{
    const struct comm_backend *comm = x->world->comm->backend;
    struct group_place at = groups_place(&x->pass->model->groups.sizes, r);
    struct part part;
    void *data = NULL;
    if (r == 0)
        part = part_of(own, &own->outputs[output]);
    else
        TRY(comm->receive(x->world, r, &part, sizeof part, err));
    if (!w->c.data) TRY(begin_whole(x, w, &part, err));
    if (!contributes(&part, &at)) return OK;
    enum status st = receive_part(x, r, own, run, output, part_bytes(x, &part), &data, err);
    if (!st) place_part(x, w, &part, &at, data);
    free(data);
    return st;
}

/* All outputs of one stage. `own` is ours, where rank 0 is one of those that have it. */
static enum status take_stage(const struct collecting *x, unsigned pp_rank, const struct built *own,
                              const struct run *run, struct error *err)
{
    const struct group_sizes *s = &x->pass->model->groups.sizes;
    unsigned per_stage = s->tp * s->cp * s->dp, first = pp_rank * per_stage;
    uint64_t count = own ? own->num_outputs : 0;
    enum status st = OK;
    for (unsigned r = first; r < first + per_stage && !st; r++)
        if (r) st = x->world->comm->backend->receive(x->world, r, &count, sizeof count, err);
    for (size_t i = 0; i < count && !st; i++) {
        struct whole w = {0};
        for (unsigned r = first; r < first + per_stage && !st; r++)
            st = take_part(x, &w, r, own, run, i, err);
        if (!st) st = x->visit(x->context, &w.c, err);
        free(w.c.data);
    }
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
        TRY(take_stage(&x, 0, &p->chunks[i], &p->runs[i], err));
        for (unsigned s = 1; s < pp; s++)
            TRY(take_stage(&x, s, NULL, NULL, err));
    }
    return OK;
}
