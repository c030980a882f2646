/* fit.h - whether a model and its passes fit the memory of their ranks, and which layout would.
 *
 * What a rank takes is known before anything is allocated: parameters and caches, what each pass
 * has of inputs, outputs and activations, what rank 0 puts together of results, buffers of loading.
 */
#ifndef FERRY_TRAIN_MODEL_FIT_H
#define FERRY_TRAIN_MODEL_FIT_H

#include "train/model/model.h"

enum { FIT_MAX_RANKS = 64 };

/* What is to be held at once. */
struct fit {
    const struct model *model;
    const struct pass *const *passes;
    size_t num_passes;
    bool keeps_results; /* the visitor of pass_collect keeps a copy of each output */
    unsigned threads;   /* that load */
};

/* Bytes of one rank. Parameters and passes are memory of the device, all else of the host. */
struct fit_memory {
    uint64_t parameters; /* and caches */
    uint64_t passes;
    uint64_t results; /* pass_collect_bytes */
    uint64_t loading; /* for a while, before passes are allocated */
    /* What ranks talk through, and what of that others on this host have in theirs, too. */
    uint64_t talking, shared;
    /* The most at once: of the device, and of the host beside it. Where the device is the host,
     * `host` is 0. */
    uint64_t device, host;
    uint64_t program; /* what the process has already: the program and its libraries */
};

struct fit_memory fit_memory(const struct fit *f);
/* The same for people, without what passes consist of. */
void fit_print(const struct fit *f, struct strbuf *out);

struct fit_layout {
    struct group_sizes sizes;
    unsigned hosts; /* like this one, that it takes, where ranks share the devices of a host */
    uint64_t bytes; /* of its largest rank, on its device */
};

/* The layout of the fewest ranks, then of the fewest pipeline stages, then of the least memory,
 * whose largest rank gets what it needs; found by building the programs of its ranks. Context
 * parallelism, and data parallelism that was asked for, stay as they are; there are 1, 2, 4, ..
 * times as many ranks as these take; layers are cut evenly. false where none of up to
 * FIT_MAX_RANKS ranks fits. */
bool fit_search(const struct fit *f, struct fit_layout *out);

/* ERR_MEMORY, on all ranks and with one message, where a rank needs more than is free, of its
 * device or of its host: what it needs, what is free, and what fit_search found. Ranks of one
 * device have its memory together. To be called by all, before any of them allocates something. */
MUST_CHECK enum status fit_check(const struct fit *f, struct error *err);

#endif
