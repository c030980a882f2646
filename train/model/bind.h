/* bind.h - finds the tensors of a checkpoint that fill the parameters. */
#ifndef FERRY_TRAIN_MODEL_BIND_H
#define FERRY_TRAIN_MODEL_BIND_H

#include "train/model/parameters.h"

/* Sets the parts of all parameters that have none yet. ERR_UNSUPPORTED if c has no such tensor,
 * unless it may lack it, or its shape is not that of the config. */
MUST_CHECK enum status parameters_bind(struct parameters *p, const struct checkpoint *c,
                                       struct error *err);

/* Whether c may lack the tensor of this buffer: its model has no such buffer, which begins at 0. */
bool bind_may_lack(const struct checkpoint *c, const struct parameter *x);

#endif
