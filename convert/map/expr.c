#include "convert/map/expr.h"
#include "common/count.h"

#include <ctype.h>
#include <string.h>

struct parser {
    const char *text, *at, *end;
    const struct expr_names *names;
    struct error *err;
    int depth;
};

enum { MAX_DEPTH = 64 };

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

static bool take_token(struct parser *p, const char *token)
{
    size_t n = strlen(token);
    skip_spaces(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, token, n)) return false;
    p->at += n;
    return true;
}

static enum status parse_level(struct parser *p, int level, int64_t *out);

static enum status parse_number(struct parser *p, int64_t *out)
{
    *out = 0;
    for (; p->at < p->end && isdigit((unsigned char)*p->at); p->at++)
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, *p->at - '0', out))
            return expr_error(p, "the number overflows");
    return OK;
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

static enum status parse_variable(struct parser *p, int64_t *out)
{
    const char *name = p->at;
    int64_t index = -1;
    while (p->at < p->end && is_name_char(*p->at))
        p->at++;
    size_t length = (size_t)(p->at - name);
    if (take_token(p, "[")) {
        TRY(parse_level(p, 0, &index));
        if (index < 0 || !take_token(p, "]")) return expr_error(p, "not an index");
    }
    if (p->names->value(p->names->context, name, length, index, out)) return OK;
    p->at = name;
    return expr_error(p, "an unknown name");
}

static enum status parse_unary(struct parser *p, int64_t *out)
{
    enum status st;
    skip_spaces(p);
    if (++p->depth > MAX_DEPTH) return expr_error(p, "nested too deeply");
    if (take_token(p, "!")) {
        st = parse_unary(p, out);
        *out = !*out;
    } else if (take_token(p, "(")) {
        st = parse_level(p, 0, out);
        if (!st && !take_token(p, ")")) st = expr_error(p, "missing )");
    } else if (p->at < p->end && isdigit((unsigned char)*p->at)) {
        st = parse_number(p, out);
    } else if (p->at < p->end && is_name_char(*p->at)) {
        st = parse_variable(p, out);
    } else {
        st = expr_error(p, "expected a number or a name");
    }
    p->depth--;
    return st;
}

/* Operators of one level bind equally, from the left; longer spellings first. */
struct level {
    const char *operators[7];
};
static const struct level levels[] = {
    {{"||"}}, {{"&&"}}, {{"==", "!=", "<=", ">=", "<", ">"}}, {{"+", "-"}}, {{"*", "//", "/", "%"}},
};
enum { NUM_LEVELS = COUNT(levels) };

static enum status apply_operator(struct parser *p, const char *op, int64_t a, int64_t b,
                                  int64_t *out)
{
    bool overflows = false;
    switch (op[0]) {
    case '|':
        *out = a || b;
        break;
    case '&':
        *out = a && b;
        break;
    case '=':
        *out = a == b;
        break;
    case '!':
        *out = a != b;
        break;
    case '<':
        *out = op[1] ? a <= b : a < b;
        break;
    case '>':
        *out = op[1] ? a >= b : a > b;
        break;
    case '+':
        overflows = __builtin_add_overflow(a, b, out);
        break;
    case '-':
        overflows = __builtin_sub_overflow(a, b, out);
        break;
    case '*':
        overflows = __builtin_mul_overflow(a, b, out);
        break;
    default:
        if (b == 0 || (b == -1 && a == INT64_MIN)) return expr_error(p, "a division by 0");
        if (op[0] == '/' && !op[1] && a % b)
            return fail(p->err, ERR_USAGE, "\"%.*s\": %lld is not divisible by %lld",
                        (int)(p->end - p->text), p->text, (long long)a, (long long)b);
        *out = op[0] == '/' ? a / b : a % b;
    }
    return overflows ? expr_error(p, "the result overflows") : OK;
}

static const char *take_operator(struct parser *p, int level)
{
    for (int i = 0; levels[level].operators[i]; i++)
        if (take_token(p, levels[level].operators[i])) return levels[level].operators[i];
    return NULL;
}

static enum status parse_level(struct parser *p, int level, int64_t *out)
{
    if (level == NUM_LEVELS) return parse_unary(p, out);
    TRY(parse_level(p, level + 1, out));
    for (const char *op; (op = take_operator(p, level));) {
        int64_t right;
        TRY(parse_level(p, level + 1, &right));
        TRY(apply_operator(p, op, *out, right, out));
    }
    return OK;
}

enum status expr_eval(const char *text, size_t length, const struct expr_names *names, int64_t *out,
                      struct error *err)
{
    struct parser p = {text, text, text + length, names, err, 0};
    TRY(parse_level(&p, 0, out));
    skip_spaces(&p);
    return p.at == p.end ? OK : expr_error(&p, "unexpected text");
}
