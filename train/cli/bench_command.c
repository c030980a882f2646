/* bench_command.c - ferry bench: how long a forward pass takes, and where. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/memory.h"
#include "common/result.h"
#include "train/cli/engine_commands.h"
#include "train/cli/engine_flags.h"
#include "train/cli/run_json.h"

enum { MAX_REPEATS = 10000 };

struct bench_flags {
    struct compute_flags compute;
    uint64_t batch, seq, repeats;
    bool decode;
};

// clang-format off
#define AT(field) offsetof(struct bench_flags, field)
static const struct arg bench_args[] = {
    {"--batch --micro-batch-size", ARG_UINT, AT(batch), "N", NULL, "sequences; default 1"},
    {"--seq --seq-length",       ARG_UINT, AT(seq),     "N", NULL, "tokens per sequence; default 256"},
    {"--decode",                 ARG_FLAG, AT(decode),  NULL, NULL, "decode one token per sequence, with --seq tokens in the KV cache"},
    {"--repeats",                ARG_UINT, AT(repeats), "N", NULL, "number of runs; their median is shown; default 5"},
};
static const struct arg_group bench_groups[] = {
    {"Bench", bench_args, COUNT(bench_args), 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.engine.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS - 1, /* no --dry-run */ AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_bench_defaults(void *options)
{
    struct bench_flags *f = options;
    compute_defaults(&f->compute);
    f->batch = 1;
    f->seq = 256;
    f->repeats = 5;
}

/* The sum of all calls with one name, over all layers. */
struct sum {
    const char *name, *op;
    bool alone;
    uint64_t calls;
    double seconds, flops, bytes;
};

static size_t sum_bench_rows(struct sum *sums, const struct bench_row *rows, size_t num_rows)
{
    size_t n = 0;
    for (size_t i = 0; i < num_rows; i++) {
        const struct bench_row *r = &rows[i];
        size_t k = 0;
        while (k < n && (strcmp(sums[k].name, r->name) != 0 || strcmp(sums[k].op, r->op) != 0))
            k++;
        if (k == n) sums[n++] = (struct sum){.name = r->name, .op = r->op, .alone = r->alone};
        sums[k].calls++;
        sums[k].seconds += rows[i].seconds;
        sums[k].flops += rows[i].flops;
        sums[k].bytes += rows[i].bytes;
    }
    return n;
}

static int slowest_first(const void *a, const void *b)
{
    double x = ((const struct sum *)a)->seconds, y = ((const struct sum *)b)->seconds;
    return x > y ? -1 : x < y;
}

/* Shares of the device's measured peaks, 0 to 1. */
struct shares {
    double of_product, of_copy, higher;
};

static struct shares shares_of(const struct bench_result *r, double seconds, const struct sum *x)
{
    struct shares s = {.of_product = x->flops / seconds / r->product_rate,
                       .of_copy = x->bytes / seconds / r->copy_rate};
    s.higher = s.of_copy > s.of_product ? s.of_copy : s.of_product;
    return s;
}

/* The sum of the ops' times, and how they were measured. */
static void print_how(const struct bench_result *r, const struct sum *sums, size_t n,
                      const struct sum *all)
{
    printf("all ops: %.3f ms, %.1f%%\n", 1e3 * all->seconds, 100 * all->seconds / r->seconds);
    if (!all->alone) return;
    printf("each op timed as a graph of its calls in all layers");
    const char *before = "; timed between marks of the whole run: ";
    for (size_t i = 0; i < n; i++) {
        if (sums[i].alone) continue;
        printf("%s%s %s", before, sums[i].name, sums[i].op);
        before = ", ";
    }
    putchar('\n');
}

