#include "convert/tensor_names.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/memory.h"
#include "convert/format.h"

/* A name or glob to look for. */
struct wanted {
    const char *text;
    bool exact; /* else a glob */
};

static bool is_name_wanted(const struct wanted *w, const char *name)
{
    return w->exact ? strcmp(w->text, name) == 0 : fnmatch(w->text, name, 0) == 0;
}

struct list {
    struct named_tensor *items;
    size_t count, capacity;
};

void tensor_names_init(struct tensor_names *n, const struct checkpoint *c,
                       const struct model_maps *maps, bool stored_only)
{
    *n = (struct tensor_names){.checkpoint = c, .maps = maps, .stored_only = stored_only};
    arena_init(&n->arena);
}

void tensor_names_release(struct tensor_names *n)
{
    arena_release(&n->arena);
}

/* ---- logical and stored names ---- */

static struct named_tensor named_logical(const struct tensor *t)
{
    return (struct named_tensor){.kind = NAME_LOGICAL,
                                 .name = t->name,
                                 .dtype = t->dtype,
                                 .num_dims = t->num_dims,
                                 .shape = t->shape,
                                 .num_shards = t->num_pieces,
                                 .partners = t->stored_names,
                                 .num_partners = t->num_stored_names};
}

static size_t index_of_stored(const struct stored *s, const char *name)
{
    return (size_t)(stored_find(s, name) - s->tensors);
}

/* Lists, for each stored tensor, the logical tensors with elements of it:
 * counts, then fills in names. */
static void make_partners(struct tensor_names *n)
{
    const struct checkpoint *c = n->checkpoint;
    const struct stored *s = &c->catalog.stored;
    if (n->first_partner) return;
    size_t *next = arena_array(&n->arena, s->num_tensors + 2, sizeof *next);
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        for (size_t k = 0; k < c->catalog.tensors[i].num_stored_names; k++)
            next[index_of_stored(s, c->catalog.tensors[i].stored_names[k]) + 2]++;
    for (size_t i = 0; i < s->num_tensors; i++)
        next[i + 2] += next[i + 1];
    n->partners = arena_array(&n->arena, next[s->num_tensors + 1] + 1, sizeof *n->partners);
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        for (size_t k = 0; k < c->catalog.tensors[i].num_stored_names; k++) {
            size_t at = index_of_stored(s, c->catalog.tensors[i].stored_names[k]);
            n->partners[next[at + 1]++] = c->catalog.tensors[i].name;
        }
    n->first_partner = next;
}

static struct named_tensor named_stored(struct tensor_names *n, const struct stored_tensor *t)
{
    size_t at = (size_t)(t - n->checkpoint->catalog.stored.tensors);
    make_partners(n);
    size_t first = n->first_partner[at];
    return (struct named_tensor){.kind = NAME_STORED,
                                 .name = t->name,
                                 .dtype = t->dtype,
                                 .num_dims = t->num_dims,
                                 .shape = t->shape,
                                 .num_shards = t->num_pieces,
                                 .partners = n->partners + first,
                                 .num_partners = n->first_partner[at + 1] - first,
                                 .stored = t};
}

/* ---- Hugging Face's names, by the map ---- */

/* Elements shared by a logical tensor and a Hugging Face tensor. */
struct hf_part {
    size_t logical; /* index into the catalog */
    struct pair pair;
};

struct hf_tensor {
    struct named_tensor named;
    struct hf_part *parts;
    size_t num_parts, parts_capacity;
    const char **partners;
    size_t num_partners, partners_capacity;
    double add; /* logical elements are Hugging Face's and this */
};

struct hf_search {
    struct tensor_names *n;
    const struct wanted *wanted;
    struct map names;
    struct hf_tensor *found;
    size_t count, capacity;
};

static struct hf_tensor *hf_tensor_of(struct hf_search *x, const struct mapped_part *part,
                                      const struct tensor *logical)
{
    struct arena *a = &x->n->arena;
    size_t at = x->count;
    if (map_get(&x->names, part->hf_name, &at)) return &x->found[at];
    struct hf_tensor *h = ARENA_PUSH(a, x->found, x->count, x->capacity);
    *h = (struct hf_tensor){
        .named = {.kind = NAME_HF,
                  .name = arena_copy_text(a, part->hf_name),
                  .dtype = logical->dtype,
                  .num_dims = part->num_dims,
                  .shape = arena_copy(a, part->shape, part->num_dims * sizeof *part->shape)}};
    (void)map_add(&x->names, h->named.name, at, NULL);
    return h;
}

