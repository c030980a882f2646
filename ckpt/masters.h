/* masters.h - whether weights are what their master weights round to.
 *
 * Every optimizer of mixed precision updates the master weight and rounds it to the weight. So a
 * weight that differs from its rounded master shows that one of them is not what it was taken for:
 * the witness where a format does not say which elements are which parameter's. */
#ifndef FERRY_CKPT_MASTERS_H
#define FERRY_CKPT_MASTERS_H

#include "ckpt/catalog.h"

struct masters_options {
    bool all;            /* all elements; else a few hundred of each parameter */
    unsigned threads;    /* 0: as many as there are CPUs */
    uint64_t max_memory; /* of the whole process, in bytes; 0: no limit */
};

struct masters_result {
    size_t compared, differ; /* parameters */
    const char *first; /* the logical name of the first that differs, in the catalog's order */
    uint64_t at;       /* its first element that differs */
};

/* Compares each parameter that has a master of its own (optimizer.param.NAME) with it. */
MUST_CHECK enum status masters_compare(const struct catalog *c, const struct masters_options *o,
                                       struct masters_result *out, struct error *err);

#endif
