/* sample.cu - OP_SAMPLE. Three kernels: each row's largest logit, each id's
 * weight, the draw.
 *
 * 1. A weight is exp((logit - max) / temperature) as a whole number, scaled so
 *    that a row's sum is just below 2^62. Whole numbers have one sum in any
 *    order, so any thread may add to it with atomics.
 * 2. Ids are ordered by logit, larger first, then by id, lower first. top_k and
 *    top_p cut that order: ids before the cut may be drawn.
 * 3. Ids are sorted into bins, the preferred first. The cut is in the bin in
 *    which number or weight of all ids so far reaches the wanted amount. The
 *    first bins are by distance from the largest logit; within the cut's bin,
 *    the next are by BIN_BITS bits of the logit at a time. */
#include <float.h>

#include "kernels/cuda/cuda.h"

/* Logits as unsigned numbers; a larger logit is a lower number. */
__device__ inline uint32_t logit_place(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 equals 0 */
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

__device__ inline uint64_t logit_place(double x)
{
    const uint64_t bits = (uint64_t)__double_as_longlong(x + 0.0), sign = (uint64_t)1 << 63;
    return bits & sign ? bits : ~(bits | sign);
}

template <typename R> struct place_type {
    typedef uint32_t type;
};
template <> struct place_type<double> {
    typedef uint64_t type;
};
template <typename R> using place = typename place_type<R>::type;

enum { BIN_BITS = 11, BINS = 1 << BIN_BITS, BINS_PER_UNIT = 16 /* by logits / temperature */ };

/* Weights are two words, since shared memory adds only words without a loop. */
struct bins {
    unsigned low[BINS], high[BINS], counts[BINS];
};

__device__ inline uint64_t weight_of(const struct bins &bins, unsigned bin)
{
    return (uint64_t)bins.high[bin] << 32 | bins.low[bin];
}

__device__ inline void clear_bin(struct bins &bins, unsigned bin)
{
    bins.low[bin] = bins.high[bin] = bins.counts[bin] = 0;
}

/* Threads may add to a bin at once: the one that wraps the low word has
 * the carry. */
__device__ inline void add_to_bin(struct bins &bins, unsigned bin, uint64_t weight, unsigned count)
{
    atomicAdd(&bins.counts[bin], count);
    if (weight == 0) return;
    const unsigned low = (unsigned)weight, before = atomicAdd(&bins.low[bin], low);
    atomicAdd(&bins.high[bin], (unsigned)(weight >> 32) + (before + low < before));
}

template <typename R> struct sample_args {
    const R *logits;
    const int32_t *counter, *bad; /* [1]; bad: NULL, or [1] */
    int32_t *ids;                 /* before the draw: of the largest logits; -1: a logit is NaN */
    uint64_t *weights;            /* [n, V] */
    struct bins *by_distance;     /* [n] */
    uint16_t *numbers;            /* [n, V], numbers of bins */
    unsigned num_ids, top_k;
    double inverse; /* of the temperature */
    double one;     /* the weight of the largest logit */
    double top_p;
    uint64_t seed;
    bool is_greedy;
};

/* ---- the largest ---- */

template <typename R> struct best {
    R value;
    int id; /* -1: a NaN */
};

template <typename R> __device__ inline struct best<R> better(struct best<R> a, struct best<R> b) {
    if (a.id < 0 || b.id < 0) return a.id < 0 ? a : b;
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.id < b.id ? a : b;
}

/* The largest, the first of equals. All threads get it. */
template <typename R, int N>
__device__ inline struct best<R> largest(const R *logits, unsigned num_ids) {
    __shared__ struct best<R> parts[WARP], result;
    struct best<R> b = {
        - R(INFINITY), 0x7fffffff
    };
#pragma unroll 4
    for (unsigned i = threadIdx.x * N; i < num_ids; i += blockDim.x * N) {
        const pack<R, N> x = load_pack<R, N>(logits + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            b = better(b, {x.at[j], x.at[j] != x.at[j] ? -1 : (int)i + j});
    }
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

template <typename R, int N>
__global__ void __launch_bounds__(MAX_THREADS) largest_rows(const sample_args<R> a)
{
    wait_for_kernel_before();
    let_kernel_behind_start();
    const struct best<R> b = largest<R, N>(a.logits + (size_t)blockIdx.x * a.num_ids, a.num_ids);
    const bool is_bad = (a.bad && *a.bad) || (!a.is_greedy && isinf(b.value));
    for (unsigned i = threadIdx.x; !a.is_greedy && i < BINS; i += blockDim.x)
        clear_bin(a.by_distance[blockIdx.x], i);
    if (threadIdx.x == 0) a.ids[blockIdx.x] = is_bad ? -1 : b.id;
}

/* ---- weights ---- */

/* Clears bins in shared memory. */
__device__ inline void clear_bins(struct bins &bins)
{
    __syncthreads(); /* earlier contents have been read */
    for (unsigned b = threadIdx.x; b < BINS; b += blockDim.x)
        clear_bin(bins, b);
    __syncthreads();
}

enum { PIECE = 4096 }; /* ids of a block */

/* Block (x, y) has piece y of row x. It adds to its own bins first. */
template <typename R> __global__ void weigh_rows(const sample_args<R> a)
{
    __shared__ struct bins own;
    wait_for_kernel_before();
    let_kernel_behind_start();
    const size_t row = (size_t)blockIdx.x * a.num_ids;
    const unsigned begin = blockIdx.y * PIECE, end = min(begin + PIECE, a.num_ids);
    if (a.ids[blockIdx.x] < 0) return;
    const double max = (double)a.logits[row + (unsigned)a.ids[blockIdx.x]];
    clear_bins(own);
    for (unsigned i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const double exponent = ((double)a.logits[row + i] - max) * a.inverse;
        const uint64_t weight = (uint64_t)(exp(exponent) * a.one + 0.5);
        const unsigned bin = (unsigned)fmin(exponent * -BINS_PER_UNIT, BINS - 1.0);
        a.weights[row + i] = weight;
        a.numbers[row + i] = (uint16_t)bin;
        add_to_bin(own, bin, weight, 1);
    }
    __syncthreads();
    for (unsigned b = threadIdx.x; b < BINS; b += blockDim.x)
        if (own.counts[b] > 0)
            add_to_bin(a.by_distance[blockIdx.x], b, weight_of(own, b), own.counts[b]);
}

/* ---- the cut ---- */

/* A row's data. */
template <typename R> struct draw {
    const R *logits;
    const uint64_t *weights;
    const uint16_t *numbers;
    unsigned num_ids;
};

/* Ids of bin `bin` by distance whose places have the known bits of `at`:
 * their number and weight, and those before them. With all bits known, they
 * have one logit. */
template <typename R> struct cut {
    unsigned bin;
    place<R> at; /* unknown bits are 0 */
    uint64_t weight, weight_before;
    unsigned count, count_before;
};

/* The wanted amount: of weight, or of ids. */
struct wanted {
    uint64_t amount;
    bool is_weight;
};

/* Narrows c to its bin in which the wanted amount is reached. Returns the
 * bin's number. */
template <typename R>
__device__ inline unsigned enter_bin(const struct bins &bins, struct wanted wanted,
                                     struct cut<R> &c)
{
    __shared__ unsigned number, count_before;
    __shared__ uint64_t weight_before;
    const unsigned each = (BINS + blockDim.x - 1) / blockDim.x;
    const unsigned begin = min(threadIdx.x * each, (unsigned)BINS);
    const unsigned end = min(begin + each, (unsigned)BINS);
    uint64_t weight = 0, all_weights;
    unsigned count = 0, all_counts;
    __syncthreads(); /* bins are full */
    for (unsigned b = begin; b < end; b++)
        weight += weight_of(bins, b), count += bins.counts[b];
    weight = c.weight_before + block_sum_before(weight, &all_weights);
    count = c.count_before + block_sum_before(count, &all_counts);
    for (unsigned b = begin; b < end; b++) {
        const uint64_t more_weight = weight + weight_of(bins, b);
        const unsigned more = count + bins.counts[b];
        if ((wanted.is_weight ? weight : count) < wanted.amount &&
            (wanted.is_weight ? more_weight : more) >= wanted.amount)
            number = b, weight_before = weight, count_before = count;
        weight = more_weight, count = more;
    }
    __syncthreads();
    c.weight_before = weight_before, c.count_before = count_before;
    c.weight = weight_of(bins, number), c.count = bins.counts[number];
    return number;
}

enum { AHEAD = 8 }; /* numbers of bins a thread reads at once */

/* Adds the ids of c to bins by `bits` bits of their places, above the
 * lowest `rest`. */
template <typename R>
__device__ inline void sort_by_bits(const struct draw<R> &d, const struct cut<R> &c, int bits,
                                    int rest, struct bins &bins)
{
    clear_bins(bins);
    for (unsigned first = threadIdx.x; first < d.num_ids; first += AHEAD * blockDim.x) {
        unsigned number[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const unsigned i = first + (unsigned)j * blockDim.x;
            number[j] = i < d.num_ids ? d.numbers[i] : (unsigned)BINS;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (number[j] != c.bin) continue;
            const unsigned i = first + (unsigned)j * blockDim.x;
            const place<R> ahead = (logit_place(d.logits[i]) ^ c.at) >> rest; /* 0: known bits */
            if (ahead >> bits == 0) add_to_bin(bins, (unsigned)ahead, d.weights[i], 1);
        }
    }
}

/* Finds the ids of the logit at which the wanted amount is reached. */
template <typename R>
__device__ inline struct cut<R> find_cut(const struct draw<R> &d, const struct bins &by_distance,
                                         struct wanted wanted, struct bins &bins) {
    struct cut<R> c = {
    };
    c.bin = enter_bin(by_distance, wanted, c);
    for (int rest = 8 * sizeof(R); rest > 0;) {
        const int bits = min(rest, (int)BIN_BITS);
        rest -= bits;
        sort_by_bits(d, c, bits, rest, bins);
        c.at |= (place<R>)enter_bin(bins, wanted, c) << rest;
    }
    return c;
}

/* ---- the draw ---- */

/* Amounts of ids in a sum: amount(id) if the id's bin by distance precedes
 * `bin`, in_bin(id) if it is that bin, else 0. */
template <typename R, typename F, typename G>
struct amounts {
    const struct draw<R> &d;
    unsigned bin;
    F amount;
    G in_bin;

    __device__ inline uint64_t of(unsigned i) const
    {
        const unsigned number = d.numbers[i];
        return number < bin ? amount(i) : number == bin ? in_bin(i) : 0;
    }
};

/* The sum over ids [begin, end), for a warp. */
template <typename A> __device__ inline uint64_t warp_sum(const A &x, unsigned begin, unsigned end)
{
    uint64_t sum = 0;
    for (unsigned first = begin + lane_id(); first < end; first += AHEAD * WARP) {
        unsigned number[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const unsigned i = first + (unsigned)j * WARP;
            number[j] = i < end ? x.d.numbers[i] : (unsigned)BINS + 1;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            sum += number[j] < x.bin ? x.amount(first + (unsigned)j * WARP) : 0;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (number[j] == x.bin) sum += x.in_bin(first + (unsigned)j * WARP);
    }
    return warp_reduce(sum, add_up());
}

/* The id in [begin, end) at which the sum over these ids reaches `enough`,
 * which it must. */
template <typename A>
__device__ inline unsigned id_reaching(const A &x, unsigned begin, unsigned end, uint64_t enough)
{
    __shared__ unsigned result;
    const unsigned each = (end - begin + blockDim.x - 1) / blockDim.x;
    const unsigned from = min(begin + threadIdx.x * each, end), to = min(from + each, end);
    uint64_t own = 0, all;
    for (unsigned i = from; i < to; i++)
        own += x.of(i);
    uint64_t upto = block_sum_before(own, &all);
    for (unsigned i = from; i < to; i++) {
        const uint64_t before = upto;
        upto += x.of(i);
        if (before < enough && upto >= enough) result = i;
    }
    __syncthreads();
    return result;
}

/* The first id at which the sum of amounts exceeds beyond(sum of all). Each
 * warp sums a run of ids; then all search the run in which the sum gets
 * there. */
template <typename A, typename B> __device__ inline unsigned first_beyond(const A &x, B beyond)
{
    __shared__ uint64_t sums[WARP];
    const unsigned warps = blockDim.x / WARP, length = (x.d.num_ids + warps - 1) / warps;
    const auto begin_of = [&](unsigned warp) { return min(warp * length, x.d.num_ids); };
    const uint64_t own = warp_sum(x, begin_of(warp_id()), begin_of(warp_id() + 1));
    if (lane_id() == 0) sums[warp_id()] = own;
    __syncthreads();
    uint64_t sum = 0;
    for (unsigned w = 0; w < warps; w++)
        sum += sums[w];
    uint64_t enough = beyond(sum) + 1;
    unsigned w = 0;
    while (w + 1 < warps && sums[w] < enough)
        enough -= sums[w++];
    return id_reaching(x, begin_of(w), begin_of(w + 1), enough);
}

template <typename R, typename F, typename G>
__device__ inline struct amounts<R, F, G> amounts_of(const struct draw<R> &d, unsigned bin,
                                                     F amount, G in_bin) {
    return {d, bin, amount, in_bin};
}

/* Drawable ids: in bins before `bin`; in that bin, places before `at`, and at
 * that place ids up to `last`. */
template <typename R>
struct limit {
    unsigned bin, last;
    place<R> at;
};

template <typename R>
__device__ inline bool is_within(const struct draw<R> &d, const struct limit<R> &l, unsigned id)
{
    const place<R> at = logit_place(d.logits[id]);
    return at < l.at || (at == l.at && id <= l.last);
}

/* Limits the draw to the first `count` ids of c. */
template <typename R>
__device__ inline struct limit<R> limit_at(const struct draw<R> &d, const struct cut<R> &c,
                                           unsigned count) {
    struct limit<R> l = {
        c.bin, d.num_ids, c.at
    };
    if (count < c.count)
        l.last = first_beyond(
            amounts_of(
                d, c.bin, [](unsigned) { return (uint64_t)0; },
                [&](unsigned i) { return (uint64_t)(logit_place(d.logits[i]) == c.at); }),
            [&](uint64_t) { return (uint64_t)count - 1; });
    return l;
}

template <typename R>
__device__ inline struct limit<R> find_limit(const struct sample_args<R> &a,
                                             const struct draw<R> &d,
                                             const struct bins &by_distance) {
    __shared__ struct bins bins;
    struct limit<R> l = {
        BINS, d.num_ids, 0
    };
    const bool is_counted = a.top_k > 0 && a.top_k < d.num_ids;
    struct cut<R> c;
    unsigned count = 0;
    uint64_t weight = 0; /* of the ids that top_k keeps */
    if (is_counted) {
        c = find_cut(d, by_distance, {a.top_k, false}, bins);
        count = a.top_k - c.count_before;
        weight = c.weight_before + count * (c.weight / c.count);
    }
    if (a.top_p < 1) {
        for (unsigned b = threadIdx.x; !is_counted && b < BINS; b += blockDim.x)
            weight += weight_of(by_distance, b);
        if (!is_counted) weight = block_sum(weight);
        const uint64_t reached = (uint64_t)ceil(fmax(a.top_p, 0.0) * (double)weight);
        const uint64_t enough = max(min(reached, weight), (uint64_t)1); /* at least one id */
        c = find_cut(d, by_distance, {enough, true}, bins);
        const uint64_t each = c.weight / c.count, rest = enough - c.weight_before;
        count = (unsigned)((rest + each - 1) / each);
    }
    return is_counted || a.top_p < 1 ? limit_at(d, c, count) : l;
}

/* As kernels/cpu/random.c: splitmix64's output function, and the number of
 * (seed, index). */
__host__ __device__ inline uint64_t
mix(uint64_t z)
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

template <typename R>
__global__ void __launch_bounds__(MAX_THREADS) draw_rows(const sample_args<R> a)
{
    wait_for_kernel_before();
    let_kernel_behind_start();
    const size_t row = (size_t)blockIdx.x * a.num_ids;
    const struct draw<R> d = {
        a.logits + row, a.weights + row, a.numbers + row, a.num_ids
    };
    if (a.ids[blockIdx.x] < 0) return;
    const double part = random_number(a.seed, (uint64_t)a.counter[0] + blockIdx.x);
    const struct limit<R> l = find_limit(a, d, a.by_distance[blockIdx.x]);
    const unsigned id =
        first_beyond(amounts_of(
                         d, l.bin, [&](unsigned i) { return d.weights[i]; },
                         [&](unsigned i) { return is_within(d, l, i) ? d.weights[i] : 0; }),
                     [&](uint64_t sum) { return min((uint64_t)(part * (double)sum), sum - 1); });
    if (threadIdx.x == 0) a.ids[blockIdx.x] = (int32_t)id;
}

/* ---- the op ---- */

/* Places bins, weights and numbers of bins one after the other. */
template <typename R> static void place_in(struct sample_args<R> &a, void *workspace, size_t rows)
{
    a.by_distance = static_cast<struct bins *>(workspace);
    a.weights = reinterpret_cast<uint64_t *>(a.by_distance + rows);
    a.numbers = reinterpret_cast<uint16_t *>(a.weights + rows * a.num_ids);
}

/* The largest whole weight of which num_ids sum to less than 2^62. */
static double largest_weight(unsigned num_ids)
{
    int bits = 1;
    while (num_ids >> bits > 0)
        bits++;
    return ldexp(1, 61 - bits);
}

template <typename R>
static enum status draw_all(const struct sample_args<R> &a, unsigned rows, struct error *err)
{
    TRY(launch_early("sample", err, weigh_rows<R>, dim3(rows, blocks_for(a.num_ids, PIECE)),
                     threads_for(a.num_ids, 512), 0, a));
    return launch_early("sample", err, draw_rows<R>, dim3(rows),
                        threads_for(a.num_ids, MAX_THREADS), 0, a);
}

template <typename E> enum status op_sample(OP_ARGUMENTS)
{
    typedef real_of<E> real;
    const unsigned rows = (unsigned)in[0].shape[0];
    struct sample_args<real> a = {
    };
    a.logits = data_of<real>(in[0]);
    a.counter = data_of<int32_t>(in[1]);
    a.bad = data_of<int32_t>(in[2]);
    a.ids = data_of<int32_t>(out[0]);
    a.num_ids = (unsigned)in[0].shape[1];
    a.top_k = p->sample.top_k;
    a.inverse = fmin(1 / p->sample.temperature, DBL_MAX);
    a.one = largest_weight(a.num_ids);
    a.top_p = p->sample.top_p;
    a.seed = p->sample.seed;
    a.is_greedy = p->sample.temperature == 0;
    place_in(a, workspace, rows);
    const bool wide = fits_width<real>(a.num_ids, {a.logits});
    TRY(launch_early("sample", err, BY_WIDTH(largest_rows, real, wide), dim3(rows),
                     threads_for(wide ? a.num_ids / WIDTH<real> : a.num_ids, MAX_THREADS), 0, a));
    return a.is_greedy ? OK : draw_all(a, rows, err);
}

template <typename E> size_t op_sample_workspace(WORKSPACE_ARGUMENTS)
{
    const size_t rows = in[0].shape[0], ids = rows * in[0].shape[1];
    (void)out;
    if (p->sample.temperature == 0) return 0;
    return rows * sizeof(struct bins) + ids * (sizeof(uint64_t) + sizeof(uint16_t));
}

FOR_ALL_TYPES(op_sample)
WORKSPACE_FOR_ALL_TYPES(op_sample_workspace)
