/* inspect_config.c - a model's config, as text and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/json.h"
#include "common/numbers.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/cli/options.h"

/* ---- lines ---- */

static uint64_t count_layers(const struct model_config *m,
                             bool (*has)(const struct model_config *m, uint64_t layer))
{
    uint64_t n = 0;
    for (uint64_t l = 0; l < m->num_layers; l++)
        n += has(m, l);
    return n;
}

/* " in 16 of 32 layers"; nothing if all layers have it. */
static void add_layer_count(struct strbuf *out, const struct model_config *m,
                            bool (*has)(const struct model_config *m, uint64_t layer))
{
    uint64_t n = count_layers(m, has);
    if (n != m->num_layers)
        strbuf_printf(out, " in %" PRIu64 " of %" PRIu64 " layers", n, m->num_layers);
}

static void experts_line(struct strbuf *out, const struct model_config *m)
{
    if (!m->num_experts) return;
    strbuf_printf(out, "experts    %" PRIu64, m->num_experts);
    add_layer_count(out, m, model_layer_is_moe);
    strbuf_printf(out, ", top-%" PRIu64 " per token, ffn %" PRIu64 ", ", m->moe_router_topk,
                  m->moe_ffn_hidden_size);
    if (!m->moe_router_score_function)
        strbuf_printf(out, "softmax %s top-k", m->moe_router_pre_softmax ? "before" : "after");
    else
        strbuf_printf(out, "scores by %s", m->moe_router_score_function);
    if (m->moe_router_enable_expert_bias) strbuf_add_text(out, ", expert bias");
    if (m->moe_router_topk_scaling_factor > 0)
        strbuf_printf(out, ", weights scaled by %.6g", m->moe_router_topk_scaling_factor);
    if (m->moe_aux_loss_coeff > 0) strbuf_printf(out, ", aux loss %.6g", m->moe_aux_loss_coeff);
    strbuf_add_char(out, '\n');
}

static void vocabulary_line(struct strbuf *out, const struct model_config *m)
{
    strbuf_printf(out, "vocabulary %s",
                  m->vocab_size ? grouped_text(m->vocab_size) : "size not known");
    if (m->padded_vocab_size) strbuf_printf(out, ", %s stored", grouped_text(m->padded_vocab_size));
    strbuf_printf(out, ", embeddings %s, %s positions\n",
                  m->untie_embeddings_and_output_weights ? "untied" : "tied",
                  grouped_text(m->max_position_embeddings));
}

/* Whether the softmax scale differs from 1 / sqrt(kv_channels). */
static bool scale_is_unusual(const struct model_config *m)
{
    return m->softmax_scale > 0 && fabs(m->softmax_scale * sqrt((double)m->kv_channels) - 1) > 1e-6;
}

static void attention_line(struct strbuf *out, const struct model_config *m)
{
    const char *bias = m->add_qkv_bias && m->add_proj_bias ? "bias of qkv and proj"
                       : m->add_qkv_bias                   ? "bias of qkv"
                       : m->add_proj_bias                  ? "bias of proj"
                                                           : "no bias";
    strbuf_printf(out, "attention  %s%s", bias, m->qk_layernorm ? ", qk norm" : "");
    if (m->sliding_window) {
        strbuf_printf(out, ", sliding window %s", grouped_text(m->sliding_window));
        add_layer_count(out, m, model_layer_slides);
    }
    if (scale_is_unusual(m)) strbuf_printf(out, ", softmax scale %.9g", m->softmax_scale);
    if (m->softmax_scale_by_layer) strbuf_add_text(out, ", scores divided by layer number");
    strbuf_add_char(out, '\n');
}

static void mlp_and_norm_lines(struct strbuf *out, const struct model_config *m)
{
    strbuf_printf(out, "mlp        %s, %s, %s\n",
                  m->activation_func ? m->activation_func : "activation not known",
                  m->gated_linear_unit ? "gated" : "not gated",
                  m->add_mlp_bias ? "bias" : "no bias");
    strbuf_printf(out, "norm       %s", m->normalization ? m->normalization : "not known");
    if (m->layernorm_epsilon > 0) strbuf_printf(out, ", eps %.9g", m->layernorm_epsilon);
    strbuf_add_char(out, '\n');
}

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
    strbuf_add_text(out, "model      ");
    add_count(out, m->num_layers, "layer", "layers");
    strbuf_printf(out, ", hidden %" PRIu64 ", ", m->hidden_size);
    add_count(out, m->num_attention_heads, "head, ", "heads, ");
    add_count(out, m->num_query_groups, "key/value head", "key/value heads");
    strbuf_printf(out, " of %" PRIu64 ", ffn %" PRIu64 "\n", m->kv_channels, m->ffn_hidden_size);
    experts_line(out, m);
    vocabulary_line(out, m);
    report_positions(out, m, 11);
    attention_line(out, m);
    mlp_and_norm_lines(out, m);
    feature_lines(out, m);
}
