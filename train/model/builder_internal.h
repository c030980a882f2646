/* builder_internal.h - shared by builder.c (stages, the dense MLP),
 * builder_attention.c, builder_experts.c, builder_ends.c and builder_calls.c
 * (their common functions).
 *
 * Functions that return a value_id add the calls that make the value. The first
 * request for a parameter or input adds it. In a layer, names begin with
 * "layers.N.". */
#ifndef FERRY_TRAIN_MODEL_BUILDER_INTERNAL_H
#define FERRY_TRAIN_MODEL_BUILDER_INTERNAL_H

#include <string.h>

#include "train/model/inputs.h"

/* A program under construction. st: the first failure; calls added after it are
 * never used. */
struct builder {
    struct built *out;
    struct program *p;
    const struct build *b;
    const struct model_config *c;
    const struct forward_shape *shape;
    unsigned tp, cp, etp, ep;
    struct head_shape heads; /* of this rank */
    uint64_t rows, slice;    /* tokens of this rank; of its TP slice */
    int layer;
    uint64_t first_stage; /* of the program */
    /* The residual stream; a block's output and bias, which the next norm adds
     * to it. */
    value_id stream, branch, branch_bias;
    bool routers_begun;  /* a layer of this program has written router losses */
    value_id not_finite; /* of the results so far */
    enum status st;
    struct error *err;
};

/* ---- values and calls ---- */

const char *builder_label(struct builder *x, const char *what); /* "layers.3.WHAT" in a layer */

/* An op is one line:
 *
 *     y = emit(x, OP_NORM, "norm", IN(stream, weight, bias), .params.norm = {.epsilon = 1e-5});
 *
 * The list of ops gives types and shapes of outputs (program_emit). Returns the
 * first output; OUT(&a, &b, ..) takes all. */
#define emit(x, op, label, ...) builder_emit(x, op, label, &(struct emission){__VA_ARGS__})
#define IN(...) .in = {__VA_ARGS__}, .num_in = sizeof((value_id[]){__VA_ARGS__}) / sizeof(value_id)
#define OUT(...) .out = {__VA_ARGS__}
value_id builder_emit(struct builder *x, unsigned op, const char *label, const struct emission *e);

/* An input of the program; repeated calls return the same value. step: of
 * spans; 0 for others. */
value_id builder_input(struct builder *x, enum input_id id, unsigned step);

static inline uint64_t builder_rows_of(const struct builder *x, value_id id)
{
    return x->p->values[id].shape[0];
}

static inline uint64_t builder_columns_of(const struct builder *x, value_id id)
{
    return x->p->values[id].shape[1];
}

/* ---- parameters ---- */

const char *builder_full_name(struct builder *x, const char *name); /* with the layer's */
/* The value of a parameter or state by its number. */
value_id builder_held(struct builder *x, enum value_class class, uint32_t number);
/* This rank's shard of a parameter of this layer, or of no layer.
 * builder_optional: NO_VALUE if not `there`. */
value_id builder_parameter(struct builder *x, const char *name);
/* The same for one that products alone read, so it may be coded. */
value_id builder_weight(struct builder *x, const char *name);
value_id builder_optional(struct builder *x, bool there, const char *name);
value_id builder_buffer(struct builder *x, const char *name);
/* Keeps the parameter added last coded, if weights stay coded and there were
 * `before` parameters. */
void builder_keep_codes(struct builder *x, size_t before);
/* Finds a parameter's spec by its full name, and this rank's shard. */
bool builder_spec(struct builder *x, const char *full_name, const struct param_spec **spec,
                  struct cut *cut);

/* ---- outputs ---- */

void builder_keep(struct builder *x, value_id id, bool wanted, struct output o, const char *name);
/* Adds a result to the check in not_finite; for programs without training. */
void builder_watch(struct builder *x, value_id id);
/* Makes a value of the traced layer an output. */
void builder_trace(struct builder *x, value_id id, bool slice, bool shard, const char *name);

/* ---- collectives ---- */

/* Result of a collective on `in`; `in` itself in a group of one rank. */
value_id builder_collective(struct builder *x, unsigned op, enum group_kind group, value_id in,
                            const char *label);
/* All rows of the stream, for a column-split layer. */
value_id builder_gathered(struct builder *x, value_id in);
/* Sum of the ranks' outputs of a row-split layer, with the rows of the stream.
 */
value_id builder_reduced(struct builder *x, value_id in);

/* ---- calls of several blocks ---- */

/* in * w transposed + bias */
value_id builder_product(struct builder *x, enum operand_type type, value_id in, value_id w,
                         value_id bias, const char *label);
/* counts: the number of valid rows; NO_VALUE: all are. */
value_id builder_activated(struct builder *x, value_id in, value_id counts);

/* ---- the residual stream ---- */

static inline bool builder_has_layer_norm(const struct builder *x)
{
    return x->c->normalization && strcmp(x->c->normalization, "LayerNorm") == 0;
}

/* Places of dropout in a layer; each has its own stream of random numbers. */
enum dropout_place {
    DROPOUT_ATTENTION,
    DROPOUT_AFTER_ATTENTION,
    DROPOUT_AFTER_MLP,
    DROPOUT_PLACES
};
/* Sets the output of a block, to be added with dropout at the next read of the
 * stream. */
void builder_branch(struct builder *x, value_id branch, value_id bias, enum dropout_place place);
struct dropout builder_dropout(const struct builder *x, enum dropout_place place,
                               double probability);
/* With dropout: in + *bias, dropped; sets *bias to NO_VALUE. Without: `in`, and
 * *bias is still to be added. */
value_id builder_dropped(struct builder *x, value_id in, value_id *bias, enum dropout_place place);
/* A REAL state [1] to which a training step adds; each program of a rank has
 * its own. */
value_id builder_sum(struct builder *x, const char *name);

/* Adds the branch to the stream, and returns the norm of the stream. */
value_id builder_normed(struct builder *x, const char *weight_name, const char *bias_name,
                        const char *label);
/* Adds the branch to the stream, and returns it. */
value_id builder_settled(struct builder *x);

/* ---- blocks and ends ---- */

bool builder_has_rope(const struct builder *x);
void builder_attention(struct builder *x);
void builder_experts(struct builder *x);
void builder_embedding(struct builder *x); /* begins the stream */
void builder_head(struct builder *x);      /* final norm, logits, loss: by the shape */

#endif
