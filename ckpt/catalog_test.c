#include "ckpt/catalog.h"

#include "ckpt/testing_source.h"
#include "common/checked.h"

static struct arena arena;
static struct catalog c;
static struct error err;

static int setup(void **state)
{
    (void)state;
    arena_init(&arena);
    catalog_init(&c, &arena);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    catalog_release(&c);
    arena_release(&arena);
    return 0;
}

/* ---- names ---- */

static void a_tensor_is_added_once_and_found_by_name(void **state)
{
    (void)state;
    uint64_t shape[] = {2, 3};
    char name[] = "decoder.final_layernorm.weight";
    struct tensor *t, *again;
    assert_ok(catalog_add(&c, name, DT_BF16, 2, shape, &t, &err));
    assert_int_equal(t->numel, 6);
    shape[0] = 9, name[0] = 'x'; /* both were copied */
    assert_null(catalog_find(&c, name));
    name[0] = 'd', shape[0] = 2;
    assert_ptr_equal(catalog_find(&c, name), t);
    assert_ok(catalog_add(&c, name, DT_BF16, 2, shape, &again, &err));
    assert_ptr_equal(again, t);
    assert_int_equal(c.num_tensors, 1);
    assert_int_equal(t->shape[0], 2);
    assert_ok(catalog_add(&c, "scalar", DT_F32, 0, shape, &t, &err));
    assert_ok(catalog_add(&c, "scalar", DT_F32, 0, shape, &t, &err));
    assert_int_equal(t->numel, 1);
}

static void the_same_name_with_another_shape_or_dtype_is_refused(void **state)
{
    (void)state;
    const uint64_t a[] = {2, 3}, b[] = {3, 2};
    struct tensor *t;
    assert_ok(catalog_add(&c, "w", DT_BF16, 2, a, &t, &err));
    assert_fails(catalog_add(&c, "w", DT_BF16, 2, b, &t, &err), ERR_CORRUPT,
                 "w: shape [3, 2] here, [2, 3] elsewhere");
    assert_fails(catalog_add(&c, "w", DT_BF16, 1, a, &t, &err), ERR_CORRUPT,
                 "w: shape [2] here, [2, 3] elsewhere");
    assert_fails(catalog_add(&c, "w", DT_F16, 2, a, &t, &err), ERR_CORRUPT,
                 "w: dtype F16 here, BF16 elsewhere");
    assert_int_equal(c.num_tensors, 1);
}

static void shapes_that_overflow_are_refused(void **state)
{
    (void)state;
    const uint64_t product[] = {UINT64_C(1) << 40, UINT64_C(1) << 40}, much[] = {MAX_ELEMENTS + 1},
                   most[] = {MAX_ELEMENTS};
    struct tensor *t;
    assert_fails(catalog_add(&c, "w", DT_U8, 2, product, &t, &err), ERR_CORRUPT,
                 "w: shape [1099511627776, 1099511627776] overflows");
    assert_fails(catalog_add(&c, "w", DT_U8, 1, much, &t, &err), ERR_CORRUPT, "overflows");
    assert_ok(catalog_add(&c, "w", DT_C128, 1, most, &t, &err));
}

static void shapes_are_written_as_lists(void **state)
{
    (void)state;
    const uint64_t shape[] = {1, 2, 3};
    assert_string_equal(shape_text(&arena, 3, shape), "[1, 2, 3]");
    assert_string_equal(shape_text(&arena, 0, shape), "[]");
}

/* ---- stored tensors ---- */

/* For each element of a logical tensor: 1 + its element of a file, counted file
 * by file. */
enum { MAX_ELEMENTS_HERE = 8192 };

static void expand(const struct tensor *t, uint64_t at[MAX_ELEMENTS_HERE])
{
    assert_in_range(t->numel, 0, MAX_ELEMENTS_HERE);
    memset(at, 0, MAX_ELEMENTS_HERE * sizeof *at);
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *piece = &t->pieces[i];
        const struct pair pair = pair_unpack(&piece->pair);
        struct pair nested = pair;
        assert_true(pair_nest(&nested));
        assert_memory_equal(&nested, &pair, sizeof nested);
        for (uint64_t n = 0, a, b; n < pair_count(&nested); n++) {
            pair_element(&nested, n, &a, &b);
            assert_in_range(a, 0, t->numel - 1);
            assert_int_equal(at[a], 0);
            at[a] = 1 + ((uint64_t)piece->file << 32) + piece->offset_bytes + b;
        }
    }
}

