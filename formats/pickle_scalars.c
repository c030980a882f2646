/* Opcodes of constants, numbers and text in protocols 0 to 5. */
#include <stdlib.h>
#include <string.h>

#include "formats/pickle_internal.h"

enum {
    LONGEST_INT = 1 << 20,  /* bytes of an int */
    LONGEST_DECIMAL = 4300, /* digits of an int in text, Python's limit */
};

/* ---- constants and numbers ---- */

enum status pickle_run_none(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    (void)t, (void)err;
    reader_push(r, r->none);
    return OK;
}

enum status pickle_run_true(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    (void)t, (void)err;
    reader_push(r, r->truths[1]);
    return OK;
}

enum status pickle_run_false(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)t, (void)err;
    reader_push(r, r->truths[0]);
    return OK;
}

enum status pickle_run_int(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    (void)err;
    reader_push(r, reader_int(r, (int64_t)t->number));
    return OK;
}

/* Little-endian two's complement of any length. */
static struct value *int_from_bytes(struct pickle_reader *r, const char *bytes, size_t length)
{
    const unsigned char *p = (const unsigned char *)bytes;
    bool negative = length && p[length - 1] & 0x80;
    unsigned char fill = negative ? 0xFF : 0;
    while (length > 8 && p[length - 1] == fill && (p[length - 2] & 0x80) == (fill & 0x80))
        length--;
    if (length > 8) return reader_text(r, VALUE_BIG_INT, bytes, length);
    uint64_t bits = negative ? UINT64_MAX : 0;
    for (size_t i = length; i-- > 0;)
        bits = bits << 8 | p[i];
    return reader_int(r, (int64_t)bits);
}

enum status pickle_run_long(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    if (t->length > LONGEST_INT)
        return fail(err, ERR_CORRUPT, "an int of %zu bytes, at most %d are read", t->length,
                    LONGEST_INT);
    reader_push(r, int_from_bytes(r, t->bytes, t->length));
    return OK;
}

enum status pickle_run_float(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)err;
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | (unsigned char)t->bytes[i];
    struct value *v = pool_value(&r->pool, VALUE_FLOAT);
    memcpy(&v->number, &bits, sizeof bits);
    reader_push(r, v);
    return OK;
}

/* bytes = bytes * 10 + digit, little-endian. */
static void times_ten(struct strbuf *bytes, unsigned digit)
{
    unsigned carry = digit;
    for (size_t i = 0; i < bytes->length; i++) {
        unsigned n = (unsigned char)bytes->data[i] * 10u + carry;
        bytes->data[i] = (char)(n & 0xFF);
        carry = n >> 8;
    }
    if (carry) strbuf_add_char(bytes, (char)carry);
}

static void negate_bytes(struct strbuf *bytes)
{
    unsigned carry = 1;
    for (size_t i = 0; i < bytes->length; i++) {
        unsigned n = (unsigned char)~bytes->data[i] + carry;
        bytes->data[i] = (char)(n & 0xFF);
        carry = n >> 8;
    }
}

static bool is_decimal(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return length > 0;
}

static enum status push_decimal(struct pickle_reader *r, const char *text, size_t length,
                                struct error *err)
{
    bool negative = length && *text == '-';
    if (length && (*text == '-' || *text == '+')) {
        text++;
        length--;
    }
    if (!is_decimal(text, length) || length > LONGEST_DECIMAL)
        return fail(err, ERR_CORRUPT, "its line is not a number");
    strbuf_clear(&r->scratch);
    for (size_t i = 0; i < length; i++)
        times_ten(&r->scratch, (unsigned)(text[i] - '0'));
    strbuf_add_char(&r->scratch, 0); /* the sign */
    if (negative) negate_bytes(&r->scratch);
    reader_push(r, int_from_bytes(r, r->scratch.data, r->scratch.length));
    return OK;
}

/* Protocol 0 spells bools only I00 and I01. */
enum status pickle_run_text_int(struct pickle_reader *r, const struct pickle_token *t,
                                struct error *err)
{
    if (t->length == 2 && t->bytes[0] == '0' && (t->bytes[1] == '0' || t->bytes[1] == '1')) {
        reader_push(r, r->truths[t->bytes[1] == '1']);
        return OK;
    }
    return push_decimal(r, t->bytes, t->length, err);
}

