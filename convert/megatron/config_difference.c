#include "convert/megatron/config_difference.h"

#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/strbuf.h"
#include "common/text.h"
#include "convert/megatron/megatron_args.h"

/* ---- fields ---- */

/* Whether rope's frequencies depend on the trained number of positions. */
static bool counts_positions(const struct model_config *c)
{
    return text_equal(c->position_embedding_type, "rope") && !c->rope_original_max_position &&
           (text_equal(c->rope_type, "dynamic") || text_equal(c->rope_type, "yarn"));
}

/* Whether the field only says how the vocabulary is stored, which tensors
 * show. */
static bool tensors_show(const struct model_field *f)
{
    return f->role == FIELD_STORAGE || f->role == FIELD_VOCABULARY;
}

static bool is_harmless(const struct model_config *a, const struct model_config *b,
                        const struct model_field *f)
{
    if (f->role == FIELD_LENGTH) return !counts_positions(a) && !counts_positions(b);
    return f->role == FIELD_TRAINING;
}

/* ---- two checkpoints ---- */

struct differing {
    const struct checkpoint *sides[2];
    struct model_config configs[2]; /* without unused fields */
    struct model_config by_args[2]; /* the same as args express them */
    struct arena *arena;
    struct config_difference *found;
    size_t num_found, capacity;
};

static bool field_is_given(const struct model_config *c, const char *field)
{
    const struct model_field *f = model_field_find(field);
    return !f || f->zero != ZERO_UNKNOWN || scalar_is_given(field_get(&f->field, c));
}

/* Args only say that the activation is a GELU; whether tanh computes it depends
 * on a fusion (bias_gelu_fusion) and the model's construction. */
static const char *activation_of_args(const char *activation)
{
    return text_equal(activation, "gelu_tanh") ? "gelu" : activation;
}

/* same[0]: side 1, as args express it, equals side 0; same[1]: vice versa. */
static enum config_effect effect_of(const struct differing *x, const char *field,
                                    const bool same[2])
{
    for (unsigned i = 0; i < 2; i++) {
        if (x->sides[i]->config_origin == CONFIG_OF_TENSORS) return EFFECT_UNSAID;
        if (!field_is_given(&x->configs[i], field)) return EFFECT_UNSAID;
        if (x->sides[i]->config_origin == CONFIG_OF_ARGS && same[i]) return EFFECT_UNSAID;
    }
    const struct model_field *f = model_field_find(field);
    return f && is_harmless(&x->configs[0], &x->configs[1], f) ? EFFECT_HARMLESS : EFFECT_COMPUTES;
}

static void add_field_difference(struct differing *x, const char *field, const bool same[2],
                                 bool computing)
{
    enum config_effect effect = effect_of(x, field, same);
    if ((effect == EFFECT_COMPUTES) != computing) return;
    struct config_difference d = {.field = field, .effect = effect};
    for (unsigned i = 0; i < 2; i++)
        d.values[i] = field_is_given(&x->configs[i], field)
                          ? model_config_text(&x->configs[i], field, x->arena)
                          : "not given";
    *ARENA_PUSH(x->arena, x->found, x->num_found, x->capacity) = d;
}

static void find_field_differences(struct differing *x, bool computing)
{
    const struct model_config *a = &x->configs[0], *b = &x->configs[1];
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        bool same[2] = {model_field_equal(f, a, &x->by_args[1]),
                        model_field_equal(f, b, &x->by_args[0])};
        if (tensors_show(f) || model_field_equal(f, a, b)) continue;
        add_field_difference(x, f->field.name, same, computing);
    }
    for (unsigned i = 0; i < NUM_LAYER_FIELDS; i++) {
        bool same[2] = {layer_field_equal(i, a, &x->by_args[1]),
                        layer_field_equal(i, b, &x->by_args[0])};
        if (!layer_field_equal(i, a, b))
            add_field_difference(x, layer_fields[i].name, same, computing);
    }
}

/* ---- unknown fields ---- */

static bool is_of_json(const struct unknown_field *f)
{
    return strcmp(f->file, "config.json") == 0;
}

/* Args and run_config.yaml have a field for each Megatron feature, so a missing
 * field means off. A config.json may describe any model. */
static enum config_effect effect_of_unknown(const struct differing *x,
                                            const struct unknown_field *const fields[2])
{
    for (unsigned i = 0; i < 2; i++)
        if (!fields[i] && is_of_json(fields[1 - i]) && x->sides[i]->config_origin != CONFIG_OF_JSON)
            return EFFECT_UNSAID;
    return EFFECT_COMPUTES;
}

static const struct unknown_field *find_of(const struct unknown_fields *u, const char *name,
                                           bool of_json)
{
    for (size_t i = 0; i < u->count; i++)
        if (is_of_json(&u->items[i]) == of_json && strcmp(u->items[i].name, name) == 0)
            return &u->items[i];
    return NULL;
}

