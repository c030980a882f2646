/* optimizer.h - detects optimizer state that Ferry cannot read. */
#ifndef FERRY_VALIDATE_COMPARE_OPTIMIZER_H
#define FERRY_VALIDATE_COMPARE_OPTIMIZER_H

#include "ckpt/checkpoint.h"

bool optimizer_has_tensors(const struct checkpoint *c);

/* Whether the whole optimizer state became tensors of c, or there is none. */
bool optimizer_is_read(const struct checkpoint *c);
/* ERR_UNSUPPORTED, with the reason, unless optimizer_is_read(). */
MUST_CHECK enum status optimizer_check_read(const struct checkpoint *c, struct error *err);

#endif
