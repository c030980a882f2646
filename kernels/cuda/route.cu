/* A warp for each token; its candidates lie in shared memory. */
#include "kernels/cuda/cuda.h"

template <typename R> struct route_args {
    const R *logits, *correction; /* [T, E]; [E] or NULL */
    R *weights;                   /* [T, topk] */
    int32_t *experts;
    size_t num_tokens;
    unsigned num_experts, topk, num_groups, topk_groups;
    bool sigmoid, after_choice, normalize, of_share;
    R scaling;
    size_t first_token, sequence_length; /* for counts of sequences */
};

/* One token's. An expert that is chosen or excluded is `out`. */
template <typename R> struct choice {
    R *scores, *ranks, *groups; /* weight and choose experts; [num_groups] */
    bool *out, *groups_out;
};

template <typename R> __host__ __device__ inline size_t choice_bytes(unsigned num_experts)
{
    return (num_experts * (3 * sizeof(R) + 2) + 15) / 16 * 16;
}

template <typename R>
__device__ inline struct choice<R> choice_at(char *shared, unsigned num_experts) {
    struct choice<R> c;
    c.scores = reinterpret_cast<R *>(shared + warp_id() * choice_bytes<R>(num_experts));
    c.ranks = c.scores + num_experts;
    c.groups = c.ranks + num_experts;
    c.out = reinterpret_cast<bool *>(c.groups + num_experts);
    c.groups_out = c.out + num_experts;
    return c;
}

/* NaN is above everything: it is chosen, and shows in the weight. */
template <typename R>
__device__ inline bool is_above(R a, R b)
{
    return a > b || (a != a && b == b);
}

/* Takes the first largest element of x that is not out. All lanes get
 * its index. */
template <typename R> __device__ inline unsigned take_largest(const R *x, bool *out, unsigned n)
{
    unsigned best = n;
    R most = 0;
    for (unsigned i = lane_id(); i < n; i += WARP)
        if (!out[i] && (best == n || is_above(x[i], most))) best = i, most = x[i];
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const unsigned other = __shfl_xor_sync(ALL_LANES, best, distance);
        const R value = __shfl_xor_sync(ALL_LANES, most, distance);
        if (other == n) continue;
        const bool equal = !is_above(value, most) && !is_above(most, value);
        if (best == n || is_above(value, most) || (equal && other < best))
            best = other, most = value;
    }
    __syncwarp(); /* all lanes have read out */
    if (lane_id() == 0) out[best] = true;
    __syncwarp();
    return best;
}

struct above {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return is_above(a, b) ? a : b;
    }
};

template <typename R> __device__ inline void softmax(R *x, unsigned n)
{
    R top = -R(INFINITY), sum = 0;
    for (unsigned i = lane_id(); i < n; i += WARP)
        top = above()(x[i], top);
    top = warp_reduce(top, above());
    for (unsigned i = lane_id(); i < n; i += WARP)
        sum += x[i] = exp(x[i] - top);
    sum = warp_reduce(sum, add_up());
    for (unsigned i = lane_id(); i < n; i += WARP)
        x[i] /= sum;
    __syncwarp();
}

template <typename R>
__device__ inline void score(const struct route_args<R> &a, const struct choice<R> &c,
                             const R *logits)
{
    for (unsigned e = lane_id(); e < a.num_experts; e += WARP) {
        c.scores[e] = a.sigmoid && !a.after_choice ? 1 / (1 + exp(-logits[e])) : logits[e];
        c.out[e] = false;
    }
    __syncwarp();
    if (!a.sigmoid && !a.after_choice) softmax(c.scores, a.num_experts);
    for (unsigned e = lane_id(); e < a.num_experts; e += WARP)
        c.ranks[e] = c.scores[e] + (a.correction ? a.correction[e] : 0);
    __syncwarp();
}

/* The sum of the two best, or the only one. */
template <typename R> __device__ inline R group_score(const R *x, unsigned n)
{
    R best = x[0], second = -R(INFINITY);
    for (unsigned i = 1; i < n; i++) {
        const bool better = is_above(x[i], best);
        second = above()(better ? best : x[i], second);
        best = better ? x[i] : best;
    }
    return n > 1 ? best + second : best;
}

