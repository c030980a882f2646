/* arrange.c - see arrange.h. Letters of the patterns:
 *
 *   i j k   the dimensions of a tensor of two or three
 *   L n m   the dimension in question, n; the product of those before it (L) and behind it (m)
 *   p h     2 and n / 2: gate and up
 *   t c     tensor parallel ranks, and n / 2t: rows of gate on each
 *   g r d   groups, query heads of each, rows of a head; s = (r + 2) * d; w = n / d heads
 *   y       g / t groups of a rank
 *   o e u   rotated rows of a head, o / 2, and the rest d - o */
#include "validate/hints/arrange.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/strbuf.h"
#include "convert/map/pattern.h"

enum { MAX_PARTS = 6 };

enum scope {
    TWO_DIMS,   /* i j */
    THREE_DIMS, /* i j k */
    ROWS,       /* L n m, for each dimension n */
    RANKS,      /* and for each t */
    HEAD_DIM,   /* for each d */
    HEADS,      /* for each g, r and d */
};

/* "A has SUBJECT FIRST, B SECOND": words for the first and the second patterns.
 * A row is tried both ways; the other way, A has the second patterns. Without a
 * subject, `first` describes B, and the row is tried one way only. */
struct row {
    const char *id;
    enum scope scope;
    const char *subject, *first, *second;
    const char *parts[MAX_PARTS][2];
};

