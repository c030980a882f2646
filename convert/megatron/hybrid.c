#include "convert/megatron/hybrid.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/strbuf.h"
#include "common/text.h"

static const char layers_of[] = "decoder.layers.", mtp_of[] = "mtp.layers.";

/* ---- symbols ---- */

static bool is_ffn(char symbol)
{
    return symbol == '-' || symbol == 'E';
}

/* The symbol of the mixer that has a parameter; 0: any may have it. */
static char symbol_of(const char *rest)
{
    static const struct {
        const char *beginning;
        char symbol;
    } rows[] = {
        {"mlp.router.", 'E'},
        {"mlp.experts.", 'E'},
        {"mlp.shared_experts.", 'E'},
        {"mlp.", '-'},
        {"mixer.", 'M'},
        {"self_attention.in_proj.", 'G'},
        {"self_attention.core_attention.indexer.", 'D'},
        {"self_attention.linear_kv_down_proj.", '+'},
        {"self_attention.linear_qkv.", '*'},
        {"self_attention.", 0},
        {"input_layernorm.", 0},
        {"pre_mlp_layernorm.", 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        if (text_starts_with(rest, rows[i].beginning)) return rows[i].symbol;
    return '?';
}

/* The symbol that says more, of two that parameters of one mixer have. */
static char more_special(char a, char b)
{
    static const char order[] = "*-+DEGM?";
    if (!a || !b) return a ? a : b;
    return strchr(order, a) > strchr(order, b) ? a : b;
}

/* ---- keys ---- */

/* Parses "17.rest". */
static bool take_number(const char **text, uint64_t *number)
{
    char *end;
    if (**text < '0' || **text > '9') return false;
    *number = strtoull(*text, &end, 10);
    if (*end != '.' || end - *text > 9) return false;
    *text = end + 1;
    return true;
}

static const char *without_modules(const char *key)
{
    while (text_skip_prefix(&key, "module.")) {
    }
    return key;
}

/* Parses a key of a mixer, "decoder.layers.3.rest". */
static bool parse_mixer(const char *key, uint64_t *number, const char **rest)
{
    *rest = without_modules(key);
    return text_skip_prefix(rest, layers_of) && take_number(rest, number);
}

/* Parses "mtp.layers.0.mtp_model_layer.layers.1.rest". */
static bool parse_mtp(const char *key, uint64_t *layer, uint64_t *number, const char **rest)
{
    *rest = without_modules(key);
    return text_skip_prefix(rest, mtp_of) && take_number(rest, layer) &&
           text_skip_prefix(rest, "mtp_model_layer.layers.") && take_number(rest, number);
}

/* Sets the symbols of mixers, by their keys. */
static void find_symbols(const struct stored *s, char *symbols, uint64_t count, char mtp[2])
{
    for (size_t i = 0; i < s->num_tensors; i++) {
        uint64_t layer, number;
        const char *rest;
        if (parse_mixer(s->tensors[i].name, &number, &rest) && number < count)
            symbols[number] = more_special(symbols[number], symbol_of(rest));
        else if (parse_mtp(s->tensors[i].name, &layer, &number, &rest) && number < 2)
            mtp[number] = more_special(mtp[number], symbol_of(rest));
    }
}

/* Whether mixers are attention and MLP by turns. Mamba's stand alone, and what
 * is not known may be either. */
static bool are_pairs(const char *symbols, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (symbols[i] == 'M' || (symbols[i] != '?' && is_ffn(symbols[i]) != (i % 2 == 1)))
            return false;
    return count % 2 == 0;
}

/* Where a pattern has another symbol than keys, or none, the mixer is not known;
 * it says which mixers have no keys. */
static void join_pattern(char *symbols, uint64_t count, const char *pattern, uint64_t length)
{
    for (uint64_t i = 0; i < count; i++) {
        const char said = i < length ? pattern[i] : '?';
        symbols[i] = !symbols[i] || symbols[i] == said ? said : '?';
    }
}

/* The mixers of a pattern, without the stages' |; mtp: of the first layer of
 * multi-token prediction. */
static char *mixers_of(const char *pattern, bool mtp, struct arena *a)
{
    char *out = arena_copy_text(a, pattern), *to = out;
    const char *slash = strchr(pattern, '/');
    if (mtp) pattern = slash ? slash + 1 : "";
    for (; *pattern && *pattern != '/'; pattern++)
        if (*pattern != '|') *to++ = *pattern;
    *to = '\0';
    return out;
}

const struct hybrid_stack *hybrid_of_keys(const struct stored *s, const char *pattern,
                                          struct arena *a)
{
    const char *mixers = pattern ? mixers_of(pattern, false, a) : "", *rest;
    uint64_t count = strlen(mixers), number;
    char mtp[3] = "";
    bool found = false;
    for (size_t i = 0; i < s->num_tensors; i++) {
        const char *key = without_modules(s->tensors[i].name);
        found |= text_starts_with(key, "decoder.final_norm.");
        if (parse_mixer(key, &number, &rest) && number >= count) count = number + 1;
    }
    if (!found || !count || count > 2 * MAX_LAYERS) return NULL;
    char *symbols = arena_alloc(a, count + 1);
    memset(symbols, 0, count + 1);
    find_symbols(s, symbols, count, mtp);
    if (pattern) {
        const char *said = mixers_of(pattern, true, a);
        join_pattern(symbols, count, mixers, strlen(mixers));
        if (*mtp && strcmp(mtp, said)) mtp[0] = '?';
    }
    for (uint64_t i = 0; i < count; i++)
        if (!symbols[i]) symbols[i] = '?';
    struct hybrid_stack *h = arena_alloc(a, sizeof *h);
    *h = (struct hybrid_stack){count, symbols, arena_copy_text(a, mtp), are_pairs(symbols, count)};
    return h;
}

const char *hybrid_gpt_key(const struct hybrid_stack *h, struct arena *a, const char *key)
{
    uint64_t layer, number;
    const char *rest = without_modules(key);
    if (text_skip_prefix(&rest, "decoder.final_norm."))
        return arena_printf(a, "decoder.final_layernorm.%s", rest);
    if (parse_mtp(key, &layer, &number, &rest))
        return arena_printf(a, "%s%" PRIu64 ".transformer_layer.%s", mtp_of, layer, rest);
    if (!h->paired || !parse_mixer(key, &number, &rest)) return without_modules(key);
    return arena_printf(a, "%s%" PRIu64 ".%s", layers_of, number / 2, rest);
}

/* Which of a layer's two mixers has a parameter. */
static unsigned half_of(const char *rest)
{
    return is_ffn(symbol_of(rest)) || text_starts_with(rest, "pre_mlp_layernorm.");
}

const char *hybrid_key(const struct hybrid_stack *h, struct arena *a, const char *gpt_key)
{
    uint64_t number;
    const char *rest = gpt_key;
    if (text_skip_prefix(&rest, "decoder.final_layernorm"))
        return arena_printf(a, "decoder.final_norm%s", rest);
    if (text_skip_prefix(&rest, mtp_of) && take_number(&rest, &number) &&
        (text_skip_prefix(&rest, "transformer_layer.") ||
         text_skip_prefix(&rest, "mtp_model_layer.")))
        return arena_printf(a, "%s%" PRIu64 ".mtp_model_layer.layers.%u.%s", mtp_of, number,
                            half_of(rest), rest);
    if (!h->paired || !parse_mixer(gpt_key, &number, &rest)) return gpt_key;
    return arena_printf(a, "%s%" PRIu64 ".%s", layers_of, 2 * number + half_of(rest), rest);
}

/* ---- a model's ---- */

/* The value of a declared field in a layer; NULL: the field is not declared. */
static const char *text_at(const struct model_config *c, const char *field, uint64_t layer)
{
    const struct model_field *f = model_field_find(field);
    return f ? model_field_at(f, c, layer).text : NULL;
}

static bool is_set(const struct model_config *c, const char *field)
{
    const struct model_field *f = model_field_find(field);
    return f && !model_field_is_zero(f, c);
}

/* The symbol of a layer's attention, or of a layer that is one mixer. */
static char mixer_symbol(const struct model_config *c, uint64_t layer)
{
    const char *kind = text_at(c, "layer_kinds", layer),
               *variant = text_at(c, "experimental_attention_variant", 0);
    if (kind && strcmp(kind, "mamba") == 0) return 'M';
    if (kind && strcmp(kind, "linear_attention") == 0)
        return text_equal(variant, "gdn") ? 'G' : '?';
    if (kind && strcmp(kind, "mlp") == 0) return '-';
    if (kind && strcmp(kind, "moe") == 0) return 'E';
    if (kind && strcmp(kind, "attention")) return '?';
    if (text_equal(variant, "dsa")) return 'D';
    if (variant && strcmp(variant, "gdn")) return '?';
    return is_set(c, "multi_latent_attention") ? '+' : '*';
}

const struct hybrid_stack *hybrid_of_config(const struct model_config *c, struct arena *a)
{
    const bool paired = !is_set(c, "hybrid_layers");
    const uint64_t count = paired ? 2 * c->num_layers : c->num_layers;
    char *symbols = arena_alloc(a, count + 1);
    symbols[count] = '\0';
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t l = paired ? i / 2 : i;
        const char ffn = model_layer_is_moe(c, l) ? 'E' : '-';
        symbols[i] = paired && i % 2 ? ffn : mixer_symbol(c, l);
        if (paired && symbols[i] == 'M') return NULL; /* its readers could not tell pairs */
    }
    if (strchr(symbols, '?')) return NULL;
    if (!paired && are_pairs(symbols, count))
        return NULL; /* its readers would take pairs for layers */
    struct hybrid_stack *h = arena_alloc(a, sizeof *h);
    *h = (struct hybrid_stack){count, symbols, "", paired};
    if (model_mtp_layers(c)) h->mtp_symbols = paired ? symbols + count - 2 : "*E";
    return h;
}

/* ---- args ---- */

const char *const hybrid_args[] = {
    "num_layers",
    "encoder_num_layers",
    "hybrid_layer_pattern",
    "spec",
    "moe_layer_freq",
    "experimental_attention_variant",
    "mtp_num_layers",
    "linear_attention_freq",
    "window_attn_skip_freq",
    "hybrid_override_pattern",
    "mtp_hybrid_override_pattern",
    NULL,
};

/* A list with 1 for each layer whose mixer has the symbol. half: which of two
 * mixers. */
static cJSON *list_of(const struct hybrid_stack *h, unsigned half, char symbol)
{
    cJSON *list = cJSON_CreateArray();
    for (uint64_t i = h->paired ? half : 0; i < h->num_mixers; i += h->paired ? 2 : 1)
        cJSON_AddItemToArray(list, json_new_u64(h->symbols[i] == symbol));
    return list;
}

static bool is_true(const cJSON *item)
{
    double number;
    return cJSON_IsTrue(item) || (json_as_double(item, &number) && (number < 0 || number > 0));
}

/* Makes windows by mixer (a list, or every Nth mixer has none) those by layer. */
static void read_windows(cJSON *args)
{
    const cJSON *windows = json_get(args, "window_attn_skip_freq");
    const bool is_list = cJSON_IsArray(windows);
    uint64_t layers, every = 0;
    if (!json_as_u64(json_get(args, "num_layers"), &layers)) return;
    if (!is_list && !json_as_u64(windows, &every)) return;
    cJSON *list = cJSON_CreateArray();
    for (uint64_t l = 0; l < layers; l++) {
        const cJSON *item = is_list ? cJSON_GetArrayItem(windows, (int)(2 * l)) : NULL;
        const bool slides = item      ? is_true(item)
                            : is_list ? true /* a list that ends before */
                                      : every && (2 * l + 1) % every;
        cJSON_AddItemToArray(list, json_new_u64(slides));
    }
    json_put(args, "window_attn_skip_freq", list);
}

/* Sets the layout of layers that the pattern's | make, if it has any between
 * whole layers. */
static void read_stages(const struct hybrid_stack *h, const char *pattern, cJSON *args)
{
    struct strbuf text = {0};
    const uint64_t step = h->paired ? 2 : 1;
    uint64_t mixers = 0;
    bool whole = pattern && strchr(pattern, '|');
    strbuf_add_text(&text, "E");
    for (const char *p = pattern; whole && *p && *p != '/'; p++) {
        if (*p == '|') {
            whole = mixers % step == 0;
            strbuf_add_char(&text, '|');
        } else if (++mixers % step == 0) {
            strbuf_add_char(&text, 't');
        }
    }
    strbuf_add_char(&text, 'L');
    if (whole) json_put(args, "pipeline_model_parallel_layout", cJSON_CreateString(text.data));
    strbuf_release(&text);
}

void hybrid_args_read(const struct hybrid_stack *h, cJSON *args)
{
    const char *pattern = json_as_text(json_get(args, "hybrid_layer_pattern"));
    const bool known = !strchr(h->symbols, '?') && *h->mtp_symbols != '?';
    uint64_t predicted = 0;
    read_stages(h, pattern, args);
    for (const char *p = pattern; p && (p = strchr(p, '/')); p++)
        predicted++;
    if (predicted) json_put(args, "mtp_num_layers", json_new_u64(predicted));
    json_put(args, "num_layers", json_new_u64(h->paired ? h->num_mixers / 2 : h->num_mixers));
    if (strchr(h->symbols, 'E'))
        json_put(args, "moe_layer_freq", list_of(h, 1, 'E'));
    else
        json_put(args, "num_experts", cJSON_CreateNull()); /* whatever args say */
    if (strchr(h->symbols, 'G')) {
        json_put(args, "experimental_attention_variant", cJSON_CreateString("gdn"));
        json_put(args, "linear_attention_freq", list_of(h, 0, 'G'));
    }
    if (strchr(h->symbols, '+')) json_put(args, "multi_latent_attention", cJSON_CreateTrue());
    if (h->paired) read_windows(args);
    if (!known) return; /* the pattern and the spec stay, and are unknown */
    if (h->paired)
        json_put(args, "hybrid_layer_pattern", cJSON_CreateNull());
    else
        json_put(args, "hybrid_layer_pattern", cJSON_CreateString(h->symbols));
    json_put(args, "spec", cJSON_CreateNull());
}

static cJSON *pattern_of(const struct hybrid_stack *h, const struct layout *l, uint64_t predicted)
{
    struct strbuf text = {0};
    const uint64_t step = h->paired ? 2 : 1;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++) {
        const struct stage *stage = &l->stages[s];
        if (s) strbuf_add_char(&text, '|');
        strbuf_add(&text, h->symbols + stage->first_layer * step, stage->num_layers * step);
    }
    for (uint64_t k = 0; k < predicted; k++)
        strbuf_printf(&text, "/%s", h->mtp_symbols);
    cJSON *out = cJSON_CreateString(text.data);
    strbuf_release(&text);
    return out;
}

