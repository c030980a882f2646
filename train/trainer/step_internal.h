/* step_internal.h - shared by the files of a step: step.c (programs of
 * micro-batches, memory, results), step_run.c (slots, order of parts),
 * step_update.c (ranges of parameters, program of the update), step_traffic.c
 * (bytes sent). */
#ifndef FERRY_TRAIN_TRAINER_STEP_INTERNAL_H
#define FERRY_TRAIN_TRAINER_STEP_INTERNAL_H

#include "train/trainer/step.h"

/* Elements of the update's inputs and outputs (kernels/op_list.h: step_scalars,
 * square_sum). */
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

/* ---- step_run.c ---- */

/* Sets the number of slots of each chunk, by the schedule. */
MUST_CHECK enum status step_plan_slots(struct step *s, struct error *err);
/* Whether each slot has its own values of this class. */
bool step_is_in_slots(unsigned class);

/* ---- step.c ---- */

/* Bytes of this class in one slot, or shared by all slots. */
uint64_t step_slot_bytes(const struct step_chunk *c, unsigned class);
/* A run of p on the step's regions. */
struct run step_run_of(const struct step *s, const struct program *p);
MUST_CHECK enum status step_upload(const struct run *r, value_id id, const void *data,
                                   struct error *err);

/* ---- step_update.c ---- */

/* The order of parameters in their region: those with the same update are
 * adjacent. */
unsigned step_place_of(const struct parameter *x);
/* Ranges begin and end at multiples of this many bytes. */
uint64_t step_range_unit(const struct step *s);
/* Sets s->ranges, s->shard and the numbers of elements. Parameters must have their places. */
void step_find_ranges(struct step *s);

/* Initial sums of an update: zeros in gaps between parameters do not count. */
void step_first_sums(const struct step *s, double sums[NUM_SUMS]);
MUST_CHECK enum status step_make_update(struct step *s, struct error *err);

#endif
