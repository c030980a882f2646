#include "convert/fsdp/fsdp_join.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/strbuf.h"
#include "formats/dtensor.h"

void fsdp_join_init(struct fsdp_join *j, struct checkpoint *c)
{
    *j = (struct fsdp_join){.c = c};
}

void fsdp_join_release(struct fsdp_join *j)
{
    map_release(&j->names);
    map_release(&j->boxes);
}

static const char *join_key(struct arena *a, const char *name, const char *state)
{
    return state ? arena_printf(a, "%s\x1f%s", name, state) : name;
}

static const char *tensor_label(struct arena *a, const char *name, const char *state)
{
    return state ? arena_printf(a, "%s of %s", state, name) : arena_printf(a, "tensor %s", name);
}

const struct joined *fsdp_join_find(const struct fsdp_join *j, const char *name, const char *state)
{
    size_t at;
    return map_get(&j->names, join_key(&j->c->arena, name, state), &at) ? &j->items[at] : NULL;
}

/* ---- adding ---- */

/* Whether a tensor is a piece. A 1-D state may be one, or be whole if its
 * parameter is 1-D too: its shape will show it. */
static bool is_piece(const struct fsdp_join *j, const struct dtensor *d, const char *state)
{
    return !d->sharded && d->num_dims == 1 && (j->flat || (state && j->by_rank));
}

/* Finds or adds the item of a name; one of another rank must agree. */
static enum status find_or_add_joined(struct fsdp_join *j, size_t rank, const char *name,
                                      const char *state, const struct dtensor *d,
                                      struct joined **out, struct error *err)
{
    struct arena *a = &j->c->arena;
    size_t at;
    if (map_add(&j->names, join_key(a, name, state), j->count, &at)) {
        *out = ARENA_PUSH(a, j->items, j->count, j->capacity);
        **out = (struct joined){
            .name = name,
            .state = state,
            .dtype = d->dtype,
            .num_dims = d->num_dims,
            .in_pieces = is_piece(j, d, state),
            .last_rank = rank,
        };
        if (!(*out)->in_pieces)
            (*out)->shape = arena_copy(a, d->shape, d->num_dims * sizeof *d->shape);
        return OK;
    }
    struct joined *x = *out = &j->items[at];
    if (x->last_rank == rank) return fail(err, ERR_CORRUPT, "it is stored twice");
    x->last_rank = rank;
    if (!x->num_parts) x->dtype = d->dtype;
    if (d->num_parts && x->dtype != d->dtype)
        return fail(err, ERR_CORRUPT, "its dtype is %s, but %s in other ranks' files",
                    dtype_infos[d->dtype].name, dtype_infos[x->dtype].name);
    if (x->in_pieces != is_piece(j, d, state) || x->num_dims != d->num_dims ||
        (!x->in_pieces && memcmp(x->shape, d->shape, d->num_dims * sizeof *d->shape) != 0))
        return fail(err, ERR_CORRUPT, "its shape is %s, but %s in other ranks' files",
                    shape_text(a, d->num_dims, d->shape),
                    x->in_pieces ? "pieces" : shape_text(a, x->num_dims, x->shape));
    return OK;
}

static const char *box_key(struct arena *a, const struct joined *x, const struct dtensor_part *p)
{
    struct strbuf text = {0};
    strbuf_printf(&text, "%s\x1f%s", x->name, x->state ? x->state : "");
    for (unsigned d = 0; d < x->num_dims; d++)
        strbuf_printf(&text, "\x1f%" PRIu64 ",%" PRIu64, p->start[d], p->extent[d]);
    const char *key = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return key;
}

static bool has_elements(const struct joined *x, const struct dtensor_part *p)
{
    for (unsigned d = 0; d < x->num_dims; d++)
        if (!p->extent[d]) return false;
    return true;
}

