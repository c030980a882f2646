/* device.h - a device holds a program's values and computes with them: the
 * host's CPU, or a GPU. A device is a table of functions; a process uses one.
 *
 * Op calls, uploads, downloads and copies enter one queue and run in order. An
 * upload returns when its source has been read, a download when it is complete.
 * A kernel's failure may be returned by a later call (ERR_DEVICE), at the
 * latest by synchronize. */
#ifndef FERRY_KERNELS_DEVICE_H
#define FERRY_KERNELS_DEVICE_H

#include "kernels/ops.h"

enum { NUM_LATER = 2, LATER_BYTES = 64 << 10 };

struct device_library;
struct device {
    const char *name; /* "cpu", "cuda" */
    bool is_host;     /* in the host's memory: upload and download are plain copies */
    /* Opens device `number` of this host, modulo the number of devices. */
    enum status (*open)(unsigned number, struct error *err);
    void (*close)(void);
    /* Zeroed, aligned to 256 bytes. ERR_MEMORY states how much is free. */
    enum status (*allocate)(void **out, uint64_t bytes, const char *what, struct error *err);
    void (*release)(void *memory);
    /* A number unique among the devices of a job. All CPUs of a host are
     * one device. */
    enum status (*identity)(uint64_t *id, struct error *err);
    /* Bytes that each of `ranks` ranks of this host can allocate, before
     * any rank has: they share its devices in turn, as in open.
     * UINT64_MAX: unknown. */
    enum status (*free_memory)(unsigned ranks, uint64_t *bytes, struct error *err);
    enum status (*upload)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*download)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*copy)(void *to, const void *from, uint64_t bytes, struct error *err);
    /* A download of at most LATER_BYTES in two steps, so that work queued
     * behind it runs while the host uses the result: `later` queues it, `wait`
     * returns when it is complete. `number`, below NUM_LATER, names one pending
     * download. NULL: not available. */
    enum status (*download_later)(unsigned number, const void *from, uint64_t bytes,
                                  struct error *err);
    enum status (*download_wait)(unsigned number, void *to, uint64_t bytes, struct error *err);
    enum status (*synchronize)(struct error *err);
    /* [NUM_OPS]; run is NULL if the device has no kernel for the op. */
    const struct op_kernel *(*ops)(enum elem_type elem);
    /* The kernels that an op chooses from; a row without a name ends them.
     * NULL: none. */
    const struct device_kernel *(*kernels)(unsigned op);
    const char *(*describe)(void); /* for display: "NVIDIA H200, 141 GB" */
    const struct device_timers *timers;
    const struct device_graphs *graphs;           /* NULL: calls run one by one */
    const struct device_collectives *collectives; /* NULL: ranks communicate through host memory */
    const struct device_buffers *buffers;         /* NULL: the device is the host */
    /* Library `number` that it loads, from 0;
     * false: no more. NULL: none. */
    bool (*library)(unsigned number, struct device_library *out);
};

struct device_library {
    const char *name;     /* "NCCL" */
    unsigned version;     /* 22809 is 2.28.9; 0: missing */
    struct error missing; /* says why */
};

/* One of several kernels of an op, for programs that compare them. */
struct device_kernel {
    const char *name; /* "few_rows"; a name ending in _sm90 needs compute capability 9.0 */
    enum elem_type elem;
    /* Whether it exists and supports these operands. Call its workspace
     * function first. */
    bool (*takes)(const union op_params *p, const struct operand *in, const struct operand *out);
    struct op_kernel kernel;
};

/* Marks in the queue. A mark is reached when everything queued before it is
 * done. The device measures the time between two marks without making the host
 * wait; its own waits for the host are included. Graphs cannot contain
 * marks. */
struct device_timers {
    enum status (*create)(void **timer, size_t num_marks, struct error *err);
    void (*free)(void *timer);
    /* Queues a mark. Marks count from 0; each may be queued again. */
    enum status (*mark)(void *timer, size_t mark, struct error *err);
    /* The time between two reached marks: synchronize first. */
    enum status (*seconds)(void *timer, size_t from, size_t to, double *seconds, struct error *err);
};

