#include "convert/map/expr.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/numbers.h"
#include "common/text.h"

/* ---- values ---- */

bool term_is_true(const struct term *v)
{
    switch (v->kind) {
    case TERM_NONE:
        return false;
    case TERM_BOOL:
        return v->truth;
    case TERM_WHOLE:
        return v->whole != 0;
    case TERM_REAL:
        return v->real < 0 || v->real > 0;
    case TERM_TEXT:
    case TERM_LIST:
        return v->length > 0;
    }
    return false;
}

bool term_as_whole(const struct term *v, int64_t *out)
{
    *out = v->kind == TERM_BOOL ? v->truth : v->whole;
    return v->kind == TERM_BOOL || v->kind == TERM_WHOLE;
}

bool term_as_real(const struct term *v, double *out)
{
    int64_t whole;
    if (v->kind == TERM_REAL) *out = v->real;
    if (v->kind == TERM_REAL) return true;
    if (!term_as_whole(v, &whole)) return false;
    *out = (double)whole;
    return true;
}

bool term_equal(const struct term *a, const struct term *b)
{
    int64_t m, n;
    double x, y;
    if (term_as_whole(a, &m) && term_as_whole(b, &n)) return m == n;
    if (term_as_real(a, &x) && term_as_real(b, &y)) return !(x < y) && !(x > y);
    if (a->kind != b->kind || a->length != b->length) return false;
    if (a->kind == TERM_TEXT) return a->length == 0 || !memcmp(a->text, b->text, a->length);
    for (size_t i = 0; a->kind == TERM_LIST && i < a->length; i++)
        if (!term_equal(&a->items[i], &b->items[i])) return false;
    return true;
}

/* ---- the text ---- */

/* A name that [EXPR for NAME in LIST] defines. */
struct binding {
    const char *name;
    size_t length;
    struct term value;
    const struct binding *outer;
};

struct parser {
    const char *text, *at, *end;
    const struct expr_names *names;
    struct error *err;
    const struct binding *bindings;
    int depth;
    int skipping;    /* above 0: reads over the text, looks no name up */
    uint64_t *steps; /* left until the expression is refused as too long */
};

enum { MAX_DEPTH = 64, MAX_STEPS = 1 << 22, MAX_ARGUMENTS = 8 };

static enum status expr_error(const struct parser *p, const char *what)
{
    return fail(p->err, ERR_USAGE, "\"%.*s\": %s at character %d", (int)(p->end - p->text), p->text,
                what, (int)(p->at - p->text) + 1);
}

static void skip_spaces(struct parser *p)
{
    while (p->at < p->end && isspace((unsigned char)*p->at))
        p->at++;
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

/* Takes a token; a word only as a whole. */
static bool take_token(struct parser *p, const char *token)
{
    size_t n = strlen(token);
    skip_spaces(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, token, n)) return false;
    if (isalpha((unsigned char)*token) && p->at + n < p->end && is_name_char(p->at[n]))
        return false;
    p->at += n;
    return true;
}

static enum status parse(struct parser *p, struct term *out);
static enum status parse_level(struct parser *p, int level, struct term *out);

/* Parses an operand that is not needed. */
static enum status parse_unneeded(struct parser *p, int level)
{
    struct term ignored;
    p->skipping++;
    enum status st = level < 0 ? parse(p, &ignored) : parse_level(p, level, &ignored);
    p->skipping--;
    return st;
}

/* ---- numbers, texts and names ---- */

