/* fit.h - whether a model and its passes fit the memory of their ranks, and which layout would.
 *
 * The memory of a rank is known before anything is allocated: parameters and caches; inputs,
 * outputs and activations of each pass; results that rank 0 puts together; buffers for loading.
 */
#ifndef FERRY_TRAIN_MODEL_FIT_H
#define FERRY_TRAIN_MODEL_FIT_H

#include "train/model/model.h"

enum { FIT_MAX_RANKS = 64 };

/* A model and the passes that are in memory at once. */
struct fit {
    const struct model *model;
    const struct pass *const *passes;
    size_t num_passes;
    struct pass_taking taking; /* how the visitor of pass_collect takes outputs */
    unsigned threads;          /* that load */
};

/* Bytes of one rank. Parameters and passes are memory of the device, all else of the host. */
struct fit_memory {
    uint64_t parameters; /* and caches */
    uint64_t passes;
    uint64_t results; /* pass_collect_bytes */
    uint64_t loading; /* until passes are allocated */
    /* Memory for communication; the part of it that other ranks of this host count, too. */
    uint64_t talking, shared;
    /* Peaks: of the device; of the host, which is 0 if the device is the host. */
    uint64_t device, host;
    uint64_t program; /* resident already: the program and its libraries */
};

struct fit_memory fit_memory(const struct fit *f);
/* The same as text, without the parts of passes. */
void fit_print(const struct fit *f, struct strbuf *out);

struct fit_layout {
    struct group_sizes sizes;
    unsigned hosts; /* that it needs, each with as many devices as this one */
    uint64_t bytes; /* of its largest rank, on its device */
};

/* Finds a layout that fits: with the fewest ranks, then the fewest pipeline stages, then the least
 * memory. It builds the programs of all ranks of each candidate. CP and a given DP stay; the number
 * of ranks is CP * DP times 1, 2, 4, ..; layers are split evenly. false if no layout of up to
 * FIT_MAX_RANKS ranks fits. */
bool fit_search(const struct fit *f, struct fit_layout *out);

/* ERR_MEMORY, on all ranks and with one message, if a rank needs more than is free on its device or
 * its host. The message has both numbers and the layout of fit_search(). Ranks with the same device
 * share its memory. All ranks call it, before any of them allocates memory. */
MUST_CHECK enum status fit_check(const struct fit *f, struct error *err);

#endif
