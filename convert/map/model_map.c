/* model_map.c - reads and checks maps, and finds the one that fits. */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/fields.h"
#include "convert/map/params_internal.h"

enum { MAP_CAP = 4 << 20 };

const struct embedded_file *embedded_file_find(const char *name)
{
    size_t i = 0;
    while (strcmp(embedded_models[i].name, name))
        i++;
    return &embedded_models[i];
}

cJSON *embedded_file_parse(const char *name)
{
    const struct embedded_file *file = embedded_file_find(name);
    struct error err = {0};
    cJSON *tree;
    if (json_parse(file->text, file->length, JSON_STRICT, &tree, &err)) {
        fprintf(stderr, "%s: %s\n", name, err.text);
        abort();
    }
    return tree;
}

enum status map_bad(const struct map_loader *l, const char *what)
{
    return fail(l->err, ERR_USAGE, "model map %s: %s: %s",
                l->map->family ? l->map->family : "(no family)", l->where, what);
}

/* ---- single items ---- */

enum status map_take_text(const struct map_loader *l, const cJSON *from, const char *name,
                          const char **out)
{
    const cJSON *item = json_get(from, name);
    *out = json_as_text(item);
    if (item && !*out) return map_bad(l, arena_printf(l->a, "%s is not a string", name));
    return OK;
}

enum status map_take_texts(const struct map_loader *l, const cJSON *item, const char ***out,
                           unsigned *count)
{
    *count = 0;
    *out = NULL;
    if (!item) return OK;
    const cJSON *first = cJSON_IsArray(item) ? item->child : item;
    unsigned n = 0;
    for (const cJSON *i = first; i; i = cJSON_IsArray(item) ? i->next : NULL)
        n++;
    *out = arena_array(l->a, n, sizeof **out);
    for (const cJSON *i = first; i; i = cJSON_IsArray(item) ? i->next : NULL) {
        (*out)[*count] = json_as_text(i);
        if (!(*out)[(*count)++]) return map_bad(l, "a name that is not a string");
    }
    return OK;
}

enum status map_take_items(const struct map_loader *l, const cJSON *from, const char *name,
                           bool object, const cJSON **first)
{
    const cJSON *item = json_get(from, name);
    *first = NULL;
    if (item && !(object ? cJSON_IsObject(item) : cJSON_IsArray(item)))
        return map_bad(l,
                       arena_printf(l->a, "%s is not %s", name, object ? "an object" : "a list"));
    if (item) *first = item->child;
    return OK;
}

/* Whether a list of words, with a blank after each, has this one. */
static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = words; *p; p += strcspn(p, " ") + 1)
        if (n && strcspn(p, " ") == n && memcmp(p, word, n) == 0) return true;
    return false;
}

enum status map_check_keys(const struct map_loader *l, const cJSON *item, const char *known)
{
    if (!cJSON_IsObject(item)) return map_bad(l, "not an object");
    for (const cJSON *i = item->child; i; i = i->next)
        if (!has_word(known, i->string))
            return map_bad(l, arena_printf(l->a, "\"%s\" is not one of: %s", i->string, known));
    return OK;
}

enum status map_read_sizes(const struct map_loader *l, const cJSON *from, const char *member,
                           struct size **sizes, size_t *count, size_t *capacity)
{
    const cJSON *first;
    TRY(map_take_items(l, from, member, true, &first));
    for (const cJSON *i = first; i; i = i->next) {
        size_t at = 0;
        if (!json_as_text(i))
            return map_bad(l, arena_printf(l->a, "size %s is not a string", i->string));
        while (at < *count && strcmp((*sizes)[at].name, i->string))
            at++;
        struct size s = {i->string, json_as_text(i)};
        if (at < *count)
            (*sizes)[at] = s;
        else
            *ARENA_PUSH(l->a, *sizes, *count, *capacity) = s;
    }
    return OK;
}

const char *map_row_name(struct map_loader *l, const char *list, size_t n, const cJSON *item,
                         const char *key)
{
    const char *name = json_as_text(json_get(item, key));
    return name ? arena_printf(l->a, "%s[%zu] (%s)", list, n, name)
                : arena_printf(l->a, "%s[%zu]", list, n);
}

