/* The lexer: a window onto the stream, and one opcode at a time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "formats/pickle_internal.h"

enum { WINDOW_BYTES = 64 << 10 };

void lexer_init(struct pickle_lexer *x, const struct bytes *in, uint64_t offset)
{
    *x = (struct pickle_lexer){.in = in, .base = offset, .size_bytes = in->size_bytes};
    x->data = bytes_in_memory(in);
    if (!x->data) return;
    x->base = 0;
    x->end = (size_t)in->size_bytes;
    x->at = (size_t)min_u64(offset, in->size_bytes);
}

void lexer_release(struct pickle_lexer *x)
{
    free(x->buffer);
    *x = (struct pickle_lexer){0};
}

void lexer_seek(struct pickle_lexer *x, uint64_t offset)
{
    if (offset >= x->base && offset <= x->base + x->end) {
        x->at = (size_t)(offset - x->base);
        return;
    }
    x->base = offset;
    x->at = x->end = 0;
}

static uint64_t stream_left(const struct pickle_lexer *x)
{
    uint64_t at = lexer_offset(x);
    return at < x->size_bytes ? x->size_bytes - at : 0;
}

/* Reads on until `bytes` are in the window; the stream must have them. */
static enum status fill_window(struct pickle_lexer *x, size_t bytes, struct error *err)
{
    size_t kept = x->end - x->at;
    if (bytes > x->capacity) {
        x->capacity = bytes > WINDOW_BYTES ? bytes : WINDOW_BYTES;
        if (stream_left(x) < x->capacity) x->capacity = (size_t)stream_left(x);
        char *larger = must_malloc(x->capacity);
        if (kept) memcpy(larger, x->data + x->at, kept);
        free(x->buffer);
        x->data = x->buffer = larger;
    } else if (kept) {
        memmove(x->buffer, x->data + x->at, kept);
    }
    x->base += x->at;
    x->at = 0;
    x->end = kept;
    uint64_t offset = x->base + kept;
    size_t room = (size_t)min_u64(x->capacity - kept, x->size_bytes - offset);
    TRY(bytes_read(x->in, offset, x->buffer + kept, room, err));
    x->end += room;
    return OK;
}

static enum status take_span(struct pickle_lexer *x, uint64_t bytes, const char **out,
                             struct error *err)
{
    if (bytes > x->end - x->at) {
        if (bytes > stream_left(x))
            return fail(err, ERR_CORRUPT, "needs %" PRIu64 " bytes, %" PRIu64 " are left", bytes,
                        stream_left(x));
        TRY(fill_window(x, (size_t)bytes, err));
    }
    *out = x->data + x->at;
    x->at += (size_t)bytes;
    return OK;
}

static enum status take_integer(struct pickle_lexer *x, unsigned bytes, uint64_t *number,
                                struct error *err)
{
    const char *p;
    TRY(take_span(x, bytes, &p, err));
    *number = 0;
    for (unsigned i = bytes; i-- > 0;)
        *number = *number << 8 | (unsigned char)p[i];
    return OK;
}

/* Text up to the count-th newline; consumes that newline, too. */
static enum status take_lines(struct pickle_lexer *x, unsigned count, struct pickle_token *t,
                              struct error *err)
{
    for (size_t seen = 0;;) {
        size_t have = x->end - x->at;
        const char *begin = x->data + x->at, *newline;
        while (seen < have && (newline = memchr(begin + seen, '\n', have - seen))) {
            seen = (size_t)(newline - begin) + 1;
            if (--count) continue;
            x->at += seen;
            t->bytes = begin;
            t->length = seen - 1;
            return OK;
        }
        seen = have;
        if (have == stream_left(x)) return fail(err, ERR_CORRUPT, "its line has no end");
        TRY(fill_window(x, (size_t)min_u64(stream_left(x), 2 * (uint64_t)have + 1), err));
    }
}

