/* trainer_fit.c - checks that a run fits the memory, and advises one that
 * would; plans before anything is allocated. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/host_memory.h"
#include "common/numbers.h"
#include "train/trainer/trainer_internal.h"

/* For data, and for reading and writing checkpoints; independent of the model. */
#define BUFFER_BYTES ((uint64_t)16 << 20)

/* Bytes that a watching caller copies. */
static uint64_t watched_bytes(const struct trainer *t, const struct step *s)
{
    const struct train_watch *watch = t->q->watch;
    if (!watch || !watch->keeps_weights) return 0;
    return trainer_region_bytes(s, step_has_masters(s) ? HELD_MASTER : HELD_WEIGHT);
}

/* Host memory of a run beside the memory of its steps. */
static uint64_t copies_bytes(const struct trainer *t, const struct step *s)
{
    uint64_t bytes = watched_bytes(t, s);
    if (t->model.device->is_host && !trainer_saves_behind(t)) return bytes;
    for (int k = 0; k < NUM_HELD; k++)
        bytes += trainer_region_bytes(s, (enum held_kind)k);
    return bytes;
}

struct rank_memory trainer_memory_of(const struct trainer *t, const struct step *s)
{
    const bool is_host = t->model.device->is_host;
    const uint64_t copies = copies_bytes(t, s), own = step_bytes(s) + BUFFER_BYTES;
    return (struct rank_memory){
        .device = own + (is_host ? copies : 0), .host = is_host ? 0 : copies, .copies = copies};
}

static void add_memory(struct train_plan *p, const char *name, uint64_t bytes)
{
    if (bytes) p->memory[p->num_memory++] = (struct train_memory){name, bytes};
}

void trainer_plan_memory(const struct trainer *t, struct train_plan *p)
{
    _Static_assert(NUM_VALUE_CLASSES + 2 <= COUNT(p->memory), "trainer.h");
    const struct rank_memory m = trainer_memory_of(t, &t->step);
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        add_memory(p, step_region_name((enum value_class)k), t->step.region_bytes[k]);
    add_memory(p, "buffers", BUFFER_BYTES);
    add_memory(p, "copy of states", m.copies);
    p->on_gpu = !t->model.device->is_host;
    p->device = m.device;
    p->host = m.host;
}

/* ---- advice ---- */

/* The most device memory that a rank of any pipeline stage needs with this
 * step. */
static enum status measure_largest_rank(const struct trainer *t, const struct step_options *o,
                                        uint64_t *bytes, struct error *err)
{
    *bytes = 0;
    for (unsigned stage = 0; stage < t->model.groups.sizes.pp; stage++) {
        struct simulated_rank x;
        const enum status st = trainer_simulate(t, stage * trainer_stage_ranks(t), o, &x, err);
        if (!st) *bytes = max_u64(*bytes, trainer_memory_of(t, &x.step).device);
        trainer_release_simulated(&x);
        if (st) return st;
    }
    return OK;
}

/* A recompute policy. Each in a list keeps less than the one before; the first
 * is the run's own. */
struct policy {
    struct recompute_options recompute;
    const char *options; /* that select it */
};

enum { MAX_POLICIES = 3, MAX_PARTS = 1024 };

