/* model_config.h - the facts needed to lay out a model, name its parts and run
 * it.
 *
 * Members have the names of Megatron-LM's arguments. A family's model map fills
 * the struct from config.json, a Megatron checkpoint from its args. The table
 * below is the only list of the members that C computes with. Data declares the
 * other fields (model_field_declare()). model_fields[] has both; reading, writing
 * and printing use it. A number of 0 and a NULL text are not given. */
#ifndef FERRY_CKPT_MODEL_CONFIG_H
#define FERRY_CKPT_MODEL_CONFIG_H

#include "ckpt/field.h"

// clang-format off
/* Kind, name, role (enum field_role), meaning of 0 or NULL (enum field_zero),
 * and when it matters: an expression over const struct model_config *c. */
#define MODEL_FIELDS(X)                                                                                                                            \
    X(UINT, num_layers,                          MODEL,      UNKNOWN, true)                                                                        \
    X(UINT, hidden_size,                         MODEL,      UNKNOWN, true)                                                                        \
    X(UINT, ffn_hidden_size,                     MODEL,      UNKNOWN, has_dense_layers(c))                                                         \
    X(UINT, num_attention_heads,                 MODEL,      UNKNOWN, true)                                                                        \
    X(UINT, num_query_groups,                    MODEL,      UNKNOWN, true)                                                                        \
    X(UINT, kv_channels,                         MODEL,      UNKNOWN, true) /* head_dim */                                                         \
    X(UINT, vocab_size,                          VOCABULARY, VALUE,   true) /* the true one; 0: not known */                                       \
    X(UINT, padded_vocab_size,                   STORAGE,    VALUE,   true) /* rows stored by Megatron; 0: not known */                            \
    X(UINT, make_vocab_size_divisible_by,        STORAGE,    VALUE,   true)                                                                        \
    X(UINT, max_position_embeddings,             LENGTH,     UNKNOWN, true)                                                                        \
    X(TEXT, normalization,                       MODEL,      UNKNOWN, true) /* RMSNorm or LayerNorm */                                             \
    X(REAL, layernorm_epsilon,                   MODEL,      UNKNOWN, true)                                                                        \
    X(TEXT, activation_func,                     MODEL,      UNKNOWN, true) /* silu, gelu, gelu_tanh, relu, squared_relu, quick_gelu */            \
    X(BOOL, gated_linear_unit,                   MODEL,      VALUE,   true)                                                                        \
    X(BOOL, add_bias_linear,                     MODEL,      VALUE,   true) /* Megatron's argument for the next three together */                  \
    X(BOOL, add_qkv_bias,                        MODEL,      VALUE,   true)                                                                        \
    X(BOOL, add_proj_bias,                       MODEL,      VALUE,   true)                                                                        \
    X(BOOL, add_mlp_bias,                        MODEL,      VALUE,   true)                                                                        \
    X(BOOL, qk_layernorm,                        MODEL,      VALUE,   true)                                                                        \
    X(BOOL, untie_embeddings_and_output_weights, MODEL,      VALUE,   true)                                                                        \
    X(TEXT, position_embedding_type,             MODEL,      UNKNOWN, true) /* rope, learned_absolute, none */                                     \
    X(REAL, rotary_base,                         MODEL,      UNKNOWN, has_rope(c))                                                                 \
    X(REAL, rotary_percent,                      MODEL,      UNKNOWN, has_rope(c))                                                                 \
    X(BOOL, rotary_interleaved,                  MODEL,      VALUE,   has_rope(c))                                                                 \
    X(TEXT, rope_type,                           MODEL,      VALUE,   has_rope(c)) /* default, linear, dynamic, llama3, yarn */                    \
    X(REAL, rope_factor,                         MODEL,      VALUE,   is_scaled(c))                                                                \
    X(REAL, rope_low_freq_factor,                MODEL,      VALUE,   has_rope_type(c, "llama3"))                                                  \
    X(REAL, rope_high_freq_factor,               MODEL,      VALUE,   has_rope_type(c, "llama3"))                                                  \
    X(UINT, rope_original_max_position,          MODEL,      VALUE,   is_scaled(c) && !has_rope_type(c, "linear"))                                 \
    X(REAL, rope_beta_fast,                      MODEL,      VALUE,   has_rope_type(c, "yarn")) /* the ramp is between so many turns */            \
    X(REAL, rope_beta_slow,                      MODEL,      VALUE,   has_rope_type(c, "yarn"))                                                    \
    X(REAL, rope_attention_factor,               MODEL,      VALUE,   has_rope_type(c, "yarn")) /* of cosines and sines */                         \
    X(BOOL, rope_untruncated,                    MODEL,      VALUE,   has_rope_type(c, "yarn")) /* its ends are not rounded to whole dimensions */ \
    X(UINT, sliding_window,                      MODEL,      VALUE,   true) /* W positions, the current one included; 0: all */                    \
    X(REAL, softmax_scale,                       MODEL,      VALUE,   true) /* of attention's scores; 0: 1 / sqrt(kv_channels) */                  \
    X(BOOL, softmax_scale_by_layer,              MODEL,      VALUE,   true) /* that of layer l, from 0, divided by l + 1 */                        \
    X(REAL, attention_dropout,                   TRAINING,   VALUE,   true)                                                                        \
    X(REAL, hidden_dropout,                      TRAINING,   VALUE,   true)                                                                        \
    X(REAL, init_method_std,                     TRAINING,   OMITTED, true)                                                                        \
    X(UINT, num_experts,                         MODEL,      VALUE,   true)                                                                        \
    X(UINT, moe_router_topk,                     MODEL,      UNKNOWN, c->num_experts > 0)                                                          \
    X(UINT, moe_ffn_hidden_size,                 MODEL,      UNKNOWN, c->num_experts > 0)                                                          \
    X(BOOL, moe_router_pre_softmax,              MODEL,      VALUE,   c->num_experts > 0)                                                          \
    X(TEXT, moe_router_score_function,           MODEL,      VALUE,   c->num_experts > 0) /* sigmoid; NULL: softmax */                               \
    X(BOOL, moe_router_enable_expert_bias,       MODEL,      VALUE,   c->num_experts > 0)                                                          \
    X(REAL, moe_router_topk_scaling_factor,      MODEL,      VALUE,   c->num_experts > 0) /* of the weights of experts; 0: 1 */                     \
    X(REAL, moe_aux_loss_coeff,                  TRAINING,   VALUE,   true)
