/* rank_states.h - optimizer states in the legacy format's rank files, of an
 * optimizer that is not distributed: a tensor per parameter of the rank, of its
 * shape, found by its number.
 *
 *   optimizer: a dict, or a list of them if chained (dense, experts), each
 *     mixed precision
 *         {optimizer: {state: {NUMBER: {STATE: tensor}},
 *                      param_groups: [{params: [NUMBER, ...], ...}]},
 *          fp32_from_fp16_params: [[tensor, ...] of each group]}
 *     fp32
 *         {state, param_groups}
 *   old names: optimizer_state_dict, fp32_from_fp16
 *
 * A group has the parameters of Megatron's rule (param_groups.h), in the order
 * of the rank's model, which is that of `model` in the same file.
 *
 * With --optimizer muon or lion, a chain has
 *
 * - an optimizer of hidden matrices, two if experts are split over ranks;
 * - an optimizer of the rest.
 *
 * If that run is distributed, each data parallel rank has such a value in
 * layer_wise_optimizer_D.pt, with the states of its parameters. These are dealt,
 * the smallest first, to ranks 0 to n-1, n-1 to 0, and so on
 * (layer_wise_optimizer.py:_shard_params_ping_pong).
 *
 * Sources: megatron/core/optimizer/optimizer.py
 * (Float16OptimizerWithFloat16Params, FP32Optimizer, ChainedOptimizer),
 * torch/optim/optimizer.py (state_dict). */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_RANK_STATES_H
#define FERRY_CONVERT_MEGATRON_LEGACY_RANK_STATES_H

#include "ckpt/checkpoint.h"
#include "formats/torch.h"

/* A parameter's state, found by group and number. */
struct rank_state {
    size_t rank;                 /* the caller's number of the file */
    unsigned dp;                 /* data parallel rank; 0 if only one has states */
    unsigned optimizer, chained; /* its place in a chain of `chained` */
    unsigned group;
    uint64_t number;       /* of the parameter in its group */
    bool of_low_precision; /* number counts only those of low precision: a master */
    const char *state;     /* "param", "exp_avg" */
    size_t stored;         /* index of the stored tensor */
};

/* How an optimizer's groups differ, by Megatron's rule. */
struct group_rule {
    bool without_decay;         /* biases, parameters of one dimension */
    bool decoupled_lr;          /* embeddings and output layer, with --decoupled-lr */
    bool of_experts;            /* split over ranks */
    bool has_eps, has_momentum; /* settings that tell Adam, Muon and Lion apart */
};
/* The rule of a group's dict; of a parameter with this name. decays_qk_norms:
 * --apply-wd-to-qk-layernorm. */
struct group_rule group_rule_of(const struct value *group);
struct group_rule group_rule_for(const char *name, unsigned num_dims, bool decays_qk_norms);

/* A group of a file. */
struct rank_group {
    size_t rank;
    unsigned dp, optimizer, group;
    struct group_rule rule;
    uint64_t count;   /* of parameters */
    uint64_t masters; /* in the list of masters beside the groups */
};

struct rank_states {
    struct rank_state *items;
    size_t count, capacity;
    struct rank_group *groups;
    size_t num_groups, groups_capacity;
    bool decays_qk_norms; /* --apply-wd-to-qk-layernorm */
    bool is_split;        /* hidden matrices have another optimizer (ckpt/training.h) */
    unsigned num_dp;      /* data parallel ranks with files; 0: states are not dealt to them */
};

/* Adds the states of an open rank file's value `optimizer`, or of a data
 * parallel rank's file. Names their stored tensors prefix + place. Calls states_unread()
 * (convert/states.h) for unknown contents. */
MUST_CHECK enum status rank_states_add(struct rank_states *s, struct checkpoint *c,
                                       struct torch_file *t, const struct value *optimizer,
                                       size_t rank, unsigned dp, const char *prefix,
                                       struct error *err);
/* The same value without states: groups, loss scale and step. In arena a; parts
 * belong to the value. */
struct value *rank_states_outline(const struct value *optimizer, struct arena *a);

/* A rank's parameter, in the order of its file. */
struct rank_param {
    const char *name; /* in the file; the rule needs its end, and whether it is an embedding */
    bool of_experts;  /* of a chain's second optimizer, unless is_split */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
};

/* Assigns a rank's states to parameters: numbers[i] is an index into params,
 * for s->items[i] of this rank. Returns why that is impossible, in arena a;
 * NULL: possible. */
const char *rank_states_resolve(const struct rank_states *s, const struct checkpoint *c,
                                size_t rank, const struct rank_param *params, size_t num_params,
                                size_t *numbers, struct arena *a);

#endif
