/* collectives.h - collective calls of a program, and messages between programs.
 * Three ways:
 *
 *   host     values are in host memory; the backend of comm/comm.h moves them
 *   staged   values are on a device; they go through a host buffer and the same
 *            backend. Ranks may share a device
 *   device   the device's library (kernels/device.h: NCCL) moves them, in the
 *            queue of the ops */
#ifndef FERRY_TRAIN_ENGINE_COLLECTIVES_H
#define FERRY_TRAIN_ENGINE_COLLECTIVES_H

#include "kernels/device.h"
#include "train/engine/groups.h"
#include "train/engine/program.h"

/* CHOOSE: the device's library if there is one and no ranks share a device. */
enum collectives_way { COLLECTIVES_CHOOSE, COLLECTIVES_STAGED, COLLECTIVES_DEVICE };

struct collectives {
    struct groups *groups;
    const struct device *device;
    bool linked;                  /* the device's library is used */
    void *links[NUM_GROUP_KINDS]; /* the device's groups; NULL for groups of one rank */
    void *staging;
    uint64_t staging_bytes;
};

/* Collective. ERR_UNSUPPORTED if the requested way is not possible; a single
 * rank accepts any. */
MUST_CHECK enum status collectives_open(struct collectives *c, struct groups *groups,
                                        const struct device *device, enum collectives_way way,
                                        struct error *err);
void collectives_close(struct collectives *c);
const char *
collectives_name(const struct collectives *c); /* "none", "local", "mpi", "staged", "nccl" */

/* Allocates the buffer for a program's staged collectives. */
MUST_CHECK enum status collectives_reserve(struct collectives *c, const struct program *p,
                                           struct error *err);

/* The same for messages of this total size. */
MUST_CHECK enum status collectives_reserve_bytes(struct collectives *c, uint64_t bytes,
                                                 struct error *err);

/* Exchanges messages of a group (comm.h) with data on the device, behind the
 * queued calls. */
MUST_CHECK enum status collectives_exchange(struct collectives *c, enum group_kind kind,
                                            const struct comm_message *messages, unsigned count,
                                            struct error *err);

/* Runs a call whose op is one of COLLECTIVES. in[2], out[2]: its operands. */
MUST_CHECK enum status collectives_run(struct collectives *c, const struct program *p,
                                       const struct call *call, const struct operand *in,
                                       const struct operand *out, struct error *err);

/* Whether the call waits for the host: then no graph can hold it. */
bool collectives_wait_for_host(const struct collectives *c, const struct call *call);

/* Waits until the device's queue is empty; ERR_RANK if a rank has failed. */
MUST_CHECK enum status collectives_finish(struct collectives *c, struct error *err);

#endif
