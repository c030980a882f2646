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

/* State of catalog_add_part(). */
struct adder {
    struct piece *gathered; /* pieces of the tensor being added */
    size_t num_gathered, gathered_capacity;
    /* The last tensor that got parts, and the stored tensors that it names:
     * those with number `naming` in named[]. */
    const char *tensor;
    uint32_t *named, naming;
    size_t num_named;
    /* An array that a tensor outgrew, for the next one. */
    struct piece *spare;
    size_t spare_capacity;
};

static struct adder *adder_of(struct catalog *c)
{
    if (!c->adder) c->adder = must_calloc(1, sizeof *c->adder);
    return c->adder;
}

/* Frees the indexes and the adder. */
static void end_reading(struct catalog *c)
{
    free(c->native_index);
    free(c->stored_index);
    if (c->adder) {
        free(c->adder->gathered);
        free(c->adder->named);
    }
    free(c->adder);
    c->native_index = c->stored_index = NULL;
    c->adder = NULL;
}

void catalog_release(struct catalog *c)
{
    end_reading(c);
    for (size_t i = 0; i < c->num_native; i++)
        free(c->native[i].parts);
    map_release(&c->native_names);
    map_release(&c->names);
    stored_release(&c->stored);
}

bool name_is_padding(const char *name)
{
    static const char end[] = ".padding";
    size_t n = strlen(name), m = sizeof end - 1;
    return n >= m && strcmp(name + n - m, end) == 0;
}

bool name_is_carried(const char *name)
{
    static const char begin[] = "carried.";
    return strncmp(name, begin, sizeof begin - 1) == 0;
}

