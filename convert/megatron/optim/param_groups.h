/* param_groups.h - the training state in Megatron's Python values: read,
 * completed, written.
 *
 * Megatron keeps it in three places:
 *   1. the common state (the dict of common.pt, common_state or
 *      model_optim_rng.pt): `iteration`, `num_floating_point_operations_so_far`,
 *      `opt_param_scheduler` (old: `lr_scheduler`), and `args` with the consumed
 *      samples;
 *   2. `optimizer` there, the parameter groups and the loss scale:
 *        distributed  {optimizer: {param_groups}, grad_scaler,
 *                      param_state_sharding_type}
 *        mixed        {optimizer: {state: {common_step}, param_groups},
 *                      grad_scaler, ...}
 *        fp32         {state: {common_step}, param_groups}
 *        chained      a dict of such by 0, 1, ..., or a list: dense parameters,
 *                     then experts split over ranks; or matrices by Muon, then
 *                     the rest by Adam;
 *   3. with dp_reshardable, objects dp_group_idx_<i>.optimizer ({param_groups})
 *      per cell of ranks, and .grad_scaler.
 *
 * A *group* is a dict of settings. It does not name its parameters, which
 * follow from Megatron's rule, by `wd_mult`. Loading matches groups by wd_mult,
 * lr_mult, is_expert_parallel and is_decoupled_lr (newer releases: max_lr and
 * min_lr too), so these are always written.
 *
 * Sources:
 * megatron/core/optimizer/{__init__,optimizer,distrib_optimizer,grad_scaler}.py,
 * megatron/core/optimizer_param_scheduler.py, Megatron-Core 0.8 to 0.19. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_H
#define FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_H

#include "ckpt/training.h"
#include "common/map.h"
#include "formats/value.h"

/* ---- read ---- */

struct training_reader {
    struct training *training;
    struct arena *arena; /* of training and of this */
    /* Gives the number in a one-element tensor, whose bytes are not in the
     * value. NULL: such numbers are refused. */
    bool (*scalar)(void *context, const struct value *tensor, double *out);
    void *context;

    /* Results beside training, for the writer: the dicts of groups and
     * schedule. Borrowed from the values read. */
    const struct value **native_groups; /* [training->num_groups] */
    unsigned *chains;                   /* the number of each group's optimizer in a chain */
    const struct value *native_schedule;

    unsigned chain; /* of the optimizer being read */
    size_t native_capacity, chains_capacity, pairs_read;
    struct map seen;      /* a group's text -> its index */
    const char *step_of;  /* group of training->step */
    bool decays_qk_norms; /* --apply-wd-to-qk-layernorm */
    double decoupled_lr;  /* --decoupled-lr; NaN: none */
};

/* Makes training an empty state. */
void training_reader_init(struct training_reader *r, struct training *training, struct arena *a,
                          bool (*scalar)(void *context, const struct value *tensor, double *out),
                          void *context);
/* Frees heap memory; the results stay. */
void training_reader_release(struct training_reader *r);

/* Reads the common state with its optimizer; NULL: none. Missing values stay
 * unset. ERR_CORRUPT names a value of another type; for the rest see
 * training_reader_optimizer. */
MUST_CHECK enum status training_reader_common(struct training_reader *r, const struct value *common,
                                              struct error *err);
/* Adds groups and loss scale of an optimizer, or of a separate object, called
 * `where` in messages. r->chain: its number in a chain, unless it is one. Equal groups are added
 * once, so a model's cells may be read in turn. Of differing loss scales of several optimizers,
 * keeps the first. ERR_UNSUPPORTED, naming the class, for an instance of a class, or groups that
 * are no list of dicts. ERR_CORRUPT, naming both, if two groups have made different numbers of
 * steps (a group without parameters may have made none), or if there are too many groups. */
MUST_CHECK enum status training_reader_optimizer(struct training_reader *r,
                                                 const struct value *optimizer, const char *where,
                                                 struct error *err);
/* Reads a grad_scaler's dict, unless a loss scale is set. */
MUST_CHECK enum status training_reader_scaler(struct training_reader *r, const struct value *scaler,
                                              const char *where, struct error *err);
/* Sets the members of groups by Megatron's rule, and their optimizers where a
 * chain has two kinds; call it last. Members are NULL for groups outside the
 * rule, and for groups that would have the same. */
void training_reader_finish(struct training_reader *r);

/* ---- complete ---- */

/* Fills the fields of t that Megatron needs: from the flags, which replace
 * values; from other fields (a group's max_lr is the schedule's); and where
 * Megatron has no flag, from its defaults. from_megatron: t has Megatron's
 * groups. Otherwise splits each group "all", made if there are no groups, as
 * Megatron would: "matrices", and "vectors" without weight decay. Returns the
 * names of unknown fields ("max_lr, eps"), in arena a; NULL: none. Of these,
 * beta1, beta2 and eps get Megatron's defaults. */
const char *training_complete(struct training *t, const struct training_given *f,
                              bool from_megatron, struct arena *a);

/* ---- write ---- */

enum optimizer_wrapper { OPTIMIZER_DISTRIBUTED, OPTIMIZER_MIXED, OPTIMIZER_FP32 };

struct optimizer_form {
    enum optimizer_wrapper wrapper;
    bool is_mixed;             /* masters are wider than weights */
    const char *sharding_type; /* if distributed, as "fully_reshardable"; NULL: no such key */
    /* New groups are PyTorch's AdamW's, with a step of type float, not those of
     * Transformer Engine's and Apex's FusedAdam. PyTorch's AdamW can load
     * both. */
    bool torch_adam;
    bool experts_split;                /* experts are split over ranks, so have separate groups */
    bool expert_vectors;               /* these experts have biases */
    const struct value *const *native; /* [num_groups] as read, for Megatron's groups; else NULL */
};

/* Bytes of tensors of values made here, for torch_to_bytes(): data[i] is
 * storage "i". Several calls may add to one list, if their values are joined in
 * that order. In the call's arena. */
struct tensor_data {
    const void **data;
    size_t count, capacity;
};

/* The list of group dicts: of experts split over ranks, or of the others; where
 * optimizers are split, of all. A group read from Megatron keeps its keys except `params`, in
 * order; only changed fields are replaced, and only plain data is kept. If experts are newly split,
 * "matrices" and "all" (and "vectors", if experts have any) get a twin for them; if no longer
 * split, their groups become dense, unless such a group exists. */
struct value *param_groups_value(const struct training *t, const struct optimizer_form *form,
                                 bool experts, struct arena *a);
/* The whole value `optimizer`: two chained ones if experts are split over
 * ranks; if training_is_split(), two or more: the run's optimizer, whose masters
 * Megatron keeps as if it were not distributed, then the other. */
struct value *optimizer_value(const struct training *t, const struct optimizer_form *form,
                              struct tensor_data *data, struct arena *a);
/* {scale, growth_tracker, hysteresis_tracker}; NULL without a loss scale. */
struct value *grad_scaler_value(const struct training *t, struct tensor_data *data,
                                struct arena *a);
/* The value `opt_param_scheduler`. native: as read, or NULL. An unset field is
 * None, which Megatron takes only with --override-opt_param-scheduler. */
struct value *schedule_value(const struct training *t, const struct value *native, struct arena *a);

#endif
