/* The sums of kernels/cpu/digest_sums.h over a part of a tensor. A warp takes
 * up to SEGMENT elements of the last axis at a time, each lane every 32nd: from
 * the last one down, times the root's power between two, finally times the
 * power of the first. Additions modulo p give the same sum in any order. */
#include <algorithm>

#include "kernels/cpu/digest_sums.h"
#include "kernels/cuda/cuda.h"

enum { SEGMENT = 64 * WARP, THREADS = 256, MAX_BLOCKS = 1024, NUM_SQUARES = 60 };

typedef unsigned __int128 u128;

/* ---- numbers modulo p ---- */

__host__ __device__ inline uint64_t add_mod(uint64_t a, uint64_t b)
{
    return a + b >= DIGEST_MODULUS ? a + b - DIGEST_MODULUS : a + b;
}

/* 2^61 is 1. */
__host__ __device__ inline uint64_t mul_mod(uint64_t a, uint64_t b)
{
    const u128 v = (u128)a * b;
    return add_mod((uint64_t)v & DIGEST_MODULUS, (uint64_t)(v >> 61));
}

struct add_modulo {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return add_mod(a, b);
    }
};

/* Powers of one root. Element i counts base^i times; with elements of 8 bytes
 * each half counts, so base is the root's square. */
struct powers {
    uint64_t root;
    uint64_t step;                 /* from element to element of a lane */
    uint64_t squares[NUM_SQUARES]; /* [i] is base^(2^i) */
};

static uint64_t power_of(uint64_t base, uint64_t exponent)
{
    uint64_t power = 1;
    for (; exponent; exponent >>= 1, base = mul_mod(base, base))
        if (exponent & 1) power = mul_mod(power, base);
    return power;
}

static struct powers powers_of(uint64_t root, size_t elem_bytes, uint64_t index_stride)
{
    struct powers p;
    const uint64_t base = elem_bytes == 8 ? mul_mod(root, root) : root;
    p.root = root;
    p.step = power_of(power_of(base, index_stride), WARP);
    p.squares[0] = base;
    for (int i = 1; i < NUM_SQUARES; i++)
        p.squares[i] = mul_mod(p.squares[i - 1], p.squares[i - 1]);
    return p;
}

__device__ inline uint64_t power_at(const struct powers &p, uint64_t index)
{
    uint64_t power = 1;
    for (int i = 0; index; i++, index >>= 1)
        if (index & 1) power = mul_mod(power, p.squares[i]);
    return power;
}

/* ---- elements ---- */

template <typename E> struct bits_type {
    typedef uint32_t type;
};
template <> struct bits_type<double> {
    typedef uint64_t type;
};
template <> struct bits_type<bf16> {
    typedef uint16_t type;
};
template <> struct bits_type<f16> {
    typedef uint16_t type;
};
template <typename E> using bits_of = typename bits_type<E>::type;

__device__ inline uint64_t element_number(uint32_t bits, const struct powers &)
{
    return bits;
}

__device__ inline uint64_t element_number(uint16_t bits, const struct powers &)
{
    return bits;
}

__device__ inline uint64_t element_number(uint64_t bits, const struct powers &p)
{
    return add_mod((uint32_t)bits, mul_mod(bits >> 32, p.root));
}

/* ---- the part ---- */

struct part {
    struct digest_axis row, outer[DIGEST_AXES]; /* row: the last axis */
    unsigned num_outer;
    uint64_t at, first;
    uint64_t row_segments, num_segments;
};

static struct part digest_part(const union op_params *p)
{
    struct part part = {};
    const unsigned n = p->digest.num_axes;
    part.at = p->digest.at;
    part.first = p->digest.first;
    part.row = n ? p->digest.axes[n - 1] : digest_axis{1, 1, 1};
    part.num_outer = n ? n - 1 : 0;
    part.row_segments = (part.row.extent + SEGMENT - 1) / SEGMENT;
    part.num_segments = part.row_segments;
    for (unsigned k = 0; k < part.num_outer; k++) {
        part.outer[k] = p->digest.axes[k];
        part.num_segments *= part.outer[k].extent;
    }
    return part;
}