bool name_is_of_encoding(const char *name)
{
    static const char begin[] = "encoding.";
    return strncmp(name, begin, sizeof begin - 1) == 0;
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

/* Dtype and shape of a tensor or native tensor. */
struct kind {
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
};

static enum status same_kind(struct catalog *c, const char *name, const struct kind *here,
                             const struct kind *elsewhere, struct error *err)
{
    if (here->dtype != elsewhere->dtype)
        return fail(err, ERR_CORRUPT, "%s: dtype %s here, %s elsewhere", name,
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

void tensor_add_number(struct tensor *t, double number)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        t->pieces[i].add += (float)number;
}

enum status tensor_join_halves(struct arena *a, struct tensor *t, const struct tensor *weight,
                               struct error *err)
{
    const size_t names = t->num_stored_names + weight->num_stored_names;
    TRY(tensor_check(t, err));
    if (weight->num_dims != t->num_dims ||
        memcmp(weight->shape, t->shape, t->num_dims * sizeof *t->shape))
        return fail(err, ERR_CORRUPT, "%s has shape %s, but its weight %s", t->name,
                    shape_text(a, t->num_dims, t->shape),
                    shape_text(a, weight->num_dims, weight->shape));
    struct halves *h = arena_alloc(a, sizeof *h);
    *h = (struct halves){*weight, *t};
    const struct piece joined = {.origin = ORIGIN_HALVES, .dtype = DT_F32, .halves = h};
    const struct pair whole = pair_whole(0, 0, t->numel);
    t->dtype = DT_F32;
    t->pieces = NULL;
    t->num_pieces = t->pieces_capacity = 0;
    tensor_add_piece(a, t, &joined, &whole);
    t->stored_names = arena_array(a, names, sizeof *t->stored_names);
    t->stored_names_capacity = names;
    for (size_t i = 0; i < names; i++)
        t->stored_names[i] = i < t->num_stored_names
                                 ? h->lower.stored_names[i]
                                 : weight->stored_names[i - t->num_stored_names];
    t->num_stored_names = names;
    return OK;
}

bool tensor_is_joined(const struct tensor *t)
{
    return t->num_pieces && t->pieces[0].origin == ORIGIN_HALVES;
}

/* ---- native tensors ---- */

/* The key of a native tensor in the map: its name, and its state if any. */
static const char *native_key(struct strbuf *room, const char *name, const char *state)
{
    if (!state) return name;
    strbuf_printf(room, "%s\x1f%s", state, name);
    return room->data;
}

const struct native_tensor *catalog_find_native(const struct catalog *c, const char *name,
                                                const char *state)
{
    struct strbuf room = {0};
    size_t i;
    bool found = map_get(&c->native_names, native_key(&room, name, state), &i);
    strbuf_release(&room);
    return found ? &c->native[i] : NULL;
}

static struct native_tensor *push_native(struct catalog *c, const char *name, const char *state,
                                         const struct kind *kind, uint64_t numel)
{
    struct arena *a = c->arena;
    if (c->native_capacity == 0 &&
        c->stored.num_tensors) { /* few have more than there are stored */
        c->native_capacity = c->stored.num_tensors;
        c->native = arena_alloc(a, c->native_capacity * sizeof *c->native);
    }
    struct native_tensor *native = ARENA_PUSH(a, c->native, c->num_native, c->native_capacity);
    struct strbuf room = {0};
    *native = (struct native_tensor){
        .name = name,
        .state = state,
        .dtype = kind->dtype,
        .num_dims = kind->num_dims,
        .shape = arena_copy(a, kind->shape, kind->num_dims * sizeof *kind->shape),
        .numel = numel,
    };
    const char *key = native_key(&room, native->name, state);
    if (state) key = arena_copy_text(a, key);
    (void)map_add(&c->native_names, key, c->num_native - 1, NULL);
    strbuf_release(&room);
    return native;
}

enum status catalog_add_native(struct catalog *c, const char *name, const char *state,
                               enum dtype dtype, unsigned num_dims, const uint64_t *shape,
                               struct native_tensor **out, struct error *err)
{
    const struct kind kind = {dtype, num_dims, shape};
    const struct native_tensor *old = catalog_find_native(c, name, state);
    uint64_t numel;
    if (old) {
        *out = &c->native[old - c->native];
        return same_kind(c, name, &kind, &(struct kind){old->dtype, old->num_dims, old->shape},
                         err);
    }
    TRY(count_elements(c, name, &kind, &numel, err));
    *out = push_native(c, name, state, &kind, numel);
    return OK;
}

enum status catalog_add_native_part(struct catalog *c, struct native_tensor *native,
                                    const struct stored_tensor *stored, const struct pair *pair,
                                    struct error *err)
{
    struct pair nested = *pair;
    TRY(pair_require_nested(&nested, native->name, err));
    if (native->num_parts == native->parts_capacity) { /* most have one */
        native->parts_capacity = native->parts_capacity ? 2 * native->parts_capacity : 1;
        native->parts = must_realloc(native->parts, native->parts_capacity * sizeof *native->parts);
    }
    native->parts[native->num_parts++] = (struct native_part){
        .pair = pair_pack(c->arena, &nested), .stored = (size_t)(stored - c->stored.tensors)};
    return OK;
}

enum status catalog_decode_native(struct catalog *c, const struct native_tensor *native,
                                  const struct encoded *e, enum dtype dtype, unsigned num_dims,
                                  const uint64_t *shape, const struct pair *pair, struct error *err)
{
    struct native_tensor *to = &c->native[native - c->native];
    const struct kind kind = {dtype, num_dims, shape};
    struct pair nested = *pair;
    TRY(count_elements(c, to->name, &kind, &to->numel, err));
    TRY(pair_require_nested(&nested, to->name, err));
    to->dtype = dtype;
    to->num_dims = num_dims;
    to->shape = arena_copy(c->arena, shape, num_dims * sizeof *shape);
    to->num_parts = 1;
    to->parts[0].pair = pair_pack(c->arena, &nested);
    to->parts[0].encoded = e;
    return OK;
}

enum status catalog_native_stored(struct catalog *c, const char *name, const char *state,
                                  const struct stored_tensor *stored, struct error *err)
{
    struct native_tensor *native;
    TRY(catalog_add_native(c, name, state, stored->dtype, stored->num_dims, stored->shape, &native,
                           err));
    struct pair whole = pair_whole(0, 0, native->numel);
    return catalog_add_native_part(c, native, stored, &whole, err);
}

void native_add_logical(struct catalog *c, const struct native_tensor *native, const char *logical)
{
    struct native_tensor *to = &c->native[native - c->native];
    if (to->num_logicals && strcmp(to->logicals[to->num_logicals - 1], logical) == 0) return;
    if (!to->logicals) to->logicals = arena_array(c->arena, 1, sizeof *to->logicals);
    if (!to->num_logicals) to->logicals_capacity = 1; /* most have one */
    *ARENA_PUSH(c->arena, to->logicals, to->num_logicals, to->logicals_capacity) = logical;
}

/* Adds a native tensor under another name to a map; false: it has the name. */
static bool add_native_name(struct catalog *c, struct map *to, size_t i, const char *name,
                            size_t *old)
{
    struct strbuf room = {0};
    const char *state = c->native[i].state, *key = native_key(&room, name, state);
    if (state) key = arena_copy_text(c->arena, key);
    const bool added = map_add(to, key, i, old);
    strbuf_release(&room);
    return added;
}

enum status catalog_rename_native(struct catalog *c, const char *const *names, struct error *err)
{
    struct map renamed = {0};
    size_t old;
    for (size_t i = 0; i < c->num_native; i++) {
        if (add_native_name(c, &renamed, i, names[i], &old)) continue;
        map_release(&renamed);
        return fail(err, ERR_UNSUPPORTED, "%s and %s become the same name, %s", c->native[old].name,
                    c->native[i].name, names[i]);
    }
    map_release(&c->native_names);
    c->native_names = renamed;
    for (size_t i = 0; i < c->num_native; i++)
        c->native[i].name = names[i];
    return OK;
}

/* ---- an index of a tensor's parts by place ---- */

/* The parts of a native tensor, or the pieces of a stored one, as pairs (flat
 * in the tensor, elements of the part), sorted by their beginning: the few that
 * meet a view are found by bisection. */
struct indexed_part {
    struct pair pair;
    size_t part; /* index among the tensor's parts */
};
struct part_index {
    size_t tensor, num_parts; /* the tensor, and its number of parts then */
    uint64_t longest_span;
    size_t count, capacity;
    bool sorted; /* parts were added in order */
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

/* Makes *index an empty index of no tensor, with room for num_parts. */
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

static enum status index_native(struct catalog *c, const struct native_tensor *native,
                                struct error *err)
{
    const size_t tensor = (size_t)(native - c->native);
    if (is_index_of(c->native_index, tensor, native->num_parts)) return OK;
    TRY(begin_index(&c->native_index, native->num_parts, native->name, err));
    for (size_t i = 0; i < native->num_parts; i++) {
        const struct pair pair = pair_unpack(&native->parts[i].pair);
        index_pair(c->native_index, &pair, i);
    }
    end_index(c->native_index, tensor);
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

/* ---- logical tensors of native ones, and these of stored ones ---- */

/* Pieces are gathered before the tensor gets them, so that its array has no
 * spare room: in a model of many experts they are most of the memory. */
static void gather_piece(struct adder *x, const struct piece *piece)
{
    if (x->num_gathered == x->gathered_capacity) {
        x->gathered_capacity = 2 * x->gathered_capacity + 4;
        x->gathered = must_realloc(x->gathered, x->gathered_capacity * sizeof *x->gathered);
    }
    x->gathered[x->num_gathered++] = *piece;
}

/* Moves the pieces of t to an array for `total`: the spare one if that is not
 * much too large. */
static void enlarge_pieces(struct catalog *c, struct adder *x, struct tensor *t, size_t total)
{
    enum { FEW = 8 }; /* from here on arrays get spare room */
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

/* A piece of a stored tensor whose elements are added to a logical one. */
struct adding {
    struct catalog *catalog;
    struct tensor *tensor;
    const struct stored_tensor *stored;
    size_t piece;
    const struct encoded *encoded; /* whose codes are `stored`; NULL: none */
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
    gather_piece(adder_of(x->catalog), &piece);
    return OK;
}

/* Marks the stored tensors that t names, and makes room for `more` names. */
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

/* Adds the elements of x->stored in `pair` (logical, stored). */
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

/* Adds elements of an encoded tensor in `pair` (logical, encoded). */
static void add_encoded(struct adding *x, const struct pair *pair)
{
    const struct piece piece = {.origin = ORIGIN_ENCODED,
                                .dtype = x->tensor->dtype,
                                .encoded = x->encoded,
                                .pair = pair_pack(x->catalog->arena, pair)};
    gather_piece(adder_of(x->catalog), &piece);
}

static enum status add_stored(void *context, const struct pair *pair, struct error *err)
{
    struct adding *x = context;
    if (x->encoded)
        add_encoded(x, pair);
    else
        TRY(add_elements(x, pair, err));
    add_stored_name(x->catalog, x->tensor, (size_t)(x->stored - x->catalog->stored.tensors));
    return OK;
}

static int by_part_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Sets x->met[0..returned) to the parts that may meet a view, in the order of
 * adding. */
static size_t find_met(struct part_index *x, const struct pair *view)
{
    const uint64_t end = view->a_offset + pair_a_span(view);
    size_t n = 0;
    for (size_t i = first_reaching(x, view->a_offset);
         i < x->count && x->parts[i].pair.a_offset < end; i++)
        x->met[n++] = x->parts[i].part;
    if (n > 1) qsort(x->met, n, sizeof *x->met, by_part_number);
    return n;
}

enum status catalog_add_part(struct catalog *c, struct tensor *t,
                             const struct native_tensor *native, const struct pair *part,
                             struct error *err)
{
    struct pair by_native = *part;
    TRY(pair_turn(&by_native, t->name, err));
    adder_of(c)->num_gathered = 0; /* left by a failed tensor */
    TRY(index_native(c, native, err));
    const size_t num_met = find_met(c->native_index, &by_native);
    begin_naming(c, t, pair_count(part) ? num_met : native->num_parts);
    for (size_t i = 0; i < num_met; i++) {
        const struct native_part *p = &native->parts[c->native_index->met[i]];
        const struct pair pair = pair_unpack(&p->pair);
        struct adding x = {c, t, &c->stored.tensors[p->stored], 0, p->encoded};
        TRY((p->encoded ? pair_join_nested : pair_join)(&by_native, &pair, t->name, add_stored, &x,
                                                        err));
    }
    take_gathered(c, t);
    for (size_t i = 0; i < native->num_parts && !pair_count(part);
         i++) /* an empty part still has stored names */
        add_stored_name(c, t, native->parts[i].stored);
    return OK;
}

/* A shallow copy of the catalog, with indexes of its own: adds tensors in a
 * reader's arena. */
static struct catalog reading_of(const struct catalog *c, struct arena *a)
{
    struct catalog reading = *c;
    reading.arena = a;
    reading.native_index = reading.stored_index = NULL;
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
    struct adding x = {&reading, t, stored, 0, NULL};
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
