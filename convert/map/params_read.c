/* params_read.c - reads rows of parameters from params.json and from model
 * maps, and checks those of maps for sample models. */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/params_internal.h"

/* ---- words ---- */

struct word {
    const char *text;
    int value;
};
static const struct word places[] = {
    {"embedding", PLACE_EMBEDDING}, {"layer", PLACE_LAYER}, {"last", PLACE_LAST}, {NULL, 0}};
static const struct word groups[] = {{"tp", PARAM_TP}, {"etp", PARAM_ETP}, {NULL, 0}};
static const struct word axes[] = {{"layers", STACK_LAYERS}, {"experts", STACK_EXPERTS}, {NULL, 0}};

static enum status find_word(const struct map_loader *l, const char *member, const char *text,
                             const struct word *words, int *out)
{
    for (; words->text; words++)
        if (strcmp(words->text, text) == 0) {
            *out = words->value;
            return OK;
        }
    return map_bad(l, arena_printf(l->a, "%s \"%s\" is not known", member, text));
}

/* Reads a member that is one of the words; `absent` if it is missing. */
static enum status take_word(const struct map_loader *l, const cJSON *item, const char *member,
                             const struct word *words, int absent, int *out)
{
    const char *text;
    TRY(map_take_text(l, item, member, &text));
    *out = absent;
    return text ? find_word(l, member, text, words, out) : OK;
}

static enum status take_bool(const struct map_loader *l, const cJSON *item, const char *member,
                             bool *out)
{
    const cJSON *value = json_get(item, member);
    *out = cJSON_IsTrue(value);
    if (!value || cJSON_IsBool(value)) return OK;
    return map_bad(l, arena_printf(l->a, "%s is neither true nor false", member));
}

/* ---- one row ---- */

/* Whether a name is of a layer; those of multi-token prediction are not: they
 * are on the last stage. */
static bool is_of_layer(const char *name)
{
    return strstr(name, "{l}") && strncmp(name, "mtp.layers.{l}.", strlen("mtp.layers.{l}."));
}

static enum status read_stacks(const struct map_loader *l, const cJSON *item, struct param_row *row)
{
    const cJSON *list = json_get(item, "stacks");
    const char **texts;
    unsigned count;
    int axis = 0;
    row->stacks = (is_of_layer(row->name) ? STACK_LAYERS : 0u) |
                  (strstr(row->name, "{e}") ? STACK_EXPERTS : 0u);
    if (!list) return OK;
    unsigned possible = row->stacks;
    row->stacks = 0;
    TRY(map_take_texts(l, list, &texts, &count));
    for (unsigned i = 0; i < count; i++) {
        TRY(find_word(l, "stacks", texts[i], axes, &axis));
        row->stacks |= (unsigned)axis;
    }
    if (row->stacks & ~possible)
        return map_bad(l, "stacks has an axis whose placeholder is not in the name");
    return OK;
}

static enum status read_split(const struct map_loader *l, const cJSON *item, struct param_row *row)
{
    const cJSON *split = json_get(item, "split");
    uint64_t dimension;
    row->split = -1;
    if (!split) return OK;
    if (!json_as_u64(split, &dimension) || dimension >= MAX_AXES)
        return map_bad(l, "split is not the number of a dimension");
    row->split = (int)dimension;
    return OK;
}

static enum status mark_shared(const struct map_loader *l, const char *name, struct param_row *row)
{
    for (unsigned k = 0; k < row->num_sections; k++)
        if (strcmp(row->sections[k].name, name) == 0) {
            row->sections[k].shared = true;
            return OK;
        }
    return map_bad(l, arena_printf(l->a, "shared \"%s\" is not the name of a section", name));
}

static enum status read_sections(const struct map_loader *l, const cJSON *item,
                                 struct param_row *row)
{
    const cJSON *first;
    const char **shared;
    unsigned count;
    TRY(map_take_items(l, item, "sections", true, &first));
    TRY(map_take_text(l, item, "sections_when", &row->sections_when));
    TRY(map_take_text(l, item, "repeat", &row->repeat));
    for (const cJSON *i = first; i; i = i->next) {
        if (row->num_sections == MAX_SECTIONS)
            return map_bad(l, arena_printf(l->a, "more than %d sections", MAX_SECTIONS));
        if (!json_as_text(i))
            return map_bad(l, arena_printf(l->a, "section %s is not a string", i->string));
        row->sections[row->num_sections++] =
            (struct section_row){i->string, json_as_text(i), false};
    }
    TRY(map_take_texts(l, json_get(item, "shared"), &shared, &count));
    for (unsigned i = 0; i < count; i++)
        TRY(mark_shared(l, shared[i], row));
    if (!row->num_sections && (row->sections_when || row->repeat))
        return map_bad(l, "sections_when and repeat need sections");
    return OK;
}

