/* step.h - one training step: micro-batches whose gradients are summed, then an
 * update.
 *
 *   step_make        makes programs and places parameters; allocates nothing yet
 *   step_allocate    allocates; then parameters are loaded (checkpoint.h)
 *   step_begin       sets masters that were not loaded to the weights
 *   for each step:
 *     step_run           queues all micro-batches, in the order of the schedule
 *     step_update        queues clipping and the optimizer
 *     step_wait          waits for all, and returns struct step_result
 *
 * A rank has one *chunk* of the model, or several with an interleaved schedule
 * (schedule.h). A micro-batch occupies a *slot* of each chunk from its forward
 * to its backward part, so there are as many slots as the schedule has
 * micro-batches under way. All programs share one memory: first micro-batch
 * (writes the gradients), later ones (add to them), evaluations, update.
 * Gradients, masters and moments are regions in which parameter i begins at the
 * same element as in the region of parameters, unless they are sharded.
 * Parameters with the same update are adjacent, so on one rank the norm of all
 * gradients is one call, and the optimizer two: with weight decay and without.
 *
 * Several ranks (TP, SP, PP, DP, EP, ETP) make one step: gradients are summed
 * over the groups of backward.h, each element counts once in the norm, and
 * losses cover all tokens. Masters and moments may be sharded over data
 * parallel ranks (shard.h).
 *
 * Values that change between steps are inputs of the update. All ranks make the
 * same calls. */
#ifndef FERRY_TRAIN_TRAINER_STEP_H
#define FERRY_TRAIN_TRAINER_STEP_H

#include "common/strbuf.h"
#include "train/backward/recompute.h"
#include "train/model/model.h"
#include "train/schedule/schedule.h"
#include "train/trainer/shard.h"

enum optimizer_kind { OPTIMIZER_ADAM, OPTIMIZER_SGD };

struct step_options {
    struct batch shape;             /* of every micro-batch; of `starts` only any_starts counts */
    struct training_shape training; /* accumulates is not read */
    uint64_t
        head_rows; /* tokens whose logits are made at once; 0: as many as take STEP_LOGIT_BYTES */
    enum schedule_kind schedule; /* 1f1b is interleaved where a rank has several chunks */
    uint64_t micro_batches;      /* of a step, at most; 0: 1 */
    uint64_t eval_micro_batches; /* of an evaluation; 0: 1 */
    unsigned group;              /* of micro-batches, in an interleaved schedule; 0: its own */
    unsigned num_slots; /* 0: as many as the schedule needs. With one slot of one chunk, backward's
                         * own values overwrite saved ones */
    struct recompute_options recompute;
    enum optimizer_kind optimizer;
    double beta1, beta2, epsilon; /* of Adam */
    double momentum;              /* of SGD */
    bool gradients_are_elem;      /* not REAL: where parameters are rounded */
    bool params_norm;             /* wanted after each update */
    bool shards_states;           /* masters and moments, over data parallel ranks (shard.h) */
    uint64_t bucket_numel; /* elements that a collective over these moves; 0: shard.h's default */
    uint64_t vocab_rows;   /* rows of the vocabulary that count, with padding; 0: the config's */
};

/* Factors of an update. */
struct step_control {
    double lr, weight_decay;
    uint64_t update; /* number of this update, from 1: Adam's t */
    double factor;   /* of the gradients: 1 / (loss scale * tokens) or the like */
    double clip;     /* largest norm; 0: any */
};

struct step_result {
    double loss; /* the sum over all micro-batches of weights times losses */
    /* Router losses without their coefficients, summed over all micro-batches,
     * layers and data parallel ranks; 0: none. */
    double balance, z_loss;
    double grad_norm;   /* of all gradients times factor, before clipping */
    double params_norm; /* after the update; 0 where it is not wanted */
    uint64_t num_zeros; /* elements of gradients that are 0 */
    bool skipped;       /* a gradient was not finite: nothing was changed */
};

/* Memory limit of logits at once, if it takes at most STEP_HEAD_CHUNKS chunks. */
enum { STEP_LOGIT_BYTES = 1 << 30, STEP_HEAD_CHUNKS = 512 };

/* Programs of micro-batches: the first of a step, and later ones. The same pair
 * follows for evaluations: forward only, without dropout. */
enum { MICRO_FIRST, MICRO_LATER, MICRO_EVALUATES, MICRO_PROGRAMS = 4 };

/* A slot of inputs: whether constant inputs are filled, and for which kind of
 * program. */
struct step_slot {
    bool has_tables, of_evaluation;
};

/* A part of the model that a rank computes. */
struct step_chunk {
    struct built micro[MICRO_PROGRAMS];
    size_t forward_calls;              /* of the first two: backward begins there */
    unsigned num_slots;                /* of saved values */
    unsigned num_inputs;               /* slots of inputs; at least as many */
    struct step_slot *slots;           /* [num_inputs] */
    uint64_t first[NUM_VALUE_CLASSES]; /* where its slots of inputs and saved values begin */
};

