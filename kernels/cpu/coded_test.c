#include "kernels/cpu/coded.h"

#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/coded_testing.h"

static const enum dtype dtypes[] = {DT_BF16, DT_F32, DT_F16};
static const uint64_t groups[] = {1, 7, 32, 128, 512, 1000};

struct weight {
    struct weight_coding coding;
    struct operand operand;
    uint64_t rows, cols;
};

static void make_weight(struct weight *w, enum quant_code code, uint64_t *seed)
{
    *w = (struct weight){.coding = {.code = code,
                                    .dtype = dtypes[test_below(seed, COUNT(dtypes))],
                                    .group = groups[test_below(seed, COUNT(groups))],
                                    .scales_are_e8m0 = test_below(seed, 2)},
                         .rows = 1 + test_below(seed, 5),
                         .cols = 2 * (1 + test_below(seed, 700))};
    assert_true(coding_place(&w->coding, w->rows, w->cols));
    void *data = malloc(w->coding.bytes); /* exact size, for sanitizers */
    assert_non_null(data);
    coded_fill_random(&w->coding, w->rows, w->cols, seed, data);
    w->operand = (struct operand){.data = data,
                                  .type = OPERAND_ELEM,
                                  .num_dims = 2,
                                  .shape = {w->rows, w->cols},
                                  .coding = &w->coding};
}

static double rounded(float x, enum dtype first, enum dtype then)
{
    double as_first, as_then; /* room for any */
    (void)cast_elements(&as_first, first, &x, DT_F32, 1);
    (void)cast_elements(&as_then, then, &as_first, first, 1);
    return dtype_load(then, &as_then, 0);
}

static void elements_are_read_from_any_column(void **state)
{
    static const enum dtype targets[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    uint64_t seed = test_seed();
    (void)state;
    for (int i = 0; i < test_rounds(200); i++) {
        struct weight w;
        make_weight(&w, (enum quant_code)test_below(&seed, QUANT_TABLE), &seed);
        const uint64_t row = test_below(&seed, w.rows), col = test_below(&seed, w.cols);
        const uint64_t count = 1 + test_below(&seed, w.cols - col);
        const enum dtype to = targets[test_below(&seed, COUNT(targets))];
        void *got = malloc(dtype_run_bytes(to, count));
        assert_non_null(got);
        coded_read(&w.operand, row, col, count, to, got);
        for (uint64_t k = 0; k < count; k++) {
            const float x = coded_element(&w.operand, row, col + k);
            assert_true(dtype_load(to, got, k) == rounded(x, w.coding.dtype, to));
        }
        free(got);
        free(w.operand.data);
    }
}

static void each_code_has_its_number(void **state)
{
    uint64_t seed = test_seed();
    (void)state;
    for (unsigned code = 0; code < QUANT_TABLE; code++) {
        struct weight w;
        make_weight(&w, (enum quant_code)code, &seed);
        for (unsigned i = 0; i < 1u << w.coding.bits; i++) {
            const uint8_t byte = (uint8_t)i;
            const double want = coded_number(w.coding.code, &byte, 0);
            float got;
            memcpy(&got, (char *)w.operand.data + w.coding.numbers_at + i * sizeof got, sizeof got);
            assert_true((double)got == want || (isnan(got) && isnan(want)));
        }
        free(w.operand.data);
    }
}

static void rows_are_whole_bytes(void **state)
{
    struct weight_coding c = {.code = QUANT_E2M1, .group = 32, .scales_are_e8m0 = true};
    (void)state;
    assert_false(coding_place(&c, 2, 33));
    assert_true(coding_place(&c, 3, 34));
    assert_int_equal(c.scales_at, 64);       /* 3 * 17, rounded up */
    assert_int_equal(c.numbers_at, 64 + 16); /* 3 * 2 */
    assert_int_equal(c.bytes, 64 + 16 + 16 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_read_from_any_column),
        cmocka_unit_test(each_code_has_its_number),
        cmocka_unit_test(rows_are_whole_bytes),
    };
    return cmocka_run_group_tests_name("coded", tests, NULL, NULL);
}
