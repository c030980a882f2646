/* Operands of the ops of inference. */
#include "tests/gpu/makers.h"

#include <math.h>
#include <string.h>

#include "common/count.h"

struct making making;

bool coin(void)
{
    return random_between(0, 1) == 1;
}

/* Every third shape is odd, every third a multiple of 64. */
uint64_t size_up_to(uint64_t most_small, uint64_t most_large)
{
    const uint64_t most = making.small || making.trial % 2 == 0 ? most_small : most_large;
    const uint64_t n = random_between(1, most);
    if (making.trial % 3 == 1) return (n + 63) / 64 * 64;
    return making.trial % 3 == 2 ? n | 1 : n;
}

uint64_t tokens(void)
{
    return random_between(1, making.small ? 20 : making.trial % 2 == 0 ? 40 : 600);
}

void set_ints(struct operand *o, int64_t low, int64_t high)
{
    for (size_t i = 0; i < operand_numel(o); i++)
        ((int32_t *)o->data)[i] =
            (int32_t)(low + (int64_t)random_between(0, (uint64_t)(high - low)));
}

/* An output of an input's shape, every other time in its place. */
void make_like(struct trial *t, struct operand *out, struct operand *in)
{
    if (coin())
        *out = *in;
    else
        trial_make(t, out, in->type, in->num_dims, in->shape);
}

/* 0 .. n - 1 in random order. */
void set_permutation(int32_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t j = random_between(0, i);
        to[i] = to[j];
        to[j] = (int32_t)i;
    }
}

/* ---- operands of each op ---- */

void make_embedding(struct trial *t)
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

void make_positions(struct trial *t)
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

void make_norm(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 9000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], ELEM, h);
    if (coin()) MAKE(t->in[2], ELEM, h);
    make_norm_outputs(t, t->out, num_tokens, h);
}

void make_add_norm(struct trial *t)
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

void make_add(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 9000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], ELEM, num_tokens, h);
    if (coin()) MAKE(t->in[2], ELEM, h);
    make_like(t, &t->out[0], &t->in[coin()]);
}

/* Rows of a decoding step: few_rows.cu takes up to 4, few_rows_mma.cu up
 * to 16. */
static uint64_t few_rows(void)
{
    return random_between(1, coin() ? 4 : 16);
}

/* Every other one is a decoding step: few rows, mostly with k a multiple of 8,
 * as wide loads need. */
void make_matmul(struct trial *t)
{
    const bool decodes = coin(), ta = coin() && !decodes, tb = coin() || decodes;
    const uint64_t m = decodes ? few_rows() : tokens(), n = size_up_to(70, 3000),
                   up_to = decodes ? 2100 : 70, any = size_up_to(up_to, 3000),
                   k = decodes && random_between(0, 3) ? (any + 7) / 8 * 8 : any;
    t->params.matmul.transpose_a = ta;
    t->params.matmul.transpose_b = tb;
    t->params.matmul.alpha = coin() ? 1 : 0.25;
    t->depth = (double)k;
    MAKE(t->in[0], ELEM, ta ? k : m, ta ? m : k);
    if (tb && coin())
        trial_make_coded(t, &t->in[1], 2, (const uint64_t[]){n, k});
    else
        MAKE(t->in[1], ELEM, tb ? n : k, tb ? k : n);
    if (coin()) MAKE(t->in[2], ELEM, n);
    MAKE(t->out[0], coin() ? ELEM : REAL, m, n);
    if (coin() && !decodes) make_like(t, &t->in[3], &t->out[0]);
}

/* Rows of a fused product: every fourth time more than decoding has. */
static uint64_t rows_of_product(void)
{
    return random_between(0, 3) ? random_between(1, 4) : tokens();
}

static void make_product(struct trial *t, struct operand *w, uint64_t rows, uint64_t k)
{
    const uint64_t n = size_up_to(70, 3000);
    MAKE(w[0], ELEM, n, k);
    if (coin()) MAKE(w[1], ELEM, n);
    MAKE(t->out[0], ELEM, rows, n);
    t->depth = (double)k;
}

static uint64_t wide_or_not(uint64_t size)
{
    return random_between(0, 3) ? (size + 7) / 8 * 8 : size;
}

