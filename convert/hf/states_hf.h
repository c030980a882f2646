/* states_hf.h - the optimizer's states in a Hugging Face folder.
 *
 * optimizer.safetensors, or its shards (formats/hf_folder.h), has in any order:
 *
 *   1. step         I64, []: updates made; may be missing
 *   2. STATE.NAME   a state of parameter NAME, of its shape: exp_avg,
 *                   exp_avg_sq, or any other word without a dot
 *   3. fp32.NAME    its master weight; also read: master.NAME. In a catalog:
 *                   the state "param"
 *
 * NAME is the parameter's name in the model's files. A tied parameter is there
 * once, a frozen one not at all. training.json beside it has the fields of
 * ckpt/training.h; both are optional. */
#ifndef FERRY_CONVERT_STATES_HF_H
#define FERRY_CONVERT_STATES_HF_H

#include "ckpt/checkpoint.h"

extern const char hf_step[];          /* "step" */
extern const char hf_training_file[]; /* "training.json" */

/* Opens the states of c->folder, whose weights are native tensors already: adds
 * a native tensor for each and fills c->training. If the folder has none, takes
 * those beside it, as X/optimizer.safetensors for the model X/expected, if all
 * are of parameters of this model and the folder has no ferry.json: Ferry
 * writes states into the folder. */
MUST_CHECK enum status hf_states_open(struct checkpoint *c, struct error *err);
/* Refuses states beside the folder unless weights are their masters rounded;
 * call it when all tensors are logical ones. */
MUST_CHECK enum status hf_states_prove(struct checkpoint *c, struct error *err);

/* The stored name of a state: "fp32.NAME" for the state "param". In arena a. */
const char *hf_state_name(struct arena *a, const char *state, const char *name);

/* "model.safetensors: tensor NAME", for messages; in the arena of c. */
const char *hf_place_of(struct checkpoint *c, const struct stored_tensor *s);

#endif
