#include "convert/deepspeed/tp_rules.h"

#include <ctype.h>
#include <inttypes.h>
#include <regex.h>
#include <string.h>

#include "ckpt/catalog.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"
#include "convert/deepspeed/ds_values.h"

/* ---- patterns ---- */

struct pattern {
    const char *text;
    const char *literal; /* without escapes; NULL: a regular expression */
    bool to_end;         /* of a literal: it ends with $ */
    regex_t compiled;
    const struct value *value; /* what it is a key of */
};

struct patterns {
    struct pattern *items;
    size_t count, capacity;
};

/* The text that a pattern without operators stands for; NULL: it has some. */
static const char *literal_of(struct arena *a, const char *pattern, bool *to_end)
{
    struct strbuf text = {0};
    const char *p = pattern + (*pattern == '^');
    bool plain = true;
    for (; *p && plain && !(*p == '$' && !p[1]); p++) {
        if (*p == '\\' && ispunct((unsigned char)p[1]))
            p++;
        else
            plain = !strchr("\\^$.[]|()?*+{}", *p);
        strbuf_add_char(&text, *p);
    }
    *to_end = *p == '$';
    const char *found = plain ? arena_text(a, text.length ? text.data : "", text.length) : NULL;
    strbuf_release(&text);
    return found;
}

/* Translates to POSIX what Python writes otherwise: \d, (?:...), lazy operators,
 * which match the same names. NULL: another extension, or a backslash between
 * brackets, where POSIX has none. */
static const char *posix_of(struct arena *a, const char *pattern)
{
    struct strbuf out = {0};
    bool known = true, in_brackets = false;
    strbuf_add_text(&out, "^(");
    for (const char *p = pattern; *p && known; p++) {
        if (in_brackets) {
            known = *p != '\\' && *p != '[';
            in_brackets = *p != ']';
            strbuf_add_char(&out, *p);
        } else if (*p == '\\' && p[1] == 'd') {
            strbuf_add_text(&out, "[0-9]");
            p++;
        } else if (*p == '\\') {
            known = p[1] && (ispunct((unsigned char)p[1]) || strchr("wWsSbB", p[1]));
            strbuf_add(&out, p, known ? 2 : 1);
            p += known;
        } else if (*p == '(' && p[1] == '?') {
            known = p[2] == ':';
            strbuf_add_text(&out, "(");
            p += known ? 2 : 0;
        } else {
            in_brackets = *p == '[';
            strbuf_add_char(&out, *p);
            if (strchr("*+?}", *p) && p[1] == '?') p++;
        }
    }
    strbuf_add_text(&out, ")");
    const char *text = known ? arena_text(a, out.data, out.length) : NULL;
    strbuf_release(&out);
    return text;
}

static enum status add_pattern(struct patterns *list, struct arena *a, const struct value *text,
                               const struct value *value, struct error *err)
{
    struct pattern p = {.text = value_as_text(text), .value = value};
    if (!p.text)
        return fail(err, ERR_CORRUPT, "universal_checkpoint_info: a pattern is not a text");
    p.literal = literal_of(a, p.text, &p.to_end);
    const char *posix = p.literal ? NULL : posix_of(a, p.text);
    if (!p.literal && (!posix || regcomp(&p.compiled, posix, REG_EXTENDED | REG_NOSUB)))
        return fail(err, ERR_UNSUPPORTED,
                    "universal_checkpoint_info: the regular expression %s is not supported",
                    p.text);
    *ARENA_PUSH(a, list->items, list->count, list->capacity) = p;
    return OK;
}

/* Adds a list of patterns, all of `value`. */
static enum status add_patterns(struct patterns *list, struct arena *a, const struct value *texts,
                                const struct value *value, struct error *err)
{
    struct value *const *items;
    for (uint32_t i = 0, n = ds_list(texts, &items); i < n; i++)
        TRY(add_pattern(list, a, items[i], value, err));
    return OK;
}

