/* expr.h - whole-number expressions, as model maps write sizes and conditions:
 *
 *   num_attention_heads / num_query_groups      r*d + d
 *   !untie && moe[l]                            l % 2 == 1
 *
 * Operators of C and parentheses. By level, from the weakest:
 *
 *   ||    &&    == != < <= > >=    + -    * / // %    !
 *
 * Unlike in C, || and && always evaluate both sides. A division by / must come
 * out even; // drops the remainder. Values have 64 bits; truth is 1 or 0. */
#ifndef FERRY_CONVERT_MAP_EXPR_H
#define FERRY_CONVERT_MAP_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Looks up the value of name, or of name[index] (index -1: no index). False if
 * the name is unknown. */
struct expr_names {
    bool (*value)(const void *context, const char *name, size_t length, int64_t index,
                  int64_t *out);
    const void *context;
};

/* Evaluates text[0..length). ERR_USAGE names the mistake and its place: an
 * unknown name, an uneven division, an overflow, a syntax error. */
MUST_CHECK enum status expr_eval(const char *text, size_t length, const struct expr_names *names,
                                 int64_t *out, struct error *err);

#endif
