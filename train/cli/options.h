/* options.h - the options of all commands that compute. */
#ifndef FERRY_TRAIN_CLI_OPTIONS_H
#define FERRY_TRAIN_CLI_OPTIONS_H

#include "common/args.h"
#include "train/engine.h"

/* How a model is cut and what it is computed in, beside the layout_flags of conversions. */
struct engine_flags {
    uint64_t cp, dp;
    bool sequence_parallel;
    const char *cp_kind, *dtype, *device, *collectives;
    uint64_t threads;
    bool dry_run;
};

extern const struct arg engine_args[];
enum { NUM_ENGINE_ARGS = 9 };
/* The first of them, for commands that have --threads among others, and no --dry-run. */
enum { NUM_PARALLEL_ARGS = 7 };

/* What a command that computes is told. */
struct compute_flags {
    struct source_flags source;
    struct layout_flags layout;
    struct engine_flags engine;
    struct output_flags output;
};

/* The defaults of these flags. */
void compute_defaults(struct compute_flags *f);

MUST_CHECK enum status engine_model_of(const char *path, const struct compute_flags *f,
                                       struct engine_model *out, struct error *err);

/* Token ids from a tensor "input_ids" [sequences, length] (or [length]) of a safetensors file,
 * whole numbers of any type. ids is on the heap. */
MUST_CHECK enum status ids_read(const char *path, struct batch *b, int32_t **ids,
                                struct error *err);

/* Token ids "1,2,3"; sequences of one length are separated by ";". */
MUST_CHECK enum status ids_parse(const char *text, struct batch *b, int32_t **ids,
                                 struct error *err);

#endif
