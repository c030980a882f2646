/* testing_train_line.h - parses and completes command lines of `ferry train`,
 * for tests. */
#ifndef FERRY_TRAIN_CLI_TESTING_TRAIN_LINE_H
#define FERRY_TRAIN_CLI_TESTING_TRAIN_LINE_H

#include "common/count.h"
#include "common/memory.h"
#include "train/cli/train_finish.h"
#include "train/cli/train_names.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* (fail) is ours, fail its macro */

static const struct command command = {.name = "train",
                                       .groups = train_groups,
                                       .made = train_made_group,
                                       .num_groups = NUM_TRAIN_GROUPS,
                                       .options_bytes = sizeof(struct train_options),
                                       .defaults = train_options_defaults};

struct line {
    struct train_options o;
    char *text;
    struct strbuf notes;
    struct error err;
    enum status st;
};

/* Words are separated by blanks. */
static inline struct line *line_of(const char *text)
{
    struct line *x = must_calloc(1, sizeof *x);
    char *words[400], *rest = x->text = must_strdup(text);
    const char *positional[400];
    size_t num_positional;
    int n = 0;
    for (char *word; (word = strsep(&rest, " "));)
        if (*word && n < 400) words[n++] = word;
    x->st = args_parse(&command, n, words, &x->o, positional, &num_positional, &x->err);
    if (!x->st && num_positional) x->st = (fail)(&x->err, ERR_USAGE, "%s?", positional[0]);
    if (!x->st) x->st = train_options_finish(&x->o, &x->notes, &x->err);
    return x;
}

static inline void line_free(struct line *x)
{
    train_options_release(&x->o);
    args_release(&command, &x->o);
    strbuf_release(&x->notes);
    free(x->text);
    free(x);
}

static inline struct line *good_line(const char *text)
{
    struct line *x = line_of(text);
    if (x->st) print_error("%s\n%s\n", text, x->err.text);
    assert_int_equal(x->st, OK);
    return x;
}

/* A complete line whose only problem is context parallelism. */
static inline struct line *complete_line(const char *text)
{
    struct line *x = line_of(text);
    if (!x->st) return x;
    if (strchr(x->err.text, '\n') || !strstr(x->err.text, ": training with context parallelism "))
        print_error("%s\n%s\n", text, x->err.text);
    assert_null(strchr(x->err.text, '\n'));
    assert_non_null(strstr(x->err.text, ": training with context parallelism "));
    return x;
}

/* A line that lacks nothing. */
#define GOOD "--load m --mock-data --seq-length 16 --micro-batch-size 2 --train-iters 10 --lr 1e-3 "
/* The same without --load. */
#define MODEL MODEL_WITHOUT_VOCABULARY "--vocab-size 100 "
#define MODEL_WITHOUT_VOCABULARY                                                                   \
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 64 "        \
    "--mock-data --seq-length 16 --micro-batch-size 2 --train-iters 10 --lr 1e-3 "

static inline void refused(const char *text, const char *message)
{
    struct line *x = line_of(text);
    if (x->st != ERR_USAGE || strcmp(x->err.text, message) != 0)
        print_error("%s\nis: %s\nnot: %s\n", text, x->st ? x->err.text : "accepted", message);
    assert_int_equal(x->st, ERR_USAGE);
    assert_string_equal(x->err.text, message);
    line_free(x);
}

/* The message has `part`, beside others. */
static inline void refused_beside(const char *text, const char *part)
{
    struct line *x = line_of(text);
    if (!strstr(x->err.text, part)) print_error("%s\nis: %s\n", text, x->err.text);
    assert_int_equal(x->st, ERR_USAGE);
    assert_non_null(strstr(x->err.text, part));
    line_free(x);
}

static inline void near(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-15 * fabs(b));
}

#endif
