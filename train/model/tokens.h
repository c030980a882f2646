/* tokens.h - the tokens of a rank, and their attention to each other.
 *
 * A batch has sequences of one length, dealt to data-parallel ranks in runs
 * (unless dealt already). Each sequence is cut into 2 CP chunks;
 * context-parallel rank r has chunks r and 2 CP - 1 - r, so all ranks have the
 * same number of pairs under a causal mask. Other sizes are filled up:
 * sequences by copies of the last one, positions and rows by tokens whose
 * results are dropped.
 *
 * A rank's tokens are *rows*: sequence by sequence, the first chunk, then the
 * second. */
#ifndef FERRY_TRAIN_MODEL_TOKENS_H
#define FERRY_TRAIN_MODEL_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "train/engine/groups.h"

/* Most rows of a rank: ops number them by int32, and round up. */
#define MAX_ROWS ((uint64_t)INT32_MAX / 2)

struct batch {
    uint64_t num_sequences, length;
    bool is_dealt;          /* all are one data parallel rank's: other ranks have other batches */
    const int32_t *ids;     /* [num_sequences, length]; NULL: set in another way */
    const char *path;       /* file of the ids, for messages; NULL: none */
    const int32_t *targets; /* the same, negative for none; NULL: no targets */
    /* starts[s * length + i] is true at a document's first token. A token
     * attends to its own document, and its position counts from there. NULL:
     * sequences are documents. */
    const bool *starts;
    /* For training. positions: [num_sequences, length]; NULL: counted from the
     * document's start. weights: of each token's loss; NULL: none. samples:
     * number of each sequence in the run; NULL: none. */
    const int32_t *positions;
    const double *weights;
    const uint64_t *samples;
    /* Documents may begin anywhere, in every batch elsewhere: `starts` is not
     * part of the shape. */
    bool any_starts;
    /* For passes with a cache, for each sequence: its tokens in ids, before
     * filler (NULL: `length`); its positions in the cache (NULL: none). */
    const uint64_t *lengths, *past;
    uint64_t counter; /* OP_SAMPLE's counter for the first sequence; one more for each next one */
};

/* Rows of a rank; equal on all ranks. */
struct token_shape {
    uint64_t sequences;  /* of one data-parallel rank */
    uint64_t chunk;      /* positions of a chunk; with CP 1 of the sequence */
    uint64_t rows;       /* sequences * chunk * (1 or 2), rounded up to `multiple` */
    uint64_t num_spans;  /* most spans of a table, with its end */
    unsigned num_chunks; /* 1, or 2 * CP */
    /* `sequences` if CP is 1 and, on every rank, all rows are tokens and each
     * sequence is one document with one span; else 0. */
    uint32_t uniform_sequences;
};

struct token_shape tokens_shape(const struct batch *b, const struct group_sizes *s,
                                uint64_t multiple);

/* First sequence of the batch on the rank at `at`. */
uint64_t tokens_first_sequence(const struct batch *b, const struct group_place *at,
                               const struct token_shape *shape);

/* Place of a row in the batch; filler: sequence UINT64_MAX. */
struct token_origin {
    uint64_t sequence, position;
};

struct tokens {
    struct token_shape shape;
    int32_t *ids, *positions, *targets; /* [rows] */
    double *weights;                    /* [rows]; 0 for filler */
    int32_t *numbers; /* [rows, 2] number of each token in the run: low word, high word */
    /* Rows sorted by id and by position, NULL without weights: [rows]; the
     * last: the tensor parallel rank's slice, counted from its first row. */
    int32_t *id_order, *position_order, *slice_position_order;
    struct token_origin *origins; /* [rows] */
    /* Spans (kernels/op_list.h) of this rank's queries with keys of: */
    int32_t **
        spans; /* [CP][num_spans][6]: step i, the keys of the rank i places before it in the ring */
    int32_t *all_spans; /* [num_spans][6]: the keys of all ranks, gathered in their order */
};

/* Makes the tokens of the rank at `at`, in arena a. */
void tokens_make(struct tokens *t, struct arena *a, const struct batch *b,
                 const struct group_sizes *s, const struct group_place *at, uint64_t multiple);

/* Origins of the rows of the rank at `at`, for rank 0 to gather results. */
struct token_origin *tokens_origins(struct arena *a, const struct batch *b,
                                    const struct group_place *at, const struct token_shape *shape);

#endif