/* Checks that a row's members do not contradict one another. */
static enum status check_members(const struct map_loader *l, const struct param_row *row)
{
    static const char layers[] = "decoder.layers.{l}.",
                      experts[] = "decoder.layers.{l}.mlp.experts.experts.{e}.";
    bool in_layer = is_of_layer(row->name), of_expert = strstr(row->name, "{e}") != NULL;
    if (in_layer != (row->place == PLACE_LAYER))
        return map_bad(
            l, "place must be \"layer\" for a name with {l}, else \"embedding\" or \"last\"");
    if (in_layer && strncmp(row->name, layers, strlen(layers)))
        return map_bad(l, arena_printf(l->a, "a name with {l} must begin with %s", layers));
    if (of_expert && strncmp(row->name, experts, strlen(experts)))
        return map_bad(l, arena_printf(l->a, "a name with {e} must begin with %s", experts));
    if (row->num_sections && row->split < 0) return map_bad(l, "sections need split");
    if (row->apart && (row->split || !row->num_sections || row->repeat || row->sections_when))
        return map_bad(l, "apart is for sections along dimension 0 that do not repeat");
    if (row->padded && row->split > 0)
        return map_bad(l, "padded is for a parameter split along dimension 0");
    if (row->local && !strstr(row->local, "{l}.") != !in_layer)
        return map_bad(l, "only one of the names has {l}");
    return OK;
}

static enum status read_param_row(const struct map_loader *l, const cJSON *item,
                                  struct param_row *row)
{
    int place = -1, group = 0;
    TRY(map_check_keys(l, item,
                       "name local place group shape split repeat sections sections_when shared "
                       "padded linear buffer stacks apart "));
    TRY(map_take_text(l, item, "name", &row->name));
    if (!row->name) return map_bad(l, "name is required");
    bool in_layer = is_of_layer(row->name), of_expert = strstr(row->name, "{e}") != NULL;
    TRY(map_check_name(l, row->name, false));
    TRY(map_take_text(l, item, "local", &row->local));
    TRY(map_take_text(l, item, "shape", &row->shape));
    TRY(take_word(l, item, "place", places, in_layer ? PLACE_LAYER : -1, &place));
    TRY(take_word(l, item, "group", groups, of_expert ? PARAM_ETP : PARAM_TP, &group));
    if (place < 0) return map_bad(l, "place is required: \"embedding\" or \"last\"");
    row->place = (enum param_place)place;
    row->group = (enum split_group)group;
    TRY(read_stacks(l, item, row));
    TRY(read_split(l, item, row));
    TRY(read_sections(l, item, row));
    TRY(take_bool(l, item, "padded", &row->padded));
    TRY(take_bool(l, item, "linear", &row->linear));
    TRY(take_bool(l, item, "buffer", &row->buffer));
    TRY(take_bool(l, item, "apart", &row->apart));
    return check_members(l, row);
}

/* ---- a row with numbers ---- */

static enum status check_size_expression(const struct map_loader *l, const struct map_names *names,
                                         const char *text, size_t length)
{
    const struct expr_names e = map_names_for(names);
    int64_t value;
    if (expr_eval(text, length, &e, &value, l->err)) return map_bad_in(l);
    if (value >= 0) return OK;
    return map_bad(l, arena_printf(l->a, "\"%.*s\" is negative", (int)length, text));
}

static enum status check_expressions(const struct map_loader *l, const struct param_row *row,
                                     const struct map_names *names)
{
    bool applies;
    unsigned dims = 0;
    for (const char *p = row->shape; p && *p; dims++) {
        size_t length = strcspn(p, " ");
        TRY(check_size_expression(l, names, p, length));
        p += length + strspn(p + length, " ");
    }
    if (dims > MAX_AXES)
        return map_bad(l, arena_printf(l->a, "it has more than %d dimensions", MAX_AXES));
    if (row->shape && row->split >= (int)dims)
        return map_bad(l, arena_printf(l->a, "it has %u dimensions, but ranks split dimension %d",
                                       dims, row->split));
    if (map_condition(names, row->sections_when, &applies, l->err)) return map_bad_in(l);
    if (!applies) return OK;
    if (row->repeat) TRY(check_size_expression(l, names, row->repeat, strlen(row->repeat)));
    for (unsigned k = 0; k < row->num_sections; k++)
        TRY(check_size_expression(l, names, row->sections[k].size, strlen(row->sections[k].size)));
    return OK;
}

