#include "ckpt/model_config.h"

#include <inttypes.h>
#include <string.h>

#include "common/count.h"
#include "common/strbuf.h"
#include "common/text.h"

/* ---- fields ---- */

static bool has_rope(const struct model_config *c)
{
    return c->position_embedding_type && strcmp(c->position_embedding_type, "rope") == 0;
}

static bool has_rope_type(const struct model_config *c, const char *type)
{
    return has_rope(c) && c->rope_type && strcmp(c->rope_type, type) == 0;
}

/* Whether rope's frequencies are scaled. */
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

void model_config_set_layers(struct model_config *c, unsigned i, const bool *has)
{
    const bool is_window = layer_fields[i].has == model_layer_slides;
    uint64_t count = 0;
    for (uint64_t l = 0; has && l < c->num_layers; l++)
        count += has[l];
    if (count == c->num_layers) has = NULL;
    if (is_window && has && count == 0) {
        c->sliding_window = 0;
        has = NULL;
    }
    *(is_window ? &c->window_layers : &c->moe_layers) = has;
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

/* ---- two configs ---- */

const struct layer_field layer_fields[NUM_LAYER_FIELDS] = {
    {"moe_layers", "moe", model_layer_is_moe}, {"window_layers", "window", model_layer_slides}};

bool layer_field_equal(unsigned i, const struct model_config *a, const struct model_config *b)
{
    if (a->num_layers != b->num_layers) return true; /* the numbers of layers are the difference */
    for (uint64_t l = 0; l < a->num_layers; l++)
        if (layer_fields[i].has(a, l) != layer_fields[i].has(b, l)) return false;
    return true;
}

const char *model_config_difference(const struct model_config *a, const struct model_config *b)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (!field_equal(&model_fields[i].field, a, b)) return model_fields[i].field.name;
    for (unsigned i = 0; i < NUM_LAYER_FIELDS; i++)
        if (!layer_field_equal(i, a, b)) return layer_fields[i].name;
    return NULL;
}

/* "0, 2, 5": the layers with feature i. */
static const char *layers_text(struct arena *a, const struct model_config *c, unsigned i)
{
    struct strbuf text = {0};
    uint64_t count = 0;
    for (uint64_t l = 0; l < c->num_layers; l++)
        if (layer_fields[i].has(c, l)) strbuf_printf(&text, count++ ? ", %" PRIu64 : "%" PRIu64, l);
    const char *out = count == 0               ? "none"
                      : count == c->num_layers ? "all"
                                               : arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

const char *model_config_text(const struct model_config *c, const char *field, struct arena *a)
{
    static const struct scalar_style style = {9, "true", "false", "not given"};
    const struct model_field *f = model_field_find(field);
    for (unsigned i = 0; i < NUM_LAYER_FIELDS && !f; i++)
        if (strcmp(layer_fields[i].name, field) == 0) return layers_text(a, c, i);
    return f ? scalar_text(field_get(&f->field, c), &style, a) : style.none;
}

void model_config_take(struct model_config *c, const struct model_config *from, const char *field)
{
    if (strcmp(field, "moe_layers") == 0)
        c->moe_layers = from->moe_layers;
    else if (strcmp(field, "window_layers") == 0)
        c->window_layers = from->window_layers;
    else
        field_copy(&model_field_find(field)->field, c, from);
}

void model_config_take_unused(struct model_config *c, const struct model_config *other)
{
    const struct model_config before = *c;
    for (size_t i = 0; i < num_model_fields; i++)
        if (!model_fields[i].matters(&before)) field_copy(&model_fields[i].field, c, other);
    if (!c->rope_type) c->rope_type = "default";
}

struct model_config model_config_with_unused(const struct model_config *c,
                                             const struct model_config *from)
{
    struct model_config out = *c;
    if (!c->normalization) out.normalization = from->normalization;
    if (!c->position_embedding_type) out.position_embedding_type = from->position_embedding_type;
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        if (f->role == FIELD_STORAGE || f->role == FIELD_TRAINING)
            field_copy(&f->field, &out, from);
    }
    model_config_take_unused(&out, from);
    return out;
}
