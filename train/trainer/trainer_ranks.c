/* trainer_ranks.c - common actions of a run's ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "train/model/fingerprint.h"
#include "train/trainer/trainer_internal.h"

/* Ranks of the layout, before a model is open. */
static unsigned world_size(const struct trainer *t)
{
    const struct model_options o = {.layout = t->o->layout};
    const struct group_sizes sizes = model_group_sizes(&o);
    return groups_world_size(&sizes);
}

uint64_t trainer_num_ranks(const struct trainer *t)
{
    return t->comm.backend ? t->comm.size : world_size(t);
}

unsigned trainer_stage_ranks(const struct trainer *t)
{
    return (unsigned)trainer_num_ranks(t) / t->model.groups.sizes.pp;
}

enum status trainer_open_ranks(struct trainer *t, struct error *err)
{
    const unsigned size = world_size(t);
    if (t->job || (t->o->dry_run && size > 1)) return OK;
    return comm_local_open(&t->comm, size, err);
}

unsigned trainer_threads(const struct trainer *t)
{
    return comm_threads(&t->comm, t->q->threads);
}

enum status trainer_sum(struct trainer *t, double *x, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_DP];
    if (g->size == 1) return OK;
    return g->comm->backend->all_reduce(g, x, 1, COMM_F64, COMM_SUM, err);
}

bool trainer_saves_layout(const struct trainer *t)
{
    const uint64_t rows = t->vocab_rows ? t->vocab_rows : t->model.config.vocab_size;
    return rows % t->model.groups.sizes.tp == 0;
}

enum status trainer_any_rank(struct trainer *t, bool *any, struct error *err)
{
    unsigned *ranks = must_calloc(t->comm.size, sizeof *ranks);
    struct comm_group all;
    for (unsigned r = 0; r < t->comm.size; r++)
        ranks[r] = r;
    enum status st = comm_group_open(&all, &t->comm, ranks, t->comm.size, err);
    free(ranks);
    if (st) return st;
    st = comm_any(&all, any, err);
    comm_group_close(&all);
    return st;
}

enum status trainer_any(struct trainer *t, bool *any, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_WORLD];
    return g->size == 1 ? OK : comm_any(g, any, err);
}

/* Forked ranks all have the model opened before the fork. */
enum status trainer_agree_on_model(struct trainer *t, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_WORLD];
    char own[SHA256_TEXT];
    if (!t->job || g->size == 1) return OK;
    fingerprint_model(t->origin, own);
    char(*all)[SHA256_TEXT] = must_calloc(g->size, sizeof *all);
    unsigned i = 0;
    enum status st = g->comm->backend->all_gather(g, own, all, sizeof own, err);
    while (!st && i < g->size && memcmp(all[i], all[0], sizeof own) == 0)
        i++;
    if (!st && i < g->size)
        st = fail(err, ERR_USAGE,
                  "rank %u has another model than rank 0: they do not see the same files", i);
    free(all);
    return st;
}

/* Values that all ranks must begin with. */
struct start {
    uint64_t iteration, consumed, updates, saved[2], vocab_rows;
    bool resumes;
};

static bool is_same_start(const struct start *a, const struct start *b)
{
    return a->resumes == b->resumes && a->iteration == b->iteration && a->consumed == b->consumed &&
           a->updates == b->updates && a->vocab_rows == b->vocab_rows &&
           a->saved[0] == b->saved[0] && a->saved[1] == b->saved[1];
}

enum status trainer_agree_on_start(struct trainer *t, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_WORLD];
    const struct start own = {.iteration = t->iteration,
                              .consumed = t->consumed,
                              .updates = t->updates,
                              .saved = {t->destinations[0].saved, t->destinations[1].saved},
                              .vocab_rows = t->vocab_rows,
                              .resumes = t->resumes};
    if (g->size == 1) return OK;
    struct start *all = must_calloc(g->size, sizeof *all);
    unsigned i = 0;
    enum status st = g->comm->backend->all_gather(g, &own, all, sizeof own, err);
    while (!st && i < g->size && is_same_start(&all[i], &all[0]))
        i++;
    if (!st && i < g->size)
        st = fail(err, ERR_USAGE,
                  "rank %u found another checkpoint than rank 0, of iteration %" PRIu64
                  " and %" PRIu64 ": they do not see the same files",
                  i, all[i].iteration, all[0].iteration);
    free(all);
    return st;
}

/* ---- simulated ranks ---- */

enum status trainer_simulate(const struct trainer *t, unsigned rank, const struct step_options *o,
                             struct simulated_rank *out, struct error *err)
{
    out->step = (struct step){.model = NULL};
    TRY(model_simulate(&out->model, t->model.checkpoint, &t->model.options, rank, err));
    return step_make(&out->step, &out->model, o, err);
}

void trainer_release_simulated(struct simulated_rank *x)
{
    step_release(&x->step);
    model_close(&x->model);
}

/* ---- the parameters of all ranks ---- */

static bool has_same_parameters(const struct groups *a, const struct groups *b)
{
    const struct group_place *x = &a->place, *y = &b->place;
    return x->tp == y->tp && x->pp == y->pp && x->etp == y->etp && x->ep == y->ep;
}

/* Makes the rank's programs, which determine its parameters. */
static enum status simulate_parameters(struct trainer *t, struct model *m, struct held_rank *out,
                                       struct error *err)
{
    struct step s = {.model = NULL};
    struct shard *shard = arena_array(&t->arena, 1, sizeof *shard);
    enum status st = step_make(&s, m, &t->step.options, err);
    if (!st && s.shard.is_sharded) {
        const struct param_range *ranges =
            arena_copy(&t->arena, s.ranges, s.num_ranges * sizeof *ranges);
        shard_make(shard, ranges, s.num_ranges, &m->groups, &s.shard.options, &t->arena);
        out->shard = shard;
    }
    step_release(&s);
    out->parameters = &m->parameters;
    return st;
}

/* Reuses the parameters of another rank, with this rank's part of them. */
static void take_parameters(struct trainer *t, const struct held_rank *from, struct held_rank *out)
{
    struct shard *shard = arena_array(&t->arena, 1, sizeof *shard);
    out->parameters = from->parameters;
    if (!from->shard) return;
    shard_make(shard, from->shard->ranges, from->shard->num_ranges, out->groups,
               &from->shard->options, &t->arena);
    out->shard = shard;
}

static enum status simulate_rank(struct trainer *t, unsigned rank, struct error *err)
{
    struct model *m = &t->simulated[rank];
    struct held_rank *own = &t->ranks[rank];
    unsigned like = 0;
    own->groups = &m->groups;
    TRY(model_simulate(m, t->model.checkpoint, &t->model.options, rank, err));
    while (like < rank && !has_same_parameters(t->ranks[like].groups, own->groups))
        like++;
    if (like == rank) return simulate_parameters(t, m, own, err);
    take_parameters(t, &t->ranks[like], own);
    return OK;
}

enum status trainer_simulate_ranks(struct trainer *t, struct error *err)
{
    if (t->comm.size == 1 || !t->num_destinations) return OK;
    t->simulated = must_calloc(t->comm.size, sizeof *t->simulated);
    t->ranks = must_calloc(t->comm.size, sizeof *t->ranks);
    for (unsigned r = 0; r < t->comm.size; r++)
        TRY(simulate_rank(t, r, err));
    return OK;
}

void trainer_release_ranks(struct trainer *t)
{
    for (unsigned r = 0; t->simulated && r < t->comm.size; r++)
        if (t->ranks[r].groups) model_close(&t->simulated[r]);
    free(t->simulated);
    free(t->ranks);
}
