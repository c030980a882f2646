/* ceilings.h - a device's peak rates: of a large product and a large copy, as
 * measured, and as published by the makers of GPUs. */
#ifndef FERRY_KERNELS_CEILINGS_H
#define FERRY_KERNELS_CEILINGS_H

#include "kernels/device.h"

enum { CEILING_MAX_REPEATS = 9 };

/* FLOP/s of a product of square matrices of `elem` on an open device: the
 * median of `repeats` runs after two warm-up runs. The matrices grow until one
 * run takes 20 ms, so `repeats` runs take less than (repeats + 2) / 5 seconds
 * at 0.2 GFLOP/s or more. Sizes beyond the device's memory are left out;
 * ERR_MEMORY if none fits. */
MUST_CHECK enum status ceiling_of_products(const struct device *device, enum elem_type elem,
                                           unsigned repeats, double *rate, struct error *err);
/* Bytes/s, read plus written, of a copy larger than any cache, measured
 * likewise. If the largest copy takes less than 20 ms, one run is
 * several copies. */
MUST_CHECK enum status ceiling_of_copies(const struct device *device, unsigned repeats,
                                         double *rate, struct error *err);

/* Published FLOP/s of a GPU's products, without sparsity: bf16, f16 and f64 on
 * tensor cores, f32 without TF32. description: struct device's, "NVIDIA H200,
 * 141 GB". 0: unknown, such as a part of a GPU (MIG). */
double ceiling_published(const char *description, enum elem_type elem);

#endif
