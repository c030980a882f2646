/* cuda.h - shared by all kernels of this folder.
 *
 * 1. An op is a template over E, the type of ELEM; real_of<E> is REAL. Kernels
 *    have a second parameter N, the elements a thread reads at once: WIDTH<E>
 *    (16 bytes) if pointers and row lengths permit, else 1.
 * 2. launch() launches everything on cuda_stream, so calls run in order.
 * 3. Blocks are whole warps. Reductions are trees of one shape: equal numbers
 *    give equal sums.
 * 4. Code uses only CUDA headers of CUDA's own names, and starts kernels by
 *    launch() alone, so that tests/gpu/emulator can compile the same files for
 *    the host. */
#ifndef FERRY_KERNELS_CUDA_CUDA_H
#define FERRY_KERNELS_CUDA_CUDA_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <initializer_list>
#include <math.h>

#include "kernels/ops.h"

/* The open device. */
extern cudaStream_t cuda_stream;
extern int cuda_capability; /* 90: 9.0 */
extern int cuda_multiprocessors;
extern size_t cuda_shared_bytes; /* a block's limit, static and dynamic together */

/* OK, or ERR_DEVICE with CUDA's message. */
MUST_CHECK enum status cuda_status(const char *what, cudaError_t code, struct error *err);

/* ---- elements ---- */

typedef __nv_bfloat16 bf16;
typedef __half f16;

template <typename E> struct real_type {
    typedef float type;
};
template <> struct real_type<double> {
    typedef double type;
};
template <typename E> using real_of = typename real_type<E>::type;

template <typename E> constexpr int WIDTH = 16 / sizeof(E);

/* Whether tensor cores multiply E: bf16 and f16 (mma.h). */
template <typename E> constexpr bool HAS_MMA = sizeof(E) == 2;

template <typename E> constexpr elem_type ELEM_OF = ELEM_F32;
template <> constexpr elem_type ELEM_OF<double> = ELEM_F64;
template <> constexpr elem_type ELEM_OF<bf16> = ELEM_BF16;
template <> constexpr elem_type ELEM_OF<f16> = ELEM_F16;

__device__ inline float to_real(float x)
{
    return x;
}

__device__ inline double to_real(double x)
{
    return x;
}

__device__ inline float to_real(bf16 x)
{
    return __bfloat162float(x);
}

__device__ inline float to_real(f16 x)
{
    return __half2float(x);
}

template <typename E> __device__ inline E from_real(real_of<E> x)
{
    return x;
}

template <> __device__ inline bf16 from_real<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

template <> __device__ inline f16 from_real<f16>(float x)
{
    return __float2half_rn(x);
}

template <typename E, int N> struct alignas(N * sizeof(E)) pack {
    E at[N];
};

/* N elements; pointers are aligned to their total size. */
template <typename E, int N> __device__ inline pack<E, N> load_pack(const E *from)
{
    return *reinterpret_cast<const pack<E, N> *>(from);
}

/* Loads 16 bytes that no running kernel writes and a block reads once, such as
 * weights: they take no place in the L1 cache. Zeros, without a read, unless
 * `there`. The load stays before wait_for_kernel_before(). */
__device__ inline uint4 load_16_bytes_once(const void *from, bool there)
{
    uint4 x = {0, 0, 0, 0};
#if defined(__CUDA_ARCH__)
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u32 there, %5, 0;\n"
                 "@there ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"((unsigned)there));
#else
    if (there) x = *static_cast<const uint4 *>(from);
#endif
    return x;
}

/* Prefetches into the L2 cache the 128 bytes around `place`. */
__device__ inline void prefetch(const void *place)
{
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(place));
#else
    (void)place;
#endif
}

template <typename E, int N> __device__ inline void load_reals(real_of<E> (&to)[N], const E *from)
{
    const pack<E, N> p = load_pack<E, N>(from);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = to_real(p.at[i]);
}

template <typename E, int N> __device__ inline void store_reals(E *to, const real_of<E> (&from)[N])
{
    pack<E, N> p;
#pragma unroll
    for (int i = 0; i < N; i++)
        p.at[i] = from_real<E>(from[i]);
    *reinterpret_cast<pack<E, N> *>(to) = p;
}

template <typename E, int N> __device__ inline void copy_pack(E *to, const E *from)
{
    if constexpr (N * sizeof(E) == 16)
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    else
        *to = *from;
}

/* ---- threads ---- */

enum { WARP = 32, MAX_THREADS = 1024 };
#define ALL_LANES 0xffffffffu

__device__ inline unsigned lane_id()
{
    return threadIdx.x % WARP;
}

__device__ inline unsigned warp_id()
{
    return threadIdx.x / WARP;
}

