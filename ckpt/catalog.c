#include "ckpt/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/strbuf.h"

void catalog_init(struct catalog *c, struct arena *a)
{
    *c = (struct catalog){.arena = a};
    stored_init(&c->stored);
}

static void drop_index(struct catalog *c);

void catalog_release(struct catalog *c)
{
    drop_index(c);
    map_release(&c->names);
    stored_release(&c->stored);
}

bool name_is_padding(const char *name)
{
    static const char end[] = ".padding";
    size_t n = strlen(name), m = sizeof end - 1;
    return n >= m && strcmp(name + n - m, end) == 0;
}

bool name_is_optimizer(const char *name)
{
    static const char begin[] = "optimizer.";
    return strncmp(name, begin, sizeof begin - 1) == 0;
}

const char *shape_text(struct arena *a, unsigned num_dims, const uint64_t *shape)
{
    struct strbuf s = {0};
    strbuf_add_char(&s, '[');
    for (unsigned d = 0; d < num_dims; d++)
        strbuf_printf(&s, "%s%" PRIu64, d ? ", " : "", shape[d]);
    strbuf_add_char(&s, ']');
    const char *text = arena_text(a, s.data, s.length);
    strbuf_release(&s);
    return text;
}

struct tensor *catalog_find(const struct catalog *c, const char *name)
{
    size_t i;
    return map_get(&c->names, name, &i) ? &c->tensors[i] : NULL;
}

enum status catalog_add(struct catalog *c, const char *name, enum dtype dtype, unsigned num_dims,
                        const uint64_t *shape, struct tensor **out, struct error *err)
{
    struct tensor *t = catalog_find(c, name);
    if (t) {
        *out = t;
        if (t->dtype != dtype)
            return fail(err, ERR_CORRUPT, "%s: %s here, %s elsewhere", name,
                        dtype_infos[dtype].name, dtype_infos[t->dtype].name);
        if (t->num_dims != num_dims || memcmp(t->shape, shape, num_dims * sizeof *shape))
            return fail(err, ERR_CORRUPT, "%s: shape %s here, %s elsewhere", name,
                        shape_text(c->arena, num_dims, shape),
                        shape_text(c->arena, t->num_dims, t->shape));
        return OK;
    }
    uint64_t numel;
    if (!shape_numel(shape, num_dims, &numel) || numel > MOST_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: shape %s overflows", name,
                    shape_text(c->arena, num_dims, shape));
    t = ARENA_PUSH(c->arena, c->tensors, c->num_tensors, c->tensors_capacity);
    *t = (struct tensor){
        .name = arena_text(c->arena, name, strlen(name)),
        .dtype = dtype,
        .num_dims = num_dims,
        .shape = arena_copy(c->arena, shape, num_dims * sizeof *shape),
        .numel = numel,
    };
    (void)map_add(&c->names, t->name, c->num_tensors - 1, NULL);
    *out = t;
    return OK;
}

void catalog_add_piece(struct catalog *c, struct tensor *t, const struct piece *piece)
{
    if (t->num_pieces == 0 && t->pieces_capacity == 0) { /* most tensors have one piece or two */
        t->pieces_capacity = 1;
        t->pieces = arena_alloc(c->arena, sizeof *t->pieces);
    }
    *ARENA_PUSH(c->arena, t->pieces, t->num_pieces, t->pieces_capacity) = *piece;
}

/* The pieces of one stored tensor as pairs (flat in the tensor, element of the piece), by where
 * they begin; so the few that meet a part are found without looking at all. */
struct indexed_piece {
    struct pair pair;
    const struct stored_piece *piece;
};
struct stored_index {
    const struct stored_tensor *stored;
    uint64_t longest_span;
    size_t count;
    struct indexed_piece pieces[];
};

static void drop_index(struct catalog *c)
{
    free(c->index);
    c->index = NULL;
}

static int by_begin(const void *a, const void *b)
{
    uint64_t x = ((const struct indexed_piece *)a)->pair.a_offset,
             y = ((const struct indexed_piece *)b)->pair.a_offset;
    return x < y ? -1 : x > y;
}

static enum status fill_index(struct stored_index *x, struct error *err)
{
    const struct stored_tensor *t = x->stored;
    uint64_t numel;
    if (!shape_numel(t->shape, t->num_dims, &numel) || numel > MOST_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: its shape overflows", t->name);
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct stored_piece *s = &t->pieces[i];
        struct indexed_piece *piece = &x->pieces[x->count];
        piece->piece = s;
        if (!pair_of_box(&piece->pair, t->num_dims, t->shape, s->start,
                         s->extent ? s->extent : t->shape, 0, s->stride))
            return fail(err, ERR_UNSUPPORTED, "%s: more than %d dimensions", t->name, MAX_AXES);
        if (!pair_count(&piece->pair)) continue;
        x->longest_span = max_u64(x->longest_span, pair_a_span(&piece->pair));
        x->count++;
    }
    qsort(x->pieces, x->count, sizeof *x->pieces, by_begin);
    return OK;
}

