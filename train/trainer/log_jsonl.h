/* log_jsonl.h - a file with a line of JSON for each iteration (--log-jsonl
 * FILE), whatever --log-interval; one rank writes it.
 *
 *   iteration, consumed_samples
 *   lr, weight_decay   that the update used
 *   logged_lr          of the next update
 *   loss               of this iteration alone
 *   NAME               a member for each loss of the routers
 *   grad_norm          before clipping; null if the update was skipped
 *   params_norm        after the update; left out unless it is known
 *   loss_scale         after the update
 *   skipped            true or false
 *   elapsed_ms         of this iteration, no evaluation and no saving in it
 *   tokens_per_s       all tokens, padding too, over that time
 *   tflops             of the model, a rank and second
 *   flops_counted      way of counting, a text
 *   mfu                tflops over peak_tflops
 *   peak_tflops        of a rank
 *   peak_counted       source of the peak, a text; these three are null if no peak is known
 *
 * A number that is not finite is null. One call writes each line, so it is in
 * the file when log_jsonl_add returns, and lines never mix. */
#ifndef FERRY_TRAIN_TRAINER_LOG_JSONL_H
#define FERRY_TRAIN_TRAINER_LOG_JSONL_H

#include "common/strbuf.h"
#include "train/trainer/step_record.h"

/* The peak speed of a rank's device. */
struct peak {
    double tflops;       /* 0: not known */
    const char *counted; /* its source; NULL: not known */
};

struct log_jsonl {
    int fd;           /* -1: no file */
    const char *path; /* the caller's, as peak.counted */
    uint64_t size_bytes;
    uint64_t world_size;
    struct peak peak;
    struct strbuf line; /* reused */
};

/* Opens or creates path, to continue after iteration `resumed` (0: a new run).
 * First removes lines of later iterations, and an unfinished last line, which a
 * killed run left. ERR_CORRUPT if any other line is not one of this log: the
 * file is left unchanged. ERR_IO. Call log_jsonl_close() afterwards, also after
 * a failure. */
MUST_CHECK enum status log_jsonl_open(struct log_jsonl *l, const char *path, uint64_t resumed,
                                      uint64_t world_size, struct peak peak, struct error *err);
/* Adds a line. ERR_IO leaves the file as before: the caller decides whether to
 * continue, and may call again. */
MUST_CHECK enum status log_jsonl_add(struct log_jsonl *l, const struct step_record *s,
                                     struct error *err);
/* Closes the file. Nothing is lost if the process ends without it. */
void log_jsonl_close(struct log_jsonl *l);

#endif
