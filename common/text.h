/* text.h - comparisons of texts. */
#ifndef FERRY_COMMON_TEXT_H
#define FERRY_COMMON_TEXT_H

#include <stdbool.h>
#include <string.h>

/* Whether both are the same text, or both NULL. */
static inline bool text_equal(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static inline bool text_starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static inline bool text_ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* Moves *text behind the prefix if it starts with it. */
static inline bool text_skip_prefix(const char **text, const char *prefix)
{
    if (!text_starts_with(*text, prefix)) return false;
    *text += strlen(prefix);
    return true;
}

#endif
