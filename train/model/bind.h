/* bind.h - finds the tensors of a checkpoint that fill the parameters. */
#ifndef FERRY_TRAIN_MODEL_BIND_H
#define FERRY_TRAIN_MODEL_BIND_H

#include "train/model/parameters.h"

/* Sets the parts of all parameters without parts. ERR_UNSUPPORTED if c lacks a
 * tensor, unless it may, or its shape differs from the config's. */
MUST_CHECK enum status parameters_bind(struct parameters *p, const struct checkpoint *c,
                                       struct error *err);

/* Whether c may lack this buffer's tensor: its model has no such buffer, so the
 * buffer begins at 0. */
bool bind_may_lack(const struct checkpoint *c, const struct parameter *x);

#endif
