/* model_config_hf.c - config.json there and back, by the rows of a model map. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "convert/config_difference.h"
#include "convert/map/model_map_internal.h"

static bool has_item(const struct config_context *x, const char *name)
{
    const cJSON *item = name ? json_get(x->hf, name) : NULL;
    return item && !cJSON_IsNull(item);
}

/* The name of the row's item in this config.json, of its spellings. */
static const char *hf_name(const struct config_context *x)
{
    return !has_item(x, x->row->hf) && has_item(x, x->row->also) ? x->row->also : x->row->hf;
}

static const char *field_name(const struct config_context *x)
{
    return x->row->hf ? hf_name(x) : x->row->megatron;
}

static enum status bad_value(const struct config_context *x, const char *what, struct error *err)
{
    return fail(err, ERR_CORRUPT, "config.json: %s %s", field_name(x), what);
}

/* ---- one field ---- */

static struct scalar scalar_of(const struct config_context *x, const struct model_config *c)
{
    return field_get(&x->row->field->field, c);
}

/* A text for a number is an expression over what is known so far. */
static enum status eval_default(const struct config_context *x, const struct model_config *c,
                                const char *text, uint64_t *out, struct error *err)
{
    struct map_names names = {x->map, c, x->hf, NULL, -1, -1, 0, NULL};
    struct expr_names e = map_names_for(&names);
    int64_t value;
    if (expr_eval(text, strlen(text), &e, &value, err) || value < 0)
        return fail(err, ERR_CORRUPT,
                    "config.json: %s is not there, and its default %s has no value", field_name(x),
                    text);
    *out = (uint64_t)value;
    return OK;
}

static enum status set_field(const struct config_context *x, const cJSON *item, bool constant,
                             struct model_config *c, struct error *err)
{
    static const char *const wrong[] = {
        [FIELD_UINT] = "is not a whole number of 64 bits, 0 or more",
        [FIELD_REAL] = "is not a finite number",
        [FIELD_BOOL] = "is neither true nor false",
        [FIELD_TEXT] = "is not a string",
    };
    const struct field *f = &x->row->field->field;
    const char *text = json_as_text(item);
    struct scalar s = {.kind = f->kind};
    if (f->kind == FIELD_UINT && constant && text) {
        TRY(eval_default(x, c, text, &s.number, err));
        field_set(f, c, s);
        return OK;
    }
    if (!field_set_json(f, c, item, x->arena)) return bad_value(x, wrong[f->kind], err);
    s = field_get(f, c);
    return s.kind == FIELD_REAL && !isfinite(s.real) ? bad_value(x, wrong[s.kind], err) : OK;
}

/* The row's item of config.json, or what stands for it: "null" for null, "default" for none. */
static const cJSON *item_of(const struct config_context *x, bool *constant)
{
    const cJSON *item = json_get(x->hf, hf_name(x));
    *constant = false;
    if (cJSON_IsNull(item) && x->row->null) {
        *constant = true;
        return x->row->null;
    }
    if (item && !cJSON_IsNull(item)) return item;
    *constant = true;
    return x->row->absent;
}

static enum status copy_from_hf(const struct config_context *x, struct model_config *c,
                                struct error *err)
{
    bool constant;
    const cJSON *item = item_of(x, &constant);
    if (!item) return bad_value(x, "is missing", err);
    if (has_item(x, x->row->hf) && has_item(x, x->row->also) &&
        !cJSON_Compare(item, json_get(x->hf, x->row->also), true))
        return fail(err, ERR_CORRUPT,
                    "config.json: %s and %s are two names of one field, and differ", x->row->hf,
                    x->row->also);
    return set_field(x, item, constant, c, err);
}

static enum status value_from_hf(const struct config_context *x, struct model_config *c,
                                 struct error *err)
{
    return set_field(x, x->row->value, true, c, err);
}

static cJSON *item_from_field(const struct config_context *x, const struct model_config *c)
{
    return scalar_json(scalar_of(x, c));
}

