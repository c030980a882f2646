/* hints_internal.h - what the files of hints.h share. Calls go downwards in this order: hints.c,
 * moves.c, hint_tries.c and attempts_prove.c, move_lines.c, hint_lines.c. */
#ifndef FERRY_VALIDATE_HINTS_HINTS_INTERNAL_H
#define FERRY_VALIDATE_HINTS_HINTS_INTERNAL_H

#include "validate/hints/claims.h"
#include "validate/hints/hints.h"

/* A tensor, and the claims about it that held on a few elements, the likeliest first. */
struct attempt {
    struct compared *of;
    struct claim **claims;
    size_t num_claims, capacity;
    size_t next; /* the claim to be proven */
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
/* Proves the first claim of each attempt that can be proven, and makes it the tensor's hint. */
MUST_CHECK enum status attempts_prove(struct comparison *c, struct attempt *attempts,
                                      size_t num_attempts, struct error *err);
void set_hint(struct comparison *c, struct compared *t, const char *id, const char *text);

/* Tensors of B that are tensors of A of other names. Adds the lines that sum them up. */
MUST_CHECK enum status moves_find(struct workshop *w, struct error *err);

/* The lines of what moved. Of a layer or an expert it is said only where all its tensors moved
 * along, or are the same in both places. */
MUST_CHECK enum status move_lines_add(struct workshop *w, struct error *err);

/* Adds a line for hints that say the same of tensors of one kind. Those of id "moved" have their
 * lines. */
void hint_lines_add(struct comparison *c);
/* A line for n tensors, which are copied; text is in the comparison's arena. */
void hint_line_push(struct comparison *c, const char *id, const char *text,
                    const struct compared *const *tensors, size_t n);
/* "in 8 of 32 layers (8 to 15)"; layers are sorted, of tensors like `like`. In the arena. */
const char *layers_text(struct comparison *c, const struct place *like, const int64_t *layers,
                        size_t num_layers);

extern const char moved_id[];

#endif
