/* config_unknown.c - finds the fields of a config file that are neither read
 * nor inert. */
#include <fnmatch.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/model_map_internal.h"

struct unknown_search {
    const struct config_read *reads;
    size_t num_reads;
    const cJSON *tree;
    struct arena arena;
    void (*visit)(void *context, const char *name, const char *value);
    void *context;
};

/* ---- fields that rows read ---- */

/* How rows read a field; the highest value of several rows counts. */
enum reading {
    NOT_NAMED, /* no row names it */
    UNUSED,    /* in a condition, or a row that does not apply or is only written */
    NOT_TAKEN, /* its row takes another type */
    TAKEN
};

static const struct config_how *how_of_key(const struct config_row *row, const char *name)
{
    for (size_t i = 0; i < COUNT(row->how->keys); i++)
        if (text_equal(row->how->keys[i], name)) return row->how;
    return NULL;
}

static bool row_names(const struct config_map *map, const struct config_row *row, const char *name)
{
    const struct config_context x = {.map = map, .row = row};
    const bool constant = row->value && row->key; /* is_constant */
    return (!constant && text_equal(row->key, name)) || text_equal(row->also, name) ||
           how_of_key(row, name) || config_exprs_read(&x, name) || config_exprs_write(row, name);
}

/* Whether any row of the map reads a field; it may only be written. */
static bool is_read(const struct config_map *map, const char *name)
{
    for (size_t i = 0; i < map->num_rows; i++) {
        const struct config_row *row = &map->rows[i];
        const struct config_context x = {.map = map, .row = row};
        const bool own = text_equal(row->key, name) && (row->field || !row->num_writes);
        if (own || text_equal(row->also, name) || how_of_key(row, name) ||
            config_exprs_read(&x, name))
            return true;
    }
    return false;
}

/* How a flag reads an item: as a bool, or a number like Python. */
static enum reading how_flag_reads(const cJSON *item)
{
    return cJSON_IsBool(item) || json_is_number(item) ? UNUSED : NOT_TAKEN;
}

/* Whether the row's member changes what is computed. */
static bool row_matters(const struct config_map *map, const struct config_row *row)
{
    const struct model_field *f = row->megatron ? model_field_find(row->megatron) : NULL;
    return map->fields->is_model && !(f && f->role == FIELD_TRAINING);
}

/* Reads the field again into a copy of the struct. In a file that is not
 * partial, every row took its value; a field that is only written must have the
 * value that would be. */
static enum reading how_row_reads(struct unknown_search *s, const struct config_read *r,
                                  const struct config_row *row, const cJSON *item)
{
    const struct config_context x = {r->map, row, (cJSON *)(uintptr_t)s->tree, &s->arena};
    struct error why;
    bool applies;
    if (!r->map->partial && is_read(r->map, item->string)) return TAKEN;
    if (!r->map->partial)
        return !r->record || config_exprs_say(&x, r->record, item->string, item) ? TAKEN
                                                                                 : NOT_TAKEN;
    if (!(row->directions & IMPORT) || !row_matters(r->map, row)) return UNUSED;
    void *copy = arena_copy(&s->arena, r->record, r->map->fields->size);
    if (config_row_applies(&x, copy, &applies, &why) || !applies) return UNUSED;
    if (row->num_writes && !row->num_reads && !row->field) return how_flag_reads(item);
    return row->how->from_file(&x, copy, &why) ? NOT_TAKEN : TAKEN;
}

static enum reading how_map_reads(struct unknown_search *s, const struct config_read *r,
                                  const cJSON *item)
{
    const struct model_map *model = r->map->model;
    const char *name = item->string;
    enum reading best = NOT_NAMED;
    for (size_t i = 0; i < r->map->num_rows; i++) {
        const struct config_row *row = &r->map->rows[i];
        enum reading one = row_names(r->map, row, name) ? how_row_reads(s, r, row, item)
                           : config_expr_names(r->map, row->when, name) ? UNUSED
                                                                        : NOT_NAMED;
        if (one > best) best = one;
    }
    for (size_t i = 0; model && i < model->num_unsupported; i++)
        if (config_expr_names(r->map, model->unsupported[i].when, name)) best = TAKEN;
    return best;
}

static enum reading how_read(struct unknown_search *s, const cJSON *item)
{
    enum reading best = NOT_NAMED;
    for (size_t i = 0; i < s->num_reads; i++) {
        enum reading one = how_map_reads(s, &s->reads[i], item);
        if (one > best) best = one;
    }
    return best;
}

