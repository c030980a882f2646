/* Operands of the ops of training. */
#include "tests/gpu/makers.h"

#include <math.h>
#include <string.h>

/* A gradient of either type, sometimes added to an existing one, in its place
 * or elsewhere. */
static void make_gradient(struct trial *t, struct operand *out, struct operand *sum,
                          unsigned num_dims, const uint64_t *shape)
{
    trial_make(t, out, coin() ? ELEM : REAL, num_dims, shape);
    if (coin()) make_like(t, sum, out);
}
#define MAKE_GRADIENT(out, sum, ...) make_gradient(t, &(out), &(sum), DIMS(__VA_ARGS__))

/* The same for an output of REAL. */
static void make_sum(struct trial *t, struct operand *out, struct operand *sum, uint64_t size)
{
    MAKE(*out, REAL, size);
    if (coin()) make_like(t, sum, out);
}

/* Uniform in [low, high). */
static void set_reals(struct trial *t, struct operand *o, double low, double high)
{
    for (size_t i = 0; i < operand_numel(o); i++)
        operand_set(t, o, i, low + (high - low) * random_double());
}

void make_dropout(struct trial *t)
{
    const uint64_t num_tokens = tokens(), h = size_up_to(300, 9000);
    t->params.dropout.dropout = some_dropout();
    t->params.dropout.first_column = random_between(0, UINT64_C(1) << 40);
    MAKE(t->in[0], ELEM, num_tokens, h);
    if (coin()) MAKE(t->in[1], ELEM, h);
    make_token_numbers(t, &t->in[2], num_tokens);
    make_like(t, &t->out[0], &t->in[0]);
}

/* Halfway between two numbers of f16 or bf16 in [1, 2), or of f16 below 2^-14:
 * rounding shows, since neighbours are further apart than the tolerance. */
static void set_ties(struct trial *t, struct operand *o)
{
    static const double units[] = {0x1p-8, 0x1p-11, 0x1p-25};
    const unsigned kind = (unsigned)random_between(0, 2);
    const double unit = units[kind], base = kind < 2 ? 1 : 0;
    for (size_t i = 0; i < operand_numel(o); i++)
        operand_set(t, o, i, base + unit * (double)(2 * random_between(0, 100) + 1));
}

/* From below f16's smallest number to above its largest, and NaN
 * or infinity. */
static void set_far_apart(struct trial *t, struct operand *o)
{
    static const double odd[] = {INFINITY, -INFINITY, NAN, 65519, 65520, -65520, 0x1p-25};
    for (size_t i = 0; i < operand_numel(o); i++)
        operand_set(t, o, i, ldexp(1 + random_double(), (int)random_between(0, 60) - 30));
    for (size_t i = 0; i < operand_numel(o); i += 5)
        operand_set(t, o, i, odd[random_between(0, 6)]);
}

void make_cast(struct trial *t)
{
    const uint64_t n = size_up_to(3000, 200000);
    MAKE(t->in[0], coin() ? ELEM : REAL, n);
    MAKE(t->out[0], coin() ? ELEM : REAL, n);
    if (making.trial % 3 == 1) set_ties(t, &t->in[0]);
    if (making.trial % 3 == 2) set_far_apart(t, &t->in[0]);
}

/* Enough rows for several parts. */
static uint64_t summed_rows(void)
{
    return coin() ? tokens() : random_between(1, making.small ? 300 : 9000);
}

void make_column_sum(struct trial *t)
{
    const uint64_t rows = summed_rows(), h = size_up_to(300, 3000);
    MAKE(t->in[0], ELEM, rows, h);
    MAKE_GRADIENT(t->out[0], t->in[1], h);
    t->depth = (double)rows;
}

/* Rows of up to 8192 16-bit elements fit into registers; sometimes
 * longer ones. */
static uint64_t norm_columns(void)
{
    if (random_between(0, 3) == 0) return size_up_to(300, 9000);
    return 8 * (random_between(0, 2) ? random_between(1, 300) : random_between(500, 1100));
}

