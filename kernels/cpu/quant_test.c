#include "kernels/cpu/quant.h"

#include <math.h>

#include "common/count.h"
#include "tests/testing.h"

enum { MOST = 3000, CODES = 256 };

static float table[QUANT_NUMBERS];

static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F64};

/* The number of a code, by another way than quant.c. */
static double reference_number(enum quant_code code, const uint8_t *codes, size_t i)
{
    const unsigned half = codes[i / 2] >> i % 2 * 4 & 15;
    switch (code) {
    case QUANT_E4M3:
        return dtype_load(DT_F8_E4M3, codes, i);
    case QUANT_E2M1:
        return dtype_load(DT_F4, codes, i);
    case QUANT_I8:
        return dtype_load(DT_I8, codes, i);
    case QUANT_I4:
        return (double)half - 8;
    case QUANT_TABLE:
        return (double)table[half];
    default:
        return (double)codes[i] - 128;
    }
}

static bool same_bits(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static float random_scale(uint64_t *random)
{
    const uint64_t r = test_random(random);
    return ldexpf(1 + (float)(r % 1000) / 1000, (int)(r >> 32 & 31) - 16) * (r >> 60 & 1 ? 1 : -1);
}

/* Elements of runs that begin anywhere, with groups of any size, are one
 * rounded F32 product each, or two. */
static void elements_are_codes_times_scales(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    for (int round = 0; round < 400; round++) {
        uint8_t codes[MOST];
        float scales[MOST], zeros[MOST];
        double out[MOST]; /* room for any dtype */
        for (size_t i = 0; i < MOST; i++) {
            codes[i] = (uint8_t)test_random(&random);
            scales[i] = random_scale(&random);
            zeros[i] = (float)(test_random(&random) % 16) - 8;
        }
        struct quant_run run = {.code = (enum quant_code)(test_random(&random) % NUM_QUANT_CODES),
                                .first = test_random(&random) % 50,
                                .count = 1 + test_random(&random) % (MOST - 100),
                                .group = 1 + test_random(&random) % 200,
                                .scales = scales};
        run.phase = test_random(&random) % run.group;
        if (round % 3 == 0) run.zeros = zeros;
        if (round % 5 == 0) run.factor = random_scale(&random);
        run.numbers = table;
        for (size_t i = 0; i < QUANT_NUMBERS; i++)
            table[i] = random_scale(&random);
        const enum dtype dtype = dtypes[round % 4];
        quant_decode(&run, codes, dtype, out);
        for (size_t i = 0; i < run.count; i++) {
            const size_t group = (run.phase + i) / run.group;
            const double number = reference_number(run.code, codes, run.first + i);
            const float zero = run.zeros ? zeros[group] : 0;
            const float product = ((float)number - zero) * scales[group];
            const float exact = run.factor != 0 ? product * run.factor : product;
            const double got = dtype_load(dtype, out, i);
            if (dtype == DT_F32 || dtype == DT_F64) {
                assert_true(same_bits(got, (double)exact));
                continue;
            }
            /* nearest: no neighbour is closer, ties are even */
            uint16_t bits;
            memcpy(&bits, (const uint16_t *)(const void *)out + i, sizeof bits);
            if (isnan(exact) || isinf(got)) continue;
            const double error = fabs(got - (double)exact);
            for (int step = -1; step <= 1; step += 2) {
                const uint16_t next = (uint16_t)(bits + step);
                const double other = dtype_load(dtype, &next, 0);
                if (isnan(other) || isinf(other) || signbit(other) != signbit(got)) continue;
                const double far = fabs(other - (double)exact);
                assert_true(error < far || (error == far && bits % 2 == 0));
            }
        }
    }
}

/* Every code but NaN comes back, by every scale that keeps products normal. */
static void each_code_comes_back(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    for (int code = 0; code < QUANT_TABLE; code++)
        for (int round = 0; round < 200; round++) {
            const bool half = quant_infos[code].bits == 4;
            uint8_t codes[CODES], back[CODES];
            float numbers[CODES];
            const float scale = fabsf(random_scale(&random));
            for (size_t i = 0; i < CODES; i++)
                codes[i] = (uint8_t)i;
            const struct quant_run run = {.code = (enum quant_code)code,
                                          .count = half ? 2 * (size_t)CODES / 2 : CODES,
                                          .group = 2 * CODES,
                                          .scales = &scale};
            quant_decode(&run, codes, DT_F32, numbers);
            memset(back, 0, sizeof back);
            quant_encode(&run, numbers, back);
            for (size_t i = 0; i < (half ? CODES / 2 : CODES); i++)
                if (code != QUANT_E4M3 || (i & 0x7F) != 0x7F) assert_int_equal(back[i], codes[i]);
        }
}

/* Numbers between codes become the nearest of them, ties the even one, and
 * those past the ends the ends. */
static void numbers_become_the_nearest_code(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    const float one = 1;
    for (int code = 0; code < QUANT_TABLE; code++)
        for (int round = 0; round < 20000; round++) {
            const struct quant_info *info = &quant_infos[code];
            uint8_t got[1] = {0};
            float x =
                ldexpf((float)(test_random(&random) % 4096), (int)(test_random(&random) % 12) - 14);
            if (round % 2) x = -x;
            const struct quant_run run = {
                .code = (enum quant_code)code, .count = 1, .group = 1, .scales = &one};
            quant_encode(&run, &x, got);
            const double number = reference_number(run.code, got, 0),
                         kept = fmin(fmax((double)x, (double)info->least), (double)info->largest);
            const unsigned all = 1u << info->bits;
            for (unsigned other = 0; other < all; other++) {
                const uint8_t candidate[1] = {(uint8_t)other};
                const double far = fabs(reference_number(run.code, candidate, 0) - kept);
                const double error = fabs(number - kept);
                if (isnan(far)) continue;
                assert_true(error <= far);
                if (error == far && other != got[0] &&
                    number != reference_number(run.code, candidate, 0))
                    assert_int_equal(got[0] % 2, 0);
            }
        }
}

/* From each number to the next larger one in size, and what is decoded of it. */
static void steps_lead_to_the_next_code(void **state)
{
    (void)state;
    const float scale = -0.75f;
    for (int code = 0; code < QUANT_TABLE; code++)
        for (unsigned at = 0; at < 1u << quant_infos[code].bits; at++) {
            const uint8_t one[1] = {(uint8_t)at};
            const double number = reference_number((enum quant_code)code, one, 0);
            double next = INFINITY;
            for (unsigned other = 0; other < 1u << quant_infos[code].bits; other++) {
                const uint8_t candidate[1] = {(uint8_t)other};
                const double x = fabs(reference_number((enum quant_code)code, candidate, 0));
                if (x > fabs(number)) next = fmin(next, x);
            }
            if (isnan(number) || isinf(next)) continue;
            float step;
            const struct quant_run run = {.code = (enum quant_code)code,
                                          .count = 1,
                                          .group = 1,
                                          .scales = &scale,
                                          .steps = true};
            assert_true(
                same_bits((double)quant_step(run.code, (float)number), next - fabs(number)));
            quant_decode(&run, one, DT_F32, &step);
            assert_true(same_bits((double)step, (next - fabs(number)) * 0.75));
        }
}

/* As NF4's and FP4's: a number may be nearer to the next one than to that before. */
static void steps_of_a_table_are_the_larger_ones(void **state)
{
    (void)state;
    const float scale = -2, numbers[QUANT_NUMBERS] = {0,    .25f,  .375f, 1,  1.5f,  2,  3,  4,
                                                      -.5f, -.75f, -1,    -2, -2.5f, -3, -5, -8};
    static const float expected[QUANT_NUMBERS] = {.5f, .25f, .625f, .625f, .5f, 1, 1, 1,
                                                  .5f, .25f, 1,     1,     .5f, 2, 3, 3};
    for (unsigned at = 0; at < QUANT_NUMBERS; at++) {
        const uint8_t one[1] = {(uint8_t)at};
        float step;
        const struct quant_run run = {.code = QUANT_TABLE,
                                      .numbers = numbers,
                                      .factor = .5f,
                                      .count = 1,
                                      .group = 1,
                                      .scales = &scale,
                                      .steps = true};
        quant_decode(&run, one, DT_F32, &step);
        assert_true(same_bits((double)step, (double)expected[at])); /* |scale| * factor is 1 */
    }
}

static void quotients_are_rounded_before_zeros_are_added(void **state)
{
    (void)state;
    const struct {
        enum dtype quotient;
        float x, zero;
        uint8_t code;
    } cases[] = {
        {DT_F32, 2.5f + 0x1p-11f, 0, 3}, {DT_BF16, 2.5f + 0x1p-11f, 0, 2},
        {DT_F16, 2.5f + 0x1p-11f, 0, 2}, {DT_F16, 2.5f + 0x1p-9f, 0, 3},
        {DT_BF16, 0.5f + 0x1p-9f, 2, 2}, {DT_F32, 0.5f + 0x1p-9f, 2, 3},
    };
    const float one = 1;
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint8_t got = 0;
        const struct quant_run run = {.code = QUANT_I8,
                                      .count = 1,
                                      .group = 1,
                                      .scales = &one,
                                      .zeros = &cases[i].zero,
                                      .quotient = cases[i].quotient};
        quant_encode(&run, &cases[i].x, &got);
        assert_int_equal(got, cases[i].code);
    }
}

