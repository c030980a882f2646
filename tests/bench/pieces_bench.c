/* pieces_bench.c - time and memory of a plan of very many pieces: a model of 70B parameters whose
 * master weights and moments lie in flat partitions of many ranks, cut anew for TP 4, PP 2.
 *
 * pieces_bench [RANKS [LAYERS]] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/executor.h"
#include "common/clock.h"
#include "common/count.h"

enum { HIDDEN = 8192, FFN = 28672, GROUPS = 8, HEAD = 128, VOCAB = 128256, TP = 4, PP = 2 };
enum { NUM_STATES = 3, Q_ROWS = HIDDEN / GROUPS, GROUP_ROWS = Q_ROWS + 2 * HEAD };

static const char *const states[NUM_STATES] = {"param", "exp_avg", "exp_avg_sq"};

/* A parameter as Hugging Face names it, and its place in a logical tensor. */
struct part {
    const char *native;
    uint64_t rows; /* of HIDDEN elements, or of FFN ones */
    const char *logical;
    uint64_t logical_rows, first_row; /* in groups: of a group */
    bool in_groups;
};

static const struct part layer_parts[] = {
    {"self_attn.q_proj", HIDDEN, "self_attention.linear_qkv", GROUPS *GROUP_ROWS, 0, true},
    {"self_attn.k_proj", GROUPS *HEAD, "self_attention.linear_qkv", GROUPS *GROUP_ROWS, Q_ROWS,
     true},
    {"self_attn.v_proj", GROUPS *HEAD, "self_attention.linear_qkv", GROUPS *GROUP_ROWS,
     Q_ROWS + HEAD, true},
    {"self_attn.o_proj", HIDDEN, "self_attention.linear_proj", HIDDEN, 0, false},
    {"mlp.gate_proj", FFN, "mlp.linear_fc1", 2 * FFN, 0, false},
    {"mlp.up_proj", FFN, "mlp.linear_fc1", 2 * FFN, FFN, false},
    {"mlp.down_proj", FFN, "mlp.linear_fc2", FFN, 0, false}, /* as many elements, so it will do */
    {"input_layernorm", 1, "self_attention.linear_qkv.layer_norm", 1, 0, false},
    {"post_attention_layernorm", 1, "mlp.linear_fc1.layer_norm", 1, 0, false},
};
static const struct part end_parts[] = {
    {"embed_tokens", VOCAB, "embedding", VOCAB, 0, false},
    {"norm", 1, "final_layernorm", 1, 0, false},
    {"lm_head", VOCAB, "output_layer", VOCAB, 0, false},
};

struct bench {
    struct arena arena;
    struct catalog catalog;
    struct plan plan;
    unsigned ranks, layers;
    uint64_t segments[TP * PP], numel[TP * PP]; /* flat ones, of all tensors of a rank */
};

