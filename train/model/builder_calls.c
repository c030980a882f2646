/* builder_calls.c - functions for all parts of the builder: values, parameters,
 * collectives, common calls, the residual stream. */
#include <inttypes.h>
#include <string.h>

#include "train/model/builder_internal.h"
#include "train/model/coded.h"

/* ---- values ---- */

const char *builder_label(struct builder *x, const char *what)
{
    if (x->layer < 0) return what;
    return arena_printf(&x->p->arena, "layers.%d.%s", x->layer, what);
}

/* A placeholder after a failure; the program is never run. */
static value_id add_placeholder(struct builder *x)
{
    return program_add_value(x->p, VALUE_SCRATCH, OPERAND_ELEM, 2, (uint64_t[]){1, 1}, "nothing");
}

value_id builder_emit(struct builder *x, unsigned op, const char *label, const struct emission *e)
{
    struct emission own = *e;
    value_id first = NO_VALUE;
    own.op = op;
    own.label = builder_label(x, label);
    own.layer = x->layer;
    if (!own.out[0]) own.out[0] = &first;
    if (!x->st) x->st = program_emit(x->p, &own, x->err);
    for (unsigned i = 0; i < MAX_OUTPUTS && x->st; i++)
        if (own.out[i]) *own.out[i] = add_placeholder(x);
    return *own.out[0];
}

value_id builder_input(struct builder *x, enum input_id id, unsigned step)
{
    const struct input_row *row = input_row(id);
    uint64_t shape[2];
    for (size_t i = 0; i < x->p->num_values; i++) {
        const struct program_value *v = &x->p->values[i];
        if (v->class == VALUE_INPUT && v->source == (uint32_t)id && v->step == step)
            return (value_id)i;
    }
    const char *name = step ? arena_printf(&x->p->arena, "%s.%u", row->name, step) : row->name;
    unsigned num_dims = input_shape(id, x->b, shape);
    value_id y = program_add_value(x->p, VALUE_INPUT, row->type, num_dims, shape, name);
    x->p->values[y].source = id;
    x->p->values[y].step = step;
    x->p->values[y].tp_sharded = input_is_of_slice(id) && x->tp > 1;
    return y;
}

/* ---- parameters ---- */

/* The first pipeline stage uses it as the embedding, the last as the head. */
static bool is_of_two_stages(const struct builder *x, const char *name)
{
    return x->b->groups->sizes.pp > 1 && !x->c->untie_embeddings_and_output_weights &&
           strcmp(name, "embedding.word_embeddings.weight") == 0;
}

/* Groups over which a parameter's gradients are always summed: ranks with other
 * tokens, and stages with another use of it. */
static unsigned sums_of(const struct builder *x, const struct parameter *q)
{
    const unsigned data =
        q->spec->group == PARAM_ETP ? 1u << GROUP_EDP : 1u << GROUP_DP | 1u << GROUP_CP;
    return data | (unsigned)is_of_two_stages(x, q->name) << GROUP_EMBEDDING;
}

value_id builder_held(struct builder *x, enum value_class class, uint32_t number)
{
    if (x->st) return add_placeholder(x);
    const struct parameter *q = &x->b->parameters->items[number];
    for (size_t i = 0; i < x->p->num_values; i++)
        if (x->p->values[i].class == class && x->p->values[i].source == number) return (value_id)i;
    value_id id = program_add_value(x->p, class, q->type, q->num_dims, q->shape, q->name);
    x->p->values[id].source = number;
    x->p->values[id].offset = q->offset;
    x->p->values[id].coding = q->coding;
    x->p->values[id].tp_sharded =
        q->spec && q->spec->group == PARAM_TP && q->spec->split >= 0 && x->tp > 1;
    x->p->values[id].sums = q->spec ? sums_of(x, q) : 0;
    return id;
}

const char *builder_full_name(struct builder *x, const char *name)
{
    if (x->layer < 0) return name;
    return arena_printf(&x->p->arena, "decoder.layers.%d.%s", x->layer, name);
}

uint64_t builder_vocab_rows(const struct build *b)
{
    const uint64_t rows = b->vocab_rows ? b->vocab_rows : b->config->vocab_size;
    return padded_vocab_size(rows, 8, b->layout->tp) / b->layout->tp;
}

bool builder_spec(struct builder *x, const char *name, const struct param_spec **spec,
                  struct cut *cut)
{
    const struct group_place *at = &x->b->groups->place;
    struct param param;
    if (x->st) return false;
    if (!param_find(x->b->params, name, &param)) {
        x->st = fail(x->err, ERR_OURS, "%s: no parameter", name);
        return false;
    }
    const bool expert = param.spec->group == PARAM_ETP;
    *spec = param.spec;
    *cut = (struct cut){.rank = expert ? at->etp : at->tp,
                        .size = expert ? x->etp : x->tp,
                        .rows = builder_vocab_rows(x->b) * x->tp};
    return true;
}

static uint32_t add_named_parameter(struct builder *x, const char *name)
{
    const char *full_name = builder_full_name(x, name);
    const struct param_spec *spec;
    struct cut cut;
    uint32_t number = 0;
    if (builder_spec(x, full_name, &spec, &cut))
        x->st = parameters_add(x->b->parameters, full_name, spec, &cut, &number, x->err);
    return number;
}

value_id builder_parameter(struct builder *x, const char *name)
{
    return builder_held(x, VALUE_PARAMETER, add_named_parameter(x, name));
}

void builder_keep_codes(struct builder *x, size_t before)
{
    struct parameters *p = x->b->parameters;
    if (!x->st && x->b->coded && p->count > before) x->st = coded_keep(p, x->b->coded, x->err);
}