static enum status read_unsupported(struct map_loader *l, const cJSON *tree)
{
    struct model_map *map = l->map;
    const cJSON *rows;
    size_t n = 0;
    TRY(map_take_items(l, tree, "unsupported", false, &rows));
    if (!rows) return OK;
    const size_t inherited = map->num_unsupported;
    struct unsupported *all = arena_array(
        l->a, inherited + (size_t)cJSON_GetArraySize(json_get(tree, "unsupported")), sizeof *all);
    if (inherited) memcpy(all, map->unsupported, inherited * sizeof *all);
    map->unsupported = all;
    for (const cJSON *i = rows; i; i = i->next, n++) {
        struct unsupported u;
        size_t at = 0;
        l->where = map_row_name(l, "unsupported", n, i, "when");
        TRY(map_check_keys(l, i, "when why value "));
        TRY(map_take_text(l, i, "when", &u.when));
        TRY(map_take_text(l, i, "why", &u.why));
        TRY(map_take_text(l, i, "value", &u.value));
        if (!u.when || !u.why) return map_bad(l, "when and why are required");
        TRY(map_check_unsupported(l, &u));
        while (at < inherited && strcmp(all[at].why, u.why))
            at++;
        all[at < inherited ? at : map->num_unsupported++] = u;
    }
    return OK;
}

/* ---- rows of the tensors ---- */

/* The pattern with `rest` in place of "...". */
static const char *fill_rest(const struct map_loader *l, const char *pattern, const char *rest)
{
    const char *at = strstr(pattern, "...");
    if (!at) return pattern;
    return arena_printf(l->a, "%.*s%s%s", (int)(at - pattern), pattern, rest ? rest : "", at + 3);
}

static enum status read_how_part(const struct map_loader *l, const cJSON *item, const char *rest,
                                 unsigned n, struct row_part *part)
{
    uint64_t tensor = n;
    TRY(map_check_keys(l, item, "megatron hf tensor "));
    TRY(map_take_text(l, item, "megatron", &part->megatron));
    TRY(map_take_text(l, item, "hf", &part->hf));
    const cJSON *index = json_get(item, "tensor");
    if (!part->megatron || !part->hf || (index && !json_as_u64(index, &tensor)) || tensor > 64)
        return map_bad(l, "a part must be {megatron, hf [, tensor]}");
    *part = (struct row_part){fill_rest(l, part->megatron, rest), fill_rest(l, part->hf, rest),
                              (unsigned)tensor};
    return OK;
}

static enum status read_how(const struct map_loader *l, const char *rest, struct tensor_row *row)
{
    const cJSON *how = json_get(l->own, row->how);
    bool has_rest = false;
    if (!how) how = json_get(l->maps->hows, row->how);
    if (!cJSON_IsArray(how) || !how->child)
        return map_bad(l, arena_printf(l->a, "how \"%s\" is not known", row->how));
    row->parts = arena_array(l->a, (size_t)cJSON_GetArraySize(how), sizeof *row->parts);
    for (const cJSON *i = how->child; i; i = i->next, row->num_parts++) {
        TRY(read_how_part(l, i, rest, row->num_parts, &row->parts[row->num_parts]));
        has_rest |= strstr(json_as_text(json_get(i, "megatron")), "...") != NULL;
    }
    if (rest && !has_rest)
        return map_bad(l, arena_printf(l->a, "how \"%s\" has no \"...\" to hold rest", row->how));
    return OK;
}

static enum status read_parts(const struct map_loader *l, const cJSON *item, struct tensor_row *row)
{
    const char *shape, *hf_shape, *rest;
    TRY(map_take_text(l, item, "shape", &shape));
    TRY(map_take_text(l, item, "hf_shape", &hf_shape));
    TRY(map_take_text(l, item, "rest", &rest));
    TRY(map_take_text(l, item, "how", &row->how));
    if (!row->how == !shape) return map_bad(l, "exactly one of how and shape is required");
    if (hf_shape && !shape) return map_bad(l, "hf_shape needs shape");
    if (rest && !row->how) return map_bad(l, "rest needs how");
    if (row->how) return read_how(l, rest, row);
    row->parts = arena_alloc(l->a, sizeof *row->parts);
    row->parts[row->num_parts++] = (struct row_part){shape, hf_shape ? hf_shape : shape, 0};
    return OK;
}

enum status map_check_name(const struct map_loader *l, const char *name, bool prefix)
{
    for (const char *p = name; (p = strchr(p, '{')); p++) {
        bool known = p[1] && strchr(prefix ? "lep" : "le", p[1]) && p[2] == '}';
        known |= prefix && strncmp(p, "{mtp}", strlen("{mtp}")) == 0;
        if (!known)
            return map_bad(l, arena_printf(l->a, "\"%s\": expected {l}, {e}%s", name,
                                           prefix ? ", {p} or {mtp}" : ""));
    }
    return OK;
}

