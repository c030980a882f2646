/* args_internal.h - shared by the files common/args*.c. */
#ifndef FERRY_COMMON_ARGS_INTERNAL_H
#define FERRY_COMMON_ARGS_INTERNAL_H

#include <string.h>

#include "common/args.h"

struct word {
    const char *text;
    size_t length;
};

/* The next word of a text separated by c; *at moves behind it. */
static inline bool next_word(const char **at, char c, struct word *w)
{
    while (**at == c)
        (*at)++;
    w->text = *at;
    while (**at && **at != c)
        (*at)++;
    w->length = (size_t)(*at - w->text);
    return w->length > 0;
}

/* Option n of all groups in order; NULL past the last. */
static inline const struct arg *arg_at(const struct command *c, size_t n,
                                       const struct arg_group **group)
{
    for (size_t g = 0; g < c->num_groups; g++) {
        *group = c->groups[g].args ? &c->groups[g] : c->made(&c->groups[g]);
        if (n < (*group)->num_args) return &(*group)->args[n];
        n -= (*group)->num_args;
    }
    return NULL;
}

static inline bool is_flag(const struct arg *a)
{
    return a->kind == ARG_FLAG || a->kind == ARG_FLAG_OFF;
}

static inline bool takes_value(const struct arg *a)
{
    return !is_flag(a) &&
           (a->value || (a->kind != ARG_IGNORED && a->kind != ARG_NOTED && a->kind != ARG_NAMED));
}

/* Whether the words behind the first value are values, too. */
static inline bool takes_several(const struct arg *a)
{
    const size_t n = a->value ? strlen(a->value) : 0;
    return a->kind == ARG_WORDS || (n > 3 && strcmp(a->value + n - 3, "...") == 0 &&
                                    (a->kind == ARG_NOTED || a->kind == ARG_NAMED));
}

/* Whether a word is a value, not an option: "-1" and "-.5" are numbers. */
static inline bool is_value(const char *word)
{
    return word[0] != '-' || !word[1] || word[1] == '.' || (word[1] >= '0' && word[1] <= '9');
}

/* The option of that name; NULL: none. */
const struct arg *args_find(const struct command *c, struct word typed,
                            const struct arg_group **group);

/* Reads the file x->path into x->words. */
MUST_CHECK enum status args_config_read(const struct command *c, struct arg_config *x,
                                        struct error *err);
void args_config_release(struct arg_config *x);

/* `_` counts as `-`. */
static inline char args_fold(char c)
{
    return c == '_' ? '-' : c;
}

struct args_guess {
    struct word typed, best; /* best is empty if nothing is near enough */
    size_t distance;         /* of best */
    size_t prefix;           /* length of the common prefix of best and typed: breaks ties */
};
/* Makes w the guess if it is nearer. One character in three may be wrong; the
 * beginning of a long name counts as one mistake. */
void args_guess(struct args_guess *g, struct word w);

/* `ferry --help`: all commands of the program. */
void args_program_help(struct strbuf *out, const struct arg_program *p);

#endif
