/* train_model_line.c - the model that a command line describes.
 *
 * The line becomes pretrain_gpt.py's args, which are read like a checkpoint's
 * (convert/models/megatron.json): one table defines all args. Defaults and
 * derived sizes (convert/models/options.json) are those of
 * megatron/training/arguments.py (validate_args). */
#include <stdio.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/cli/megatron_options.h"
#include "convert/map/expr.h"
#include "convert/megatron/megatron_args.h"
#include "train/cli/train_finish.h"

/* ---- options with a group in options.json ---- */

struct scalar *train_line(struct train_options *o, const char *arg)
{
    size_t count;
    const struct megatron_option *all = megatron_options(&count);
    for (size_t i = 0; i < count; i++)
        if (text_equal(all[i].arg, arg)) return &o->line[all[i].slot];
    return NULL;
}

/* A number that equals the default does not count as given. */
static bool is_given(struct scalar s, struct scalar usual)
{
    return s.kind == FIELD_TEXT ? s.text != usual.text : !scalar_equal(s, usual);
}

void train_add_model_options(struct strbuf *out, const struct train_options *o)
{
    size_t count;
    const struct megatron_option *all = megatron_options(&count);
    const struct {
        bool is_given;
        const char *name;
    } others[] = {
        /* NullTokenizer takes its end of document from it, also with a folder's model. */
        {o->vocab_size && !text_equal(o->tokenizer_type, "NullTokenizer"), "--vocab-size"},
        {o->make_vocab_size_divisible_by != 128, "--make-vocab-size-divisible-by"},
        {o->padded_vocab_size > 0, "--padded-vocab-size"},
        {!o->pad_vocab_size, "--no-pad-vocab-size"}};
    for (size_t i = 0; i < count; i++)
        if (all[i].group && is_given(o->line[all[i].slot], all[i].usual))
            strbuf_printf(out, "%s%.*s", out->length ? ", " : "", (int)strcspn(all[i].names, " "),
                          all[i].names);
    for (size_t i = 0; i < COUNT(others); i++)
        if (others[i].is_given) strbuf_printf(out, "%s%s", out->length ? ", " : "", others[i].name);
}

static bool find_arg(const void *context, const char *name, size_t length, int64_t index,
                     struct term *out)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)length, name);
    *out = json_term(json_get(context, text), NULL);
    return index < 0;
}

/* Adds what is given, then what follows from other args. An expression without
 * its operands fails: they are missed elsewhere. */
static void add_line(cJSON *args, struct train_options *o)
{
    size_t count;
    const struct megatron_option *all = megatron_options(&count);
    const struct expr_names names = {find_arg, args, &o->arena};
    const bool has_experts = train_line(o, "num_experts")->number > 0;
    for (size_t pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count; i++) {
            const char *text = all[i].derived;
            struct term value;
            struct error ignored;
            if (!all[i].group || (!has_experts && text_equal(all[i].group, "Experts"))) continue;
            if (!pass && scalar_is_given(o->line[all[i].slot]))
                json_put(args, all[i].arg, scalar_json(o->line[all[i].slot]));
            if (pass && text && !json_get(args, all[i].arg) &&
                !expr_value(text, strlen(text), &names, &value, &ignored))
                json_put(args, all[i].arg, term_json(&value, &o->arena));
        }
}

/* ---- lists ---- */

/* Sets a list of layers; reports a list whose length is not num_layers. */
static void set_layer_list(struct train_finish *x, cJSON *args, const char *name,
                           const char *option)
{
    const char *text = train_line(x->o, name)->text;
    const uint64_t num_layers = train_line(x->o, "num_layers")->number;
    cJSON *layers = text ? train_layer_pattern(text) : NULL;
    if (text && !layers)
        train_problem(x, "%s: \"%s\" is neither an integer nor a 0/1 list such as ([0]+[1]*3)*2",
                      option, text);
    const int count = cJSON_IsArray(layers) ? cJSON_GetArraySize(layers) : -1;
    if (count >= 0 && (uint64_t)count != num_layers)
        train_problem(x, "%s: the list has %d layers, but --num-layers is %llu", option, count,
                      (unsigned long long)num_layers);
    if (layers) json_put(args, name, layers);
}

/* "128,0", "(128,0)" */
static void set_window(struct train_finish *x, cJSON *args)
{
    const char *text = train_line(x->o, "window_size")->text;
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
    cJSON *window = cJSON_CreateArray();
    cJSON_AddItemToArray(window, json_new_u64(left));
    cJSON_AddItemToArray(window, json_new_u64(right));
    json_put(args, "window_size", window);
    set_layer_list(x, args, "window_attn_skip_freq", "--window-attn-skip-freq");
}

/* ---- the model ---- */

/* Rows of the embedding: the vocabulary padded to a multiple
 * (core/tokenizers/utils/build_tokenizer.py, vocab_size_with_padding). 0: not
 * known. */
static uint64_t padded_vocab_of(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const uint64_t tp = o->layout.tp ? o->layout.tp : 1;
    uint64_t unit, padded;
    if (o->padded_vocab_size || !o->pad_vocab_size || !o->vocab_size)
        return o->padded_vocab_size ? o->padded_vocab_size : o->vocab_size;
    if (mul_u64(o->make_vocab_size_divisible_by, tp, &unit) &&
        add_u64(o->vocab_size, unit - 1, &padded))
        return padded / unit * unit;
    train_problem(x, "--make-vocab-size-divisible-by times --tp exceeds 64 bits");
    return 0;
}

void train_make_model(struct train_finish *x)
{
    struct train_options *o = x->o;
    cJSON *args = cJSON_CreateObject();
    add_line(args, o);
    json_add_number(args, "hidden_dropout", o->hidden_dropout);
    json_add_number(args, "attention_dropout", o->attention_dropout);
    json_add_number(args, "init_method_std", o->init_method_std);
    json_add_u64(args, "make_vocab_size_divisible_by", o->make_vocab_size_divisible_by);
    if (cJSON_IsFalse(json_get(args, "add_bias_linear")))
        json_put(args, "bias_gelu_fusion", cJSON_CreateFalse());
    json_add_number(args, "moe_aux_loss_coeff", o->moe_aux_loss_coeff);
    if (json_get(args, "num_experts"))
        set_layer_list(x, args, "moe_layer_freq", "--moe-layer-freq");
    set_window(x, args);
    o->model = (struct model_config){0};
    model_config_from_megatron(MEGATRON_ARGS, args, &o->arena, &o->model);
    o->model.vocab_size = o->vocab_size;
    o->model.padded_vocab_size = padded_vocab_of(x);
    /* core/fusions/fused_bias_gelu.py is the default of an MLP with biases. */
    if (text_equal(o->model.activation_func, "gelu_tanh") &&
        !cJSON_IsTrue(json_get(args, "openai_gelu")))
        train_note(x, "GELU uses its tanh approximation, as in Megatron-LM's fused kernel; "
                      "--no-bias-gelu-fusion computes it by erf");
    cJSON_Delete(args);
}
