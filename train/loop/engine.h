/* engine.h - the functions of the engine, a library of its own: `ferry` starts
 * without OpenBLAS, MPI and CUDA, and loads libferry_engine.so when a command
 * computes.
 *
 * A process started by mpirun or srun joins its job first and leaves it last,
 * and is one rank of the layout. Without a job, these functions fork the ranks,
 * and the caller is rank 0. Either way, all ranks call `next`, and rank 0 gets
 * the results: it alone writes files and prints. */
#ifndef FERRY_TRAIN_LOOP_ENGINE_H
#define FERRY_TRAIN_LOOP_ENGINE_H

#include "common/facts.h"
#include "convert/source.h"
#include "train/model/fit.h"
#include "train/model/weights.h"
#include "train/trainer/trainer.h"

/* A model, its layout and its device. */
struct engine_model {
    const char *path;
    struct source_options source;
    const char *model_map;        /* the user's file; NULL: none */
    struct model_options options; /* on_gpu chooses the device */
    bool on_gpu;
    unsigned threads; /* of all ranks on this host; 0: number of CPUs */
    enum progress_style progress;
    const char *loading; /* title of the progress bar; NULL: "loading" */
    bool quiet;
    bool is_known; /* opened before: its notes are on stderr already */
};

/* Gets the memory plan of all ranks, on rank 0, before any allocation. */
typedef enum status plan_visit(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                               struct error *err);

struct forward_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch shape; /* of the largest batch, to plan memory */
    bool dry_run;       /* stops after checking the memory plan; prints it if visit_plan is NULL */
    plan_visit *visit_plan; /* or NULL */
    /* Gives batch `number`; *more false: there is none. Each new shape makes
     * another program. */
    enum status (*next)(void *context, uint64_t number, struct batch *b, bool *more,
                        struct error *err);
    pass_visit *visit;         /* gets each output of each batch */
    struct pass_taking taking; /* its memory is part of the plan */
    /* Gets each tensor after loading, before the first batch; NULL: unused. */
    weights_visit *visit_weights;
    void *context;
};

struct generate_request {
    struct engine_model model;
    struct batch prompts; /* `lengths` may differ */
    uint64_t max_new_tokens;
    struct sampling sampling;
    const int32_t *end_tokens; /* any of them ends a sequence */
    size_t num_end_tokens;
    bool dry_run;
    plan_visit *visit_plan; /* dry_run and visit_plan as above */
    /* Gets the tokens of all sequences at one step, [num_sequences]; -1 for
     * ended ones. */
    enum status (*visit)(void *context, const int32_t *tokens, struct error *err);
    void *context;
};

/* One op of a program, over all runs of a bench. */
struct bench_row {
    const char *name, *op; /* the name is without the layer: "qkv" */
    bool alone;            /* timed among equal calls of all layers, not between marks */
    double seconds;        /* median over all runs */
    double flops, bytes;
};

/* Times of a pass, and peak rates of the device in the same run. */
struct bench_result {
    const struct bench_row *rows;
    size_t num_rows;
    double seconds, fastest, slowest; /* of a whole run; seconds: the median */
    double copy_rate;                 /* bytes read and written per second by a large copy */
    double product_rate; /* FLOP per second of a large matrix product in the same dtype */
    unsigned graphs;     /* in a run; 0: call by call */
    const char *refused; /* why the device made no graph, or NULL */
    bool finite;         /* no NaN or infinity came out */
    const char *device, *collectives; /* "NVIDIA H200, 141 GB", "nccl" */
};

struct bench_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch batch; /* ids are used; with `past`: a decoding step behind a cache of zeros */
    unsigned warmups, repeats;
    enum status (*visit)(void *context, const struct bench_result *r,
                         struct error *err); /* rank 0's */
    void *context;
};

struct engine {
    /* Joins the job if mpirun or srun started this process; else *rank is 0.
     * Once in a process. */
    enum status (*join)(unsigned *rank, struct error *err);
    /* Collective. ERR_USAGE if a rank's bytes differ from rank 0's. what: their
     * name in the message. */
    enum status (*agree)(const void *data, size_t bytes, const char *what, struct error *err);
    /* Leaves the job, after a failure of join too. st: status of this rank's
     * work. Returns the job's. err has its message on rank 0, or on another
     * rank if rank 0 is gone. */
    enum status (*leave)(enum status st, struct error *err);
    enum status (*forward)(const struct forward_request *q, struct error *err);
    enum status (*generate)(const struct generate_request *q, struct error *err);
    enum status (*bench)(const struct bench_request *q, struct error *err);
    /* trainer_run() of train/trainer/trainer.h. */
    enum status (*train)(const struct train_request *q,
                         void (*ended)(void *context, const struct train_summary *s), void *context,
                         struct error *err);
    /* Adds CPU, BLAS, MPI, GPUs and their
     * libraries. Opens the first GPU. */
    void (*describe)(struct facts *f);
};

/* Loads the library for good. ERR_UNSUPPORTED if it is missing or has another
 * version. */
MUST_CHECK enum status engine_open(const struct engine **out, struct error *err);

/* Work of a command as one rank of its job. */
typedef enum status engine_work(void *context, const struct engine *e, bool is_rank_0,
                                struct error *err);

/* Opens the library, joins the job, works and leaves. */
MUST_CHECK enum status engine_run(engine_work *work, void *context, struct error *err);

/* For a command that forks ranks itself and cannot be one rank of a job. If a
 * launcher started several processes with the same arguments in the same
 * folder, *works is true on rank 0 only; the others return when all have called
 * it, and must end. */
MUST_CHECK enum status engine_is_alone(bool *works, struct error *err);

/* ERR_USAGE if a rank's command line or folder differs from rank 0's. */
MUST_CHECK enum status engine_agree_on_words(const struct engine *e, struct error *err);
/* The same for other words. what: names them in the message, such as "command
 * line". The message has a rank's first different word. */
MUST_CHECK enum status engine_agree_on(const struct engine *e, const char *const *words,
                                       size_t num_words, const char *what, struct error *err);

/* Symbols of that table, and of the version that both must have. */
#define ENGINE_SYMBOL "ferry_engine"
#define ENGINE_VERSION_SYMBOL "ferry_engine_version"

#endif
