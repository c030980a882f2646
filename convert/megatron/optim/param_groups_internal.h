/* param_groups_internal.h - the names of fields in Megatron's dicts, for the param_groups files. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_INTERNAL_H
#define FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_INTERNAL_H

#include "convert/megatron/optim/param_groups.h"

enum { MAX_SPELLINGS = 3 };

/* A field of struct training or struct param_group, and its keys: the present one first. */
struct spelt_field {
    struct field field;
    const char *keys[MAX_SPELLINGS];
    bool falls_below_0; /* a count that Megatron lowers further, which is as good as 0 */
};

/* Of param_groups; betas is a pair of fields and stands apart. By the first NUM_IDENTIFYING of them
 * releases of Megatron match the groups of a file with those of a run. */
enum { NUM_IDENTIFYING = 6 };
extern const struct spelt_field group_keys[];
extern const size_t num_group_keys;
/* Of opt_param_scheduler, in Megatron's order. */
extern const struct spelt_field schedule_keys[];
extern const size_t num_schedule_keys;

/* The key of the field that the dict has; NULL: none. */
const char *spelt_key(const struct spelt_field *f, const struct value *dict);

/* The class of an instance, or the type of another value, for messages. */
const char *value_class(const struct value *v, struct arena *a);

/* Limits of a group's dict. */
enum { MAX_GROUP_PAIRS = 256 };

#endif
