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
    bool keeps_results; /* the visitor keeps a copy of each result */
};

/* A pass, and what it is for: "the prompt". */
struct work {
    struct pass *pass;
    const char *what;
};

/* Threads of this rank: its share of those asked for, or of the CPUs that it may run on. */
unsigned worker_threads(const struct worker *w);

/* The plan of all ranks' memory goes to the visitor; without one it is printed for people where
 * the run is dry. */
MUST_CHECK enum status worker_tell_plan(const struct worker *w, const struct work *work,
                                        size_t count, bool dry_run, plan_visit *visit,
                                        void *context, struct error *err);
/* A note, on rank 0, where so many rotary positions are more than the model was made for. */
void worker_note_positions(const struct worker *w, uint64_t positions);
/* ERR_MEMORY where the parameters that these passes want, and what they take themselves, are more
 * than a rank's memory; then the plan is on stderr (that of a dry run is on stdout already). Before
 * anything is allocated. */
MUST_CHECK enum status worker_fit(struct worker *w, const struct work *work, size_t count,
                                  bool dry_run, struct error *err);
/* Reads the parameters that the passes made so far want. */
MUST_CHECK enum status worker_load(struct worker *w, struct error *err);
/* To be called with what the work has come to, before memory is released: tells the others of a
 * failure, and ends what the device does with them, for which releasing it would wait: graphs
 * first, as what they hold is in use. Returns st. */
MUST_CHECK enum status worker_end(struct worker *w, const struct work *work, size_t count,
                                  enum status st, struct error *err);

/* What each rank does for a request of the table in engine.h. */
MUST_CHECK enum status generate_rank(struct worker *w, const void *request, struct error *err);
MUST_CHECK enum status bench_rank(struct worker *w, const void *request, struct error *err);

#endif
