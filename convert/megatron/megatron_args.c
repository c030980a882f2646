#include "convert/megatron/megatron_args.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"

/* A member of a struct, and its names in args and in run_config.yaml, where its value is the same.
 * Of two names in args the first counts, and both are written. NULL: it has no such name. */
struct key {
    struct field field;
    const char *args[2], *run_config;
};

// clang-format off
#define MODEL(name) FIELD_ROW(struct model_config, name)
static const struct key model_keys[] = {
    /* field                                       in args                                         in run_config.yaml */
    {MODEL(num_layers),                            {"num_layers"},                                 "num_layers"},
    {MODEL(hidden_size),                           {"hidden_size"},                                "hidden_size"},
    {MODEL(ffn_hidden_size),                       {"ffn_hidden_size"},                            "ffn_hidden_size"},
    {MODEL(num_attention_heads),                   {"num_attention_heads"},                        "num_attention_heads"},
    {MODEL(kv_channels),                           {"kv_channels"},                                "kv_channels"},
    {MODEL(make_vocab_size_divisible_by),          {"make_vocab_size_divisible_by"},               "make_vocab_size_divisible_by"},
    {MODEL(padded_vocab_size),                     {"padded_vocab_size"},                          NULL},
    {MODEL(vocab_size),                            {NULL},                                         "vocab_size"},
    {MODEL(max_position_embeddings),               {"max_position_embeddings"},                    "seq_length"},
    {MODEL(normalization),                         {"normalization"},                              "normalization"},
    {MODEL(layernorm_epsilon),                     {"norm_epsilon", "layernorm_epsilon"},          "layernorm_epsilon"},
    {MODEL(gated_linear_unit),                     {"swiglu"},                                     "gated_linear_unit"},
    {MODEL(add_bias_linear),                       {"add_bias_linear"},                            "add_bias_linear"},
    {MODEL(add_qkv_bias),                          {"add_qkv_bias"},                               "add_qkv_bias"},
    {MODEL(qk_layernorm),                          {"qk_layernorm"},                               "qk_layernorm"},
    {MODEL(softmax_scale),                         {NULL},                                         "softmax_scale"}, /* args of newer releases may have it */
    {MODEL(untie_embeddings_and_output_weights),   {"untie_embeddings_and_output_weights"},        NULL},
    {MODEL(position_embedding_type),               {"position_embedding_type"},                    "position_embedding_type"},
    {MODEL(rotary_base),                           {"rotary_base"},                                "rotary_base"},
    {MODEL(rotary_percent),                        {"rotary_percent"},                             "rotary_percent"},
    {MODEL(rotary_interleaved),                    {"rotary_interleaved"},                         "rotary_interleaved"},
    {MODEL(attention_dropout),                     {"attention_dropout"},                          "attention_dropout"},
    {MODEL(hidden_dropout),                        {"hidden_dropout"},                             "hidden_dropout"},
    {MODEL(init_method_std),                       {"init_method_std"},                            "init_method_std"},
    {MODEL(num_experts),                           {"num_experts"},                                "num_moe_experts"},
    {MODEL(moe_router_topk),                       {"moe_router_topk"},                            "moe_router_topk"},
    {MODEL(moe_ffn_hidden_size),                   {"moe_ffn_hidden_size"},                        "moe_ffn_hidden_size"},
    {MODEL(moe_router_pre_softmax),                {"moe_router_pre_softmax"},                     "moe_router_pre_softmax"},
    {MODEL(moe_aux_loss_coeff),                    {"moe_aux_loss_coeff"},                         "moe_aux_loss_coeff"},
};

/* A layout in Megatron's fields. */
struct megatron_layout {
    struct layout_options options;
    uint64_t transformer_pp, layers_per_chunk, chunks_per_rank, world; /* follow from options */
};

#define LAYOUT(name) FIELD_ROW(struct megatron_layout, name)
static const struct key layout_keys[] = {
    {LAYOUT(options.tp),               {"tensor_model_parallel_size"},                 "tensor_model_parallel_size"},
    {LAYOUT(options.pp),               {"pipeline_model_parallel_size"},               "pipeline_model_parallel_size"},
    {LAYOUT(transformer_pp),           {"transformer_pipeline_model_parallel_size"},   NULL},
    {LAYOUT(options.virtual_stages),   {"virtual_pipeline_model_parallel_size"},       "virtual_pipeline_model_parallel_size"},
    {LAYOUT(layers_per_chunk),         {"num_layers_per_virtual_pipeline_stage"},      NULL},
    {LAYOUT(chunks_per_rank),          {"num_virtual_stages_per_pipeline_rank"},       NULL},
    {LAYOUT(options.ep),               {"expert_model_parallel_size"},                 "expert_model_parallel_size"},
    {LAYOUT(options.etp),              {"expert_tensor_parallel_size"},                "expert_tensor_parallel_size"},
    {LAYOUT(options.cp),               {"context_parallel_size"},                      "context_parallel_size"},
    {LAYOUT(options.first_layers),     {"decoder_first_pipeline_num_layers"},          "num_layers_in_first_pipeline_stage"},
    {LAYOUT(options.last_layers),      {"decoder_last_pipeline_num_layers"},           "num_layers_in_last_pipeline_stage"},
    {LAYOUT(options.count_embedding),  {"account_for_embedding_in_pipeline_split"},    "account_for_embedding_in_pipeline_split"},
    {LAYOUT(options.count_loss),       {"account_for_loss_in_pipeline_split"},         "account_for_loss_in_pipeline_split"},
    {LAYOUT(options.pipeline_layout),  {"pipeline_model_parallel_layout"},             "pipeline_model_parallel_layout"},
    {LAYOUT(options.dp),               {"data_parallel_size"},                         NULL},
    {LAYOUT(world),                    {"world_size"},                                 NULL},
};
// clang-format on
enum { NUM_MODEL_KEYS = COUNT(model_keys), NUM_LAYOUT_KEYS = COUNT(layout_keys) };

