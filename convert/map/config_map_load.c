/* config_map_load.c - reads the rows of a config map from JSON, and tries each
 * on a sample. */
#include <fnmatch.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/model_map_internal.h"

/* ---- one row ---- */

static enum status read_directions(const struct map_loader *l, const cJSON *item,
                                   struct config_row *row)
{
    const char *only;
    TRY(map_take_text(l, item, "only", &only));
    row->directions = IMPORT | EXPORT;
    if (only && strcmp(only, "import") == 0)
        row->directions = IMPORT;
    else if (only && strcmp(only, "export") == 0)
        row->directions = EXPORT;
    else if (only)
        return map_bad(l, "only must be import or export");
    return OK;
}

/* A row with expressions copies what they leave out: its member, its field. */
static enum status check_expr_row(const struct map_loader *l, const struct config_map *map,
                                  const struct config_row *row)
{
    const bool copies = !row->num_reads || !row->num_writes;
    if (row->megatron && !row->field)
        return map_bad(l, "megatron is not the name of a field of the config");
    if (row->value) return map_bad(l, "value does not go with read or write");
    if ((row->absent || row->null) && (row->num_reads || !row->field || !row->key))
        return map_bad(l, "default and null do not go with read");
    if (copies && row->megatron && !row->key && (row->directions & EXPORT) && !row->num_reads)
        return map_bad(l, arena_printf(l->a, "%s is required", map->file.member));
    return OK;
}

/* Checks that the row has the members that its `how` needs, and no others. */
static enum status check_members(const struct map_loader *l, const struct config_map *map,
                                 const struct config_row *row)
{
    const struct config_how *how = row->how;
    const unsigned may = how->has | how->may;
    const bool special = !(how->has & (ROW_FIELD | ROW_KEY));
    if (how->has & ROW_EXPRS) return check_expr_row(l, map, row);
    if (special && (row->megatron || row->key || row->value))
        return map_bad(l, arena_printf(l->a, "this how takes neither megatron nor %s nor value",
                                       map->file.member));
    if (row->absent && !(may & ROW_DEFAULT)) return map_bad(l, "this how takes no default");
    if (row->null && special) return map_bad(l, "this how takes no null");
    if (special && !map->fields->is_model) return map_bad(l, "this how is for fields of a model");
    if (special) return OK;
    if ((how->has & ROW_FIELD) && !row->field)
        return map_bad(l, "megatron is not the name of a field of the config");
    if (!(how->has & ROW_FIELD) && row->megatron)
        return map_bad(l, "a row with a constant has no megatron");
    if (how->only_kind && row->field->kind != how->kind)
        return map_bad(l,
                       arena_printf(l->a, "how \"%s\" is for fields of another type", how->name));
    if (!(how->has & ROW_VALUE) != !row->value || !(how->has & ROW_KEY) != !row->key)
        return map_bad(
            l, arena_printf(l->a, "exactly one of %s and value is required", map->file.member));
    if (row->value && row->null) return map_bad(l, "null does not go with value");
    if (row->also && !row->key)
        return map_bad(l, arena_printf(l->a, "also needs %s", map->file.member));
    if (row->otherwise && (!row->when || !row->key))
        return map_bad(l, arena_printf(l->a, "else needs when and %s", map->file.member));
    return OK;
}

static enum status take_texts(const struct map_loader *l, const struct config_map *map,
                              const cJSON *item, struct config_row *row, const char **how)
{
    TRY(map_take_text(l, item, "megatron", &row->megatron));
    TRY(map_take_text(l, item, map->file.member, &row->key));
    TRY(map_take_text(l, item, "also", &row->also));
    TRY(map_take_text(l, item, "how", how));
    TRY(map_take_text(l, item, "when", &row->when));
    return config_exprs_load(l, map, item, row);
}

