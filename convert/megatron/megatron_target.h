/* megatron_target.h - what the writers of Megatron's two formats share. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_TARGET_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_TARGET_H

#include "convert/megatron/megatron_args.h"
#include "convert/naming.h"
#include "formats/value.h"

/* Sets t->layout, t->unit and the padding of the vocabulary; to be called first. */
MUST_CHECK enum status megatron_begin(struct target *t, struct error *err);

/* One part of a parameter that one model-parallel rank holds. */
struct megatron_part {
    const struct tensor *tensor; /* of the catalog, without padding */
    struct param param;
    uint64_t pp_rank, chunk;   /* its stage */
    uint64_t tp_rank, tp_size; /* of the group that splits it (experts: expert tensor parallel) */
    uint64_t ep_rank;          /* experts only */
    unsigned num_dims;
    const uint64_t *whole;           /* shape of the parameter, padded */
    const struct param_parts *parts; /* (whole, rank's own), valid during the visit */
    const struct own_output *own;    /* what the parameter gives of its key, likewise */
};

/* The parameters that are carried, in the order of the model, whatever that of the source: the same
 * checkpoint gives the same files. In the plan's arena. */
const struct tensor **megatron_parameters(struct target *t, size_t *count);
/* The rows of padding that follow the tensor's own; NULL: none. */
const struct tensor *megatron_padding_of(struct target *t, const struct tensor *x);

/* Calls visit for every part of each of them, tensor by tensor. Replicated ones have one part, of
 * tp_rank 0. stacks: STACK_*, the axes that keys have (convert/naming.h). */
MUST_CHECK enum status megatron_each_part(struct target *t, unsigned stacks,
                                          enum status (*visit)(void *context,
                                                               const struct megatron_part *p,
                                                               struct error *err),
                                          void *context, struct error *err);

/* The common state that is written: the source's where it is Megatron's (without optimizer,
 * scheduler, RNG), args of the new layout. In the plan's arena. per_layer: layers are named one by
 * one. */
MUST_CHECK enum status megatron_common_state(struct target *t, bool per_layer, struct value **out,
                                             struct error *err);

/* train_state.pt, run_config.yaml, and ferry-hf/ with config.json and what travels with it. */
MUST_CHECK enum status megatron_small_files(struct target *t, const char *folder,
                                            struct error *err);
/* Tracker files of the root; for a weights-only checkpoint also the link release. */
/* What the tracker of the root will say: "10", "release". */
const char *megatron_tracker(const struct target *t, struct arena *a);
MUST_CHECK enum status megatron_root_files(struct target *t, struct root_file **files,
                                           size_t *num_files, struct error *err);

/* Ranks of one stage that write: dense parameters by tp_rank, experts by tp_rank and ep_rank. */
uint64_t megatron_stage_rank(const struct layout *l, const struct megatron_part *p);

#endif
