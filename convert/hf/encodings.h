/* encodings.h - native tensors of codes become the weights that they stand for
 * (ckpt/encoding.h), by the folder's quantisation (convert/map/quantization.h).
 *
 * - Weights are BF16, or F32 if --torch-dtype asks for F32 or F64.
 * - Scales, and what else came with codes, are carried as encoding.NAME. */
#ifndef FERRY_CONVERT_HF_ENCODINGS_H
#define FERRY_CONVERT_HF_ENCODINGS_H

#include "convert/map/quantization.h"
#include "convert/native_outputs.h"

/* Decodes native tensors, gives them the weights' names, and marks companions.
 * ERR_UNSUPPORTED or ERR_CORRUPT names a tensor that does not fit. */
MUST_CHECK enum status encodings_decode(const struct naming_import *import, struct error *err);

/* ---- writing ---- */

struct encoding_writer;

/* Makes outputs whose scales the source keeps codes again, and adds their scales
 * and the like.
 *
 * - Codes are as stored, if the source has them, else of an encoder.
 * - The caller frees *out after the run.
 * - ERR_UNSUPPORTED: the source keeps no scales, or scales of no output. */
MUST_CHECK enum status encodings_write(struct target *t, struct native_outputs *outputs,
                                       struct encoding_writer **out, struct error *err);
void encoding_writer_free(struct encoding_writer *w);
/* After a run: adds the groups that got new scales. */
void encoding_writer_count(const struct encoding_writer *w, struct target_facts *facts);

#endif
