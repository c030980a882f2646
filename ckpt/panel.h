/* panel.h - a run of a logical tensor's elements, read from wherever its pieces lie.
 *
 * This is how tensor bytes come into memory: for the executor panel by panel, for who wants to look
 * at a few elements, and for a program that loads its parameters. */
#ifndef FERRY_CKPT_PANEL_H
#define FERRY_CKPT_PANEL_H

#include "ckpt/block.h"
#include "ckpt/catalog.h"

struct panel_reader {
    struct stored_reader *reader; /* the caller's, shared by threads */
    uint64_t buffer_bytes;
    char *temp; /* [buffer_bytes] for what is not read directly */
    char *cast; /* [buffer_bytes] for pieces of another dtype than their tensor's; else unused */
    uint64_t read_bytes;      /* counted up */
    struct cast_counts casts; /* to the tensors' dtypes, counted up */
};

/* Elements [low, low + count) of t in their order to panel, in t's dtype; what a hole has is zero.
 * buffer_bytes is at least count elements of t or of its pieces. ERR_UNSUPPORTED where elements
 * have no whole bytes. */
MUST_CHECK enum status panel_read(struct panel_reader *r, const struct tensor *t, uint64_t low,
                                  uint64_t count, void *panel, struct error *err);

/* Those of them that parts[] have (a: flat in t and nested; b is not looked at), each at its place
 * in the panel, which holds nothing of use between them. What lies between them in a file is read
 * where that is cheaper than to pass it by. */
MUST_CHECK enum status panel_read_parts(struct panel_reader *r, const struct tensor *t,
                                        uint64_t low, uint64_t count, const struct pair *parts,
                                        size_t num_parts, void *panel, struct error *err);

/* The first `count` elements of t as numbers. For a few megabytes: tokens, results, tests. */
MUST_CHECK enum status panel_read_numbers(const struct catalog *c, const struct tensor *t,
                                          uint64_t count, double *values, struct error *err);

/* Whether parts of the tensor are stored in another dtype than it has. */
bool tensor_is_mixed(const struct tensor *t);
/* Whether it has no bytes at all. */
bool tensor_is_hole(const struct tensor *t);
/* Whether panels of it can be read and then cast to a dtype: ERR_UNSUPPORTED where they cannot. */
MUST_CHECK enum status tensor_check_cast(const struct tensor *t, enum dtype to, struct error *err);

#endif
