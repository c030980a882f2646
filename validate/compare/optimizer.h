/* optimizer.h - optimizer state that a checkpoint has and Ferry cannot read is not "none". */
#ifndef FERRY_VALIDATE_COMPARE_OPTIMIZER_H
#define FERRY_VALIDATE_COMPARE_OPTIMIZER_H

#include "ckpt/checkpoint.h"

bool optimizer_has_tensors(const struct checkpoint *c);

/* Whether all of it became tensors of c, or there is none. */
bool optimizer_is_read(const struct checkpoint *c);
/* ERR_UNSUPPORTED, saying why, where not all of the optimizer's state became tensors of c. */
MUST_CHECK enum status optimizer_check_read(const struct checkpoint *c, struct error *err);

#endif
