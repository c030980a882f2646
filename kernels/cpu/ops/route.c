/* route.c - OP_ROUTE: each token's experts and weights; its backward; and the
 * losses that balance experts and keep logits small. */
#include <assert.h>

#include "kernels/cpu/ops/ops_internal.h"
#include "kernels/cpu/ops/real_math.h"

/* LINE: reals in a cache line, to separate workers. SUM_TOKENS: tokens added up
 * in sequence. */
enum { LINE = 64 / sizeof(real), SUM_TOKENS = 256 };

/* One token's, in the workspace; arrays of num_experts elements. */
struct choice {
    real *scores; /* weight experts */
    real *ranks;  /* choose experts */
    real *groups;
    bool *out, *groups_out; /* cannot be chosen (any more) */
};

static size_t choice_bytes(size_t num_experts)
{
    return (num_experts * (3 * sizeof(real) + 2) + 63) / 64 * 64;
}

static struct choice choice_at(char *workspace, size_t num_experts)
{
    real *reals = (real *)(void *)workspace;
    bool *flags = (bool *)(reals + 3 * num_experts);
    return (struct choice){.scores = reals,
                           .ranks = reals + num_experts,
                           .groups = reals + 2 * num_experts,
                           .out = flags,
                           .groups_out = flags + num_experts};
}

/* NaN is above everything: it is chosen, and shows in the weight. */
static bool is_above(real a, real b)
{
    return a > b || (a != a && b == b);
}

/* Takes the first largest element that is not out. */
static size_t take_largest(const real *x, bool *out, size_t n)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (!out[i] && (best == n || is_above(x[i], x[best]))) best = i;
    assert(best < n);
    out[best] = true;
    return best;
}

static void softmax(real *x, size_t n)
{
    real top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        top = is_above(x[i], top) ? x[i] : top;
    for (size_t i = 0; i < n; i++)
        sum += x[i] = real_exp(x[i] - top);
    for (size_t i = 0; i < n; i++)
        x[i] /= sum;
}

static void score(real *scores, const union op_params *p, const real *logits, size_t num_experts)
{
    memcpy(scores, logits, num_experts * sizeof *scores);
    if (p->route.after_choice) return;
    if (p->route.sigmoid)
        for (size_t e = 0; e < num_experts; e++)
            scores[e] = real_sigmoid(logits[e]);
    else
        softmax(scores, num_experts);
}

/* The sum of the two best, or the only one. */
static real group_score(const real *x, size_t n)
{
    real best = x[0], second = -INFINITY;
    for (size_t i = 1; i < n; i++) {
        const bool above = is_above(x[i], best);
        const real lower = above ? best : x[i];
        second = is_above(lower, second) ? lower : second;
        best = above ? x[i] : best;
    }
    return n > 1 ? best + second : best;
}

static void leave_best_groups(const struct choice *c, const union op_params *p, size_t num_experts)
{
    const size_t num_groups = p->route.num_groups, size = num_experts / num_groups;
    memset(c->groups_out, 0, num_groups);
    for (size_t g = 0; g < num_groups; g++)
        c->groups[g] = group_score(c->ranks + g * size, size);
    for (size_t i = 0; i < p->route.topk_groups; i++)
        (void)take_largest(c->groups, c->groups_out, num_groups);
    for (size_t g = 0; g < num_groups; g++)
        memset(c->out + g * size, !c->groups_out[g], size);
}

static void scale_weights(real *weights, const union op_params *p)
{
    const size_t topk = p->route.topk;
    if (p->route.after_choice) softmax(weights, topk);
    real divisor = 1;
    if (p->route.normalize) {
        divisor = (real)1e-20;
        for (size_t j = 0; j < topk; j++)
            divisor += weights[j];
    }
    for (size_t j = 0; j < topk; j++)
        weights[j] = weights[j] / divisor * (real)p->route.scaling;
}

static void route_token(const struct choice *c, const union op_params *p, const real *logits,
                        const real *correction, size_t num_experts, real *weights, int32_t *experts)
{
    score(c->scores, p, logits, num_experts);
    for (size_t e = 0; e < num_experts; e++)
        c->ranks[e] = c->scores[e] + (correction ? correction[e] : 0);
    memset(c->out, 0, num_experts);
    if (p->route.num_groups > 1) leave_best_groups(c, p, num_experts);
    for (size_t j = 0; j < p->route.topk; j++) {
        const size_t e = take_largest(c->ranks, c->out, num_experts);
        experts[j] = (int32_t)e;
        weights[j] = c->scores[e];
    }
    scale_weights(weights, p);
}

