#include "ckpt/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/strbuf.h"

void catalog_init(struct catalog *c, struct arena *a)
{
    *c = (struct catalog){.arena = a};
    stored_init(&c->stored);
}

/* What adding parts to tensors keeps. */
struct adder {
    struct piece *gathered; /* pieces of the tensor that is being added */
    size_t num_gathered, gathered_capacity;
    /* The tensor that got parts last, by its name, and the stored tensors that it names: those
     * whose number in named[] is `naming`. */
    const char *tensor;
    uint32_t *named, naming;
    size_t num_named;
    /* An array that a tensor has outgrown, for the next one. */
    struct piece *spare;
    size_t spare_capacity;
};

static struct adder *adder_of(struct catalog *c)
{
    if (!c->adder) c->adder = must_calloc(1, sizeof *c->adder);
    return c->adder;
}

/* Frees what adding tensors has made. */
static void end_reading(struct catalog *c)
{
    free(c->own_index);
    free(c->stored_index);
    if (c->adder) {
        free(c->adder->gathered);
        free(c->adder->named);
    }
    free(c->adder);
    c->own_index = c->stored_index = NULL;
    c->adder = NULL;
}

void catalog_release(struct catalog *c)
{
    end_reading(c);
    for (size_t i = 0; i < c->num_own; i++)
        free(c->own[i].parts);
    map_release(&c->own_names);
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

const char *name_of_state(const char *name, const char **state, size_t *length)
{
    if (!name_is_optimizer(name)) return NULL;
    const char *begin = name + strlen("optimizer."), *dot = strchr(begin, '.');
    if (!dot || dot == begin || !dot[1]) return NULL;
    if (state) *state = begin;
    if (length) *length = (size_t)(dot - begin);
    return dot + 1;
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

/* The dtype and shape of a tensor or an own tensor. */
struct kind {
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
};

static enum status same_kind(struct catalog *c, const char *name, const struct kind *here,
                             const struct kind *elsewhere, struct error *err)
{
    if (here->dtype != elsewhere->dtype)
        return fail(err, ERR_CORRUPT, "%s: %s here, %s elsewhere", name,
                    dtype_infos[here->dtype].name, dtype_infos[elsewhere->dtype].name);
    if (here->num_dims != elsewhere->num_dims ||
        memcmp(here->shape, elsewhere->shape, here->num_dims * sizeof *here->shape))
        return fail(err, ERR_CORRUPT, "%s: shape %s here, %s elsewhere", name,
                    shape_text(c->arena, here->num_dims, here->shape),
                    shape_text(c->arena, elsewhere->num_dims, elsewhere->shape));
    return OK;
}

static enum status count_elements(struct catalog *c, const char *name, const struct kind *kind,
                                  uint64_t *numel, struct error *err)
{
    if (shape_numel(kind->shape, kind->num_dims, numel) && *numel <= MAX_ELEMENTS) return OK;
    return fail(err, ERR_CORRUPT, "%s: shape %s overflows", name,
                shape_text(c->arena, kind->num_dims, kind->shape));
}

enum status catalog_add(struct catalog *c, const char *name, enum dtype dtype, unsigned num_dims,
                        const uint64_t *shape, struct tensor **out, struct error *err)
{
    const struct kind kind = {dtype, num_dims, shape};
    struct tensor *t = *out = catalog_find(c, name);
    uint64_t numel;
    if (t) return same_kind(c, name, &kind, &(struct kind){t->dtype, t->num_dims, t->shape}, err);
    TRY(count_elements(c, name, &kind, &numel, err));
    t = ARENA_PUSH(c->arena, c->tensors, c->num_tensors, c->tensors_capacity);
    *t = (struct tensor){
        .name = arena_copy_text(c->arena, name),
        .dtype = dtype,
        .num_dims = num_dims,
        .shape = arena_copy(c->arena, shape, num_dims * sizeof *shape),
        .numel = numel,
    };
    (void)map_add(&c->names, t->name, c->num_tensors - 1, NULL);
    *out = t;
    return OK;
}

void tensor_add_piece(struct arena *a, struct tensor *t, const struct piece *piece,
                      const struct pair *pair)
{
    if (t->num_pieces == 0 && t->pieces_capacity == 0) { /* most tensors have one piece or two */
        t->pieces_capacity = 1;
        t->pieces = arena_alloc(a, sizeof *t->pieces);
    }
    struct piece *to = ARENA_PUSH(a, t->pieces, t->num_pieces, t->pieces_capacity);
    *to = *piece;
    to->pair = pair_pack(a, pair);
}

void tensor_add_pieces(struct arena *a, struct tensor *t, const struct tensor *of)
{
    const size_t total = t->num_pieces + of->num_pieces;
    struct piece *all = arena_array(a, total, sizeof *all);
    if (t->num_pieces) memcpy(all, t->pieces, t->num_pieces * sizeof *all);
    t->pieces = all;
    t->pieces_capacity = total;
    for (size_t i = 0; i < of->num_pieces; i++) {
        const struct pair pair = pair_unpack(&of->pieces[i].pair);
        tensor_add_piece(a, t, &of->pieces[i], &pair);
    }
}

/* ---- own tensors ---- */

/* The key of the map of own names: states are few and short. */
static const char *own_key(struct strbuf *room, const char *name, const char *state)
{
    if (!state) return name;
    strbuf_printf(room, "%s\x1f%s", state, name);
    return room->data;
}

const struct own_tensor *catalog_find_own(const struct catalog *c, const char *name,
                                          const char *state)
{
    struct strbuf room = {0};
    size_t i;
    bool found = map_get(&c->own_names, own_key(&room, name, state), &i);
    strbuf_release(&room);
    return found ? &c->own[i] : NULL;
}

static struct own_tensor *push_own(struct catalog *c, const char *name, const char *state,
                                   const struct kind *kind, uint64_t numel)
{
    struct arena *a = c->arena;
    if (c->own_capacity == 0 && c->stored.num_tensors) { /* few have more than there are stored */
        c->own_capacity = c->stored.num_tensors;
        c->own = arena_alloc(a, c->own_capacity * sizeof *c->own);
    }
    struct own_tensor *own = ARENA_PUSH(a, c->own, c->num_own, c->own_capacity);
    struct strbuf room = {0};
    *own = (struct own_tensor){
        .name = name,
        .state = state,
        .dtype = kind->dtype,
        .num_dims = kind->num_dims,
        .shape = arena_copy(a, kind->shape, kind->num_dims * sizeof *kind->shape),
        .numel = numel,
    };
    const char *key = own_key(&room, own->name, state);
    if (state) key = arena_copy_text(a, key);
    (void)map_add(&c->own_names, key, c->num_own - 1, NULL);
    strbuf_release(&room);
    return own;
}

enum status catalog_add_own(struct catalog *c, const char *name, const char *state,
                            enum dtype dtype, unsigned num_dims, const uint64_t *shape,
                            struct own_tensor **out, struct error *err)
{
    const struct kind kind = {dtype, num_dims, shape};
    const struct own_tensor *old = catalog_find_own(c, name, state);
    uint64_t numel;
    if (old) {
        *out = &c->own[old - c->own];
        return same_kind(c, name, &kind, &(struct kind){old->dtype, old->num_dims, old->shape},
                         err);
    }
    TRY(count_elements(c, name, &kind, &numel, err));
    *out = push_own(c, name, state, &kind, numel);
    return OK;
}

enum status catalog_add_own_part(struct catalog *c, struct own_tensor *own,
                                 const struct stored_tensor *stored, const struct pair *pair,
                                 struct error *err)
{
    struct pair nested = *pair;
    TRY(pair_require_nested(&nested, own->name, err));
    if (own->num_parts == own->parts_capacity) { /* most have one */
        own->parts_capacity = own->parts_capacity ? 2 * own->parts_capacity : 1;
        own->parts = must_realloc(own->parts, own->parts_capacity * sizeof *own->parts);
    }
    own->parts[own->num_parts++] = (struct own_part){
        .pair = pair_pack(c->arena, &nested), .stored = (size_t)(stored - c->stored.tensors)};
    return OK;
}

enum status catalog_own_stored(struct catalog *c, const char *name, const char *state,
                               const struct stored_tensor *stored, struct error *err)
{
    struct own_tensor *own;
    TRY(catalog_add_own(c, name, state, stored->dtype, stored->num_dims, stored->shape, &own, err));
    struct pair whole = pair_whole(0, 0, own->numel);
    return catalog_add_own_part(c, own, stored, &whole, err);
}

void own_set_logical(struct catalog *c, const struct own_tensor *own, const char *logical)
{
    c->own[own - c->own].logical = logical;
}

/* ---- what a tensor is made of, by where it lies ---- */

/* The parts of an own tensor, or the pieces of a stored one, as pairs (flat in the tensor, elements
 * of the part), sorted by their beginning, so that the few that meet a view are found without
 * looking at all. */
struct indexed_part {
    struct pair pair;
    size_t part; /* index among the tensor's parts */
};
struct part_index {
    size_t tensor, num_parts; /* the tensor, and the number of parts that it had */
    uint64_t longest_span;
    size_t count, capacity;
    bool sorted; /* as they were added */
    size_t *met; /* [capacity], behind parts */
    struct indexed_part parts[];
};

static int by_begin(const void *a, const void *b)
{
    const struct indexed_part *x = a, *y = b;
    if (x->pair.a_offset != y->pair.a_offset) return x->pair.a_offset < y->pair.a_offset ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

static bool is_index_of(const struct part_index *x, size_t tensor, size_t num_parts)
{
    return x && x->tensor == tensor && x->num_parts == num_parts;
}

/* Makes *index an empty index with room for num_parts; it belongs to no tensor yet. */
static enum status begin_index(struct part_index **index, size_t num_parts, const char *name,
                               struct error *err)
{
    enum { MAX_SPARE = 64 }; /* parts; most tensors have one, and few have thousands */
    struct part_index *x = *index;
    if (!x || x->capacity < num_parts || x->capacity - num_parts > MAX_SPARE) {
        free(x);
        x = *index = malloc(sizeof *x + num_parts * (sizeof *x->parts + sizeof *x->met));
        if (!x) return fail(err, ERR_MEMORY, "%s: no memory for its pieces", name);
        x->capacity = num_parts;
        x->met = (size_t *)&x->parts[num_parts];
    }
    x->tensor = SIZE_MAX;
    x->num_parts = num_parts;
    x->longest_span = x->count = 0;
    x->sorted = true;
    return OK;
}

static void index_pair(struct part_index *x, const struct pair *pair, size_t part)
{
    if (!pair_count(pair)) return;
    x->longest_span = max_u64(x->longest_span, pair_a_span(pair));
    x->sorted &= !x->count || x->parts[x->count - 1].pair.a_offset <= pair->a_offset;
    x->parts[x->count++] = (struct indexed_part){*pair, part};
}

static void end_index(struct part_index *x, size_t tensor)
{
    if (!x->sorted) qsort(x->parts, x->count, sizeof *x->parts, by_begin);
    x->tensor = tensor;
}

static enum status index_own(struct catalog *c, const struct own_tensor *own, struct error *err)
{
    const size_t tensor = (size_t)(own - c->own);
    if (is_index_of(c->own_index, tensor, own->num_parts)) return OK;
    TRY(begin_index(&c->own_index, own->num_parts, own->name, err));
    for (size_t i = 0; i < own->num_parts; i++) {
        const struct pair pair = pair_unpack(&own->parts[i].pair);
        index_pair(c->own_index, &pair, i);
    }
    end_index(c->own_index, tensor);
    return OK;
}

static enum status index_stored(struct catalog *c, const struct stored_tensor *t, struct error *err)
{
    const size_t tensor = (size_t)(t - c->stored.tensors);
    uint64_t numel;
    if (is_index_of(c->stored_index, tensor, t->num_pieces)) return OK;
    if (!shape_numel(t->shape, t->num_dims, &numel) || numel > MAX_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: its shape overflows", t->name);
    TRY(begin_index(&c->stored_index, t->num_pieces, t->name, err));
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct stored_piece *s = &t->pieces[i];
        struct pair pair;
        if (!pair_of_box(&pair, t->num_dims, t->shape, s->start, s->extent ? s->extent : t->shape,
                         0, s->stride))
            return fail(err, ERR_UNSUPPORTED, "%s: more than %d dimensions", t->name, MAX_AXES);
        index_pair(c->stored_index, &pair, i);
    }
    end_index(c->stored_index, tensor);
    return OK;
}

/* The first part that can reach element `from`. */
static size_t first_reaching(const struct part_index *x, uint64_t from)
{
    size_t low = 0, high = x->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (x->parts[middle].pair.a_offset + x->longest_span <= from)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- logical tensors of own ones, and these of stored ones ---- */

/* Pieces are gathered before the tensor gets them, in an array that is no larger than they need: of
 * a model of many experts they are most of the memory. */
static void gather(struct adder *x, const struct piece *piece)
{
    if (x->num_gathered == x->gathered_capacity) {
        x->gathered_capacity = 2 * x->gathered_capacity + 4;
        x->gathered = must_realloc(x->gathered, x->gathered_capacity * sizeof *x->gathered);
    }
    x->gathered[x->num_gathered++] = *piece;
}

/* Moves the pieces of t to an array for `total` ones: the spare one if it is not much too large. */
static void enlarge_pieces(struct catalog *c, struct adder *x, struct tensor *t, size_t total)
{
    enum { FEW = 8 }; /* from here on there is room to spare */
    struct piece *old = t->pieces, *all = x->spare;
    size_t capacity = x->spare_capacity;
    if (capacity < total || capacity / 2 > total) {
        capacity = t->num_pieces < FEW ? total : total + total / 2;
        all = arena_alloc(c->arena, capacity * sizeof *all);
    } else {
        x->spare_capacity = 0;
    }
    if (t->num_pieces) memcpy(all, old, t->num_pieces * sizeof *all);
    if (t->pieces_capacity > x->spare_capacity) {
        x->spare = old;
        x->spare_capacity = t->pieces_capacity;
    }
    t->pieces = all;
    t->pieces_capacity = capacity;
}

static void take_gathered(struct catalog *c, struct tensor *t)
{
    struct adder *x = adder_of(c);
    const size_t total = t->num_pieces + x->num_gathered;
    if (total > t->pieces_capacity) enlarge_pieces(c, x, t, total);
    if (x->num_gathered)
        memcpy(t->pieces + t->num_pieces, x->gathered, x->num_gathered * sizeof *x->gathered);
    t->num_pieces = total;
    x->num_gathered = 0;
}

/* A stored tensor of which elements are added to a logical one, and a piece of it. */
struct adding {
    struct catalog *catalog;
    struct tensor *tensor;
    const struct stored_tensor *stored;
    size_t piece;
};

static enum status add_joined(void *context, const struct pair *p, struct error *err)
{
    const struct adding *x = context;
    const struct stored_piece *s = &x->stored->pieces[x->piece];
    const struct piece piece = {.file = s->file,
                                .dtype = x->stored->dtype,
                                .byte_swapped = s->byte_swapped,
                                .offset_bytes = s->offset_bytes,
                                .pair = pair_pack(x->catalog->arena, p)};
    (void)err;
    gather(adder_of(x->catalog), &piece);
    return OK;
}

/* Marks the stored tensors that t names, and makes room for as many names more. */
static void begin_naming(struct catalog *c, struct tensor *t, size_t more)
{
    struct adder *x = adder_of(c);
    size_t i;
    if (x->num_named < c->stored.num_tensors) {
        x->named = must_realloc(x->named, c->stored.num_tensors * sizeof *x->named);
        memset(x->named + x->num_named, 0,
               (c->stored.num_tensors - x->num_named) * sizeof *x->named);
        x->num_named = c->stored.num_tensors;
    }
    if (x->tensor != t->name) {
        x->tensor = t->name;
        x->naming++;
        for (size_t k = 0; k < t->num_stored_names; k++)
            if (map_get(&c->stored.names, t->stored_names[k], &i)) x->named[i] = x->naming;
    }
    if (t->stored_names_capacity == 0 && more) {
        t->stored_names_capacity = more;
        t->stored_names = arena_array(c->arena, more, sizeof *t->stored_names);
    }
}

/* After begin_naming(). */
static void add_stored_name(struct catalog *c, struct tensor *t, size_t stored)
{
    struct adder *x = adder_of(c);
    const char *name = c->stored.tensors[stored].name;
    if (x->named[stored] == x->naming) return;
    x->named[stored] = x->naming;
    if (!t->stored_name) t->stored_name = name;
    *ARENA_PUSH(c->arena, t->stored_names, t->num_stored_names, t->stored_names_capacity) = name;
}

/* Adds the elements of the stored tensor x->stored that `pair` (logical, stored) has. */
static enum status add_elements(struct adding *x, const struct pair *pair, struct error *err)
{
    struct pair by_stored = *pair;
    TRY(pair_turn(&by_stored, x->tensor->name, err));
    TRY(index_stored(x->catalog, x->stored, err));
    const struct part_index *pieces = x->catalog->stored_index;
    const uint64_t end = by_stored.a_offset + pair_a_span(&by_stored);
    for (size_t i = first_reaching(pieces, by_stored.a_offset);
         i < pieces->count && pieces->parts[i].pair.a_offset < end; i++) {
        x->piece = pieces->parts[i].part;
        TRY(pair_join_nested(&by_stored, &pieces->parts[i].pair, x->tensor->name, add_joined, x,
                             err));
    }
    return OK;
}

static enum status add_stored(void *context, const struct pair *pair, struct error *err)
{
    struct adding *x = context;
    TRY(add_elements(x, pair, err));
    add_stored_name(x->catalog, x->tensor, (size_t)(x->stored - x->catalog->stored.tensors));
    return OK;
}

static int by_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Sets x->met[0..returned) to the parts that may share elements with a view, in the order in which
 * they were added. */
static size_t find_met(struct part_index *x, const struct pair *view)
{
    const uint64_t end = view->a_offset + pair_a_span(view);
    size_t n = 0;
    for (size_t i = first_reaching(x, view->a_offset);
         i < x->count && x->parts[i].pair.a_offset < end; i++)
        x->met[n++] = x->parts[i].part;
    if (n > 1) qsort(x->met, n, sizeof *x->met, by_number);
    return n;
}

enum status catalog_add_part(struct catalog *c, struct tensor *t, const struct own_tensor *own,
                             const struct pair *part, struct error *err)
{
    struct pair by_own = *part;
    TRY(pair_turn(&by_own, t->name, err));
    adder_of(c)->num_gathered = 0; /* left by a tensor that failed */
    TRY(index_own(c, own, err));
    const size_t num_met = find_met(c->own_index, &by_own);
    begin_naming(c, t, pair_count(part) ? num_met : own->num_parts);
    for (size_t i = 0; i < num_met; i++) {
        const struct own_part *p = &own->parts[c->own_index->met[i]];
        const struct pair pair = pair_unpack(&p->pair);
        struct adding x = {c, t, &c->stored.tensors[p->stored], 0};
        TRY(pair_join(&by_own, &pair, t->name, add_stored, &x, err));
    }
    take_gathered(c, t);
    for (size_t i = 0; i < own->num_parts && !pair_count(part);
         i++) /* an empty part still has stored names */
        add_stored_name(c, t, own->parts[i].stored);
    return OK;
}

/* A copy of the catalog's list of own tensors, from which a reader makes tensors in its own
 * arena. */
static struct catalog reading_of(const struct catalog *c, struct arena *a)
{
    struct catalog reading = *c;
    reading.arena = a;
    reading.own_index = reading.stored_index = NULL;
    reading.adder = NULL;
    return reading;
}

static struct tensor *new_tensor(struct arena *a, const char *name, const struct kind *kind)
{
    struct tensor *t = arena_alloc(a, sizeof *t);
    *t = (struct tensor){
        .name = name, .dtype = kind->dtype, .num_dims = kind->num_dims, .shape = kind->shape};
    return t;
}

enum status catalog_wrap_stored(const struct catalog *c, struct arena *a,
                                const struct stored_tensor *stored, struct tensor **out,
                                struct error *err)
{
    const struct kind kind = {stored->dtype, stored->num_dims, stored->shape};
    struct tensor *t = *out = new_tensor(a, stored->name, &kind);
    struct catalog reading = reading_of(c, a);
    struct adding x = {&reading, t, stored, 0};
    if (!shape_numel(t->shape, t->num_dims, &t->numel) || t->numel > MAX_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: its shape overflows", t->name);
    struct pair whole = pair_whole(0, 0, t->numel);
    t->stored_name = stored->name;
    t->stored_names = arena_copy(a, &t->stored_name, sizeof *t->stored_names);
    t->num_stored_names = t->stored_names_capacity = 1;
    enum status st = add_elements(&x, &whole, err);
    take_gathered(&reading, t);
    end_reading(&reading);
    return st;
}

/* ---- checks ---- */

enum status tensor_check(const struct tensor *t, struct error *err)
{
    struct pair *pairs = malloc(t->num_pieces * sizeof *pairs + 1);
    if (!pairs) return fail(err, ERR_MEMORY, "%s: no memory for its pieces", t->name);
    for (size_t i = 0; i < t->num_pieces; i++)
        pairs[i] = pair_unpack(&t->pieces[i].pair);
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