static enum status parse_number(struct parser *p, struct term *out)
{
    char digits[64];
    const char *from = p->at;
    *out = term_whole(0);
    bool overflows = false;
    for (; p->at < p->end && isdigit((unsigned char)*p->at); p->at++)
        overflows |= __builtin_mul_overflow(out->whole, 10, &out->whole) ||
                     __builtin_add_overflow(out->whole, *p->at - '0', &out->whole);
    if (p->at == p->end || !strchr(".eE", *p->at) || *p->at == '\0')
        return overflows ? expr_error(p, "the number overflows") : OK;
    while (p->at < p->end &&
           (is_name_char(*p->at) || (strchr("+-", *p->at) && strchr("eE", p->at[-1]))))
        p->at++;
    const size_t n = (size_t)(p->at - from);
    if (n >= sizeof digits) return expr_error(p, "the number is too long");
    memcpy(digits, from, n);
    digits[n] = '\0';
    char *end;
    *out = term_real(strtod(digits, &end));
    return *end || !isfinite(out->real) ? expr_error(p, "not a number") : OK;
}

static enum status parse_text(struct parser *p, struct term *out)
{
    const char quote = *p->at++, *from = p->at;
    while (p->at < p->end && *p->at != quote)
        p->at++;
    if (p->at == p->end) return expr_error(p, "missing quote");
    *out = term_text(from, (size_t)(p->at++ - from));
    return OK;
}

static bool find_binding(const struct parser *p, const char *name, size_t length, struct term *out)
{
    for (const struct binding *b = p->bindings; b; b = b->outer)
        if (b->length == length && memcmp(b->name, name, length) == 0) {
            *out = b->value;
            return true;
        }
    return false;
}

static bool is_word(const char *name, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(name, word, length) == 0;
}

static bool find_name(const struct parser *p, const char *name, size_t length, int64_t index,
                      struct term *out)
{
    *out = (struct term){.kind = TERM_NONE};
    if (p->skipping) return true;
    if (index < 0 && find_binding(p, name, length, out)) return true;
    if (index < 0 && is_word(name, length, "none")) return true;
    if (index < 0 && (is_word(name, length, "true") || is_word(name, length, "false"))) {
        *out = term_bool(length == 4);
        return true;
    }
    return p->names->value(p->names->context, name, length, index, out);
}

/* ---- lists ---- */

static enum status new_list(struct parser *p, size_t count, struct term **items)
{
    *items = NULL;
    if (p->skipping) return OK;
    if (!p->names->arena) return expr_error(p, "a list has no place here");
    if (count > *p->steps) return expr_error(p, "too many steps");
    *p->steps -= count;
    *items = arena_array(p->names->arena, count ? count : 1, sizeof **items);
    return OK;
}

static enum status parse_index(struct parser *p, int64_t *index)
{
    struct term v;
    TRY(parse(p, &v));
    if (!take_token(p, "]")) return expr_error(p, "not an index");
    *index = 0;
    if (p->skipping || (term_as_whole(&v, index) && *index >= 0)) return OK;
    return expr_error(p, "not an index");
}

/* [index] behind a list. */
static enum status index_list(struct parser *p, int64_t index, struct term *v)
{
    if (p->skipping) return OK;
    if (v->kind != TERM_LIST) return expr_error(p, "an index into what is not a list");
    if ((uint64_t)index >= v->length) return expr_error(p, "an index past the end of its list");
    *v = v->items[index];
    return OK;
}

/* NAME in LIST; *b is NAME. */
static enum status parse_binding(struct parser *p, struct binding *b, struct term *list)
{
    *b = (struct binding){.outer = p->bindings};
    skip_spaces(p);
    b->name = p->at;
    while (p->at < p->end && is_name_char(*p->at))
        p->at++;
    b->length = (size_t)(p->at - b->name);
    if (!b->length || !take_token(p, "in")) return expr_error(p, "expected NAME in LIST");
    TRY(parse(p, list));
    if (p->skipping || list->kind == TERM_NONE) *list = (struct term){.kind = TERM_LIST};
    return list->kind == TERM_LIST ? OK : expr_error(p, "not a list");
}

/* Evaluates the text from `body` on for each item of a list for which the
 * condition behind `if` holds. */
