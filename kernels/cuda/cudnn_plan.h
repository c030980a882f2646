/* cudnn_plan.h - attention as a plan of cuDNN 9: sequences of one length, causal or not.
 *
 * libcudnn.so.9 is loaded at run time, by cudnn_open. A plan depends on shapes and strides alone;
 * pointers, which are aligned to 16 bytes, and the scale are those of each run. */
#ifndef FERRY_KERNELS_CUDA_CUDNN_PLAN_H
#define FERRY_KERNELS_CUDA_CUDNN_PLAN_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Elements from one to the next; those of a head lie one behind the other. */
struct cudnn_strides {
    int64_t batch, head, row;
};

/* [batch, heads, length, head_dim] of queries and outputs, [batch, kv_heads, length, head_dim] of
 * keys and values. */
struct cudnn_shape {
    int64_t batch, heads, kv_heads, length, head_dim;
    struct cudnn_strides q, kv, o;
    int64_t causal, stats; /* booleans */
    int64_t f16;           /* a boolean: f16, else bf16 */
};

struct cudnn_operands {
    const void *q, *k, *v;
    void *o;
    float *stats; /* [batch, heads, length]: the natural log of the sum of exp(score) */
    float scale;
};

enum { CUDNN_MAX_PARTS = 96 };

struct cudnn_plan {
    void *parts[CUDNN_MAX_PARTS]; /* descriptors, in the order in which they were made */
    unsigned num_parts;
    void *plan; /* one of them */
    size_t workspace_bytes;
};

/* The library, without a GPU: ERR_UNSUPPORTED where it is not there, or no version that is known to
 * be right. */
MUST_CHECK enum status cudnn_load(struct error *err);

/* Loads it, for the GPU that is chosen; runs go to the stream. */
MUST_CHECK enum status cudnn_open(cudaStream_t stream, struct error *err);
void cudnn_close(void);
unsigned cudnn_version(void); /* 92400 is 9.24.0; 0: not loaded */

/* ERR_UNSUPPORTED where cuDNN has no plan for the shape. device: NULL is the open one; else a GPU
 * that need not be there, as the JSON that cuDNN writes of it. cudnn_plan_release afterwards, after
 * a failure too. */
MUST_CHECK enum status cudnn_plan_make(struct cudnn_plan *p, const struct cudnn_shape *s,
                                       const char *device, struct error *err);
void cudnn_plan_release(struct cudnn_plan *p);

/* Neither waits nor allocates on the GPU. */
MUST_CHECK enum status cudnn_plan_run(const struct cudnn_plan *p, const struct cudnn_shape *s,
                                      const struct cudnn_operands *o, void *workspace,
                                      struct error *err);

#endif
