/* sides.h - opens the two checkpoints that are compared, and lists the tensors of each under names
 * that both have in common.
 *
 * Where both are of families with a model map, these are logical names, and stored tensors that no
 * row of the map names go by their own. Else both go by the names of their files,
 * unless that would hide that one of them is not what its config says (AS_REFUSED,
 * AS_CONTRADICTS).
 *
 * Not listed, but counted: vocabulary padding (NAME.padding), and the optimizer if only one side
 * has it or if --no-optim is given. State that cannot be read counts as present. */
#ifndef FERRY_VALIDATE_COMPARE_SIDES_H
#define FERRY_VALIDATE_COMPARE_SIDES_H

#include "ckpt/checkpoint.h"
#include "common/args.h"
#include "convert/open.h"

/* How the rows of attention weights are made of heads. */
struct heads {
    uint64_t groups, queries, head_dim; /* key/value heads, query heads of each, rows of a head */
    uint64_t rotary_dim;                /* rows of a head that are rotated, from the first on */
};

struct side {
    struct checkpoint checkpoint;
    const struct model_maps *maps; /* of sides_open */
    enum reading reading;
    bool stored_only;              /* not AS_MODEL */
    const struct tensor **tensors; /* those that are compared */
    size_t num_tensors, tensors_capacity;
    uint64_t bytes;                    /* of them */
    struct heads heads;                /* all 0: not known */
    size_t num_padding, num_optimizer; /* left out */
};

struct sides_options {
    struct source_options source;
    bool no_optim; /* the optimizer is left out on both sides */
};

/* Opens paths[0] and paths[1]. What a map or a config.json says of the vocabulary on one side is
 * taken for the other where that does not say it. sides are to be released after a failure too, and
 * before maps. */
MUST_CHECK enum status sides_open(struct side sides[2], const char *const paths[2],
                                  const struct sides_options *o, const struct model_maps *maps,
                                  struct error *err);
void sides_init(struct side sides[2]);
void sides_release(struct side sides[2]);

/* The config.json beside a side's weights; NULL where there is none. The caller frees it. */
cJSON *side_config_json(const struct side *s);

/* A tensor whose elements have no whole bytes as one of bytes, in arena a; the tensor itself where
 * they have. NULL where its elements are not stored in whole bytes. */
const struct tensor *tensor_in_bytes(struct arena *a, const struct tensor *t);

#endif