static enum status parse_comprehension(struct parser *p, const char *body, struct term *out)
{
    struct binding b;
    struct term list, *items;
    TRY(parse_binding(p, &b, &list));
    const char *condition = take_token(p, "if") ? p->at : NULL;
    if (condition) TRY(parse_unneeded(p, -1));
    TRY(new_list(p, list.length, &items));
    const char *behind = p->at;
    *out = (struct term){.kind = TERM_LIST, .items = items};
    p->bindings = &b;
    for (size_t i = 0; i < list.length; i++) {
        struct term holds = term_bool(true);
        b.value = list.items[i];
        p->at = condition;
        if (condition) TRY(parse(p, &holds));
        p->at = body;
        if (term_is_true(&holds)) TRY(parse(p, &items[out->length++]));
    }
    p->bindings = b.outer;
    p->at = behind;
    return OK;
}

static enum status parse_items(struct parser *p, struct term *out)
{
    struct term found[MAX_ARGUMENTS * 4], *items;
    size_t count = 0;
    while (!take_token(p, "]")) {
        if (count && !take_token(p, ",")) return expr_error(p, "missing ]");
        if (count == COUNT(found)) return expr_error(p, "the list is too long");
        TRY(parse(p, &found[count++]));
    }
    TRY(new_list(p, count, &items));
    if (items && count) memcpy(items, found, count * sizeof *items);
    *out = (struct term){.kind = TERM_LIST, .items = items, .length = count};
    return OK;
}

/* Behind [. */
static enum status parse_list(struct parser *p, struct term *out)
{
    const char *body = p->at;
    skip_spaces(p);
    if (p->at < p->end && *p->at != ']') {
        TRY(parse_unneeded(p, -1));
        if (take_token(p, "for")) {
            TRY(parse_comprehension(p, body, out));
            return take_token(p, "]") ? OK : expr_error(p, "missing ]");
        }
    }
    p->at = body;
    return parse_items(p, out);
}

/* ---- functions ---- */

struct call {
    struct parser *p;
    const char *arguments; /* their text */
    const struct term *values;
    size_t count;
    double (*of)(double); /* call_real's and call_rounded's */
};

static enum status call_error(const struct call *c, const char *what)
{
    return expr_error(c->p, what);
}

static enum status real_argument(const struct call *c, size_t i, double *out)
{
    *out = 0;
    return term_as_real(&c->values[i], out) ? OK : call_error(c, "not a number");
}

static enum status real_result(const struct call *c, double real, struct term *out)
{
    *out = term_real(real);
    return isfinite(real) ? OK : call_error(c, "no finite result");
}

static enum status call_least(const struct call *c, bool most, struct term *out)
{
    double best, x;
    if (!c->count) return call_error(c, "there are no values");
    TRY(real_argument(c, 0, &best));
    *out = c->values[0];
    for (size_t i = 1; i < c->count; i++) {
        TRY(real_argument(c, i, &x));
        if (most ? x <= best : x >= best) continue;
        best = x;
        *out = c->values[i];
    }
    return OK;
}

static enum status call_min(const struct call *c, struct term *out)
{
    return call_least(c, false, out);
}

static enum status call_max(const struct call *c, struct term *out)
{
    return call_least(c, true, out);
}

/* sqrt and log. */
static enum status call_real(const struct call *c, struct term *out)
{
    double x;
    TRY(real_argument(c, 0, &x));
    return real_result(c, c->of(x), out);
}

static enum status call_pow(const struct call *c, struct term *out)
{
    double x, y;
    TRY(real_argument(c, 0, &x));
    TRY(real_argument(c, 1, &y));
    return real_result(c, pow(x, y), out);
}

/* floor and ceil. */
static enum status call_rounded(const struct call *c, struct term *out)
{
    double x;
    *out = term_whole(0);
    TRY(real_argument(c, 0, &x));
    x = c->of(x);
    if (!(x > -0x1p62 && x < 0x1p62)) return call_error(c, "the result overflows");
    out->whole = (int64_t)x;
    return OK;
}

