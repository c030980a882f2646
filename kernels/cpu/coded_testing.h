/* coded_testing.h - coded weights of random codes and scales, and their elements
 * by another way than coded.c. */
#ifndef FERRY_KERNELS_CPU_CODED_TESTING_H
#define FERRY_KERNELS_CPU_CODED_TESTING_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/coded.h"
#include "tests/testing.h"

/* Fills a placed weight with numbers around 1. */
static inline void coded_fill_random(const struct weight_coding *c, uint64_t rows, uint64_t cols,
                                     uint64_t *seed, void *data)
{
    uint8_t *bytes = data;
    memset(data, 0, c->bytes);
    for (uint64_t i = 0; i < rows * (cols * c->bits / 8); i++) {
        bytes[i] = (uint8_t)test_random(seed);
        if (c->code == QUANT_E4M3 && (bytes[i] & 0x7F) == 0x7F) bytes[i] ^= 1;
    }
    for (uint64_t i = 0; i < rows * coding_groups(c, cols); i++) {
        const int power = (int)test_below(seed, 5) - (c->code == QUANT_E2M1 ? 3 : 8);
        const float scale = ldexpf(1 + (float)test_below(seed, 99) / 100, power);
        if (c->scales_are_e8m0)
            bytes[c->scales_at + i] = (uint8_t)(127 + power);
        else
            memcpy(bytes + c->scales_at + i * sizeof scale, &scale, sizeof scale);
    }
    coding_write_numbers(c, data);
}

static inline double coded_number(enum quant_code code, const uint8_t *codes, uint64_t i)
{
    switch (code) {
    case QUANT_E4M3:
        return dtype_load(DT_F8_E4M3, codes, i);
    case QUANT_E2M1:
        return dtype_load(DT_F4, codes, i);
    case QUANT_I8:
        return dtype_load(DT_I8, codes, i);
    case QUANT_I4:
        return (double)(codes[i / 2] >> i % 2 * 4 & 15) - 8;
    default:
        return (double)codes[i] - 128;
    }
}

/* Element (row, col), rounded to F32 once. */
static inline float coded_element(const struct operand *w, uint64_t row, uint64_t col)
{
    const struct weight_coding *c = w->coding;
    const uint64_t cols = w->shape[w->num_dims - 1];
    const uint8_t *data = w->data;
    const uint64_t at = row * coding_groups(c, cols) + col / c->group;
    double scale;
    float stored;
    memcpy(&stored, data + c->scales_at + (c->scales_are_e8m0 ? 0 : at * sizeof stored),
           sizeof stored);
    scale = c->scales_are_e8m0 ? dtype_load(DT_F8_E8M0, data + c->scales_at, at) : (double)stored;
    return (float)(coded_number(c->code, data, row * cols + col) * scale);
}

#endif