enum status NAME(route)(const union op_params *p, const struct operand *in,
                        const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const real *logits = in[0].data, *correction = in[1].data;
    real *weights = out[0].data;
    int32_t *experts = out[1].data;
    const size_t num_tokens = in[0].shape[0], num_experts = in[0].shape[1], topk = p->route.topk;
#pragma omp parallel for num_threads(workers()) if (num_tokens * num_experts >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        const struct choice c =
            choice_at((char *)workspace + worker() * choice_bytes(num_experts), num_experts);
        route_token(&c, p, logits + t * num_experts, correction, num_experts, weights + t * topk,
                    experts + t * topk);
    }
    return OK;
}

size_t NAME(route_workspace)(const union op_params *p, const struct operand *in,
                             const struct operand *out)
{
    (void)p, (void)out;
    return most_workers() * choice_bytes(in[0].shape[1]);
}

/* ---- backward ---- */

/* One token's, in the workspace; arrays of num_experts elements. */
struct slope {
    real *scores;   /* as in route; then softmax of the logits */
    real *d_logits; /* gradients of the logits */
    real *chosen;   /* weights before normalizing */
    real *d_chosen;
};

static size_t slope_reals(size_t num_experts)
{
    return (4 * num_experts + LINE - 1) / LINE * LINE;
}

static struct slope slope_at(real *workspace, size_t num_experts)
{
    return (struct slope){.scores = workspace,
                          .d_logits = workspace + num_experts,
                          .chosen = workspace + 2 * num_experts,
                          .d_chosen = workspace + 3 * num_experts};
}

