#include "kernels/cpu/finite.h"

#include <float.h>
#include <math.h>

#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "tests/testing.h"

/* Every value of 8 and of 16 bits, against dtype_load. */
static void every_small_value_is_told(void **state)
{
    (void)state;
    for (int d = 0; d < NUM_DTYPES; d++) {
        size_t bytes = dtype_bytes((enum dtype)d);
        bool is_number =
            dtype_is_float((enum dtype)d) || strncmp(dtype_infos[d].name, "F8", 2) == 0;
        if (!is_number || bytes > 2) continue;
        for (uint32_t bits = 0; bits < 1u << 8 * bytes; bits++) {
            double value = dtype_load((enum dtype)d, &bits, 0);
            uint64_t want = fabs(value) <= DBL_MAX ? 0 : 1;
            if (count_non_finite((enum dtype)d, &bits, 1) != want)
                fail_msg("%s 0x%X", dtype_infos[d].name, bits);
        }
    }
}

static void whole_numbers_are_finite(void **state)
{
    static const enum dtype dtypes[] = {DT_BOOL, DT_U8,  DT_I8,  DT_I16, DT_U16,
                                        DT_I32,  DT_U32, DT_I64, DT_U64};
    static uint8_t ones[800];
    (void)state;
    memset(ones, 0xFF, sizeof ones);
    for (size_t i = 0; i < COUNT(dtypes); i++)
        assert_int_equal(count_non_finite(dtypes[i], ones, 100), 0);
}

/* At every position around block ends, alone and among others, at
 * odd addresses. */
static void they_are_counted_wherever_they_lie(void **state)
{
    enum { N = 9000 };
    static char room[8 * N + 1];
    static double numbers[N];
    static const enum dtype dtypes[] = {DT_F16, DT_BF16, DT_F32, DT_F64};
    static const size_t places[] = {0, 1, 31, 4095, 4096, 4097, 8191, 8192, 8999};
    (void)state;
    for (size_t d = 0; d < 4; d++)
        for (size_t p = 0; p < COUNT(places); p++) {
            for (size_t i = 0; i < N; i++)
                numbers[i] = (double)i / 16 - 100;
            (void)cast_elements(room + 1, dtypes[d], numbers, DT_F64, N);
            assert_int_equal(count_non_finite(dtypes[d], room + 1, N), 0);
            numbers[places[p]] = p % 2 ? NAN : -INFINITY;
            (void)cast_elements(room + 1, dtypes[d], numbers, DT_F64, N);
            assert_int_equal(count_non_finite(dtypes[d], room + 1, N), 1);
            assert_int_equal(count_non_finite(dtypes[d], room + 1, places[p]), 0);
            for (size_t i = 0; i < N; i += 3)
                numbers[i] = INFINITY;
            (void)cast_elements(room + 1, dtypes[d], numbers, DT_F64, N);
            assert_int_equal(count_non_finite(dtypes[d], room + 1, N),
                             N / 3 + (places[p] % 3 != 0));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_value_is_told),
        cmocka_unit_test(whole_numbers_are_finite),
        cmocka_unit_test(they_are_counted_wherever_they_lie),
    };
    return cmocka_run_group_tests_name("finite", tests, NULL, NULL);
}
