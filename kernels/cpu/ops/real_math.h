/* real_math.h - functions of one real without branches, so that loops over them
 * vectorise. In f32 they err by about 1 unit in the last place; in f64 they are
 * the C library's. NaN gives NaN. */
#ifndef FERRY_KERNELS_CPU_OPS_REAL_MATH_H
#define FERRY_KERNELS_CPU_OPS_REAL_MATH_H

#include "kernels/cpu/ops/real.h"

#ifdef ELEM_f64
static inline double real_exp(double x)
{
    return exp(x);
}

static inline double real_tanh(double x)
{
    return tanh(x);
}

static inline double real_erf(double x)
{
    return erf(x);
}
#else
static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float sign_of(float sign, float magnitude)
{
    return bits_float((float_bits(magnitude) & 0x7FFFFFFF) | (float_bits(sign) & 0x80000000));
}

/* exp(x) = 2^n exp(r): adding 1.5 * 2^23 rounds n to an integer in the low
 * bits. 2^n is two factors, so that subnormal results are right. The polynomial
 * is Cephes' expf. */
static inline float real_exp(float x)
{
    const float round = 0x1.8p23f;
    x = x < -104.0f ? -104.0f : x; /* 0 below */
    x = x > 89.0f ? 89.0f : x;     /* infinite above */
    float shifted = x * 1.44269504f + round, n = shifted - round;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float e = 1.9875691500e-4f;
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * (r * r) + r + 1.0f;
    uint32_t exponents = float_bits(shifted) - float_bits(round) + 2 * 127, half = exponents >> 1;
    return e * bits_float(half << 23) * bits_float((exponents - half) << 23);
}

/* After N. Juffa's tanhf: an odd polynomial near 0, where 1 - 2 / (exp(2x) + 1)
 * would cancel. */
static inline float real_tanh(float x)
{
    float t = fabsf(x), s = x * x;
    float far = sign_of(x, 1.0f - 2.0f / (real_exp(2.0f * t) + 1.0f));
    float near = 1.57394409e-2f;
    near = near * s - 5.23025580e-2f;
    near = near * s + 1.33152470e-1f;
    near = near * s - 3.33327681e-1f;
    near = near * s * x + x;
    return t > 0.6f ? far : near;
}

/* After N. Juffa's erff: 1 - exp(polynomial) away from 0; 1 from 4 on. */
static inline float real_erf(float x)
{
    float t = fabsf(x), s = x * x;
    t = t > 4.0f ? 4.0f : t;
    float q = t * t, u = -3.88396438e-3f * t + 2.42546219e-2f;
    float far = -1.72853470e-5f * t + 3.83197126e-4f;
    far = far * q + u;
    far = far * t - 1.06777877e-1f;
    far = far * t - 6.34846687e-1f;
    far = far * t - 1.28717512e-1f;
    far = far * t - t;
    far = sign_of(x, 1.0f - real_exp(far));
    float near = -5.96761703e-4f;
    near = near * s + 4.99119423e-3f;
    near = near * s - 2.67681349e-2f;
    near = near * s + 1.12819925e-1f;
    near = near * s - 3.76125336e-1f;
    near = near * s + 1.28379166e-1f;
    near = near * x + x;
    return t > 0.927734375f ? far : near;
}
#endif

static inline real real_sigmoid(real x)
{
    return 1 / (1 + real_exp(-x));
}

#endif
