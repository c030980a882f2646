/* ops_check [--small] [--seed N] [--trials N] [--only OP[,OP..]]
 *             [--without OP[,OP..]]
 *
 * compares every op of the GPU, and every kernel that an op chooses from, with
 * the CPU's op on random operands: small, odd and large shapes, with and
 * without optional operands, outputs in place.
 *
 *   ops_check [--large] [--sm90 [--seed N] [--trials N]]
 *
 * compares kernels with one another instead, where the CPU would take too
 * long: large_check.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/op_table.h"
#include "tests/gpu/large_check.h"
#include "tests/gpu/makers.h"
#include "tests/gpu/trial.h"

static struct {
    bool large, sm90;
    unsigned trials;
    uint64_t seed;
    const char *only, *without; /* comma-separated names of ops; NULL: none */
} options = {.trials = 40, .seed = 1};

/* A maker for every op of the list that the GPU has. */
#define MAKER_PLAIN(id, maker) [id] = maker,
#define MAKER_WORKSPACE(id, maker) [id] = maker,
#define MAKER_NONE(id, maker)
static void (*const makers[NUM_OPS])(struct trial *) = {
#define X(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)                  \
    MAKER_##cuda(id, make_##name)
    OPS(X)
#undef X
};

/* ---- comparing ---- */

/* Rounding error of a number of an operand's type. Below 2^-14, f16 have the
 * distance of those just above. */
static double rounding_at(const struct trial *t, enum operand_type type, double x)
{
    const size_t bytes = operand_bytes_of(type, t->elem);
    if (bytes == 2 && t->elem == ELEM_F16) return 0x1p-11 * fmax(x, 0x1p-14);
    return x * (bytes == 2 ? 0x1p-8 : bytes == 4 ? 0x1p-24 : 0x1p-53);
}

/* Roundings of its type at the largest value, plus the effect of the order
 * of sums. */
static double allowed(const struct trial *t, const struct operand *o, double largest)
{
    if (o->type == OPERAND_INT) return 0;
    return op_row(t->op)->tolerance * rounding_at(t, o->type, largest) +
           2 * sqrt(t->depth) * rounding_at(t, OPERAND_REAL, largest);
}

static double largest_of(const struct trial *t, const struct operand *o)
{
    double largest = 0;
    for (size_t i = 0; i < operand_numel(o); i++) {
        const double x = fabs(operand_get(t, o, i));
        if (isfinite(x) && x > largest) largest = x;
    }
    return largest;
}

/* Equal NaN or infinity is no difference, other ones are infinite. */
static double difference(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : (double)INFINITY;
}

/* One way to compute an op: the op itself, or one of the kernels it
 * chooses from. */
struct way {
    const struct device_kernel *kernel; /* NULL: the op */
    char name[48];
    void *results[MAX_OUTPUTS]; /* of the current trial, on the host */
    double worst;               /* over all trials, as a share of the tolerance */
    unsigned trials;
    bool good;
};
enum { MAX_WAYS = 8 };

static unsigned find_ways(struct way *ways, const struct device *d, unsigned op,
                          enum elem_type elem)
{
    const struct device_kernel *k = d->kernels ? d->kernels(op) : NULL;
    unsigned count = 1;
    ways[0] = (struct way){.good = true};
    (void)snprintf(ways[0].name, sizeof ways[0].name, "%s", op_row(op)->name);
    for (; k && k->name && count < MAX_WAYS; k++) {
        if (k->elem != elem) continue;
        struct way *w = &ways[count++];
        *w = (struct way){.kernel = k, .good = true};
        (void)snprintf(w->name, sizeof w->name, "%s/%s", op_row(op)->name, k->name);
    }
    return count;
}

static size_t output_bytes(const struct trial *t, unsigned i)
{
    return operand_numel(&t->out[i]) * operand_bytes_of(t->out[i].type, t->elem);
}

static enum status keep_results(const struct trial *t, struct way *w, const struct device *d,
                                struct error *err)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        if (!t->out[i].data) continue;
        w->results[i] = malloc(output_bytes(t, i) + 1);
        if (!w->results[i]) return fail(err, ERR_MEMORY, "no memory for a result");
        TRY(d->download(w->results[i], t->device_out[i].data, output_bytes(t, i), err));
    }
    w->trials++;
    return OK;
}

/* Runs again with the used workspace, as in a graph: the numbers must
 * be equal. */
static enum status repeat_way(struct trial *t, const struct way *w, const struct device *d,
                              struct error *err)
{
    enum status st = trial_run(t, d, err);
    for (unsigned i = 0; i < MAX_OUTPUTS && !st; i++) {
        if (!t->out[i].data) continue;
        void *again = malloc(output_bytes(t, i) + 1);
        if (!again) return fail(err, ERR_MEMORY, "no memory for a result");
        st = d->download(again, t->device_out[i].data, output_bytes(t, i), err);
        if (!st && memcmp(again, w->results[i], output_bytes(t, i)) != 0)
            st = fail(err, ERR_OURS, "output %u is another one when it runs again", i);
        free(again);
    }
    return st;
}

