#include "ckpt/model_config.h"

#include <inttypes.h>
#include <pthread.h>
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
    {FIELD_ROW(struct model_config, name), FIELD_##role, ZERO_##zero, name##_matters, false, 0},
#define COUNTED(...) +1
enum { NUM_MEMBERS = 0 MODEL_FIELDS(COUNTED) };
static struct model_field fields[NUM_MEMBERS + MAX_DECLARED_FIELDS] = {MODEL_FIELDS(ROW)};
// clang-format on
const struct model_field *const model_fields = fields;
size_t num_model_fields = NUM_MEMBERS;

const struct model_field *model_field_find(const char *name)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (strcmp(model_fields[i].field.name, name) == 0) return &model_fields[i];
    return NULL;
}

/* ---- declared fields ---- */

static bool always(const struct model_config *c)
{
    (void)c;
    return true;
}

static enum status declare(const char *name, enum field_kind kind, enum field_role role,
                           bool by_layer, struct error *err)
{
    static struct arena names; /* kept as long as the process runs */
    const struct model_field *old = model_field_find(name);
    if (old && old->declared && old->field.kind == kind && old->role == role &&
        old->by_layer == by_layer)
        return OK;
    if (old)
        return fail(err, ERR_USAGE, "field %s exists already%s", name,
                    old->declared ? " with another type" : ", and the program computes with it");
    const size_t i = num_model_fields - NUM_MEMBERS;
    if (i == MAX_DECLARED_FIELDS)
        return fail(err, ERR_USAGE, "field %s is one too many: there can be %d", name,
                    MAX_DECLARED_FIELDS);
    fields[num_model_fields] = (struct model_field){
        .field = {arena_copy_text(&names, name), kind,
                  offsetof(struct model_config, declared) + i * sizeof(struct declared_value) +
                      offsetof(struct declared_value, value.number)},
        .role = role,
        .zero = ZERO_UNUSED,
        .matters = always,
        .by_layer = by_layer,
        .declared = (unsigned)i + 1};
    __atomic_store_n(&num_model_fields, num_model_fields + 1, __ATOMIC_RELEASE);
    return OK;
}

enum status model_field_declare(const char *name, enum field_kind kind, enum field_role role,
                                bool by_layer, struct error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    enum status st = declare(name, kind, role, by_layer, err);
    pthread_mutex_unlock(&lock);
    return st;
}

const struct scalar *model_field_layers(const struct model_field *f, const struct model_config *c)
{
    return f->declared ? c->declared[f->declared - 1].by_layer : NULL;
}

struct scalar model_field_at(const struct model_field *f, const struct model_config *c,
                             uint64_t layer)
{
    const struct scalar *layers = model_field_layers(f, c);
    return layers && layer < c->num_layers ? layers[layer] : field_get(&f->field, c);
}

void model_field_copy(const struct model_field *f, struct model_config *to,
                      const struct model_config *from)
{
    field_copy(&f->field, to, from);
    if (f->declared) to->declared[f->declared - 1].by_layer = model_field_layers(f, from);
}

bool model_field_equal(const struct model_field *f, const struct model_config *a,
                       const struct model_config *b)
{
    if (!field_equal(&f->field, a, b)) return false;
    if (!model_field_layers(f, a) && !model_field_layers(f, b)) return true;
    for (uint64_t l = 0; a->num_layers == b->num_layers && l < a->num_layers; l++)
        if (!scalar_equal(model_field_at(f, a, l), model_field_at(f, b, l))) return false;
    return true;
}

void model_field_set_layers(const struct model_field *f, struct model_config *c,
                            const struct scalar *values)
{
    bool equal = true;
    for (uint64_t l = 1; l < c->num_layers; l++)
        equal &= scalar_equal(values[l], values[0]);
    c->declared[f->declared - 1].by_layer = equal ? NULL : values;
    field_set(&f->field, c,
              equal && c->num_layers ? values[0] : (struct scalar){.kind = f->field.kind});
}

bool model_field_is_zero(const struct model_field *f, const struct model_config *c)
{
    return !model_field_layers(f, c) && scalar_is_zero(field_get(&f->field, c));
}

/* ---- layers ---- */

bool model_layer_is_moe(const struct model_config *c, uint64_t layer)
{
    return c->num_experts > 0 && (!c->moe_layers || c->moe_layers[layer]);
}

uint64_t model_mtp_layers(const struct model_config *c)
{
    const struct model_field *f = model_field_find("mtp_num_layers");
    return f ? model_field_at(f, c, 0).number : 0;
}

void model_set_mtp_layers(struct model_config *c, uint64_t count)
{
    const struct model_field *f = model_field_find("mtp_num_layers");
    if (f) field_set(&f->field, c, (struct scalar){.kind = FIELD_UINT, .number = count});
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
        if (!model_field_equal(&model_fields[i], a, b)) return model_fields[i].field.name;
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
    if (!f) return style.none;
    if (!model_field_layers(f, c)) return scalar_text(field_get(&f->field, c), &style, a);
    struct strbuf text = {0};
    for (uint64_t l = 0; l < c->num_layers; l++)
        strbuf_printf(&text, l ? ", %s" : "%s", scalar_text(model_field_at(f, c, l), &style, a));
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

void model_config_take(struct model_config *c, const struct model_config *from, const char *field)
{
    if (strcmp(field, "moe_layers") == 0)
        c->moe_layers = from->moe_layers;
    else if (strcmp(field, "window_layers") == 0)
        c->window_layers = from->window_layers;
    else
        model_field_copy(model_field_find(field), c, from);
}

void model_config_take_unused(struct model_config *c, const struct model_config *other)
{
    const struct model_config before = *c;
    for (size_t i = 0; i < num_model_fields; i++)
        if (!model_fields[i].matters(&before)) model_field_copy(&model_fields[i], c, other);
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
        if (f->role == FIELD_STORAGE || f->role == FIELD_TRAINING) model_field_copy(f, &out, from);
    }
    model_config_take_unused(&out, from);
    return out;
}