// clang-format off
#define HALVES "the rotary halves of each q and k head of {d} rows"
#define Q_HALVES "the rotary halves of each q head of {d} rows (not those of k)"
#define K_HALVES "the rotary halves of each k head of {d} rows (not those of q)"
static const struct row rows[] = {
    {"transposed", TWO_DIMS, NULL, "B is A transposed", NULL, {{"i j", "j i"}}},
    {"transposed", TWO_DIMS, NULL, "A is B transposed (all but the shape)", NULL, {{"j i", "i j"}}},
    {"transposed", THREE_DIMS, NULL, "B is A with dimensions 1 and 2 transposed", NULL, {{"i j k", "i k j"}}},
    {"transposed", THREE_DIMS, NULL, "B is A with dimensions 0 and 1 transposed", NULL, {{"i j k", "j i k"}}},
    {"transposed", THREE_DIMS, NULL, "B is A with its dimensions in the order 2, 1, 0", NULL, {{"i j k", "k j i"}}},
    {"transposed", THREE_DIMS, NULL, "B is A with its dimensions in the order 1, 2, 0", NULL, {{"i j k", "j k i"}}},
    {"transposed", THREE_DIMS, NULL, "B is A with its dimensions in the order 2, 0, 1", NULL, {{"i j k", "k i j"}}},
    {"gate-up-swapped", ROWS, NULL, "the halves of its rows are swapped (gate and up)", NULL,
     {{"L h[0 of n] m", "L h[h of n] m"}, {"L h[h of n] m", "L h[0 of n] m"}}},
    {"gate-up-interleaved", ROWS, "gate and up", "one after the other", "interleaved row by row",
     {{"L (p h) m", "L (h p) m"}}},
    {"gate-up-by-rank", RANKS, "gate and up", "one after the other", "in alternating chunks for {t} tensor-parallel ranks",
     {{"L (p t c) m", "L (t p c) m"}}},
    {"rotary-interleaved", HEAD_DIM, "the rotary halves of each head of {d} rows", "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (w (p e)[0 of d]) m", "L (w (e p)[0 of d]) m"},
      {"L (w u[o of d]) m",     "L (w u[o of d]) m"}}},
    {"rotary-interleaved", HEADS, HALVES, "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (g (r (p e)[0 of d])[0 of s]) m",   "L (g (r (e p)[0 of d])[0 of s]) m"},
      {"L (g (r u[o of d])[0 of s]) m",       "L (g (r u[o of d])[0 of s]) m"},
      {"L (g ((p e)[0 of d])[r*d of s]) m",   "L (g ((e p)[0 of d])[r*d of s]) m"},
      {"L (g (u[o of d])[r*d of s]) m",       "L (g (u[o of d])[r*d of s]) m"},
      {"L (g d[r*d + d of s]) m",             "L (g d[r*d + d of s]) m"}}},
    {"rotary-interleaved", HEADS, HALVES, "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (g r (p e)[0 of d])[0 of g*s] m",         "L (g r (e p)[0 of d])[0 of g*s] m"},
      {"L (g r u[o of d])[0 of g*s] m",             "L (g r u[o of d])[0 of g*s] m"},
      {"L (g (p e)[0 of d])[g*r*d of g*s] m",       "L (g (e p)[0 of d])[g*r*d of g*s] m"},
      {"L (g u[o of d])[g*r*d of g*s] m",           "L (g u[o of d])[g*r*d of g*s] m"},
      {"L (g d)[g*r*d + g*d of g*s] m",             "L (g d)[g*r*d + g*d of g*s] m"}}},
    {"rotary-interleaved", HEADS, Q_HALVES, "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (g (r (p e)[0 of d])[0 of s]) m",   "L (g (r (e p)[0 of d])[0 of s]) m"},
      {"L (g (r u[o of d])[0 of s]) m",       "L (g (r u[o of d])[0 of s]) m"},
      {"L (g (p d)[r*d of s]) m",             "L (g (p d)[r*d of s]) m"}}},
    {"rotary-interleaved", HEADS, Q_HALVES, "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (g r (p e)[0 of d])[0 of g*s] m",         "L (g r (e p)[0 of d])[0 of g*s] m"},
      {"L (g r u[o of d])[0 of g*s] m",             "L (g r u[o of d])[0 of g*s] m"},
      {"L (p g d)[g*r*d of g*s] m",                 "L (p g d)[g*r*d of g*s] m"}}},
    {"rotary-interleaved", HEADS, K_HALVES, "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (g (r d)[0 of s]) m",               "L (g (r d)[0 of s]) m"},
      {"L (g ((p e)[0 of d])[r*d of s]) m",   "L (g ((e p)[0 of d])[r*d of s]) m"},
      {"L (g (u[o of d])[r*d of s]) m",       "L (g (u[o of d])[r*d of s]) m"},
      {"L (g d[r*d + d of s]) m",             "L (g d[r*d + d of s]) m"}}},
    {"rotary-interleaved", HEADS, K_HALVES, "one after the other", "interleaved (as Meta and GGUF)",
     {{"L (g r d)[0 of g*s] m",                     "L (g r d)[0 of g*s] m"},
      {"L (g (p e)[0 of d])[g*r*d of g*s] m",       "L (g (e p)[0 of d])[g*r*d of g*s] m"},
      {"L (g u[o of d])[g*r*d of g*s] m",           "L (g u[o of d])[g*r*d of g*s] m"},
      {"L (g d)[g*r*d + g*d of g*s] m",             "L (g d)[g*r*d + g*d of g*s] m"}}},
    {"query-heads", HEADS, "query heads", "group by group", "interleaved across groups (the first head of each group, then the second)",
     {{"L (g r d) m", "L (r g d) m"}}},
};

/* Orders of q, k and v in one tensor; all pairs of them are tried. */
static const struct order {
    const char *text;
    bool by_rank; /* for several t; the others for t = 1 */
    const char *parts[4]; /* q, k, v, and q where it has as many heads as k and v */
} orders[] = {
    {"group by group (as Megatron)", false,
     {"L (t y (r d)[0 of s]) m",          "L (t y d[r*d of s]) m",              "L (t y d[r*d + d of s]) m",
      "L (t y d[0 of s]) m"}},
    {"one after the other", false,
     {"L (t y r d)[0 of g*s] m",          "L (t y d)[g*r*d of g*s] m",          "L (t y d)[g*r*d + g*d of g*s] m",
      "L (t y d)[0 of g*s] m"}},
    {"interleaved row by row (as Megatron's checkpoint version 1)", false,
     {"L (t y r d 1[0 of 3]) m",          "L (t y d 1[1 of 3]) m",              "L (t y d 1[2 of 3]) m",
      "L (t y d 1[0 of 3]) m"}},
    {"one after the other for each of {t} tensor-parallel ranks", true,
     {"L (t (y r d)[0 of y*s]) m",        "L (t (y d)[y*r*d of y*s]) m",        "L (t (y d)[y*r*d + y*d of y*s]) m"}},
};

