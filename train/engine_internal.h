/* engine_internal.h - one rank at work, for the functions of the library. */
#ifndef FERRY_TRAIN_ENGINE_INTERNAL_H
#define FERRY_TRAIN_ENGINE_INTERNAL_H

#include "convert/inspect.h"
#include "train/engine.h"

struct worker {
    const struct engine_model *q;
    struct comm comm;
    struct opened opened;
    struct model model;
};

/* ERR_MEMORY where the parameters that these passes want, and what they take themselves, are more
 * than a rank's memory; then their plans are on stderr. Before anything is allocated. */
MUST_CHECK enum status worker_fit(struct worker *w, const struct pass *const *passes,
                                  size_t num_passes, struct error *err);
/* Reads the parameters that the passes made so far want. */
MUST_CHECK enum status worker_load(struct worker *w, struct error *err);
/* To be called with what the work has come to, before memory is released: tells the others of a
 * failure, and ends what the device does with them, for which releasing it would wait: graphs
 * first, as what they hold is in use. Returns st. */
MUST_CHECK enum status worker_end(struct worker *w, struct pass *const *passes, size_t num_passes,
                                  enum status st, struct error *err);
/* Prints a pass' memory, on rank 0. */
void worker_print_memory(const struct worker *w, const struct pass *p, const char *what);

/* What each rank does for a request of the table in engine.h. */
MUST_CHECK enum status generate_rank(struct worker *w, const void *request, struct error *err);
MUST_CHECK enum status bench_rank(struct worker *w, const void *request, struct error *err);

#endif
