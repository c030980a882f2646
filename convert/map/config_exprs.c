/* config_exprs.c - reads members of the struct by expressions over the file's
 * fields, and writes fields of the file by expressions over the members. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "convert/map/model_map_internal.h"

/* ---- loading ---- */

static enum status find_member(const struct map_loader *l, const struct config_map *map,
                               struct config_expr *e)
{
    enum field_zero zero;
    const struct model_field *of_model = map->fields->is_model ? model_field_find(e->name) : NULL;
    e->field = map->fields->find(e->name, &zero);
    e->by_layer = of_model && of_model->by_layer ? of_model : NULL;
    if (e->field) return OK;
    for (e->layer_field = 0; map->fields->is_model && e->layer_field < NUM_LAYER_FIELDS;
         e->layer_field++)
        if (text_equal(layer_fields[e->layer_field].name, e->name)) return OK;
    return map_bad(l,
                   arena_printf(l->a, "\"%s\" is not the name of a field of the config", e->name));
}

static enum status take_expr(const struct map_loader *l, const cJSON *item, const char *name,
                             struct config_expr *e)
{
    *e = (struct config_expr){.name = name, .text = json_as_text(item)};
    if (!name) return map_bad(l, "an expression by itself needs the name of its field");
    return e->text ? OK : map_bad(l, arena_printf(l->a, "%s: not an expression", name));
}

/* Reads member `list` of a row; own: the field of a text by itself. */
static enum status take_exprs(const struct map_loader *l, const cJSON *row, const char *list,
                              const char *own, struct config_expr **out, size_t *count)
{
    const cJSON *item = json_get(row, list);
    struct config_expr *exprs;
    *out = NULL;
    *count = 0;
    if (!item) return OK;
    if (cJSON_IsObject(item)) {
        exprs = arena_array(l->a, (size_t)cJSON_GetArraySize(item) + 1, sizeof *exprs);
        for (const cJSON *i = item->child; i; i = i->next)
            TRY(take_expr(l, i, i->string, &exprs[(*count)++]));
    } else {
        exprs = arena_alloc(l->a, sizeof *exprs);
        TRY(take_expr(l, item, own, &exprs[(*count)++]));
    }
    *out = exprs;
    return *count ? OK : map_bad(l, arena_printf(l->a, "%s is empty", list));
}

enum status config_exprs_load(const struct map_loader *l, const struct config_map *map,
                              const cJSON *item, struct config_row *row)
{
    struct config_expr *reads, *writes;
    TRY(take_exprs(l, item, "read", row->megatron, &reads, &row->num_reads));
    TRY(take_exprs(l, item, "write", row->key, &writes, &row->num_writes));
    for (size_t i = 0; i < row->num_reads; i++)
        TRY(find_member(l, map, &reads[i]));
    row->reads = reads;
    row->writes = writes;
    return OK;
}

/* ---- from the file ---- */

static enum status not_of_kind(const struct config_context *x, const struct config_expr *e,
                               const char *what, struct error *err)
{
    return fail(err, ERR_CORRUPT, "%s: %s is not %s, by %s", x->map->file.name, e->name, what,
                e->text);
}

/* The term as a value of the member. */
static enum status scalar_of(const struct config_context *x, const struct config_expr *e,
                             const struct term *t, struct scalar *out, struct error *err)
{
    struct scalar s = {.kind = e->field->kind, .number = 0};
    const bool none = t->kind == TERM_NONE;
    int64_t whole = 0;
    switch (s.kind) {
    case FIELD_UINT:
        if (!none && (!term_as_whole(t, &whole) || whole < 0))
            return not_of_kind(x, e, "a whole number from 0 on", err);
        s.number = (uint64_t)whole;
        break;
    case FIELD_REAL:
        if (!none && (!term_as_real(t, &s.real) || !isfinite(s.real)))
            return not_of_kind(x, e, "a finite number", err);
        break;
    case FIELD_BOOL:
        if (!none && t->kind != TERM_BOOL) return not_of_kind(x, e, "true or false", err);
        s.truth = !none && t->truth;
        break;
    case FIELD_TEXT:
        if (!none && t->kind != TERM_TEXT) return not_of_kind(x, e, "a string", err);
        if (!none) s.text = arena_text(x->arena, t->text, t->length);
        break;
    }
    *out = s;
    return OK;
}