/* The members that a row reads of an object; NULL: all. */
static const char *const *members_of(const struct unknown_search *s, const char *name)
{
    for (size_t i = 0; i < s->num_reads; i++)
        for (size_t k = 0; k < s->reads[i].map->num_rows; k++) {
            const struct config_how *how = how_of_key(&s->reads[i].map->rows[k], name);
            if (how && how->members) return how->members;
        }
    return NULL;
}

/* ---- inert fields ---- */

bool config_is_unset(const cJSON *item)
{
    const char *text = json_as_text(item);
    double number;
    if (cJSON_IsNull(item) || cJSON_IsFalse(item)) return true;
    if (cJSON_IsArray(item) || cJSON_IsObject(item)) return !item->child;
    if (text) return !*text;
    return json_as_double(item, &number) && !(number < 0) && !(number > 0);
}

/* Whether a value equals the listed one; a listed text is a glob. */
static bool same_value(const cJSON *listed, const cJSON *item)
{
    const char *glob = json_as_text(listed), *text = json_as_text(item);
    double a, b;
    if (glob && text) return fnmatch(glob, text, 0) == 0;
    if (json_as_double(listed, &a) && json_as_double(item, &b)) return !(a < b) && !(a > b);
    return cJSON_Compare(listed, item, true);
}

static bool is_listed_value(const struct inert_field *f, const cJSON *item)
{
    for (const cJSON *v = f->values ? f->values->child : NULL; v; v = v->next)
        if (same_value(v, item)) return true;
    return !f->values;
}

/* Whether a row writes this constant to the field: then it is inert. */
static bool is_constant(const struct config_map *map, const char *name, const cJSON *item)
{
    for (size_t i = 0; i < map->num_rows; i++)
        if (map->rows[i].value && text_equal(map->rows[i].key, name) &&
            same_value(map->rows[i].value, item))
            return true;
    return false;
}

/* Whether a glob is of paths below a name, as "a.*.c" is below "a" and "a.b". */
static bool is_below(const char *glob, const char *name)
{
    char head[128];
    size_t length = 0;
    /* as many parts as the name has */
    for (const char *p = name; p; p = *p ? strchr(p + 1, '.') : NULL) {
        length += strcspn(glob + length, ".");
        if (glob[length] != '.' || length >= sizeof head) return false;
        length++;
    }
    memcpy(head, glob, length - 1);
    head[length - 1] = '\0';
    return fnmatch(head, name, FNM_PERIOD) == 0;
}

/* The maps' inert (or watched) entries for a field. */
struct listing {
    bool named, inert; /* the field is listed; with this value */
    bool below;        /* fields below it are listed */
    bool true_counts;  /* true is listed as inert: false is a value */
};

static struct listing listing_of(const struct unknown_search *s, const char *path,
                                 const cJSON *item)
{
    static const cJSON truth = {.type = cJSON_True};
    struct listing out = {.named = false};
    for (size_t m = 0; m < s->num_reads; m++) {
        out.inert |= is_constant(s->reads[m].map, path, item);
        for (size_t i = 0; i < s->reads[m].map->num_inert; i++) {
            const struct inert_field *f = &s->reads[m].map->inert[i];
            out.below |= is_below(f->name, path);
            if (fnmatch(f->name, path, 0)) continue;
            out.named = true;
            out.inert |= is_listed_value(f, item);
            out.true_counts |= f->values && is_listed_value(f, &truth);
        }
    }
    return out;
}

/* ---- all fields ---- */

static void visit_unknown(struct unknown_search *s, const char *path, const cJSON *item)
{
    struct strbuf text = {0};
    if (json_as_text(item))
        strbuf_add_text(&text, json_as_text(item));
    else
        json_print(&text, item, -1);
    s->visit(s->context, path, text.data ? text.data : "");
    strbuf_release(&text);
}

/* Whether each item of a list is listed as "NAME.*". */
static bool items_are_inert(struct unknown_search *s, const char *path, const cJSON *list)
{
    const char *below = arena_printf(&s->arena, "%s.*", path);
    for (const cJSON *i = list->child; i; i = i->next)
        if (!config_is_unset(i) && !listing_of(s, below, i).inert) return false;
    return true;
}

/* Visits an unread field if it is unknown. If the maps list fields below an
 * object or a list, its items are judged instead. */
