/* half.h - IEEE 754 binary16 (float16 in Megatron-LM and safetensors) to
 * float32 and back.
 *
 * A half is its 16 bits. Rounds to nearest, ties to even; a float from 65520 on
 * becomes infinite, subnormal halves are kept. NaN becomes quiet and keeps its
 * sign and the upper bits of its payload. Equals VCVTPH2PS and VCVTPS2PH of x86
 * CPUs with F16C, bit for bit. Free of branches, so compilers vectorise loops
 * of it. And bfloat16, the upper half of a float32, rounded alike. */
#ifndef FERRY_COMMON_HALF_H
#define FERRY_COMMON_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float half_float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float half_load(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    const uint32_t normal = (rest << 13) + 0x38000000;
    const uint32_t subnormal = half_bits_of((float)(int32_t)rest * 0x1p-24f);
    const uint32_t finite = rest < 0x400 ? subnormal : normal;
    const uint32_t other = 0x7f800000 | rest << 13 | (rest > 0x7c00 ? 0x400000u : 0);
    return half_float_of(sign | (rest >= 0x7c00 ? other : finite));
}

static inline uint16_t half_store(float f)
{
    const uint32_t bits = half_bits_of(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    const uint32_t normal = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
    /* the addition rounds at 2^-24 */
    const uint32_t subnormal = half_bits_of(half_float_of(rest) + 0.5f) - half_bits_of(0.5f);
    const uint32_t finite = rest < 0x38800000 ? subnormal : normal;
    const uint32_t other = rest > 0x7f800000 ? 0x7e00 | (rest >> 13 & 0x3ff) : 0x7c00;
    return (uint16_t)(sign | (rest >= 0x477ff000 ? other : finite));
}

static inline float bf16_load(uint16_t bf16)
{
    return half_float_of((uint32_t)bf16 << 16);
}

static inline uint16_t bf16_store(float f)
{
    const uint32_t u = half_bits_of(f);
    const uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

#endif
