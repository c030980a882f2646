/* compare.h - compares two checkpoints tensor by tensor. Nothing is printed
 * here.
 *
 * The first scan compares bytes, and leaves a tensor at its first difference.
 * The second scan counts over the tensors that differ: statistics.h. */
#ifndef FERRY_VALIDATE_COMPARE_COMPARE_H
#define FERRY_VALIDATE_COMPARE_COMPARE_H

#include "ckpt/digest.h"
#include "common/args.h"
#include "common/progress.h"
#include "validate/compare/configs.h"
#include "validate/compare/places.h"
#include "validate/compare/sides.h"
#include "validate/compare/statistics.h"
#include "validate/compare/training_states.h"

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
    const struct tensor *tensors[2]; /* NULL if that side has none */
    const struct tensor *read[2];    /* the tensors that are read: tensor_in_bytes() */
    bool has_steps;                  /* statistics.max_steps is counted */
    enum outcome outcome;
    bool counted; /* statistics compare elements at equal positions; else only sums of bits may be
                     set */
    bool summed;
    struct statistics statistics;
    bool digested; /* the tensor is identical and `digest` is set */
    struct digest digest;
    /* For each stored name of a side: the first differing element that lies in
     * that stored tensor, as an index of the logical tensor; UINT64_MAX: none.
     * NULL: not known. */
    const uint64_t *first_in[2];
    const struct hint *hint;           /* the explanation of the difference; NULL: none */
    const struct compared *moved_from; /* B's tensor equals this tensor of A */
};

struct compare_options {
    struct tolerance tolerance;
    const struct arg_list *only, *ignore; /* globs; NULL: none */
    const struct arg_list *ignore_config; /* globs of fields; NULL: none */
    const struct arg_list *ignore_training;
    bool no_optim; /* the sides were opened without the optimizer */
    unsigned threads;
    uint64_t max_memory;
    bool direct_io;
    enum progress_style progress;
    bool digests; /* whether to digest identical tensors of dtype digests_of while reading */
    enum dtype digests_of;
};

/* A sentence that holds for some tensors: hints.h. */
struct hint_line {
    const char *id, *text;
    const struct compared **tensors;
    size_t num_tensors, capacity;
};

struct comparison {
    struct arena arena;
    const struct side *sides; /* [2] */
    struct compare_options options;
    struct compared *tensors; /* in the order of A, then those only in B */
    size_t num_tensors, capacity;
    const char *main_stack; /* the stack of the first layer */

    struct config_comparison configs;
    struct training_comparison training; /* compared if states of both optimizers are */
    size_t counts[NUM_OUTCOMES];
    size_t num_left_out;       /* tensors left out by --only and --ignore */
    size_t num_of_encoding[2]; /* encoding.NAME that only one side has: left out */
    uint64_t bytes[2];         /* of the tensors compared */
    uint64_t read_bytes;       /* of both sides together */
    bool in_steps;             /* some tensor has_steps */
    unsigned steps_side;       /* whose encodings these are: B's if B has some */
    const char **notes;
    size_t num_notes, notes_capacity;

    struct hint_line *hints;
    size_t num_hints, hints_capacity;
};

/* Compares all tensors of both sides. ERR_USAGE if no tensor matches --only.
 * Release c after a failure too. */
MUST_CHECK enum status compare_run(struct comparison *c, const struct side sides[2],
                                   const struct compare_options *o, struct error *err);
void compare_release(struct comparison *c);
/* Adds a note for the user; text is in c->arena. */
void compare_note(struct comparison *c, const char *text);

/* The stored dtypes of a tensor's parts: bits 1 << DT_*. A fused tensor is read
 * in the widest. A part wider than the tensor counts as the tensor's dtype: the
 * format's reader rounds it. */
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
/* Whether no config field differs that changes the computation. */
bool compare_configs_pass(const struct comparison *c);
/* Whether configs and training states have no difference that counts. */
bool compare_settings_pass(const struct comparison *c);
size_t compare_num_different(const struct comparison *c);

/* Sort key of a tensor: its relative error; without one, more than any relative
 * error. */
double compared_badness(const struct compared *t);
/* Failing tensors, the worst first; in c->arena. */
const struct compared **compare_worst(struct comparison *c, size_t *count);

#endif
