#include "ckpt/view.h"

#include "ckpt/testing_view.h"
#include "common/count.h"

enum { VIEW_ELEMENTS = 4096 };

/* Evaluates a pair element by element: to[x] = b's element + 1 for a's element
 * x, 0 for none. */
static void expand(const struct pair *p, uint64_t to[VIEW_ELEMENTS])
{
    memset(to, 0, VIEW_ELEMENTS * sizeof *to);
    for (uint64_t i = 0, a, b; i < pair_count(p); i++) {
        pair_element(p, i, &a, &b);
        assert_in_range(a, 0, VIEW_ELEMENTS - 1);
        assert_int_equal(to[a], 0);
        to[a] = b + 1;
    }
}

struct blocks {
    uint64_t y_to_z[VIEW_ELEMENTS]; /* by y's far element */
    size_t count;
};

static enum status add_block(void *context, const struct pair *p, struct error *err)
{
    (void)err;
    struct blocks *blocks = context;
    uint64_t one[VIEW_ELEMENTS];
    expand(p, one);
    for (size_t i = 0; i < VIEW_ELEMENTS; i++)
        if (one[i]) {
            assert_int_equal(blocks->y_to_z[i], 0);
            blocks->y_to_z[i] = one[i];
        }
    blocks->count++;
    return OK;
}

static void check_join(const struct pair *y, const struct pair *z, struct blocks *blocks)
{
    static uint64_t of_y[VIEW_ELEMENTS], of_z[VIEW_ELEMENTS], want[VIEW_ELEMENTS];
    struct error err = {0};
    memset(blocks, 0, sizeof *blocks);
    assert_ok(pair_join(y, z, "w", add_block, blocks, &err));
    expand(y, of_y);
    expand(z, of_z);
    memset(want, 0, sizeof want);
    bool share = false;
    for (size_t x = 0; x < VIEW_ELEMENTS; x++)
        if (of_y[x] && of_z[x]) {
            want[of_y[x] - 1] = of_z[x];
            share = true;
        }
    assert_memory_equal(blocks->y_to_z, want, sizeof want);
    assert_int_equal(pair_overlap(y, z), share);
}

/* Axes with random strides, mostly multiples of the inner one, sometimes with
 * gaps; b is a random order of the same axes, packed, from a random offset. */
static struct pair random_nested(uint64_t *seed)
{
    struct pair p = {.num_axes = (unsigned)test_below(seed, 5)};
    uint64_t span = 1, below = 1;
    for (unsigned k = p.num_axes; k-- > 0;) {
        uint64_t stride = test_below(seed, 3) ? below : span + test_below(seed, 4);
        if (stride < span) stride = span;
        uint64_t extent = 1 + test_below(seed, 5);
        if ((extent - 1) * stride + span > 900) extent = 1;
        p.axes[k] = (struct axis){extent, stride, 0};
        span += (extent - 1) * stride;
        below = stride * extent;
    }
    uint64_t b_stride = 1;
    unsigned first = p.num_axes ? (unsigned)test_below(seed, p.num_axes) : 0;
    for (unsigned k = 0; k < p.num_axes; k++) {
        struct axis *x = &p.axes[(first + k) % p.num_axes];
        x->b_stride = b_stride;
        b_stride *= x->extent;
    }
    p.a_offset = test_below(seed, 300);
    p.b_offset = test_below(seed, 50);
    return p;
}

static void join_finds_the_shared_elements_of_random_views(void **state)
{
    (void)state;
    static struct blocks blocks;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 4000; i++) {
        struct pair y = random_nested(&seed), z = random_nested(&seed);
        check_join(&y, &z, &blocks);
        assert_true(pair_nest(&y) && pair_nest(&z));
        check_join(&y, &z, &blocks);
    }
}

/* Rows of [g, r + 2, d] x h: the query rows of fused QKV. */
static struct pair queries(uint64_t g, uint64_t r, uint64_t d, uint64_t h)
{
    struct pair p = {
        .num_axes = 4,
        .axes = {{g, (r + 2) * d * h, r * d * h}, {r, d * h, d * h}, {d, h, h}, {h, 1, 1}}};
    return p;
}

static void tensor_parallel_rows_of_fused_qkv_are_few_blocks(void **state)
{
    (void)state;
    static struct blocks blocks;
    struct pair q = queries(4, 2, 4, 3), rows;
    assert_true(pair_nest(&q));
    const uint64_t shape[] = {64, 3}, start[] = {32, 0}, two_groups[] = {32, 3};
    assert_true(pair_of_box(&rows, 2, shape, start, two_groups, 0, NULL));
    check_join(&q, &rows, &blocks);
    assert_int_equal(blocks.count, 1);

    /* A rank that begins and ends inside a group: its first head, whole groups,
     * its last rows. */
    const uint64_t odd_start[] = {6, 0}, odd_rows[] = {37, 3};
    assert_true(pair_of_box(&rows, 2, shape, odd_start, odd_rows, 0, NULL));
    check_join(&q, &rows, &blocks);
    assert_in_range(blocks.count, 1, 5);
}

