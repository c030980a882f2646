/* encodings.h - native tensors of codes become the weights that they stand for
 * (ckpt/encoding.h), by the folder's quantisation (convert/map/quantization.h).
 *
 * - Weights are BF16, or F32 if --torch-dtype asks for another dtype.
 * - Scales, and what else came with codes, are carried as encoding.NAME. */
#ifndef FERRY_CONVERT_HF_ENCODINGS_H
#define FERRY_CONVERT_HF_ENCODINGS_H

#include "convert/map/quantization.h"
#include "convert/native_outputs.h"

/* Decodes native tensors, gives them the weights' names, and marks companions.
 * ERR_UNSUPPORTED or ERR_CORRUPT names a tensor that does not fit. */
MUST_CHECK enum status encodings_decode(const struct naming_import *import, struct error *err);

/* A name with * for each number between dots, as in quantization.chosen. */
const char *encodings_pattern(struct arena *a, const char *name);

/* ---- writing ---- */

struct encoding_writer;

/* Makes codes of outputs, by t->options.encoding, and adds their scales.
 *
 * - as-source: of those whose scales the source keeps; as stored, if it has
 *   codes. ERR_UNSUPPORTED: it keeps none, or scales of no output.
 * - Another: of linear layers that are whole blocks.
 * - *out is freed after the run. */
MUST_CHECK enum status encodings_write(struct target *t, struct native_outputs *outputs,
                                       struct encoding_writer **out, struct error *err);
/* The quantization_config of weights that are encoded anew; NULL: none are. */
const cJSON *encoding_writer_config(const struct encoding_writer *w);
void encoding_writer_free(struct encoding_writer *w);
/* After a run: adds the groups that got new scales. */
void encoding_writer_count(const struct encoding_writer *w, struct target_facts *facts);

#endif
