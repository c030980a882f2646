/* flops.h - floating-point operations of the model in training, counted as
 * Megatron-LM counts them (megatron/training/training.py,
 * num_floating_point_operations, d98e8a64ddf3).
 *
 * Forward and backward, a multiply and an add as two, per token of a decoder:
 *
 *   linear     6 * (L * (h * (q + 2 kv) + q * h + f * h * ffn) + h * V)
 *   attention  6 * q * L for each token of the sequence: half of the square, which is causal
 *
 * with q = heads * head size, kv = query groups * head size, f = 3 for gated
 * MLPs and 2 for others, V = the padded vocabulary. A layer of experts has
 * moe_router_topk MLPs of moe_ffn_hidden_size. Not counted: embeddings, norms,
 * biases, the router, optimizer, and recomputed work. A sliding window counts
 * as full attention. */
#ifndef FERRY_TRAIN_TRAINER_FLOPS_H
#define FERRY_TRAIN_TRAINER_FLOPS_H

#include "ckpt/model_config.h"

/* The way of counting, for logs. */
#define FLOPS_COUNTED "model, causal half, padded vocabulary, no recompute"

struct flops {
    double per_token; /* the linear part */
    double per_pair;  /* attention, for each pair of tokens of a sequence */
};

/* padded_vocab_size: computed rows of the output layer. */
struct flops flops_of_model(const struct model_config *c, uint64_t padded_vocab_size);

/* FLOPs of `sequences` sequences of seq_length tokens. */
double flops_of_batch(const struct flops *f, uint64_t sequences, uint64_t seq_length);
/* FLOPs of packed sequences: all tokens, and the sum of squared document
 * lengths. */
double flops_of_packed(const struct flops *f, double tokens, double sum_of_squares);

#endif
