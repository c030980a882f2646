/* ops_check [--small] [--seed N] [--trials N] [--only OP[,OP..]] [--without OP[,OP..]] - every op
 * of the GPU, and every kernel that an op chooses from, beside the CPU's op, on random operands:
 * small, odd and large shapes, optional operands there and not, outputs in place.
 *
 * ops_check --large, or --sm90 [--seed N] [--trials N], or both - in place of that, what
 * large_check.h says: kernels beside one another where the CPU would take too long. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/op_table.h"
#include "tests/gpu/large_check.h"
#include "tests/gpu/trial.h"

static struct {
    bool small; /* an emulated GPU has no time */
    bool large, sm90;
    unsigned trials;
    uint64_t seed;
    const char *only, *without; /* names of ops with commas between them; NULL */
} options = {.trials = 40, .seed = 1};
static unsigned trial_number;

static bool coin(void)
{
    return random_between(0, 1) == 1;
}

/* Every third shape is odd, every third a multiple of 64. */
static uint64_t size_up_to(uint64_t most_small, uint64_t most_large)
{
    const uint64_t most = options.small || trial_number % 2 == 0 ? most_small : most_large;
    const uint64_t n = random_between(1, most);
    if (trial_number % 3 == 1) return (n + 63) / 64 * 64;
    return trial_number % 3 == 2 ? n | 1 : n;
}

static uint64_t tokens(void)
{
    return random_between(1, options.small ? 20 : trial_number % 2 == 0 ? 40 : 600);
}

#define DIMS(...)                                                                                  \
    (sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)), (uint64_t[])                           \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define MAKE(operand, type, ...) trial_make(t, &(operand), type, DIMS(__VA_ARGS__))
#define ELEM OPERAND_ELEM
#define REAL OPERAND_REAL
#define INT OPERAND_INT

static void set_ints(struct operand *o, int64_t low, int64_t high)
{
    for (size_t i = 0; i < operand_numel(o); i++)
        ((int32_t *)o->data)[i] =
            (int32_t)(low + (int64_t)random_between(0, (uint64_t)(high - low)));
}

/* An output of the shape of an input, in its place every other time. */
static void make_like(struct trial *t, struct operand *out, struct operand *in)
{
    if (coin())
        *out = *in;
    else
        trial_make(t, out, in->type, in->num_dims, in->shape);
}

/* 0 .. n - 1 in any order. */
static void set_permutation(int32_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t j = random_between(0, i);
        to[i] = to[j];
        to[j] = (int32_t)i;
    }
}

/* ---- operands of each op ---- */

static void make_embedding(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 5000), rows = random_between(1, 500);
    MAKE(t->in[0], INT, num_tokens);
    MAKE(t->in[1], ELEM, rows, h);
    MAKE(t->out[0], ELEM, num_tokens, h);
    t->params.embedding.first_row = random_between(0, 1000);
    t->params.embedding.scale = coin() ? 1 : sqrt((double)h);
    const int64_t first = (int64_t)t->params.embedding.first_row;
    set_ints(&t->in[0], first - 3 > 0 ? first - 3 : 0, first + (int64_t)rows + 2);
}

static void make_positions(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 5000), rows = random_between(1, 500);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], ELEM, rows, h);
    MAKE(t->in[2], INT, num_tokens);
    set_ints(&t->in[2], 0, (int64_t)rows - 1);
    make_like(t, &t->out[0], &t->in[0]);
}

static void make_norm_outputs(struct trial *t, struct operand *y, uint64_t num_tokens, uint64_t h)
{
    t->params.norm.layer_norm = coin();
    t->params.norm.epsilon = 1e-5;
    t->params.norm.shift = coin();
    t->depth = (double)h;
    MAKE(y[0], ELEM, num_tokens, h);
    if (coin()) MAKE(y[1], REAL, num_tokens, 2);
}

static void make_norm(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 9000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], ELEM, h);
    if (coin()) MAKE(t->in[2], ELEM, h);
    make_norm_outputs(t, t->out, num_tokens, h);
}

static void make_add_norm(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 9000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], ELEM, num_tokens, h);
    if (coin()) MAKE(t->in[2], ELEM, h);
    MAKE(t->in[3], ELEM, h);
    if (coin()) MAKE(t->in[4], ELEM, h);
    make_like(t, &t->out[0], &t->in[0]);
    make_norm_outputs(t, t->out + 1, num_tokens, h);
}

