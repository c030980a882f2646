/* fuse.h - calls of a program made one, where few rows are computed: each launch on a GPU takes as
 * long as it takes to read some megabytes of weights. */
#ifndef FERRY_TRAIN_MODEL_FUSE_H
#define FERRY_TRAIN_MODEL_FUSE_H

#include "train/engine/program.h"

enum { FUSED_ROWS = 16 }; /* of more rows, a product takes longer than what is in front of it */

/* Of a finished program without training: a norm (also one that adds) or an activation of at most
 * FUSED_ROWS rows, and the product of parameters in the call behind it, become OP_NORM_MATMUL or
 * OP_ACTIVATION_MATMUL, with the label of the product. What lies between the two is then in no call
 * and in no memory: so it must be a scratch value that nothing else reads or is a view of. */
void fuse_calls(struct program *p);

#endif
