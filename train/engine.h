/* engine.h - what the program asks of the engine, which is a library of its own: `ferry` starts
 * without OpenBLAS, MPI and CUDA, and loads libferry_engine.so where a command computes.
 *
 * Where the ranks of a layout were not started by mpirun or srun, these functions fork them; then
 * batches are asked for in all of them, and results are given in rank 0, which is the caller. */
#ifndef FERRY_TRAIN_ENGINE_H
#define FERRY_TRAIN_ENGINE_H

#include "convert/options.h"
#include "train/weights.h"

/* Which model, how it is cut, and on what it runs. */
struct engine_model {
    const char *path;
    const struct source_flags *source;
    struct model_options options; /* its device is chosen by on_gpu */
    bool on_gpu;
    unsigned threads; /* of all ranks on this host together; 0: as many as there are CPUs */
    enum progress_style progress;
    bool quiet;
};

struct forward_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch shape; /* of all batches; starts hold for all */
    bool dry_run;       /* print the memory plan and stop */
    /* The next batch, by number; *more is false where there is none. */
    enum status (*next)(void *context, uint64_t number, struct batch *b, bool *more,
                        struct error *err);
    pass_visit *visit; /* of each output of each batch */
    /* Of each tensor, once it is in memory and before the first batch; NULL: not wanted. */
    weights_visit *visit_weights;
    void *context;
};

/* How a token is chosen: kernels/ops.h, OP_SAMPLE. */
struct sampling {
    double temperature, top_p;
    uint64_t top_k, seed;
};

struct generate_request {
    struct engine_model model;
    struct batch prompts;
    uint64_t max_new_tokens;
    struct sampling sampling;
    int32_t end_token; /* a sequence ends with it; -1: none */
    bool dry_run;
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
    const char *device, *collectives; /* "NVIDIA H200, 141 GB", "nccl" */
};

struct bench_request {
    struct engine_model model;
    struct pass_options pass;
    struct batch batch; /* ids are used */
    uint64_t past; /* positions before it that the cache holds (of zeros): a step of decoding */
    unsigned warmups, repeats;
    enum status (*visit)(void *context, const struct bench_result *r,
                         struct error *err); /* rank 0's */
    void *context;
};

struct engine {
    enum status (*forward)(const struct forward_request *q, struct error *err);
    enum status (*generate)(const struct generate_request *q, struct error *err);
    enum status (*bench)(const struct bench_request *q, struct error *err);
};

/* The library's table of functions; it stays loaded. ERR_UNSUPPORTED where it is not installed, or
 * of another version. */
MUST_CHECK enum status engine_open(const struct engine **out, struct error *err);

/* The name of that table in the library, and of the version that both must have. */
#define ENGINE_SYMBOL "ferry_engine"
#define ENGINE_VERSION_SYMBOL "ferry_engine_version"

#endif
