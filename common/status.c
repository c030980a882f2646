#include "common/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status fail(struct error *err, enum status code, const char *fmt, ...)
{
    if (!err) return code;
    va_list args;
    va_start(args, fmt);
    err->code = code;
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return code;
}

enum status fail_errno(struct error *err, enum status code, const char *fmt, ...)
{
    int number = errno;
    if (number == ENOMEM) code = ERR_MEMORY;
    if (!err) return code;
    va_list args;
    va_start(args, fmt);
    err->code = code;
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", strerror(number));
    return code;
}

enum status fail_in(struct error *err, const char *fmt, ...)
{
    if (!err) return ERR_OURS;
    char inner[sizeof err->text];
    memcpy(inner, err->text, sizeof inner);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof err->text ? (size_t)n : sizeof err->text - 1;
    snprintf(err->text + at, sizeof err->text - at, ": %.*s", (int)(sizeof inner - at), inner);
    return err->code;
}
