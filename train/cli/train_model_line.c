/* train_model_line.c - the model that a command line describes.
 *
 * The line becomes pretrain_gpt.py's args, which are read like a checkpoint's
 * (convert/models/megatron.json): one table defines all args. Defaults and
 * derived sizes are those of megatron/training/arguments.py (validate_args). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/megatron/megatron_args.h"
#include "train/cli/train_finish.h"

static uint64_t or_else(uint64_t given, uint64_t other)
{
    return given ? given : other;
}

/* 4 h; for an MLP of three products 2/3 of it, as a multiple of 64. */
static uint64_t ffn_of(const struct model_line *l)
{
    if (l->ffn_hidden_size) return l->ffn_hidden_size;
    return l->swiglu ? (uint64_t)((double)(4 * l->hidden_size * 2) / 3 / 64) * 64
                     : 4 * l->hidden_size;
}

static void add_sizes(cJSON *args, const struct model_line *l)
{
    json_add_u64(args, "num_layers", l->num_layers);
    json_add_u64(args, "hidden_size", l->hidden_size);
    json_add_u64(args, "ffn_hidden_size", ffn_of(l));
    json_add_u64(args, "num_attention_heads", l->num_attention_heads);
    json_add_u64(args, "kv_channels",
                 or_else(l->kv_channels,
                         l->num_attention_heads ? l->hidden_size / l->num_attention_heads : 0));
    cJSON_AddBoolToObject(args, "group_query_attention", l->group_query_attention);
    json_add_u64(args, "num_query_groups", l->num_query_groups);
    json_add_u64(args, "max_position_embeddings", l->max_position_embeddings);
    json_add_u64(args, "make_vocab_size_divisible_by", l->make_vocab_size_divisible_by);
}

static void add_positions(cJSON *args, const struct model_line *l)
{
    json_add_text(args, "position_embedding_type",
                  l->use_rotary_position_embeddings ? "rope" : l->position_embedding_type);
    json_add_number(args, "rotary_base", l->rotary_base);
    json_add_number(args, "rotary_percent", l->rotary_percent);
    cJSON_AddBoolToObject(args, "rotary_interleaved", l->rotary_interleaved);
    cJSON_AddBoolToObject(args, "use_rope_scaling", l->use_rope_scaling);
    json_add_number(args, "rope_scaling_factor", l->rope_scaling_factor);
    if (l->rotary_seq_len_interpolation_factor)
        json_add_u64(args, "rotary_seq_len_interpolation_factor",
                     l->rotary_seq_len_interpolation_factor);
}

static void add_parts(cJSON *args, const struct model_line *l)
{
    json_add_text(args, "normalization", l->normalization);
    json_add_number(args, "layernorm_epsilon", l->norm_epsilon);
    cJSON_AddBoolToObject(args, "qk_layernorm", l->qk_layernorm);
    cJSON_AddBoolToObject(args, "swiglu", l->swiglu);
    cJSON_AddBoolToObject(args, "quick_geglu", l->quick_geglu);
    cJSON_AddBoolToObject(args, "squared_relu", l->squared_relu);
    cJSON_AddBoolToObject(args, "openai_gelu", l->openai_gelu);
    cJSON_AddBoolToObject(args, "bias_gelu_fusion", l->bias_gelu_fusion && l->add_bias_linear);
    cJSON_AddBoolToObject(args, "add_bias_linear", l->add_bias_linear);
    cJSON_AddBoolToObject(args, "add_qkv_bias", l->add_qkv_bias);
    cJSON_AddBoolToObject(args, "untie_embeddings_and_output_weights",
                          l->untie_embeddings_and_output_weights);
}

static void add_training(cJSON *args, const struct train_options *o)
{
    json_add_number(args, "hidden_dropout", o->hidden_dropout);
    json_add_number(args, "attention_dropout", o->attention_dropout);
    json_add_number(args, "init_method_std", o->init_method_std);
    json_add_number(args, "moe_aux_loss_coeff", o->moe_aux_loss_coeff);
}

