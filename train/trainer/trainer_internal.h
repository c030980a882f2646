/* trainer_internal.h - the parts of a run: trainer.c (its life), trainer_open.c (which model and
 * state), trainer_ranks.c (what several ranks do together), trainer_fit.c (memory), trainer_plan.c
 * (the plan of a dry run), trainer_data.c (micro-batches), trainer_loop.c (iterations),
 * trainer_save.c, trainer_log.c. */
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
};

/* What the optimizer computes with: of the options, or of the checkpoint whose optimizer goes on.
 */
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
    bool is_open, resumes;           /* resumes: it is one of this very run, at --save */
    struct checkpoint scratch;       /* of a run from scratch: a model without tensors */
    const struct checkpoint *origin; /* &opened.checkpoint, or &scratch */
    uint64_t vocab_rows;             /* rows that count in the softmax; 0: those of the config */
    struct optimizer_constants constants;
    const struct comm *job; /* of a launcher; NULL: the run has its own ranks */
    struct comm comm;       /* no backend: it is not open, as in a dry run of several ranks */
    struct model model;
    struct step step;
    struct train_plan plan; /* of a dry run; no memory: it is not made yet */
    bool has_device, on_gpu;
    struct rng_kept *rng; /* [num_rng] states of random numbers that go on as they are */
    size_t num_rng;

    /* ---- data: trainer_data.c ---- */
    struct data *data;
    struct prefetch *prefetch;
    struct sampler sampler;
    bool has_own_positions; /* the data say them; else they count from the start of a sample */
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
    double begun, started; /* clock: of the run in this process; of its first iteration */

    /* ---- logs: trainer_log.c ---- */
    struct log_line lines;
    struct log_jsonl jsonl;
    struct events events;
    bool has_jsonl, has_events;
    struct peak peak; /* of the device; unknown where no log counts with it */
    struct flops flops;
    double last_loss;

    /* ---- checkpoints: trainer_save.c ---- */
    struct destination destinations[2]; /* [num_destinations]: --save, --save-hf */
    unsigned num_destinations;
    const char *saved;       /* the folder that was written last; NULL: none was */
    bool said_skipped;       /* that steps without a loss scale are skipped */
    bool said_exhausted;     /* that gradients overflow at the smallest loss scale */
    struct saving *saving;   /* one that is written in the background; trainer_save.c's */
    void *copies[NUM_HELD];  /* of the regions, on the host; NULL without --async-save */
    struct model *imagined;  /* [num_ranks] of several: each as it would be on that rank */
    struct held_rank *ranks; /* [num_ranks] what they have */
};

/* ---- trainer_open.c ---- */

/* Finds and opens what --save, --load or --hf-config name, and the model of it. */
MUST_CHECK enum status trainer_open_model(struct trainer *t, struct error *err);
/* ERR_UNSUPPORTED if the folder has tensors that the model of the line does not have. Once the step
 * is made, which names those that the folder lacks. */
MUST_CHECK enum status trainer_check_line(const struct trainer *t, struct error *err);
/* Schedules, counters, loss scale, batch size: of the options (loaded: NULL), then of what was
 * loaded. */
MUST_CHECK enum status trainer_set_up(struct trainer *t, const struct checkpoint_loaded *loaded,
                                      struct error *err);
/* Weights and states into the step's memory. */
MUST_CHECK enum status trainer_load(struct trainer *t, struct checkpoint_loaded *loaded,
                                    struct error *err);
/* Sets t->constants. Of a checkpoint whose optimizer goes on they are its own, as in Megatron-LM;
 * it is said if the line has others. ERR_UNSUPPORTED if its groups of parameters differ in them,
 * ERR_CORRUPT if one is out of range. */
MUST_CHECK enum status trainer_find_constants(struct trainer *t, struct error *err);

/* 0: the step has no such region. */
uint64_t trainer_region_bytes(const struct step *s, enum held_kind kind);
/* The run's regions as arrays on the host; of a GPU they are copies, which `end` copies back and
 * frees. */
MUST_CHECK enum status trainer_state_begin(struct trainer *t, struct train_state *s, bool download,
                                           struct error *err);
MUST_CHECK enum status trainer_state_end(struct trainer *t, struct train_state *s, bool upload,
                                         struct error *err);

/* Gives each weight to the caller that watches the run. */
MUST_CHECK enum status trainer_show_weights(struct trainer *t, bool trained, struct error *err);

/* ---- trainer_ranks.c ---- */

/* Forks the ranks of the layout, or takes those of the launcher. */
MUST_CHECK enum status trainer_open_ranks(struct trainer *t, struct error *err);
uint64_t trainer_num_ranks(const struct trainer *t);
/* Data parallel ranks. */
static inline uint64_t trainer_dp(const struct trainer *t)
{
    return t->o->layout.dp ? t->o->layout.dp : 1;
}
/* Of one pipeline stage: they are alike. */
unsigned trainer_stage_ranks(const struct trainer *t);
/* Of this rank: its part of those of its host. */
unsigned trainer_threads(const struct trainer *t);
/* Sums over the data parallel ranks. */
MUST_CHECK enum status trainer_sum(struct trainer *t, double *x, struct error *err);
/* Whether checkpoints have the layout of the run. Not where TP does not divide the vocabulary: rows
 * of padding would be stored, and what is stored counts in the softmax. */
bool trainer_saves_layout(const struct trainer *t);
/* Whether any rank says so; the first before the model is open. */
MUST_CHECK enum status trainer_any_rank(struct trainer *t, bool *any, struct error *err);
MUST_CHECK enum status trainer_any(struct trainer *t, bool *any, struct error *err);
/* ERR_USAGE if a rank has another model than rank 0, by its config and the shapes of its
 * parameters. Once the model is open. */
