/* trainer_internal.h - the parts of a run: trainer.c (its life), trainer_open.c
 * (model and state), trainer_ranks.c (several ranks), trainer_fit.c (memory),
 * trainer_plan.c (the plan of a dry run), trainer_data.c (micro-batches),
 * trainer_loop.c (iterations), trainer_save.c, trainer_log.c. */
#ifndef FERRY_TRAIN_TRAINER_TRAINER_INTERNAL_H
#define FERRY_TRAIN_TRAINER_TRAINER_INTERNAL_H

#include <stdio.h>

#include "convert/open.h"
#include "train/data/prefetch.h"
#include "train/trainer/batch_size.h"
#include "train/trainer/checkpoint.h"
#include "train/trainer/events.h"
#include "train/trainer/flops.h"
#include "train/trainer/log_jsonl.h"
#include "train/trainer/log_line.h"
#include "train/trainer/loss_scale.h"
#include "train/trainer/lr_schedule.h"
#include "train/trainer/step.h"
#include "train/trainer/trainer.h"

/* A loss over some iterations or micro-batches. */
struct loss_total {
    double sum;    /* of the losses of tokens that count */
    double tokens; /* that count */
};

/* Where checkpoints are written. */
struct destination {
    struct checkpoint_target target;
    const char *option; /* that names it */
    uint64_t saved;     /* the newest iteration of this run that is there; 0: none */
    struct lock *lock;  /* rank 0's, beside the destination; NULL: none */
    const char *lock_path;
};

/* Constants of the optimizer: from the options, or from the checkpoint whose
 * optimizer resumes. */
struct optimizer_constants {
    double beta1, beta2, eps, momentum;
};

/* A micro-batch of the data. */
struct kept_batch {
    struct batch batch;
    double tokens;     /* that count */
    double *weights;   /* [micro_batch_size, seq_length] */
    uint64_t *samples; /* [micro_batch_size] */
};

/* The micro-batches of a step, or of an evaluation, out of a stream of samples. */
struct batches {
    struct prefetch *from;
    struct sampler *sampler;
    uint64_t taken; /* micro-batches so far */
    double tokens;  /* that count, of these */
};

struct trainer {
    const struct train_request *q;
    const struct train_options *o;
    struct arena arena;

    /* ---- model: trainer_open.c ---- */
    struct opened opened;            /* the checkpoint that the run began with */
    bool is_open, resumes;           /* resumes: from this run's own checkpoint, at --save */
    struct checkpoint scratch;       /* of a run from scratch: a model without tensors */
    const struct checkpoint *origin; /* &opened.checkpoint, or &scratch */
    uint64_t vocab_rows;             /* rows that count in the softmax; 0: those of the config */
    struct optimizer_constants constants;
    const struct comm *job; /* of a launcher; NULL: the run forks its ranks */
    struct comm comm;       /* no backend: not open, as in a dry run of several ranks */
    struct model model;
    struct step step;
    struct train_plan plan; /* of a dry run; no memory: it is not made yet */
    bool has_device, on_gpu;
    struct rng_kept *rng; /* [num_rng] states of random numbers, kept unchanged */
    size_t num_rng;

    /* ---- data: trainer_data.c ---- */
    struct data *data;
    struct prefetch *prefetch;
    struct sampler sampler;
    bool has_own_positions; /* from the data; else they count from the start of a sample */
    struct kept_batch
        *kept; /* [num_kept] the last micro-batches: by their numbers modulo num_kept */
    unsigned num_kept;

    /* ---- where the run is ---- */
    struct lr_schedule schedule;
    struct loss_scale scale;
    struct batch_size batch;
    uint64_t iteration, train_iters; /* done, and to be done in all */
    uint64_t start_iteration;        /* of this process */
    uint64_t consumed, skipped_samples, consumed_valid;
    uint64_t updates; /* of the optimizer */
    uint64_t skipped_iterations;
    double flops_so_far;
    double begun; /* clock: of the run in this process */

    /* ---- logs: trainer_log.c ---- */
    struct log_line lines;
    struct log_jsonl jsonl;
    struct events events;
    bool has_jsonl, has_events;
    struct progress *progress; /* of the steps; NULL: it is not shown */
    struct peak peak;          /* of the device; unknown where no log counts with it */
    struct flops flops;
    double last_loss;

    /* ---- checkpoints: trainer_save.c ---- */
    struct destination destinations[2]; /* [num_destinations]: --save, --save-hf */
    unsigned num_destinations;
    const char *saved;       /* the folder that was written last; NULL: none was */
    bool warned_skipped;     /* printed: steps without a loss scale are skipped */
    bool noted_exhausted;    /* printed: gradients overflow at the smallest loss scale */
    struct saving *saving;   /* a save in the background; trainer_save.c's */
    void *copies[NUM_HELD];  /* of the regions, on the host; NULL without --async-save */
    struct model *simulated; /* [num_ranks] if several: the model of each rank */
    struct held_rank *ranks; /* [num_ranks] their parameters and shards */
};