void make_norm_backward(struct trial *t)
{
    const uint64_t rows = making.small ? tokens() : summed_rows(), h = norm_columns();
    t->params.norm.layer_norm = coin();
    t->params.norm.epsilon = 1e-5;
    t->params.norm.shift = coin();
    t->depth = (double)(h > rows ? h : rows);
    MAKE(t->in[0], ELEM, rows, h);
    MAKE(t->in[1], ELEM, h);
    MAKE(t->in[2], REAL, rows, 2);
    for (size_t i = 0; i < rows; i++) {
        if (!t->params.norm.layer_norm) operand_set(t, &t->in[2], 2 * i, 0);
        operand_set(t, &t->in[2], 2 * i + 1, 0.5 + random_double());
    }
    MAKE(t->in[3], ELEM, rows, h);
    if (coin()) MAKE(t->in[4], ELEM, rows, h);
    make_like(t, &t->out[0], &t->in[3]);
    MAKE_GRADIENT(t->out[1], t->in[5], h);
    if (coin()) MAKE_GRADIENT(t->out[2], t->in[6], h);
}

void make_activation_backward(struct trial *t)
{
    const uint64_t num_tokens = tokens(), n = size_up_to(300, 9000);
    t->params.activation.kind = (enum activation)(making.trial % NUM_ACTIVATIONS);
    t->params.activation.gated = coin();
    MAKE(t->in[0], ELEM, num_tokens, t->params.activation.gated ? 2 * n : n);
    MAKE(t->in[1], ELEM, num_tokens, n);
    if (coin()) {
        MAKE(t->in[2], INT, 40);
        set_ints(&t->in[2], 0, (int64_t)num_tokens / 40);
    }
    make_like(t, &t->out[0], &t->in[0]);
}

/* Indices of all tokens, sorted by id, then by index. */
static void set_order(struct operand *order, const struct operand *ids)
{
    int32_t *to = order->data;
    const int32_t *id = ids->data;
    for (size_t i = 0; i < operand_numel(ids); i++) {
        size_t at = i;
        for (; at > 0 && id[to[at - 1]] > id[i]; at--)
            to[at] = to[at - 1];
        to[at] = (int32_t)i;
    }
}

void make_embedding_backward(struct trial *t)
{
    const uint64_t num_tokens = summed_rows(), h = size_up_to(300, 2000),
                   rows = random_between(1, coin() ? 5 : 500);
    t->params.embedding.first_row = random_between(0, 1000);
    t->params.embedding.scale = coin() ? 1 : sqrt((double)h);
    const int64_t first = (int64_t)t->params.embedding.first_row;
    MAKE(t->in[0], ELEM, num_tokens, h);
    MAKE(t->in[1], INT, num_tokens);
    set_ints(&t->in[1], first - 3 > 0 ? first - 3 : 0, first + (int64_t)rows + 2);
    MAKE(t->in[2], INT, num_tokens);
    set_order(&t->in[2], &t->in[1]);
    MAKE_GRADIENT(t->out[0], t->in[3], rows, h);
    t->depth = (double)num_tokens;
}

void make_vocab_backward(struct trial *t)
{
    const uint64_t num_tokens = random_between(1, 30), columns = size_up_to(700, 130000);
    t->params.vocab.first_column = random_between(0, 1000);
    t->params.vocab.valid = coin() ? columns : random_between(1, columns);
    MAKE(t->in[0], REAL, num_tokens, columns);
    MAKE(t->in[1], REAL, num_tokens);
    set_reals(t, &t->in[1], 3, 4);
    MAKE(t->in[2], REAL, num_tokens, 2);
    set_reals(t, &t->in[2], 1, 10);
    MAKE(t->in[3], INT, num_tokens);
    set_ints(&t->in[3], -1, (int64_t)(t->params.vocab.first_column + columns));
    MAKE(t->in[4], REAL, num_tokens);
    MAKE(t->in[5], REAL, 1);
    if (operand_bytes_of(ELEM, t->elem) == operand_bytes_of(REAL, t->elem))
        make_like(t, &t->out[0], &t->in[0]);
    else
        MAKE(t->out[0], ELEM, num_tokens, columns);
    t->out[0].type = ELEM;
}

