/* recompute.h - activations that are computed again in backward, in place of being kept for it.
 *
 * Of a program with backward calls, some forward values are *dropped*: what reads them in backward
 * gets a copy, made by copies of the forward calls right before the first of these needs it. A
 * dropped value that a copy needs is made again in the same way. So every policy is a set of
 * dropped values:
 *
 *   always     what ops made that only move numbers (OP_IS_COPY of kernels/op_table.h): rows in
 *              the order of experts, rows gathered from other ranks
 *   selective  the results of some ops: core attention, norms, activations, all of the MLP
 *   full       all values of some layers, but for the residual stream that a group of layers
 *              begins with. An add_norm whose sum is kept is made again as the norm of its sum,
 *              which has the same bits
 *
 * Megatron-LM's options: --recompute-granularity, --recompute-method, --recompute-num-layers,
 * --recompute-modules. */
#ifndef FERRY_TRAIN_BACKWARD_RECOMPUTE_H
#define FERRY_TRAIN_BACKWARD_RECOMPUTE_H

#include "train/engine/program.h"

enum recompute_granularity { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum recompute_method {
    RECOMPUTE_UNIFORM, /* all layers, in groups of num_layers */
    RECOMPUTE_BLOCK    /* the first num_layers layers of a program, each by itself */
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
    uint64_t num_layers; /* at least 1 where granularity is full */
    unsigned modules;    /* where it is selective */
};

/* forward_calls: the number of calls before backward. ERR_USAGE where num_layers is 0. */
MUST_CHECK enum status recompute(struct program *p, const struct recompute_options *o,
                                 size_t forward_calls, struct error *err);

#endif
