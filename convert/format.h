/* format.h - the formats of checkpoints, a row each: how one is recognised and opened, what it is
 * made of, and how it is written. Who needs to know of a checkpoint's format more than how to call
 * it asks a column, not the name.
 *
 *   hf          a Hugging Face folder: config.json and weights (formats/hf_folder.h)
 *   torch_dist  Megatron-Core's distributed checkpoint: a root with its tracker, or one iteration
 *   torch       Megatron-LM's legacy format: mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt */
#ifndef FERRY_CONVERT_FORMAT_H
#define FERRY_CONVERT_FORMAT_H

#include "ckpt/publish.h"
#include "convert/naming.h"
#include "convert/source_kind.h"
#include "convert/target.h"

/* FIRST(name) and NEXT(name): what --to calls a format, and the row format_NAME; ALSO(word, name):
 * another word for it. Of several formats that recognise a path the last counts: config.json, by
 * which the first is known, is in many folders. */
#define FORMATS(FIRST, NEXT, ALSO)                                                                 \
    FIRST(hf)                                                                                      \
    NEXT(torch_dist)                                                                               \
    NEXT(torch)                                                                                    \
    ALSO(huggingface, hf)                                                                          \
    ALSO(safetensors, hf)                                                                          \
    ALSO(megatron, torch_dist)                                                                     \
    ALSO(mcore, torch_dist)                                                                        \
    ALSO(legacy, torch)                                                                            \
    ALSO(megatron_legacy, torch)

/* What a format has. */
enum format_column {
    FORMAT_LAYOUT = 1 << 0,        /* its files follow a parallel layout */
    FORMAT_PADDING = 1 << 1,       /* vocabularies are padded, by that layout */
    FORMAT_ITERATIONS = 1 << 2,    /* a root holds any number, and says which one counts */
    FORMAT_ARGS = 1 << 3,          /* the arguments of the program that trains it */
    FORMAT_COMMON_OBJECT = 1 << 4, /* these may lie in an object beside the weights */
    FORMAT_CONFIG_JSON = 1 << 5,   /* config.json, which says what model it is */
    FORMAT_SHARDS = 1 << 6         /* weights are dealt to files of a size that can be asked for */
};

/* What a checkpoint of a format is made of. Paths are globs below its folder: a row of two
 * components says that the folder is one of its own; what lies deeper belongs to none. */
struct format_contents {
    const char *const *paths;
    size_t num_paths;
    const char *const *signs[2];   /* each a list, NULL at its end, of which one name must be there;
                                    * the second may be NULL */
    const char *lacks;             /* what a folder without them has none of */
    const char *companion_folders; /* where what travels with a Hugging Face model lies; or NULL */
};

struct format {
    const char *name;
    const char *title;            /* "Megatron", as in "holds no Megatron checkpoint" */
    unsigned has;                 /* columns */
    const struct format *becomes; /* what it is converted to where nothing is said; NULL: itself */
    const struct naming *naming;  /* what its programs call tensors */
    const struct source_kind *source;
    const struct target_kind *target;
    const struct format_contents *contents;
    const char *const
        *root_signs; /* FORMAT_ITERATIONS: globs, of which a root has one; NULL ends */
    const char
        *last_entry; /* the file that makes a folder such a checkpoint; NULL: no single one */
};

#define FORMAT_ROW(name) extern const struct format format_##name;
#define FORMAT_WORD(word, name)
FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)
#undef FORMAT_ROW
#undef FORMAT_WORD

/* The format of a name, which no other word for it is; NULL: there is none. */
const struct format *format_find(const char *name);
/* The format that recognises what lies at a path, with these options (NULL: none); NULL: no format
 * does. */
const struct format *format_of_path(const char *path, const struct source_options *o);

/* What publishing needs to know of the format, into *o. */
void format_tell_publishing(const struct format *f, struct publish_options *o);

#endif
