/* config_map.c - reads and writes a config file by the rows of its map: first
 * the hows of single fields, then the loops over all rows. */
#include "convert/map/config_map.h"

#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/model_map_internal.h"

static const struct field *find_model_field(const char *name, enum field_zero *zero)
{
    const struct model_field *f = model_field_find(name);
    if (f) *zero = f->zero;
    return f ? &f->field : NULL;
}

const struct config_fields model_config_fields = {find_model_field, &map_samples[0],
                                                  sizeof(struct model_config), true};

static bool has_item(const struct config_context *x, const char *name)
{
    const cJSON *item = name ? json_get(x->tree, name) : NULL;
    return item && !cJSON_IsNull(item);
}

const char *config_key(const struct config_context *x)
{
    return !has_item(x, x->row->key) && has_item(x, x->row->also) ? x->row->also : x->row->key;
}

static const char *field_name(const struct config_context *x)
{
    return x->row->key ? config_key(x) : x->row->megatron;
}

enum status config_bad_value(const struct config_context *x, const char *what, struct error *err)
{
    return fail(err, ERR_CORRUPT, "%s: %s %s", x->map->file.name, field_name(x), what);
}

struct scalar config_scalar(const struct config_context *x, const void *from)
{
    return field_get(x->row->field, from);
}

/* ---- conditions ---- */

struct map_names config_names(const struct config_map *map, const cJSON *tree, const void *record)
{
    return (struct map_names){.map = map->model,
                              .config = map->fields->is_model ? record : NULL,
                              .file = tree,
                              .member = map->file.member,
                              .layer = -1,
                              .expert = -1};
}

enum status config_row_applies(const struct config_context *x, const void *record, bool *out,
                               struct error *err)
{
    const struct map_names names = config_names(x->map, x->tree, record);
    return map_condition(&names, x->row->when, out, err);
}

/* ---- from the file ---- */

/* Evaluates a text default of a number: an expression over the members set so
 * far. */
static enum status eval_default(const struct config_context *x, const void *record,
                                const char *text, uint64_t *out, struct error *err)
{
    struct map_names names = config_names(x->map, x->tree, record);
    names.arena = x->arena;
    struct expr_names e = map_names_for(&names);
    int64_t value;
    if (expr_eval(text, strlen(text), &e, &value, err) || value < 0)
        return fail(err, ERR_CORRUPT, "%s: %s is missing, and its default %s cannot be evaluated",
                    x->map->file.name, field_name(x), text);
    *out = (uint64_t)value;
    return OK;
}

static enum status set_field(const struct config_context *x, const cJSON *item, bool constant,
                             void *to, struct error *err)
{
    static const char *const wrong[] = {
        [FIELD_UINT] = "is not a whole number from 0 to 2^64 - 1",
        [FIELD_REAL] = "is not a finite number",
        [FIELD_BOOL] = "is neither true nor false",
        [FIELD_TEXT] = "is not a string",
    };
    const struct field *f = x->row->field;
    const char *text = json_as_text(item);
    struct scalar s = {.kind = f->kind};
    if (f->kind == FIELD_UINT && constant && text) {
        TRY(eval_default(x, to, text, &s.number, err));
        field_set(f, to, s);
        return OK;
    }
    if (!field_set_json(f, to, item, x->arena)) return config_bad_value(x, wrong[f->kind], err);
    s = field_get(f, to);
    return s.kind == FIELD_REAL && !isfinite(s.real) ? config_bad_value(x, wrong[s.kind], err) : OK;
}

/* The row's field in the file; if null, the row's "null", and if absent, its
 * "default": *constant is then true. */
static const cJSON *row_item(const struct config_context *x, bool *constant)
{
    const cJSON *item = json_get(x->tree, config_key(x));
    *constant = false;
    if (cJSON_IsNull(item) && x->row->null) {
        *constant = true;
        return x->row->null;
    }
    if (item && !cJSON_IsNull(item)) return item;
    *constant = true;
    return x->row->absent;
}

enum status config_copy_from(const struct config_context *x, void *to, struct error *err)
{
    bool constant;
    const cJSON *item = row_item(x, &constant);
    if (!item) return config_bad_value(x, "is missing", err);
    return set_field(x, item, constant, to, err);
}

static enum status value_from(const struct config_context *x, void *to, struct error *err)
{
    return set_field(x, x->row->value, true, to, err);
}

static enum status nothing_from(const struct config_context *x, void *to, struct error *err)
{
    (void)x, (void)to, (void)err;
    return OK;
}

/* ---- to the file ---- */

bool config_null_is_zero(const struct config_row *row)
{
    uint64_t n;
    return row->null && json_as_u64(row->null, &n) && n == 0;
}

