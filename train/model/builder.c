/* builder.c - stages, the dense MLP, and the checks of a config; read it from
 * its end. */
#include "train/model/builder.h"

#include <inttypes.h>
#include <string.h>

#include "train/model/builder_internal.h"
#include "train/model/fuse.h"

/* ---- dense MLP ---- */

static void mlp_block(struct builder *x)
{
    bool biased = x->c->add_mlp_bias;
    value_id in = builder_normed(x, "mlp.linear_fc1.layer_norm_weight",
                                 "mlp.linear_fc1.layer_norm_bias", "mlp_norm");
    builder_trace(x, in, x->shape->sequence_parallel && x->tp > 1, false, "mlp_norm");
    value_id w = builder_weight(x, "mlp.linear_fc1.weight");
    value_id bias = builder_optional(x, biased, "mlp.linear_fc1.bias");
    value_id a = builder_activated(
        x, builder_product(x, OPERAND_ELEM, builder_gathered(x, in), w, bias, "fc1"), NO_VALUE);
    builder_trace(x, a, false, true, "activation");
    w = builder_weight(x, "mlp.linear_fc2.weight");
    value_id y = builder_reduced(x, builder_product(x, OPERAND_ELEM, a, w, NO_VALUE, "fc2"));
    builder_trace(x, y, x->shape->sequence_parallel && x->tp > 1, false, "mlp");
    builder_branch(x, y, builder_optional(x, biased, "mlp.linear_fc2.bias"), DROPOUT_AFTER_MLP);
}

/* ---- stages ---- */

/* With sequence parallelism, tensor parallel ranks have different rows. */
static value_id stage_input(struct builder *x, enum input_id id)
{
    const value_id y = builder_input(x, id, 0);
    x->p->values[y].tp_sharded = x->shape->sequence_parallel && x->tp > 1;
    return y;
}

static void receive_stream(struct builder *x)
{
    x->stream = x->out->ends.in = stage_input(x, INPUT_STREAM);
}

/* A stage without layers forwards its input unchanged. */
static void send_stream(struct builder *x)
{
    const value_id y = x->out->ends.out = builder_settled(x);
    if (x->p->values[y].class == VALUE_SCRATCH) x->p->values[y].class = VALUE_OUTPUT;
    if (x->shape->train) x->out->ends.out_gradient = stage_input(x, INPUT_STREAM_GRADIENT);
}

static void build_stage(struct builder *x, const struct stage *s, bool first, bool last)
{
    x->layer = -1;
    if (s->embedding)
        builder_embedding(x);
    else if (first)
        receive_stream(x);
    for (uint64_t i = 0; i < s->num_layers; i++) {
        x->layer = (int)(s->first_layer + i);
        builder_attention(x);
        if (model_layer_is_moe(x->c, s->first_layer + i))
            builder_experts(x);
        else
            mlp_block(x);
    }
    x->layer = -1;
    if (s->loss)
        builder_head(x);
    else if (last)
        send_stream(x);
}

static enum status check_divisor(struct error *err, const char *what, uint64_t n, const char *by,
                                 uint64_t divisor)
{
    if (n % divisor == 0) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s %" PRIu64 " is not divisible by %s %" PRIu64, what, n, by,
                divisor);
}

enum { MAX_HEAD_DIM = 1 << 16 };

static enum status refuse_field(const struct builder *x, const struct model_field *f)
{
    struct arena a;
    arena_init(&a);
    enum status st = fail(x->err, ERR_UNSUPPORTED, "%s %.200s: no op computes it yet",
                          f->field.name, model_config_text(x->c, f->field.name, &a));
    arena_release(&a);
    return st;
}

