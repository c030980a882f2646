/* Path of a text: scan_text() checks it against RFC 8259 and copies it, each
 * number as a string that begins with NUMBER_MARK; cJSON makes the tree of the
 * copy; settle_numbers() turns marked strings into Raw items and finds repeated
 * names, easily since cJSON has unescaped them. cJSON never sees a byte it
 * would misread. */
#include "common/json.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/map.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "common/utf8.h"

enum { MAX_NAME_SHOWN = 200 };

/* Invalid UTF-8, so no scanned string begins with it. */
#define NUMBER_MARK '\xFF'

/* ---- the scanner ---- */

struct scan {
    const char *begin, *at, *end;
    const char *copied; /* copy has everything before it */
    struct strbuf copy;
    unsigned flags, depth;
    size_t num_names, stop_at_name; /* names of members, from 1; 0: do not stop */
    struct error *err;
};

MUST_CHECK static enum status refuse_json(const struct scan *s, const char *fmt, ...)
    PRINTF_LIKE(2, 3);

/* ERR_CORRUPT with the position s->at in front; columns count characters. */
static enum status refuse_json(const struct scan *s, const char *fmt, ...)
{
    size_t line = 1, column = 1;
    for (const char *p = s->begin; p < s->at; p++) {
        if (*p == '\n') {
            line++;
            column = 1;
        } else {
            column += (*p & 0xC0) != 0x80;
        }
    }
    char what[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return fail(s->err, ERR_CORRUPT, "line %zu column %zu: %s", line, column, what);
}

MUST_CHECK static enum status refuse_unexpected(const struct scan *s, const char *what)
{
    if (s->at == s->end) return refuse_json(s, "expected %s, but the text ends", what);
    struct strbuf found = {0};
    size_t n = utf8_sequence(s->at, (size_t)(s->end - s->at));
    strbuf_add_escaped(&found, s->at, n ? n : 1);
    enum status st = refuse_json(s, "expected %s, not \"%s\"", what, found.data);
    strbuf_release(&found);
    return st;
}

static bool next_is(const struct scan *s, char c)
{
    return s->at < s->end && *s->at == c;
}

static bool take_char(struct scan *s, char c)
{
    if (!next_is(s, c)) return false;
    s->at++;
    return true;
}

static bool take_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n)) return false;
    s->at += n;
    return true;
}

static void skip_json_blanks(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

static void copy_until(struct scan *s, const char *until)
{
    strbuf_add(&s->copy, s->copied, (size_t)(until - s->copied));
    s->copied = until;
}

static bool next_is_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

MUST_CHECK static enum status scan_digits(struct scan *s)
{
    if (!next_is_digit(s)) return refuse_unexpected(s, "a digit");
    while (next_is_digit(s))
        s->at++;
    return OK;
}

MUST_CHECK static enum status scan_decimal(struct scan *s)
{
    if (!take_char(s, '0')) TRY(scan_digits(s));
    if (take_char(s, '.')) TRY(scan_digits(s));
    if (take_char(s, 'e') || take_char(s, 'E')) {
        if (!take_char(s, '-')) take_char(s, '+');
        TRY(scan_digits(s));
    }
    return OK;
}

MUST_CHECK static enum status scan_number(struct scan *s)
{
    const char *start = s->at;
    bool nan = s->flags & JSON_NAN;
    if (!(nan && take_word(s, "NaN"))) {
        take_char(s, '-');
        if (!(nan && take_word(s, "Infinity"))) TRY(scan_decimal(s));
    }
    static const char open[] = {'"', NUMBER_MARK};
    copy_until(s, start);
    strbuf_add(&s->copy, open, sizeof open);
    copy_until(s, s->at);
    strbuf_add_char(&s->copy, '"');
    return OK;
}

MUST_CHECK static enum status scan_hex4(struct scan *s, unsigned *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = s->at < s->end && *s->at ? strchr(digits, *s->at) : NULL;
        if (!digit) return refuse_unexpected(s, "a hexadecimal digit");
        *value = *value << 4 | ((unsigned)(digit - digits) & 15);
    }
    return OK;
}