static enum status call_abs(const struct call *c, struct term *out)
{
    double x;
    *out = c->values[0];
    if (out->kind == TERM_WHOLE && out->whole > INT64_MIN)
        out->whole = out->whole < 0 ? -out->whole : out->whole;
    if (out->kind == TERM_WHOLE && out->whole >= 0) return OK;
    TRY(real_argument(c, 0, &x));
    return real_result(c, fabs(x), out);
}

static enum status call_len(const struct call *c, struct term *out)
{
    const struct term *v = &c->values[0];
    *out = term_whole((int64_t)v->length);
    return v->kind == TERM_LIST || v->kind == TERM_TEXT ? OK : call_error(c, "not a list");
}

static enum status call_any(const struct call *c, struct term *out)
{
    *out = term_bool(false);
    for (size_t i = 0; i < c->count; i++)
        out->truth |= term_is_true(&c->values[i]);
    return OK;
}

static enum status call_all(const struct call *c, struct term *out)
{
    *out = term_bool(true);
    for (size_t i = 0; i < c->count; i++)
        out->truth &= term_is_true(&c->values[i]);
    return OK;
}

static enum status call_sum(const struct call *c, struct term *out)
{
    int64_t n, total = 0;
    for (size_t i = 0; i < c->count; i++)
        if (!term_as_whole(&c->values[i], &n) || __builtin_add_overflow(total, n, &total))
            return call_error(c, "not a sum of whole numbers");
    *out = term_whole(total);
    return OK;
}

static enum status call_range(const struct call *c, struct term *out)
{
    int64_t n;
    struct term *items;
    if (!term_as_whole(&c->values[0], &n) || n < 0) return call_error(c, "not a length");
    TRY(new_list(c->p, (size_t)n, &items));
    for (int64_t i = 0; i < n; i++)
        items[i] = term_whole(i);
    *out = (struct term){.kind = TERM_LIST, .items = items, .length = (size_t)n};
    return OK;
}

/* x, if it is of this kind or nothing. */
static enum status of_kind(const struct call *c, bool is, const char *what, struct term *out)
{
    const char *from = c->arguments, *to = c->p->at - 1;
    const char *dot = memchr(from, '.', (size_t)(to - from));
    *out = c->values[0];
    if (is || out->kind == TERM_NONE) return OK;
    if (dot && dot > from && isalpha((unsigned char)*from)) from = dot + 1;
    return fail(c->p->err, ERR_CORRUPT, "%.*s %s", (int)(to - from), from, what);
}

static enum status call_bool(const struct call *c, struct term *out)
{
    return of_kind(c, c->values[0].kind == TERM_BOOL, "is neither true nor false", out);
}

static enum status call_whole(const struct call *c, struct term *out)
{
    const struct term *v = &c->values[0];
    return of_kind(c, v->kind == TERM_WHOLE && v->whole >= 0,
                   "is not a whole number from 0 to 2^63 - 1", out);
}

static enum status call_number(const struct call *c, struct term *out)
{
    const struct term *v = &c->values[0];
    return of_kind(c, v->kind == TERM_WHOLE || (v->kind == TERM_REAL && isfinite(v->real)),
                   "is not a finite number", out);
}

static enum status call_text(const struct call *c, struct term *out)
{
    return of_kind(c, c->values[0].kind == TERM_TEXT, "is not a string", out);
}

static enum status call_chars(const struct call *c, struct term *out)
{
    const struct term *text = &c->values[0];
    struct term *items;
    *out = *text;
    if (text->kind == TERM_NONE) return OK;
    if (text->kind != TERM_TEXT) return call_error(c, "not a text");
    TRY(new_list(c->p, text->length, &items));
    for (size_t i = 0; i < text->length; i++)
        items[i] = term_text(text->text + i, 1);
    *out = (struct term){.kind = TERM_LIST, .items = items, .length = text->length};
    return OK;
}