void make_norm_matmul(struct trial *t)
{
    const uint64_t rows = rows_of_product(), h = wide_or_not(size_up_to(2300, 9000));
    MAKE(t->in[0], ELEM, rows, h);
    MAKE(t->in[3], ELEM, h);
    if (coin()) MAKE(t->in[4], ELEM, h);
    make_product(t, t->in + 5, rows, h);
    t->params.norm.layer_norm = coin();
    t->params.norm.epsilon = 1e-5;
    t->params.norm.shift = coin();
    if (coin()) return;
    MAKE(t->in[1], ELEM, rows, h);
    if (coin()) MAKE(t->in[2], ELEM, h);
    MAKE(t->out[1], ELEM, rows, h);
}

void make_activation_matmul(struct trial *t)
{
    const uint64_t rows = rows_of_product(), n = wide_or_not(size_up_to(2300, 15000));
    t->params.activation.kind = (enum activation)random_between(0, NUM_ACTIVATIONS - 1);
    t->params.activation.gated = coin();
    MAKE(t->in[0], ELEM, rows, t->params.activation.gated ? 2 * n : n);
    make_product(t, t->in + 1, rows, n);
}

struct head_shape some_heads(void)
{
    static const uint32_t dims[] = {64, 128, 80, 96, 256, 40, 22, 7, 72, 200};
    return (struct head_shape){.groups = (uint32_t)random_between(1, 4),
                               .queries = (uint32_t)random_between(1, making.small ? 5 : 9),
                               .head_dim = dims[random_between(0, 9)]};
}

uint64_t columns_of(struct head_shape s)
{
    return (uint64_t)s.groups * (s.queries + 2) * s.head_dim;
}

void make_head_norm(struct trial *t)
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

void make_rotary(struct trial *t)
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

/* Number of queries of the range at `row`: all, one, or any. */
static int64_t range_of(unsigned kind, int64_t left)
{
    return kind == 0 ? left : kind == 1 ? 1 : (int64_t)random_between(1, (uint64_t)left);
}

/* Adjacent spans: ranges of queries, sometimes with gaps, each over one to
 * three sets of keys anywhere in kv. */
size_t make_spans(int32_t (*spans)[6], size_t most, int64_t num_queries, int64_t num_keys)
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

struct dropout some_dropout(void)
{
    static const double probabilities[] = {0, 0.1, 0.5, 0.9};
    return (struct dropout){.probability = probabilities[random_between(0, 3)],
                            .seed = random_between(0, UINT64_MAX - 1),
                            .stream = (uint32_t)random_between(0, 1000)};
}

void make_token_numbers(struct trial *t, struct operand *o, uint64_t num_tokens)
{
    MAKE(*o, INT, num_tokens, 2);
    set_ints(o, INT32_MIN, INT32_MAX);
}

void make_attention_dropout(struct trial *t, struct operand *token_numbers)
{
    t->params.attention.first_head = random_between(0, 100);
    if (random_between(0, 3)) return;
    t->params.attention.dropout = some_dropout();
    make_token_numbers(t, token_numbers, t->in[0].shape[0]);
}

/* Whole sequences, for uniform_sequences, sometimes with a window. */
static void make_uniform_inputs(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t sequences = random_between(1, making.small ? 3 : 5);
    const uint64_t length = random_between(1, 3) == 1 ? random_between(1, 90)
                            : making.small            ? random_between(60, 80)
                                                      : random_between(90, 1200);
    t->params.attention.heads = s;
    t->params.attention.q_stride = t->params.attention.kv_stride = (s.queries + 2) * s.head_dim;
    t->params.attention.k_at = s.queries * s.head_dim;
    t->params.attention.v_at = t->params.attention.k_at + s.head_dim;
    t->params.attention.scale = 1 / sqrt(s.head_dim);
    t->params.attention.window = random_between(0, 3) ? 0 : (uint32_t)random_between(1, 2 * length);
    t->params.attention.causal = coin();
    t->params.attention.uniform_sequences = (uint32_t)sequences;
    t->depth = (double)(length + s.head_dim); /* of values, and of scores */
    MAKE(t->in[0], ELEM, sequences * length, columns_of(s));
    MAKE(t->in[1], ELEM, sequences * length, columns_of(s));
    MAKE(t->in[2], INT, sequences, 6);
    for (uint64_t i = 0; i < sequences; i++) {
        int32_t *span = (int32_t *)t->in[2].data + i * 6;
        span[0] = span[3] = (int32_t)(i * length);
        span[1] = span[4] = (int32_t)length;
        span[2] = span[5] = 0;
    }
}

