/* numbered.h - names for parameters that an optimizer of torch.optim numbers.
 *
 *   {state: {NUMBER: {STATE: tensor}}, param_groups: [{params: [NUMBER, ...]}]}
 *
 * - torch counts the parameters of the groups, one group after the other;
 * - each group has the model's order;
 * - frozen parameters may be in no group.
 *
 * No file names them. States' shapes tell them apart, and masters' values where
 * there are some: a number is known if all parameters like it are in one
 * group. */
#ifndef FERRY_CONVERT_NUMBERED_H
#define FERRY_CONVERT_NUMBERED_H

#include "common/arena.h"
#include "formats/value.h"

/* A parameter of the model. */
struct numbered_param {
    const char *name;
    unsigned num_dims;
    const uint64_t *shape; /* of its states, too; NULL: not known */
    const char *values;    /* a text that is equal for equal weights; NULL: not known */
};

/* Sets (*names)[i] to the name of number i; there are num_params, those without
 * number NULL. params: of the model, in its order. masters: number i's rounded to
 * a weight, as its `values`, [num_params]; NULL: not known. In arena a. Returns
 * NULL, or why numbers cannot be named. */
const char *numbered_names(struct arena *a, const struct value *state, const struct value *groups,
                           const char *const *masters, const struct numbered_param *params,
                           size_t num_params, const char ***names);

struct numbered {
    size_t group, kind; /* kind: equal for equal shapes; 0: not known */
};

/* The rule. Sets param_of[i] to the index of item i's parameter; kinds: of the
 * parameters. Returns NULL, or why items cannot be assigned:
 *
 * - one kind is in several groups;
 * - the model has more or fewer parameters of it;
 * - the kind of an item is not known;
 * - a group has another order than the model.
 *
 * The kinds of a single group of all parameters may be unknown. */
const char *numbered_assign(struct arena *a, const size_t *kinds, size_t num_params,
                            const struct numbered *items, size_t count, size_t *param_of);

#endif