static bool row_is_mtp(const struct tensor_row *row)
{
    return text_starts_with(row->megatron, "mtp.layers.{l}.") ||
           (row->copy && strstr(row->hf[0], "{mtp}"));
}

/* Checks that each name has a part, and each part a name. */
static enum status check_row_names(const struct map_loader *l, const struct tensor_row *row)
{
    unsigned used = 0;
    TRY(map_check_name(l, row->megatron, false));
    for (unsigned i = 0; i < row->num_parts; i++)
        if (row->parts[i].tensor >= used) used = row->parts[i].tensor + 1;
    if (row->num_hf != used)
        return map_bad(l, arena_printf(l->a, "hf has %u names, but its parts are of %u tensors",
                                       row->num_hf, used));
    for (unsigned i = 0; i < row->num_hf; i++) {
        TRY(map_check_name(l, row->hf[i], true));
        if (strstr(row->hf[i], "{p}") && !l->map->num_prefixes)
            return map_bad(l, "hf has {p}, but the map has no prefixes");
        if (strstr(row->hf[i], "{e}") && !strstr(row->megatron, "{e}"))
            return map_bad(l, "hf has {e}, but megatron has not");
        const bool is_mtp = row_is_mtp(row);
        if (strstr(row->hf[i], "{mtp}") && (!is_mtp || !l->map->mtp))
            return map_bad(l, "{mtp} needs the map's mtp, and a row of mtp.layers.{l} or a copy");
        if (!is_mtp && !strstr(row->hf[i], "{l}") != !strstr(row->megatron, "{l}"))
            return map_bad(l, "only one of the names has {l}");
    }
    return OK;
}

/* Reads the members of a spelling: Hugging Face's names, and how their elements
 * correspond. */
static enum status read_spelling(const struct map_loader *l, const cJSON *item,
                                 struct tensor_row *row)
{
    size_t num_with = 0, capacity = 0;
    TRY(map_take_texts(l, json_get(item, "hf"), &row->hf, &row->num_hf));
    TRY(read_parts(l, item, row));
    TRY(map_read_sizes(l, item, "with", &row->with, &num_with, &capacity));
    row->num_with = (unsigned)num_with;
    if (!row->megatron || !row->num_hf) return map_bad(l, "megatron and hf are required");
    TRY(check_row_names(l, row));
    row->per_layer = strstr(row->megatron, "{l}") != NULL;
    row->per_expert = strstr(row->megatron, "{e}") != NULL;
    row->mtp = row_is_mtp(row);
    return OK;
}

static enum status read_other_spellings(const struct map_loader *l, const cJSON *item,
                                        struct tensor_row *row)
{
    const cJSON *first;
    TRY(map_take_items(l, item, "also", false, &first));
    if (first)
        row->others = arena_array(l->a, (size_t)cJSON_GetArraySize(json_get(item, "also")),
                                  sizeof *row->others);
    for (const cJSON *i = first; i; i = i->next) {
        struct tensor_row *other = &row->others[row->num_others];
        *other = (struct tensor_row){.megatron = row->megatron, .when = row->when};
        TRY(map_check_keys(l, i, "hf how shape hf_shape rest with "));
        TRY(read_spelling(l, i, other));
        row->num_others++;
    }
    return OK;
}

/* Reads a number that is added to elements. */
static enum status read_add(const struct map_loader *l, const cJSON *item, double *out)
{
    enum { MOST = 1 << 20 }; /* a float has it exactly */
    *out = 0;
    if (!item) return OK;
    if (!json_as_double(item, out) || *out != trunc(*out) || fabs(*out) > MOST)
        return map_bad(l, "add is not a whole number");
    return OK;
}

static enum status read_tensor_row(struct map_loader *l, const cJSON *item, struct tensor_row *row)
{
    TRY(map_check_keys(l, item,
                       "megatron hf how shape hf_shape rest with when after also add copy "));
    TRY(map_take_text(l, item, "megatron", &row->megatron));
    TRY(map_take_text(l, item, "when", &row->when));
    TRY(read_add(l, json_get(item, "add"), &row->add));
    row->copy = cJSON_IsTrue(json_get(item, "copy"));
    if (json_get(item, "copy") && !cJSON_IsBool(json_get(item, "copy")))
        return map_bad(l, "copy is neither true nor false");
    TRY(read_spelling(l, item, row));
    return read_other_spellings(l, item, row);
}

