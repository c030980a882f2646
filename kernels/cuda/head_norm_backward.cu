/* head_norm_backward.cu - OP_HEAD_NORM_BACKWARD, after norm_backward.cu, for
 * query and key heads. dqkv starts as a copy of dy unless it is dy: value heads
 * stay as they are.
 *
 * A block has a run of tokens, a warp one head at a time. Contributions to
 * dq_weight and dk_weight are summed in shared memory, then over warps, then
 * over blocks, each in order. */
#include "kernels/cuda/columns.h"

enum { HEAD_PARTS = 256, MOST_HEAD_WARPS = 8 };

template <typename E> struct head_norm_backward_args {
    const E *qkv, *q_weight, *k_weight;
    E *dqkv;           /* starts as dy */
    real_of<E> *parts; /* [2, num_parts, head_dim]: of query heads, then of key heads */
    struct head_shape heads;
    size_t tokens, part_tokens;
    real_of<E> epsilon, shift;
};

/* A warp's head: dx replaces dy; the contribution to the weight's gradient is
 * added to sums. */
template <typename E, int N>
__device__ inline void norm_head_backward(const head_norm_backward_args<E> &a, const E *x, E *dy,
                                          const E *weights, real_of<E> *sums)
{
    typedef real_of<E> real;
    const unsigned dim = a.heads.head_dim;
    real v[N], d[N], weight[N], squares = 0, products = 0;
    for (unsigned i = lane_id() * N; i < dim; i += WARP * N) {
        load_reals<E, N>(v, x + i);
        load_reals<E, N>(d, dy + i);
        load_reals<E, N>(weight, weights + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            squares += v[j] * v[j];
            products += d[j] * (weight[j] + a.shift) * v[j];
        }
    }
    const real scale = 1 / sqrt(warp_reduce(squares, add_up()) / real(dim) + a.epsilon);
    const real mean = warp_reduce(products, add_up()) * scale / real(dim);
    for (unsigned i = lane_id() * N; i < dim; i += WARP * N) {
        load_reals<E, N>(v, x + i);
        load_reals<E, N>(d, dy + i);
        load_reals<E, N>(weight, weights + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const real normed = v[j] * scale;
            sums[i + j] += d[j] * normed;
            d[j] = scale * (d[j] * (weight[j] + a.shift) - normed * mean);
        }
        store_reals<E, N>(dy + i, d);
    }
}

template <typename E, int N> __global__ void norm_heads_backward(const head_norm_backward_args<E> a)
{
    typedef real_of<E> real;
    DYNAMIC_SHARED(shared);
    const struct head_shape s = a.heads;
    const unsigned warps = blockDim.x / WARP, normed = s.groups * (s.queries + 1);
    const size_t columns = (size_t)s.groups * (s.queries + 2) * s.head_dim;
    const size_t begin = blockIdx.x * a.part_tokens, end = min(a.tokens, begin + a.part_tokens);
    real *const sums = reinterpret_cast<real *>(shared); /* [warps, 2, head_dim] */
    real *const own = sums + (size_t)warp_id() * 2 * s.head_dim;
    for (unsigned i = threadIdx.x; i < warps * 2 * s.head_dim; i += blockDim.x)
        sums[i] = 0;
    __syncthreads();
    for (size_t i = begin * normed + warp_id(); i < end * normed; i += warps) {
        const unsigned number = (unsigned)(i % normed), group = number / (s.queries + 1);
        const bool is_key = number % (s.queries + 1) == s.queries;
        const size_t at = i / normed * columns + (size_t)(number + group) * s.head_dim;
        norm_head_backward<E, N>(a, a.qkv + at, a.dqkv + at, is_key ? a.k_weight : a.q_weight,
                                 own + (is_key ? s.head_dim : 0));
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 2 * s.head_dim; i += blockDim.x) {
        real sum = 0;
        for (unsigned w = 0; w < warps; w++)
            sum += sums[(size_t)w * 2 * s.head_dim + i];
        a.parts[((i / s.head_dim) * gridDim.x + blockIdx.x) * s.head_dim + i % s.head_dim] = sum;
    }
}

template <typename E, typename G>
static enum status add_head_parts(const real_of<E> *parts, size_t num_parts,
                                  const struct operand &sum, const struct operand &out,
                                  struct error *err)
{
    return launch_columns<real_of<E>, G>("head_norm_backward", parts, data_of<G>(sum),
                                         data_of<G>(out), num_parts, out.shape[0], 1, err);
}

template <typename E>
static enum status start_as_dy(const struct operand &dy, const struct operand &dqkv,
                               struct error *err)
{
    if (dy.data == dqkv.data) return OK;
    return cuda_status("head_norm_backward",
                       cudaMemcpyAsync(dqkv.data, dy.data, operand_numel(&dy) * sizeof(E),
                                       cudaMemcpyDeviceToDevice, cuda_stream),
                       err);
}

template <typename E>
static enum status launch_heads(const head_norm_backward_args<E> &a, size_t parts,
                                struct error *err)
{
    const size_t warp_bytes = 2 * (size_t)a.heads.head_dim * sizeof(real_of<E>);
    const size_t room = PLAIN_SHARED_BYTES / warp_bytes;
    const unsigned warps = (unsigned)std::min<size_t>(MOST_HEAD_WARPS, room);
    if (warps == 0)
        return fail(err, ERR_UNSUPPORTED,
                    "head_norm_backward: head_dim %u exceeds the limit of GPU kernels",
                    a.heads.head_dim);
    const bool wide = fits_width<E>(a.heads.head_dim, {a.qkv, a.q_weight, a.k_weight, a.dqkv});
    return launch("head_norm_backward", err, BY_WIDTH(norm_heads_backward, E, wide),
                  dim3((unsigned)parts), warps * WARP, warps * warp_bytes, a);
}

template <typename E> enum status op_head_norm_backward(OP_ARGUMENTS)
{
    head_norm_backward_args<E> a = {};
    a.qkv = data_of<E>(in[0]);
    a.q_weight = data_of<E>(in[1]);
    a.k_weight = data_of<E>(in[2]);
    a.dqkv = data_of<E>(out[0]);
    a.parts = static_cast<real_of<E> *>(workspace);
    a.heads = p->head_norm.heads;
    a.tokens = in[0].shape[0];
    a.epsilon = (real_of<E>)p->head_norm.epsilon;
    a.shift = (real_of<E>)p->head_norm.shift;
    const size_t parts = parts_of(a.tokens, HEAD_PARTS);
    a.part_tokens = (a.tokens + parts - 1) / parts;
    TRY(start_as_dy<E>(in[3], out[0], err));
    TRY(launch_heads(a, parts, err));
    TRY(BY_TYPE(add_head_parts, E, out[1])(a.parts, parts, in[4], out[1], err));
    return BY_TYPE(add_head_parts, E, out[2])(a.parts + parts * a.heads.head_dim, parts, in[5],
                                              out[2], err);
}

template <typename E> size_t op_head_norm_backward_workspace(WORKSPACE_ARGUMENTS)
{
    (void)out;
    return 2 * parts_of(in[0].shape[0], HEAD_PARTS) * p->head_norm.heads.head_dim *
           sizeof(real_of<E>);
}

FOR_ALL_TYPES(op_head_norm_backward)
WORKSPACE_FOR_ALL_TYPES(op_head_norm_backward_workspace)
