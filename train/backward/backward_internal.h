/* backward_internal.h - functions of the walk (backward.c) for rules (rules.c).
 */
#ifndef FERRY_TRAIN_BACKWARD_BACKWARD_INTERNAL_H
#define FERRY_TRAIN_BACKWARD_BACKWARD_INTERNAL_H

#include "train/backward/backward.h"

/* The walk. st: the first failure; calls added after it are never used. */
struct walk {
    struct program *p;
    const struct backward *b;
    value_id *gradients; /* [num_values] of forward values; NO_VALUE: none */
    bool *written;       /* [num_values] this program has written this parameter's gradient */
    /* [num_values] Tensor parallel ranks hold different numbers, or continue
     * separately from equal ones: each has a part of the gradient of earlier
     * replicated values. */
    bool *rank_local;
    const struct call *calls;     /* [num_calls] a copy of the forward program's */
    size_t num_values, num_calls; /* of the forward program */
    struct call call;             /* the one whose rule runs */
    enum status st;
    struct error *err;
};

/* A row an op; without effect if no output of the call has a gradient. */
typedef void rule_function(struct walk *w, const struct call *c);
rule_function *backward_rule(unsigned op); /* NULL: there is none */

/* Gradient of a call's output; NO_VALUE: unused. */
value_id walk_output(const struct walk *w, const struct call *c, unsigned output);
/* Adds to the gradient of an input that is no parameter. */
void walk_give(struct walk *w, value_id input, value_id gradient);
/* Gradient of an input so far, for an op that adds to it; then walk_replace. */
value_id walk_so_far(const struct walk *w, value_id input);
void walk_replace(struct walk *w, value_id input, value_id gradient);

bool walk_is_parameter(const struct walk *w, value_id id);
/* A parameter's gradient. into: the held value to write; NO_VALUE: no
 * parameter. sum: the same value as the operand to add to; NO_VALUE: nothing is
 * there yet. */
struct held_gradient {
    value_id into, sum;
};
struct held_gradient walk_parameter(struct walk *w, value_id parameter);

/* Adds a call "LABEL.SUFFIX" in the layer of the forward one; returns its first
 * output. */
value_id walk_call(struct walk *w, unsigned op, const char *suffix, struct emission e);
#define CALL(w, op, suffix, ...) walk_call(w, op, suffix, (struct emission){__VA_ARGS__})
#define IN(...) .in = {__VA_ARGS__}, .num_in = sizeof((value_id[]){__VA_ARGS__}) / sizeof(value_id)

void walk_fail(struct walk *w, enum status st, const char *what);

#endif