void make_weighted_sum(struct trial *t)
{
    const uint64_t num_tokens = summed_rows();
    MAKE(t->in[0], REAL, num_tokens);
    MAKE(t->in[1], REAL, num_tokens);
    make_sum(t, &t->out[0], &t->in[2], 1);
    t->depth = 1e4 * (double)num_tokens; /* they may nearly cancel */
}

/* ---- heads ---- */

static bool is_in_a_span(const struct trial *t, int64_t row)
{
    const int32_t(*span)[6] = t->in[2].data;
    for (size_t i = 0; i < t->in[2].shape[0] && span[i][1] > 0; i++)
        if (row >= span[i][0] && row < (int64_t)span[i][0] + span[i][1]) return true;
    return false;
}

/* Roughly the lse of a softmax over all keys; rows in no span have none. */
static void set_lse(struct trial *t, struct operand *lse)
{
    const double about = log((double)t->in[1].shape[0]);
    for (size_t row = 0; row < lse->shape[0]; row++)
        for (size_t head = 0; head < lse->shape[1]; head++)
            operand_set(t, lse, row * lse->shape[1] + head,
                        is_in_a_span(t, (int64_t)row) ? about + random_double() : -INFINITY);
}

void make_attention_backward(struct trial *t)
{
    make_attention_inputs(t);
    const struct head_shape s = t->params.attention.heads;
    const uint64_t num_queries = t->in[0].shape[0], heads = (uint64_t)s.groups * s.queries;
    const bool one_array = t->params.attention.uniform_sequences && coin();
    t->depth += (double)(num_queries * s.queries); /* of dk */
    make_attention_dropout(t, &t->in[3]);
    MAKE(t->in[4], ELEM, num_queries, heads * s.head_dim);
    MAKE(t->in[5], REAL, num_queries, heads);
    set_lse(t, &t->in[5]);
    MAKE(t->in[6], ELEM, num_queries, heads * s.head_dim);
    trial_make(t, &t->out[0], ELEM, 2, t->in[0].shape);
    if (!one_array) trial_make(t, &t->out[1], ELEM, 2, t->in[1].shape);
}

void make_head_norm_backward(struct trial *t)
{
    const struct head_shape s = some_heads();
    const uint64_t num_tokens = tokens();
    t->params.head_norm.heads = s;
    t->params.head_norm.epsilon = 1e-6;
    t->params.head_norm.shift = coin();
    t->depth = (double)(num_tokens * s.groups * s.queries);
    MAKE(t->in[0], ELEM, num_tokens, columns_of(s));
    MAKE(t->in[1], ELEM, s.head_dim);
    MAKE(t->in[2], ELEM, s.head_dim);
    MAKE(t->in[3], ELEM, num_tokens, columns_of(s));
    make_like(t, &t->out[0], &t->in[3]);
    MAKE_GRADIENT(t->out[1], t->in[4], s.head_dim);
    MAKE_GRADIENT(t->out[2], t->in[5], s.head_dim);
}

/* ---- experts ---- */

/* k distinct experts for each token. */
static void set_experts(struct operand *o, uint64_t num_experts)
{
    const uint64_t k = o->shape[1];
    int32_t all[320];
    for (size_t t = 0; t < o->shape[0]; t++) {
        set_permutation(all, num_experts);
        memcpy((int32_t *)o->data + t * k, all, k * sizeof *all);
    }
}

/* Sequences of tokens, the first possibly begun before. Returns
 * their number. */
static uint64_t make_sequences(struct trial *t, uint64_t num_tokens)
{
    if (coin()) return 1;
    const uint64_t length = random_between(1, num_tokens);
    t->params.route.sequence_length = length;
    t->params.route.first_token = random_between(0, 2 * length);
    return (t->params.route.first_token + num_tokens - 1) / length + 1;
}

