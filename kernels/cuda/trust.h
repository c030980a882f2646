/* trust.h - a faster kernel is trusted after it agreed with a plain one once, on this GPU.
 *
 * Some kernels cannot be run where they are built and tested: those of other people's libraries,
 * those of one architecture. Both kernels compute a small case, of bf16 or f16. */
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

/* OK where the outputs of both are the same but for rounding; ERR_NUMERIC, with what differs. Data
 * of `shapes` only say which operands there are: ELEM and REAL inputs are random, INT inputs are
 * what set_ints writes (NULL: there are none). Waits for the GPU: ERR_UNSUPPORTED while a graph is
 * recorded. */
MUST_CHECK enum status check_agreement(const struct op_call *shapes,
                                       void (*set_ints)(const struct op_call *shapes, int32_t *to),
                                       const struct contender *plain,
                                       const struct contender *faster, struct error *err);

/* What is known of a kernel of compute capability 9.0. */
enum verdict { NOT_TRIED, TRUSTED, REFUSED };

/* check_agreement() with such a kernel. A reason why it cannot be tried, such as too little memory,
 * is no verdict. stderr has what came out where FERRY_CUDA_SM90 has the word "say", and any error
 * of CUDA: it may persist, and then all later calls fail. what: the kind of the small case. */
enum verdict try_sm90(const char *what, const struct op_call *shapes,
                      void (*set_ints)(const struct op_call *shapes, int32_t *to),
                      const struct contender *plain, const struct contender *faster);

#endif