static void print_text(const struct bench_flags *f, const struct bench_result *r,
                       const struct sum *sums, size_t n, const struct sum *all)
{
    uint64_t tokens = f->batch * (f->decode ? 1 : f->seq);
    const struct shares whole = shares_of(r, r->seconds, all);
    printf("%.3f ms (%.3f to %.3f), %.0f tokens/s, %.1f GFLOP/s, %.1f GB/s: %.1f%% of "
           "roofline (%.1f%% of peak GFLOP/s, %.1f%% of peak GB/s)\n",
           1e3 * r->seconds, 1e3 * r->fastest, 1e3 * r->slowest, (double)tokens / r->seconds,
           1e-9 * all->flops / r->seconds, 1e-9 * all->bytes / r->seconds, 100 * whole.higher,
           100 * whole.of_product, 100 * whole.of_copy);
    printf("%s: peak %.1f GFLOP/s (a large matrix product), %.1f GB/s (a large copy)\n", r->device,
           1e-9 * r->product_rate, 1e-9 * r->copy_rate);
    printf("collectives: %s; graphs: %u%s%s\n", r->collectives, r->graphs, r->refused ? ": " : "",
           r->refused ? r->refused : "");
    if (!r->finite) puts("the output has NaN or infinity: the times are meaningless");
    printf("\n%-16s %-16s %6s %10s %6s %10s %8s %8s\n", "name", "op", "calls", "ms", "%", "GFLOP/s",
           "GB/s", "roofline");
    for (size_t i = 0; i < n; i++)
        printf("%-16s %-16s %6" PRIu64 " %10.3f %5.1f%% %10.1f %8.1f %7.1f%%\n", sums[i].name,
               sums[i].op, sums[i].calls, 1e3 * sums[i].seconds, 100 * sums[i].seconds / r->seconds,
               1e-9 * sums[i].flops / sums[i].seconds, 1e-9 * sums[i].bytes / sums[i].seconds,
               100 * shares_of(r, sums[i].seconds, &sums[i]).higher);
    print_how(r, sums, n, all);
}

static void add_shares(cJSON *o, struct shares s)
{
    json_add_number(o, "share_of_roofline", s.higher);
    json_add_number(o, "share_of_product_ceiling", s.of_product);
    json_add_number(o, "share_of_copy_ceiling", s.of_copy);
}

static void add_ops(cJSON *o, const struct bench_result *r, const struct sum *sums, size_t n)
{
    cJSON *ops = cJSON_AddArrayToObject(o, "ops");
    for (size_t i = 0; i < n; i++) {
        cJSON *op = cJSON_CreateObject();
        json_add_text(op, "name", sums[i].name);
        json_add_text(op, "op", sums[i].op);
        json_add_u64(op, "calls", sums[i].calls);
        json_add_number(op, "median_seconds", sums[i].seconds);
        json_add_number(op, "flops", sums[i].flops);
        json_add_number(op, "bytes", sums[i].bytes);
        json_add_text(op, "timed_by", sums[i].alone ? "graph" : "marks");
        add_shares(op, shares_of(r, sums[i].seconds, &sums[i]));
        cJSON_AddItemToArray(ops, op);
    }
}

static void set_bench_result(const struct bench_flags *f, const char *path,
                             const struct bench_result *r, const struct sum *sums, size_t n,
                             const struct sum *all)
{
    cJSON *o = run_json_new(path, &f->compute);
    run_json_add_tokens(
        o, &(struct batch){.num_sequences = f->batch, .length = f->decode ? 1 : f->seq});
    json_add_u64(o, "cached_tokens", f->decode ? f->seq : 0);
    json_add_u64(o, "repeats", f->repeats);
    json_add_number(o, "median_seconds", r->seconds);
    json_add_number(o, "fastest_seconds", r->fastest);
    json_add_number(o, "slowest_seconds", r->slowest);
    json_add_number(o, "flops", all->flops);
    json_add_number(o, "bytes", all->bytes);
    add_shares(o, shares_of(r, r->seconds, all));
    json_add_text(o, "device_name", r->device);
    json_add_number(o, "peak_flops_per_second", r->product_rate);
    json_add_number(o, "peak_bytes_per_second", r->copy_rate);
    json_add_text(o, "collectives", r->collectives);
    json_add_u64(o, "graphs", r->graphs);
    json_add_text(o, "no_graphs_because", r->refused);
    cJSON_AddBoolToObject(o, "finite", r->finite);
    add_ops(o, r, sums, n);
    result_set(o);
}

/* Arguments of every rank's work. */
struct asked {
    struct bench_flags *flags;
    const char *path;
};