static void search_unread(struct unknown_search *s, const char *path, const cJSON *item)
{
    const struct listing l = listing_of(s, path, item);
    if (l.inert || (config_is_unset(item) && !(cJSON_IsFalse(item) && l.true_counts))) return;
    if (l.below && cJSON_IsArray(item) && items_are_inert(s, path, item)) return;
    if (l.below && cJSON_IsObject(item))
        for (const cJSON *i = item->child; i; i = i->next)
            search_unread(s, arena_printf(&s->arena, "%s.%s", path, i->string), i);
    else if (l.named || l.below || !s->reads[0].map->file.lists_unknown)
        visit_unknown(s, path, item);
}

/* How expressions name a field, and whether they read members of it alone. */
static enum naming naming_of(const struct unknown_search *s, const char *path)
{
    enum naming best = NOT_NAMED_AT_ALL;
    for (size_t m = 0; m < s->num_reads; m++) {
        const struct config_map *map = s->reads[m].map;
        const struct model_map *model = map->model;
        for (size_t i = 0; i < map->num_rows; i++) {
            const struct config_context x = {.map = map, .row = &map->rows[i]};
            const enum naming read = config_exprs_read(&x, path),
                              written = config_exprs_write(x.row, path),
                              asked = config_expr_names(map, x.row->when, path);
            if (read > best) best = read;
            if (written > best) best = written;
            if (asked > best) best = asked;
        }
        for (size_t i = 0; model && i < model->num_unsupported; i++) {
            const enum naming asked = config_expr_names(map, model->unsupported[i].when, path);
            if (asked > best) best = asked;
        }
    }
    return best;
}

/* Visits the unknown members of an object of which expressions read some. */
static void search_below(struct unknown_search *s, const char *path, const cJSON *object)
{
    for (const cJSON *i = object->child; i; i = i->next) {
        const char *own = arena_printf(&s->arena, "%s.%s", path, i->string);
        const enum naming naming = naming_of(s, own);
        if (naming == NOT_NAMED_AT_ALL)
            search_unread(s, own, i);
        else if (naming == NAMED_BELOW && cJSON_IsObject(i))
            search_below(s, own, i);
    }
}

/* Visits the unknown members of an object whose `members` are read. */
static void search_members(struct unknown_search *s, const char *path, const cJSON *object,
                           const char *const *members)
{
    for (const cJSON *i = object->child; i; i = i->next) {
        size_t k = 0;
        while (members[k] && strcmp(members[k], i->string))
            k++;
        const char *own = arena_printf(&s->arena, "%s.%s", path, i->string);
        const enum naming naming = members[k] ? NAMED_ITSELF : naming_of(s, own);
        if (naming == NOT_NAMED_AT_ALL)
            search_unread(s, own, i);
        else if (naming == NAMED_BELOW && cJSON_IsObject(i))
            search_below(s, own, i);
    }
}

/* Whether a file that need not describe the whole model lists values of a field
 * that its row takes, and this is another one: a word of another program. */
static bool is_foreign_value(const struct unknown_search *s, const cJSON *item)
{
    const struct listing l = listing_of(s, item->string, item);
    return s->reads[0].map->partial && l.named && !l.inert && !config_is_unset(item);
}

static void search_field(struct unknown_search *s, const cJSON *item)
{
    const enum reading read = how_read(s, item);
    const char *const *members = cJSON_IsObject(item) ? members_of(s, item->string) : NULL;
    if (read == NOT_NAMED)
        search_unread(s, item->string, item);
    else if (!members && cJSON_IsObject(item) && naming_of(s, item->string) == NAMED_BELOW)
        search_below(s, item->string, item);
    else if (members)
        search_members(s, item->string, item, members);
    else if ((read == NOT_TAKEN && !config_is_unset(item)) ||
             (read == TAKEN && is_foreign_value(s, item)))
        visit_unknown(s, item->string, item);
}

void config_unknown(const struct config_read *reads, size_t num_reads, const cJSON *tree,
                    void (*visit)(void *context, const char *name, const char *value),
                    void *context)
{
    struct unknown_search s = {
        .reads = reads, .num_reads = num_reads, .tree = tree, .visit = visit, .context = context};
    arena_init(&s.arena);
    for (const cJSON *i = cJSON_IsObject(tree) ? tree->child : NULL; i; i = i->next)
        search_field(&s, i);
    arena_release(&s.arena);
}