static void read_args(const struct key *keys, size_t count, const struct value *args,
                      struct arena *a, void *to)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 2; k-- > 0;)
            if (keys[i].args[k])
                (void)field_set_value(&keys[i].field, to, value_get(args, keys[i].args[k]), a);
}

static void read_run_config(const struct key *keys, size_t count, const cJSON *model,
                            struct arena *a, void *to)
{
    for (size_t i = 0; i < count; i++)
        if (keys[i].run_config)
            (void)field_set_json(&keys[i].field, to, json_get(model, keys[i].run_config), a);
}

/* A whole number that is 0 is written as None. */
static struct scalar scalar_of(const struct key *key, const void *from)
{
    const struct scalar s = field_get(&key->field, from);
    return s.kind == FIELD_UINT && !s.number ? (struct scalar){.kind = FIELD_TEXT} : s;
}

static void write_args(const struct key *keys, size_t count, const void *from, struct arena *a,
                       struct value *d)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < 2 && keys[i].args[k]; k++)
            value_dict_set(a, d, keys[i].args[k], scalar_value(scalar_of(&keys[i], from), a));
}

static void write_run_config(const struct key *keys, size_t count, const void *from, cJSON *model)
{
    for (size_t i = 0; i < count; i++)
        if (keys[i].run_config)
            json_put(model, keys[i].run_config, scalar_json(scalar_of(&keys[i], from)));
}

/* ---- reading args ---- */

static bool flag(const struct value *args, const char *name)
{
    bool truth;
    return value_as_bool(value_get(args, name), &truth) && truth;
}

static void groups_from_args(const struct value *args, struct model_config *c)
{
    int64_t groups;
    const struct value *gqa = value_get(args, "group_query_attention");
    c->num_query_groups = c->num_attention_heads;
    if ((!gqa || flag(args, "group_query_attention")) &&
        value_as_int(value_get(args, "num_query_groups"), &groups) && groups > 0)
        c->num_query_groups = (uint64_t)groups;
}

/* Megatron's gelu is the exact one, but its fusion with the bias computes by tanh
 * (core/fusions/fused_bias_gelu.py), and openai_gelu is that too. */
static void activation_from_args(const struct value *args, struct model_config *c)
{
    bool fused = !value_get(args, "bias_gelu_fusion") || flag(args, "bias_gelu_fusion");
    if (flag(args, "swiglu"))
        c->activation_func = "silu";
    else if (flag(args, "squared_relu"))
        c->activation_func = "squared_relu";
    else if (flag(args, "quick_geglu"))
        c->activation_func = "quick_gelu";
    else if (value_get(args, "swiglu"))
        c->activation_func = fused || flag(args, "openai_gelu") ? "gelu_tanh" : "gelu";
    if (flag(args, "quick_geglu")) c->gated_linear_unit = true;
}

/* Megatron's llama3 scaling has a factor; the other numbers are constants
 * (core/models/common/embeddings/rotary_pos_embedding.py:_apply_scaling). */
static void set_llama3(struct model_config *c, double factor)
{
    c->rope_type = "llama3";
    c->rope_factor = factor;
    c->rope_low_freq_factor = 1;
    c->rope_high_freq_factor = 4;
    c->rope_original_max_position = 8192;
}

static void rope_from_args(const struct value *args, struct model_config *c)
{
    double factor = 8;
    c->rope_type = "default";
    if (c->rotary_percent == 0) c->rotary_percent = 1;
    if (flag(args, "use_rotary_position_embeddings")) c->position_embedding_type = "rope";
    if (flag(args, "use_rope_scaling")) {
        (void)value_as_float(value_get(args, "rope_scaling_factor"), &factor);
        set_llama3(c, factor);
    } else if (value_as_float(value_get(args, "rotary_seq_len_interpolation_factor"), &factor)) {
        c->rope_type = "linear";
        c->rope_factor = factor;
    }
}

/* What args or run_config.yaml say of layers: a whole number, or a list with one a layer. */
struct layer_numbers {
    bool given, is_list;
    int64_t number;
    const int64_t *list;
    uint64_t count;
};

static struct layer_numbers numbers_of_value(struct arena *a, const struct value *v)
{
    struct layer_numbers n = {.is_list = v && v->kind == VALUE_LIST};
    if (!n.is_list) {
        n.given = value_as_int(v, &n.number);
        return n;
    }
    int64_t *list = arena_array(a, v->count, sizeof *list);
    n.given = true;
    for (; n.count < v->count && n.given; n.count++)
        n.given = value_as_int(v->items[n.count], &list[n.count]);
    n.list = list;
    return n;
}

