#include "kernels/cpu/random.h"

#include <math.h>

#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "tests/testing.h"

static void parts_are_those_of_the_whole(void **state)
{
    (void)state;
    static float whole[5000], part[5000];
    uint32_t stream = random_stream(7, "model.embed_tokens.weight");
    random_elements(whole, DT_F32, stream, 0, 0, 5000);
    for (uint64_t first = 0; first < 5000; first += 613) {
        size_t n = first % 7 * 100 + 3;
        if (n > 5000 - first) n = 5000 - first;
        random_elements(part, DT_F32, stream, 0, first, n);
        assert_memory_equal(part, whole + first, n * sizeof *part);
    }
}

static void numbers_have_their_mean_and_deviation(void **state)
{
    (void)state;
    static float x[1 << 16];
    double sum = 0, squares = 0;
    random_elements(x, DT_F32, random_stream(1, "a"), 1, 3, 1 << 16);
    for (size_t i = 0; i < 1 << 16; i++)
        sum += (double)x[i] - 1, squares += ((double)x[i] - 1) * ((double)x[i] - 1);
    assert_true(fabs(sum / (1 << 16)) < 5e-4);
    assert_true(fabs(sqrt(squares / (1 << 16)) - 0.02) < 5e-4);
}

static void narrow_elements_are_the_f32_ones_rounded(void **state)
{
    (void)state;
    enum { N = 3000 };
    static const enum dtype dtypes[] = {DT_F16, DT_BF16, DT_F64};
    static float wide[N];
    static double narrow[N], rounded[N];
    uint32_t stream = random_stream(3, "a");
    for (size_t i = 0; i < 2 * COUNT(dtypes); i++) {
        enum dtype dtype = dtypes[i / 2];
        random_elements(wide, DT_F32, stream, (float)(i % 2), 5, N);
        random_elements(narrow, dtype, stream, (float)(i % 2), 5, N);
        (void)cast_elements(rounded, dtype, wide, DT_F32, N);
        assert_memory_equal(narrow, rounded, dtype_run_bytes(dtype, N));
    }
}

static void squares_are_those_of_the_elements(void **state)
{
    (void)state;
    enum { N = 3000 };
    static float x[N], squares[N];
    uint32_t stream = random_stream(3, "a");
    random_elements(x, DT_F32, stream, 0, 7, N);
    random_squares(squares, DT_F32, stream, 7, N);
    for (size_t i = 0; i < N; i++) {
        assert_true(squares[i] > 0);
        assert_true(squares[i] == x[i] * x[i]);
    }
}

static void seeds_and_names_make_other_streams(void **state)
{
    (void)state;
    assert_int_not_equal(random_stream(1, "a"), random_stream(2, "a"));
    assert_int_not_equal(random_stream(1, "a"), random_stream(1, "b"));
}

static void uniform_numbers_depend_on_seed_and_index(void **state)
{
    (void)state;
    double sum = 0, square = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        const double x = random_uniform(7, i);
        assert_true(x >= 0 && x < 1);
        sum += x, square += x * x;
    }
    assert_true(sum / 100000 > 0.495 && sum / 100000 < 0.505);
    assert_true(square / 100000 > 0.33 && square / 100000 < 0.337);
    assert_true(random_uniform(7, 3) == random_uniform(7, 3));
    assert_true(random_uniform(7, 3) != random_uniform(8, 3));
}

/* Shares of a normal distribution within one and within two deviations. */
static void normal_numbers_are_distributed_normally(void **state)
{
    enum { N = 200000 };
    const uint64_t seed = random_seed_of(7, "a");
    double sum = 0, square = 0, product = 0, last = 0;
    unsigned one = 0, two = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double x = random_normal(seed, i);
        sum += x, square += x * x, product += x * last;
        one += fabs(x) < 1, two += fabs(x) < 2;
        last = x;
    }
    assert_true(fabs(sum / N) < 0.01 && fabs(product / N) < 0.01);
    assert_true(fabs(square / N - 1) < 0.015);
    assert_true(fabs((double)one / N - 0.6827) < 0.005);
    assert_true(fabs((double)two / N - 0.9545) < 0.003);
    assert_true(random_normal(seed, 3) == random_normal(seed, 3));
    assert_true(random_normal(seed, 3) != random_normal(random_seed_of(7, "b"), 3));
    assert_true(random_normal(seed, 3) != random_normal(random_seed_of(8, "a"), 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_the_whole),
        cmocka_unit_test(numbers_have_their_mean_and_deviation),
        cmocka_unit_test(narrow_elements_are_the_f32_ones_rounded),
        cmocka_unit_test(squares_are_those_of_the_elements),
        cmocka_unit_test(seeds_and_names_make_other_streams),
        cmocka_unit_test(uniform_numbers_depend_on_seed_and_index),
        cmocka_unit_test(normal_numbers_are_distributed_normally),
    };
    return cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
