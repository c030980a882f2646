/* builder_calls.c - what all parts of the builder are made of: values, parameters, collectives, the
 * calls that several blocks make, and the residual stream. */
#include <string.h>

#include "train/builder_internal.h"

/* ---- values ---- */

const char *builder_label(struct builder *x, const char *what)
{
    if (x->layer < 0) return what;
    return arena_printf(&x->p->arena, "layers.%d.%s", x->layer, what);
}

value_id builder_matrix(struct builder *x, enum operand_type type, uint64_t rows, uint64_t columns,
                        const char *name)
{
    return program_add_value(x->p, VALUE_SCRATCH, type, 2, (uint64_t[]){rows, columns},
                             builder_label(x, name));
}

value_id builder_vector(struct builder *x, enum operand_type type, uint64_t count, const char *name)
{
    return program_add_value(x->p, VALUE_SCRATCH, type, 1, &count, builder_label(x, name));
}

value_id builder_input(struct builder *x, const char *name, enum operand_type type,
                       unsigned num_dims, const uint64_t *shape)
{
    for (size_t i = 0; i < x->p->num_values; i++)
        if (x->p->values[i].class == VALUE_INPUT && strcmp(x->p->values[i].name, name) == 0)
            return (value_id)i;
    return program_add_value(x->p, VALUE_INPUT, type, num_dims, shape, name);
}

value_id builder_row_input(struct builder *x, const char *name, uint64_t rows)
{
    return builder_input(x, name, OPERAND_INT, 1, &rows);
}

struct call *builder_call(struct builder *x, unsigned op, const char *label)
{
    return program_add_call(x->p, op, builder_label(x, label), x->layer);
}

/* ---- parameters ---- */

value_id builder_held(struct builder *x, enum value_class class, uint32_t number)
{
    const struct parameter *q = &x->b->parameters->items[number];
    for (size_t i = 0; i < x->p->num_values; i++)
        if (x->p->values[i].class == class && x->p->values[i].source == number) return (value_id)i;
    value_id id = program_add_value(x->p, class, OPERAND_ELEM, q->num_dims, q->shape, q->name);
    x->p->values[id].source = number;
    x->p->values[id].offset = q->offset;
    return id;
}

value_id builder_tensor(struct builder *x, const char *name, const struct shard *s,
                        unsigned num_dims, const uint64_t *shape)
{
    uint32_t number = 0;
    if (!x->st) x->st = parameters_add(x->b->parameters, name, s, num_dims, shape, &number, x->err);
    return x->st ? builder_matrix(x, OPERAND_ELEM, 1, 1, name)
                 : builder_held(x, VALUE_PARAMETER, number);
}

const char *builder_full_name(struct builder *x, const char *name)
{
    if (x->layer < 0) return name;
    return arena_printf(&x->p->arena, "decoder.layers.%d.%s", x->layer, name);
}

value_id builder_weight(struct builder *x, const char *name, uint64_t rows, uint64_t columns)
{
    struct shard s = {
        .rank = x->b->groups->place.tp, .size = x->tp, .gated = x->c->gated_linear_unit};
    return builder_tensor(x, builder_full_name(x, name), &s, 2, (uint64_t[]){rows, columns});
}

value_id builder_bias_or_norm(struct builder *x, const char *name, uint64_t count)
{
    struct shard s = {
        .rank = x->b->groups->place.tp, .size = x->tp, .gated = x->c->gated_linear_unit};
    return builder_tensor(x, builder_full_name(x, name), &s, 1, &count);
}

value_id builder_optional(struct builder *x, bool there, const char *name, uint64_t count)
{
    return there ? builder_bias_or_norm(x, name, count) : NO_VALUE;
}

/* ---- what is kept ---- */

void builder_keep(struct builder *x, value_id id, bool wanted, struct output o, const char *name)
{
    if (!wanted || x->st) return;
    x->p->values[id].class = VALUE_OUTPUT;
    o.value = id;
    o.name = arena_text(&x->p->arena, name, strlen(name));
    if (!o.columns) o.columns = builder_columns_of(x, id) * (o.shard ? x->tp : 1);
    if (o.copied) o.columns -= o.copied * (x->tp - x->tp / o.sharers);
    *ARENA_PUSH(&x->p->arena, x->out->outputs, x->out->num_outputs, x->out->outputs_capacity) = o;
}

void builder_trace(struct builder *x, value_id id, bool slice, bool shard, const char *name)
{
    builder_keep(x, id, x->layer == x->shape->trace_layer,
                 (struct output){.slice = slice, .shard = shard}, builder_label(x, name));
}

/* ---- collectives ---- */