static enum status check_layers(const struct config_context *x, const struct config_expr *e,
                                const struct term *t, const struct model_config *c,
                                struct error *err)
{
    if (t->length == c->num_layers) return OK;
    return fail(err, ERR_CORRUPT, "%s: %s has %zu values for %" PRIu64 " layers, by %s",
                x->map->file.name, e->name, t->length, c->num_layers, e->text);
}

static enum status set_member(const struct config_context *x, const struct config_expr *e,
                              const struct term *t, void *to, struct error *err)
{
    struct scalar s, *values;
    const bool list = e->by_layer && t->kind == TERM_LIST;
    if (list) TRY(check_layers(x, e, t, to, err));
    if (list) {
        values = arena_array(x->arena, t->length, sizeof *values);
        for (size_t i = 0; i < t->length; i++)
            TRY(scalar_of(x, e, &t->items[i], &values[i], err));
        model_field_set_layers(e->by_layer, to, values);
        return OK;
    }
    TRY(scalar_of(x, e, t, &s, err));
    if (e->by_layer)
        ((struct model_config *)to)->declared[e->by_layer->declared - 1].by_layer = NULL;
    field_set(e->field, to, s);
    return OK;
}

/* Sets a feature of layers by a list of a truth value for each. */
static enum status set_layers(const struct config_context *x, const struct config_expr *e,
                              const struct term *t, struct model_config *c, struct error *err)
{
    if (t->kind == TERM_NONE) {
        model_config_set_layers(c, e->layer_field, NULL);
        return OK;
    }
    if (t->kind != TERM_LIST) return not_of_kind(x, e, "a list of one value for each layer", err);
    TRY(check_layers(x, e, t, c, err));
    bool *has = arena_array(x->arena, t->length, sizeof *has);
    for (size_t i = 0; i < t->length; i++)
        has[i] = term_is_true(&t->items[i]);
    model_config_set_layers(c, e->layer_field, has);
    return OK;
}

static enum status eval(const struct config_context *x, const void *record,
                        const struct config_expr *e, struct arena *lists, struct term *out,
                        struct error *err)
{
    struct map_names names = config_names(x->map, x->tree, record);
    names.arena = lists;
    enum status st = map_value(&names, e->text, out, err);
    if (st == ERR_CORRUPT) return fail_in(err, "%s", x->map->file.name);
    if (!st) return OK;
    (void)!fail_in(err, "%s: %s", x->map->file.name, e->name);
    if (err) err->code = ERR_CORRUPT;
    return ERR_CORRUPT;
}

static enum status read_exprs(const struct config_context *x, void *to, struct arena *lists,
                              struct error *err)
{
    for (size_t i = 0; i < x->row->num_reads; i++) {
        const struct config_expr *e = &x->row->reads[i];
        struct term t;
        TRY(eval(x, to, e, lists, &t, err));
        TRY(e->field ? set_member(x, e, &t, to, err) : set_layers(x, e, &t, to, err));
    }
    return OK;
}

enum status config_exprs_from(const struct config_context *x, void *to, struct error *err)
{
    struct arena lists;
    if (!x->row->num_reads) return x->row->field ? config_copy_from(x, to, err) : OK;
    arena_init(&lists);
    enum status st = read_exprs(x, to, &lists, err);
    arena_release(&lists);
    return st;
}

/* ---- to the file ---- */

cJSON *term_json(const struct term *t, struct arena *a)
{
    switch (t->kind) {
    case TERM_BOOL:
        return cJSON_CreateBool(t->truth);
    case TERM_WHOLE:
        return json_new_i64(t->whole);
    case TERM_REAL:
        return json_new_double(t->real);
    case TERM_TEXT:
        return cJSON_CreateString(arena_text(a, t->text, t->length));
    case TERM_LIST: {
        cJSON *list = cJSON_CreateArray();
        for (size_t i = 0; i < t->length; i++)
            cJSON_AddItemToArray(list, term_json(&t->items[i], a));
        return list;
    }
    case TERM_NONE:
        break;
    }
    return cJSON_CreateNull();
}