static void drop_tensor_rows(struct model_map *map, const struct tensor_row *row, size_t *place)
{
    size_t kept = 0;
    for (size_t i = 0; i < map->num_tensors; i++) {
        const struct tensor_row *old = &map->tensors[i];
        if (old->owner != map && old->copy == row->copy &&
            strcmp(old->megatron, row->megatron) == 0) {
            if (*place == SIZE_MAX) *place = kept;
            continue;
        }
        map->tensors[kept++] = *old;
    }
    map->num_tensors = kept;
}

/* Inserts the row after the row that `after` names, or in place of an inherited
 * row of its name, or behind the map's row before it. */
static enum status place_tensor_row(struct map_loader *l, const cJSON *item,
                                    const struct tensor_row *row, size_t *next)
{
    struct model_map *map = l->map;
    const char *after;
    size_t place = SIZE_MAX;
    TRY(map_take_text(l, item, "after", &after));
    drop_tensor_rows(map, row, &place);
    if (after) place = SIZE_MAX;
    for (size_t i = 0; after && i < map->num_tensors; i++)
        if (strcmp(map->tensors[i].megatron, after) == 0) place = i + 1;
    if (after && place == SIZE_MAX)
        return map_bad(l, arena_printf(l->a, "after \"%s\" is not the name of a row", after));
    if (place == SIZE_MAX) place = *next <= map->num_tensors ? *next : map->num_tensors;
    (void)ARENA_PUSH(l->a, map->tensors, map->num_tensors, map->tensors_capacity);
    memmove(map->tensors + place + 1, map->tensors + place,
            (map->num_tensors - 1 - place) * sizeof *map->tensors);
    map->tensors[place] = *row;
    *next = place + 1;
    return OK;
}

static enum status read_tensors(struct map_loader *l, const cJSON *tree)
{
    size_t n = 0, next = SIZE_MAX;
    const cJSON *rows;
    TRY(map_take_items(l, tree, "tensors", false, &rows));
    for (const cJSON *i = rows; i; i = i->next, n++) {
        struct tensor_row row = {.owner = l->map};
        l->where = map_row_name(l, "tensors", n, i, "megatron");
        TRY(read_tensor_row(l, i, &row));
        TRY(place_tensor_row(l, i, &row, &next));
    }
    return OK;
}

/* ---- a whole map ---- */

static const struct model_map *base_of(const struct model_maps *m, const char *family);

/* Copies the base's rows, so that this map can replace some. */
static enum status inherit_rows(struct map_loader *l)
{
    struct model_map *map = l->map;
    map->params = l->maps->params;
    if (!map->extends) return OK;
    const struct model_map *base = base_of(l->maps, map->extends);
    if (!base)
        return map_bad(l,
                       arena_printf(l->a, "it extends \"%s\", which does not exist", map->extends));
#define COPY(items, count, capacity)                                                               \
    map->items = arena_copy(l->a, base->items, base->count * sizeof *base->items);                 \
    map->count = map->capacity = base->count
    COPY(sizes, num_sizes, sizes_capacity);
    COPY(config.rows, config.num_rows, config.capacity);
    COPY(config.inert, config.num_inert, config.inert_capacity);
    COPY(tensors, num_tensors, tensors_capacity);
    COPY(ignored, num_ignored, ignored_capacity);
    COPY(carried, num_carried, carried_capacity);
#undef COPY
    map->params = base->params;
    map->unsupported = base->unsupported;
    map->num_unsupported = base->num_unsupported;
    map->config_in = base->config_in;
    map->prefixes = base->prefixes;
    map->num_prefixes = base->num_prefixes;
    map->mtp = base->mtp;
    return OK;
}

static void drop_mtp(struct model_map *map)
{
    size_t kept = 0;
    for (size_t i = 0; i < map->num_tensors; i++)
        if (!map->tensors[i].mtp) map->tensors[kept++] = map->tensors[i];
    map->num_tensors = kept;
    map->mtp = NULL;
}

/* Checks the expressions in names of layers of multi-token prediction, and in
 * the globs of carried tensors. */
static enum status check_filled(struct map_loader *l)
{
    struct map_names names = {.map = l->map, .config = &map_samples[0], .layer = -1, .expert = -1};
    struct strbuf text = {0};
    enum status st = OK;
    for (size_t i = 0; i < l->map->num_carried && !st; i++)
        st = map_fill_name(&names, l->map->carried[i], &text, l->err);
    names.layer = 0;
    if (!st) l->where = "mtp";
    if (!st && l->map->mtp) st = map_fill_mtp(&names, "", &text, l->err);
    strbuf_release(&text);
    return st ? map_bad_in(l) : OK;
}