/* The place of element e of a stored tensor, in the same numbers. */
static uint64_t stored_at(const struct stored_tensor *s, uint64_t e)
{
    for (size_t i = 0; i < s->num_pieces; i++) {
        const struct stored_piece *p = &s->pieces[i];
        uint64_t rest = e, at = 0, row_major = 1;
        bool inside = true;
        for (unsigned d = s->num_dims; d-- > 0; rest /= s->shape[d]) {
            uint64_t extent = p->extent ? p->extent[d] : s->shape[d];
            uint64_t x = rest % s->shape[d] - (p->start ? p->start[d] : 0);
            inside &= x < extent;
            at += x * (p->stride ? p->stride[d] : row_major);
            row_major *= extent;
        }
        if (inside) return 1 + ((uint64_t)p->file << 32) + p->offset_bytes + at;
    }
    fail_msg("element %llu is in no piece", (unsigned long long)e);
    return 0;
}

static struct stored_tensor *add_stored(unsigned num_dims, const uint64_t *shape, size_t num_pieces)
{
    struct stored_tensor *s;
    char name[32];
    int n = snprintf(name, sizeof name, "stored.%zu", c.stored.num_tensors);
    assert_ok(stored_add_tensor(&c.stored, name, (size_t)n, DT_U8, num_dims, shape, &s, &err));
    s->pieces = arena_array(&c.stored.arena, num_pieces, sizeof *s->pieces);
    return s;
}

static const uint64_t *kept(unsigned n, const uint64_t *numbers)
{
    return arena_copy(&c.stored.arena, numbers, n * sizeof *numbers);
}

/* A grid of boxes, some transposed, in the order of a shuffled file. */
static struct stored_tensor *add_grid(uint64_t *seed, unsigned num_dims, const uint64_t *shape,
                                      const uint64_t *parts)
{
    size_t count = 1;
    for (unsigned d = 0; d < num_dims; d++)
        count *= parts[d];
    struct stored_tensor *s = add_stored(num_dims, shape, count);
    for (size_t i = 0; i < count; i++) {
        struct box x = {.num_dims = num_dims};
        size_t rest = i;
        for (unsigned d = num_dims; d-- > 0; rest /= parts[d]) {
            uint64_t side = ceil_div_u64(shape[d], parts[d]);
            x.shape[d] = shape[d];
            x.start[d] = min_u64(shape[d], rest % parts[d] * side);
            x.extent[d] = min_u64(side, shape[d] - x.start[d]);
        }
        (void)box_random_strides(&x, seed, true, false);
        s->pieces[s->num_pieces++] = (struct stored_piece){.file = (uint32_t)test_below(seed, 3),
                                                           .byte_swapped = i % 2,
                                                           .offset_bytes = i << 20,
                                                           .start = kept(num_dims, x.start),
                                                           .extent = kept(num_dims, x.extent),
                                                           .stride = kept(num_dims, x.stride)};
    }
    for (size_t i = count; i > 1; i--) {
        size_t k = test_below(seed, i);
        struct stored_piece p = s->pieces[k];
        s->pieces[k] = s->pieces[i - 1];
        s->pieces[i - 1] = p;
    }
    return s;
}

/* The native tensor that is the whole of a stored one. */
static const struct native_tensor *native_of(const struct stored_tensor *s)
{
    if (!catalog_find_native(&c, s->name, NULL))
        assert_ok(catalog_native_stored(&c, s->name, NULL, s, &err));
    return catalog_find_native(&c, s->name, NULL);
}

/* Layers [layers, ..] of a stacked tensor become logical ones, transposed where
 * wanted. */
