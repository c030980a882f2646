/* initial_weights.h - the weights of a run from scratch: Megatron-Core's
 * initialisation in distribution, and the same numbers at every layout.
 *
 * A weight is a function of the seed, the name of its logical tensor, and its
 * element there (without regard to ranks and padding), so every rank makes its
 * own part alone. Numbers are computed in double and rounded once.
 *
 *   norms                           1
 *   biases                          0
 *   both tables of embeddings       normal, embedding_std
 *   linear_proj, linear_fc2         normal, std / sqrt(2 num_layers); of experts too
 *   other linears, router, head     normal, std
 *
 * (megatron/core/utils.py: init_method_normal, scaled_init_method_normal;
 * transformer_config.py: output_layer_init_method, embedding_init_method.) */
#ifndef FERRY_TRAIN_TRAINER_INITIAL_WEIGHTS_H
#define FERRY_TRAIN_TRAINER_INITIAL_WEIGHTS_H

#include "ckpt/model_config.h"
#include "train/model/parameters.h"

struct initial_weights {
    double std;           /* --init-method-std */
    double embedding_std; /* --embedding-init-method-std; NaN: as std */
    double padding;    /* rows of the vocabulary behind the true ones; NaN: normal as these are */
    uint64_t seed;     /* --seed */
    bool padding_only; /* a checkpoint gives all but the padding: 0 stands for it until then */
};

/* Fills all parameters with tensors (with padding_only those with padding) in
 * `region` [p->bytes], on the host. ERR_UNSUPPORTED names a parameter without a
 * rule. */
MUST_CHECK enum status initial_weights_make(const struct parameters *p,
                                            const struct model_config *c,
                                            const struct initial_weights *w, void *region,
                                            struct error *err);

#endif