static void make_add(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 9000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], ELEM, num_tokens, h);
    if (coin()) MAKE(t->in[2], ELEM, h);
    make_like(t, &t->out[0], &t->in[coin()]);
}

/* Every third is one of decoding: few rows. */
static void make_matmul(struct trial *t)
{
    const bool decodes = random_between(0, 2) == 0, ta = coin() && !decodes, tb = coin() || decodes;
    const uint64_t m = decodes ? random_between(1, 4) : tokens(), n = size_up_to(70, 3000),
                   k = size_up_to(70, 3000);
    t->params.matmul.transpose_a = ta;
    t->params.matmul.transpose_b = tb;
    t->params.matmul.accumulate = coin() && !decodes;
    t->params.matmul.alpha = coin() ? 1 : 0.25;
    t->depth = (double)k;
    MAKE(t->in[0], ELEM, ta ? k : m, ta ? m : k);
    MAKE(t->in[1], ELEM, tb ? n : k, tb ? k : n);
    if (coin()) MAKE(t->in[2], ELEM, n);
    MAKE(t->out[0], coin() ? ELEM : REAL, m, n);
}

static struct head_shape some_heads(void)
{
    static const uint32_t dims[] = {64, 128, 80, 96, 256, 40, 22, 7, 72, 200};
    return (struct head_shape){.groups = (uint32_t)random_between(1, 4),
                               .queries = (uint32_t)random_between(1, options.small ? 5 : 9),
                               .head_dim = dims[random_between(0, 9)]};
}

static uint64_t columns_of(struct head_shape s)
{
    return (uint64_t)s.groups * (s.queries + 2) * s.head_dim;
}

static void make_head_norm(struct trial *t)
{
    const struct head_shape s = some_heads();
    t->params.head_norm.heads = s;
    t->params.head_norm.epsilon = 1e-6;
    t->params.head_norm.shift = coin();
    t->depth = s.head_dim;
    MAKE(t->in[0], ELEM, tokens(), columns_of(s));
    MAKE(t->in[1], ELEM, s.head_dim);
    MAKE(t->in[2], ELEM, s.head_dim);
    make_like(t, &t->out[0], &t->in[0]);
}

static void make_rotary(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t num_tokens = tokens(), rows = random_between(1, 100);
    t->params.rotary.heads = s;
    t->params.rotary.rotary_dim = coin() ? s.head_dim / 2 * 2 : s.head_dim / 4 * 2;
    t->params.rotary.interleaved = coin();
    t->params.rotary.inverse = coin();
    MAKE(t->in[0], ELEM, num_tokens, columns_of(s));
    MAKE(t->in[1], REAL, rows, t->params.rotary.rotary_dim);
    MAKE(t->in[2], INT, num_tokens);
    set_ints(&t->in[2], 0, (int64_t)rows - 1);
    make_like(t, &t->out[0], &t->in[0]);
}

/* How many queries the range at `row` has: all, one, or any number. */
static int64_t range_of(unsigned kind, int64_t left)
{
    return kind == 0 ? left : kind == 1 ? 1 : (int64_t)random_between(1, (uint64_t)left);
}

/* Spans one behind the other: of ranges of queries that leave gaps now and then, each over one to
 * three sets of keys anywhere in kv. */
static size_t make_spans(int32_t (*spans)[6], size_t most, int64_t num_queries, int64_t num_keys)
{
    size_t n = 0;
    const unsigned kind = (unsigned)random_between(0, 2);
    const bool gaps = coin();
    for (int64_t row = 0; row < num_queries && n + 3 < most;) {
        if (gaps && coin()) row++;
        if (row >= num_queries) break;
        const int64_t count = range_of(kind, num_queries - row);
        const int64_t position = (int64_t)random_between(0, (uint64_t)num_keys);
        const size_t sets = coin() ? 1 : random_between(1, 3);
        for (size_t i = 0; i < sets; i++, n++) {
            const int64_t begin = (int64_t)random_between(0, (uint64_t)num_keys - 1);
            const int64_t keys = (int64_t)random_between(0, (uint64_t)(num_keys - begin));
            const int64_t all[] = {row,   count, position,
                                   begin, keys,  random_between(0, 3) ? 0 : begin};
            for (int j = 0; j < 6; j++)
                spans[n][j] = (int32_t)all[j];
        }
        row += count;
    }
    return n;
}

