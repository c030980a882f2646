/* load.h - tensors of a catalog into memory: those parts of them that this process holds.
 *
 * A plan whose files are memory: each target says which elements of a logical tensor are which
 * elements of an array, and the dtype of the array. The executor reads what any target wants, casts
 * it and puts it there. What nobody wants is not read, but for gaps of a few kilobytes, and
 * for what lies between the first and the last element of targets that overlap in a tensor. */
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
    /* Bytes resident, of the whole process but for pages of targets that are not resident when it
     * begins; 0: no limit. */
    uint64_t max_memory;
    enum progress_style progress;
    const char *what; /* that progress shows; NULL: "loading" */
};

struct load_result {
    uint64_t read_bytes, loaded_bytes; /* from files; into memory */
};

/* Bytes that load_run allocates for a while, where o sets no limit. */
MUST_CHECK enum status load_own_bytes(const struct load_target *targets, size_t num_targets,
                                      const struct load_options *o, uint64_t *bytes,
                                      struct error *err);

/* Fills all targets, in any order; several may be of one tensor, and may overlap in it, but not in
 * memory. ERR_UNSUPPORTED where a cast does not exist; ERR_CORRUPT where a tensor that is wanted,
 * be it in part, is not stored whole. Messages name the tensor. What memory holds after a failure
 * is not told. */
MUST_CHECK enum status load_run(const struct catalog *c, const struct load_target *targets,
                                size_t num_targets, const struct load_options *o,
                                struct load_result *result, struct error *err);

#endif