static struct layer_numbers numbers_of_json(struct arena *a, const cJSON *item)
{
    struct layer_numbers n = {.is_list = cJSON_IsArray(item)};
    if (!n.is_list) {
        n.given = json_as_i64(item, &n.number);
        return n;
    }
    int64_t *list = arena_array(a, (size_t)cJSON_GetArraySize(item), sizeof *list);
    n.given = true;
    for (const cJSON *i = item->child; i && n.given; i = i->next)
        n.given = json_as_i64(i, &list[n.count++]);
    n.list = list;
    return n;
}

/* One flag a layer: its number in the list (what is past the end counts as 1), or what `by_number`
 * makes of the one number. NULL: they are all true. */
static const bool *layer_flags(struct arena *a, const struct layer_numbers *n, uint64_t num_layers,
                               bool (*by_number)(uint64_t layer, uint64_t n))
{
    if (!n->given || num_layers > MOST_LAYERS || (!n->is_list && n->number <= 0)) return NULL;
    bool *flags = arena_array(a, num_layers, sizeof *flags), all = true;
    for (uint64_t i = 0; i < num_layers; i++) {
        flags[i] = !n->is_list ? by_number(i, (uint64_t)n->number) : i >= n->count || n->list[i];
        all &= flags[i];
    }
    return all ? NULL : flags;
}

/* moe_layer_freq N: every Nth layer from the first has experts. */
static bool has_experts(uint64_t layer, uint64_t n)
{
    return layer % n == 0;
}

/* window_attn_skip_freq N: every Nth layer, counted from 1, sees all positions
 * (core/transformer/utils.py:is_layer_window_attention). */
static bool slides(uint64_t layer, uint64_t n)
{
    return (layer + 1) % n != 0;
}

/* left: positions before the current one, as window_size has it; below 0: all. */
static void set_window(struct arena *a, struct model_config *c, int64_t left,
                       const struct layer_numbers *skip)
{
    bool any = false;
    c->sliding_window = left >= 0 ? (uint64_t)left + 1 : 0;
    if (!c->sliding_window) return;
    c->window_layers = layer_flags(a, skip, c->num_layers, slides);
    for (uint64_t i = 0; c->window_layers && i < c->num_layers; i++)
        any |= c->window_layers[i];
    if (!c->window_layers || any) return;
    c->window_layers = NULL;
    c->sliding_window = 0;
}

static void window_from_args(const struct value *args, struct arena *a, struct model_config *c)
{
    const struct value *w = value_get(args, "window_size");
    struct layer_numbers skip = numbers_of_value(a, value_get(args, "window_attn_skip_freq"));
    int64_t left = -1;
    if (w && (w->kind == VALUE_TUPLE || w->kind == VALUE_LIST) && w->count == 2)
        (void)value_as_int(w->items[0], &left);
    set_window(a, c, left, &skip);
}

void model_config_from_args(const struct value *args, struct arena *a, struct model_config *c)
{
    read_args(model_keys, NUM_MODEL_KEYS, args, a, c);
    groups_from_args(args, c);
    activation_from_args(args, c);
    rope_from_args(args, c);
    (void)value_as_float(value_get(args, "softmax_scale"), &c->softmax_scale);
    window_from_args(args, a, c);
    if (c->num_experts && !c->moe_ffn_hidden_size) c->moe_ffn_hidden_size = c->ffn_hidden_size;
    struct layer_numbers freq = numbers_of_value(a, value_get(args, "moe_layer_freq"));
    if (c->num_experts) c->moe_layers = layer_flags(a, &freq, c->num_layers, has_experts);
    model_config_join_biases(c);
}

/* A layout in args is the text, or an object whose input_data is it. */
static const char *pipeline_layout_of(const struct value *args)
{
    const struct value *v = value_get(args, "pipeline_model_parallel_layout");
    const char *text = value_as_text(v);
    return text ? text : value_as_text(value_get(v, "input_data"));
}

/* A pipeline layout says how all layers are dealt; other fields must not say it again. */
static void keep_pipeline_layout(struct layout_options *o)
{
    if (!o->pipeline_layout) return;
    *o = (struct layout_options){.tp = o->tp,
                                 .pp = o->pp,
                                 .ep = o->ep,
                                 .etp = o->etp,
                                 .cp = o->cp,
                                 .dp = o->dp,
                                 .pipeline_layout = o->pipeline_layout};
}

void layout_options_from_args(const struct value *args, struct arena *a, struct layout_options *o)
{
    struct megatron_layout l = {.options = {0}};
    read_args(layout_keys, NUM_LAYOUT_KEYS, args, a, &l);
    if (!value_get(args, "tensor_model_parallel_size")) /* before checkpoint_version 3 */
        (void)field_set_value(&layout_keys[0].field, &l, value_get(args, "model_parallel_size"), a);
    *o = l.options;
    const char *text = pipeline_layout_of(args);
    if (text) o->pipeline_layout = arena_copy_text(a, text);
    keep_pipeline_layout(o);
}

/* ---- reading run_config.yaml ---- */

static const struct {
    const char *target, *activation;
} activation_targets[] = {
    {"torch.nn.functional.silu", "silu"},
    {"torch.nn.functional.gelu", "gelu"},
    {"torch.nn.functional.relu", "relu"},
    {"megatron.core.activations.squared_relu", "squared_relu"},
    {"megatron.core.activations.quick_gelu", "quick_gelu"},
    {"megatron.core.activations.fast_gelu", "gelu_tanh"},
};

