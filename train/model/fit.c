#include "train/model/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/host_memory.h"
#include "common/memory.h"
#include "common/strbuf.h"
#include "common/threads.h"

/* Memory of parameters, loading and communication, without passes. */
static struct fit_memory without_passes(const struct fit *f)
{
    const struct model *m = f->model;
    const struct load_options o = {.threads = f->threads};
    const struct comm *c = m->groups.of[GROUP_WORLD].comm; /* NULL: simulated model */
    const struct comm_memory talking = c ? c->backend->memory(c) : (struct comm_memory){0, 0};
    struct fit_memory x = {.parameters = m->parameters.bytes,
                           .coded = coded_summarise(&m->parameters),
                           .talking = talking.all,
                           .shared = talking.all - talking.own};
    struct error ignored; /* loading reports it */
    if (parameters_load_bytes(&m->parameters, m->device, &o, &x.loading, &ignored)) x.loading = 0;
    return x;
}

/* Results of one pass are freed before those of the next. */
static void add_pass(struct fit_memory *x, const struct fit *f, const struct pass *p)
{
    x->passes += pass_bytes(p);
    x->results = max_u64(x->results, pass_collect_bytes(p, &f->taking));
}

static void set_peaks(struct fit_memory *x, const struct device *device)
{
    if (device->is_host) {
        x->device = x->parameters + max_u64(x->loading, x->passes + x->results) + x->talking;
    } else {
        x->device = x->parameters + x->passes;
        x->host = max_u64(x->loading, x->results) + x->talking;
    }
}

struct fit_memory fit_memory(const struct fit *f)
{
    struct fit_memory x = without_passes(f);
    for (size_t i = 0; i < f->num_passes; i++)
        add_pass(&x, f, f->passes[i]);
    set_peaks(&x, f->model->device);
    x.program = host_memory_resident();
    return x;
}

static double to_mb(uint64_t bytes)
{
    return (double)bytes / 1e6;
}

void fit_print(const struct fit *f, struct strbuf *out)
{
    const struct fit_memory x = fit_memory(f);
    strbuf_printf(out, "  parameters and caches: %.2f MB\n", to_mb(x.parameters));
    strbuf_printf(out, "  inputs, outputs and activations: %.2f MB\n", to_mb(x.passes));
    strbuf_printf(out, "  results gathered on rank 0: %.2f MB\n", to_mb(x.results));
    strbuf_printf(out, "  buffers for loading parameters: %.2f MB\n", to_mb(x.loading));
    if (x.talking) strbuf_printf(out, "  communication buffers: %.2f MB\n", to_mb(x.talking));
    strbuf_printf(out, "  peak: %.2f MB", to_mb(x.device));
    if (!f->model->device->is_host)
        strbuf_printf(out, " of the GPU, and %.2f MB of the host", to_mb(x.host));
    strbuf_printf(out, ", plus %.2f MB for the program and its libraries\n", to_mb(x.program));
}

/* ---- other layouts ---- */

static struct model_options options_of(const struct model *m, const struct group_sizes *s)
{
    struct model_options o = m->options;
    o.layout = (struct layout_options){.tp = s->tp, .pp = s->pp, .ep = s->ep, .etp = s->etp};
    return o;
}

/* Measures the same passes, one by one, over the parameters of one rank. */
static enum status measure_passes(const struct fit *f, struct model *m, uint64_t *bytes,
                                  struct error *err)
{
    struct fit_memory x = {0};
    const struct fit there = {.model = m, .taking = f->taking, .threads = f->threads};
    enum status st = OK;
    for (size_t i = 0; i < f->num_passes && !st; i++) {
        struct pass p;
        st = pass_make(&p, m, &f->passes[i]->batch, &f->passes[i]->options, err);
        if (!st) add_pass(&x, f, &p);
        pass_release(&p);
    }
    const struct fit_memory rest = without_passes(&there);
    x.parameters = rest.parameters;
    x.loading = rest.loading;
    x.talking = rest.talking;
    x.shared = rest.shared;
    set_peaks(&x, m->device);
    *bytes = x.device;
    return st;
}

