/* rope.h - cosines and sines of rotary positions.
 *
 * After transformers' modeling_rope_utils.py: inverse frequencies base^(-2i/d)
 * for i < d/2, by kind: linear divides them by the factor; dynamic raises the
 * base for sequences longer than in training; llama3 divides the low ones and
 * blends the middle ones; yarn divides the low ones along a ramp and scales
 * cosines and sines.
 *
 * Frequencies and angles are rounded to f32 in every precision, as in
 * transformers and Megatron; at position 8,000 the rounding is half a
 * thousandth of a turn. */
#ifndef FERRY_TRAIN_MODEL_ROPE_H
#define FERRY_TRAIN_MODEL_ROPE_H

#include "ckpt/model_config.h"
#include "common/status.h"

/* Rotated elements of each head, an even number. */
uint64_t rope_dim(const struct model_config *c);

/* Positions that a model was made for, with its scaling; 0: no rotary
 * positions, or unknown. */
uint64_t rope_max_positions(const struct model_config *c);

/* Sets inverse[rope_dim / 2] for sequences of `length` positions, and *scale,
 * the factor of cosines and sines. ERR_UNSUPPORTED for an unknown kind. */
MUST_CHECK enum status rope_frequencies(const struct model_config *c, uint64_t length,
                                        double *inverse, double *scale, struct error *err);

/* Fills table[num_positions][rope_dim]: cosines, then sines; double if wide,
 * else float. */
MUST_CHECK enum status rope_table(const struct model_config *c, uint64_t length,
                                  uint64_t num_positions, bool wide, void *table,
                                  struct error *err);

#endif