/* Counts of sequences; or of all tokens, as shares. */
static void make_balance_counts(struct trial *t, struct operand *counts, uint64_t num_tokens,
                                uint64_t experts)
{
    t->params.route.of_share = coin();
    MAKE(*counts, INT, t->params.route.of_share ? 1 : make_sequences(t, num_tokens), experts);
    ((int32_t *)counts->data)[0] = 20; /* unequal, since equal counts are balanced */
}

void make_route_backward(struct trial *t)
{
    const uint64_t num_tokens = tokens(), experts = make_route_params(t);
    t->params.route.balance = 0.01 * random_double();
    t->params.route.z = coin() ? 0 : 0.01 * random_double();
    /* A single normalized weight is 1: its gradient is rounding noise
     * around 0. */
    t->params.route.normalize &= t->params.route.topk > 1;
    MAKE(t->in[0], REAL, num_tokens, experts);
    MAKE(t->in[1], INT, num_tokens, t->params.route.topk);
    set_experts(&t->in[1], experts);
    MAKE(t->in[2], REAL, num_tokens, t->params.route.topk);
    if (coin()) make_balance_counts(t, &t->in[3], num_tokens, experts);
    if (coin()) MAKE(t->in[4], REAL, 1);
    MAKE(t->out[0], ELEM, num_tokens, experts);
}

void make_balance_loss(struct trial *t)
{
    const uint64_t num_tokens = summed_rows(), experts = make_route_params(t);
    t->params.route.balance = random_double();
    MAKE(t->in[0], REAL, num_tokens, experts);
    make_balance_counts(t, &t->in[1], num_tokens, experts);
    make_sum(t, &t->out[0], &t->in[2], 1);
    t->depth = (double)num_tokens;
}

void make_z_loss(struct trial *t)
{
    const uint64_t num_tokens = summed_rows(), experts = make_route_params(t);
    t->params.route.z = random_double();
    MAKE(t->in[0], REAL, num_tokens, experts);
    make_sum(t, &t->out[0], &t->in[1], 1);
    t->depth = (double)num_tokens;
}

void make_count_experts(struct trial *t)
{
    const uint64_t num_tokens = tokens(), experts = make_route_params(t),
                   sequences = make_sequences(t, num_tokens);
    MAKE(t->in[0], INT, num_tokens, t->params.route.topk);
    set_experts(&t->in[0], experts);
    MAKE(t->out[0], INT, sequences, experts);
    if (coin()) make_like(t, &t->in[1], &t->out[0]);
}

void make_update_expert_bias(struct trial *t)
{
    const uint64_t experts = size_up_to(40, 600);
    t->params.expert_bias.rate = random_double();
    MAKE(t->in[0], INT, 1, experts);
    for (uint64_t e = 0; e < experts; e++)
        ((int32_t *)t->in[0].data)[e] = (int32_t)random_between(0, 3);
    MAKE(t->in[1], REAL, experts);
    make_like(t, &t->out[0], &t->in[1]);
}

void make_unpermute_backward(struct trial *t)
{
    const uint64_t num_tokens = tokens(), k = random_between(1, 4), h = size_up_to(300, 3000);
    MAKE(t->in[0], ELEM, num_tokens, h);
    make_rows(t, &t->in[1], num_tokens, k);
    if (coin()) MAKE(t->in[2], REAL, num_tokens, k);
    MAKE(t->out[0], ELEM, num_tokens * k + 3, h);
    if (coin()) {
        MAKE(t->in[3], ELEM, num_tokens * k + 3, h);
        MAKE(t->out[1], REAL, num_tokens, k);
    }
    t->depth = (double)h;
}

