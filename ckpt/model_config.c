#include "ckpt/model_config.h"
#include "common/count.h"

#include <string.h>

/* ---- fields ---- */

static bool has_rope(const struct model_config *c)
{
    return c->position_embedding_type && strcmp(c->position_embedding_type, "rope") == 0;
}

static bool has_rope_type(const struct model_config *c, const char *type)
{
    return has_rope(c) && c->rope_type && strcmp(c->rope_type, type) == 0;
}

/* Whether rope's frequencies are not the usual ones. */
static bool is_scaled(const struct model_config *c)
{
    return has_rope(c) && c->rope_type && strcmp(c->rope_type, "default");
}

static bool has_dense_layers(const struct model_config *c)
{
    for (uint64_t l = 0; l < c->num_layers; l++)
        if (!model_layer_is_moe(c, l)) return true;
    return !c->num_experts;
}

// clang-format off
#define MATTERS(kind, name, role, zero, when) \
    static bool name##_matters(const struct model_config *c) { (void)c; return when; }
MODEL_FIELDS(MATTERS)

#define ROW(kind, name, role, zero, when) \
    {FIELD_ROW(struct model_config, name), FIELD_##role, ZERO_##zero, name##_matters},
const struct model_field model_fields[] = {MODEL_FIELDS(ROW)};
// clang-format on
const size_t num_model_fields = COUNT(model_fields);

const struct model_field *model_field_find(const char *name)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (strcmp(model_fields[i].field.name, name) == 0) return &model_fields[i];
    return NULL;
}

/* ---- layers ---- */

bool model_layer_is_moe(const struct model_config *c, uint64_t layer)
{
    return c->num_experts > 0 && (!c->moe_layers || c->moe_layers[layer]);
}

bool model_layer_slides(const struct model_config *c, uint64_t layer)
{
    return c->sliding_window > 0 && (!c->window_layers || c->window_layers[layer]);
}

void model_config_join_biases(struct model_config *c)
{
    bool all = c->add_qkv_bias && c->add_proj_bias && c->add_mlp_bias;
    if (c->add_bias_linear) c->add_qkv_bias = c->add_proj_bias = c->add_mlp_bias = true;
    c->add_bias_linear |= all;
}

bool model_layers_differ(const struct model_config *c)
{
    if (!c->num_experts || !c->moe_layers) return false;
    for (uint64_t l = 1; l < c->num_layers; l++)
        if (c->moe_layers[l] != c->moe_layers[0]) return true;
    return false;
}