/* Sets tree[A][B] for the path "A.B"; makes objects that are not there. */
static void put_path(cJSON *tree, const char *path, cJSON *item)
{
    char name[128];
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        cJSON *object = cJSON_GetObjectItemCaseSensitive(tree, name);
        if (!cJSON_IsObject(object)) {
            object = cJSON_CreateObject();
            json_put(tree, name, object);
        }
        tree = object;
    }
    json_put(tree, path, item);
}

enum status config_exprs_to(const struct config_context *x, const void *from, struct error *err)
{
    struct arena lists;
    enum status st = OK;
    if (!x->row->num_writes) return x->row->key ? config_copy_to(x, from, err) : OK;
    arena_init(&lists);
    for (size_t i = 0; i < x->row->num_writes && !st; i++) {
        struct term t;
        st = eval(x, from, &x->row->writes[i], &lists, &t, err);
        if (!st) put_path(x->tree, x->row->writes[i].name, term_json(&t, &lists));
    }
    arena_release(&lists);
    return st;
}

/* ---- names ---- */

/* The end in an expression's path of a name, of which "_" stands for any part;
 * NULL: another path. */
static const char *behind_name(const char *path, const char *name)
{
    while (*name) {
        const size_t n = strcspn(name, ".");
        const bool any = path[0] == '_' && path[1] == '.';
        if (!any && (strncmp(path, name, n) || (name[n] == '.' && path[n] != '.'))) return NULL;
        path += any ? 1 : n;
        name += n;
        if (!*name) break;
        path++, name++;
    }
    return path;
}

/* Whether `text` has PREFIX.NAME as a whole word, by itself or with a member
 * behind it; with an empty name, any PREFIX.NAME. */
static enum naming find_path(const char *text, const char *prefix, const char *name)
{
    const size_t n = strlen(prefix), length = strlen(name);
    enum naming best = NOT_NAMED_AT_ALL;
    for (const char *p = text; p && (p = strstr(p, prefix)); p += n) {
        const bool is_member = p > text && (isalnum((unsigned char)p[-1]) || strchr("_.", p[-1]));
        if (is_member || p[n] != '.') continue;
        const char *end = behind_name(p + n + 1, name);
        if (!end) continue;
        if (length && (isalnum((unsigned char)*end) || *end == '_')) continue;
        if (!length || *end != '.') return NAMED_ITSELF;
        best = NAMED_BELOW;
    }
    return best;
}

enum naming config_expr_names(const struct config_map *map, const char *text, const char *name)
{
    const enum naming a = find_path(text, map->file.member, name),
                      b = find_path(text, "file", name);
    return a > b ? a : b;
}

bool config_expr_reads(const struct config_map *map, const char *text)
{
    return config_expr_names(map, text, "") != NOT_NAMED_AT_ALL;
}

enum naming config_exprs_read(const struct config_context *x, const char *name)
{
    enum naming best = NOT_NAMED_AT_ALL;
    for (size_t i = 0; i < x->row->num_reads; i++) {
        const enum naming one = config_expr_names(x->map, x->row->reads[i].text, name);
        if (one > best) best = one;
    }
    return best;
}

enum naming config_exprs_write(const struct config_row *row, const char *name)
{
    const size_t length = strlen(name);
    enum naming best = NOT_NAMED_AT_ALL;
    for (size_t i = 0; i < row->num_writes; i++) {
        const char *own = row->writes[i].name;
        if (strcmp(own, name) == 0) return NAMED_ITSELF;
        if (strncmp(own, name, length) == 0 && own[length] == '.') best = NAMED_BELOW;
    }
    return best;
}

bool config_exprs_say(const struct config_context *x, const void *record, const char *name,
                      const cJSON *item)
{
    struct arena lists;
    bool same = true;
    arena_init(&lists);
    for (size_t i = 0; i < x->row->num_writes; i++) {
        const struct config_expr *e = &x->row->writes[i];
        struct error why;
        struct term t;
        if (strcmp(e->name, name) != 0 || eval(x, record, e, &lists, &t, &why)) continue;
        cJSON *written = term_json(&t, &lists);
        double m, n;
        same = json_as_double(item, &m) && json_as_double(written, &n)
                   ? !(m < n) && !(m > n)
                   : cJSON_Compare(item, written, true);
        cJSON_Delete(written);
    }
    arena_release(&lists);
    return same;
}
