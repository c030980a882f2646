#include "train/schedule/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"

/* ---- kinds: the actions of each rank ---- */

static void add_action(struct schedule_rank *r, bool is_backward, unsigned chunk,
                       uint64_t micro_batch)
{
    r->actions[r->count++] = (struct schedule_action){
        .is_backward = is_backward, .chunk = chunk, .micro_batch = micro_batch};
}

static void list_one_by_one(const struct schedule_shape *p, unsigned rank, struct schedule_rank *r)
{
    (void)rank;
    for (uint64_t m = 0; m < p->micro_batches; m++) {
        for (unsigned c = 0; c < p->chunks; c++)
            add_action(r, false, c, m);
        for (unsigned c = p->chunks; c-- > 0 && !p->forward_only;)
            add_action(r, true, c, m);
    }
}

/* Finds virtual micro-batch k of a rank: a chunk for a micro-batch. Groups of
 * micro-batches go through all chunks in turn; 1F1B has one chunk
 * (megatron/core/pipeline_parallel/schedules.py, get_schedule_table). */
static void find_virtual(const struct schedule_shape *p, uint64_t k, bool is_backward,
                         unsigned *chunk, uint64_t *micro_batch)
{
    const uint64_t whole = (uint64_t)p->group * p->chunks, first = k / whole * p->group,
                   size = min_u64(p->group, p->micro_batches - first), within = k % whole;
    *chunk = (unsigned)(within / size);
    *micro_batch = first + within % size;
    if (is_backward) *chunk = p->chunks - 1 - *chunk;
}

static void add_virtual(const struct schedule_shape *p, struct schedule_rank *r, bool is_backward,
                        uint64_t k)
{
    unsigned chunk;
    uint64_t micro_batch;
    find_virtual(p, k, is_backward, &chunk, &micro_batch);
    add_action(r, is_backward, chunk, micro_batch);
}

/* Forward parts before the first backward part (get_pp_rank_microbatches). */
static uint64_t warm_up(const struct schedule_shape *p, unsigned rank)
{
    const uint64_t behind = p->ranks - 1 - rank, all = p->micro_batches * p->chunks;
    if (p->forward_only) return all;
    return min_u64(all,
                   p->chunks == 1 ? behind : 2 * behind + (p->chunks - 1) * (uint64_t)p->group);
}

static void list_in_turn(const struct schedule_shape *p, unsigned rank, struct schedule_rank *r)
{
    const uint64_t all = p->micro_batches * p->chunks, ahead = warm_up(p, rank);
    for (uint64_t k = 0; k < ahead; k++)
        add_virtual(p, r, false, k);
    for (uint64_t k = ahead; k < all; k++) {
        add_virtual(p, r, false, k);
        add_virtual(p, r, true, k - ahead);
    }
    for (uint64_t k = all - ahead; k < all && !p->forward_only; k++)
        add_virtual(p, r, true, k);
}

static enum status check_one_chunk(const struct schedule_shape *p, struct error *err)
{
    if (p->chunks == 1) return OK;
    return fail(err, ERR_USAGE, "schedule 1f1b: %u chunks on a rank, expected 1", p->chunks);
}

/* As in Megatron-Core: a last group smaller than the pipeline would stall. */
static enum status check_groups(const struct schedule_shape *p, struct error *err)
{
    const uint64_t rest = p->micro_batches % p->group;
    if (p->group < p->ranks)
        return fail(err, ERR_USAGE,
                    "schedule interleaved: groups of %u micro-batches, fewer than the %u pipeline "
                    "stages",
                    p->group, p->ranks);
    if (rest == 0 || rest >= p->ranks) return OK;
    return fail(err, ERR_USAGE,
                "schedule interleaved: %" PRIu64 " micro-batches in groups of %u leave %" PRIu64
                ", fewer than the %u pipeline stages",
                p->micro_batches, p->group, rest, p->ranks);
}

