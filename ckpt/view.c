/* view.c - see view.h. The join compares *digits*: the axes of a nested view
 * are digits of a mixed-radix number, most significant first, compared one by
 * one from the left. Invariants:
 *
 * 1. `delta` is the place of z's first element relative to y's, in elements
 *    of the common tensor.
 * 2. Each digit list is nested: the digits behind one span at most its
 *    stride (a *window*).
 * 3. If both lists begin with the same stride, windows meet in at most two
 *    ways. If not, the smaller digit is split so that they do (division), or
 *    the larger one is taken apart window by window. */
#include "ckpt/view.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"

static bool is_run(const struct pair *p)
{
    return p->num_axes == 0 ||
           (p->num_axes == 1 && p->axes[0].a_stride == 1 && p->axes[0].b_stride == 1);
}

struct packed_pair pair_pack(struct arena *a, const struct pair *p)
{
    struct packed_pair packed = {.a_offset = p->a_offset, .b_offset = p->b_offset};
    if (is_run(p)) {
        packed.count = pair_count(p);
        return packed;
    }
    packed.num_axes = p->num_axes;
    packed.axes = arena_copy(a, p->axes, p->num_axes * sizeof *p->axes);
    return packed;
}

struct pair pair_unpack(const struct packed_pair *p)
{
    struct pair pair = {.a_offset = p->a_offset, .b_offset = p->b_offset};
    if (p->num_axes) {
        pair.num_axes = p->num_axes;
        memcpy(pair.axes, p->axes, p->num_axes * sizeof *p->axes);
    } else if (p->count != 1) {
        pair.num_axes = 1;
        pair.axes[0] = (struct axis){p->count, 1, 1};
    }
    return pair;
}

bool pair_is_apart(const struct packed_pair *p, uint64_t first, uint64_t count)
{
    if (p->a_offset >= first && p->a_offset - first >= count) return true;
    return p->num_axes == 0 && p->a_offset < first && p->count <= first - p->a_offset;
}

bool pair_is_blocks(const struct packed_pair *p, unsigned block)
{
    if (block == 1) return true;
    return !p->num_axes && p->a_offset % block == 0 && p->b_offset % block == 0 &&
           p->count % block == 0;
}

struct pair pair_whole(uint64_t a_offset, uint64_t b_offset, uint64_t numel)
{
    return (struct pair){
        .num_axes = 1, .axes = {{numel, 1, 1}}, .a_offset = a_offset, .b_offset = b_offset};
}

bool pair_of_box(struct pair *out, unsigned num_dims, const uint64_t *shape, const uint64_t *start,
                 const uint64_t *extent, uint64_t b_offset, const uint64_t *b_stride)
{
    *out = (struct pair){.b_offset = b_offset};
    uint64_t a_stride = 1, row_major = 1;
    bool empty = false;
    for (unsigned d = num_dims; d-- > 0;) {
        if (start) out->a_offset += start[d] * a_stride;
        empty |= extent[d] == 0;
        if (extent[d] > 1) {
            if (out->num_axes == MAX_AXES) return false;
            memmove(out->axes + 1, out->axes, out->num_axes * sizeof *out->axes);
            out->axes[0] = (struct axis){extent[d], a_stride, b_stride ? b_stride[d] : row_major};
            out->num_axes++;
        }
        a_stride *= shape[d];
        row_major *= extent[d];
    }
    if (empty) *out = (struct pair){.num_axes = 1, .axes = {{0, 1, 1}}, .b_offset = b_offset};
    return empty || pair_nest(out);
}

uint64_t pair_count(const struct pair *p)
{
    uint64_t n = 1;
    for (unsigned k = 0; k < p->num_axes; k++)
        n *= p->axes[k].extent;
    return n;
}

bool pair_is_transposed(const struct pair *p)
{
    return p->num_axes > 1 && p->axes[p->num_axes - 1].b_stride != 1;
}

