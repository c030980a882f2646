/* megatron_target.h - shared by the writers of Megatron's two formats. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_TARGET_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_TARGET_H

#include "convert/megatron/megatron_args.h"
#include "convert/megatron/optim/param_groups.h"
#include "convert/naming.h"
#include "formats/value.h"

/* Sets t->layout, t->unit and the vocabulary's padding. Call it first. */
MUST_CHECK enum status megatron_begin(struct target *t, struct error *err);

/* A model parallel rank's part of a parameter. */
struct megatron_part {
    const struct tensor *tensor; /* in the source's catalog, without padding */
    struct param param;
    uint64_t pp_rank, chunk;   /* of its stage */
    uint64_t tp_rank, tp_size; /* in its group (experts: expert tensor parallel) */
    uint64_t ep_rank;          /* experts only */
    unsigned num_dims;
    const uint64_t *whole;              /* padded shape of the parameter */
    const struct param_parts *parts;    /* pairs (whole, of the rank); valid during the visit */
    const struct native_output *native; /* its part of the key; valid during the visit */
};

/* Parameters to write, in the model's order rather than the source's, so that a
 * model always gives the same files. In the plan's arena. */
const struct tensor **megatron_parameters(struct target *t, size_t *count);
/* Rows of padding after tensor x; NULL: none. */
const struct tensor *megatron_padding_of(struct target *t, const struct tensor *x);

/* The torch_dist key of a parameter, GPTModel's or HybridModel's. */
const char *megatron_key(const struct target *t, struct arena *a, const struct param *p,
                         unsigned stacks);

/* Calls visit for every part, parameter by parameter. Replicated parameters
 * have one part, of tp_rank 0. stacks: STACK_*, axes along which keys are
 * stacked (convert/naming.h). */
MUST_CHECK enum status megatron_each_part(struct target *t, unsigned stacks,
                                          enum status (*visit)(void *context,
                                                               const struct megatron_part *p,
                                                               struct error *err),
                                          void *context, struct error *err);

/* The common state to write: the source's if it is Megatron's, with args of the
 * new layout and the target's training state. In the plan's arena, like its
 * tensors' bytes in *data. per_layer: each layer has separate keys. */
struct value *megatron_common_state(struct target *t, bool per_layer, struct tensor_data *data);

/* Writes train_state.pt, run_config.yaml (of GPTModel), and ferry-hf/ with config.json and
 * companions. */
MUST_CHECK enum status megatron_small_files(struct target *t, const char *folder,
                                            struct error *err);
/* The root tracker's text: "10", "release". */
const char *megatron_tracker(const struct target *t, struct arena *a);
MUST_CHECK enum status megatron_root_files(struct target *t, struct root_file **files,
                                           size_t *num_files, struct error *err);

/* The rank in its stage that writes a part: dense parameters by tp_rank,
 * experts by tp_rank and ep_rank. */
uint64_t megatron_stage_rank(const struct layout *l, const struct megatron_part *p);

#endif
