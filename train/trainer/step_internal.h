/* step_internal.h - what the two files of a step share: step.c (programs of micro-batches, memory,
 * runs), step_update.c (which parameters are alike, and the program of the update). */
#ifndef FERRY_TRAIN_TRAINER_STEP_INTERNAL_H
#define FERRY_TRAIN_TRAINER_STEP_INTERNAL_H

#include "train/trainer/step.h"

/* Elements of the inputs and outputs of the update (kernels/op_list.h: step_scalars, square_sum).
 */
enum { LR, WEIGHT_DECAY, CORRECTION_1, CORRECTION_2, FACTOR, CLIP, NUM_CONTROLS };
enum { SCALAR_SKIPPED = 5, SCALAR_NORM, SCALAR_ZEROS, NUM_SCALARS };
enum { SUM_SQUARES, SUM_NOT_FINITE, SUM_ZEROS, NUM_SUMS };

static inline size_t step_elem_bytes(const struct step *s)
{
    return operand_bytes_of(OPERAND_ELEM, s->model->options.elem);
}

static inline size_t step_real_bytes(const struct step *s)
{
    return operand_bytes_of(OPERAND_REAL, s->model->options.elem);
}

/* The order of parameters in their region: those that an update treats alike follow one another. */
unsigned step_place_of(const struct parameter *x);
/* Sets s->ranges and the numbers of elements, when parameters have their places. */
void step_find_ranges(struct step *s);

/* What the sums of an update begin with: gaps between parameters are zeros that do not count. */
void step_first_sums(const struct step *s, double sums[NUM_SUMS]);
MUST_CHECK enum status step_make_update(struct step *s, struct error *err);

#endif
