/* backward.h - adds to a program the calls that compute gradients.
 *
 * The program's calls are walked in reverse. The rule of each op (rules.c: a row an op) takes a
 * call and the gradients of its outputs, and adds the calls that make the gradients of its inputs.
 * A value that several calls read gets the sum of their gradients.
 *
 * Gradients of activations are ELEM; those of parameters are held values (VALUE_GRADIENT), to which
 * the calls of several micro-batches, or of a parameter that is used twice, add. What a rule reads
 * of the forward calls simply lives longer; recompute.h makes it anew instead.
 *
 * The walk begins at the weighted sums of losses (OP_WEIGHTED_SUM): the gradient of a loss is its
 * weight times loss_scale, which is known beforehand. In a pipeline stage without the head it
 * begins at the gradient that the next stage sends. So the calls of the head, which make logits and
 * losses, move behind all other forward calls, and each chunk of them is followed by its gradients:
 * the logits of one chunk are in memory at a time. */
#ifndef FERRY_TRAIN_BACKWARD_BACKWARD_H
#define FERRY_TRAIN_BACKWARD_BACKWARD_H

#include "train/engine/program.h"

/* A table that rows are looked up in by ids: the input with the ids, and the one with the rows in
 * their order. */
struct lookup {
    value_id ids, order;
};

struct backward {
    struct stage_values {
        value_id in, out;      /* of a pipeline stage: its input, and what the next one has of it */
        value_id out_gradient; /* an input; all NO_VALUE: at that end of the model is no stage */
    } stage;
    size_t head;              /* calls [head, num_calls) are those of the head: .. */
    unsigned head_chunks;     /* .. so many times the same calls, on other rows each; 0: no head */
    value_id loss_scale;      /* REAL [1] */
    value_id router_scale;    /* REAL [1], of the losses of routers; NO_VALUE: there are none */
    struct lookup lookups[2]; /* those without ids are unused */
    bool accumulates; /* gradients are added to what their region holds; else the first call that
                       * makes the gradient of a parameter writes it */
    enum operand_type gradient_type; /* of parameters: REAL, or ELEM */
};

/* Adds the calls. *forward_calls: where they begin, with those of the head; all before them is
 * forward. *in_gradient: the gradient of stage.in, an output; NO_VALUE: it has no such input.
 * ERR_UNSUPPORTED names an op without a rule; ERR_OURS if a parameter on the way has no
 * gradient. */
MUST_CHECK enum status backward_make(struct program *p, const struct backward *b,
                                     size_t *forward_calls, value_id *in_gradient,
                                     struct error *err);

#endif
