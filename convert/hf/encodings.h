/* encodings.h - native tensors of codes become the weights that they stand for
 * (ckpt/encoding.h), by the folder's quantisation (convert/map/quantization.h).
 *
 * - Weights are BF16, or F32 if --torch-dtype asks for F32 or F64.
 * - Scales, and what else came with codes, are carried as encoding.NAME. */
#ifndef FERRY_CONVERT_HF_ENCODINGS_H
#define FERRY_CONVERT_HF_ENCODINGS_H

#include "convert/map/quantization.h"
#include "convert/naming.h"

/* Decodes the native tensors of a Hugging Face folder, gives them the weights'
 * names, and marks companions. ERR_UNSUPPORTED or ERR_CORRUPT names the tensor:
 * codes without a scale, a scale without codes, a shape that does not fit. */
MUST_CHECK enum status encodings_decode(const struct naming_import *import, struct error *err);

#endif
