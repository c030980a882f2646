/* utf8.h - well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no
 * surrogates, at most U+10FFFF. */
#ifndef FERRY_COMMON_UTF8_H
#define FERRY_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the first character of text[0..length), 1 to 4; 0 if it is broken or
 * length is 0. */
size_t utf8_sequence(const char *text, size_t length);

/* Whether all of text is well-formed; if not, *bad is the offset of the first
 * invalid byte. */
bool utf8_valid(const char *text, size_t length, size_t *bad);

#endif