static enum status add_hf_parts(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct hf_search *x = context;
    struct arena *a = &x->n->arena;
    const struct checkpoint *c = x->n->checkpoint;
    const struct tensor *logical = catalog_find(&c->catalog, t->name);
    (void)err;
    for (size_t i = 0; logical && i < t->num_parts; i++) {
        if (!is_name_wanted(x->wanted, t->parts[i].hf_name)) continue;
        struct hf_tensor *h = hf_tensor_of(x, &t->parts[i], logical);
        *ARENA_PUSH(a, h->parts, h->num_parts, h->parts_capacity) =
            (struct hf_part){(size_t)(logical - c->catalog.tensors), t->parts[i].pair};
        h->add = t->add;
        if (!h->num_partners || h->partners[h->num_partners - 1] != logical->name)
            *ARENA_PUSH(a, h->partners, h->num_partners, h->partners_capacity) = logical->name;
        h->named.num_shards += logical->num_pieces;
    }
    return OK;
}

static void find_hf(struct tensor_names *n, const struct wanted *w, struct list *out)
{
    const struct checkpoint *c = n->checkpoint;
    struct hf_search x = {.n = n, .wanted = w};
    const struct model_map *map = c->family ? model_map_of_family(n->maps, c->family) : NULL;
    struct model_config config = c->config;
    if (!config.vocab_size) config.vocab_size = config.padded_vocab_size;
    if (n->stored_only || !map || !config.vocab_size || c->format->naming == &naming_hf) return;
    if (model_map_expand(map, &config, NULL, add_hf_parts, &x, NULL)) x.count = 0;
    for (size_t i = 0; i < x.count; i++) {
        struct hf_tensor *h = &x.found[i];
        h->named.partners = h->partners;
        h->named.num_partners = h->num_partners;
        h->named.hf = h;
        *ARENA_PUSH(&n->arena, out->items, out->count, out->capacity) = h->named;
    }
    map_release(&x.names);
}

/* ---- looking names up ---- */

static void find_wanted(struct tensor_names *n, const struct wanted *w, struct list *out)
{
    const struct checkpoint *c = n->checkpoint;
    for (size_t i = 0; !n->stored_only && i < c->catalog.num_tensors; i++)
        if (is_name_wanted(w, c->catalog.tensors[i].name))
            *ARENA_PUSH(&n->arena, out->items, out->count, out->capacity) =
                named_logical(&c->catalog.tensors[i]);
    for (size_t i = 0, first = out->count; !first && i < c->catalog.stored.num_tensors; i++)
        if (is_name_wanted(w, c->catalog.stored.tensors[i].name))
            *ARENA_PUSH(&n->arena, out->items, out->count, out->capacity) =
                named_stored(n, &c->catalog.stored.tensors[i]);
    if (!out->count) find_hf(n, w, out);
}

bool tensor_names_find(struct tensor_names *n, const char *name, struct named_tensor *out)
{
    struct wanted exact = {name, true};
    struct list list = {0};
    find_wanted(n, &exact, &list);
    if (list.count) *out = list.items[0];
    return list.count > 0;
}

/* ---- the nearest ---- */

/* The usual table of edit distances, row by row. '*' matches any characters at
 * no cost, '?' any one. */
size_t glob_distance(const char *glob, const char *name)
{
    size_t n = strlen(name);
    size_t *row = must_calloc(n + 1, sizeof *row);
    for (size_t k = 0; k <= n; k++)
        row[k] = k;
    for (; *glob; glob++) {
        size_t diagonal = row[0];
        if (*glob != '*') row[0]++;
        for (size_t k = 1; k <= n; k++) {
            size_t above = row[k], best;
            if (*glob == '*')
                best = min_u64(above, row[k - 1]);
            else
                best = min_u64(min_u64(above, row[k - 1]) + 1,
                               diagonal + (*glob != '?' && *glob != name[k - 1]));
            diagonal = above;
            row[k] = best;
        }
    }
    size_t distance = row[n];
    free(row);
    return distance;
}

