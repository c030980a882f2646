/* megatron_options.h - options of Megatron-LM's training scripts, as data.
 *
 * A field's option is "--" and its name in Megatron's args, from its row in
 * fields.json or megatron.json. options.json lists other names of fields, and
 * options without a member. */
#ifndef FERRY_CONVERT_CLI_MEGATRON_OPTIONS_H
#define FERRY_CONVERT_CLI_MEGATRON_OPTIONS_H

#include "ckpt/model_config.h"
#include "common/args.h"

struct megatron_option {
    const char *names, *value;       /* as in struct arg */
    const struct model_field *field; /* that it sets; NULL: none */
    bool is_of_training; /* `ferry train` computes with it: without effect on a conversion */
    /* Why `ferry train` refuses it, or any value but `only`. */
    const char *why, *only;
};

/* Listed options come before those of fields. */
const struct megatron_option *megatron_options(size_t *count);

/* Fills a group once. make() fills *to, and returns whether the command has it. */
void megatron_options_make(struct arg_group *group,
                           bool (*make)(struct arg *to, const struct megatron_option *o));
/* The option with these names, as in struct arg. */
const struct megatron_option *megatron_option_find(const char *names);
/* The name in args of an option with these names: "--no-X" unsets X, "--disable-X"
 * unsets add_X, which sets *unsets. In arena a. */
const char *megatron_arg_name(const char *names, bool *unsets, struct arena *a);
/* Whether two values are the same text or the same number: 1e-5 is 1e-05. */
bool megatron_value_equal(const char *a, const char *b);

#endif
