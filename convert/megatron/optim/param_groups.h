/* param_groups.h - the training state in Megatron's Python values: read, completed, written.
 *
 * Megatron keeps it in three places:
 * 1. the common state (the dict of common.pt, common_state or model_optim_rng.pt): `iteration`,
 *    `num_floating_point_operations_so_far`, `opt_param_scheduler` (old: `lr_scheduler`), and
 * `args` with the samples consumed;
 * 2. `optimizer` there: the groups of parameters and the loss scale. It is
 *      distributed  {optimizer: {param_groups}, grad_scaler, param_state_sharding_type}
 *      mixed        {optimizer: {state: {common_step}, param_groups}, grad_scaler, ...}
 *      fp32         {state: {common_step}, param_groups}
 *      chained      a dict of such by 0, 1, ..., or a list of them: dense parameters, then experts
 *                   that are split over ranks; or matrices by Muon, then the rest by Adam;
 * 3. with dp_reshardable, objects dp_group_idx_<i>.optimizer ({param_groups}), one for each cell of
 *    ranks, and .grad_scaler.
 *
 * A *group* is a dict of settings. Its parameters are not named: they follow from Megatron's rule,
 * by `wd_mult`. Loading matches groups by wd_mult, lr_mult, is_expert_parallel and is_decoupled_lr
 * (newer releases: max_lr and min_lr too), so these are always written.
 *
 * Sources: megatron/core/optimizer/{__init__,optimizer,distrib_optimizer,grad_scaler}.py,
 * megatron/core/optimizer_param_scheduler.py, Megatron-Core 0.8 to 0.19. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_H
#define FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_H

#include "ckpt/training.h"
#include "common/map.h"
#include "formats/value.h"

/* ---- read ---- */

struct training_reader {
    struct training *training;
    struct arena *arena; /* of training, and of what is kept here */
    /* Gives the number in a tensor of one element, whose bytes are not in the value. NULL: such
     * numbers are refused. */
    bool (*scalar)(void *context, const struct value *tensor, double *out);
    void *context;

    /* The results beside training: the dicts that its groups and its schedule were read from, for
     * the writer. Borrowed from the values that were read. */
    const struct value **own_groups; /* [training->num_groups] */
    const struct value *own_schedule;

    size_t own_capacity, pairs_read;
    struct map seen;      /* a group's text -> its index */
    const char *step_of;  /* the group that training->step is of */
    bool decays_qk_norms; /* --apply-wd-to-qk-layernorm */
    double decoupled_lr;  /* --decoupled-lr; NaN: none */
};

/* Makes training a state in which nothing is given. */
void training_reader_init(struct training_reader *r, struct training *training, struct arena *a,
                          bool (*scalar)(void *context, const struct value *tensor, double *out),
                          void *context);
/* Frees what is on the heap; the results stay. */
void training_reader_release(struct training_reader *r);

/* Reads the common state, with the optimizer in it; NULL: none. What is not there stays not given.
 * ERR_CORRUPT names a value of another type; for the rest see training_reader_optimizer. */
MUST_CHECK enum status training_reader_common(struct training_reader *r, const struct value *common,
                                              struct error *err);
/* Adds the groups and the loss scale of an optimizer, or of one of the separate objects, named
 * `where` in messages. Equal groups are added once, so the cells of a model may be read one after
 * the other. Loss scales of several optimizers may differ; the first one is kept. ERR_UNSUPPORTED,
 * naming the class, if it is an instance of a class or its groups are no list of dicts. ERR_CORRUPT
 * if two groups have made a different number of steps, naming both, or there are too many groups.
 * A group without parameters may have made none. */
MUST_CHECK enum status training_reader_optimizer(struct training_reader *r,
                                                 const struct value *optimizer, const char *where,
                                                 struct error *err);
/* Reads a grad_scaler's dict, if no loss scale is given yet. */
MUST_CHECK enum status training_reader_scaler(struct training_reader *r, const struct value *scaler,
                                              const char *where, struct error *err);
/* Once all is read: sets the members of groups by Megatron's rule. They stay NULL for groups that
 * it cannot explain, and for several groups that would have the same. */
void training_reader_finish(struct training_reader *r);

/* ---- complete ---- */

/* Fills the fields of t that Megatron needs: from the flags, which replace what is there; from
 * other fields (a group's max_lr is the schedule's); and what Megatron has no flag for by its
 * defaults. from_megatron: t has Megatron's own groups. If not, groups are made, as Megatron would:
 * "matrices", and "vectors" without weight decay, of each group "all" or if there is none. Returns
 * the names of fields that are still unknown ("max_lr, eps"), in arena a; NULL: none. Of these
 * Megatron's defaults are written for beta1, beta2 and eps. */
const char *training_complete(struct training *t, const struct training_given *f,
                              bool from_megatron, struct arena *a);

/* ---- write ---- */

enum optimizer_wrapper { OPTIMIZER_DISTRIBUTED, OPTIMIZER_MIXED, OPTIMIZER_FP32 };

struct optimizer_form {
    enum optimizer_wrapper wrapper;
    const char *sharding_type; /* of a distributed one, as "fully_reshardable"; NULL: no such key */
    /* Groups made from nothing are those of PyTorch's AdamW, with a step of type float, not those
     * of Transformer Engine's and Apex's FusedAdam. PyTorch's AdamW can load both. */
    bool torch_adam;
    bool experts_split;  /* experts are split over ranks: they have groups of their own */
    bool expert_vectors; /* these experts have biases */
    const struct value *const *own; /* [num_groups] as read, for groups of Megatron; else NULL */
};

/* The bytes of the tensors of values that are made here, as torch_to_bytes() takes them: data[i] is
 * of the storage with key "i". Several calls may add to one list, if their values are joined in
 * that order. In the arena of the call. */
struct tensor_data {
    const void **data;
    size_t count, capacity;
};

/* The list of group dicts: of experts that are split over ranks, or the others. A group that was
 * read from Megatron keeps all its keys but `params`, in order; only changed fields are replaced,
 * and what is no plain data is left out. If experts are split now and were not before, "matrices"
 * and "all" (and "vectors", if experts have any) get a twin for them; if they no longer are, groups
 * of experts become dense ones, unless there is such a group already. */
struct value *param_groups_value(const struct training *t, const struct optimizer_form *form,
                                 bool experts, struct arena *a);
/* The whole value `optimizer`: two chained ones if experts are split over ranks. */
struct value *optimizer_value(const struct training *t, const struct optimizer_form *form,
                              struct tensor_data *data, struct arena *a);
/* {scale, growth_tracker, hysteresis_tracker}; NULL if no loss scale is given. */
struct value *grad_scaler_value(const struct training *t, struct tensor_data *data,
                                struct arena *a);
/* The value `opt_param_scheduler`. own: as read, or NULL. A field that is not given is None, which
 * Megatron takes only with --override-opt_param-scheduler. */
struct value *schedule_value(const struct training *t, const struct value *own, struct arena *a);

#endif