static void activation_from_json(const cJSON *model, struct model_config *c)
{
    const cJSON *f = json_get(model, "activation_func");
    const char *target = json_as_text(json_get(f, "_target_"));
    const char *approximate = json_as_text(json_get(f, "approximate"));
    for (size_t i = 0; target && i < COUNT(activation_targets); i++)
        if (strcmp(activation_targets[i].target, target) == 0)
            c->activation_func = activation_targets[i].activation;
    if (approximate && strcmp(approximate, "tanh") == 0) c->activation_func = "gelu_tanh";
}

void model_config_from_run_config(const cJSON *model, struct arena *a, struct model_config *c)
{
    double factor = 1;
    int64_t left = -1;
    read_run_config(model_keys, NUM_MODEL_KEYS, model, a, c);
    c->num_query_groups = c->num_attention_heads;
    (void)json_as_u64(json_get(model, "num_query_groups"), &c->num_query_groups);
    c->untie_embeddings_and_output_weights =
        !cJSON_IsTrue(json_get(model, "share_embeddings_and_output_weights"));
    activation_from_json(model, c);
    c->rope_type = "default";
    (void)json_as_double(json_get(model, "rope_scaling_factor"), &factor);
    if (cJSON_IsTrue(json_get(model, "rope_scaling"))) set_llama3(c, factor);
    if (json_as_double(json_get(model, "seq_len_interpolation_factor"), &c->rope_factor))
        c->rope_type = "linear";
    const cJSON *window = json_get(model, "window_size");
    struct layer_numbers skip = numbers_of_json(a, json_get(model, "window_attn_skip_freq"));
    if (cJSON_IsArray(window)) (void)json_as_i64(window->child, &left);
    set_window(a, c, left, &skip);
    if (c->num_experts && !c->moe_ffn_hidden_size) c->moe_ffn_hidden_size = c->ffn_hidden_size;
    struct layer_numbers freq = numbers_of_json(a, json_get(model, "moe_layer_freq"));
    if (c->num_experts) c->moe_layers = layer_flags(a, &freq, c->num_layers, has_experts);
    model_config_join_biases(c);
}

void layout_options_from_run_config(const cJSON *model, struct arena *a, struct layout_options *o)
{
    struct megatron_layout l = {.options = {0}};
    read_run_config(layout_keys, NUM_LAYOUT_KEYS, model, a, &l);
    *o = l.options;
    keep_pipeline_layout(o);
}

/* ---- what no family has ---- */

/* Names in args, of which releases have one or the other, and in run_config.yaml, and the value
 * that means nothing where it is a text. */
static const struct {
    const char *args[2], *run_config, *plain;
} beyond[] = {
    /* norms are stored minus one; args of Megatron-Core 0.19 have the other name */
    {{"apply_layernorm_1p", "layernorm_zero_centered_gamma"},
     "layernorm_zero_centered_gamma",
     NULL},
    {{"multi_latent_attention"}, "multi_latent_attention", NULL},
    {{"attention_output_gate"}, "attention_output_gate", NULL},
    {{"experimental_attention_variant"}, "experimental_attention_variant", NULL},
    {{"qk_l2_norm"}, "qk_l2_norm", NULL},
    {{"apply_residual_connection_post_layernorm"},
     "apply_residual_connection_post_layernorm",
     NULL},
    {{"softmax_type"}, "softmax_type", "vanilla"},
    {{"no_rope_freq"}, "no_rope_freq", NULL},
    {{"activation_func_clamp_value"}, "activation_func_clamp_value", NULL},
    {{"glu_linear_offset"}, "glu_linear_offset", NULL},
    {{"linear_attention_freq"}, "linear_attention_freq", NULL},
    {{"heterogeneous_layers_config_path"}, "heterogeneous_layers_config_path", NULL},
    {{"mtp_num_layers"}, "mtp_num_layers", NULL},
    {{"use_mup"}, "use_mup", NULL},
    {{"moe_latent_size"}, "moe_latent_size", NULL},
    {{"moe_mlp_glu_interleave_size"}, "moe_mlp_glu_interleave_size", NULL},
    {{"moe_router_score_function"}, "moe_router_score_function", "softmax"},
    {{"moe_router_enable_expert_bias"}, "moe_router_enable_expert_bias", NULL},
    {{"moe_router_topk_scaling_factor"}, "moe_router_topk_scaling_factor", NULL},
    {{"moe_router_num_groups"}, "moe_router_num_groups", NULL},
    {{"moe_shared_expert_intermediate_size"}, "moe_shared_expert_intermediate_size", NULL},
};
enum { NUM_BEYOND = COUNT(beyond) };

static void add_unknown(struct checkpoint *c, const char *file, const char *name, const char *text,
                        const double *number)
{
    unknown_fields_add(&c->unknown, &c->arena, file, name,
                       text     ? text
                       : number ? arena_printf(&c->arena, "%.9g", *number)
                                : "...",
                       false);
}