static enum status read_map(struct map_loader *l, const cJSON *tree)
{
    struct model_map *map = l->map;
    const char **globs;
    unsigned num_globs;
    l->where = "the map";
    map->config = (struct config_map){
        .file = {"config.json", "hf", false}, .fields = &model_config_fields, .model = map};
    if (cJSON_IsObject(tree)) TRY(map_take_text(l, tree, "family", &map->family));
    TRY(map_check_keys(
        l, tree,
        "family about extends model_type architecture config_in prefixes mtp fields sizes "
        "hows config inert unsupported parameters tensors ignored carried "));
    TRY(map_take_text(l, tree, "about", &map->about));
    TRY(map_take_text(l, tree, "extends", &map->extends));
    TRY(map_take_texts(l, json_get(tree, "model_type"), &map->model_types, &map->num_model_types));
    TRY(map_take_texts(l, json_get(tree, "architecture"), &map->architectures,
                       &map->num_architectures));
    TRY(inherit_rows(l));
    if (json_get(tree, "config_in")) TRY(map_take_text(l, tree, "config_in", &map->config_in));
    if (json_get(tree, "prefixes"))
        TRY(map_take_texts(l, json_get(tree, "prefixes"), &map->prefixes, &map->num_prefixes));
    if (cJSON_IsNull(json_get(tree, "mtp")))
        drop_mtp(map);
    else if (json_get(tree, "mtp"))
        TRY(map_take_text(l, tree, "mtp", &map->mtp));
    if (!map->family || !map->num_model_types || !map->num_architectures)
        return map_bad(l, "family, model_type and architecture are required");
    l->own = json_get(tree, "hows");
    if (l->own && !cJSON_IsObject(l->own)) return map_bad(l, "hows is not an object");
    if (fields_declare(json_get(tree, "fields"), l->err)) return map_bad_in(l);
    TRY(map_read_sizes(l, tree, "sizes", &map->sizes, &map->num_sizes, &map->sizes_capacity));
    TRY(config_rows_load(l, json_get(tree, "config"), &map->config));
    if (!map->extends) TRY(config_inert_load(l, l->maps->inert, &map->config));
    TRY(config_inert_load(l, json_get(tree, "inert"), &map->config));
    TRY(read_unsupported(l, tree));
    TRY(param_rows_of_map(l, tree, map->params, &map->params));
    TRY(read_tensors(l, tree));
    l->where = "ignored";
    TRY(map_take_texts(l, json_get(tree, "ignored"), &globs, &num_globs));
    for (unsigned i = 0; i < num_globs; i++)
        *ARENA_PUSH(l->a, map->ignored, map->num_ignored, map->ignored_capacity) = globs[i];
    l->where = "carried";
    TRY(map_take_texts(l, json_get(tree, "carried"), &globs, &num_globs));
    for (unsigned i = 0; i < num_globs; i++)
        *ARENA_PUSH(l->a, map->carried, map->num_carried, map->carried_capacity) = globs[i];
    TRY(check_filled(l));
    return map_check(l);
}

static void keep_tree(struct model_maps *m, cJSON *tree)
{
    *ARENA_PUSH(&m->arena, m->trees, m->num_trees, m->trees_capacity) = tree;
}

static enum status load_params(struct model_maps *m, struct error *err)
{
    cJSON *tree = NULL;
    enum status st = param_rows_load(&m->arena, &tree, &m->params, err);
    keep_tree(m, tree);
    return st;
}

/* ---- all maps ---- */

/* A map, or the file that it is read from when it is needed. */
struct family_slot {
    const char *family, *extends;     /* extends: NULL: none */
    const char *types;                /* model types: JSON text, which ends at types_end */
    const char *types_end;            /* NULL: the map is loaded */
    const struct embedded_file *file; /* NULL: the user's */
    struct model_map *map;            /* NULL: not loaded */
    bool loading;
};

/* Loads one map; m owns the tree already. */
static enum status load_map(struct model_maps *m, const cJSON *tree, struct model_map **out,
                            struct error *err)
{
    struct model_map *map = arena_alloc(&m->arena, sizeof *map);
    struct map_loader l = {.maps = m, .a = &m->arena, .map = map, .err = err};
    TRY(read_map(&l, tree));
    *out = map;
    return OK;
}

/* The text of a string member near the top of an embedded map; NULL: none.
 * model_map_test.c proves that it is what the JSON says. */
static const char *head_text(struct arena *a, const struct embedded_file *file, const char *name)
{
    const char *at = strstr(file->text, arena_printf(a, "\n  \"%s\": \"", name));
    if (!at) return NULL;
    at += strlen(name) + strlen("\n  \"\": \"");
    return arena_text(a, at, strcspn(at, "\""));
}