// clang-format on

/* The value of a declared field. */
struct declared_value {
    struct scalar value;
    const struct scalar *by_layer; /* [num_layers]; NULL: all layers have `value` */
};
enum { MAX_DECLARED_FIELDS = 320 };

struct model_config {
    MODEL_FIELDS(FIELD_MEMBER)
    const bool *moe_layers;    /* [num_layers] the layer has experts; NULL: all, if any */
    const bool *window_layers; /* [num_layers] the layer has the window; NULL: all */
    struct declared_value declared[MAX_DECLARED_FIELDS];
};

/* Limits, since memory is allocated for each layer and expert. */
enum {
    MAX_LAYERS = 100000,
    MAX_EXPERTS = 100000,
    MAX_LAYER_EXPERTS = 10000000,
    MAX_HEADS = 1 << 20
};

enum field_role {
    FIELD_MODEL,      /* changes what is computed */
    FIELD_LENGTH,     /* positions in training; rope's frequencies may depend on it */
    FIELD_VOCABULARY, /* the number of tokens; tensors show it */
    FIELD_STORAGE,    /* how tensors are stored */
    FIELD_TRAINING,   /* only used in training */
};

/* The meaning of 0 or NULL. */
enum field_zero {
    ZERO_VALUE,   /* an ordinary value: no dropout, no window, the default */
    ZERO_UNKNOWN, /* not known: every model has another value */
    ZERO_OMITTED, /* not given: config.json omits it */
    ZERO_UNUSED,  /* the model does not use it: a file that lacks the field may lack it on */
};