/* Exchanged names of q, k and v, in each order. With fewer k and v than q
 * heads, only the first fits. */
static const struct swap {
    const char *text;
    unsigned from[3]; /* the parts of A that are B's q, k and v */
} swaps[] = {
    {"k and v are swapped",                     {0, 2, 1}},
    {"q and k are swapped",                     {1, 0, 2}},
    {"q and v are swapped",                     {2, 1, 0}},
    {"q, k and v of B are k, v and q of A",     {1, 2, 0}},
    {"q, k and v of B are v, q and k of A",     {2, 0, 1}},
};
// clang-format on

enum { NUM_ROWS = COUNT(rows), NUM_ORDERS = COUNT(orders), NUM_SWAPS = COUNT(swaps) };

static const uint64_t rank_sizes[] = {2, 4, 8, 16};
enum { NUM_RANK_SIZES = COUNT(rank_sizes) };

/* The heads of common models, for tensors without a config. */
static const uint64_t common_head_dims[] = {64, 128, 96, 80, 256, 32, 16};
static const uint64_t common_queries[] = {1, 4, 8, 2, 3, 5, 6, 7, 16};

/* ---- letters ---- */

struct sizes {
    unsigned num_dims;
    const uint64_t *shape;
    unsigned dim; /* the dimension n */
    uint64_t ranks;
    struct heads heads;
};

static uint64_t product(const uint64_t *shape, unsigned from, unsigned to)
{
    uint64_t n = 1;
    while (from < to)
        n *= shape[from++];
    return n;
}

/* a / b; 0 if b does not divide a. */
static uint64_t divided(uint64_t a, uint64_t b)
{
    return b && a % b == 0 ? a / b : 0;
}

static uint64_t letter_value(const struct sizes *x, char letter)
{
    const struct heads *h = &x->heads;
    const uint64_t n = x->shape[x->dim];
    const struct {
        char letter;
        uint64_t value;
    } letters[] = {
        {'L', product(x->shape, 0, x->dim)},
        {'n', n},
        {'m', product(x->shape, x->dim + 1, x->num_dims)},
        {'p', 2},
        {'h', divided(n, 2)},
        {'t', x->ranks},
        {'c', divided(n, 2 * x->ranks)},
        {'g', h->groups},
        {'r', h->queries},
        {'d', h->head_dim},
        {'s', (h->queries + 2) * h->head_dim},
        {'w', divided(n, h->head_dim)},
        {'y', divided(h->groups, x->ranks)},
        {'o', h->rotary_dim},
        {'e', divided(h->rotary_dim, 2)},
        {'u', h->head_dim - h->rotary_dim},
    };
    if (letter >= 'i' && letter <= 'k')
        return (unsigned)(letter - 'i') < x->num_dims ? x->shape[letter - 'i'] : 0;
    for (size_t i = 0; i < COUNT(letters); i++)
        if (letters[i].letter == letter) return letters[i].value;
    return 0;
}

static bool letter(const void *context, const char *name, size_t length, int64_t index,
                   struct term *out)
{
    uint64_t value = length == 1 && index < 0 ? letter_value(context, *name) : 0;
    *out = term_whole((int64_t)value);
    return value > 0 && value <= MAX_ELEMENTS;
}

/* Adds a text with numbers for "{t}" and "{d}". */
static void add_template(struct strbuf *out, const char *text, const struct sizes *x)
{
    for (const char *p = text; *p; p++) {
        if (p[0] == '{' && p[1] && p[2] == '}') {
            strbuf_printf(out, "%llu", (unsigned long long)letter_value(x, p[1]));
            p += 2;
        } else {
            strbuf_add_char(out, *p);
        }
    }
}

