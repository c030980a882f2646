/* trust.h - trusts a faster kernel after it agreed with a plain one, once on
 * each GPU.
 *
 * Some kernels cannot run where they are built and tested: those of other
 * libraries, those of one architecture. Both kernels compute a small case of
 * bf16 or f16. */
#ifndef FERRY_KERNELS_CUDA_TRUST_H
#define FERRY_KERNELS_CUDA_TRUST_H

#include "kernels/cuda/cuda.h"

/* An op's arguments. */
struct op_call {
    enum elem_type elem;
    union op_params p;
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
};

struct op_call op_call_of(enum elem_type elem, WORKSPACE_ARGUMENTS);

/* One of the two kernels. */
struct contender {
    const char *name;
    size_t workspace_bytes;
    enum status (*run)(const struct op_call *call, const void *context, void *workspace,
                       struct error *err);
    const void *context;
};

/* OK if both outputs agree up to rounding; ERR_NUMERIC with the difference.
 * Data pointers of `shapes` only tell which operands are present: ELEM and REAL
 * inputs are random, set_ints writes INT inputs (NULL: none). Waits for the
 * GPU: ERR_UNSUPPORTED while a graph is recorded. */
MUST_CHECK enum status check_agreement(const struct op_call *shapes,
                                       void (*set_ints)(const struct op_call *shapes, int32_t *to),
                                       const struct contender *plain,
                                       const struct contender *faster, struct error *err);

/* The verdict on a kernel of compute capability 9.0. */
enum verdict { NOT_TRIED, TRUSTED, REFUSED };

/* check_agreement() with such a kernel. A failure to try it, such as too little
 * memory, is no verdict. With the word "say" in FERRY_CUDA_SM90, stderr gets
 * the outcome; it always gets errors of CUDA, which may persist and fail all
 * later calls. what: kind of the small case. */
enum verdict try_sm90(const char *what, const struct op_call *shapes,
                      void (*set_ints)(const struct op_call *shapes, int32_t *to),
                      const struct contender *plain, const struct contender *faster);

#endif