/* Does nothing if the kernel does not take the trial's operands. */
static enum status run_way(struct trial *t, struct way *w, const struct device *d,
                           struct error *err)
{
    t->kernel = w->kernel ? &w->kernel->kernel : NULL;
    TRY(trial_upload(t, d, err));
    if (w->kernel && !w->kernel->takes(&t->params, t->device_in, t->device_out)) return OK;
    TRY(trial_run(t, d, err));
    TRY(d->synchronize(err));
    TRY(keep_results(t, w, d, err));
    return t->device_workspace && trial_can_repeat(t) ? repeat_way(t, w, d, err) : OK;
}

/* The worst error, as a share of the tolerance; at: its element. */
static double compare(const struct trial *t, unsigned output, void *result, size_t *at)
{
    const struct operand *o = &t->out[output];
    const double limit = allowed(t, o, largest_of(t, o));
    struct operand other = *o;
    double worst = 0;
    other.data = result;
    for (size_t i = 0; i < operand_numel(o); i++) {
        const double off = difference(operand_get(t, o, i), operand_get(t, &other, i));
        const double share = off == 0 ? 0 : limit > 0 ? off / limit : (double)INFINITY;
        if (share > worst) worst = share, *at = i;
    }
    return worst;
}

static const char *elem_name(enum elem_type elem)
{
    static const char *const names[NUM_ELEM_TYPES] = {"f32", "f64", "bf16", "f16"};
    return names[elem];
}

static void print_shapes(const struct operand *o, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (!o[i].data) continue;
        printf(" [");
        for (unsigned d = 0; d < o[i].num_dims; d++)
            printf("%s%llu", d ? ", " : "", (unsigned long long)o[i].shape[d]);
        printf("]");
    }
}

static void report_difference(const struct trial *t, const struct way *w, unsigned output,
                              double worst, size_t at)
{
    printf("FAILED %s %s, trial %u: output %u, element %zu: %.3g times the tolerance;", w->name,
           elem_name(t->elem), making.trial, output, at, worst);
    print_shapes(t->in, MAX_INPUTS);
    printf(" ->");
    print_shapes(t->out, MAX_OUTPUTS);
    printf("\n");
}

static void report_failure(const struct trial *t, struct way *w, const struct error *err)
{
    printf("FAILED %s %s, trial %u: %s\n", w->name, elem_name(t->elem), making.trial, err->text);
    w->good = false;
}

/* Compares with the CPU's results, which are in the trial's outputs. */
static void check_results(const struct trial *t, struct way *w)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        size_t at = 0;
        if (!w->results[i]) continue;
        const double worst = compare(t, i, w->results[i], &at);
        if (worst > 1) report_difference(t, w, i, worst, at);
        w->good &= worst <= 1;
        if (worst > w->worst) w->worst = worst;
    }
}

static void free_results(struct way *w)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        free(w->results[i]);
        w->results[i] = NULL;
    }
}

/* The CPU comes last: its results replace the outputs' initial contents. */
static void run_trial(struct trial *t, struct way *ways, unsigned num_ways, const struct device *d)
{
    struct error err;
    for (unsigned i = 0; i < num_ways; i++) {
        if (run_way(t, &ways[i], d, &err)) report_failure(t, &ways[i], &err);
        trial_release_device(t, d);
    }
    const bool failed = trial_run_host(t, &err) != OK;
    if (failed) report_failure(t, &ways[0], &err);
    for (unsigned i = 0; i < num_ways; i++) {
        if (!failed) check_results(t, &ways[i]);
        free_results(&ways[i]);
    }
}

static bool report_way(const struct way *w, enum elem_type elem)
{
    const char *verdict = !w->good ? "FAILED" : w->trials > 0 ? "ok" : "none";
    printf("%-6s %-16s %-4s worst error %.3f of the tolerance, %u trials\n", verdict, w->name,
           elem_name(elem), w->worst, w->trials);
    return w->good;
}

static bool check_op(unsigned op, enum elem_type elem, const struct device *d)
{
    struct way ways[MAX_WAYS];
    const unsigned num_ways = find_ways(ways, d, op, elem);
    bool good = true;
    for (making.trial = 0; making.trial < options.trials; making.trial++) {
        struct trial t = {.op = op, .elem = elem, .depth = 1};
        random_start(options.seed << 40 | (uint64_t)op << 32 | (uint64_t)elem << 24 | making.trial);
        makers[op](&t);
        run_trial(&t, ways, num_ways, d);
        trial_release(&t, d);
    }
    for (unsigned i = 0; i < num_ways; i++)
        good &= report_way(&ways[i], elem);
    return good;
}

