/* reduce.c - sums and maxima of several arrays, in the order of the group. */
#include <string.h>

#include "common/half.h"
#include "train/comm/comm_internal.h"

static float f32_of_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest, ties to even; NaN stays NaN. */
static uint16_t bf16_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : (bits >> 16) | 0x40);
}

enum { BLOCK = 1024 }; /* elements per pass: they stay in the L1 cache */

#define AS_IT_IS(x) (x)
#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* sum[] rounds bf16 and f16 once, and lets out be one of in. */
#define DEFINE_REDUCE(name, elem, real, load, store, combine)                                      \
    static void name(void *to, const void *const *in, unsigned num_in, size_t at, size_t n)        \
    {                                                                                              \
        real sum[BLOCK];                                                                           \
        const elem *first = (const elem *)in[0] + at;                                              \
        _Pragma("omp simd") for (size_t k = 0; k < n; k++) sum[k] = load(first[k]);                \
        for (unsigned i = 1; i < num_in; i++) {                                                    \
            const elem *next = (const elem *)in[i] + at;                                           \
            _Pragma("omp simd") for (size_t k = 0; k < n; k++)                                     \
            {                                                                                      \
                real x = load(next[k]);                                                            \
                sum[k] = combine(sum[k], x);                                                       \
            }                                                                                      \
        }                                                                                          \
        elem *out = (elem *)to + at;                                                               \
        _Pragma("omp simd") for (size_t k = 0; k < n; k++) out[k] = store(sum[k]);                 \
    }

// clang-format off
DEFINE_REDUCE(f32_sum,   float,    float,    AS_IT_IS,    AS_IT_IS,    ADD)
DEFINE_REDUCE(f32_max,   float,    float,    AS_IT_IS,    AS_IT_IS,    LARGER)
DEFINE_REDUCE(f64_sum,   double,   double,   AS_IT_IS,    AS_IT_IS,    ADD)
DEFINE_REDUCE(f64_max,   double,   double,   AS_IT_IS,    AS_IT_IS,    LARGER)
DEFINE_REDUCE(bf16_sum,  uint16_t, float,    f32_of_bf16, bf16_of_f32, ADD)
DEFINE_REDUCE(bf16_max,  uint16_t, float,    f32_of_bf16, bf16_of_f32, LARGER)
DEFINE_REDUCE(f16_sum,   uint16_t, float,    half_load,   half_store,  ADD)
DEFINE_REDUCE(f16_max,   uint16_t, float,    half_load,   half_store,  LARGER)
DEFINE_REDUCE(int32_sum, uint32_t, uint32_t, AS_IT_IS,    AS_IT_IS,    ADD) /* it wraps */
DEFINE_REDUCE(int32_max, int32_t,  int32_t,  AS_IT_IS,    AS_IT_IS,    LARGER)

static const struct type {
    size_t bytes;
    void (*reduce[2])(void *to, const void *const *in, unsigned num_in, size_t at, size_t n);
} types[] = {
    [COMM_F32]   = {4, {[COMM_SUM] = f32_sum,   [COMM_MAX] = f32_max}},
    [COMM_F64]   = {8, {[COMM_SUM] = f64_sum,   [COMM_MAX] = f64_max}},
    [COMM_BF16]  = {2, {[COMM_SUM] = bf16_sum,  [COMM_MAX] = bf16_max}},
    [COMM_F16]   = {2, {[COMM_SUM] = f16_sum,   [COMM_MAX] = f16_max}},
    [COMM_INT32] = {4, {[COMM_SUM] = int32_sum, [COMM_MAX] = int32_max}},
};
// clang-format on

size_t comm_type_bytes(enum comm_type type)
{
    return types[type].bytes;
}

void comm_reduce(void *out, const void *const *in, unsigned num_in, size_t count,
                 enum comm_type type, enum comm_reduction reduction)
{
    for (size_t at = 0; at < count; at += BLOCK)
        types[type].reduce[reduction](out, in, num_in, at, count - at < BLOCK ? count - at : BLOCK);
}