value_id builder_collective(struct builder *x, unsigned op, enum group_kind group, value_id in,
                            const char *label)
{
    const struct program_value *v = &x->p->values[in];
    unsigned size = x->b->groups->of[group].size;
    uint64_t shape[OPERAND_DIMS];
    if (size == 1) return in;
    memcpy(shape, v->shape, sizeof shape);
    if (op == OP_ALL_GATHER) shape[0] *= size;
    if (op == OP_REDUCE_SCATTER || op == OP_SLICE) shape[0] /= size;
    value_id y = program_add_value(x->p, VALUE_SCRATCH, v->type, v->num_dims, shape,
                                   builder_label(x, label));
    struct call *c = builder_call(x, op, label);
    c->collective = (struct collective){.group = group};
    c->in[0] = in;
    c->out[0] = y;
    return y;
}

value_id builder_gathered(struct builder *x, value_id in)
{
    return x->shape->sequence_parallel
               ? builder_collective(x, OP_ALL_GATHER, GROUP_TP, in, "gather")
               : in;
}

value_id builder_reduced(struct builder *x, value_id in)
{
    unsigned op = x->shape->sequence_parallel ? OP_REDUCE_SCATTER : OP_ALL_REDUCE;
    return builder_collective(x, op, GROUP_TP, in, "reduce");
}

/* ---- small calls ---- */

value_id builder_product(struct builder *x, enum operand_type type, value_id in, value_id w,
                         value_id bias, const char *label)
{
    value_id y = builder_matrix(x, type, builder_rows_of(x, in), builder_rows_of(x, w), label);
    struct call *c = builder_call(x, OP_MATMUL, label);
    c->params.matmul.transpose_b = true;
    c->params.matmul.alpha = 1;
    c->in[0] = in;
    c->in[1] = w;
    c->in[2] = bias;
    c->out[0] = y;
    return y;
}

static enum status activation_kind(const char *name, enum activation *kind, struct error *err)
{
    static const char *const names[NUM_ACTIVATIONS] = {
        [ACTIVATION_SILU] = "silu",
        [ACTIVATION_GELU] = "gelu",
        [ACTIVATION_GELU_TANH] = "gelu_tanh",
        [ACTIVATION_RELU] = "relu",
        [ACTIVATION_SQUARED_RELU] = "squared_relu",
        [ACTIVATION_QUICK_GELU] = "quick_gelu",
    };
    for (unsigned i = 0; i < NUM_ACTIVATIONS; i++)
        if (name && strcmp(names[i], name) == 0) {
            *kind = (enum activation)i;
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "activation %s", name ? name : "(none)");
}

value_id builder_activated(struct builder *x, value_id in, value_id counts)
{
    bool gated = x->c->gated_linear_unit;
    enum activation kind = ACTIVATION_SILU;
    if (!x->st) x->st = activation_kind(x->c->activation_func, &kind, x->err);
    value_id y = builder_matrix(x, OPERAND_ELEM, builder_rows_of(x, in),
                                builder_columns_of(x, in) / (gated ? 2 : 1), "activation");
    struct call *c = builder_call(x, OP_ACTIVATION, "activation");
    c->params.activation.kind = kind;
    c->params.activation.gated = gated;
    c->in[0] = in;
    c->in[1] = counts;
    c->out[0] = y;
    return y;
}

/* ---- the residual stream ---- */

value_id builder_normed(struct builder *x, const char *weight_name, const char *bias_name,
                        const char *label)
{
    uint64_t h = x->c->hidden_size;
    bool fused = x->branch != NO_VALUE;
    value_id w = builder_bias_or_norm(x, weight_name, h);
    value_id bias = builder_optional(x, builder_has_layer_norm(x), bias_name, h);
    value_id y = builder_matrix(x, OPERAND_ELEM, builder_rows_of(x, x->stream), h, label);
    value_id sum = fused
                       ? builder_matrix(x, OPERAND_ELEM, builder_rows_of(x, x->stream), h, "stream")
                       : NO_VALUE;
    struct call *c = builder_call(x, fused ? OP_ADD_NORM : OP_NORM, label);
    c->params.norm.layer_norm = builder_has_layer_norm(x);
    c->params.norm.epsilon = x->c->layernorm_epsilon;
    unsigned in = 0, out = 0;
    c->in[in++] = x->stream;
    if (fused) {
        c->in[in++] = x->branch;
        c->in[in++] = x->branch_bias;
        c->out[out++] = sum;
    }
    c->in[in++] = w;
    c->in[in++] = bias;
    c->out[out] = y;
    if (fused) x->stream = sum;
    builder_branch(x, NO_VALUE, NO_VALUE);
    return y;
}

value_id builder_settled(struct builder *x)
{
    if (x->branch == NO_VALUE) return x->stream;
    value_id sum =
        builder_matrix(x, OPERAND_ELEM, builder_rows_of(x, x->stream), x->c->hidden_size, "stream");
    struct call *c = builder_call(x, OP_ADD, "add");
    c->in[0] = x->stream;
    c->in[1] = x->branch;
    c->in[2] = x->branch_bias;
    c->out[0] = sum;
    x->stream = sum;
    builder_branch(x, NO_VALUE, NO_VALUE);
    return sum;
}