/* ---- one arrangement ---- */

struct finding {
    struct arena *a;
    uint64_t numel;
    struct sizes sizes;
    arrangement_visit *visit;
    void *context;
    struct error *err;
};

/* Number of elements in a pattern. */
static uint64_t view_numel(const struct pattern_view *v)
{
    return product(v->shape, 0, v->num_dims);
}

/* Sets *out to the pair of two patterns; false if they do not fit the tensor. */
static bool pair_of(const struct finding *f, const char *first, const char *second,
                    struct pair *out)
{
    struct expr_names names = {letter, &f->sizes, NULL};
    struct pattern_view a, b;
    return !pattern_eval(first, &names, &a, NULL) && !pattern_eval(second, &names, &b, NULL) &&
           view_numel(&a) == f->numel && view_numel(&b) == f->numel &&
           !pattern_pair(&a, &b, out, NULL);
}

/* Whether a part is empty and left out, such as the unrotated rows if all are
 * rotated. */
static bool is_empty(const struct finding *f, const char *pattern)
{
    const struct heads *h = &f->sizes.heads;
    return strchr(pattern, 'u') && h->head_dim == h->rotary_dim;
}

/* Adds the pair of two patterns; false if they do not fit. */
static bool add_pattern_pair(const struct finding *f, struct arrangement *x, const char *first,
                             const char *second)
{
    if (is_empty(f, first)) return true;
    if (x->num_parts == MAX_AXES || !pair_of(f, first, second, &x->parts[x->num_parts]))
        return false;
    x->num_parts++;
    return true;
}

static bool covers_tensor(const struct finding *f, const struct arrangement *x)
{
    uint64_t count = 0;
    for (unsigned i = 0; i < x->num_parts; i++)
        count += pair_count(&x->parts[i]);
    return count == f->numel;
}

/* "A has SUBJECT FIRST, B SECOND, along dimension 1"; without a subject, FIRST
 * alone. */
