/* recompute.h - activations recomputed in backward instead of kept for it.
 *
 * Some forward values of a program with backward calls are *dropped*: their
 * readers in backward get a copy, made by copies of the forward calls right
 * before the first reader. A dropped value that a copy needs is recomputed in
 * the same way. So every policy is a set of dropped values:
 *
 *   always     results of ops that only move numbers (OP_IS_COPY of
 *              kernels/op_table.h): rows in the order of experts, rows gathered
 *              from other ranks
 *   selective  results of some ops: core attention, norms, activations, the MLP
 *   full       all values of some layers, except the residual stream at the
 *              start of a group of layers. An add_norm with a kept sum is
 *              recomputed as the norm of its sum, which has the same bits
 *
 * Megatron-LM's options: --recompute-granularity, --recompute-method,
 * --recompute-num-layers, --recompute-modules. */
#ifndef FERRY_TRAIN_BACKWARD_RECOMPUTE_H
#define FERRY_TRAIN_BACKWARD_RECOMPUTE_H

#include "train/engine/program.h"

enum recompute_granularity { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum recompute_method {
    RECOMPUTE_UNIFORM, /* all layers, in groups of num_layers */
    RECOMPUTE_BLOCK    /* the first num_layers layers of a program, one by one */
};
/* Bits */
enum recompute_modules {
    RECOMPUTE_CORE_ATTENTION = 1,
    RECOMPUTE_NORMS = 2,
    RECOMPUTE_ACTIVATIONS = 4,
    RECOMPUTE_MLP = 8 /* all of a layer behind its second norm */
};

struct recompute_options {
    enum recompute_granularity granularity;
    enum recompute_method method;
    uint64_t num_layers; /* granularity full: at least 1 */
    unsigned modules;    /* granularity selective */
};

/* forward_calls: number of calls before backward. ERR_USAGE if num_layers is 0.
 */
MUST_CHECK enum status recompute(struct program *p, const struct recompute_options *o,
                                 size_t forward_calls, struct error *err);

#endif