template <typename R>
__device__ inline void leave_best_groups(const struct route_args<R> &a, const struct choice<R> &c)
{
    const unsigned size = a.num_experts / a.num_groups;
    for (unsigned g = lane_id(); g < a.num_groups; g += WARP) {
        c.groups[g] = group_score(c.ranks + g * size, size);
        c.groups_out[g] = false;
    }
    __syncwarp();
    for (unsigned i = 0; i < a.topk_groups; i++)
        (void)take_largest(c.groups, c.groups_out, a.num_groups);
    for (unsigned e = lane_id(); e < a.num_experts; e += WARP)
        c.out[e] = e / size < a.num_groups && !c.groups_out[e / size];
    __syncwarp();
}

/* For one lane: topk is small, and the order is the CPU's. */
template <typename R>
__device__ inline void scale_weights(const struct route_args<R> &a, R *weights)
{
    R top = -R(INFINITY), sum = 0, divisor = 1;
    if (a.after_choice) {
        for (unsigned j = 0; j < a.topk; j++)
            top = above()(weights[j], top);
        for (unsigned j = 0; j < a.topk; j++)
            sum += weights[j] = exp(weights[j] - top);
        for (unsigned j = 0; j < a.topk; j++)
            weights[j] /= sum;
    }
    if (a.normalize) {
        divisor = R(1e-20);
        for (unsigned j = 0; j < a.topk; j++)
            divisor += weights[j];
    }
    for (unsigned j = 0; j < a.topk; j++)
        weights[j] = weights[j] / divisor * a.scaling;
}

template <typename R> __global__ void route_tokens(const struct route_args<R> a)
{
    DYNAMIC_SHARED(shared);
    const size_t t = (size_t)blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (t >= a.num_tokens) return;
    const struct choice<R> c = choice_at<R>(shared, a.num_experts);
    R *weights = a.weights + t * a.topk;
    score(a, c, a.logits + t * a.num_experts);
    if (a.num_groups > 1) leave_best_groups(a, c);
    for (unsigned j = 0; j < a.topk; j++) {
        const unsigned e = take_largest(c.ranks, c.out, a.num_experts);
        if (lane_id() != 0) continue;
        a.experts[t * a.topk + j] = (int32_t)e;
        weights[j] = c.scores[e];
    }
    if (lane_id() == 0) scale_weights(a, weights);
}

/* Parameters and logits, common with the backward. */
template <typename R>
static struct route_args<R> route_args_of(const union op_params *p, const struct operand *in) {
    struct route_args<R> a = {
    };
    a.logits = data_of<R>(in[0]);
    a.num_tokens = in[0].shape[0];
    a.num_experts = (unsigned)in[0].shape[1];
    a.topk = p->route.topk;
    a.num_groups = p->route.num_groups;
    a.topk_groups = p->route.topk_groups;
    a.sigmoid = p->route.sigmoid;
    a.after_choice = p->route.after_choice;
    a.normalize = p->route.normalize;
    a.of_share = p->route.of_share;
    a.scaling = (R)p->route.scaling;
    a.first_token = p->route.first_token;
    a.sequence_length = p->route.sequence_length;
    return a;
}

template <typename E>
enum status op_route(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    struct route_args<real> a = route_args_of<real>(p, in);
    a.correction = data_of<real>(in[1]);
    a.weights = data_of<real>(out[0]);
    a.experts = data_of<int32_t>(out[1]);
    const size_t bytes = choice_bytes<real>(a.num_experts);
    const unsigned warps = bytes * 8 <= PLAIN_SHARED_BYTES ? 8 : 1;
    if (bytes > PLAIN_SHARED_BYTES)
        return fail(err, ERR_UNSUPPORTED, "route: %u experts exceed the limit of GPU kernels",
                    a.num_experts);
    return launch("route", err, route_tokens<real>, dim3(blocks_for(a.num_tokens, warps)),
                  warps * WARP, warps * bytes, a);
}

/* ---- backward ---- */

