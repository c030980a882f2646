/* gpu_driver.h - the GPUs of this host by NVIDIA's driver alone, which also
 * answers a build without libferry_cuda.so. */
#ifndef FERRY_KERNELS_GPU_DRIVER_H
#define FERRY_KERNELS_GPU_DRIVER_H

#include <stdint.h>

#include "common/status.h"

enum { MAX_GPUS_OF_HOST = 64 };

struct gpu_driver {
    int version; /* newest CUDA it supports: 13000 is 13.0 */
    int num_gpus;
    struct gpu {
        char name[128];
        int major, minor; /* compute capability */
        uint64_t bytes;
    } gpus[MAX_GPUS_OF_HOST];
};

/* ERR_DEVICE if there is no driver, or it refuses. Obeys
 * CUDA_VISIBLE_DEVICES. */
MUST_CHECK enum status gpu_driver_read(struct gpu_driver *out, struct error *err);

#endif
