/* training_states.h - differing fields of two training states: step, schedule,
 * parameter groups, loss scale. Groups of experts depend on the layout: they
 * are compared with the other side's groups that hold these experts. */
#ifndef FERRY_VALIDATE_COMPARE_TRAINING_STATES_H
#define FERRY_VALIDATE_COMPARE_TRAINING_STATES_H

#include "common/args.h"
#include "validate/compare/sides.h"

struct training_comparison {
    bool compared;                           /* else nothing below is set */
    struct training_difference *differences; /* these count */
    size_t count;
    struct training_difference *ignored; /* those of --ignore-training */
    size_t num_ignored;
    const char *iterations; /* sentence on differing iterations, which do not count: a checkpoint
                               may be written under any number; NULL: equal */
};

/* Checks that each glob of --ignore-training (NULL: none) matches a name that a
 * difference can have. ERR_USAGE, with the first glob that does not. */
MUST_CHECK enum status training_check_ignored(const struct arg_list *ignore,
                                              const struct side sides[2], struct arena *a,
                                              struct error *err);

/* Compares the training states of both sides; in arena a. ignore: globs of
 * fields, whose brackets are literal, as in groups[0].lr; NULL: none. */
struct training_comparison training_states_compare(const struct side sides[2],
                                                   const struct arg_list *ignore, struct arena *a);

#endif