static enum status accept_any(const struct schedule_shape *p, struct error *err)
{
    (void)p, (void)err;
    return OK;
}

static const struct kind {
    const char *name;
    enum status (*check)(const struct schedule_shape *p, struct error *err);
    void (*list)(const struct schedule_shape *p, unsigned rank, struct schedule_rank *r);
} kinds[NUM_SCHEDULES] = {
    [SCHEDULE_ONE_BY_ONE] = {"one-by-one", accept_any, list_one_by_one},
    [SCHEDULE_1F1B] = {"1f1b", check_one_chunk, list_in_turn},
    [SCHEDULE_INTERLEAVED] = {"interleaved", check_groups, list_in_turn},
};

const char *schedule_name(enum schedule_kind kind)
{
    return kind < NUM_SCHEDULES ? kinds[kind].name : NULL;
}

/* ---- the simulation ---- */

struct simulated {
    int64_t free;    /* its last action has ended and its result is sent */
    size_t next;     /* action */
    bool is_sending; /* the result of its last action is still to be sent */
    int64_t
        *arrived; /* [2][chunks][micro_batches] when inputs, and gradients of outputs, have come */
};

struct simulation {
    struct schedule *s;
    struct simulated *ranks;
};

static int64_t *arrival_time(const struct simulation *x, unsigned rank, bool is_gradient,
                             unsigned chunk, uint64_t micro_batch)
{
    const struct schedule_shape *p = &x->s->shape;
    return &x->ranks[rank]
                .arrived[((is_gradient ? p->chunks : 0) + chunk) * p->micro_batches + micro_batch];
}

static bool is_first_stage(unsigned rank, unsigned chunk)
{
    return rank == 0 && chunk == 0;
}

static bool is_last_stage(const struct schedule_shape *p, unsigned rank, unsigned chunk)
{
    return rank + 1 == p->ranks && chunk + 1 == p->chunks;
}

/* Destination of an action's result; false: none. */
static bool goes_to(const struct schedule_shape *p, unsigned rank, const struct schedule_action *a,
                    unsigned *to, unsigned *chunk)
{
    *chunk = a->chunk;
    if (a->is_backward) {
        if (is_first_stage(rank, a->chunk)) return false;
        *to = rank ? rank - 1 : p->ranks - 1;
        *chunk -= rank == 0;
        return true;
    }
    if (is_last_stage(p, rank, a->chunk)) return false;
    *to = rank + 1 < p->ranks ? rank + 1 : 0;
    *chunk += rank + 1 == p->ranks;
    return true;
}

/* Time at which a rank's next action can begin; negative: its input is missing.
 */
static int64_t can_begin(const struct simulation *x, unsigned rank)
{
    const struct simulated *r = &x->ranks[rank];
    const struct schedule_rank *list = &x->s->ranks[rank];
    if (r->is_sending || r->next == list->count) return -1;
    const struct schedule_action *a = &list->actions[r->next];
    const bool needs_none = a->is_backward ? is_last_stage(&x->s->shape, rank, a->chunk)
                                           : is_first_stage(rank, a->chunk);
    const int64_t came =
        needs_none ? 0 : *arrival_time(x, rank, a->is_backward, a->chunk, a->micro_batch);
    return came < 0 ? -1 : came > r->free ? came : r->free;
}

/* Time at which a rank's result can be sent: both ranks are between two
 * actions. */
static int64_t can_send(const struct simulation *x, unsigned rank)
{
    const struct simulated *r = &x->ranks[rank];
    unsigned to, chunk;
    if (!r->is_sending) return -1;
    (void)goes_to(&x->s->shape, rank, &x->s->ranks[rank].actions[r->next - 1], &to, &chunk);
    return x->ranks[to].free > r->free ? x->ranks[to].free : r->free;
}

