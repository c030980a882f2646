#include "train/builder.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "train/rope.h"

/* Everything that is added to a program goes through here; the first failure is kept, and what is
 * added after it is nonsense that nobody sees. */
struct builder {
    struct built *out;
    struct program *p;
    const struct build *b;
    const struct model_config *c;
    const struct forward_shape *shape;
    unsigned tp, cp, etp, ep;
    struct head_shape heads; /* of this rank */
    uint64_t rows, slice;    /* tokens of this rank; of its TP part of them */
    int layer;
    /* The residual stream, and what is still to be added to it. */
    value_id stream, branch, branch_bias;
    enum status st;
    struct error *err;
};

/* ---- values ---- */

static const char *text(struct builder *x, const char *what)
{
    if (x->layer < 0) return what;
    return arena_printf(&x->p->arena, "layers.%d.%s", x->layer, what);
}

static value_id matrix(struct builder *x, enum operand_type type, uint64_t rows, uint64_t columns,
                       const char *name)
{
    return program_add_value(x->p, VALUE_SCRATCH, type, 2, (uint64_t[]){rows, columns},
                             text(x, name));
}

static value_id vector(struct builder *x, enum operand_type type, uint64_t count, const char *name)
{
    return program_add_value(x->p, VALUE_SCRATCH, type, 1, &count, text(x, name));
}

static uint64_t rows_of(const struct builder *x, value_id id)
{
    return x->p->values[id].shape[0];
}

static uint64_t columns_of(const struct builder *x, value_id id)
{
    return x->p->values[id].shape[1];
}

/* An input of the program by its name, the same each time it is asked for. */
static value_id input(struct builder *x, const char *name, enum operand_type type,
                      unsigned num_dims, const uint64_t *shape)
{
    for (size_t i = 0; i < x->p->num_values; i++)
        if (x->p->values[i].class == VALUE_INPUT && strcmp(x->p->values[i].name, name) == 0)
            return (value_id)i;
    return program_add_value(x->p, VALUE_INPUT, type, num_dims, shape, name);
}

static value_id row_input(struct builder *x, const char *name, uint64_t rows)
{
    return input(x, name, OPERAND_INT, 1, &rows);
}

static struct call *add(struct builder *x, unsigned op, const char *label)
{
    return program_add_call(x->p, op, text(x, label), x->layer);
}

/* ---- parameters ---- */

/* The number of a parameter or state as a value. */
static value_id held(struct builder *x, enum value_class class, uint32_t number)
{
    const struct parameter *q = &x->b->parameters->items[number];
    for (size_t i = 0; i < x->p->num_values; i++)
        if (x->p->values[i].class == class && x->p->values[i].source == number) return (value_id)i;
    value_id id = program_add_value(x->p, class, OPERAND_ELEM, q->num_dims, q->shape, q->name);
    x->p->values[id].source = number;
    x->p->values[id].offset = q->offset;
    return id;
}

static value_id tensor(struct builder *x, const char *name, const struct shard *s,
                       unsigned num_dims, const uint64_t *shape)
{
    uint32_t number = 0;
    if (!x->st) x->st = parameters_add(x->b->parameters, name, s, num_dims, shape, &number, x->err);
    return x->st ? matrix(x, OPERAND_ELEM, 1, 1, name) : held(x, VALUE_PARAMETER, number);
}

static const char *full_name(struct builder *x, const char *name)
{
    if (x->layer < 0) return name;
    return arena_printf(&x->p->arena, "decoder.layers.%d.%s", x->layer, name);
}

/* A weight [rows, columns] and a vector [n] of this layer (or of none), as this rank holds them. */
static value_id weight(struct builder *x, const char *name, uint64_t rows, uint64_t columns)
{
    struct shard s = {x->b->groups->place.tp, x->tp, x->c->gated_linear_unit, 0};
    return tensor(x, full_name(x, name), &s, 2, (uint64_t[]){rows, columns});
}

static value_id bias_or_norm(struct builder *x, const char *name, uint64_t count)
{
    struct shard s = {x->b->groups->place.tp, x->tp, x->c->gated_linear_unit, 0};
    return tensor(x, full_name(x, name), &s, 1, &count);
}

static value_id optional(struct builder *x, bool there, const char *name, uint64_t count)
{
    return there ? bias_or_norm(x, name, count) : NO_VALUE;
}

/* Rows of the whole vocabulary that the checkpoint has. */
static uint64_t vocab_size(const struct build *b)
{
    const struct tensor *t =
        catalog_find(b->parameters->catalog, "embedding.word_embeddings.weight");
    return t ? t->shape[0] : b->config->vocab_size;
}

