/* device.h - where the values of a program lie, and who computes with them: the host's CPU, or a
 * GPU. One table of functions each; a process uses one device.
 *
 * Calls of ops are put in a queue and carried out in order; upload, download and copy are in the
 * same queue. An upload has read its source when it returns, a download has happened. A failure of
 * a kernel may be told by a later call (ERR_DEVICE), at the latest by synchronize. */
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
    /* A number that no other device of a job has. The CPUs of a host are one device. */
    enum status (*identity)(uint64_t *id, struct error *err);
    /* What each of so many ranks of this host can have, if all have none yet: they take its devices
     * in turn, as open does. UINT64_MAX where nobody knows. */
    enum status (*free_memory)(unsigned ranks, uint64_t *bytes, struct error *err);
    enum status (*upload)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*download)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*copy)(void *to, const void *from, uint64_t bytes, struct error *err);
    enum status (*synchronize)(struct error *err);
    /* [NUM_OPS]; run is NULL where it has none. */
    const struct op_kernel *(*ops)(enum elem_type elem);
    /* The kernels that an op chooses from, behind the last a row without a name. NULL: none. */
    const struct device_kernel *(*kernels)(unsigned op);
    const char *(*describe)(void); /* "NVIDIA H200, 141 GB", for people */
    const struct device_timers *timers;
    const struct device_graphs *graphs;           /* NULL: each call is made when it is asked for */
    const struct device_collectives *collectives; /* NULL: ranks talk through the host's memory */
};

/* One of several kernels for an op, by name: for who compares them. */
struct device_kernel {
    const char *name; /* "few_rows"; names that end in _sm90 are for compute capability 9.0 alone */
    enum elem_type elem;
    /* Whether it is there and can do this. Its workspace was asked for before. */
    bool (*takes)(const union op_params *p, const struct operand *in, const struct operand *out);
    struct op_kernel kernel;
};

/* Marks in the queue. A mark is reached when all that was queued before it is done. The time from
 * one mark to another is the device's: the host need not wait for either. Where the device waited
 * for the host in between, that counts. Marks are not for graphs. */
struct device_timers {
    enum status (*create)(void **timer, size_t num_marks, struct error *err);
    void (*free)(void *timer);
    /* Puts a mark into the queue. Marks count from 0; each may be put there again. */
    enum status (*mark)(void *timer, size_t mark, struct error *err);
    /* From one mark to another. Both must have been reached: synchronize first. */
    enum status (*seconds)(void *timer, size_t from, size_t to, double *seconds, struct error *err);
};

/* Ops, copies and collectives of the device that were queued once, to be queued again as one: with
 * the same operands, which may hold other numbers. Upload, download and synchronize are not for
 * graphs. Each op is to have run once before: it may choose its kernel, or ask for room, then. */
struct device_graphs {
    enum status (*begin)(struct error *err); /* what is queued now is recorded, and not done */
    enum status (*end)(void **graph, struct error *err);
    void (*cancel)(void); /* in place of end, after a failure */
    enum status (*replay)(void *graph, struct error *err);
    void (*release)(void *graph);
};

/* Ranks whose devices talk without the host, each with a device of its own. A group is of several
 * processes; all members make the same calls in the same order, in the queue of the ops. What
 * train/comm/comm.h says of in, out and orders holds here; sums are in the order that the library
 * has. */
enum { DEVICE_GROUP_ID_BYTES = 128 };
struct device_number {
    enum operand_type type;
    enum elem_type elem; /* of the program */
};
struct device_collectives {
    const char *name; /* "nccl" */
    /* ERR_UNSUPPORTED, with the reason, where the library is not here. */
    enum status (*available)(struct error *err);
    /* By one member, for all to open with; each group has one of its own. */
    enum status (*new_id)(char id[DEVICE_GROUP_ID_BYTES], struct error *err);
    enum status (*open)(void **group, const char *id, unsigned size, unsigned index,
                        struct error *err);
    /* give_up: a member may be gone. Then all that are open are to be closed at once: what is under
     * way in one waits for those that are under way in others. */
    void (*close)(void *const *groups, unsigned count, bool give_up);
    enum status (*all_reduce)(void *group, const void *in, void *out, uint64_t count,
                              struct device_number number, bool max, struct error *err);
    enum status (*all_gather)(void *group, const void *in, void *out, uint64_t bytes,
                              struct error *err);
    enum status (*reduce_scatter)(void *group, const void *in, void *out, uint64_t count,
                                  struct device_number number, struct error *err);
    enum status (*all_to_all)(void *group, unsigned size, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err);
    enum status (*send)(void *group, unsigned to, const void *data, uint64_t bytes,
                        struct error *err);
    enum status (*receive)(void *group, unsigned from, void *data, uint64_t bytes,
                           struct error *err);
    /* The two at once. */
    enum status (*exchange)(void *group, unsigned to, const void *in, unsigned from, void *out,
                            uint64_t bytes, struct error *err);
    /* Whether all that is queued is done; ERR_DEVICE where a member is gone. Does not wait. */
    enum status (*done)(bool *done, struct error *err);
};

/* FNV-1a: what identity() makes of a name or a number of the device. */
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

/* The GPU's, from libferry_cuda.so beside libferry_engine.so; ERR_DEVICE where there is no such
 * library, no driver or no GPU. */
MUST_CHECK enum status cuda_device_load(const struct device **out, struct error *err);
#define CUDA_DEVICE_SYMBOL "ferry_cuda_device" /* a const struct device * */

#ifdef __cplusplus
}
#endif

#endif
