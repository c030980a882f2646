/* memory_plan.h - plans the place of each value of a program, before the first op runs.
 *
 * Each class of values has a region of memory. In the region of scratch values two values share
 * bytes only if they do not live at the same time; an output takes the place of an input that is
 * not read again, if the op allows that. Scratch values that both parts of a program use become
 * saved ones, which share nothing. Offsets are multiples of MEMORY_ALIGNMENT. */
#ifndef FERRY_TRAIN_ENGINE_MEMORY_PLAN_H
#define FERRY_TRAIN_ENGINE_MEMORY_PLAN_H

#include "common/strbuf.h"
#include "train/engine/program.h"

enum { MEMORY_ALIGNMENT = 256 };

/* Asks each op for its workspace, which becomes a scratch value of its own; then sets first, last
 * and offset of all values but held ones, whose places are the model's (parameters.h), and
 * p->bytes. */
void memory_plan_make(struct program *p, const struct op_kernel *kernels);

/* The largest scratch values at the call that needs most memory, a line each. */
void memory_plan_print(const struct program *p, struct strbuf *out);

#endif