/* ---- trainer_open.c ---- */

/* Finds and opens the checkpoint of --save, --load or --hf-config, and its
 * model. */
MUST_CHECK enum status trainer_open_model(struct trainer *t, struct error *err);
/* ERR_UNSUPPORTED if the folder has tensors that the model of the line lacks.
 * Call it after step_make, which names tensors that the folder lacks. */
MUST_CHECK enum status trainer_check_line(const struct trainer *t, struct error *err);
/* Sets schedules, counters, loss scale and batch size: from the options
 * (loaded: NULL), then from the loaded checkpoint. */
MUST_CHECK enum status trainer_set_up(struct trainer *t, const struct checkpoint_loaded *loaded,
                                      struct error *err);
/* Loads weights and states into the step's memory. */
MUST_CHECK enum status trainer_load(struct trainer *t, struct checkpoint_loaded *loaded,
                                    struct error *err);
/* Sets t->constants. A checkpoint whose optimizer resumes gives its own, as in
 * Megatron-LM; a note tells if the line has others. ERR_UNSUPPORTED if its
 * parameter groups differ in them, ERR_CORRUPT if one is out of range. */
MUST_CHECK enum status trainer_find_constants(struct trainer *t, struct error *err);

/* 0 if the step has no such region. */
uint64_t trainer_region_bytes(const struct step *s, enum held_kind kind);
/* The run's regions as arrays on the host. A GPU's are copies, which
 * trainer_state_end copies back (upload) and frees. */
MUST_CHECK enum status trainer_state_begin(struct trainer *t, struct train_state *s, bool download,
                                           struct error *err);
MUST_CHECK enum status trainer_state_end(struct trainer *t, struct train_state *s, bool upload,
                                         struct error *err);

/* Passes each weight to the watching caller. */
MUST_CHECK enum status trainer_show_weights(struct trainer *t, bool trained, struct error *err);

/* ---- trainer_ranks.c ---- */

/* Forks the ranks of the layout, or uses the launcher's. */
MUST_CHECK enum status trainer_open_ranks(struct trainer *t, struct error *err);
uint64_t trainer_num_ranks(const struct trainer *t);
/* Data parallel ranks. */
static inline uint64_t trainer_dp(const struct trainer *t)
{
    return t->o->layout.dp ? t->o->layout.dp : 1;
}
/* Ranks of one pipeline stage. */
unsigned trainer_stage_ranks(const struct trainer *t);
/* Threads of this rank: its share of its host's. */
unsigned trainer_threads(const struct trainer *t);
/* Sums over data parallel ranks. */
MUST_CHECK enum status trainer_sum(struct trainer *t, double *x, struct error *err);
/* Whether checkpoints have the layout of the run. False if TP does not divide
 * the vocabulary: stored rows of padding would count in the softmax. */
bool trainer_saves_layout(const struct trainer *t);
/* Logical or of *any over all ranks. Use trainer_any_rank before the model is
 * open. */
MUST_CHECK enum status trainer_any_rank(struct trainer *t, bool *any, struct error *err);
MUST_CHECK enum status trainer_any(struct trainer *t, bool *any, struct error *err);
/* ERR_USAGE if a rank's model differs from rank 0's in config or shapes of
 * parameters. Call it once the model is open. */
MUST_CHECK enum status trainer_agree_on_model(struct trainer *t, struct error *err);
/* ERR_USAGE if a rank found another checkpoint than rank 0, because it sees
 * other files. */
MUST_CHECK enum status trainer_agree_on_start(struct trainer *t, struct error *err);
/* Sets t->ranks to the parameters of every rank, for checkpoints. Call it once
 * the step is made. */
MUST_CHECK enum status trainer_simulate_ranks(struct trainer *t, struct error *err);
void trainer_release_ranks(struct trainer *t);

/* A rank of the layout with its step's programs, to be measured and never run. */
struct simulated_rank {
    struct model model;
    struct step step;
};
/* Call trainer_release_simulated() afterwards, also after a failure. */
MUST_CHECK enum status trainer_simulate(const struct trainer *t, unsigned rank,
                                        const struct step_options *o, struct simulated_rank *out,
                                        struct error *err);
void trainer_release_simulated(struct simulated_rank *x);

/* ---- trainer_fit.c ---- */

/* Memory of a rank with this step, in bytes. */
struct rank_memory {
    uint64_t device, host; /* host: beside the device, 0 if that is the CPU */
    uint64_t copies;       /* of states; included in one of these */
};
struct rank_memory trainer_memory_of(const struct trainer *t, const struct step *s);
/* Sets the parts of this rank's memory,
 * and their sum. */
