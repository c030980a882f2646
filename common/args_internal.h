/* args_internal.h - what args.c (parsing) and args_docs.c (texts made from the tables) share. */
#ifndef FERRY_COMMON_ARGS_INTERNAL_H
#define FERRY_COMMON_ARGS_INTERNAL_H

#include "common/args.h"

struct word {
    const char *text;
    size_t length;
};

/* The next word of a text in which words are separated by c; *at moves behind it. */
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
        *group = &c->groups[g];
        if (n < c->groups[g].num_args) return &c->groups[g].args[n];
        n -= c->groups[g].num_args;
    }
    return NULL;
}

static inline bool takes_value(const struct arg *a)
{
    return a->kind != ARG_FLAG && (a->value || (a->kind != ARG_IGNORED && a->kind != ARG_NOTED));
}

/* `ferry --help`: all commands of the program. */
void args_program_help(struct strbuf *out, const struct arg_program *p);

#endif
