/* Jobs of several processes, forked out of the test. What a rank other than 0
 * sees, it writes into memory shared with the test, or returns as its status.
 * `comm_test mpi NAME` runs some of it as one rank of a job of mpirun's:
 * tests/cli/mpi_test.sh. */
#include "train/comm/comm.h"

#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/count.h"
#include "common/half.h"
#include "common/threads.h"
#include "tests/testing.h"

enum { MOST = 8 };

typedef enum status body_fn(struct comm *c, struct error *err);

static enum status run_job(unsigned size, body_fn *body, struct error *err)
{
    struct comm c;
    TRY(comm_local_open(&c, size, err));
    enum status st = body(&c, err);
    return comm_close(&c, st, err);
}

static enum status open_world(struct comm_group *g, struct comm *c, struct error *err)
{
    unsigned ranks[MOST] = {0};
    for (unsigned r = 0; r < c->size; r++)
        ranks[r] = r;
    return comm_group_open(g, c, ranks, c->size, err);
}

/* ---- sums, beside which those of the job are put ---- */

static const size_t type_bytes[] = {
    [COMM_F32] = 4, [COMM_F64] = 8, [COMM_BF16] = 2, [COMM_F16] = 2, [COMM_INT32] = 4};

/* Element k of what `rank` brings to call number `salt`: magnitudes are mixed,
 * so that the order of a sum shows. */
static double element(unsigned rank, uint64_t salt, size_t k)
{
    uint64_t state = salt * 1000003 + rank * 7919 + k;
    double x = (double)(int64_t)test_random(&state) / 9223372036854775808.0;
    return ldexp(x, (int)(test_random(&state) % 24));
}

/* All types' values are doubles, too. Sums of halves may become infinite. */
static double rounded(enum comm_type type, double x)
{
    switch (type) {
    case COMM_F32:
        return (float)x;
    case COMM_F64:
        return x;
    case COMM_BF16:
        return bf16_load(bf16_store((float)x));
    case COMM_F16:
        return half_load(half_store((float)x * 0x1p-8f));
    case COMM_INT32:
        return (int32_t)(x * 128);
    }
    return 0;
}

static double combined(enum comm_type type, enum comm_reduction how, double a, double b)
{
    if (how == COMM_MAX) return fmax(a, b);
    if (type == COMM_F64) return a + b;
    if (type == COMM_INT32) return (int32_t)((uint32_t)(int32_t)a + (uint32_t)(int32_t)b);
    return (float)a + (float)b;
}

static void store(void *data, enum comm_type type, size_t k, double x)
{
    if (type == COMM_F32) ((float *)data)[k] = (float)x;
    if (type == COMM_F64) ((double *)data)[k] = x;
    if (type == COMM_BF16) ((uint16_t *)data)[k] = bf16_store((float)x);
    if (type == COMM_F16) ((uint16_t *)data)[k] = half_store((float)x);
    if (type == COMM_INT32) ((int32_t *)data)[k] = (int32_t)x;
}

static void fill(void *data, enum comm_type type, size_t count, unsigned rank, uint64_t salt)
{
    for (size_t k = 0; k < count; k++)
        store(data, type, k, rounded(type, element(rank, salt, k)));
}

/* Expected elements first.., summed one by one in the order of the group. */
static void fill_reduced(void *data, const struct comm_group *g, enum comm_type type,
                         enum comm_reduction how, size_t first, size_t count, uint64_t salt)
{
    for (size_t k = 0; k < count; k++) {
        double sum = rounded(type, element(g->ranks[0], salt, first + k));
        for (unsigned i = 1; i < g->size; i++)
            sum = combined(type, how, sum, rounded(type, element(g->ranks[i], salt, first + k)));
        store(data, type, k, sum);
    }
}

/* ---- random calls ---- */

/* One call of all ranks, each in its group. */
struct one_call {
    struct comm_group *g;
    size_t count;
    enum comm_type type;
    uint64_t salt;
    uint8_t *in, *out, *want;
};

static enum status check(const struct one_call *o, const char *what, size_t bytes,
                         struct error *err)
{
    if (bytes == 0 || memcmp(o->out, o->want, bytes) == 0) return OK;
    return fail(err, ERR_OURS, "%s of %zu elements of type %d: other bytes than wanted (seed %llu)",
                what, o->count, (int)o->type, (unsigned long long)test_seed());
}

