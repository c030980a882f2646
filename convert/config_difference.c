#include "convert/config_difference.h"

#include <inttypes.h>
#include <string.h>

#include "common/strbuf.h"
#include "convert/megatron_args.h"

/* ---- fields ---- */

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_field(const struct model_field *f, const struct model_config *x,
                       const struct model_config *y)
{
    const void *a = (const char *)x + f->offset, *b = (const char *)y + f->offset;
    switch (f->kind) {
    case FIELD_UINT:
        return *(const uint64_t *)a == *(const uint64_t *)b;
    case FIELD_REAL:
        return !(*(const double *)a < *(const double *)b) &&
               !(*(const double *)a > *(const double *)b);
    case FIELD_BOOL:
        return *(const bool *)a == *(const bool *)b;
    default:
        return same_text(*(const char *const *)a, *(const char *const *)b);
    }
}

/* What a layer has or not, of which model_fields has no line. */
static const struct {
    const char *name;
    bool (*has)(const struct model_config *c, uint64_t layer);
} by_layer[] = {{"moe_layers", model_layer_is_moe}, {"window_layers", model_layer_slides}};
enum { NUM_BY_LAYER = sizeof by_layer / sizeof *by_layer };

static bool same_layers(unsigned i, const struct model_config *a, const struct model_config *b)
{
    if (a->num_layers != b->num_layers) return true; /* that is the difference */
    for (uint64_t l = 0; l < a->num_layers; l++)
        if (by_layer[i].has(a, l) != by_layer[i].has(b, l)) return false;
    return true;
}

const char *model_config_difference(const struct model_config *a, const struct model_config *b)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (!same_field(&model_fields[i], a, b)) return model_fields[i].name;
    for (unsigned i = 0; i < NUM_BY_LAYER; i++)
        if (!same_layers(i, a, b)) return by_layer[i].name;
    return NULL;
}

/* "0, 2, 5": the layers that have it. */
static const char *layers_text(struct arena *a, const struct model_config *c, unsigned i)
{
    struct strbuf text = {0};
    uint64_t count = 0;
    for (uint64_t l = 0; l < c->num_layers; l++)
        if (by_layer[i].has(c, l)) strbuf_printf(&text, count++ ? ", %" PRIu64 : "%" PRIu64, l);
    const char *out = count == 0               ? "none"
                      : count == c->num_layers ? "all"
                                               : arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

const char *model_config_text(const struct model_config *c, const char *field, struct arena *a)
{
    const struct model_field *f = model_field_find(field);
    const void *at = f ? (const char *)c + f->offset : NULL;
    for (unsigned i = 0; i < NUM_BY_LAYER && !f; i++)
        if (strcmp(by_layer[i].name, field) == 0) return layers_text(a, c, i);
    if (!f) return "not given";
    switch (f->kind) {
    case FIELD_UINT:
        return arena_printf(a, "%" PRIu64, *(const uint64_t *)at);
    case FIELD_REAL:
        return arena_printf(a, "%.9g", *(const double *)at);
    case FIELD_BOOL:
        return *(const bool *)at ? "true" : "false";
    default:
        return *(const char *const *)at ? *(const char *const *)at : "not given";
    }
}

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name))
        names++;
    return *names != NULL;
}

/* How the vocabulary is stored: tensors show it. */
static const char *const of_storage[] = {"vocab_size", "padded_vocab_size",
                                         "make_vocab_size_divisible_by", NULL};
/* What matters to a training alone. */
static const char *const of_training[] = {"attention_dropout", "hidden_dropout", "init_method_std",
                                          "moe_aux_loss_coeff", NULL};
/* 0 or NULL is no value that they have: nobody said it. */
static const char *const never_zero[] = {"hidden_size",
                                         "ffn_hidden_size",
                                         "num_attention_heads",
                                         "num_query_groups",
                                         "kv_channels",
                                         "max_position_embeddings",
                                         "normalization",
                                         "layernorm_epsilon",
                                         "activation_func",
                                         "rotary_base",
                                         "moe_router_topk",
                                         "moe_ffn_hidden_size",
                                         "rotary_percent",
                                         "num_layers",
                                         "position_embedding_type",
                                         NULL};

static bool is_text(const char *text, const char *other)
{
    return text && strcmp(text, other) == 0;
}

/* Whether frequencies depend on how many positions the model was made for. */
static bool counts_positions(const struct model_config *c)
{
    return is_text(c->position_embedding_type, "rope") && !c->rope_original_max_position &&
           (is_text(c->rope_type, "dynamic") || is_text(c->rope_type, "yarn"));
}

static bool is_harmless(const struct model_config *a, const struct model_config *b,
                        const char *field)
{
    if (strcmp(field, "max_position_embeddings") == 0)
        return !counts_positions(a) && !counts_positions(b);
    return is_one_of(field, of_training);
}

