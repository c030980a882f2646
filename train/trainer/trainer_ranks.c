/* trainer_ranks.c - what the ranks of a run do together. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/memory.h"
#include "train/trainer/trainer_internal.h"

/* Those of the layout, before a model is open. */
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

/* What all ranks must begin with. */
struct start {
    uint64_t iteration, consumed, updates, saved[2];
    bool resumes;
};

static bool is_same_start(const struct start *a, const struct start *b)
{
    return a->resumes == b->resumes && a->iteration == b->iteration && a->consumed == b->consumed &&
           a->updates == b->updates && a->saved[0] == b->saved[0] && a->saved[1] == b->saved[1];
}

enum status trainer_agree_on_start(struct trainer *t, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_WORLD];
    const struct start own = {.iteration = t->iteration,
                              .consumed = t->consumed,
                              .updates = t->updates,
                              .saved = {t->destinations[0].saved, t->destinations[1].saved},
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

/* ---- the parameters of all ranks ---- */

/* Which parameters a rank has follows from its programs. */
static enum status imagine(struct trainer *t, unsigned rank, struct error *err)
{
    struct model *m = &t->imagined[rank];
    struct step s = {.model = NULL};
    enum status st = model_imagine(m, t->model.checkpoint, &t->model.options, rank, err);
    t->ranks[rank] = (struct held_rank){&m->parameters, &m->groups};
    /* Of copies the first rank holds them (parameter_counts): then this one holds nothing. */
    const bool holds = !m->groups.of[GROUP_DP].index || !m->groups.of[GROUP_EDP].index;
    if (!st && holds) st = step_make(&s, m, &t->step.options, err);
    step_release(&s);
    return st;
}

enum status trainer_imagine_ranks(struct trainer *t, struct error *err)
{
    if (t->comm.size == 1 || !t->num_destinations) return OK;
    t->imagined = must_calloc(t->comm.size, sizeof *t->imagined);
    t->ranks = must_calloc(t->comm.size, sizeof *t->ranks);
    for (unsigned r = 0; r < t->comm.size; r++)
        TRY(imagine(t, r, err));
    return OK;
}

void trainer_release_ranks(struct trainer *t)
{
    for (unsigned r = 0; t->imagined && r < t->comm.size; r++)
        if (t->ranks[r].parameters) model_close(&t->imagined[r]);
    free(t->imagined);
    free(t->ranks);
}
