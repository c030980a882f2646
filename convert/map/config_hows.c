/* config_hows.c - hows that read and write several fields of a config file
 * together: rotary positions; windows and experts of layers; in config.json and
 * in Megatron's arguments. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "convert/map/model_map_internal.h"

/* ---- rotary positions of config.json ---- */

/* The members read of rope_scaling (transformers 4, beside rope_theta) and
 * rope_parameters (5). */
const char *const rope_members[] = {"rope_type",
                                    "type",
                                    "rope_theta",
                                    "partial_rotary_factor",
                                    "factor",
                                    "low_freq_factor",
                                    "high_freq_factor",
                                    "original_max_position_embeddings",
                                    "beta_fast",
                                    "beta_slow",
                                    "mscale",
                                    "mscale_all_dim",
                                    "attention_factor",
                                    "truncate",
                                    NULL};

static const char *const rope_types[] = {"default", "linear", "dynamic", "llama3", "yarn"};

static enum status rope_number(const cJSON *from, const char *name, double fallback, double *out,
                               struct error *err)
{
    const cJSON *item = json_get(from, name);
    *out = fallback;
    if (!item || cJSON_IsNull(item)) return OK;
    if (json_as_double(item, out) && isfinite(*out) && *out > 0) return OK;
    return fail(err, ERR_CORRUPT, "config.json: %s is not a finite number above 0", name);
}

/* Like rope_number(), but 0 counts as absent. */
static enum status rope_number_or_0(const cJSON *from, const char *name, double fallback,
                                    double *out, struct error *err)
{
    const cJSON *item = json_get(from, name);
    if (json_as_double(item, out) && !(*out < 0 || *out > 0)) from = NULL;
    return rope_number(from, name, fallback, out, err);
}

static enum status rope_type_from_hf(const cJSON *scaling, struct model_config *c,
                                     struct error *err)
{
    const cJSON *item = json_get(scaling, "rope_type");
    if (!item) item = json_get(scaling, "type");
    const char *type = item ? json_as_text(item) : "default";
    for (size_t i = 0; type && i < COUNT(rope_types); i++)
        if (strcmp(rope_types[i], type) == 0) {
            c->rope_type = rope_types[i];
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "config.json: rope_type \"%s\" is not supported",
                type ? type : "(no text)");
}

/* The factor of cosines and sines for an mscale of yarn (transformers,
 * modeling_rope_utils.py:_compute_yarn_parameters). */
