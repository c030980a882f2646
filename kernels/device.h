/* device.h - where the values of a program lie, and who computes with them. One table of functions
 * each; a process uses one device. The host's CPU is the only one so far.
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
    const struct op_kernel *(*ops)(
        enum elem_type elem);      /* [NUM_OPS]; run is NULL where it has none */
    const char *(*describe)(void); /* "NVIDIA H200, 141 GB", for people */
};

extern const struct device cpu_device;

#endif