/* A part of a text: a whole number as a number. */
static struct term part_of(const char *text, size_t length)
{
    struct term n = term_whole(0);
    while (length && isspace((unsigned char)*text))
        text++, length--;
    while (length && isspace((unsigned char)text[length - 1]))
        length--;
    bool digits = length > 0;
    for (size_t i = 0; i < length && digits; i++)
        digits = isdigit((unsigned char)text[i]) &&
                 !__builtin_mul_overflow(n.whole, 10, &n.whole) &&
                 !__builtin_add_overflow(n.whole, text[i] - '0', &n.whole);
    return digits ? n : term_text(text, length);
}

static enum status call_split(const struct call *c, struct term *out)
{
    const struct term *text = &c->values[0], *by = &c->values[1];
    struct term *items;
    size_t count = 1, from = 0;
    *out = *text;
    if (text->kind == TERM_NONE) return OK;
    if (text->kind != TERM_TEXT || by->kind != TERM_TEXT || by->length != 1)
        return call_error(c, "expected a text and a character");
    for (size_t i = 0; i < text->length; i++)
        count += text->text[i] == *by->text;
    TRY(new_list(c->p, count, &items));
    *out = (struct term){.kind = TERM_LIST, .items = items};
    for (size_t i = 0; i <= text->length; i++) {
        if (i < text->length && text->text[i] != *by->text) continue;
        items[out->length++] = part_of(text->text + from, i - from);
        from = i + 1;
    }
    return OK;
}

static enum status call_is_list(const struct call *c, struct term *out)
{
    *out = term_bool(c->values[0].kind == TERM_LIST);
    return OK;
}

static const struct function {
    const char *name;
    size_t arguments; /* 0: any number, or a list */
    enum status (*call)(const struct call *c, struct term *out);
    double (*of)(double);
} functions[] = {
    {"min", 0, call_min, NULL},      {"max", 0, call_max, NULL},
    {"sqrt", 1, call_real, sqrt},    {"log", 1, call_real, log},
    {"pow", 2, call_pow, NULL},      {"floor", 1, call_rounded, floor},
    {"ceil", 1, call_rounded, ceil}, {"abs", 1, call_abs, NULL},
    {"len", 1, call_len, NULL},      {"any", 0, call_any, NULL},
    {"all", 0, call_all, NULL},      {"sum", 0, call_sum, NULL},
    {"range", 1, call_range, NULL},  {"bool", 1, call_bool, NULL},
    {"whole", 1, call_whole, NULL},  {"number", 1, call_number, NULL},
    {"text", 1, call_text, NULL},    {"is_list", 1, call_is_list, NULL},
    {"chars", 1, call_chars, NULL},  {"split", 2, call_split, NULL},
};

static const struct function *find_function(const char *name, size_t length)
{
    for (size_t i = 0; i < COUNT(functions); i++)
        if (is_word(name, length, functions[i].name)) return &functions[i];
    return NULL;
}

/* Behind NAME(. */
static enum status parse_call(struct parser *p, const struct function *f, struct term *out)
{
    struct term values[MAX_ARGUMENTS];
    struct call c = {.p = p, .arguments = p->at, .values = values, .of = f->of};
    while (!take_token(p, ")")) {
        if (c.count && !take_token(p, ",")) return expr_error(p, "missing )");
        if (c.count == MAX_ARGUMENTS) return expr_error(p, "too many arguments");
        TRY(parse(p, &values[c.count++]));
    }
    *out = (struct term){.kind = TERM_NONE};
    if (f->arguments && c.count != f->arguments) return expr_error(p, "wrong number of arguments");
    if (p->skipping) return OK;
    if (!f->arguments && c.count == 1 && values[0].kind == TERM_NONE) c.count = 0;
    if (!f->arguments && c.count == 1 && values[0].kind == TERM_LIST) {
        c.count = values[0].length;
        c.values = values[0].items;
    }
    return f->call(&c, out);
}

/* A list of a name needs memory, too. */
static enum status check_list(const struct parser *p, const struct term *t)
{
    if (t->kind != TERM_LIST || !t->length || t->items) return OK;
    return expr_error(p, "a list has no place here");
}

