/* origin.h - where the elements of a piece come from: a table with a row for
 * each origin.
 *
 * A row has the function that puts a block of a piece's elements into a buffer,
 * and a few facts. A new origin is a row here, a function in origin.c and a
 * case in testing_source.h. */
#ifndef FERRY_CKPT_ORIGIN_H
#define FERRY_CKPT_ORIGIN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/status.h"

struct block;
struct panel_reader;
struct piece;

/* Fingerprints of plans contain these numbers: add new ones at the end. */
enum origin_id {
    ORIGIN_STORED,        /* bytes of a file */
    ORIGIN_ZERO,          /* elements of value 0: new rows */
    ORIGIN_RANDOM,        /* numbers about 0, made from a seed (ferry synth) */
    ORIGIN_RANDOM_ONE,    /* numbers about 1 */
    ORIGIN_HOLE,          /* no bytes at all: a sparse file (ferry synth --sparse) */
    ORIGIN_MEMORY,        /* an array in this or another rank's process */
    ORIGIN_RANDOM_SQUARE, /* squares of the numbers about 0 */
    ORIGIN_HALVES,        /* F32 in two tensors: BF16 and remainders */
    ORIGIN_ENCODED,       /* codes and scales (encoding.h) */
    ORIGIN_CODES,         /* codes of a weight (encoder.h) */
    ORIGIN_SCALES,        /* scales of a weight */
    ORIGIN_GLOBAL_SCALE,  /* one F32 */
    NUM_ORIGINS
};

/* A read of a piece's elements. */
struct fetching {
    struct panel_reader *reader; /* files, buffers, counts */
    const struct piece *piece;
    enum dtype dtype; /* of fetched elements */
    char *buffer;
};

struct origin {
    bool is_stored; /* bytes of a file of the catalog */
    bool has_dtype; /* fetched in the piece's dtype; else in the tensor's */
    bool is_memory; /* in one rank's process, which writes it */
    bool is_hole;   /* never read or written; its tensor has no other piece */
    bool is_joined; /* of other tensors, and read through panel_reader.cast */
    /* Puts the elements of a block (a: the piece, from element `from`; b: the
     * buffer, from element `to`) into the buffer. NULL: all are zero. */
    enum status (*fetch)(const struct fetching *f, const struct block *b, uint64_t from,
                         uint64_t to, struct error *err);
};

const struct origin *piece_origin(const struct piece *piece);
/* The dtype of a piece's fetched elements, if its tensor has tensor_dtype. */
enum dtype piece_dtype(const struct piece *piece, enum dtype tensor_dtype);

#endif
