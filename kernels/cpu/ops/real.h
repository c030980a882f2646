/* real.h - the types that ops are compiled for.
 *
 * Each file of ops is compiled once for every element type and
 * instruction set (OP_VARIANTS of the Makefile); NAME() makes the names
 * of non-static functions. */
#ifndef FERRY_KERNELS_CPU_OPS_REAL_H
#define FERRY_KERNELS_CPU_OPS_REAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined ELEM_f16 && defined __F16C__
#include <immintrin.h>
#endif

#include "common/dtype.h"
#include "common/half.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(x) JOIN(x, VARIANT)

#ifdef ELEM_f64
typedef double elem;
typedef double real;
#define ELEM_DTYPE DT_F64
#elif defined ELEM_f32
typedef float elem;
typedef float real;
#define ELEM_DTYPE DT_F32
#elif defined ELEM_bf16 || defined ELEM_f16
#define ELEM_IS_16_BITS
typedef struct {
    uint16_t bits;
} elem;
typedef float real;
#endif

#ifdef ELEM_bf16
#define ELEM_DTYPE DT_BF16
static inline real load(elem x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest, ties to even; NaN stays NaN. */
static inline elem store(real x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (elem){(uint16_t)(x == x ? rounded : (bits >> 16) | 0x40)};
}
#elif defined ELEM_f16
#define ELEM_DTYPE DT_F16
static inline real load(elem x)
{
    return half_load(x.bits);
}

static inline elem store(real x)
{
    return (elem){half_store(x)};
}
#else
static inline real load(elem x)
{
    return x;
}

static inline elem store(real x)
{
    return x;
}
#endif

/* load() and store() of n adjacent elements. F16C converts eight f16 at once,
 * but compilers do not vectorise its scalar form. */
static inline void load_elems(real *restrict to, const elem *restrict from, size_t n)
{
    size_t i = 0;
#if defined ELEM_f16 && defined __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
#endif
    for (; i < n; i++)
        to[i] = load(from[i]);
}

static inline void store_elems(elem *restrict to, const real *restrict from, size_t n)
{
    size_t i = 0;
#if defined ELEM_f16 && defined __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        to[i] = store(from[i]);
}

#ifdef ELEM_f64
#define real_sqrt sqrt
#define real_log log
#else
#define real_sqrt sqrtf
#define real_log logf
#endif

#endif
