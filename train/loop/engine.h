/* engine.h - the functions of the engine, a library of its own: `ferry` starts without OpenBLAS,
 * MPI and CUDA, and loads libferry_engine.so when a command computes.
 *
 * A process that mpirun or srun started joins its job first and leaves it last, and is one rank of
 * the layout. Without a job, these functions fork the ranks, and the caller is rank 0. Either way
 * `next` is called in all ranks, and results are given to rank 0, which alone writes files and
 * prints. */
#ifndef FERRY_TRAIN_LOOP_ENGINE_H
#define FERRY_TRAIN_LOOP_ENGINE_H

#include "convert/source.h"
#include "train/model/fit.h"
#include "train/model/weights.h"
#include "train/trainer/trainer.h"

/* A model, its layout, and the device that it runs on. */
struct engine_model {
    const char *path;
    struct source_options source;
    const char *model_map;        /* a file of the user; NULL: none */
    struct model_options options; /* its device is chosen by on_gpu */
    bool on_gpu;
    unsigned threads; /* of all ranks on this host together; 0: as many as there are CPUs */
    enum progress_style progress;
    const char *loading; /* title of the progress bar; NULL: "loading" */
    bool quiet;
    bool is_known; /* it was opened before, so its notes are on stderr already */
};

/* Gets the memory plan of all ranks; on rank 0, before anything is allocated. */
typedef enum status plan_visit(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                               struct error *err);

struct forward_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch shape; /* of the largest batch, for which memory is planned */
    bool
        dry_run; /* stops when the memory plan was made and fits; prints it if visit_plan is NULL */
    plan_visit *visit_plan; /* NULL: not wanted */
    /* Gives batch `number`; *more is false if there is none. For each new shape another program is
     * made. */
    enum status (*next)(void *context, uint64_t number, struct batch *b, bool *more,
                        struct error *err);
    pass_visit *visit;         /* gets each output of each batch */
    struct pass_taking taking; /* how; its memory is part of the plan */
    /* Gets each tensor when all are loaded, before the first batch; NULL: not wanted. */
    weights_visit *visit_weights;
    void *context;
};

struct generate_request {
    struct engine_model model;
    struct batch prompts; /* `lengths` may differ */
    uint64_t max_new_tokens;
    struct sampling sampling;
    const int32_t *end_tokens; /* a sequence ends with any of them */
    size_t num_end_tokens;
    bool dry_run;
    plan_visit *visit_plan; /* dry_run and visit_plan as above */
    /* The tokens of all sequences at one step, [num_sequences]; -1 for those that have ended. */
    enum status (*visit)(void *context, const int32_t *tokens, struct error *err);
    void *context;
};

/* One op of a program, over all runs of a bench. */
struct bench_row {
    const char *name, *op; /* the name is without the layer: "qkv" */
    bool alone;     /* timed among its like of all layers, not between marks of the whole run */
    double seconds; /* of one run, the median over all */
    double flops, bytes;
};

/* Times of a pass, and the peak rates of the device, measured in the same run. */
struct bench_result {
    const struct bench_row *rows;
    size_t num_rows;
    double seconds, fastest, slowest; /* of a whole run; the first is the median */
    double copy_rate;                 /* bytes read and written a second, of a large copy */
    double product_rate; /* FLOP a second, of a large matrix product in the same dtype */
    unsigned graphs;     /* in a run; 0: it ran call by call */
    const char *refused; /* why the device made no graph; NULL */
    bool finite;         /* no NaN or infinity came out */
    const char *device, *collectives; /* "NVIDIA H200, 141 GB", "nccl" */
};

struct bench_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch batch; /* ids are used; with `past` a step of decoding behind a cache of zeros */
    unsigned warmups, repeats;
    enum status (*visit)(void *context, const struct bench_result *r,
                         struct error *err); /* rank 0's */
    void *context;
};

struct engine {
    /* Joins the job if mpirun or srun started this process; else *rank is 0. Call it once in a
     * process. */
    enum status (*join)(unsigned *rank, struct error *err);
    /* ERR_USAGE in all ranks if a rank has other bytes than rank 0. `what` names them in the
     * message. */
    enum status (*agree)(const void *data, size_t bytes, const char *what, struct error *err);
    /* Leaves the job; also after a failure of join. st: the status of this rank's work. Returns
     * that of the job. err has its message on rank 0, or on another rank if rank 0 is gone. */
    enum status (*leave)(enum status st, struct error *err);
    enum status (*forward)(const struct forward_request *q, struct error *err);
    enum status (*generate)(const struct generate_request *q, struct error *err);
    enum status (*bench)(const struct bench_request *q, struct error *err);
    /* trainer_run() of train/trainer/trainer.h. */
    enum status (*train)(const struct train_request *q,
                         void (*ended)(void *context, const struct train_summary *s), void *context,
                         struct error *err);
};

/* The library's table of functions; it stays loaded. ERR_UNSUPPORTED if it is not installed or
 * has another version. */
MUST_CHECK enum status engine_open(const struct engine **out, struct error *err);

/* The work of a command as one rank of its job. */
typedef enum status engine_work(void *context, const struct engine *e, bool is_rank_0,
                                struct error *err);

/* Opens the library, joins the job, works and leaves. */
MUST_CHECK enum status engine_run(engine_work *work, void *context, struct error *err);

/* For a command that forks ranks itself and cannot be one rank of a job. If a launcher started
 * several processes with the same arguments in the same folder, *works is true on rank 0 only; the
 * others return when all have made this call, and must end. */
MUST_CHECK enum status engine_is_alone(bool *works, struct error *err);

/* ERR_USAGE if a rank of a job was started with another command line, or in another folder, than
 * rank 0. */
MUST_CHECK enum status engine_agree_on_words(const struct engine *e, struct error *err);
/* The same of other words: `what` names them, "command line". The message of a rank has its
 * first that differs. */
MUST_CHECK enum status engine_agree_on(const struct engine *e, const char *const *words,
                                       size_t num_words, const char *what, struct error *err);

/* The name of that table in the library, and of the version that both must have. */
#define ENGINE_SYMBOL "ferry_engine"
#define ENGINE_VERSION_SYMBOL "ferry_engine_version"

#endif
