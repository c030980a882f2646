#include "train/engine/groups.h"

#include <stdlib.h>

#include "common/memory.h"

unsigned groups_least_dp(const struct group_sizes *s)
{
    unsigned dense = s->tp * s->cp, expert = s->etp * s->ep, dp = 1;
    while (dense * dp % expert)
        dp++;
    return dp;
}

unsigned groups_world_size(const struct group_sizes *s)
{
    return s->tp * s->cp * s->dp * s->pp;
}

struct group_place groups_place(const struct group_sizes *s, unsigned rank)
{
    unsigned stage = s->tp * s->cp * s->dp, within = rank % stage;
    return (struct group_place){.tp = within % s->tp,
                                .cp = within / s->tp % s->cp,
                                .dp = within / (s->tp * s->cp),
                                .pp = rank / stage,
                                .etp = within % s->etp,
                                .ep = within / s->etp % s->ep,
                                .edp = within / (s->etp * s->ep)};
}

static bool is_end(const struct group_sizes *s, const struct group_place *a)
{
    return a->pp == 0 || a->pp + 1 == s->pp;
}

/* Whether two places are in one group: equal except in what varies in it. */
static bool same_group(const struct group_sizes *s, enum group_kind kind,
                       const struct group_place *a, const struct group_place *b)
{
    const bool ends = is_end(s, a) && is_end(s, b);
    bool dense = (kind == GROUP_TP || a->tp == b->tp) && (kind == GROUP_CP || a->cp == b->cp) &&
                 (kind == GROUP_DP || a->dp == b->dp) &&
                 (kind == GROUP_PP || a->pp == b->pp || (kind == GROUP_EMBEDDING && ends));
    bool expert = (kind == GROUP_ETP || a->etp == b->etp) && (kind == GROUP_EP || a->ep == b->ep) &&
                  (kind == GROUP_EDP || a->edp == b->edp) && a->pp == b->pp;
    if (kind == GROUP_WORLD) return true;
    return kind == GROUP_ETP || kind == GROUP_EP || kind == GROUP_EDP ? expert : dense;
}

unsigned groups_members(const struct group_sizes *s, enum group_kind kind, unsigned rank,
                        unsigned *ranks, unsigned *index)
{
    struct group_place own = groups_place(s, rank);
    unsigned count = 0;
    for (unsigned r = 0; r < groups_world_size(s); r++) {
        struct group_place at = groups_place(s, r);
        if (!same_group(s, kind, &own, &at)) continue;
        if (r == rank) *index = count;
        ranks[count++] = r;
    }
    return count;
}

static enum status check_grids(const struct group_sizes *s, struct error *err)
{
    const unsigned ranks = s->tp * s->cp * s->dp;
    if (ranks % (s->etp * s->ep) == 0) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "TP%u CP%u DP%u: a pipeline stage has %u rank%s, not divisible by ETP%u times EP%u",
                s->tp, s->cp, s->dp, ranks, ranks == 1 ? "" : "s", s->etp, s->ep);
}

enum status groups_open(struct groups *g, struct comm *c, const struct group_sizes *s,
                        struct error *err)
{
    enum status st = OK;
    unsigned world = groups_world_size(s), index;
    *g = (struct groups){.sizes = *s, .place = groups_place(s, c->rank)};
    TRY(check_grids(s, err));
    if (world != c->size)
        return fail(err, ERR_UNSUPPORTED,
                    "the layout takes %u rank%s (TP%u CP%u DP%u PP%u), the job has %u", world,
                    world == 1 ? "" : "s", s->tp, s->cp, s->dp, s->pp, c->size);
    unsigned *ranks = must_calloc(world, sizeof *ranks);
    for (unsigned k = 0; k < NUM_GROUP_KINDS && !st; k++) {
        unsigned size = groups_members(s, (enum group_kind)k, c->rank, ranks, &index);
        st = comm_group_open(&g->of[k], c, ranks, size, err);
        if (!st) g->num_open++;
        /* Before groups that wait for their members: failures so far are known
         * then. */
        if (!st && k == GROUP_WORLD) st = comm_barrier(&g->of[k], err);
    }
    free(ranks);
    return st;
}

enum status groups_simulate(struct groups *g, const struct group_sizes *s, unsigned rank,
                            struct error *err)
{
    unsigned world = groups_world_size(s);
    *g = (struct groups){.sizes = *s, .place = groups_place(s, rank)};
    TRY(check_grids(s, err));
    unsigned *ranks = must_calloc(world, sizeof *ranks);
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        g->of[k].size = groups_members(s, (enum group_kind)k, rank, ranks, &g->of[k].index);
    free(ranks);
    return OK;
}

void groups_close(struct groups *g)
{
    while (g->num_open)
        comm_group_close(&g->of[--g->num_open]);
}
