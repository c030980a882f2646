/* model_tensors.c - expands a model map's rows for all layers and experts of
 * one model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/strbuf.h"
#include "convert/map/model_map_internal.h"

/* One row, evaluated for one layer and expert. Patterns are evaluated once,
 * unless they vary by layer or expert. */
struct expanded {
    bool valid;
    struct mapped_tensor tensor;
    struct mapped_part *parts;
};

struct expander {
    const struct model_map *map;
    const struct model_config *config;
    const struct hf_names *names;
    enum status (*visit)(void *context, const struct mapped_tensor *t, struct error *err);
    void *context;
    struct error *err;
    const char *prefix;         /* for {p} */
    struct expanded **expanded; /* of each row, its spellings */
    struct strbuf *text;        /* [0]: the logical name, [1 + i]: hf name i */
    struct arena arena;
};

static void put_name(struct strbuf *out, const char *pattern, const char *prefix, int64_t layer,
                     int64_t expert)
{
    strbuf_clear(out);
    strbuf_add_text(out, "");
    for (const char *p = pattern; *p; p++) {
        if (strncmp(p, "{l}", 3) == 0)
            strbuf_printf(out, "%lld", (long long)layer);
        else if (strncmp(p, "{e}", 3) == 0)
            strbuf_printf(out, "%lld", (long long)expert);
        else if (strncmp(p, "{p}", 3) == 0)
            strbuf_add_text(out, prefix);
        else {
            strbuf_add_char(out, *p);
            continue;
        }
        p += 2;
    }
}

static enum status put_numbers(struct expander *x, const struct tensor_row *row, struct expanded *e,
                               int64_t layer, int64_t expert)
{
    bool varies = false; /* differs between layers or experts */
    const struct map_names names = {.map = x->map,
                                    .config = x->config,
                                    .row = row,
                                    .layer = layer,
                                    .expert = expert,
                                    .varies = &varies};
    struct expr_names in = map_names_for(&names);
    if (!e->parts) e->parts = arena_array(&x->arena, row->num_parts, sizeof *e->parts);
    for (unsigned i = 0; i < row->num_parts; i++) {
        struct pattern_view a, b;
        struct mapped_part *part = &e->parts[i];
        TRY(pattern_eval(row->parts[i].megatron, &in, &a, x->err));
        TRY(pattern_eval(row->parts[i].hf, &in, &b, x->err));
        TRY(pattern_pair(&a, &b, &part->pair, x->err));
        part->num_dims = b.num_dims;
        memcpy(part->shape, b.shape, sizeof part->shape);
        e->tensor.num_dims = a.num_dims;
        memcpy(e->tensor.shape, a.shape, sizeof e->tensor.shape);
    }
    e->tensor.parts = e->parts;
    e->tensor.num_parts = row->num_parts;
    e->valid = !varies;
    return OK;
}

/* Whether a tensor of this spelling exists. */
static bool spelling_exists(struct expander *x, const struct tensor_row *row, int64_t layer,
                            int64_t expert)
{
    bool exists = false;
    for (unsigned i = 0; i < row->num_hf && !exists; i++) {
        put_name(&x->text[0], row->hf[i], x->prefix, layer, expert);
        exists = x->names->has(x->names->context, x->text[0].data);
    }
    return exists;
}

/* Whether names are by a published spelling, not by existing tensors. */
static bool has_published(const void *context, const char *name)
{
    (void)context, (void)name;
    return false;
}

static const struct published_names *published_of(const struct hf_names *names)
{
    return names && names->has == has_published ? names->context : NULL;
}

struct hf_names published_hf_names(const struct published_names *published)
{
    return (struct hf_names){.has = has_published, .context = published};
}

static bool is_published(const struct published_names *p, const struct tensor_row *row, unsigned k)
{
    char number[16];
    const int n = snprintf(number, sizeof number, "%u ", k);
    for (size_t i = 0; p && i < p->count; i++)
        if (strncmp(p->spellings[i], number, (size_t)n) == 0 &&
            strcmp(p->spellings[i] + n, row_spelling(row, k)->hf[0]) == 0)
            return true;
    return false;
}

static enum status put_numbers(struct expander *x, const struct tensor_row *row, struct expanded *e,
                               int64_t layer, int64_t expert);

