#include "validate/compare/parts.h"

#include <string.h>

/* ---- position of an element ---- */

/* Maps element `index` of a to *out, the element of b; false if the pair has
 * none. */
static bool find_in_b(const struct pair *p, uint64_t index, uint64_t *out)
{
    if (index < p->a_offset) return false;
    uint64_t rest = index - p->a_offset;
    *out = p->b_offset;
    for (unsigned k = 0; k < p->num_axes; k++) {
        const struct axis *x = &p->axes[k];
        uint64_t step = x->a_stride ? rest / x->a_stride : 0;
        if (step >= x->extent) return false;
        rest -= step * x->a_stride;
        *out += step * x->b_stride;
    }
    return rest == 0;
}

static uint64_t extent_of(const struct stored_tensor *t, const struct stored_piece *s, unsigned d)
{
    return s->extent ? s->extent[d] : t->shape[d];
}

static uint64_t stride_of(const struct stored_tensor *t, const struct stored_piece *s, unsigned d)
{
    uint64_t stride = 1;
    if (s->stride) return s->stride[d];
    for (unsigned k = d + 1; k < t->num_dims; k++)
        stride *= extent_of(t, s, k);
    return stride;
}

/* The dimension with the largest stride below `limit`, without dimensions of
 * extent 1; num_dims: none. */
static unsigned next_dim(const struct stored_tensor *t, const struct stored_piece *s,
                         uint64_t limit)
{
    unsigned best = t->num_dims;
    for (unsigned d = 0; d < t->num_dims; d++) {
        uint64_t stride = stride_of(t, s, d);
        if (extent_of(t, s, d) < 2 || stride == 0 || stride >= limit) continue;
        if (best == t->num_dims || stride > stride_of(t, s, best)) best = d;
    }
    return best;
}

/* Stride of dimension d in the dense stored tensor. */
static uint64_t row_stride(const struct stored_tensor *t, unsigned d)
{
    uint64_t n = 1;
    while (++d < t->num_dims)
        n *= t->shape[d];
    return n;
}

/* Maps element `at` of a piece to *out, the element of the stored tensor; false
 * if not known. */
static bool index_in_stored(const struct stored_tensor *t, const struct stored_piece *s,
                            uint64_t at, uint64_t *out)
{
    *out = 0;
    for (unsigned d = 0; d < t->num_dims; d++)
        *out += (s->start ? s->start[d] : 0) * row_stride(t, d);
    for (uint64_t limit = UINT64_MAX;;) {
        unsigned d = next_dim(t, s, limit);
        if (d == t->num_dims) return at == 0;
        limit = stride_of(t, s, d);
        if (at / limit >= extent_of(t, s, d)) return false;
        *out += at / limit * row_stride(t, d);
        at %= limit;
    }
}

/* The piece of a stored tensor with the bytes of a logical tensor's piece;
 * NULL: none. */
static const struct stored_piece *stored_piece_of(const struct stored_tensor *t,
                                                  const struct piece *p)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].file == p->file && t->pieces[i].offset_bytes == p->offset_bytes)
            return &t->pieces[i];
    return NULL;
}

/* Index of the stored name of a piece; SIZE_MAX: not known. Names come in the
 * order of pieces, so the search begins with `before`, the name of the previous
 * piece. */
static size_t name_of_piece(const struct checkpoint *c, const struct tensor *t,
                            const struct piece *p, size_t before)
{
    const size_t n = t->num_stored_names;
    for (size_t k = 0; piece_origin(p)->is_stored && k < n; k++) {
        const size_t i = before < n ? (before + k) % n : k;
        const struct stored_tensor *stored = stored_find(&c->catalog.stored, t->stored_names[i]);
        if (stored && stored_piece_of(stored, p)) return i;
    }
    return SIZE_MAX;
}