static const char *arrangement_text(const struct finding *f, const char *subject, const char *first,
                                    const char *second)
{
    struct strbuf text = {0};
    const struct sizes *x = &f->sizes;
    if (subject) {
        strbuf_add_text(&text, "A has ");
        add_template(&text, subject, x);
        strbuf_add_char(&text, ' ');
    }
    add_template(&text, first, x);
    if (subject) {
        strbuf_add_text(&text, ", B ");
        add_template(&text, second, x);
    }
    if (x->dim) strbuf_printf(&text, ", along dimension %u", x->dim);
    const char *out = arena_text(f->a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

static enum status offer_row(const struct finding *f, const struct row *row, bool reversed)
{
    struct arrangement x = {.id = row->id};
    for (unsigned i = 0; i < MAX_PARTS && row->parts[i][0]; i++)
        if (!add_pattern_pair(f, &x, row->parts[i][reversed], row->parts[i][!reversed])) return OK;
    if (!covers_tensor(f, &x)) return OK;
    x.text = arrangement_text(f, row->subject, reversed ? row->second : row->first,
                              reversed ? row->first : row->second);
    return f->visit(f->context, &x, f->err);
}

static enum status offer_orders(const struct finding *f, const struct order *a,
                                const struct order *b)
{
    struct arrangement x = {.id = "qkv-order"};
    for (unsigned i = 0; i < 3; i++)
        if (!add_pattern_pair(f, &x, a->parts[i], b->parts[i])) return OK;
    if (!covers_tensor(f, &x)) return OK;
    x.text = arrangement_text(f, "q, k and v", a->text, b->text);
    return f->visit(f->context, &x, f->err);
}

static enum status offer_swap(const struct finding *f, const struct order *order,
                              const struct swap *swap)
{
    struct arrangement x = {.id = "qkv-swapped"};
    for (unsigned i = 0; i < 3; i++) {
        unsigned from = swap->from[i];
        bool moves = from != i; /* then q is one head */
        if (!add_pattern_pair(f, &x, order->parts[moves && !from ? 3 : from],
                              order->parts[moves && !i ? 3 : i]))
            return OK;
    }
    if (!covers_tensor(f, &x)) return OK;
    x.text = arrangement_text(f, NULL, swap->text, NULL);
    return f->visit(f->context, &x, f->err);
}

/* ---- all of them ---- */

static enum status offer_swaps(const struct finding *f)
{
    for (unsigned i = 0; i < NUM_ORDERS; i++)
        for (unsigned k = 0; k < NUM_SWAPS && !orders[i].by_rank; k++)
            TRY(offer_swap(f, &orders[i], &swaps[k]));
    return OK;
}

static enum status offer_both_ways(const struct finding *f, const struct row *row)
{
    TRY(offer_row(f, row, false));
    return row->subject ? offer_row(f, row, true) : OK;
}

static enum status offer_by_ranks(struct finding *f, const struct row *row)
{
    enum status st = OK;
    for (unsigned i = 0; i < NUM_RANK_SIZES && !st; i++) {
        f->sizes.ranks = rank_sizes[i];
        st = offer_both_ways(f, row);
    }
    f->sizes.ranks = 1;
    return st;
}

/* Offers pairs of orders: if by_rank, those with an order by rank; else the
 * others. */
static enum status offer_all_orders(struct finding *f, bool by_rank)
{
    for (unsigned i = 0; i < NUM_ORDERS; i++)
        for (unsigned k = 0; k < NUM_ORDERS; k++)
            if (i != k && (orders[i].by_rank || orders[k].by_rank) == by_rank)
                TRY(offer_orders(f, &orders[i], &orders[k]));
    return OK;
}

static enum status offer_heads(struct finding *f)
{
    for (unsigned i = 0; i < NUM_ROWS; i++)
        if (rows[i].scope == HEADS) TRY(offer_both_ways(f, &rows[i]));
    TRY(offer_swaps(f));
    TRY(offer_all_orders(f, false));
    enum status st = OK;
    for (unsigned i = 0; i < NUM_RANK_SIZES && !st; i++) {
        f->sizes.ranks = rank_sizes[i];
        st = offer_all_orders(f, true);
    }
    f->sizes.ranks = 1;
    return st;
}

/* Offers the possible head shapes of a fused tensor of n rows. */
static enum status guess_heads(struct finding *f, uint64_t head_dim)
{
    uint64_t heads = divided(f->sizes.shape[f->sizes.dim], head_dim);
    for (size_t i = 0; i < COUNT(common_queries); i++) {
        uint64_t r = common_queries[i], g = divided(heads, r + 2);
        if (!g) continue;
        f->sizes.heads = (struct heads){g, r, head_dim, head_dim};
        TRY(offer_heads(f));
    }
    return OK;
}

static enum status offer_head_dim(const struct finding *f)
{
    for (unsigned i = 0; i < NUM_ROWS; i++)
        if (rows[i].scope == HEAD_DIM) TRY(offer_both_ways(f, &rows[i]));
    return OK;
}

static enum status offer_attention(struct finding *f, const struct heads *heads)
{
    f->sizes.heads = *heads;
    if (heads->head_dim) {
        TRY(offer_heads(f));
        return offer_head_dim(f);
    }
    for (size_t i = 0; i < COUNT(common_head_dims); i++) {
        uint64_t d = common_head_dims[i];
        TRY(guess_heads(f, d));
        f->sizes.heads = (struct heads){1, 1, d, d};
        TRY(offer_head_dim(f));
    }
    return OK;
}

static enum status offer_gate_and_up(struct finding *f)
{
    for (unsigned i = 0; i < NUM_ROWS; i++) {
        if (rows[i].scope == ROWS) TRY(offer_both_ways(f, &rows[i]));
        if (rows[i].scope == RANKS) TRY(offer_by_ranks(f, &rows[i]));
    }
    return OK;
}

static bool is_of_attention(const char *name)
{
    static const char *const patterns[] = {"*attn*", "*attention*", "*q_proj*", "*k_proj*",
                                           "*qkv*",  "*query*",     "*_q.*",    "*_k.*"};
    for (size_t i = 0; i < COUNT(patterns); i++)
        if (fnmatch(patterns[i], name, 0) == 0) return true;
    return false;
}

static enum status offer_along_dim(struct finding *f, const struct heads *heads, bool attention)
{
    if (attention) TRY(offer_attention(f, heads));
    TRY(offer_gate_and_up(f));
    return attention ? OK : offer_attention(f, heads);
}

enum status arrangements(struct arena *a, const char *name, unsigned num_dims,
                         const uint64_t *shape, const struct heads *heads, arrangement_visit *visit,
                         void *context, struct error *err)
{
    struct finding f = {.a = a,
                        .numel = product(shape, 0, num_dims),
                        .sizes = {.num_dims = num_dims, .shape = shape, .ranks = 1},
                        .visit = visit,
                        .context = context,
                        .err = err};
    if (f.numel < 2 || num_dims > MAX_AXES) return OK;
    for (unsigned i = 0; i < NUM_ROWS; i++)
        if ((rows[i].scope == TWO_DIMS && num_dims == 2) ||
            (rows[i].scope == THREE_DIMS && num_dims == 3))
            TRY(offer_both_ways(&f, &rows[i]));
    for (unsigned dim = 0; dim < num_dims && dim < 3; dim++) {
        f.sizes.dim = dim;
        TRY(offer_along_dim(&f, heads, is_of_attention(name)));
    }
    return OK;
}

/* ---- a tensor in another order ---- */

struct arranging {
    struct arena *a;
    struct tensor *out;
    const struct piece *piece;
};

static enum status add_arranged(void *context, const struct pair *p, struct error *err)
{
    struct arranging *x = context;
    if (x->out->num_pieces == MAX_ARRANGED_PIECES)
        return fail(err, ERR_UNSUPPORTED, "too many pieces");
    tensor_add_piece(x->a, x->out, x->piece, p);
    return OK;
}

bool tensor_arranged(struct arena *a, const struct tensor *t, const struct pair *parts,
                     size_t num_parts, unsigned num_dims, const uint64_t *shape, struct tensor *out)
{
    *out = (struct tensor){.name = t->name,
                           .stored_name = t->stored_name,
                           .dtype = t->dtype,
                           .num_dims = num_dims,
                           .shape = arena_copy(a, shape, num_dims * sizeof *shape),
                           .numel = product(shape, 0, num_dims)};
    for (size_t i = 0; i < num_parts; i++)
        for (size_t k = 0; k < t->num_pieces; k++) {
            struct arranging x = {a, out, &t->pieces[k]};
            const struct pair pair = pair_unpack(&t->pieces[k].pair);
            if (pair_join_nested(&parts[i], &pair, t->name, add_arranged, &x, NULL)) return false;
        }
    return true;
}

bool tensor_box(struct arena *a, const struct tensor *t, const uint64_t *start,
                const uint64_t *extent, struct tensor *out)
{
    struct pair box;
    return pair_of_box(&box, t->num_dims, t->shape, start, extent, 0, NULL) &&
           tensor_arranged(a, t, &box, 1, t->num_dims, extent, out);
}

struct tensor tensor_of_zeros(struct arena *a, enum dtype dtype, unsigned num_dims,
                              const uint64_t *shape)
{
    struct tensor out = {.name = "zeros",
                         .dtype = dtype,
                         .num_dims = num_dims,
                         .shape = arena_copy(a, shape, num_dims * sizeof *shape),
                         .numel = product(shape, 0, num_dims)};
    const struct piece zero = {.origin = ORIGIN_ZERO, .dtype = dtype};
    const struct pair all = pair_whole(0, 0, out.numel);
    tensor_add_piece(a, &out, &zero, &all);
    return out;
}