/* Whether the tensors of spelling k that exist have its shapes. */
static bool spelling_fits(struct expander *x, size_t index, unsigned k, int64_t layer,
                          int64_t expert)
{
    const struct tensor_row *row = row_spelling(&x->map->tensors[index], k);
    struct expanded *e = &x->expanded[index][k];
    if (!x->names->fits) return true;
    if (!e->valid && put_numbers(x, row, e, layer, expert)) return true; /* expand_row() says it */
    for (unsigned i = 0; i < row->num_parts; i++) {
        put_name(&x->text[0], row->hf[row->parts[i].tensor], x->prefix, layer, expert);
        if (!x->names->fits(x->names->context, x->text[0].data, e->parts[i].num_dims,
                            e->parts[i].shape))
            return false;
    }
    return true;
}

/* Whether all tensors of a spelling exist. */
static bool spelling_is_whole(struct expander *x, const struct tensor_row *row, int64_t layer,
                              int64_t expert)
{
    for (unsigned i = 0; i < row->num_hf; i++) {
        put_name(&x->text[0], row->hf[i], x->prefix, layer, expert);
        if (!x->names->has(x->names->context, x->text[0].data)) return false;
    }
    return true;
}

/* The first spelling that is published, or of which all tensors exist with its
 * shapes; else the first of which any exists; without any, the first. */
static unsigned choose_spelling(struct expander *x, size_t index, int64_t layer, int64_t expert)
{
    const struct tensor_row *row = &x->map->tensors[index];
    unsigned there = 0;
    bool any = false;
    if (!x->names || !row->num_others) return 0;
    for (unsigned k = 0; k <= row->num_others; k++) {
        if (is_published(published_of(x->names), row, k)) return k;
        if (!spelling_exists(x, row_spelling(row, k), layer, expert)) continue;
        if (spelling_is_whole(x, row_spelling(row, k), layer, expert) &&
            spelling_fits(x, index, k, layer, expert))
            return k;
        if (!any) there = k;
        any = true;
    }
    return there;
}

static enum status expand_row(struct expander *x, size_t index, int64_t layer, int64_t expert)
{
    const unsigned spelling = choose_spelling(x, index, layer, expert);
    const struct tensor_row *row = row_spelling(&x->map->tensors[index], spelling);
    struct expanded *e = &x->expanded[index][spelling];
    if (!e->valid && put_numbers(x, row, e, layer, expert))
        return fail_in(x->err, "model map %s: %s", x->map->family, row->megatron);
    put_name(&x->text[0], row->megatron, "", layer, expert);
    for (unsigned i = 0; i < row->num_hf; i++)
        put_name(&x->text[1 + i], row->hf[i], x->prefix, layer, expert);
    e->tensor.name = x->text[0].data;
    e->tensor.add = x->map->tensors[index].add;
    for (unsigned i = 0; i < row->num_parts; i++)
        e->parts[i].hf_name = x->text[1 + row->parts[i].tensor].data;
    return x->visit(x->context, &e->tensor, x->err);
}

static enum status row_applies(struct expander *x, size_t index, int64_t layer, bool *applies)
{
    const struct tensor_row *row = &x->map->tensors[index];
    const struct map_names names = {
        .map = x->map, .config = x->config, .row = row, .layer = layer, .expert = -1};
    if (map_condition(&names, row->when, applies, x->err))
        return fail_in(x->err, "model map %s: %s", x->map->family, row->megatron);
    return OK;
}

/* Visits the rows [first, end) of one layer, consecutive rows of experts expert
 * by expert. */
static enum status expand_layer(struct expander *x, size_t first, size_t end, int64_t layer)
{
    for (size_t i = first, next; i < end; i = next) {
        bool applies;
        next = i + 1;
        TRY(row_applies(x, i, layer, &applies));
        if (!x->map->tensors[i].per_expert) {
            if (applies) TRY(expand_row(x, i, layer, -1));
            continue;
        }
        while (next < end && x->map->tensors[next].per_expert)
            next++;
        for (int64_t e = 0; e < (int64_t)x->config->num_experts; e++)
            for (size_t k = i; k < next; k++) {
                TRY(row_applies(x, k, layer, &applies));
                if (applies) TRY(expand_row(x, k, layer, e));
            }
    }
    return OK;
}

