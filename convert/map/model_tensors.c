/* model_tensors.c - expands a model map's rows for all layers and experts of
 * one model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/strbuf.h"
#include "common/text.h"
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
    struct strbuf mtp;          /* for {mtp}, in a layer of multi-token prediction; else empty */
    int64_t mtp_layer;          /* its number */
    bool mtp_is_listed;         /* it has the rows of mtp.layers alone, none of the last layer */
    size_t published_capacity;  /* of published names being made */
    struct expanded **expanded; /* of each row, its spellings */
    bool *applies;              /* of each row of experts, to the layer being expanded */
    struct strbuf *text;        /* [0]: the logical name, [1 + i]: hf name i */
    struct arena arena;
};

static const char decoder_layers[] = "decoder.layers.{l}.", hf_layers[] = "{p}layers.{l}.",
                  mtp_layer_rows[] = "mtp.layers.{l}.transformer_layer.";

static bool in_mtp(const struct expander *x)
{
    return x->mtp.length > 0;
}

/* Puts a name with numbers. In a layer of multi-token prediction a name of a
 * layer begins like that layer's. */
static void put_name(const struct expander *x, struct strbuf *out, const char *pattern,
                     int64_t layer, int64_t expert)
{
    const int64_t number = in_mtp(x) ? x->mtp_layer : layer;
    strbuf_clear(out);
    strbuf_add_text(out, "");
    if (in_mtp(x) && text_skip_prefix(&pattern, decoder_layers))
        strbuf_printf(out, "mtp.layers.%" PRId64 ".transformer_layer.", number);
    if (in_mtp(x) && text_skip_prefix(&pattern, hf_layers))
        strbuf_add(out, x->mtp.data, x->mtp.length);
    for (const char *p = pattern; *p;) {
        if (text_skip_prefix(&p, "{l}")) {
            strbuf_add_i64(out, number);
        } else if (text_skip_prefix(&p, "{e}")) {
            strbuf_add_i64(out, expert);
        } else if (text_skip_prefix(&p, "{p}")) {
            strbuf_add_text(out, x->prefix);
        } else if (text_skip_prefix(&p, "{mtp}")) {
            strbuf_add(out, x->mtp.data, x->mtp.length);
        } else {
            const size_t n = 1 + strcspn(p + 1, "{");
            strbuf_add(out, p, n);
            p += n;
        }
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
        put_name(x, &x->text[0], row->hf[i], layer, expert);
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

/* How a published spelling is kept: "NUMBER NAME", which layers of multi-token
 * prediction have for themselves. */
static const char *published_text(struct expander *x, const struct tensor_row *row, unsigned k)
{
    const char *name = row_spelling(row, k)->hf[0];
    const bool own = in_mtp(x) && text_skip_prefix(&name, hf_layers);
    return arena_printf(&x->arena, "%u %s%s", k, own ? "{mtp}" : "", name);
}

static bool is_published(struct expander *x, const struct tensor_row *row, unsigned k)
{
    const struct published_names *p = published_of(x->names);
    const char *text = p && p->count ? published_text(x, row, k) : NULL;
    for (size_t i = 0; p && i < p->count; i++)
        if (strcmp(p->spellings[i], text) == 0) return true;
    return false;
}

/* Whether the tensors of spelling k that exist have its shapes. */
static bool spelling_fits(struct expander *x, size_t index, unsigned k, int64_t layer,
                          int64_t expert)
{
    const struct tensor_row *row = row_spelling(&x->map->tensors[index], k);
    struct expanded *e = &x->expanded[index][k];
    if (!x->names->fits) return true;
    if (!e->valid && put_numbers(x, row, e, layer, expert)) return true; /* expand_row() says it */
    for (unsigned i = 0; i < row->num_parts; i++) {
        put_name(x, &x->text[0], row->hf[row->parts[i].tensor], layer, expert);
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
        put_name(x, &x->text[0], row->hf[i], layer, expert);
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
        if (is_published(x, row, k)) return k;
        if (!spelling_exists(x, row_spelling(row, k), layer, expert)) continue;
        if (spelling_is_whole(x, row_spelling(row, k), layer, expert) &&
            spelling_fits(x, index, k, layer, expert))
            return k;
        if (!any) there = k;
        any = true;
    }
    return there;
}

/* "absent NAME": files with published names lack this copy. */
static const char *absent_text(struct expander *x, const struct tensor_row *row)
{
    put_name(x, &x->text[0], row->hf[0], -1, -1);
    return arena_printf(&x->arena, "absent %s", x->text[0].data);
}

/* Whether the files lack a copy; without files, all do. */
static bool copy_is_absent(struct expander *x, const struct tensor_row *row)
{
    const struct published_names *p = published_of(x->names);
    if (!row->copy || !x->names) return row->copy;
    if (x->names->has != has_published) return !spelling_exists(x, row, -1, -1);
    for (size_t i = 0; p && i < p->count; i++)
        if (strcmp(p->spellings[i], absent_text(x, row)) == 0) return true;
    return false;
}

static enum status expand_row(struct expander *x, size_t index, int64_t layer, int64_t expert)
{
    if (copy_is_absent(x, &x->map->tensors[index])) return OK;
    const unsigned spelling = choose_spelling(x, index, layer, expert);
    const struct tensor_row *row = row_spelling(&x->map->tensors[index], spelling);
    struct expanded *e = &x->expanded[index][spelling];
    if (!e->valid && put_numbers(x, row, e, layer, expert))
        return fail_in(x->err, "model map %s: %s", x->map->family, row->megatron);
    put_name(x, &x->text[0], row->megatron, layer, expert);
    for (unsigned i = 0; i < row->num_hf; i++)
        put_name(x, &x->text[1 + i], row->hf[i], layer, expert);
    e->tensor.name = x->text[0].data;
    e->tensor.add = x->map->tensors[index].add;
    e->tensor.copy = x->map->tensors[index].copy;
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
        next = i + 1;
        if (!x->map->tensors[i].per_expert) {
            bool applies;
            TRY(row_applies(x, i, layer, &applies));
            if (applies) TRY(expand_row(x, i, layer, -1));
            continue;
        }
        while (next < end && x->map->tensors[next].per_expert)
            next++;
        for (size_t k = i; k < next && x->config->num_experts; k++)
            TRY(row_applies(x, k, layer, &x->applies[k]));
        for (int64_t e = 0; e < (int64_t)x->config->num_experts; e++)
            for (size_t k = i; k < next; k++)
                if (x->applies[k]) TRY(expand_row(x, k, layer, e));
    }
    return OK;
}

/* Whether a layer of multi-token prediction has the row, as one of its own or as
 * the last layer has it. */
static bool is_of_mtp(const struct expander *x, const struct tensor_row *row)
{
    bool all = text_starts_with(row->megatron, decoder_layers);
    for (unsigned i = 0; i < row->num_hf; i++)
        all &= text_starts_with(row->hf[i], hf_layers);
    return row->mtp || (all && !x->mtp_is_listed);
}

static enum status begin_mtp(struct expander *x, int64_t layer)
{
    const struct map_names names = {
        .map = x->map, .config = x->config, .layer = layer, .expert = -1};
    x->mtp_layer = layer;
    return map_fill_mtp(&names, x->prefix, &x->mtp, x->err);
}

static void end_mtp(struct expander *x)
{
    strbuf_clear(&x->mtp);
}

/* Visits the rows of a layer of multi-token prediction, which is like the last
 * layer. */
static enum status expand_mtp(struct expander *x, int64_t layer)
{
    const struct tensor_row *rows = x->map->tensors;
    const int64_t like = (int64_t)x->config->num_layers - 1;
    enum status st = begin_mtp(x, layer);
    for (size_t i = 0, next; i < x->map->num_tensors && !st; i = next) {
        next = i + 1;
        if (!is_of_mtp(x, &rows[i])) continue;
        while (next < x->map->num_tensors && is_of_mtp(x, &rows[next]))
            next++;
        st = expand_layer(x, i, next, like);
    }
    end_mtp(x);
    return st;
}

static uint64_t mtp_layers(const struct expander *x)
{
    return x->map->mtp ? model_mtp_layers(x->config) : 0;
}

static enum status expand_rows(struct expander *x)
{
    for (size_t i = 0, next; i < x->map->num_tensors; i = next) {
        next = i + 1;
        if (x->map->tensors[i].mtp) continue;
        if (!x->map->tensors[i].per_layer) {
            bool applies;
            TRY(row_applies(x, i, -1, &applies));
            if (applies) TRY(expand_row(x, i, -1, -1));
            continue;
        }
        while (next < x->map->num_tensors && x->map->tensors[next].per_layer &&
               !x->map->tensors[next].mtp)
            next++;
        for (int64_t l = 0; l < (int64_t)x->config->num_layers; l++)
            TRY(expand_layer(x, i, next, l));
    }
    for (uint64_t l = 0; l < mtp_layers(x); l++)
        TRY(expand_mtp(x, (int64_t)l));
    return OK;
}

/* The prefix {p} of a name that exists; NULL: none. */
static const char *prefix_of(struct expander *x, const char *name)
{
    for (unsigned p = 0; p < x->map->num_prefixes && strstr(name, "{p}"); p++) {
        x->prefix = x->map->prefixes[p];
        put_name(x, &x->text[1], name, 0, 0);
        if (x->names->has(x->names->context, x->text[1].data)) return x->prefix;
    }
    return NULL;
}

/* The prefix of the first tensor that exists, in any spelling. */
static const char *choose_prefix(struct expander *x)
{
    const struct model_map *map = x->map;
    const struct published_names *published = published_of(x->names);
    const char *prefix = published ? published->prefix : NULL;
    for (size_t i = 0; i < map->num_tensors && x->names && !x->names->first_prefix; i++)
        for (unsigned k = 0; k <= map->tensors[i].num_others && !prefix; k++)
            prefix = prefix_of(x, row_spelling(&map->tensors[i], k)->hf[0]);
    return prefix ? prefix : map->num_prefixes ? map->prefixes[0] : "";
}

static void begin(struct expander *x, unsigned *most)
{
    const struct model_map *map = x->map;
    *most = 0;
    arena_init(&x->arena);
    x->expanded = arena_array(&x->arena, map->num_tensors, sizeof *x->expanded);
    x->applies = arena_array(&x->arena, map->num_tensors, sizeof *x->applies);
    for (size_t i = 0; i < map->num_tensors; i++) {
        const struct tensor_row *row = &map->tensors[i];
        x->expanded[i] = arena_array(&x->arena, 1 + row->num_others, sizeof **x->expanded);
        x->mtp_is_listed |= text_starts_with(row->megatron, mtp_layer_rows);
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
    strbuf_release(&x->mtp);
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

/* ---- multi-token prediction ---- */

/* A search for any tensor of a layer. */
struct any_tensor {
    const struct hf_names *names;
    bool found;
};

static enum status look_for(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct any_tensor *any = context;
    (void)err;
    for (size_t i = 0; i < t->num_parts; i++)
        any->found |= any->names->has(any->names->context, t->parts[i].hf_name);
    return OK;
}

void model_map_find_mtp(const struct model_map *map, struct model_config *c,
                        const struct hf_names *names)
{
    struct error none;
    struct any_tensor any = {.names = names, .found = true};
    struct expander x = {
        .map = map, .config = c, .names = names, .visit = look_for, .context = &any, .err = &none};
    uint64_t count = 0;
    unsigned most;
    if (!model_mtp_layers(c)) return;
    begin(&x, &most);
    for (; count < mtp_layers(&x) && any.found; count += any.found) {
        any.found = false;
        if (expand_mtp(&x, (int64_t)count)) any.found = true; /* model_map_expand() says why */
    }
    end(&x, most);
    model_set_mtp_layers(c, count);
}

/* ---- published names ---- */

/* The spelling of a row's tensors in the first layer that has them. */
static unsigned published_spelling(struct expander *x, size_t index)
{
    const struct tensor_row *row = &x->map->tensors[index];
    const uint64_t layers = row->per_layer && !in_mtp(x) ? x->config->num_layers : 1;
    for (uint64_t l = 0; l < layers; l++)
        for (unsigned k = 0; k <= row->num_others; k++)
            if (spelling_exists(x, row_spelling(row, k), (int64_t)l, 0))
                return choose_spelling(x, index, (int64_t)l, 0);
    return 0;
}

static void add_published_text(struct expander *x, struct published_names *out, const char *text)
{
    if (out->count == x->published_capacity) {
        const char **grown = arena_array(&x->arena, 2 * out->count + 16, sizeof *grown);
        if (out->count) memcpy(grown, out->spellings, out->count * sizeof *grown);
        out->spellings = grown;
        x->published_capacity = 2 * out->count + 16;
    }
    out->spellings[out->count++] = text;
}

/* Adds the spellings of rows that have several, of one layer of multi-token
 * prediction for all, and the copies that are absent. Returns whether all are
 * the usual ones. */
static bool add_published(struct expander *x, struct published_names *out)
{
    bool usual = true;
    for (size_t i = 0; i < x->map->num_tensors; i++) {
        const struct tensor_row *row = &x->map->tensors[i];
        const bool here = in_mtp(x) ? is_of_mtp(x, row) : !row->mtp;
        if (here && copy_is_absent(x, row)) {
            add_published_text(x, out, absent_text(x, row));
            usual = false;
        }
        if (!here || !row->num_others || (in_mtp(x) && x->mtp_layer)) continue;
        const unsigned k = published_spelling(x, i);
        usual &= k == 0;
        add_published_text(x, out, published_text(x, row, k));
    }
    return usual;
}

const struct published_names *model_map_published(const struct model_map *map,
                                                  const struct model_config *c,
                                                  const struct hf_names *names,
                                                  const char *const *more, size_t num_more,
                                                  struct arena *a)
{
    struct error none;
    struct expander x = {.map = map, .config = c, .names = names, .err = &none};
    struct published_names *out = arena_alloc(a, sizeof *out);
    unsigned most;
    begin(&x, &most);
    out->prefix = arena_copy_text(a, x.prefix);
    bool usual = !map->num_prefixes || strcmp(x.prefix, map->prefixes[0]) == 0;
    usual &= add_published(&x, out);
    for (uint64_t l = 0; l < mtp_layers(&x) && !begin_mtp(&x, (int64_t)l); l++)
        usual &= add_published(&x, out);
    end_mtp(&x);
    for (size_t i = 0; i < num_more; i++)
        add_published_text(&x, out, more[i]);
    usual &= num_more == 0;
    const char **kept = arena_array(a, out->count + 1, sizeof *kept);
    for (size_t i = 0; i < out->count; i++)
        kept[i] = arena_copy_text(a, out->spellings[i]);
    out->spellings = kept;
    end(&x, most);
    return usual ? NULL : out;
}
