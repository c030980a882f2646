/* model_map_print.c - a map's rows, as they are once loaded: for people and for programs. */
#include "common/json.h"
#include "convert/model_map_internal.h"

static void print_config(struct strbuf *out, const struct model_map *map)
{
    strbuf_add_text(out, "config\n");
    for (size_t i = 0; i < map->num_config; i++) {
        const struct config_row *r = &map->config[i];
        strbuf_printf(out, "  %-36s %-9s ", r->megatron ? r->megatron : "", r->how->name);
        if (r->hf) strbuf_add_text(out, r->hf);
        if (r->value) json_print(out, r->value, -1);
        if (r->absent) {
            strbuf_add_text(out, "  default ");
            json_print(out, r->absent, -1);
        }
        if (r->null) {
            strbuf_add_text(out, "  null ");
            json_print(out, r->null, -1);
        }
        if (r->directions == IMPORT) strbuf_add_text(out, "  (import)");
        if (r->directions == EXPORT) strbuf_add_text(out, "  (export)");
        strbuf_add_char(out, '\n');
    }
}

static void print_tensor(struct strbuf *out, const struct tensor_row *r)
{
    strbuf_printf(out, "  %s", r->megatron);
    if (r->when) strbuf_printf(out, "   when %s", r->when);
    strbuf_add_char(out, '\n');
    for (unsigned i = 0; i < r->num_parts; i++)
        strbuf_printf(out, "      [%s]  =  %s [%s]\n", r->parts[i].megatron,
                      r->hf[r->parts[i].tensor], r->parts[i].hf);
}

void model_map_print(struct strbuf *out, const struct model_map *map)
{
    strbuf_printf(out, "%s: %s\nmodel_type %s, architecture %s\n", map->family,
                  model_map_about(map), map->model_type, map->architecture);
    strbuf_add_text(out, "sizes\n");
    for (size_t i = 0; i < map->num_sizes; i++)
        strbuf_printf(out, "  %s = %s\n", map->sizes[i].name, map->sizes[i].text);
    print_config(out, map);
    strbuf_add_text(out, "tensors\n");
    for (size_t i = 0; i < map->num_tensors; i++)
        print_tensor(out, &map->tensors[i]);
    for (size_t i = 0; i < map->num_ignored; i++)
        strbuf_printf(out, "  ignored: %s\n", map->ignored[i]);
}

/* ---- for programs ---- */

static void add_text(cJSON *object, const char *name, const char *text)
{
    if (text) cJSON_AddStringToObject(object, name, text);
}

static void add_value(cJSON *object, const char *name, const cJSON *value)
{
    if (value) cJSON_AddItemToObject(object, name, cJSON_Duplicate(value, true));
}

static cJSON *config_row_json(const struct config_row *r)
{
    cJSON *o = cJSON_CreateObject();
    add_text(o, "megatron", r->megatron);
    add_text(o, "hf", r->hf);
    add_text(o, "how", r->how->name);
    add_value(o, "value", r->value);
    add_value(o, "default", r->absent);
    add_value(o, "null", r->null);
    if (r->directions == IMPORT) add_text(o, "only", "import");
    if (r->directions == EXPORT) add_text(o, "only", "export");
    return o;
}

static cJSON *tensor_row_json(const struct tensor_row *r)
{
    cJSON *o = cJSON_CreateObject();
    add_text(o, "megatron", r->megatron);
    add_text(o, "when", r->when);
    cJSON *parts = cJSON_AddArrayToObject(o, "parts");
    for (unsigned i = 0; i < r->num_parts; i++) {
        cJSON *part = cJSON_CreateObject();
        add_text(part, "megatron", r->parts[i].megatron);
        add_text(part, "hf_tensor", r->hf[r->parts[i].tensor]);
        add_text(part, "hf", r->parts[i].hf);
        cJSON_AddItemToArray(parts, part);
    }
    return o;
}

cJSON *model_map_json(const struct model_map *map)
{
    cJSON *o = cJSON_CreateObject();
    add_text(o, "family", map->family);
    add_text(o, "model_type", map->model_type);
    add_text(o, "architecture", map->architecture);
    add_text(o, "about", model_map_about(map));
    cJSON *sizes = cJSON_AddObjectToObject(o, "sizes");
    for (size_t i = 0; i < map->num_sizes; i++)
        add_text(sizes, map->sizes[i].name, map->sizes[i].text);
    cJSON *config = cJSON_AddArrayToObject(o, "config");
    for (size_t i = 0; i < map->num_config; i++)
        cJSON_AddItemToArray(config, config_row_json(&map->config[i]));
    cJSON *tensors = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < map->num_tensors; i++)
        cJSON_AddItemToArray(tensors, tensor_row_json(&map->tensors[i]));
    cJSON *ignored = cJSON_AddArrayToObject(o, "ignored");
    for (size_t i = 0; i < map->num_ignored; i++)
        cJSON_AddItemToArray(ignored, cJSON_CreateString(map->ignored[i]));
    return o;
}
