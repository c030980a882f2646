/* backward.h - adds to a program the calls that compute gradients.
 *
 * The program's calls are walked in reverse. The rule of each op (rules.c: a
 * row an op) takes a call and the gradients of its outputs, and adds the calls
 * for the gradients of its inputs. A value read by several calls gets the sum
 * of their gradients.
 *
 * Gradients of activations are ELEM. Gradients of parameters are held values
 * (VALUE_GRADIENT), to which several micro-batches add, and several uses of a
 * parameter. Forward values that a rule reads live longer; recompute.h
 * recomputes them instead.
 *
 * The walk begins at the weighted sums of losses (OP_WEIGHTED_SUM): the
 * gradient of a loss is its weight times loss_scale, known beforehand. In a
 * pipeline stage without the head it begins at the gradient from the next
 * stage. So the calls of the head (logits and losses) move behind all other
 * forward calls, and each chunk of them is followed by its gradients: the
 * logits of one chunk are in memory at a time. */
#ifndef FERRY_TRAIN_BACKWARD_BACKWARD_H
#define FERRY_TRAIN_BACKWARD_BACKWARD_H

#include "train/engine/program.h"

/* A lookup of rows in a table: the input with the ids, and the input with the
 * rows sorted by id. */
struct lookup {
    value_id ids, order;
};

struct backward {
    struct stage_values {
        value_id in, out;      /* a pipeline stage's input, and its output for the next stage */
        value_id out_gradient; /* an input; all NO_VALUE: no stage at that end */
    } stage;
    size_t head;              /* calls [head, num_calls) make logits and losses: .. */
    unsigned head_chunks;     /* .. the same calls for each chunk of rows; 0: no head */
    value_id loss_scale;      /* REAL [1] */
    value_id router_scale;    /* REAL [1], for losses of routers; NO_VALUE: none */
    struct lookup lookups[2]; /* unused without ids */
    bool accumulates;         /* adds gradients to their region; else a parameter's first gradient
                                 overwrites it */
    enum operand_type gradient_type; /* of parameters: REAL, or ELEM */
};

/* Adds the calls. *forward_calls: where they begin, those of the head included;
 * all before is forward. *in_gradient: the gradient of stage.in, an output;
 * NO_VALUE: no such input. ERR_UNSUPPORTED names an op without a rule; ERR_OURS
 * if a parameter on the way gets no gradient. */
MUST_CHECK enum status backward_make(struct program *p, const struct backward *b,
                                     size_t *forward_calls, value_id *in_gradient,
                                     struct error *err);

#endif