enum { STEP_MAX_RANGES = 32 };

struct step {
    struct model *model;
    struct step_options options;
    struct arena arena;
    struct step_chunk *chunks; /* [num_chunks] */
    unsigned num_chunks;
    struct schedule schedule;      /* of the last step or evaluation */
    struct comm_message *messages; /* [as many as it has at once] */
    void *numbers;                 /* of one input, on the way to the device */
    struct program update;
    struct run update_run;
    struct run last_run; /* of the last micro-batch; no program: there was none */
    const struct stage_ends *last_ends;
    size_t last_forward_calls;
    uint64_t numel;      /* elements of a region of gradients, with gaps between parameters */
    uint64_t num_params; /* without them */
    struct param_range ranges[STEP_MAX_RANGES]; /* of all parameters, in their order */
    unsigned num_ranges;
    struct shard shard;                                 /* of these ranges */
    value_id control, first_sums, scalars, params_sums; /* of the update */
    void *regions[NUM_VALUE_CLASSES];
    uint64_t region_bytes[NUM_VALUE_CLASSES];
};

/* m: opened, without passes. ERR_UNSUPPORTED if it has an op without a
 * gradient, as context parallelism has; ERR_USAGE if the schedule rejects the
 * numbers. */
MUST_CHECK enum status step_make(struct step *s, struct model *m, const struct step_options *o,
                                 struct error *err);
void step_release(struct step *s);

MUST_CHECK enum status step_allocate(struct step *s, struct error *err);
/* Bytes that it allocates. */
uint64_t step_bytes(const struct step *s);
/* Name of the memory of this class: "first moments". */
const char *step_region_name(enum value_class class);

/* Whether parameters are rounded, so that there are masters. */
bool step_has_masters(const struct step *s);
/* loaded: keep the masters; else set them to the weights. */
MUST_CHECK enum status step_begin(struct step *s, bool loaded, struct error *err);

struct micro_batch {
    struct batch batch; /* ids, targets, weights of the losses, and what options.shape says of it */
    double loss_scale;  /* gradients of the losses are multiplied by it */
    double router_scale; /* and those of the losses of routers, with their coefficients, by this */
    bool first;          /* of this step */
    bool evaluates;      /* forward only, without dropout: no gradient changes */
};
/* Sets *b to micro-batch `number`, without `first` and `evaluates`. Its arrays
 * must stay until the next call. Numbers ascend from 0; with several chunks,
 * one of the last step_window() numbers may come again. */
typedef enum status step_next(void *context, uint64_t number, struct micro_batch *b,
                              struct error *err);
uint64_t step_window(const struct step *s, uint64_t micro_batches, bool evaluates);
/* Queues all micro-batches of a step, or of an evaluation: forward only,
 * without dropout, gradients unchanged. */
MUST_CHECK enum status step_run(struct step *s, uint64_t micro_batches, bool evaluates,
                                step_next *next, void *context, struct error *err);
/* Parts of step_run, for one chunk. number % num_slots is the slot; no other
 * micro-batch may wait there for its backward part. */
MUST_CHECK enum status step_forward(struct step *s, unsigned chunk, uint64_t number,
                                    const struct micro_batch *b, struct error *err);
MUST_CHECK enum status step_backward(struct step *s, unsigned chunk, uint64_t number, bool first,
                                     struct error *err);
MUST_CHECK enum status step_update(struct step *s, const struct step_control *c, struct error *err);
MUST_CHECK enum status step_wait(struct step *s, struct step_result *out, struct error *err);
/* The loss alone, after an evaluation. */
MUST_CHECK enum status step_wait_loss(struct step *s, double *loss, struct error *err);

/* The schedule of a step, on all pipeline ranks. Call schedule_release()
 * afterwards. */
MUST_CHECK enum status step_schedule(const struct step *s, struct schedule *out, struct error *err);
/* Bytes that this rank sends to others of a group in a step of this schedule.
 * Groups of n ranks communicate by rings: 2 (n - 1) / n of an all-reduce's
 * operand; (n - 1) / n of an all-gather's result, and of the operand of a
 * reduce-scatter or of an all-to-all to experts with equal parts. GROUP_PP adds
 * the messages between stages. Sums of single numbers after a step (step_wait)
 * do not count. */
uint64_t step_traffic(const struct step *s, const struct schedule *plan, enum group_kind kind);

/* Runs the last micro-batch again and checks each call's result: ERR_NUMERIC
 * names the first with NaN or infinity. Gradients are invalid afterwards. */
MUST_CHECK enum status step_find_nan(struct step *s, struct error *err);

#endif
