/* config_difference.h - compares the models that two checkpoints describe, field by field; and
 * writes a config as text that can be digested.
 *
 * A checkpoint can only describe its model in the words of its format: config.json has nearly all,
 * Megatron's args and run_config.yaml have fewer (no yarn, no relu), tensors alone show only sizes.
 * A field that one side has no word for is reported as such and is no difference. To compare the
 * other fields, a config.json's config is first written as args and read back. */
#ifndef FERRY_CONVERT_MEGATRON_CONFIG_DIFFERENCE_H
#define FERRY_CONVERT_MEGATRON_CONFIG_DIFFERENCE_H

#include "ckpt/checkpoint.h"

enum config_effect {
    EFFECT_COMPUTES, /* the models compute different things: rope, eps, window, heads, ties ... */
    EFFECT_HARMLESS, /* no logit depends on it: dropout, initialisation, max_position_embeddings */
    EFFECT_UNSAID,   /* one side has no word for it, or does not give it */
};

struct config_difference {
    const char *field;     /* a line of MODEL_FIELDS, "moe_layers", "window_layers", or the name of
                            * an unknown field */
    const char *values[2]; /* of a and of b, as text; "not given" where there is none */
    enum config_effect effect;
};

/* The fields in which a and b differ, those of EFFECT_COMPUTES first; among these and among the
 * others in the order of MODEL_FIELDS, then unknown fields. An unknown field of config.json has
 * EFFECT_UNSAID if the other side has no config.json. Not compared: fields that the model does not
 * use (rope's with learned positions, experts' in a dense model), and sizes of the padded
 * vocabulary. All texts are in `arena`. */
size_t config_differences(const struct checkpoint *a, const struct checkpoint *b,
                          struct arena *arena, struct config_difference **out);

/* "num_layers 4\nhidden_size 64\n...": the fields that change what is computed, in the order of
 * MODEL_FIELDS; two configs that describe the same model have the same text. Then a line
 * "unknown NAME VALUE" for each unknown field.
 *
 * as_args false: the fields and the unknown fields of config.json; NULL if there is no config.json.
 * as_args true: the fields as args can express them (a config.json is written as args and read
 * back), and the unknown fields of args and run_config.yaml; NULL if there is no config.json, no
 * args and no run_config.yaml. In `arena`. */
const char *config_text(const struct checkpoint *c, bool as_args, struct arena *arena);

#endif