static void check_stack(uint64_t *seed, bool transposed)
{
    static uint64_t at[MAX_ELEMENTS_HERE];
    const uint64_t layers = 1 + test_below(seed, 6), rows = 1 + test_below(seed, 20),
                   columns = 1 + test_below(seed, 20), numel = rows * columns;
    const uint64_t shape[] = {layers, rows, columns};
    const uint64_t parts[] = {1 + test_below(seed, 3), 1 + test_below(seed, 4),
                              1 + test_below(seed, 4)};
    const struct stored_tensor *s = add_grid(seed, 3, shape, parts);
    for (uint64_t l = 0; l < layers; l++) {
        const uint64_t logical[] = {transposed ? columns : rows, transposed ? rows : columns};
        struct tensor *t;
        char name[64];
        snprintf(name, sizeof name, "%s.layer.%llu", s->name, (unsigned long long)l);
        assert_ok(catalog_add(&c, name, DT_U8, 2, logical, &t, &err));
        struct pair part = pair_whole(0, l * numel, numel);
        if (transposed) {
            part = (struct pair){.num_axes = 2,
                                 .axes = {{columns, rows, 1}, {rows, 1, columns}},
                                 .b_offset = l * numel};
            assert_true(pair_nest(&part));
        }
        assert_ok(catalog_add_part(&c, t, native_of(s), &part, &err));
        assert_string_equal(t->stored_name, s->name);
        expand(t, at);
        for (uint64_t e = 0; e < numel; e++) {
            uint64_t from = transposed ? e % rows * columns + e / rows : e;
            assert_int_equal(at[e], stored_at(s, l * numel + from));
        }
    }
    assert_ok(catalog_check(&c, &err));
}

static void stacked_and_cut_tensors_are_taken_apart(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 150; i++)
        check_stack(&seed, i % 2);
}

/* Gate and up, stored side by side by column, become rows of one tensor. */
static void parts_of_several_stored_tensors_make_one(void **state)
{
    (void)state;
    static uint64_t at[MAX_ELEMENTS_HERE];
    uint64_t seed = test_seed();
    const uint64_t half[] = {6, 5}, parts[] = {2, 1}, whole[] = {12, 5};
    const struct stored_tensor *gate = add_grid(&seed, 2, half, parts);
    const struct stored_tensor *up = add_grid(&seed, 2, half, parts);
    gate = stored_find(&c.stored, "stored.0"); /* the array may have moved */
    struct tensor *t;
    assert_ok(catalog_add(&c, "fc1", DT_U8, 2, whole, &t, &err));
    struct pair first = pair_whole(0, 0, 30), second = pair_whole(30, 0, 30);
    assert_ok(catalog_add_part(&c, t, native_of(gate), &first, &err));
    assert_fails(catalog_check(&c, &err), ERR_CORRUPT, "fc1 [12, 5]: its parts hold 30 of 60");
    assert_ok(catalog_add_part(&c, t, native_of(up), &second, &err));
    assert_ok(catalog_check(&c, &err));
    assert_string_equal(t->stored_name, "stored.0");
    assert_int_equal(t->num_stored_names, 2);
    assert_string_equal(t->stored_names[0], "stored.0");
    assert_string_equal(t->stored_names[1], "stored.1");
    expand(t, at);
    for (uint64_t e = 0; e < 30; e++) {
        assert_int_equal(at[e], stored_at(gate, e));
        assert_int_equal(at[30 + e], stored_at(up, e));
    }
}

static void encodings_come_along(void **state)
{
    (void)state;
    const uint64_t shape[] = {4};
    struct stored_tensor *s = add_stored(1, shape, 1);
    s->dtype = DT_F32;
    s->num_pieces = 1;
    s->pieces[0] = (struct stored_piece){.file = 7, .byte_swapped = true, .offset_bytes = 100};
    struct tensor *t;
    assert_ok(catalog_add(&c, "w", DT_BF16, 1, shape, &t, &err));
    struct pair part = pair_whole(0, 0, 4);
    assert_ok(catalog_add_part(&c, t, native_of(s), &part, &err));
    assert_int_equal(t->num_pieces, 1);
    assert_int_equal(t->pieces[0].origin, ORIGIN_STORED);
    assert_int_equal(t->pieces[0].file, 7);
    assert_int_equal(t->pieces[0].dtype, DT_F32);
    assert_int_equal(t->pieces[0].offset_bytes, 100);
    assert_true(t->pieces[0].byte_swapped);
}

/* 4,096 column pieces taken apart and checked, which must not take the square
 * of seconds. */