/* Fills a slot from the JSON, of a map that is laid out otherwise. */
static enum status read_slot(struct model_maps *m, struct family_slot *s, struct error *err)
{
    cJSON *tree;
    TRY(json_parse(s->file->text, s->file->length, JSON_STRICT, &tree, err));
    keep_tree(m, tree);
    s->family = json_as_text(json_get(tree, "family"));
    s->extends = json_as_text(json_get(tree, "extends"));
    if (!s->family) s->family = "(no family)";
    return OK;
}

static enum status add_slot(struct model_maps *m, const struct embedded_file *file,
                            struct error *err)
{
    struct family_slot *s = &m->slots[m->num_maps++];
    static const char types[] = "\n  \"model_type\": ";
    const char *at = strstr(file->text, types);
    *s = (struct family_slot){.family = head_text(&m->arena, file, "family"),
                              .extends = head_text(&m->arena, file, "extends"),
                              .types = at ? at + sizeof types - 1 : "",
                              .file = file};
    s->types_end = s->types + strcspn(s->types, *s->types == '[' ? "]" : "\n");
    return s->family ? OK : read_slot(m, s, err);
}

/* Compares family names; '-' equals '_': qwen3-moe is qwen3_moe. */
static bool same_family(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
    return !*a && !*b;
}

/* The first slot of a family from `first` on; NULL: none. */
static struct family_slot *find_slot(const struct model_maps *m, size_t first, const char *family)
{
    for (size_t i = first; i < m->num_maps; i++)
        if (same_family(m->slots[i].family, family)) return &m->slots[i];
    return NULL;
}

/* The first embedded slot. */
static size_t first_embedded(const struct model_maps *m)
{
    size_t i = 0;
    while (i < m->num_maps && !m->slots[i].file)
        i++;
    return i;
}

static enum status load_slot(struct model_maps *m, struct family_slot *s, struct error *err)
{
    cJSON *tree;
    if (s->map) return OK;
    struct family_slot *base = s->extends ? find_slot(m, first_embedded(m), s->extends) : NULL;
    if (s->loading || (s->extends && !base))
        return fail(err, ERR_OURS, "the built-in model map %s extends a map that does not exist",
                    s->family);
    s->loading = true;
    if (base) TRY(load_slot(m, base, err));
    TRY(json_parse(s->file->text, s->file->length, JSON_STRICT, &tree, err));
    keep_tree(m, tree);
    const bool before = m->loading_embedded;
    m->loading_embedded = true;
    enum status st = load_map(m, tree, &s->map, err);
    m->loading_embedded = before;
    s->loading = false;
    return st;
}

/* A map that is read when it is needed must be right: a wrong one is a bug. */
static const struct model_map *loaded(const struct model_maps *m, struct family_slot *s)
{
    struct error err;
    if (load_slot((struct model_maps *)(uintptr_t)m, s, &err)) {
        fprintf(stderr, "ferry: %s\n", err.text);
        abort();
    }
    return s->map;
}

/* The map of this family that is loaded already, or embedded; NULL: none. */
static const struct model_map *base_of(const struct model_maps *m, const char *family)
{
    struct family_slot *s = find_slot(m, m->loading_embedded ? first_embedded(m) : 0, family);
    return s ? loaded(m, s) : NULL;
}

/* Parses the files of no family, and lists the others. */
static enum status list_built_in(struct model_maps *m, const struct embedded_file *files,
                                 size_t num_files, struct error *err)
{
    static const char *const others[] = {
        "params.json",       "fields.json",      "megatron.json",    "options.json",
        "quantization.json", "train_rules.json", "config_lines.json"};
    for (size_t i = 0; i < num_files; i++) {
        const bool hows = strcmp(files[i].name, "hows.json") == 0,
                   inert = strcmp(files[i].name, "hf.json") == 0;
        cJSON *tree;
        bool other = false; /* embedded_file_parse() reads it */
        for (size_t k = 0; k < COUNT(others); k++)
            other |= strcmp(files[i].name, others[k]) == 0;
        if (!other && !hows && !inert) TRY(add_slot(m, &files[i], err));
        if (!hows && !inert) continue;
        TRY(json_parse(files[i].text, files[i].length, JSON_STRICT, &tree, err));
        keep_tree(m, tree);
        if (hows)
            m->hows = tree;
        else
            m->inert = json_get(tree, "inert");
    }
    return OK;
}

static enum status begin(struct model_maps *m, const struct embedded_file *files, size_t num_files,
                         struct error *err)
{
    *m = (struct model_maps){0};
    arena_init(&m->arena);
    fields_load();
    m->capacity = num_files + 1;
    m->slots = arena_array(&m->arena, m->capacity, sizeof *m->slots);
    TRY(load_params(m, err));
    return list_built_in(m, files, num_files, err);
}