/* Ranges of queries, with gaps, over any sets of keys. */
static void make_range_inputs(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t num_queries = random_between(1, making.small       ? 90
                                                   : making.trial % 2 ? 1500
                                                                      : 40);
    const uint64_t num_keys = random_between(1, making.small       ? 600
                                                : making.trial % 2 ? 2500
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
    t->depth = (double)(num_keys + s.head_dim);
    MAKE(t->in[0], ELEM, num_queries, columns_of(s));
    MAKE(t->in[1], ELEM, num_keys, (uint64_t)s.groups * t->params.attention.kv_stride);
    MAKE(t->in[2], INT, MOST, 6);
    memset(t->in[2].data, 0, operand_numel(&t->in[2]) * 4);
    const size_t used = make_spans(t->in[2].data, MOST, (int64_t)num_queries, (int64_t)num_keys);
    t->in[2].shape[0] = random_between(0, 3) ? used : MOST; /* without and with an end */
}

void make_attention_inputs(struct trial *t)
{
    if (coin())
        make_uniform_inputs(t);
    else
        make_range_inputs(t);
}

/* A decoding step: the last tokens of some sequences, into rows of a cache. */
static void make_cached_inputs(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t sequences = random_between(1, 16), each = random_between(0, 3) ? 1 : 3;
    const uint64_t room = random_between(each, (making.small ? 2400 : 20000) / sequences);
    t->params.attention.heads = s;
    t->params.attention.q_stride = (s.queries + 2) * s.head_dim;
    t->params.attention.kv_stride = 2 * s.head_dim;
    t->params.attention.v_at = s.head_dim;
    t->params.attention.scale = 1 / sqrt(s.head_dim);
    t->params.attention.softcap = random_between(0, 3) ? 0 : 3;
    t->params.attention.window = coin() ? 0 : (uint32_t)random_between(1, room);
    t->params.attention.causal = true;
    t->depth = (double)(room + s.head_dim);
    MAKE(t->in[0], ELEM, sequences * each, columns_of(s));
    MAKE(t->in[1], ELEM, sequences * room, (uint64_t)s.groups * 2 * s.head_dim);
    MAKE(t->in[2], INT, sequences + 1, 6);
    memset(t->in[2].data, 0, operand_numel(&t->in[2]) * 4);
    for (uint64_t i = 0; i < sequences; i++) {
        int32_t *span = (int32_t *)t->in[2].data + i * 6;
        span[0] = (int32_t)(i * each);
        span[1] = (int32_t)each;
        span[3] = (int32_t)(i * room);
        span[4] = (int32_t)random_between(each, room);
        span[2] = span[4] - (int32_t)each;
    }
}

void make_attention(struct trial *t)
{
    if (random_between(0, 2) == 0)
        make_cached_inputs(t);
    else
        make_attention_inputs(t);
    const struct head_shape s = t->params.attention.heads;
    const uint64_t num_queries = t->in[0].shape[0], heads = (uint64_t)s.groups * s.queries;
    const bool uniform = t->params.attention.uniform_sequences != 0;
    if (random_between(0, uniform ? 5 : 1) == 0) MAKE(t->in[3], ELEM, heads);
    make_attention_dropout(t, &t->in[4]);
    MAKE(t->out[0], ELEM, num_queries, heads * s.head_dim);
    if (coin()) MAKE(t->out[1], REAL, num_queries, heads);
}

void make_attention_merge(struct trial *t)
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

/* A cache, and the rows that tokens are written to. */
static void make_cache_rows(struct trial *t, struct operand *rows, struct operand *cache,
                            struct head_shape s)
{
    const uint64_t num_tokens = t->in[0].shape[0];
    MAKE(*rows, INT, num_tokens);
    set_permutation(rows->data, num_tokens);
    for (size_t i = 0; i < num_tokens; i += 3)
        ((int32_t *)rows->data)[i] = -1;
    MAKE(*cache, ELEM, num_tokens + 2, (uint64_t)s.groups * 2 * s.head_dim);
}

void make_cache_write(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t num_tokens = tokens();
    t->params.cache_write.heads = s;
    MAKE(t->in[0], ELEM, num_tokens, columns_of(s));
    make_cache_rows(t, &t->in[1], &t->out[0], s);
}

void make_rotary_cache(struct trial *t)
{
    make_rotary(t);
    make_cache_rows(t, &t->in[3], &t->out[1], t->params.rotary.heads);
}

/* Some of x's columns [0, n) become values that are hard for activations. */
static void make_extreme(struct trial *t, struct operand *x, uint64_t n)
{
    static const double extremes[] = {-INFINITY, INFINITY, NAN, -3e38, 3e38, -60000, 60000,
                                      -120,      -103,     -89, -88,   -87,  88,     -0.0};
    for (size_t i = 0; i < operand_numel(x); i += random_between(1, 80))
        if (i % x->shape[1] < n)
            operand_set(t, x, i, extremes[random_between(0, COUNT(extremes) - 1)]);
}

void make_activation(struct trial *t)
{
    const uint64_t num_tokens = tokens(), n = size_up_to(300, 9000);
    t->params.activation.kind = (enum activation)(making.trial % NUM_ACTIVATIONS);
    t->params.activation.gated = coin();
    MAKE(t->in[0], ELEM, num_tokens, t->params.activation.gated ? 2 * n : n);
    if (random_between(0, 3) == 0) make_extreme(t, &t->in[0], n);
    if (coin()) {
        MAKE(t->in[1], INT, 40);
        set_ints(&t->in[1], 0, (int64_t)num_tokens / 40);
    }
    MAKE(t->out[0], ELEM, num_tokens, n);
}

uint64_t make_route_params(struct trial *t)
{
    static const uint32_t groups[] = {1, 1, 2, 4, 8};
    const uint32_t num_groups = groups[random_between(0, 4)];
    const uint64_t experts = num_groups * random_between(1, 40);
    t->params.route.num_groups = num_groups;
    t->params.route.topk_groups = (uint32_t)random_between(1, num_groups);
    const uint64_t open = experts / num_groups * t->params.route.topk_groups;
    t->params.route.topk = (uint32_t)random_between(1, open < 8 ? open : 8);
    t->params.route.sigmoid = coin();
    t->params.route.after_choice = !t->params.route.sigmoid && coin();
    t->params.route.normalize = coin();
    t->params.route.scaling = coin() ? 1 : 2.5;
    t->depth = (double)experts;
    return experts;
}

void make_route(struct trial *t)
{
    const uint64_t num_tokens = tokens(), experts = make_route_params(t);
    MAKE(t->in[0], REAL, num_tokens, experts);
    if (coin()) MAKE(t->in[1], REAL, experts);
    MAKE(t->out[0], REAL, num_tokens, t->params.route.topk);
    MAKE(t->out[1], INT, num_tokens, t->params.route.topk);
}

void make_sort_by_expert(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 8),
                   experts = random_between(1, 200);
    MAKE(t->in[0], INT, num_tokens, k);
    set_ints(&t->in[0], 0, (int64_t)experts - 1);
    MAKE(t->out[0], INT, num_tokens, k);
    MAKE(t->out[1], INT, experts);
}

