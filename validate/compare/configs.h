/* configs.h - in which fields the configs of two checkpoints differ, less what the user does not
 * want to know.
 *
 * Of families that Ferry knows these are the fields of their model config. Of folders that go by
 * the names of their files they are the members of their config.json, "text_config.rope_theta":
 * what these mean is not known, so all count but those that are harmless in any model. Single files
 * have none. */
#ifndef FERRY_VALIDATE_COMPARE_CONFIGS_H
#define FERRY_VALIDATE_COMPARE_CONFIGS_H

#include "common/args.h"
#include "convert/config_difference.h"
#include "validate/compare/sides.h"

struct config_comparison {
    struct config_difference *differences; /* those that compute first */
    size_t count;
    size_t num_computing; /* models that differ in these compute different things */
};

extern const char *const config_effect_ids[]; /* "computes", "harmless", "unsaid" */
extern const char *const config_effect_words[];

/* Whether each glob of --ignore-config (NULL: none) matches a field: ERR_USAGE naming the first
 * that does not. */
MUST_CHECK enum status configs_check_ignored(const struct arg_list *ignore,
                                             const struct side sides[2], struct arena *a,
                                             struct error *err);

/* ignore: globs of fields; NULL: none. In arena a. */
struct config_comparison configs_compare(const struct side sides[2], const struct arg_list *ignore,
                                         struct arena *a);

/* What is said of a difference that computes nothing else, as a note. In the arena. */
const char *configs_note_text(struct arena *a, const struct config_difference *d);

#endif
