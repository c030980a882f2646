/* A block a sequence. What may be drawn is cut at one id, the last in the order of preference; it
 * is found by bisection over the bits of logits, counting or weighing what lies above. */
#include "kernels/cuda/cuda.h"

/* Logits as unsigned numbers of the same order. */
__device__ inline uint32_t order_of(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline uint64_t order_of(double x)
{
    const uint64_t bits = (uint64_t)__double_as_longlong(x + 0.0), sign = (uint64_t)1 << 63;
    return bits & sign ? ~bits : bits | sign;
}

template <typename R> struct order_type {
    typedef uint32_t type;
};
template <> struct order_type<double> {
    typedef uint64_t type;
};
template <typename R> using order = typename order_type<R>::type;

template <typename R> struct draw {
    const R *logits;
    double *weights; /* exp((logit - max) / temperature) */
    unsigned num_ids;
};

/* A thread's ids: a run, so that what comes before it is what threads before it have. */
struct run {
    unsigned begin, end;
};

__device__ inline struct run own_run(unsigned num_ids)
{
    const unsigned length = (num_ids + blockDim.x - 1) / blockDim.x;
    struct run r;
    r.begin = min(threadIdx.x * length, num_ids);
    r.end = min(r.begin + length, num_ids);
    return r;
}

template <typename R> struct best {
    R value;
    int id; /* -1 where there is a NaN */
};

template <typename R> __device__ inline struct best<R> better(struct best<R> a, struct best<R> b) {
    if (a.id < 0 || b.id < 0) return a.id < 0 ? a : b;
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.id < b.id ? a : b;
}

/* The largest, the first of equals. All threads get it. */
template <typename R>
__device__ inline struct best<R> largest(const R *logits, unsigned num_ids) {
    __shared__ struct best<R> parts[WARP], result;
    struct best<R> b = {
        - R(INFINITY), 0x7fffffff
    };
    for (unsigned i = threadIdx.x; i < num_ids; i += blockDim.x)
        b = better(b, {logits[i], logits[i] != logits[i] ? -1 : (int)i});
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const R value = __shfl_xor_sync(ALL_LANES, b.value, distance);
        const int id = __shfl_xor_sync(ALL_LANES, b.id, distance);
        b = better(b, {value, id});
    }
    if (lane_id() == 0) parts[warp_id()] = b;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < blockDim.x / WARP; w++)
            b = better(b, parts[w]);
        result = b;
    }
    __syncthreads();
    return result;
}

/* How many, or how heavy, the ids are whose logits are `threshold` or more. */
template <typename R>
__device__ inline double measure(const struct draw<R> &d, order<R> threshold, bool weigh)
{
    double part = 0;
    for (unsigned i = threadIdx.x; i < d.num_ids; i += blockDim.x)
        if (order_of(d.logits[i]) >= threshold) part += weigh ? d.weights[i] : 1;
    return block_sum(part);
}

/* The largest threshold whose measure reaches `enough`. */
template <typename R>
__device__ inline order<R> threshold_of(const struct draw<R> &d, double enough, bool weigh)
{
    order<R> threshold = 0;
    for (int bit = 8 * sizeof(R) - 1; bit >= 0; bit--) {
        const order<R> higher = threshold | (order<R>)1 << bit;
        if (measure(d, higher, weigh) >= enough) threshold = higher;
    }
    return threshold;
}

/* The number'th id (from 1) of those with this logit, or the last of them; -1 where none has it. */
template <typename R>
__device__ inline int nth_equal(const struct draw<R> &d, order<R> logit, double number)
{
    __shared__ int result;
    const struct run r = own_run(d.num_ids);
    int own = 0, total, id = -1;
    for (unsigned i = r.begin; i < r.end; i++)
        own += order_of(d.logits[i]) == logit;
    int at = block_sum_before(own, &total);
    if (threadIdx.x == 0) result = -1;
    __syncthreads();
    const int wanted = number < total ? (int)number : total;
    for (unsigned i = r.begin; i < r.end; i++)
        if (order_of(d.logits[i]) == logit && ++at == wanted) id = (int)i;
    if (id >= 0) result = id;
    __syncthreads();
    return result;
}

/* The weight of one id with the logit `threshold`; all of them have it. */
template <typename R>
__device__ inline double weight_at(const struct draw<R> &d, order<R> threshold)
{
    const int id = nth_equal(d, threshold, 1);
    return id < 0 ? 0 : d.weights[id];
}

/* The last id, in order of preference, of the fewest that reach `enough`. */
template <typename R>
__device__ inline int last_reaching(const struct draw<R> &d, double enough, bool weigh)
{
    const order<R> threshold = threshold_of(d, enough, weigh);
    const double above = threshold + 1 == 0 ? 0 : measure(d, (order<R>)(threshold + 1), weigh);
    const double each = weigh ? weight_at(d, threshold) : 1;
    const double number = each > 0 ? ceil((enough - above) / each) : 1;
    return nth_equal(d, threshold, number > 1 ? number : 1);
}

