/* model_states.h - reads DeepSpeed's *model_states.pt: the model's state dict,
 * places of parameters, and the run's progress
 * (deepspeed/runtime/engine.py:_save_checkpoint).
 *
 *   module                  name -> tensor; stage 3: parameters without elements;
 *                           pipeline: None
 *   param_shapes            see zero_read.h; without frozen parameters
 *   frozen_param_shapes, frozen_param_fragments
 *                           stage 3: this rank's part of each, 1-D
 *   shared_params           other name -> name of a tied parameter
 *   universal_checkpoint_info
 *                           tp_rules.h
 *   buffer_names, optimizer (without ZeRO), lr_scheduler, global_steps,
 *   global_samples, ...
 *   save_checkpoint(client_state=...) of the program, at the same level */
#ifndef FERRY_CONVERT_DEEPSPEED_MODEL_STATES_H
#define FERRY_CONVERT_DEEPSPEED_MODEL_STATES_H

#include "convert/deepspeed/pipeline_names.h"
#include "convert/deepspeed/tp_params.h"

/* An open DeepSpeed checkpoint. */
struct deepspeed {
    struct checkpoint *c;
    const struct source_options *o;
    struct ds_files files;
    struct ds_params params;  /* trained parameters */
    struct ds_params *stages; /* [num_stages] the same per mp_rank; &params if there is one */
    size_t num_stages;
    bool pipeline; /* its layers have pipeline names */
    uint64_t tp;   /* ranks that split parameters; mp_rank is pp * tp + tp_rank */
    struct pipeline_names names;
    struct tp_params split;  /* without a pipeline, if tp > 1 */
    struct ds_params frozen; /* stage 3: frozen parameters */
    size_t *fragments;       /* [ranks][frozen] index of a stored tensor */
    uint64_t num_ranks;      /* of fragments */
    enum dtype dtype;        /* of training, by ds_config */
    bool partitioned;        /* stage 3 */
    int64_t global_steps;
    const char *first; /* first file read */
    const char *version, *other_version;
};

/* Whether parameters are split without a pipeline. */
bool ds_is_split(const struct deepspeed *d);
/* Reads one file; the first also gives progress and shapes. ERR_CORRUPT if its
 * step differs from the first file's. */
MUST_CHECK enum status model_states_read(struct deepspeed *d, const struct ds_file *file,
                                         struct error *err);
/* Reads the optimizer in it, if any: after tp_params_join(). */
MUST_CHECK enum status model_states_read_optimizer(struct deepspeed *d, const struct ds_file *file,
                                                   struct error *err);
/* The native name of DeepSpeed's parameter. */
const char *ds_native_name(const struct deepspeed *d, const char *name);
/* Stage 3: adds native tensors of frozen parameters. */
MUST_CHECK enum status model_states_add_frozen(struct deepspeed *d, struct error *err);

#endif