static void columns_meet_rows_in_one_block(void **state)
{
    (void)state;
    static struct blocks blocks;
    const uint64_t shape[] = {8, 12}, columns[] = {8, 3}, at_column[] = {0, 6}, rows[] = {4, 12},
                   at_row[] = {2, 0};
    struct pair y, z;
    assert_true(pair_of_box(&y, 2, shape, at_column, columns, 100, NULL));
    assert_true(pair_of_box(&z, 2, shape, at_row, rows, 0, NULL));
    check_join(&y, &z, &blocks);
    assert_int_equal(blocks.count, 1);
}

static void transposed_strides_come_through(void **state)
{
    (void)state;
    static struct blocks blocks;
    const uint64_t shape[] = {6, 4}, whole[] = {6, 4}, stride[] = {1, 6}, half[] = {3, 4},
                   at[] = {3, 0};
    struct pair y, z;
    assert_true(pair_of_box(&y, 2, shape, NULL, whole, 0, stride));
    assert_true(pair_of_box(&z, 2, shape, at, half, 0, NULL));
    check_join(&y, &z, &blocks);
    assert_int_equal(blocks.count, 1);
}

static void tiles_are_told_from_holes_and_overlaps(void **state)
{
    (void)state;
    struct pair p[3];
    size_t bad;
    uint64_t covered;
    const uint64_t shape[] = {4, 6}, left[] = {4, 2}, right[] = {4, 4}, at2[] = {0, 2};
    assert_true(pair_of_box(&p[0], 2, shape, at2, right, 0, NULL));
    assert_true(pair_of_box(&p[1], 2, shape, NULL, left, 0, NULL));
    assert_true(pairs_tile(p, 2, 24, &bad, &covered));
    assert_false(pairs_tile(p, 1, 24, &bad, &covered));
    assert_int_equal(bad, 1);
    assert_int_equal(covered, 8);
    p[2] = pair_whole(23, 0, 1);
    assert_false(pairs_tile(p, 3, 24, &bad, &covered));
    assert_int_equal(bad, 2);
    p[2] = pair_whole(24, 0, 1);
    assert_false(pairs_tile(p, 3, 24, &bad, &covered));
}

/* Twelve bits of an index, of which y and z each take some together; a's bits
 * stand in reverse in b, so that no two axes of the result are one. */
static struct pair view_of_bits(unsigned num_axes, const unsigned *bits)
{
    struct pair p = {.num_axes = num_axes};
    uint64_t b_stride = 1, a_stride = 1 << 12;
    for (unsigned k = 0; k < num_axes; k++) {
        a_stride >>= bits[k];
        p.axes[k] = (struct axis){1u << bits[k], a_stride, b_stride};
        b_stride <<= bits[k];
    }
    return p;
}

static void a_join_of_more_axes_than_there_can_be_is_an_error(void **state)
{
    (void)state;
    static struct blocks blocks;
    struct error err = {0};
    const unsigned in_y[] = {2, 2, 2, 2, 1, 1, 1, 1}, in_z[] = {1, 1, 1, 1, 1, 1, 2, 4};
    struct pair y = view_of_bits(8, in_y), z = view_of_bits(8, in_z), few = view_of_bits(2, in_y);
    check_join(&y, &few, &blocks);
    assert_fails(pair_join(&y, &z, "w", add_block, &blocks, &err), ERR_OURS,
                 "w: a view with more than 8 axes");
}

static void empty_views_share_nothing(void **state)
{
    (void)state;
    const uint64_t shape[] = {0, 5};
    struct pair none, all = pair_whole(0, 0, 10);
    size_t bad;
    uint64_t covered;
    assert_true(pair_of_box(&none, 2, shape, NULL, shape, 0, NULL));
    assert_int_equal(pair_count(&none), 0);
    assert_false(pair_overlap(&none, &all));
    assert_true(pairs_tile(&none, 1, 0, &bad, &covered));
}

static void views_larger_than_any_tensor_are_not_nested(void **state)
{
    (void)state;
    const uint64_t half = UINT64_C(1) << 32;
    struct pair wraps = {.num_axes = 1, .axes = {{half, half, 1}}},
                fits = {.num_axes = 1, .axes = {{UINT64_C(1) << 29, UINT64_C(1) << 29, 1}}};
    assert_false(pair_nest(&wraps));
    assert_true(pair_nest(&fits));
    /* 4 * extent wraps to 8, so the axes seem to continue each other. */
    struct pair joined = {.num_axes = 2, .axes = {{3, 8, 8}, {(UINT64_C(1) << 62) + 2, 4, 4}}};
    assert_false(pair_nest(&joined));
    struct pair empty = {.num_axes = 2, .axes = {{half, half, 1}, {0, 1, 1}}};
    assert_true(pair_nest(&empty));
    assert_int_equal(pair_count(&empty), 0);
}