static enum status try_all_reduce(struct one_call *o, struct error *err)
{
    enum comm_reduction how = o->salt % 2 ? COMM_MAX : COMM_SUM;
    fill(o->out, o->type, o->count, o->g->comm->rank, o->salt);
    fill_reduced(o->want, o->g, o->type, how, 0, o->count, o->salt);
    TRY(o->g->comm->backend->all_reduce(o->g, o->out, o->count, o->type, how, err));
    return check(o, "all_reduce", o->count * type_bytes[o->type], err);
}

static enum status try_reduce_scatter(struct one_call *o, struct error *err)
{
    size_t part = o->count / o->g->size, first = part * o->g->index;
    bool in_place = o->salt % 2;
    uint8_t *in = in_place ? o->out : o->in;
    fill(in, o->type, part * o->g->size, o->g->comm->rank, o->salt);
    fill_reduced(o->want, o->g, o->type, COMM_SUM, first, part, o->salt);
    uint8_t *out = in_place ? in + first * type_bytes[o->type] : o->out;
    TRY(o->g->comm->backend->reduce_scatter(o->g, in, out, part, o->type, err));
    struct one_call at = *o;
    at.out = out;
    return check(&at, "reduce_scatter", part * type_bytes[o->type], err);
}

static enum status try_all_gather(struct one_call *o, struct error *err)
{
    size_t part = o->count / o->g->size, bytes = part * type_bytes[o->type];
    for (unsigned i = 0; i < o->g->size; i++)
        fill(o->want + i * bytes, o->type, part, o->g->ranks[i], o->salt);
    uint8_t *in = o->salt % 2 ? o->out + o->g->index * bytes : o->in;
    fill(in, o->type, part, o->g->comm->rank, o->salt);
    TRY(o->g->comm->backend->all_gather(o->g, in, o->out, bytes, err));
    return check(o, "all_gather", bytes * o->g->size, err);
}

/* Bytes of one rank for another: often none, sometimes many. */
static size_t uneven(const struct one_call *o, unsigned from, unsigned to)
{
    uint64_t state = o->salt * 4099 + from * 64 + to;
    size_t most = o->count * 8 / o->g->size + 1;
    return test_below(&state, 3) ? test_below(&state, most) : 0;
}

static void fill_bytes(uint8_t *data, unsigned from, unsigned to, size_t bytes)
{
    for (size_t k = 0; k < bytes; k++)
        data[k] = (uint8_t)((k * 0x9E3779B1u >> 16) + from * MOST + to);
}

static enum status try_all_to_all(struct one_call *o, struct error *err)
{
    size_t in_bytes[MOST], out_bytes[MOST], in = 0, out = 0;
    unsigned me = o->g->comm->rank;
    for (unsigned i = 0; i < o->g->size; i++) {
        unsigned other = o->g->ranks[i];
        in_bytes[i] = uneven(o, me, other);
        out_bytes[i] = uneven(o, other, me);
        fill_bytes(o->in + in, me, other, in_bytes[i]);
        fill_bytes(o->want + out, other, me, out_bytes[i]);
        in += in_bytes[i], out += out_bytes[i];
    }
    TRY(o->g->comm->backend->all_to_all(o->g, o->in, in_bytes, o->out, out_bytes, err));
    return check(o, "all_to_all", out, err);
}

/* To the next, from the one before. What is more than all may send first, the
 * first receives first.
 */
static enum status try_ring(struct one_call *o, struct error *err)
{
    unsigned n = o->g->size, next = (o->g->index + 1) % n, before = (o->g->index + n - 1) % n;
    size_t bytes = o->count * type_bytes[o->type];
    bool may_wait = bytes > COMM_SENT_AHEAD;
    if (may_wait && n == 1) return OK;
    fill(o->in, o->type, o->count, o->g->comm->rank, o->salt);
    fill(o->want, o->type, o->count, o->g->ranks[before], o->salt);
    bool receives_first = may_wait && o->g->index == 0;
    if (receives_first) TRY(comm_receive(o->g, before, o->out, bytes, err));
    TRY(comm_send(o->g, next, o->in, bytes, err));
    if (!receives_first) TRY(comm_receive(o->g, before, o->out, bytes, err));
    return check(o, "ring", bytes, err);
}

