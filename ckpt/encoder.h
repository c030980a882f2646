/* encoder.h - weights written as codes and scales (encoding.h).
 *
 * An encoder makes tensors of a weight for a plan, codes, scales and the global
 * scale; their elements are made when they are read.
 *
 * Sources: transformers 5.24, integrations/finegrained_fp8.py:Fp8Quantize;
 * compressed-tensors 0.20.0, quantization/utils:calculate_qparams,
 * generate_gparam, generate_mx_scales, and lifecycle/forward_helpers:_quantize. */
#ifndef FERRY_CKPT_ENCODER_H
#define FERRY_CKPT_ENCODER_H

#include "ckpt/encoding.h"

struct encoder;

/* How a group gets its scale.
 *
 * - amax: its largest element;
 * - T: the weight's dtype, to which the last rule rounds each result.
 *
 * The last two are bit for bit those of the programs, on a CPU. */
enum encoder_rule {
    /* It keeps its scale, that of the form, if amax has a code: an unchanged weight
     * gives the codes that it was decoded from. Else it becomes amax / the largest
     * code, in the dtype of scales: E8M0 is rounded up, others to nearest. Groups
     * with zeros cannot. */
    ENCODER_KEEPS,
    /* Elements are multiplied by f = 1 / amax * largest; the scale is 1 / f. */
    ENCODER_TRANSFORMERS,
    /* s = amax / half the range of codes. Scales are
     *
     * - E8M0: amax to a power of two, up from 1.75 times it, / that of the largest code;
     * - of T: s;
     * - E4M3: s * global, in F32; global = 1 / amax of the weight * 448 * 6.
     *
     * Elements are divided by them, in T; beside a global one in F32. */
    ENCODER_COMPRESSED_TENSORS,
    NUM_ENCODER_RULES
};

/* Borrows both:
 *
 * - form: the encoding, without codes; what is kept has pieces;
 * - weight: elements in the order of form. */
struct encoder *encoder_create(const struct encoded *form, const struct tensor *weight,
                               enum encoder_rule rule);
/* Gives the weights of two encoders, and of those that share with either, one
 * global scale: that of the largest element. */
void encoder_share_global(struct encoder *a, struct encoder *b);
void encoder_free(struct encoder *e);
/* Groups that got a new scale, of the scales that were read. */
uint64_t encoder_num_renewed(const struct encoder *e);

/* Adds the whole of the codes, the scales or the global scale to an empty tensor,
 * in arena a. Codes have the dtype and shape of t; scales those of form->scales. */
void encoder_add_codes(struct encoder *e, struct arena *a, struct tensor *t);
void encoder_add_scales(struct encoder *e, struct arena *a, struct tensor *t);
void encoder_add_global(struct encoder *e, struct arena *a, struct tensor *t);

/* Elements [low, low + count) in order. ERR_UNSUPPORTED:
 *
 * - an element is infinite, or NaN without a code for it;
 * - a scale does not fit its dtype. */
MUST_CHECK enum status encoder_read_codes(struct panel_reader *r, struct encoder *e,
                                          enum dtype dtype, uint64_t low, uint64_t count, void *out,
                                          struct error *err);
MUST_CHECK enum status encoder_read_scales(struct panel_reader *r, struct encoder *e, uint64_t low,
                                           uint64_t count, void *out, struct error *err);
MUST_CHECK enum status encoder_read_global(struct panel_reader *r, struct encoder *e, float *out,
                                           struct error *err);

/* For plan_fingerprint. */
const struct encoded *encoder_form(const struct encoder *e);
const struct tensor *encoder_weight(const struct encoder *e);

#endif
