/* training_states.h - the fields in which the training states of two checkpoints differ: step,
 * schedule, parameter groups, loss scale. Groups of experts, which depend on the layout, are
 * compared with the groups that the experts are in on the other side. */
#ifndef FERRY_VALIDATE_COMPARE_TRAINING_STATES_H
#define FERRY_VALIDATE_COMPARE_TRAINING_STATES_H

#include "validate/compare/sides.h"

struct training_comparison {
    bool compared;                           /* else nothing below is set */
    struct training_difference *differences; /* these count */
    size_t count;
    const char *iterations; /* a sentence if they differ, which does not count: a checkpoint may be
                               written under any number; NULL: they do not */
};

/* Compares the training states of both sides; in arena a. */
struct training_comparison training_states_compare(const struct side sides[2], struct arena *a);

#endif