static enum status add_joined_part(struct fsdp_join *j, struct torch_file *t, size_t item,
                                   const struct dtensor_part *p, struct error *err)
{
    struct arena *a = &j->c->arena;
    struct stored *s = &j->c->catalog.stored;
    struct joined *x = &j->items[item];
    if (!has_elements(x, p)) return OK;
    if (!x->in_pieces && !map_add(&j->boxes, box_key(a, x, p), 0, NULL)) return OK;
    struct joined_part part = {.stored = s->num_tensors};
    const char *name = arena_printf(a, "%s:%s%s%s", path_base(a, t->path), x->state ? x->state : "",
                                    x->state ? "." : "", x->name);
    if (stored_find(s, name)) name = arena_printf(a, "%s.%zu", name, x->num_parts);
    TRY(torch_add_tensor(t, s, name, p->local, err));
    part.start = arena_copy(a, p->start, x->num_dims * sizeof *p->start);
    part.extent = arena_copy(a, p->extent, x->num_dims * sizeof *p->extent);
    if (x->in_pieces) part.start = NULL;
    if (x->state) j->state_bytes += stored_tensor_bytes(&s->tensors[part.stored]);
    *ARENA_PUSH(a, x->parts, x->num_parts, x->parts_capacity) = part;
    return OK;
}

enum status fsdp_join_add(struct fsdp_join *j, struct torch_file *t, size_t rank, const char *name,
                          const char *state, const struct value *v, struct error *err)
{
    struct dtensor d;
    struct joined *x;
    enum status st = dtensor_read(&d, &t->arena, v, err);
    if (!st) st = find_or_add_joined(j, rank, name, state, &d, &x, err);
    if (st) return fail_in(err, "%s: %s", t->path, tensor_label(&j->c->arena, name, state));
    const size_t item = (size_t)(x - j->items);
    for (size_t i = 0; i < d.num_parts; i++)
        TRY(add_joined_part(j, t, item, &d.parts[i], err));
    return OK;
}

/* ---- pieces ---- */

static uint64_t piece_numel(const struct joined_part *p)
{
    return p->extent[0];
}

/* Number of pieces that form the tensor once, 1 if each rank has it whole; 0:
 * they do not fit. Groups of ranks may repeat them. */
static size_t pieces_of(const struct joined *x, uint64_t numel)
{
    size_t n = 0;
    uint64_t sum = 0;
    while (sum < numel && n < x->num_parts)
        sum += piece_numel(&x->parts[n++]);
    if (sum != numel || (n && x->num_parts % n)) return 0;
    for (size_t i = n; i < x->num_parts; i++)
        if (piece_numel(&x->parts[i]) != piece_numel(&x->parts[i - n])) return 0;
    return n;
}

enum status fsdp_join_shape(struct fsdp_join *j, struct joined *x, unsigned num_dims,
                            const uint64_t *shape, struct error *err)
{
    struct arena *a = &j->c->arena;
    uint64_t numel, sum = 0;
    for (size_t i = 0; i < x->num_parts; i++)
        sum += piece_numel(&x->parts[i]); /* bounded by file bytes: no overflow */
    if (!shape) {
        num_dims = 1;
        shape = &sum;
    }
    if (!shape_numel(shape, num_dims, &numel)) numel = UINT64_MAX;
    const size_t n = pieces_of(x, numel);
    if (numel != sum && !n)
        return fail(err, ERR_CORRUPT,
                    "%s: %s: its pieces in rank files have %" PRIu64
                    " elements, but the parameter has shape %s",
                    j->c->path, tensor_label(a, x->name, x->state), sum,
                    shape_text(a, num_dims, shape));
    if (numel != sum) x->num_parts = n;
    x->num_dims = num_dims;
    x->shape = arena_copy(a, shape, num_dims * sizeof *shape);
    return OK;
}

/* Gives pieces of a state their parameter's shape, others one dimension. */
static enum status shape_of_parameter(struct fsdp_join *j, struct joined *x, struct error *err)
{
    const struct joined *of = x->state ? fsdp_join_find(j, x->name, NULL) : NULL;
    if (!of || !of->shape) return fsdp_join_shape(j, x, 0, NULL, err);
    return fsdp_join_shape(j, x, of->num_dims, of->shape, err);
}

/* ---- native tensors ---- */

/* The pair of a part and its stored tensor. *at: start of the next piece. */
static bool pair_of_part(struct pair *out, const struct joined *x, const struct joined_part *p,
                         uint64_t *at)
{
    if (p->start) return pair_of_box(out, x->num_dims, x->shape, p->start, p->extent, 0, NULL);
    *out = pair_whole(*at, 0, piece_numel(p));
    *at += piece_numel(p);
    return true;
}

