/* events.h - scalars in an event file of TensorBoard (--tensorboard-dir), under
 * the names that Megatron-LM gives them.
 *
 * The file FOLDER/events.out.tfevents.TIME.HOST.PID.N is a sequence of records,
 * little-endian:
 *
 *   1. u64 number of bytes
 *   2. u32 masked CRC-32C of 1: CRC rotated right by 15 bits, plus 0xa282ead8
 *   3. the bytes: a protocol buffer
 *   4. u32 masked CRC-32C of 3
 *
 * The buffer is an Event: 1 wall time (double, seconds since 1970), 2 step
 * (varint, left out if 0), 3 "brain.Event:2" (first record only), 5 Summary, 10
 * SourceMetadata (first record only: 1 the program). A Summary has Values (1):
 * 1 tag, 2 value (float).
 *
 * Each run writes a file of its own. TensorBoard reads all files of a folder;
 * it shows steps that a resumed run repeats twice, as with Megatron-LM.
 * Megatron's last rank writes. */
#ifndef FERRY_TRAIN_TRAINER_EVENTS_H
#define FERRY_TRAIN_TRAINER_EVENTS_H

#include <time.h>

#include "common/strbuf.h"
#include "train/trainer/log_line.h"

struct events_options {
    uint64_t interval;        /* --tensorboard-log-interval, above 0; 1 is Megatron's default */
    bool without_loss_scale;  /* --no-log-loss-scale-to-tensorboard */
    bool with_timers;         /* --log-timers-to-tensorboard: iteration-time, throughput */
    bool with_validation_ppl; /* --log-validation-ppl-to-tensorboard */
    bool with_world_size;     /* --log-world-size-to-tensorboard */
};

struct events {
    int fd;     /* -1: no file */
    char *path; /* on the heap */
    struct events_options options;
    struct strbuf pending, event, summary; /* records not written yet; reused */
    uint64_t size_bytes;                   /* written */
};

/* Creates the folder if needed, and a new file that begins at `when`. ERR_IO.
 * Call events_close() afterwards, also after a failure. */
MUST_CHECK enum status events_open(struct events *e, const char *folder,
                                   const struct events_options *options, struct timespec when,
                                   struct error *err);
/* Writes pending records. ERR_IO: these are lost, the file has whole records
 * only, and the caller decides whether to continue. */
MUST_CHECK enum status events_flush(struct events *e, struct error *err);
/* Closes the file; pending records are lost. */
void events_close(struct events *e);

/* These add pending records. */
void events_add_scalar(struct events *e, const char *tag, double value, uint64_t step,
                       struct timespec when);
/* The scalars of an iteration, after log_line_add returned line_is_due. Router
 * losses ignore the interval. */
void events_add_step(struct events *e, const struct step_record *s, const struct log_line *line,
                     bool line_is_due, struct timespec when);
/* The scalars of an evaluation, also at the end of a run: Megatron-LM gives the
 * test set the same names. */
void events_add_evaluation(struct events *e, uint64_t iteration, uint64_t consumed_samples,
                           const struct named_loss *losses, size_t num_losses,
                           struct timespec when);

#endif