/* To both neighbours and from them, at once: of any size. */
static enum status try_exchange(struct one_call *o, struct error *err)
{
    const unsigned n = o->g->size, next = (o->g->index + 1) % n, before = (o->g->index + n - 1) % n;
    const size_t bytes = o->count * type_bytes[o->type];
    char *more = malloc(bytes + 1);
    const struct comm_message messages[] = {{true, next, o->in, bytes},
                                            {true, before, o->in, bytes},
                                            {false, before, o->out, bytes},
                                            {false, next, more, bytes}};
    if (n < 3) {
        free(more);
        return OK; /* both are one: which message is which? */
    }
    fill(o->in, o->type, o->count, o->g->comm->rank, o->salt);
    fill(o->want, o->type, o->count, o->g->ranks[before], o->salt);
    enum status st = o->g->comm->backend->exchange(o->g, messages, 4, err);
    if (!st) st = check(o, "exchange", bytes, err);
    if (!st) {
        memcpy(o->out, more, bytes);
        fill(o->want, o->type, o->count, o->g->ranks[next], o->salt);
        st = check(o, "exchange", bytes, err);
    }
    free(more);
    return st;
}

/* Some members fail, or none: all get the failure of the first of them. */
static enum status try_agree(struct one_call *o, struct error *err)
{
    struct comm_group *g = o->g;
    const unsigned first = (unsigned)(o->salt % (g->size + 1)); /* g->size: none fails */
    const bool fails = g->index >= first && (g->index - first) % 2 == 0;
    struct error why = {.text = ""}, want = {.text = ""};
    bool any = fails;
    const enum status own = fails ? fail(&why, ERR_IO, "member %u", g->index) : OK;
    const enum status got = comm_agree(g, own, &why);
    if (first < g->size && g->index != first)
        (void)!fail(&want, ERR_IO, "rank %u: member %u", g->ranks[first], first);
    else if (first < g->size)
        (void)!fail(&want, ERR_IO, "member %u", first);
    if (got != want.code || strcmp(got ? why.text : "", want.text))
        return fail(err, ERR_OURS, "agreed on '%s', wanted '%s'", why.text, want.text);
    TRY(comm_any(g, &any, err));
    if (any == (first < g->size)) return OK;
    return fail(err, ERR_OURS, "any of %u members: %d", g->size, any);
}

static enum status (*const tries[])(struct one_call *, struct error *) = {
    try_all_reduce, try_reduce_scatter, try_all_gather, try_all_to_all,
    try_ring,       try_exchange,       try_agree};

enum { MAX_ELEMENTS = 200000, NUM_GROUPS = 5, NUM_TRIES = COUNT(tries) };
static const size_t counts[] = {0, 1, 7, 100, 5000, MAX_ELEMENTS}; /* at most; the last about */
enum { NUM_COUNTS = COUNT(counts) };

/* Every call, type and size comes; all else is drawn, in what order they come
 * as well. */
static enum status call_at_random(struct comm_group *groups, struct error *err)
{
    enum { BYTES = MAX_ELEMENTS * 8, NUM_CALLS = NUM_TRIES * NUM_COUNTS * COUNT(type_bytes) };
    uint64_t random = test_seed();
    size_t n = test_below(&random, NUM_CALLS);
    struct one_call o = {.in = malloc(BYTES), .out = malloc(BYTES), .want = malloc(BYTES)};
    enum status st = OK;
    for (unsigned i = 0; i < NUM_CALLS && !st; i++) {
        n = (n + 7) % NUM_CALLS; /* no divisor of theirs */
        o.g = &groups[test_below(&random, NUM_GROUPS)];
        o.count = counts[n / NUM_TRIES % NUM_COUNTS];
        o.count -= test_below(&random, o.count / 4 + 1);
        o.type = (enum comm_type)(n / NUM_TRIES / NUM_COUNTS);
        o.salt = test_random(&random);
        st = tries[n % NUM_TRIES](&o, err);
        if (!st && i % 8 == 0) st = comm_barrier(o.g, err);
    }
    free(o.in);
    free(o.out);
    free(o.want);
    return st;
}

/* Ranks first, first + step and so on, backwards or not: of what there are, one
 * with this rank. */
static enum status open_stride(struct comm_group *g, struct comm *c, unsigned first, unsigned step,
                               unsigned size, bool backwards, struct error *err)
{
    unsigned ranks[MOST] = {0};
    for (unsigned i = 0; i < size; i++)
        ranks[i] = first + step * (backwards ? size - 1 - i : i);
    return comm_group_open(g, c, ranks, size, err);
}