static double yarn_factor(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Reads yarn's optional members, with their defaults. */
static enum status read_yarn(const cJSON *scaling, struct model_config *c, struct error *err)
{
    double mscale, all, attention;
    const cJSON *truncate = json_get(scaling, "truncate");
    TRY(rope_number_or_0(scaling, "beta_fast", 32, &c->rope_beta_fast, err));
    TRY(rope_number_or_0(scaling, "beta_slow", 1, &c->rope_beta_slow, err));
    TRY(rope_number_or_0(scaling, "mscale", 0, &mscale, err));
    TRY(rope_number_or_0(scaling, "mscale_all_dim", 0, &all, err));
    attention = yarn_factor(c->rope_factor, 1);
    if (mscale > 0 && all > 0)
        attention = yarn_factor(c->rope_factor, mscale) / yarn_factor(c->rope_factor, all);
    c->rope_untruncated = cJSON_IsFalse(truncate);
    if (truncate && !cJSON_IsBool(truncate) && !cJSON_IsNull(truncate))
        return fail(err, ERR_CORRUPT, "config.json: yarn's truncate is neither true nor false");
    return rope_number(scaling, "attention_factor", attention, &c->rope_attention_factor, err);
}

/* The object that has a member, of several; NULL: none. */
static const cJSON *object_with(const cJSON *const *objects, size_t count, const char *member)
{
    for (size_t i = 0; i < count; i++) {
        const cJSON *item = json_get(objects[i], member);
        if (item && !cJSON_IsNull(item)) return objects[i];
    }
    return NULL;
}

/* Reads what rope_scaling and rope_parameters both have; NULL: neither is
 * there. */
static enum status read_scaling(const cJSON *scaling, struct model_config *c, struct error *err)
{
    double original = 0;
    TRY(rope_type_from_hf(scaling, c, err));
    TRY(rope_number(scaling, "factor", 0, &c->rope_factor, err));
    TRY(rope_number(scaling, "low_freq_factor", 0, &c->rope_low_freq_factor, err));
    TRY(rope_number(scaling, "high_freq_factor", 0, &c->rope_high_freq_factor, err));
    TRY(rope_number(scaling, "original_max_position_embeddings", 0, &original, err));
    if (original >= 0x1p53)
        return fail(err, ERR_CORRUPT, "config.json: original_max_position_embeddings is too large");
    c->rope_original_max_position = (uint64_t)original;
    if (strcmp(c->rope_type, "default") && c->rope_factor == 0)
        return fail(err, ERR_CORRUPT, "config.json: rope_type %s has no factor", c->rope_type);
    if (strcmp(c->rope_type, "yarn") == 0) TRY(read_yarn(scaling, c, err));
    if (strcmp(c->rope_type, "llama3") == 0 &&
        (!(c->rope_low_freq_factor > 0) || !(c->rope_high_freq_factor > 0) || original < 1))
        return fail(err, ERR_CORRUPT,
                    "config.json: rope_type llama3 needs low_freq_factor, high_freq_factor and "
                    "original_max_position_embeddings");
    return OK;
}

enum status rope_from_file(const struct config_context *x, void *to, struct error *err)
{
    struct model_config *c = to;
    const cJSON *five = json_get(x->tree, "rope_parameters"),
                *four = json_get(x->tree, "rope_scaling");
    const bool has_five = cJSON_IsObject(five), has_four = cJSON_IsObject(four);
    const cJSON *const objects[] = {five, four, x->tree};
    double usual = 10000;
    (void)json_as_double(x->row->absent, &usual);
    if (four && !has_four && !cJSON_IsNull(four))
        return fail(err, ERR_CORRUPT, "config.json: rope_scaling is not an object");
    if (five && !has_five && !cJSON_IsNull(five))
        return fail(err, ERR_CORRUPT, "config.json: rope_parameters is not an object");
    TRY(rope_number(object_with(objects, COUNT(objects), "rope_theta"), "rope_theta", usual,
                    &c->rotary_base, err));
    TRY(rope_number(object_with(objects, COUNT(objects), "partial_rotary_factor"),
                    "partial_rotary_factor", 1, &c->rotary_percent, err));
    if (has_five && has_four) TRY(read_scaling(four, c, err)); /* for its errors */
    return read_scaling(has_five ? five : has_four ? four : NULL, c, err);
}

/* Transformers 4 reads rope_scaling, where null is "not scaled"; 5 reads
 * rope_parameters, unless rope_scaling is an object. What cannot be read
 * fails elsewhere. */
static bool scalings_agree(const struct config_context *x, const cJSON *four, const cJSON *five)
{
    struct model_config a = {0}, b = {0};
    struct error why;
    (void)x;
    if (!four || !cJSON_IsObject(five)) return true;
    if (!cJSON_IsObject(four) && !cJSON_IsNull(four)) return true;
    if (read_scaling(cJSON_IsNull(four) ? NULL : four, &a, &why) || read_scaling(five, &b, &why))
        return true;
    for (size_t i = 0; i < num_model_fields; i++)
        if (!field_equal(&model_fields[i].field, &a, &b)) return false;
    return true;
}

/* Transformers 4.57 prefers `type` to `rope_type`, 5 the second. */
const struct config_spellings rope_spellings[] = {
    {"rope_scaling.type", "rope_scaling.rope_type", NULL},
    {"rope_parameters.type", "rope_parameters.rope_type", NULL},
    {"rope_scaling", "rope_parameters", scalings_agree},
    {"rope_theta", "rope_parameters.rope_theta", NULL},
    {"rope_theta", "rope_scaling.rope_theta", NULL},
    {"rope_scaling.rope_theta", "rope_parameters.rope_theta", NULL},
    {"partial_rotary_factor", "rope_parameters.partial_rotary_factor", NULL},
    {"partial_rotary_factor", "rope_scaling.partial_rotary_factor", NULL},
    {"rope_scaling.partial_rotary_factor", "rope_parameters.partial_rotary_factor", NULL},
    {NULL, NULL, NULL},
};

static cJSON *rope_object(const struct model_config *c)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "rope_type", c->rope_type ? c->rope_type : "default");
    if (c->rope_factor > 0) json_put(o, "factor", json_new_double(c->rope_factor));
    if (c->rope_low_freq_factor > 0)
        json_put(o, "low_freq_factor", json_new_double(c->rope_low_freq_factor));
    if (c->rope_high_freq_factor > 0)
        json_put(o, "high_freq_factor", json_new_double(c->rope_high_freq_factor));
    if (c->rope_type && strcmp(c->rope_type, "yarn") == 0) {
        json_put(o, "beta_fast", json_new_double(c->rope_beta_fast));
        json_put(o, "beta_slow", json_new_double(c->rope_beta_slow));
        json_put(o, "attention_factor", json_new_double(c->rope_attention_factor));
        json_put(o, "truncate", cJSON_CreateBool(!c->rope_untruncated));
    }
    if (c->rope_original_max_position)
        json_put(o, "original_max_position_embeddings",
                 json_new_u64(c->rope_original_max_position));
    return o;
}

