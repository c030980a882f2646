#include "validate/configs.h"

#include <fnmatch.h>
#include <string.h>

#include "common/json.h"
#include "common/strbuf.h"

const char *const config_effect_ids[] = {
    [EFFECT_COMPUTES] = "computes", [EFFECT_HARMLESS] = "harmless", [EFFECT_UNSAID] = "unsaid"};

const char *const config_effect_words[] = {[EFFECT_COMPUTES] = "changes what is computed",
                                           [EFFECT_HARMLESS] = "no logit depends on it",
                                           [EFFECT_UNSAID] = "not given on one side"};

/* Beside those of MODEL_FIELDS. */
static const char *const list_fields[] = {"moe_layers", "window_layers", "beyond"};

static bool matches_a_field(const char *glob)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (fnmatch(glob, model_fields[i].name, 0) == 0) return true;
    for (size_t i = 0; i < sizeof list_fields / sizeof *list_fields; i++)
        if (fnmatch(glob, list_fields[i], 0) == 0) return true;
    return false;
}

enum status configs_check_ignored(const struct arg_list *ignore, struct error *err)
{
    for (size_t i = 0; i < ignore->count; i++)
        if (!matches_a_field(ignore->items[i]))
            return fail(err, ERR_USAGE,
                        "--ignore-config %s: no field of a config is called so; `ferry verify "
                        "--json` lists them",
                        ignore->items[i]);
    return OK;
}

struct config_comparison configs_compare(const struct side sides[2], const struct arg_list *ignore,
                                         struct arena *a)
{
    struct config_comparison out = {0};
    struct config_difference *all;
    if (sides[0].stored_only || sides[1].stored_only) return out;
    size_t count = config_differences(&sides[0].catalog, &sides[1].catalog, a, &all);
    out.differences = all;
    for (size_t i = 0; i < count; i++) {
        if (globs_match(ignore, all[i].field)) continue;
        out.num_computing += all[i].effect == EFFECT_COMPUTES;
        out.differences[out.count++] = all[i];
    }
    return out;
}

const char *configs_note_text(struct arena *a, const struct config_difference *d)
{
    return arena_printf(a, "the configs differ in %s: %s in A, %s in B; %s", d->field, d->values[0],
                        d->values[1],
                        d->effect == EFFECT_HARMLESS
                            ? "no logit depends on it"
                            : "one of them cannot say it, or does not, so it is not compared");
}

static void add_name(struct strbuf *out, const char *name)
{
    if (out->length) strbuf_add_text(out, ", ");
    strbuf_add_text(out, name);
}

/* Names of a's members that b has not, or has with another value. */
static void add_members(struct strbuf *out, const cJSON *a, const cJSON *b, bool missing_only)
{
    for (const cJSON *i = a->child; i; i = i->next) {
        const cJSON *other = json_get(b, i->string);
        if (missing_only ? !other : !other || !cJSON_Compare(i, other, true))
            add_name(out, i->string);
    }
}

const char *configs_unread_text(struct arena *a, const struct side sides[2])
{
    const char *out = NULL;
    if (sides[0].reading == AS_FILE || sides[1].reading == AS_FILE) return NULL;
    if (sides[0].reading == AS_MODEL && sides[1].reading == AS_MODEL) return NULL;
    cJSON *x = side_config_json(&sides[0]), *y = side_config_json(&sides[1]);
    struct strbuf names = {0};
    if (x && y) {
        add_members(&names, x, y, false);
        add_members(&names, y, x, true);
    }
    if (names.length)
        out = arena_printf(a,
                           "config.json of A and B differ in %s; without a model map nobody knows "
                           "whether that changes what is computed",
                           names.data);
    strbuf_release(&names);
    cJSON_Delete(x);
    cJSON_Delete(y);
    return out;
}