/* Whole sequences: what uniform_sequences is for, with a window or sinks now and then. */
static void make_uniform_attention(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t sequences = random_between(1, options.small ? 3 : 5);
    const uint64_t length = random_between(1, 3) == 1 ? random_between(1, 90)
                            : options.small           ? random_between(60, 80)
                                                      : random_between(90, 1200);
    t->params.attention.heads = s;
    t->params.attention.q_stride = t->params.attention.kv_stride = (s.queries + 2) * s.head_dim;
    t->params.attention.k_at = s.queries * s.head_dim;
    t->params.attention.v_at = t->params.attention.k_at + s.head_dim;
    t->params.attention.scale = 1 / sqrt(s.head_dim);
    t->params.attention.window = random_between(0, 3) ? 0 : (uint32_t)random_between(1, 2 * length);
    t->params.attention.causal = coin();
    t->params.attention.uniform_sequences = (uint32_t)sequences;
    t->depth = (double)length;
    MAKE(t->in[0], ELEM, sequences * length, columns_of(s));
    MAKE(t->in[1], ELEM, sequences * length, columns_of(s));
    MAKE(t->in[2], INT, sequences, 6);
    for (uint64_t i = 0; i < sequences; i++) {
        int32_t *span = (int32_t *)t->in[2].data + i * 6;
        span[0] = span[3] = (int32_t)(i * length);
        span[1] = span[4] = (int32_t)length;
        span[2] = span[5] = 0;
    }
    if (random_between(0, 5) == 0) MAKE(t->in[3], ELEM, s.groups * s.queries);
    MAKE(t->out[0], ELEM, sequences * length, (uint64_t)s.groups * s.queries * s.head_dim);
    if (coin()) MAKE(t->out[1], REAL, sequences * length, s.groups * s.queries);
}

static void make_attention(struct trial *t)
{
    if (coin()) {
        make_uniform_attention(t);
        return;
    }
    const struct head_shape s = some_heads();
    const uint64_t num_queries = random_between(1, options.small      ? 90
                                                   : trial_number % 2 ? 1500
                                                                      : 40);
    const uint64_t num_keys = random_between(1, options.small      ? 600
                                                : trial_number % 2 ? 2500
                                                                   : 6000);
    const bool cache = coin();
    enum { MOST = 64 };
    t->params.attention.heads = s;
    t->params.attention.q_stride = (s.queries + 2) * s.head_dim;
    t->params.attention.kv_stride = (cache ? 2 : s.queries + 2) * s.head_dim;
    t->params.attention.k_at = cache ? 0 : s.queries * s.head_dim;
    t->params.attention.v_at = t->params.attention.k_at + s.head_dim;
    t->params.attention.scale = 1 / sqrt(s.head_dim);
    t->params.attention.softcap = random_between(0, 3) ? 0 : 3;
    t->params.attention.window = coin() ? 0 : (uint32_t)random_between(1, num_keys);
    t->params.attention.causal = random_between(0, 3) != 0;
    t->depth = (double)num_keys;
    MAKE(t->in[0], ELEM, num_queries, columns_of(s));
    MAKE(t->in[1], ELEM, num_keys, (uint64_t)s.groups * t->params.attention.kv_stride);
    MAKE(t->in[2], INT, MOST, 6);
    memset(t->in[2].data, 0, operand_numel(&t->in[2]) * 4);
    const size_t used = make_spans(t->in[2].data, MOST, (int64_t)num_queries, (int64_t)num_keys);
    t->in[2].shape[0] = random_between(0, 3) ? used : MOST; /* without and with an end */
    if (coin()) MAKE(t->in[3], ELEM, s.groups * s.queries);
    MAKE(t->out[0], ELEM, num_queries, (uint64_t)s.groups * s.queries * s.head_dim);
    if (coin()) MAKE(t->out[1], REAL, num_queries, s.groups * s.queries);
}

static void make_attention_merge(struct trial *t)
{
    const uint64_t num_tokens = tokens(), heads = random_between(1, 40);
    const uint64_t head_dim = some_heads().head_dim;
    t->params.attention_merge.head_dim = (uint32_t)head_dim;
    for (unsigned i = 0; i < 4; i += 2) {
        MAKE(t->in[i], ELEM, num_tokens, heads * head_dim);
        MAKE(t->in[i + 1], REAL, num_tokens, heads);
        for (size_t j = 0; j < num_tokens * heads; j++)
            if (random_between(0, 3) == 0) operand_set(t, &t->in[i + 1], j, -INFINITY);
    }
    make_like(t, &t->out[0], &t->in[0]);
    make_like(t, &t->out[1], &t->in[1]);
}

