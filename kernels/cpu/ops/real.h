/* real.h - the types that an op is compiled for. Each op's file is compiled once for every type of
 * element and every set of instructions (OP_VARIANTS of the Makefile); NAME() makes
 * the names of functions that are not static. */
#ifndef FERRY_KERNELS_CPU_OPS_REAL_H
#define FERRY_KERNELS_CPU_OPS_REAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(x) JOIN(x, VARIANT)

#ifdef ELEM_f64
typedef double elem;
typedef double real;
#elif defined ELEM_f32
typedef float elem;
typedef float real;
#elif defined ELEM_bf16
typedef struct {
    uint16_t bits;
} elem;
typedef float real;
#endif

#ifdef ELEM_bf16
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

#ifdef ELEM_f64
#define real_sqrt sqrt
#define real_log log
#else
#define real_sqrt sqrtf
#define real_log logf
#endif

#endif