/* Refuses features of a config that no op computes; a declared field is one. */
static enum status check_features(const struct builder *x)
{
    const struct model_config *c = x->c;
    const char *positions = c->position_embedding_type, *norm = c->normalization;
    if (positions && strcmp(positions, "rope") != 0 && strcmp(positions, "learned_absolute") != 0 &&
        strcmp(positions, "none") != 0)
        return fail(x->err, ERR_UNSUPPORTED,
                    "position_embedding_type %s is not supported (rope, learned_absolute, none)",
                    positions);
    if (norm && strcmp(norm, "RMSNorm") != 0 && strcmp(norm, "LayerNorm") != 0)
        return fail(x->err, ERR_UNSUPPORTED,
                    "normalization %s is not supported (RMSNorm, LayerNorm)", norm);
    if (builder_has_rope(x) && !(c->rotary_percent <= 1))
        return fail(x->err, ERR_UNSUPPORTED,
                    "rotary_percent %g: expected at most 1, the whole head", c->rotary_percent);
    if (c->num_experts && (c->add_bias_linear || c->add_mlp_bias))
        return fail(x->err, ERR_UNSUPPORTED, "experts with biases are not supported");
    for (size_t i = 0; i < num_model_fields; i++)
        if (model_fields[i].role == FIELD_MODEL && model_fields[i].declared &&
            !model_field_is_unused(&model_fields[i], c))
            return refuse_field(x, &model_fields[i]);
    if (c->qk_layernorm && builder_has_layer_norm(x))
        return fail(x->err, ERR_UNSUPPORTED,
                    "qk_layernorm is not supported with LayerNorm, only with RMSNorm");
    return OK;
}

static enum status check_model_sizes(const struct builder *x)
{
    const struct model_config *c = x->c;
    struct error *err = x->err;
    if (c->num_attention_heads > MAX_HEADS || c->kv_channels > MAX_HEAD_DIM)
        return fail(err, ERR_UNSUPPORTED,
                    "%" PRIu64 " heads of %" PRIu64 " elements: expected at most %d of %d",
                    c->num_attention_heads, c->kv_channels, MAX_HEADS, MAX_HEAD_DIM);
    if (x->tp > c->num_query_groups && x->shape->train)
        return fail(err, ERR_UNSUPPORTED,
                    "tensor parallel size %u exceeds num_query_groups %" PRIu64
                    ": not supported in training",
                    x->tp, c->num_query_groups);
    if (x->tp > c->num_query_groups)
        TRY(check_divisor(err, "tensor parallel size", x->tp, "num_query_groups",
                          c->num_query_groups));
    else
        TRY(check_divisor(err, "num_query_groups", c->num_query_groups, "tensor parallel size",
                          x->tp));
    TRY(check_divisor(err, "num_attention_heads", c->num_attention_heads, "tensor parallel size",
                      x->tp));
    TRY(check_divisor(err, "ffn_hidden_size", c->ffn_hidden_size, "tensor parallel size", x->tp));
    TRY(check_divisor(err, "num_attention_heads", c->num_attention_heads, "num_query_groups",
                      c->num_query_groups));
    if (!c->num_experts) return OK;
    TRY(check_divisor(err, "num_experts", c->num_experts, "expert parallel size", x->ep));
    return check_divisor(err, "moe_ffn_hidden_size", c->moe_ffn_hidden_size,
                         "expert tensor parallel size", x->etp);
}

static void init_builder(struct builder *x, struct built *out, const struct build *b,
                         struct error *err)
{
    const struct group_sizes *s = &b->groups->sizes;
    const struct model_config *c = b->config;
    uint64_t groups = c->num_query_groups;
    *x = (struct builder){.out = out,
                          .p = &out->program,
                          .b = b,
                          .c = c,
                          .shape = &b->shape,
                          .tp = s->tp,
                          .cp = s->cp,
                          .etp = s->etp,
                          .ep = s->ep,
                          .rows = b->shape.tokens.rows,
                          .layer = -1,
                          .stream = NO_VALUE,
                          .branch = NO_VALUE,
                          .branch_bias = NO_VALUE,
                          .not_finite = NO_VALUE,
                          .err = err};
    if (!groups) return; /* no attention: check_features() refuses it */
    /* With more ranks than groups, several ranks share a group, each with some
     * of its queries. */
    const uint64_t sharing = s->tp > groups ? s->tp / groups : 1;
    x->heads = (struct head_shape){(uint32_t)(sharing > 1 ? 1 : groups / s->tp),
                                   (uint32_t)(c->num_attention_heads / groups / sharing),
                                   (uint32_t)c->kv_channels};
    x->slice = b->shape.sequence_parallel ? x->rows / s->tp : x->rows;
}

