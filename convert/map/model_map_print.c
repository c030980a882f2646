/* model_map_print.c - the rows of a loaded map, as text and as JSON. */
#include "common/json.h"
#include "convert/map/params_internal.h"

/* "  sliding_window = EXPR  use_sliding_window <- EXPR" */
static void print_exprs(struct strbuf *out, const struct config_expr *exprs, size_t count,
                        const char *sign)
{
    for (size_t i = 0; i < count; i++)
        strbuf_printf(out, "  %s %s %s", exprs[i].name, sign, exprs[i].text);
}

static void print_config(struct strbuf *out, const struct model_map *map)
{
    strbuf_add_text(out, "config\n");
    for (size_t i = 0; i < map->config.num_rows; i++) {
        const struct config_row *r = &map->config.rows[i];
        strbuf_printf(out, "  %-36s %-9s ", r->megatron ? r->megatron : "", r->how->name);
        if (r->key) strbuf_add_text(out, r->key);
        if (r->value) json_print(out, r->value, -1);
        if (r->absent) {
            strbuf_add_text(out, "  default ");
            json_print(out, r->absent, -1);
        }
        if (r->null) {
            strbuf_add_text(out, "  null ");
            json_print(out, r->null, -1);
        }
        print_exprs(out, r->reads, r->num_reads, "=");
        print_exprs(out, r->writes, r->num_writes, "<-");
        if (r->when) strbuf_printf(out, "  when %s", r->when);
        if (r->otherwise) {
            strbuf_add_text(out, "  else ");
            json_print(out, r->otherwise, -1);
        }
        if (r->directions == IMPORT) strbuf_add_text(out, "  (import)");
        if (r->directions == EXPORT) strbuf_add_text(out, "  (export)");
        strbuf_add_char(out, '\n');
    }
}

static void print_inert(struct strbuf *out, const struct config_map *config)
{
    strbuf_add_text(out, "inert\n");
    for (size_t i = 0; i < config->num_inert; i++) {
        strbuf_printf(out, "  %-36s ", config->inert[i].name);
        if (config->inert[i].values)
            json_print(out, config->inert[i].values, -1);
        else
            strbuf_add_text(out, "any value");
        strbuf_add_char(out, '\n');
    }
}

static void print_spelling(struct strbuf *out, const struct tensor_row *r, const char *word)
{
    for (unsigned i = 0; i < r->num_parts; i++)
        strbuf_printf(out, "  %s[%s]  =  %s [%s]\n", word, r->parts[i].megatron,
                      r->hf[r->parts[i].tensor], r->parts[i].hf);
}

static void print_tensor(struct strbuf *out, const struct tensor_row *r)
{
    strbuf_printf(out, "  %s", r->megatron);
    if (r->when) strbuf_printf(out, "   when %s", r->when);
    if (r->add != 0) strbuf_printf(out, "   add %g", r->add);
    strbuf_add_char(out, '\n');
    for (unsigned k = 0; k <= r->num_others; k++)
        print_spelling(out, row_spelling(r, k), k ? "or  " : "    ");
}

/* The sections of a row: "gate i, up i when gated_linear_unit", "g times query
 * r*d, key d shared". */
static void print_sections(struct strbuf *out, const struct param_row *r)
{
    strbuf_add_text(out, "      sections: ");
    if (r->repeat) strbuf_printf(out, "%s times ", r->repeat);
    for (unsigned k = 0; k < r->num_sections; k++)
        strbuf_printf(out, "%s%s %s%s", k ? ", " : "", r->sections[k].name, r->sections[k].size,
                      r->sections[k].shared ? " shared" : "");
    if (r->sections_when) strbuf_printf(out, "   when %s", r->sections_when);
    strbuf_add_char(out, '\n');
}

