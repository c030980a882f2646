/* config_difference.h - in which fields two checkpoints describe different models, and what a
 * config says of what is computed as text that can be digested.
 *
 * A checkpoint says of its model what its format has words for: config.json nearly all, Megatron's
 * args and run_config.yaml less (no yarn, no relu), tensors alone only sizes. A field that one side
 * cannot say is told as such and is no difference: its side reads as what is left of the other
 * side's config when that goes through args and back. */
#ifndef FERRY_CONVERT_CONFIG_DIFFERENCE_H
#define FERRY_CONVERT_CONFIG_DIFFERENCE_H

#include "ckpt/checkpoint.h"

enum config_effect {
    EFFECT_COMPUTES, /* the models compute different things: rope, eps, window, heads, ties ... */
    EFFECT_HARMLESS, /* no logit depends on it: dropout, initialisation, the length of a training */
    EFFECT_UNSAID,   /* one of the two sides cannot say it, or does not */
};

struct config_difference {
    const char *field;     /* a line of MODEL_FIELDS, "moe_layers", "window_layers", or the name of
                            * an unknown field */
    const char *values[2]; /* of a and of b, as text; "not given" where there is none */
    enum config_effect effect;
};

/* The fields in which a and b differ, in the order of MODEL_FIELDS, then unknown ones: those that
 * compute first, then the others. An unknown field of config.json is unsaid where the other side
 * has no config.json. Fields that their features leave unused (rope's of a model with learned
 * positions, the experts' of a dense one) do not count, nor do sizes of the padded vocabulary. All
 * in `arena`. */
size_t config_differences(const struct checkpoint *a, const struct checkpoint *b,
                          struct arena *arena, struct config_difference **out);

/* "num_layers 4\nhidden_size 64\n...": the fields that change what is computed, in the order of
 * MODEL_FIELDS, equal for two configs that describe the same model. NULL where the checkpoint's own
 * words do not say them all: where there is no config.json, with `as_args` false; where there are
 * neither that nor args nor run_config.yaml, with `as_args` true. As args can say them: of a
 * config.json what is left of it when it goes through args and back. Then "unknown NAME VALUE" of
 * each unknown field of config.json, or, with `as_args`, of args and run_config.yaml. In `arena`.
 */
const char *config_text(const struct checkpoint *c, bool as_args, struct arena *arena);

#endif
