/* norm.h - passes over a row that a block norms, N elements at a time,
 * for norm.cu and fused.cu. I is the index type: the narrower takes
 * fewer registers. */
#ifndef FERRY_KERNELS_CUDA_NORM_H
#define FERRY_KERNELS_CUDA_NORM_H

#include "kernels/cuda/cuda.h"

/* The thread's part of the sum of (x - mean)^2. */
template <typename E, int N, typename I>
__device__ inline real_of<E> square_deviations(const E *x, I h, real_of<E> mean)
{
    real_of<E> total = 0, v[N];
    for (I i = threadIdx.x * N; i < h; i += blockDim.x * N) {
        load_reals<E, N>(v, x + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            total += (v[j] - mean) * (v[j] - mean);
    }
    return total;
}

/* y = (x - mean) * scale * (weight + shift) + bias (optional). y may be x. */
template <typename E, int N, typename I>
__device__ inline void scale_row(E *y, const E *x, const E *weights, const E *biases,
                                 real_of<E> shift, I h, real_of<E> mean, real_of<E> scale)
{
    real_of<E> v[N], weight[N], bias[N] = {};
    for (I i = threadIdx.x * N; i < h; i += blockDim.x * N) {
        load_reals<E, N>(v, x + i);
        load_reals<E, N>(weight, weights + i);
        if (biases) load_reals<E, N>(bias, biases + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = (v[j] - mean) * scale * (weight[j] + shift) + bias[j];
        store_reals<E, N>(y + i, v);
    }
}

#endif