static enum status parse_variable(struct parser *p, struct term *out)
{
    const char *name = p->at;
    int64_t index = -1;
    while (p->at < p->end && is_name_char(*p->at))
        p->at++;
    size_t length = (size_t)(p->at - name);
    const struct function *f = find_function(name, length);
    if (f && take_token(p, "(")) return parse_call(p, f, out);
    if (!take_token(p, "[")) {
        if (find_name(p, name, length, -1, out)) return check_list(p, out);
    } else {
        TRY(parse_index(p, &index));
        if (find_name(p, name, length, index, out)) return OK;
        if (find_name(p, name, length, -1, out)) {
            TRY(check_list(p, out));
            return index_list(p, index, out);
        }
    }
    p->at = name;
    return expr_error(p, "an unknown name");
}

/* ---- operators ---- */

static enum status parse_primary(struct parser *p, struct term *out)
{
    if (take_token(p, "(")) {
        TRY(parse(p, out));
        return take_token(p, ")") ? OK : expr_error(p, "missing )");
    }
    if (take_token(p, "[")) return parse_list(p, out);
    if (p->at < p->end && isdigit((unsigned char)*p->at)) return parse_number(p, out);
    if (p->at < p->end && strchr("'\"", *p->at) && *p->at) return parse_text(p, out);
    if (p->at < p->end && is_name_char(*p->at)) return parse_variable(p, out);
    return expr_error(p, "expected a number or a name");
}

static enum status negate(struct parser *p, struct term *v)
{
    int64_t n;
    if (p->skipping) return OK;
    if (v->kind == TERM_REAL)
        v->real = -v->real;
    else if (term_as_whole(v, &n) && n > INT64_MIN)
        *v = term_whole(-n);
    else
        return expr_error(p, "not a number");
    return OK;
}

static enum status parse_unary(struct parser *p, struct term *out)
{
    enum status st;
    skip_spaces(p);
    if (++p->depth > MAX_DEPTH) return expr_error(p, "nested too deeply");
    if (!*p->steps) return expr_error(p, "too many steps");
    --*p->steps;
    if (take_token(p, "!")) {
        st = parse_unary(p, out);
        *out = term_bool(!term_is_true(out));
    } else if (take_token(p, "-")) {
        st = parse_unary(p, out);
        if (!st) st = negate(p, out);
    } else {
        st = parse_primary(p, out);
    }
    for (int64_t index; !st && take_token(p, "[");) {
        st = parse_index(p, &index);
        if (!st) st = index_list(p, index, out);
    }
    p->depth--;
    return st;
}

/* Operators of one level bind equally, from the left; longer spellings first. */
struct level {
    const char *operators[8];
};
static const struct level levels[] = {
    {{"??"}},     {{"||"}},
    {{"&&"}},     {{"==", "!=", "<=", ">=", "<", ">", "in"}},
    {{"+", "-"}}, {{"*", "//", "/", "%"}},
};
enum { NUM_LEVELS = COUNT(levels) };

static enum status apply_to_reals(struct parser *p, const char *op, double a, double b,
                                  struct term *out)
{
    if (strchr("/%", *op) && !(b < 0 || b > 0)) return expr_error(p, "a division by 0");
    *out = term_real(*op == '+'   ? a + b
                     : *op == '-' ? a - b
                     : *op == '*' ? a * b
                     : *op == '%' ? fmod(a, b)
                     : op[1]      ? floor(a / b)
                                  : a / b);
    return isfinite(out->real) ? OK : expr_error(p, "the result overflows");
}

