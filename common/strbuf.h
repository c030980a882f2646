/* strbuf.h - growing bytes on the heap: a text, a header, a pickle. */
#ifndef FERRY_COMMON_STRBUF_H
#define FERRY_COMMON_STRBUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct strbuf {
    char *data; /* NUL-terminated; NULL until something was added */
    size_t length, capacity;
};

void strbuf_release(struct strbuf *s);
void strbuf_clear(struct strbuf *s); /* keeps the memory */
void strbuf_add(struct strbuf *s, const void *data, size_t bytes);
void strbuf_add_text(struct strbuf *s, const char *text);
void strbuf_add_char(struct strbuf *s, char c);
void strbuf_add_i64(struct strbuf *s, int64_t n); /* in decimal */
void strbuf_add_repeated(struct strbuf *s, char c, size_t count);
void strbuf_printf(struct strbuf *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Adds text for a message: escapes control characters, quotes, backslashes and
 * invalid UTF-8. */
void strbuf_add_escaped(struct strbuf *s, const char *text, size_t length);

#endif
