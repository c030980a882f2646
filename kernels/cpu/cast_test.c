#include "kernels/cpu/cast.h"

#include <math.h>

#include "tests/testing.h"

static float as_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Every 16-bit value becomes the F32 that dtype_load reads, and
 * returns unchanged. */
static void sixteen_bit_types_round_trip(void **state)
{
    (void)state;
    static uint16_t from[1 << 16], back[1 << 16];
    static float wide[1 << 16];
    static const enum dtype types[] = {DT_F16, DT_BF16};
    for (size_t i = 0; i < 1 << 16; i++)
        from[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        assert_int_equal(cast_elements(wide, DT_F32, from, types[t], 1 << 16), 0);
        assert_int_equal(cast_elements(back, types[t], wide, DT_F32, 1 << 16), 0);
        for (size_t i = 0; i < 1 << 16; i++) {
            double want = dtype_load(types[t], from, i);
            if (isnan(want)) {
                assert_true(isnan(wide[i]) && isnan(dtype_load(types[t], back, i)));
            } else {
                assert_true((double)wide[i] == want && !signbit(wide[i]) == !signbit(want));
                assert_int_equal(back[i], from[i]);
            }
        }
    }
}

/* The nearer of the two neighbours, the even one of a tie. */
static uint16_t nearest(enum dtype dtype, float f)
{
    uint16_t best = 0;
    double distance = INFINITY;
    for (uint32_t i = 0; i < 1 << 16; i++) {
        uint16_t bits = (uint16_t)i;
        double v = dtype_load(dtype, &bits, 0);
        if (isnan(v) || isinf(v) || !signbit(v) != !signbit(f)) continue;
        double d = fabs(v - (double)f);
        if (d < distance || (d == distance && !(bits & 1))) best = bits, distance = d;
    }
    return best;
}

static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const enum dtype types[] = {DT_F16, DT_BF16};
    for (int i = 0; i < 60; i++) {
        float block[9]; /* covers the vector path and its tail */
        uint16_t out[9];
        float f = ldexpf((float)test_below(&seed, 1 << 24), (int)test_below(&seed, 36) - 46);
        if (i % 3 == 0)
            f = as_float((uint32_t)(test_below(&seed, 0x7C) << 23 | 1u << 15 | 1u << 12));
        if (i % 3 == 0 && fabsf(f) > 60000) f = 1.5f;
        if (i & 1) f = -f;
        for (int k = 0; k < 9; k++)
            block[k] = f;
        for (int t = 0; t < 2; t++) {
            uint64_t changed = cast_elements(out, types[t], block, DT_F32, 9);
            uint16_t want = nearest(types[t], f);
            for (int k = 0; k < 9; k++)
                assert_int_equal(out[k], want);
            assert_int_equal(changed, dtype_load(types[t], &want, 0) == (double)f ? 0 : 9);
        }
    }
}

static void values_past_the_range_become_infinite(void **state)
{
    (void)state;
    const float f[] = {65519.996f, 65520.0f, -1e30f, as_float(0x7F7FFFFF)};
    uint16_t out[4];
    assert_int_equal(cast_elements(out, DT_F16, f, DT_F32, 4), 4);
    assert_int_equal(out[0], 0x7BFF);
    assert_int_equal(out[1], 0x7C00);
    assert_int_equal(out[2], 0xFC00);
    cast_elements(out, DT_BF16, f, DT_F32, 4);
    assert_int_equal(out[3], 0x7F80);
    assert_int_equal(cast_overflows(out, DT_BF16, f, DT_F32, 4), 1);
    const float both[] = {NAN, INFINITY, 65520.0f, 1.0f};
    (void)cast_elements(out, DT_F16, both, DT_F32, 4);
    assert_int_equal(cast_overflows(out, DT_F16, both, DT_F32, 4), 1);
}

static void doubles_count_what_they_lose(void **state)
{
    (void)state;
    const double d[] = {1.0, 0.1, (double)NAN, 1e300};
    float f[4];
    uint16_t h[4];
    assert_int_equal(cast_elements(f, DT_F32, d, DT_F64, 4), 2);
    assert_true(f[0] == 1.0f && f[1] == 0.1f && isnan(f[2]) && isinf(f[3]));
    assert_int_equal(cast_elements(h, DT_BF16, d, DT_F64, 4), 2);
    double back[4];
    assert_int_equal(cast_elements(back, DT_F64, f, DT_F32, 4), 0);
    assert_true(back[1] == (double)0.1f);
}

static void f16_and_bf16_go_through_f32(void **state)
{
    (void)state;
    const uint16_t f16[] = {0x3C00, 0x3C01, 0x0001}; /* 1, 1 + 2^-10, 2^-24 */
    uint16_t bf16[3], back[3];
    assert_true(cast_exists(DT_BF16, DT_F16) && !cast_exists(DT_I32, DT_F32));
    assert_int_equal(cast_elements(bf16, DT_BF16, f16, DT_F16, 3), 1);
    assert_int_equal(bf16[0], 0x3F80);
    assert_int_equal(bf16[1], 0x3F80);
    assert_int_equal(cast_elements(back, DT_F16, bf16, DT_BF16, 3), 0);
    assert_int_equal(back[2], 0x0001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_bit_types_round_trip),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(values_past_the_range_become_infinite),
        cmocka_unit_test(doubles_count_what_they_lose),
        cmocka_unit_test(f16_and_bf16_go_through_f32),
    };
    return cmocka_run_group_tests_name("cast", tests, NULL, NULL);
}
