/* trainer.h - a training run: loads, makes steps, evaluates, logs and saves.
 *
 * Follows the rules of Megatron-LM (megatron/training/training.py). Each of
 * several ranks (TP, SP, PP, DP, EP, ETP) has its part of the model and of each
 * global batch; rank 0 alone prints and logs; all ranks write a checkpoint
 * together. */
#ifndef FERRY_TRAIN_TRAINER_TRAINER_H
#define FERRY_TRAIN_TRAINER_TRAINER_H

#include "common/progress.h"
#include "convert/source.h"
#include "train/comm/comm.h"
#include "train/trainer/step_record.h"
#include "train/trainer/train_options.h"

/* A logical tensor of a run of one rank, without padding: the master weight if
 * there is one. */
struct watched_weight {
    const char *name;
    enum dtype dtype; /* F32, or F64 in runs of --dtype f64 */
    uint64_t numel;
    const void *elements; /* [numel] on the host, for the call */
};

/* For a caller that compares runs (`ferry verify --train-steps`). A watched run
 * has one rank and prints nothing. It begins at iteration 0 and sample 0, with
 * the schedule of the options; only the checkpoint's optimizer is resumed,
 * unless --no-load-optim. Padding rows of the vocabulary are not part of the
 * model. */
struct train_watch {
    bool keeps_weights; /* the caller copies all weights once: they are part of the memory */
    /* Each iteration, when it is over. */
    enum status (*step)(void *context, const struct step_record *r, struct error *err);
    /* Each weight, before the first iteration (trained: false) and after the
     * last. */
    enum status (*weight)(void *context, const struct watched_weight *w, bool trained,
                          struct error *err);
    void *context;
};

struct train_request {
    const struct train_options *options; /* complete: train_options_finish() */
    struct source_options source;        /* how folders are opened */
    const char *model_map;               /* a file of the user; NULL: none */
    unsigned threads;                    /* 0: as many as there are CPUs */
    enum progress_style progress;
    const struct train_watch *watch; /* NULL: none */
};

/* One pipeline stage, whose ranks all need the same. Sizes in bytes, of one
 * rank. */
struct train_stage {
    unsigned first_rank, num_ranks; /* consecutive */
    const uint64_t *layers;         /* [num_layers] their numbers */
    size_t num_layers;
    bool embedding, loss;                             /* it has the embedding; the head */
    uint64_t parameters;                              /* elements */
    uint64_t weights, gradients, states, saved, rest; /* parts of `device` */
    uint64_t device, host;                            /* as in the plan */
    uint64_t copies;                                  /* of states, in one of these */
    const uint64_t *sent; /* [num_groups] to others of each group, in a step */
};

/* A kind of group with several ranks. */
struct train_group {
    const char *name;      /* "TP" */
    const unsigned *ranks; /* [num_ranks] the members of that of rank 0 */
    unsigned num_ranks;
};

/* The plan of a dry run, for --json. Sizes in bytes. */
struct train_plan {
    uint64_t parameters; /* of rank 0, as `memory`, `device` and `host` */
    uint64_t iterations, global_batch_size, ranks;
    bool on_gpu;
    const char *reads; /* the checkpoint; NULL: nothing, from scratch */
    struct train_memory {
        const char *name; /* "first moments" */
        uint64_t bytes;
    } memory[16]; /* [num_memory] */
    unsigned num_memory;
    enum train_fit { FIT_UNKNOWN, FITS, FITS_NOT } fit; /* FIT_UNKNOWN: it was not compared */
    uint64_t needed, available;                         /* compared, of the largest rank */
    uint64_t device, host;      /* at once; host: beside the device, 0 where that is the CPU */
    struct train_stage *stages; /* [num_stages] pipeline ranks, at least one */
    unsigned num_stages;
    struct train_group *groups; /* [num_groups] */
    unsigned num_groups;
    const char *schedule; /* its name */
    uint64_t micro_batches;
    double bubble; /* the share of the time that ranks wait for others: 0 to 1 */
};

/* How a run ended, for --json; on rank 0. */
struct train_summary {
    const struct train_plan *plan; /* of a dry run, where it is made; else NULL */
    uint64_t iteration, consumed_samples, skipped_iterations;
    double loss;       /* of the last good iteration; NaN: there was none */
    const char *saved; /* the last checkpoint's folder; NULL: none was written. The caller's until
                        * trainer_run() returns */
};

/* job: the ranks that a launcher started; NULL: the run forks the ranks of its
 * layout, and no OpenMP thread may be alive. ERR_USAGE, ERR_UNSUPPORTED, ERR_IO
 * (no model at --load), ERR_EXISTS, ERR_MEMORY, ERR_RANK (another rank was lost
 * or failed), ERR_NUMERIC (a loss or gradient was not finite), ERR_INTERRUPTED
 * (a signal; all is saved). */
MUST_CHECK enum status trainer_run(const struct train_request *q, const struct comm *job,
                                   void (*ended)(void *context, const struct train_summary *s),
                                   void *context, struct error *err);

#endif