static enum status show_bench(void *context, const struct bench_result *r, struct error *err)
{
    const struct asked *x = context;
    const struct bench_flags *f = x->flags;
    struct sum *sums = must_calloc(r->num_rows + 1, sizeof *sums), all = {0};
    size_t n = sum_bench_rows(sums, r->rows, r->num_rows);
    (void)err;
    for (size_t i = 0; i < n; i++) {
        all.flops += sums[i].flops;
        all.bytes += sums[i].bytes;
        all.seconds += sums[i].seconds;
        all.alone |= sums[i].alone;
    }
    qsort(sums, n, sizeof *sums, slowest_first);
    set_bench_result(f, x->path, r, sums, n, &all);
    if (!f->compute.output.json) print_text(f, r, sums, n, &all);
    free(sums);
    return OK;
}

/* Any tokens do: decoding reads a cache of zeros. */
static enum status run_on_tokens(const struct engine *engine, const struct bench_flags *f,
                                 struct bench_request *q, struct error *err)
{
    uint64_t count = f->batch * q->batch.length;
    int32_t *ids = must_calloc(count, sizeof *ids);
    uint64_t *past = must_calloc(f->batch, sizeof *past);
    for (uint64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(i * 7919 % 31);
    for (uint64_t i = 0; i < f->batch; i++)
        past[i] = f->decode ? f->seq : 0;
    q->batch.ids = ids;
    q->batch.past = past;
    enum status st = engine->bench(q, err);
    free(past);
    free(ids);
    return st;
}

static enum status run_bench_on_rank(void *context, const struct engine *engine, bool is_rank_0,
                                     struct error *err)
{
    const struct asked *x = context;
    const struct bench_flags *f = x->flags;
    uint64_t length = f->decode ? 1 : f->seq;
    struct bench_request q = {.pass = {.logits = true,
                                       .trace_layer = -1,
                                       .last_only = f->decode,
                                       .cache_rows = f->decode ? f->seq + 1 : 0,
                                       .graphs = f->decode},
                              .batch = {.num_sequences = f->batch, .length = length},
                              .warmups = f->decode ? 2 : 1, /* the second records graphs */
                              .repeats = (unsigned)f->repeats,
                              .visit = show_bench,
                              .context = context};
    (void)is_rank_0;
    if (f->repeats > MAX_REPEATS)
        return fail(err, ERR_USAGE, "--repeats %" PRIu64 " is above the maximum of %d", f->repeats,
                    MAX_REPEATS);
    if (f->seq >= INT32_MAX || f->batch > INT32_MAX / (f->seq + 1))
        return fail(err, ERR_USAGE, "--batch %" PRIu64 " times --seq %" PRIu64 " exceeds %d tokens",
                    f->batch, f->seq, INT32_MAX);
    TRY(engine_model_of(x->path, &f->compute, &q.model, err));
    return run_on_tokens(engine, f, &q, err);
}

static enum status bench(void *options, const char *const *positional, size_t num_positional,
                         struct error *err)
{
    struct asked x = {options, positional[0]};
    (void)num_positional;
    return engine_run(run_bench_on_rank, &x, err);
}

const struct command command_bench = {
    .name = "bench",
    .summary = "measure a forward pass, op by op",
    .positional = "MODEL",
    .text =
        "Computes the logits of all positions. FLOPs count matrix products and the causal half of "
        "attention; other ops count one per output element. Bytes count what an op must read and "
        "write; tables and caches count only the rows used. The roofline is the rate of a large "
        "product or a large copy, both measured first: the table shows the larger share, the first "
        "line and --json show both. An op that only reads may be faster than a copy.\n\n"
        "The time of the whole pass is the host's, from call to result. Times of ops are the "
        "device's, between marks in further runs. With --decode on a GPU the pass runs as graphs, "
        "where marks would take longer than short ops. There each op is timed as a graph of its "
        "own: its calls of all layers in turn, each with the weights of its layer. If the weights "
        "of all layers exceed the cache, they come from memory, as in the whole pass. Collectives, "
        "and ops that read integers computed by other ops, stay between marks.\n\n"
        "  ferry bench model --seq 512 --dtype bf16\n"
        "  ferry bench model --decode --seq 1024 --batch 16 --dtype bf16 --device cuda --json",
    .groups = bench_groups,
    .num_groups = COUNT(bench_groups),
    .options_bytes = sizeof(struct bench_flags),
    .defaults = set_bench_defaults,
    .run = bench,
};