static enum status index_stored(struct catalog *c, const struct stored_tensor *stored,
                                struct error *err)
{
    if (c->index && c->index->stored == stored) return OK;
    drop_index(c);
    c->index = calloc(1, sizeof *c->index + stored->num_pieces * sizeof *c->index->pieces);
    if (!c->index) return fail(err, ERR_MEMORY, "%s: no memory for its pieces", stored->name);
    c->index->stored = stored;
    enum status st = fill_index(c->index, err);
    if (st) drop_index(c);
    return st;
}

/* The first piece that can reach element `from`. */
static size_t first_reaching(const struct stored_index *x, uint64_t from)
{
    size_t low = 0, high = x->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (x->pieces[middle].pair.a_offset + x->longest_span <= from)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* One stored piece of a stored tensor that is being joined with a part of a logical one. */
struct adding {
    struct catalog *catalog;
    struct tensor *tensor;
    struct piece piece; /* all but the pair */
};

static enum status add_joined(void *context, const struct pair *p, struct error *err)
{
    struct adding *adding = context;
    struct piece piece = adding->piece;
    piece.pair = *p;
    if (!pair_nest(&piece.pair))
        return fail(err, ERR_OURS, "%s: a part that is not a nested view", adding->tensor->name);
    catalog_add_piece(adding->catalog, adding->tensor, &piece);
    return OK;
}

static void add_stored_name(struct catalog *c, struct tensor *t, const char *name)
{
    for (size_t i = 0; i < t->num_stored_names; i++)
        if (strcmp(t->stored_names[i], name) == 0) return;
    if (!t->stored_name) t->stored_name = name;
    if (t->stored_names_capacity == 0) { /* most have one */
        t->stored_names_capacity = 1;
        t->stored_names = arena_alloc(c->arena, sizeof *t->stored_names);
    }
    *ARENA_PUSH(c->arena, t->stored_names, t->num_stored_names, t->stored_names_capacity) = name;
}

enum status catalog_add_stored(struct catalog *c, struct tensor *t,
                               const struct stored_tensor *stored, const struct pair *part,
                               struct error *err)
{
    struct pair by_stored = *part;
    pair_swap(&by_stored);
    if (!pair_nest(&by_stored))
        return fail(err, ERR_OURS, "%s: a part of %s that is not a nested view", t->name,
                    stored->name);
    TRY(index_stored(c, stored, err));
    uint64_t from = by_stored.a_offset, to = from + pair_a_span(&by_stored);
    const struct stored_index *x = c->index;
    for (size_t i = first_reaching(x, from); i < x->count && x->pieces[i].pair.a_offset < to; i++) {
        const struct stored_piece *s = x->pieces[i].piece;
        struct adding adding = {c,
                                t,
                                {.file = s->file,
                                 .dtype = stored->dtype,
                                 .byte_swapped = s->byte_swapped,
                                 .offset_bytes = s->offset_bytes}};
        TRY(pair_join(&by_stored, &x->pieces[i].pair, add_joined, &adding, err));
    }
    add_stored_name(c, t, stored->name);
    return OK;
}

enum status catalog_wrap_stored(struct catalog *c, const struct stored_tensor *stored,
                                struct tensor **out, struct error *err)
{
    TRY(catalog_add(c, stored->name, stored->dtype, stored->num_dims, stored->shape, out, err));
    if ((*out)->num_pieces) return OK;
    struct pair whole = pair_whole(0, 0, (*out)->numel);
    return catalog_add_stored(c, *out, stored, &whole, err);
}

enum status tensor_check(const struct tensor *t, struct error *err)
{
    struct pair *pairs = malloc(t->num_pieces * sizeof *pairs + 1);
    if (!pairs) return fail(err, ERR_MEMORY, "%s: no memory for its pieces", t->name);
    for (size_t i = 0; i < t->num_pieces; i++)
        pairs[i] = t->pieces[i].pair;
    size_t bad;
    uint64_t covered;
    bool whole = pairs_tile(pairs, t->num_pieces, t->numel, &bad, &covered);
    uint64_t at = bad < t->num_pieces ? pairs[bad].a_offset : 0;
    free(pairs);
    if (whole) return OK;
    struct arena a;
    arena_init(&a);
    const char *shape = shape_text(&a, t->num_dims, t->shape);
    enum status st =
        bad < t->num_pieces
            ? fail(err, ERR_CORRUPT,
                   "%s %s: a part that begins at element %" PRIu64
                   " overlaps another or leaves the tensor",
                   t->name, shape, at)
            : fail(err, ERR_CORRUPT, "%s %s: its parts hold %" PRIu64 " of %" PRIu64 " elements",
                   t->name, shape, covered, t->numel);
    arena_release(&a);
    return st;
}

enum status catalog_check(const struct catalog *c, struct error *err)
{
    for (size_t i = 0; i < c->num_tensors; i++)
        TRY(tensor_check(&c->tensors[i], err));
    return OK;
}