/* Loads a map that is not embedded, and puts it at a place among the slots. */
static enum status load_own(struct model_maps *m, const cJSON *tree, size_t place,
                            struct error *err)
{
    struct model_map *own;
    TRY(load_map(m, tree, &own, err));
    own->own = tree;
    (void)ARENA_PUSH(&m->arena, m->slots, m->num_maps, m->capacity);
    memmove(m->slots + place + 1, m->slots + place, (m->num_maps - 1 - place) * sizeof *m->slots);
    m->slots[place] = (struct family_slot){
        .family = own->family, .extends = own->extends, .types = "", .map = own};
    return OK;
}

/* Loads the map or maps of a file, and puts them in front, to be found first. */
static enum status load_file(struct model_maps *m, const char *path, struct error *err)
{
    cJSON *tree;
    TRY(json_read_file(path, MAP_CAP, JSON_STRICT, &tree, err));
    keep_tree(m, tree);
    const bool list = cJSON_IsArray(tree);
    if (list && !tree->child) return fail(err, ERR_USAGE, "%s: a list of no maps", path);
    for (const cJSON *i = list ? tree->child : tree; i; i = list ? i->next : NULL)
        if (load_own(m, i, 0, err)) return fail_in(err, "%s", path);
    return OK;
}

/* Loads the files of $FERRY_MODELS by name; a map extends those of files before
 * its own. */
static enum status load_folder(struct model_maps *m, struct error *err)
{
    const char *folder = getenv("FERRY_MODELS");
    struct name_list names;
    if (!folder || !*folder) return OK;
    TRY(folder_list(folder, &m->arena, &names, err));
    for (size_t i = 0; i < names.count; i++)
        if (text_ends_with(names.names[i], ".json"))
            TRY(load_file(m, path_join(&m->arena, folder, names.names[i]), err));
    return OK;
}

enum status map_load_files(struct model_maps *m, const struct embedded_file *files,
                           size_t num_files, const char *extra, struct error *err)
{
    TRY(begin(m, files, num_files, err));
    for (size_t i = 0; i < m->num_maps; i++)
        TRY(load_slot(m, &m->slots[i], err));
    return extra ? load_file(m, extra, err) : OK;
}

enum status model_maps_load(struct model_maps *m, const char *extra, struct error *err)
{
    TRY(begin(m, embedded_models, num_embedded_models, err));
    TRY(load_folder(m, err));
    return extra ? load_file(m, extra, err) : OK;
}

cJSON *model_map_own_json(const struct model_maps *m, const struct model_map *map)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t steps = 0; map && map->own && steps <= m->num_maps; steps++) {
        cJSON_InsertItemInArray(list, 0, cJSON_Duplicate(map->own, true));
        map = map->extends ? model_map_of_family(m, map->extends) : NULL;
    }
    if (list->child) return list;
    cJSON_Delete(list);
    return NULL;
}

enum status model_maps_add(const struct model_maps *m, const char *path, const char **differs,
                           struct error *err)
{
    struct model_maps *all = (struct model_maps *)(uintptr_t)m; /* maps are read when needed */
    cJSON *tree;
    *differs = NULL;
    TRY(json_read_file(path, MAP_CAP, JSON_STRICT, &tree, err));
    keep_tree(all, tree);
    if (!cJSON_IsArray(tree)) return fail(err, ERR_CORRUPT, "%s: expected a list of maps", path);
    for (const cJSON *i = tree->child; i; i = i->next) {
        const char *family = json_as_text(json_get(i, "family"));
        const size_t end = first_embedded(m);
        struct family_slot *old = family ? find_slot(m, 0, family) : NULL;
        if (old && !old->file && !cJSON_Compare(old->map->own, i, true)) *differs = family;
        if (old && !old->file) continue;
        if (load_own(all, i, end, err)) return fail_in(err, "%s", path);
    }
    return OK;
}

void model_maps_release(struct model_maps *m)
{
    for (size_t i = 0; i < m->num_trees; i++)
        cJSON_Delete(m->trees[i]);
    arena_release(&m->arena);
}

/* ---- finding ---- */

const struct model_map *model_maps_at(const struct model_maps *m, size_t i)
{
    return loaded(m, &m->slots[i]);
}

const char *model_maps_family(const struct model_maps *m, size_t i)
{
    return m->slots[i].family;
}

