/* inspect_config.c - a model's config, as text and as JSON. */
#include <inttypes.h>
#include <string.h>

#include "common/json.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/map/config_lines.h"

/* ---- all fields ---- */

static cJSON *layers_json(const bool *layers, uint64_t num_layers)
{
    if (!layers) return cJSON_CreateNull();
    cJSON *list = cJSON_CreateArray();
    for (uint64_t l = 0; l < num_layers; l++)
        cJSON_AddItemToArray(list, cJSON_CreateBool(layers[l]));
    return list;
}

static cJSON *field_json(const struct model_config *m, const struct model_field *f)
{
    const struct scalar s = field_get(&f->field, m);
    if (!model_field_layers(f, m)) return scalar_is_given(s) ? scalar_json(s) : cJSON_CreateNull();
    cJSON *list = cJSON_CreateArray();
    for (uint64_t l = 0; l < m->num_layers; l++)
        cJSON_AddItemToArray(list, scalar_json(model_field_at(f, m, l)));
    return list;
}

static void add_value(struct strbuf *out, const struct model_config *m, const struct model_field *f)
{
    cJSON *value = field_json(m, f);
    if (json_as_text(value))
        add_escaped_name(out, json_as_text(value));
    else if (cJSON_IsNull(value))
        strbuf_add_char(out, '-');
    else
        json_print(out, value, -1);
    cJSON_Delete(value);
}

cJSON *config_json(const struct model_config *m)
{
    cJSON *o = cJSON_CreateObject();
    for (size_t i = 0; i < num_model_fields; i++)
        if (!model_field_is_unused(&model_fields[i], m))
            cJSON_AddItemToObject(o, model_fields[i].field.name, field_json(m, &model_fields[i]));
    cJSON_AddItemToObject(o, "moe_layers", layers_json(m->moe_layers, m->num_layers));
    cJSON_AddItemToObject(o, "window_layers", layers_json(m->window_layers, m->num_layers));
    return o;
}

void config_field_lines(struct strbuf *out, const struct model_config *m)
{
    strbuf_add_text(out, "config\n");
    for (size_t i = 0; i < num_model_fields; i++) {
        if (model_field_is_unused(&model_fields[i], m)) continue;
        add_row_name(out, model_fields[i].field.name, 42);
        add_value(out, m, &model_fields[i]);
        strbuf_add_char(out, '\n');
    }
}

/* ---- the lines for people ---- */

/* "attention_sinks, no_rope in 2 of 8 layers, q_lora_rank 1536" */
static void add_feature(struct strbuf *out, const struct model_config *m,
                        const struct model_field *f)
{
    const bool by_layer = model_field_layers(f, m) != NULL;
    uint64_t n = 0;
    for (uint64_t l = 0; l < m->num_layers; l++) {
        const struct scalar s = model_field_at(f, m, l);
        n += !scalar_is_zero(s);
    }
    strbuf_add_text(out, f->field.name);
    if (by_layer && n != m->num_layers)
        strbuf_printf(out, " in %" PRIu64 " of %" PRIu64 " layers", n, m->num_layers);
    else if (by_layer)
        strbuf_add_text(out, " by layer");
    else if (f->field.kind != FIELD_BOOL) {
        strbuf_add_char(out, ' ');
        add_value(out, m, f);
    }
}

/* Declared fields that the model uses. */
static void feature_lines(struct strbuf *out, const struct model_config *m)
{
    enum { COLUMNS = 100 };
    size_t begin = out->length;
    bool any = false;
    for (size_t i = 0; i < num_model_fields; i++) {
        struct strbuf text = {0};
        const struct model_field *f = &model_fields[i];
        if (!f->declared || model_field_is_unused(f, m)) continue;
        add_feature(&text, m, f);
        if (!any)
            strbuf_add_text(out, "features   ");
        else if (out->length - begin + text.length > COLUMNS) {
            begin = out->length + 2;
            strbuf_add_text(out, ",\n           ");
        } else
            strbuf_add_text(out, ", ");
        strbuf_add_text(out, text.data);
        strbuf_release(&text);
        any = true;
    }
    if (any) strbuf_add_char(out, '\n');
}

void config_lines(struct strbuf *out, const struct model_config *m)
{
    config_lines_add(out, m, false, 11);
    feature_lines(out, m);
}
