/* dcp_numbered.h - names for parameters that the states of a DCP folder number:
 *
 *   dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
 *
 * has "optimizer", "state", NUMBER, STATE, as torch.optim counts them. No file
 * names them, and .metadata lists tensors rank by rank: those of rank 0 in the
 * order of its state dict, then those that other ranks alone have a part of
 * (torch/distributed/checkpoint/default_planner.py). So numbers are named
 *
 * - by the rule of convert/numbered.h if one rank has a part of every parameter;
 * - else, of one group, if states and parameters lie alike: the k-th parameter
 *   and the k-th number have equal shapes, cut alike, on the same ranks. */
#ifndef FERRY_CONVERT_DCP_NUMBERED_H
#define FERRY_CONVERT_DCP_NUMBERED_H

#include "convert/dcp/dcp_entry.h"
#include "formats/stored.h"

struct dcp_numbers {
    const char **names; /* [count] by number; NULL: without states */
    size_t count;       /* 0: states have names */
};

/* How many numbers states have: the highest plus 1; 0: they have names.
 * entries: [stored.num_tensors]. */
size_t dcp_numbers_count(const struct stored *s, const struct dcp_entry *entries);
/* Names numbers; below: the subtree of the model; group_of: [count], plus 1; NULL:
 * they are in one group. In arena a. Returns NULL, or why numbers cannot be named;
 * then *out has none. */
const char *dcp_numbers_name(struct arena *a, const struct stored *s,
                             const struct dcp_entry *entries, const char *below,
                             const size_t *group_of, size_t count, struct dcp_numbers *out);
/* Replaces numbers in entries of states by names. */
void dcp_numbers_replace(const struct dcp_numbers *n, struct dcp_entry *entries, size_t count);

#endif