static bool mentioned(const struct config_context *x)
{
    bool there = x->row->hf && json_get(x->hf, hf_name(x));
    for (size_t i = 0; i < COUNT(x->row->how->keys); i++)
        there |= x->row->how->keys[i] && json_get(x->hf, x->row->how->keys[i]);
    return there;
}

/* Whether config.json says it already, in whichever spelling. */
static bool means_the_same(const struct config_context *x, const struct model_config *c)
{
    struct model_config there = *c;
    if (!mentioned(x) || x->row->how->from_hf(x, &there, NULL)) return false;
    return !model_config_difference(&there, c);
}

/* Whether 0 is a value that the field has, which config.json says by null. */
static bool null_is_zero(const struct config_row *row)
{
    uint64_t n;
    return row->null && json_as_u64(row->null, &n) && n == 0;
}

static enum status copy_to_hf(const struct config_context *x, const struct model_config *c,
                              struct error *err)
{
    (void)err;
    const struct scalar s = scalar_of(x, c);
    const bool zero = scalar_is_zero(s);
    if (zero && x->row->field->zero == ZERO_OMITTED) return OK;
    bool unset = zero && s.kind == FIELD_UINT && null_is_zero(x->row);
    json_put(x->hf, hf_name(x), unset ? cJSON_CreateNull() : item_from_field(x, c));
    if (has_item(x, x->row->also)) json_put(x->hf, x->row->also, item_from_field(x, c));
    return OK;
}

static enum status nothing_to_hf(const struct config_context *x, const struct model_config *c,
                                 struct error *err)
{
    (void)x, (void)c, (void)err;
    return OK;
}

static enum status not_from_hf(const struct config_context *x, struct model_config *c,
                               struct error *err)
{
    TRY(copy_from_hf(x, c, err));
    struct scalar s = scalar_of(x, c);
    s.truth = !s.truth;
    field_set(&x->row->field->field, c, s);
    return OK;
}

static enum status not_to_hf(const struct config_context *x, const struct model_config *c,
                             struct error *err)
{
    (void)err;
    json_put(x->hf, x->row->hf, cJSON_CreateBool(!scalar_of(x, c).truth));
    return OK;
}

/* ---- activations: what Hugging Face calls them (activations.py:ACT2CLS), the first is written
 * ---- */

static const struct {
    const char *hf, *ours;
} activations[] = {
    {"silu", "silu"},
    {"swish", "silu"},
    {"gelu", "gelu"},
    {"gelu_python", "gelu"},
    {"gelu_pytorch_tanh", "gelu_tanh"},
    {"gelu_new", "gelu_tanh"},
    {"gelu_fast", "gelu_tanh"},
    {"relu", "relu"},
    {"relu2", "squared_relu"},
    {"quick_gelu", "quick_gelu"},
};

static enum status activation_from_hf(const struct config_context *x, struct model_config *c,
                                      struct error *err)
{
    TRY(copy_from_hf(x, c, err));
    struct scalar s = scalar_of(x, c);
    for (size_t i = 0; i < COUNT(activations); i++)
        if (strcmp(activations[i].hf, s.text) == 0) {
            s.text = activations[i].ours;
            field_set(&x->row->field->field, c, s);
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "config.json: %s \"%s\" is not known", x->row->hf, s.text);
}

static enum status activation_to_hf(const struct config_context *x, const struct model_config *c,
                                    struct error *err)
{
    const char *ours = scalar_of(x, c).text, *usual = json_as_text(x->row->absent);
    const char *found = NULL;
    for (size_t i = 0; i < COUNT(activations); i++) {
        if (!ours || strcmp(activations[i].ours, ours)) continue;
        if (!found || (usual && strcmp(activations[i].hf, usual) == 0)) found = activations[i].hf;
    }
    if (!found)
        return fail(err, ERR_UNSUPPORTED, "activation %s has no name in config.json",
                    ours ? ours : "(none)");
    json_put(x->hf, x->row->hf, cJSON_CreateString(found));
    return OK;
}

/* ---- rotary positions: rope_theta and rope_scaling (transformers 4), rope_parameters (5) ---- */

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

/* The same where 0 says as much as nothing does. */
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