/* Rounds down, unlike C. */
static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static enum status apply_to_wholes(struct parser *p, const char *op, int64_t a, int64_t b,
                                   struct term *out)
{
    bool overflows = false;
    *out = term_whole(0);
    if (strchr("/%", *op) && (b == 0 || (b == -1 && a == INT64_MIN)))
        return expr_error(p, "a division by 0");
    if (*op == '/' && !op[1] && a % b)
        return fail(p->err, ERR_USAGE, "\"%.*s\": %lld is not divisible by %lld",
                    (int)(p->end - p->text), p->text, (long long)a, (long long)b);
    if (*op == '+')
        overflows = __builtin_add_overflow(a, b, &out->whole);
    else if (*op == '-')
        overflows = __builtin_sub_overflow(a, b, &out->whole);
    else if (*op == '*')
        overflows = __builtin_mul_overflow(a, b, &out->whole);
    else
        out->whole = *op == '/' ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    return overflows ? expr_error(p, "the result overflows") : OK;
}

static enum status compare(struct parser *p, const char *op, const struct term *a,
                           const struct term *b, struct term *out)
{
    double x, y;
    if (*op == '=' || *op == '!') {
        *out = term_bool(term_equal(a, b) == (*op == '='));
        return OK;
    }
    if (!term_as_real(a, &x) || !term_as_real(b, &y)) return expr_error(p, "not a number");
    int64_t m, n;
    const bool wholes = term_as_whole(a, &m) && term_as_whole(b, &n);
    const bool less = wholes ? m < n : x < y, equal = wholes ? m == n : !(x < y) && !(x > y);
    *out = term_bool(op[0] == '<' ? less || (op[1] && equal) : op[1] ? !less : !less && !equal);
    return OK;
}

static enum status look_in(struct parser *p, const struct term *what, const struct term *list,
                           struct term *out)
{
    *out = term_bool(false);
    if (list->kind != TERM_LIST && list->kind != TERM_NONE) return expr_error(p, "not a list");
    if (list->kind == TERM_NONE) return OK;
    for (size_t i = 0; i < list->length && !out->truth; i++)
        out->truth = term_equal(what, &list->items[i]);
    return OK;
}

/* [1] + [2] is [1, 2], 2 * [1] is [1, 1]. */
static enum status apply_to_lists(struct parser *p, const char *op, struct term a, struct term b,
                                  struct term *out)
{
    int64_t times = 1;
    struct term *items;
    const bool joins = *op == '+' && a.kind == b.kind;
    if (*op == '*' && a.kind == TERM_LIST) {
        const struct term number = b;
        b = a;
        a = number;
    }
    if (!joins && (*op != '*' || !term_as_whole(&a, &times) || times < 0))
        return expr_error(p, "not a number");
    if (!joins) a = (struct term){.kind = TERM_LIST};
    if (times && b.length > MAX_STEPS / (uint64_t)times) return expr_error(p, "too many steps");
    TRY(new_list(p, a.length + b.length * (size_t)times, &items));
    *out = (struct term){.kind = TERM_LIST, .items = items};
    for (size_t i = 0; i < a.length; i++)
        items[out->length++] = a.items[i];
    for (size_t i = 0; i < b.length * (size_t)times; i++)
        items[out->length++] = b.items[i % b.length];
    return OK;
}

static enum status apply_operator(struct parser *p, const char *op, struct term a, struct term b,
                                  struct term *out)
{
    int64_t m, n;
    double x, y;
    if (p->skipping) return OK;
    if (*op == 'i') return look_in(p, &a, &b, out);
    if (strchr("=!<>", *op)) return compare(p, op, &a, &b, out);
    if (a.kind == TERM_LIST || b.kind == TERM_LIST) return apply_to_lists(p, op, a, b, out);
    if (term_as_whole(&a, &m) && term_as_whole(&b, &n)) return apply_to_wholes(p, op, m, n, out);
    if (!term_as_real(&a, &x) || !term_as_real(&b, &y)) return expr_error(p, "not a number");
    return apply_to_reals(p, op, x, y, out);
}

static const char *take_operator(struct parser *p, int level)
{
    for (int i = 0; levels[level].operators[i]; i++)
        if (take_token(p, levels[level].operators[i])) return levels[level].operators[i];
    return NULL;
}

