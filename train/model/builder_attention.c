/* builder_attention.c - attention over a sequence, a cache, or context-parallel
 * ranks. */
#include <math.h>

#include "train/model/builder_internal.h"
#include "train/model/rope.h"

static value_id norm_heads(struct builder *x, value_id qkv)
{
    value_id q = builder_parameter(x, "self_attention.q_layernorm.weight");
    value_id k = builder_parameter(x, "self_attention.k_layernorm.weight");
    return emit(x, OP_HEAD_NORM, "qk_norm", IN(qkv, q, k),
                .params.head_norm = {.heads = x->heads, .epsilon = x->c->layernorm_epsilon});
}

/* cache: also stores keys and values; NO_VALUE: no cache. */
static value_id rotate_qk(struct builder *x, value_id qkv, value_id cache)
{
    value_id table = builder_input(x, INPUT_ROPE, 0);
    value_id positions = builder_input(x, INPUT_POSITIONS, 0);
    const union op_params params = {.rotary = {.heads = x->heads,
                                               .rotary_dim = (uint32_t)rope_dim(x->c),
                                               .interleaved = x->c->rotary_interleaved}};
    if (cache == NO_VALUE)
        return emit(x, OP_ROTARY, "rotary", IN(qkv, table, positions), .params = params);
    value_id rows = builder_input(x, INPUT_CACHE_ROWS, 0), y;
    emit(x, OP_ROTARY_CACHE, "rotary", IN(qkv, table, positions, rows), OUT(&y), .params = params,
         .into = {NULL, &cache});
    return y;
}

bool builder_has_rope(const struct builder *x)
{
    const char *type = x->c->position_embedding_type;
    return type && strcmp(type, "rope") == 0 && x->c->rotary_percent > 0;
}

/* Positions that a token of this layer attends to, itself included; 0: no
 * window. */
static uint32_t window_of(const struct builder *x)
{
    uint64_t window = x->c->sliding_window;
    bool slides = model_layer_slides(x->c, (uint64_t)x->layer);
    return slides && window <= UINT32_MAX ? (uint32_t)window : 0;
}

static double softmax_scale(const struct builder *x)
{
    double scale = x->c->softmax_scale;
    if (!(scale > 0)) scale = 1 / sqrt((double)x->heads.head_dim);
    return x->c->softmax_scale_by_layer ? scale / (x->layer + 1) : scale;
}

/* Pairs of query and key in one call: the causal half of each sequence, dealt
 * to CP ranks and to the calls of a ring; with a cache, its whole room. A
 * window limits the distance. */
static double pairs_of(const struct builder *x)
{
    const struct token_shape *t = &x->shape->tokens;
    double length = (double)t->chunk * t->num_chunks, sequences = (double)t->sequences;
    double window = window_of(x) ? (double)window_of(x) : (double)INFINITY;
    if (x->shape->cache_rows && !x->shape->begins)
        return (double)x->rows * fmin((double)x->shape->cache_rows / sequences, window);
    unsigned calls = x->shape->cp == CP_RING ? x->cp : 1;
    window = fmin(window, length);
    return sequences * window * (length - window / 2) / x->cp / calls;
}

/* Attention of the queries of qkv to keys and values of kv, which is qkv or a
 * cache. lse: NULL if unused. */
static value_id attend_spans(struct builder *x, value_id qkv, value_id kv, value_id spans,
                             value_id *lse)
{
    const struct head_shape h = x->heads;
    const bool own = kv == qkv;
    const uint32_t row = (h.queries + 2) * h.head_dim, k_at = own ? h.queries * h.head_dim : 0;
    value_id o, own_lse, tokens = NO_VALUE;
    struct dropout dropout = {0};
    const struct training_shape *t = x->shape->train;
    if (t && !lse) lse = &own_lse;
    if (t && t->attention_dropout > 0) {
        dropout = builder_dropout(x, DROPOUT_ATTENTION, t->attention_dropout);
        tokens = builder_input(x, INPUT_TOKENS, 0);
    }
    emit(x, OP_ATTENTION, "attention", IN(qkv, kv, spans, NO_VALUE, tokens), OUT(&o, lse),
         .params.attention = {
             .heads = h,
             .q_stride = row,
             .kv_stride = own ? row : 2 * h.head_dim,
             .k_at = k_at,
             .v_at = k_at + h.head_dim,
             .scale = softmax_scale(x),
             .window = window_of(x),
             .causal = true,
             .uniform_sequences = own ? x->shape->tokens.uniform_sequences : 0,
             .pairs = pairs_of(x),
             .dropout = dropout,
             .first_head = (uint64_t)x->b->groups->place.tp * h.groups * h.queries,
         });
    return o;
}

static value_id pack_kv(struct builder *x, value_id qkv)
{
    return emit(x, OP_CACHE_WRITE, "cache", IN(qkv, builder_input(x, INPUT_ROW_NUMBERS, 0)),
                .params.cache_write.heads = x->heads, .sizes = {{'R', x->rows}});
}

