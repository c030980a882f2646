/* carried.h - tensors that a conversion carries along: those of vision and audio
 * towers, which a family's map names ("carried") and Megatron's model has no
 * place for. Their logical name is carried.NAME; they keep their dtype. Formats
 * with Hugging Face's names have them among the others, Megatron's in
 * ferry-hf/carried.safetensors.
 *
 * Likewise encoding.NAME in ferry-hf/encoding.safetensors: scales, and what else
 * came with codes (convert/hf/encodings.h). */
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