static enum status measure_rank(const struct fit *f, const struct group_sizes *s, unsigned rank,
                                uint64_t *bytes, struct error *err)
{
    struct model m;
    struct model_options o = options_of(f->model, s);
    enum status st = model_simulate(&m, f->model->checkpoint, &o, rank, err);
    if (!st) st = measure_passes(f, &m, bytes, err);
    model_close(&m);
    return st;
}

/* The first stage has the embedding, the last the head; those between are
 * equal, as are all ranks of a stage. */
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

/* Fewest hosts like this one with so much device memory for each rank; 0: none.
 */
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
    struct error ignored; /* not possible */
    uint64_t bytes;
    if (measure_layout(f, s, &bytes, &ignored) || (best->hosts && best->bytes <= bytes)) return;
    unsigned hosts = hosts_for(f->model->device, groups_world_size(s), bytes);
    if (hosts) *best = (struct fit_layout){*s, hosts, bytes};
}

/* Tries all grids with so many ranks and stages, and this tp and ep. */
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
    const uint64_t experts = m->config.num_experts;
    struct group_sizes s = {
        .pp = pp, .cp = m->groups.sizes.cp, .dp = (unsigned)m->options.layout.dp};
    for (s.tp = 1; s.tp <= ranks / pp; s.tp++)
        for (s.ep = 1; s.ep <= (experts ? ranks / pp : 1); s.ep++)
            if (ranks % (s.tp * pp) == 0 && (!experts || experts % s.ep == 0))
                try_grids(f, ranks, &s, best);
}