/* ---- timers ---- */

#define TIMED_BYTES ((uint64_t)4 << 20)

static double host_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Times copies, and nothing. */
static enum status time_copies(const struct device *d, void *timer, void *memory, double seconds[2],
                               struct error *err)
{
    enum { COPIES = 4 };
    TRY(d->timers->mark(timer, 0, err));
    for (unsigned i = 0; i < COPIES; i++)
        TRY(d->copy((char *)memory + TIMED_BYTES, memory, TIMED_BYTES, err));
    TRY(d->timers->mark(timer, 1, err));
    TRY(d->timers->mark(timer, 2, err));
    TRY(d->synchronize(err));
    TRY(d->timers->seconds(timer, 0, 1, &seconds[0], err));
    return d->timers->seconds(timer, 1, 2, &seconds[1], err);
}

/* Copies must take longer than nothing, and the host's wait longer
 * than both. */
static bool check_timers(const struct device *d)
{
    double seconds[2] = {0, 0}, host;
    void *timer = NULL, *memory = NULL;
    struct error err;
    enum status st = d->allocate(&memory, 2 * TIMED_BYTES, "copies", &err);
    if (!st) st = d->timers->create(&timer, 3, &err);
    host = host_seconds();
    if (!st) st = time_copies(d, timer, memory, seconds, &err);
    host = host_seconds() - host;
    if (timer) d->timers->free(timer);
    if (memory) d->release(memory);
    const bool good = !st && seconds[0] > seconds[1] && seconds[1] >= 0 && seconds[0] <= host;
    printf("%-6s timers of %s: ", good ? "ok" : "FAILED", d->name);
    if (st)
        printf("%s\n", err.text);
    else
        printf("copies %.1f us, nothing %.1f us, both by the host's clock %.1f us\n",
               seconds[0] * 1e6, seconds[1] * 1e6, host * 1e6);
    return good;
}

/* ---- the program ---- */

/* Whether a comma-separated list has this name. */
static bool list_has(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* Whether each name of a list is an op's. */
static bool are_ops(const char *list)
{
    unsigned names = list ? 1 : 0, found = 0;
    for (const char *c = list; c && *c; c++)
        names += *c == ',';
    for (unsigned op = 0; op < NUM_OPS; op++)
        found += list_has(list, op_row(op)->name);
    return names == found;
}

static bool check_ops(const struct device *d)
{
    bool good = check_timers(d);
    good &= check_timers(&cpu_device);
    for (unsigned op = 0; op < NUM_OPS; op++) {
        const char *name = op_row(op)->name;
        if (options.only && !list_has(options.only, name)) continue;
        if (list_has(options.without, name) || !makers[op]) continue;
        for (unsigned elem = 0; elem < NUM_ELEM_TYPES; elem++)
            good &= check_op(op, (enum elem_type)elem, d);
    }
    return good;
}

static bool is_flag(const char *argument)
{
    bool *flag = strcmp(argument, "--small") == 0   ? &making.small
                 : strcmp(argument, "--large") == 0 ? &options.large
                 : strcmp(argument, "--sm90") == 0  ? &options.sm90
                                                    : NULL;
    if (flag) *flag = true;
    return flag;
}

/* Whether it is an option with a value. */
static bool set_option(const char *name, const char *value)
{
    if (!value) return false;
    if (strcmp(name, "--seed") == 0)
        options.seed = strtoull(value, NULL, 10);
    else if (strcmp(name, "--trials") == 0)
        options.trials = (unsigned)strtoul(value, NULL, 10);
    else if (strcmp(name, "--only") == 0)
        options.only = value;
    else if (strcmp(name, "--without") == 0)
        options.without = value;
    else
        return false;
    return true;
}

static bool read_options(char **argv)
{
    for (argv++; *argv; argv++) {
        if (is_flag(*argv)) continue;
        if (!set_option(argv[0], argv[1])) return false;
        argv++;
    }
    return are_ops(options.only) && are_ops(options.without);
}

int main(int argc, char **argv)
{
    const struct device *d;
    struct error err;
    (void)argc;
    if (!read_options(argv)) {
        (void)fprintf(stderr, "usage: ops_check [--small] [--seed N] [--trials N] "
                              "[--only OP[,OP..]] [--without OP[,OP..]] [--large] [--sm90]\n");
        return ERR_USAGE;
    }
    if (cuda_device_load(&d, &err) || d->open(0, &err)) {
        printf("skipped: %s\n", err.text);
        return 0;
    }
    printf("ops of %s, seed %llu\n", d->describe(), (unsigned long long)options.seed);
    bool good = true;
    if (options.large) good &= check_large(d);
    if (options.sm90) good &= check_sm90(d, options.seed, options.trials, making.small);
    if (!options.large && !options.sm90) good &= check_ops(d);
    d->close();
    return good ? 0 : 1;
}
