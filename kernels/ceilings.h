/* ceilings.h - the most that a device can do: rates of a large product and a large copy, which are
 * measured, and what the makers of GPUs publish. */
#ifndef FERRY_KERNELS_CEILINGS_H
#define FERRY_KERNELS_CEILINGS_H

#include "kernels/device.h"

enum { CEILING_MAX_REPEATS = 9 };

/* FLOP a second of a product of square matrices of `elem`, on an open device: the median of
 * `repeats` runs, behind two that do not count. The matrices grow until one run takes 20 ms, so
 * `repeats` runs take less than (repeats + 2) / 5 seconds on a device that does 0.2 GFLOP/s or
 * more. What does not fit the device's memory is left out; ERR_MEMORY if nothing fits. */
MUST_CHECK enum status ceiling_of_products(const struct device *device, enum elem_type elem,
                                           unsigned repeats, double *rate, struct error *err);
/* Bytes a second, read and written, of a copy that no cache holds; likewise. If the largest copy is
 * shorter than 20 ms, a run is several. */
MUST_CHECK enum status ceiling_of_copies(const struct device *device, unsigned repeats,
                                         double *rate, struct error *err);

/* FLOP a second of products that the maker of a GPU publishes, without sparsity: of bf16 and f16 on
 * tensor cores, of f32 without TF32, of f64 on tensor cores. description: of struct device, "NVIDIA
 * H200, 141 GB". 0: not known, as of a part of a GPU (MIG). */
double ceiling_published(const char *description, enum elem_type elem);

#endif
