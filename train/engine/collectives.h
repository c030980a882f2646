/* collectives.h - the collective calls of a program, done in one of three ways.
 *
 *   host     values are in the host's memory, and the backend of comm/comm.h moves them
 *   staged   values are on a device, and go through a buffer of the host and the same backend;
 * ranks may share one device device   the device's own library (kernels/device.h: NCCL) moves them,
 * in the queue of the ops
 */
#ifndef FERRY_TRAIN_ENGINE_COLLECTIVES_H
#define FERRY_TRAIN_ENGINE_COLLECTIVES_H

#include "kernels/device.h"
#include "train/engine/groups.h"
#include "train/engine/program.h"

/* CHOOSE: the device's own where there is one and no two ranks have the same device. */
enum collectives_way { COLLECTIVES_CHOOSE, COLLECTIVES_STAGED, COLLECTIVES_DEVICE };

struct collectives {
    struct groups *groups;
    const struct device *device;
    bool linked;                  /* by the device */
    void *links[NUM_GROUP_KINDS]; /* the device's groups; NULL for groups of one rank */
    void *staging;
    uint64_t staging_bytes;
};

/* All ranks call it. ERR_UNSUPPORTED where it cannot be the way that is asked for; with one
 * rank any way will do. */
MUST_CHECK enum status collectives_open(struct collectives *c, struct groups *groups,
                                        const struct device *device, enum collectives_way way,
                                        struct error *err);
void collectives_close(struct collectives *c);
const char *
collectives_name(const struct collectives *c); /* "none", "local", "mpi", "staged", "nccl" */

/* Room for what the program's collectives stage. */
MUST_CHECK enum status collectives_reserve(struct collectives *c, const struct program *p,
                                           struct error *err);

/* in[2], out[2]: operands of a call whose op is one of COLLECTIVES. */
MUST_CHECK enum status collectives_run(struct collectives *c, const struct program *p,
                                       const struct call *call, const struct operand *in,
                                       const struct operand *out, struct error *err);

/* Whether the call waits for the host: such a call is in no graph. */
bool collectives_wait_for_host(const struct collectives *c, const struct call *call);

/* Waits until all that the device has in its queue is done; ERR_RANK where a rank that it waits for
 * has failed. */
MUST_CHECK enum status collectives_finish(struct collectives *c, struct error *err);

#endif