/* Makes a list of windows by layer one by mixer. */
static void write_windows(cJSON *args)
{
    const cJSON *windows = json_get(args, "window_attn_skip_freq");
    if (!cJSON_IsArray(windows)) return;
    cJSON *list = cJSON_CreateArray();
    for (const cJSON *i = windows->child; i; i = i->next) {
        cJSON_AddItemToArray(list, cJSON_Duplicate(i, true));
        cJSON_AddItemToArray(list, json_new_u64(0));
    }
    json_put(args, "window_attn_skip_freq", list);
}

void hybrid_args_forget(const struct hybrid_stack *h, cJSON *args)
{
    json_put(args, "linear_attention_freq", cJSON_CreateNull());
    if (strchr(h->symbols, 'G'))
        json_put(args, "experimental_attention_variant", cJSON_CreateNull());
}

void hybrid_args_write(const struct hybrid_stack *h, const struct layout *l, cJSON *args)
{
    static const char *const spec[] = {"megatron.core.models.hybrid.hybrid_layer_specs",
                                       "hybrid_stack_spec"};
    static const char *const counted[] = {"account_for_embedding_in_pipeline_split",
                                          "account_for_loss_in_pipeline_split"};
    static const char *const gone[] = {"pipeline_model_parallel_layout",
                                       "decoder_first_pipeline_num_layers",
                                       "decoder_last_pipeline_num_layers"};
    uint64_t predicted = 0;
    (void)json_as_u64(json_get(args, "mtp_num_layers"), &predicted);
    json_put(args, "hybrid_layer_pattern", pattern_of(h, l, *h->mtp_symbols ? predicted : 0));
    json_put(args, "spec", cJSON_CreateStringArray(spec, COUNT(spec)));
    json_put(args, "num_layers", json_new_u64(h->num_mixers));
    json_put(args, "encoder_num_layers", json_new_u64(h->num_mixers));
    json_put(args, "moe_layer_freq", json_new_u64(1));
    if (h->paired) write_windows(args);
    hybrid_args_forget(h, args);
    for (size_t i = 0; i < COUNT(gone); i++)
        json_put(args, gone[i], cJSON_CreateNull());
    for (size_t i = 0; i < COUNT(counted); i++) /* the pattern has the stages */
        if (cJSON_IsTrue(json_get(args, counted[i])))
            json_put(args, counted[i], cJSON_CreateFalse());
}