/* What cosines and sines are multiplied by for each of yarn's mscale
 * (transformers, modeling_rope_utils.py:_compute_yarn_parameters). */
static double yarn_factor(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* What yarn may be told beside its factor, and what it is where nobody says. */
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

/* theta: the object that has rope_theta; scaling: NULL, rope_scaling or rope_parameters. */
static enum status read_rope(const struct config_context *x, const cJSON *theta,
                             const cJSON *scaling, struct model_config *c, struct error *err)
{
    double original = 0, usual = 10000;
    (void)json_as_double(x->row->absent, &usual);
    TRY(rope_number(theta, "rope_theta", usual, &c->rotary_base, err));
    TRY(rope_number(scaling && json_get(scaling, "partial_rotary_factor") ? scaling : x->hf,
                    "partial_rotary_factor", 1, &c->rotary_percent, err));
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
                    "config.json: rope_type llama3 wants low_freq_factor, high_freq_factor and "
                    "original_max_position_embeddings");
    return OK;
}

/* Where both spellings are there, releases of transformers differ in which one they take: they must
 * say the same. */
static enum status rope_from_hf(const struct config_context *x, struct model_config *c,
                                struct error *err)
{
    const cJSON *five = json_get(x->hf, "rope_parameters"), *four = json_get(x->hf, "rope_scaling");
    bool has_five = cJSON_IsObject(five), has_four = cJSON_IsObject(four);
    const cJSON *theta = has_five && json_get(five, "rope_theta") ? five : x->hf;
    const cJSON *other_theta = json_get(x->hf, "rope_theta") ? x->hf : theta;
    struct model_config other = *c;
    if (!has_five && four && !has_four && !cJSON_IsNull(four))
        return fail(err, ERR_CORRUPT, "config.json: rope_scaling is not an object");
    TRY(read_rope(x, theta, has_five ? five : has_four ? four : NULL, c, err));
    TRY(read_rope(x, other_theta, has_four ? four : has_five ? five : NULL, &other, err));
    for (size_t i = 0; i < num_model_fields; i++)
        if (!field_equal(&model_fields[i].field, c, &other))
            return fail(err, ERR_CORRUPT,
                        "config.json: rope_parameters say something else than rope_theta and "
                        "rope_scaling");
    return OK;
}

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

/* A fresh config.json gets both spellings, which both generations of transformers read. */
static enum status rope_to_hf(const struct config_context *x, const struct model_config *c,
                              struct error *err)
{
    (void)err;
    bool scaled = c->rope_type && strcmp(c->rope_type, "default");
    cJSON *five = rope_object(c);
    json_put(five, "rope_theta", json_new_double(c->rotary_base));
    json_put(x->hf, "rope_theta", json_new_double(c->rotary_base));
    json_put(x->hf, "rope_scaling", scaled ? rope_object(c) : cJSON_CreateNull());
    json_put(x->hf, "rope_parameters", five);
    return OK;
}

/* ---- windows and experts by layer ---- */

/* Qwen: sliding_window counts where use_sliding_window says so. */
static enum status window_from_hf(const struct config_context *x, struct model_config *c,
                                  struct error *err)
{
    const cJSON *window = json_get(x->hf, "sliding_window"),
                *use = json_get(x->hf, "use_sliding_window");
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

static enum status window_to_hf(const struct config_context *x, const struct model_config *c,
                                struct error *err)
{
    (void)err;
    json_put(x->hf, "use_sliding_window", cJSON_CreateBool(c->sliding_window > 0));
    json_put(x->hf, "sliding_window",
             c->sliding_window ? json_new_u64(c->sliding_window) : cJSON_CreateNull());
    return OK;
}

/* Which layers slide, by layer_types or, where that is not there, by max_window_layers: those from
 * it on (transformers, configuration_qwen2.py). */
static enum status find_window_layers(const struct config_context *x, const struct model_config *c,
                                      bool *slides, struct error *err)
{
    const cJSON *types = json_get(x->hf, "layer_types"), *item = NULL;
    const cJSON *max = json_get(x->hf, "max_window_layers");
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
            return fail(err, ERR_UNSUPPORTED,
                        "config.json: layer_types has %s; sliding_attention and full_attention "
                        "are known",
                        type ? type : "what is not a string");
    }
    return OK;
}

