/* activation.h - the functions of OP_ACTIVATION, element by element, for all
 * kernels that apply them. E is the type of elements, real_of<E> that of the
 * arithmetic.
 *
 * f32 and f64 get exp() and a division of full precision, bf16 and f16 the
 * GPU's fast ones. These err by at most 2^-16 of the result (exp() near the
 * ends of its range), where the types round by 2^-9 and 2^-12. The fast x / y
 * is 0 for y beyond 2^126: there f(x) is below 2^-119. */
#ifndef FERRY_KERNELS_CUDA_ACTIVATION_H
#define FERRY_KERNELS_CUDA_ACTIVATION_H

#include "kernels/cuda/cuda.h"

template <typename E> __device__ inline real_of<E> exp_for(real_of<E> x)
{
    if constexpr (HAS_MMA<E>)
        return __expf(x);
    else
        return exp(x);
}

template <typename E> __device__ inline real_of<E> divide_for(real_of<E> x, real_of<E> y)
{
    if constexpr (HAS_MMA<E>)
        return __fdividef(x, y);
    else
        return x / y;
}

template <typename E> __device__ inline real_of<E> sigmoid(real_of<E> x)
{
    return divide_for<E>(1, 1 + exp_for<E>(-x));
}

template <typename E> __device__ inline real_of<E> silu(real_of<E> x)
{
    return divide_for<E>(x, 1 + exp_for<E>(-x));
}

template <typename E> __device__ inline real_of<E> gelu(real_of<E> x)
{
    typedef real_of<E> R;
    return x * R(0.5) * (1 + erf(x * R(0.70710678118654752440)));
}

/* (1 + tanh(u)) / 2 is sigmoid(2u), which does not cancel where u is far
 * below 0. */
template <typename E> __device__ inline real_of<E> gelu_tanh(real_of<E> x)
{
    typedef real_of<E> R;
    const R two_u = R(1.59576912160573071176) * (x + R(0.044715) * x * x * x);
    return divide_for<E>(x, 1 + exp_for<E>(-two_u));
}

template <typename E> __device__ inline real_of<E> relu(real_of<E> x)
{
    return x < 0 ? 0 : x; /* NaN stays */
}

template <typename E> __device__ inline real_of<E> squared_relu(real_of<E> x)
{
    return relu<E>(x) * relu<E>(x);
}

template <typename E> __device__ inline real_of<E> quick_gelu(real_of<E> x)
{
    return divide_for<E>(x, 1 + exp_for<E>(real_of<E>(-1.702) * x));
}

/* For a function of x[N]: applies f to each element. */
#define ACTIVATE_EACH(f)                                                                           \
    _Pragma("unroll") for (int j = 0; j < N; j++) x[j] = f(x[j]);                                  \
    break

/* x[j] = f(x[j]) */
template <typename E, int N>
__device__ inline void activate(real_of<E> (&x)[N], enum activation kind)
{
    switch (kind) {
    case ACTIVATION_SILU:
        ACTIVATE_EACH(silu<E>);
    case ACTIVATION_GELU:
        ACTIVATE_EACH(gelu<E>);
    case ACTIVATION_GELU_TANH:
        ACTIVATE_EACH(gelu_tanh<E>);
    case ACTIVATION_RELU:
        ACTIVATE_EACH(relu<E>);
    case ACTIVATION_SQUARED_RELU:
        ACTIVATE_EACH(squared_relu<E>);
    case ACTIVATION_QUICK_GELU:
        ACTIVATE_EACH(quick_gelu<E>);
    case NUM_ACTIVATIONS:
        break;
    }
}

#endif
