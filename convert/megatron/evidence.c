#include "convert/megatron/evidence.h"

#include <string.h>

#include "common/checked.h"
#include "common/text.h"
#include "convert/megatron/native_stack.h"

void evidence_add(struct megatron_evidence *e, const char *rest, bool of_expert, char half,
                  unsigned num_dims, const uint64_t *shape)
{
    const char *mlp = of_expert ? rest : text_starts_with(rest, "mlp.") ? rest + 4 : "";
    if (text_starts_with(rest, "mixer.conv1d.weight") && num_dims == 3) e->conv_taps = shape[2];
    if (text_starts_with(rest, "mixer.conv1d.bias")) e->conv_bias = true;
    if (strcmp(rest, "output_layer.weight") == 0) e->output_layer = true;
    if (text_starts_with(rest, "embedding.position_embeddings.")) e->position_embeddings = true;
    if (strcmp(rest, "self_attention.linear_qkv.bias") == 0) e->qkv_bias = true;
    if (strcmp(rest, "self_attention.linear_proj.bias") == 0) e->proj_bias = true;
    if (strcmp(mlp, "linear_fc2.bias") == 0) e->mlp_bias = true;
    if (text_starts_with(rest, "self_attention.q_layernorm.")) e->qk_norm = true;
    if (strcmp(rest, "decoder.final_layernorm.bias") == 0) e->layer_norm_bias = true;
    if (text_starts_with(rest, "pre_mlp_layernorm."))
        e->te_spec = true; /* the name on disk, beside a router */
    if (strcmp(rest, "decoder.final_layernorm.weight") == 0 && num_dims) e->hidden_size = shape[0];
    if (strcmp(rest, "self_attention.linear_proj.weight") == 0 && num_dims > 1)
        e->proj_columns = shape[1];
    if (strcmp(mlp, "linear_fc1.weight") == 0 && num_dims) e->fc1_rows = shape[0] * (half ? 2 : 1);
    if (strcmp(mlp, "linear_fc2.weight") == 0 && num_dims > 1) {
        e->fc2_columns = shape[1];
        *(of_expert ? &e->expert_columns : &e->mlp_columns) = shape[1];
    }
}

enum status evidence_add_keys(struct checkpoint *c, struct megatron_evidence *e, struct error *err)
{
    struct native_stack k;
    for (size_t i = 0; i < c->catalog.num_native; i++) {
        if (!native_is_parameter(&c->catalog.native[i])) continue;
        TRY(native_stack_make(c, &c->catalog.native[i], &k, err));
        if (k.key.in_mtp) { /* like the last layer */
            e->mtp_layers = max_u64(e->mtp_layers, k.key.layer + 1);
            continue;
        }
        uint64_t layers = k.key.stacked_layers ? k.layers : k.key.layer + 1;
        uint64_t experts = k.key.stacked_experts ? k.experts : k.key.expert + 1;
        if (k.key.in_layers) e->num_layers = max_u64(e->num_layers, layers);
        if (k.key.of_expert) e->experts = max_u64(e->experts, experts);
        evidence_add(e, k.key.rest, k.key.of_expert, k.key.half, k.num_dims, k.shape);
    }
    return OK;
}

static void fill_in(uint64_t *size, uint64_t evidence)
{
    if (!*size) *size = evidence;
}

void evidence_fill_sizes(const struct megatron_evidence *e, const struct layout_options *l,
                         struct model_config *c)
{
    uint64_t tp = e->of_ranks && l->tp ? l->tp : 1, ep = e->of_ranks && l->ep ? l->ep : 1;
    uint64_t etp = e->of_ranks && l->etp ? l->etp : tp;
    fill_in(&c->num_layers, e->num_layers);
    fill_in(&c->hidden_size, e->hidden_size);
    fill_in(&c->num_experts, e->experts * ep);
    fill_in(&c->ffn_hidden_size, e->mlp_columns * tp);
    if (c->num_experts) fill_in(&c->moe_ffn_hidden_size, e->expert_columns * etp);
    fill_in(&c->ffn_hidden_size, c->moe_ffn_hidden_size);
    if (c->num_attention_heads)
        fill_in(&c->kv_channels, e->proj_columns * tp / c->num_attention_heads);
}

static void set_declared(struct model_config *c, const char *field, struct scalar s)
{
    const struct model_field *f = model_field_find(field);
    if (f) field_set(&f->field, c, s);
}

void evidence_use(const struct megatron_evidence *e, struct model_config *c)
{
    c->untie_embeddings_and_output_weights = e->output_layer;
    c->add_qkv_bias = e->qkv_bias;
    c->add_proj_bias = e->proj_bias;
    c->add_mlp_bias = e->mlp_bias || (e->proj_bias && c->num_experts);
    c->add_bias_linear = false;
    model_config_join_biases(c);
    c->qk_layernorm = e->qk_norm;
    if (e->layer_norm_bias) c->normalization = "LayerNorm";
    if (!c->normalization) c->normalization = "RMSNorm";
    if (e->position_embeddings) c->position_embedding_type = "learned_absolute";
    if (e->conv_taps) {
        set_declared(c, "mamba_conv_kernel_dim",
                     (struct scalar){.kind = FIELD_UINT, .number = e->conv_taps});
        set_declared(c, "mamba_conv_bias",
                     (struct scalar){.kind = FIELD_BOOL, .truth = e->conv_bias});
    }
    if (e->fc1_rows) c->gated_linear_unit = e->fc1_rows == 2 * e->fc2_columns;
}
