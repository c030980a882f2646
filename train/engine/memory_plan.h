/* memory_plan.h - plans the place of each value of a program, before the first
 * op runs.
 *
 * Each class of values has a region of memory. Two scratch values share bytes
 * only if they do not live at the same time; an output takes the place of an
 * input that is not read again, if the op allows it. Scratch values used by
 * both parts of a program become saved ones, which share nothing. Offsets are
 * multiples of MEMORY_ALIGNMENT. */
#ifndef FERRY_TRAIN_ENGINE_MEMORY_PLAN_H
#define FERRY_TRAIN_ENGINE_MEMORY_PLAN_H

#include "common/strbuf.h"
#include "train/engine/program.h"

enum { MEMORY_ALIGNMENT = 256 };

/* Asks each op for its workspace, a scratch value of its own. Sets first, last
 * and offset of all values, and p->bytes. Held values keep their places, given
 * by the model (parameters.h). */
void memory_plan_make(struct program *p, const struct op_kernel *kernels);

/* Appends the largest scratch values at the call with most memory, a line each.
 */
void memory_plan_print(const struct program *p, struct strbuf *out);

#endif