void trainer_plan_memory(const struct trainer *t, struct train_plan *p);
/* Whether a memory size is known to compare with. */
bool trainer_compares_memory(const struct trainer *t);
/* ERR_MEMORY if this rank (in a dry run without ranks: the largest one) takes
 * more than is free on its device and host, or than --memory-per-rank. The
 * message advises what would fit every rank: a smaller micro-batch, or
 * recomputed activations. Sets what t->plan compares. Call it before anything
 * is allocated. */
MUST_CHECK enum status trainer_check_memory(struct trainer *t, struct error *err);

/* ---- trainer_plan.c ---- */

/* Sets t->plan and prints it, with --json on stderr; writes the drawing of
 * --timeline. */
MUST_CHECK enum status trainer_show_plan(struct trainer *t, struct error *err);
/* Prints the plan of a run that cannot begin. */
void trainer_print_plan(struct trainer *t, FILE *to);

/* ---- trainer_save.c ---- */

/* Sets the destinations, and checks that the run can write its iterations
 * there. Call it once the model is open. */
MUST_CHECK enum status trainer_open_destinations(struct trainer *t, struct error *err);
/* Whether each destination has the current iteration. */
bool trainer_is_saved(const struct trainer *t);
/* Checks that destinations have room for a checkpoint: ERR_IO. Call it once the
 * step is made. */
MUST_CHECK enum status trainer_check_destinations(struct trainer *t, struct error *err);
/* Whether checkpoints are written in the background. */
bool trainer_saves_behind(const struct trainer *t);
/* Locks the destinations: ERR_EXISTS if another run saves there. Allocates memory
 * for the copies of --async-save for the whole run, so that no save waits for
 * pages. */
MUST_CHECK enum status trainer_open_saves(struct trainer *t, struct error *err);
void trainer_close_saves(struct trainer *t);
/* Writes the iteration to each destination that lacks it. With --async-save it
 * returns once the state is copied, unless it `waits`, as after the last step;
 * the next call, or trainer_finish_save(), which waits for the end of the save,
 * then returns a failure. */
MUST_CHECK enum status trainer_save(struct trainer *t, bool waits, struct error *err);
MUST_CHECK enum status trainer_finish_save(struct trainer *t, struct error *err);
/* The same without waiting: nothing while
 * the save is being written. */
MUST_CHECK enum status trainer_poll_save(struct trainer *t, struct error *err);

/* ---- trainer_data.c ---- */

/* Opens the data for a dry run: the same refusals, but no index is made and
 * nothing is written. Prints the data, the last part of the plan; with --json
 * on stderr. */
MUST_CHECK enum status trainer_plan_data(struct trainer *t, struct error *err);
MUST_CHECK enum status trainer_open_data(struct trainer *t, struct error *err);
void trainer_close_data(struct trainer *t);
/* Whether the data are fine-tuning documents, packed into samples. */
bool trainer_data_is_packed(const struct train_options *o);
/* Micro-batch `number`: the next one, or one of the last num_kept - 1 again. */
MUST_CHECK enum status trainer_batch(struct trainer *t, struct batches *b, uint64_t number,
                                     const struct kept_batch **out, struct error *err);
/* The mean loss over a split. *there: false without data for it; then nothing
 * is computed. */
MUST_CHECK enum status trainer_evaluate(struct trainer *t, enum data_split split, double *loss,
                                        bool *there, struct error *err);

/* ---- trainer_loop.c ---- */

MUST_CHECK enum status trainer_loop(struct trainer *t, struct error *err);

/* ---- trainer_log.c ---- */

/* Sets the peak speed for --log-jsonl: measured on a CPU, while its memory is
 * free; published for a GPU. Notes an unknown one. */
void trainer_find_peak(struct trainer *t);
MUST_CHECK enum status trainer_open_logs(struct trainer *t, struct error *err);
void trainer_close_logs(struct trainer *t);
/* Logs a finished iteration. */
MUST_CHECK enum status trainer_log_step(struct trainer *t, const struct step_record *r,
                                        struct error *err);
/* --progress: it begins with the first
 * step and ends after the last. */
void trainer_start_progress(struct trainer *t);
void trainer_show_progress(const struct trainer *t, const struct step_record *r);
void trainer_end_progress(struct trainer *t);
MUST_CHECK enum status trainer_log_evaluation(struct trainer *t, const char *where, double loss,
                                              struct error *err);
/* Prints the line of an event, on rank 0. A failure shows with the next
 * iteration's line. */
void trainer_log_checkpoint(const struct trainer *t, enum checkpoint_event event, const char *dir,
                            const struct format *format, int64_t iteration);
/* Prints a note on stderr, on rank 0, unless --quiet. */
void trainer_note(const struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Prints a warning on stderr, on rank 0, also with --quiet. */
void trainer_warn(const struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
