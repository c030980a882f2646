/* panel.h - reads a run of a logical tensor's elements from its pieces.
 *
 * All tensor bytes are read here: panel by panel by scans, a few by other
 * callers. */
#ifndef FERRY_CKPT_PANEL_H
#define FERRY_CKPT_PANEL_H

#include "ckpt/block.h"
#include "ckpt/catalog.h"

struct panel_reader {
    struct stored_reader *reader; /* the caller's, shared by threads */
    uint64_t buffer_bytes;
    char *temp; /* [buffer_bytes] for reads that do not go directly to the panel */
    char *cast; /* [buffer_bytes] for tensors that tensor_takes_cast() names; else may be NULL */
    uint64_t read_bytes;      /* increased */
    struct cast_counts casts; /* to the tensors' dtypes; increased */
};

/* Reads elements [low, low + count) of t to the panel, in order and in t's
 * dtype; holes are 0. buffer_bytes must hold count elements of t and of each of
 * its pieces. A panel begins and ends at whole blocks of the dtype;
 * ERR_UNSUPPORTED if pieces do not. */
MUST_CHECK enum status panel_read(struct panel_reader *r, const struct tensor *t, uint64_t low,
                                  uint64_t count, void *panel, struct error *err);

/* Reads only the elements of parts[] (a: flat in t and nested; b is ignored),
 * each to its place in the panel. The rest of the panel is undefined: gaps in a
 * file are read too if one larger read is cheaper than several. */
MUST_CHECK enum status panel_read_parts(struct panel_reader *r, const struct tensor *t,
                                        uint64_t low, uint64_t count, const struct pair *parts,
                                        size_t num_parts, void *panel, struct error *err);

/* Sets *out to the first of `from`, F32 and F64 that holds all elements of a
 * tensor, plus a number, exactly; F64 if none does. Reads them. */
MUST_CHECK enum status panel_exact_dtype(const struct catalog *c, const struct tensor *t,
                                         double add, enum dtype from, enum dtype *out,
                                         struct error *err);
/* Reads the first `count` elements of t as numbers: a few megabytes of tokens
 * or results. */
MUST_CHECK enum status panel_read_numbers(const struct catalog *c, const struct tensor *t,
                                          uint64_t count, double *values, struct error *err);

/* Whether pieces have another dtype than the tensor, or are joined. */
bool tensor_takes_cast(const struct tensor *t);
/* Whether the tensor is a hole, without stored bytes. */
bool tensor_is_hole(const struct tensor *t);
/* ERR_UNSUPPORTED if panels of the tensor cannot be read and cast to a dtype. */
MUST_CHECK enum status tensor_check_cast(const struct tensor *t, enum dtype to, struct error *err);

#endif
