/* expr.h - expressions, as model maps write sizes, conditions and values:
 *
 *   num_attention_heads / num_query_groups        !untie && moe[l]
 *   hf.head_dim ?? hidden_size // num_attention_heads
 *   [t == 'sliding_attention' for t in hf.layer_types]
 *
 * A value is nothing (an absent field, null), true or false, a whole number of
 * 64 bits, a real one, a text or a list. Operators by level, from the weakest:
 *
 *   c ? a : b    ??    ||    &&    == != < <= > >= in    + -    * / // %    ! -
 *
 * - a ?? b is b if a is nothing. It, ?:, || and && evaluate only what they need.
 * - `in` looks for a value in a list. Values of different kinds are not equal,
 *   but true is 1, false is 0, and 2 is 2.0.
 * - A division of whole numbers by / must come out even; // rounds down.
 * - true counts everything but nothing, false, 0, '' and the empty list.
 * - 'text' and "text" have no escapes; none, true, false are constants.
 * - [a, b] is a list, [EXPR for x in LIST if EXPR] another, L[i] an item.
 * - [1] + [2] is [1, 2], 2 * [1] and [1] * 2 are [1, 1].
 * - Functions: min max (of two or more, or of a list), sqrt log pow floor ceil
 *   abs, len any all sum, range(n): [0, 1 .. n - 1].
 * - bool(x), whole(x), number(x), text(x): x, an error if it is of another kind.
 *   Nothing passes. is_list(x): whether it is a list.
 * - chars(text): its characters as a list; split(text, ','): its parts, whole
 *   numbers as numbers. */
#ifndef FERRY_CONVERT_MAP_EXPR_H
#define FERRY_CONVERT_MAP_EXPR_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/status.h"
#include "common/strbuf.h"

enum term_kind { TERM_NONE, TERM_BOOL, TERM_WHOLE, TERM_REAL, TERM_TEXT, TERM_LIST };

struct term {
    enum term_kind kind;
    union {
        bool truth;
        int64_t whole;
        double real;
        const char *text;
        const struct term *items;
    };
    size_t length; /* of text or items */
};

static inline struct term term_whole(int64_t n)
{
    return (struct term){.kind = TERM_WHOLE, .whole = n};
}
static inline struct term term_bool(bool truth)
{
    return (struct term){.kind = TERM_BOOL, .truth = truth};
}
static inline struct term term_real(double real)
{
    return (struct term){.kind = TERM_REAL, .real = real};
}
static inline struct term term_text(const char *text, size_t length)
{
    return (struct term){.kind = TERM_TEXT, .text = text, .length = length};
}
/* Whether a value counts as true in a condition. */
bool term_is_true(const struct term *v);
bool term_equal(const struct term *a, const struct term *b);
/* A whole number, true or false as a whole number; false for other kinds. */
bool term_as_whole(const struct term *v, int64_t *out);
/* Any number, true or false as a real number; false for other kinds. */
bool term_as_real(const struct term *v, double *out);

/* Looks up the value of name, or of name[index] (index -1: no index). False if
 * the name is unknown. name[0..length) may have dots. An index of a name that is
 * only known without one is an index into its list. */
struct expr_names {
    bool (*value)(const void *context, const char *name, size_t length, int64_t index,
                  struct term *out);
    const void *context;
    struct arena *arena; /* for lists; NULL: an expression with a list is an error */
};

/* Evaluates text[0..length). Texts in *out point into `text` or are as value()
 * gave them. ERR_USAGE names the mistake and its place: an unknown name, an
 * uneven division, an overflow, a syntax error. ERR_CORRUPT from bool(x) and its
 * like names x, without its prefix. */
MUST_CHECK enum status expr_value(const char *text, size_t length, const struct expr_names *names,
                                  struct term *out, struct error *err);
/* Like expr_value(), of a whole number; true counts as 1. */
MUST_CHECK enum status expr_eval(const char *text, size_t length, const struct expr_names *names,
                                 int64_t *out, struct error *err);

/* Appends a text in which {EXPR} is a value: a whole number or a text, and a real
 * number of six digits; {EXPR#9g}: of nine; {EXPR#,}: 1,000. Others are empty. */
MUST_CHECK enum status expr_fill(const char *text, const struct expr_names *names,
                                 struct strbuf *out, struct error *err);

/* An item as a term: of an object the list of its names. Arena a has lists;
 * NULL: they are empty. */
struct term json_term(const cJSON *item, struct arena *a);
/* A term as a new item; the caller deletes it. Uses arena a for texts. */
cJSON *term_json(const struct term *t, struct arena *a);

#endif