/* Sizes of grouped products. Returns the number of rows of operands. */
static uint64_t make_counts(struct trial *t, struct operand *counts, uint64_t *n, uint64_t *k)
{
    const uint64_t experts = random_between(1, making.small ? 4 : 40);
    const uint64_t each = random_between(1, making.small ? 150 : making.trial % 2 ? 400 : 10);
    *n = size_up_to(150, 1000);
    *k = size_up_to(150, 1000);
    MAKE(*counts, INT, experts);
    set_ints(counts, 0, (int64_t)each);
    if (coin()) ((int32_t *)counts->data)[0] = 0;
    t->depth = (double)(*n > each ? *n : each);
    return experts * each + 5;
}

void make_grouped_dgrad(struct trial *t)
{
    uint64_t n, k;
    const uint64_t rows = make_counts(t, &t->in[2], &n, &k), experts = t->in[2].shape[0];
    MAKE(t->in[0], ELEM, rows, n);
    MAKE(t->in[1], ELEM, experts, n, k);
    MAKE(t->out[0], ELEM, rows, k);
}

void make_grouped_wgrad(struct trial *t)
{
    uint64_t n, k;
    const uint64_t rows = make_counts(t, &t->in[2], &n, &k), experts = t->in[2].shape[0];
    MAKE(t->in[0], ELEM, rows, n);
    MAKE(t->in[1], ELEM, rows, k);
    MAKE_GRADIENT(t->out[0], t->in[3], experts, n, k);
}

/* ---- the optimizer ---- */

void make_square_sum(struct trial *t)
{
    static const double odd[] = {0, NAN, INFINITY, -INFINITY};
    const uint64_t n = size_up_to(30000, 3000000);
    const bool has_odd = coin();
    MAKE(t->in[0], coin() ? ELEM : REAL, n);
    for (size_t i = 0; i < n / 10 && has_odd; i++)
        operand_set(t, &t->in[0], random_between(0, n - 1), odd[random_between(0, 3)]);
    make_sum(t, &t->out[0], &t->in[1], 3);
    t->depth = (double)n;
}

void make_step_scalars(struct trial *t)
{
    MAKE(t->in[0], REAL, 3);
    set_reals(t, &t->in[0], 0, 100);
    if (coin()) operand_set(t, &t->in[0], 1, 0);
    MAKE(t->in[1], REAL, 6);
    set_reals(t, &t->in[1], 0, 1);
    operand_set(t, &t->in[1], 5, coin() ? 0 : 20 * random_double());
    MAKE(t->out[0], REAL, 8);
}

/* grad, scalars and weight. Returns the number of elements. */
static uint64_t make_step(struct trial *t)
{
    const uint64_t n = size_up_to(3000, 200000);
    t->params.optimizer.beta1 = 0.9;
    t->params.optimizer.beta2 = coin() ? 0.95 : 0.999;
    t->params.optimizer.epsilon = 1e-8;
    t->params.optimizer.momentum = coin() ? 0 : 0.9;
    t->params.optimizer.lr_mult = coin() ? 1 : 0.5;
    t->params.optimizer.wd_mult = coin();
    MAKE(t->in[0], coin() ? ELEM : REAL, n);
    MAKE(t->in[1], REAL, 8);
    set_reals(t, &t->in[1], 0.1, 1);
    operand_set(t, &t->in[1], 5, random_between(0, 3) == 0);
    MAKE(t->in[2], ELEM, n);
    make_like(t, &t->out[0], &t->in[2]);
    return n;
}

static void make_state(struct trial *t, struct operand *in, struct operand *out, uint64_t n)
{
    MAKE(*in, REAL, n);
    make_like(t, out, in);
}

void make_adam(struct trial *t)
{
    const uint64_t n = make_step(t);
    make_state(t, &t->in[3], &t->out[1], n);
    make_state(t, &t->in[4], &t->out[2], n);
    set_reals(t, &t->in[4], 0, 2);
    if (coin()) make_state(t, &t->in[5], &t->out[3], n);
}

void make_sgd(struct trial *t)
{
    const uint64_t n = make_step(t);
    if (coin()) make_state(t, &t->in[3], &t->out[1], n);
    if (coin()) make_state(t, &t->in[4], &t->out[2], n);
}