static void thousands_of_pieces_are_no_matter(void **state)
{
    (void)state;
    enum { PIECES = 4096, ROWS = 64 };
    const uint64_t shape[] = {ROWS, 2 * PIECES};
    struct stored_tensor *s = add_stored(2, shape, PIECES);
    for (uint64_t i = 0; i < PIECES; i++) {
        const uint64_t start[] = {0, 2 * i}, extent[] = {ROWS, 2};
        s->pieces[s->num_pieces++] = (struct stored_piece){
            .offset_bytes = i * 1000, .start = kept(2, start), .extent = kept(2, extent)};
    }
    struct tensor *t;
    assert_ok(catalog_add(&c, "w", DT_U8, 2, shape, &t, &err));
    struct pair part = pair_whole(0, 0, t->numel);
    assert_ok(catalog_add_part(&c, t, native_of(s), &part, &err));
    assert_int_equal(t->num_pieces, PIECES);
    assert_ok(catalog_check(&c, &err));
}

/* ---- native tensors ---- */

static void a_native_tensor_is_found_by_state_and_name(void **state)
{
    (void)state;
    const uint64_t shape[] = {2, 3}, other[] = {3, 2};
    struct native_tensor *native, *again;
    assert_ok(catalog_add_native(&c, "w", NULL, DT_BF16, 2, shape, &native, &err));
    assert_ok(catalog_add_native(&c, "w", "exp_avg", DT_F32, 2, shape, &native, &err));
    assert_int_equal(c.num_native, 2);
    assert_ptr_equal(catalog_find_native(&c, "w", "exp_avg"), native);
    assert_ptr_equal(catalog_find_native(&c, "w", NULL), &c.native[0]);
    assert_null(catalog_find_native(&c, "w", "exp_avg_sq"));
    assert_null(catalog_find_native(&c, "v", NULL));
    assert_ok(catalog_add_native(&c, "w", "exp_avg", DT_F32, 2, shape, &again, &err));
    assert_ptr_equal(again, native);
    assert_fails(catalog_add_native(&c, "w", NULL, DT_F32, 2, shape, &again, &err), ERR_CORRUPT,
                 "w: dtype F32 here, BF16 elsewhere");
    assert_fails(catalog_add_native(&c, "w", NULL, DT_BF16, 2, other, &again, &err), ERR_CORRUPT,
                 "w: shape [3, 2] here, [2, 3] elsewhere");
    assert_null(catalog_find(&c, "w"));
}

static void native_tensors_are_renamed_all_or_none(void **state)
{
    (void)state;
    const uint64_t shape[] = {2};
    struct native_tensor *native;
    assert_ok(catalog_add_native(&c, "m.w", NULL, DT_F32, 1, shape, &native, &err));
    assert_ok(catalog_add_native(&c, "m.w", "exp_avg", DT_F32, 1, shape, &native, &err));
    assert_ok(catalog_add_native(&c, "v", NULL, DT_F32, 1, shape, &native, &err));
    assert_fails(catalog_rename_native(&c, (const char *[]){"v", "v", "v"}, &err), ERR_UNSUPPORTED,
                 "m.w and v become the same name, v");
    assert_ptr_equal(catalog_find_native(&c, "m.w", "exp_avg"), &c.native[1]);
    assert_ok(catalog_rename_native(&c, (const char *[]){"w", "w", "v"}, &err));
    assert_ptr_equal(catalog_find_native(&c, "w", NULL), &c.native[0]);
    assert_ptr_equal(catalog_find_native(&c, "w", "exp_avg"), &c.native[1]);
    assert_null(catalog_find_native(&c, "m.w", NULL));
    assert_string_equal(c.native[1].name, "w");
    native_add_logical(&c, &c.native[0], "a");
    native_add_logical(&c, &c.native[0], "a"); /* the last again */
    native_add_logical(&c, &c.native[0], "b");
    assert_int_equal(c.native[0].num_logicals, 2);
    assert_string_equal(c.native[0].logicals[1], "b");
}

/* As ZeRO cuts: tensors one behind the other, and the run of them cut in two,
 * with padding between two of them and behind the last one. */
enum { FIRST_ROWS = 7, SECOND_ROWS = 5, COLUMNS = 6, GAP = 3, HALF = 38 };

static void add_run(struct native_tensor *native, uint64_t at)
{
    for (uint64_t rank = 0; rank < 2; rank++) {
        uint64_t begin = max_u64(at, rank * HALF),
                 end = min_u64(at + native->numel, (rank + 1) * HALF);
        if (begin >= end) continue;
        const struct pair run = pair_whole(begin - at, begin - rank * HALF, end - begin);
        assert_ok(catalog_add_native_part(&c, native, &c.stored.tensors[rank], &run, &err));
    }
}