const struct model_map *model_map_of_family(const struct model_maps *m, const char *family)
{
    struct family_slot *s = find_slot(m, 0, family);
    return s ? loaded(m, s) : NULL;
}

/* "gpt2, llama, mistral": the known families, as many as a message can hold. */
static const char *known_families(const struct model_maps *m, struct strbuf *out)
{
    enum { ROOM = 300 };
    for (size_t i = 0; i < m->num_maps; i++) {
        if (out->length > ROOM) {
            strbuf_printf(out, " and %zu more, which `ferry models` lists", m->num_maps - i);
            break;
        }
        strbuf_printf(out, "%s%s", i ? ", " : "", m->slots[i].family);
    }
    return out->data ? out->data : "none";
}

/* Whether a map is for a model type. */
static bool slot_has_type(const struct family_slot *s, const char *type)
{
    const size_t n = strlen(type);
    for (unsigned k = 0; s->map && k < s->map->num_model_types; k++)
        if (strcmp(s->map->model_types[k], type) == 0) return true;
    for (const char *p = s->map ? NULL : s->types; p && p + n + 1 < s->types_end; p++)
        if (*p == '"' && strncmp(p + 1, type, n) == 0 && p[n + 1] == '"') return true;
    return false;
}

/* The map for "TYPE.TYPE_OF_TEXT_CONFIG"; NULL: none. */
static struct family_slot *slot_of_wrapper(const struct model_maps *m, const char *type,
                                           const cJSON *text_config)
{
    const char *inner = json_as_text(json_get(text_config, "model_type"));
    struct strbuf both = {0};
    struct family_slot *found = NULL;
    if (!inner) return NULL;
    strbuf_printf(&both, "%s.%s", type, inner);
    for (size_t i = 0; i < m->num_maps && !found; i++)
        if (slot_has_type(&m->slots[i], both.data)) found = &m->slots[i];
    strbuf_release(&both);
    return found;
}

enum status model_map_of_config(const struct model_maps *m, const cJSON *hf_config,
                                const struct model_map **out, struct error *err)
{
    const char *type = json_as_text(json_get(hf_config, "model_type"));
    struct strbuf known = {0};
    if (!type) return fail(err, ERR_CORRUPT, "config.json: model_type is missing, or not a string");
    struct family_slot *s = slot_of_wrapper(m, type, json_get(hf_config, "text_config"));
    for (size_t i = 0; i < m->num_maps && !s; i++)
        if (slot_has_type(&m->slots[i], type)) s = &m->slots[i];
    if (s) {
        *out = loaded(m, s);
        return OK;
    }
    enum status st = fail(err, ERR_UNSUPPORTED,
                          "model_type \"%s\" is not supported; --model-map FILE adds a map; there "
                          "are maps for %s",
                          type, known_families(m, &known));
    strbuf_release(&known);
    return st;
}

bool model_maps_field_is_inert(const struct model_maps *m, const char *name)
{
    for (const cJSON *i = m->inert->child; i; i = i->next)
        if (text_equal(json_as_text(i), "*") && fnmatch(i->string, name, 0) == 0) return true;
    return false;
}

const char *model_map_family(const struct model_map *map)
{
    return map->family;
}

const char *model_map_about(const struct model_map *map)
{
    return map->about ? map->about : "";
}

const char *model_map_model_type(const struct model_map *map)
{
    return map->model_types[0];
}

const char *model_map_architecture(const struct model_map *map)
{
    return map->architectures[0];
}

const char *model_map_hf_field(const struct model_map *map, const char *megatron)
{
    for (size_t i = 0; i < map->config.num_rows; i++) {
        const struct config_row *row = &map->config.rows[i];
        if (row->megatron && row->key && (row->directions & IMPORT) &&
            strcmp(row->megatron, megatron) == 0)
            return row->key;
    }
    return NULL;
}

bool model_map_carries(const struct model_map *map, const struct model_config *c,
                       const char *hf_name)
{
    const struct map_names names = {.map = map, .config = c, .layer = -1, .expert = -1};
    struct strbuf glob = {0};
    bool carries = false;
    for (size_t i = 0; i < map->num_carried && !carries; i++) {
        strbuf_clear(&glob);
        carries = map_fill_name(&names, map->carried[i], &glob, NULL) == OK &&
                  fnmatch(glob.data, hf_name, 0) == 0;
    }
    strbuf_release(&glob);
    return carries;
}

bool model_map_ignores(const struct model_map *map, const char *hf_name)
{
    for (size_t i = 0; i < map->num_ignored; i++)
        if (fnmatch(map->ignored[i], hf_name, 0) == 0) return true;
    return false;
}
