/* encoder.h - weights written as codes and scales (encoding.h).
 *
 * An encoder makes two tensors of a weight for a plan, codes and scales; their
 * elements are made when they are read.
 *
 * - A group keeps its scale if its largest element, amax, has a code: then an
 *   unchanged weight gives the codes that it was decoded from.
 * - Else its scale becomes amax / the largest code, in the dtype of scales: E8M0
 *   is rounded up, others to nearest. Groups with zeros cannot.
 * - Without kept scales all are made as transformers does, bit for bit: elements
 *   are multiplied by f = 1 / amax * largest, and the scale is 1 / f.
 *
 * Source: transformers 5.24, integrations/finegrained_fp8.py:Fp8Quantize. */
#ifndef FERRY_CKPT_ENCODER_H
#define FERRY_CKPT_ENCODER_H

#include "ckpt/encoding.h"

struct encoder;

/* Borrows both:
 *
 * - form: the encoding, without codes; scales with pieces are kept;
 * - weight: elements in the order of form. */
struct encoder *encoder_create(const struct encoded *form, const struct tensor *weight);
void encoder_free(struct encoder *e);
/* Groups that got a new scale, of the scales that were read. */
uint64_t encoder_num_renewed(const struct encoder *e);

/* Adds the whole of the codes or scales to an empty tensor, in arena a. Codes
 * have the dtype and shape of t; scales those of form->scales. */
void encoder_add_codes(struct encoder *e, struct arena *a, struct tensor *t);
void encoder_add_scales(struct encoder *e, struct arena *a, struct tensor *t);

/* Elements [low, low + count) in order. ERR_UNSUPPORTED:
 *
 * - an element is infinite, or NaN without a code for it;
 * - a scale does not fit its dtype. */
MUST_CHECK enum status encoder_read_codes(struct panel_reader *r, struct encoder *e,
                                          enum dtype dtype, uint64_t low, uint64_t count, void *out,
                                          struct error *err);
MUST_CHECK enum status encoder_read_scales(struct panel_reader *r, struct encoder *e, uint64_t low,
                                           uint64_t count, void *out, struct error *err);

/* For plan_fingerprint. */
const struct encoded *encoder_form(const struct encoder *e);
const struct tensor *encoder_weight(const struct encoder *e);

#endif
