/* zero_layout.h - where DeepSpeed's ZeRO puts parameter elements: in flat
 * groups shared by data parallel ranks. For reading and writing. All units are
 * elements.
 *
 * Stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py): a group's
 * parameters follow one another in one vector, each but the last followed by
 * its alignment padding (parameter_alignment, else none); the end is padded to
 * a multiple of 2 * ranks. Each rank has an equal part.
 *
 * Stage 3 (stage3.py, partition_parameters.py): each parameter is padded to a
 * multiple of ranks, and each rank has an equal part of it; a rank's parts of a
 * sub-group follow one another. A sub-group closes when a rank's parts reach
 * sub_group_size. */
#ifndef FERRY_CONVERT_DEEPSPEED_ZERO_LAYOUT_H
#define FERRY_CONVERT_DEEPSPEED_ZERO_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* A parameter in a group's vector: stages 1 and 2, of all ranks; stage 3, of
 * each rank, where it has zero3_part() elements. */
struct zero_place {
    uint64_t numel, begin;
};

/* Sets each place's begin by its numel; padding[i] elements follow parameter i
 * (NULL: none). Returns the end of the last parameter, without the group's
 * padding. Overflowing sums are UINT64_MAX. */
uint64_t zero_place_group(struct zero_place *places, size_t count, const uint64_t *padding);
/* Padding elements after a parameter with
 * zero_optimization.parameter_alignment: to a multiple of 16 / gcd(16,
 * element_bytes); element_bytes: of the copy that the model computes with. */
uint64_t zero_alignment_padding(uint64_t numel, size_t element_bytes);
/* Length of a group of num_elements with its padding. */
uint64_t zero_padded(uint64_t num_elements, uint64_t ranks);
/* Padding elements in a rank's part. */
uint64_t zero_rank_padding(uint64_t num_elements, uint64_t ranks, uint64_t rank);

/* Stage 3: a parameter's elements on each rank: ceil(numel / ranks). */
uint64_t zero3_part(uint64_t numel, uint64_t ranks);
/* Stage 3: sets sub_group[i], from 0, of one optimizer group's parameters;
 * returns the number of sub-groups. */
size_t zero3_sub_groups(const uint64_t *numel, size_t count, uint64_t ranks,
                        uint64_t sub_group_size, size_t *sub_group);

#endif