struct add_up {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

/* Combines over a warp's lanes; all get the result. */
template <typename T, typename F> __device__ inline T warp_reduce(T x, F combine)
{
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        x = combine(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

/* Combines over a block's threads, which all call it; all get the result. */
template <typename T, typename F> __device__ inline T block_reduce(T x, T identity, F combine)
{
    __shared__ T parts[WARP];
    x = warp_reduce(x, combine);
    __syncthreads(); /* the previous reduction's parts have been read */
    if (lane_id() == 0) parts[warp_id()] = x;
    __syncthreads();
    x = lane_id() < blockDim.x / WARP ? parts[lane_id()] : identity;
    return warp_reduce(x, combine);
}

template <typename T> __device__ inline T block_sum(T x)
{
    return block_reduce(x, T(0), add_up());
}

/* The sum over all threads before this one; *total: over all. */
template <typename T> __device__ inline T block_sum_before(T x, T *total)
{
    __shared__ T sums[WARP];
    T upto = x;
#pragma unroll
    for (unsigned distance = 1; distance < WARP; distance *= 2) {
        const T left = __shfl_up_sync(ALL_LANES, upto, distance);
        if (lane_id() >= distance) upto += left;
    }
    __syncthreads();
    if (lane_id() == WARP - 1) sums[warp_id()] = upto;
    __syncthreads();
    T before = 0, all = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) {
        if (w < warp_id()) before += sums[w];
        all += sums[w];
    }
    *total = all;
    return before + (upto - x);
}

/* Number of valid rows: all, without counts. Every lane of the warp
 * calls it. */
__device__ inline size_t counted_rows(const int32_t *counts, unsigned num_counts, size_t rows)
{
    if (!counts) return rows;
    int sum = 0;
    for (unsigned i = lane_id(); i < num_counts; i += WARP)
        sum += counts[i];
    return (size_t)warp_reduce(sum, add_up());
}

/* ---- shared memory ---- */

/* Shared memory that every block can have without asking the driver. */
enum { PLAIN_SHARED_BYTES = 48 << 10 };

/* The block's dynamic shared memory, as char *name. */
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#endif

/* ---- launching ---- */

/* Between these two a kernel started by launch_early() may overlap the kernel
 * before it in the queue (programmatic dependent launch; compute capability 9.0
 * and newer, no effect elsewhere).
 *
 * wait_for_kernel_before() returns when that kernel has ended and its writes
 * are visible. A kernel started by launch_early() calls it in every thread,
 * before it reads anything that a kernel may have written, and before any
 * write. Until then it reads weights only; so it must not directly follow a
 * kernel that writes weights.
 *
 * let_kernel_behind_start() permits the next kernel to begin, once all blocks
 * have called it or ended. Any kernel may call it. A kernel started early calls
 * it after its own wait: otherwise the next kernel might read weights while an
 * earlier one still writes them. */
__device__ inline void wait_for_kernel_before()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_kernel_behind_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

template <typename... P, typename... A>
MUST_CHECK enum status launch_kernel(const char *op, struct error *err, bool is_early,
                                     void (*kernel)(P...), dim3 grid, unsigned threads,
                                     size_t shared_bytes, A... args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return OK;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = cuda_stream;
    config.attrs = &early;
    config.numAttrs = is_early && cuda_capability >= 90;
    return cuda_status(op, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), err);
}

template <typename... P, typename... A>
MUST_CHECK enum status launch(const char *op, struct error *err, void (*kernel)(P...), dim3 grid,
                              unsigned threads, size_t shared_bytes, A... args)
{
    return launch_kernel(op, err, false, kernel, grid, threads, shared_bytes, args...);
}

/* For kernels that call wait_for_kernel_before(). */
template <typename... P, typename... A>
MUST_CHECK enum status launch_early(const char *op, struct error *err, void (*kernel)(P...),
                                    dim3 grid, unsigned threads, size_t shared_bytes, A... args)
{
    return launch_kernel(op, err, true, kernel, grid, threads, shared_bytes, args...);
}

/* Allows a kernel's blocks `bytes` of dynamic shared memory, if
 * above PLAIN_SHARED_BYTES. */
template <typename... P>
MUST_CHECK enum status allow_shared(const char *op, void (*kernel)(P...), size_t bytes,
                                    struct error *err)
{
    return cuda_status(
        op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        err);
}

/* Threads of a block with `items` to do. */
static inline unsigned threads_for(size_t items, unsigned most)
{
    const size_t warps = (items + WARP - 1) / WARP;
    return warps == 0 ? (unsigned)WARP : warps * WARP < most ? (unsigned)(warps * WARP) : most;
}

static inline unsigned blocks_for(size_t items, size_t a_block)
{
    return (unsigned)((items + a_block - 1) / a_block);
}

/* Whether rows of `columns` elements at these places can be read 16 bytes at
 * a time. */
template <typename E> bool fits_width(size_t columns, std::initializer_list<const void *> places)
{
    bool fits = columns % WIDTH<E> == 0;
    for (const void *place : places)
        fits &= (uintptr_t)place % 16 == 0;
    return fits;
}

/* The variant of kernel<E, N>; its threads for a row's length. */
#define BY_WIDTH(kernel, E, wide) ((wide) ? kernel<E, WIDTH<E>> : kernel<E, 1>)
template <typename E> unsigned row_threads(size_t columns, bool wide)
{
    return threads_for(wide ? columns / WIDTH<E> : columns, 256);
}

/* For kernels that compute each column of a row separately: block (x, y) has
 * columns of row x. Few rows are cut into pieces, to occupy more of the GPU. */
struct spread {
    dim3 grid;
    unsigned threads;
};

template <typename E> struct spread spread_rows(size_t rows, size_t columns, bool wide)
{
    const size_t items = wide ? columns / WIDTH<E> : columns, most_pieces = 65535;
    if (rows >= 4 * (size_t)cuda_multiprocessors)
        return {dim3((unsigned)rows), row_threads<E>(columns, wide)};
    const unsigned threads = threads_for(items, 128);
    const size_t pieces = (items + threads - 1) / threads;
    return {dim3((unsigned)rows, (unsigned)(pieces < most_pieces ? pieces : most_pieces)), threads};
}

/* First column and step of a thread that reads N columns at once. */
template <int N> __device__ inline size_t first_column()
{
    return ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
}

template <int N> __device__ inline size_t next_column()
{
    return (size_t)gridDim.y * blockDim.x * N;
}

/* ---- operands ---- */

template <typename T> T *data_of(const struct operand &o)
{
    return static_cast<T *>(o.data);
}

/* The variant of function<E, G> for an operand of type `float`: G is its
 * element type. */
#define BY_TYPE(function, E, operand)                                                              \
    ((operand).type == OPERAND_REAL ? function<E, real_of<E>> : function<E, E>)

/* Elements of one token of query, key and value. */
static inline size_t qkv_columns(const struct head_shape &s)
{
    return (size_t)s.groups * (s.queries + 2) * s.head_dim;
}

/* ---- ops ---- */

#define OP_ARGUMENTS                                                                               \
    const union op_params *p, const struct operand *in, const struct operand *out,                 \
        void *workspace, struct error *err
#define WORKSPACE_ARGUMENTS                                                                        \
    const union op_params *p, const struct operand *in, const struct operand *out

/* Instantiates an op for all types, after its definition. */
#define FOR_ALL_TYPES(op)                                                                          \
    template enum status op<float>(OP_ARGUMENTS);                                                  \
    template enum status op<double>(OP_ARGUMENTS);                                                 \
    template enum status op<bf16>(OP_ARGUMENTS);                                                   \
    template enum status op<f16>(OP_ARGUMENTS);
#define WORKSPACE_FOR_ALL_TYPES(size)                                                              \
    template size_t size<float>(WORKSPACE_ARGUMENTS);                                              \
    template size_t size<double>(WORKSPACE_ARGUMENTS);                                             \
    template size_t size<bf16>(WORKSPACE_ARGUMENTS);                                               \
    template size_t size<f16>(WORKSPACE_ARGUMENTS);

#define DECLARE_PLAIN(op) template <typename E> enum status op(OP_ARGUMENTS);
#define DECLARE_WORKSPACE(op)                                                                      \
    DECLARE_PLAIN(op)                                                                              \
    template <typename E> size_t op##_workspace(WORKSPACE_ARGUMENTS);
#define DECLARE_NONE(op)
#define DECLARE(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)            \
    DECLARE_##cuda(op_##name)
OPS(DECLARE)
#undef DECLARE

/* ---- kernels for compute capability 9.0 alone ---- */

/* *_sm90.cu fill this table while the library loads; NULL: not available. They
 * are compiled for sm_90a alone, so nothing else depends on them. A kernel is
 * used after it agreed with the portable one (trust.h). */
struct product;
struct sm90_kernels {
    enum status (*few_rows)(const struct product &x, struct error *err); /* products.h */
    enum status (*attention)(enum elem_type elem, const union op_params *p,
                             const struct operand *in, const struct operand *out,
                             struct error *err); /* attention.h */
};
extern struct sm90_kernels sm90_kernels;

/* Whether this GPU can run them and FERRY_CUDA_SM90 permits it. */
bool sm90_is_on(void);
/* Whether FERRY_CUDA_SM90 has this word: "first" (prefer these kernels),
 * or "say". */
bool sm90_has_word(const char *word);

/* ---- the device's tables ---- */

/* Named kernels that ops choose from (kernels/device.h), each in its
 * op's file. */
extern const struct device_kernel matmul_kernels[], norm_matmul_kernels[],
    activation_matmul_kernels[], attention_kernels[], attention_backward_kernels[],
    grouped_kernels[];

/* Whether calls are being recorded into a graph: nothing may wait for the
 * GPU then. */
bool cuda_is_capturing(void);

/* The device's tables other than ops. */
extern const struct device_timers cuda_timers;
extern const struct device_buffers cuda_buffers;
extern const struct device_graphs cuda_graphs;
extern const struct device_collectives *const cuda_collectives; /* NULL: built without NCCL */
unsigned cuda_collectives_version(struct error *err);           /* NCCL's; 0: missing */

/* Free handles and plans of cuBLASLt (matmul.cu) and cuDNN
 * (attention_cudnn.cu), and verdicts, when the device closes. */
void matmul_close(void);
void attention_close(void);

#endif