uint64_t pair_a_span(const struct pair *p)
{
    uint64_t span = 1;
    for (unsigned k = 0; k < p->num_axes; k++) {
        if (!p->axes[k].extent) return 0;
        span += (p->axes[k].extent - 1) * p->axes[k].a_stride;
    }
    return span;
}

struct pair pair_onto_itself(const struct pair *p)
{
    struct pair same = *p;
    same.b_offset = p->a_offset;
    for (unsigned k = 0; k < p->num_axes; k++)
        same.axes[k].b_stride = p->axes[k].a_stride;
    return same;
}

void pair_swap(struct pair *p)
{
    uint64_t offset = p->a_offset;
    p->a_offset = p->b_offset;
    p->b_offset = offset;
    for (unsigned k = 0; k < p->num_axes; k++) {
        uint64_t stride = p->axes[k].a_stride;
        p->axes[k].a_stride = p->axes[k].b_stride;
        p->axes[k].b_stride = stride;
    }
}

static void sort_axes(struct pair *p)
{
    for (unsigned k = 1; k < p->num_axes; k++) {
        struct axis x = p->axes[k];
        unsigned at = k;
        for (; at > 0 && p->axes[at - 1].a_stride < x.a_stride; at--)
            p->axes[at] = p->axes[at - 1];
        p->axes[at] = x;
    }
}

/* Adds an inner axis behind axes[0..*n), or extends the last one if x continues
 * it. */
static bool append_axis(struct axis *axes, unsigned *n, struct axis x)
{
    if (x.extent == 1) return true;
    if (*n > 0) {
        struct axis *outer = &axes[*n - 1];
        if (outer->a_stride == x.extent * x.a_stride && outer->b_stride == x.extent * x.b_stride) {
            *outer = (struct axis){outer->extent * x.extent, x.a_stride, x.b_stride};
            return true;
        }
    }
    if (*n == MAX_AXES) return false;
    axes[(*n)++] = x;
    return true;
}

/* Whether the view is nested and fits a tensor. */
static bool is_nested(const struct pair *p)
{
    uint64_t span = 1, reach;
    for (unsigned k = 0; k < p->num_axes; k++)
        if (!p->axes[k].extent) return true;
    for (unsigned k = p->num_axes; k-- > 0; span += reach) {
        const struct axis *x = &p->axes[k];
        reach = 0;
        if (x->extent == 1) continue;
        if (x->a_stride < span || !mul_u64(x->extent - 1, x->a_stride, &reach) ||
            reach > MAX_ELEMENTS - span)
            return false;
    }
    return true;
}

bool pair_nest(struct pair *p)
{
    sort_axes(p);
    bool nested = is_nested(p); /* before extents are multiplied */
    unsigned n = 0;
    for (unsigned k = 0; k < p->num_axes; k++)
        (void)append_axis(p->axes, &n, p->axes[k]);
    p->num_axes = n;
    return nested;
}

enum status pair_require_nested(struct pair *p, const char *name, struct error *err)
{
    return pair_nest(p) ? OK : fail(err, ERR_OURS, "%s: not a nested view", name);
}

enum status pair_turn(struct pair *p, const char *name, struct error *err)
{
    pair_swap(p);
    return pair_require_nested(p, name, err);
}

/* A digit of a list: stride is that of the common tensor, other the far side's.
 * Each level of the recursion takes off at most one digit and splits at most
 * one, so twice the axes are enough room. */
struct digit {
    uint64_t extent, stride, other;
};
enum { MAX_DIGITS = 2 * MAX_AXES + 2 };

/* Limit of windows compared one by one, where strides do not divide each other.
 * Usually there are few; a hostile file may ask for many. */
enum { MAX_WINDOWS = 1 << 20 };

struct digits {
    unsigned count;
    struct digit at[MAX_DIGITS];
    uint64_t other_offset;
};

struct join {
    const char *name;
    bool nests; /* blocks are nested before they are visited */
    pair_visit *visit;
    void *context;
    struct error *err;
    uint64_t windows_left;      /* to compare one by one */
    struct axis axes[MAX_AXES]; /* of the result, outermost first: a_stride is y's, b_stride z's */
    unsigned num_axes;
    bool swapped; /* y and z are swapped */
};

