/* model_map.c - reads and checks maps, and finds the one that fits. */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

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
    const cJSON *rows;
    size_t n = 0;
    TRY(map_take_items(l, tree, "unsupported", false, &rows));
    if (!json_get(tree, "unsupported")) return OK;
    l->map->num_unsupported = (size_t)cJSON_GetArraySize(json_get(tree, "unsupported"));
    l->map->unsupported = arena_array(l->a, l->map->num_unsupported, sizeof *l->map->unsupported);
    for (const cJSON *i = rows; i; i = i->next, n++) {
        struct unsupported *u = &l->map->unsupported[n];
        l->where = map_row_name(l, "unsupported", n, i, "when");
        TRY(map_check_keys(l, i, "when why value "));
        TRY(map_take_text(l, i, "when", &u->when));
        TRY(map_take_text(l, i, "why", &u->why));
        TRY(map_take_text(l, i, "value", &u->value));
        if (!u->when || !u->why) return map_bad(l, "when and why are required");
        TRY(map_check_unsupported(l, u));
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
        if (!known) return map_bad(l, arena_printf(l->a, "\"%s\": expected {l}, {e} or {p}", name));
    }
    return OK;
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
        if (!strstr(row->hf[i], "{l}") != !strstr(row->megatron, "{l}"))
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

static enum status read_tensor_row(struct map_loader *l, const cJSON *item, struct tensor_row *row)
{
    TRY(map_check_keys(l, item, "megatron hf how shape hf_shape rest with when after also "));
    TRY(map_take_text(l, item, "megatron", &row->megatron));
    TRY(map_take_text(l, item, "when", &row->when));
    TRY(read_spelling(l, item, row));
    return read_other_spellings(l, item, row);
}

static void drop_tensor_rows(struct model_map *map, const char *megatron, size_t *first_own,
                             size_t *place)
{
    size_t kept = 0, inherited = *first_own;
    for (size_t i = 0; i < map->num_tensors; i++) {
        if (i < inherited && strcmp(map->tensors[i].megatron, megatron) == 0) {
            if (*place == SIZE_MAX) *place = kept;
            --*first_own;
            continue;
        }
        map->tensors[kept++] = map->tensors[i];
    }
    map->num_tensors = kept;
}

/* Inserts the row after the row that `after` names, or in place of an inherited
 * row of its name, or at the end. */
static enum status place_tensor_row(struct map_loader *l, const cJSON *item,
                                    const struct tensor_row *row, size_t *first_own, size_t *next)
{
    struct model_map *map = l->map;
    const char *after;
    size_t place = SIZE_MAX;
    TRY(map_take_text(l, item, "after", &after));
    drop_tensor_rows(map, row->megatron, first_own, &place);
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
    *first_own += place < *first_own;
    *next = place + 1;
    return OK;
}

static enum status read_tensors(struct map_loader *l, const cJSON *tree)
{
    size_t first_own = l->map->num_tensors, n = 0, next = SIZE_MAX;
    const cJSON *rows;
    TRY(map_take_items(l, tree, "tensors", false, &rows));
    for (const cJSON *i = rows; i; i = i->next, n++) {
        struct tensor_row row = {0};
        l->where = map_row_name(l, "tensors", n, i, "megatron");
        TRY(read_tensor_row(l, i, &row));
        TRY(place_tensor_row(l, i, &row, &first_own, &next));
    }
    return OK;
}

/* ---- a whole map ---- */

/* Copies the base's rows, so that this map can replace some. */
static enum status inherit_rows(struct map_loader *l)
{
    struct model_map *map = l->map;
    map->params = l->maps->params;
    if (!map->extends) return OK;
    const struct model_map *base = model_map_of_family(l->maps, map->extends);
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
    return OK;
}