static void codes_beside_a_run_stay(void **state)
{
    (void)state;
    const float ones[] = {1, 1}, numbers[] = {6, -6};
    uint8_t codes[] = {0x33, 0x33, 0x33};
    const struct quant_run run = {
        .code = QUANT_E2M1, .first = 1, .count = 2, .group = 1, .phase = 0, .scales = ones};
    quant_encode(&run, numbers, codes);
    assert_int_equal(codes[0], 0x73);
    assert_int_equal(codes[1], 0x3F);
    assert_int_equal(codes[2], 0x33);
}

static void scales_of_e8m0_are_powers_of_two(void **state)
{
    (void)state;
    assert_true(same_bits((double)quant_e8m0(127), 1));
    assert_true(same_bits((double)quant_e8m0(0), 0x1p-127));
    assert_true(same_bits((double)quant_e8m0(254), 0x1p127));
    assert_true(isnan(quant_e8m0(255)));
}

static void the_largest_counts_by_its_side(void **state)
{
    (void)state;
    const float numbers[] = {1, -3, NAN, 2, -0.0f};
    assert_true(same_bits((double)quant_amax(QUANT_E4M3, numbers, 5, 0), 3));
    assert_true(same_bits((double)quant_amax(QUANT_E4M3, numbers, 5, 4), 4));
    assert_true(same_bits((double)quant_amax(QUANT_I4, numbers, 5, 0), 3 * 7 / 8.));
    assert_true(same_bits((double)quant_amax(QUANT_I8, numbers, 0, 0), 0));
}

