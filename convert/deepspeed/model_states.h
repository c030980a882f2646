/* model_states.h - reads the *model_states.pt of a DeepSpeed checkpoint: the model's state dict,
 * where parameters lie, and how far the run is (deepspeed/runtime/engine.py:_save_checkpoint).
 *
 *   module                  name -> tensor; stage 3: parameters of no elements; pipeline: None
 *   param_shapes            see zero_read.h; frozen parameters are not in it
 *   frozen_param_shapes, frozen_param_fragments    stage 3: this rank's part of each, 1-D
 *   shared_params           other name -> name of a tied parameter
 *   buffer_names, optimizer (without ZeRO), lr_scheduler, global_steps, global_samples, ...
 *   and what the program gave to save_checkpoint(client_state=...), at the same level */
#ifndef FERRY_CONVERT_DEEPSPEED_MODEL_STATES_H
#define FERRY_CONVERT_DEEPSPEED_MODEL_STATES_H

#include "convert/deepspeed/pipeline_names.h"
#include "convert/deepspeed/zero_read.h"

/* A DeepSpeed checkpoint that is opened. */
struct deepspeed {
    struct checkpoint *c;
    const struct source_options *o;
    struct ds_files files;
    struct ds_params params;  /* of the parameters that are trained */
    struct ds_params *stages; /* the same of each pipeline stage; one: params */
    size_t num_stages;
    bool pipeline; /* its layers have names of their own */
    uint64_t tp;   /* ranks that split the parameters of a pipeline; mp_rank is pp * tp + tp_rank */
    struct pipeline_names names;
    struct ds_params frozen; /* stage 3: of those that are not */
    size_t *fragments;       /* [ranks][frozen] index of a stored tensor */
    uint64_t num_ranks;      /* of fragments */
    enum dtype dtype;        /* of training, by ds_config */
    bool partitioned;        /* stage 3 */
    bool has_optimizer;      /* without ZeRO */
    int64_t global_steps;
    const char *first; /* the file that was read first */
    const char *version, *other_version;
};

/* Reads one file; the first one says most. whole: the file's tensors are the model's weights, else
 * (stage 3) it has buffers and fragments. rank: of fragments. ERR_CORRUPT if it is of another step
 * than the first one. */
MUST_CHECK enum status model_states_read(struct deepspeed *d, const struct ds_file *file,
                                         struct error *err);
/* The own name of a parameter that DeepSpeed calls so. */
const char *ds_own_name(const struct deepspeed *d, const char *name);
/* Stage 3: adds the own tensors of frozen parameters. */
MUST_CHECK enum status model_states_add_frozen(struct deepspeed *d, struct error *err);

#endif