static void add_value(struct checkpoint *c, const char *name, const struct value *v,
                      const char *plain)
{
    const char *text = value_as_text(v);
    double number;
    bool truth;
    if (!v || v->kind == VALUE_NONE) return;
    if (value_as_bool(v, &truth)) {
        if (truth) add_unknown(c, "args", name, "True", NULL);
    } else if (text) {
        if (*text && (!plain || strcmp(text, plain))) add_unknown(c, "args", name, text, NULL);
    } else if (value_as_float(v, &number)) {
        if (number < 0 || number > 0) add_unknown(c, "args", name, NULL, &number);
    } else if (v->kind != VALUE_LIST || v->count) {
        add_unknown(c, "args", name, NULL, NULL);
    }
}

static void add_json(struct checkpoint *c, const char *name, const cJSON *item, const char *plain)
{
    const char *text = json_as_text(item);
    double number;
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item)) return;
    if (cJSON_IsTrue(item)) {
        add_unknown(c, "run_config.yaml", name, "True", NULL);
    } else if (text) {
        if (*text && (!plain || strcmp(text, plain)))
            add_unknown(c, "run_config.yaml", name, text, NULL);
    } else if (json_as_double(item, &number)) {
        if (number < 0 || number > 0) add_unknown(c, "run_config.yaml", name, NULL, &number);
    } else {
        add_unknown(c, "run_config.yaml", name, NULL, NULL);
    }
}

void args_add_unknown(struct checkpoint *c, const struct value *args)
{
    for (size_t i = 0; i < NUM_BEYOND; i++)
        for (size_t k = 0; k < 2 && beyond[i].args[k]; k++)
            add_value(c, beyond[i].args[k], value_get(args, beyond[i].args[k]), beyond[i].plain);
}

void run_config_add_unknown(struct checkpoint *c, const cJSON *model)
{
    for (size_t i = 0; i < NUM_BEYOND; i++)
        add_json(c, beyond[i].run_config, json_get(model, beyond[i].run_config), beyond[i].plain);
}

/* ---- writing args ---- */

static void set_int(struct arena *a, struct value *d, const char *name, uint64_t n)
{
    value_dict_set(a, d, name, value_int(a, (int64_t)n));
}

static void set_bool(struct arena *a, struct value *d, const char *name, bool truth)
{
    value_dict_set(a, d, name, value_bool(a, truth));
}

static void set_none(struct arena *a, struct value *d, const char *name)
{
    value_dict_set(a, d, name, value_none(a));
}

static void set_int_or_none(struct arena *a, struct value *d, const char *name, uint64_t n)
{
    value_dict_set(a, d, name, n ? value_int(a, (int64_t)n) : value_none(a));
}

static struct megatron_layout megatron_layout_of(const struct args_facts *f)
{
    const struct layout *l = f->layout;
    const struct layout_options *o = &l->options;
    const uint64_t ranks = layout_stage_ranks(l);
    struct megatron_layout out = {.options = *o, .transformer_pp = l->pp, .world = ranks * l->pp};
    out.options.cp = 1;
    out.options.dp = ranks / l->tp;
    if (l->vpp <= 1 || o->pipeline_layout) return out;
    if (o->first_layers || o->last_layers || o->count_embedding || o->count_loss)
        out.chunks_per_rank = l->vpp;
    else
        out.layers_per_chunk = f->config->num_layers / l->pp / l->vpp;
    return out;
}

/* What a layout says, and what follows from it. */
static void set_layout(struct arena *a, struct value *d, const struct args_facts *f)
{
    const struct megatron_layout l = megatron_layout_of(f);
    write_args(layout_keys, NUM_LAYOUT_KEYS, &l, a, d);
    set_int(a, d, "rank", 0);
    set_int_or_none(a, d, "padded_vocab_size", f->padded_vocab);
    set_int(a, d, "make_vocab_size_divisible_by", f->divisible_by);
    value_dict_set(a, d, "ckpt_format", value_text(a, f->ckpt_format));
    value_dict_set(a, d, "transformer_impl",
                   value_text(a, f->transformer_engine ? "transformer_engine" : "local"));
    set_bool(a, d, "moe_grouped_gemm", f->grouped_gemm);
    /* Neither is written; Megatron then does not ask for them. */
    set_bool(a, d, "no_save_optim", true);
    set_bool(a, d, "no_save_rng", true);
}

static void set_model(struct arena *a, struct value *d, const struct model_config *c)
{
    write_args(model_keys, NUM_MODEL_KEYS, c, a, d);
    set_bool(a, d, "swiglu", c->gated_linear_unit && text_equal(c->activation_func, "silu"));
    set_bool(a, d, "squared_relu", text_equal(c->activation_func, "squared_relu"));
    set_bool(a, d, "quick_geglu",
             c->gated_linear_unit && text_equal(c->activation_func, "quick_gelu"));
    set_bool(a, d, "openai_gelu", false);
    set_bool(a, d, "bias_gelu_fusion", text_equal(c->activation_func, "gelu_tanh"));
    set_bool(a, d, "bias_swiglu_fusion", c->gated_linear_unit);
    set_bool(a, d, "group_query_attention", c->num_query_groups != c->num_attention_heads);
    set_int(a, d, "num_query_groups", c->num_query_groups);
    set_bool(a, d, "multi_latent_attention", false);
    set_int(a, d, "seq_length", c->max_position_embeddings);
    set_bool(a, d, "add_position_embedding", true);
    set_bool(a, d, "use_rotary_position_embeddings",
             text_equal(c->position_embedding_type, "rope"));
    /* Megatron's own type of --rotary-base is int */
    bool whole =
        c->rotary_base >= 0 && c->rotary_base < 0x1p53 && !(floor(c->rotary_base) < c->rotary_base);
    value_dict_set(a, d, "rotary_base",
                   whole ? value_int(a, (int64_t)c->rotary_base) : value_float(a, c->rotary_base));
    set_bool(a, d, "apply_layernorm_1p", false);
    set_bool(a, d, "layernorm_zero_centered_gamma", false);
    set_bool(a, d, "apply_query_key_layer_scaling", false);
}