/* Checks that sections of known sizes fill the dimension. */
static enum status check_sum(const struct map_loader *l, const struct param_spec *s)
{
    uint64_t sum = 0, known = 1;
    for (unsigned k = 0; k < s->num_sections; k++) {
        known *= s->sections[k].size != 0;
        if (!add_u64(sum, s->sections[k].size, &sum)) return map_bad(l, "its sections overflow");
    }
    if (!s->num_sections || !s->num_dims || !known) return OK;
    if (!mul_u64(sum, s->repeat, &sum)) return map_bad(l, "its sections overflow");
    if (sum == s->shape[s->split]) return OK;
    return map_bad(l, arena_printf(l->a,
                                   "its sections fill %" PRIu64 " of the %" PRIu64
                                   " elements of dimension %d",
                                   sum, s->shape[s->split], s->split));
}

static enum status check_row(const struct map_loader *l, const struct param_rows *rows,
                             const struct param_row *row)
{
    for (size_t i = 0; i < 2 * NUM_MAP_SAMPLES; i++) {
        struct model_config c = map_samples[i / 2];
        struct model_map map;
        struct map_names names;
        struct param_rows one = *rows;
        c.gated_linear_unit = i % 2;
        param_row_names(rows, row, &c, &map, &names);
        TRY(check_expressions(l, row, &names));
        one.items = arena_copy(l->a, row, sizeof *row);
        one.count = 1;
        TRY(check_sum(l, param_table_of(&one, &c, l->a)->specs));
    }
    return OK;
}

/* ---- rows ---- */

static struct param_row *find_row(const struct param_rows *rows, const char *name)
{
    for (size_t i = 0; i < rows->count; i++)
        if (strcmp(rows->items[i].name, name) == 0) return &rows->items[i];
    return NULL;
}

const struct param_row *param_row_find(const struct param_rows *rows, const char *name)
{
    const struct param_row *row = find_row(rows, name);
    for (size_t i = 0; i < rows->count && !row; i++)
        if (param_name_compare(rows->items[i].name, name) == 0) row = &rows->items[i];
    return row;
}

/* Whether models of Megatron-Core have a parameter that is no row of its own. */
static bool is_of_core(const struct param_rows *rows, const char *name)
{
    for (unsigned i = 0; i < rows->num_core; i++)
        if (fnmatch(rows->core[i], name, 0) == 0) return true;
    return false;
}

/* Refuses a new name that a spelling replaces when files are read. */
static enum status check_spelled(const struct map_loader *l, const struct param_spelling *items,
                                 size_t count, const char *begin, const char *name)
{
    const char *rest = name;
    if (!text_skip_prefix(&rest, begin)) return OK;
    for (size_t i = 0; i < count; i++) {
        const char *kind = rest;
        if (text_skip_prefix(&kind, items[i].theirs))
            return map_bad(l,
                           arena_printf(l->a, "Megatron's files mean %s%s%s by it: use that name",
                                        begin, items[i].ours, kind));
    }
    return OK;
}

static enum status check_new_name(const struct map_loader *l, const struct param_spellings *s,
                                  const char *name)
{
    TRY(check_spelled(l, s->in_layers, s->num_in_layers, "decoder.layers.{l}.", name));
    return check_spelled(l, s->outside, s->num_outside, "", name);
}

/* Reads a list of rows: a row replaces that of its name, or goes to the end. */
static enum status read_rows(struct map_loader *l, const cJSON *tree, struct param_rows *rows,
                             enum param_scope scope)
{
    const cJSON *first;
    size_t n = 0;
    TRY(map_take_items(l, tree, "parameters", false, &first));
    for (const cJSON *i = first; i; i = i->next, n++) {
        struct param_row row = {.scope = scope};
        l->where = map_row_name(l, "parameters", n, i, "name");
        TRY(read_param_row(l, i, &row));
        for (const cJSON *k = first; k != i; k = k->next)
            if (strcmp(json_as_text(json_get(k, "name")), row.name) == 0)
                return map_bad(l, "duplicate name");
        if (scope == SCOPE_MAP) TRY(check_row(l, rows, &row));
        struct param_row *old = find_row(rows, row.name);
        if (!old && scope == SCOPE_MAP) TRY(check_new_name(l, &rows->spellings, row.name));
        row.own = scope == SCOPE_MAP && (old ? old->own : !is_of_core(rows, row.name));
        if (!old) old = ARENA_PUSH(l->a, rows->items, rows->count, rows->capacity);
        *old = row;
    }
    return OK;
}

