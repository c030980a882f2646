/* tokens.h - which tokens a rank works on, and who may attend to whom.
 *
 * A batch is sequences of one length. Sequences are dealt to data-parallel ranks in runs; each
 * sequence is cut into 2 CP chunks, of which context-parallel rank r has chunks r and 2 CP - 1 - r,
 * so that all have as many pairs under a causal mask. What does not divide is filled up: sequences
 * by repeating the last one, positions and rows by tokens that nobody looks at.
 *
 * A rank's tokens are *rows*: sequence by sequence, in each first the one chunk, then the other. */
#ifndef FERRY_TRAIN_MODEL_TOKENS_H
#define FERRY_TRAIN_MODEL_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/arena.h"
#include "train/engine/groups.h"

struct batch {
    uint64_t num_sequences, length;
    const int32_t *ids;     /* [num_sequences, length] */
    const char *path;       /* of the file that they are of, for messages; NULL: of none */
    const int32_t *targets; /* the same, negative where there is none; NULL: none at all */
    /* Where documents begin: a token attends to its own document only, and its position counts from
     * there. starts[s * length + i] is true at a document's first token. NULL: one a sequence. */
    const bool *starts;
    /* Of passes with a cache: how many tokens of each sequence are there, filler behind them (NULL:
     * `length` of all), and how many positions the cache has of it (NULL: none). */
    const uint64_t *lengths, *past;
};

/* How many rows a rank has: the same on all. */
struct token_shape {
    uint64_t sequences;  /* of one data-parallel rank */
    uint64_t chunk;      /* positions of a chunk; of the whole sequence where CP is 1 */
    uint64_t rows;       /* sequences * chunk * (1 or 2), rounded up to what `multiple` divides */
    uint64_t num_spans;  /* the most of one table of spans, its end included */
    unsigned num_chunks; /* 1, or 2 * CP */
    /* `sequences` where, on every rank, each row is a token of a sequence that is one document with
     * a span of its own, and no context parallelism cuts it; else 0. */
    uint32_t uniform_sequences;
};

struct token_shape tokens_shape(const struct batch *b, const struct group_sizes *s,
                                uint64_t multiple);

/* Where a row stands in the batch; sequence is UINT64_MAX for one that was filled in. */
struct token_origin {
    uint64_t sequence, position;
};

struct tokens {
    struct token_shape shape;
    int32_t *ids, *positions, *targets; /* [rows]; positions count from the document's start */
    struct token_origin *origins;       /* [rows] */
    /* Spans (kernels/op_list.h) of this rank's queries with keys of: */
    int32_t **spans; /* [CP][num_spans][6]: the keys of the rank i places before it in the ring */
    int32_t *all_spans; /* [num_spans][6] those of all ranks, gathered in their order */
};

/* Everything in arena a. at: of the rank whose tokens they are. */
void tokens_make(struct tokens *t, struct arena *a, const struct batch *b,
                 const struct group_sizes *s, const struct group_place *at, uint64_t multiple);

/* Which rows of the batch a rank has, of the rank at any place: what rank 0 needs to put results
 * together. */
struct token_origin *tokens_origins(struct arena *a, const struct batch *b,
                                    const struct group_place *at, const struct token_shape *shape);

#endif