/* Whether id may be drawn where `last` is the last that may (-1: all). */
template <typename R> __device__ inline bool may_draw(const struct draw<R> &d, int id, int last)
{
    if (last < 0 || id == last) return true;
    const order<R> a = order_of(d.logits[id]), b = order_of(d.logits[last]);
    return a > b || (a == b && id < last);
}

template <typename R> __device__ inline double sum_of(const struct draw<R> &d, int last)
{
    double part = 0;
    for (unsigned i = threadIdx.x; i < d.num_ids; i += blockDim.x)
        if (may_draw(d, (int)i, last)) part += d.weights[i];
    return block_sum(part);
}

/* -1: all may be drawn. */
template <typename R>
__device__ inline int last_choice(const struct draw<R> &d, unsigned top_k, double top_p)
{
    const bool all = top_k == 0 || top_k >= d.num_ids;
    const int last = all ? -1 : last_reaching(d, (double)top_k, false);
    if (top_p >= 1) return last;
    return last_reaching(d, fmax(top_p * sum_of(d, last), 1e-300), true); /* at least one */
}

/* The first id at which the weights of those that may be drawn pass `part` of their sum; rounding
 * may leave that behind the last one. */
template <typename R> __device__ inline int draw_id(const struct draw<R> &d, int last, double part)
{
    __shared__ int heaviest, result; /* the last id of any weight; the first that passes */
    const struct run r = own_run(d.num_ids);
    double own = 0, sum;
    if (threadIdx.x == 0) heaviest = 0, result = 0x7fffffff;
    for (unsigned i = r.begin; i < r.end; i++)
        if (may_draw(d, (int)i, last)) own += d.weights[i];
    double upto = block_sum_before(own, &sum);
    for (unsigned i = r.begin; i < r.end; i++) {
        if (!may_draw(d, (int)i, last) || !(d.weights[i] > 0)) continue;
        upto += d.weights[i];
        atomicMax(&heaviest, (int)i);
        if (upto > part * sum) {
            atomicMin(&result, (int)i);
            break;
        }
    }
    __syncthreads();
    return result == 0x7fffffff ? heaviest : result;
}

/* kernels/cpu/random.c: splitmix64's output function, and the number that (seed, index) gives */
__host__ __device__ inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

__device__ inline double random_number(uint64_t seed, uint64_t index)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    return (double)(mix(mix(seed + golden) + index * golden) >> 11) * 0x1p-53;
}

template <typename R> struct sample_args {
    const R *logits;
    const int32_t *counter, *bad; /* [1]; bad: NULL, or [1] */
    int32_t *ids;
    double *weights; /* [n, V] */
    unsigned num_ids, top_k;
    double temperature, top_p;
    uint64_t seed;
};

template <typename R>
__device__ inline int sample_row(const struct sample_args<R> &a, const struct draw<R> &d)
{
    const struct best<R> b = largest(d.logits, d.num_ids);
    if (b.id < 0 || a.temperature == 0) return b.id;
    if (isinf(b.value)) return -1;
    for (unsigned i = threadIdx.x; i < d.num_ids; i += blockDim.x)
        d.weights[i] = exp(((double)d.logits[i] - (double)b.value) / a.temperature);
    __syncthreads(); /* others' weights are read below */
    const double part = random_number(a.seed, (uint64_t)a.counter[0] + blockIdx.x);
    return draw_id(d, last_choice(d, a.top_k, a.top_p), part);
}

template <typename R> __global__ void sample_rows(const struct sample_args<R> a)
{
    const size_t row = (size_t)blockIdx.x * a.num_ids;
    const struct draw<R> d = {
        a.logits + row, a.weights + row, a.num_ids
    };
    const int id = a.bad && *a.bad ? -1 : sample_row(a, d);
    if (threadIdx.x == 0) a.ids[blockIdx.x] = id;
}

template <typename E> enum status op_sample(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    struct sample_args<real> a = {
    };
    a.logits = data_of<real>(in[0]);
    a.counter = data_of<int32_t>(in[1]);
    a.bad = data_of<int32_t>(in[2]);
    a.ids = data_of<int32_t>(out[0]);
    a.weights = static_cast<double *>(workspace);
    a.num_ids = (unsigned)in[0].shape[1];
    a.top_k = p->sample.top_k;
    a.temperature = p->sample.temperature;
    a.top_p = p->sample.top_p;
    a.seed = p->sample.seed;
    return launch("sample", err, sample_rows<real>, dim3((unsigned)in[0].shape[0]),
                  threads_for(a.num_ids, MAX_THREADS), 0, a);
}

template <typename E> size_t op_sample_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)out;
    return p->sample.temperature == 0 ? 0 : in[0].shape[0] * in[0].shape[1] * sizeof(double);
}

FOR_ALL_TYPES(op_sample)
WORKSPACE_FOR_ALL_TYPES(op_sample_workspace)
