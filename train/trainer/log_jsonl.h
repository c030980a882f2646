/* log_jsonl.h - a file with a line of JSON for each iteration (--log-jsonl FILE), whatever
 * --log-interval; one rank writes it.
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
 *   flops_counted      how: a text
 *   mfu                tflops over peak_tflops
 *   peak_tflops        of a rank
 *   peak_counted       how: a text; these three are null if no peak is known
 *
 * A number that is not finite is null. Each line is written by one call, so it is in the file when
 * log_jsonl_add returns, and a line is never mixed with another one. */
#ifndef FERRY_TRAIN_TRAINER_LOG_JSONL_H
#define FERRY_TRAIN_TRAINER_LOG_JSONL_H

#include "common/strbuf.h"
#include "train/trainer/step_record.h"

/* The most that the device of a rank can do. */
struct peak {
    double tflops;       /* 0: not known */
    const char *counted; /* how; NULL: not known */
};

struct log_jsonl {
    int fd;           /* -1: no file */
    const char *path; /* the caller's, as peak.counted */
    uint64_t size_bytes;
    uint64_t world_size;
    struct peak peak;
    struct strbuf line; /* reused */
};

/* Opens path, which need not exist, to go on after iteration `resumed` (0: a new run). Lines of
 * later iterations, and an unfinished last line, which a killed run left, are removed first.
 * ERR_CORRUPT if another line is not one of this log: the file is another one, and is left as it
 * is. ERR_IO. Call log_jsonl_close afterwards, also after a failure. */
MUST_CHECK enum status log_jsonl_open(struct log_jsonl *l, const char *path, uint64_t resumed,
                                      uint64_t world_size, struct peak peak, struct error *err);
/* Adds a line. ERR_IO, with the file as it was before: the caller decides whether to go on, and
 * may call again. */
MUST_CHECK enum status log_jsonl_add(struct log_jsonl *l, const struct step_record *s,
                                     struct error *err);
/* Closes the file; nothing is lost if the process ends without it. */
void log_jsonl_close(struct log_jsonl *l);

#endif
