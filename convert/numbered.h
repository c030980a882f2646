/* numbered.h - names for parameters that an optimizer of torch.optim numbers.
 *
 * torch counts the parameters of the groups, one group after the other, and
 * each group has them in the model's order; frozen ones may be in no group. No
 * file names them. Their states' shapes tell them apart, so a number is known
 * if all parameters of its shape are in one group; else any of several orders
 * fits. */
#ifndef FERRY_CONVERT_NUMBERED_H
#define FERRY_CONVERT_NUMBERED_H

#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/map.h"

/* Numbers for shapes: equal ones have equal numbers, from 1. */
struct shape_kinds {
    struct map by_text;
    struct arena *arena;
};
size_t shape_kind(struct shape_kinds *k, unsigned num_dims, const uint64_t *shape);
void shape_kinds_release(struct shape_kinds *k);

struct numbered {
    size_t group, kind; /* kind: of its states; 0: it has none */
};

/* Sets param_of[i] to the index of number i's parameter. kinds: of the model's
 * parameters, in its order; 0: not known. In arena a. Returns NULL, or why
 * numbers cannot be assigned: parameters of one kind in several groups, more or
 * fewer of them than the model has, numbers without states, or a group in
 * another order than the model's. A single group that lists as many
 * numbers as there are parameters may have some without states. */
const char *numbered_assign(struct arena *a, const size_t *kinds, size_t num_params,
                            const struct numbered *numbers, size_t count, size_t *param_of);

#endif