/* Where element e of the run that both ranks hold lies. */
static uint64_t run_at(uint64_t e)
{
    return stored_at(&c.stored.tensors[e / HALF], e % HALF);
}

/* A logical tensor that is `pair` (logical, native) of a native one; where its
 * elements lie. */
static const uint64_t *take(const struct native_tensor *native, const char *name, uint64_t rows,
                            uint64_t columns, const struct pair *pair, const struct tensor **out)
{
    static uint64_t at[MAX_ELEMENTS_HERE];
    const uint64_t shape[] = {rows, columns};
    struct tensor *t;
    assert_ok(catalog_add(&c, name, DT_U8, 2, shape, &t, &err));
    assert_ok(catalog_add_part(&c, t, native, pair, &err));
    expand(t, at);
    *out = t;
    return at;
}

static void ranks_runs_that_cut_tensors_across_rows_are_put_together(void **state)
{
    (void)state;
    const uint64_t half[] = {HALF}, parts[] = {3}, first[] = {FIRST_ROWS, COLUMNS},
                   second[] = {SECOND_ROWS, COLUMNS}, begin = FIRST_ROWS * COLUMNS + GAP, *at;
    uint64_t seed = test_seed();
    struct native_tensor *native;
    const struct tensor *t;
    for (int rank = 0; rank < 2; rank++)
        (void)add_grid(&seed, 1, half, parts);
    assert_ok(catalog_add_native(&c, "first", NULL, DT_U8, 2, first, &native, &err));
    add_run(native, 0);
    assert_int_equal(native->num_parts, 2);

    struct pair pair = pair_whole(0, 0, 3 * COLUMNS);
    at = take(native, "top", 3, COLUMNS, &pair, &t);
    assert_int_equal(t->num_stored_names, 1);
    for (uint64_t e = 0; e < t->numel; e++)
        assert_int_equal(at[e], run_at(e));

    pair = pair_whole(0, 3 * COLUMNS, 4 * COLUMNS); /* cut in its last row */
    at = take(native, "rest", 4, COLUMNS, &pair, &t);
    assert_int_equal(t->num_stored_names, 2);
    assert_string_equal(t->stored_names[1], "stored.1");
    for (uint64_t e = 0; e < t->numel; e++)
        assert_int_equal(at[e], run_at(3 * COLUMNS + e));

    assert_ok(catalog_add_native(&c, "second", "exp_avg", DT_U8, 2, second, &native, &err));
    add_run(native, begin);
    pair = (struct pair){.num_axes = 2,
                         .axes = {{COLUMNS, SECOND_ROWS, 1}, {SECOND_ROWS, 1, COLUMNS}}};
    at = take(native, "turned", COLUMNS, SECOND_ROWS, &pair, &t);
    for (uint64_t e = 0; e < t->numel; e++)
        assert_int_equal(at[e], run_at(begin + e % SECOND_ROWS * COLUMNS + e / SECOND_ROWS));
    assert_ok(catalog_check(&c, &err));
}

/* Parts are cut at random places and added in any order, over stored boxes that
 * are cut too. */
static void check_runs(uint64_t *seed)
{
    static uint64_t at[MAX_ELEMENTS_HERE], want[MAX_ELEMENTS_HERE];
    const uint64_t rows = 1 + test_below(seed, 12), columns = 1 + test_below(seed, 12),
                   numel = rows * columns, shape[] = {rows, columns};
    const uint64_t cells[] = {rows, 2 * columns}, parts[] = {1 + test_below(seed, 3), 2};
    const struct stored_tensor *s = add_grid(seed, 2, cells, parts);
    struct native_tensor *native;
    struct tensor *t;
    assert_ok(catalog_add_native(&c, s->name, NULL, DT_U8, 2, shape, &native, &err));
    for (uint64_t from = 0, n; from < numel; from += n) {
        n = 1 + test_below(seed, numel - from);
        uint64_t place = test_below(seed, 2 * numel - n + 1);
        const struct pair run = pair_whole(from, place, n);
        assert_ok(catalog_add_native_part(&c, native, s, &run, &err));
        for (uint64_t e = 0; e < n; e++)
            want[from + e] = stored_at(s, place + e);
    }
    for (uint64_t low = 0, n; low < columns; low += n) { /* columns [low, low + n) */
        const uint64_t box[] = {rows, n = 1 + test_below(seed, columns - low)}, start[] = {0, low};
        struct pair pair;
        char name[64];
        snprintf(name, sizeof name, "%s.from.%llu", s->name, (unsigned long long)low);
        assert_true(pair_of_box(&pair, 2, shape, start, box, 0, NULL));
        pair_swap(&pair);
        assert_true(pair_nest(&pair));
        assert_ok(catalog_add(&c, name, DT_U8, 2, box, &t, &err));
        assert_ok(catalog_add_part(&c, t, native, &pair, &err));
        expand(t, at);
        for (uint64_t e = 0; e < t->numel; e++)
            assert_int_equal(at[e], want[e / n * columns + low + e % n]);
    }
    assert_ok(catalog_check(&c, &err));
}