static void make_cache_write(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t num_tokens = tokens();
    t->params.cache_write.heads = s;
    MAKE(t->in[0], ELEM, num_tokens, columns_of(s));
    MAKE(t->in[1], INT, num_tokens);
    set_permutation(t->in[1].data, num_tokens);
    for (size_t i = 0; i < num_tokens; i += 3)
        ((int32_t *)t->in[1].data)[i] = -1;
    MAKE(t->out[0], ELEM, num_tokens + 2, (uint64_t)s.groups * 2 * s.head_dim);
}

static void make_activation(struct trial *t)
{
    const uint64_t num_tokens = tokens(), n = size_up_to(300, 9000);
    t->params.activation.kind = (enum activation)(trial_number % NUM_ACTIVATIONS);
    t->params.activation.gated = coin();
    MAKE(t->in[0], ELEM, num_tokens, t->params.activation.gated ? 2 * n : n);
    if (coin()) {
        MAKE(t->in[1], INT, 40);
        set_ints(&t->in[1], 0, (int64_t)num_tokens / 40);
    }
    MAKE(t->out[0], ELEM, num_tokens, n);
}

static void make_route(struct trial *t)
{
    static const uint32_t groups[] = {1, 1, 2, 4, 8};
    const uint32_t num_groups = groups[random_between(0, 4)];
    const uint64_t num_tokens = tokens(), experts = num_groups * random_between(1, 40);
    t->params.route.num_groups = num_groups;
    t->params.route.topk_groups = (uint32_t)random_between(1, num_groups);
    const uint64_t open = experts / num_groups * t->params.route.topk_groups;
    t->params.route.topk = (uint32_t)random_between(1, open < 8 ? open : 8);
    t->params.route.sigmoid = coin();
    t->params.route.after_choice = !t->params.route.sigmoid && coin();
    t->params.route.normalize = coin();
    t->params.route.scaling = coin() ? 1 : 2.5;
    MAKE(t->in[0], REAL, num_tokens, experts);
    if (coin()) MAKE(t->in[1], REAL, experts);
    MAKE(t->out[0], REAL, num_tokens, t->params.route.topk);
    MAKE(t->out[1], INT, num_tokens, t->params.route.topk);
    t->depth = (double)experts;
}

static void make_sort_by_expert(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 8),
                   experts = random_between(1, 200);
    MAKE(t->in[0], INT, num_tokens, k);
    set_ints(&t->in[0], 0, (int64_t)experts - 1);
    MAKE(t->out[0], INT, num_tokens, k);
    MAKE(t->out[1], INT, experts);
}

static void make_sort_received(struct trial *t)
{
    const uint64_t per_block = random_between(1, 3), blocks = random_between(1, 4);
    const uint64_t experts = random_between(1, 9), most = random_between(0, 20);
    t->params.sort_received.senders_per_block = per_block;
    t->params.sort_received.rows_per_block = per_block * experts * most + random_between(0, 5);
    MAKE(t->in[0], INT, blocks * per_block * experts);
    set_ints(&t->in[0], 0, (int64_t)most);
    MAKE(t->out[0], INT, blocks * t->params.sort_received.rows_per_block + 1, 1);
    MAKE(t->out[1], INT, experts);
}

/* rows INT [T, k]: each of T * k rows once, some of them left out. */
static void make_rows(struct trial *t, struct operand *o, uint64_t num_tokens, uint64_t k)
{
    MAKE(*o, INT, num_tokens, k);
    set_permutation(o->data, num_tokens * k);
    for (size_t i = 0; i < num_tokens * k; i++)
        if (random_between(0, 4) == 0) ((int32_t *)o->data)[i] = -1;
}

static void make_permute(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 4), h = size_up_to(300, 3000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    make_rows(t, &t->in[1], num_tokens, k);
    MAKE(t->out[0], ELEM, num_tokens * k + 3, h);
}

static void make_unpermute(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 4), h = size_up_to(300, 3000);
    MAKE(t->in[0], ELEM, num_tokens * k, h);
    make_rows(t, &t->in[1], num_tokens, k);
    if (coin()) MAKE(t->in[2], REAL, num_tokens, k);
    MAKE(t->out[0], ELEM, num_tokens, h);
    t->depth = (double)k;
}