static struct digits digits_of(const struct pair *p)
{
    struct digits d = {.count = p->num_axes, .other_offset = p->b_offset};
    for (unsigned k = 0; k < p->num_axes; k++)
        d.at[k] = (struct digit){p->axes[k].extent, p->axes[k].a_stride, p->axes[k].b_stride};
    return d;
}

static int64_t span_of(const struct digits *d, unsigned from)
{
    uint64_t span = 1;
    for (unsigned k = from; k < d->count; k++)
        span += (d->at[k].extent - 1) * d->at[k].stride;
    return (int64_t)span;
}

static void drop_first(struct digits *d)
{
    memmove(d->at, d->at + 1, --d->count * sizeof *d->at);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static enum status join_digits(struct join *j, struct digits y, struct digits z, int64_t delta);

/* Adds n steps of both first digits to the result, from steps y_first of y and
 * z_first of z, and joins the digits behind them. */
static enum status join_windows(struct join *j, const struct digits *y, const struct digits *z,
                                int64_t y_first, int64_t z_first, int64_t n, int64_t delta)
{
    struct digits in_y = *y, in_z = *z;
    struct axis x = {(uint64_t)n, y->at[0].other, z->at[0].other};
    if (j->swapped) x = (struct axis){(uint64_t)n, z->at[0].other, y->at[0].other};
    in_y.other_offset += (uint64_t)y_first * y->at[0].other;
    in_z.other_offset += (uint64_t)z_first * z->at[0].other;
    drop_first(&in_y);
    drop_first(&in_z);

    struct axis saved[MAX_AXES];
    unsigned saved_count = j->num_axes;
    memcpy(saved, j->axes, sizeof saved);
    if (!append_axis(j->axes, &j->num_axes, x))
        return fail(j->err, ERR_OURS, "%s: a view with more than %d axes", j->name, MAX_AXES);
    enum status st = join_digits(j, in_y, in_z, delta);
    memcpy(j->axes, saved, sizeof saved);
    j->num_axes = saved_count;
    return st;
}

/* Both begin with stride s. Window k of z begins `inside` behind window k +
 * shift of y: the two may meet there, and z's may reach into y's next window. */
static enum status join_equal(struct join *j, const struct digits *y, const struct digits *z,
                              int64_t delta)
{
    int64_t s = (int64_t)y->at[0].stride;
    int64_t y_count = (int64_t)y->at[0].extent, z_count = (int64_t)z->at[0].extent;
    for (int64_t next = 0; next < 2; next++) {
        int64_t shift = floor_div(delta, s) + next, inside = delta - shift * s;
        if (inside >= span_of(y, 1) || inside + span_of(z, 1) <= 0) continue;
        int64_t first = max_i64(0, shift), end = min_i64(y_count, z_count + shift);
        if (first >= end) continue;
        enum status st = join_windows(j, y, z, first, first - shift, end - first, inside);
        if (st) return st;
    }
    return OK;
}

/* Splits steps [first, first + n * width) of z's first digit into n windows of
 * `width` steps. */
static enum status join_split(struct join *j, const struct digits *y, const struct digits *z,
                              int64_t first, int64_t n, int64_t width, int64_t delta)
{
    if (n == 0 || width == 0) return OK;
    struct digits split = *z;
    struct digit d = z->at[0];
    assert(split.count < MAX_DIGITS);
    memmove(split.at + 1, split.at, split.count++ * sizeof *split.at);
    split.at[0] =
        (struct digit){(uint64_t)n, y->at[0].stride, d.other * (y->at[0].stride / d.stride)};
    split.at[1].extent = (uint64_t)width;
    split.other_offset += (uint64_t)first * d.other;
    return join_equal(j, y, &split, delta + first * (int64_t)d.stride);
}

/* y's first stride is larger than z's, or z has no digit left. */
static enum status join_larger(struct join *j, const struct digits *y, const struct digits *z,
                               int64_t delta)
{
    int64_t s = (int64_t)y->at[0].stride;
    int64_t first = max_i64(0, floor_div(delta, s));
    int64_t last = min_i64((int64_t)y->at[0].extent - 1, floor_div(delta + span_of(z, 0) - 1, s));
    if (first < last && z->count > 0 && s % (int64_t)z->at[0].stride == 0) {
        /* Whole windows of z, and a tail. If z begins inside y's part of a
         * window, a head comes first so that the windows begin with y's; a cut
         * in y's gap cuts nothing. */
        int64_t t = (int64_t)z->at[0].stride, width = s / t, steps = (int64_t)z->at[0].extent;
        int64_t inside = delta - floor_div(delta, s) * s;
        int64_t to_boundary = inside < span_of(y, 1) ? (s - inside) % s : 0;
        int64_t head = min_i64(steps, (to_boundary + t - 1) / t);
        int64_t whole = (steps - head) / width, tail = steps - head - whole * width;
        TRY(join_split(j, y, z, 0, 1, head, delta));
        TRY(join_split(j, y, z, head, whole, width, delta));
        return join_split(j, y, z, head + whole * width, 1, tail, delta);
    }
    for (int64_t k = first; k <= last; k++) {
        struct digits window = *y;
        if (!j->windows_left--)
            return fail(j->err, ERR_UNSUPPORTED,
                        "%s: the strides of two views have too little in common", j->name);
        window.other_offset += (uint64_t)k * y->at[0].other;
        drop_first(&window);
        TRY(join_digits(j, window, *z, delta - k * s));
    }
    return OK;
}

static enum status join_digits(struct join *j, struct digits y, struct digits z, int64_t delta)
{
    if (delta >= span_of(&y, 0) || delta + span_of(&z, 0) <= 0) return OK;
    if (y.count == 0 && z.count == 0) {
        struct pair p = {.num_axes = j->num_axes};
        memcpy(p.axes, j->axes, sizeof p.axes);
        p.a_offset = j->swapped ? z.other_offset : y.other_offset;
        p.b_offset = j->swapped ? y.other_offset : z.other_offset;
        if (j->nests) TRY(pair_require_nested(&p, j->name, j->err));
        return j->visit(j->context, &p, j->err);
    }
    if (y.count && z.count && y.at[0].stride == z.at[0].stride) return join_equal(j, &y, &z, delta);
    if (z.count == 0 || (y.count && y.at[0].stride > z.at[0].stride))
        return join_larger(j, &y, &z, delta);
    j->swapped = !j->swapped;
    enum status st = join_larger(j, &z, &y, -delta);
    j->swapped = !j->swapped;
    return st;
}

/* Whether the elements of a are consecutive. */
static bool is_run_of_a(const struct pair *p)
{
    return p->num_axes == 0 || (p->num_axes == 1 && p->axes[0].a_stride == 1);
}

/* Joins two runs without digits: most pieces are runs. */
static enum status join_a_runs(struct join *j, const struct pair *y, const struct pair *z)
{
    const uint64_t begin = max_u64(y->a_offset, z->a_offset),
                   end = min_u64(y->a_offset + pair_count(y), z->a_offset + pair_count(z));
    const uint64_t y_stride = y->num_axes ? y->axes[0].b_stride : 1,
                   z_stride = z->num_axes ? z->axes[0].b_stride : 1;
    struct pair p = {.a_offset = y->b_offset + (begin - y->a_offset) * y_stride,
                     .b_offset = z->b_offset + (begin - z->a_offset) * z_stride};
    if (end - begin > 1) {
        p.num_axes = 1;
        p.axes[0] = (struct axis){end - begin, y_stride, z_stride};
    }
    if (j->nests) TRY(pair_require_nested(&p, j->name, j->err));
    return j->visit(j->context, &p, j->err);
}

static enum status join_pairs(struct join *j, const struct pair *y, const struct pair *z)
{
    if (!pair_count(y) || !pair_count(z)) return OK;
    if (z->a_offset >= y->a_offset + pair_a_span(y) || y->a_offset >= z->a_offset + pair_a_span(z))
        return OK; /* the usual case for a tensor of many pieces */
    if (is_run_of_a(y) && is_run_of_a(z)) return join_a_runs(j, y, z);
    return join_digits(j, digits_of(y), digits_of(z), (int64_t)(z->a_offset - y->a_offset));
}

enum status pair_join(const struct pair *y, const struct pair *z, const char *name,
                      pair_visit *visit, void *context, struct error *err)
{
    struct join j = {name, false, visit, context, err, .windows_left = MAX_WINDOWS};
    return join_pairs(&j, y, z);
}

enum status pair_join_nested(const struct pair *y, const struct pair *z, const char *name,
                             pair_visit *visit, void *context, struct error *err)
{
    struct join j = {name, true, visit, context, err, .windows_left = MAX_WINDOWS};
    return join_pairs(&j, y, z);
}

enum status pair_clip(const struct pair *p, uint64_t first, uint64_t count, const char *name,
                      pair_visit *visit, void *context, struct error *err)
{
    struct pair window = pair_whole(first, 0, count);
    return pair_join_nested(&window, p, name, visit, context, err);
}

static enum status stop_at_first(void *context, const struct pair *p, struct error *err)
{
    (void)context, (void)p, (void)err;
    return DIFFERENT;
}

/* Whether two views of one outer stride lie in different columns. */
static bool are_beside(const struct pair *y, const struct pair *z)
{
    if (!y->num_axes || !z->num_axes || y->axes[0].a_stride != z->axes[0].a_stride) return false;
    const uint64_t stride = y->axes[0].a_stride;
    uint64_t y_begin = y->a_offset % stride, z_begin = z->a_offset % stride;
    uint64_t y_end = y_begin + pair_a_span(y) - (y->axes[0].extent - 1) * stride;
    uint64_t z_end = z_begin + pair_a_span(z) - (z->axes[0].extent - 1) * stride;
    return y_end <= stride && z_end <= stride && (y_end <= z_begin || z_end <= y_begin);
}

static bool overlaps_within(const struct pair *y, const struct pair *z, uint64_t *windows_left)
{
    struct join j = {.name = "", .visit = stop_at_first, .windows_left = *windows_left};
    if (pair_count(y) && pair_count(z) && are_beside(y, z)) return false;
    bool found = join_pairs(&j, y, z) != OK;
    *windows_left = j.windows_left;
    return found;
}

bool pair_overlap(const struct pair *y, const struct pair *z)
{
    uint64_t windows_left = MAX_WINDOWS;
    return overlaps_within(y, z, &windows_left);
}

static int by_a_offset(const void *x, const void *y)
{
    const struct pair *p = x, *q = y;
    return p->a_offset < q->a_offset ? -1 : p->a_offset > q->a_offset;
}

bool pairs_tile(struct pair *pairs, size_t num_pairs, uint64_t numel, size_t *first_bad,
                uint64_t *covered)
{
    if (num_pairs) qsort(pairs, num_pairs, sizeof *pairs, by_a_offset);
    *covered = 0;
    uint64_t windows_left = MAX_WINDOWS;
    size_t begin = 0; /* earlier pairs end before all later ones begin */
    for (size_t i = 0; i < num_pairs; i++) {
        struct pair *p = &pairs[i];
        *first_bad = i;
        if (!pair_count(p)) continue;
        if (p->a_offset > numel || pair_a_span(p) > numel - p->a_offset) return false;
        while (begin < i && pairs[begin].a_offset + pair_a_span(&pairs[begin]) <= p->a_offset)
            begin++;
        for (size_t k = begin; k < i; k++)
            if (overlaps_within(&pairs[k], p, &windows_left)) return false;
        *covered += pair_count(p);
    }
    *first_bad = num_pairs;
    return *covered == numel;
}