/* All; all backwards; rows and columns of a grid; each alone. */
static enum status random_calls(struct comm *c, struct error *err)
{
    struct comm_group groups[NUM_GROUPS];
    unsigned n = c->size, width = n % 2 == 0 ? 2 : n, r = c->rank;
    TRY(open_stride(&groups[0], c, 0, 1, n, false, err));
    TRY(open_stride(&groups[1], c, 0, 1, n, true, err));
    TRY(open_stride(&groups[2], c, r / width * width, 1, width, false, err));
    TRY(open_stride(&groups[3], c, r % width, width, n / width, true, err));
    TRY(open_stride(&groups[4], c, r, 1, 1, false, err));
    enum status st = call_at_random(groups, err);
    for (unsigned i = 0; i < NUM_GROUPS; i++)
        comm_group_close(&groups[i]);
    return st;
}

static void any_call_of_any_size_does_what_it_says(void **state)
{
    (void)state;
    static const unsigned sizes[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct error err;
        assert_ok(run_job(sizes[i], random_calls, &err));
    }
}

/* Each pair has its own messages, whatever others do between them. */
static enum status many_messages(struct comm *c, struct error *err)
{
    struct comm_group g;
    TRY(open_world(&g, c, err));
    enum status st = OK;
    for (uint32_t i = 0; i < 3000 && !st; i++) {
        uint32_t got = i;
        if (c->rank) st = comm_send(&g, 0, &i, sizeof i, err);
        for (unsigned from = 1; from < c->size && c->rank == 0 && !st && got == i; from++)
            st = comm_receive(&g, from, &got, sizeof got, err);
        if (!st && got != i) st = fail(err, ERR_OURS, "message %u is number %u", i, got);
    }
    comm_group_close(&g);
    return st;
}

static void messages_come_in_order(void **state)
{
    (void)state;
    struct error err;
    assert_ok(run_job(4, many_messages, &err));
}

static enum status check_bytes(const uint8_t *got, unsigned from, unsigned to, size_t bytes,
                               struct error *err)
{
    uint8_t *want = malloc(bytes);
    fill_bytes(want, from, to, bytes);
    const bool same = memcmp(got, want, bytes) == 0;
    free(want);
    if (same) return OK;
    return fail(err, ERR_OURS, "a message of %zu bytes from rank %u has other bytes", bytes, from);
}

/* To both neighbours and from them at once. Of two ranks both neighbours are
 * one: there the order says which message is which. */
static enum status large_messages(struct comm *c, struct error *err)
{
    enum { LARGE = COMM_SENT_AHEAD + 4097 };
    const unsigned n = c->size, next = (c->rank + 1) % n, before = (c->rank + n - 1) % n;
    struct comm_group g;
    TRY(open_world(&g, c, err));
    uint8_t *buffers = calloc(4, LARGE), few[3] = {0};
    uint8_t *forth = buffers, *back = forth + LARGE, *in = back + LARGE, *other = in + LARGE;
    const struct comm_message messages[] = {
        {true, next, forth, LARGE}, {true, next, forth, sizeof few},  {true, before, back, LARGE},
        {false, before, in, LARGE}, {false, before, few, sizeof few}, {false, next, other, LARGE}};
    fill_bytes(forth, c->rank, next, LARGE);
    fill_bytes(back, c->rank, before, LARGE);
    enum status st = c->backend->exchange(&g, messages, COUNT(messages), err);
    if (!st) st = check_bytes(in, before, c->rank, LARGE, err);
    if (!st) st = check_bytes(few, before, c->rank, sizeof few, err);
    if (!st) st = check_bytes(other, next, c->rank, LARGE, err);
    comm_group_close(&g);
    free(buffers);
    return st;
}

static void large_messages_cross(void **state)
{
    (void)state;
    for (unsigned size = 2; size <= 3; size++) {
        struct error err;
        assert_ok(run_job(size, large_messages, &err));
    }
}

static enum status max_with_nan(struct comm *c, struct error *err)
{
    struct comm_group g;
    TRY(open_world(&g, c, err));
    float x[2] = {c->rank == 1 ? NAN : 1, c->rank == 0 ? NAN : 1};
    enum status st = c->backend->all_reduce(&g, x, 2, COMM_F32, COMM_MAX, err);
    comm_group_close(&g);
    if (!st && (!isnan(x[0]) || !isnan(x[1]))) st = fail(err, ERR_OURS, "%g %g", x[0], x[1]);
    return st;
}

