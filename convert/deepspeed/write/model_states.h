/* model_states.h - the files of the model: mp_rank_00_model_states.pt, or with stage 3
 * zero_pp_rank_R_mp_rank_00_model_states.pt for each data parallel rank R.
 *
 * A dict (deepspeed/runtime/engine.py:_common_checkpoint_state):
 *
 *   module          state dict, tied names too; stage 3: tensors of size [0], and buffers
 *   buffer_names    names in it that are no parameters
 *   optimizer       stage 0: the state dict of torch.optim; else None
 *   param_shapes    for each group, with stage 3 for each sub-group: OrderedDict NAME -> torch.Size
 *   frozen_param_shapes, frozen_param_fragments    stages 2 and 3: of parameters without states;
 *                   the whole of each, with stage 3 this rank's part
 *   shared_params   {the tied name: the name that has the data}
 *   lr_scheduler    the source's, else where it stands
 *   global_steps, global_samples, skipped_steps, dp_world_size, mp_world_size, ds_config,
 * ds_version
 */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_MODEL_STATES_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_MODEL_STATES_H

#include "convert/deepspeed/write/zero_run.h"

/* Plans the file of all ranks (stage 0 to 2); of a rank of `ranks` (stage 3). */
MUST_CHECK enum status model_states_whole(struct zero_run *r, struct error *err);
MUST_CHECK enum status model_states_part(struct zero_run *r, uint64_t rank, uint64_t ranks,
                                         struct error *err);

/* Stage 3: the sub-group of each parameter of a group, from 0, in the plan's arena;
 * returns the number of sub-groups. */
size_t sub_groups_of(struct zero_run *r, const struct zero_group *g, uint64_t ranks,
                     size_t **sub_group);

#endif