static enum status load_config_row(const struct map_loader *l, const struct config_map *map,
                                   const cJSON *item, struct config_row *row)
{
    const char *how;
    TRY(take_texts(l, map, item, row, &how));
    TRY(read_directions(l, item, row));
    row->value = json_get(item, "value");
    row->absent = json_get(item, "default");
    row->null = json_get(item, "null");
    row->otherwise = json_get(item, "else");
    const bool has_exprs = row->num_reads || row->num_writes;
    const char *usual = has_exprs                    ? "expression"
                        : !row->value                ? "copy"
                        : row->key && !row->megatron ? "constant"
                                                     : "value";
    if (how && has_exprs) return map_bad(l, "how does not go with read or write");
    row->how = config_how_find(how ? how : usual);
    if (!row->how) return map_bad(l, arena_printf(l->a, "how \"%s\" is not known", how));
    if (row->megatron) row->field = map->fields->find(row->megatron, &row->zero);
    return check_members(l, map, row);
}

/* ---- the row with the values of a sample ---- */

/* Checks that the row's "default" and "null" are values of its member, and that
 * its conditions can be evaluated. */
static enum status try_row(const struct map_loader *l, const struct config_map *map,
                           const struct config_row *row)
{
    void *sample = arena_copy(l->a, map->fields->sample, map->fields->size);
    cJSON *tree = cJSON_CreateObject();
    const struct config_context x = {map, row, tree, l->a};
    bool applies;
    enum status st = config_row_applies(&x, sample, &applies, l->err);
    if (!st && row->num_writes) st = row->how->to_file(&x, sample, l->err);
    if (!st && row->num_reads) st = row->how->from_file(&x, sample, l->err);
    if (!st && (row->absent || row->value)) st = row->how->from_file(&x, sample, l->err);
    if (!st && row->null) {
        cJSON_AddNullToObject(tree, row->key);
        st = row->how->from_file(&x, sample, l->err);
    }
    cJSON_Delete(tree);
    return st ? map_bad_in(l) : OK;
}

/* ---- proof of a row with expressions ---- */

/* Gives every second layer another value. */
static void vary_layers(const struct model_field *f, struct scalar value, struct model_config *c,
                        struct arena *a)
{
    struct scalar *values = arena_array(a, c->num_layers, sizeof *values);
    for (uint64_t l = 0; l < c->num_layers; l++)
        values[l] = l % 2 ? value : (struct scalar){.kind = value.kind};
    model_field_set_layers(f, c, values);
}

/* Gives the member another value than the sample's. */
static void vary(const struct config_expr *e, void *record, struct arena *a)
{
    struct scalar s = {.kind = e->field ? e->field->kind : FIELD_BOOL};
    if (!e->field) {
        struct model_config *c = record;
        bool *has = arena_array(a, c->num_layers, sizeof *has);
        for (uint64_t l = 0; l < c->num_layers; l++)
            has[l] = l % 2;
        model_config_set_layers(c, e->layer_field, has);
        return;
    }
    if (s.kind == FIELD_UINT) s.number = 7;
    if (s.kind == FIELD_REAL) s.real = 1.5;
    if (s.kind == FIELD_BOOL) s.truth = true;
    if (s.kind != FIELD_TEXT) field_set(e->field, record, s);
    if (e->by_layer && s.kind != FIELD_TEXT) vary_layers(e->by_layer, s, record, a);
}

static enum status compare_member(const struct map_loader *l, const struct config_expr *e,
                                  const void *wrote, const void *read)
{
    static const struct scalar_style style = {6, "true", "false", "not given"};
    const char *a, *b;
    if (e->by_layer) {
        if (model_field_equal(e->by_layer, wrote, read)) return OK;
        a = model_config_text(wrote, e->name, l->a);
        b = model_config_text(read, e->name, l->a);
    } else if (e->field) {
        if (field_equal(e->field, wrote, read)) return OK;
        a = scalar_text(field_get(e->field, wrote), &style, l->a);
        b = scalar_text(field_get(e->field, read), &style, l->a);
    } else {
        if (layer_field_equal(e->layer_field, wrote, read)) return OK;
        a = model_config_text(wrote, e->name, l->a);
        b = model_config_text(read, e->name, l->a);
    }
    return map_bad(l, arena_printf(l->a, "it writes %s %s so that it reads as %s", e->name, a, b));
}