/* Position of a segment's first element, in x and in the tensor. */
struct segment {
    uint64_t at, first, count;
};

__device__ inline struct segment segment_of(const struct part &part, uint64_t i)
{
    const uint64_t begin = i % part.row_segments * SEGMENT;
    struct segment s;
    s.at = part.at + begin * part.row.stride;
    s.first = part.first + begin * part.row.index_stride;
    s.count = min(part.row.extent - begin, (uint64_t)SEGMENT);
    i /= part.row_segments;
    for (unsigned k = part.num_outer; k-- > 0; i /= part.outer[k].extent) {
        s.at += i % part.outer[k].extent * part.outer[k].stride;
        s.first += i % part.outer[k].extent * part.outer[k].index_stride;
    }
    return s;
}

/* A lane's share of a segment in both sums. */
template <typename B>
__device__ inline void add_segment(uint64_t (&sums)[2], const B *x, const struct part &part,
                                   const struct segment &s, const struct powers &p,
                                   const struct powers &q)
{
    const unsigned lane = lane_id();
    uint64_t left = 0, right = 0;
    for (uint64_t n = (s.count + WARP - 1 - lane) / WARP; n-- > 0;) {
        const B bits = x[s.at + (lane + n * WARP) * part.row.stride];
        left = add_mod(mul_mod(left, p.step), element_number(bits, p));
        right = add_mod(mul_mod(right, q.step), element_number(bits, q));
    }
    const uint64_t index = s.first + lane * part.row.index_stride;
    sums[0] = add_mod(sums[0], mul_mod(left, power_at(p, index)));
    sums[1] = add_mod(sums[1], mul_mod(right, power_at(q, index)));
}

template <typename B>
__global__ void digest_segments(const B *x, struct part part, struct powers p, struct powers q,
                                uint64_t *partials)
{
    const unsigned warps = blockDim.x / WARP;
    uint64_t sums[2] = {0, 0};
    for (uint64_t i = blockIdx.x * warps + warp_id(); i < part.num_segments; i += gridDim.x * warps)
        add_segment(sums, x, part, segment_of(part, i), p, q);
    for (int k = 0; k < 2; k++) {
        const uint64_t sum = block_reduce(sums[k], (uint64_t)0, add_modulo());
        if (threadIdx.x == 0) partials[2 * blockIdx.x + k] = sum;
    }
}

/* For one block. */
__global__ void add_partials(const uint64_t *partials, unsigned num_partials, int32_t *out)
{
    for (int k = 0; k < 2; k++) {
        uint64_t sum = 0;
        for (unsigned i = threadIdx.x; i < num_partials; i += blockDim.x)
            sum = add_mod(sum, partials[2 * i + k]);
        sum = block_reduce(sum, (uint64_t)0, add_modulo());
        if (threadIdx.x > 0) continue;
        out[2 * k] = (int32_t)(uint32_t)sum;
        out[2 * k + 1] = (int32_t)(sum >> 32);
    }
}

template <typename E> size_t op_digest_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)in, (void)out;
    return MAX_BLOCKS * 2 * sizeof(uint64_t);
}

template <typename E> enum status op_digest(OP_ARGUMENTS)
{
    const struct part part = digest_part(p);
    const uint64_t stride = part.row.index_stride;
    const unsigned num_blocks = (unsigned)std::min<uint64_t>(
        (part.num_segments + THREADS / WARP - 1) / (THREADS / WARP), MAX_BLOCKS);
    uint64_t *partials = static_cast<uint64_t *>(workspace);
    TRY(launch("digest", err, digest_segments<bits_of<E>>, dim3(num_blocks), THREADS, 0,
               data_of<bits_of<E>>(in[0]), part, powers_of(DIGEST_ROOT_1, sizeof(E), stride),
               powers_of(DIGEST_ROOT_2, sizeof(E), stride), partials));
    return launch("digest", err, add_partials, dim3(1), THREADS, 0, partials, num_blocks,
                  data_of<int32_t>(out[0]));
}

FOR_ALL_TYPES(op_digest)
WORKSPACE_FOR_ALL_TYPES(op_digest_workspace)