static void the_maximum_with_a_nan_is_nan(void **state)
{
    (void)state;
    struct error err;
    assert_ok(run_job(3, max_with_nan, &err));
}

static enum status open_bad_groups(struct comm *c, struct error *err)
{
    struct comm_group g;
    static const unsigned twice[] = {0, 1, 0}, beyond[] = {0, 2}, other[] = {1};
    struct error why;
    if (comm_group_open(&g, c, twice, 3, &why) != ERR_OURS ||
        !strstr(why.text, "rank 0 is listed twice") ||
        comm_group_open(&g, c, beyond, 2, &why) != ERR_OURS ||
        !strstr(why.text, "rank 2 is out of range (2 ranks)"))
        return fail(err, ERR_OURS, "%s", why.text);
    if (c->rank == 1) return OK;
    if (comm_group_open(&g, c, other, 1, &why) != ERR_OURS ||
        !strstr(why.text, "rank, 0, is not a member"))
        return fail(err, ERR_OURS, "%s", why.text);
    return OK;
}

static void a_group_has_each_rank_once_and_its_own(void **state)
{
    (void)state;
    struct error err;
    assert_ok(run_job(2, open_bad_groups, &err));
}

static void more_ranks_than_there_can_be_are_refused(void **state)
{
    (void)state;
    struct comm c;
    struct error err;
    assert_fails(comm_local_open(&c, 65, &err), ERR_USAGE, "65 ranks");
    assert_fails(comm_local_open(&c, 0, &err), ERR_USAGE, "0 ranks");
}

/* ---- what goes wrong ---- */

/* Results seen by each rank. */
struct seen {
    enum status status;
    double seconds; /* after `start` */
    char text[1024];
};
static struct seen *seen; /* [MOST], shared with the children */
static double start;

