/* config_spellings.c - finds spellings of one field whose values contradict
 * each other: releases of a program differ in which one they read. */
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "convert/map/model_map_internal.h"

enum { MAX_NAME = 80 };

/* The object that has a member, and the member's name; name: "rope_theta" or
 * "rope_parameters.rope_theta". */
static cJSON *find_object(cJSON *tree, const char *name, const char **member)
{
    char object[MAX_NAME];
    const char *dot = strchr(name, '.');
    *member = dot ? dot + 1 : name;
    if (!dot || (size_t)(dot - name) >= sizeof object) return tree;
    memcpy(object, name, (size_t)(dot - name));
    object[dot - name] = '\0';
    return cJSON_GetObjectItemCaseSensitive(tree, object);
}

const cJSON *config_spelling_value(const cJSON *tree, const char *name)
{
    const char *member;
    const cJSON *object = find_object((cJSON *)(uintptr_t)tree, name, &member);
    return cJSON_IsObject(object) ? json_get(object, member) : NULL;
}

static void remove_spelling(cJSON *tree, const char *name)
{
    const char *member;
    cJSON *object = find_object(tree, name, &member);
    cJSON_DeleteItemFromObjectCaseSensitive(object, member);
}

/* Whether two values are equal: numbers by value, null like an absent one. */
static bool values_agree(const cJSON *a, const cJSON *b)
{
    double x, y;
    if (!a || !b || cJSON_IsNull(a) || cJSON_IsNull(b)) return true;
    if (json_as_double(a, &x) && json_as_double(b, &y)) return !(x < y) && !(x > y);
    return cJSON_Compare(a, b, true);
}

static bool spellings_agree(const struct config_context *x, const struct config_spellings *s)
{
    const cJSON *older = config_spelling_value(x->tree, s->older);
    const cJSON *newer = config_spelling_value(x->tree, s->newer);
    return s->agree ? s->agree(x, older, newer) : values_agree(older, newer);
}

/* The nth pair of spellings that a row reads; false: there is none. */
static bool pair_of_row(const struct config_row *row, size_t n, struct config_spellings *out)
{
    const struct config_spellings *pairs = row->how->spellings;
    if (row->also && n == 0) *out = (struct config_spellings){row->also, row->key, NULL};
    if (row->also) return n == 0;
    if (!pairs || !pairs[n].older) return false;
    *out = pairs[n];
    return true;
}

static bool row_has_clash(const struct config_context *x, struct config_spellings *out)
{
    if (!(x->row->directions & IMPORT)) return false;
    for (size_t n = 0; pair_of_row(x->row, n, out); n++)
        if (!spellings_agree(x, out)) return true;
    return false;
}

bool config_find_clash(const struct config_map *map, const cJSON *tree, struct arena *a,
                       struct config_spellings *out)
{
    for (size_t i = 0; i < map->num_rows; i++) {
        const struct config_context x = {map, &map->rows[i], (cJSON *)(uintptr_t)tree, a};
        if (row_has_clash(&x, out)) return true;
    }
    return false;
}

static const char *spelling_text(const cJSON *tree, const char *name, struct arena *a)
{
    const cJSON *item = config_spelling_value(tree, name);
    struct strbuf text = {0};
    if (json_as_text(item))
        strbuf_add_text(&text, json_as_text(item));
    else
        json_print(&text, item, -1);
    const char *out = arena_text(a, text.data ? text.data : "", text.length);
    strbuf_release(&text);
    return out;
}

enum status config_refuse_clash(const struct config_map *map, const cJSON *tree, struct arena *a,
                                struct error *err)
{
    struct config_spellings s;
    if (!config_find_clash(map, tree, a, &s)) return OK;
    return fail(err, ERR_CORRUPT, "%s: %s and %s are spellings of one field, but %.60s and %.60s",
                map->file.name, s.older, s.newer, spelling_text(tree, s.older, a),
                spelling_text(tree, s.newer, a));
}

void model_config_settle(const struct model_map *map, cJSON *hf_config, struct arena *a,
                         settle_visit *visit, void *context)
{
    struct config_spellings s;
    cJSON *own = map->config_in ? json_get(hf_config, map->config_in) : NULL;
    for (;;) {
        cJSON *joined = model_config_joined(map, hf_config);
        const cJSON *tree = joined ? joined : hf_config;
        const bool found = config_find_clash(&map->config, tree, a, &s);
        if (found) {
            const struct spelling_clash clash = {
                .names = {s.older, s.newer},
                .values = {spelling_text(tree, s.older, a), spelling_text(tree, s.newer, a)}};
            const char *removed = clash.names[visit(context, &clash)];
            remove_spelling(hf_config, removed);
            if (joined) remove_spelling(own, removed);
        }
        cJSON_Delete(joined);
        if (!found) return;
    }
}