static enum status window_by_layer_from_hf(const struct config_context *x, struct model_config *c,
                                           struct error *err)
{
    bool any = false, all = true;
    TRY(window_from_hf(x, c, err));
    if (c->num_layers > MOST_LAYERS) return OK; /* refused by the check of all configs */
    bool *slides = arena_array(x->arena, c->num_layers, sizeof *slides);
    TRY(find_window_layers(x, c, slides, err));
    for (uint64_t i = 0; i < c->num_layers; i++)
        any |= slides[i], all &= slides[i];
    if (any && !c->sliding_window && cJSON_IsArray(json_get(x->hf, "layer_types")))
        return fail(err, ERR_UNSUPPORTED,
                    "config.json: layer_types has sliding_attention, and by use_sliding_window and "
                    "sliding_window there is no window");
    if (!any) c->sliding_window = 0;
    if (any && !all) c->window_layers = slides;
    return OK;
}

/* max_window_layers can say one thing alone; layer_types is read since transformers 4.53. */
static enum status window_by_layer_to_hf(const struct config_context *x,
                                         const struct model_config *c, struct error *err)
{
    uint64_t first = 0;
    bool in_order = true;
    cJSON *types = cJSON_CreateArray();
    TRY(window_to_hf(x, c, err));
    while (first < c->num_layers && !model_layer_slides(c, first))
        first++;
    for (uint64_t i = 0; i < c->num_layers; i++) {
        in_order &= model_layer_slides(c, i) == (i >= first);
        cJSON_AddItemToArray(
            types,
            cJSON_CreateString(model_layer_slides(c, i) ? "sliding_attention" : "full_attention"));
    }
    json_put(x->hf, "max_window_layers", json_new_u64(first));
    if (!in_order || json_get(x->hf, "layer_types"))
        json_put(x->hf, "layer_types", types);
    else
        cJSON_Delete(types);
    return OK;
}

/* ---- scales of attention ---- */

/* GPT-2: scores are divided by sqrt(head size), or not at all. */
static enum status scale_weights_from_hf(const struct config_context *x, struct model_config *c,
                                         struct error *err)
{
    const cJSON *item = json_get(x->hf, "scale_attn_weights");
    if (item && !cJSON_IsBool(item))
        return fail(err, ERR_CORRUPT, "config.json: scale_attn_weights is neither true nor false");
    c->softmax_scale = cJSON_IsFalse(item) ? 1 : 0;
    return OK;
}

static enum status scale_weights_to_hf(const struct config_context *x, const struct model_config *c,
                                       struct error *err)
{
    (void)err;
    json_put(x->hf, "scale_attn_weights", cJSON_CreateBool(!(c->softmax_scale > 0)));
    return OK;
}

