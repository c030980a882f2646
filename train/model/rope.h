/* rope.h - the cosines and sines of rotary positions.
 *
 * After transformers' modeling_rope_utils.py: inverse frequencies base^(-2i/d) for i < d/2, which
 * the kinds change: linear divides them by the factor; dynamic raises the base where a sequence is
 * longer than the model was trained for; llama3 divides the slow ones and blends between; yarn
 * divides the slow ones along a ramp and scales cosines and sines.
 *
 * Frequencies and angles are rounded to f32, in every precision: so transformers and Megatron have
 * it, and at position 8,000 the rounding is half a thousandth of a turn. */
#ifndef FERRY_TRAIN_MODEL_ROPE_H
#define FERRY_TRAIN_MODEL_ROPE_H

#include "ckpt/model_config.h"
#include "common/status.h"

/* Elements of each head that are turned; an even number. */
uint64_t rope_dim(const struct model_config *c);

/* Positions that a model was made for, those that a scaling has added among them; 0: it has no
 * rotary positions, or does not say. */
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
