#ifndef FERRY_TESTS_GPU_EMULATOR_FP16_H
#define FERRY_TESTS_GPU_EMULATOR_FP16_H

#include "common/half.h"

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half x)
{
    return half_load(x.bits);
}

static inline __half __float2half_rn(float x)
{
    return __half{half_store(x)};
}

#endif
