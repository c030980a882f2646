/* panel.h - reads a run of a logical tensor's elements from its pieces.
 *
 * All tensor bytes are read here: by scans panel by panel, and by callers that need a few elements.
 */
#ifndef FERRY_CKPT_PANEL_H
#define FERRY_CKPT_PANEL_H

#include "ckpt/block.h"
#include "ckpt/catalog.h"

struct panel_reader {
    struct stored_reader *reader; /* the caller's, shared by threads */
    uint64_t buffer_bytes;
    char *temp; /* [buffer_bytes] for reads that do not go directly to the panel */
    char *cast; /* [buffer_bytes] for pieces of another dtype than their tensor's; else unused */
    uint64_t read_bytes;      /* counted up */
    struct cast_counts casts; /* to the tensors' dtypes, counted up */
};

/* Reads elements [low, low + count) of t to the panel, in their order and in t's dtype; elements of
 * holes are 0. buffer_bytes holds count elements of t and of each of its pieces. ERR_UNSUPPORTED if
 * elements have no whole bytes. */
MUST_CHECK enum status panel_read(struct panel_reader *r, const struct tensor *t, uint64_t low,
                                  uint64_t count, void *panel, struct error *err);

/* Reads only the elements that parts[] have (a: flat in t and nested; b is ignored), each to its
 * place in the panel. The rest of the panel is undefined: gaps in a file are read too where one
 * larger read is cheaper than several. */
MUST_CHECK enum status panel_read_parts(struct panel_reader *r, const struct tensor *t,
                                        uint64_t low, uint64_t count, const struct pair *parts,
                                        size_t num_parts, void *panel, struct error *err);

/* Reads the first `count` elements of t as numbers: a few megabytes of tokens or results. */
MUST_CHECK enum status panel_read_numbers(const struct catalog *c, const struct tensor *t,
                                          uint64_t count, double *values, struct error *err);

/* Whether pieces are stored in another dtype than the tensor's. */
bool tensor_is_mixed(const struct tensor *t);
/* Whether the tensor is a hole: it has no stored bytes. */
bool tensor_is_hole(const struct tensor *t);
/* ERR_UNSUPPORTED if panels of the tensor cannot be read and cast to a dtype. */
MUST_CHECK enum status tensor_check_cast(const struct tensor *t, enum dtype to, struct error *err);

#endif