template <typename E> struct route_backward_args {
    struct route_args<real_of<E>> route; /* parameters, logits and sizes */
    const int32_t *experts, *counts;     /* counts and scale may be NULL */
    const real_of<E> *dweights, *scale;
    real_of<E> balance, z;
    E *dlogits;
};

/* A warp's, in shared memory. */
template <typename R> struct route_slopes {
    R *scores;  /* [num_experts], as in route; then those of balance */
    R *dlogits; /* [num_experts] */
    R *chosen;  /* [topk], weights before normalizing */
    R *dchosen; /* [topk] */
};

template <typename R>
__host__ __device__ inline size_t route_slopes_bytes(unsigned num_experts, unsigned topk)
{
    return 2 * ((size_t)num_experts + topk) * sizeof(R);
}

/* For one lane: the gradient of the chosen before scaling, normalizing and the
 * softmax after the choice. */
template <typename R>
__device__ inline void unscale_weights(const struct route_args<R> &a, const route_slopes<R> &s,
                                       const R *dweights)
{
    R divisor = 1, mean = 0, dot = 0;
    if (a.after_choice) {
        R top = -R(INFINITY), sum = 0;
        for (unsigned j = 0; j < a.topk; j++)
            top = above()(s.chosen[j], top);
        for (unsigned j = 0; j < a.topk; j++)
            sum += s.chosen[j] = exp(s.chosen[j] - top);
        for (unsigned j = 0; j < a.topk; j++)
            s.chosen[j] /= sum;
    }
    if (a.normalize) {
        divisor = R(1e-20);
        for (unsigned j = 0; j < a.topk; j++) {
            divisor += s.chosen[j];
            mean += dweights[j] * s.chosen[j];
        }
        mean /= divisor;
    }
    for (unsigned j = 0; j < a.topk; j++) {
        s.dchosen[j] = (dweights[j] - mean) / divisor * a.scaling;
        dot += s.chosen[j] * s.dchosen[j];
    }
    for (unsigned j = 0; j < a.topk && a.after_choice; j++)
        s.dchosen[j] = s.chosen[j] * (s.dchosen[j] - dot);
}

/* Backward of a softmax x: d becomes x (d - sum of x d). */
template <typename R> __device__ inline void softmax_backward(const R *x, R *d, unsigned n)
{
    R dot = 0;
    for (unsigned e = lane_id(); e < n; e += WARP)
        dot += x[e] * d[e];
    dot = warp_reduce(dot, add_up());
    for (unsigned e = lane_id(); e < n; e += WARP)
        d[e] = x[e] * (d[e] - dot);
    __syncwarp();
}

/* dlogits by the path of the weights. */
template <typename R>
__device__ inline void unroute_token(const struct route_args<R> &a, const route_slopes<R> &s,
                                     const R *logits, const int32_t *experts, const R *dweights)
{
    const bool softens = !a.sigmoid && !a.after_choice;
    for (unsigned e = lane_id(); e < a.num_experts; e += WARP) {
        s.scores[e] = a.sigmoid && !a.after_choice ? 1 / (1 + exp(-logits[e])) : logits[e];
        s.dlogits[e] = 0;
    }
    __syncwarp();
    if (softens) softmax(s.scores, a.num_experts);
    for (unsigned j = lane_id(); j < a.topk; j += WARP)
        s.chosen[j] = s.scores[experts[j]];
    __syncwarp();
    if (lane_id() == 0) unscale_weights(a, s, dweights);
    __syncwarp();
    for (unsigned j = lane_id(); j < a.topk; j += WARP) {
        const R slope = a.sigmoid ? s.chosen[j] * (1 - s.chosen[j]) : 1;
        s.dlogits[experts[j]] = s.dchosen[j] * slope;
    }
    __syncwarp();
    if (softens) softmax_backward(s.scores, s.dlogits, a.num_experts);
}

/* Index of a token's sequence among the S. */
template <typename R> __device__ inline size_t sequence_of(const struct route_args<R> &a, size_t t)
{
    return a.sequence_length ? (a.first_token + t) / a.sequence_length : 0;
}

