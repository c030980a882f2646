/* tokens.h - the tokens of a rank, and which of them attend to which.
 *
 * A batch is sequences of one length. Sequences are dealt to data-parallel ranks in runs, unless
 * they are already; each sequence is cut into 2 CP chunks, of which context-parallel rank r has
 * chunks r and 2 CP - 1 - r, so that all have the same number of pairs under a causal mask. Sizes
 * that do not divide are filled up: sequences by copies of the last one, positions and rows by
 * tokens whose results are dropped.
 *
 * A rank's tokens are *rows*: sequence by sequence, in each the first chunk, then the second. */
#ifndef FERRY_TRAIN_MODEL_TOKENS_H
#define FERRY_TRAIN_MODEL_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "train/engine/groups.h"

/* Rows of a rank at most: ops number them by int32, and round them up. */
#define MAX_ROWS ((uint64_t)INT32_MAX / 2)

struct batch {
    uint64_t num_sequences, length;
    bool is_dealt;          /* these are one data parallel rank's: others have other batches */
    const int32_t *ids;     /* [num_sequences, length]; NULL: they are set in another way */
    const char *path;       /* of the file of the ids, for messages; NULL: none */
    const int32_t *targets; /* the same, negative where there is none; NULL: none at all */
    /* starts[s * length + i] is true at the first token of a document. A token attends to its own
     * document only, and its position counts from the document's start. NULL: a sequence is one. */
    const bool *starts;
    /* For training. positions: of each token, [num_sequences, length]; NULL: they count from the
     * document's start. weights: what the loss of each token counts; NULL: there are none. samples:
     * the number of each sequence in the run; NULL: none. */
    const int32_t *positions;
    const double *weights;
    const uint64_t *samples;
    /* Documents may begin anywhere, and elsewhere in every batch: `starts` is then not the shape's.
     */
    bool any_starts;
    /* For passes with a cache, of each sequence: the number of its tokens in ids, with filler
     * behind them (NULL: `length`); the number of its positions in the cache (NULL: none). */
    const uint64_t *lengths, *past;
    uint64_t counter; /* of OP_SAMPLE for the first sequence; each has one more */
};

/* The number of rows of a rank: the same on all ranks. */
struct token_shape {
    uint64_t sequences;  /* of one data-parallel rank */
    uint64_t chunk;      /* positions of a chunk; of the whole sequence where CP is 1 */
    uint64_t rows;       /* sequences * chunk * (1 or 2), rounded up to what `multiple` divides */
    uint64_t num_spans;  /* of one table of spans at most, with its end */
    unsigned num_chunks; /* 1, or 2 * CP */
    /* `sequences` if, on every rank, all rows are tokens, each sequence is one document with one
     * span, and CP is 1; else 0. */
    uint32_t uniform_sequences;
};

struct token_shape tokens_shape(const struct batch *b, const struct group_sizes *s,
                                uint64_t multiple);

/* The first sequence of the batch that the rank at `at` has. */
uint64_t tokens_first_sequence(const struct batch *b, const struct group_place *at,
                               const struct token_shape *shape);

/* The place of a row in the batch; sequence is UINT64_MAX for filler. */
struct token_origin {
    uint64_t sequence, position;
};

struct tokens {
    struct token_shape shape;
    int32_t *ids, *positions, *targets; /* [rows] */
    double *weights;                    /* [rows]; of filler 0 */
    int32_t *numbers; /* [rows, 2] of each token in the run: low word, high word */
    /* Rows sorted by id and by position, NULL without weights: [rows]; of the tensor parallel
     * rank's part of the rows, counted from its first one. */
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

/* The origins of the rows of the rank at `at`, for rank 0, which puts results together. */
struct token_origin *tokens_origins(struct arena *a, const struct batch *b,
                                    const struct group_place *at, const struct token_shape *shape);

#endif
