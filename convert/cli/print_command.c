/* print_command.c - ferry print: values of a stored or a logical tensor. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/result.h"
#include "common/threads.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/options.h"
#include "convert/open.h"
#include "convert/tensor_names.h"

struct print_flags {
    struct source_flags source;
    struct output_flags output;
    bool all;
};

// clang-format off
#define AT(field) offsetof(struct print_flags, field)
static const struct arg print_args[] = {
    {"--all", ARG_FLAG, AT(all), NULL, NULL, "print every value; default: of more than 1000 values, only the first and last three of each dimension"},
};
static const struct arg_group print_groups[] = {
    {"Print", print_args, COUNT(print_args), 0},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

enum { MAX_DIMS = 32, READ_ELEMENTS = 4096, MAX_ELEMENT_BYTES = 16, MAX_TEXT_BYTES = 1 << 16 };
/* As numpy's print options: of more than THRESHOLD values, only the first and
 * last EDGE of each dimension are printed. */
enum { THRESHOLD = 1000, EDGE = 3 };

static void set_print_defaults(void *options)
{
    ((struct print_flags *)options)->source.ckpt_step = UINT64_MAX;
}

/* The requested box [start, end) of a tensor. */
struct slice {
    unsigned num_dims;
    uint64_t start[MAX_DIMS], end[MAX_DIMS];
};

/* Parses the index text[0..n) of a range: digits; a minus sign counts from the
 * end. */
static enum status parse_index(const char *range, const char *text, size_t n, uint64_t extent,
                               uint64_t *out, struct error *err)
{
    bool from_end = n > 0 && *text == '-';
    const char *digits = text + from_end;
    if (n == from_end || strspn(digits, "0123456789") < n - from_end)
        return fail(err, ERR_USAGE, "[%s]: not a range", range);
    *out = 0;
    for (size_t i = 0; i < n - from_end; i++)
        if (!mul_u64(*out, 10, out) || !add_u64(*out, (uint64_t)(digits[i] - '0'), out)) {
            *out = UINT64_MAX;
            break;
        }
    if (!from_end) return OK;
    if (*out > extent)
        return fail(err, ERR_USAGE, "[%s]: out of range for a dimension of %" PRIu64, range,
                    extent);
    *out = extent - *out;
    return OK;
}

/* One of "3", "3:7", ":7", "3:", ":"; a negative number counts from the end. */
static enum status parse_range(const char *text, uint64_t extent, uint64_t *start, uint64_t *end,
                               struct error *err)
{
    const char *colon = strchr(text, ':');
    uint64_t a = 0, b = extent;
    if (!*text) return fail(err, ERR_USAGE, "empty range: \":\" selects the whole dimension");
    if (colon != text)
        TRY(parse_index(text, text, colon ? (size_t)(colon - text) : strlen(text), extent, &a,
                        err));
    if (colon && colon[1]) TRY(parse_index(text, colon + 1, strlen(colon + 1), extent, &b, err));
    if (!colon && a < extent) b = a + 1;
    b = min_u64(b, extent);
    if (a > b || (!colon && a == extent))
        return fail(err, ERR_USAGE, "[%s]: out of range for a dimension of %" PRIu64, text, extent);
    *start = a;
    *end = b;
    return OK;
}

/* Parses the ranges "[0:4,0:8]" of a tensor; dimensions without a range are
 * whole. */
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
        return fail(err, ERR_USAGE, "%s: not a list of ranges such as [0:4,:]", text);
    rest[n - 1] = '\0';
    rest++;
    for (char *range; (range = strsep(&rest, ",")); d++) {
        range += strspn(range, " ");
        if (d == num_dims)
            return fail(err, ERR_USAGE, "%s: more ranges than the %u dimensions of the tensor",
                        text, num_dims);
        TRY(parse_range(range, shape[d], &s->start[d], &s->end[d], err));
    }
    return OK;
}

/* ---- requests ---- */

struct request {
    struct named_tensor tensor;
    struct slice slice;
};

struct requests {
    struct tensor_names names;
    struct request *items;
    size_t count, capacity;
};

static enum status add_request(struct requests *x, const struct named_tensor *t, const char *ranges,
                               struct error *err)
{
    struct request r = {.tensor = *t};
    if (t->num_dims > MAX_DIMS || dtype_bytes(t->dtype) == 0)
        return fail(err, ERR_UNSUPPORTED, "%s: cannot print %u dimensions of %s", t->name,
                    t->num_dims, dtype_infos[t->dtype].name);
    if (parse_ranges(&x->names.arena, ranges, t->num_dims, t->shape, &r.slice, err))
        return fail_in(err, "%s", t->name);
    *ARENA_PUSH(&x->names.arena, x->items, x->count, x->capacity) = r;
    return OK;
}

/* Whether the last brackets hold ranges rather than a part of a glob. */
static bool may_be_ranges(const char *bracket)
{
    return bracket && bracket[1 + strspn(bracket + 1, "0123456789:,- ")] == ']' &&
           bracket[strlen(bracket) - 1] == ']';
}

