/* options.h - options of several commands, as tables for common/args.h. */
#ifndef FERRY_CONVERT_CLI_OPTIONS_H
#define FERRY_CONVERT_CLI_OPTIONS_H

#include "ckpt/executor.h"
#include "common/args.h"
#include "convert/format.h"
#include "convert/source.h"
#include "convert/target.h"

/* Options of a source, for facts missing in the checkpoint. */
struct source_flags {
    const char *from, *hf_config, *family, *model_map;
    uint64_t ckpt_step; /* UINT64_MAX: not given */
    uint64_t true_vocab_size;
    struct arg_list allow_config;
};

/* Options of a destination in the formats of trainers other than Megatron. */
struct trainer_flags {
    uint64_t dp;
    const char *zero, *names, *optim_key;
    bool flatten_optim, split_qkv, split_decay;
};

/* Resources and file handling. */
struct run_flags {
    uint64_t threads, max_memory;
    bool no_fsync, direct_io, overwrite;
};

/* --max-memory if the option is not given, in bytes. */
enum { DEFAULT_MAX_MEMORY = 256 << 20 };

/* Options of the output. */
struct output_flags {
    bool json, quiet, verbose;
    const char *progress;
};

/* The choices of --to, " word=name" for
 * each alias, and its spellings. */
#define NO_FORMAT(name)
#define NO_OTHER_FORMAT(word, name)
#define FIRST_FORMAT(name) #name
#define NEXT_FORMAT(name) "|" #name
#define EQUAL_FORMAT(word, name) " " #word "=" #name
#define TO_CHOICES FORMATS(FIRST_FORMAT, NEXT_FORMAT, NO_FORMAT, NO_OTHER_FORMAT)
#define OTHER_FORMATS FORMATS(NO_FORMAT, NO_FORMAT, NO_FORMAT, EQUAL_FORMAT)
extern const struct arg_spelling to_spellings[];

/* layout_args: the fields of struct layout_options except cp and dp, which
 * change no file. */
extern const struct arg source_args[], layout_args[], trainer_args[], run_args[], output_args[];
enum { NUM_READ_ARGS = 3 }; /* first rows of run_args, for commands that write nothing */
enum {
    NUM_TO_SPELLINGS = 13,
    NUM_SOURCE_ARGS = 7,
    NUM_LAYOUT_ARGS = NUM_LAYOUT_FIELDS - 2,
    NUM_TRAINER_ARGS = 7,
    NUM_RUN_ARGS = 5,
    NUM_OUTPUT_ARGS = 4
};

struct executor_options executor_options_of(const struct run_flags *r,
                                            const struct output_flags *o);
/* The result points into f. */
struct source_options source_options_of(const struct source_flags *f);

/* The destination's format by --to and --names. Without --to (NULL), --names
 * may imply it; else it is `without`. */
const struct format *trainer_format(const struct trainer_flags *f, const char *to,
                                    const struct format *without);
/* ERR_USAGE if an option does not apply to the destination's format, or Ferry
 * cannot write it. */
MUST_CHECK enum status trainer_flags_check(const struct trainer_flags *f, const struct format *to,
                                           struct error *err);
void trainer_flags_apply(const struct trainer_flags *f, struct target_options *to);

#endif