static void any_runs_of_stored_tensors_make_a_native_one(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 150; i++)
        check_runs(&seed);
}

/* 4,096 runs of a flat tensor, each of which becomes a logical tensor, and all
 * of them one. */
static void thousands_of_parts_are_no_matter(void **state)
{
    (void)state;
    enum { PARTS = 4096 };
    const uint64_t shape[] = {PARTS, 2}, one[] = {2};
    struct stored_tensor *s = add_stored(2, shape, 1);
    s->pieces[s->num_pieces++] = (struct stored_piece){0};
    struct native_tensor *native;
    struct tensor *t;
    assert_ok(catalog_add_native(&c, "w", NULL, DT_U8, 2, shape, &native, &err));
    for (uint64_t i = PARTS; i-- > 0;) {
        const struct pair run = pair_whole(2 * i, 2 * (PARTS - 1 - i), 2);
        assert_ok(catalog_add_native_part(&c, native, s, &run, &err));
    }
    for (uint64_t i = 0; i < PARTS; i++) {
        const struct pair run = pair_whole(0, 2 * i, 2);
        char name[32];
        snprintf(name, sizeof name, "row.%llu", (unsigned long long)i);
        assert_ok(catalog_add(&c, name, DT_U8, 1, one, &t, &err));
        assert_ok(catalog_add_part(&c, t, native, &run, &err));
        assert_int_equal(t->num_pieces, 1);
        assert_int_equal(t->pieces[0].pair.b_offset, 2 * (PARTS - 1 - i));
    }
    const struct pair whole = pair_whole(0, 0, PARTS * 2);
    assert_ok(catalog_add(&c, "all", DT_U8, 2, shape, &t, &err));
    assert_ok(catalog_add_part(&c, t, native, &whole, &err));
    assert_int_equal(t->num_pieces, PARTS);
    for (size_t i = 0; i < PARTS; i++) /* in the order in which parts were added */
        assert_int_equal(t->pieces[i].pair.b_offset, 2 * i);
    assert_ok(tensor_check(t, &err));
}

/* Each of 4 native tensors is cut on 256 ranks, whose runs lie in one stored
 * tensor a rank. They become 2 logical tensors, to which parts are added in
 * turns. */
static void many_ranks_take_little_memory_and_are_named_once(void **state)
{
    (void)state;
    enum { RANKS = 256, RUN = 3, OWN = 4 };
    const uint64_t numel = RANKS * RUN, flat = OWN * RUN, two[] = {2, RANKS * RUN};
    struct native_tensor *native;
    struct tensor *t;
    assert_true(sizeof(struct piece) <= 64);
    for (uint64_t r = 0; r < RANKS; r++) {
        struct stored_tensor *s = add_stored(1, &flat, 1);
        s->pieces[s->num_pieces++] = (struct stored_piece){.file = (uint32_t)r};
    }
    for (uint64_t r = 0; r < RANKS; r++)
        for (uint64_t i = 0; i < OWN; i++) {
            const char name[] = {(char)('a' + i), '\0'};
            const struct pair run = pair_whole(r * RUN, i * RUN, RUN);
            assert_ok(catalog_add_native(&c, arena_copy_text(c.arena, name), NULL, DT_U8, 1, &numel,
                                         &native, &err));
            assert_ok(catalog_add_native_part(&c, native, &c.stored.tensors[r], &run, &err));
        }
    const size_t before = c.arena->total_bytes;
    for (uint64_t i = 0; i < OWN; i++) {
        const struct pair half = pair_whole(i / 2 * numel, 0, numel);
        assert_ok(catalog_add(&c, i % 2 ? "odd" : "even", DT_U8, 2, two, &t, &err));
        assert_ok(catalog_add_part(&c, t, &c.native[i], &half, &err));
        assert_int_equal(t->num_stored_names, RANKS);
        assert_int_equal(t->num_pieces, (i / 2 + 1) * RANKS);
    }
    /* beside the pieces: a name a rank, and room to spare */
    assert_true(c.arena->total_bytes - before < 3 * OWN * RANKS * sizeof(struct piece));
    for (size_t i = 0; i < c.num_tensors; i++) {
        t = &c.tensors[i];
        assert_ok(tensor_check(t, &err));
        for (size_t k = 0; k < t->num_pieces; k++) {
            assert_int_equal(t->pieces[k].file, k % RANKS);
            assert_int_equal(t->pieces[k].pair.b_offset, (i + k / RANKS * 2) * RUN);
        }
        for (size_t k = 0; k < RANKS; k++)
            assert_string_equal(t->stored_names[k], c.stored.tensors[k].name);
    }
}