static enum status expand_rows(struct expander *x)
{
    for (size_t i = 0, next; i < x->map->num_tensors; i = next) {
        next = i + 1;
        if (!x->map->tensors[i].per_layer) {
            bool applies;
            TRY(row_applies(x, i, -1, &applies));
            if (applies) TRY(expand_row(x, i, -1, -1));
            continue;
        }
        while (next < x->map->num_tensors && x->map->tensors[next].per_layer)
            next++;
        for (int64_t l = 0; l < (int64_t)x->config->num_layers; l++)
            TRY(expand_layer(x, i, next, l));
    }
    return OK;
}

/* Chooses the prefix with which the first tensor with {p} exists. */
static const char *choose_prefix(struct expander *x)
{
    const struct model_map *map = x->map;
    const struct published_names *published = published_of(x->names);
    if (published && published->prefix) return published->prefix;
    for (size_t i = 0; i < map->num_tensors && x->names && !x->names->first_prefix; i++) {
        if (!strstr(map->tensors[i].hf[0], "{p}")) continue;
        for (unsigned p = 0; p < map->num_prefixes; p++) {
            put_name(&x->text[1], map->tensors[i].hf[0], map->prefixes[p], 0, 0);
            if (x->names->has(x->names->context, x->text[1].data)) return map->prefixes[p];
        }
    }
    return map->num_prefixes ? map->prefixes[0] : "";
}

static void begin(struct expander *x, unsigned *most)
{
    const struct model_map *map = x->map;
    *most = 0;
    arena_init(&x->arena);
    x->expanded = arena_array(&x->arena, map->num_tensors, sizeof *x->expanded);
    for (size_t i = 0; i < map->num_tensors; i++) {
        const struct tensor_row *row = &map->tensors[i];
        x->expanded[i] = arena_array(&x->arena, 1 + row->num_others, sizeof **x->expanded);
        for (unsigned k = 0; k <= row->num_others; k++)
            if (row_spelling(row, k)->num_hf > *most) *most = row_spelling(row, k)->num_hf;
    }
    x->text = arena_array(&x->arena, 1 + *most, sizeof *x->text);
    x->prefix = choose_prefix(x);
}

static void end(struct expander *x, unsigned most)
{
    for (unsigned i = 0; i <= most; i++)
        strbuf_release(&x->text[i]);
    arena_release(&x->arena);
}

enum status model_map_expand(const struct model_map *map, const struct model_config *c,
                             const struct hf_names *names,
                             enum status (*visit)(void *context, const struct mapped_tensor *t,
                                                  struct error *err),
                             void *context, struct error *err)
{
    struct expander x = {
        .map = map, .config = c, .names = names, .visit = visit, .context = context, .err = err};
    unsigned most;
    begin(&x, &most);
    enum status st = expand_rows(&x);
    end(&x, most);
    return st;
}

/* ---- published names ---- */

/* The spelling of a row's tensors in the first layer that has them. */
static unsigned published_spelling(struct expander *x, size_t index)
{
    const struct tensor_row *row = &x->map->tensors[index];
    const uint64_t layers = row->per_layer ? x->config->num_layers : 1;
    for (uint64_t l = 0; l < layers; l++)
        for (unsigned k = 0; k <= row->num_others; k++)
            if (spelling_exists(x, row_spelling(row, k), (int64_t)l, 0))
                return choose_spelling(x, index, (int64_t)l, 0);
    return 0;
}

const struct published_names *model_map_published(const struct model_map *map,
                                                  const struct model_config *c,
                                                  const struct hf_names *names, struct arena *a)
{
    struct expander x = {.map = map, .config = c, .names = names};
    struct published_names *out = arena_alloc(a, sizeof *out);
    unsigned most;
    begin(&x, &most);
    out->prefix = arena_copy_text(a, x.prefix);
    bool usual = !map->num_prefixes || strcmp(x.prefix, map->prefixes[0]) == 0;
    out->spellings = arena_array(a, map->num_tensors + 1, sizeof *out->spellings);
    for (size_t i = 0; i < map->num_tensors; i++) {
        const struct tensor_row *row = &map->tensors[i];
        if (!row->num_others) continue;
        const unsigned k = published_spelling(&x, i);
        usual &= k == 0;
        out->spellings[out->count++] = arena_printf(a, "%u %s", k, row_spelling(row, k)->hf[0]);
    }
    end(&x, most);
    return usual ? NULL : out;
}