void make_sort_received(struct trial *t)
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

/* rows INT [T, k]: a permutation of T * k rows, some of them dropped. */
void make_rows(struct trial *t, struct operand *o, uint64_t num_tokens, uint64_t k)
{
    MAKE(*o, INT, num_tokens, k);
    set_permutation(o->data, num_tokens * k);
    for (size_t i = 0; i < num_tokens * k; i++)
        if (random_between(0, 4) == 0) ((int32_t *)o->data)[i] = -1;
}

void make_permute(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 4), h = size_up_to(300, 3000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    make_rows(t, &t->in[1], num_tokens, k);
    MAKE(t->out[0], ELEM, num_tokens * k + 3, h);
}

void make_unpermute(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 4), h = size_up_to(300, 3000);
    MAKE(t->in[0], ELEM, num_tokens * k, h);
    make_rows(t, &t->in[1], num_tokens, k);
    if (coin()) MAKE(t->in[2], REAL, num_tokens, k);
    MAKE(t->out[0], ELEM, num_tokens, h);
    t->depth = (double)k;
}

void make_grouped_matmul(struct trial *t)
{
    const uint64_t experts = random_between(1, making.small ? 4 : 40);
    const uint64_t each = random_between(1, making.small ? 150 : making.trial % 2 ? 400 : 10);
    const uint64_t n = size_up_to(150, 1000), k = size_up_to(150, 1000);
    MAKE(t->in[0], ELEM, experts * each + 5, k);
    if (coin())
        trial_make_coded(t, &t->in[1], 3, (const uint64_t[]){experts, n, k});
    else
        MAKE(t->in[1], ELEM, experts, n, k);
    MAKE(t->in[2], INT, experts);
    set_ints(&t->in[2], 0, (int64_t)each);
    if (coin()) ((int32_t *)t->in[2].data)[0] = 0;
    MAKE(t->out[0], ELEM, experts * each + 5, n);
    t->depth = (double)k;
}

