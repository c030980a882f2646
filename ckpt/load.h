/* load.h - loads parts of a catalog's tensors into arrays of this process.
 *
 * A target maps elements of a logical tensor to elements of an array and gives
 * the array's dtype. load_run() makes a plan of arrays and runs it. It reads
 * elements without a target in two cases:
 *
 * - gaps of a few kilobytes;
 * - all elements between the first and the last of targets that overlap in a
 *   tensor. */
#ifndef FERRY_CKPT_LOAD_H
#define FERRY_CKPT_LOAD_H

#include "ckpt/catalog.h"
#include "common/progress.h"

struct load_target {
    const struct tensor *tensor;
    struct pair part; /* a: flat in the logical tensor; b: element of `memory`; see pair_nest */
    enum dtype dtype; /* of memory; F16, BF16, F32, F64 into one another, else the tensor's */
    void *memory;
};

struct load_options {
    unsigned threads; /* 0: as many as there are CPUs */
    /* Resident bytes of the whole process, without pages of targets that become
     * resident in the run; 0: no limit. */
    uint64_t max_memory;
    enum progress_style progress;
    const char *what;       /* title of the progress bar; NULL: "loading" */
    struct progress *shown; /* of several runs together, the caller's; NULL: each has its own */
};

/* The title of the progress bar. */
const char *load_what(const struct load_options *o);

struct load_result {
    uint64_t read_bytes, loaded_bytes; /* from files; into memory */
};

/* Bytes that load_run allocates until it ends, without a memory limit. */
MUST_CHECK enum status load_own_bytes(const struct load_target *targets, size_t num_targets,
                                      const struct load_options *o, uint64_t *bytes,
                                      struct error *err);

/* Fills all targets, in any order. Targets of one tensor may overlap in it, but
 * not in memory. After a failure memory is undefined. Messages name the tensor:
 *
 * - ERR_UNSUPPORTED if a cast does not exist;
 * - ERR_CORRUPT if a target's tensor is incomplete, even if the target needs
 *   only a part. */
MUST_CHECK enum status load_run(const struct catalog *c, const struct load_target *targets,
                                size_t num_targets, const struct load_options *o,
                                struct load_result *result, struct error *err);

#endif