static void patterns_release(struct patterns *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (!list->items[i].literal) regfree(&list->items[i].compiled);
}

static bool pattern_matches(const struct pattern *p, const char *name)
{
    if (!p->literal) return regexec(&p->compiled, name, 0, NULL, 0) == 0;
    return p->to_end ? strcmp(name, p->literal) == 0 : text_starts_with(name, p->literal);
}

static const struct pattern *patterns_find(const struct patterns *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (pattern_matches(&list->items[i], name)) return &list->items[i];
    return NULL;
}

/* ---- all rules ---- */

struct tp_rules {
    uint64_t rank, num_ranks;
    struct patterns placed; /* of affine_map; value: the parameter's entry */
    struct patterns replicated, averaged, rows, two_subs, vocabulary;
    struct patterns subs;        /* value: the item of parameter_with_sub_params */
    struct patterns unsupported; /* value: why */
    const struct value *shard_widths;
    uint64_t vocab_size; /* 0: not known */
};

enum status tp_rules_read(struct tp_rules **out, struct arena *a, const struct value *info,
                          uint64_t rank, uint64_t num_ranks, struct error *err)
{
    struct tp_rules *r = *out = arena_alloc(a, sizeof *r);
    const struct {
        const struct value *dict;
        struct patterns *list;
    } dicts[] = {{value_get(value_get(info, "affine_map"), "params"), &r->placed},
                 {value_get(info, "autotp_unsupported_parameter_patterns"), &r->unsupported}};
    struct value *const *subs;
    r->rank = rank;
    r->num_ranks = num_ranks;
    r->shard_widths = value_get(info, "sub_param_shard_widths");
    (void)ds_as_count(value_get(info, "original_vocab_size"), &r->vocab_size);
    const struct {
        const char *key;
        struct patterns *list;
    } lists[] = {{"tp_replicated_parameter_patterns", &r->replicated},
                 {"parameter_to_average_patterns", &r->averaged},
                 {"parameter_with_row_parallelism_patterns", &r->rows},
                 {"parameter_with_2_sub_params_cat_dim_0", &r->two_subs},
                 {"vocabulary_parameter_patterns", &r->vocabulary}};
    for (size_t i = 0; i < COUNT(lists); i++)
        TRY(add_patterns(lists[i].list, a, value_get(info, lists[i].key), NULL, err));
    for (uint32_t i = 0, n = ds_list(value_get(info, "parameter_with_sub_params"), &subs); i < n;
         i++)
        TRY(add_patterns(&r->subs, a, value_get(subs[i], "patterns"), subs[i], err));
    for (size_t k = 0; k < COUNT(dicts); k++) {
        const struct value *d = dicts[k].dict;
        for (uint32_t i = 0; d && d->kind == VALUE_DICT && i < d->count; i++)
            TRY(add_pattern(dicts[k].list, a, d->items[2 * i], d->items[2 * i + 1], err));
    }
    return OK;
}

void tp_rules_release(struct tp_rules *r)
{
    if (!r) return;
    struct patterns *const lists[] = {&r->placed,   &r->replicated, &r->averaged, &r->rows,
                                      &r->two_subs, &r->vocabulary, &r->subs,     &r->unsupported};
    for (size_t i = 0; i < COUNT(lists); i++)
        patterns_release(lists[i]);
}

/* ---- pieces of affine_map ---- */

static bool shape_is(unsigned num_dims, const uint64_t *a, unsigned b_dims, const uint64_t *b)
{
    return num_dims == b_dims && (!num_dims || memcmp(a, b, num_dims * sizeof *a) == 0);
}

/* Reads (offset, strides) of a box of this extent, whose elements must lie in an
 * array of numel. */
