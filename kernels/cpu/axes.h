/* axes.h - copies elements between two arrays with different strides.
 *
 * Slices, transposes, interleaving and their inverses are all this copy.
 * Strides and extents are in elements. */
#ifndef FERRY_KERNELS_CPU_AXES_H
#define FERRY_KERNELS_CPU_AXES_H

#include <stddef.h>
#include <stdint.h>

struct axis {
    uint64_t extent;
    uint64_t a_stride, b_stride;
};

/* For every index i of the block: b[sum i[k] * b_stride[k]] = a[sum i[k] *
 * a_stride[k]]. Elements have 1, 2, 4, 8 or 16 bytes; pointers need no
 * alignment; a and b do not overlap. num_axes 0 is one element. Runs contiguous
 * on both sides are copied by memcpy. If one side's fast axis is slow on the
 * other, the copy goes in tiles, so that each cache line is loaded once. */
void copy_axes(void *b, const void *a, size_t element_bytes, unsigned num_axes,
               const struct axis *axes);

/* Reverses the bytes of each of count elements in place. */
void swap_bytes(void *elements, size_t element_bytes, size_t count);

#endif
