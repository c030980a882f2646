#include "ckpt/model_config.h"

#include <string.h>

const struct model_field model_fields[] = {
#define UINT(name) {#name, FIELD_UINT, offsetof(struct model_config, name)},
#define REAL(name) {#name, FIELD_REAL, offsetof(struct model_config, name)},
#define BOOL(name) {#name, FIELD_BOOL, offsetof(struct model_config, name)},
#define TEXT(name) {#name, FIELD_TEXT, offsetof(struct model_config, name)},
    MODEL_FIELDS(UINT, REAL, BOOL, TEXT)
#undef UINT
#undef REAL
#undef BOOL
#undef TEXT
};
const size_t num_model_fields = sizeof model_fields / sizeof *model_fields;

const struct model_field *model_field_find(const char *name)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (strcmp(model_fields[i].name, name) == 0) return &model_fields[i];
    return NULL;
}

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