/* The largest logit, for a warp. */
template <typename R> __device__ inline R largest(const R *logits, unsigned n)
{
    R top = -R(INFINITY);
    for (unsigned e = lane_id(); e < n; e += WARP)
        top = above()(logits[e], top);
    return warp_reduce(top, above());
}

/* Probability of an expert in balance_loss, without its divisor. */
template <typename R> __device__ inline R balance_score(bool sigmoid, R logit, R top)
{
    return sigmoid ? 1 / (1 + exp(-logit)) : exp(logit - top);
}

/* Divisor of balance: the sum of the only counts if they become shares, else 1.
 * For a warp. */
template <typename R>
__device__ inline R balance_divisor(const struct route_args<R> &a, const int32_t *counts)
{
    R sum = 0;
    if (!a.of_share) return 1;
    for (unsigned e = lane_id(); e < a.num_experts; e += WARP)
        sum += R(counts[e]);
    return warp_reduce(sum, add_up());
}

/* Adds the gradient of balance_loss: score[e] (counts[e] - their mean), for
 * sigmoid this times 1 - sigmoid. */
template <typename R>
__device__ inline void add_balance(const route_slopes<R> &s, const R *logits, const int32_t *counts,
                                   unsigned n, bool sigmoid, R factor)
{
    const R top = largest(logits, n);
    R sum = 0, mean = 0;
    for (unsigned e = lane_id(); e < n; e += WARP) {
        s.scores[e] = balance_score(sigmoid, logits[e], top);
        sum += s.scores[e];
        mean += s.scores[e] * R(counts[e]);
    }
    sum = warp_reduce(sum, add_up()) + (sigmoid ? R(1e-20) : 0);
    mean = warp_reduce(mean, add_up()) / sum;
    for (unsigned e = lane_id(); e < n; e += WARP)
        s.dlogits[e] +=
            factor * s.scores[e] / sum * (sigmoid ? 1 - s.scores[e] : 1) * (R(counts[e]) - mean);
    __syncwarp();
}

/* For a warp. */
template <typename R> __device__ inline R log_sum_exp(const R *logits, unsigned n)
{
    const R top = largest(logits, n);
    R sum = 0;
    for (unsigned e = lane_id(); e < n; e += WARP)
        sum += exp(logits[e] - top);
    return top + log(warp_reduce(sum, add_up()));
}

/* Adds the gradient of logsumexp(logits)^2. */
template <typename R>
__device__ inline void add_z(const route_slopes<R> &s, const R *logits, unsigned n, R factor)
{
    const R z = log_sum_exp(logits, n);
    for (unsigned e = lane_id(); e < n; e += WARP)
        s.dlogits[e] += factor * 2 * z * exp(logits[e] - z);
    __syncwarp();
}

/* A warp for each token. */
template <typename E> __global__ void route_backward_tokens(const route_backward_args<E> b)
{
    typedef real_of<E> real;
    DYNAMIC_SHARED(shared);
    const struct route_args<real> &a = b.route;
    const size_t t = (size_t)blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (t >= a.num_tokens) return;
    const real *logits = a.logits + t * a.num_experts;
    route_slopes<real> s;
    s.scores = reinterpret_cast<real *>(
        shared + warp_id() * route_slopes_bytes<real>(a.num_experts, a.topk));
    s.dlogits = s.scores + a.num_experts;
    s.chosen = s.dlogits + a.num_experts;
    s.dchosen = s.chosen + a.topk;
    unroute_token(a, s, logits, b.experts + t * a.topk, b.dweights + t * a.topk);
    const real scale = b.scale ? b.scale[0] : 1;
    if (b.counts)
        add_balance(s, logits, b.counts + sequence_of(a, t) * a.num_experts, a.num_experts,
                    a.sigmoid, b.balance * scale / balance_divisor(a, b.counts));
    if (b.z > 0) add_z(s, logits, a.num_experts, b.z * scale);
    for (unsigned e = lane_id(); e < a.num_experts; e += WARP)
        b.dlogits[t * a.num_experts + e] = from_real<E>(s.dlogits[e]);
}

