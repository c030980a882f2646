/* cudnn_plan.h - attention as a plan of cuDNN 9: sequences of one length,
 * causal or not.
 *
 * cudnn_open loads libcudnn.so.9 at run time. A plan depends on shapes and
 * strides alone; pointers (aligned to 16 bytes) and scale are given at
 * each run. */
#ifndef FERRY_KERNELS_CUDA_CUDNN_PLAN_H
#define FERRY_KERNELS_CUDA_CUDNN_PLAN_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Strides in elements; a head's elements are adjacent. */
struct cudnn_strides {
    int64_t batch, head, row;
};

/* [batch, heads, length, head_dim] of queries and outputs, [batch, kv_heads,
 * length, head_dim] of keys and values. */
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
    void *parts[CUDNN_MAX_PARTS]; /* descriptors, in the order of creation */
    unsigned num_parts;
    void *plan; /* one of them */
    size_t workspace_bytes;
};

/* Loads the library, without a GPU. ERR_UNSUPPORTED if it is missing, or a
 * version not known to be right. */
MUST_CHECK enum status cudnn_load(struct error *err);

/* Loads it for the current GPU; runs go to the stream. */
MUST_CHECK enum status cudnn_open(cudaStream_t stream, struct error *err);
void cudnn_close(void);
unsigned cudnn_version(void); /* 92400 is 9.24.0; 0: not loaded */

/* ERR_UNSUPPORTED if cuDNN has no plan for the shape. device: NULL for the open
 * one, or a possibly absent GPU as cuDNN's JSON describes it. Call
 * cudnn_plan_release afterwards, even after a failure. */
MUST_CHECK enum status cudnn_plan_make(struct cudnn_plan *p, const struct cudnn_shape *s,
                                       const char *device, struct error *err);
void cudnn_plan_release(struct cudnn_plan *p);

/* Neither waits for the GPU nor allocates on it. */
MUST_CHECK enum status cudnn_plan_run(const struct cudnn_plan *p, const struct cudnn_shape *s,
                                      const struct cudnn_operands *o, void *workspace,
                                      struct error *err);

#endif