uint64_t builder_vocab_rows(const struct build *b)
{
    return padded_vocab_size(vocab_size(b), 8, b->layout->tp) / b->layout->tp;
}

static value_id vocab_weight(struct builder *x, const char *name)
{
    uint64_t rows = builder_vocab_rows(x->b);
    struct shard s = {x->b->groups->place.tp, x->tp, false, rows};
    return tensor(x, name, &s, 2, (uint64_t[]){rows, x->c->hidden_size});
}

/* ---- what is kept ---- */

static void keep(struct builder *x, value_id id, bool wanted, struct output o, const char *name)
{
    if (!wanted || x->st) return;
    x->p->values[id].class = VALUE_OUTPUT;
    o.value = id;
    o.name = arena_text(&x->p->arena, name, strlen(name));
    if (!o.columns) o.columns = columns_of(x, id) * (o.shard ? x->tp : 1);
    *ARENA_PUSH(&x->p->arena, x->out->outputs, x->out->num_outputs, x->out->outputs_capacity) = o;
}

static void trace(struct builder *x, value_id id, bool slice, bool shard, const char *name)
{
    keep(x, id, x->layer == x->shape->trace_layer, (struct output){.slice = slice, .shard = shard},
         text(x, name));
}

/* ---- collectives ---- */

static value_id collective(struct builder *x, unsigned op, enum group_kind group, value_id in,
                           const char *label)
{
    const struct program_value *v = &x->p->values[in];
    unsigned size = x->b->groups->of[group].size;
    uint64_t shape[OPERAND_DIMS];
    if (size == 1) return in;
    memcpy(shape, v->shape, sizeof shape);
    if (op == OP_ALL_GATHER) shape[0] *= size;
    if (op == OP_REDUCE_SCATTER || op == OP_SLICE) shape[0] /= size;
    value_id y =
        program_add_value(x->p, VALUE_SCRATCH, v->type, v->num_dims, shape, text(x, label));
    struct call *c = add(x, op, label);
    c->collective = (struct collective){.group = group};
    c->in[0] = in;
    c->out[0] = y;
    return y;
}

/* Rows of the stream as a column-split layer wants them: all. */
static value_id gathered(struct builder *x, value_id in)
{
    return x->shape->sequence_parallel ? collective(x, OP_ALL_GATHER, GROUP_TP, in, "gather") : in;
}

/* What the ranks' parts of a row-split layer sum up to, as the stream has it. */
static value_id reduced(struct builder *x, value_id in)
{
    unsigned op = x->shape->sequence_parallel ? OP_REDUCE_SCATTER : OP_ALL_REDUCE;
    return collective(x, op, GROUP_TP, in, "reduce");
}

/* ---- small calls ---- */