enum status config_copy_to(const struct config_context *x, const void *from, struct error *err)
{
    (void)err;
    const struct config_row *row = x->row;
    const struct scalar s = config_scalar(x, from);
    const bool zero = scalar_is_zero(s), partial = x->map->partial;
    const bool unset = zero && (config_null_is_zero(row) || (partial && s.kind == FIELD_UINT));
    if (zero && row->zero == ZERO_OMITTED && !partial) return OK;
    if (zero && row->zero == ZERO_UNUSED && (!row->absent || config_is_unset(row->absent)) &&
        !json_get(x->tree, config_key(x)))
        return OK;
    json_put(x->tree, config_key(x), unset ? cJSON_CreateNull() : scalar_json(s));
    if (has_item(x, row->also)) json_put(x->tree, row->also, scalar_json(s));
    return OK;
}

static enum status nothing_to(const struct config_context *x, const void *from, struct error *err)
{
    (void)x, (void)from, (void)err;
    return OK;
}

static enum status constant_to(const struct config_context *x, const void *from, struct error *err)
{
    (void)from, (void)err;
    json_put(x->tree, x->row->key, cJSON_Duplicate(x->row->value, true));
    return OK;
}

/* ---- Python names: {"_target_": "torch.bfloat16", ...}, or text ---- */

static enum status reference_from(const struct config_context *x, void *to, struct error *err)
{
    const cJSON *item = json_get(x->tree, x->row->key);
    if (cJSON_IsObject(item)) item = json_get(item, "_target_");
    if (!item) return config_bad_value(x, "is missing", err);
    return set_field(x, item, false, to, err);
}

static cJSON *reference(const char *target)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddBoolToObject(o, "_call_", false);
    cJSON_AddStringToObject(o, "_target_", target);
    return o;
}

static enum status reference_to(const struct config_context *x, const void *from, struct error *err)
{
    (void)err;
    const char *target = config_scalar(x, from).text;
    json_put(x->tree, x->row->key, target ? reference(target) : cJSON_CreateNull());
    return OK;
}

/* ---- activations ---- */

static enum status set_text(const struct config_context *x, void *to, const char *text)
{
    field_set(x->row->field, to, (struct scalar){.kind = FIELD_TEXT, .text = text});
    return OK;
}

/* Hugging Face's names for activations (activations.py:ACT2CLS). The first of
 * several names is written. */
static const struct activation {
    const char *theirs, *ours;
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

static enum status activation_from(const struct config_context *x, void *to, struct error *err)
{
    TRY(config_copy_from(x, to, err));
    const char *text = config_scalar(x, to).text;
    for (size_t i = 0; i < COUNT(activations); i++)
        if (strcmp(activations[i].theirs, text) == 0) return set_text(x, to, activations[i].ours);
    return fail(err, ERR_UNSUPPORTED, "%s: %s \"%s\" is not known", x->map->file.name, x->row->key,
                text);
}

static enum status activation_to(const struct config_context *x, const void *from,
                                 struct error *err)
{
    const char *ours = config_scalar(x, from).text, *usual = json_as_text(x->row->absent);
    const char *found = NULL;
    for (size_t i = 0; i < COUNT(activations); i++) {
        if (!ours || strcmp(activations[i].ours, ours)) continue;
        if (!found || (usual && strcmp(activations[i].theirs, usual) == 0))
            found = activations[i].theirs;
    }
    if (!found)
        return fail(err, ERR_UNSUPPORTED, "activation %s has no name in %s", ours ? ours : "(none)",
                    x->map->file.name);
    json_put(x->tree, x->row->key, cJSON_CreateString(found));
    return OK;
}

/* Names of activation functions in Python. */
static const struct activation functions[] = {
    {"torch.nn.functional.silu", "silu"},
    {"torch.nn.functional.gelu", "gelu"},
    {"torch.nn.functional.relu", "relu"},
    {"megatron.core.activations.squared_relu", "squared_relu"},
    {"megatron.core.activations.quick_gelu", "quick_gelu"},
    {"megatron.core.activations.fast_gelu", "gelu_tanh"},
};

static enum status function_from(const struct config_context *x, void *to, struct error *err)
{
    const cJSON *item = json_get(x->tree, x->row->key);
    const char *target = json_as_text(json_get(item, "_target_"));
    const char *approximate = json_as_text(json_get(item, "approximate"));
    if (approximate && strcmp(approximate, "tanh") == 0) return set_text(x, to, "gelu_tanh");
    for (size_t i = 0; target && i < COUNT(functions); i++)
        if (strcmp(functions[i].theirs, target) == 0) return set_text(x, to, functions[i].ours);
    return config_bad_value(x, "is not a known function", err);
}

/* functools.partial(gelu, approximate="tanh") */
static cJSON *gelu_by_tanh(void)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "_args_", cJSON_CreateArray());
    cJSON_AddBoolToObject(o, "_partial_", true);
    cJSON_AddStringToObject(o, "_target_", "torch.nn.functional.gelu");
    cJSON_AddStringToObject(o, "approximate", "tanh");
    return o;
}

