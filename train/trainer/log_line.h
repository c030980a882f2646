/* log_line.h - the lines that Megatron-LM prints while it trains, to the letter
 * (megatron/training/training.py, training_log and evaluate_and_print_results,
 * and checkpointing.py, d98e8a64ddf3).
 *
 *  [2026-11-21 09:50:49.578694] iteration        1/      20 | consumed samples:            8 | ...
 *
 * A line covers an interval: losses are means over its good updates, time and
 * throughput means over all its iterations; the rest is the last iteration's.
 * The first iteration of a run (also of a resumed one) always has a line, which
 * starts no new interval. A loss is left out until it was added once, and if
 * its mean is negative or NaN; router losses also count skipped iterations.
 * Sums and the printed learning rate are float32, as Megatron's. */
#ifndef FERRY_TRAIN_TRAINER_LOG_LINE_H
#define FERRY_TRAIN_TRAINER_LOG_LINE_H

#include <time.h>

#include "common/strbuf.h"
#include "train/trainer/step_record.h"

struct loss_sum {
    const char *name;
    float value;
};

struct log_line {
    /* given by the caller, who sets all else to 0 */
    uint64_t train_iters, log_interval; /* log_interval above 0 */
    uint64_t world_size;                /* number of ranks */
    bool log_throughput;
    /* the interval so far */
    bool started;
    uint64_t advanced, skipped, nan;             /* iterations */
    double seconds;                              /* of all of them */
    struct loss_sum sums[1 + MAX_ROUTER_LOSSES]; /* in the order of their first values */
    unsigned num_sums;
    /* of the last line */
    bool is_first; /* it was the first of the run */
    double seconds_per_iteration;
    double throughput; /* TFLOP/s of a rank, of the model */
};

/* Adds an iteration. If a line is due, appends it to out with the local time of
 * `when` and a newline, and returns true. */
bool log_line_add(struct log_line *l, const struct step_record *s, struct timespec when,
                  struct strbuf *out);

/* Appends the three lines of an evaluation to out. where: "" while training; at
 * the end of a run " on validation set" or " on test set". */
void log_line_add_evaluation(uint64_t iteration, const char *where, const struct named_loss *losses,
                             size_t num_losses, struct strbuf *out);
/* exp(min(20, loss)), Megatron's PPL. */
double log_line_perplexity(double loss);

enum checkpoint_event {
    CHECKPOINT_LOADING,
    CHECKPOINT_LOADED,
    CHECKPOINT_SAVING,
    CHECKPOINT_SCHEDULED, /* --async-save has begun to write */
    CHECKPOINT_SAVED
};

struct checkpoint_line {
    enum checkpoint_event event;
    const char *dir;    /* as typed: the root of the iterations */
    const char *format; /* "torch_dist" */
    int64_t iteration;  /* negative: a release, without one */
    uint64_t tp, pp;    /* sizes of the run */
};

/* Appends the line of an event, which monitors of runs look for. It lacks
 * "gtp_remat 1/1", new in d98e8a64ddf3. */
void log_line_add_checkpoint(const struct checkpoint_line *c, struct timespec when,
                             struct strbuf *out);

#endif