static real dot(const real *a, const real *b, size_t n)
{
    real sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Backward of a softmax x: d becomes x (d - sum of x d). */
static void softmax_backward(const real *x, real *d, size_t n)
{
    const real mean = dot(x, d, n);
    for (size_t i = 0; i < n; i++)
        d[i] = x[i] * (d[i] - mean);
}

/* The gradient of weights becomes that of the weights before normalizing
 * and scaling. */
static void unscale_weights(const struct slope *s, const union op_params *p, const real *d_weights)
{
    const size_t topk = p->route.topk;
    real divisor = 1, mean = 0;
    if (p->route.normalize) {
        divisor = (real)1e-20;
        for (size_t j = 0; j < topk; j++)
            divisor += s->chosen[j];
        mean = dot(d_weights, s->chosen, topk) / divisor;
    }
    for (size_t j = 0; j < topk; j++)
        s->d_chosen[j] = (d_weights[j] - mean) / divisor * (real)p->route.scaling;
}

/* d_logits by the path of the weights. */
static void unroute_token(const struct slope *s, const union op_params *p, const real *logits,
                          const int32_t *experts, const real *d_weights, size_t num_experts)
{
    const size_t topk = p->route.topk;
    score(s->scores, p, logits, num_experts);
    for (size_t j = 0; j < topk; j++)
        s->chosen[j] = s->scores[experts[j]];
    if (p->route.after_choice) softmax(s->chosen, topk);
    unscale_weights(s, p, d_weights);
    if (p->route.after_choice) softmax_backward(s->chosen, s->d_chosen, topk);
    memset(s->d_logits, 0, num_experts * sizeof *s->d_logits);
    for (size_t j = 0; j < topk; j++) {
        assert(experts[j] >= 0 && (size_t)experts[j] < num_experts);
        const real slope = p->route.sigmoid ? s->chosen[j] * (1 - s->chosen[j]) : 1;
        s->d_logits[experts[j]] = s->d_chosen[j] * slope;
    }
    if (!p->route.sigmoid && !p->route.after_choice)
        softmax_backward(s->scores, s->d_logits, num_experts);
}

/* ---- the losses of routers ---- */

/* Index of a token's sequence among the S. */
static size_t sequence_of(const union op_params *p, size_t token)
{
    return p->route.sequence_length ? (p->route.first_token + token) / p->route.sequence_length : 0;
}

/* Probabilities of experts in balance_loss. */
static void balance_scores(real *scores, const union op_params *p, const real *logits,
                           size_t num_experts)
{
    union op_params before = *p;
    real sum = (real)1e-20;
    before.route.after_choice = false;
    score(scores, &before, logits, num_experts);
    if (!p->route.sigmoid) return;
    for (size_t e = 0; e < num_experts; e++)
        sum += scores[e];
    for (size_t e = 0; e < num_experts; e++)
        scores[e] /= sum;
}

/* Divisor of balance: the sum of the only counts if they become shares,
 * else 1. */
static real balance_divisor(const union op_params *p, const struct operand *counts)
{
    const int32_t *count = counts->data;
    int64_t sum = 0;
    if (!p->route.of_share || !count) return 1;
    for (size_t e = 0; e < counts->shape[1]; e++)
        sum += count[e];
    return (real)sum;
}

/* d_logits += factor * gradient of the sum of counts[e] *
 * balance_scores[e]: for softmax scores[e] (counts[e] - their mean), for
 * sigmoid this times 1 - sigmoid. */
static void add_balance(const struct slope *s, const union op_params *p, const real *logits,
                        const int32_t *counts, size_t num_experts, real factor)
{
    real mean = 0;
    balance_scores(s->scores, p, logits, num_experts);
    for (size_t e = 0; e < num_experts; e++)
        mean += s->scores[e] * (real)counts[e];
    for (size_t e = 0; e < num_experts; e++) {
        const real slope = p->route.sigmoid ? 1 - real_sigmoid(logits[e]) : 1;
        s->d_logits[e] += factor * s->scores[e] * slope * ((real)counts[e] - mean);
    }
}

static real log_sum_exp(const real *logits, size_t num_experts)
{
    real top = -INFINITY, sum = 0;
    for (size_t e = 0; e < num_experts; e++)
        top = is_above(logits[e], top) ? logits[e] : top;
    for (size_t e = 0; e < num_experts; e++)
        sum += real_exp(logits[e] - top);
    return top + real_log(sum);
}

/* d_logits += factor * gradient of logsumexp(logits)^2. */
static void add_z(const struct slope *s, const real *logits, size_t num_experts, real factor)
{
    const real z = log_sum_exp(logits, num_experts);
    for (size_t e = 0; e < num_experts; e++)
        s->d_logits[e] += factor * 2 * z * real_exp(logits[e] - z);
}

enum status NAME(route_backward)(const union op_params *p, const struct operand *in,
                                 const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const real *logits = in[0].data, *d_weights = in[2].data, *scale = in[4].data;
    const int32_t *experts = in[1].data, *counts = in[3].data;
    const real times = scale ? *scale : 1, z = (real)p->route.z * times,
               balance = (real)p->route.balance * times / balance_divisor(p, &in[3]);
    elem *d_logits = out[0].data;
    const size_t num_tokens = in[0].shape[0], num_experts = in[0].shape[1], topk = p->route.topk;
#pragma omp parallel for num_threads(workers()) if (num_tokens * num_experts >= WORTH_THREADS)
    for (size_t t = 0; t < num_tokens; t++) {
        const struct slope s =
            slope_at((real *)workspace + worker() * slope_reals(num_experts), num_experts);
        const real *own = logits + t * num_experts;
        unroute_token(&s, p, own, experts + t * topk, d_weights + t * topk, num_experts);
        if (counts)
            add_balance(&s, p, own, counts + sequence_of(p, t) * num_experts, num_experts, balance);
        if (p->route.z > 0) add_z(&s, own, num_experts, z);
        for (size_t e = 0; e < num_experts; e++)
            d_logits[t * num_experts + e] = store(s.d_logits[e]);
    }
    return OK;
}

size_t NAME(route_backward_workspace)(const union op_params *p, const struct operand *in,
                                      const struct operand *out)
{
    (void)p, (void)out;
    return most_workers() * slope_reals(in[0].shape[1]) * sizeof(real);
}

void NAME(count_experts)(const union op_params *p, const struct operand *in,
                         const struct operand *out)
{
    const int32_t *experts = in[0].data, *sum = in[1].data;
    int32_t *counts = out[0].data;
    const size_t num_tokens = in[0].shape[0], topk = in[0].shape[1], num_experts = out[0].shape[1],
                 bytes = out[0].shape[0] * num_experts * sizeof *counts;
    if (!sum)
        memset(counts, 0, bytes);
    else if (sum != counts)
        memcpy(counts, sum, bytes);
    for (size_t i = 0; i < num_tokens * topk; i++) {
        const size_t sequence = sequence_of(p, i / topk);
        assert(experts[i] >= 0 && (size_t)experts[i] < num_experts);
        assert(sequence < out[0].shape[0]);
        counts[sequence * num_experts + (size_t)experts[i]]++;
    }
}

void NAME(update_expert_bias)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    const int32_t *counts = in[0].data;
    const real *bias = in[1].data, rate = (real)p->expert_bias.rate;
    real *to = out[0].data;
    const int64_t num_experts = (int64_t)in[1].shape[0];
    int64_t sum = 0;
    for (int64_t e = 0; e < num_experts; e++)
        sum += counts[e];
    for (int64_t e = 0; e < num_experts; e++) {
        const int64_t missing = sum - counts[e] * num_experts;
        to[e] = bias[e] + (real)((missing > 0) - (missing < 0)) * rate;
    }
}