/* Writes both spellings, for transformers 4 and 5. */
enum status rope_to_file(const struct config_context *x, const void *from, struct error *err)
{
    const struct model_config *c = from;
    (void)err;
    bool scaled = c->rope_type && strcmp(c->rope_type, "default");
    cJSON *five = rope_object(c);
    json_put(five, "rope_theta", json_new_double(c->rotary_base));
    json_put(x->tree, "rope_theta", json_new_double(c->rotary_base));
    json_put(x->tree, "rope_scaling", scaled ? rope_object(c) : cJSON_CreateNull());
    json_put(x->tree, "rope_parameters", five);
    return OK;
}

/* ---- layers of config.json ---- */

/* Qwen: sliding_window counts only if use_sliding_window is true. */
enum status window_from_file(const struct config_context *x, void *to, struct error *err)
{
    struct model_config *c = to;
    const cJSON *window = json_get(x->tree, "sliding_window"),
                *use = json_get(x->tree, "use_sliding_window");
    c->sliding_window = 0;
    c->window_layers = NULL;
    if (use && !cJSON_IsNull(use) && !cJSON_IsBool(use))
        return fail(err, ERR_CORRUPT, "config.json: use_sliding_window is neither true nor false");
    if (!cJSON_IsTrue(use) || cJSON_IsNull(window)) return OK;
    if (!window)
        c->sliding_window = 4096; /* the class's default */
    else if (!json_as_u64(window, &c->sliding_window))
        return fail(err, ERR_CORRUPT, "config.json: sliding_window is not a whole number");
    return OK;
}

enum status window_to_file(const struct config_context *x, const void *from, struct error *err)
{
    const struct model_config *c = from;
    (void)err;
    json_put(x->tree, "use_sliding_window", cJSON_CreateBool(c->sliding_window > 0));
    json_put(x->tree, "sliding_window",
             c->sliding_window ? json_new_u64(c->sliding_window) : cJSON_CreateNull());
    return OK;
}

/* Finds the layers with a sliding window: by layer_types, else all from
 * max_window_layers on (transformers, configuration_qwen2.py). */
static enum status find_window_layers(const struct config_context *x, const struct model_config *c,
                                      bool *slides, struct error *err)
{
    const cJSON *types = json_get(x->tree, "layer_types"), *item = NULL;
    const cJSON *max = json_get(x->tree, "max_window_layers");
    uint64_t first = 28; /* the class's default */
    if (max && !cJSON_IsNull(max) && !json_as_u64(max, &first))
        return fail(err, ERR_CORRUPT, "config.json: max_window_layers is not a whole number");
    bool listed = types && !cJSON_IsNull(types);
    if (listed && (!cJSON_IsArray(types) || (uint64_t)cJSON_GetArraySize(types) != c->num_layers))
        return fail(err, ERR_CORRUPT,
                    "config.json: layer_types is not a list of one string for each of %" PRIu64
                    " layers",
                    c->num_layers);
    if (listed) item = types->child;
    for (uint64_t i = 0; i < c->num_layers; i++, item = listed ? item->next : NULL) {
        const char *type = listed ? json_as_text(item) : NULL;
        slides[i] = listed ? type && strcmp(type, "sliding_attention") == 0 : i >= first;
        if (listed && !slides[i] && (!type || strcmp(type, "full_attention")))
            return fail(
                err, ERR_UNSUPPORTED,
                "config.json: layer_types has %s, expected sliding_attention or full_attention",
                type ? type : "a value that is not a string");
    }
    return OK;
}

enum status window_by_layer_from_file(const struct config_context *x, void *to, struct error *err)
{
    struct model_config *c = to;
    bool any = false, all = true;
    TRY(window_from_file(x, c, err));
    if (c->num_layers > MAX_LAYERS) return OK; /* refused by the check of all configs */
    bool *slides = arena_array(x->arena, c->num_layers, sizeof *slides);
    TRY(find_window_layers(x, c, slides, err));
    for (uint64_t i = 0; i < c->num_layers; i++)
        any |= slides[i], all &= slides[i];
    if (any && !c->sliding_window && cJSON_IsArray(json_get(x->tree, "layer_types")))
        return fail(err, ERR_UNSUPPORTED,
                    "config.json: layer_types has sliding_attention, but use_sliding_window and "
                    "sliding_window give no window");
    if (!any) c->sliding_window = 0;
    if (any && !all) c->window_layers = slides;
    return OK;
}

