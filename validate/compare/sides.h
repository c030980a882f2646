/* sides.h - opens the two checkpoints and lists their tensors under common
 * names.
 *
 * If both families have a model map, these are logical names; stored tensors
 * without a row in the map keep their own. Otherwise both sides use stored
 * names, unless that would hide that a side is not what its config says
 * (AS_REFUSED, AS_CONTRADICTS).
 *
 * Counted but not listed: vocabulary padding (NAME.padding), and the optimizer
 * if only one side has it or --no-optim is given. Unreadable state counts as
 * present. */
#ifndef FERRY_VALIDATE_COMPARE_SIDES_H
#define FERRY_VALIDATE_COMPARE_SIDES_H

#include "ckpt/checkpoint.h"
#include "common/args.h"
#include "convert/open.h"

/* Heads in the rows of attention weights. */
struct heads {
    uint64_t groups, queries, head_dim; /* key/value heads, query heads of each, rows of a head */
    uint64_t rotary_dim;                /* rotated rows of a head, the first ones */
};

struct side {
    struct checkpoint checkpoint;
    const struct model_maps *maps; /* of sides_open */
    enum reading reading;
    bool stored_only;              /* not AS_MODEL */
    const struct tensor **tensors; /* the tensors to compare */
    size_t num_tensors, tensors_capacity;
    uint64_t bytes;                    /* of these tensors */
    struct heads heads;                /* all 0: not known */
    size_t num_padding, num_optimizer; /* left out */
};

struct sides_options {
    struct source_options source;
    bool no_optim; /* the optimizer is left out on both sides */
};

/* Opens paths[0] and paths[1]. A side without a vocabulary size takes the other
 * side's. Release sides after a failure too, and before maps. */
MUST_CHECK enum status sides_open(struct side sides[2], const char *const paths[2],
                                  const struct sides_options *o, const struct model_maps *maps,
                                  struct error *err);
void sides_init(struct side sides[2]);
/* Options to open one side: a Hugging Face folder has no iterations, and mostly
 * its own config.json. vocab_size: of the other side; 0: the side's own. */
struct source_options side_source_options(const char *path, const struct source_options *o,
                                          uint64_t vocab_size);
void sides_release(struct side sides[2]);

/* The config.json beside a side's weights; NULL if there is none. The caller
 * frees it. */
cJSON *side_config_json(const struct side *s);

/* Returns t if its elements have whole bytes; else a tensor of its bytes, in
 * arena a. NULL if a piece does not consist of whole bytes. */
const struct tensor *tensor_in_bytes(struct arena *a, const struct tensor *t);

#endif