bool stored_element_of(const struct checkpoint *c, const struct tensor *t, uint64_t element,
                       struct stored_element *out)
{
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *p = &t->pieces[i];
        const struct pair pair = pair_unpack(&p->pair);
        uint64_t at;
        if (!piece_origin(p)->is_stored || !find_in_b(&pair, element, &at)) continue;
        size_t name = name_of_piece(c, t, p, 0);
        if (name == SIZE_MAX) return false;
        out->stored = stored_find(&c->catalog.stored, t->stored_names[name]);
        return index_in_stored(out->stored, stored_piece_of(out->stored, p), at, &out->index);
    }
    return false;
}

/* ---- differing parts ---- */

void parts_init(struct parts *p, struct arena *a, const struct checkpoint *c,
                const struct tensor *t)
{
    *p = (struct parts){.tensor = t};
    p->name_of_piece = arena_array(a, t->num_pieces + 1, sizeof *p->name_of_piece);
    p->first = arena_array(a, t->num_stored_names + 1, sizeof *p->first);
    for (size_t i = 0; i < t->num_stored_names; i++)
        atomic_init(&p->first[i], UINT64_MAX);
    for (size_t i = 0; i < t->num_pieces; i++)
        p->name_of_piece[i] = name_of_piece(c, t, &t->pieces[i], i ? p->name_of_piece[i - 1] : 0);
}

/* A panel of both sides, and the first difference of one part. */
struct looking {
    const char *a, *b;
    size_t element_bytes;
    uint64_t low;
    _Atomic uint64_t *first;
};

static void lower_first(_Atomic uint64_t *first, uint64_t to)
{
    uint64_t known = atomic_load_explicit(first, memory_order_relaxed);
    while (to < known && !atomic_compare_exchange_weak(first, &known, to))
        ;
}

/* Whether elements [at, at + count) of the panel differ; records the first
 * difference. */
static bool run_differs(const struct looking *x, uint64_t at, uint64_t count)
{
    const char *a = x->a + at * x->element_bytes, *b = x->b + at * x->element_bytes;
    if (memcmp(a, b, count * x->element_bytes) == 0) return false;
    while (memcmp(a, b, x->element_bytes) == 0) {
        a += x->element_bytes;
        b += x->element_bytes;
        at++;
    }
    lower_first(x->first, x->low + at);
    return true;
}

/* Walks the axes from k on in the order of the panel, up to the first
 * difference. */
static bool axes_differ(const struct looking *x, const struct pair *p, unsigned k, uint64_t at)
{
    if (x->low + at >= atomic_load_explicit(x->first, memory_order_relaxed)) return true;
    if (k == p->num_axes) return run_differs(x, at, 1);
    const struct axis *axis = &p->axes[k];
    if (k + 1 == p->num_axes && axis->a_stride == 1) return run_differs(x, at, axis->extent);
    for (uint64_t i = 0; i < axis->extent; i++)
        if (axes_differ(x, p, k + 1, at + i * axis->a_stride)) return true;
    return false;
}

static enum status look_at_block(void *context, const struct pair *p, struct error *err)
{
    struct pair nested = *p;
    (void)err;
    if (pair_nest(&nested)) (void)axes_differ(context, &nested, 0, nested.a_offset);
    return OK;
}

void parts_add(struct parts *p, const void *a, const void *b, size_t element_bytes, uint64_t low,
               uint64_t count)
{
    const struct pair panel = pair_whole(low, 0, count);
    for (size_t i = 0; i < p->tensor->num_pieces; i++) {
        const struct pair piece = pair_unpack(&p->tensor->pieces[i].pair);
        if (p->name_of_piece[i] == SIZE_MAX) continue;
        struct looking x = {a, b, element_bytes, low, &p->first[p->name_of_piece[i]]};
        bool apart = piece.a_offset >= low + count || piece.a_offset + pair_a_span(&piece) <= low;
        if (!apart && pair_join(&panel, &piece, p->tensor->name, look_at_block, &x, NULL))
            atomic_store(&p->lost, true);
    }
}