template <typename E> enum status op_route_backward(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    route_backward_args<E> b = {};
    b.route = route_args_of<real>(p, in);
    b.experts = data_of<int32_t>(in[1]);
    b.dweights = data_of<real>(in[2]);
    b.counts = data_of<int32_t>(in[3]);
    b.scale = data_of<real>(in[4]);
    b.balance = (real)p->route.balance;
    b.z = (real)p->route.z;
    b.dlogits = data_of<E>(out[0]);
    const size_t bytes = route_slopes_bytes<real>(b.route.num_experts, b.route.topk);
    const unsigned warps = bytes * 8 <= PLAIN_SHARED_BYTES ? 8 : 1;
    if (bytes > PLAIN_SHARED_BYTES)
        return fail(err, ERR_UNSUPPORTED, "route: %u experts exceed the limit of GPU kernels",
                    b.route.num_experts);
    return launch("route_backward", err, route_backward_tokens<E>,
                  dim3(blocks_for(b.route.num_tokens, warps)), warps * WARP, warps * bytes, b);
}

/* ---- counts of tokens by expert ---- */

struct counting {
    const int32_t *experts, *counts_sum; /* [T, topk]; NULL: 0 */
    int32_t *counts;                     /* [sequences, experts] */
    size_t num_tokens, first_token, sequence_length;
    unsigned topk, num_experts;
};

/* A block for each sequence and expert. */
__global__ void count_tokens(const struct counting a)
{
    const size_t sequence = blockIdx.x / a.num_experts;
    const int32_t expert = (int32_t)(blockIdx.x % a.num_experts);
    size_t begin = 0, end = a.num_tokens;
    if (a.sequence_length) {
        const size_t first = sequence * a.sequence_length, last = first + a.sequence_length;
        begin = min(a.num_tokens, first > a.first_token ? first - a.first_token : 0);
        end = min(a.num_tokens, last > a.first_token ? last - a.first_token : 0);
    }
    int count = 0;
    for (size_t i = begin * a.topk + threadIdx.x; i < end * a.topk; i += blockDim.x)
        count += a.experts[i] == expert;
    count = block_sum(count);
    if (threadIdx.x == 0)
        a.counts[blockIdx.x] = (a.counts_sum ? a.counts_sum[blockIdx.x] : 0) + count;
}

template <typename E> enum status op_count_experts(OP_ARGUMENTS)
{
    (void)workspace;
    struct counting a = {};
    a.experts = data_of<int32_t>(in[0]);
    a.counts_sum = data_of<int32_t>(in[1]);
    a.counts = data_of<int32_t>(out[0]);
    a.num_tokens = in[0].shape[0];
    a.topk = (unsigned)in[0].shape[1];
    a.num_experts = (unsigned)out[0].shape[1];
    a.first_token = p->route.first_token;
    a.sequence_length = p->route.sequence_length;
    return launch("count_experts", err, count_tokens,
                  dim3((unsigned)out[0].shape[0] * a.num_experts), 256, 0, a);
}

/* ---- the bias that balances experts ---- */

/* For one block. */
template <typename R>
__global__ void move_bias(const int32_t *counts, const R *bias, R *to, unsigned num_experts, R rate)
{
    double sum = 0; /* exact */
    for (unsigned e = threadIdx.x; e < num_experts; e += blockDim.x)
        sum += counts[e];
    sum = block_sum(sum);
    for (unsigned e = threadIdx.x; e < num_experts; e += blockDim.x) {
        const double missing = sum - (double)counts[e] * num_experts;
        to[e] = bias[e] + R((missing > 0) - (missing < 0)) * rate;
    }
}

template <typename E> enum status op_update_expert_bias(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    return launch("update_expert_bias", err, move_bias<real>, dim3(1), 256, 0,
                  data_of<int32_t>(in[0]), data_of<real>(in[1]), data_of<real>(out[0]),
                  (unsigned)in[1].shape[0], (real)p->expert_bias.rate);
}

/* ---- the losses of routers ---- */

enum { LOSS_WARPS = 8, LOSS_TOKENS = 64 }; /* of a block */

template <typename R> struct loss_args {
    struct route_args<R> route; /* parameters, logits and sizes */
    const int32_t *counts;      /* NULL: the z-loss */
    double *parts;              /* one for each block */
};