/* A token's loss. scores: room for num_experts. counts: those of
 * its sequence. */
typedef real token_loss_function(const union op_params *p, const real *logits,
                                 const int32_t *counts, size_t num_experts, real *scores);

/* Sum over e of counts[e] * balance_scores[e]. */
static real expected_count(const union op_params *p, const real *logits, const int32_t *counts,
                           size_t num_experts, real *scores)
{
    real counted = 0;
    balance_scores(scores, p, logits, num_experts);
    for (size_t e = 0; e < num_experts; e++)
        counted += scores[e] * (real)counts[e];
    return counted;
}

static real squared_z(const union op_params *p, const real *logits, const int32_t *counts,
                      size_t num_experts, real *scores)
{
    (void)p, (void)counts, (void)scores;
    const real z = log_sum_exp(logits, num_experts);
    return z * z;
}

static size_t num_sums(const struct operand *logits)
{
    return (logits->shape[0] + SUM_TOKENS - 1) / SUM_TOKENS;
}

/* Bytes of all sums, then of each worker's scores. */
static size_t losses_workspace(const struct operand *logits)
{
    return (num_sums(logits) + most_workers() * slope_reals(logits->shape[1])) * sizeof(real);
}

/* Sum of the losses of all tokens. */
static real sum_losses(token_loss_function *loss, const union op_params *p,
                       const struct operand *logits, const int32_t *counts, real *workspace)
{
    const size_t num_tokens = logits->shape[0], num_experts = logits->shape[1],
                 n = num_sums(logits);
    const real *x = logits->data;
    real *sums = workspace, all = 0;
#pragma omp parallel for num_threads(workers()) if (num_tokens * num_experts >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++) {
        real *scores = workspace + n + worker() * slope_reals(num_experts);
        sums[i] = 0;
        for (size_t t = i * SUM_TOKENS; t < min_size((i + 1) * SUM_TOKENS, num_tokens); t++)
            sums[i] +=
                loss(p, x + t * num_experts,
                     counts ? counts + sequence_of(p, t) * num_experts : NULL, num_experts, scores);
    }
    for (size_t i = 0; i < n; i++)
        all += sums[i];
    return all;
}

enum status NAME(balance_loss)(const union op_params *p, const struct operand *in,
                               const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const real *loss_sum = in[2].data;
    const real all = sum_losses(expected_count, p, &in[0], in[1].data, workspace),
               balance = (real)p->route.balance / balance_divisor(p, &in[1]);
    *(real *)out[0].data = (loss_sum ? *loss_sum : 0) + balance * all;
    return OK;
}

size_t NAME(balance_loss_workspace)(const union op_params *p, const struct operand *in,
                                    const struct operand *out)
{
    (void)p, (void)out;
    return losses_workspace(in);
}

enum status NAME(z_loss)(const union op_params *p, const struct operand *in,
                         const struct operand *out, void *workspace, struct error *err)
{
    (void)err;
    const real *loss_sum = in[1].data;
    const real all = sum_losses(squared_z, p, &in[0], NULL, workspace);
    *(real *)out[0].data = (loss_sum ? *loss_sum : 0) + (real)p->route.z * all;
    return OK;
}

size_t NAME(z_loss_workspace)(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    (void)p, (void)out;
    return losses_workspace(in);
}
