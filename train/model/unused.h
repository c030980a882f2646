/* unused.h - checks that the program of a model uses all tensors of its checkpoint.
 *
 * If the builder ignored a head's bias, say, nothing would fail: the results would silently be
 * those of another model. */
#ifndef FERRY_TRAIN_MODEL_UNUSED_H
#define FERRY_TRAIN_MODEL_UNUSED_H

#include "ckpt/checkpoint.h"

/* ERR_UNSUPPORTED, with some names, if tensors are missing, if stored tensors are not part of the
 * model, or if no op reads a parameter; also if no program can be built. */
MUST_CHECK enum status unused_check(const struct checkpoint *c, struct error *err);

/* The same for a model that the command line describes, and that is to be filled from c: also
 * ERR_UNSUPPORTED if it has fewer layers, heads or biases than c. */
MUST_CHECK enum status unused_check_line(const struct checkpoint *c,
                                         const struct model_config *config, struct error *err);

#endif