/* Adds the tensor named by the argument, with or without ranges behind the
 * name; else all tensors whose names match the argument as a glob. */
static enum status add_argument(struct requests *x, const char *argument, struct error *err)
{
    const char *bracket = strrchr(argument, '[');
    struct named_tensor one, *matches;
    size_t count;
    char *name = arena_printf(&x->names.arena, "%s", argument);
    if (bracket) {
        name[bracket - argument] = '\0';
        if (tensor_names_find(&x->names, name, &one)) return add_request(x, &one, bracket, err);
    }
    if (tensor_names_find(&x->names, argument, &one)) return add_request(x, &one, "", err);
    bool ranges = may_be_ranges(bracket);
    TRY(tensor_names_match(&x->names, ranges ? name : argument, &matches, &count, err));
    for (size_t i = 0; i < count; i++)
        TRY(add_request(x, &matches[i], ranges ? bracket : "", err));
    return OK;
}

/* ---- values ---- */

/* NaN and infinity become texts in JSON, as in protobuf's JSON. */
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
    bool elides;
    char *elements;      /* READ_ELEMENTS of them */
    uint64_t low, count; /* the flat indices of these elements: [low, low + count) */
    bool json;
};

/* Fills the buffer from element `first` on: rows are often short. */
static enum status fill_elements(struct printing *p, uint64_t first, struct error *err)
{
    p->low = first;
    p->count = 0;
    uint64_t n = min_u64(READ_ELEMENTS, p->t->numel - first);
    TRY(work_check(err));
    TRY(panel_read(&p->reader, p->t, first, n, p->elements, err));
    p->count = n;
    if (ferror(stdout)) return fail(err, ERR_IO, "cannot write to standard output");
    return OK;
}

/* Prints values [first, first + count) of the flat tensor; begins: without a
 * leading comma. */
static enum status print_run(struct printing *p, uint64_t first, uint64_t count, bool begins,
                             struct error *err)
{
    struct strbuf text = {0};
    enum status st = OK;
    for (uint64_t i = first; i < first + count && !st; i++) {
        bool is_here = i >= p->low && i - p->low < p->count;
        if (!is_here) st = fill_elements(p, i, err);
        if (st) break;
        if (i > first || !begins) strbuf_add_text(&text, ", ");
        print_element(&text, p->t->dtype, p->elements, i - p->low, p->json);
        if (text.length < MAX_TEXT_BYTES) continue;
        fwrite(text.data, 1, text.length, stdout);
        strbuf_clear(&text);
    }
    if (text.length) fwrite(text.data, 1, text.length, stdout);
    strbuf_release(&text);
    return st;
}

static bool is_elided(const struct printing *p, unsigned d)
{
    return p->elides && p->slice->end[d] - p->slice->start[d] > 2 * EDGE;
}

static enum status print_row(struct printing *p, unsigned d, uint64_t first, struct error *err)
{
    uint64_t start = p->slice->start[d], end = p->slice->end[d];
    if (!is_elided(p, d)) return print_run(p, first + start, end - start, true, err);
    TRY(print_run(p, first + start, EDGE, true, err));
    fputs(", ...", stdout);
    return print_run(p, first + end - EDGE, EDGE, false, err);
}

/* Closes the brackets after a failure too, so that the JSON is well-formed. */
static enum status print_dim(struct printing *p, unsigned d, uint64_t first, struct error *err)
{
    const struct slice *s = p->slice;
    uint64_t stride = 1;
    enum status st = OK;
    for (unsigned k = d + 1; k < s->num_dims; k++)
        stride *= p->t->shape[k];
    putchar('[');
    if (d + 1 == s->num_dims) st = print_row(p, d, first, err);
    for (uint64_t i = s->start[d]; d + 1 < s->num_dims && i < s->end[d] && !st; i++) {
        if (i > s->start[d]) printf(",\n%*s", (int)d + 1, "");
        if (is_elided(p, d) && i == s->start[d] + EDGE) {
            printf("...,\n%*s", (int)d + 1, "");
            i = s->end[d] - EDGE;
        }
        st = print_dim(p, d + 1, first + i * stride, err);
    }
    putchar(']');
    return st;
}

static uint64_t slice_count(const struct slice *s)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < s->num_dims; d++)
        n *= s->end[d] - s->start[d];
    return n;
}

static enum status print_values(struct printing *p, struct error *err)
{
    if (p->slice->num_dims) return print_dim(p, 0, 0, err);
    enum status st = print_run(p, 0, 1, true, err);
    if (st && p->json) fputs("null", stdout);
    return st;
}

/* Prints {"name", "dtype", "shape", "slice": [[start, end], ...], "values": up
 * to here. */