bool fit_search(const struct fit *f, struct fit_layout *out)
{
    const struct model *m = f->model;
    const unsigned dp = (unsigned)m->options.layout.dp;
    const unsigned least = m->groups.sizes.cp * (dp ? dp : 1);
    *out = (struct fit_layout){0};
    for (unsigned ranks = least; ranks <= FIT_MAX_RANKS; ranks *= 2)
        for (unsigned pp = 1; pp <= ranks && !work_stopped(); pp++) {
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
    if (m->options.layout.dp) strbuf_printf(out, " --dp %u", s->dp);
    strbuf_printf(out, " (%u rank%s, %.2f GB each", ranks, ranks > 1 ? "s" : "",
                  (double)l->bytes / 1e9);
    if (l->hosts > 1) strbuf_printf(out, ", on %u hosts like this one", l->hosts);
    strbuf_add_char(out, ')');
}

/* A need of a rank, and the free memory, which others may share. */
struct need {
    uint64_t bytes, memory, free; /* memory: equal for ranks that share it */
};

/* A rank's needs: on the device, on the host beside it, and in its own address
 * space, limited by ulimit -v. */
enum need_kind { OF_DEVICE, OF_HOST, OF_ADDRESS_SPACE, NEEDS };

static const char *const need_names[NEEDS] = {
    [OF_DEVICE] = "memory",
    [OF_HOST] = "host memory",
    [OF_ADDRESS_SPACE] = "address space (ulimit -v)",
};

/* All ranks that share one memory. */
struct demand {
    unsigned ranks, largest; /* the rank with the largest need */
    uint64_t largest_bytes, bytes, free;
    enum need_kind kind; /* of that rank */
};

static struct demand demand_of(const struct need *needs, unsigned size, uint64_t memory)
{
    struct demand d = {.free = UINT64_MAX};
    for (unsigned i = 0; i < size * NEEDS; i++) {
        const struct need *n = &needs[i];
        if (n->memory != memory || !n->bytes) continue;
        if (n->bytes > d.largest_bytes) {
            d.largest = i / NEEDS;
            d.largest_bytes = n->bytes;
            d.kind = i % NEEDS;
        }
        d.ranks++;
        d.bytes += n->bytes;
        d.free = min_u64(d.free, n->free);
    }
    return d;
}

/* Finds the memory with the largest shortage; false: none is short. */
static bool find_worst(const struct need *needs, unsigned size, struct demand *worst)
{
    uint64_t most = 0;
    for (unsigned i = 0; i < size * NEEDS; i++) {
        struct demand d = demand_of(needs, size, needs[i].memory);
        if (d.bytes <= d.free || d.bytes - d.free <= most) continue;
        most = d.bytes - d.free;
        *worst = d;
    }
    return most > 0;
}

enum { ADVICE_BYTES = 256 };

/* Rank 0 searches a layout and tells all. No layout reduces what a host needs
 * beside its GPUs. */
static enum status share_advice(const struct fit *f, struct comm_group *world,
                                const struct demand *d, char advice[ADVICE_BYTES],
                                struct error *err)
{
    struct fit_layout layout;
    struct strbuf text = {0};
    char *all = must_calloc(world->size, ADVICE_BYTES);
    if (world->index == 0 && d->kind == OF_HOST)
        strbuf_add_text(&text, "compute fewer tokens at a time");
    else if (world->index == 0 && d->kind == OF_ADDRESS_SPACE)
        strbuf_add_text(&text, "more ranks need less each");
    else if (world->index == 0 && fit_search(f, &layout))
        add_layout(&text, f->model, &layout);
    else if (world->index == 0)
        strbuf_printf(&text, "no layout (--tp, --pp, --ep) of up to %d ranks fits", FIT_MAX_RANKS);
    memset(advice, 0, ADVICE_BYTES);
    if (text.data) snprintf(advice, ADVICE_BYTES, "%s", text.data);
    enum status st = world->comm->backend->all_gather(world, advice, all, ADVICE_BYTES, err);
    memcpy(advice, all, ADVICE_BYTES);
    strbuf_release(&text);
    free(all);
    return st;
}

static enum status fail_not_fitting(const struct fit *f, struct comm_group *world,
                                    const struct demand *d, struct error *err)
{
    char advice[ADVICE_BYTES], shared[64] = "";
    TRY(share_advice(f, world, d, advice, err));
    if (d->ranks > 1)
        snprintf(shared, sizeof shared, ", %.2f GB with the %u rank%s sharing it",
                 (double)d->bytes / 1e9, d->ranks - 1, d->ranks > 2 ? "s" : "");
    return fail(err, ERR_MEMORY, "rank %u needs %.2f GB of %s%s, but %.2f GB are free; %s",
                d->largest, (double)d->largest_bytes / 1e9, need_names[d->kind], shared,
                (double)d->free / 1e9, advice);
}

static enum status own_needs(const struct fit *f, struct need own[NEEDS], struct error *err)
{
    const struct device *device = f->model->device;
    const struct fit_memory x = fit_memory(f);
    const unsigned rank = f->model->groups.of[GROUP_WORLD].index;
    struct need host = {.free = host_memory_available()};
    TRY(cpu_device.identity(&host.memory, err));
    /* Shared pages count once. */
    own[OF_HOST] = own[OF_DEVICE] = host;
    own[OF_DEVICE].bytes = device->is_host ? x.device - x.shared : x.device;
    own[OF_HOST].bytes = device->is_host ? 0 : x.host - x.shared;
    TRY(device->identity(&own[OF_DEVICE].memory, err));
    TRY(device->free_memory(1, &own[OF_DEVICE].free, err));
    own[OF_ADDRESS_SPACE] = (struct need){.memory = device_hash(&rank, sizeof rank)};
    if (host_memory_address_space() == UINT64_MAX) return OK;
    own[OF_ADDRESS_SPACE].bytes = device->is_host ? x.device : x.host;
    if (device->is_host)
        own[OF_DEVICE].free = host.free; /* for all ranks, without the limit of address space */
    return cpu_device.free_memory(1, &own[OF_ADDRESS_SPACE].free, err);
}

enum status fit_check(const struct fit *f, struct error *err)
{
    struct comm_group world = f->model->groups.of[GROUP_WORLD];
    struct need own[NEEDS];
    struct demand worst = {0};
    TRY(comm_barrier(&world, err)); /* each rank has opened its device, which takes memory, too */
    TRY(own_needs(f, own, err));
    struct need *needs = must_calloc(world.size, sizeof own);
    enum status st = world.comm->backend->all_gather(&world, own, needs, sizeof own, err);
    if (!st && find_worst(needs, world.size, &worst)) st = fail_not_fitting(f, &world, &worst, err);
    free(needs);
    return st;
}