static void set_rope(struct arena *a, struct value *d, const struct model_config *c)
{
    bool llama3 = text_equal(c->rope_type, "llama3"), linear = text_equal(c->rope_type, "linear");
    set_bool(a, d, "use_rope_scaling", llama3);
    value_dict_set(a, d, "rope_scaling_factor", value_float(a, llama3 ? c->rope_factor : 8.0));
    value_dict_set(a, d, "rotary_seq_len_interpolation_factor",
                   linear ? value_float(a, c->rope_factor) : value_none(a));
    set_none(a, d, "window_size");
    set_none(a, d, "window_attn_skip_freq");
    if (!c->sliding_window) return;
    struct value *window[] = {value_int(a, (int64_t)c->sliding_window - 1), value_int(a, 0)};
    value_dict_set(a, d, "window_size", value_list(a, VALUE_TUPLE, 2, window));
    if (!c->window_layers) return;
    struct value *skip = value_list(a, VALUE_LIST, 0, NULL);
    for (uint64_t i = 0; i < c->num_layers; i++)
        value_append(a, skip, value_int(a, model_layer_slides(c, i)));
    value_dict_set(a, d, "window_attn_skip_freq", skip);
}

static void set_moe(struct arena *a, struct value *d, const struct model_config *c)
{
    if (!c->num_experts) {
        set_int(a, d, "moe_router_topk", 2); /* its default */
        set_int(a, d, "moe_layer_freq", 1);
        return;
    }
    struct value *freq = value_int(a, 1);
    if (model_layers_differ(c)) {
        freq = value_list(a, VALUE_LIST, 0, NULL);
        for (uint64_t i = 0; i < c->num_layers; i++)
            value_append(a, freq, value_int(a, model_layer_is_moe(c, i)));
    }
    value_dict_set(a, d, "moe_layer_freq", freq);
    value_dict_set(a, d, "moe_router_score_function", value_text(a, "softmax"));
    set_bool(a, d, "moe_router_enable_expert_bias", false);
    set_none(a, d, "moe_router_topk_scaling_factor");
    set_none(a, d, "moe_shared_expert_intermediate_size");
    value_dict_set(a, d, "moe_token_dispatcher_type", value_text(a, "alltoall"));
}

static struct value *dtype_value(struct arena *a, enum dtype dtype)
{
    return value_global(a, "torch", dtype_infos[dtype].torch);
}

static void set_dtype(struct arena *a, struct value *d, enum dtype dtype)
{
    value_dict_set(a, d, "params_dtype", dtype_value(a, dtype));
    set_bool(a, d, "bf16", dtype == DT_BF16);
    set_bool(a, d, "fp16", dtype == DT_F16);
}

/* What readers touch without a default (Megatron-Bridge's mlm_compat/arguments.py, and
 * Megatron-LM's check_checkpoint_args), and what says that nothing has been trained yet. */
static void set_rest(struct arena *a, struct value *d, const struct args_facts *f)
{
    static const char *const none[] = {"heterogeneous_layers_config_path",
                                       "hybrid_layer_pattern",
                                       "hybrid_override_pattern",
                                       "mtp_num_layers",
                                       "spec",
                                       "tokenizer_model",
                                       "tiktoken_pattern",
                                       "vocab_file",
                                       "merge_file",
                                       "linear_attention_freq"};
    static const char *const no[] = {"overlap_p2p_comm",
                                     "fp8_param_gather",
                                     "is_hybrid_model",
                                     "init_method_xavier_uniform",
                                     "no_persist_layer_norm",
                                     "data_parallel_random_init",
                                     "async_save",
                                     "use_distributed_optimizer",
                                     "sequence_parallel"};
    for (size_t i = 0; i < COUNT(none); i++)
        set_none(a, d, none[i]);
    for (size_t i = 0; i < COUNT(no); i++)
        set_bool(a, d, no[i], false);
    struct value *p2p = value_text(a, "p2p");
    value_dict_set(a, d, "cp_comm_type", value_list(a, VALUE_LIST, 1, &p2p));
    value_dict_set(a, d, "config_logger_dir", value_text(a, ""));
    value_dict_set(a, d, "tokenizer_type", value_text(a, "HuggingFaceTokenizer"));
    set_bool(a, d, "ckpt_fully_parallel_save", true);
    set_int(a, d, "gdp_num_householder", 3);
    set_int(a, d, "iteration", f->iteration);
    set_int(a, d, "consumed_train_samples", 0);
    set_int(a, d, "skipped_train_samples", 0);
    set_int(a, d, "consumed_valid_samples", 0);
}