/* max_window_layers can only say "all layers from this one on". layer_types is
 * read since transformers 4.53. */
enum status window_by_layer_to_file(const struct config_context *x, const void *from,
                                    struct error *err)
{
    const struct model_config *c = from;
    uint64_t first = 0;
    bool in_order = true;
    cJSON *types = cJSON_CreateArray();
    TRY(window_to_file(x, c, err));
    while (first < c->num_layers && !model_layer_slides(c, first))
        first++;
    for (uint64_t i = 0; i < c->num_layers; i++) {
        in_order &= model_layer_slides(c, i) == (i >= first);
        cJSON_AddItemToArray(
            types,
            cJSON_CreateString(model_layer_slides(c, i) ? "sliding_attention" : "full_attention"));
    }
    json_put(x->tree, "max_window_layers", json_new_u64(first));
    if (!in_order || json_get(x->tree, "layer_types"))
        json_put(x->tree, "layer_types", types);
    else
        cJSON_Delete(types);
    return OK;
}

/* Qwen: layer i has experts if (i + 1) % decoder_sparse_step is 0 and
 * mlp_only_layers does not list it. */
enum status moe_layers_from_file(const struct config_context *x, void *to, struct error *err)
{
    struct model_config *c = to;
    uint64_t step = 1, layer;
    const cJSON *given = json_get(x->tree, "decoder_sparse_step"),
                *only = json_get(x->tree, "mlp_only_layers");
    if (given && (!json_as_u64(given, &step) || step == 0))
        return fail(err, ERR_CORRUPT,
                    "config.json: decoder_sparse_step is not a whole number above 0");
    if (only && !cJSON_IsNull(only) && !cJSON_IsArray(only))
        return fail(err, ERR_CORRUPT, "config.json: mlp_only_layers is not a list");
    if (c->num_layers > MAX_LAYERS) return OK; /* refused by the check of all configs */
    bool *moe = arena_array(x->arena, c->num_layers, sizeof *moe);
    for (uint64_t i = 0; i < c->num_layers; i++)
        moe[i] = (i + 1) % step == 0;
    for (const cJSON *i = cJSON_IsArray(only) ? only->child : NULL; i; i = i->next)
        if (json_as_u64(i, &layer) && layer < c->num_layers) moe[layer] = false;
    c->moe_layers = NULL;
    for (uint64_t i = 0; i < c->num_layers; i++)
        if (!moe[i]) c->moe_layers = moe;
    return OK;
}

enum status moe_layers_to_file(const struct config_context *x, const void *from, struct error *err)
{
    const struct model_config *c = from;
    (void)err;
    cJSON *only = cJSON_CreateArray();
    for (uint64_t i = 0; i < c->num_layers; i++)
        if (!model_layer_is_moe(c, i)) cJSON_AddItemToArray(only, json_new_u64(i));
    json_put(x->tree, "decoder_sparse_step", json_new_u64(1));
    json_put(x->tree, "mlp_only_layers", only);
    return OK;
}

/* ---- layers of Megatron's arguments ---- */

/* Value of an argument about layers: a whole number, or a list of one number a
 * layer. */
struct layer_numbers {
    bool given, is_list;
    int64_t number;
    const int64_t *list;
    uint64_t count;
};

static bool as_number(const cJSON *item, int64_t *out)
{
    *out = cJSON_IsTrue(item);
    return cJSON_IsBool(item) || json_as_i64(item, out);
}

static bool list_numbers(struct arena *a, const cJSON *list, struct layer_numbers *out)
{
    int64_t *numbers = arena_array(a, (size_t)cJSON_GetArraySize(list), sizeof *numbers);
    out->list = numbers;
    for (const cJSON *i = list->child; i; i = i->next)
        if (!as_number(i, &numbers[out->count++])) return false;
    return true;
}

/* ERR_CORRUPT if it is neither. */
static enum status layer_numbers_of(const struct config_context *x, const char *name,
                                    struct layer_numbers *out, struct error *err)
{
    const cJSON *item = json_get(x->tree, name);
    *out = (struct layer_numbers){.is_list = cJSON_IsArray(item)};
    if (!item || cJSON_IsNull(item)) return OK;
    out->given = out->is_list ? list_numbers(x->arena, item, out) : as_number(item, &out->number);
    if (out->given) return OK;
    return fail(err, ERR_CORRUPT, "%s: %s is neither a number nor a list of numbers",
                x->map->file.name, name);
}

