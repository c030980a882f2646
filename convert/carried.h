/* carried.h - tensors that a conversion carries along, in their dtype:
 *
 *   carried.NAME   what a family's map names and Megatron has no place for, as
 *                  vision and audio towers
 *   encoding.NAME  scales, and what else came with codes
 *
 * Formats with Hugging Face's names have the first among the others, the second
 * beside codes only. Megatron's have them in ferry-hf/carried.safetensors and
 * encoding.safetensors. */
#ifndef FERRY_CONVERT_CARRIED_H
#define FERRY_CONVERT_CARRIED_H

#include "ckpt/checkpoint.h"
#include "convert/target.h"

/* Adds a native tensor of Hugging Face's as a carried one. */
MUST_CHECK enum status carried_add(struct checkpoint *c, const struct native_tensor *native,
                                   struct error *err);
/* Adds those of the files in this folder, if they exist. */
MUST_CHECK enum status carried_open(struct checkpoint *c, const char *folder, struct error *err);
/* Plans these files for the source's carried tensors, if there are any. folder:
 * relative to the destination. Called after all other files are added. */
MUST_CHECK enum status carried_plan(struct target *t, const char *folder, struct error *err);
/* The name of a carried tensor in Hugging Face's files; NULL: not carried. */
const char *carried_name(const struct tensor *t);

#endif