struct model_field {
    struct field field;
    enum field_role role;
    enum field_zero zero;
    bool (*matters)(const struct model_config *c); /* false: c does not use it */
    bool by_layer;                                 /* layers may have values of their own */
    unsigned declared; /* 1 + its index in `declared`; 0: a member of its own */
};
extern const struct model_field *const model_fields;
extern size_t num_model_fields;

const struct model_field *model_field_find(const char *name);

/* Declares a field of the process that no C computes with: a command that
 * computes refuses a model that uses it. Copies the name. Declared again it must
 * be the same (ERR_USAGE). Thread-safe. */
MUST_CHECK enum status model_field_declare(const char *name, enum field_kind kind,
                                           enum field_role role, bool by_layer, struct error *err);
/* Copies a field's value and its values by layer. */
void model_field_copy(const struct model_field *f, struct model_config *to,
                      const struct model_config *from);
/* Values by layer are equal if the numbers of layers differ, which is reported
 * instead. */
bool model_field_equal(const struct model_field *f, const struct model_config *a,
                       const struct model_config *b);
/* The field's value in one layer. */
struct scalar model_field_at(const struct model_field *f, const struct model_config *c,
                             uint64_t layer);
/* The values by layer, [num_layers]; NULL: all are equal. */
const struct scalar *model_field_layers(const struct model_field *f, const struct model_config *c);
/* Sets values by layer, which the caller keeps; equal ones become the value. */
void model_field_set_layers(const struct model_field *f, struct model_config *c,
                            const struct scalar *values);
/* Whether its value is 0 or NULL, in all layers. */
bool model_field_is_zero(const struct model_field *f, const struct model_config *c);
/* Whether it is a declared field that the model does not use: then it is not
 * shown, and no sum depends on it. */
static inline bool model_field_is_unused(const struct model_field *f, const struct model_config *c)
{
    return f->declared && model_field_is_zero(f, c);
}

bool model_layer_is_moe(const struct model_config *c, uint64_t layer);
bool model_layer_slides(const struct model_config *c, uint64_t layer);
/* Layers of multi-token prediction: the declared field mtp_num_layers. Each has
 * the parameters of the last layer, and some of its own. */
uint64_t model_mtp_layers(const struct model_config *c);
void model_set_mtp_layers(struct model_config *c, uint64_t count);
/* Sets add_bias_linear from the three biases that it stands for, or these from
 * it, as far as they are known. */
void model_config_join_biases(struct model_config *c);
/* Whether only some layers have experts: Megatron then names layers one by one. */
bool model_layers_differ(const struct model_config *c);

/* ---- two configs ---- */

/* A feature of single layers; not a row of the table. */
struct layer_field {
    const char *name; /* the member of struct model_config */
    const char *word; /* in expressions of model maps: moe[l] */
    bool (*has)(const struct model_config *c, uint64_t layer);
};
enum { NUM_LAYER_FIELDS = 2 };
extern const struct layer_field layer_fields[NUM_LAYER_FIELDS];
/* Gives feature i to the layers for which has[layer] is true; NULL: to all.
 * Keeps `has`, unless all layers have the feature. A window of no layer is none. */
void model_config_set_layers(struct model_config *c, unsigned i, const bool *has);
/* Whether a and b have feature i in the same layers. True if their numbers of
 * layers differ, which is reported instead. */
bool layer_field_equal(unsigned i, const struct model_config *a, const struct model_config *b);

/* The first field in which two models differ ("moe_layers" and "window_layers"
 * last), static text; NULL: none. */
const char *model_config_difference(const struct model_config *a, const struct model_config *b);
/* Copies one field from `from` to c. */
void model_config_take(struct model_config *c, const struct model_config *from, const char *field);
/* Copies the fields that c does not use from `other`: rope's for learned
 * positions, experts' for a dense model. */
void model_config_take_unused(struct model_config *c, const struct model_config *other);
/* A copy of c that takes the fields that c does not use, and those that change
 * no logit (dropout ...), from `from`. */
struct model_config model_config_with_unused(const struct model_config *c,
                                             const struct model_config *from);
/* A field as text, or "not given". In arena a, or static. */
const char *model_config_text(const struct model_config *c, const char *field, struct arena *a);

#endif
