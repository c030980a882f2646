#include "validate/compare/configs.h"

#include <fnmatch.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"

const char *const config_effect_ids[] = {
    [EFFECT_COMPUTES] = "computes", [EFFECT_HARMLESS] = "harmless", [EFFECT_UNSAID] = "unsaid"};

const char *const config_effect_words[] = {[EFFECT_COMPUTES] = "changes the computation",
                                           [EFFECT_HARMLESS] = "no logit depends on it",
                                           [EFFECT_UNSAID] = "not given on one side"};

/* Fields of config_difference.h outside of MODEL_FIELDS. */
static const char *const list_fields[] = {"moe_layers", "window_layers"};

/* ---- fields of model configs, known and unknown ---- */

static bool matches_a_model_field(const char *glob, const struct side sides[2])
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (fnmatch(glob, model_fields[i].field.name, 0) == 0) return true;
    for (size_t i = 0; i < COUNT(list_fields); i++)
        if (fnmatch(glob, list_fields[i], 0) == 0) return true;
    return unknown_fields_match(&sides[0].checkpoint.unknown, glob) ||
           unknown_fields_match(&sides[1].checkpoint.unknown, glob);
}

/* ---- config.json of folders compared by stored names ---- */

/* A missing member equals null and false: most defaults switch a feature off. */
static bool is_null_or_false(const cJSON *value)
{
    return !value || cJSON_IsNull(value) || cJSON_IsFalse(value);
}

/* Differing members of two config.json files. */
struct members {
    const struct model_maps *maps;
    struct arena *a;
    struct config_difference *list;
    size_t count, capacity;
};

static enum config_effect effect_of(const struct members *m, const char *path, const cJSON *x,
                                    const cJSON *y)
{
    const char *dot = strrchr(path, '.');
    /* Another program computes the model of another type, if no map says how. */
    if (strcmp(path, "model_type") == 0) return EFFECT_COMPUTES;
    if (model_maps_field_is_inert(m->maps, dot ? dot + 1 : path)) return EFFECT_HARMLESS;
    return is_null_or_false(x) && is_null_or_false(y) ? EFFECT_UNSAID : EFFECT_COMPUTES;
}

static const char *member_text(struct arena *a, const cJSON *value)
{
    enum { SHOWN = 60 };
    char *json = value && !cJSON_IsString(value) ? cJSON_PrintUnformatted(value) : NULL;
    const char *text = cJSON_IsString(value) ? value->valuestring : json;
    const char *out = !text                   ? "not given"
                      : strlen(text) <= SHOWN ? arena_printf(a, "%s", text)
                                              : arena_printf(a, "%.*s..", SHOWN, text);
    cJSON_free(json);
    return out;
}

static void compare_objects(struct members *m, const char *prefix, const cJSON *x, const cJSON *y);

static void compare_member(struct members *m, const char *path, const cJSON *x, const cJSON *y)
{
    if (x && y && cJSON_Compare(x, y, true)) return;
    if (cJSON_IsObject(x) && cJSON_IsObject(y)) {
        compare_objects(m, arena_printf(m->a, "%s.", path), x, y);
        return;
    }
    *ARENA_PUSH(m->a, m->list, m->count, m->capacity) =
        (struct config_difference){.field = path,
                                   .values = {member_text(m->a, x), member_text(m->a, y)},
                                   .effect = effect_of(m, path, x, y)};
}

static void compare_objects(struct members *m, const char *prefix, const cJSON *x, const cJSON *y)
{
    for (const cJSON *i = x->child; i; i = i->next)
        compare_member(m, arena_printf(m->a, "%s%s", prefix, i->string), i, json_get(y, i->string));
    for (const cJSON *i = y->child; i; i = i->next)
        if (!json_get(x, i->string))
            compare_member(m, arena_printf(m->a, "%s%s", prefix, i->string), NULL, i);
}

/* Whether config.json files are compared member by member: for two folders, one
 * without a model map. */
static bool go_by_members(const struct side sides[2])
{
    if (sides[0].reading == AS_FILE || sides[1].reading == AS_FILE) return false;
    return sides[0].stored_only || sides[1].stored_only;
}

static struct members compare_members(const struct side sides[2], struct arena *a)
{
    struct members out = {.maps = sides[0].maps, .a = a};
    cJSON *x = side_config_json(&sides[0]), *y = side_config_json(&sides[1]);
    if (x && y) compare_objects(&out, "", x, y);
    cJSON_Delete(x);
    cJSON_Delete(y);
    return out;
}

/* ---- both ---- */

/* All differences, before --ignore-config. */
static size_t list_differences(const struct side sides[2], struct arena *a,
                               struct config_difference **out)
{
    *out = NULL;
    if (go_by_members(sides)) {
        struct members m = compare_members(sides, a);
        *out = m.list;
        return m.count;
    }
    if (sides[0].stored_only || sides[1].stored_only) return 0;
    return config_differences(&sides[0].checkpoint, &sides[1].checkpoint, a, out);
}

static bool matches_a_difference(const char *glob, const struct config_difference *all,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(glob, all[i].field, 0) == 0) return true;
    return false;
}

enum status configs_check_ignored(const struct arg_list *ignore, const struct side sides[2],
                                  struct arena *a, struct error *err)
{
    struct config_difference *all;
    if (!ignore || !ignore->count) return OK;
    size_t count = list_differences(sides, a, &all);
    for (size_t i = 0; i < ignore->count; i++)
        if (!matches_a_model_field(ignore->items[i], sides) &&
            !matches_a_difference(ignore->items[i], all, count))
            return fail(err, ERR_USAGE,
                        "--ignore-config %s: matches no config field; `ferry verify --json` lists "
                        "the fields",
                        ignore->items[i]);
    return OK;
}

/* Adds the differences that change the computation, or the others. */
static void add_differences(struct config_comparison *out, const struct config_difference *all,
                            size_t count, const struct arg_list *ignore, bool computing)
{
    for (size_t i = 0; i < count; i++)
        if ((all[i].effect == EFFECT_COMPUTES) == computing && !globs_match(ignore, all[i].field))
            out->differences[out->count++] = all[i];
}

struct config_comparison configs_compare(const struct side sides[2], const struct arg_list *ignore,
                                         struct arena *a)
{
    struct config_comparison out = {0};
    struct config_difference *all;
    size_t count = list_differences(sides, a, &all);
    out.differences = arena_array(a, count + 1, sizeof *out.differences);
    add_differences(&out, all, count, ignore, true);
    out.num_computing = out.count;
    add_differences(&out, all, count, ignore, false);
    return out;
}

const char *configs_note_text(struct arena *a, const struct config_difference *d)
{
    return arena_printf(
        a, "the configs differ in %s: %s in A, %s in B; %s", d->field, d->values[0], d->values[1],
        d->effect == EFFECT_HARMLESS ? "no logit depends on it"
                                     : "it is not given on one side, so it is not compared");
}
