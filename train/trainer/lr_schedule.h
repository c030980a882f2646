/* lr_schedule.h - learning rate and weight decay of each update: Megatron-LM's
 * OptimizerParamScheduler (megatron/core/optimizer_param_scheduler.py).
 *
 * Steps are samples, as in Megatron-LM's training loop. A schedule starts at 0
 * samples and steps after each good update by that iteration's samples: update
 * k uses the values of the samples before it, and a logged learning rate is
 * that of the next update. A skipped update does not step. All arithmetic is in
 * doubles in Python's order: results equal Megatron's bit for bit.
 *
 *   warm-up   init_lr to max_lr, linear, up to and including warmup_steps
 *   decay     by style, up to decay_steps; then min_lr. `constant` stays at max_lr for ever
 *   WSD       max_lr up to decay_steps - wsd_decay_steps, then by wsd_style
 *   weight decay   start_wd to end_wd over wd_incr_steps samples
 *
 * Nothing here does I/O or keeps memory. */
#ifndef FERRY_TRAIN_TRAINER_LR_SCHEDULE_H
#define FERRY_TRAIN_TRAINER_LR_SCHEDULE_H

#include "ckpt/training.h"

/* Names as in Megatron's arguments; static. train/cli/train_options.c lists
 * them again. */
extern const char *const lr_decay_styles[];     /* "constant", "linear", ... NULL at the end */
extern const char *const lr_wsd_decay_styles[]; /* of the tail of WSD */
extern const char *const wd_incr_styles[];

struct lr_schedule {
    double init_lr, max_lr, min_lr;
    double warmup_steps;      /* may be a fraction; 0: no warm-up */
    uint64_t decay_steps;     /* includes the warm-up */
    uint64_t wsd_decay_steps; /* the last of decay_steps; used by WSD only */
    const char *decay_style;  /* one of lr_decay_styles */
    const char *wsd_style;    /* one of lr_wsd_decay_styles; used by WSD only */
    double start_wd, end_wd;
    uint64_t wd_incr_steps;
    const char *wd_incr_style; /* one of wd_incr_styles */
    uint64_t num_steps;        /* where it stands */
    double lr, weight_decay;   /* of the next update; set by lr_schedule_step and _load */
};

/* Megatron's options for lengths; 0 and NaN: not given. */
struct lr_lengths {
    uint64_t train_iters, train_samples; /* one of both */
    uint64_t decay_iters, decay_samples; /* not given: the whole training */
    uint64_t warmup_iters, warmup_samples;
    double warmup_fraction; /* of the decay steps */
    uint64_t wsd_decay_iters, wsd_decay_samples;
};

/* Sets warmup_steps, decay_steps, wsd_decay_steps and wd_incr_steps as
 * Megatron-LM's get_optimizer_param_scheduler does: iterations count
 * global_batch_size samples each (the last one of a schedule of batch sizes).
 * ERR_USAGE unless one of train_iters and train_samples is given, if a length
 * has the other unit, if both kinds of warm-up are given, or if a product
 * exceeds 64 bits. */
MUST_CHECK enum status lr_schedule_set_lengths(struct lr_schedule *s, const struct lr_lengths *l,
                                               uint64_t global_batch_size, struct error *err);

/* Checks the user's members, as Megatron's constructor does (0 <= min_lr <=
 * max_lr, init_lr <= max_lr, warm-up shorter than decay, known styles, 0 <=
 * start_wd <= end_wd, equal for `constant`), goes to 0 steps and sets lr and
 * weight_decay. ERR_USAGE names the option. */
MUST_CHECK enum status lr_schedule_start(struct lr_schedule *s, struct error *err);

/* The values at num_steps samples. */
double lr_schedule_lr(const struct lr_schedule *s, uint64_t num_steps);
double lr_schedule_weight_decay(const struct lr_schedule *s, uint64_t num_steps);
/* The learning rate of a parameter group with its own bounds (--decoupled-lr). */
double lr_schedule_lr_between(const struct lr_schedule *s, uint64_t num_steps, double max_lr,
                              double min_lr);

/* Advances by `increment` samples and sets lr and weight_decay. */
void lr_schedule_step(struct lr_schedule *s, uint64_t increment);

/* The rule for a value that differs from the checkpoint's. */
enum lr_schedule_conflict {
    LR_CONFLICT_FAILS,           /* neither option */
    LR_CONFLICT_USES_CHECKPOINT, /* --use-checkpoint-opt_param-scheduler */
    LR_CONFLICT_USES_GIVEN,      /* --override-opt_param-scheduler */
};

/* Continues from a checkpoint: compares the members that t has with those of s, or takes them.
 * ERR_USAGE names the value, both numbers and both options. With LR_CONFLICT_USES_GIVEN the
 * schedule stands at t->consumed_train_samples (if given), else at t->num_steps. As in Megatron-LM,
 * lr_warmup_init and WSD's tail are not part of a checkpoint, and with
 * LR_CONFLICT_USES_CHECKPOINT s->weight_decay of the first update still follows the given weight
 * decay. s never points into t; a failure leaves s unchanged. */
MUST_CHECK enum status lr_schedule_load(struct lr_schedule *s, const struct training *t,
                                        enum lr_schedule_conflict conflict, struct error *err);
/* Fills the members of part SCHEDULE. Styles are static texts. */
void lr_schedule_save(const struct lr_schedule *s, struct training *t);

#endif