void make_sigmoid_scale(struct trial *t)
{
    const uint64_t num_tokens = tokens(), n = size_up_to(300, 5000);
    MAKE(t->in[0], ELEM, num_tokens, n);
    MAKE(t->in[1], ELEM, num_tokens, 1);
    make_like(t, &t->out[0], &t->in[0]);
}

void make_gather_rows(struct trial *t)
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

void make_vocab_max(struct trial *t)
{
    const uint64_t num_tokens = make_logits(t);
    MAKE(t->out[0], REAL, num_tokens);
    if (coin()) operand_set(t, &t->in[0], 0, (double)NAN);
}

void make_vocab_sum(struct trial *t)
{
    const uint64_t num_tokens = make_logits(t);
    MAKE(t->in[1], REAL, num_tokens);
    for (size_t i = 0; i < num_tokens; i++)
        operand_set(t, &t->in[1], i, 3 + random_double());
    MAKE(t->in[2], INT, num_tokens);
    set_ints(&t->in[2], -1, (int64_t)(t->params.vocab.first_column + t->in[0].shape[1]));
    MAKE(t->out[0], REAL, num_tokens, 2);
}

void make_token_loss(struct trial *t)
{
    const uint64_t num_tokens = tokens();
    MAKE(t->in[0], REAL, num_tokens, 2);
    for (size_t i = 0; i < 2 * num_tokens; i++)
        operand_set(t, &t->in[0], i, 1 + 10 * random_double());
    MAKE(t->in[1], INT, num_tokens);
    set_ints(&t->in[1], -1, 5);
    MAKE(t->out[0], REAL, num_tokens);
}

void make_sample(struct trial *t)
{
    const uint64_t n = random_between(1, 9), columns = size_up_to(700, 130000);
    t->params.sample.temperature = random_between(0, 3) ? 0.5 + random_double() : 0;
    t->params.sample.top_p = coin() ? 1 : random_double();
    t->params.sample.top_k = coin() ? 0 : (uint32_t)random_between(1, columns + 3);
    t->params.sample.seed = random_between(0, 1u << 30);
    MAKE(t->in[0], REAL, n, columns);
    const double spread = coin() ? 1 : coin() ? 20 : 0.01;
    for (size_t i = 0; i < n * columns; i++) /* with ties */
        operand_set(t, &t->in[0], i, floor(operand_get(t, &t->in[0], i) * 64) / 16 * spread);
    if (coin()) /* some can never be drawn */
        for (size_t i = 1; i < n * columns; i += random_between(1, 9))
            if (i % columns > 0) operand_set(t, &t->in[0], i, -INFINITY);
    MAKE(t->in[1], INT, 1);
    if (coin()) MAKE(t->in[2], INT, 1);
    if (t->in[2].data) set_ints(&t->in[2], 0, making.trial % 4 == 0);
    MAKE(t->out[0], INT, n);
}

void make_join_columns(struct trial *t)
{
    const uint64_t n = random_between(1, 9), members = random_between(1, 4),
                   each = size_up_to(40, 9000);
    MAKE(t->in[0], REAL, members * n, each);
    MAKE(t->out[0], REAL, n, members * each - random_between(0, each - 1));
}

/* A non-finite number is anywhere, or nowhere. */
void make_not_finite(struct trial *t)
{
    const double bad[] = {NAN, INFINITY, -INFINITY};
    const uint64_t n = size_up_to(300, 70000), rows = random_between(1, 9);
    if (coin())
        MAKE(t->in[0], REAL, rows, n);
    else
        MAKE(t->in[0], ELEM, rows, n);
    if (coin())
        operand_set(t, &t->in[0], random_between(0, rows * n - 1), bad[random_between(0, 2)]);
    if (coin()) MAKE(t->in[1], INT, 1);
    if (t->in[1].data) set_ints(&t->in[1], 0, making.trial % 4 == 0);
    if (t->in[1].data)
        make_like(t, &t->out[0], &t->in[1]);
    else
        MAKE(t->out[0], INT, 1);
}

/* Axes from the last to the first, each beyond the span of those before it, in
 * x and in the tensor with separate gaps. */
void make_digest(struct trial *t)
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