/* Checks the expressions in the globs of carried tensors. */
static enum status check_carried(const struct map_loader *l)
{
    const struct map_names names = {
        .map = l->map, .config = &map_samples[0], .layer = -1, .expert = -1};
    enum status st = OK;
    struct strbuf glob = {0};
    for (size_t i = 0; i < l->map->num_carried && !st; i++)
        st = map_fill_name(&names, l->map->carried[i], &glob, l->err);
    strbuf_release(&glob);
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
        "family about extends model_type architecture config_in prefixes fields sizes "
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
    TRY(check_carried(l));
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

/* Loads one map; m owns the tree already. */
static enum status load_map(struct model_maps *m, const cJSON *tree, struct error *err)
{
    struct model_map *map = arena_alloc(&m->arena, sizeof *map);
    struct map_loader l = {.maps = m, .a = &m->arena, .map = map, .err = err};
    TRY(read_map(&l, tree));
    *ARENA_PUSH(&m->arena, m->maps, m->num_maps, m->capacity) = map;
    return OK;
}

/* Loads each of trees[0..*count) whose base is loaded, and keeps the others. */
static enum status load_those_with_a_base(struct model_maps *m, const cJSON **trees, size_t *count,
                                          struct error *err)
{
    size_t left = 0;
    for (size_t i = 0; i < *count; i++) {
        const char *base = json_as_text(json_get(trees[i], "extends"));
        if (base && !model_map_of_family(m, base))
            trees[left++] = trees[i];
        else
            TRY(load_map(m, trees[i], err));
    }
    *count = left;
    return OK;
}

/* Loads bases before the maps that extend them, in any order of the files. */
static enum status load_built_in(struct model_maps *m, const struct embedded_file *files,
                                 size_t num_files, struct error *err)
{
    const cJSON **waiting = arena_array(&m->arena, num_files, sizeof *waiting);
    size_t count = 0;
    for (size_t i = 0; i < num_files; i++) {
        cJSON *tree;
        if (strcmp(files[i].name, "params.json") == 0 ||
            strcmp(files[i].name, "fields.json") == 0 ||
            strcmp(files[i].name, "megatron.json") == 0)
            continue; /* read by params_read.c, fields.c and megatron_args.c */
        TRY(json_parse(files[i].text, files[i].length, JSON_STRICT, &tree, err));
        keep_tree(m, tree);
        if (strcmp(files[i].name, "hows.json") == 0)
            m->hows = tree;
        else if (strcmp(files[i].name, "hf.json") == 0)
            m->inert = json_get(tree, "inert");
        else
            waiting[count++] = tree;
    }
    while (count) {
        size_t before = count;
        TRY(load_those_with_a_base(m, waiting, &count, err));
        if (count == before)
            return fail(err, ERR_OURS,
                        "the built-in model map %s extends a map that does not exist",
                        json_as_text(json_get(waiting[0], "family")));
    }
    return OK;
}

enum status map_load_files(struct model_maps *m, const struct embedded_file *files,
                           size_t num_files, const char *extra, struct error *err)
{
    cJSON *tree;
    *m = (struct model_maps){0};
    arena_init(&m->arena);
    fields_load();
    TRY(load_params(m, err));
    TRY(load_built_in(m, files, num_files, err));
    if (!extra) return OK;
    TRY(json_read_file(extra, MAP_CAP, JSON_STRICT, &tree, err));
    keep_tree(m, tree);
    if (load_map(m, tree, err)) return fail_in(err, "%s", extra);
    struct model_map *own = m->maps[m->num_maps - 1]; /* moved to the front, to be found first */
    memmove(m->maps + 1, m->maps, (m->num_maps - 1) * sizeof *m->maps);
    m->maps[0] = own;
    return OK;
}

enum status model_maps_load(struct model_maps *m, const char *extra, struct error *err)
{
    return map_load_files(m, embedded_models, num_embedded_models, extra, err);
}

void model_maps_release(struct model_maps *m)
{
    for (size_t i = 0; i < m->num_trees; i++)
        cJSON_Delete(m->trees[i]);
    arena_release(&m->arena);
}

/* ---- finding ---- */

/* Compares family names; '-' equals '_': qwen3-moe is qwen3_moe. */
static bool same_family(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
    return !*a && !*b;
}

const struct model_map *model_map_of_family(const struct model_maps *m, const char *family)
{
    for (size_t i = 0; i < m->num_maps; i++)
        if (same_family(m->maps[i]->family, family)) return m->maps[i];
    return NULL;
}

/* "gpt2, llama, mistral": the known model types, as many as a message can hold. */
static const char *known_model_types(const struct model_maps *m, struct strbuf *out)
{
    enum { ROOM = 300 };
    for (size_t i = 0; i < m->num_maps; i++) {
        if (out->length > ROOM) {
            strbuf_printf(out, " and %zu more, which `ferry models` lists", m->num_maps - i);
            break;
        }
        strbuf_printf(out, "%s%s", i ? ", " : "", m->maps[i]->model_types[0]);
    }
    return out->data ? out->data : "none";
}

enum status model_map_of_config(const struct model_maps *m, const cJSON *hf_config,
                                const struct model_map **out, struct error *err)
{
    const char *type = json_as_text(json_get(hf_config, "model_type"));
    struct strbuf known = {0};
    if (!type) return fail(err, ERR_CORRUPT, "config.json: model_type is missing, or not a string");
    for (size_t i = 0; i < m->num_maps; i++) {
        *out = m->maps[i];
        for (unsigned k = 0; k < m->maps[i]->num_model_types; k++)
            if (strcmp(m->maps[i]->model_types[k], type) == 0) return OK;
    }
    enum status st = fail(err, ERR_UNSUPPORTED,
                          "model_type \"%s\" is not supported; --model-map FILE adds a map; there "
                          "are maps for %s",
                          type, known_model_types(m, &known));
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