static value_id find_input(const struct builder *x, enum input_id id)
{
    for (size_t i = 0; i < x->p->num_values; i++)
        if (x->p->values[i].class == VALUE_INPUT && x->p->values[i].source == (uint32_t)id)
            return (value_id)i;
    return NO_VALUE;
}

/* Adds inputs that only backward reads. */
static void add_backward_inputs(struct builder *x)
{
    struct training_values *t = &x->out->train;
    const char *type = x->c->position_embedding_type;
    const bool learned = type && strcmp(type, "learned_absolute") == 0;
    const bool sliced = x->shape->sequence_parallel && x->tp > 1;
    t->ids = find_input(x, INPUT_IDS);
    if (t->ids != NO_VALUE) t->id_order = builder_input(x, INPUT_ID_ORDER, 0);
    if (learned) t->positions = find_input(x, sliced ? INPUT_SLICE_POSITIONS : INPUT_POSITIONS);
    if (t->positions != NO_VALUE)
        t->position_order =
            builder_input(x, sliced ? INPUT_SLICE_POSITION_ORDER : INPUT_POSITION_ORDER, 0);
    if (t->loss_sum != NO_VALUE) t->loss_scale = builder_input(x, INPUT_LOSS_SCALE, 0);
    if (t->balance_sum != NO_VALUE || t->z_sum != NO_VALUE)
        t->router_scale = builder_input(x, INPUT_ROUTER_SCALE, 0);
}

enum status builder_check_model(const struct model_config *c, const struct group_sizes *sizes,
                                bool train, struct error *err)
{
    const struct groups groups = {.sizes = *sizes};
    const struct training_shape shape = {.hidden_dropout = 0};
    const struct build b = {
        .config = c, .groups = &groups, .shape = {.train = train ? &shape : NULL}};
    struct built none;
    struct builder x;
    init_builder(&x, &none, &b, err);
    TRY(check_features(&x));
    return check_model_sizes(&x);
}

enum status builder_make(struct built *out, const struct build *b, uint64_t first, uint64_t count,
                         struct error *err)
{
    struct builder x;
    memset(out, 0, sizeof *out);
    memset(&out->train, 0xff, sizeof out->train); /* NO_VALUE */
    memset(&out->ends, 0xff, sizeof out->ends);
    out->not_finite = out->tokens = NO_VALUE;
    program_init(&out->program, b->elem, b->groups);
    init_builder(&x, out, b, err);
    x.first_stage = first;
    TRY(check_features(&x));
    TRY(check_model_sizes(&x));
    for (uint64_t i = 0; i < count; i++)
        build_stage(&x, &b->layout->stages[first + i], i == 0, i + 1 == count);
    if (x.shape->train)
        add_backward_inputs(&x);
    else if (!x.st)
        fuse_calls(&out->program);
    if (out->train.loss_sum == NO_VALUE) /* no head */
        out->train.head = out->program.num_calls, out->train.head_chunks = 0;
    if (x.st) return x.st;
    if (out->tokens == NO_VALUE && x.not_finite != NO_VALUE) {
        out->program.values[x.not_finite].class = VALUE_OUTPUT;
        out->not_finite = x.not_finite;
    }
    return program_check(&out->program, err);
}

void built_release(struct built *b)
{
    program_release(&b->program);
}
