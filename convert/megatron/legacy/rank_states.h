/* rank_states.h - optimizer states in the rank files of the legacy format, of an optimizer that is
 * not distributed: a tensor for each parameter of the rank, of its shape, found by its number.
 *
 *   optimizer: a dict, or a list of them where optimizers are chained (dense, experts), each
 *     mixed precision {optimizer: {state: {NUMBER: {STATE: tensor}},
 *                                  param_groups: [{params: [NUMBER, ...], ...}]},
 *                      fp32_from_fp16_params: [[tensor, ...] of each group]}
 *     fp32            {state, param_groups}
 *   old names: optimizer_state_dict, fp32_from_fp16
 *
 * The parameters of a group are those that Megatron's rule gives it (param_groups.h), in the order
 * in which the rank's model has them, which is that of `model` in the same file.
 *
 * Sources: megatron/core/optimizer/optimizer.py (Float16OptimizerWithFloat16Params, FP32Optimizer,
 * ChainedOptimizer), torch/optim/optimizer.py (state_dict). */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_RANK_STATES_H
#define FERRY_CONVERT_MEGATRON_LEGACY_RANK_STATES_H

#include "ckpt/checkpoint.h"
#include "formats/torch.h"

/* A state of a parameter, found by group and number. */
struct rank_state {
    size_t rank;                 /* the caller's number of the file */
    unsigned optimizer, chained; /* its place in a chain of so many */
    unsigned group;
    uint64_t number;       /* of the parameter in its group */
    bool of_low_precision; /* counted among those of low precision alone: a master weight */
    const char *state;     /* "param", "exp_avg" */
    size_t stored;         /* index of the stored tensor */
};

/* What tells the groups of an optimizer apart, by Megatron's rule. */
struct group_rule {
    bool without_decay; /* biases, parameters of one dimension */
    bool decoupled_lr;  /* embeddings and output layer, with --decoupled-lr */
};
/* That of a group's dict; of a parameter with this name. decays_qk_norms:
 * --apply-wd-to-qk-layernorm. */
struct group_rule group_rule_of(const struct value *group);
struct group_rule group_rule_for(const char *name, unsigned num_dims, bool decays_qk_norms);

/* A group of a file. */
struct rank_group {
    size_t rank;
    unsigned optimizer, group;
    struct group_rule rule;
    uint64_t count;   /* of parameters */
    uint64_t masters; /* in the list of master weights beside the groups */
};

struct rank_states {
    struct rank_state *items;
    size_t count, capacity;
    struct rank_group *groups;
    size_t num_groups, groups_capacity;
    bool decays_qk_norms; /* --apply-wd-to-qk-layernorm */
};

/* Adds the states of the value `optimizer` of an open rank file. Their stored tensors are named
 * prefix + place. Calls states_unread() (convert/states.h) for what it does not know. */
MUST_CHECK enum status rank_states_add(struct rank_states *s, struct checkpoint *c,
                                       struct torch_file *t, const struct value *optimizer,
                                       size_t rank, const char *prefix, struct error *err);
/* The same value without the states: groups, loss scale and step. In arena a; parts of it belong to
 * the value. */
struct value *rank_states_outline(const struct value *optimizer, struct arena *a);

/* A parameter of a rank, in the order of its file. */
struct rank_param {
    const char
        *name;       /* as the file has it, for the rule: its end, and whether it is an embedding */
    bool of_experts; /* of the second optimizer of a chain */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
};

/* Sets which parameter each state of a rank is of: numbers[i] is an index into params, for
 * s->items[i] of this rank. Returns why that is not possible, in arena a; NULL: it is. */
const char *rank_states_resolve(const struct rank_states *s, const struct checkpoint *c,
                                size_t rank, const struct rank_param *params, size_t num_params,
                                size_t *numbers, struct arena *a);

#endif