static void print_json_head(const struct named_tensor *t, const struct slice *s)
{
    struct strbuf text = {0};
    cJSON *o = cJSON_CreateObject(), *shape = cJSON_CreateArray(), *slice = cJSON_CreateArray();
    json_add_text(o, "name", t->name);
    json_add_text(o, "dtype", dtype_infos[t->dtype].name);
    for (unsigned d = 0; d < s->num_dims; d++) {
        cJSON *range = cJSON_CreateArray();
        cJSON_AddItemToArray(shape, json_new_u64(t->shape[d]));
        cJSON_AddItemToArray(range, json_new_u64(s->start[d]));
        cJSON_AddItemToArray(range, json_new_u64(s->end[d]));
        cJSON_AddItemToArray(slice, range);
    }
    cJSON_AddItemToObject(o, "shape", shape);
    cJSON_AddItemToObject(o, "slice", slice);
    json_print(&text, o, -1);
    printf("%.*s, \"values\":\n", (int)text.length - 1, text.data);
    strbuf_release(&text);
    cJSON_Delete(o);
}

static enum status print_request(struct printing *p, struct requests *x, const struct request *r,
                                 const struct print_flags *f, struct error *err)
{
    const struct tensor *t;
    TRY(tensor_names_open(&x->names, &r->tensor, &t, err));
    p->t = t;
    p->count = 0;
    p->slice = &r->slice;
    p->elides = !f->all && !p->json && slice_count(&r->slice) > THRESHOLD;
    if (t->dtype == DT_C64 || t->dtype == DT_C128)
        return fail(err, ERR_UNSUPPORTED, "%s: cannot print complex numbers (%s)", t->name,
                    dtype_infos[t->dtype].name);
    if (!f->output.quiet && !p->json) /* with several tensors, values need their name beside them */
        fprintf(x->count > 1 ? stdout : stderr, "%s  %s %s\n", t->name, dtype_infos[t->dtype].name,
                shape_text(&x->names.arena, t->num_dims, t->shape));
    if (p->json) print_json_head(&r->tensor, &r->slice);
    enum status st = print_values(p, err);
    putchar(p->json ? '}' : '\n');
    return st;
}

static enum status print_requests(struct requests *x, const struct print_flags *f,
                                  struct error *err)
{
    enum { BUFFER_BYTES = READ_ELEMENTS * MAX_ELEMENT_BYTES };
    char *buffers = must_calloc(3, BUFFER_BYTES);
    struct printing p = {.json = f->output.json, .elements = buffers};
    p.reader = (struct panel_reader){
        .reader = stored_reader_create(&x->names.checkpoint->catalog.stored, 16),
        .buffer_bytes = BUFFER_BYTES,
        .temp = buffers + BUFFER_BYTES,
        .cast = buffers + 2 * (size_t)BUFFER_BYTES};
    enum status st = OK;
    if (p.json) result_stream_field("tensors");
    if (p.json) putchar('[');
    for (size_t i = 0; i < x->count && !st; i++) {
        if (p.json && i) fputs(",\n", stdout);
        st = print_request(&p, x, &x->items[i], f, err);
    }
    if (p.json) putchar(']');
    stored_reader_free(p.reader.reader);
    free(buffers);
    return st;
}

static enum status run_print(void *options, const char *const *positional, size_t num_positional,
                             struct error *err)
{
    const struct print_flags *f = options;
    struct opened o;
    struct requests x = {.count = 0};
    const struct source_options source = source_options_of(&f->source);
    enum status st = opened_open(&o, positional[0], &source, f->source.model_map, true, true, err);
    tensor_names_init(&x.names, &o.checkpoint, &o.maps, false);
    for (size_t i = 1; i < num_positional && !st; i++)
        st = add_argument(&x, positional[i], err);
    if (!st) st = print_requests(&x, f, err);
    tensor_names_release(&x.names);
    opened_close(&o);
    return st;
}

const struct command command_print = {
    .name = "print",
    .summary = "print values of tensors, by any of their names",
    .positional = "PATH TENSOR...",
    .text =
        "TENSOR is a logical name, a name in the files, or, for a Megatron checkpoint, the Hugging "
        "Face name; or a glob, which prints each matching tensor. A slice may follow. Of more than "
        "1000 values, the first and last three of each dimension are printed, as in numpy; --all "
        "prints every value.\n\n"
        "With --json the field \"tensors\" has an object for each tensor: name, dtype, shape, "
        "slice (start and end in each dimension), and all values as nested lists; NaN and infinity "
        "are the texts \"NaN\", \"Infinity\" and \"-Infinity\".\n\n"
        "  ferry print ckpt 'decoder.layers.3.mlp.linear_fc2.weight[0:4,0:8]'\n"
        "  ferry print model 'model.layers.*.input_layernorm.weight[:4]'",
    .groups = print_groups,
    .num_groups = COUNT(print_groups),
    .options_bytes = sizeof(struct print_flags),
    .defaults = set_print_defaults,
    .run = run_print,
};
