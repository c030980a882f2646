/* megatron_options.h - options of Megatron-LM's training scripts, as data.
 *
 * An option of a field is "--" and the field's name in Megatron's args: it comes
 * from the row of fields.json or megatron.json. convert/models/options.json
 * lists those of fields under other names, and options that no command has a
 * member for. */
#ifndef FERRY_CONVERT_CLI_MEGATRON_OPTIONS_H
#define FERRY_CONVERT_CLI_MEGATRON_OPTIONS_H

#include "ckpt/model_config.h"
#include "common/args.h"

struct megatron_option {
    const char *names, *value; /* as in struct arg */
    /* The field of the model that it sets, and the value that a flag stands for;
     * NULL: none. */
    const struct model_field *field;
    const char *means;
    bool is_of_training; /* `ferry train` computes with it: without effect on a conversion */
    /* Why `ferry train` refuses it, or any value but `only`. */
    const char *why, *only;
};

/* Listed options come before those of fields. */
const struct megatron_option *megatron_options(size_t *count);

/* Fills a group's options, which are never freed, unless it has any. make() fills
 * *to from an option, and returns whether the command has it. */
void megatron_options_make(struct arg_group *group,
                           bool (*make)(struct arg *to, const struct megatron_option *o));
/* The option with these names, as in struct arg. */
const struct megatron_option *megatron_option_find(const char *names);

#endif