/* Puts the map's sizes before Megatron's: the first of a name counts. */
static void join_sizes(const struct map_loader *l, struct param_rows *rows)
{
    const struct model_map *map = l->map;
    size_t own = map->num_sizes, more = rows->sizes[SCOPE_MEGATRON].count;
    struct size *sizes = arena_array(l->a, own + more, sizeof *sizes);
    for (size_t i = 0; i < own + more; i++)
        sizes[i] = i < own ? map->sizes[i] : rows->sizes[SCOPE_MEGATRON].items[i - own];
    rows->sizes[SCOPE_MAP].items = sizes;
    rows->sizes[SCOPE_MAP].count = rows->sizes[SCOPE_MAP].capacity = own + more;
}

enum status param_rows_of_map(struct map_loader *l, const cJSON *tree, struct param_rows *base,
                              struct param_rows **out)
{
    bool inherits = base->sizes[SCOPE_MAP].count > 0; /* the base map has rows of its own */
    *out = base;
    if (!json_get(tree, "parameters") && !inherits) return OK;
    struct param_rows *rows = *out = arena_copy(l->a, base, sizeof *base);
    rows->items = arena_copy(l->a, base->items, base->count * sizeof *base->items);
    rows->capacity = rows->count;
    join_sizes(l, rows);
    return read_rows(l, tree, rows, SCOPE_MAP);
}

/* ---- params.json ---- */

static enum status read_spellings(const struct map_loader *l, const cJSON *from, const char *member,
                                  const struct param_spelling **out, size_t *count)
{
    const cJSON *first;
    struct param_spelling *items = NULL;
    size_t capacity = 0;
    TRY(map_take_items(l, from, member, false, &first));
    for (const cJSON *i = first; i; i = i->next) {
        struct param_spelling *s = ARENA_PUSH(l->a, items, *count, capacity);
        *s = (struct param_spelling){0};
        TRY(map_check_keys(l, i, "theirs ours fused_qkv local_spec written "));
        TRY(map_take_text(l, i, "theirs", &s->theirs));
        TRY(map_take_text(l, i, "ours", &s->ours));
        TRY(take_bool(l, i, "fused_qkv", &s->fused_qkv));
        TRY(take_bool(l, i, "local_spec", &s->local_spec));
        TRY(take_bool(l, i, "written", &s->written));
        if (!s->theirs || !s->ours) return map_bad(l, "theirs and ours are required");
    }
    *out = items;
    return OK;
}

static enum status read_registration(struct map_loader *l, const cJSON *from,
                                     struct param_registration *r)
{
    l->where = "registration";
    TRY(map_check_keys(l, from, "modules parameters "));
    TRY(map_take_texts(l, json_get(from, "modules"), &r->modules, &r->num_modules));
    return map_take_texts(l, json_get(from, "parameters"), &r->parameters, &r->num_parameters);
}

static enum status read_megatron(struct map_loader *l, const cJSON *tree, struct param_rows *rows)
{
    const cJSON *spellings = json_get(tree, "spellings");
    struct param_spellings *s = &rows->spellings;
    l->where = "the file";
    TRY(map_check_keys(l, tree, "sizes parameters core registration spellings "));
    TRY(map_take_texts(l, json_get(tree, "core"), &rows->core, &rows->num_core));
    TRY(map_read_sizes(l, tree, "sizes", &rows->sizes[SCOPE_MEGATRON].items,
                       &rows->sizes[SCOPE_MEGATRON].count, &rows->sizes[SCOPE_MEGATRON].capacity));
    TRY(read_rows(l, tree, rows, SCOPE_MEGATRON));
    TRY(read_registration(l, json_get(tree, "registration"), &rows->registration));
    l->where = "spellings";
    TRY(map_check_keys(l, spellings, "layers in_layers beside_router outside "));
    TRY(map_take_texts(l, json_get(spellings, "layers"), &s->layers, &s->num_layers));
    TRY(read_spellings(l, spellings, "in_layers", &s->in_layers, &s->num_in_layers));
    TRY(read_spellings(l, spellings, "beside_router", &s->beside_router, &s->num_beside_router));
    return read_spellings(l, spellings, "outside", &s->outside, &s->num_outside);
}

enum status param_rows_load(struct arena *a, cJSON **tree, struct param_rows **out,
                            struct error *err)
{
    struct model_map none = {.family = "params.json"};
    struct map_loader l = {.a = a, .map = &none, .err = err};
    *out = arena_alloc(a, sizeof **out);
    *tree = embedded_file_parse("params.json");
    return read_megatron(&l, *tree, *out);
}