static value_id product(struct builder *x, enum operand_type type, value_id in, value_id w,
                        value_id bias, const char *label)
{
    value_id y = matrix(x, type, rows_of(x, in), rows_of(x, w), label);
    struct call *c = add(x, OP_MATMUL, label);
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

/* counts: of rows that hold something, NO_VALUE: all. */
static value_id activated(struct builder *x, value_id in, value_id counts)
{
    bool gated = x->c->gated_linear_unit;
    enum activation kind = ACTIVATION_SILU;
    if (!x->st) x->st = activation_kind(x->c->activation_func, &kind, x->err);
    value_id y =
        matrix(x, OPERAND_ELEM, rows_of(x, in), columns_of(x, in) / (gated ? 2 : 1), "activation");
    struct call *c = add(x, OP_ACTIVATION, "activation");
    c->params.activation.kind = kind;
    c->params.activation.gated = gated;
    c->in[0] = in;
    c->in[1] = counts;
    c->out[0] = y;
    return y;
}

/* ---- the residual stream ---- */

static bool is_layer_norm(const struct builder *x)
{
    return x->c->normalization && strcmp(x->c->normalization, "LayerNorm") == 0;
}

/* What a block gives is added when the stream is read next. */
static void branch_out(struct builder *x, value_id branch, value_id bias)
{
    x->branch = branch;
    x->branch_bias = bias;
}

/* The stream normed by NAMEweight (and bias); what is to be added is added first. */
static value_id normed(struct builder *x, const char *weight_name, const char *bias_name,
                       const char *label)
{
    uint64_t h = x->c->hidden_size;
    bool fused = x->branch != NO_VALUE;
    value_id w = bias_or_norm(x, weight_name, h);
    value_id bias = optional(x, is_layer_norm(x), bias_name, h);
    value_id y = matrix(x, OPERAND_ELEM, rows_of(x, x->stream), h, label);
    value_id sum = fused ? matrix(x, OPERAND_ELEM, rows_of(x, x->stream), h, "stream") : NO_VALUE;
    struct call *c = add(x, fused ? OP_ADD_NORM : OP_NORM, label);
    c->params.norm.layer_norm = is_layer_norm(x);
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
    branch_out(x, NO_VALUE, NO_VALUE);
    return y;
}

/* The stream with all added. */
static value_id settled(struct builder *x)
{
    if (x->branch == NO_VALUE) return x->stream;
    value_id sum = matrix(x, OPERAND_ELEM, rows_of(x, x->stream), x->c->hidden_size, "stream");
    struct call *c = add(x, OP_ADD, "add");
    c->in[0] = x->stream;
    c->in[1] = x->branch;
    c->in[2] = x->branch_bias;
    c->out[0] = sum;
    x->stream = sum;
    branch_out(x, NO_VALUE, NO_VALUE);
    return sum;
}

/* ---- attention ---- */

static value_id heads_normed(struct builder *x, value_id qkv)
{
    uint64_t d = x->heads.head_dim;
    value_id y = matrix(x, OPERAND_ELEM, x->rows, columns_of(x, qkv), "qk_norm");
    value_id q = bias_or_norm(x, "self_attention.q_layernorm.weight", d);
    value_id k = bias_or_norm(x, "self_attention.k_layernorm.weight", d);
    struct call *c = add(x, OP_HEAD_NORM, "qk_norm");
    c->params.head_norm.heads = x->heads;
    c->params.head_norm.epsilon = x->c->layernorm_epsilon;
    c->in[0] = qkv;
    c->in[1] = q;
    c->in[2] = k;
    c->out[0] = y;
    return y;
}

static value_id rotated(struct builder *x, value_id qkv)
{
    uint64_t dim = rope_dim(x->c);
    uint64_t table_shape[] = {x->shape->num_positions, dim};
    value_id y = matrix(x, OPERAND_ELEM, x->rows, columns_of(x, qkv), "rotary");
    value_id table = input(x, "rope", OPERAND_REAL, 2, table_shape);
    value_id positions = row_input(x, "positions", x->rows);
    struct call *c = add(x, OP_ROTARY, "rotary");
    c->params.rotary.heads = x->heads;
    c->params.rotary.rotary_dim = (uint32_t)dim;
    c->params.rotary.interleaved = x->c->rotary_interleaved;
    c->in[0] = qkv;
    c->in[1] = table;
    c->in[2] = positions;
    c->out[0] = y;
    return y;
}

static bool has_rope(const struct builder *x)
{
    const char *type = x->c->position_embedding_type;
    return type && strcmp(type, "rope") == 0 && x->c->rotary_percent > 0;
}

/* Keys and values in `cache`, [rows, groups * 2 * head_dim], which they are written to. */
static value_id cached(struct builder *x, value_id qkv, value_id cache, const char *rows)
{
    value_id at = row_input(x, rows, x->rows);
    struct call *c = add(x, OP_CACHE_WRITE, "cache");
    c->params.cache_write.heads = x->heads;
    c->in[0] = qkv;
    c->in[1] = at;
    c->out[0] = cache;
    return cache;
}

static uint64_t cache_columns(const struct builder *x)
{
    return (uint64_t)x->heads.groups * 2 * x->heads.head_dim;
}

/* Positions that a token of this layer sees, itself included; 0: all before it. */
static uint32_t window_of(const struct builder *x)
{
    uint64_t window = x->c->sliding_window;
    bool slides = (uint64_t)x->layer >= x->c->sliding_window_first_layer;
    return slides && window <= UINT32_MAX ? (uint32_t)window : 0;
}

/* Queries and keys that meet in one call: the causal half of each sequence, dealt to CP ranks and
 * to the calls of a ring; with a cache, all that it has room for. */
static double pairs_of(const struct builder *x)
{
    const struct token_shape *t = &x->shape->tokens;
    double length = (double)t->chunk * t->num_chunks, sequences = (double)t->sequences;
    if (x->shape->cache_rows) return (double)x->rows * (double)x->shape->cache_rows / sequences;
    unsigned calls = x->shape->cp == CP_RING ? x->cp : 1;
    return sequences * length * length / 2 / x->cp / calls;
}

/* One call of attention: queries of qkv to keys and values of kv, which is qkv or a cache. */
static value_id attend(struct builder *x, value_id qkv, value_id kv, const char *spans,
                       value_id *lse)
{
    struct head_shape h = x->heads;
    uint64_t num_heads = (uint64_t)h.groups * h.queries;
    uint64_t span_shape[] = {x->shape->tokens.num_spans, 6};
    value_id o = matrix(x, OPERAND_ELEM, x->rows, num_heads * h.head_dim, "attention");
    value_id table = input(x, spans, OPERAND_INT, 2, span_shape);
    if (lse) *lse = matrix(x, OPERAND_REAL, x->rows, num_heads, "attention.lse");
    struct call *c = add(x, OP_ATTENTION, "attention");
    bool own = kv == qkv;
    c->params.attention.heads = h;
    c->params.attention.q_stride = (h.queries + 2) * h.head_dim;
    c->params.attention.kv_stride = own ? (h.queries + 2) * h.head_dim : 2 * h.head_dim;
    c->params.attention.k_at = own ? h.queries * h.head_dim : 0;
    c->params.attention.v_at = c->params.attention.k_at + h.head_dim;
    c->params.attention.scale = 1 / sqrt((double)h.head_dim);
    c->params.attention.window = window_of(x);
    c->pairs = pairs_of(x);
    c->params.attention.causal = true;
    c->in[0] = qkv;
    c->in[1] = kv;
    c->in[2] = table;
    c->out[0] = o;
    c->out[1] = lse ? *lse : NO_VALUE;
    return o;
}

static value_id packed_kv(struct builder *x, value_id qkv)
{
    return cached(x, qkv, matrix(x, OPERAND_ELEM, x->rows, cache_columns(x), "kv"), "row_numbers");
}

/* Keys and values go round; each rank adds up what it sees. */
static value_id attend_ring(struct builder *x, value_id qkv)
{
    value_id kv = packed_kv(x, qkv), lse, next_lse;
    value_id o = attend(x, qkv, kv, "spans", &lse);
    for (unsigned i = 1; i < x->cp; i++) {
        kv = collective(x, OP_SHIFT, GROUP_CP, kv, "shift");
        value_id next = attend(x, qkv, kv, arena_printf(&x->p->arena, "spans.%u", i), &next_lse);
        value_id sum = matrix(x, OPERAND_ELEM, x->rows, columns_of(x, o), "attention");
        value_id sum_lse = matrix(x, OPERAND_REAL, x->rows, columns_of(x, lse), "attention.lse");
        struct call *c = add(x, OP_ATTENTION_MERGE, "merge");
        c->params.attention_merge.head_dim = x->heads.head_dim;
        c->in[0] = o;
        c->in[1] = lse;
        c->in[2] = next;
        c->in[3] = next_lse;
        c->out[0] = o = sum;
        c->out[1] = lse = sum_lse;
    }
    return o;
}

static value_id core_attention(struct builder *x, value_id qkv)
{
    uint64_t shape[] = {x->shape->cache_rows, cache_columns(x)};
    if (x->shape->cache_rows) {
        uint32_t number = parameters_add_state(x->b->parameters, text(x, "cache"), 2, shape);
        value_id cache = held(x, VALUE_STATE, number);
        return attend(x, qkv, cached(x, qkv, cache, "cache_rows"), "spans", NULL);
    }
    if (x->cp == 1) return attend(x, qkv, qkv, "spans", NULL);
    if (x->shape->cp == CP_RING) return attend_ring(x, qkv);
    value_id all = collective(x, OP_ALL_GATHER, GROUP_CP, packed_kv(x, qkv), "gather_kv");
    return attend(x, qkv, all, "all_spans", NULL);
}

static void attention_block(struct builder *x)
{
    struct head_shape h = x->heads;
    uint64_t columns = (uint64_t)h.groups * (h.queries + 2) * h.head_dim,
             hidden = x->c->hidden_size;
    uint64_t context = (uint64_t)h.groups * h.queries * h.head_dim;
    bool biased = x->c->add_bias_linear;
    value_id in = normed(x, "self_attention.linear_qkv.layer_norm_weight",
                         "self_attention.linear_qkv.layer_norm_bias", "attention_norm");
    keep(x, x->stream, x->shape->hidden,
         (struct output){.slice = x->shape->sequence_parallel && x->tp > 1},
         arena_printf(&x->p->arena, "hidden.%d", x->layer));
    trace(x, in, x->shape->sequence_parallel && x->tp > 1, false, "attention_norm");
    value_id w = weight(x, "self_attention.linear_qkv.weight", columns, hidden);
    value_id bias =
        optional(x, biased || x->c->add_qkv_bias, "self_attention.linear_qkv.bias", columns);
    value_id qkv = product(x, OPERAND_ELEM, gathered(x, in), w, bias, "qkv");
    trace(x, qkv, false, true, "qkv");
    if (x->c->qk_layernorm) {
        qkv = heads_normed(x, qkv);
        trace(x, qkv, false, true, "qk_norm");
    }
    if (has_rope(x)) {
        qkv = rotated(x, qkv);
        trace(x, qkv, false, true, "rotary");
    }
    value_id o = core_attention(x, qkv);
    trace(x, o, false, true, "attention");
    w = weight(x, "self_attention.linear_proj.weight", hidden, context);
    value_id y = reduced(x, product(x, OPERAND_ELEM, o, w, NO_VALUE, "projection"));
    trace(x, y, x->shape->sequence_parallel && x->tp > 1, false, "projection");
    branch_out(x, y, optional(x, biased, "self_attention.linear_proj.bias", hidden));
}

/* ---- dense MLP ---- */

static void mlp_block(struct builder *x)
{
    uint64_t hidden = x->c->hidden_size, share = x->c->ffn_hidden_size / x->tp;
    uint64_t columns = share * (x->c->gated_linear_unit ? 2 : 1);
    bool biased = x->c->add_bias_linear;
    value_id in =
        normed(x, "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.layer_norm_bias", "mlp_norm");
    trace(x, in, x->shape->sequence_parallel && x->tp > 1, false, "mlp_norm");
    value_id w = weight(x, "mlp.linear_fc1.weight", columns, hidden);
    value_id bias = optional(x, biased, "mlp.linear_fc1.bias", columns);
    value_id a = activated(x, product(x, OPERAND_ELEM, gathered(x, in), w, bias, "fc1"), NO_VALUE);
    trace(x, a, false, true, "activation");
    w = weight(x, "mlp.linear_fc2.weight", hidden, share);
    value_id y = reduced(x, product(x, OPERAND_ELEM, a, w, NO_VALUE, "fc2"));
    trace(x, y, x->shape->sequence_parallel && x->tp > 1, false, "mlp");
    branch_out(x, y, optional(x, biased, "mlp.linear_fc2.bias", hidden));
}

/* ---- experts ---- */

/* All experts of this rank behind one another: [experts, rows, columns]. */
static value_id expert_weights(struct builder *x, const char *name, uint64_t rows, uint64_t columns)
{
    struct arena *a = &x->p->arena;
    uint64_t count = x->c->num_experts / x->ep, first = x->b->groups->place.ep * count;
    const char **names = arena_array(a, count, sizeof *names);
    struct shard s = {x->b->groups->place.etp, x->etp, x->c->gated_linear_unit, 0};
    uint32_t number = 0;
    for (uint64_t i = 0; i < count; i++)
        names[i] = arena_printf(a, "decoder.layers.%d.mlp.experts.experts.%" PRIu64 ".%s", x->layer,
                                first + i, name);
    if (!x->st)
        x->st = parameters_add_stack(x->b->parameters,
                                     full_name(x, arena_printf(a, "mlp.experts.%s", name)), names,
                                     count, &s, 2, (uint64_t[]){rows, columns}, &number, x->err);
    return x->st ? matrix(x, OPERAND_ELEM, 1, 1, name) : held(x, VALUE_PARAMETER, number);
}

/* Where tokens go, and where they are. */
struct routed {
    value_id rows, weights, counts; /* of each token's slots; of each expert's rows */
    value_id tokens;                /* sorted by expert */
};

static value_id permuted(struct builder *x, value_id in, value_id rows, uint64_t num_rows)
{
    value_id y = matrix(x, OPERAND_ELEM, num_rows, x->c->hidden_size, "permuted");
    struct call *c = add(x, OP_PERMUTE, "permute");
    c->in[0] = in;
    c->in[1] = rows;
    c->out[0] = y;
    return y;
}

static value_id unpermuted(struct builder *x, value_id in, value_id rows, value_id weights)
{
    value_id y = matrix(x, OPERAND_ELEM, rows_of(x, rows), x->c->hidden_size, "unpermuted");
    struct call *c = add(x, OP_UNPERMUTE, "unpermute");
    c->in[0] = in;
    c->in[1] = rows;
    c->in[2] = weights;
    c->out[0] = y;
    return y;
}

static struct routed route(struct builder *x, value_id in)
{
    struct routed r;
    uint64_t n = rows_of(x, in), k = x->c->moe_router_topk, experts = x->c->num_experts;
    value_id w = weight(x, "mlp.router.weight", experts, x->c->hidden_size);
    value_id logits = product(x, OPERAND_REAL, in, w, NO_VALUE, "router");
    value_id chosen = matrix(x, OPERAND_INT, n, k, "experts");
    trace(x, logits, x->tp > 1, false, "router");
    r.weights = matrix(x, OPERAND_REAL, n, k, "weights");
    struct call *c = add(x, OP_ROUTE, "route");
    c->params.route.topk = (uint32_t)k;
    c->params.route.num_groups = 1;
    c->params.route.topk_groups = 1;
    c->params.route.after_choice = !x->c->moe_router_pre_softmax;
    c->params.route.scaling = 1;
    c->in[0] = logits;
    c->out[0] = r.weights;
    c->out[1] = chosen;
    r.rows = matrix(x, OPERAND_INT, n, k, "rows");
    r.counts = vector(x, OPERAND_INT, experts, "counts");
    c = add(x, OP_SORT_BY_EXPERT, "sort");
    c->in[0] = chosen;
    c->out[0] = r.rows;
    c->out[1] = r.counts;
    r.tokens = permuted(x, in, r.rows, n * k);
    return r;
}

/* Rows to the ranks of the experts, or back; counts says how many for each. */
static value_id exchanged(struct builder *x, value_id in, value_id counts, uint64_t bound,
                          uint64_t num_counts, value_id *came)
{
    value_id y = matrix(x, OPERAND_ELEM, bound, x->c->hidden_size, "exchanged");
    *came = vector(x, OPERAND_INT, num_counts, "counts");
    struct call *c = add(x, OP_ALL_TO_ALL, "exchange");
    c->collective.group = GROUP_EP;
    c->in[0] = in;
    c->in[1] = counts;
    c->out[0] = y;
    c->out[1] = *came;
    return y;
}

/* Tokens of this rank's experts, sorted by expert, through their MLPs (a part of each with ETP). */
static value_id expert_mlps(struct builder *x, value_id in, value_id counts)
{
    uint64_t hidden = x->c->hidden_size, share = x->c->moe_ffn_hidden_size / x->etp;
    uint64_t columns = share * (x->c->gated_linear_unit ? 2 : 1), rows = rows_of(x, in);
    value_id w1 = expert_weights(x, "linear_fc1.weight", columns, hidden);
    value_id w2 = expert_weights(x, "linear_fc2.weight", hidden, share);
    value_id f = matrix(x, OPERAND_ELEM, rows, columns, "fc1");
    struct call *c = add(x, OP_GROUPED_MATMUL, "fc1");
    c->in[0] = in;
    c->in[1] = w1;
    c->in[2] = counts;
    c->out[0] = f;
    value_id a = activated(x, f, counts), y = matrix(x, OPERAND_ELEM, rows, hidden, "fc2");
    c = add(x, OP_GROUPED_MATMUL, "fc2");
    c->in[0] = a;
    c->in[1] = w2;
    c->in[2] = counts;
    c->out[0] = y;
    return y;
}

/* Tokens sorted by expert, of all experts, to the ranks that have them, and what comes back. */
static value_id distributed_experts(struct builder *x, const struct routed *r)
{
    uint64_t here = x->c->num_experts / x->ep, sent = rows_of(x, r->tokens);
    uint64_t tokens = sent / x->c->moe_router_topk;
    uint64_t bound = x->ep > 1 ? x->ep * tokens * min_u64(x->c->moe_router_topk, here) : sent;
    value_id in = r->tokens, counts = r->counts, came, ignored;
    if (x->ep > 1) in = exchanged(x, in, counts, bound, x->ep * here, &counts);
    came = counts;
    in = collective(x, OP_ALL_GATHER, GROUP_ETP, in, "gather");
    counts = collective(x, OP_ALL_GATHER, GROUP_ETP, counts, "gather_counts");
    value_id rows = matrix(x, OPERAND_INT, x->etp * bound, 1, "rows");
    value_id totals = vector(x, OPERAND_INT, here, "totals");
    struct call *c = add(x, OP_SORT_RECEIVED, "sort_received");
    c->params.sort_received.senders_per_block = x->ep;
    c->params.sort_received.rows_per_block = bound;
    c->in[0] = counts;
    c->out[0] = rows;
    c->out[1] = totals;
    value_id y = expert_mlps(x, permuted(x, in, rows, x->etp * bound), totals);
    y = collective(x, OP_REDUCE_SCATTER, GROUP_ETP, unpermuted(x, y, rows, NO_VALUE), "reduce");
    if (x->ep > 1) y = exchanged(x, y, came, sent, x->c->num_experts, &ignored);
    return y;
}

static void expert_block(struct builder *x)
{
    bool sliced = x->tp > 1;
    value_id in = normed(x, "pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias", "mlp_norm");
    trace(x, in, sliced && x->shape->sequence_parallel, false, "mlp_norm");
    if (!x->shape->sequence_parallel) in = collective(x, OP_SLICE, GROUP_TP, in, "slice");
    struct routed r = route(x, in);
    value_id y =
        x->ep == 1 && x->etp == 1 ? expert_mlps(x, r.tokens, r.counts) : distributed_experts(x, &r);
    y = unpermuted(x, y, r.rows, r.weights);
    trace(x, y, sliced, false, "mlp");
    if (!x->shape->sequence_parallel) y = collective(x, OP_ALL_GATHER, GROUP_TP, y, "gather");
    branch_out(x, y, NO_VALUE);
}

/* ---- both ends ---- */

static void embedding(struct builder *x)
{
    uint64_t hidden = x->c->hidden_size;
    const char *type = x->c->position_embedding_type;
    value_id w = vocab_weight(x, "embedding.word_embeddings.weight");
    value_id ids = row_input(x, "ids", x->rows),
             y = matrix(x, OPERAND_ELEM, x->rows, hidden, "embedding");
    struct call *c = add(x, OP_EMBEDDING, "embedding");
    c->params.embedding.first_row = x->b->groups->place.tp * builder_vocab_rows(x->b);
    c->params.embedding.scale = 1;
    c->in[0] = ids;
    c->in[1] = w;
    c->out[0] = y;
    x->stream = reduced(x, y);
    if (!type || strcmp(type, "learned_absolute") != 0) return;
    bool sliced = x->shape->sequence_parallel && x->tp > 1;
    value_id table = tensor(x, "embedding.position_embeddings.weight", &(struct shard){0, 1, 0, 0},
                            2, (uint64_t[]){x->c->max_position_embeddings, hidden});
    value_id at = row_input(x, sliced ? "positions.slice" : "positions", rows_of(x, x->stream));
    y = matrix(x, OPERAND_ELEM, rows_of(x, x->stream), hidden, "positions");
    c = add(x, OP_POSITIONS, "positions");
    c->in[0] = x->stream;
    c->in[1] = table;
    c->in[2] = at;
    c->out[0] = y;
    x->stream = y;
}

static void loss(struct builder *x, value_id logits)
{
    uint64_t n = rows_of(x, logits), first = x->b->groups->place.tp * builder_vocab_rows(x->b);
    uint64_t all = vocab_size(x->b);
    union op_params vocab = {
        .vocab = {first, first < all ? min_u64(all - first, columns_of(x, logits)) : 0}};
    value_id targets = row_input(x, "targets", n), max = vector(x, OPERAND_REAL, n, "max");
    struct call *c = add(x, OP_VOCAB_MAX, "max");
    c->params = vocab;
    c->in[0] = logits;
    c->out[0] = max;
    max = collective(x, OP_ALL_REDUCE, GROUP_TP, max, "max");
    if (x->tp > 1) x->p->calls[x->p->num_calls - 1].collective.reduction = COMM_MAX;
    value_id sums = matrix(x, OPERAND_REAL, n, 2, "sums"), y = vector(x, OPERAND_REAL, n, "loss");
    c = add(x, OP_VOCAB_SUM, "sums");
    c->params = vocab;
    c->in[0] = logits;
    c->in[1] = max;
    c->in[2] = targets;
    c->out[0] = sums;
    sums = collective(x, OP_ALL_REDUCE, GROUP_TP, sums, "sums");
    c = add(x, OP_TOKEN_LOSS, "loss");
    c->in[0] = sums;
    c->in[1] = targets;
    c->out[0] = y;
    keep(x, y, true, (struct output){.columns = 1}, "loss");
}

static value_id only_last_rows(struct builder *x, value_id in)
{
    if (!x->shape->last_rows) return in;
    value_id y = matrix(x, OPERAND_ELEM, x->shape->last_rows, x->c->hidden_size, "last_rows");
    value_id rows = row_input(x, "last_rows", x->shape->last_rows);
    struct call *c = add(x, OP_GATHER_ROWS, "last_rows");
    c->in[0] = in;
    c->in[1] = rows;
    c->out[0] = y;
    return y;
}

static void head(struct builder *x)
{
    bool sliced = x->shape->sequence_parallel && x->tp > 1;
    value_id y =
        normed(x, "decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "final_norm");
    keep(x, x->stream, x->shape->hidden, (struct output){.slice = sliced},
         arena_printf(&x->p->arena, "hidden.%" PRIu64, x->c->num_layers));
    keep(x, y, x->shape->hidden, (struct output){.slice = sliced}, "final_norm");
    if (!x->shape->logits && !x->shape->loss) return;
    y = only_last_rows(x, gathered(x, y));
    bool untied = x->c->untie_embeddings_and_output_weights;
    value_id w =
        vocab_weight(x, untied ? "output_layer.weight" : "embedding.word_embeddings.weight");
    value_id logits = product(x, OPERAND_REAL, y, w, NO_VALUE, "logits");
    keep(x, logits, x->shape->logits,
         (struct output){.shard = x->tp > 1, .last = x->shape->last_rows > 0}, "logits");
    if (x->shape->loss) loss(x, logits);
}

/* ---- stages ---- */

static void receive(struct builder *x)
{
    unsigned pp = x->b->groups->sizes.pp;
    x->stream = matrix(x, OPERAND_ELEM, x->slice, x->c->hidden_size, "received");
    struct call *c = add(x, OP_RECEIVE, "receive");
    c->collective =
        (struct collective){.group = GROUP_PP, .peer = (x->b->groups->place.pp + pp - 1) % pp};
    c->out[0] = x->stream;
}

static void send(struct builder *x)
{
    value_id y = settled(x);
    struct call *c = add(x, OP_SEND, "send");
    c->collective = (struct collective){
        .group = GROUP_PP, .peer = (x->b->groups->place.pp + 1) % x->b->groups->sizes.pp};
    c->in[0] = y;
}

static void stage(struct builder *x, const struct stage *s, bool first, bool last)
{
    x->layer = -1;
    if (s->embedding)
        embedding(x);
    else if (first)
        receive(x);
    for (uint64_t i = 0; i < s->num_layers; i++) {
        x->layer = (int)(s->first_layer + i);
        attention_block(x);
        if (model_layer_is_moe(x->c, s->first_layer + i))
            expert_block(x);
        else
            mlp_block(x);
    }
    x->layer = -1;
    if (s->loss)
        head(x);
    else if (last)
        send(x);
}

static enum status divides(struct error *err, const char *what, uint64_t n, const char *by,
                           uint64_t divisor)
{
    if (n % divisor == 0) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s %" PRIu64 " does not divide %s, which is %" PRIu64, by,
                divisor, what, n);
}

/* What a config may say and no op computes. */
static enum status check_features(const struct builder *x)
{
    const struct model_config *c = x->c;
    const char *positions = c->position_embedding_type, *norm = c->normalization;
    if (positions && strcmp(positions, "rope") != 0 && strcmp(positions, "learned_absolute") != 0 &&
        strcmp(positions, "none") != 0)
        return fail(x->err, ERR_UNSUPPORTED, "positions of type %s", positions);
    if (norm && strcmp(norm, "RMSNorm") != 0 && strcmp(norm, "LayerNorm") != 0)
        return fail(x->err, ERR_UNSUPPORTED, "normalization %s", norm);
    if (has_rope(x) && !(c->rotary_percent <= 1))
        return fail(x->err, ERR_UNSUPPORTED, "rotary positions on %g of each head",
                    c->rotary_percent);
    if (c->num_experts && c->add_bias_linear)
        return fail(x->err, ERR_UNSUPPORTED, "experts with biases");
    if (c->qk_layernorm && is_layer_norm(x))
        return fail(x->err, ERR_UNSUPPORTED, "LayerNorm of queries and keys");
    return OK;
}

enum { MOST_HEADS = 1 << 20, MOST_HEAD_DIM = 1 << 16 };

static enum status check_sizes(const struct builder *x)
{
    const struct model_config *c = x->c;
    struct error *err = x->err;
    if (c->num_attention_heads > MOST_HEADS || c->kv_channels > MOST_HEAD_DIM)
        return fail(err, ERR_UNSUPPORTED, "%" PRIu64 " heads of %" PRIu64, c->num_attention_heads,
                    c->kv_channels);
    TRY(divides(err, "num_query_groups", c->num_query_groups, "tensor parallel size", x->tp));
    TRY(divides(err, "ffn_hidden_size", c->ffn_hidden_size, "tensor parallel size", x->tp));
    TRY(divides(err, "num_attention_heads", c->num_attention_heads, "num_query_groups",
                c->num_query_groups));
    if (!c->num_experts) return OK;
    TRY(divides(err, "num_experts", c->num_experts, "expert parallel size", x->ep));
    return divides(err, "moe_ffn_hidden_size", c->moe_ffn_hidden_size,
                   "expert tensor parallel size", x->etp);
}

static void set_up(struct builder *x, struct built *out, const struct build *b, struct error *err)
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
                          .err = err};
    x->heads =
        (struct head_shape){(uint32_t)(groups / s->tp), (uint32_t)(c->num_attention_heads / groups),
                            (uint32_t)c->kv_channels};
    x->slice = b->shape.sequence_parallel ? x->rows / s->tp : x->rows;
}

enum status builder_make(struct built *out, const struct build *b, uint64_t first, uint64_t count,
                         struct error *err)
{
    struct builder x;
    memset(out, 0, sizeof *out);
    program_init(&out->program, b->elem, b->groups);
    set_up(&x, out, b, err);
    TRY(check_features(&x));
    TRY(check_sizes(&x));
    for (uint64_t i = 0; i < count; i++)
        stage(&x, &b->layout->stages[first + i], i == 0, i + 1 == count);
    if (x.st) return x.st;
    return program_check(&out->program, err);
}

void built_release(struct built *b)
{
    program_release(&b->program);
}