static int map_seen(void **state)
{
    (void)state;
    seen =
        mmap(NULL, MOST * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return seen == MAP_FAILED;
}

/* Runs until one of its calls fails, and notes how. */
static enum status note(const struct comm *c, enum status st, const struct error *err)
{
    struct seen *s = &seen[c->rank];
    s->status = st;
    s->seconds = seconds_now() - start;
    snprintf(s->text, sizeof s->text, "%s", st ? err->text : "");
    return st;
}

static enum status run_noted(unsigned size, body_fn *body, struct error *err)
{
    memset(seen, 0, MOST * sizeof *seen);
    start = seconds_now();
    return run_job(size, body, err);
}

/* All but `except` have seen this status and a text with both parts, in time. */
static void assert_all_saw(unsigned size, int except, enum status status, const char *part,
                           const char *other_part)
{
    for (unsigned r = 0; r < size; r++) {
        if ((int)r == except) continue;
        if (seen[r].status != status || !strstr(seen[r].text, part) ||
            !strstr(seen[r].text, other_part) || seen[r].seconds > 60)
            fail_msg("rank %u: %d \"%s\" after %.1f s, wanted %d \"%s\" \"%s\"", r,
                     (int)seen[r].status, seen[r].text, seen[r].seconds, (int)status, part,
                     other_part);
    }
}

/* A call of each rank, in a group of all. */
typedef enum status odd_call(struct comm_group *g, struct error *err);

static enum status reduce_12(struct comm_group *g, struct error *err)
{
    float x[3] = {0};
    return g->comm->backend->all_reduce(g, x, 3, COMM_F32, COMM_SUM, err);
}

static enum status reduce_12_max(struct comm_group *g, struct error *err)
{
    float x[3] = {0};
    return g->comm->backend->all_reduce(g, x, 3, COMM_F32, COMM_MAX, err);
}

static enum status reduce_12_int(struct comm_group *g, struct error *err)
{
    int32_t x[3] = {0};
    return g->comm->backend->all_reduce(g, x, 3, COMM_INT32, COMM_SUM, err);
}

static enum status gather(struct comm_group *g, size_t bytes, struct error *err)
{
    char *all = calloc(g->size, bytes);
    enum status st = g->comm->backend->all_gather(g, all, all, bytes, err);
    free(all);
    return st;
}

static enum status gather_8(struct comm_group *g, struct error *err)
{
    return gather(g, 8, err);
}

static enum status gather_1000000(struct comm_group *g, struct error *err)
{
    return gather(g, 1000000, err);
}

static enum status gather_1000001(struct comm_group *g, struct error *err)
{
    return gather(g, 1000001, err);
}

static enum status gather_8_backwards(struct comm_group *g, struct error *err)
{
    struct comm_group back;
    TRY(open_stride(&back, g->comm, 0, 1, g->size, true, err));
    enum status st = gather_8(&back, err);
    comm_group_close(&back);
    return st;
}

static enum status exchange(struct comm_group *g, size_t in, size_t out, struct error *err)
{
    size_t in_bytes[MOST], out_bytes[MOST];
    char data[MOST * 8] = {0}, got[MOST * 8];
    for (unsigned i = 0; i < g->size; i++) {
        in_bytes[i] = in;
        out_bytes[i] = i == g->index ? in : out;
    }
    return g->comm->backend->all_to_all(g, data, in_bytes, got, out_bytes, err);
}

static enum status exchange_5_for_6(struct comm_group *g, struct error *err)
{
    return exchange(g, 5, 6, err);
}

static enum status receive_4_of_next(struct comm_group *g, struct error *err)
{
    int32_t x;
    return comm_receive(g, (g->index + 1) % g->size, &x, 4, err);
}

static enum status send_5_to_next(struct comm_group *g, struct error *err)
{
    TRY(comm_send(g, (g->index + 1) % g->size, "five", 5, err));
    return comm_barrier(g, err);
}

static enum status do_nothing(struct comm_group *g, struct error *err)
{
    (void)g, (void)err;
    return OK;
}

static enum status gather_8_later(struct comm_group *g, struct error *err)
{
    usleep(300000);
    return gather_8(g, err);
}

static odd_call *call_of_most, *call_of_last;

static enum status call_oddly(struct comm *c, struct error *err)
{
    struct comm_group g;
    TRY(open_world(&g, c, err));
    enum status st = OK;
    for (int i = 0; i < 5 && !st; i++)
        st = reduce_12(&g, err);
    if (!st) st = (c->rank == c->size - 1 ? call_of_last : call_of_most)(&g, err);
    comm_group_close(&g);
    return note(c, st, err);
}

static void ranks_that_disagree_are_told_how(void **state)
{
    (void)state;
    // clang-format off
    static const struct {
        unsigned size;
        odd_call *most, *last;
        const char *part, *other_part;
    } rows[] = {
        {4, gather_8, reduce_12, "rank 3", "all_reduce of 12 bytes of f32 among 4 ranks"},
        {4, gather_8, reduce_12, "rank 3", "all_gather of 8 bytes among 4 ranks"},
        {2, reduce_12, reduce_12_max, "all_reduce of 12 bytes of f32 ", "of f32 (max)"},
        {2, reduce_12, reduce_12_int, "of f32", "of int32"},
        {3, gather_1000000, gather_1000001, "of 1000000 bytes", "of 1000001 bytes"},
        {3, gather_8, gather_8_backwards, "rank 2", "for different groups"},
        {2, exchange_5_for_6, exchange_5_for_6, "sends 5 bytes to rank", "which expects 6"},
        {2, receive_4_of_next, send_5_to_next, "rank 1 sends 5 bytes to rank 0", "which expects 4"},
        {4, gather_8, receive_4_of_next, "in receive of 4 bytes from rank 0", "in all_gather of 8"},
        {3, receive_4_of_next, receive_4_of_next, "rank 1 waits for rank 2 in receive", "rank 2 waits for rank 0 in receive"},
        {3, gather_8_later, receive_4_of_next, "rank 2 waits for rank 0", "in all_gather of 8 bytes"},
    };
    // clang-format on
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error err;
        call_of_most = rows[i].most, call_of_last = rows[i].last;
        assert_fails(run_noted(rows[i].size, call_oddly, &err), ERR_RANK, rows[i].part);
        assert_all_saw(rows[i].size, -1, ERR_RANK, rows[i].part, rows[i].other_part);
    }
}

static void a_rank_that_ends_early_is_named(void **state)
{
    (void)state;
    struct error err;
    call_of_most = gather_8, call_of_last = do_nothing;
    assert_fails(run_noted(3, call_oddly, &err), ERR_RANK, "rank 2");
    assert_all_saw(3, 2, ERR_RANK, "comm_close among 3 ranks", "all_gather of 8 bytes");
}

