/* engine_internal.h - one rank at work, for the functions of the library. */
#ifndef FERRY_TRAIN_LOOP_ENGINE_INTERNAL_H
#define FERRY_TRAIN_LOOP_ENGINE_INTERNAL_H

#include "convert/open.h"
#include "train/loop/engine.h"

struct worker {
    const struct engine_model *q;
    struct comm comm;
    struct opened opened;
    struct model model;
    struct pass_taking taking; /* how the visitor takes results; generation and bench: all 0 */
};

/* A pass and its purpose: "the prompt". */
struct work {
    struct pass *pass;
    const char *what;
};

/* Threads of this rank: its share of those asked for, or of the CPUs that it may run on. */
unsigned worker_threads(const struct worker *w);

/* Gives the memory plan of all ranks to the visitor. Without a visitor, a dry run prints it. */
MUST_CHECK enum status worker_tell_plan(const struct worker *w, const struct work *work,
                                        size_t count, bool dry_run, plan_visit *visit,
                                        void *context, struct error *err);
/* Prints a note, on rank 0, if the model was made for fewer rotary positions. */
void worker_note_positions(const struct worker *w, uint64_t positions);
/* ERR_MEMORY if the passes and their parameters do not fit a rank's memory; then the plan is
 * printed on stderr, unless the run is dry, which prints it on stdout anyway. Call it before
 * anything is allocated. */
MUST_CHECK enum status worker_fit(struct worker *w, const struct work *work, size_t count,
                                  bool dry_run, struct error *err);
/* Loads the parameters of all passes made so far. */
MUST_CHECK enum status worker_load(struct worker *w, struct error *err);
/* Ends work whose status is st, before memory is released: reports a failure to the other ranks,
 * then releases graphs and ends the device's collectives, for which releasing memory would wait.
 * Returns st. */
MUST_CHECK enum status worker_end(struct worker *w, const struct work *work, size_t count,
                                  enum status st, struct error *err);

/* The work of each rank for a request of engine.h. */
MUST_CHECK enum status generate_rank(struct worker *w, const void *request, struct error *err);
MUST_CHECK enum status bench_rank(struct worker *w, const void *request, struct error *err);

#endif