static void must(enum status st, const struct error *err)
{
    if (!st) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static size_t num_parts(const struct bench *x)
{
    return x->layers * COUNT(layer_parts) + COUNT(end_parts);
}

static const struct part *part_at(const struct bench *x, size_t i, size_t *layer)
{
    const size_t in_layers = x->layers * COUNT(layer_parts);
    *layer = i < in_layers ? i / COUNT(layer_parts) : x->layers;
    return i < in_layers ? &layer_parts[i % COUNT(layer_parts)] : &end_parts[i - in_layers];
}

static struct native_tensor *native_of(struct bench *x, size_t i, unsigned state)
{
    struct native_tensor *native;
    struct error err;
    size_t layer;
    const struct part *p = part_at(x, i, &layer);
    const uint64_t shape[] = {p->rows, HIDDEN};
    const char *name = arena_printf(&x->arena, "model.layers.%zu.%s.weight", layer, p->native);
    must(catalog_add_native(&x->catalog, name, states[state], DT_F32, 2, shape, &native, &err),
         &err);
    return native;
}

/* Rank by rank, as readers meet the files. */
static void add_sources(struct bench *x)
{
    struct error err;
    const size_t n = num_parts(x);
    size_t *native = calloc(n * NUM_STATES, sizeof *native);
    for (size_t i = 0; i < n * NUM_STATES; i++)
        native[i] =
            (size_t)(native_of(x, i / NUM_STATES, (unsigned)(i % NUM_STATES)) - x->catalog.native);
    for (unsigned rank = 0; rank < x->ranks; rank++) {
        struct stored *s = &x->catalog.stored;
        uint64_t numel = 0;
        const struct file_stamp stamp = {.size_bytes = UINT64_C(1) << 40};
        const char *path = arena_printf(&x->arena, "rank_%u_optim_states.pt", rank);
        const uint32_t file = stored_add_file(s, path, &stamp);
        for (size_t i = 0; i < n; i++)
            numel += (x->catalog.native[native[i * NUM_STATES]].numel + x->ranks - 1) / x->ranks;
        for (unsigned state = 0; state < NUM_STATES; state++) {
            struct stored_tensor *t;
            const char *name = arena_printf(&x->arena, "rank%u.%s", rank, states[state]);
            must(stored_add_tensor(s, name, strlen(name), DT_F32, 1, &numel, &t, &err), &err);
            t->pieces = arena_alloc(&s->arena, sizeof *t->pieces);
            t->pieces[t->num_pieces++] =
                (struct stored_piece){.file = file, .offset_bytes = 4 * state * numel};
            uint64_t at = 0;
            for (size_t i = 0; i < n; i++) {
                struct native_tensor *o = &x->catalog.native[native[i * NUM_STATES + state]];
                const uint64_t each = (o->numel + x->ranks - 1) / x->ranks, first = rank * each;
                const uint64_t end = first + each < o->numel ? first + each : o->numel;
                const struct pair run = pair_whole(first, at, end > first ? end - first : 0);
                if (end > first) must(catalog_add_native_part(&x->catalog, o, t, &run, &err), &err);
                at += each;
            }
        }
    }
    free(native);
}

static struct pair place_of(const struct part *p)
{
    if (!p->in_groups) return pair_whole(p->first_row * HIDDEN, 0, p->rows * HIDDEN);
    const uint64_t rows = p->rows / GROUPS;
    return (struct pair){
        .num_axes = 2,
        .a_offset = p->first_row * HIDDEN,
        .axes = {{GROUPS, GROUP_ROWS * HIDDEN, rows * HIDDEN}, {rows * HIDDEN, 1, 1}}};
}

/* state NUM_STATES: the weight, which comes from the master. */
static void add_logical(struct bench *x, unsigned state)
{
    struct error err;
    for (size_t i = 0, layer; i < num_parts(x); i++) {
        const struct part *p = part_at(x, i, &layer);
        const uint64_t shape[] = {p->logical_rows, HIDDEN};
        const struct pair pair = place_of(p);
        struct tensor *t;
        char prefix[40] = "";
        if (state < NUM_STATES) snprintf(prefix, sizeof prefix, "optimizer.%s.", states[state]);
        const char *name =
            arena_printf(&x->arena, "%sdecoder.layers.%zu.%s.weight", prefix, layer, p->logical);
        must(catalog_add(&x->catalog, name, DT_F32, 2, shape, &t, &err), &err);
        const char *native =
            arena_printf(&x->arena, "model.layers.%zu.%s.weight", layer, p->native);
        must(catalog_add_part(&x->catalog, t,
                              catalog_find_native(&x->catalog, native, states[state % NUM_STATES]),
                              &pair, &err),
             &err);
    }
}

/* Every tensor is cut into TP runs of rows; weights get segments of their own, states are appended
 * to the flat segment of their rank. */
static void plan_all(struct bench *x)
{
    struct error err;
    for (unsigned r = 0; r < TP * PP; r++) {
        x->segments[r] = plan_add_segment(
            &x->plan, plan_add_file(&x->plan, arena_printf(&x->arena, "optim-%u", r)), DT_F32, 0,
            true);
        plan_add_file(&x->plan, arena_printf(&x->arena, "model-%u", r));
    }
    for (size_t i = 0; i < x->catalog.num_tensors; i++) {
        const struct tensor *t = &x->catalog.tensors[i];
        const bool state = name_is_optimizer(t->name);
        for (uint64_t tp = 0; tp < TP; tp++) {
            const unsigned r = (unsigned)(i % PP * TP + tp);
            const uint64_t each = t->numel / TP;
            uint32_t segment = (uint32_t)x->segments[r];
            if (!state) segment = plan_add_segment(&x->plan, 2 * r + 1, DT_BF16, each, true);
            const struct pair run = pair_whole(tp * each, state ? x->numel[r] : 0, each);
            plan_add_piece(&x->plan, t, segment, &run);
            if (state) x->numel[r] += each;
        }
    }
    for (unsigned r = 0; r < TP * PP; r++)
        x->plan.segments[x->segments[r]].numel = x->numel[r];
    for (size_t i = 0; i < x->plan.num_segments; i++) {
        struct segment *s = &x->plan.segments[i];
        s->offset_bytes = x->plan.files[s->file].size_bytes;
        x->plan.files[s->file].size_bytes += dtype_run_bytes(s->dtype, s->numel);
    }
    must(plan_finish(&x->plan, &err), &err);
}

static double report(const char *what, double since)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("%-28s %7.2f s   peak %6ld MiB\n", what, seconds_now() - since, use.ru_maxrss >> 10);
    return seconds_now();
}

int main(int argc, char **argv)
{
    static struct bench x;
    x.ranks = argc > 1 ? (unsigned)atoi(argv[1]) : 256;
    x.layers = argc > 2 ? (unsigned)atoi(argv[2]) : 80;
    struct error err;
    arena_init(&x.arena);
    catalog_init(&x.catalog, &x.arena);
    double begin = seconds_now(), since = report("start", begin);
    add_sources(&x);
    since = report("native tensors", since);
    for (unsigned state = 0; state <= NUM_STATES; state++)
        add_logical(&x, state);
    since = report("logical tensors", since);
    must(catalog_check(&x.catalog, &err), &err);
    since = report("catalog_check", since);
    plan_init(&x.plan, &x.catalog);
    plan_all(&x);
    since = report("plan", since);
    uint64_t peak;
    const struct executor_options options = {.threads = 2, .progress = PROGRESS_NONE};
    must(executor_memory(&x.plan, &options, &peak, &err), &err);
    report("executor_memory", since);
    report("all", begin);
    size_t pieces = 0, targets = 0;
    for (size_t i = 0; i < x.catalog.num_tensors; i++)
        pieces += x.catalog.tensors[i].num_pieces;
    for (size_t i = 0; i < x.plan.num_copies; i++)
        targets += x.plan.copies[i].num_pieces;
    printf("%zu pieces, %zu target pieces, arenas of %zu and %zu MiB, promised %" PRIu64 " MiB\n",
           pieces, targets, x.arena.total_bytes >> 20, x.plan.arena.total_bytes >> 20, peak >> 20);
    plan_release(&x.plan);
    catalog_release(&x.catalog);
    arena_release(&x.arena);
    return 0;
}
