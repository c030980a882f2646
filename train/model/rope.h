/* rope.h - the cosines and sines of rotary positions.
 *
 * After transformers' modeling_rope_utils.py: inverse frequencies base^(-2i/d) for i < d/2, which
 * depend on the kind: linear divides them by the factor; dynamic raises the base if a sequence is
 * longer than those of the training; llama3 divides the low ones and blends the middle ones; yarn
 * divides the low ones along a ramp and scales cosines and sines.
 *
 * Frequencies and angles are rounded to f32 in every precision, as in transformers and Megatron; at
 * position 8,000 the rounding is half a thousandth of a turn. */
#ifndef FERRY_TRAIN_MODEL_ROPE_H
#define FERRY_TRAIN_MODEL_ROPE_H

#include "ckpt/model_config.h"
#include "common/status.h"

/* Elements of each head that are rotated; an even number. */
uint64_t rope_dim(const struct model_config *c);

/* The number of positions that a model was made for, including those that its scaling adds; 0: it
 * has no rotary positions, or the number is not known. */
uint64_t rope_max_positions(const struct model_config *c);

/* inverse[rope_dim / 2] for sequences of `length` positions; *scale is what cosines and sines are
 * multiplied by. ERR_UNSUPPORTED for a kind that is not known. */
MUST_CHECK enum status rope_frequencies(const struct model_config *c, uint64_t length,
                                        double *inverse, double *scale, struct error *err);

/* table[num_positions][rope_dim]: cosines, then sines; float, or double where wide. */
MUST_CHECK enum status rope_table(const struct model_config *c, uint64_t length,
                                  uint64_t num_positions, bool wide, void *table,
                                  struct error *err);

#endif
