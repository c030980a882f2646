/* train_names.c - options of Megatron-LM's parser
 * (megatron/training/arguments.py, with the fields of its config classes)
 * without a field in struct train_options. */
#include "train/cli/train_names.h"

#include <string.h>

/* Fields that are not declared have options of their own. */
bool train_other_option(struct arg *to, const struct megatron_option *o, const char *title)
{
    (void)title;
    to->kind = o->only ? ARG_NOTED : ARG_NAMED;
    to->offset = o->only  ? offsetof(struct train_options, limited)
                 : o->why ? offsetof(struct train_options, refused)
                          : offsetof(struct train_options, no_effect);
    return !o->group && !o->is_of_training && (!o->field || o->field->declared);
}

/* Whether the word at `name` is the option that was typed, up to its "=". */
static bool is_typed(const char *name, size_t length, const char *typed)
{
    if (strcspn(typed, "=") != length) return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] != (typed[i] == '_' ? '-' : typed[i])) return false;
    return true;
}

static bool is_one_of(const char *names, const char *typed)
{
    for (const char *at = names; *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (is_typed(at, length, typed)) return true;
        at += length;
    }
    return false;
}

const char *train_refused_reason(const char *typed)
{
    size_t count;
    const struct megatron_option *all = megatron_options(&count);
    for (size_t i = 0; i < count; i++)
        if (all[i].why && is_one_of(all[i].names, typed)) return all[i].why;
    return "not implemented";
}

const char *train_limited_reason(const char *names, const char *value)
{
    const struct megatron_option *o = megatron_option_find(names);
    return megatron_value_equal(value, o->only) ? NULL : o->why;
}
