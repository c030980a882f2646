/* A warp a token; what it chooses from lies in shared memory. */
#include "kernels/cuda/cuda.h"

template <typename R> struct route_args {
    const R *logits, *correction; /* [T, E]; [E] or NULL */
    R *weights;                   /* [T, topk] */
    int32_t *experts;
    size_t num_tokens;
    unsigned num_experts, topk, num_groups, topk_groups;
    bool sigmoid, after_choice, normalize;
    R scaling;
};

/* One token's. What is chosen, or may not be, is out. */
template <typename R> struct choice {
    R *scores, *ranks, *groups; /* what experts are weighted with, chosen by; [num_groups] */
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

/* NaN is above everything: what is not a number is chosen, and its weight shows it. */
template <typename R>
__device__ inline bool is_above(R a, R b)
{
    return a > b || (a != a && b == b);
}

/* The first of the largest of x that is not out yet, which then is. All lanes get its index. */
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

/* One lane's: topk are few, and their order is the CPU's. */
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

template <typename E> enum status op_route(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    (void)workspace;
    struct route_args<real> a = {
    };
    a.logits = data_of<real>(in[0]);
    a.correction = data_of<real>(in[1]);
    a.weights = data_of<real>(out[0]);
    a.experts = data_of<int32_t>(out[1]);
    a.num_tokens = in[0].shape[0];
    a.num_experts = (unsigned)in[0].shape[1];
    a.topk = p->route.topk;
    a.num_groups = p->route.num_groups;
    a.topk_groups = p->route.topk_groups;
    a.sigmoid = p->route.sigmoid;
    a.after_choice = p->route.after_choice;
    a.normalize = p->route.normalize;
    a.scaling = (real)p->route.scaling;
    const size_t bytes = choice_bytes<real>(a.num_experts);
    const unsigned warps = bytes * 8 <= PLAIN_SHARED_BYTES ? 8 : 1;
    if (bytes > PLAIN_SHARED_BYTES)
        return fail(err, ERR_UNSUPPORTED, "%u experts are more than a GPU chooses from",
                    a.num_experts);
    return launch("route", err, route_tokens<real>, dim3(blocks_for(a.num_tokens, warps)),
                  warps * WARP, warps * bytes, a);
}

FOR_ALL_TYPES(op_route)
