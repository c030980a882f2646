#include "convert/map/pattern.h"

#include <ctype.h>
#include <string.h>

#include "common/checked.h"

enum { MAX_NODES = 32 };

/* An axis or group of a pattern; a group's children are linked, last one first. */
struct node {
    const char *name; /* NULL: a group or a number */
    size_t name_length;
    uint64_t size, offset, total;
    int last_child, previous; /* -1: none */
};

struct parser {
    const char *text, *at;
    const struct expr_names *names;
    struct node nodes[MAX_NODES];
    int num_nodes;
    struct error *err;
};

static enum status pattern_error(const struct parser *p, const char *what)
{
    return fail(p->err, ERR_USAGE, "pattern \"%s\": %s at character %d", p->text, what,
                (int)(p->at - p->text) + 1);
}

static void skip_spaces(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
}

static enum status eval_size(struct parser *p, const char *from, const char *to, uint64_t *out)
{
    int64_t value;
    if (expr_eval(from, (size_t)(to - from), p->names, &value, p->err))
        return fail_in(p->err, "pattern \"%s\"", p->text);
    if (value < 0) return fail(p->err, ERR_USAGE, "pattern \"%s\": a negative size", p->text);
    *out = (uint64_t)value;
    return OK;
}

/* [OFFSET of TOTAL] */
static enum status parse_slot(struct parser *p, struct node *n)
{
    const char *end = strchr(p->at, ']'), *of = strstr(p->at, " of ");
    if (!end || !of || of > end) return pattern_error(p, "expected [OFFSET of TOTAL]");
    TRY(eval_size(p, p->at + 1, of, &n->offset));
    TRY(eval_size(p, of + 4, end, &n->total));
    p->at = end + 1;
    return OK;
}

static enum status parse_list(struct parser *p, bool group, int *last, uint64_t *size);

static enum status parse_item(struct parser *p, struct node *n)
{
    if (*p->at == '(') {
        p->at++;
        TRY(parse_list(p, true, &n->last_child, &n->size));
    } else {
        const char *name = p->at;
        while (isalnum((unsigned char)*p->at) || *p->at == '_')
            p->at++;
        if (p->at == name) return pattern_error(p, "expected an axis");
        TRY(eval_size(p, name, p->at, &n->size));
        if (!isdigit((unsigned char)*name)) {
            n->name = name;
            n->name_length = (size_t)(p->at - name);
        } else if (n->size != 1) {
            return pattern_error(p, "the only number allowed is 1");
        }
    }
    n->total = n->size;
    if (*p->at == '[') TRY(parse_slot(p, n));
    if (n->offset > n->total || n->size > n->total - n->offset)
        return pattern_error(p, "a part is larger than its total");
    return OK;
}

/* Parses items up to the end of the text, or the parenthesis that closes a
 * group. */
static enum status parse_list(struct parser *p, bool group, int *last, uint64_t *size)
{
    *last = -1;
    *size = 1;
    for (skip_spaces(p); *p->at && *p->at != ')'; skip_spaces(p)) {
        if (p->num_nodes == MAX_NODES) return pattern_error(p, "too many axes");
        int i = p->num_nodes++;
        p->nodes[i] = (struct node){.previous = *last, .last_child = -1};
        TRY(parse_item(p, &p->nodes[i]));
        if (!mul_u64(*size, p->nodes[i].total, size)) return pattern_error(p, "the size overflows");
        *last = i;
    }
    if (group != (*p->at == ')')) return pattern_error(p, group ? "missing )" : "unmatched )");
    p->at += group;
    return OK;
}

/* Sets strides from the fastest item to the slowest; *unit grows to the size of
 * the list. */
static enum status place_axes(struct parser *p, int item, uint64_t *unit, struct pattern_view *v)
{
    for (; item >= 0; item = p->nodes[item].previous) {
        const struct node *n = &p->nodes[item];
        uint64_t inner = *unit;
        v->offset += n->offset * *unit;
        if (n->last_child >= 0) TRY(place_axes(p, n->last_child, &inner, v));
        if (n->name) {
            if (v->num_axes == MAX_AXES) return pattern_error(p, "too many axes");
            v->axes[v->num_axes++] = (struct pattern_axis){n->name, n->name_length, n->size, *unit};
        }
        *unit *= n->total;
    }
    return OK;
}

enum status pattern_eval(const char *text, const struct expr_names *names, struct pattern_view *out,
                         struct error *err)
{
    struct parser p = {.text = text, .at = text, .names = names, .err = err};
    int last, dims = 0;
    uint64_t numel, unit = 1;
    *out = (struct pattern_view){0};
    TRY(parse_list(&p, false, &last, &numel));
    for (int i = last; i >= 0; i = p.nodes[i].previous)
        dims++;
    if (dims > MAX_AXES) return pattern_error(&p, "too many dimensions");
    out->num_dims = (unsigned)dims;
    for (int i = last; i >= 0; i = p.nodes[i].previous)
        out->shape[--dims] = p.nodes[i].total;
    return place_axes(&p, last, &unit, out);
}

static const struct pattern_axis *axis_of(const struct pattern_view *v,
                                          const struct pattern_axis *x)
{
    for (unsigned k = 0; k < v->num_axes; k++)
        if (v->axes[k].name_length == x->name_length &&
            memcmp(v->axes[k].name, x->name, x->name_length) == 0)
            return &v->axes[k];
    return NULL;
}

enum status pattern_pair(const struct pattern_view *a, const struct pattern_view *b,
                         struct pair *out, struct error *err)
{
    *out = (struct pair){.a_offset = a->offset, .b_offset = b->offset};
    if (a->num_axes != b->num_axes)
        return fail(err, ERR_USAGE, "two patterns have %u and %u axes", a->num_axes, b->num_axes);
    for (unsigned k = 0; k < a->num_axes; k++) {
        const struct pattern_axis *x = &a->axes[k], *y = axis_of(b, x);
        if (!y || axis_of(a, x) != x)
            return fail(err, ERR_USAGE, "axis \"%.*s\" must occur once in each pattern",
                        (int)x->name_length, x->name);
        out->axes[out->num_axes++] = (struct axis){x->extent, x->stride, y->stride};
    }
    return pair_nest(out) ? OK : fail(err, ERR_USAGE, "parts of a pattern overlap");
}