static void copied_pieces_outlive_the_tensor_that_they_are_of(void **state)
{
    (void)state;
    struct arena brief;
    const uint64_t numel = 12;
    const struct piece piece = {.dtype = DT_U8, .file = 3, .offset_bytes = 5};
    const struct pair turned = {.num_axes = 2, .axes = {{3, 4, 1}, {4, 1, 3}}};
    struct tensor *t, of = {.name = "brief", .dtype = DT_U8, .numel = numel};
    arena_init(&brief);
    tensor_add_piece(&brief, &of, &piece, &turned);
    assert_ok(catalog_add(&c, "w", DT_U8, 1, &numel, &t, &err));
    tensor_add_pieces(c.arena, t, &of);
    arena_release(&brief);
    assert_int_equal(t->num_pieces, 1);
    assert_int_equal(t->pieces[0].file, 3);
    assert_int_equal(t->pieces[0].offset_bytes, 5);
    const struct pair pair = pair_unpack(&t->pieces[0].pair);
    assert_memory_equal(&pair.axes, &turned.axes, sizeof pair.axes);
    assert_ok(tensor_check(t, &err));
}

/* ---- what does not fit ---- */

static void add_piece(struct tensor *t, const uint64_t *shape, uint64_t row, uint64_t column,
                      uint64_t rows, uint64_t columns)
{
    struct piece piece = {.dtype = t->dtype};
    const uint64_t start[] = {row, column}, extent[] = {rows, columns};
    struct pair pair;
    assert_true(pair_of_box(&pair, 2, shape, start, extent, 0, NULL));
    tensor_add_piece(c.arena, t, &piece, &pair);
}

static void holes_and_overlaps_are_named(void **state)
{
    (void)state;
    const uint64_t shape[] = {4, 6};
    struct tensor *t;
    assert_ok(catalog_add(&c, "whole", DT_U8, 2, shape, &t, &err));
    add_piece(t, shape, 0, 0, 4, 6);
    assert_ok(catalog_add(&c, "w", DT_U8, 2, shape, &t, &err));
    assert_fails(catalog_check(&c, &err), ERR_CORRUPT, "w [4, 6]: its parts hold 0 of 24 elements");
    add_piece(t, shape, 0, 0, 4, 3);
    assert_fails(catalog_check(&c, &err), ERR_CORRUPT,
                 "w [4, 6]: its parts hold 12 of 24 elements");
    add_piece(t, shape, 2, 3, 2, 3);
    add_piece(t, shape, 0, 3, 2, 3);
    assert_ok(catalog_check(&c, &err));
    add_piece(t, shape, 2, 5, 1, 1);
    assert_fails(
        catalog_check(&c, &err), ERR_CORRUPT,
        "w [4, 6]: a part that begins at element 17 overlaps another or leaves the tensor");
}

static void a_part_past_the_end_is_named(void **state)
{
    (void)state;
    const uint64_t shape[] = {10};
    struct tensor *t;
    assert_ok(catalog_add(&c, "w", DT_U8, 1, shape, &t, &err));
    struct piece piece = {.dtype = DT_U8};
    const struct pair pair = pair_whole(5, 0, 6);
    tensor_add_piece(c.arena, t, &piece, &pair);
    assert_fails(tensor_check(t, &err), ERR_CORRUPT,
                 "w [10]: a part that begins at element 5 overlaps another or leaves the tensor");
}

