/* unused.h - checks that the program of a model reads all tensors of its
 * checkpoint: if the builder ignored, say, a head's bias, results would
 * silently be those of another model. */
#ifndef FERRY_TRAIN_MODEL_UNUSED_H
#define FERRY_TRAIN_MODEL_UNUSED_H

#include "ckpt/checkpoint.h"

/* ERR_UNSUPPORTED, naming some tensors, if any is missing, is not part of the
 * model, or is a parameter that no op reads; also if no program can be built.
 */
MUST_CHECK enum status unused_check(const struct checkpoint *c, struct error *err);

/* The same for a model described by the command line, to be filled from c: also
 * refuses fewer layers, heads or biases than in c. */
MUST_CHECK enum status unused_check_line(const struct checkpoint *c,
                                         const struct model_config *config, struct error *err);

#endif
