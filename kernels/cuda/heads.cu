/* Ops on query, key and value heads. A result not in place starts as a copy of
 * x, so that kernels change it in place. */
#include "kernels/cuda/cuda.h"

enum { HEAD_WARPS = 8, CACHE_THREADS = 128 };

template <typename E> static enum status copy_qkv(const struct operand *in, E *y, struct error *err)
{
    const size_t bytes = in[0].shape[0] * in[0].shape[1] * sizeof(E);
    if (y == in[0].data) return OK;
    return cuda_status("copy of query, key and value",
                       cudaMemcpyAsync(y, in[0].data, bytes, cudaMemcpyDeviceToDevice, cuda_stream),
                       err);
}

/* Offset of a token's query or key head by number; a group's heads have
 * consecutive numbers, its key head last. */
__device__ inline size_t head_offset(const struct head_shape &s, unsigned number)
{
    const unsigned group = number / (s.queries + 1);
    return (size_t)(number + group) * s.head_dim; /* skips a value head for each group */
}

/* A block for each token in x, a warp for each head in y. */
template <typename E, int N>
__global__ void norm_heads(E *y, const E *q_weight, const E *k_weight, const struct head_shape s,
                           real_of<E> epsilon, real_of<E> shift)
{
    typedef real_of<E> real;
    const size_t columns = (size_t)s.groups * (s.queries + 2) * s.head_dim;
    const unsigned first = blockIdx.y * (blockDim.x / WARP) + warp_id();
    real v[N], weight[N];
    wait_for_kernel_before();
    let_kernel_behind_start();
    for (unsigned head = first; head < s.groups * (s.queries + 1);
         head += gridDim.y * (blockDim.x / WARP)) {
        E *x = y + blockIdx.x * columns + head_offset(s, head);
        const E *weights = head % (s.queries + 1) < s.queries ? q_weight : k_weight;
        real sum = 0;
        for (unsigned i = lane_id() * N; i < s.head_dim; i += WARP * N) {
            load_reals<E, N>(v, x + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum += v[j] * v[j];
        }
        const real scale = 1 / sqrt(warp_reduce(sum, add_up()) / real(s.head_dim) + epsilon);
        for (unsigned i = lane_id() * N; i < s.head_dim; i += WARP * N) {
            load_reals<E, N>(v, x + i);
            load_reals<E, N>(weight, weights + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = v[j] * scale * (weight[j] + shift);
            store_reals<E, N>(x + i, v);
        }
    }
}

template <typename E> enum status op_head_norm(OP_ARGUMENTS)
{
    (void)workspace;
    const struct head_shape s = p->head_norm.heads;
    E *y = data_of<E>(out[0]);
    const E *q_weight = data_of<E>(in[1]), *k_weight = data_of<E>(in[2]);
    TRY(copy_qkv(in, y, err));
    const bool wide = fits_width<E>(s.head_dim, {y, q_weight, k_weight});
    const unsigned blocks = blocks_for(s.groups * (s.queries + 1), HEAD_WARPS);
    return launch_early("head_norm", err, BY_WIDTH(norm_heads, E, wide),
                        dim3((unsigned)in[0].shape[0], blocks), HEAD_WARPS * WARP, 0, y, q_weight,
                        k_weight, s, p->head_norm.epsilon, p->head_norm.shift);
}

template <typename E> struct rotary_args {
    const E *x; /* y may lie there */
    E *y;
    const real_of<E> *table; /* [P, 2 * pairs]: cosines, then sines */
    const int32_t *positions;
    struct head_shape heads;
    unsigned pairs, step, distance; /* pair i is (x[i * step], x[i * step + distance]) */
    real_of<E> sign;                /* -1 for the inverse */
    const int32_t *rows;            /* of the cache, if any */
    E *cache;
};

/* The first numbers of N pairs, from pair i on, and the second numbers. */
template <typename E, int N>
__device__ inline void rotate_pairs(real_of<E> (&x)[N], real_of<E> (&y)[N], const rotary_args<E> &a,
                                    const real_of<E> *cosines, unsigned i)
{
    real_of<E> c[N], s[N], rotated[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        c[j] = cosines[i + j], s[j] = a.sign * cosines[a.pairs + i + j];
#pragma unroll
    for (int j = 0; j < N; j++) {
        rotated[j] = x[j] * c[j] - y[j] * s[j];
        y[j] = y[j] * c[j] + x[j] * s[j];
        x[j] = rotated[j];
    }
}

/* A block for each token; threads share the pairs of all heads, N at once if
 * step is 1. */
template <typename E, int N> __global__ void rotate_heads(const rotary_args<E> a)
{
    typedef real_of<E> real;
    const struct head_shape s = a.heads;
    const size_t columns = (size_t)s.groups * (s.queries + 2) * s.head_dim;
    const real *cosines = a.table + (size_t)a.positions[blockIdx.x] * 2 * a.pairs;
    const unsigned runs = a.pairs / N; /* of a head */
    real x[N], y[N];
    for (unsigned n = threadIdx.x; n < s.groups * (s.queries + 1) * runs; n += blockDim.x) {
        const unsigned i = n % runs * N;
        E *at = a.y + blockIdx.x * columns + head_offset(s, n / runs) + (size_t)i * a.step;
        load_reals<E, N>(x, at);
        load_reals<E, N>(y, at + a.distance);
        rotate_pairs<E, N>(x, y, a, cosines, i);
        store_reals<E, N>(at, x);
        store_reals<E, N>(at + a.distance, y);
    }
}

template <typename E>
static struct rotary_args<E> rotary_args_of(const union op_params *p, const struct operand *in,
                                            const struct operand *out) {
    const bool interleaved = p->rotary.interleaved;
    struct rotary_args<E> a = {
    };
    a.x = data_of<E>(in[0]);
    a.y = data_of<E>(out[0]);
    a.table = data_of<real_of<E>>(in[1]);
    a.positions = data_of<int32_t>(in[2]);
    a.heads = p->rotary.heads;
    a.pairs = p->rotary.rotary_dim / 2;
    a.step = interleaved ? 2 : 1;
    a.distance = interleaved ? 1 : a.pairs;
    a.sign = p->rotary.inverse ? -1 : 1;
    return a;
}

template <typename E>
static bool rotates_wide(const rotary_args<E> &a)
{
    return a.step == 1 && fits_width<E>(a.pairs, {a.x, a.y, a.cache}) &&
           a.heads.head_dim % WIDTH<E> == 0;
}

template <typename E> enum status op_rotary(OP_ARGUMENTS)
{
    (void)workspace;
    const struct rotary_args<E> a = rotary_args_of<E>(p, in, out);
    TRY(copy_qkv(in, a.y, err));
    const bool wide = rotates_wide(a);
    const size_t pairs = (size_t)a.heads.groups * (a.heads.queries + 1) * a.pairs;
    return launch("rotary", err, BY_WIDTH(rotate_heads, E, wide), dim3((unsigned)in[0].shape[0]),
                  row_threads<E>(pairs, wide), 0, a);
}

/* Stores to y, unless it is in place, and to the cache, if it has a
 * place there. */
template <typename E, int N>
__device__ inline void keep_run(E *y, E *cached, const E *x, const real_of<E> (&run)[N])
{
    if (y != x) store_reals<E, N>(y, run);
    if (cached) store_reals<E, N>(cached, run);
}

/* A head's place in the cache; NULL: none. */
template <typename E>
__device__ inline E *cached_head(const rotary_args<E> &a, int32_t row, unsigned head)
{
    const unsigned group = head / (a.heads.queries + 2), kind = head % (a.heads.queries + 2);
    if (kind < a.heads.queries || row < 0) return NULL;
    const size_t number = ((size_t)row * a.heads.groups + group) * 2 + (kind - a.heads.queries);
    return a.cache + number * a.heads.head_dim;
}

/* Blocks in y for each token in x. A thread has a run of N elements of a head,
 * the first numbers of pairs with the second ones. */
template <typename E, int N> __global__ void rotate_into_cache(const rotary_args<E> a)
{
    typedef real_of<E> real;
    const struct head_shape s = a.heads;
    const unsigned heads = s.groups * (s.queries + 2), runs = s.head_dim / N;
    const unsigned n = blockIdx.y * blockDim.x + threadIdx.x;
    const unsigned head = n / runs, i = n % runs * N;
    const size_t at = ((size_t)blockIdx.x * heads + head) * s.head_dim + i;
    real x[N], y[N];
    wait_for_kernel_before();
    let_kernel_behind_start();
    if (head >= heads) return;
    E *cached = cached_head(a, a.rows[blockIdx.x], head);
    if (cached) cached += i;
    if (head % (s.queries + 2) > s.queries || i >= 2 * a.pairs) {
        if (a.y == a.x && !cached) return;
        load_reals<E, N>(x, a.x + at);
        keep_run<E, N>(a.y + at, cached, a.x + at, x);
        return;
    }
    if (a.step == 2 ? i % 2 == 1 : i >= a.pairs) return; /* handled with the first of its pair */
    load_reals<E, N>(x, a.x + at);
    load_reals<E, N>(y, a.x + at + a.distance);
    rotate_pairs<E, N>(x, y, a, a.table + (size_t)a.positions[blockIdx.x] * 2 * a.pairs,
                       i / a.step);
    store_reals<E, N>(a.y + at, x);
    store_reals<E, N>(a.y + at + a.distance, y);
    if (!cached) return;
    store_reals<E, N>(cached, x);
    store_reals<E, N>(cached + a.distance, y);
}

template <typename E> enum status op_rotary_cache(OP_ARGUMENTS)
{
    (void)workspace;
    struct rotary_args<E> a = rotary_args_of<E>(p, in, out);
    a.rows = data_of<int32_t>(in[3]);
    a.cache = data_of<E>(out[1]);
    const bool wide = rotates_wide(a);
    const size_t runs = qkv_columns(a.heads) / (wide ? WIDTH<E> : 1);
    return launch_early("rotary_cache", err, BY_WIDTH(rotate_into_cache, E, wide),
                        dim3((unsigned)in[0].shape[0], blocks_for(runs, CACHE_THREADS)),
                        CACHE_THREADS, 0, a);
}

/* A block for each token. */
template <typename E, int N>
__global__ void write_cache(const E *qkv, const int32_t *rows, E *cache, const struct head_shape s)
{
    const unsigned pair = 2 * s.head_dim, queries = s.queries * s.head_dim;
    wait_for_kernel_before();
    let_kernel_behind_start();
    if (rows[blockIdx.x] < 0) return;
    E *to = cache + (size_t)rows[blockIdx.x] * s.groups * pair;
    const E *from = qkv + (size_t)blockIdx.x * s.groups * (queries + pair);
    for (unsigned i = threadIdx.x * N; i < s.groups * pair; i += blockDim.x * N) {
        const size_t at = i + (size_t)(i / pair + 1) * queries;
        copy_pack<E, N>(to + i, from + at);
    }
}

template <typename E> enum status op_cache_write(OP_ARGUMENTS)
{
    (void)workspace;
    const struct head_shape s = p->cache_write.heads;
    const E *qkv = data_of<E>(in[0]);
    E *cache = data_of<E>(out[0]);
    const bool wide = fits_width<E>(s.head_dim, {qkv, cache});
    return launch_early("cache_write", err, BY_WIDTH(write_cache, E, wide),
                        dim3((unsigned)in[0].shape[0]),
                        row_threads<E>((size_t)s.groups * 2 * s.head_dim, wide), 0, qkv,
                        data_of<int32_t>(in[1]), cache, s);
}

template <typename E> struct merge_args {
    const E *o_a, *o_b;
    const real_of<E> *lse_a, *lse_b;
    E *o;
    real_of<E> *lse;
    size_t heads; /* of all tokens */
    unsigned head_dim;
};

/* A warp for each head of a token. lse may be lse_a: all lanes have read it
 * before the write. */
template <typename E, int N> __global__ void merge_heads(const merge_args<E> a)
{
    typedef real_of<E> real;
    const size_t head = (size_t)blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (head >= a.heads) return;
    const real lse_a = a.lse_a[head], lse_b = a.lse_b[head];
    const real top = lse_a > lse_b ? lse_a : lse_b;
    const bool empty = top == -real(INFINITY);
    const real part_a = empty ? 0 : exp(lse_a - top), part_b = empty ? 0 : exp(lse_b - top);
    const real sum = empty ? 1 : part_a + part_b;
    real x[N], y[N];
    for (unsigned i = lane_id() * N; i < a.head_dim; i += WARP * N) {
        load_reals<E, N>(x, a.o_a + head * a.head_dim + i);
        load_reals<E, N>(y, a.o_b + head * a.head_dim + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] = part_a / sum * x[j] + part_b / sum * y[j];
        store_reals<E, N>(a.o + head * a.head_dim + i, x);
    }
    __syncwarp();
    if (lane_id() == 0) a.lse[head] = empty ? -real(INFINITY) : top + log(sum);
}

template <typename E> enum status op_attention_merge(OP_ARGUMENTS)
{
    (void)workspace;
    struct merge_args<E> a = {
    };
    a.o_a = data_of<E>(in[0]);
    a.lse_a = data_of<real_of<E>>(in[1]);
    a.o_b = data_of<E>(in[2]);
    a.lse_b = data_of<real_of<E>>(in[3]);
    a.o = data_of<E>(out[0]);
    a.lse = data_of<real_of<E>>(out[1]);
    a.heads = out[1].shape[0] * out[1].shape[1];
    a.head_dim = p->attention_merge.head_dim;
    const bool wide = fits_width<E>(a.head_dim, {a.o_a, a.o_b, a.o});
    return launch("attention_merge", err, BY_WIDTH(merge_heads, E, wide),
                  dim3(blocks_for(a.heads, HEAD_WARPS)), HEAD_WARPS * WARP, 0, a);
}

FOR_ALL_TYPES(op_head_norm)
FOR_ALL_TYPES(op_rotary)
FOR_ALL_TYPES(op_cache_write)
FOR_ALL_TYPES(op_rotary_cache)
FOR_ALL_TYPES(op_attention_merge)
