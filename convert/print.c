/* print.c - ferry print: values of a stored or a logical tensor. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/json.h"
#include "common/result.h"
#include "convert/commands.h"
#include "convert/inspect.h"
#include "convert/options.h"

struct print_flags {
    struct source_flags source;
    struct output_flags output;
};

// clang-format off
#define AT(field) offsetof(struct print_flags, field)
static const struct arg_group print_groups[] = {
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

enum { MAX_DIMS = 32, READ_ELEMENTS = 4096 };

static void set_defaults(void *options)
{
    ((struct print_flags *)options)->source.ckpt_step = UINT64_MAX;
}

/* What is asked for: the box [start, end) of a tensor. */
struct slice {
    unsigned num_dims;
    uint64_t start[MAX_DIMS], end[MAX_DIMS];
};

/* The index text[0..n) of a range: digits, that count from the end where a minus is before them. */
static enum status parse_index(const char *range, const char *text, size_t n, uint64_t extent,
                               uint64_t *out, struct error *err)
{
    bool from_end = n > 0 && *text == '-';
    const char *digits = text + from_end;
    if (n == from_end || strspn(digits, "0123456789") < n - from_end)
        return fail(err, ERR_USAGE, "[%s]: no range", range);
    *out = 0;
    for (size_t i = 0; i < n - from_end; i++)
        if (!mul_u64(*out, 10, out) || !add_u64(*out, (uint64_t)(digits[i] - '0'), out)) {
            *out = UINT64_MAX;
            break;
        }
    if (!from_end) return OK;
    if (*out > extent)
        return fail(err, ERR_USAGE, "[%s]: outside of a dimension of %" PRIu64, range, extent);
    *out = extent - *out;
    return OK;
}

/* One of "3", "3:7", ":7", "3:", ":"; a negative number counts from the end. */
static enum status parse_range(const char *text, uint64_t extent, uint64_t *start, uint64_t *end,
                               struct error *err)
{
    const char *colon = strchr(text, ':');
    uint64_t a = 0, b = extent;
    if (!*text) return fail(err, ERR_USAGE, "a range is empty: \":\" is the whole of a dimension");
    if (colon != text)
        TRY(parse_index(text, text, colon ? (size_t)(colon - text) : strlen(text), extent, &a,
                        err));
    if (colon && colon[1]) TRY(parse_index(text, colon + 1, strlen(colon + 1), extent, &b, err));
    if (!colon && a < extent) b = a + 1;
    b = min_u64(b, extent);
    if (a > b || (!colon && a == extent))
        return fail(err, ERR_USAGE, "[%s]: outside of a dimension of %" PRIu64, text, extent);
    *start = a;
    *end = b;
    return OK;
}

/* The ranges "[0:4,0:8]" of a tensor; dimensions that are not named are whole. */
static enum status parse_ranges(struct arena *a, const char *text, unsigned num_dims,
                                const uint64_t *shape, struct slice *s, struct error *err)
{
    char *rest = arena_printf(a, "%s", text);
    unsigned d = 0;
    s->num_dims = num_dims;
    for (unsigned k = 0; k < num_dims; k++)
        s->end[k] = shape[k];
    size_t n = strlen(rest);
    if (n == 0) return OK;
    if (rest[0] != '[' || rest[n - 1] != ']')
        return fail(err, ERR_USAGE, "%s is no [range, ...]", text);
    rest[n - 1] = '\0';
    rest++;
    for (char *range; (range = strsep(&rest, ",")); d++) {
        range += strspn(range, " ");
        if (d == num_dims)
            return fail(err, ERR_USAGE, "%s: the tensor has %u dimensions", text, num_dims);
        TRY(parse_range(range, shape[d], &s->start[d], &s->end[d], err));
    }
    return OK;
}

/* The tensor whose name the argument begins with; what follows the name are the ranges. */
static enum status find_tensor(struct catalog *c, const char *argument, struct tensor **t,
                               const char **ranges, struct error *err)
{
    const char *bracket = strrchr(argument, '[');
    for (int with_ranges = bracket != NULL; with_ranges >= 0; with_ranges--) {
        size_t n = with_ranges ? (size_t)(bracket - argument) : strlen(argument);
        const char *name = arena_text(&c->arena, argument, n);
        const struct stored_tensor *s = stored_find(&c->stored, name);
        *ranges = argument + n;
        *t = catalog_find(c, name);
        if (*t) return OK;
        if (s) return catalog_wrap_stored(c, s, t, err);
    }
    return fail(err, ERR_USAGE,
                "%s: no tensor of that name; `ferry inspect --tensors '*'` lists them", argument);
}

/* JSON has no word for what is not finite: texts, as protobuf's JSON has them. */
static void print_element(struct strbuf *out, enum dtype dtype, const void *elements, uint64_t i,
                          bool json)
{
    double v = dtype_load(dtype, elements, i);
    if (dtype == DT_I64)
        strbuf_printf(out, "%" PRId64, ((const int64_t *)elements)[i]);
    else if (dtype == DT_U64)
        strbuf_printf(out, "%" PRIu64, ((const uint64_t *)elements)[i]);
    else if (json && !isfinite(v))
        strbuf_add_text(out, isnan(v) ? "\"NaN\"" : v < 0 ? "\"-Infinity\"" : "\"Infinity\"");
    else
        strbuf_printf(out, dtype == DT_F64 ? "%.17g" : "%.9g", v);
}