/* A memo index in decimal. */
static enum status take_index(struct pickle_lexer *x, struct pickle_token *t, struct error *err)
{
    TRY(take_lines(x, 1, t, err));
    t->number = 0;
    bool good = t->length && t->length <= 10;
    for (size_t i = 0; good && i < t->length; i++) {
        good = t->bytes[i] >= '0' && t->bytes[i] <= '9';
        t->number = 10 * t->number + (uint64_t)(t->bytes[i] - '0');
    }
    return good ? OK : fail(err, ERR_CORRUPT, "its line is not a memo index");
}

static enum status take_bytes(struct pickle_lexer *x, uint64_t length, struct pickle_token *t,
                              size_t keep_bytes, struct error *err)
{
    if (length > UINT32_MAX) /* a value's limit; SIZE_MAX is no smaller */
        return fail(err, ERR_CORRUPT, "claims %" PRIu64 " bytes, %" PRIu64 " are left", length,
                    stream_left(x));
    t->length = (size_t)length;
    if (length <= keep_bytes || length > stream_left(x))
        return take_span(x, length, &t->bytes, err);
    t->bytes = NULL;
    lexer_seek(x, lexer_offset(x) + length);
    return OK;
}

static enum status take_argument(struct pickle_lexer *x, struct pickle_token *t, size_t keep_bytes,
                                 struct error *err)
{
    uint64_t length;
    switch (t->opcode->argument) {
    case ARG_NONE:
        return OK;
    case ARG_U8:
        return take_integer(x, 1, &t->number, err);
    case ARG_U16:
        return take_integer(x, 2, &t->number, err);
    case ARG_I32:
        TRY(take_integer(x, 4, &t->number, err));
        t->number = (uint64_t)(int64_t)(int32_t)(uint32_t)t->number;
        return OK;
    case ARG_U32:
        return take_integer(x, 4, &t->number, err);
    case ARG_U64:
        return take_integer(x, 8, &t->number, err);
    case ARG_F64:
        return take_bytes(x, 8, t, 8, err);
    case ARG_LINE:
        return take_lines(x, 1, t, err);
    case ARG_INDEX_LINE:
        return take_index(x, t, err);
    case ARG_TWO_LINES:
        return take_lines(x, 2, t, err);
    case ARG_BYTES_U8:
        TRY(take_integer(x, 1, &length, err));
        return take_bytes(x, length, t, keep_bytes, err);
    case ARG_BYTES_U32:
        TRY(take_integer(x, 4, &length, err));
        return take_bytes(x, length, t, keep_bytes, err);
    case ARG_BYTES_I32:
        TRY(take_integer(x, 4, &length, err));
        if (length > INT32_MAX) return fail(err, ERR_CORRUPT, "a negative length");
        return take_bytes(x, length, t, keep_bytes, err);
    case ARG_BYTES_U64:
        TRY(take_integer(x, 8, &length, err));
        return take_bytes(x, length, t, keep_bytes, err);
    }
    return fail(err, ERR_OURS, "argument %d", (int)t->opcode->argument);
}

enum status lexer_next(struct pickle_lexer *x, struct pickle_token *t, size_t keep_bytes,
                       struct error *err)
{
    const char *code;
    t->offset = lexer_offset(x);
    t->bytes = NULL;
    t->length = 0;
    t->code = 0;
    if (x->at == x->end && !stream_left(x))
        return fail(err, ERR_CORRUPT, "byte %" PRIu64 ": the stream ends without STOP", t->offset);
    TRY(take_span(x, 1, &code, err));
    t->code = (unsigned char)*code;
    t->opcode = &pickle_opcodes[t->code];
    enum status st = t->opcode->name ? take_argument(x, t, keep_bytes, err)
                                     : fail(err, ERR_CORRUPT, "unknown opcode");
    return st ? fail_in(err, "opcode 0x%02X at byte %" PRIu64, t->code, t->offset) : OK;
}
