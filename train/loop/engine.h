/* engine.h - what the program asks of the engine, which is a library of its own: `ferry` starts
 * without OpenBLAS, MPI and CUDA, and loads libferry_engine.so where a command computes.
 *
 * A process that mpirun or srun started joins its job first, and leaves it last; then it is one
 * rank of the layout. Without a job, these functions fork the ranks, and the caller is
 * rank 0. Either way batches are asked for in all ranks, and results are given in rank 0, which
 * alone writes files and prints. */
#ifndef FERRY_TRAIN_LOOP_ENGINE_H
#define FERRY_TRAIN_LOOP_ENGINE_H

#include "convert/source.h"
#include "train/model/fit.h"
#include "train/model/weights.h"

/* Which model, how it is cut, and on what it runs. */
struct engine_model {
    const char *path;
    struct source_options source;
    const char *model_map;        /* a file of the user; NULL: none */
    struct model_options options; /* its device is chosen by on_gpu */
    bool on_gpu;
    unsigned threads; /* of all ranks on this host together; 0: as many as there are CPUs */
    enum progress_style progress;
    const char *loading; /* what progress calls it; NULL: "loading" */
    bool quiet;
    bool is_known; /* it was opened before, and what there is to note of it is on stderr */
};

/* The memory that each rank is to take; on rank 0, before anything is allocated. */
typedef enum status plan_visit(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                               struct error *err);

struct forward_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch shape; /* of the largest batch, for which memory is planned */
    bool dry_run; /* stop when memory is planned and known to fit; printed where no visit_plan takes
                     it */
    plan_visit *visit_plan; /* NULL: not wanted */
    bool keeps_results;     /* visit keeps a copy of all: memory for it is judged beforehand */
    /* The next batch, by number; *more is false where there is none. Each change of shape makes
     * another program. */
    enum status (*next)(void *context, uint64_t number, struct batch *b, bool *more,
                        struct error *err);
    pass_visit *visit; /* of each output of each batch */
    /* Of each tensor, once it is in memory and before the first batch; NULL: not wanted. */
    weights_visit *visit_weights;
    void *context;
};

/* How a token is chosen: kernels/op_list.h, OP_SAMPLE. */
struct sampling {
    double temperature, top_p;
    uint64_t top_k, seed;
};

struct generate_request {
    struct engine_model model;
    struct batch prompts; /* of the lengths that it says */
    uint64_t max_new_tokens;
    struct sampling sampling;
    const int32_t *end_tokens; /* a sequence ends with any of them */
    size_t num_end_tokens;
    bool dry_run;
    plan_visit *visit_plan; /* both as above */
    /* The tokens of all sequences at one step, [num_sequences]; -1 for those that have ended. */
    enum status (*visit)(void *context, const int32_t *tokens, struct error *err);
    void *context;
};

/* One op of a program, over all runs of a bench. */
struct bench_row {
    const char *label, *op;
    int layer;
    double seconds; /* of one run, the median over all */
    double flops, bytes;
};

/* A pass, and what the device can do at most: measured in the same run. */
struct bench_result {
    const struct bench_row *rows;
    size_t num_rows;
    double seconds, fastest, slowest; /* of a whole run; the first is the median */
    double copy_rate;                 /* bytes read and written a second, of a large copy */
    double product_rate;              /* FLOP a second, of a large product of the same elements */
    unsigned graphs;                  /* that a run was made of; 0: call by call */
    const char *refused;              /* why the device made no graph; NULL */
    bool finite;                      /* no NaN or infinity came out */
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
    /* The job that this process was started in, if mpirun or srun did; *rank is 0 otherwise. Once
     * in the life of a process. */
    enum status (*join)(unsigned *rank, struct error *err);
    /* ERR_USAGE in all ranks of the job where one has other bytes than rank 0. */
    enum status (*agree)(const void *data, size_t bytes, const char *what, struct error *err);
    /* st: how this rank's work ended; after a failure of join, too. Returns how that of all did.
     * Text is in err where nobody else has it to print: on rank 0, or where that is gone. */
    enum status (*leave)(enum status st, struct error *err);
    enum status (*forward)(const struct forward_request *q, struct error *err);
    enum status (*generate)(const struct generate_request *q, struct error *err);
    enum status (*bench)(const struct bench_request *q, struct error *err);
};

/* The library's table of functions; it stays loaded. ERR_UNSUPPORTED where it is not installed, or
 * of another version. */
MUST_CHECK enum status engine_open(const struct engine **out, struct error *err);

/* What a command does as one rank of its job. */
typedef enum status engine_work(void *context, const struct engine *e, bool is_rank_0,
                                struct error *err);

/* Opens the library, joins the job, works and leaves. */
MUST_CHECK enum status engine_run(engine_work *work, void *context, struct error *err);

/* For work that is not done in parallel, but starts ranks of its own: where a launcher started
 * several processes, with the same words in the same folder, it is rank 0's alone. The others wait
 * here until all are there, and are told to end. */
MUST_CHECK enum status engine_is_alone(bool *works, struct error *err);

/* The name of that table in the library, and of the version that both must have. */
#define ENGINE_SYMBOL "ferry_engine"
#define ENGINE_VERSION_SYMBOL "ferry_engine_version"

#endif
