/* masters.h - compares weights with their rounded master weights.
 *
 * Every optimizer of mixed precision updates the master and rounds it to the
 * weight: to nearest, and halfway between two to even or up. A weight that
 * differs from its rounded master proves that one of them was read wrongly: the
 * check of formats that do not assign elements to parameters. */
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
    const char *first;       /* logical name of the first that differs, in the catalog's order */
    uint64_t at;             /* its first differing element */
};

/* Compares each parameter that has a separate master (optimizer.param.NAME)
 * with it; not those joined with their weights (catalog.h), which round to
 * these whatever they are. */
MUST_CHECK enum status masters_compare(const struct catalog *c, const struct masters_options *o,
                                       struct masters_result *out, struct error *err);

#endif
