/* format.h - the formats of checkpoints, a row each: how a checkpoint is recognised, opened and
 * written, which files it is made of, and which properties the format has. Code whose behaviour
 * depends on the format reads a column of this row; it never compares the name.
 *
 *   hf          a Hugging Face folder: config.json and weights (formats/hf_folder.h)
 *   torch_dist  Megatron-Core's distributed checkpoint: a root with its tracker, or one iteration
 *   torch       Megatron-LM's legacy format: mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt
 *   deepspeed   global_stepN with a file for each data parallel rank; `latest` beside it
 *   deepspeed_universal  global_stepN_universal with a folder for each parameter */
#ifndef FERRY_CONVERT_FORMAT_H
#define FERRY_CONVERT_FORMAT_H

#include "ckpt/publish.h"
#include "convert/naming.h"
#include "convert/source_kind.h"
#include "convert/target.h"

/* FIRST(name) and NEXT(name): the format's name for --to; its row is format_NAME. ALSO(word, name):
 * another name for it. If several formats recognise a path, the last one is taken: hf, the first,
 * is recognised by config.json, which many folders have. */
// clang-format off
#define FORMATS(FIRST, NEXT, ALSO)                                                                 \
    FIRST(hf)                                                                                      \
    NEXT(torch_dist)                                                                               \
    NEXT(torch)                                                                                    \
    NEXT(deepspeed)                                                                                \
    NEXT(deepspeed_universal)                                                                      \
    ALSO(huggingface, hf)                                                                          \
    ALSO(safetensors, hf)                                                                          \
    ALSO(megatron, torch_dist)                                                                     \
    ALSO(mcore, torch_dist)                                                                        \
    ALSO(legacy, torch)                                                                            \
    ALSO(megatron_legacy, torch)                                                                   \
    ALSO(deepspeed-universal, deepspeed_universal)
// clang-format on

/* Properties of a format. */
enum format_column {
    FORMAT_LAYOUT = 1 << 0,        /* its files follow a parallel layout */
    FORMAT_PADDING = 1 << 1,       /* vocabularies are padded, by that layout */
    FORMAT_ITERATIONS = 1 << 2,    /* a root holds iterations, and a tracker names the latest */
    FORMAT_ARGS = 1 << 3,          /* has the arguments of the program that trains the model */
    FORMAT_COMMON_OBJECT = 1 << 4, /* the common state may be an object beside the weights */
    FORMAT_CONFIG_JSON = 1 << 5,   /* has a config.json that describes the model */
    FORMAT_ASKS_OPTIM = 1 << 7, /* the optimizer's state is only written if the user asks for it */
    FORMAT_SHARDS = 1 << 6,     /* weights are split into files, up to --max-shard-size each */
    FORMAT_DATA_PARALLEL = 1 << 8, /* data parallel ranks have files of their own (--dp) */
    FORMAT_ZERO = 1 << 9,          /* in one of the stages of ZeRO */
    FORMAT_TORCH_GROUPS = 1 << 10, /* groups of parameters are those of torch.optim */
    FORMAT_NESTED = 1 << 11,       /* keys are paths in a nested dict of the user's */
    FORMAT_FUSED_QKV = 1 << 12     /* the optimizer has q, k and v as one */
};

/* The files that a checkpoint of a format is made of, so that --overwrite removes no others. Paths
 * are globs relative to its folder. A path of several components also says that the folders belong
 * to the checkpoint; deeper files never belong. */
struct format_contents {
    const char *const *paths;
    size_t num_paths;
    const char *const *signs[2];   /* lists that end with NULL: a folder is a checkpoint if it has a
                                      name of each; the second may be NULL */
    const char *lacks;             /* the noun for messages if a sign is missing */
    const char *companion_folders; /* glob of the folders that hold companions
                                      (convert/companions.h); or NULL */
};

struct format {
    const char *name;
    const char *title;            /* "Megatron", as in "holds no Megatron checkpoint" */
    unsigned has;                 /* bits of enum format_column */
    const struct format *becomes; /* the target format without --to; NULL: the same format */
    const struct naming *naming;  /* the tensor names that its programs use */
    const struct source_kind *source;
    const struct target_kind *target;
    const struct format_contents *contents;
    const char *const *root_signs; /* FORMAT_ITERATIONS: globs; a root has a name that matches one;
                                      NULL at the end */
    const char *unit_glob; /* FORMAT_ITERATIONS: matches the folder of an iteration, "iter_*" */
    const char *
        last_entry; /* written last: the file without which a folder is no checkpoint; NULL: none */
};

/* The folder in an iteration of Megatron's that has Hugging Face's config.json and its companions.
 */
#define MEGATRON_HF_FOLDER "ferry-hf"

#define FORMAT_ROW(name) extern const struct format format_##name;
#define FORMAT_WORD(word, name)
FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)
#undef FORMAT_ROW
#undef FORMAT_WORD

/* The format with this name, or one of its other names; NULL: none. */
const struct format *format_find(const char *name);
/* The format of the file or folder at path: that of o->format, else the last one that recognises it
 * with options o (may be NULL); NULL: none. *also (may be NULL): another one that recognises it;
 * NULL: none. */
const struct format *format_of_path(const char *path, const struct source_options *o,
                                    const struct format **also);

/* Sets the members of *o that depend on the format. */
void format_tell_publishing(const struct format *f, struct publish_options *o);

#endif
