#include "train/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/strbuf.h"

uint64_t fit_rank_bytes(const struct fit *f)
{
    uint64_t bytes = f->model->parameters.bytes;
    for (size_t i = 0; i < f->num_passes; i++)
        bytes += pass_bytes(f->passes[i]);
    return bytes;
}

/* ---- layouts that are not there ---- */

static struct model_options options_of(const struct model *m, const struct group_sizes *s)
{
    struct model_options o = m->options;
    o.layout = (struct layout_options){.tp = s->tp, .pp = s->pp, .ep = s->ep, .etp = s->etp};
    return o;
}

/* The same passes, one behind the other, over the parameters of one rank. */
static enum status measure_passes(const struct fit *f, struct model *m, uint64_t *bytes,
                                  struct error *err)
{
    enum status st = OK;
    *bytes = 0;
    for (size_t i = 0; i < f->num_passes && !st; i++) {
        struct pass p;
        st = pass_make(&p, m, &f->passes[i]->batch, &f->passes[i]->options, err);
        if (!st) *bytes += pass_bytes(&p);
        pass_release(&p);
    }
    *bytes += m->parameters.bytes;
    return st;
}

static enum status measure_rank(const struct fit *f, const struct group_sizes *s, unsigned rank,
                                uint64_t *bytes, struct error *err)
{
    struct model m;
    struct model_options o = options_of(f->model, s);
    enum status st = model_imagine(&m, f->model->catalog, &o, rank, err);
    if (!st) st = measure_passes(f, &m, bytes, err);
    model_close(&m);
    return st;
}

/* The first stage has the embedding, the last the head; all between them are alike, and so are all
 * ranks of a stage. */
static enum status measure_layout(const struct fit *f, const struct group_sizes *s, uint64_t *bytes,
                                  struct error *err)
{
    const unsigned stage_ranks = s->tp * s->cp * s->dp, stages[] = {0, 1, s->pp - 1};
    *bytes = 0;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t of_rank;
        if (i > 0 && stages[i] <= stages[i - 1]) continue;
        if (stages[i] >= s->pp) continue;
        TRY(measure_rank(f, s, stages[i] * stage_ranks, &of_rank, err));
        *bytes = max_u64(*bytes, of_rank);
    }
    return OK;
}

/* The fewest hosts like this one whose devices have so much for each of the ranks; 0: no number. */
static unsigned hosts_for(const struct device *device, unsigned ranks, uint64_t bytes)
{
    for (unsigned hosts = 1; hosts <= ranks; hosts++) {
        uint64_t each;
        struct error ignored;
        if (ranks % hosts) continue;
        if (device->free_memory(ranks / hosts, &each, &ignored)) return 0;
        if (bytes <= each) return hosts;
    }
    return 0;
}

static void try_layout(const struct fit *f, const struct group_sizes *s, struct fit_layout *best)
{
    struct error ignored; /* it cannot be */
    uint64_t bytes;
    if (measure_layout(f, s, &bytes, &ignored) || (best->hosts && best->bytes <= bytes)) return;
    unsigned hosts = hosts_for(f->model->device, groups_world_size(s), bytes);
    if (hosts) *best = (struct fit_layout){*s, hosts, bytes};
}

/* All that have so many ranks and stages, and this tp and ep. */
static void try_grids(const struct fit *f, unsigned ranks, const struct group_sizes *dense,
                      struct fit_layout *best)
{
    const unsigned etps[] = {dense->tp, 1};
    for (unsigned i = 0; i < (dense->ep > 1 && dense->tp > 1 ? 2 : 1); i++) {
        struct group_sizes s = *dense;
        s.etp = etps[i];
        if (!s.dp) s.dp = groups_least_dp(&s);
        if (groups_world_size(&s) == ranks) try_layout(f, &s, best);
    }
}

static void try_layouts(const struct fit *f, unsigned ranks, unsigned pp, struct fit_layout *best)
{
    const struct model *m = f->model;
    const uint64_t experts = m->catalog->config.num_experts;
    struct group_sizes s = {.pp = pp, .cp = m->groups.sizes.cp, .dp = m->options.dp};
    for (s.tp = 1; s.tp <= ranks / pp; s.tp++)
        for (s.ep = 1; s.ep <= (experts ? ranks / pp : 1); s.ep++)
            if (ranks % (s.tp * pp) == 0 && (!experts || experts % s.ep == 0))
                try_grids(f, ranks, &s, best);
}

bool fit_search(const struct fit *f, struct fit_layout *out)
{
    const struct model *m = f->model;
    const unsigned least = m->groups.sizes.cp * (m->options.dp ? m->options.dp : 1);
    *out = (struct fit_layout){0};
    for (unsigned ranks = least; ranks <= FIT_MOST_RANKS; ranks *= 2)
        for (unsigned pp = 1; pp <= ranks; pp++) {
            if (ranks % pp == 0) try_layouts(f, ranks, pp, out);
            if (out->hosts) return true;
        }
    return false;
}

