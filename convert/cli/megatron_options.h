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

    /* If it describes the model: its group in help (else NULL), its
     * name in args, an expression for its default. */
    const char *group, *help, *choices, *arg, *derived;
    bool may_be_0;
    struct scalar usual; /* of a kind that follows from `value` */
    size_t slot;
};
enum { MAX_MODEL_OPTIONS = 64 }; /* of those with a group */

/* Listed options come before those of fields. */
const struct megatron_option *megatron_options(size_t *count);

/* Fills a group like `like` once, and returns it. make() fills *to, and returns
 * whether the group with this title has it. */
const struct arg_group *megatron_options_make(struct arg_group *group, const struct arg_group *like,
                                              bool (*make)(struct arg *to,
                                                           const struct megatron_option *o,
                                                           const char *title));
/* The option whose names begin so. */
const struct megatron_option *megatron_option_find(const char *names);
/* The name in args of an option with these names: "--no-X" unsets X, "--disable-X"
 * unsets add_X, which sets *unsets. In arena a. */
const char *megatron_arg_name(const char *names, bool *unsets, struct arena *a);
/* Whether two values are equal as text or number: 1e-5 is 1e-05. */
bool megatron_value_equal(const char *a, const char *b);

#endif
