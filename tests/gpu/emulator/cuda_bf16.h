#ifndef FERRY_TESTS_GPU_EMULATOR_BF16_H
#define FERRY_TESTS_GPU_EMULATOR_BF16_H

#include <stdint.h>
#include <string.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    const uint32_t bits = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __nv_bfloat16{(uint16_t)(x == x ? rounded : (bits >> 16) | 0x40)};
}

#endif