/* A flag for each layer: its number in the list (1 past the end), or
 * by_number(layer, the one number). NULL if all are true. */
static const bool *layer_flags(struct arena *a, const struct layer_numbers *n, uint64_t num_layers,
                               bool (*by_number)(uint64_t layer, uint64_t n))
{
    if (!n->given || num_layers > MAX_LAYERS || (!n->is_list && n->number <= 0)) return NULL;
    bool *flags = arena_array(a, num_layers, sizeof *flags), all = true;
    for (uint64_t i = 0; i < num_layers; i++) {
        flags[i] = !n->is_list ? by_number(i, (uint64_t)n->number) : i >= n->count || n->list[i];
        all &= flags[i];
    }
    return all ? NULL : flags;
}

/* Writes flags of layers as a list of 1 and 0. */
static cJSON *layer_list(const struct model_config *c,
                         bool (*has)(const struct model_config *c, uint64_t layer))
{
    cJSON *list = cJSON_CreateArray();
    for (uint64_t i = 0; i < c->num_layers; i++)
        cJSON_AddItemToArray(list, json_new_u64(has(c, i)));
    return list;
}

/* Whether a layer has the window. window_attn_skip_freq N: every Nth layer,
 * from 1, sees all positions
 * (core/transformer/utils.py:is_layer_window_attention). */
static bool slides(uint64_t layer, uint64_t n)
{
    return (layer + 1) % n != 0;
}

/* window_size: [positions before the current one (below 0: all), positions
 * after it]. */
enum status window_size_from_file(const struct config_context *x, void *to, struct error *err)
{
    struct model_config *c = to;
    const cJSON *window = json_get(x->tree, "window_size");
    struct layer_numbers skip;
    int64_t left = -1;
    bool any = false;
    TRY(layer_numbers_of(x, "window_attn_skip_freq", &skip, err));
    if (window && !cJSON_IsNull(window) &&
        (cJSON_GetArraySize(window) != 2 || !as_number(window->child, &left)))
        return fail(err, ERR_CORRUPT, "%s: window_size is not a pair of numbers",
                    x->map->file.name);
    c->sliding_window = left >= 0 ? (uint64_t)left + 1 : 0;
    if (!c->sliding_window) return OK;
    c->window_layers = layer_flags(x->arena, &skip, c->num_layers, slides);
    for (uint64_t i = 0; c->window_layers && i < c->num_layers; i++)
        any |= c->window_layers[i];
    if (!c->window_layers || any) return OK;
    c->window_layers = NULL;
    c->sliding_window = 0;
    return OK;
}

enum status window_size_to_file(const struct config_context *x, const void *from, struct error *err)
{
    (void)err;
    const struct model_config *c = from;
    cJSON *window = cJSON_CreateNull(), *skip = cJSON_CreateNull();
    if (c->sliding_window) {
        cJSON_Delete(window);
        window = cJSON_CreateArray();
        cJSON_AddItemToArray(window, json_new_u64(c->sliding_window - 1));
        cJSON_AddItemToArray(window, json_new_u64(0));
    }
    if (c->sliding_window && c->window_layers) {
        cJSON_Delete(skip);
        skip = layer_list(c, model_layer_slides);
    }
    json_put(x->tree, "window_size", window);
    json_put(x->tree, "window_attn_skip_freq", skip);
    return OK;
}

/* moe_layer_freq N: every Nth layer from the first has experts. */
static bool has_experts(uint64_t layer, uint64_t n)
{
    return layer % n == 0;
}

enum status moe_layer_freq_from_file(const struct config_context *x, void *to, struct error *err)
{
    struct model_config *c = to;
    struct layer_numbers freq;
    TRY(layer_numbers_of(x, "moe_layer_freq", &freq, err));
    c->moe_layers = layer_flags(x->arena, &freq, c->num_layers, has_experts);
    return OK;
}

/* Written only if layers differ: by default every layer has experts. */
enum status moe_layer_freq_to_file(const struct config_context *x, const void *from,
                                   struct error *err)
{
    (void)err;
    const struct model_config *c = from;
    if (model_layers_differ(c))
        json_put(x->tree, "moe_layer_freq", layer_list(c, model_layer_is_moe));
    return OK;
}