/* Counts x's elements in files; *whole: all are there. */
static enum status check_tiles(struct fsdp_join *j, struct joined *x, uint64_t *covered,
                               bool *whole, struct error *err)
{
    uint64_t numel, at = 0;
    size_t bad;
    if (!shape_numel(x->shape, x->num_dims, &numel) || numel > MAX_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: %s: shape %s is too large", j->c->path,
                    tensor_label(&j->c->arena, x->name, x->state),
                    shape_text(&j->c->arena, x->num_dims, x->shape));
    struct pair *pairs = calloc(x->num_parts + 1, sizeof *pairs);
    bool fits = pairs;
    for (size_t i = 0; i < x->num_parts && fits; i++)
        fits = pair_of_part(&pairs[i], x, &x->parts[i], &at);
    *whole = fits && pairs_tile(pairs, x->num_parts, numel, &bad, covered);
    const bool overlaps = fits && !*whole && bad < x->num_parts;
    free(pairs);
    if (!fits)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: shape %s has too many dimensions", j->c->path,
                    tensor_label(&j->c->arena, x->name, x->state),
                    shape_text(&j->c->arena, x->num_dims, x->shape));
    if (!overlaps) return OK;
    return fail(err, ERR_CORRUPT, "%s: %s: the ranks' parts overlap", j->c->path,
                tensor_label(&j->c->arena, x->name, x->state));
}

static enum status add_joined_native(struct fsdp_join *j, struct joined *x, struct error *err)
{
    struct catalog *all = &j->c->catalog;
    struct native_tensor *native;
    uint64_t at = 0;
    TRY(catalog_add_native(all, x->name, x->state, x->dtype, x->num_dims, x->shape, &native, err));
    for (size_t i = 0; i < x->num_parts; i++) {
        struct pair pair;
        (void)pair_of_part(&pair, x, &x->parts[i], &at);
        TRY(catalog_add_native_part(all, native, &all->stored.tensors[x->parts[i].stored], &pair,
                                    err));
    }
    return OK;
}

static const char *missing_text(struct arena *a, const struct fsdp_set *set)
{
    const char **names = arena_array(a, set->num_missing + 1, sizeof *names);
    size_t n = 0;
    for (size_t i = 0; i < set->count; i++)
        if (!set->paths[i]) names[n++] = set->names[i];
    return fsdp_names_text(a, names, n);
}

/* Fails for tensors names[0..n) with missing elements. */
static enum status fail_gaps(const struct fsdp_join *j, const struct fsdp_set *set,
                             const char *const *names, size_t n, const char *first,
                             struct error *err)
{
    struct arena *a = &j->c->arena;
    if (!set->num_missing) return fail(err, ERR_CORRUPT, "%s: %s", j->c->path, first);
    return fail(err, ERR_IO, "%s: %s %s missing, of the files of %zu ranks: %s", j->c->path,
                missing_text(a, set), set->num_missing == 1 ? "is" : "are", set->count,
                count_names_text(a, n == 1 ? "has not all its elements" : "have not all elements",
                                 names, n));
}

enum status fsdp_join_native(struct fsdp_join *j, const struct fsdp_set *set, bool states,
                             struct error *err)
{
    struct arena *a = &j->c->arena;
    const char **gaps = arena_array(a, j->count + 1, sizeof *gaps), *first = NULL;
    size_t num_gaps = 0;
    for (size_t i = 0; i < j->count; i++) {
        struct joined *x = &j->items[i];
        uint64_t covered = 0;
        bool whole;
        if (!x->state == states) continue;
        if (x->in_pieces && !x->shape) TRY(shape_of_parameter(j, x, err));
        TRY(check_tiles(j, x, &covered, &whole, err));
        if (!whole && !first)
            first = arena_printf(a, "%s: the files have %" PRIu64 " elements of %s",
                                 tensor_label(a, x->name, x->state), covered,
                                 shape_text(a, x->num_dims, x->shape));
        if (!whole) gaps[num_gaps++] = x->name;
    }
    if (num_gaps) return fail_gaps(j, set, gaps, num_gaps, first, err);
    for (size_t i = 0; i < j->count; i++)
        if (!j->items[i].state != states) TRY(add_joined_native(j, &j->items[i], err));
    return OK;
}