/* Writes a record to an empty file and reads that into *back, a sample. */
static enum status write_and_read(const struct map_loader *l, const struct config_map *map,
                                  const struct config_row *row, const void *record, void *back)
{
    cJSON *tree = cJSON_CreateObject();
    const struct config_context x = {map, row, tree, l->a};
    enum status st = row->how->to_file(&x, record, l->err);
    if (!st) st = row->how->from_file(&x, back, l->err);
    cJSON_Delete(tree);
    return st ? map_bad_in(l) : OK;
}

/* Proves that a row keeps what it read: written, it reads as the same again.
 * Tries the sample, and one in which the members that depend on the file have
 * other values. */
static enum status prove_row(const struct map_loader *l, const struct config_map *map,
                             const struct config_row *row)
{
    for (unsigned varied = 0; varied < 2; varied++) {
        void *records[3];
        for (size_t i = 0; i < COUNT(records); i++)
            records[i] = arena_copy(l->a, map->fields->sample, map->fields->size);
        for (size_t i = 0; varied && i < row->num_reads; i++)
            if (config_expr_reads(map, row->reads[i].text)) vary(&row->reads[i], records[0], l->a);
        for (unsigned i = 0; i < 2; i++)
            TRY(write_and_read(l, map, row, records[i], records[i + 1]));
        for (size_t i = 0; i < row->num_reads; i++)
            TRY(compare_member(l, &row->reads[i], records[1], records[2]));
    }
    return OK;
}

static enum status check_row(const struct map_loader *l, const struct config_map *map,
                             const struct config_row *row)
{
    struct map_loader own = *l;
    struct arena a;
    const bool both = row->directions == (IMPORT | EXPORT) && (row->num_writes || row->key);
    arena_init(&a);
    own.a = &a;
    enum status st = try_row(&own, map, row);
    if (!st && row->num_reads && both) st = prove_row(&own, map, row);
    arena_release(&a);
    return st;
}

/* ---- all rows ---- */

/* Whether a row sets this member. */
static bool row_sets(const struct config_row *row, const char *member)
{
    const char *const *fields = row->how->fields;
    if (text_equal(row->megatron, member)) return true;
    for (size_t i = 0; i < row->num_reads; i++)
        if (strcmp(row->reads[i].name, member) == 0) return true;
    for (size_t i = 0; i < COUNT(row->how->fields) && fields[i]; i++)
        if (fnmatch(fields[i], member, 0) == 0) return true;
    return false;
}

bool config_rows_set(const struct config_map *map, const char *member)
{
    for (size_t i = 0; i < map->num_rows; i++)
        if (row_sets(&map->rows[i], member)) return true;
    return false;
}

/* Whether a row replaces an inherited one: it sets one of its members or, if it
 * sets none, writes its field. */
static bool replaces(const struct config_row *row, const struct config_row *old)
{
    if (row->megatron) return row_sets(old, row->megatron);
    for (size_t i = 0; i < row->num_reads; i++)
        if (row_sets(old, row->reads[i].name)) return true;
    if (row->num_reads || old->megatron || old->num_reads || row->how != old->how) return false;
    if (!row->num_writes || row->key) return text_equal(old->key, row->key);
    return old->num_writes && strcmp(old->writes[0].name, row->writes[0].name) == 0;
}

/* Drops the inherited rows that the row replaces; *place is the position of the
 * first. */
static void drop_rows(struct config_map *map, const struct config_row *row, size_t *place)
{
    size_t kept = 0;
    *place = SIZE_MAX;
    for (size_t i = 0; i < map->num_rows; i++) {
        const struct config_row *old = &map->rows[i];
        if (old->owner != row->owner && replaces(row, old)) {
            if (*place == SIZE_MAX) *place = kept;
            continue;
        }
        map->rows[kept++] = *old;
    }
    map->num_rows = kept;
}

