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

/* Defaults that depend on other options. */
static void add_defaults(struct train_finish *x, cJSON *args)
{
    const struct model_line *l = &x->o->line;
    json_put(args, "ffn_hidden_size", json_new_u64(ffn_of(l)));
    if (!l->kv_channels && l->num_attention_heads)
        json_add_u64(args, "kv_channels", l->hidden_size / l->num_attention_heads);
    if (!l->add_bias_linear) json_put(args, "bias_gelu_fusion", cJSON_CreateFalse());
    json_add_number(args, "moe_aux_loss_coeff", x->o->moe_aux_loss_coeff);
    if (!l->num_experts) return;
    if (!l->moe_ffn_hidden_size) json_add_u64(args, "moe_ffn_hidden_size", ffn_of(l));
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
    train_add_model_args(args, o);
    add_defaults(x, args);
    add_window(x, args);
    o->model = (struct model_config){0};
    model_config_from_megatron(MEGATRON_ARGS, args, &o->arena, &o->model);
    o->model.vocab_size = o->vocab_size;
    o->model.padded_vocab_size = padded_vocab_of(x);
    cJSON_Delete(args);
    note_activation(x);
}