/* Prints the map's own rows only: Megatron's are equal in all maps. */
static void print_parameters(struct strbuf *out, const struct param_rows *rows)
{
    if (rows->sizes[SCOPE_MAP].count) strbuf_add_text(out, "parameters\n");
    for (size_t i = 0; i < rows->count; i++) {
        const struct param_row *r = &rows->items[i];
        if (r->scope != SCOPE_MAP) continue;
        strbuf_printf(out, "  %s [%s]", r->name, r->shape ? r->shape : "");
        if (r->split >= 0)
            strbuf_printf(out, "   %s split dimension %d",
                          r->group == PARAM_ETP ? "etp ranks" : "tp ranks", r->split);
        if (r->padded) strbuf_add_text(out, "   padded");
        strbuf_add_char(out, '\n');
        if (r->num_sections) print_sections(out, r);
    }
}

void model_map_print(struct strbuf *out, const struct model_map *map)
{
    strbuf_printf(out, "%s: %s\nmodel_type %s, architecture %s\n", map->family,
                  model_map_about(map), map->model_types[0], map->architectures[0]);
    strbuf_add_text(out, "sizes\n");
    for (size_t i = 0; i < map->num_sizes; i++)
        strbuf_printf(out, "  %s = %s\n", map->sizes[i].name, map->sizes[i].text);
    print_config(out, map);
    print_inert(out, &map->config);
    print_parameters(out, map->params);
    strbuf_add_text(out, "tensors\n");
    for (size_t i = 0; i < map->num_tensors; i++)
        print_tensor(out, &map->tensors[i]);
    for (size_t i = 0; i < map->num_ignored; i++)
        strbuf_printf(out, "  ignored: %s\n", map->ignored[i]);
    for (size_t i = 0; i < map->num_carried; i++)
        strbuf_printf(out, "  carried: %s\n", map->carried[i]);
}

/* ---- for programs ---- */

static void add_text_member(cJSON *object, const char *name, const char *text)
{
    if (text) cJSON_AddStringToObject(object, name, text);
}

static void add_value(cJSON *object, const char *name, const cJSON *value)
{
    if (value) cJSON_AddItemToObject(object, name, cJSON_Duplicate(value, true));
}

static void add_exprs(cJSON *object, const char *name, const struct config_expr *exprs,
                      size_t count)
{
    cJSON *list = count ? cJSON_AddObjectToObject(object, name) : NULL;
    for (size_t i = 0; i < count; i++)
        add_text_member(list, exprs[i].name, exprs[i].text);
}

static cJSON *config_row_json(const struct config_row *r)
{
    cJSON *o = cJSON_CreateObject();
    add_text_member(o, "megatron", r->megatron);
    add_text_member(o, "hf", r->key);
    add_text_member(o, "how", r->how->name);
    add_value(o, "value", r->value);
    add_value(o, "default", r->absent);
    add_value(o, "null", r->null);
    add_text_member(o, "when", r->when);
    add_exprs(o, "read", r->reads, r->num_reads);
    add_exprs(o, "write", r->writes, r->num_writes);
    add_value(o, "else", r->otherwise);
    if (r->directions == IMPORT) add_text_member(o, "only", "import");
    if (r->directions == EXPORT) add_text_member(o, "only", "export");
    return o;
}

static cJSON *inert_json(const struct config_map *config)
{
    cJSON *o = cJSON_CreateObject();
    for (size_t i = 0; i < config->num_inert; i++) {
        const struct inert_field *f = &config->inert[i];
        cJSON_AddItemToObject(
            o, f->name, f->values ? cJSON_Duplicate(f->values, true) : cJSON_CreateString("*"));
    }
    return o;
}

static void add_row_parts(cJSON *o, const struct tensor_row *r)
{
    cJSON *parts = cJSON_AddArrayToObject(o, "parts");
    for (unsigned i = 0; i < r->num_parts; i++) {
        cJSON *part = cJSON_CreateObject();
        add_text_member(part, "megatron", r->parts[i].megatron);
        add_text_member(part, "hf_tensor", r->hf[r->parts[i].tensor]);
        add_text_member(part, "hf", r->parts[i].hf);
        cJSON_AddItemToArray(parts, part);
    }
}