static void place_row(const struct map_loader *l, struct config_map *map,
                      const struct config_row *row)
{
    size_t place;
    drop_rows(map, row, &place);
    if (place == SIZE_MAX) place = map->num_rows;
    (void)ARENA_PUSH(l->a, map->rows, map->num_rows, map->capacity);
    memmove(map->rows + place + 1, map->rows + place,
            (map->num_rows - 1 - place) * sizeof *map->rows);
    map->rows[place] = *row;
}

/* Whether a row belongs to the map's file. In a list for several files, a row
 * names its file by a field of it or by "of"; a row without either belongs to
 * all files. */
static bool is_of_file(const struct config_map *map, const cJSON *item)
{
    static const char *const members[] = {"args", "run_config"};
    const char *of = json_as_text(json_get(item, "of"));
    bool named = false;
    if (of) return strcmp(of, map->file.member) == 0;
    if (json_get(item, map->file.member)) return true;
    for (size_t i = 0; i < 2; i++)
        named |= json_get(item, members[i]) != NULL;
    return !named;
}

enum status config_rows_load(struct map_loader *l, const cJSON *list, struct config_map *map)
{
    static const char family[] =
        "megatron hf also how read write value default null only when else ";
    static const char program[] =
        "megatron args run_config of how read write value default null only when else ";
    size_t n = 0;
    if (list && !cJSON_IsArray(list)) return map_bad(l, "config is not a list");
    for (const cJSON *i = list ? list->child : NULL; i; i = i->next, n++) {
        struct config_row row = {.owner = l->map};
        l->where = map_row_name(l, "config", n, i,
                                json_get(i, "megatron") ? "megatron"
                                : json_get(i, "how")    ? "how"
                                                        : map->file.member);
        TRY(map_check_keys(l, i, map->partial ? program : family));
        if (!is_of_file(map, i)) continue;
        TRY(load_config_row(l, map, i, &row));
        TRY(check_row(l, map, &row));
        place_row(l, map, &row);
    }
    return OK;
}

/* ---- fields that are inert ---- */

/* Adds an inert field, or replaces the base map's of its name. */
static void put_inert(const struct map_loader *l, struct config_map *map,
                      const struct inert_field *field)
{
    for (size_t i = 0; i < map->num_inert; i++)
        if (strcmp(map->inert[i].name, field->name) == 0) {
            map->inert[i] = *field;
            return;
        }
    *ARENA_PUSH(l->a, map->inert, map->num_inert, map->inert_capacity) = *field;
}

enum status config_inert_load(struct map_loader *l, const cJSON *inert, struct config_map *map)
{
    l->where = "inert";
    if (inert && !cJSON_IsObject(inert)) return map_bad(l, "is not an object");
    for (const cJSON *i = inert ? inert->child : NULL; i; i = i->next) {
        const bool any = text_equal(json_as_text(i), "*");
        if (!any && !cJSON_IsArray(i))
            return map_bad(
                l, arena_printf(l->a, "%s is neither \"*\" nor a list of values", i->string));
        put_inert(l, map, &(struct inert_field){i->string, any ? NULL : i});
    }
    return OK;
}

/* ---- maps of other files than config.json ---- */

enum status config_map_make(const struct config_file *file, const struct config_fields *fields,
                            const cJSON *list, const cJSON *inert, struct arena *a,
                            const struct config_map **out, struct error *err)
{
    struct model_map *none = arena_alloc(a, sizeof *none);
    struct config_map *map = arena_alloc(a, sizeof *map);
    struct map_loader l = {.a = a, .map = none, .where = "the map", .err = err};
    none->family = file->name;
    *map = (struct config_map){.file = *file, .fields = fields, .partial = true};
    TRY(config_rows_load(&l, list, map));
    TRY(config_inert_load(&l, inert, map));
    *out = map;
    return OK;
}
