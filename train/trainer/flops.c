#include "train/trainer/flops.h"

/* Two operations each for the forward pass, the input's gradient and the
 * weight's gradient. */
#define PER_WEIGHT 6.0

/* Weights of all products that a token passes in all layers. */
static double weights_of_layers(const struct model_config *c, double q, double kv)
{
    const double h = (double)c->hidden_size, matrices = c->gated_linear_unit ? 3 : 2;
    double weights = 0;
    for (uint64_t layer = 0; layer < c->num_layers; layer++) {
        const double ffn =
            model_layer_is_moe(c, layer)
                ? (double)c->moe_router_topk *
                      (double)(c->moe_ffn_hidden_size ? c->moe_ffn_hidden_size : c->ffn_hidden_size)
                : (double)c->ffn_hidden_size;
        weights += h * (q + 2 * kv) + q * h + matrices * h * ffn;
    }
    return weights;
}

struct flops flops_of_model(const struct model_config *c, uint64_t padded_vocab_size)
{
    const double head_size = (double)c->kv_channels;
    const double q = (double)c->num_attention_heads * head_size;
    const double kv = (double)c->num_query_groups * head_size;
    const double head = (double)c->hidden_size * (double)padded_vocab_size;
    return (struct flops){.per_token = PER_WEIGHT * (weights_of_layers(c, q, kv) + head),
                          .per_pair = PER_WEIGHT * q * (double)c->num_layers};
}

double flops_of_packed(const struct flops *f, double tokens, double sum_of_squares)
{
    return tokens * f->per_token + sum_of_squares * f->per_pair;
}

double flops_of_batch(const struct flops *f, uint64_t sequences, uint64_t seq_length)
{
    const double tokens = (double)sequences * (double)seq_length;
    return flops_of_packed(f, tokens, tokens * (double)seq_length);
}