static void an_empty_tensor_needs_no_piece(void **state)
{
    (void)state;
    const uint64_t shape[] = {0, 6}, parts[] = {1, 1};
    uint64_t seed = test_seed();
    const struct stored_tensor *s = add_grid(&seed, 2, shape, parts);
    struct tensor *t;
    assert_ok(catalog_add(&c, "none", DT_U8, 2, shape, &t, &err));
    struct pair part = pair_whole(0, 0, 0);
    assert_ok(catalog_add_part(&c, t, native_of(s), &part, &err));
    assert_int_equal(t->num_pieces, 0);
    assert_string_equal(t->stored_name, s->name);
    assert_ok(catalog_check(&c, &err));
}

static void a_stored_tensor_can_be_read(void **state)
{
    (void)state;
    static uint64_t at[MAX_ELEMENTS_HERE];
    const uint64_t shape[] = {6, 5}, parts[] = {3, 1};
    uint64_t seed = test_seed();
    const struct stored_tensor *s = add_grid(&seed, 2, shape, parts);
    struct tensor *t;
    assert_ok(catalog_wrap_stored(&c, c.arena, s, &t, &err));
    assert_int_equal(c.num_tensors, 0);
    assert_string_equal(t->name, s->name);
    assert_ok(tensor_check(t, &err));
    expand(t, at);
    for (uint64_t e = 0; e < 30; e++)
        assert_int_equal(at[e], stored_at(s, e));
}

static void parts_that_are_no_views_and_shapes_past_all_bounds_are_refused(void **state)
{
    (void)state;
    const uint64_t shape[] = {4}, many[] = {2, 2, 2, 2, 2, 2, 2, 2, 2}, huge[] = {MAX_ELEMENTS + 1};
    struct stored_tensor *s = add_stored(1, shape, 1);
    struct tensor *t;
    assert_ok(catalog_add(&c, "w", DT_U8, 1, shape, &t, &err));
    s->pieces[s->num_pieces++] = (struct stored_piece){0};
    const struct pair twice = {.num_axes = 2, .axes = {{2, 2, 1}, {2, 1, 1}}};
    assert_fails(catalog_add_part(&c, t, native_of(s), &twice, &err), ERR_OURS,
                 "w: not a nested view");

    s = add_stored(9, many, 1);
    s->pieces[s->num_pieces++] = (struct stored_piece){0};
    struct pair part = pair_whole(0, 0, 4);
    for (int i = 0; i < 2; i++) /* a failure leaves nothing behind that would pass for an index */
        assert_fails(catalog_add_part(&c, t, native_of(s), &part, &err), ERR_UNSUPPORTED,
                     "stored.1: more than 8 dimensions");

    s = add_stored(1, huge, 1);
    s->pieces[s->num_pieces++] = (struct stored_piece){0};
    assert_fails(catalog_wrap_stored(&c, c.arena, s, &t, &err), ERR_CORRUPT,
                 "stored.2: its shape overflows");
    assert_fails(catalog_native_stored(&c, s->name, NULL, s, &err), ERR_CORRUPT,
                 "stored.2: shape [288230376151711745] overflows");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_tensor_is_added_once_and_found_by_name),
        TEST(the_same_name_with_another_shape_or_dtype_is_refused),
        TEST(shapes_that_overflow_are_refused),
        TEST(shapes_are_written_as_lists),
        TEST(stacked_and_cut_tensors_are_taken_apart),
        TEST(parts_of_several_stored_tensors_make_one),
        TEST(encodings_come_along),
        TEST(thousands_of_pieces_are_no_matter),
        TEST(a_native_tensor_is_found_by_state_and_name),
        TEST(native_tensors_are_renamed_all_or_none),
        TEST(ranks_runs_that_cut_tensors_across_rows_are_put_together),
        TEST(any_runs_of_stored_tensors_make_a_native_one),
        TEST(thousands_of_parts_are_no_matter),
        TEST(many_ranks_take_little_memory_and_are_named_once),
        TEST(copied_pieces_outlive_the_tensor_that_they_are_of),
        TEST(holes_and_overlaps_are_named),
        TEST(a_part_past_the_end_is_named),
        TEST(an_empty_tensor_needs_no_piece),
        TEST(a_stored_tensor_can_be_read),
        TEST(parts_that_are_no_views_and_shapes_past_all_bounds_are_refused),
    };
    return cmocka_run_group_tests_name("catalog", tests, NULL, NULL);
}