/* Qwen: layer i has experts where (i + 1) % decoder_sparse_step is 0, but for mlp_only_layers. */
static enum status moe_layers_from_hf(const struct config_context *x, struct model_config *c,
                                      struct error *err)
{
    uint64_t step = 1, layer;
    const cJSON *given = json_get(x->hf, "decoder_sparse_step"),
                *only = json_get(x->hf, "mlp_only_layers");
    if (given && (!json_as_u64(given, &step) || step == 0))
        return fail(err, ERR_CORRUPT,
                    "config.json: decoder_sparse_step is not a whole number above 0");
    if (c->num_layers > MOST_LAYERS) return OK; /* refused by the check of all configs */
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

static enum status moe_layers_to_hf(const struct config_context *x, const struct model_config *c,
                                    struct error *err)
{
    (void)err;
    cJSON *only = cJSON_CreateArray();
    for (uint64_t i = 0; i < c->num_layers; i++)
        if (!model_layer_is_moe(c, i)) cJSON_AddItemToArray(only, json_new_u64(i));
    json_put(x->hf, "decoder_sparse_step", json_new_u64(1));
    json_put(x->hf, "mlp_only_layers", only);
    return OK;
}

// clang-format off
static const struct config_how hows[] = {
    /* name       field  value  default only a kind        keys    fields    there, and back */
    {"copy",       true,  false, true,  false, FIELD_UINT, {NULL}, {NULL}, copy_from_hf, copy_to_hf},
    {"value",      true,  true,  false, false, FIELD_UINT, {NULL}, {NULL}, value_from_hf, nothing_to_hf},
    {"not",        true,  false, true,  true,  FIELD_BOOL, {NULL}, {NULL}, not_from_hf, not_to_hf},
    {"activation", true,  false, true,  true,  FIELD_TEXT, {NULL}, {NULL}, activation_from_hf, activation_to_hf},
    {"rope",       false, false, true,  false, FIELD_UINT,
     {"rope_theta", "rope_scaling", "rope_parameters"}, {"rope_*", "rotary_base", "rotary_percent"}, rope_from_hf, rope_to_hf},
    {"window", false, false, false, false, FIELD_UINT,
     {"use_sliding_window", "sliding_window"}, {"sliding_window"}, window_from_hf, window_to_hf},
    {"window-by-layer", false, false, false, false, FIELD_UINT,
     {"use_sliding_window", "sliding_window", "layer_types"}, {"sliding_window", "window_layers"}, window_by_layer_from_hf, window_by_layer_to_hf},
    {"scale-attn-weights", false, false, false, false, FIELD_UINT,
     {"scale_attn_weights"}, {"softmax_scale"}, scale_weights_from_hf, scale_weights_to_hf},
    {"moe-layers", false, false, false, false, FIELD_UINT,
     {"decoder_sparse_step", "mlp_only_layers"}, {"moe_layers"}, moe_layers_from_hf, moe_layers_to_hf},
};
// clang-format on

const struct config_how *config_how_find(const char *name)
{
    for (size_t i = 0; i < COUNT(hows); i++)
        if (strcmp(hows[i].name, name) == 0) return &hows[i];
    return NULL;
}

/* ---- all rows ---- */

static enum status refuse_unsupported(const struct model_map *map, const cJSON *hf,
                                      const struct model_config *c, struct error *err)
{
    for (size_t i = 0; i < map->num_unsupported; i++) {
        struct map_names names = {map, c, hf, NULL, -1, -1, 0, NULL};
        bool holds;
        TRY(map_condition(&names, map->unsupported[i].when, &holds, err));
        if (holds) return fail(err, ERR_UNSUPPORTED, "config.json: %s", map->unsupported[i].why);
    }
    return OK;
}

enum status model_config_from_hf(const struct model_map *map, const cJSON *hf_config,
                                 struct arena *a, struct model_config *c, struct error *err)
{
    *c = (struct model_config){.rotary_percent = 1, .rope_type = "default"};
    for (size_t i = 0; i < map->num_config; i++) {
        const struct config_row *row = &map->config[i];
        struct config_context x = {map, row, (cJSON *)(uintptr_t)hf_config, a};
        if (row->directions & IMPORT) TRY(row->how->from_hf(&x, c, err));
    }
    model_config_join_biases(c);
    TRY(refuse_unsupported(map, hf_config, c, err));
    return model_config_check(c, err);
}

/* ---- what config.json does not say ---- */

/* Whoever reads config.json must see the same model. */
static enum status check_written(const struct model_map *map, const struct model_config *c,
                                 const cJSON *hf_config, struct arena *a, struct error *err)
{
    struct model_config back;
    if (model_config_from_hf(map, hf_config, a, &back, err))
        return fail_in(err, "a config.json of family %s cannot describe this model", map->family);
    struct model_config own = model_config_essence(c, &back);
    const char *name = model_config_difference(&own, &back);
    if (!name) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "a config.json of family %s cannot say that %s is %s: it would read as %s",
                map->family, name, model_config_text(c, name, a),
                model_config_text(&back, name, a));
}

