/* zero_layout.h - where DeepSpeed's ZeRO puts the elements of parameters: in flat groups that data
 * parallel ranks share. Used to read and to write. Everything is in elements.
 *
 * Stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py): the parameters of a group lie one after
 * the other in one vector, each but the last followed by its alignment padding
 * (parameter_alignment, else none); the end is padded to a multiple of 2 * ranks. Each rank has an
 * equal part of it.
 *
 * Stage 3 (stage3.py, partition_parameters.py): each parameter is padded to a multiple of ranks on
 * its own, and each rank has an equal part of each; a rank's parts of a sub-group lie one after the
 * other. A sub-group closes as soon as a rank's parts in it reach sub_group_size. */
#ifndef FERRY_CONVERT_DEEPSPEED_ZERO_LAYOUT_H
#define FERRY_CONVERT_DEEPSPEED_ZERO_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* A parameter in the vector of a group: stages 1 and 2, in the vector of all ranks; stage 3, in
 * that of each rank, where it has zero3_part() elements. */
struct zero_place {
    uint64_t numel, begin;
};

/* Sets begin of each place by its numel; padding[i] elements follow parameter i (NULL: none do).
 * Returns the end of the last parameter, without the padding of the group. Sums that overflow are
 * UINT64_MAX. */
uint64_t zero_place_group(struct zero_place *places, size_t count, const uint64_t *padding);
/* The elements of padding behind a parameter with zero_optimization.parameter_alignment: to a
 * multiple of 16 / gcd(16, element_bytes); element_bytes: of the copy that the model computes
 * with. */
uint64_t zero_alignment_padding(uint64_t numel, size_t element_bytes);
/* The length of a group of num_elements with its padding, and of the part of one rank. */
uint64_t zero_padded(uint64_t num_elements, uint64_t ranks);
/* The elements of padding in the part of a rank. */
uint64_t zero_rank_padding(uint64_t num_elements, uint64_t ranks, uint64_t rank);

/* Stage 3: the elements of a parameter in each rank's part: ceil(numel / ranks). */
uint64_t zero3_part(uint64_t numel, uint64_t ranks);
/* Stage 3: sets sub_group[i], from 0, of the parameters of one optimizer group; returns their
 * number. */
size_t zero3_sub_groups(const uint64_t *numel, size_t count, uint64_t ranks,
                        uint64_t sub_group_size, size_t *sub_group);

#endif
