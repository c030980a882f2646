/* format.h - checkpoint formats, a row each: how a checkpoint is recognised,
 * opened and written, its files and its properties. Code that depends on the
 * format reads a column of the row; it never compares the name.
 *
 *   hf          a Hugging Face folder: config.json and weights (formats/hf_folder.h)
 *   torch_dist  Megatron-Core's distributed checkpoint: a root with its tracker,
 *               or one iteration
 *   torch       Megatron-LM's legacy format:
 *               mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt
 *   fsdp_dtensor  Megatron-FSDP's: an iteration that is a DCP folder; read only
 *   dcp         a DCP folder of FSDP, with Hugging Face's names
 *   torchtitan  a root of DCP folders step-N, with torchtitan's names; or one of them
 *   fsdp        torch.save files of FSDP: model.pt and optim.pt, or one file per rank
 *   deepspeed   ranks' files of DeepSpeed: a root with `latest`, or one tag
 *               (convert/deepspeed)
 *   deepspeed_universal  DeepSpeed's universal form: a folder per parameter
 *
 * The rows are in the programs' folders, as convert/hf/format_hf.c. */
#ifndef FERRY_CONVERT_FORMAT_H
#define FERRY_CONVERT_FORMAT_H

#include "ckpt/publish.h"
#include "convert/naming.h"
#include "convert/source_kind.h"
#include "convert/target.h"

/* FIRST(name) and NEXT(name): the format's name for --to; its row is
 * format_NAME. READ(name): one that is read only. ALSO(word, name): an alias.
 * Where several formats recognise a path, the last one wins: hf comes first,
 * since many folders have its config.json. */
// clang-format off
#define FORMATS(FIRST, NEXT, READ, ALSO)                                                           \
    FIRST(hf)                                                                                      \
    NEXT(torch_dist)                                                                               \
    NEXT(torch)                                                                                    \
    READ(fsdp_dtensor)                                                                             \
    NEXT(dcp)                                                                                      \
    NEXT(torchtitan)                                                                               \
    NEXT(fsdp)                                                                                     \
    NEXT(deepspeed_universal)                                                                      \
    NEXT(deepspeed)                                                                                \
    ALSO(deepspeed-universal, deepspeed_universal)                                                 \
    ALSO(huggingface, hf)                                                                          \
    ALSO(safetensors, hf)                                                                          \
    ALSO(megatron, torch_dist)                                                                     \
    ALSO(mcore, torch_dist)                                                                        \
    ALSO(legacy, torch)                                                                            \
    ALSO(megatron_legacy, torch)                                                                   \
    ALSO(fsdp_full, fsdp)
// clang-format on

/* Properties of a format. */
enum format_column {
    FORMAT_LAYOUT = 1 << 0,        /* its files follow a parallel layout */
    FORMAT_PADDING = 1 << 1,       /* vocabularies are padded by that layout */
    FORMAT_ITERATIONS = 1 << 2,    /* a root holds iterations, and a tracker names the latest */
    FORMAT_ARGS = 1 << 3,          /* has the training program's arguments */
    FORMAT_COMMON_OBJECT = 1 << 4, /* the common state may be an object beside weights */
    FORMAT_CONFIG_JSON = 1 << 5,   /* has a config.json that describes the model */
    FORMAT_SHARDS = 1 << 6,        /* files have at most --max-shard-size of weights */
    FORMAT_ASKS_OPTIM = 1 << 7,    /* optimizer states are written only on request */
    FORMAT_DATA_PARALLEL = 1 << 8, /* data parallel ranks have files (--dp) */
    FORMAT_ZERO = 1 << 9,          /* in one of ZeRO's stages */
    FORMAT_TORCH_GROUPS = 1 << 10, /* param_groups of torch.optim */
    FORMAT_NESTED = 1 << 11,       /* keys are paths in the user's nested dict */
    FORMAT_FUSED_QKV = 1 << 12     /* optimizer states have q, k and v fused */
};

/* Files of a checkpoint, which alone --overwrite may remove. Paths are globs
 * relative to its folder. A path of several components also claims its folders;
 * deeper files never belong. */
struct format_contents {
    const char *const *paths;
    size_t num_paths;
    const char *const *signs[2]; /* NULL-terminated: a checkpoint's folder has a name of each list;
                                    the second may be NULL */
    const char *lacks;           /* noun for messages where a sign is missing */
    const char *companion_folders; /* glob of folders with companions; NULL: none */
};

struct format {
    const char *name;
    const char *title;            /* "Megatron", as in "holds no Megatron checkpoint" */
    unsigned has;                 /* bits of enum format_column */
    const struct format *becomes; /* the target format without --to; NULL: the same format */
    const struct naming *naming;  /* its programs' tensor names */
    const struct source_kind *source;
    const struct target_kind *target;
    const struct format_contents *contents;
    const char *states_in;    /* place of optimizer states, for people; NULL: by --optim-format */
    const char *tokenizer_in; /* folder for the files of a tokenizer; NULL: beside config.json if
                                 the format has one, else none */
    const char *const *root_signs; /* FORMAT_ITERATIONS: NULL-terminated globs; a root has a name
                                      that matches one */
    const char *unit_glob;  /* FORMAT_ITERATIONS: matches the folder of an iteration, "iter_*" */
    const char *last_entry; /* written last and marks a checkpoint; NULL: none */
};

/* Folder of a Megatron iteration with Hugging Face's config.json and
 * companions. */
#define MEGATRON_HF_FOLDER "ferry-hf"
/* Folder of a Megatron iteration with the files of its tokenizer, as
 * Megatron-LM 0.18 and later write it (--save-tokenizer-assets). */
#define MEGATRON_TOKENIZER_FOLDER "tokenizer"

#define FORMAT_ROW(name) extern const struct format format_##name;
#define FORMAT_WORD(word, name)
FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)
#undef FORMAT_ROW
#undef FORMAT_WORD

/* The format of this name or alias; NULL: none. */
const struct format *format_find(const char *name);
/* The format of the file or folder at path: o->format, else the last that
 * recognises it with options o (may be NULL); NULL: none. *also (may be NULL):
 * another that does; NULL: none. */
const struct format *format_of_path(const char *path, const struct source_options *o,
                                    const struct format **also);

/* Sets the members of *o that depend on the format. */
void format_tell_publishing(const struct format *f, struct publish_options *o);

#endif