static void views_with_little_in_common_are_not_compared_without_end(void **state)
{
    (void)state;
    static struct blocks blocks;
    struct error err = {0};
    struct pair y = {.num_axes = 1, .axes = {{UINT64_C(1) << 40, 6, 1}}},
                z = {.num_axes = 1, .axes = {{UINT64_C(1) << 40, 4, 1}}, .a_offset = 1};
    assert_true(pair_overlap(&y, &z)); /* one is even, the other odd */
    assert_fails(pair_join(&y, &z, "w", add_block, &blocks, &err), ERR_UNSUPPORTED,
                 "w: the strides of two views have too little in common");
    y.axes[0].extent = z.axes[0].extent = 500000;
    assert_false(pair_overlap(&y, &z));
}

static void runs_share_one_run_where_they_meet(void **state)
{
    (void)state;
    static struct blocks blocks;
    for (uint64_t first = 0; first < 12; first++)
        for (uint64_t count = 0; count < 12; count++)
            for (uint64_t stride = 1; stride < 4; stride++) {
                const struct pair y = pair_whole(5, 100, 4);
                struct pair z = pair_whole(first, 7, count);
                z.axes[0].b_stride = stride;
                if (count == 1) z.num_axes = 0;
                check_join(&y, &z, &blocks);
                assert_int_equal(blocks.count, count && first < 9 && first + count > 5);
            }
}

static void packed_views_are_as_they_were(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    struct pair pairs[] = {
        {.a_offset = 5, .b_offset = 7}, /* one element */
        pair_whole(3, 9, 12),
        pair_whole(0, 0, 0),
        {.num_axes = 1, .a_offset = 1, .axes = {{4, 3, 1}}},
        {.num_axes = 1, .b_offset = 1, .axes = {{4, 1, 0}}},
        {.num_axes = 3, .a_offset = 2, .b_offset = 8, .axes = {{2, 20, 1}, {3, 5, 2}, {4, 1, 6}}},
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const struct packed_pair packed = pair_pack(&a, &pairs[i]);
        const struct pair back = pair_unpack(&packed);
        assert_int_equal(back.num_axes, pairs[i].num_axes);
        assert_int_equal(back.a_offset, pairs[i].a_offset);
        assert_int_equal(back.b_offset, pairs[i].b_offset);
        assert_memory_equal(back.axes, pairs[i].axes, back.num_axes * sizeof *back.axes);
    }
    assert_true(sizeof(struct packed_pair) <= 32);
    const struct pair one = pair_whole(5, 7, 1);
    const struct packed_pair packed = pair_pack(&a, &one);
    assert_int_equal(pair_unpack(&packed).num_axes, 0);
    const struct pair six = pair_whole(10, 0, 6);
    const struct packed_pair run = pair_pack(&a, &six);
    for (uint64_t first = 0; first < 20; first++)
        for (uint64_t count = 1; count < 20; count++)
            assert_int_equal(pair_is_apart(&run, first, count), first >= 16 || first + count <= 10);
    for (size_t i = 0; i < COUNT(pairs); i++) { /* those of axes may be told to meet it */
        const struct packed_pair p = pair_pack(&a, &pairs[i]);
        for (uint64_t first = 0; first < 60; first++) {
            const struct pair element = pair_whole(first, 0, 1);
            if (pair_overlap(&pairs[i], &element)) assert_false(pair_is_apart(&p, first, 1));
        }
    }
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(join_finds_the_shared_elements_of_random_views),
        cmocka_unit_test(tensor_parallel_rows_of_fused_qkv_are_few_blocks),
        cmocka_unit_test(columns_meet_rows_in_one_block),
        cmocka_unit_test(transposed_strides_come_through),
        cmocka_unit_test(tiles_are_told_from_holes_and_overlaps),
        cmocka_unit_test(a_join_of_more_axes_than_there_can_be_is_an_error),
        cmocka_unit_test(empty_views_share_nothing),
        cmocka_unit_test(views_larger_than_any_tensor_are_not_nested),
        cmocka_unit_test(views_with_little_in_common_are_not_compared_without_end),
        cmocka_unit_test(runs_share_one_run_where_they_meet),
        cmocka_unit_test(packed_views_are_as_they_were),
    };
    return cmocka_run_group_tests_name("view", tests, NULL, NULL);
}
