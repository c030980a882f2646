/* device.h - where the values of a program lie, and who computes with them: the host's CPU, or a
 * GPU. One table of functions each; a process uses one device.
 *
 * Calls of ops are put in a queue and carried out in order; upload, download and copy are in the
 * same queue, and the first two have happened when they return. A failure of a kernel may be told
 * by a later call (ERR_DEVICE), at the latest by synchronize. */
#ifndef FERRY_KERNELS_DEVICE_H
#define FERRY_KERNELS_DEVICE_H

#include "kernels/ops.h"

struct device {
    const char *name; /* "cpu", "cuda" */
    bool is_host;     /* its memory is the host's: upload and download are copies */
    /* Takes the number'th device of this host, counted round where there are fewer. */
    enum status (*open)(unsigned number, struct error *err);
    void (*close)(void);
    /* Zeroed, aligned to 256 bytes. ERR_MEMORY says how much is free. */
    enum status (*allocate)(void **out, uint64_t bytes, const char *what, struct error *err);
    void (*release)(void *memory);
    enum status (*upload)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*download)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*copy)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*synchronize)(struct error *err);
    /* [NUM_OPS]; run is NULL where it has none. */
    const struct op_kernel *(*ops)(enum elem_type elem);
    const char *(*describe)(void); /* "NVIDIA H200, 141 GB", for people */
};

#ifdef __cplusplus
extern "C" {
#endif

extern const struct device cpu_device;

/* The GPU's, from libferry_cuda.so beside libferry_engine.so; ERR_DEVICE where there is no such
 * library, no driver or no GPU. */
MUST_CHECK enum status cuda_device_load(const struct device **out, struct error *err);
#define CUDA_DEVICE_SYMBOL "ferry_cuda_device" /* a const struct device * */

#ifdef __cplusplus
}
#endif

#endif