/* The right side of ??, || or &&, which is evaluated only if *left does not
 * decide. */
static enum status parse_choice(struct parser *p, const char *op, int level, struct term *left)
{
    const bool decided = *op == '?' ? left->kind != TERM_NONE : term_is_true(left) == (*op == '|');
    struct term right = *left;
    if (decided || p->skipping)
        TRY(parse_unneeded(p, level + 1));
    else
        TRY(parse_level(p, level + 1, &right));
    *left = *op == '?' ? right : term_bool(term_is_true(&right));
    return OK;
}

static enum status parse_level(struct parser *p, int level, struct term *out)
{
    if (level == NUM_LEVELS) return parse_unary(p, out);
    TRY(parse_level(p, level + 1, out));
    for (const char *op; (op = take_operator(p, level));) {
        struct term right;
        if (strchr("?|&", *op)) {
            TRY(parse_choice(p, op, level, out));
            continue;
        }
        TRY(parse_level(p, level + 1, &right));
        TRY(apply_operator(p, op, *out, right, out));
    }
    return OK;
}

/* One of the sides of ?:. */
static enum status parse_side(struct parser *p, bool needed, struct term *out)
{
    if (!needed) return parse_unneeded(p, -1);
    return parse(p, out);
}

static enum status parse(struct parser *p, struct term *out)
{
    TRY(parse_level(p, 0, out));
    if (!take_token(p, "?")) return OK;
    const bool yes = term_is_true(out);
    if (++p->depth > MAX_DEPTH) return expr_error(p, "nested too deeply");
    TRY(parse_side(p, yes, out));
    if (!take_token(p, ":")) return expr_error(p, "missing :");
    TRY(parse_side(p, !yes, out));
    p->depth--;
    return OK;
}

enum status expr_value(const char *text, size_t length, const struct expr_names *names,
                       struct term *out, struct error *err)
{
    uint64_t steps = MAX_STEPS;
    struct parser p = {.text = text,
                       .at = text,
                       .end = text + length,
                       .names = names,
                       .err = err,
                       .steps = &steps};
    TRY(parse(&p, out));
    skip_spaces(&p);
    return p.at == p.end ? OK : expr_error(&p, "unexpected text");
}

enum status expr_eval(const char *text, size_t length, const struct expr_names *names, int64_t *out,
                      struct error *err)
{
    struct term v;
    double real;
    *out = 0;
    TRY(expr_value(text, length, names, &v, err));
    if (term_as_whole(&v, out)) return OK;
    if (v.kind == TERM_REAL && term_as_real(&v, &real) && floor(real) >= real &&
        fabs(real) < 0x1p62) {
        *out = (int64_t)real;
        return OK;
    }
    return fail(err, ERR_USAGE, "\"%.*s\" is not a whole number", (int)length, text);
}

/* ---- texts ---- */

static void add_term(struct strbuf *out, const struct term *t, const char *format)
{
    int digits = 6;
    (void)sscanf(format, "#%dg", &digits);
    if (t->kind == TERM_REAL) strbuf_printf(out, "%.*g", digits, t->real);
    if (t->kind == TERM_WHOLE && text_starts_with(format, "#,"))
        strbuf_add_text(out, grouped_text((uint64_t)t->whole));
    else if (t->kind == TERM_WHOLE)
        strbuf_printf(out, "%" PRId64, t->whole);
    if (t->kind == TERM_TEXT) strbuf_add(out, t->text, t->length);
}

enum status expr_fill(const char *text, const struct expr_names *names, struct strbuf *out,
                      struct error *err)
{
    while (*text) {
        const size_t before = strcspn(text, "{");
        struct term value;
        strbuf_add(out, text, before);
        text += before;
        if (!*text) break;
        const size_t length = strcspn(text, "#}");
        TRY(expr_value(text + 1, length - 1, names, &value, err));
        add_term(out, &value, text + length);
        text += strcspn(text, "}") + 1;
    }
    return OK;
}