MUST_CHECK enum status trainer_agree_on_model(struct trainer *t, struct error *err);
/* ERR_USAGE if a rank found another checkpoint than rank 0, as one that sees other files does. */
MUST_CHECK enum status trainer_agree_on_start(struct trainer *t, struct error *err);
/* The parameters of every rank, as a checkpoint needs them: t->ranks. Once the step is made. */
MUST_CHECK enum status trainer_imagine_ranks(struct trainer *t, struct error *err);
void trainer_release_ranks(struct trainer *t);

/* A rank of the layout with the programs of its step, to be measured and never run. */
struct imagined_rank {
    struct model model;
    struct step step;
};
/* Call trainer_forget() afterwards, also after a failure. */
MUST_CHECK enum status trainer_imagine(const struct trainer *t, unsigned rank,
                                       const struct step_options *o, struct imagined_rank *out,
                                       struct error *err);
void trainer_forget(struct imagined_rank *x);

/* ---- trainer_fit.c ---- */

/* What a rank with this step takes. */
struct rank_memory {
    uint64_t device, host; /* host: beside the device, 0 where that is the CPU */
    uint64_t copies;       /* of states, which are part of one of them */
};
struct rank_memory trainer_memory_of(const struct trainer *t, const struct step *s);
/* The parts of the memory that this rank takes; as text, and for --json. */
void trainer_print_memory(const struct trainer *t, struct strbuf *out);
void trainer_plan_memory(const struct trainer *t, struct train_plan *p);
/* Whether there is a memory to compare with. */
bool trainer_compares_memory(const struct trainer *t);
/* ERR_MEMORY if this rank (of a dry run that opened none: the one that takes most) takes more than
 * is free on its device and its host, or more than --memory-per-rank; the message has what would
 * fit every rank: a smaller micro-batch, or activations computed again. Nothing is allocated yet.
 */
MUST_CHECK enum status trainer_check_memory(const struct trainer *t, struct error *err);

/* ---- trainer_plan.c ---- */

/* Sets t->plan and prints it, with --json on stderr; writes the drawing of --timeline. */
MUST_CHECK enum status trainer_show_plan(struct trainer *t, struct error *err);
/* Prints the plan of a run that cannot begin. */
void trainer_print_plan(struct trainer *t, FILE *to);

/* ---- trainer_save.c ---- */

/* Sets the destinations, and checks that the run can write its iterations there. Once the model is
 * open. */
MUST_CHECK enum status trainer_open_destinations(struct trainer *t, struct error *err);
/* Whether each destination has the iteration where the run is. */
bool trainer_is_saved(const struct trainer *t);
/* Whether checkpoints are written while training goes on. */
bool trainer_saves_behind(const struct trainer *t);
/* Memory for the copies of --async-save, as long as the run: it is there when the first save comes,
 * and no save waits for its pages. */
MUST_CHECK enum status trainer_open_saves(struct trainer *t, struct error *err);
void trainer_close_saves(struct trainer *t);
/* Writes the iteration to each destination that does not have it yet. With --async-save it returns
 * when the state is copied, unless it `waits`, since no step is left to compute meanwhile. A
 * failure is then returned by the next call, or by trainer_finish_save(), which waits until all is
 * written.
 */
MUST_CHECK enum status trainer_save(struct trainer *t, bool waits, struct error *err);
MUST_CHECK enum status trainer_finish_save(struct trainer *t, struct error *err);

/* ---- trainer_data.c ---- */

/* Opens the data for a dry run: the same refusals, but no index is made and nothing is written.
 * Prints what is read, the last part of the plan; with --json on stderr. */
MUST_CHECK enum status trainer_plan_data(struct trainer *t, struct error *err);
MUST_CHECK enum status trainer_open_data(struct trainer *t, struct error *err);
void trainer_close_data(struct trainer *t);
/* Whether the data are documents for fine-tuning, packed into samples. */
bool trainer_data_is_packed(const struct train_options *o);
/* Micro-batch `number`: the next one, or one of the last num_kept - 1 again. */
MUST_CHECK enum status trainer_batch(struct trainer *t, struct batches *b, uint64_t number,
                                     const struct kept_batch **out, struct error *err);
/* The mean loss over a split; nothing is done where there are no data for it. */
MUST_CHECK enum status trainer_evaluate(struct trainer *t, enum data_split split, double *loss,
                                        bool *there, struct error *err);

/* ---- trainer_loop.c ---- */

MUST_CHECK enum status trainer_loop(struct trainer *t, struct error *err);

/* ---- trainer_log.c ---- */

/* What --log-jsonl compares speeds with: measured on a CPU, while its memory is free; published of
 * a GPU. One that is not known is said. */
void trainer_find_peak(struct trainer *t);
MUST_CHECK enum status trainer_open_logs(struct trainer *t, struct error *err);
void trainer_close_logs(struct trainer *t);
/* An iteration that is over. */
MUST_CHECK enum status trainer_log_step(struct trainer *t, const struct step_record *r,
                                        struct error *err);
/* The live line of --progress. */
void trainer_show_progress(const struct trainer *t, const struct step_record *r);
MUST_CHECK enum status trainer_log_evaluation(struct trainer *t, const char *where, double loss,
                                              struct error *err);
/* A line on stderr for the user, of rank 0, unless --quiet. */
void trainer_say(const struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The same of what went wrong although the run goes on, with --quiet too. */
void trainer_warn(const struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