static enum status gather_until_it_fails(struct comm_group *g, struct error *err)
{
    enum status st = OK;
    while (!st)
        st = gather_1000000(g, err);
    return st;
}

/* Rank 1 fails while all ranks are at work. */
static enum status fail_of_nan(struct comm_group *g, struct error *err)
{
    (void)g;
    return fail(err, ERR_NUMERIC, "loss is NaN");
}

static enum status tell_and_go_on(struct comm_group *g, struct error *err)
{
    struct error why;
    if (fail(&why, ERR_NUMERIC, "loss is NaN")) comm_fail(g->comm, &why);
    return gather_8(g, err);
}

static enum status kill_itself(struct comm_group *g, struct error *err)
{
    (void)g, (void)err;
    return (enum status)kill(getpid(), SIGKILL);
}

static enum status exit_early(struct comm_group *g, struct error *err)
{
    (void)g, (void)err;
    _exit(0);
}

static enum status interrupt_itself(struct comm_group *g, struct error *err)
{
    interrupt_install();
    raise(SIGINT);
    return gather_8(g, err);
}

static odd_call *call_of_rank_1;
static bool others_compute;

static enum status work_until_rank_1_ends_it(struct comm *c, struct error *err)
{
    struct comm_group g;
    TRY(open_world(&g, c, err));
    enum status st = OK;
    for (int i = 0; i < 20 && !st; i++)
        st = reduce_12(&g, err);
    if (!st && c->rank == 1) st = call_of_rank_1(&g, err);
    if (!st && c->rank == 0 && others_compute) usleep(5000000);
    if (!st) st = gather_until_it_fails(&g, err);
    comm_group_close(&g);
    return note(c, st, err);
}