static bool read_view(struct arena *a, const struct value *v, unsigned num_dims,
                      const uint64_t *extent, uint64_t numel, uint64_t *offset, uint64_t **stride)
{
    struct value *const *items;
    unsigned dims;
    if (ds_list(v, &items) != 2 || !ds_as_count(items[0], offset) ||
        !ds_as_shape(a, items[1], &dims, stride) || dims != num_dims)
        return false;
    uint64_t last = *offset;
    for (unsigned d = 0; d < num_dims; d++) {
        uint64_t span;
        if (!extent[d]) return true;
        if (!mul_u64(extent[d] - 1, (*stride)[d], &span) || !add_u64(last, span, &last))
            return false;
    }
    return last < numel;
}

/* Reads a piece; *own: whether this rank is the first that has it. */
static enum status read_piece(const struct tp_rules *r, struct arena *a, const char *name,
                              const struct value *v, uint64_t part_numel, uint64_t whole_numel,
                              struct pair *out, bool *own, struct error *err)
{
    struct value *const *locations;
    uint64_t *extent, *in_part, *in_whole, first = r->rank;
    unsigned num_dims;
    *out = (struct pair){0};
    if (ds_list(value_get(v, "locations"), &locations)) (void)ds_as_count(locations[0], &first);
    *own = first == r->rank;
    if (!ds_as_shape(a, value_get(v, "shape"), &num_dims, &extent) || num_dims > MAX_AXES ||
        !read_view(a, value_get(v, "dest"), num_dims, extent, part_numel, &out->a_offset,
                   &in_part) ||
        !read_view(a, value_get(v, "source"), num_dims, extent, whole_numel, &out->b_offset,
                   &in_whole))
        return fail(err, ERR_CORRUPT,
                    "affine_map: a piece of %s for rank %" PRIu64 " lies outside of it", name,
                    r->rank);
    for (unsigned d = 0; d < num_dims; d++)
        out->axes[out->num_axes++] = (struct axis){extent[d], in_part[d], in_whole[d]};
    return pair_require_nested(out, name, err);
}

static enum status rule_of_map(const struct tp_rules *r, struct arena *a, const char *name,
                               const struct value *entry, unsigned num_dims, const uint64_t *shape,
                               struct tp_rule *out, struct error *err)
{
    const struct value *here = ds_get_int(value_get(entry, "ranks"), (int64_t)r->rank);
    struct value *const *pieces;
    const uint32_t n = ds_list(value_get(here, "pieces"), &pieces);
    uint64_t *part, *whole, part_numel, whole_numel;
    unsigned part_dims;
    if (!ds_as_shape(a, value_get(entry, "logical_shape"), &out->num_dims, &whole) ||
        !ds_as_shape(a, value_get(here, "shard_shape"), &part_dims, &part) || !n ||
        !shape_numel(whole, out->num_dims, &whole_numel) || whole_numel > MAX_ELEMENTS ||
        !shape_numel(part, part_dims, &part_numel))
        return fail(err, ERR_CORRUPT, "affine_map: %s lacks a place for rank %" PRIu64, name,
                    r->rank);
    if (!shape_is(part_dims, part, num_dims, shape))
        return fail(err, ERR_CORRUPT,
                    "affine_map: %s of rank %" PRIu64 " has shape %s, but the tensor has %s", name,
                    r->rank, shape_text(a, part_dims, part), shape_text(a, num_dims, shape));
    out->kind = TP_PLACED;
    out->whole = whole;
    out->pieces = arena_array(a, n, sizeof *out->pieces);
    for (uint32_t i = 0; i < n; i++) {
        bool own;
        TRY(read_piece(r, a, name, pieces[i], part_numel, whole_numel,
                       &out->pieces[out->num_pieces], &own, err));
        out->num_pieces += own && pair_count(&out->pieces[out->num_pieces]);
    }
    return OK;
}

/* ---- sub-parameters ---- */

/* The width of sub-parameter i in this rank, `size` in the whole. */
static bool width_of(const struct tp_rules *r, const struct value *widths, uint32_t i,
                     const struct value *size, uint64_t *out)
{
    struct value *const *subs, *const *ranks;
    uint64_t all;
    if (widths)
        return i < ds_list(widths, &subs) && r->rank < ds_list(subs[i], &ranks) &&
               ds_as_count(ranks[r->rank], out);
    if (!ds_as_count(size, &all) || all % r->num_ranks) return false;
    *out = all / r->num_ranks;
    return true;
}