/* Behind "\u". NUL would end cJSON's string and becomes C0 80. */
MUST_CHECK static enum status scan_unicode_escape(struct scan *s)
{
    const char *escape = s->at - 2;
    unsigned high, low = 0;
    TRY(scan_hex4(s, &high));
    if (high == 0) {
        copy_until(s, escape);
        strbuf_add_text(&s->copy, "\xC0\x80");
        s->copied = s->at;
    }
    if (high < 0xD800 || high > 0xDFFF) return OK;
    if (high < 0xDC00 && take_word(s, "\\u")) TRY(scan_hex4(s, &low));
    if (low >= 0xDC00 && low <= 0xDFFF) return OK;
    s->at = escape;
    return refuse_json(s, "half of a surrogate pair in a string");
}

/* One character of a string that ordinary_end() stops at. */
MUST_CHECK static enum status scan_character(struct scan *s)
{
    if (take_char(s, '\\')) {
        if (take_char(s, 'u')) return scan_unicode_escape(s);
        if (s->at == s->end || !*s->at || !strchr("\"\\/bfnrt", *s->at))
            return refuse_unexpected(s, "one of \"\\/bfnrtu behind a backslash");
        s->at++;
        return OK;
    }
    if ((unsigned char)*s->at < 0x20) return refuse_json(s, "a control character in a string");
    size_t n = utf8_sequence(s->at, (size_t)(s->end - s->at));
    if (n == 0) return refuse_json(s, "a string that is not UTF-8");
    s->at += n;
    return OK;
}

/* The first character that needs a check. Passes over most of a header. */
static const char *ordinary_end(const char *p, const char *end)
{
    while (p < end && *p >= 0x20 && *p < 0x7F && *p != '"' && *p != '\\')
        p++;
    return p;
}

MUST_CHECK static enum status scan_string(struct scan *s)
{
    s->at++;
    for (;;) {
        s->at = ordinary_end(s->at, s->end);
        if (s->at == s->end) return refuse_unexpected(s, "the end of a string");
        if (take_char(s, '"')) return OK;
        TRY(scan_character(s));
    }
}

MUST_CHECK static enum status scan_value(struct scan *s);

MUST_CHECK static enum status scan_member(struct scan *s)
{
    skip_json_blanks(s);
    if (!next_is(s, '"')) return refuse_unexpected(s, "a name in quotes");
    const char *name = s->at;
    TRY(scan_string(s));
    if (++s->num_names == s->stop_at_name) {
        int length = s->at - name < MAX_NAME_SHOWN ? (int)(s->at - name) : MAX_NAME_SHOWN;
        s->at = name;
        return refuse_json(s, "%.*s appears twice in its object", length, name);
    }
    skip_json_blanks(s);
    if (!take_char(s, ':')) return refuse_unexpected(s, "a colon");
    return scan_value(s);
}

/* Checks the contents of brackets: nothing, or parts separated by commas. */
MUST_CHECK static enum status scan_parts(struct scan *s, enum status (*part)(struct scan *),
                                         char close, const char *comma_or_close)
{
    if (s->depth == JSON_MAX_DEPTH)
        return refuse_json(s, "nested more than %d deep", JSON_MAX_DEPTH);
    s->depth++;
    s->at++;
    skip_json_blanks(s);
    if (!take_char(s, close)) {
        do {
            TRY(part(s));
            skip_json_blanks(s);
        } while (take_char(s, ','));
        if (!take_char(s, close)) return refuse_unexpected(s, comma_or_close);
    }
    s->depth--;
    return OK;
}