/* A buffer of host memory that the device reads on its own, while the host does
 * other work. */
struct device_buffer {
    void *memory;   /* not zeroed */
    void *read;     /* the device's: event of the last upload */
    bool is_pinned; /* the device's */
};

/* Uploads from such buffers, in the queue like all uploads. If the host cannot
 * pin enough memory, buffers are pageable and upload() may wait for the
 * device. */
struct device_buffers {
    enum status (*create)(struct device_buffer *out, uint64_t bytes, struct error *err);
    /* Waits until the buffer was read. No effect on a zeroed buffer. */
    void (*free)(struct device_buffer *b);
    /* Queues a copy of the buffer's first bytes, which must not change until
     * wait() returns. */
    enum status (*upload)(void *to, const struct device_buffer *b, uint64_t bytes,
                          struct error *err);
    enum status (*wait)(const struct device_buffer *b, struct error *err);
};

/* Graphs: ops, copies and collectives, recorded once and then queued as one,
 * with the same operands but new contents. Upload, download and synchronize
 * cannot be recorded. Each op must have run once before: its first run may
 * choose a kernel or allocate memory. */
struct device_graphs {
    enum status (*begin)(struct error *err); /* calls are recorded from now on, not run */
    enum status (*end)(void **graph, struct error *err);
    void (*cancel)(void); /* in place of end, after a failure */
    enum status (*replay)(void *graph, struct error *err);
    void (*release)(void *graph);
};

/* Collectives between devices without the host; each rank has its own device. A
 * group has several processes; all members make the same calls in the same
 * order, in the queue of the ops. in, out and order follow train/comm/comm.h,
 * except that the library chooses the order of sums. */
enum { DEVICE_GROUP_ID_BYTES = 128 };
struct device_number {
    enum operand_type type;
    enum elem_type elem; /* the program's */
};
/* A message to or from another member. */
struct device_message {
    bool sends;
    unsigned peer;
    void *data;
    uint64_t bytes;
};
struct device_collectives {
    const char *name; /* "nccl" */
    /* ERR_UNSUPPORTED, with the reason, if the library is missing. */
    enum status (*available)(struct error *err);
    /* One member creates a group's id; all members open the group with it. */
    enum status (*new_id)(char id[DEVICE_GROUP_ID_BYTES], struct error *err);
    enum status (*open)(void **group, const char *id, unsigned size, unsigned index,
                        struct error *err);
    /* give_up: a member may have died. Close all open groups in one call then:
     * a collective of one may wait for another's. */
    void (*close)(void *const *groups, unsigned count, bool give_up);
    enum status (*all_reduce)(void *group, const void *in, void *out, uint64_t count,
                              struct device_number number, bool max, struct error *err);
    enum status (*all_gather)(void *group, const void *in, void *out, uint64_t bytes,
                              struct error *err);
    enum status (*reduce_scatter)(void *group, const void *in, void *out, uint64_t count,
                                  struct device_number number, struct error *err);
    enum status (*all_to_all)(void *group, unsigned size, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err);
    /* Concurrent: no message waits for another. */
    enum status (*exchange)(void *group, const struct device_message *messages, unsigned count,
                            struct error *err);
    /* Whether the queue is empty; ERR_DEVICE if a member has died. Does
     * not wait. */
    enum status (*done)(bool *done, struct error *err);
};

/* FNV-1a: identity() hashes a device's name with it. */
static inline uint64_t device_hash(const void *data, size_t bytes)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return hash;
}

#ifdef __cplusplus
extern "C" {
#endif

extern const struct device cpu_device;
/* Sets the number of threads of this process's CPU ops. */
void cpu_use_threads(unsigned count);

/* Loads the GPU's device from libferry_cuda.so beside libferry_engine.so.
 * ERR_DEVICE if the library, the driver or the GPU is missing. */
MUST_CHECK enum status cuda_device_load(const struct device **out, struct error *err);
#define CUDA_DEVICE_SYMBOL "ferry_cuda_device" /* a const struct device * */

#ifdef __cplusplus
}
#endif

#endif
