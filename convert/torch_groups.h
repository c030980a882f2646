/* torch_groups.h - param_groups of torch.optim in FSDP, torchtitan and
 * DeepSpeed: parameters with the same settings.
 *
 *   {"lr": 0.001, "betas": (0.9, 0.95), "eps": 1e-08, "weight_decay": 0.1,
 *    "amsgrad": False, ..., "params": [...]}
 *                                       (torch/optim/optimizer.py:state_dict)
 *
 * These groups list their parameters; Megatron's follow rules (ckpt/training.h,
 * group_members). A reader adds groups with their parameters by native names;
 * torch_groups_find_rules() finds the rule of each. A target copies the
 * source's listed groups, or makes new ones. */
#ifndef FERRY_CONVERT_TORCH_GROUPS_H
#define FERRY_CONVERT_TORCH_GROUPS_H

#include "convert/native_outputs.h"

/* Reads the number in a tensor of one element. */
typedef bool torch_scalar(void *context, const struct value *tensor, double *out);

/* Adds a group to c->training: the fields of `group` (a dict; NULL: none
 * known), and the dict itself, which must be in c's arena. Add its parameters
 * next. scalar may be NULL. ERR_CORRUPT above MAX_PARAM_GROUPS. */
MUST_CHECK enum status torch_groups_add(struct checkpoint *c, const struct value *group,
                                        torch_scalar *scalar, void *context, struct error *err);
/* Adds a parameter to the last group by its native name (copied); step: updates
 * that its states have seen, NaN: unknown. */
void torch_groups_add_param(struct checkpoint *c, const char *name, double step);

/* Sets run.step and each group's step; notes steps that differ, by name. Sets
 * each group's members to the rule of ckpt/training.h with exactly its
 * parameters; notes groups without a rule. Called by hf_model_import(). No
 * effect without groups. */
void torch_groups_find_rules(struct checkpoint *c);

/* A target's group. */
struct torch_out_group {
    const struct param_group *fields; /* with what the user gave */
    const struct value *native;       /* the source's dict; NULL: made of fields */
    size_t *params;                   /* [num_params] of native_outputs.out, in order */
    double *steps;                    /* [num_params] */
    size_t num_params;
};
/* A target's groups: the source's, in its order, if they list every parameter
 * with states; else one group of all of these in export order, or with
 * --split-decay two: tensors of two or more dimensions, then the others without
 * weight decay. Sets the outcome of the groups and notes what was made. None
 * without states. In the plan's arena. */
MUST_CHECK enum status torch_groups_plan(struct target *t, const struct native_outputs *all,
                                         struct torch_out_group **groups, size_t *num_groups,
                                         struct error *err);
/* A group's dict without "params", keys in the order of torch's AdamW, in arena
 * a. */
struct value *torch_group_value(struct arena *a, const struct torch_out_group *g);

#endif