static void add_message(struct schedule_rank *r, const struct schedule_message *m)
{
    if (r->num_messages == r->capacity) {
        r->capacity = 2 * r->capacity + 64;
        r->messages = must_realloc(r->messages, r->capacity * sizeof *r->messages);
    }
    r->messages[r->num_messages++] = *m;
}

static void simulate_send(struct simulation *x, unsigned rank, int64_t now)
{
    struct simulated *r = &x->ranks[rank];
    const struct schedule_action *a = &x->s->ranks[rank].actions[r->next - 1];
    unsigned to, chunk;
    (void)goes_to(&x->s->shape, rank, a, &to, &chunk);
    add_message(&x->s->ranks[rank],
                &(struct schedule_message){true, a->is_backward, to, a->chunk, a->micro_batch});
    add_message(&x->s->ranks[to],
                &(struct schedule_message){false, a->is_backward, rank, chunk, a->micro_batch});
    *arrival_time(x, to, a->is_backward, chunk, a->micro_batch) = now;
    r->is_sending = false;
    r->free = now;
}

static void simulate_action(struct simulation *x, unsigned rank, int64_t now)
{
    struct simulated *r = &x->ranks[rank];
    struct schedule_rank *list = &x->s->ranks[rank];
    struct schedule_action *a = &list->actions[r->next++];
    unsigned to, chunk;
    a->messages_before = list->num_messages;
    a->begin = now;
    r->free = a->end = now + (a->is_backward ? 2 : 1);
    r->is_sending = goes_to(&x->s->shape, rank, a, &to, &chunk);
    if (a->end > x->s->end) x->s->end = a->end;
}

/* Simulates the earliest event, messages first; false: none is possible. */
static bool simulate_event(struct simulation *x)
{
    int64_t best = -1;
    unsigned rank = 0;
    bool sends = false;
    for (unsigned r = 0; r < x->s->shape.ranks; r++) {
        const int64_t sent = can_send(x, r), begun = can_begin(x, r);
        if (sent >= 0 && (best < 0 || sent < best || (sent == best && !sends)))
            best = sent, rank = r, sends = true;
        if (begun >= 0 && (best < 0 || begun < best)) best = begun, rank = r, sends = false;
    }
    if (best < 0) return false;
    if (sends)
        simulate_send(x, rank, best);
    else
        simulate_action(x, rank, best);
    return true;
}

static enum status simulate_ranks(struct schedule *s, struct error *err)
{
    const struct schedule_shape *p = &s->shape;
    const size_t inputs = 2 * (size_t)p->chunks * p->micro_batches;
    struct simulation x = {s, must_calloc(p->ranks, sizeof *x.ranks)};
    enum status st = OK;
    for (unsigned r = 0; r < p->ranks; r++) {
        x.ranks[r].arrived = must_malloc((inputs + 1) * sizeof(int64_t));
        for (size_t i = 0; i < inputs; i++)
            x.ranks[r].arrived[i] = -1;
    }
    while (simulate_event(&x))
        continue;
    for (unsigned r = 0; r < p->ranks; r++) {
        s->ranks[r].actions[s->ranks[r].count].messages_before = s->ranks[r].num_messages;
        if (x.ranks[r].next < s->ranks[r].count && !st)
            st = fail(err, ERR_OURS, "schedule %s: rank %u waits for ever at action %zu",
                      kinds[p->kind].name, r, x.ranks[r].next);
        free(x.ranks[r].arrived);
    }
    free(x.ranks);
    return st;
}

/* ---- the whole ---- */

static struct schedule_shape with_group(const struct schedule_shape *shape)
{
    struct schedule_shape out = *shape;
    if (!out.group) out.group = shape->ranks;
    return out;
}

enum status schedule_check(const struct schedule_shape *shape, struct error *err)
{
    const struct schedule_shape whole = with_group(shape);
    return kinds[shape->kind].check(&whole, err);
}

