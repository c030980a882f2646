/* config_difference.h - compares the models of two checkpoints field by field;
 * writes a config as text for a digest.
 *
 * A format may be unable to express a field: config.json has nearly all,
 * Megatron's args and run_config.yaml fewer (no yarn, no relu), tensors alone
 * only sizes. A field that one side cannot express is reported and is no
 * difference. To compare the others, a config.json's config is first written as
 * args and read back. */
#ifndef FERRY_CONVERT_MEGATRON_CONFIG_DIFFERENCE_H
#define FERRY_CONVERT_MEGATRON_CONFIG_DIFFERENCE_H

#include "ckpt/checkpoint.h"

enum config_effect {
    EFFECT_COMPUTES, /* models compute differently: rope, eps, window, heads, ties ... */
    EFFECT_HARMLESS, /* no effect on logits: dropout, initialisation, max_position_embeddings */
    EFFECT_UNSAID,   /* one side cannot express it, or does not give it */
};

struct config_difference {
    /* a line of MODEL_FIELDS, "moe_layers", "window_layers", or an unknown field */
    const char *field;
    const char *values[2]; /* of a and b, as text; "not given" if missing */
    enum config_effect effect;
};

/* Lists the fields in which a and b differ: those of EFFECT_COMPUTES, then the
 * others; each in the order of MODEL_FIELDS, then unknown fields. An unknown
 * field of config.json has EFFECT_UNSAID if the other side has no config.json.
 * Not compared: fields that the model does not use (rope's with learned
 * positions, experts' in a dense model), and sizes of the padded vocabulary.
 * Texts are in `arena`. */
size_t config_differences(const struct checkpoint *a, const struct checkpoint *b,
                          struct arena *arena, struct config_difference **out);

/* "num_layers 4\nhidden_size 64\n...": fields that change the computation, in
 * the order of MODEL_FIELDS, equal for configs of the same model; then a line
 * "unknown NAME VALUE" per unknown field.
 *
 * as_args false: fields and unknown fields of config.json; NULL without a
 * config.json. as_args true: fields as args express them (a config.json is
 * written as args and read back), and unknown fields of args and
 * run_config.yaml; NULL without any of the three. In `arena`. */
const char *config_text(const struct checkpoint *c, bool as_args, struct arena *arena);

#endif