/* ---- what counts ---- */

static void take(struct model_config *to, const struct model_config *from,
                 const char *const *fields)
{
    static const size_t bytes[] = {sizeof(uint64_t), sizeof(double), sizeof(bool), sizeof(char *)};
    for (; *fields; fields++) {
        const struct model_field *f = model_field_find(*fields);
        memcpy((char *)to + f->offset, (const char *)from + f->offset, bytes[f->kind]);
    }
}

void model_config_take(struct model_config *c, const struct model_config *from, const char *field)
{
    const char *const fields[] = {field, NULL};
    if (strcmp(field, "moe_layers") == 0)
        c->moe_layers = from->moe_layers;
    else if (strcmp(field, "window_layers") == 0)
        c->window_layers = from->window_layers;
    else
        take(c, from, fields);
}

/* What c's features make idle is what `other` has. */
static void take_idle(struct model_config *c, const struct model_config *other)
{
    static const char *const rope[] = {"rotary_base",
                                       "rotary_percent",
                                       "rotary_interleaved",
                                       "rope_type",
                                       "rope_factor",
                                       "rope_low_freq_factor",
                                       "rope_beta_fast",
                                       "rope_beta_slow",
                                       "rope_high_freq_factor",
                                       "rope_original_max_position",
                                       "rope_attention_factor",
                                       "rope_untruncated",
                                       NULL};
    static const char *const experts[] = {"moe_router_topk", "moe_ffn_hidden_size",
                                          "moe_router_pre_softmax", NULL};
    static const char *const dense[] = {"ffn_hidden_size", NULL};
    static const struct {
        const char *type, *idle[9];
    } scaling[] = {
        {"default",
         {"rope_factor", "rope_low_freq_factor", "rope_high_freq_factor",
          "rope_original_max_position", "rope_beta_fast", "rope_beta_slow", "rope_attention_factor",
          "rope_untruncated"}},
        {"linear",
         {"rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_position",
          "rope_beta_fast", "rope_beta_slow", "rope_attention_factor", "rope_untruncated"}},
        {"dynamic",
         {"rope_low_freq_factor", "rope_high_freq_factor", "rope_beta_fast", "rope_beta_slow",
          "rope_attention_factor", "rope_untruncated"}},
        {"llama3",
         {"rope_beta_fast", "rope_beta_slow", "rope_attention_factor", "rope_untruncated"}},
        {"yarn", {"rope_low_freq_factor", "rope_high_freq_factor"}},
    };
    bool has_dense = !c->num_experts;
    for (uint64_t l = 0; l < c->num_layers; l++)
        has_dense |= !model_layer_is_moe(c, l);
    if (!has_dense) take(c, other, dense);
    if (!c->num_experts) take(c, other, experts);
    if (!is_text(c->position_embedding_type, "rope")) take(c, other, rope);
    if (!c->rope_type) c->rope_type = "default";
    for (size_t i = 0; i < sizeof scaling / sizeof *scaling; i++)
        if (strcmp(scaling[i].type, c->rope_type) == 0) take(c, other, scaling[i].idle);
}

struct model_config model_config_essence(const struct model_config *c,
                                         const struct model_config *other)
{
    static const char *const stored[] = {"padded_vocab_size", "make_vocab_size_divisible_by", NULL};
    struct model_config e = *c;
    if (!c->normalization) e.normalization = other->normalization;
    if (!c->position_embedding_type) e.position_embedding_type = other->position_embedding_type;
    take(&e, other, stored);
    take(&e, other, of_training);
    take_idle(&e, other);
    return e;
}

/* ---- two checkpoints ---- */

struct differing {
    const struct checkpoint *sides[2];
    struct model_config configs[2], by_args[2]; /* without what is idle; what args say of them */
    struct arena *arena;
    struct config_difference *found;
    size_t num_found, capacity;
};

static bool is_given(const struct model_config *c, const char *field)
{
    const struct model_field *f = model_field_find(field);
    const void *at = f ? (const char *)c + f->offset : NULL;
    if (!f || !is_one_of(field, never_zero)) return true;
    if (f->kind == FIELD_UINT) return *(const uint64_t *)at != 0;
    if (f->kind == FIELD_REAL) return *(const double *)at > 0;
    return f->kind != FIELD_TEXT || *(const char *const *)at;
}

/* Args say that it is a GELU; whether by tanh hangs on a fusion (bias_gelu_fusion), and on how the
 * model is built. */
static const char *activation_of_args(const char *activation)
{
    return is_text(activation, "gelu_tanh") ? "gelu" : activation;
}

