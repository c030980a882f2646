/* model_states.h - writes the model's files: mp_rank_00_model_states.pt, or in
 * stage 3 zero_pp_rank_R_mp_rank_00_model_states.pt per data parallel rank R.
 *
 * A dict (deepspeed/runtime/engine.py:_common_checkpoint_state):
 *
 *   module          state dict with tied names; stage 3: tensors of size [0], and
 *                   buffers
 *   buffer_names    names in it that are no parameters
 *   optimizer       stage 0: the state dict of torch.optim; else None
 *   param_shapes    per group, in stage 3 per sub-group:
 *                   OrderedDict NAME -> torch.Size
 *   frozen_param_shapes, frozen_param_fragments
 *                   stages 2 and 3: of parameters without states; whole, in
 *                   stage 3 this rank's part
 *   shared_params   {tied name: name with the data}
 *   lr_scheduler    the source's, else its position
 *   global_steps, global_samples, skipped_steps, dp_world_size, mp_world_size,
 *   ds_config, ds_version */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_MODEL_STATES_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_MODEL_STATES_H

#include "convert/deepspeed/write/zero_run.h"

/* Plans the file of all ranks (stages 0 to 2); of one of `ranks` (stage 3). */
MUST_CHECK enum status model_states_whole(struct zero_run *r, struct error *err);
MUST_CHECK enum status model_states_part(struct zero_run *r, uint64_t rank, uint64_t ranks,
                                         struct error *err);

/* Stage 3: sets the sub-group of each parameter of a group, from 0, in the
 * plan's arena; returns the number of sub-groups. */
size_t sub_groups_of(struct zero_run *r, const struct zero_group *g, uint64_t ranks,
                     size_t **sub_group);

#endif
