/* torch_groups.h - param_groups of torch.optim, as FSDP, torchtitan and DeepSpeed keep them:
 * parameters with the same settings.
 *
 *   {"lr": 0.001, "betas": (0.9, 0.95), "eps": 1e-08, "weight_decay": 0.1, "amsgrad": False, ...,
 *    "params": [...]}                 (torch/optim/optimizer.py:state_dict)
 *
 * Here a group lists its parameters; Megatron's follow rules (ckpt/training.h, group_members). A
 * reader adds groups with their parameters by own names; torch_groups_find_rules() finds the rule
 * that each follows. A target gets the groups of a source that lists them, or makes its own. */
#ifndef FERRY_CONVERT_TORCH_GROUPS_H
#define FERRY_CONVERT_TORCH_GROUPS_H

#include "convert/own_outputs.h"

/* Reads the number in a tensor of one element. */
typedef bool torch_scalar(void *context, const struct value *tensor, double *out);

/* Adds a group to c->training: the fields that `group` (a dict; NULL: nothing is known) has, and
 * the dict itself, which must be in the arena of c. Its parameters follow. scalar may be NULL.
 * ERR_CORRUPT if there are more than MAX_PARAM_GROUPS. */
MUST_CHECK enum status torch_groups_add(struct checkpoint *c, const struct value *group,
                                        torch_scalar *scalar, void *context, struct error *err);
/* Adds a parameter to the group that was added last, by its own name (copied); step: the updates
 * that its states have seen, NaN: not known. */
void torch_groups_add_param(struct checkpoint *c, const char *name, double step);

/* Sets run.step and the step of each group, and notes steps that differ, by name. Sets the members
 * of each group to the rule of ckpt/training.h that has exactly its parameters; notes groups that
 * follow no rule. For hf_model_import(). Nothing where no groups were added. */
void torch_groups_find_rules(struct checkpoint *c);

/* A group of a target. */
struct torch_out_group {
    const struct param_group *fields; /* with what the user gave */
    const struct value *own;          /* the source's dict; NULL: made of fields */
    size_t *params;                   /* [num_params] of own_outputs.out, in order */
    double *steps;                    /* [num_params] */
    size_t num_params;
};
/* The groups of a target: those of the source, in its order, where it lists every parameter that
 * has states; else all of these parameters in the order of the export, as one group, or with
 * --split-decay as two: tensors of two and more dimensions, then others, without weight decay. Sets
 * the fate of the groups and notes what was made. None without states. In the plan's arena. */
MUST_CHECK enum status torch_groups_plan(struct target *t, const struct own_outputs *all,
                                         struct torch_out_group **groups, size_t *num_groups,
                                         struct error *err);
/* The dict of a group without "params", keys in the order of torch's AdamW, in arena a. */
struct value *torch_group_value(struct arena *a, const struct torch_out_group *g);

#endif