static cJSON *tensor_row_json(const struct tensor_row *r)
{
    cJSON *o = cJSON_CreateObject();
    add_text_member(o, "megatron", r->megatron);
    add_text_member(o, "when", r->when);
    add_row_parts(o, r);
    cJSON *also = r->num_others ? cJSON_AddArrayToObject(o, "also") : NULL;
    for (unsigned k = 0; k < r->num_others; k++) {
        cJSON *other = cJSON_CreateObject();
        add_row_parts(other, &r->others[k]);
        cJSON_AddItemToArray(also, other);
    }
    return o;
}

static cJSON *param_row_json(const struct param_row *r)
{
    cJSON *o = cJSON_CreateObject();
    add_text_member(o, "name", r->name);
    add_text_member(o, "shape", r->shape);
    add_text_member(o, "group", r->group == PARAM_ETP ? "etp" : "tp");
    if (r->split >= 0) cJSON_AddItemToObject(o, "split", json_new_i64(r->split));
    add_text_member(o, "repeat", r->repeat);
    cJSON *sections = r->num_sections ? cJSON_AddObjectToObject(o, "sections") : NULL;
    cJSON *shared = r->num_sections ? cJSON_AddArrayToObject(o, "shared") : NULL;
    for (unsigned k = 0; k < r->num_sections; k++) {
        add_text_member(sections, r->sections[k].name, r->sections[k].size);
        if (r->sections[k].shared)
            cJSON_AddItemToArray(shared, cJSON_CreateString(r->sections[k].name));
    }
    add_text_member(o, "sections_when", r->sections_when);
    return o;
}

/* Adds the map's own rows, if it has any. */
static void add_parameters(cJSON *o, const struct param_rows *rows)
{
    if (!rows->sizes[SCOPE_MAP].count) return;
    cJSON *list = cJSON_AddArrayToObject(o, "parameters");
    for (size_t i = 0; i < rows->count; i++)
        if (rows->items[i].scope == SCOPE_MAP)
            cJSON_AddItemToArray(list, param_row_json(&rows->items[i]));
}

cJSON *model_map_json(const struct model_map *map)
{
    cJSON *o = cJSON_CreateObject();
    add_text_member(o, "family", map->family);
    add_text_member(o, "model_type", map->model_types[0]);
    add_text_member(o, "architecture", map->architectures[0]);
    add_text_member(o, "config_in", map->config_in);
    add_text_member(o, "about", model_map_about(map));
    cJSON *sizes = cJSON_AddObjectToObject(o, "sizes");
    for (size_t i = 0; i < map->num_sizes; i++)
        add_text_member(sizes, map->sizes[i].name, map->sizes[i].text);
    cJSON *config = cJSON_AddArrayToObject(o, "config");
    for (size_t i = 0; i < map->config.num_rows; i++)
        cJSON_AddItemToArray(config, config_row_json(&map->config.rows[i]));
    cJSON_AddItemToObject(o, "inert", inert_json(&map->config));
    add_parameters(o, map->params);
    cJSON *tensors = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < map->num_tensors; i++)
        cJSON_AddItemToArray(tensors, tensor_row_json(&map->tensors[i]));
    cJSON *ignored = cJSON_AddArrayToObject(o, "ignored");
    for (size_t i = 0; i < map->num_ignored; i++)
        cJSON_AddItemToArray(ignored, cJSON_CreateString(map->ignored[i]));
    cJSON *carried = map->num_carried ? cJSON_AddArrayToObject(o, "carried") : NULL;
    for (size_t i = 0; i < map->num_carried; i++)
        cJSON_AddItemToArray(carried, cJSON_CreateString(map->carried[i]));
    return o;
}
