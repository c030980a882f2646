/* sides.h - opens the two checkpoints to compare, and lists the tensors of each under names that
 * both have in common.
 *
 * If both sides are of families with a model map, these are logical names; stored tensors without a
 * row in the map keep their own. Otherwise both sides use the names in their files, unless that
 * would hide that a side is not what its config says (AS_REFUSED, AS_CONTRADICTS).
 *
 * Counted but not listed: vocabulary padding (NAME.padding), and the optimizer if only one side has
 * it or --no-optim is given. State that cannot be read counts as present. */
#ifndef FERRY_VALIDATE_COMPARE_SIDES_H
#define FERRY_VALIDATE_COMPARE_SIDES_H

#include "ckpt/checkpoint.h"
#include "common/args.h"
#include "convert/open.h"

/* The heads that the rows of attention weights consist of. */
struct heads {
    uint64_t groups, queries, head_dim; /* key/value heads, query heads of each, rows of a head */
    uint64_t rotary_dim;                /* rows of a head that are rotated, from the first on */
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

/* Opens paths[0] and paths[1]. A side that does not give the size of its vocabulary takes the other
 * side's. Release sides after a failure too, and before maps. */
MUST_CHECK enum status sides_open(struct side sides[2], const char *const paths[2],
                                  const struct sides_options *o, const struct model_maps *maps,
                                  struct error *err);
void sides_init(struct side sides[2]);
/* The options that one side is opened with: a Hugging Face folder has no iterations, and most have
 * a config.json. vocab_size: that of the other side; 0: the side's own. */
struct source_options side_source_options(const char *path, const struct source_options *o,
                                          uint64_t vocab_size);
void sides_release(struct side sides[2]);

/* The config.json beside a side's weights; NULL if there is none. The caller frees it. */
cJSON *side_config_json(const struct side *s);

/* For a tensor whose elements have no whole bytes, a tensor of its bytes, in arena a; others are
 * returned as they are. NULL if the elements are not stored in whole bytes. */
const struct tensor *tensor_in_bytes(struct arena *a, const struct tensor *t);

#endif
