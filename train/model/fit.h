/* fit.h - whether a model and its passes fit the memory of their ranks, and
 * which layout would.
 *
 * The memory of a rank is known before any allocation: parameters and caches;
 * inputs, outputs and activations of each pass; results gathered on rank 0;
 * buffers for loading. */
#ifndef FERRY_TRAIN_MODEL_FIT_H
#define FERRY_TRAIN_MODEL_FIT_H

#include "train/model/coded.h"
#include "train/model/model.h"

enum { FIT_MAX_RANKS = 64 };

/* A model and the passes in memory at once. */
struct fit {
    const struct model *model;
    const struct pass *const *passes;
    size_t num_passes;
    struct pass_taking taking; /* of pass_collect's visitor */
    unsigned threads;          /* number of loading threads */
};

/* Bytes of one rank. Parameters and passes: memory of the device; the rest: of
 * the host. */
struct fit_memory {
    uint64_t parameters; /* and caches */
    uint64_t passes;
    uint64_t results; /* pass_collect_bytes */
    uint64_t loading; /* before passes are allocated */
    /* Communication buffers; the part that other ranks of this host count, too. */
    uint64_t talking, shared;
    /* Peaks: of the device; of the host, 0 if it is the device. */
    uint64_t device, host;
    uint64_t program;           /* already resident: program and libraries */
    struct coded_summary coded; /* part of `parameters` */
};

struct fit_memory fit_memory(const struct fit *f);
/* Appends it as text, without the parts of passes. */
void fit_print(const struct fit *f, struct strbuf *out);

struct fit_layout {
    struct group_sizes sizes;
    unsigned hosts; /* hosts needed, each with as many devices as this one */
    uint64_t bytes; /* of the largest rank, on its device */
};

/* Finds a fitting layout with the fewest ranks, then the fewest pipeline
 * stages, then the least memory. It builds the programs of a rank of the first,
 * second and last stage of each candidate. CP and a given DP stay; the number
 * of ranks is CP * DP times 1, 2, 4, ..; layers are split evenly. false if no
 * layout of up to FIT_MAX_RANKS ranks fits. */
bool fit_search(const struct fit *f, struct fit_layout *out);

/* Collective, before any rank allocates memory. ERR_MEMORY, with one message on
 * all ranks, if a rank needs more than is free on its device or host. The
 * message has both numbers and the layout of fit_search(). Ranks on one device
 * share its memory. */
MUST_CHECK enum status fit_check(const struct fit *f, struct error *err);

#endif
