/* config_rope.c - rotary positions of config.json: rope_theta, rope_scaling and
 * rope_parameters of transformers 4 and 5. */
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

/* Types whose members are read; of the others, the type and what they share. */
static const char *const rope_types[] = {"default", "linear", "dynamic", "llama3", "yarn"};
static const char *const other_types[] = {"longrope", "proportional", "mrope"};

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

static bool is_in(const char *const *types, size_t count, const char *type)
{
    size_t i = 0;
    while (i < count && strcmp(types[i], type))
        i++;
    return i < count;
}

static bool is_known_type(const char *type)
{
    return is_in(rope_types, COUNT(rope_types), type);
}

static enum status rope_type_from_hf(const cJSON *scaling, struct model_config *c, struct arena *a,
                                     struct error *err)
{
    const cJSON *item = json_get(scaling, "rope_type");
    if (!item) item = json_get(scaling, "type");
    const char *type = item ? json_as_text(item) : "default";
    if (!type || !*type)
        return fail(err, ERR_CORRUPT, "config.json: rope_type is not the name of a type");
    if (!is_known_type(type) && !is_in(other_types, COUNT(other_types), type))
        return fail(err, ERR_UNSUPPORTED, "config.json: rope_type \"%s\" is not supported", type);
    c->rope_type = arena_copy_text(a, type);
    return OK;
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
static enum status read_scaling(const cJSON *scaling, struct model_config *c, struct arena *a,
                                struct error *err)
{
    double original = 0;
    TRY(rope_type_from_hf(scaling, c, a, err));
    TRY(rope_number(scaling, "factor", 0, &c->rope_factor, err));
    TRY(rope_number(scaling, "low_freq_factor", 0, &c->rope_low_freq_factor, err));
    TRY(rope_number(scaling, "high_freq_factor", 0, &c->rope_high_freq_factor, err));
    TRY(rope_number(scaling, "original_max_position_embeddings", 0, &original, err));
    if (original >= 0x1p53)
        return fail(err, ERR_CORRUPT, "config.json: original_max_position_embeddings is too large");
    c->rope_original_max_position = (uint64_t)original;
    if (strcmp(c->rope_type, "default") && is_known_type(c->rope_type) && c->rope_factor == 0)
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
    if (has_five && has_four) TRY(read_scaling(four, c, x->arena, err)); /* for its errors */
    return read_scaling(has_five ? five : has_four ? four : NULL, c, x->arena, err);
}

/* Transformers 4 reads rope_scaling, where null is "not scaled"; 5 reads
 * rope_parameters, unless rope_scaling is an object. What cannot be read
 * fails elsewhere. */
static bool scalings_agree(const struct config_context *x, const cJSON *four, const cJSON *five)
{
    struct model_config a = {0}, b = {0};
    struct error why;
    if (!four || !cJSON_IsObject(five)) return true;
    if (!cJSON_IsObject(four) && !cJSON_IsNull(four)) return true;
    if (read_scaling(cJSON_IsNull(four) ? NULL : four, &a, x->arena, &why) ||
        read_scaling(five, &b, x->arena, &why))
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
    if (c->rotary_percent > 0 && (c->rotary_percent < 1 || c->rotary_percent > 1)) {
        json_put(five, "partial_rotary_factor", json_new_double(c->rotary_percent));
        json_put(x->tree, "partial_rotary_factor", json_new_double(c->rotary_percent));
    }
    json_put(x->tree, "rope_theta", json_new_double(c->rotary_base));
    json_put(x->tree, "rope_scaling", scaled ? rope_object(c) : cJSON_CreateNull());
    json_put(x->tree, "rope_parameters", five);
    return OK;
}