struct value *args_make(struct arena *a, const struct args_facts *f)
{
    struct value *d = value_dict(a);
    set_model(a, d, f->config);
    set_rope(a, d, f->config);
    set_moe(a, d, f->config);
    set_rest(a, d, f);
    set_dtype(a, d, f->dtype);
    set_layout(a, d, f);
    return value_instance(a, "argparse", "Namespace", d);
}

bool args_have_grouped_gemm(const struct value *args)
{
    return flag(args, "moe_grouped_gemm");
}

static void add_flag(struct strbuf *out, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_flag(struct strbuf *out, const char *fmt, ...)
{
    va_list list;
    char text[128];
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    strbuf_printf(out, "%s%s", out->length ? " " : "", text);
}

static void add_window_flags(struct strbuf *out, const struct model_config *c)
{
    if (!c->sliding_window) return;
    add_flag(out, "--window-size %" PRIu64 ",0", c->sliding_window - 1);
    if (!c->window_layers) return;
    add_flag(out, "--window-attn-skip-freq [");
    for (uint64_t l = 0; l < c->num_layers; l++)
        strbuf_printf(out, "%s%d", l ? "," : "", model_layer_slides(c, l));
    strbuf_add_char(out, ']');
}

const char *args_flags_beside(const struct model_config *c, struct arena *a)
{
    const double usual_epsilon = 1e-5, usual_factor = 8;
    struct strbuf text = {0};
    bool rope = text_equal(c->position_embedding_type, "rope");
    strbuf_add_text(&text, "");
    if (c->layernorm_epsilon < usual_epsilon || c->layernorm_epsilon > usual_epsilon)
        add_flag(&text, "--norm-epsilon %.9g", c->layernorm_epsilon);
    if (c->qk_layernorm) add_flag(&text, "--qk-layernorm");
    if (rope && text_equal(c->rope_type, "llama3")) {
        add_flag(&text, "--use-rope-scaling");
        if (c->rope_factor < usual_factor || c->rope_factor > usual_factor)
            add_flag(&text, "--rope-scaling-factor %.9g", c->rope_factor);
    }
    if (rope && text_equal(c->rope_type, "linear"))
        add_flag(&text, "--rotary-seq-len-interpolation-factor %.9g", c->rope_factor);
    add_window_flags(&text, c);
    if (text_equal(c->activation_func, "gelu") && c->add_bias_linear)
        add_flag(&text, "--no-bias-gelu-fusion");
    if (text_equal(c->activation_func, "quick_gelu") && c->gated_linear_unit)
        add_flag(&text, "--quick-geglu");
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

struct model_config model_config_through_args(const struct model_config *c, struct arena *a)
{
    struct model_config out = {.rotary_percent = 1};
    struct value *d = value_dict(a);
    set_model(a, d, c);
    set_rope(a, d, c);
    set_moe(a, d, c);
    model_config_from_args(value_instance(a, "argparse", "Namespace", d), a, &out);
    out.vocab_size = c->vocab_size;
    out.add_qkv_bias = c->add_qkv_bias;
    out.add_proj_bias = c->add_proj_bias;
    out.add_mlp_bias = c->add_mlp_bias;
    return out;
}

static enum status stop_at_tensor(void *context, const char *path, const struct value *tensor,
                                  struct error *err)
{
    (void)context, (void)path, (void)tensor;
    return fail(err, DIFFERENT, "%s", "");
}

bool value_holds_tensor(const struct value *v)
{
    return value_walk(v, "", stop_at_tensor, NULL, NULL) != OK;
}

struct value *args_update(struct arena *a, const struct value *args, const struct args_facts *f)
{
    const struct value *state = args->kind == VALUE_OBJECT ? args->object->state : args;
    struct value *d = value_dict(a);
    for (uint32_t i = 0; state && state->kind == VALUE_DICT && i < state->count; i++) {
        const char *name = value_as_text(state->items[2 * i]);
        if (name && !value_holds_tensor(state->items[2 * i + 1]))
            value_dict_set(a, d, name, state->items[2 * i + 1]);
    }
    set_layout(a, d, f);
    if (f->casts) set_dtype(a, d, f->dtype);
    if (value_get(args, "iteration")) set_int(a, d, "iteration", f->iteration);
    return value_instance(a, "argparse", "Namespace", d);
}

/* ---- writing run_config.yaml ---- */

static void put_uint(cJSON *o, const char *name, uint64_t n)
{
    json_put(o, name, n ? json_new_u64(n) : cJSON_CreateNull());
}

/* A reference to a Python name that is not called. */
static cJSON *reference(const char *target)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddBoolToObject(o, "_call_", false);
    cJSON_AddStringToObject(o, "_target_", target);
    return o;
}

static cJSON *activation_to_json(const struct model_config *c)
{
    if (text_equal(c->activation_func, "gelu_tanh")) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToObject(o, "_args_", cJSON_CreateArray());
        cJSON_AddBoolToObject(o, "_partial_", true);
        cJSON_AddStringToObject(o, "_target_", "torch.nn.functional.gelu");
        cJSON_AddStringToObject(o, "approximate", "tanh");
        return o;
    }
    for (size_t i = 0; i < COUNT(activation_targets); i++)
        if (text_equal(c->activation_func, activation_targets[i].activation))
            return reference(activation_targets[i].target);
    return reference("torch.nn.functional.gelu");
}