struct nearest {
    const char *glob, *name;
    size_t distance;
};

static void compare_nearest(struct nearest *x, const char *name)
{
    enum { MAX_LENGTH = 256 }; /* longer names are skipped */
    if (strlen(name) > MAX_LENGTH || strlen(x->glob) > MAX_LENGTH) return;
    size_t distance = glob_distance(x->glob, name);
    if (x->name && distance >= x->distance) return;
    x->name = name;
    x->distance = distance;
}

static enum status no_match(const struct tensor_names *n, const char *glob, struct error *err)
{
    const struct checkpoint *c = n->checkpoint;
    struct nearest x = {.glob = glob};
    for (size_t i = 0; !n->stored_only && i < c->catalog.num_tensors; i++)
        compare_nearest(&x, c->catalog.tensors[i].name);
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        compare_nearest(&x, c->catalog.stored.tensors[i].name);
    if (!x.name) return fail(err, ERR_USAGE, "%s: no tensor matches \"%s\"", c->path, glob);
    return fail(err, ERR_USAGE, "%s: no tensor matches \"%s\"; %s %s", c->path, glob,
                x.distance <= strlen(glob) / 3 ? "the nearest name is" : "an existing name is",
                x.name);
}

enum status tensor_names_match(struct tensor_names *n, const char *glob, struct named_tensor **out,
                               size_t *count, struct error *err)
{
    struct wanted w = {glob, false};
    struct list list = {0};
    find_wanted(n, &w, &list);
    *out = list.items;
    *count = list.count;
    return list.count ? OK : no_match(n, glob, err);
}

/* ---- reading ---- */

struct adding {
    struct arena *a;
    struct tensor *t;
    const struct piece *piece;
};

/* Adds a piece: elements of a file that belong to the tensor. */
static enum status add_hf_piece(void *context, const struct pair *p, struct error *err)
{
    struct adding *x = context;
    struct pair pair = *p;
    pair_swap(&pair);
    if (!pair_nest(&pair))
        return fail(err, ERR_UNSUPPORTED, "%s: the order of its elements cannot be read here",
                    x->t->name);
    tensor_add_piece(x->a, x->t, x->piece, &pair);
    return OK;
}

static enum status read_hf(struct tensor_names *n, const struct hf_tensor *h, struct tensor *t,
                           struct error *err)
{
    const struct checkpoint *c = n->checkpoint;
    struct adding x = {.a = &n->arena, .t = t};
    for (size_t i = 0; i < h->num_parts; i++) {
        const struct tensor *logical = &c->catalog.tensors[h->parts[i].logical];
        for (size_t k = 0; k < logical->num_pieces; k++) {
            const struct pair pair = pair_unpack(&logical->pieces[k].pair);
            x.piece = &logical->pieces[k];
            TRY(pair_join(&pair, &h->parts[i].pair, t->name, add_hf_piece, &x, err));
        }
    }
    return tensor_check(t, err);
}

enum status tensor_names_open(struct tensor_names *n, const struct named_tensor *named,
                              const struct tensor **out, struct error *err)
{
    const struct catalog *c = &n->checkpoint->catalog;
    struct tensor *t;
    *out = catalog_find(c, named->name);
    if (named->kind == NAME_LOGICAL) return OK;
    if (named->kind == NAME_STORED) {
        TRY(catalog_wrap_stored(c, &n->arena, named->stored, &t, err));
        *out = t;
        return OK;
    }
    *out = t = arena_alloc(&n->arena, sizeof *t);
    *t = (struct tensor){.name = named->name,
                         .dtype = named->dtype,
                         .num_dims = named->num_dims,
                         .shape = named->shape,
                         .numel = 1};
    for (unsigned d = 0; d < t->num_dims; d++)
        t->numel *= t->shape[d]; /* cannot overflow: opening the checkpoint checked the shape */
    TRY(read_hf(n, named->hf, t, err));
    if (named->hf->add == 0) return OK;
    tensor_add_number(t, -named->hf->add);
    return panel_exact_dtype(c, t, 0, t->dtype, &t->dtype, err);
}