struct printing {
    struct panel_reader reader;
    const struct tensor *t;
    const struct slice *slice;
    void *elements; /* READ_ELEMENTS of them */
    bool json;
};

/* A run of the last dimension. */
static enum status print_run(struct printing *p, uint64_t first, uint64_t count, struct error *err)
{
    struct strbuf text = {0};
    enum status st = OK;
    for (uint64_t i = 0, n; i < count && !st; i += n) {
        n = min_u64(READ_ELEMENTS, count - i);
        st = panel_read(&p->reader, p->t, first + i, n, p->elements, err);
        for (uint64_t k = 0; k < n && !st; k++) {
            if (i + k) strbuf_add_text(&text, ", ");
            print_element(&text, p->t->dtype, p->elements, k, p->json);
        }
    }
    if (st && p->json)
        strbuf_add_text(&text, text.length ? ", null" : "null"); /* what follows cannot be read */
    if (text.length && (!st || p->json)) fputs(text.data, stdout);
    strbuf_release(&text);
    return st;
}

static enum status print_dim(struct printing *p, unsigned d, uint64_t first, struct error *err)
{
    const struct slice *s = p->slice;
    uint64_t stride = 1;
    if (s->num_dims == 0) return print_run(p, 0, 1, err);
    for (unsigned k = d + 1; k < s->num_dims; k++)
        stride *= p->t->shape[k];
    enum status st = OK;
    putchar('[');
    if (d + 1 == s->num_dims) st = print_run(p, first + s->start[d], s->end[d] - s->start[d], err);
    for (uint64_t i = s->start[d]; d + 1 < s->num_dims && i < s->end[d] && !st; i++) {
        if (i > s->start[d]) printf(",\n%*s", (int)d + 1, "");
        st = print_dim(p, d + 1, first + i * stride, err);
    }
    if (!st || p->json) putchar(']');
    return st;
}

/* {"TENSOR": values, ...}, by what was asked for: two slices of a tensor are two members. */
static void print_member_name(const char *argument, bool is_first)
{
    struct strbuf text = {0};
    json_print_text(&text, argument);
    if (is_first) result_stream_field("tensors");
    printf("%s%s: ", is_first ? "{" : ",\n", text.data);
    strbuf_release(&text);
}

static enum status print_tensor(struct catalog *c, const char *argument, bool *begun,
                                const struct output_flags *o, struct error *err)
{
    struct slice slice = {0};
    struct tensor *t;
    const char *ranges;
    TRY(find_tensor(c, argument, &t, &ranges, err));
    if (t->num_dims > MAX_DIMS || dtype_bytes(t->dtype) == 0)
        return fail(err, ERR_UNSUPPORTED, "%s: %u dimensions of %s cannot be printed", t->name,
                    t->num_dims, dtype_infos[t->dtype].name);
    if (parse_ranges(&c->arena, ranges, t->num_dims, t->shape, &slice, err))
        return fail_in(err, "%.*s", (int)(ranges - argument), argument);
    struct printing p = {.t = t, .slice = &slice, .json = o->json};
    p.reader = (struct panel_reader){.reader = stored_reader_create(&c->stored, 16),
                                     .buffer_bytes = READ_ELEMENTS * 16,
                                     .temp = arena_alloc(&c->arena, READ_ELEMENTS * 16),
                                     .cast = arena_alloc(&c->arena, READ_ELEMENTS * 16)};
    p.elements = arena_alloc(&c->arena, READ_ELEMENTS * 16);
    if (!o->quiet)
        fprintf(stderr, "%s  %s %s\n", t->name, dtype_infos[t->dtype].name,
                shape_text(&c->arena, t->num_dims, t->shape));
    if (o->json) print_member_name(argument, !*begun);
    *begun |= o->json;
    enum status st = print_dim(&p, 0, 0, err);
    if (!o->json) putchar('\n');
    stored_reader_free(p.reader.reader);
    return st;
}

static enum status print(void *options, const char *const *positional, size_t num_positional,
                         struct error *err)
{
    const struct print_flags *f = options;
    struct opened o;
    enum status st = opened_open(&o, positional[0], &f->source, true, true, err);
    bool begun = false;
    for (size_t i = 1; i < num_positional && !st; i++)
        st = print_tensor(&o.catalog, positional[i], &begun, &f->output, err);
    if (begun) puts("}");
    opened_close(&o);
    return st;
}

const struct command command_print = {
    .name = "print",
    .summary = "print values of tensors, by the names of the files or by logical names",
    .positional = "PATH TENSOR...",
    .text = "  ferry print ckpt 'decoder.layers.3.mlp.linear_fc2.weight[0:4,0:8]'",
    .groups = print_groups,
    .num_groups = sizeof print_groups / sizeof *print_groups,
    .options_bytes = sizeof(struct print_flags),
    .defaults = set_defaults,
    .run = print,
};
