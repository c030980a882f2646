/* loss_scale.h - the factor of the loss in fp16: Megatron-Core's
 * ConstantGradScaler and DynamicGradScaler
 * (megatron/core/optimizer/grad_scaler.py).
 *
 * A dynamic scale starts at `initial`. An overflow (inf or NaN in a gradient of
 * any rank) lowers the hysteresis by 1; once it is 0, every overflow halves the
 * scale, down to `minimum`. After `window` good updates in a row the scale
 * doubles, and only then the hysteresis is refilled. Scales are float32, as
 * Megatron's. */
#ifndef FERRY_TRAIN_TRAINER_LOSS_SCALE_H
#define FERRY_TRAIN_TRAINER_LOSS_SCALE_H

#include "ckpt/training.h"

struct loss_scale {
    bool dynamic;                /* false: the scale stays */
    float minimum;               /* --min-loss-scale, 1 */
    uint64_t window, hysteresis; /* --loss-scale-window, 1000; --hysteresis, 2 */
    float scale;                 /* of the next backward pass */
    uint64_t growth_tracker;     /* good updates since the last change of scale, or overflow */
    uint64_t hysteresis_tracker; /* overflows that still leave the scale as it is */
    bool overflowed_at_minimum;  /* the last update did */
};

/* --loss-scale, or 1 without fp16. ERR_USAGE unless scale is a number above 0. */
MUST_CHECK enum status loss_scale_start_constant(struct loss_scale *s, double scale,
                                                 struct error *err);
/* --initial-loss-scale ... ERR_USAGE unless 0 < minimum <= initial, window > 0,
 * hysteresis > 0. */
MUST_CHECK enum status loss_scale_start_dynamic(struct loss_scale *s, double initial,
                                                double minimum, uint64_t window,
                                                uint64_t hysteresis, struct error *err);

/* Call it once per iteration, before the optimizer's update. */
void loss_scale_update(struct loss_scale *s, bool found_inf);

/* Whether the last update overflowed at the minimum scale (a constant one
 * always is at it): no smaller scale will help, so each further step may be
 * skipped. */
bool loss_scale_is_exhausted(const struct loss_scale *s);

/* Continues from a checkpoint. A constant scale keeps its value, as Megatron's.
 * ERR_CORRUPT if t's scale is not above 0. A state without a scale leaves s
 * unchanged. */
MUST_CHECK enum status loss_scale_load(struct loss_scale *s, const struct training *t,
                                       struct error *err);
/* Fills the members of part LOSS_SCALE; none for a constant scale, as in
 * Megatron's checkpoints. */
void loss_scale_save(const struct loss_scale *s, struct training *t);

#endif