static void make_grouped_matmul(struct trial *t)
{
    const uint64_t experts = random_between(1, options.small ? 4 : 40);
    const uint64_t each = random_between(1, options.small ? 150 : trial_number % 2 ? 400 : 10);
    const uint64_t n = size_up_to(150, 1000), k = size_up_to(150, 1000);
    MAKE(t->in[0], ELEM, experts * each + 5, k);
    MAKE(t->in[1], ELEM, experts, n, k);
    MAKE(t->in[2], INT, experts);
    set_ints(&t->in[2], 0, (int64_t)each);
    if (coin()) ((int32_t *)t->in[2].data)[0] = 0;
    MAKE(t->out[0], ELEM, experts * each + 5, n);
    t->depth = (double)k;
}

static void make_sigmoid_scale(struct trial *t)
{
    const uint64_t num_tokens = tokens(), n = size_up_to(300, 5000);
    MAKE(t->in[0], ELEM, num_tokens, n);
    MAKE(t->in[1], ELEM, num_tokens, 1);
    make_like(t, &t->out[0], &t->in[0]);
}

static void make_gather_rows(struct trial *t)
{
    const uint64_t num_tokens = tokens(), n = tokens(), h = size_up_to(300, 5000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], INT, n);
    set_ints(&t->in[1], -1, (int64_t)num_tokens - 1);
    MAKE(t->out[0], ELEM, n, h);
}

static uint64_t make_logits(struct trial *t)
{
    const uint64_t num_tokens = random_between(1, 30), columns = size_up_to(700, 130000);
    t->params.vocab.first_column = random_between(0, 1000);
    t->params.vocab.valid = coin() ? columns : random_between(1, columns);
    t->depth = (double)columns;
    MAKE(t->in[0], REAL, num_tokens, columns);
    return num_tokens;
}

static void make_vocab_max(struct trial *t)
{
    const uint64_t num_tokens = make_logits(t);
    MAKE(t->out[0], REAL, num_tokens);
    if (coin()) operand_set(t, &t->in[0], 0, (double)NAN);
}

static void make_vocab_sum(struct trial *t)
{
    const uint64_t num_tokens = make_logits(t);
    MAKE(t->in[1], REAL, num_tokens);
    for (size_t i = 0; i < num_tokens; i++)
        operand_set(t, &t->in[1], i, 3 + random_double());
    MAKE(t->in[2], INT, num_tokens);
    set_ints(&t->in[2], -1, (int64_t)(t->params.vocab.first_column + t->in[0].shape[1]));
    MAKE(t->out[0], REAL, num_tokens, 2);
}

static void make_token_loss(struct trial *t)
{
    const uint64_t num_tokens = tokens();
    MAKE(t->in[0], REAL, num_tokens, 2);
    for (size_t i = 0; i < 2 * num_tokens; i++)
        operand_set(t, &t->in[0], i, 1 + 10 * random_double());
    MAKE(t->in[1], INT, num_tokens);
    set_ints(&t->in[1], -1, 5);
    MAKE(t->out[0], REAL, num_tokens);
}

static void make_sample(struct trial *t)
{
    const uint64_t n = random_between(1, 9), columns = size_up_to(700, 130000);
    t->params.sample.temperature = random_between(0, 3) ? 0.5 + random_double() : 0;
    t->params.sample.top_p = coin() ? 1 : random_double();
    t->params.sample.top_k = coin() ? 0 : (uint32_t)random_between(1, columns + 3);
    t->params.sample.seed = random_between(0, 1u << 30);
    MAKE(t->in[0], REAL, n, columns);
    for (size_t i = 0; i < n * columns; i++) /* with equals among them */
        operand_set(t, &t->in[0], i, floor(operand_get(t, &t->in[0], i) * 64) / 16);
    MAKE(t->in[1], INT, 1);
    MAKE(t->out[0], INT, n);
}

/* Axes from the last to the first, each beyond the span of those before it, in x and in the tensor
 * with gaps of its own. */
static void make_digest(struct trial *t)
{
    uint64_t span = 1, index_span = 1;
    t->params.digest.num_axes = (uint32_t)random_between(0, 3);
    t->params.digest.at = random_between(0, 20);
    t->params.digest.first = random_between(0, UINT64_C(1) << random_between(0, 57));
    for (unsigned k = t->params.digest.num_axes; k-- > 0;) {
        struct digest_axis *axis = &t->params.digest.axes[k];
        const bool is_last = k + 1 == t->params.digest.num_axes;
        axis->extent = is_last ? size_up_to(5000, 200000) : random_between(0, 9);
        axis->stride = span + (coin() ? 0 : random_between(0, 3));
        axis->index_stride = index_span + (coin() ? 0 : random_between(0, 1000));
        span += axis->extent * axis->stride;
        index_span += axis->extent * axis->index_stride;
    }
    MAKE(t->in[0], ELEM, t->params.digest.at + span);
    MAKE(t->out[0], INT, 4);
}