static enum status function_to(const struct config_context *x, const void *from, struct error *err)
{
    (void)err;
    const char *ours = config_scalar(x, from).text;
    const char *target = "torch.nn.functional.gelu";
    if (text_equal(ours, "gelu_tanh")) {
        json_put(x->tree, x->row->key, gelu_by_tanh());
        return OK;
    }
    for (size_t i = 0; ours && i < COUNT(functions); i++)
        if (strcmp(functions[i].ours, ours) == 0) target = functions[i].theirs;
    json_put(x->tree, x->row->key, reference(target));
    return OK;
}

// clang-format off
static const struct config_how config_hows[] = {
    {"copy",       .has = ROW_FIELD | ROW_KEY, .may = ROW_DEFAULT | ROW_NULL, .from_file = config_copy_from, .to_file = config_copy_to},
    {"value",      .has = ROW_FIELD | ROW_VALUE, .from_file = value_from, .to_file = nothing_to},
    {"constant",   .has = ROW_KEY | ROW_VALUE, .from_file = nothing_from, .to_file = constant_to},
    {"expression", .has = ROW_EXPRS, .may = ROW_FIELD | ROW_KEY | ROW_DEFAULT | ROW_NULL, .from_file = config_exprs_from, .to_file = config_exprs_to},
    {"reference",  .has = ROW_FIELD | ROW_KEY, .only_kind = true, .kind = FIELD_TEXT, .from_file = reference_from, .to_file = reference_to},
    {"activation", .has = ROW_FIELD | ROW_KEY, .may = ROW_DEFAULT | ROW_NULL, .only_kind = true, .kind = FIELD_TEXT, .from_file = activation_from, .to_file = activation_to},
    {"function",   .has = ROW_FIELD | ROW_KEY, .only_kind = true, .kind = FIELD_TEXT, .from_file = function_from, .to_file = function_to},
    {"rope",       .may = ROW_DEFAULT, .keys = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"}, .members = rope_members, .spellings = rope_spellings,
                   .fields = {"rope_*", "rotary_base", "rotary_percent"}, .from_file = rope_from_file, .to_file = rope_to_file},
};
// clang-format on

const struct config_how *config_how_find(const char *name)
{
    for (size_t i = 0; i < COUNT(config_hows); i++)
        if (strcmp(config_hows[i].name, name) == 0) return &config_hows[i];
    return NULL;
}

/* ---- all rows ---- */

static enum status read_field_row(const struct config_context *x, void *to, struct error *err)
{
    bool applies;
    TRY(config_row_applies(x, to, &applies, err));
    return applies ? x->row->how->from_file(x, to, err) : OK;
}

enum status config_rows_read(const struct config_map *map, const cJSON *tree, struct arena *a,
                             void *to, struct error *err)
{
    for (size_t i = 0; i < map->num_rows; i++) {
        const struct config_row *row = &map->rows[i];
        const struct config_context x = {map, row, (cJSON *)(uintptr_t)tree, a};
        if (!(row->directions & IMPORT)) continue;
        enum status st = read_field_row(&x, to, err);
        if (st && !map->partial) return st;
    }
    return OK;
}

static bool mentioned(const struct config_context *x)
{
    bool there = x->row->key && json_get(x->tree, config_key(x));
    for (size_t i = 0; i < COUNT(x->row->how->keys); i++)
        there |= x->row->how->keys[i] && json_get(x->tree, x->row->how->keys[i]);
    for (const cJSON *i = x->tree->child; i && !there; i = i->next)
        there = config_exprs_read(x, i->string) || config_exprs_write(x->row, i->string);
    return there;
}

/* Whether config.json already says this, in any spelling. */
static bool means_the_same(const struct config_context *x, const struct model_config *c)
{
    struct model_config there = *c;
    struct error why;
    if (x->row->num_writes && !x->row->num_reads && !x->row->field) return false;
    if (!mentioned(x) || x->row->how->from_file(x, &there, &why)) return false;
    return !model_config_difference(&there, c);
}

static enum status write_row(const struct config_context *x, const void *from, struct error *err)
{
    bool applies;
    TRY(config_row_applies(x, from, &applies, err));
    if (!applies && x->row->otherwise)
        json_put(x->tree, x->row->key, cJSON_Duplicate(x->row->otherwise, true));
    if (!applies || (!x->map->partial && means_the_same(x, from))) return OK;
    return x->row->how->to_file(x, from, err);
}

enum status config_rows_write(const struct config_map *map, const void *from, cJSON *tree,
                              struct error *err)
{
    struct arena a;
    enum status st = OK;
    arena_init(&a);
    for (size_t i = 0; i < map->num_rows && (!st || map->partial); i++) {
        const struct config_context x = {map, &map->rows[i], tree, &a};
        if (map->rows[i].directions & EXPORT) st = write_row(&x, from, err);
    }
    arena_release(&a);
    return st;
}

void config_map_read(const struct config_map *map, const cJSON *tree, struct arena *a, void *to)
{
    struct error ignored;
    (void)!config_rows_read(map, tree, a, to, &ignored);
}

void config_map_write(const struct config_map *map, const void *from, cJSON *tree)
{
    struct error ignored;
    (void)!config_rows_write(map, from, tree, &ignored);
}