enum status pickle_run_text_long(struct pickle_reader *r, const struct pickle_token *t,
                                 struct error *err)
{
    size_t length = t->length;
    if (length && t->bytes[length - 1] == 'L') length--;
    return push_decimal(r, t->bytes, length, err);
}

enum status pickle_run_text_float(struct pickle_reader *r, const struct pickle_token *t,
                                  struct error *err)
{
    char *end;
    strbuf_clear(&r->scratch);
    strbuf_add(&r->scratch, t->bytes, t->length);
    struct value *v = pool_value(&r->pool, VALUE_FLOAT);
    v->number = strtod(r->scratch.data, &end);
    if (!t->length || *end || memchr(t->bytes, '\0', t->length))
        return fail(err, ERR_CORRUPT, "its line is not a number");
    reader_push(r, v);
    return OK;
}

/* ---- text ---- */

enum status pickle_run_text(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    (void)err;
    reader_push(r, reader_text(r, VALUE_TEXT, t->bytes, t->length));
    return OK;
}

enum status pickle_run_bytes(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)err;
    reader_push(r, reader_text(r, VALUE_BYTES, t->bytes, t->length));
    return OK;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Reads up to `most` digits of base 8 or 16 at text; returns their number. */
static size_t read_digits(const char *text, size_t length, size_t most, int base, uint32_t *number)
{
    size_t n = 0;
    *number = 0;
    for (int d; n < most && n < length && (d = hex_digit(text[n])) >= 0 && d < base; n++)
        *number = *number * (uint32_t)base + (uint32_t)d;
    return n;
}

static void add_utf8(struct strbuf *out, uint32_t c)
{
    char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6)
        b[i] = (char)(0x80 | (c & 0x3F));
    b[0] = (char)(lead[n] | c);
    strbuf_add(out, b, n);
}

/* Escapes of a str's repr() in Python 2. */
enum status pickle_run_quoted(struct pickle_reader *r, const struct pickle_token *t,
                              struct error *err)
{
    static const char names[] = "\\'\"abfnrtv", stand_for[] = "\\'\"\a\b\f\n\r\t\v";
    const char *p = t->bytes;
    size_t n = t->length;
    if (n < 2 || p[0] != p[n - 1] || (*p != '\'' && *p != '"'))
        return fail(err, ERR_CORRUPT, "its text is not quoted");
    strbuf_clear(&r->scratch);
    for (size_t i = 1; i < n - 1; i++) {
        uint32_t code;
        const char *at;
        if (p[i] != '\\' || i + 2 >= n) {
            strbuf_add_char(&r->scratch, p[i]);
        } else if ((at = memchr(names, p[++i], sizeof names - 1))) {
            strbuf_add_char(&r->scratch, stand_for[at - names]);
        } else if (p[i] == 'x') {
            i += read_digits(p + i + 1, n - i - 2, 2, 16, &code);
            strbuf_add_char(&r->scratch, (char)code);
        } else {
            size_t digits = read_digits(p + i, n - i - 1, 3, 8, &code);
            if (!digits) return fail(err, ERR_CORRUPT, "an escape that Python does not write");
            i += digits - 1;
            strbuf_add_char(&r->scratch, (char)code);
        }
    }
    reader_push(r, reader_text(r, VALUE_TEXT, r->scratch.data, r->scratch.length));
    return OK;
}

/* Python's raw-unicode-escape: Latin-1, \uXXXX and \UXXXXXXXX. */
enum status pickle_run_unicode_line(struct pickle_reader *r, const struct pickle_token *t,
                                    struct error *err)
{
    const char *p = t->bytes;
    strbuf_clear(&r->scratch);
    strbuf_add(&r->scratch, "", 0);
    for (size_t i = 0; i < t->length; i++) {
        uint32_t c = (unsigned char)p[i];
        char u = c == '\\' && i + 1 < t->length ? p[i + 1] : 0;
        size_t digits = u == 'u' ? 4 : u == 'U' ? 8 : 0;
        if (digits) {
            if (read_digits(p + i + 2, t->length - i - 2, digits, 16, &c) != digits || c > 0x10FFFF)
                return fail(err, ERR_CORRUPT, "a broken \\%c escape", u);
            i += digits + 1;
        }
        add_utf8(&r->scratch, c);
    }
    reader_push(r, reader_text(r, VALUE_TEXT, r->scratch.data, r->scratch.length));
    return OK;
}