/* The sum over experts of counts[e] * score[e], for a warp. */
template <typename R>
__device__ inline R expected_count(const R *logits, const int32_t *counts, unsigned n, bool sigmoid)
{
    const R top = largest(logits, n);
    R sum = 0, counted = 0;
    for (unsigned e = lane_id(); e < n; e += WARP) {
        const R x = balance_score(sigmoid, logits[e], top);
        sum += x;
        counted += x * R(counts[e]);
    }
    sum = warp_reduce(sum, add_up()) + (sigmoid ? R(1e-20) : 0);
    return warp_reduce(counted, add_up()) / sum;
}

template <typename R> __device__ inline R token_loss(const loss_args<R> &l, size_t t)
{
    const struct route_args<R> &a = l.route;
    const R *logits = a.logits + t * a.num_experts;
    if (l.counts)
        return expected_count(logits, l.counts + sequence_of(a, t) * a.num_experts, a.num_experts,
                              a.sigmoid) /
               balance_divisor(a, l.counts);
    const R z = log_sum_exp(logits, a.num_experts);
    return z * z;
}

template <typename R> __global__ void loss_parts(const loss_args<R> l)
{
    const size_t begin = (size_t)blockIdx.x * LOSS_TOKENS;
    const size_t end = min(l.route.num_tokens, begin + LOSS_TOKENS);
    double sum = 0;
    for (size_t t = begin + warp_id(); t < end; t += LOSS_WARPS)
        sum += (double)token_loss(l, t);
    sum = block_sum(lane_id() == 0 ? sum : 0);
    if (threadIdx.x == 0) l.parts[blockIdx.x] = sum;
}

template <typename R>
__global__ void add_loss_parts(const double *parts, unsigned num_parts, double factor,
                               const R *loss_sum, R *loss)
{
    double sum = 0;
    for (unsigned i = threadIdx.x; i < num_parts; i += blockDim.x)
        sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) loss[0] = R((loss_sum ? (double)loss_sum[0] : 0) + factor * sum);
}

/* loss = loss_sum + factor * the sum over tokens; a kernel's name. */
template <typename R>
static enum status sum_losses(const char *name, const loss_args<R> &l, double factor,
                              const struct operand &loss_sum, const struct operand &loss,
                              struct error *err)
{
    const unsigned parts = blocks_for(l.route.num_tokens, LOSS_TOKENS);
    TRY(launch(name, err, loss_parts<R>, dim3(parts), LOSS_WARPS * WARP, 0, l));
    return launch(name, err, add_loss_parts<R>, dim3(1), threads_for(parts, 256), 0, l.parts, parts,
                  factor, data_of<R>(loss_sum), data_of<R>(loss));
}

template <typename E> enum status op_balance_loss(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const loss_args<real> l = {route_args_of<real>(p, in), data_of<int32_t>(in[1]),
                               static_cast<double *>(workspace)};
    return sum_losses("balance_loss", l, p->route.balance, in[2], out[0], err);
}

template <typename E> enum status op_z_loss(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const loss_args<real> l = {route_args_of<real>(p, in), NULL, static_cast<double *>(workspace)};
    return sum_losses("z_loss", l, p->route.z, in[1], out[0], err);
}

template <typename E> size_t op_balance_loss_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)out;
    return blocks_for(in[0].shape[0], LOSS_TOKENS) * sizeof(double);
}

template <typename E> size_t op_z_loss_workspace(WORKSPACE_ARGUMENTS)
{
    return op_balance_loss_workspace<E>(p, in, out);
}

FOR_ALL_TYPES(op_route)
FOR_ALL_TYPES(op_route_backward)
FOR_ALL_TYPES(op_count_experts)
FOR_ALL_TYPES(op_update_expert_bias)
FOR_ALL_TYPES(op_balance_loss)
FOR_ALL_TYPES(op_z_loss)
WORKSPACE_FOR_ALL_TYPES(op_balance_loss_workspace)
WORKSPACE_FOR_ALL_TYPES(op_z_loss_workspace)
