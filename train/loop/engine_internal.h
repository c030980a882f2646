/* engine_internal.h - the work of one rank, for the functions of the library.
 */
#ifndef FERRY_TRAIN_LOOP_ENGINE_INTERNAL_H
#define FERRY_TRAIN_LOOP_ENGINE_INTERNAL_H

#include "convert/open.h"
#include "train/loop/engine.h"

struct worker {
    const struct engine_model *q;
    struct comm comm;
    struct opened opened;
    struct model model;
    struct pass_taking taking; /* of the visitor of results; generation and bench: all 0 */
};

/* A pass and its purpose: "the prompt". */
struct work {
    struct pass *pass;
    const char *what;
};

/* Threads of this rank: its share of those requested, or of its CPUs. */
unsigned worker_threads(const struct worker *w);

/* Gives the memory plan of all ranks to the visitor; a dry run without one
 * prints it. */
MUST_CHECK enum status worker_give_plan(const struct worker *w, const struct work *work,
                                        size_t count, bool dry_run, plan_visit *visit,
                                        void *context, struct error *err);
/* Prints a note on rank 0 if the model was made for fewer rotary positions. */
void worker_note_positions(const struct worker *w, uint64_t positions);
/* ERR_MEMORY if passes and parameters do not fit a rank's memory; prints the
 * plan on stderr, unless the run is dry (its plan is on stdout). Call it before
 * any allocation. */
MUST_CHECK enum status worker_fit(struct worker *w, const struct work *work, size_t count,
                                  bool dry_run, struct error *err);
/* Loads the parameters of all passes so far. */
MUST_CHECK enum status worker_load(struct worker *w, struct error *err);
/* Ends work with status st, before memory is released. A failure is reported to
 * the other ranks; then graphs and the device's collectives end, for which
 * releasing memory would wait. Returns st. */
MUST_CHECK enum status worker_end(struct worker *w, const struct work *work, size_t count,
                                  enum status st, struct error *err);

/* As engine.h says. */
void describe_machine(struct facts *f);

/* Work of each rank for a request of engine.h. */
MUST_CHECK enum status generate_rank(struct worker *w, const void *request, struct error *err);
MUST_CHECK enum status bench_rank(struct worker *w, const void *request, struct error *err);

#endif