static enum status scan_value(struct scan *s)
{
    skip_json_blanks(s);
    switch (s->at < s->end ? *s->at : '\0') {
    case '{':
        return scan_parts(s, scan_member, '}', "a comma or a closing brace");
    case '[':
        return scan_parts(s, scan_value, ']', "a comma or a closing bracket");
    case '"':
        return scan_string(s);
    default:
        if (next_is_digit(s) || next_is(s, '-')) return scan_number(s);
        if (take_word(s, "true") || take_word(s, "false") || take_word(s, "null")) return OK;
        if (s->flags & JSON_NAN && (next_is(s, 'N') || next_is(s, 'I'))) return scan_number(s);
        return refuse_unexpected(s, "a value");
    }
}

/* Scans the whole text, or up to name number stop_at_name if that is not 0. */
MUST_CHECK static enum status scan_text(struct scan *s, size_t stop_at_name)
{
    s->at = s->copied = s->begin;
    strbuf_clear(&s->copy);
    s->num_names = s->depth = 0;
    s->stop_at_name = stop_at_name;
    if ((size_t)(s->end - s->at) >= 3 && memcmp(s->at, "\xEF\xBB\xBF", 3) == 0)
        return refuse_json(s, "a byte order mark");
    TRY(scan_value(s));
    skip_json_blanks(s);
    if (s->at < s->end) return refuse_unexpected(s, "the end of the text");
    copy_until(s, s->end);
    return OK;
}

/* ---- the tree ---- */

struct name {
    uint64_t hash;
    const char *text;
    size_t number; /* order in the text, from 1 */
};

/* Names of the open objects, innermost last. */
struct names {
    struct name *items;
    size_t count, capacity;
    size_t last_number;
};

static void names_push(struct names *n, const char *text)
{
    if (n->count == n->capacity) {
        n->capacity = n->capacity ? 2 * n->capacity : 64;
        n->items = must_realloc(n->items, n->capacity * sizeof *n->items);
    }
    n->items[n->count++] = (struct name){hash_bytes(text, strlen(text)), text, ++n->last_number};
}

static int by_hash(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    int order = strcmp(x->text, y->text);
    return order ? order : x->number < y->number ? -1 : 1;
}

/* The number of a name that repeats one since `first`; 0: none. Sorting always
 * takes n log n; names of a hostile file could make a hash table quadratic. */
static size_t repeated_name(struct names *n, size_t first)
{
    if (n->count - first < 2) return 0;
    qsort(n->items + first, n->count - first, sizeof *n->items, by_hash);
    for (size_t i = first + 1; i < n->count; i++) {
        const struct name *a = &n->items[i - 1], *b = &n->items[i];
        if (a->hash == b->hash && strcmp(a->text, b->text) == 0) return b->number;
    }
    return 0;
}

/* Returns the number of the first repeated name, 0 for none. */
static size_t settle_numbers(struct names *names, cJSON *item)
{
    if (cJSON_IsString(item) && item->valuestring[0] == NUMBER_MARK) {
        memmove(item->valuestring, item->valuestring + 1, strlen(item->valuestring));
        item->type = cJSON_Raw;
    }
    size_t outer = names->count;
    for (cJSON *c = item->child; c; c = c->next) {
        if (cJSON_IsObject(item)) names_push(names, c->string);
        size_t repeated = settle_numbers(names, c);
        if (repeated) return repeated;
    }
    size_t repeated = repeated_name(names, outer);
    names->count = outer;
    return repeated;
}

enum status json_parse(const char *text, size_t length, unsigned flags, cJSON **tree,
                       struct error *err)
{
    if (!length) text = ""; /* it may be NULL */
    struct scan s = {.begin = text, .end = text + length, .flags = flags, .err = err};
    struct names names = {0};
    *tree = NULL;
    enum status st = scan_text(&s, 0);
    if (st) goto done;
    *tree = cJSON_ParseWithLength(s.copy.data, s.copy.length);
    if (!*tree) out_of_memory(length);
    size_t repeated = settle_numbers(&names, *tree);
    if (repeated) {
        cJSON_Delete(*tree);
        *tree = NULL;
        st = scan_text(&s, repeated); /* finds the position of that name */
    }
done:
    strbuf_release(&s.copy);
    free(names.items);
    return st;
}

