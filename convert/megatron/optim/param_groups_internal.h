/* param_groups_internal.h - names of fields in Megatron's dicts, for the
 * param_groups files. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_INTERNAL_H
#define FERRY_CONVERT_MEGATRON_OPTIM_PARAM_GROUPS_INTERNAL_H

#include "convert/megatron/optim/param_groups.h"

enum { MAX_SPELLINGS = 3 };

/* A field of struct training or struct param_group, and its keys, the current
 * one first. */
struct spelt_field {
    struct field field;
    const char *keys[MAX_SPELLINGS];
    bool falls_below_0; /* a count that Megatron lets become negative, which means 0 */
};

/* Keys of param_groups; betas, a pair of fields, is handled separately.
 * Releases of Megatron match a file's groups with a run's by the first
 * NUM_IDENTIFYING. */
enum { NUM_IDENTIFYING = 6 };
extern const struct spelt_field group_keys[];
extern const size_t num_group_keys;
/* Keys of opt_param_scheduler, in Megatron's order. */
extern const struct spelt_field schedule_keys[];
extern const size_t num_schedule_keys;

/* The field's key in the dict; NULL: none. */
const char *spelt_key(const struct spelt_field *f, const struct value *dict);

/* The class of an instance, or another value's type, for messages. */
const char *value_class(const struct value *v, struct arena *a);

/* Limit of a group's dict. */
enum { MAX_GROUP_PAIRS = 256 };

#endif