value_id builder_weight(struct builder *x, const char *name)
{
    const size_t before = x->b->parameters->count;
    const uint32_t number = add_named_parameter(x, name);
    builder_keep_codes(x, before);
    return builder_held(x, VALUE_PARAMETER, number);
}

value_id builder_buffer(struct builder *x, const char *name)
{
    return builder_held(x, VALUE_STATE, add_named_parameter(x, name));
}

value_id builder_optional(struct builder *x, bool there, const char *name)
{
    return there ? builder_parameter(x, name) : NO_VALUE;
}

/* ---- outputs ---- */

void builder_watch(struct builder *x, value_id id)
{
    if (x->shape->train || x->st || x->p->values[id].type == OPERAND_INT) return;
    x->not_finite = emit(x, OP_NOT_FINITE, "finite", IN(id, x->not_finite));
}

void builder_keep(struct builder *x, value_id id, bool wanted, struct output o, const char *name)
{
    if (!wanted || x->st) return;
    if (x->p->values[id].class != VALUE_INPUT) x->p->values[id].class = VALUE_OUTPUT;
    o.value = id;
    o.name = arena_copy_text(&x->p->arena, name);
    if (!o.columns) o.columns = builder_columns_of(x, id) * (o.shard ? x->tp : 1);
    if (o.copied) o.columns -= o.copied * (x->tp - x->tp / o.sharers);
    *ARENA_PUSH(&x->p->arena, x->out->outputs, x->out->num_outputs, x->out->outputs_capacity) = o;
    builder_watch(x, id);
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
    if (x->b->groups->of[group].size == 1) return in;
    return emit(x, op, label, IN(in), .collective.group = group);
}

value_id builder_gathered(struct builder *x, value_id in)
{
    if (x->shape->sequence_parallel)
        return builder_collective(x, OP_ALL_GATHER, GROUP_TP, in, "gather");
    return x->shape->train ? builder_collective(x, OP_REPLICATE, GROUP_TP, in, "replicate") : in;
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
    return emit(x, OP_MATMUL, label, IN(in, w, bias), .type = type,
                .params.matmul = {.transpose_b = true, .alpha = 1});
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
    return fail(err, ERR_UNSUPPORTED,
                "activation %s is not supported (silu, gelu, gelu_tanh, relu, squared_relu, "
                "quick_gelu)",
                name ? name : "(none)");
}

value_id builder_activated(struct builder *x, value_id in, value_id counts)
{
    bool gated = x->c->gated_linear_unit;
    enum activation kind = ACTIVATION_SILU;
    if (!x->st) x->st = activation_kind(x->c->activation_func, &kind, x->err);
    return emit(x, OP_ACTIVATION, "activation", IN(in, counts),
                .params.activation = {.kind = kind, .gated = gated});
}

/* ---- training ---- */

struct dropout builder_dropout(const struct builder *x, enum dropout_place place,
                               double probability)
{
    /* Embeddings have no layer, but the first stream. */
    uint32_t stream = x->layer < 0 ? 0 : 1 + (uint32_t)x->layer * DROPOUT_PLACES + place;
    return (struct dropout){probability, x->shape->train->dropout_seed, stream};
}

value_id builder_dropped(struct builder *x, value_id in, value_id *bias, enum dropout_place place)
{
    if (!x->shape->train || x->shape->train->hidden_dropout == 0) return in;
    const bool sliced = x->shape->sequence_parallel && x->tp > 1;
    value_id tokens = builder_input(x, sliced ? INPUT_SLICE_TOKENS : INPUT_TOKENS, 0);
    value_id y =
        emit(x, OP_DROPOUT, "dropout", IN(in, *bias, tokens),
             .params.dropout.dropout = builder_dropout(x, place, x->shape->train->hidden_dropout));
    *bias = NO_VALUE;
    return y;
}

value_id builder_sum(struct builder *x, const char *what)
{
    const char *name =
        x->first_stage ? arena_printf(&x->p->arena, "%s.%" PRIu64, what, x->first_stage) : what;
    return builder_held(
        x, VALUE_STATE,
        parameters_add_state(x->b->parameters, name, OPERAND_REAL, 1, (uint64_t[]){1}));
}

/* ---- the residual stream ---- */

void builder_branch(struct builder *x, value_id branch, value_id bias, enum dropout_place place)
{
    x->branch = builder_dropped(x, branch, &bias, place);
    x->branch_bias = bias;
}

value_id builder_normed(struct builder *x, const char *weight_name, const char *bias_name,
                        const char *label)
{
    value_id w = builder_parameter(x, weight_name), y;
    value_id bias = builder_optional(x, builder_has_layer_norm(x), bias_name);
    union op_params p = {
        .norm = {.layer_norm = builder_has_layer_norm(x), .epsilon = x->c->layernorm_epsilon}};
    value_id stats, *wanted = x->shape->train ? &stats : NULL;
    if (x->branch == NO_VALUE) {
        emit(x, OP_NORM, label, IN(x->stream, w, bias), .params = p, OUT(&y, wanted));
        return y;
    }
    emit(x, OP_ADD_NORM, label, IN(x->stream, x->branch, x->branch_bias, w, bias), .params = p,
         OUT(&x->stream, &y, wanted));
    x->branch = x->branch_bias = NO_VALUE;
    return y;
}

value_id builder_settled(struct builder *x)
{
    if (x->branch == NO_VALUE) return x->stream;
    x->stream = emit(x, OP_ADD, "add", IN(x->stream, x->branch, x->branch_bias));
    x->branch = x->branch_bias = NO_VALUE;
    return x->stream;
}