/* Sets widths of `count` equal sub-parameters. */
static bool split_evenly(struct arena *a, uint64_t count, uint64_t extent, struct tp_rule *out)
{
    if (!count || count > extent || extent % count) return false;
    uint64_t *widths = arena_array(a, count, sizeof *widths);
    for (uint64_t i = 0; i < count; i++)
        widths[i] = extent / count;
    out->widths = widths;
    out->num_subs = (unsigned)count;
    return true;
}

/* Reads an item of parameter_with_sub_params. */
static bool read_subs(const struct tp_rules *r, struct arena *a, const struct pattern *p,
                      unsigned num_dims, const uint64_t *shape, struct tp_rule *out)
{
    const struct value *widths = value_get(r->shard_widths, p->text);
    struct value *const *shapes, *const *sizes;
    uint64_t dim, sum = 0, count;
    const uint32_t dims = ds_list(value_get(p->value, "shape"), &shapes);
    if (!ds_as_count(value_get(p->value, "partition_dim"), &dim) || dim >= dims || dim >= num_dims)
        return false;
    out->dim = (unsigned)dim;
    if (ds_as_count(shapes[dim], &count) && !widths) return split_evenly(a, count, shape[dim], out);
    const uint32_t n = ds_list(widths ? widths : shapes[dim], &sizes);
    if (!n || n > UINT16_MAX) return false;
    uint64_t *to = arena_array(a, n, sizeof *to);
    for (uint32_t i = 0; i < n; i++)
        if (!width_of(r, widths, i, sizes[i], &to[i]) || !add_u64(sum, to[i], &sum)) return false;
    out->widths = to;
    out->num_subs = n;
    return sum == shape[dim];
}

/* ---- the rule of a parameter ---- */

enum status tp_rule_of(const struct tp_rules *r, struct arena *a, const char *name,
                       unsigned num_dims, const uint64_t *shape, struct tp_rule *out,
                       struct error *err)
{
    const struct pattern *placed = patterns_find(&r->placed, name),
                         *subs = patterns_find(&r->subs, name),
                         *unsupported = patterns_find(&r->unsupported, name);
    *out = (struct tp_rule){.kind = TP_CONCAT};
    if (unsupported) {
        const char *why = value_as_text(unsupported->value);
        return fail(err, ERR_UNSUPPORTED, "%s: its parts cannot be joined, says DeepSpeed: %s",
                    name, why ? why : "autotp_unsupported_parameter_patterns");
    }
    if (placed) return rule_of_map(r, a, name, placed->value, num_dims, shape, out, err);
    if (!num_dims || patterns_find(&r->replicated, name)) {
        out->kind = TP_COPY;
        return OK;
    }
    if (patterns_find(&r->averaged, name))
        return fail(err, ERR_UNSUPPORTED,
                    "%s is the mean of the ranks' values (parameter_to_average_patterns), which is "
                    "not supported",
                    name);
    out->dim = patterns_find(&r->rows, name) != NULL;
    const bool two = patterns_find(&r->two_subs, name) != NULL;
    if (!two && !subs && out->dim >= num_dims)
        return fail(err, ERR_CORRUPT,
                    "%s of shape %s has no dimension 1, along which its parts join", name,
                    shape_text(a, num_dims, shape));
    if (two) out->dim = 0;
    if (!two && subs ? !read_subs(r, a, subs, num_dims, shape, out)
                     : shape[out->dim] && !split_evenly(a, two ? 2 : 1, shape[out->dim], out))
        return fail(err, ERR_CORRUPT,
                    "%s of rank %" PRIu64
                    " has shape %s, which its sub-parameters do not add up to",
                    name, r->rank, shape_text(a, num_dims, shape));
    if (patterns_find(&r->vocabulary, name)) out->max_rows = r->vocab_size;
    return OK;
}
