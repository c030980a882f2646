/* attention_backward.h - shared by the kernels of attention's backward:
 * attention_backward.cu takes everything, attention_backward_mma.cu bf16 and
 * f16 heads on tensor cores.
 *
 * For a query and a key let x = scale * q.k, score = x or softcap * tanh(x /
 * softcap), p = exp(score - lse), and m dropout's factor of p. Then
 *
 *   dv += p m do
 *   ds = p (m do.v - delta) * (1 - (score / softcap)^2)
 *   dq += scale ds k
 *   dk += scale ds q
 *
 * where delta = do.o of the query and head. One kernel makes the gradients of
 * queries, one those of keys and values. Each adds up what it owns in one
 * order: no gradient is added to by several blocks. */
#ifndef FERRY_KERNELS_CUDA_ATTENTION_BACKWARD_H
#define FERRY_KERNELS_CUDA_ATTENTION_BACKWARD_H

#include "kernels/cuda/attention.h"

template <typename E> struct attention_backward_args {
    attention_args<E> a; /* without o and lse */
    const E *o, *d_o;    /* [num_queries, heads, head_dim] */
    const real_of<E> *lse;
    real_of<E> *delta; /* [num_queries, heads] */
    E *dq, *dkv;       /* as q and kv; dkv is dq if q and kv are one array */
    unsigned num_keys;
};

/* In attention_backward_mma.cu: whether it supports these shapes; the two
 * launches, which need delta, and dq and dkv zeroed. */
bool attention_backward_fits_mma(const union op_params *p, const struct operand *in);
template <typename E>
enum status attention_backward_mma(const attention_backward_args<E> &b, struct error *err);

#endif
