/* hints_internal.h - functions shared by the files of hints.h. Calls go
 * downwards in this order: hints.c, moves.c, hint_tries.c and attempts_prove.c,
 * move_lines.c, hint_lines.c. */
#ifndef FERRY_VALIDATE_HINTS_HINTS_INTERNAL_H
#define FERRY_VALIDATE_HINTS_HINTS_INTERNAL_H

#include "validate/hints/claims.h"
#include "validate/hints/hints.h"

/* A tensor and its claims that held on a few elements, the likeliest first. */
struct attempt {
    struct compared *of;
    struct claim **claims;
    size_t num_claims, capacity;
    size_t next; /* index of the claim to prove */
};

/* Memory and open files of the threads that try claims. */
struct workshop {
    struct comparison *c;
    struct attempt *attempts; /* the batch that is being tried */
    unsigned num_workers;
    struct arena *arenas;     /* [num_workers] of claims and their tensors */
    struct sampler *samplers; /* [num_workers] */
    struct stored_reader *readers[2];
};

/* Makes claims about a tensor, in the worker's arena. */
MUST_CHECK enum status attempt_try(struct workshop *w, struct attempt *attempt, unsigned worker,
                                   struct error *err);
/* Tests the claims of each attempt on all elements, in order. The first proven
 * one becomes the tensor's hint. */
MUST_CHECK enum status attempts_prove(struct comparison *c, struct attempt *attempts,
                                      size_t num_attempts, struct error *err);
void set_hint(struct comparison *c, struct compared *t, const char *id, const char *text);

/* Finds tensors of B that equal tensors of A with other names, and adds their
 * lines. */
MUST_CHECK enum status moves_find(struct workshop *w, struct error *err);

/* Adds lines for moved tensors. A layer or expert is reported as moved only if
 * each of its tensors moved with it or is equal at both positions. */
MUST_CHECK enum status move_lines_add(struct workshop *w, struct error *err);

/* Adds one line for equal hints of tensors of one kind. Skips hints "moved",
 * which move_lines_add() reports. */
void hint_lines_add(struct comparison *c);
/* Adds a line for n tensors, which are copied; text is in the comparison's
 * arena. */
void hint_line_push(struct comparison *c, const char *id, const char *text,
                    const struct compared *const *tensors, size_t n);
/* "in 8 of 32 layers (8 to 15)", for sorted layers with tensors like `like`. In
 * the arena. */
const char *layers_text(struct comparison *c, const struct place *like, const int64_t *layers,
                        size_t num_layers);

extern const char moved_id[];

#endif
