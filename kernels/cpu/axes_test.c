#include "kernels/cpu/axes.h"

#include "tests/testing.h"

static void expect_copy(size_t bytes, unsigned num_axes, const struct axis *axes, size_t room)
{
    unsigned char *a = malloc(room * bytes), *b = calloc(room, bytes), *want = calloc(room, bytes);
    for (size_t i = 0; i < room * bytes; i++)
        a[i] = (unsigned char)(i * 7 + i / 251);
    uint64_t count = 1;
    for (unsigned k = 0; k < num_axes; k++)
        count *= axes[k].extent;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t rest = i, at_a = 0, at_b = 0;
        for (unsigned k = num_axes; k-- > 0; rest /= axes[k].extent) {
            at_a += rest % axes[k].extent * axes[k].a_stride;
            at_b += rest % axes[k].extent * axes[k].b_stride;
        }
        assert_true(at_a < room && at_b < room);
        memcpy(want + at_b * bytes, a + at_a * bytes, bytes);
    }
    copy_axes(b, a, bytes, num_axes, axes);
    assert_memory_equal(b, want, room * bytes);
    free(a);
    free(b);
    free(want);
}

static void transposes_of_every_element_size_are_exact(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 4, 8, 16};
    static const uint64_t extents[] = {1, 3, 8, 31, 32, 64, 75};
    for (size_t s = 0; s < 5; s++)
        for (size_t i = 0; i < 7; i++)
            for (size_t k = 0; k < 7; k++) {
                uint64_t rows = extents[i], columns = extents[k];
                const struct axis axes[] = {{rows, columns, 1}, {columns, 1, rows}};
                expect_copy(sizes[s], 2, axes, rows * columns);
            }
}

static void random_blocks_are_exact(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int i = 0; i < 2000; i++) {
        struct axis axes[4];
        unsigned order_a[4] = {0, 1, 2, 3}, order_b[4] = {0, 1, 2, 3};
        for (unsigned k = 3; k > 0; k--) {
            unsigned x = (unsigned)test_below(&seed, k + 1), y = (unsigned)test_below(&seed, k + 1);
            unsigned t = order_a[k];
            order_a[k] = order_a[x], order_a[x] = t;
            t = order_b[k];
            order_b[k] = order_b[y], order_b[y] = t;
        }
        for (unsigned k = 0; k < 4; k++)
            axes[k].extent = 1 + test_below(&seed, 9);
        uint64_t a = 1 + test_below(&seed, 2), b = 1 + test_below(&seed, 2);
        for (unsigned k = 0; k < 4; k++) {
            axes[order_a[k]].a_stride = a;
            axes[order_b[k]].b_stride = b;
            a *= axes[order_a[k]].extent;
            b *= axes[order_b[k]].extent;
        }
        expect_copy((size_t)1 << test_below(&seed, 5), 4, axes, (a > b ? a : b) + 1);
    }
}

static void no_axes_is_one_element_and_an_empty_axis_is_none(void **state)
{
    (void)state;
    uint32_t a = 7, b = 0;
    copy_axes(&b, &a, 4, 0, NULL);
    assert_int_equal(b, 7);
    const struct axis empty[] = {{3, 1, 1}, {0, 1, 1}};
    b = 1;
    copy_axes(&b, &a, 4, 2, empty);
    assert_int_equal(b, 1);
}

static void swapping_twice_is_nothing(void **state)
{
    (void)state;
    unsigned char bytes[] = {1, 2, 3, 4, 5, 6, 7, 8}, once[] = {4, 3, 2, 1, 8, 7, 6, 5};
    swap_bytes(bytes, 4, 2);
    assert_memory_equal(bytes, once, 8);
    swap_bytes(bytes, 4, 2);
    assert_int_equal(bytes[0], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposes_of_every_element_size_are_exact),
        cmocka_unit_test(random_blocks_are_exact),
        cmocka_unit_test(no_axes_is_one_element_and_an_empty_axis_is_none),
        cmocka_unit_test(swapping_twice_is_nothing),
    };
    return cmocka_run_group_tests_name("axes", tests, NULL, NULL);
}
