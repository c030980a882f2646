/* trainer_ranks.c - what the ranks of a run do together. */
#include <stdlib.h>

#include "common/memory.h"
#include "common/threads.h"
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
    const unsigned threads = t->q->threads ? t->q->threads : threads_available();
    if (!t->comm.backend) return threads;
    const unsigned sharers = t->q->threads ? t->comm.host_size : t->comm.cpu_sharers;
    return threads > sharers ? threads / sharers : 1;
}

enum status trainer_sum(struct trainer *t, double *x, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_DP];
    if (g->size == 1) return OK;
    return g->comm->backend->all_reduce(g, x, 1, COMM_F64, COMM_SUM, err);
}

enum status trainer_any(struct trainer *t, bool *any, struct error *err)
{
    struct comm_group *g = &t->model.groups.of[GROUP_WORLD];
    return g->size == 1 ? OK : comm_any(g, any, err);
}

/* ---- the parameters of all ranks ---- */

/* Which parameters a rank has follows from its programs. */
static enum status imagine(struct trainer *t, unsigned rank, struct error *err)
{
    struct model *m = &t->imagined[rank];
    struct step s = {.model = NULL};
    enum status st = model_imagine(m, t->model.checkpoint, &t->model.options, rank, err);
    t->ranks[rank] = (struct held_rank){&m->parameters, &m->groups};
    if (!st) st = step_make(&s, m, &t->step.options, err);
    step_release(&s);
    return st;
}

enum status trainer_imagine_ranks(struct trainer *t, struct error *err)
{
    if (t->comm.size == 1) return OK;
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