static unsigned list_policies(const struct recompute_options *own, struct policy list[MAX_POLICIES])
{
    static const struct policy known[] = {
        {{.granularity = RECOMPUTE_SELECTIVE, .modules = RECOMPUTE_CORE_ATTENTION, .num_layers = 1},
         "--recompute-granularity selective"},
        {{.granularity = RECOMPUTE_FULL, .method = RECOMPUTE_UNIFORM, .num_layers = 1},
         "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
    };
    unsigned n = 0;
    list[n++] = (struct policy){*own, ""};
    for (size_t i = 0; i < COUNT(known); i++)
        if (known[i].recompute.granularity > own->granularity ||
            known[i].recompute.granularity == RECOMPUTE_FULL)
            list[n++] = known[i];
    return n;
}

/* Names --global-batch-size if not given: its default would shrink with the
 * micro-batch. */
static void print_candidate(const struct trainer *t, uint64_t size, const struct policy *p,
                            uint64_t bytes, struct strbuf *out)
{
    const struct train_options *o = t->o;
    if (size < o->micro_batch_size) {
        strbuf_printf(out, "--micro-batch-size %" PRIu64, size);
        if (!o->is_global_batch_size_given && !o->num_batch_size_steps)
            strbuf_printf(out, " --global-batch-size %" PRIu64, o->global_batch_size);
    }
    strbuf_printf(out, "%s%s fits (%s)", out->length && *p->options ? " " : "", p->options,
                  bytes_text(bytes));
}

/* Tries each policy with all sizes that divide the given one: smaller
 * micro-batches come first, since they recompute nothing. Lowers *least, at
 * first the run's own need, to the smallest need. */
static bool find_fitting(const struct trainer *t, uint64_t there, struct strbuf *out,
                         uint64_t *least)
{
    struct policy policies[MAX_POLICIES];
    struct step_options o = t->step.options;
    const uint64_t given = t->o->micro_batch_size;
    const unsigned n = list_policies(&o.recompute, policies);
    for (unsigned i = 0; i < n; i++)
        for (uint64_t parts = 1; parts <= given && parts <= MAX_PARTS; parts++) {
            const uint64_t size = given / parts;
            struct error ignored;
            uint64_t bytes;
            o.recompute = policies[i].recompute;
            o.shape.num_sequences = size;
            o.micro_batches = t->step.options.micro_batches * parts;
            o.eval_micro_batches = t->step.options.eval_micro_batches * parts;
            if (given % parts || measure_largest_rank(t, &o, &bytes, &ignored)) continue;
            *least = min_u64(*least, bytes);
            if (bytes > there) continue;
            print_candidate(t, size, &policies[i], bytes, out);
            return true;
        }
    return false;
}

/* Whether the same step fits with states sharded over data parallel ranks. */
static bool fits_sharded(const struct trainer *t, uint64_t there, uint64_t *bytes)
{
    struct step_options o = t->step.options;
    struct error ignored;
    if (o.shards_states || trainer_num_ranks(t) == 1) return false;
    o.shards_states = true;
    return !measure_largest_rank(t, &o, bytes, &ignored) && *bytes <= there;
}

/* Memory to compare with the available one, in bytes. */
struct need {
    uint64_t device, host;
    uint64_t lean;  /* of the device, without --async-save */
    unsigned stage; /* pipeline rank with the need `device` */
};

static void add_need(struct need *n, const struct trainer *t, const struct rank_memory *m,
                     unsigned stage)
{
    if (m->device > n->device) {
        n->device = m->device;
        n->stage = stage;
    }
    n->host = max_u64(n->host, m->host);
    n->lean = max_u64(n->lean, m->device - (t->model.device->is_host ? m->copies : 0));
}

/* The need of this rank; in a dry run without ranks, of all stages. */
static struct need need_of(const struct trainer *t)
{
    struct need n = {0};
    const struct rank_memory own = trainer_memory_of(t, &t->step);
    add_need(&n, t, &own, t->model.groups.place.pp);
    for (unsigned i = 0; !t->comm.backend && i < t->plan.num_stages; i++) {
        const struct train_stage *s = &t->plan.stages[i];
        const struct rank_memory m = {s->device, s->host, s->copies};
        add_need(&n, t, &m, i);
    }
    return n;
}

static void print_advice(const struct trainer *t, const struct need *need, uint64_t there,
                         struct strbuf *out)
{
    uint64_t bytes, least = need->device;
    if (t->q->watch)
        strbuf_printf(out, "use fewer or shorter sequences");
    else if (need->lean <= there)
        strbuf_printf(out, "without --async-save it fits (%s)", bytes_text(need->lean));
    else if (fits_sharded(t, there, &bytes))
        strbuf_printf(out, "--use-distributed-optimizer fits (%s)", bytes_text(bytes));
    else if (!find_fitting(t, there, out, &least))
        strbuf_printf(out,
                      "no smaller --micro-batch-size and no --recompute-granularity fits (at least "
                      "%s)",
                      bytes_text(least));
}

/* Ranks of this host; in a dry run without ranks, all. */
static unsigned sharers_of(const struct trainer *t)
{
    return t->comm.backend ? t->comm.host_size : (unsigned)trainer_num_ranks(t);
}

static bool is_memory_given(const struct trainer *t)
{
    return !isnan(t->o->memory_per_rank);
}

bool trainer_compares_memory(const struct trainer *t)
{
    return is_memory_given(t) || sharers_of(t) <= COMM_LOCAL_RANKS;
}

static enum status memory_of_rank(const struct trainer *t, uint64_t *bytes, struct error *err)
{
    if (!is_memory_given(t)) return t->model.device->free_memory(sharers_of(t), bytes, err);
    *bytes = (uint64_t)(t->o->memory_per_rank * 1e9);
    return OK;
}

static enum status refuse_memory(const struct trainer *t, const struct need *need, uint64_t there,
                                 struct error *err)
{
    const bool is_one = trainer_num_ranks(t) == 1;
    struct strbuf advice = {0};
    char who[64] = "the run";
    if (t->model.groups.sizes.pp > 1)
        (void)snprintf(who, sizeof who, "each rank of pipeline stage %u", need->stage);
    else if (!is_one)
        (void)snprintf(who, sizeof who, "each rank");
    print_advice(t, need, there, &advice);
    const enum status st =
        fail(err, ERR_MEMORY, "%s needs %s of memory, but %s are %s%s; %s", who,
             bytes_text(need->device), bytes_text(there), is_memory_given(t) ? "given" : "free",
             is_one ? "" : " for it", advice.data);
    strbuf_release(&advice);
    return st;
}

enum status trainer_check_memory(struct trainer *t, struct error *err)
{
    const uint64_t host = host_memory_available() / sharers_of(t);
    uint64_t there = UINT64_MAX;
    if (!trainer_compares_memory(t)) {
        trainer_note(t, "memory is not compared: the layout has more ranks than one machine runs");
        return OK;
    }
    const struct need need = need_of(t);
    TRY(memory_of_rank(t, &there, err));
    t->plan.needed = need.device;
    t->plan.available = there;
    if (need.device > there) return refuse_memory(t, &need, there, err);
    if (need.host <= host || is_memory_given(t)) return OK;
    return fail(err, ERR_MEMORY,
                "a copy of the run's state needs %s of host memory, but %s are free",
                bytes_text(need.host), bytes_text(host));
}