/* Finds the two fields of this name, in the same kind of file if possible. */
static void find_pair(const struct differing *x, const char *name,
                      const struct unknown_field *out[2])
{
    static const bool of_json[] = {true, false};
    for (unsigned k = 0; k < COUNT(of_json); k++) {
        for (unsigned i = 0; i < 2; i++)
            out[i] = find_of(&x->sides[i]->unknown, name, of_json[k]);
        if (out[0] && out[1]) return;
    }
    for (unsigned i = 0; i < 2; i++)
        out[i] = unknown_fields_find(&x->sides[i]->unknown, name);
}

static void add_unknown_difference(struct differing *x, const char *name, bool computing)
{
    const struct unknown_field *fields[2];
    find_pair(x, name, fields);
    if (fields[0] && fields[1] && strcmp(fields[0]->value, fields[1]->value) == 0) return;
    enum config_effect effect = effect_of_unknown(x, fields);
    if ((effect == EFFECT_COMPUTES) != computing) return;
    struct config_difference d = {.field = name, .effect = effect};
    for (unsigned i = 0; i < 2; i++)
        d.values[i] = fields[i] ? fields[i]->value : "not given";
    *ARENA_PUSH(x->arena, x->found, x->num_found, x->capacity) = d;
}

static void find_unknown_differences(struct differing *x, bool computing)
{
    for (unsigned side = 0; side < 2; side++) {
        const struct unknown_fields *u = &x->sides[side]->unknown;
        for (size_t i = 0; i < u->count; i++) {
            const char *name = u->items[i].name;
            bool done = unknown_fields_find(u, name) != &u->items[i] ||
                        (side && unknown_fields_find(&x->sides[0]->unknown, name));
            if (!done) add_unknown_difference(x, name, computing);
        }
    }
}

size_t config_differences(const struct checkpoint *a, const struct checkpoint *b,
                          struct arena *arena, struct config_difference **out)
{
    struct differing x = {.sides = {a, b}, .arena = arena};
    x.configs[0] = a->config;
    model_config_take_unused(&x.configs[0], &b->config);
    x.configs[1] = b->config;
    model_config_take_unused(&x.configs[1], &x.configs[0]);
    for (unsigned i = 0; i < 2; i++) {
        x.by_args[i] = model_config_through_args(&x.configs[i], arena);
        if (text_equal(activation_of_args(x.by_args[i].activation_func),
                       activation_of_args(x.configs[1 - i].activation_func)))
            x.by_args[i].activation_func = x.configs[1 - i].activation_func;
        model_config_take_unused(&x.by_args[i], &x.configs[1 - i]);
    }
    find_field_differences(&x, true);
    find_unknown_differences(&x, true);
    find_field_differences(&x, false);
    find_unknown_differences(&x, false);
    *out = x.found;
    return x.num_found;
}

/* ---- one, as text ---- */

/* Whether every field that the model needs has a value. */
static bool config_is_complete(const struct model_config *c)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (model_fields[i].matters(c) && !field_is_given(c, model_fields[i].field.name))
            return false;
    return true;
}

static int by_field_name(const void *a, const void *b)
{
    const struct unknown_field *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Adds sorted lines, since the order of members in a file has no meaning. */
static void add_unknown_lines(struct strbuf *text, const struct unknown_fields *u, bool of_json,
                              struct arena *arena)
{
    const struct unknown_field **sorted = arena_array(arena, u->count + 1, sizeof *sorted);
    size_t count = 0;
    for (size_t i = 0; i < u->count; i++)
        if (find_of(u, u->items[i].name, of_json) == &u->items[i]) sorted[count++] = &u->items[i];
    qsort(sorted, count, sizeof *sorted, by_field_name);
    for (size_t i = 0; i < count; i++)
        strbuf_printf(text, "unknown %s %s\n", sorted[i]->name, sorted[i]->value);
}

const char *config_text(const struct checkpoint *c, bool as_args, struct arena *arena)
{
    const struct model_config nothing = {.rotary_percent = 1};
    struct model_config config = c->config;
    struct strbuf text = {0};
    if (c->config_origin == CONFIG_OF_TENSORS) return NULL;
    if (c->config_origin == CONFIG_OF_ARGS && !as_args) return NULL;
    if (!config_is_complete(&config)) return NULL;
    if (as_args) config = model_config_through_args(&config, arena);
    if (as_args) config.activation_func = activation_of_args(config.activation_func);
    model_config_take_unused(&config, &nothing);
    for (size_t i = 0; i < num_model_fields; i++) {
        const char *name = model_fields[i].field.name;
        const struct model_field *f = &model_fields[i];
        if (tensors_show(f) || is_harmless(&config, &config, f)) continue;
        if (model_field_is_unused(f, &config)) continue;
        strbuf_printf(&text, "%s %s\n", name, model_config_text(&config, name, arena));
    }
    for (unsigned i = 0; i < NUM_LAYER_FIELDS; i++)
        strbuf_printf(&text, "%s %s\n", layer_fields[i].name,
                      model_config_text(&config, layer_fields[i].name, arena));
    add_unknown_lines(&text, &c->unknown, !as_args, arena);
    const char *out = arena_text(arena, text.data, text.length);
    strbuf_release(&text);
    return out;
}
