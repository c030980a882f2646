/* bind.h - finds what fills parameters in a checkpoint. */
#ifndef FERRY_TRAIN_MODEL_BIND_H
#define FERRY_TRAIN_MODEL_BIND_H

#include "train/model/parameters.h"

/* Sets the parts of all parameters that have none yet, of tensors of c. ERR_UNSUPPORTED where the
 * checkpoint has no such tensor, or it is of another shape than the config says. */
MUST_CHECK enum status parameters_bind(struct parameters *p, const struct checkpoint *c,
                                       struct error *err);

#endif