static void put_window(cJSON *o, const struct model_config *c)
{
    json_put(o, "window_size", cJSON_CreateNull());
    json_put(o, "window_attn_skip_freq", cJSON_CreateNull());
    if (!c->sliding_window) return;
    cJSON *window = cJSON_CreateArray();
    cJSON_AddItemToArray(window, json_new_u64(c->sliding_window - 1));
    cJSON_AddItemToArray(window, json_new_u64(0));
    json_put(o, "window_size", window);
    if (!c->window_layers) return;
    cJSON *skip = cJSON_CreateArray();
    for (uint64_t i = 0; i < c->num_layers; i++)
        cJSON_AddItemToArray(skip, json_new_u64(model_layer_slides(c, i)));
    json_put(o, "window_attn_skip_freq", skip);
}

/* Rows of the embedding as they are written. */
static void put_vocabulary(cJSON *o, const struct args_facts *f)
{
    uint64_t vocab = f->config->vocab_size;
    json_put(o, "should_pad_vocab", cJSON_CreateBool(vocab > 0));
    put_uint(o, "vocab_size", vocab ? vocab : f->padded_vocab);
    put_uint(o, "make_vocab_size_divisible_by", f->divisible_by);
}

static void put_model(cJSON *o, const struct args_facts *f)
{
    const struct model_config *c = f->config;
    write_run_config(model_keys, NUM_MODEL_KEYS, c, o);
    put_uint(o, "num_query_groups", c->num_query_groups);
    json_put(o, "share_embeddings_and_output_weights",
             cJSON_CreateBool(!c->untie_embeddings_and_output_weights));
    json_put(o, "activation_func", activation_to_json(c));
    if (!(c->softmax_scale > 0)) json_put(o, "softmax_scale", cJSON_CreateNull());
    put_vocabulary(o, f);
    bool llama3 = text_equal(c->rope_type, "llama3"), linear = text_equal(c->rope_type, "linear");
    json_put(o, "rope_scaling", cJSON_CreateBool(llama3));
    json_put(o, "rope_scaling_factor", json_new_double(llama3 ? c->rope_factor : 1.0));
    json_put(o, "seq_len_interpolation_factor",
             linear ? json_new_double(c->rope_factor) : cJSON_CreateNull());
    put_window(o, c);
    if (!c->num_experts) {
        put_uint(o, "moe_router_topk", 2);
    } else if (model_layers_differ(c)) {
        cJSON *freq = cJSON_CreateArray();
        for (uint64_t i = 0; i < c->num_layers; i++)
            cJSON_AddItemToArray(freq, json_new_u64(model_layer_is_moe(c, i)));
        json_put(o, "moe_layer_freq", freq);
    }
}

static void put_layout(cJSON *o, const struct args_facts *f)
{
    const struct megatron_layout l = megatron_layout_of(f);
    write_run_config(layout_keys, NUM_LAYOUT_KEYS, &l, o);
    json_put(o, "transformer_impl",
             cJSON_CreateString(f->transformer_engine ? "transformer_engine" : "local"));
    json_put(o, "moe_grouped_gemm", cJSON_CreateBool(f->grouped_gemm));
}

static void put_dtype(cJSON *o, enum dtype dtype)
{
    char name[40];
    snprintf(name, sizeof name, "torch.%s", dtype_infos[dtype].torch);
    json_put(o, "params_dtype", reference(name));
    json_put(o, "pipeline_dtype", reference(name));
    json_put(o, "autocast_dtype", reference(name));
    json_put(o, "bf16", cJSON_CreateBool(dtype == DT_BF16));
    json_put(o, "fp16", cJSON_CreateBool(dtype == DT_F16));
}

cJSON *run_config_make(const struct args_facts *f)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "_target_", "megatron.bridge.training.config.ConfigContainer");
    cJSON *checkpoint = cJSON_AddObjectToObject(o, "checkpoint");
    cJSON_AddStringToObject(checkpoint, "_target_",
                            "megatron.bridge.training.config.CheckpointConfig");
    cJSON_AddStringToObject(checkpoint, "ckpt_format", "torch_dist");
    cJSON_AddBoolToObject(checkpoint, "fully_parallel_save", true);
    cJSON_AddBoolToObject(checkpoint, "save_optim", false);
    cJSON_AddBoolToObject(checkpoint, "save_rng", false);
    cJSON *model = cJSON_AddObjectToObject(o, "model");
    cJSON_AddStringToObject(model, "_target_",
                            "megatron.bridge.models.gpt_provider.GPTModelProvider");
    put_model(model, f);
    put_layout(model, f);
    put_dtype(model, f->dtype);
    return o;
}

void run_config_update(cJSON *tree, const struct args_facts *f)
{
    cJSON *model = json_get(tree, "model"), *checkpoint = json_get(tree, "checkpoint");
    if (cJSON_IsObject(model)) {
        put_layout(model, f);
        put_vocabulary(model, f);
        if (f->casts) put_dtype(model, f->dtype);
    }
    if (!cJSON_IsObject(checkpoint)) return;
    json_put(checkpoint, "save_optim", cJSON_CreateFalse());
    json_put(checkpoint, "save_rng", cJSON_CreateFalse());
}
