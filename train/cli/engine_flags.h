/* engine_flags.h - options shared by all commands that compute. */
#ifndef FERRY_TRAIN_CLI_ENGINE_FLAGS_H
#define FERRY_TRAIN_CLI_ENGINE_FLAGS_H

#include "common/args.h"
#include "convert/cli/options.h"
#include "convert/hf/end_tokens.h"
#include "train/loop/engine.h"

/* Layout, dtype and device of a computation. */
struct engine_flags {
    struct layout_options layout; /* by layout_args; cp and dp by engine_args */
    bool sequence_parallel;
    const char *cp_kind, *dtype, *device, *collectives, *weights;
    uint64_t threads;
    bool dry_run;
};

extern const struct arg engine_args[];
enum { NUM_ENGINE_ARGS = 10 };
/* The first rows, without --weights, --threads and --dry-run. */
enum { NUM_PARALLEL_ARGS = 7 };

/* The options of a computing command. */
struct compute_flags {
    struct source_flags source;
    struct engine_flags engine;
    struct output_flags output;
};

/* The defaults of these flags. */
void compute_defaults(struct compute_flags *f);

MUST_CHECK enum status engine_model_of(const char *path, const struct compute_flags *f,
                                       struct engine_model *out, struct error *err);

/* Facts about a model that a command needs before it runs. */
struct model_facts {
    uint64_t vocab_size;          /* without padding; 0: not known */
    uint64_t positions;           /* that it was made for; 0: not known */
    struct end_tokens end_tokens; /* where they are wanted */
};
MUST_CHECK enum status model_facts_read(const char *path, const struct source_flags *flags,
                                        bool wants_end_tokens, struct model_facts *out,
                                        struct error *err);

#endif
