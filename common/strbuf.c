#include "common/strbuf.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/utf8.h"

void strbuf_release(struct strbuf *s)
{
    free(s->data);
    *s = (struct strbuf){0};
}

void strbuf_clear(struct strbuf *s)
{
    s->length = 0;
    if (s->data) s->data[0] = '\0';
}

/* Makes room for `bytes` more and the NUL; returns their place. */
static char *reserve_bytes(struct strbuf *s, size_t bytes)
{
    size_t need = s->length + bytes + 1;
    if (need > s->capacity) {
        s->capacity = need < 2 * s->capacity ? 2 * s->capacity : need < 64 ? 64 : need;
        s->data = must_realloc(s->data, s->capacity);
    }
    return s->data + s->length;
}

static void commit_bytes(struct strbuf *s, size_t bytes)
{
    s->length += bytes;
    s->data[s->length] = '\0';
}

void strbuf_add(struct strbuf *s, const void *data, size_t bytes)
{
    char *to = reserve_bytes(s, bytes);
    if (bytes) memcpy(to, data, bytes);
    commit_bytes(s, bytes);
}

void strbuf_add_text(struct strbuf *s, const char *text)
{
    strbuf_add(s, text, strlen(text));
}

void strbuf_add_char(struct strbuf *s, char c)
{
    strbuf_add(s, &c, 1);
}

void strbuf_add_i64(struct strbuf *s, int64_t n)
{
    char digits[20], *at = digits + sizeof digits;
    uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (n < 0) *--at = '-';
    strbuf_add(s, at, (size_t)(digits + sizeof digits - at));
}

void strbuf_add_repeated(struct strbuf *s, char c, size_t count)
{
    memset(reserve_bytes(s, count), c, count);
    commit_bytes(s, count);
}

void strbuf_printf(struct strbuf *s, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n >= 0) {
        vsnprintf(reserve_bytes(s, (size_t)n), (size_t)n + 1, fmt, again);
        commit_bytes(s, (size_t)n);
    }
    va_end(again);
}

/* C0 and C1 controls and DEL: like ESC [, U+009B begins a terminal command. */
static bool is_control(const char *text, size_t length)
{
    unsigned char c = (unsigned char)text[0];
    return c < 0x20 || c == 0x7F || (length == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0);
}

void strbuf_add_escaped(struct strbuf *s, const char *text, size_t length)
{
    strbuf_add(s, "", 0); /* data is not NULL even for an empty text */
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_sequence(text + i, length - i);
        if (n == 0 || is_control(text + i, n)) {
            n = 1;
            strbuf_printf(s, "\\x%02x", (unsigned char)text[i]);
        } else {
            if (text[i] == '\\' || text[i] == '"') strbuf_add_char(s, '\\');
            strbuf_add(s, text + i, n);
        }
    }
}
