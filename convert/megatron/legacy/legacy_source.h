/* legacy_source.h - shared by the modules of the legacy format's reader: ranks
 * and their shards.
 *
 * source_torch.c reads the files and identifies ranks, legacy_shards.c makes
 * native tensors of shards, legacy_states.c adds optimizer states. */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_LEGACY_SOURCE_H
#define FERRY_CONVERT_MEGATRON_LEGACY_LEGACY_SOURCE_H

#include "convert/megatron/legacy/rank_states.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_source.h"
#include "convert/megatron/optim/flat_place.h"
#include "convert/megatron/optim/training_source.h"
#include "formats/torch.h"

struct rank {
    const char *folder;  /* mp_rank_... */
    uint64_t numbers[3]; /* numbers in its name */
    unsigned num_numbers;
    uint64_t tp, pp, ep;
};

/* A tensor of a rank's file: a weight, or its state. */
struct shard {
    size_t stored; /* index of the stored tensor */
    const struct rank *rank;
    uint64_t chunk;
    const char *path; /* in the model's state dict */
    struct memory_name name;
    const char *state;   /* of the optimizer; NULL: a weight */
    const char *storage; /* of a weight: identifies the storage that it views, */
    uint64_t offset;     /* and its first element there */
};

/* A replicated tensor of a later tensor parallel rank, unused, since the first
 * rank's is used. */
struct copy {
    size_t stored, first; /* indices of stored tensors */
};

struct legacy {
    struct megatron_source *m;
    struct rank *ranks;
    size_t num_ranks, ranks_capacity;
    struct shard *shards;
    size_t num_shards, shards_capacity;
    const uint64_t *hybrid_layers; /* of each stage, if m->hybrid; then names number layers in the
                                      model, not in their stage */
    double version;
    uint64_t experts_a_rank;
    struct map seen; /* "NAME:RANK" of added shards -> index */
    struct copy *copies;
    size_t num_copies, copies_capacity;
    struct rank_states states; /* of optimizers in the rank files, */
    struct flat_states flat;   /* and in distrib_optim.pt beside them */
    bool has_flat;             /* beside any rank file */
    bool has_layer_wise;       /* layer_wise_optimizer_*.pt beside any rank file */
    size_t num_optimizers;     /* rank files with an optimizer */
    const char *without;       /* path of a rank file without one; NULL: none */
    struct training_source training;
};

/* ---- legacy_shards.c ---- */

/* A rank file's expert tensor parallel rank, where etp divides tp. */
uint64_t legacy_etp_rank(const struct layout *l, const struct rank *r);
/* Sets the number of a shard's layer in the model. ERR_CORRUPT if its stage has
 * no such layer. */
MUST_CHECK enum status legacy_global_layer(const struct legacy *x, const struct shard *s,
                                           uint64_t *layer, struct error *err);
/* Adds a shard to the native tensor of its parameter, or of its parameter's
 * state. moe: per layer, whether it has experts. */
MUST_CHECK enum status legacy_add_native(struct legacy *x, const struct shard *s, const bool *moe,
                                         struct error *err);
/* ERR_UNSUPPORTED if a tied model's head is not the embedding. */
MUST_CHECK enum status legacy_check_tied(struct legacy *x, struct error *err);

/* ---- legacy_states.c ---- */

/* Path of a rank's distrib_optim.pt, in the checkpoint's arena. */
const char *legacy_flat_path(struct legacy *x, const struct rank *r);
/* Keeps the optimizer's states and groups of a rank's open file. */
MUST_CHECK enum status legacy_read_optimizer(struct legacy *x, struct torch_file *t,
                                             const struct rank *r, struct error *err);
/* Makes logical tensors of all ranks' states; call it after adding all
 * weights. */
MUST_CHECK enum status legacy_read_states(struct legacy *x, const bool *moe, struct error *err);

#endif
