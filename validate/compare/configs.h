/* configs.h - the differing config fields of two checkpoints, without those of
 * --ignore-config.
 *
 * Families with a model map: fields of the model config. Other folders: members
 * of config.json, such as "text_config.rope_theta"; Ferry does not know their
 * meaning, so all count except members that are harmless in any model. Single
 * files have no config. */
#ifndef FERRY_VALIDATE_COMPARE_CONFIGS_H
#define FERRY_VALIDATE_COMPARE_CONFIGS_H

#include "common/args.h"
#include "convert/megatron/config_difference.h"
#include "validate/compare/sides.h"

struct config_comparison {
    struct config_difference *differences; /* those that change the computation come first */
    size_t count;
    size_t num_computing; /* differences that change the computation */
};

extern const char *const config_effect_ids[]; /* "computes", "harmless", "unsaid" */
extern const char *const config_effect_words[];

/* Checks that each glob of --ignore-config (NULL: none) matches a field.
 * ERR_USAGE, with the first glob that does not. */
MUST_CHECK enum status configs_check_ignored(const struct arg_list *ignore,
                                             const struct side sides[2], struct arena *a,
                                             struct error *err);

/* Compares the configs of both sides. ignore: globs of fields; NULL: none. In
 * arena a. */
struct config_comparison configs_compare(const struct side sides[2], const struct arg_list *ignore,
                                         struct arena *a);

/* Text of a note on a difference that does not change the computation; in the
 * arena. */
const char *configs_note_text(struct arena *a, const struct config_difference *d);

#endif
