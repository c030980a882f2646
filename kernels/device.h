/* device.h - a device holds the values of a program and computes with them: the host's CPU, or a
 * GPU. Each is a table of functions; a process uses one device.
 *
 * Calls of ops, uploads, downloads and copies go into one queue and run in its order. When an
 * upload returns, its source was read; when a download returns, it is done. The failure of a kernel
 * may be returned by a later call (ERR_DEVICE), at the latest by synchronize. */
#ifndef FERRY_KERNELS_DEVICE_H
#define FERRY_KERNELS_DEVICE_H

#include "kernels/ops.h"

enum { NUM_LATER = 2, LATER_BYTES = 64 << 10 };

struct device {
    const char *name; /* "cpu", "cuda" */
    bool is_host;     /* its memory is the host's: upload and download are copies */
    /* Opens device `number` of this host, modulo the number of devices. */
    enum status (*open)(unsigned number, struct error *err);
    void (*close)(void);
    /* Zeroed, aligned to 256 bytes. ERR_MEMORY says how much is free. */
    enum status (*allocate)(void **out, uint64_t bytes, const char *what, struct error *err);
    void (*release)(void *memory);
    /* A number that is unique among the devices of a job. The CPUs of a host are one device. */
    enum status (*identity)(uint64_t *id, struct error *err);
    /* Bytes that each of `ranks` ranks of this host can allocate, before any of them has: they use
     * its devices in turn, as in open. UINT64_MAX if that is not known. */
    enum status (*free_memory)(unsigned ranks, uint64_t *bytes, struct error *err);
    enum status (*upload)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*download)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*copy)(void *to, const void *from, uint64_t bytes, struct error *err);
    /* A download of at most LATER_BYTES in two steps, so that what is queued behind it can run
     * while the host works with it: `later` queues it, `wait` returns when it is done. `number` is
     * below NUM_LATER, of one download at a time. NULL: there is none. */
    enum status (*download_later)(unsigned number, const void *from, uint64_t bytes,
                                  struct error *err);
    enum status (*download_wait)(unsigned number, void *to, uint64_t bytes, struct error *err);
    enum status (*synchronize)(struct error *err);
    /* [NUM_OPS]; run is NULL if the device has no kernel for the op. */
    const struct op_kernel *(*ops)(enum elem_type elem);
    /* The kernels that an op chooses from; a row without a name ends them. NULL: none. */
    const struct device_kernel *(*kernels)(unsigned op);
    const char *(*describe)(void); /* "NVIDIA H200, 141 GB", for people */
    const struct device_timers *timers;
    const struct device_graphs *graphs; /* NULL: each call runs by itself */
    const struct device_collectives
        *collectives;                     /* NULL: ranks communicate through the host's memory */
    const struct device_buffers *buffers; /* NULL: the device is the host */
};

/* One of several kernels for an op, for the programs that compare them. */
struct device_kernel {
    const char *name; /* "few_rows"; names that end in _sm90 need compute capability 9.0 */
    enum elem_type elem;
    /* Whether it is there and takes these operands. Call its workspace function first. */
    bool (*takes)(const union op_params *p, const struct operand *in, const struct operand *out);
    struct op_kernel kernel;
};

/* Marks in the queue. A mark is reached when everything queued before it is done. The time between
 * two marks is measured by the device, without a wait of the host; it includes the time in which
 * the device waited for the host. Marks cannot be in graphs. */
struct device_timers {
    enum status (*create)(void **timer, size_t num_marks, struct error *err);
    void (*free)(void *timer);
    /* Queues a mark. Marks count from 0; each may be queued again. */
    enum status (*mark)(void *timer, size_t mark, struct error *err);
    /* Between two marks that were reached: synchronize first. */
    enum status (*seconds)(void *timer, size_t from, size_t to, double *seconds, struct error *err);
};

/* A buffer of the host's memory that the device reads by itself, while the host does other work. */
struct device_buffer {
    void *memory;   /* not zeroed */
    void *read;     /* the device's: the last upload from it */
    bool is_pinned; /* the device's */
};

/* Uploads from such buffers; they are in the queue, as all uploads are. A host without enough
 * memory that can be pinned gives other memory: then upload() may wait for the device. */
struct device_buffers {
    enum status (*create)(struct device_buffer *out, uint64_t bytes, struct error *err);
    /* Waits until it was read. All 0: does nothing. */
    void (*free)(struct device_buffer *b);
    /* Queues the copy of the buffer's first bytes. They must not change until wait() returns. */
    enum status (*upload)(void *to, const struct device_buffer *b, uint64_t bytes,
                          struct error *err);
    enum status (*wait)(const struct device_buffer *b, struct error *err);
};

/* Graphs: ops, copies and collectives that are recorded once and then queued as one, with the same
 * operands, whose contents may change. Upload, download and synchronize cannot be in graphs. Each
 * op must have run once before, since its first run may choose a kernel or allocate memory. */
struct device_graphs {
    enum status (*begin)(struct error *err); /* from now on calls are recorded, and not run */
    enum status (*end)(void **graph, struct error *err);
    void (*cancel)(void); /* instead of end, after a failure */
    enum status (*replay)(void *graph, struct error *err);
    void (*release)(void *graph);
};

/* Collectives between devices without the host; each rank has a device of its own. A group has
 * several processes; all members make the same calls in the same order, in the queue of the ops.
 * The rules of train/comm/comm.h on in, out and order hold here, but the library chooses the order
 * of sums. */
enum { DEVICE_GROUP_ID_BYTES = 128 };
struct device_number {
    enum operand_type type;
    enum elem_type elem; /* of the program */
};
/* A message to another member, or from it. */
struct device_message {
    bool sends;
    unsigned peer;
    void *data;
    uint64_t bytes;
};
struct device_collectives {
    const char *name; /* "nccl" */
    /* ERR_UNSUPPORTED, with the reason, if the library is not there. */
    enum status (*available)(struct error *err);
    /* One member makes the id of a group, and all members open the group with it. */
    enum status (*new_id)(char id[DEVICE_GROUP_ID_BYTES], struct error *err);
    enum status (*open)(void **group, const char *id, unsigned size, unsigned index,
                        struct error *err);
    /* give_up: a member may have died. Then close all open groups in one call, since a collective
     * in one of them may wait for one in another. */
    void (*close)(void *const *groups, unsigned count, bool give_up);
    enum status (*all_reduce)(void *group, const void *in, void *out, uint64_t count,
                              struct device_number number, bool max, struct error *err);
    enum status (*all_gather)(void *group, const void *in, void *out, uint64_t bytes,
                              struct error *err);
    enum status (*reduce_scatter)(void *group, const void *in, void *out, uint64_t count,
                                  struct device_number number, struct error *err);
    enum status (*all_to_all)(void *group, unsigned size, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err);
    /* At once: no message waits for another. */
    enum status (*exchange)(void *group, const struct device_message *messages, unsigned count,
                            struct error *err);
    /* Whether the queue is empty; ERR_DEVICE if a member has died. Does not wait. */
    enum status (*done)(bool *done, struct error *err);
};

/* FNV-1a, by which identity() makes a number of a device's name. */
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
/* The threads on which this process's ops of the CPU run from now on. */
void cpu_use_threads(unsigned count);

/* The GPU, by libferry_cuda.so beside libferry_engine.so; ERR_DEVICE if there is no such library,
 * no driver or no GPU. */
MUST_CHECK enum status cuda_device_load(const struct device **out, struct error *err);
#define CUDA_DEVICE_SYMBOL "ferry_cuda_device" /* a const struct device * */

#ifdef __cplusplus
}
#endif

#endif