enum status json_read_file(const char *path, uint64_t max_bytes, unsigned flags, cJSON **tree,
                           struct error *err)
{
    struct strbuf text = {0};
    *tree = NULL;
    enum status st = file_read_all(path, max_bytes, &text, err);
    if (!st) {
        size_t mark = text.length >= 3 && memcmp(text.data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        st = json_parse(text.data + mark, text.length - mark, flags, tree, err);
        if (st) st = fail_in(err, "%s", path);
    }
    strbuf_release(&text);
    return st;
}

/* ---- values ---- */

/* cJSON_GetObjectItem() would take "Dtype" for "dtype". */
cJSON *json_get(const cJSON *object, const char *name)
{
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

bool json_is_number(const cJSON *item)
{
    return cJSON_IsRaw(item);
}

/* Digits, or a whole float below 2^53 such as 32.0 and 1e3. */
static bool whole_number(const char *text, uint64_t *out)
{
    if (parse_u64(text, out)) return true;
    double v = strtod(text, NULL);
    if (!(v >= 0 && v < 0x1p53) || v != floor(v)) return false;
    *out = (uint64_t)v;
    return true;
}

bool json_as_u64(const cJSON *item, uint64_t *out)
{
    return json_is_number(item) && item->valuestring[0] != '-' &&
           whole_number(item->valuestring, out);
}

bool json_as_i64(const cJSON *item, int64_t *out)
{
    if (!json_is_number(item)) return false;
    bool negative = item->valuestring[0] == '-';
    uint64_t size;
    if (!whole_number(item->valuestring + negative, &size)) return false;
    if (size > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - size) : (int64_t)size;
    return true;
}

bool json_as_double(const cJSON *item, double *out)
{
    if (!json_is_number(item)) return false;
    *out = strtod(item->valuestring, NULL);
    return true;
}

const char *json_as_text(const cJSON *item)
{
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static cJSON *new_number(const char *text)
{
    cJSON *item = cJSON_CreateRaw(text);
    if (!item) out_of_memory(strlen(text));
    return item;
}

cJSON *json_new_u64(uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    return new_number(text);
}

cJSON *json_new_i64(int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    return new_number(text);
}

static bool reads_back(long double shown, int digits, double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.*Le", digits, shown);
    return strtod(text, NULL) == v;
}

/* Number of digits v needs behind the first; prints as *shown. That is v except
 * for some powers of 2: doubles are wider apart above them, so a shorter number
 * there reads back as v although the number of that length nearest to v does
 * not. */
static int shortest(double v, long double *shown)
{
    int digits = 0;
    for (;; digits++) {
        *shown = v;
        if (reads_back(*shown, digits, v)) return digits;
        *shown = v * (1 + 0x1p-54L);
        if (reads_back(*shown, digits, v)) return digits;
    }
}

/* Python's repr: an exponent below -4 and from 16 on, else ".0". */
cJSON *json_new_double(double v)
{
    if (isnan(v)) return new_number("NaN");
    if (isinf(v)) return new_number(v < 0 ? "-Infinity" : "Infinity");
    char text[40];
    long double shown;
    int digits = shortest(v, &shown);
    snprintf(text, sizeof text, "%.*Le", digits, shown);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16)
        snprintf(text, sizeof text, "%.*Lf", digits > exponent ? digits - exponent : 1, shown);
    return new_number(text);
}

void json_add_u64(cJSON *o, const char *name, uint64_t n)
{
    cJSON_AddItemToObject(o, name, json_new_u64(n));
}

void json_add_number(cJSON *o, const char *name, double x)
{
    cJSON_AddItemToObject(o, name, isfinite(x) ? json_new_double(x) : cJSON_CreateNull());
}

void json_add_text(cJSON *o, const char *name, const char *text)
{
    cJSON_AddItemToObject(o, name, text ? cJSON_CreateString(text) : cJSON_CreateNull());
}

void json_put(cJSON *o, const char *name, cJSON *item)
{
    if (json_get(o, name))
        cJSON_ReplaceItemInObjectCaseSensitive(o, name, item);
    else
        cJSON_AddItemToObject(o, name, item);
}

/* ---- printing ---- */

/* Bytes of the next character of a NUL-terminated text; 0: broken. */
static size_t character_bytes(const char *text)
{
    return utf8_sequence(text, strnlen(text, 4));
}

static void print_special(struct strbuf *out, unsigned char c)
{
    static const char escapes[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    for (const char *e = escapes; *e; e += 2)
        if (c == (unsigned char)*e) {
            strbuf_add_char(out, '\\');
            strbuf_add_char(out, e[1]);
            return;
        }
    strbuf_printf(out, "\\u%04x", c);
}

void json_print_text(struct strbuf *out, const char *text)
{
    strbuf_add_char(out, '"');
    for (const char *p = text; *p;) {
        const char *run = p;
        while ((unsigned char)*p >= 0x20 && *p != '"' && *p != '\\' && character_bytes(p))
            p += character_bytes(p);
        strbuf_add(out, run, (size_t)(p - run));
        if (!*p) break;
        if (strncmp(p, "\xC0\x80", 2) == 0) {
            print_special(out, '\0');
            p += 2;
        } else if (character_bytes(p) == 0) {
            strbuf_add_text(out, "\xEF\xBF\xBD");
            p++;
        } else {
            print_special(out, (unsigned char)*p++);
        }
    }
    strbuf_add_char(out, '"');
}

static void print_break(struct strbuf *out, int indent, int depth)
{
    if (indent < 0) return;
    strbuf_add_char(out, '\n');
    strbuf_add_repeated(out, ' ', (size_t)indent * (size_t)depth);
}

static void print_value(struct strbuf *out, const cJSON *item, int indent, int depth);

static void print_children(struct strbuf *out, const cJSON *item, int indent, int depth)
{
    bool is_object = cJSON_IsObject(item);
    strbuf_add_char(out, is_object ? '{' : '[');
    for (const cJSON *c = item->child; c; c = c->next) {
        if (c != item->child) strbuf_add_char(out, ',');
        print_break(out, indent, depth + 1);
        if (is_object) {
            json_print_text(out, c->string);
            strbuf_add_text(out, indent < 0 ? ":" : ": ");
        }
        print_value(out, c, indent, depth + 1);
    }
    if (item->child) print_break(out, indent, depth);
    strbuf_add_char(out, is_object ? '}' : ']');
}

static void print_value(struct strbuf *out, const cJSON *item, int indent, int depth)
{
    assert(!cJSON_IsNumber(item) && !cJSON_IsInvalid(item)); /* numbers come from json_new_... */
    if (cJSON_IsObject(item) || cJSON_IsArray(item))
        print_children(out, item, indent, depth);
    else if (cJSON_IsString(item))
        json_print_text(out, item->valuestring);
    else if (cJSON_IsRaw(item))
        strbuf_add_text(out, item->valuestring);
    else
        strbuf_add_text(out, cJSON_IsNull(item) ? "null" : cJSON_IsTrue(item) ? "true" : "false");
}

void json_print(struct strbuf *out, const cJSON *tree, int indent)
{
    print_value(out, tree, indent, 0);
}

enum status json_write_file(const char *path, const cJSON *tree, bool durable, struct error *err)
{
    struct strbuf text = {0};
    json_print(&text, tree, 2);
    strbuf_add_char(&text, '\n');
    enum status st = file_write_all(path, text.data, text.length, durable, err);
    strbuf_release(&text);
    return st;
}
