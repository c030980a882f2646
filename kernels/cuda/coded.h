/* coded.h - elements of coded weights (struct weight_coding of kernels/ops.h),
 * decoded as they are read. */
#ifndef FERRY_KERNELS_CUDA_CODED_H
#define FERRY_KERNELS_CUDA_CODED_H

#include <string.h>

#include "kernels/cuda/cuda.h"

/* Some rows of a weight. */
template <typename E> struct coded_rows {
    const unsigned char *codes, *scales;
    const float *numbers;
    size_t columns, group, groups; /* of a row */
    size_t size;                   /* rows */
    enum dtype dtype;
    bool two_in_a_byte, scales_are_e8m0;

    __device__ inline bool depth_is_last() const
    {
        return true;
    }

    __device__ inline coded_rows rows_from(size_t row, size_t count) const
    {
        coded_rows x = *this;
        x.codes += row * columns / (two_in_a_byte ? 2 : 1);
        x.scales += row * groups * (scales_are_e8m0 ? 1 : sizeof(float));
        x.size = count;
        return x;
    }

    __device__ inline float scale(size_t at) const
    {
        if (!scales_are_e8m0) return reinterpret_cast<const float *>(scales)[at];
        const unsigned code = scales[at], bits = code ? code << 23 : 1u << 22;
        float power; /* 2^(code - 127) */
        memcpy(&power, &bits, sizeof power);
        return power;
    }

    __device__ inline real_of<E> element(size_t row, size_t column) const
    {
        const size_t at = row * columns + column;
        const unsigned code =
            two_in_a_byte ? codes[at / 2] >> at % 2 * 4 & 15u : (unsigned)codes[at];
        const float x = numbers[code] * scale(row * groups + column / group);
        const float rounded = dtype == DT_BF16  ? to_real(from_real<bf16>(x))
                              : dtype == DT_F16 ? to_real(from_real<f16>(x))
                                                : x;
        return to_real(from_real<E>(rounded));
    }
};

template <typename E> static struct coded_rows<E> coded_rows_of(const struct operand &w) {
    const struct weight_coding *c = w.coding;
    const unsigned char *data = static_cast<const unsigned char *>(w.data);
    struct coded_rows<E> x = {
    };
    x.columns = w.shape[w.num_dims - 1];
    x.size = w.shape[w.num_dims - 2];
    x.group = c->group;
    x.groups = (x.columns + c->group - 1) / c->group;
    x.codes = data;
    x.scales = data + c->scales_at;
    x.numbers = reinterpret_cast<const float *>(data + c->numbers_at);
    x.dtype = c->dtype;
    x.two_in_a_byte = c->bits == 4;
    x.scales_are_e8m0 = c->scales_are_e8m0;
    return x;
}

#endif
