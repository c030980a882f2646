/* unused.h - whether the program of a model takes what its checkpoint has, all of it.
 *
 * A head's bias, say, that the builder does not know, is left out by no mistake that would show:
 * what comes out is the result of another model. */
#ifndef FERRY_TRAIN_MODEL_UNUSED_H
#define FERRY_TRAIN_MODEL_UNUSED_H

#include "ckpt/checkpoint.h"

/* ERR_UNSUPPORTED, with the names of some, where tensors are missing, where stored ones have no
 * place in the model, and where no op takes a parameter; and where no program can be built. */
MUST_CHECK enum status unused_check(const struct checkpoint *c, struct error *err);

#endif