/* same[0]: whether side 1, said by args, reads as side 0 does; same[1]: the other way round. */
static enum config_effect effect_of(const struct differing *x, const char *field,
                                    const bool same[2])
{
    for (unsigned i = 0; i < 2; i++) {
        if (x->sides[i]->config_origin == CONFIG_OF_TENSORS) return EFFECT_UNSAID;
        if (!is_given(&x->configs[i], field)) return EFFECT_UNSAID;
        if (x->sides[i]->config_origin == CONFIG_OF_ARGS && same[i]) return EFFECT_UNSAID;
    }
    return is_harmless(&x->configs[0], &x->configs[1], field) ? EFFECT_HARMLESS : EFFECT_COMPUTES;
}

static void add(struct differing *x, const char *field, const bool same[2], bool computing)
{
    enum config_effect effect = effect_of(x, field, same);
    if ((effect == EFFECT_COMPUTES) != computing) return;
    struct config_difference d = {.field = field, .effect = effect};
    for (unsigned i = 0; i < 2; i++)
        d.values[i] = is_given(&x->configs[i], field)
                          ? model_config_text(&x->configs[i], field, x->arena)
                          : "not given";
    *ARENA_PUSH(x->arena, x->found, x->num_found, x->capacity) = d;
}

static void find(struct differing *x, bool computing)
{
    const struct model_config *a = &x->configs[0], *b = &x->configs[1];
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        bool same[2] = {same_field(f, a, &x->by_args[1]), same_field(f, b, &x->by_args[0])};
        if (is_one_of(f->name, of_storage) || same_field(f, a, b)) continue;
        add(x, f->name, same, computing);
    }
    for (unsigned i = 0; i < NUM_BY_LAYER; i++) {
        bool same[2] = {same_layers(i, a, &x->by_args[1]), same_layers(i, b, &x->by_args[0])};
        if (!same_layers(i, a, b)) add(x, by_layer[i].name, same, computing);
    }
}

size_t config_differences(const struct checkpoint *a, const struct checkpoint *b,
                          struct arena *arena, struct config_difference **out)
{
    struct differing x = {.sides = {a, b}, .arena = arena};
    x.configs[0] = a->config;
    take_idle(&x.configs[0], &b->config);
    x.configs[1] = b->config;
    take_idle(&x.configs[1], &x.configs[0]);
    for (unsigned i = 0; i < 2; i++) {
        x.by_args[i] = model_config_through_args(&x.configs[i], arena);
        if (same_text(activation_of_args(x.by_args[i].activation_func),
                      activation_of_args(x.configs[1 - i].activation_func)))
            x.by_args[i].activation_func = x.configs[1 - i].activation_func;
        take_idle(&x.by_args[i], &x.configs[1 - i]);
    }
    find(&x, true);
    if (!same_text(a->beyond, b->beyond))
        *ARENA_PUSH(arena, x.found, x.num_found, x.capacity) = (struct config_difference){
            "beyond",
            {a->beyond ? a->beyond : "nothing", b->beyond ? b->beyond : "nothing"},
            EFFECT_COMPUTES};
    find(&x, false);
    *out = x.found;
    return x.num_found;
}

/* ---- one, as text ---- */

/* Whether each field that the model needs has a value. */
static bool is_complete(const struct model_config *c)
{
    struct model_config all = *c, given = {.rotary_percent = 1};
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        void *at = (char *)&given + f->offset;
        if (f->kind == FIELD_UINT) *(uint64_t *)at = 1;
        if (f->kind == FIELD_REAL) *(double *)at = 1;
        if (f->kind == FIELD_TEXT) *(const char **)at = "given";
    }
    take_idle(&all, &given);
    for (size_t i = 0; i < num_model_fields; i++)
        if (!is_given(&all, model_fields[i].name)) return false;
    return true;
}

const char *config_text(const struct checkpoint *c, bool as_args, struct arena *arena)
{
    const struct model_config nothing = {.rotary_percent = 1};
    struct model_config config = c->config;
    struct strbuf text = {0};
    if (c->config_origin == CONFIG_OF_TENSORS) return NULL;
    if (c->config_origin == CONFIG_OF_ARGS && !as_args) return NULL;
    if (!is_complete(&config)) return NULL;
    if (as_args) config = model_config_through_args(&config, arena);
    if (as_args) config.activation_func = activation_of_args(config.activation_func);
    take_idle(&config, &nothing);
    for (size_t i = 0; i < num_model_fields; i++) {
        const char *name = model_fields[i].name;
        if (is_one_of(name, of_storage) || is_harmless(&config, &config, name)) continue;
        strbuf_printf(&text, "%s %s\n", name, model_config_text(&config, name, arena));
    }
    for (unsigned i = 0; i < NUM_BY_LAYER; i++)
        strbuf_printf(&text, "%s %s\n", by_layer[i].name, layers_text(arena, &config, i));
    if (c->beyond) strbuf_printf(&text, "beyond %s\n", c->beyond);
    const char *out = arena_text(arena, text.data, text.length);
    strbuf_release(&text);
    return out;
}
