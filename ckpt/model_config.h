/* model_config.h - what one needs to know of a model to lay it out, to name its parts, and to run
 * it.
 *
 * Members are named as Megatron-LM's arguments. The model map of a family fills it from
 * config.json, a Megatron checkpoint from its args; the table below is the one list of its members,
 * from which reading, writing and printing go. A number that is 0, a text that is NULL: not given.
 */
#ifndef FERRY_CKPT_MODEL_CONFIG_H
#define FERRY_CKPT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// clang-format off
#define MODEL_FIELDS(UINT, REAL, BOOL, TEXT)                                                        \
    UINT(num_layers)                                                                                \
    UINT(hidden_size)                                                                               \
    UINT(ffn_hidden_size)                                                                           \
    UINT(num_attention_heads)                                                                       \
    UINT(num_query_groups)                                                                          \
    UINT(kv_channels)                 /* head_dim */                                                \
    UINT(vocab_size)                  /* the true one; 0: not known */                              \
    UINT(padded_vocab_size)           /* rows stored by Megatron; 0: not known */                   \
    UINT(make_vocab_size_divisible_by)                                                              \
    UINT(max_position_embeddings)                                                                   \
    TEXT(normalization)               /* RMSNorm or LayerNorm */                                    \
    REAL(layernorm_epsilon)                                                                         \
    TEXT(activation_func)             /* silu, gelu, gelu_tanh, relu, squared_relu, quick_gelu */   \
    BOOL(gated_linear_unit)                                                                         \
    BOOL(add_bias_linear)             /* Megatron's word for the next three together */             \
    BOOL(add_qkv_bias)                                                                              \
    BOOL(add_proj_bias)                                                                             \
    BOOL(add_mlp_bias)                                                                              \
    BOOL(qk_layernorm)                                                                              \
    BOOL(untie_embeddings_and_output_weights)                                                       \
    TEXT(position_embedding_type)     /* rope, learned_absolute, none */                            \
    REAL(rotary_base)                                                                               \
    REAL(rotary_percent)                                                                            \
    BOOL(rotary_interleaved)                                                                        \
    TEXT(rope_type)                   /* default, linear, dynamic, llama3, yarn */                  \
    REAL(rope_factor)                                                                               \
    REAL(rope_low_freq_factor)                                                                      \
    REAL(rope_high_freq_factor)                                                                     \
    UINT(rope_original_max_position)                                                                \
    REAL(rope_beta_fast)              /* these four are yarn's: its ramp is between so many turns */\
    REAL(rope_beta_slow)                                                                            \
    REAL(rope_attention_factor)       /* of cosines and sines */                                    \
    BOOL(rope_untruncated)            /* the ramp's ends are not rounded to whole dimensions */     \
    UINT(sliding_window)              /* W positions, the current one included; 0: all */           \
    REAL(softmax_scale)               /* of attention's scores; 0: 1 / sqrt(kv_channels) */         \
    BOOL(softmax_scale_by_layer)      /* that of layer l, from 0, divided by l + 1 */               \
    REAL(attention_dropout)                                                                         \
    REAL(hidden_dropout)                                                                            \
    REAL(init_method_std)                                                                           \
    UINT(num_experts)                                                                               \
    UINT(moe_router_topk)                                                                           \
    UINT(moe_ffn_hidden_size)                                                                       \
    BOOL(moe_router_pre_softmax)                                                                    \
    REAL(moe_aux_loss_coeff)
// clang-format on

struct model_config {
#define UINT(name) uint64_t name;
#define REAL(name) double name;
#define BOOL(name) bool name;
#define TEXT(name) const char *name;
    MODEL_FIELDS(UINT, REAL, BOOL, TEXT)
#undef UINT
#undef REAL
#undef BOOL
#undef TEXT
    const bool *moe_layers; /* [num_layers] which layers have experts; NULL: all, if any */
    const bool
        *window_layers; /* [num_layers] which layers slide, where sliding_window; NULL: all */
};

/* Past these it is no model: what they bound is counted, and allocated, layer by layer. */
enum { MOST_LAYERS = 100000, MOST_EXPERTS = 100000, MOST_LAYER_EXPERTS = 10000000 };

enum model_field_kind { FIELD_UINT, FIELD_REAL, FIELD_BOOL, FIELD_TEXT };

struct model_field {
    const char *name;
    enum model_field_kind kind;
    size_t offset;
};
extern const struct model_field model_fields[];
extern const size_t num_model_fields;

const struct model_field *model_field_find(const char *name);

bool model_layer_is_moe(const struct model_config *c, uint64_t layer);
bool model_layer_slides(const struct model_config *c, uint64_t layer);
/* Completes add_bias_linear and the three biases that it stands for, of what is known of either. */
void model_config_join_biases(struct model_config *c);
/* Whether some layers have experts and others do not: Megatron then names layers one by one. */
bool model_layers_differ(const struct model_config *c);

#endif