/* Keys and values rotate among the ranks; each rank merges its results. */
static value_id attend_ring(struct builder *x, value_id qkv)
{
    value_id kv = pack_kv(x, qkv), lse, next_lse;
    value_id o = attend_spans(x, qkv, kv, builder_input(x, INPUT_SPANS, 0), &lse);
    for (unsigned i = 1; i < x->cp; i++) {
        kv = builder_collective(x, OP_SHIFT, GROUP_CP, kv, "shift");
        value_id next = attend_spans(x, qkv, kv, builder_input(x, INPUT_SPANS, i), &next_lse);
        emit(x, OP_ATTENTION_MERGE, "merge", IN(o, lse, next, next_lse), OUT(&o, &lse),
             .params.attention_merge.head_dim = x->heads.head_dim);
    }
    return o;
}

/* State with the keys and values of this layer. NO_VALUE: no cache. */
static value_id cache_of(struct builder *x)
{
    const uint64_t columns = (uint64_t)x->heads.groups * 2 * x->heads.head_dim;
    if (!x->shape->cache_rows) return NO_VALUE;
    uint32_t number =
        parameters_add_state(x->b->parameters, builder_label(x, "cache"), OPERAND_ELEM, 2,
                             (uint64_t[]){x->shape->cache_rows, columns});
    return builder_held(x, VALUE_STATE, number);
}

/* For models without rope: else the rotary call writes the cache. */
static void keep_kv(struct builder *x, value_id qkv, value_id cache)
{
    emit(x, OP_CACHE_WRITE, "cache", IN(qkv, builder_input(x, INPUT_CACHE_ROWS, 0)),
         .params.cache_write.heads = x->heads, .into = {&cache});
}

static value_id core_attention(struct builder *x, value_id qkv, value_id cache)
{
    value_id kv = cache == NO_VALUE || x->shape->begins ? qkv : cache;
    if (cache != NO_VALUE && !builder_has_rope(x)) keep_kv(x, qkv, cache);
    if (x->cp == 1) return attend_spans(x, qkv, kv, builder_input(x, INPUT_SPANS, 0), NULL);
    if (x->shape->cp == CP_RING) return attend_ring(x, qkv);
    kv = builder_collective(x, OP_ALL_GATHER, GROUP_CP, pack_kv(x, qkv), "gather_kv");
    return attend_spans(x, qkv, kv, builder_input(x, INPUT_ALL_SPANS, 0), NULL);
}

/* Queries, keys and values. */
static value_id project_qkv(struct builder *x, value_id in)
{
    value_id w = builder_weight(x, "self_attention.linear_qkv.weight");
    value_id bias = builder_optional(x, x->c->add_qkv_bias, "self_attention.linear_qkv.bias");
    return builder_product(x, OPERAND_ELEM, builder_gathered(x, in), w, bias, "qkv");
}

/* With more TP ranks than groups, several have the same key and value. */
static void trace_heads(struct builder *x, value_id qkv, const char *name)
{
    const unsigned groups = (unsigned)x->c->num_query_groups;
    struct output o = {.shard = true};
    if (x->tp > groups) {
        o.sharers = x->tp / groups;
        o.copied = 2 * (uint64_t)x->heads.head_dim;
    }
    builder_keep(x, qkv, x->layer == x->shape->trace_layer, o, builder_label(x, name));
}

void builder_attention(struct builder *x)
{
    bool biased = x->c->add_proj_bias;
    value_id in = builder_normed(x, "self_attention.linear_qkv.layer_norm_weight",
                                 "self_attention.linear_qkv.layer_norm_bias", "attention_norm");
    builder_keep(x, x->stream, x->shape->hidden,
                 (struct output){.slice = x->shape->sequence_parallel && x->tp > 1},
                 arena_printf(&x->p->arena, "hidden.%d", x->layer));
    builder_trace(x, in, x->shape->sequence_parallel && x->tp > 1, false, "attention_norm");
    value_id qkv = project_qkv(x, in), cache = cache_of(x);
    trace_heads(x, qkv, "qkv");
    if (x->c->qk_layernorm) {
        qkv = norm_heads(x, qkv);
        trace_heads(x, qkv, "qk_norm");
    }
    if (builder_has_rope(x)) {
        qkv = rotate_qk(x, qkv, cache);
        trace_heads(x, qkv, "rotary");
    }
    value_id o = core_attention(x, qkv, cache);
    builder_trace(x, o, false, true, "attention");
    value_id w = builder_weight(x, "self_attention.linear_proj.weight");
    value_id y = builder_reduced(x, builder_product(x, OPERAND_ELEM, o, w, NO_VALUE, "projection"));
    builder_trace(x, y, x->shape->sequence_parallel && x->tp > 1, false, "projection");
    builder_branch(x, y, builder_optional(x, biased, "self_attention.linear_proj.bias"),
                   DROPOUT_AFTER_ATTENTION);
}
