/* training_states.h - differing fields of two training states: step, schedule,
 * parameter groups, loss scale. Groups of experts depend on the layout: they
 * are compared with the other side's groups that hold these experts. */
#ifndef FERRY_VALIDATE_COMPARE_TRAINING_STATES_H
#define FERRY_VALIDATE_COMPARE_TRAINING_STATES_H

#include "validate/compare/sides.h"

struct training_comparison {
    bool compared;                           /* else nothing below is set */
    struct training_difference *differences; /* these count */
    size_t count;
    const char *iterations; /* sentence on differing iterations, which do not count: a checkpoint
                               may be written under any number; NULL: equal */
};

/* Compares the training states of both sides; in arena a. */
struct training_comparison training_states_compare(const struct side sides[2], struct arena *a);

#endif