/* Every op of the list has one. */
static void (*const makers[NUM_OPS])(struct trial *) = {
#define X(id, name, ...) [id] = make_##name,
    OPS(X)
#undef X
};

/* ---- comparing ---- */

static double rounding_of(const struct trial *t, enum operand_type type)
{
    const size_t bytes = operand_bytes_of(type, t->elem);
    return bytes == 2 ? 0x1p-8 : bytes == 4 ? 0x1p-24 : 0x1p-53;
}

/* Roundings of its type at the largest value, and what sums in another order may differ by. */
static double allowed(const struct trial *t, const struct operand *o, double largest)
{
    if (o->type == INT) return 0;
    return largest * (op_row(t->op)->tolerance * rounding_of(t, o->type) +
                      2 * sqrt(t->depth) * rounding_of(t, REAL));
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

/* The same NaN or infinity is no difference, another one is without bounds. */
static double difference(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : (double)INFINITY;
}

/* One way to compute an op: as the op does it, or by one of the kernels that it chooses from. */
struct way {
    const struct device_kernel *kernel; /* NULL: the op */
    char name[48];
    void *results[MAX_OUTPUTS]; /* of the trial that is under way, on the host */
    double worst;               /* of all trials, as a share of the tolerance */
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

static enum status keep_results(const struct trial *t, struct way *w, const struct device *d,
                                struct error *err)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        const size_t bytes = operand_numel(&t->out[i]) * operand_bytes_of(t->out[i].type, t->elem);
        if (!t->out[i].data) continue;
        w->results[i] = malloc(bytes + 1);
        if (!w->results[i]) return fail(err, ERR_MEMORY, "no memory for a result");
        TRY(d->download(w->results[i], t->device_out[i].data, bytes, err));
    }
    w->trials++;
    return OK;
}

/* Nothing is done where the kernel does not take the trial's operands. */
static enum status run_way(struct trial *t, struct way *w, const struct device *d,
                           struct error *err)
{
    t->kernel = w->kernel ? &w->kernel->kernel : NULL;
    TRY(trial_upload(t, d, err));
    if (w->kernel && !w->kernel->takes(&t->params, t->device_in, t->device_out)) return OK;
    TRY(trial_run(t, d, err));
    TRY(d->synchronize(err));
    return keep_results(t, w, d, err);
}

/* The worst error, as a share of what is allowed; at: of which element. */
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
    return elem == ELEM_F64 ? "f64" : elem == ELEM_BF16 ? "bf16" : "f32";
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
           elem_name(t->elem), trial_number, output, at, worst);
    print_shapes(t->in, MAX_INPUTS);
    printf(" ->");
    print_shapes(t->out, MAX_OUTPUTS);
    printf("\n");
}

static void report_failure(const struct trial *t, struct way *w, const struct error *err)
{
    printf("FAILED %s %s, trial %u: %s\n", w->name, elem_name(t->elem), trial_number, err->text);
    w->good = false;
}

/* Beside what the CPU made, which is in the trial's outputs. */
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

/* The CPU comes last: its results take the place of what outputs hold before. */
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
    for (trial_number = 0; trial_number < options.trials; trial_number++) {
        struct trial t = {.op = op, .elem = elem, .depth = 1};
        random_start(options.seed << 40 | (uint64_t)op << 32 | (uint64_t)elem << 24 | trial_number);
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

/* Of copies, and of nothing. */
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

/* Copies take longer than nothing, and the host waits for longer than the two. */
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

/* Whether a list of names with commas between them has this one. */
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
        if (list_has(options.without, name)) continue;
        for (unsigned elem = 0; elem < NUM_ELEM_TYPES; elem++)
            good &= check_op(op, (enum elem_type)elem, d);
    }
    return good;
}

static bool is_flag(const char *argument)
{
    bool *flag = strcmp(argument, "--small") == 0   ? &options.small
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
    if (options.sm90) good &= check_sm90(d, options.seed, options.trials, options.small);
    if (!options.large && !options.sm90) good &= check_ops(d);
    d->close();
    return good ? 0 : 1;
}
