/* fuse.h - merges calls of few rows: a launch on a GPU takes as long as reading
 * some megabytes of weights. */
#ifndef FERRY_TRAIN_MODEL_FUSE_H
#define FERRY_TRAIN_MODEL_FUSE_H

#include "train/engine/program.h"

enum { FUSED_ROWS = 16 }; /* with more rows, a product takes longer than the call before */

/* Merges, in a finished program without training, a norm (also with add) or an
 * activation of at most FUSED_ROWS rows and the product of parameters in the
 * next call: into OP_NORM_MATMUL or OP_ACTIVATION_MATMUL, labelled as the
 * product. The value between them gets no memory: it must be a scratch value
 * without other readers or views. */
void fuse_calls(struct program *p);

#endif