enum status schedule_make(struct schedule *s, const struct schedule_shape *shape, struct error *err)
{
    *s = (struct schedule){.shape = with_group(shape)};
    const struct kind *kind = &kinds[shape->kind];
    TRY(schedule_check(shape, err));
    s->ranks = must_calloc(shape->ranks, sizeof *s->ranks);
    for (unsigned r = 0; r < shape->ranks; r++) {
        const size_t most = 2 * (size_t)shape->chunks * shape->micro_batches + 1;
        s->ranks[r].actions = must_calloc(most, sizeof *s->ranks[r].actions);
        kind->list(&s->shape, r, &s->ranks[r]);
    }
    return simulate_ranks(s, err);
}

void schedule_release(struct schedule *s)
{
    for (unsigned r = 0; s->ranks && r < s->shape.ranks; r++) {
        free(s->ranks[r].actions);
        free(s->ranks[r].messages);
    }
    free(s->ranks);
    *s = (struct schedule){.ranks = NULL};
}

/* ---- what it takes ---- */

/* Inputs of a chunk received right before action k. */
static uint64_t inputs_before(const struct schedule_rank *r, size_t k, unsigned chunk)
{
    uint64_t count = 0;
    for (size_t i = schedule_first_message(r, k); i < r->actions[k].messages_before; i++) {
        const struct schedule_message *m = &r->messages[i];
        count += !m->sends && !m->is_gradient && m->chunk == chunk;
    }
    return count;
}

/* Whether action k's output is sent. A chunk without layers sends its input. */
static bool is_sent(const struct schedule_rank *r, size_t k)
{
    const struct schedule_action *a = &r->actions[k];
    for (size_t i = schedule_first_message(r, k + 1); i < r->actions[k + 1].messages_before; i++) {
        const struct schedule_message *m = &r->messages[i];
        if (m->sends && m->chunk == a->chunk && m->micro_batch == a->micro_batch) return true;
    }
    return false;
}

struct schedule_depth schedule_depth(const struct schedule *s, unsigned rank, unsigned chunk)
{
    const struct schedule_rank *r = &s->ranks[rank];
    struct schedule_depth most = {0, 0};
    uint64_t came = 0, begun = 0, ended = 0, sent = 0;
    for (size_t k = 0; k < r->count; k++) {
        const struct schedule_action *a = &r->actions[k];
        came += inputs_before(r, k, chunk);
        begun += a->chunk == chunk && !a->is_backward;
        most.computed = max_u64(most.computed, begun - ended);
        most.with_inputs = max_u64(most.with_inputs, max_u64(came, begun) - ended + sent);
        const bool ends = a->chunk == chunk && (a->is_backward || s->shape.forward_only);
        ended += ends;
        sent = ends && is_sent(r, k);
    }
    return most;
}

/* After a few groups of micro-batches a schedule repeats itself, up to its last
 * group. */
struct schedule_shape schedule_shortened(const struct schedule_shape *shape)
{
    struct schedule_shape few = *shape;
    const uint64_t group = shape->group ? shape->group : shape->ranks, enough = 4 * group;
    if (few.micro_batches > enough + group) few.micro_batches = enough + few.micro_batches % group;
    return few;
}

uint64_t schedule_window(const struct schedule *s, unsigned rank)
{
    const struct schedule_rank *r = &s->ranks[rank];
    uint64_t begun = 0, ended = 0, most = 0;
    for (size_t k = 0; k < r->count; k++) {
        const struct schedule_action *a = &r->actions[k];
        if (a->is_backward) continue;
        begun = max_u64(begun, a->micro_batch + 1);
        most = max_u64(most, begun - ended);
        if (a->chunk + 1 == s->shape.chunks) ended = a->micro_batch + 1;
    }
    return most;
}

double schedule_bubble(const struct schedule *s)
{
    const double busy =
        (double)(s->shape.micro_batches * s->shape.chunks * (s->shape.forward_only ? 1 : 3));
    return s->end > 0 ? 1 - busy / (double)s->end : 0;
}