/* Adds a list of layers; reports a list whose length is not num_layers. */
static void add_layer_list(struct train_finish *x, cJSON *args, const char *name,
                           const char *option, const char *text)
{
    cJSON *layers = text ? train_layer_pattern(text) : NULL;
    if (text && !layers)
        train_problem(x, "%s: \"%s\" is neither an integer nor a 0/1 list such as ([0]+[1]*3)*2",
                      option, text);
    const int count = cJSON_IsArray(layers) ? cJSON_GetArraySize(layers) : -1;
    if (count >= 0 && (uint64_t)count != x->o->line.num_layers)
        train_problem(x, "%s: the list has %d layers, but --num-layers is %llu", option, count,
                      (unsigned long long)x->o->line.num_layers);
    if (layers) cJSON_AddItemToObject(args, name, layers);
}

static void add_experts(struct train_finish *x, cJSON *args)
{
    const struct model_line *l = &x->o->line;
    if (!l->num_experts) return;
    json_add_u64(args, "num_experts", l->num_experts);
    json_add_u64(args, "moe_ffn_hidden_size", or_else(l->moe_ffn_hidden_size, ffn_of(l)));
    json_add_u64(args, "moe_router_topk", l->moe_router_topk);
    cJSON_AddBoolToObject(args, "moe_router_pre_softmax", l->moe_router_pre_softmax);
    json_add_text(args, "moe_router_score_function", l->moe_router_score_function);
    cJSON_AddBoolToObject(args, "moe_router_enable_expert_bias", l->moe_router_enable_expert_bias);
    if (l->moe_router_topk_scaling_factor != 0)
        json_add_number(args, "moe_router_topk_scaling_factor", l->moe_router_topk_scaling_factor);
    add_layer_list(x, args, "moe_layer_freq", "--moe-layer-freq",
                   l->moe_layer_freq ? l->moe_layer_freq : "1");
}

/* "128,0", "(128,0)" */
static void add_window(struct train_finish *x, cJSON *args)
{
    const char *text = x->o->line.window_size;
    unsigned long left, right;
    char end[2];
    if (!text) return;
    const char *inner = text + strspn(text, "( ");
    if (strchr(inner, '-') || (sscanf(inner, "%9lu , %9lu %1[^) ]", &left, &right, end) != 2)) {
        train_problem(x, "--window-size: \"%s\" is not two numbers such as 128,0", text);
        return;
    }
    if (right)
        train_problem(x, "--window-size %s: attention is causal, so the second number must be 0",
                      text);
    cJSON *window = cJSON_AddArrayToObject(args, "window_size");
    cJSON_AddItemToArray(window, json_new_u64(left));
    cJSON_AddItemToArray(window, json_new_u64(right));
    add_layer_list(x, args, "window_attn_skip_freq", "--window-attn-skip-freq",
                   x->o->line.window_attn_skip_freq);
}

/* Rows of the embedding: the vocabulary padded to a multiple
 * (core/tokenizers/utils/build_tokenizer.py, vocab_size_with_padding). 0: not
 * known. */
static uint64_t padded_vocab_of(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const uint64_t tp = or_else(o->layout.tp, 1);
    uint64_t unit, padded;
    if (o->line.padded_vocab_size || !o->line.pad_vocab_size || !o->vocab_size)
        return or_else(o->line.padded_vocab_size, o->vocab_size);
    if (mul_u64(o->line.make_vocab_size_divisible_by, tp, &unit) &&
        add_u64(o->vocab_size, unit - 1, &padded))
        return padded / unit * unit;
    train_problem(x, "--make-vocab-size-divisible-by times --tp exceeds 64 bits");
    return 0;
}

/* core/fusions/fused_bias_gelu.py is the default of an MLP with biases. */
static void note_activation(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (text_equal(o->model.activation_func, "gelu_tanh") && !o->line.openai_gelu)
        train_note(x, "GELU uses its tanh approximation, as in Megatron-LM's fused kernel; "
                      "--no-bias-gelu-fusion computes it by erf");
}

void train_make_model(struct train_finish *x)
{
    struct train_options *o = x->o;
    cJSON *args = cJSON_CreateObject();
    add_sizes(args, &o->line);
    add_positions(args, &o->line);
    add_parts(args, &o->line);
    add_training(args, o);
    add_experts(x, args);
    add_window(x, args);
    o->model = (struct model_config){0};
    model_config_from_megatron(MEGATRON_ARGS, args, &o->arena, &o->model);
    o->model.vocab_size = o->vocab_size;
    o->model.padded_vocab_size = padded_vocab_of(x);
    cJSON_Delete(args);
    note_activation(x);
}
