/* collectives.h - the collective calls of a program, and messages between programs, in one of three
 * ways.
 *
 *   host     values are in the host's memory, and the backend of comm/comm.h moves them
 *   staged   values are on a device; they go through a buffer of the host and the same backend.
 *            Ranks may share a device
 *   device   the device's library (kernels/device.h: NCCL) moves them, in the queue of the ops */
#ifndef FERRY_TRAIN_ENGINE_COLLECTIVES_H
#define FERRY_TRAIN_ENGINE_COLLECTIVES_H

#include "kernels/device.h"
#include "train/engine/groups.h"
#include "train/engine/program.h"

/* CHOOSE: the device's library, if there is one and each rank has a device of its own. */
enum collectives_way { COLLECTIVES_CHOOSE, COLLECTIVES_STAGED, COLLECTIVES_DEVICE };

struct collectives {
    struct groups *groups;
    const struct device *device;
    bool linked;                  /* the device's library is used */
    void *links[NUM_GROUP_KINDS]; /* the device's groups; NULL for groups of one rank */
    void *staging;
    uint64_t staging_bytes;
};

/* All ranks call it. ERR_UNSUPPORTED if the requested way is not possible; one rank alone can have
 * any. */
MUST_CHECK enum status collectives_open(struct collectives *c, struct groups *groups,
                                        const struct device *device, enum collectives_way way,
                                        struct error *err);
void collectives_close(struct collectives *c);
const char *
collectives_name(const struct collectives *c); /* "none", "local", "mpi", "staged", "nccl" */

/* Allocates the buffer for the program's staged collectives. */
MUST_CHECK enum status collectives_reserve(struct collectives *c, const struct program *p,
                                           struct error *err);

/* For messages of so many bytes together. */
MUST_CHECK enum status collectives_reserve_bytes(struct collectives *c, uint64_t bytes,
                                                 struct error *err);

/* Messages of a group that go on at the same time (comm.h), with data on the device; behind what is
 * queued. */
MUST_CHECK enum status collectives_exchange(struct collectives *c, enum group_kind kind,
                                            const struct comm_message *messages, unsigned count,
                                            struct error *err);

/* in[2], out[2]: operands of a call whose op is one of COLLECTIVES. */
MUST_CHECK enum status collectives_run(struct collectives *c, const struct program *p,
                                       const struct call *call, const struct operand *in,
                                       const struct operand *out, struct error *err);

/* Whether the call waits for the host, so that it cannot be in a graph. */
bool collectives_wait_for_host(const struct collectives *c, const struct call *call);

/* Waits until the device's queue is empty; ERR_RANK if a rank has failed. */
MUST_CHECK enum status collectives_finish(struct collectives *c, struct error *err);

#endif