static void a_failure_reaches_all(void **state)
{
    (void)state;
    static const struct {
        odd_call *call;
        enum status status, seen;
        const char *others_see, *job;
    } rows[] = {
        {fail_of_nan, ERR_NUMERIC, ERR_RANK, "rank 1: loss is NaN", "rank 1: loss is NaN"},
        {tell_and_go_on, ERR_NUMERIC, ERR_RANK, "rank 1: loss is NaN", "rank 1: loss is NaN"},
        {kill_itself, ERR_RANK, ERR_RANK, "rank 1 has died", "rank 1 has died: signal 9 (Killed)"},
        {exit_early, ERR_RANK, ERR_RANK, "rank 1 has", "rank 1 has ended too early: exit code 0"},
        {interrupt_itself, ERR_INTERRUPTED, ERR_INTERRUPTED, "interrupted", "interrupted"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        for (unsigned size = 2; size <= 8; size += 3) {
            struct error err;
            call_of_rank_1 = rows[i].call;
            assert_fails(run_noted(size, work_until_rank_1_ends_it, &err), rows[i].status,
                         rows[i].job);
            assert_all_saw(size, 1, rows[i].seen, rows[i].others_see, "");
        }
}

/* Rank 0 computes; 2 and 3 learn it before it looks. */
static void a_death_is_seen_by_all_also_while_rank_0_is_busy(void **state)
{
    (void)state;
    struct error err;
    call_of_rank_1 = kill_itself;
    others_compute = true;
    assert_fails(run_noted(4, work_until_rank_1_ends_it, &err), ERR_RANK, "signal 9");
    others_compute = false;
    assert_all_saw(4, 1, ERR_RANK, "rank 1 has died", "");
    assert_true(seen[2].seconds < seen[0].seconds && seen[3].seconds < seen[0].seconds);
}

static int all_ended[2]; /* a pipe whose end the ranks have open */

static enum status die_as_rank_0(struct comm *c, struct error *err)
{
    struct comm_group g;
    TRY(open_world(&g, c, err));
    TRY(gather_8(&g, err));
    if (c->rank == 0) raise(SIGKILL);
    sleep(300);
    return OK;
}

static void all_end_when_rank_0_dies(void **state)
{
    (void)state;
    assert_int_equal(pipe(all_ended), 0);
    double begun = seconds_now();
    pid_t pid = fork();
    if (pid == 0) {
        struct error err;
        close(all_ended[0]);
        _exit((int)run_job(4, die_as_rank_0, &err));
    }
    close(all_ended[1]);
    char byte;
    assert_int_equal(read(all_ended[0], &byte, 1), 0);
    assert_true(seconds_now() - begun < 120);
    close(all_ended[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static enum status print_a_line(struct comm *c, struct error *err)
{
    (void)err;
    printf("rank %u\n", c->rank);
    return OK;
}

/* Also what waited in the buffers before there were ranks. */
static void what_ranks_print_comes_out_once(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    fflush(stdout);
    int real = dup(1);
    dup2(fileno(file), 1);
    printf("before\n");
    struct error err;
    enum status st = run_job(3, print_a_line, &err);
    fflush(stdout);
    dup2(real, 1);
    close(real);
    char text[200] = "";
    rewind(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    assert_ok(st);
    assert_int_equal(n, strlen("before\n") + 3 * strlen("rank 0\n"));
    assert_ptr_equal(strstr(text, "before\n"), text);
    assert_non_null(strstr(text, "rank 2\n"));
}

static enum status fail_as_the_only_one(struct comm *c, struct error *err)
{
    (void)c;
    return fail(err, ERR_NUMERIC, "loss is NaN");
}

static void a_job_of_one_has_its_own_message(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(run_job(1, fail_as_the_only_one, &err), ERR_NUMERIC);
    assert_string_equal(err.text, "loss is NaN");
}

/* ---- under mpirun: comm_test mpi NAME ---- */

static enum status fail_as_rank_1(struct comm *c, struct error *err)
{
    call_of_rank_1 = fail_of_nan;
    return work_until_rank_1_ends_it(c, err);
}

static enum status kill_rank_1(struct comm *c, struct error *err)
{
    call_of_rank_1 = kill_itself;
    return work_until_rank_1_ends_it(c, err);
}

static enum status interrupt_rank_1(struct comm *c, struct error *err)
{
    call_of_rank_1 = interrupt_itself;
    return work_until_rank_1_ends_it(c, err);
}

static enum status disagree(struct comm *c, struct error *err)
{
    call_of_most = gather_8, call_of_last = reduce_12;
    return call_oddly(c, err);
}

static enum status disagree_on_exchange(struct comm *c, struct error *err)
{
    call_of_most = call_of_last = exchange_5_for_6;
    return call_oddly(c, err);
}

// clang-format off
static const struct {
    const char *name;
    body_fn *body;
    unsigned pause; /* seconds, of rank 0 before it says what is wrong */
} mpi_bodies[] = {
    {"calls", random_calls, 0},
    {"messages", many_messages, 0},
    {"large", large_messages, 0},
    {"failure", fail_as_rank_1, 0},
    {"late", fail_as_rank_1, 4},
    {"death", kill_rank_1, 0},
    {"interrupt", interrupt_rank_1, 0},
    {"disagreement", disagree, 0},
    {"exchange", disagree_on_exchange, 0},
};
// clang-format on

static int run_under_mpi(const char *name)
{
    struct comm c = {.backend = NULL};
    struct error err;
    size_t i = 0;
    while (i < COUNT(mpi_bodies) && strcmp(mpi_bodies[i].name, name) != 0)
        i++;
    if (i == COUNT(mpi_bodies) || map_seen(NULL)) return ERR_USAGE;
    enum status st = comm_mpi_open(&c, &err);
    const bool is_first = c.rank == 0;
    if (!st) st = mpi_bodies[i].body(&c, &err);
    if (c.backend) st = comm_close(&c, st, &err);
    if (st && is_first) sleep(mpi_bodies[i].pause);
    if (!st && is_first) puts("all is well");
    if (st && *err.text) puts(err.text); /* else rank 0 says it */
    return (int)st;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "mpi") == 0) return run_under_mpi(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_of_any_size_does_what_it_says),
        cmocka_unit_test(messages_come_in_order),
        cmocka_unit_test(large_messages_cross),
        cmocka_unit_test(the_maximum_with_a_nan_is_nan),
        cmocka_unit_test(a_group_has_each_rank_once_and_its_own),
        cmocka_unit_test(more_ranks_than_there_can_be_are_refused),
        cmocka_unit_test(ranks_that_disagree_are_told_how),
        cmocka_unit_test(a_rank_that_ends_early_is_named),
        cmocka_unit_test(a_failure_reaches_all),
        cmocka_unit_test(a_death_is_seen_by_all_also_while_rank_0_is_busy),
        cmocka_unit_test(all_end_when_rank_0_dies),
        cmocka_unit_test(what_ranks_print_comes_out_once),
        cmocka_unit_test(a_job_of_one_has_its_own_message),
    };
    return cmocka_run_group_tests(tests, map_seen, NULL);
}