static void zero_codes_have_no_numbers(void **state)
{
    (void)state;
    const float zeros[] = {3};
    const uint8_t e2m1[] = {0x80, 0x08}, i4[] = {0xBB, 0xB8};
    struct quant_run run = {.code = QUANT_E2M1, .count = 4, .group = 4};
    assert_false(quant_has_numbers(&run, e2m1));
    run.code = QUANT_I4;
    run.zeros = zeros; /* 8 + 3 */
    run.count = 2;
    assert_false(quant_has_numbers(&run, i4));
    run.count = 3;
    assert_true(quant_has_numbers(&run, i4));
}

/* Codes of a row in words along rows or cols, in any order. */
static void codes_are_gathered_from_words(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    for (int round = 0; round < 400; round++) {
        const enum quant_code code = (enum quant_code)(test_random(&random) % NUM_QUANT_CODES);
        const unsigned bits = quant_infos[code].bits, mask = (1u << bits) - 1, per = 32 / bits;
        const bool rows = test_random(&random) % 2;
        struct quant_words w = {.rows = rows ? per : 1, .cols = rows ? 1 : per};
        uint32_t words[64];
        uint8_t codes[64 * QUANT_SLOTS + 1];
        const size_t across = COUNT(words) * w.cols, first = test_random(&random) % across;
        const size_t count = 1 + test_random(&random) % (across - first);
        const uint64_t row = test_random(&random) % 100;
        for (unsigned k = 0; k < per; k++) /* odd steps reach all slots */
            w.slots[k] = (unsigned char)((k * 3 + (unsigned)round) % per);
        for (size_t i = 0; i < COUNT(words); i++)
            words[i] = (uint32_t)test_random(&random);
        codes[(count * bits + 7) / 8] = 123;
        quant_gather(&w, code, words + first / w.cols, row, first % w.cols, count, codes);
        assert_int_equal(codes[(count * bits + 7) / 8], 123);
        for (size_t i = 0; i < count; i++) {
            const size_t at = first + i, element = row % w.rows * w.cols + at % w.cols;
            const uint32_t want = words[at / w.cols] >> w.slots[element] * bits & mask;
            assert_int_equal(codes[i * bits / 8] >> i * bits % 8 & mask, want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_codes_times_scales),
        cmocka_unit_test(each_code_comes_back),
        cmocka_unit_test(numbers_become_the_nearest_code),
        cmocka_unit_test(steps_lead_to_the_next_code),
        cmocka_unit_test(steps_of_a_table_are_the_larger_ones),
        cmocka_unit_test(quotients_are_rounded_before_zeros_are_added),
        cmocka_unit_test(codes_beside_a_run_stay),
        cmocka_unit_test(scales_of_e8m0_are_powers_of_two),
        cmocka_unit_test(the_largest_counts_by_its_side),
        cmocka_unit_test(zero_codes_have_no_numbers),
        cmocka_unit_test(codes_are_gathered_from_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