enum status model_config_to_hf(const struct model_map *map, const struct model_config *c,
                               cJSON *hf_config, struct error *err)
{
    struct arena a;
    enum status st = OK;
    arena_init(&a);
    for (size_t i = 0; i < map->num_config && !st; i++) {
        const struct config_row *row = &map->config[i];
        struct config_context x = {map, row, hf_config, &a};
        if ((row->directions & EXPORT) && !means_the_same(&x, c)) st = row->how->to_hf(&x, c, err);
    }
    if (!st) st = check_written(map, c, hf_config, &a, err);
    arena_release(&a);
    return st;
}

/* Whether it is 0 or NULL and config.json has no word for that. */
static bool is_not_given(const struct config_row *row, const struct model_config *c)
{
    const struct scalar s = field_get(&row->field->field, c);
    const bool zero_is_a_value = s.kind == FIELD_REAL && row->field->zero != ZERO_UNKNOWN;
    return !scalar_is_given(s) && !zero_is_a_value && !null_is_zero(row);
}

const char *model_config_lacks(const struct model_map *map, const struct model_config *c,
                               struct arena *a)
{
    struct strbuf list = {0};
    strbuf_add_text(&list, "");
    for (size_t i = 0; i < map->num_config; i++) {
        const struct config_row *row = &map->config[i];
        bool rope = row->how->to_hf == rope_to_hf && !(c->rotary_base > 0);
        if (!(row->directions & EXPORT) || row->value) continue;
        if (!rope && (!row->field || !is_not_given(row, c))) continue;
        strbuf_printf(&list, "%s%s", list.length ? ", " : "", rope ? "rotary_base" : row->megatron);
    }
    const char *text = list.length ? arena_text(a, list.data, list.length) : NULL;
    strbuf_release(&list);
    return text;
}

static enum status in_range(const char *name, uint64_t n, uint64_t most, struct error *err)
{
    if (n >= 1 && n <= most) return OK;
    return fail(err, ERR_CORRUPT, "%s is %" PRIu64 "; 1 to %" PRIu64 " can be", name, n, most);
}

enum status model_config_check(const struct model_config *c, struct error *err)
{
    const uint64_t most = (uint64_t)1 << 40;
    TRY(in_range("num_layers", c->num_layers, MOST_LAYERS, err));
    TRY(in_range("hidden_size", c->hidden_size, most, err));
    TRY(in_range("ffn_hidden_size", c->ffn_hidden_size, most, err));
    TRY(in_range("num_attention_heads", c->num_attention_heads, most, err));
    TRY(in_range("num_query_groups (key/value heads)", c->num_query_groups, most, err));
    TRY(in_range("kv_channels (head_dim)", c->kv_channels, most, err));
    TRY(in_range("max_position_embeddings", c->max_position_embeddings, most, err));
    if (c->vocab_size) TRY(in_range("vocab_size", c->vocab_size, most, err));
    if (c->num_attention_heads % c->num_query_groups)
        return fail(err, ERR_CORRUPT,
                    "%" PRIu64 " attention heads cannot share %" PRIu64 " key/value heads",
                    c->num_attention_heads, c->num_query_groups);
    if (!isfinite(c->layernorm_epsilon) || c->layernorm_epsilon <= 0)
        return fail(err, ERR_CORRUPT, "the epsilon of the norms is %g", c->layernorm_epsilon);
    if (c->position_embedding_type && strcmp(c->position_embedding_type, "rope") == 0 &&
        (c->kv_channels % 2 || !(c->rotary_base > 0)))
        return fail(err, ERR_CORRUPT,
                    "rotary positions need an even head size (%" PRIu64 ") and a base above 0 (%g)",
                    c->kv_channels, c->rotary_base);
    if (!(c->rotary_percent <= 1))
        return fail(err, ERR_CORRUPT, "rotary positions on %g of each head", c->rotary_percent);
    if (!c->num_experts) return OK;
    TRY(in_range("num_experts", c->num_experts, MOST_EXPERTS, err));
    TRY(in_range("num_layers * num_experts", c->num_layers * c->num_experts, MOST_LAYER_EXPERTS,
                 err));
    TRY(in_range("moe_ffn_hidden_size", c->moe_ffn_hidden_size, most, err));
    return in_range("moe_router_topk", c->moe_router_topk, c->num_experts, err);
}
