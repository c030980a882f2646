/* compare.h - two checkpoints, tensor by tensor. Nothing is printed here.
 *
 * A first scan of both sides compares bytes and nothing else, and leaves a tensor at the first that
 * differs. A second one goes over those that differed, and counts: statistics.h. */
#ifndef FERRY_VALIDATE_COMPARE_COMPARE_H
#define FERRY_VALIDATE_COMPARE_COMPARE_H

#include "ckpt/digest.h"
#include "common/args.h"
#include "common/progress.h"
#include "validate/compare/configs.h"
#include "validate/compare/places.h"
#include "validate/compare/sides.h"
#include "validate/compare/statistics.h"

enum outcome {
    IDENTICAL,
    WITHIN, /* not identical, and within the tolerance */
    VALUES_DIFFER,
    DTYPE_DIFFERS,
    SHAPE_DIFFERS,
    ONLY_IN_A,
    ONLY_IN_B,
    NUM_OUTCOMES
};
extern const char *const outcome_names[NUM_OUTCOMES]; /* "identical", "values differ" */
extern const char *const outcome_ids[NUM_OUTCOMES];   /* "identical", "values" */

struct hint;

struct compared {
    const char *name;
    struct place place;
    const struct tensor *tensors[2]; /* NULL where that side has none */
    const struct tensor *read[2];    /* what is read for them: tensor_in_bytes() */
    enum outcome outcome;
    bool counted; /* statistics hold, of elements of the same place; else at most their sums of
                   * bits do */
    bool summed;
    struct statistics statistics;
    bool digested; /* it is identical, and this is the digest of both: */
    struct digest digest;
    /* Of each stored name of a side's tensor, the first element of the logical tensor that differs
     * and lies there; UINT64_MAX: none. NULL: not known. */
    const uint64_t *first_in[2];
    const struct hint *hint;           /* what explains the difference; NULL: nothing is known */
    const struct compared *moved_from; /* B's tensor is A's of this one */
};

struct compare_options {
    struct tolerance tolerance;
    const struct arg_list *only, *ignore; /* globs; NULL: none */
    const struct arg_list *ignore_config; /* globs of fields; NULL: none */
    bool no_optim;                        /* the sides were opened without */
    unsigned threads;
    uint64_t max_memory;
    bool direct_io;
    enum progress_style progress;
    bool digests; /* of identical tensors of this dtype, while they are read */
    enum dtype digests_of;
};

/* One sentence that is true of some tensors, see hints.h. */
struct hint_line {
    const char *id, *text;
    const struct compared **tensors;
    size_t num_tensors, capacity;
};

struct comparison {
    struct arena arena;
    const struct side *sides; /* [2] */
    struct compare_options options;
    struct compared *tensors; /* in the order of A, then what B alone has */
    size_t num_tensors, capacity;
    const char *main_stack; /* of the first layer that there is */

    struct config_comparison configs;
    size_t counts[NUM_OUTCOMES];
    size_t num_left_out; /* by --only and --ignore */
    uint64_t bytes[2];   /* of the tensors compared */
    uint64_t read_bytes; /* in all, of both sides */
    const char **notes;
    size_t num_notes, notes_capacity;

    struct hint_line *hints;
    size_t num_hints, hints_capacity;
};

/* Compares all that the sides list. Where nothing fits --only it is ERR_USAGE. The comparison is to
 * be released after a failure too. */
MUST_CHECK enum status compare_run(struct comparison *c, const struct side sides[2],
                                   const struct compare_options *o, struct error *err);
void compare_release(struct comparison *c);
/* What the user should know; text is in c->arena. */
void compare_note(struct comparison *c, const char *text);

/* Which dtypes the parts of a tensor are stored in: bits 1 << DT_*. One that is fused from several
 * is read in the widest. */
uint64_t stored_dtypes(const struct tensor *t);

/* 'A' of 0, 'B' of 1. */
static inline char side_letter(unsigned side)
{
    return (char)('A' + side);
}

/* "1 tensor", "2 tensors": printf("%zu tensor%s", n, plural(n)). */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static inline const char *is_or_are(uint64_t n)
{
    return n == 1 ? "is" : "are";
}

static inline bool outcome_passes(enum outcome o)
{
    return o == IDENTICAL || o == WITHIN;
}
bool compare_tensors_pass(const struct comparison *c);
/* Whether the configs differ in nothing that changes what is computed. */
bool compare_configs_pass(const struct comparison *c);
size_t compare_num_different(const struct comparison *c);

/* How bad a tensor is, to sort by: its relative error, and more than any where it has none. */
double compared_badness(const struct compared *t);
/* Those that do not pass, the worst first; in c->arena. */
const struct compared **compare_worst(struct comparison *c, size_t *count);

#endif