/* ---- the check ---- */

static void add_layout(struct strbuf *out, const struct model *m, const struct fit_layout *l)
{
    const struct group_sizes *s = &l->sizes;
    unsigned ranks = groups_world_size(s);
    strbuf_printf(out, "the smallest layout that fits: --tp %u", s->tp);
    if (s->pp > 1) strbuf_printf(out, " --pp %u", s->pp);
    if (s->ep > 1) strbuf_printf(out, " --ep %u", s->ep);
    if (s->etp != s->tp) strbuf_printf(out, " --etp %u", s->etp);
    if (s->cp > 1) strbuf_printf(out, " --cp %u", s->cp);
    if (m->options.dp) strbuf_printf(out, " --dp %u", s->dp);
    strbuf_printf(out, " (%u rank%s, %.2f GB each", ranks, ranks > 1 ? "s" : "",
                  (double)l->bytes / 1e9);
    if (l->hosts > 1) strbuf_printf(out, ", on %u hosts like this one", l->hosts);
    strbuf_add_char(out, ')');
}

/* What each rank tells all: of its own, and of the whole device that others may share. */
struct need {
    uint64_t bytes, device, free;
};

/* All ranks of one device. */
struct demand {
    unsigned ranks, largest; /* the rank that needs most of them */
    uint64_t bytes, free;
};

static struct demand demand_of(const struct need *needs, unsigned size, uint64_t device)
{
    struct demand d = {.free = UINT64_MAX};
    for (unsigned r = 0; r < size; r++) {
        if (needs[r].device != device) continue;
        if (!d.ranks++ || needs[r].bytes > needs[d.largest].bytes) d.largest = r;
        d.bytes += needs[r].bytes;
        d.free = min_u64(d.free, needs[r].free);
    }
    return d;
}

/* The device that lacks most, if one does. */
static bool find_worst(const struct need *needs, unsigned size, struct demand *worst)
{
    uint64_t most = 0;
    for (unsigned r = 0; r < size; r++) {
        struct demand d = demand_of(needs, size, needs[r].device);
        if (d.bytes <= d.free || d.bytes - d.free <= most) continue;
        most = d.bytes - d.free;
        *worst = d;
    }
    return most > 0;
}

enum { ADVICE_BYTES = 256 };

/* Rank 0 looks for a layout, and all get to know it. */
static enum status share_advice(const struct fit *f, struct comm_group *world,
                                char advice[ADVICE_BYTES], struct error *err)
{
    struct fit_layout layout;
    struct strbuf text = {0};
    char *all = must_calloc(world->size, ADVICE_BYTES);
    if (world->index == 0 && fit_search(f, &layout))
        add_layout(&text, f->model, &layout);
    else if (world->index == 0)
        strbuf_printf(&text, "no --tp, --pp and --ep of up to %d ranks fit", FIT_MOST_RANKS);
    memset(advice, 0, ADVICE_BYTES);
    if (text.data) snprintf(advice, ADVICE_BYTES, "%s", text.data);
    enum status st = world->comm->backend->all_gather(world, advice, all, ADVICE_BYTES, err);
    memcpy(advice, all, ADVICE_BYTES);
    strbuf_release(&text);
    free(all);
    return st;
}

static enum status refuse(const struct fit *f, struct comm_group *world, const struct need *needs,
                          const struct demand *d, struct error *err)
{
    char advice[ADVICE_BYTES], shared[64] = "";
    TRY(share_advice(f, world, advice, err));
    if (d->ranks > 1)
        snprintf(shared, sizeof shared, ", %.2f GB with the %u it shares them with",
                 (double)d->bytes / 1e9, d->ranks - 1);
    return fail(err, ERR_MEMORY, "rank %u needs %.2f GB of memory%s, and %.2f GB are free; %s",
                d->largest, (double)needs[d->largest].bytes / 1e9, shared, (double)d->free / 1e9,
                advice);
}

enum status fit_check(const struct fit *f, struct error *err)
{
    const struct device *device = f->model->device;
    struct comm_group world = f->model->groups.of[GROUP_WORLD];
    struct need own = {.bytes = fit_rank_bytes(f)};
    struct demand worst;
    TRY(comm_barrier(&world, err)); /* each has opened its device, which takes some, too */
    TRY(device->identity(&own.device, err));
    TRY(device->free_memory(1, &own.free, err));
    struct need *needs = must_calloc(world.size, sizeof *needs);
    enum status st = world.comm->backend->all_gather(&world, &own, needs, sizeof own, err);
    if (!st && find_worst(needs, world.size, &worst)) st = refuse(f, &world, needs, &worst, err);
    free(needs);
    return st;
}
