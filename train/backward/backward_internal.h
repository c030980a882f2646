/* backward_internal.h - what rules (rules.c) get from the walk (backward.c). */
#ifndef FERRY_TRAIN_BACKWARD_BACKWARD_INTERNAL_H
#define FERRY_TRAIN_BACKWARD_BACKWARD_INTERNAL_H

#include "train/backward/backward.h"

/* The walk. `st` keeps the first failure; calls that are added after it are never used. */
struct walk {
    struct program *p;
    const struct backward *b;
    value_id *gradients; /* [num_values] of forward values; NO_VALUE: none yet */
    bool *written;       /* [num_values] of parameters: this program has written their gradient */
    /* [num_values] Members of the tensor parallel group have numbers of their own, or go on by
     * themselves with the same numbers: so each has a part of the gradients before that. */
    bool *apart;
    const struct call *calls;     /* [num_calls] a copy of the forward program's */
    size_t num_values, num_calls; /* of the forward program */
    struct call call;             /* the one whose rule runs */
    enum status st;
    struct error *err;
};

/* One op a row; has no effect on a call none of whose outputs has a gradient. */
typedef void rule_function(struct walk *w, const struct call *c);
rule_function *backward_rule(unsigned op); /* NULL: there is none */

/* Of the call's output; NO_VALUE: nobody uses it. */
value_id walk_output(const struct walk *w, const struct call *c, unsigned output);
/* Gives (a share of) the gradient of an input that is no parameter. */
void walk_give(struct walk *w, value_id input, value_id gradient);
/* The gradient that an input has already, for an op that adds to it; then walk_replace. */
value_id walk_so_far(const struct walk *w, value_id input);
void walk_replace(struct walk *w, value_id input, value_id gradient);

bool walk_is_parameter(const struct walk *w, value_id id);
/* Of a parameter: the held value that its gradient is written to, and that same value as the
 * operand to add to (NO_VALUE: nothing is there yet). NO_VALUE of a value that is no parameter. */
struct held_gradient {
    value_id into, sum;
};
struct held_gradient walk_parameter(struct walk *w, value_id parameter);

/* Adds a call in the layer of the forward one, called "LABEL.SUFFIX"; returns its first output. */
value_id walk_call(struct walk *w, unsigned op, const char *suffix, struct emission e);
#define CALL(w, op, suffix, ...) walk_call(w, op, suffix, (struct emission){__VA_ARGS__})
#define IN(...) .in = {__VA_ARGS__}, .num_in = sizeof((value_id[]){__VA_ARGS__}) / sizeof(value_id)

void walk_fail(struct walk *w, enum status st, const char *what);

#endif
