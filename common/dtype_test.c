#include "common/count.h"
#include "common/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void every_name_of_a_row_finds_its_row(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_DTYPES; i++) {
        const struct dtype_info *row = &dtype_infos[i];
        enum dtype d = NUM_DTYPES;
        if (row->safetensors) {
            assert_true(dtype_from_safetensors(row->safetensors, &d));
            assert_int_equal(d, i);
        }
        if (row->torch) {
            assert_true(dtype_from_torch(row->torch, &d));
            assert_int_equal(d, i);
        }
        if (row->storage) {
            assert_true(dtype_from_storage(row->storage, &d));
            assert_int_equal(d, i);
        }
    }
}

static void names_of_files_are_exact(void **state)
{
    (void)state;
    enum dtype d;
    assert_false(dtype_from_safetensors("bf16", &d));
    assert_false(dtype_from_safetensors("BF16 ", &d));
    assert_false(dtype_from_safetensors("C128", &d));
    assert_false(dtype_from_safetensors("", &d));
    assert_false(dtype_from_torch("BFloat16", &d));
    assert_false(dtype_from_torch("half", &d));
    assert_false(dtype_from_storage("Float16Storage", &d));
}

static void users_may_write_a_dtype_in_many_ways(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtype dtype;
    } cases[] = {
        {"bf16", DT_BF16},           {"BF16", DT_BF16},  {"bfloat16", DT_BF16},
        {"torch.bfloat16", DT_BF16}, {"fp16", DT_F16},   {"half", DT_F16},
        {"float16", DT_F16},         {"f32", DT_F32},    {"fp32", DT_F32},
        {"float", DT_F32},           {"double", DT_F64}, {"fp8", DT_F8_E4M3},
        {"f8_e5m2", DT_F8_E5M2},     {"int64", DT_I64},  {"U8", DT_U8},
    };
    enum dtype d;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(dtype_from_user(cases[i].name, &d));
        assert_int_equal(d, cases[i].dtype);
    }
    assert_false(dtype_from_user("fp", &d));
    assert_false(dtype_from_user("", &d));
}

static void sizes_are_whole_bytes_or_refused(void **state)
{
    (void)state;
    uint64_t bytes;
    assert_true(dtype_size_bytes(DT_BF16, 3, &bytes));
    assert_int_equal(bytes, 6);
    assert_true(dtype_size_bytes(DT_F4, 6, &bytes));
    assert_int_equal(bytes, 3);
    assert_false(dtype_size_bytes(DT_F4, 5, &bytes));
    assert_true(dtype_size_bytes(DT_F6_E3M2, 4, &bytes));
    assert_int_equal(bytes, 3);
    assert_false(dtype_size_bytes(DT_F6_E3M2, 3, &bytes));
    assert_true(dtype_size_bytes(DT_F64, 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(dtype_size_bytes(DT_F64, UINT64_MAX / 8, &bytes));
    assert_int_equal(dtype_bytes(DT_C128), 16);
    assert_int_equal(dtype_bytes(DT_F4), 0);
}

static void casts_go_between_real_floats_only(void **state)
{
    (void)state;
    int floats = 0;
    for (int i = 0; i < NUM_DTYPES; i++)
        floats += dtype_is_float((enum dtype)i);
    assert_int_equal(floats, 4);
    assert_true(dtype_is_float(DT_F16) && dtype_is_float(DT_BF16));
    assert_true(dtype_is_float(DT_F32) && dtype_is_float(DT_F64));
}

/* Bits and their value: the ends of each format's range, as torch prints them. */
static void elements_have_the_value_that_torch_gives_them(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        uint64_t bits;
        double value;
    } cases[] = {
        {DT_BOOL, 1, 1},
        {DT_U8, 0xFF, 255},
        {DT_I8, 0xFF, -1},
        {DT_I16, 0x8000, -32768},
        {DT_U16, 0x8000, 32768},
        {DT_I32, 0xFFFFFFFE, -2},
        {DT_U32, 0xFFFFFFFE, 4294967294.0},
        {DT_I64, UINT64_MAX, -1},
        {DT_U64, 1ull << 63, 9223372036854775808.0},
        {DT_F16, 0x3C00, 1},
        {DT_F16, 0x7BFF, 65504},
        {DT_F16, 0x0001, 0x1p-24},
        {DT_F16, 0xFC00, -INFINITY},
        {DT_F16, 0x7E00, NAN},
        {DT_BF16, 0x3F80, 1},
        {DT_BF16, 0xC040, -3},
        {DT_BF16, 0x0001, 0x1p-133},
        {DT_F32, 0x3DCCCCCD, 0.1f},
        {DT_F64, 0x3FB999999999999A, 0.1},
        {DT_C64, 0xBF80000040000000, 2},
        {DT_F8_E4M3, 0x7E, 448},
        {DT_F8_E4M3, 0x01, 0x1p-9},
        {DT_F8_E4M3, 0x7F, NAN},
        {DT_F8_E4M3, 0xFF, NAN},
        {DT_F8_E5M2, 0x7B, 57344},
        {DT_F8_E5M2, 0x01, 0x1p-16},
        {DT_F8_E5M2, 0xFC, -INFINITY},
        {DT_F8_E5M2, 0x7D, NAN},
        {DT_F8_E4M3FNUZ, 0x7F, 240},
        {DT_F8_E4M3FNUZ, 0x80, NAN},
        {DT_F8_E4M3FNUZ, 0x01, 0x1p-10},
        {DT_F8_E5M2FNUZ, 0x7F, 57344},
        {DT_F8_E5M2FNUZ, 0x80, NAN},
        {DT_F8_E5M2FNUZ, 0x01, 0x1p-17},
        {DT_F8_E8M0, 127, 1},
        {DT_F8_E8M0, 0, 0x1p-127},
        {DT_F8_E8M0, 0xFF, NAN},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        double value = dtype_load(cases[i].dtype, &cases[i].bits, 0);
        if (isnan(cases[i].value))
            assert_true(isnan(value));
        else
            assert_true(value == cases[i].value);
    }
}

/* All values of the OCP microscaling formats (MX specification 1.0, 5.3),
 * positive half. */
static void sub_byte_elements_are_read_across_byte_borders(void **state)
{
    (void)state;
    static const double f4[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (unsigned i = 0; i < 16; i++) {
        uint8_t two = (uint8_t)(i | (15 - i) << 4); /* the lower half is the first element */
        assert_true(dtype_load(DT_F4, &two, 0) == (i < 8 ? f4[i] : -f4[i - 8]));
        assert_true(dtype_load(DT_F4, &two, 1) == (i < 8 ? -f4[7 - i] : f4[15 - i]));
    }
    /* 4 elements in 3 bytes, the second and third across a border */
    uint32_t six = 0x1Fu | 0x3Fu << 6 | 0x3Du << 12 | 0x01u << 18;
    const double e2m3[] = {7.5, -7.5, -6.5, 0.125}, e3m2[] = {28, -28, -20, 0.0625};
    for (unsigned i = 0; i < 4; i++) {
        assert_true(dtype_load(DT_F6_E2M3, &six, i) == e2m3[i]);
        assert_true(dtype_load(DT_F6_E3M2, &six, i) == e3m2[i]);
    }
}

static void the_index_counts_elements(void **state)
{
    (void)state;
    const uint16_t bf16[] = {0x3F80, 0x4000, 0x4040};
    const double c128[] = {1, 2, 3, 4};
    assert_true(dtype_load(DT_BF16, bf16, 2) == 3);
    assert_true(dtype_load(DT_C128, c128, 1) == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_of_a_row_finds_its_row),
        cmocka_unit_test(names_of_files_are_exact),
        cmocka_unit_test(users_may_write_a_dtype_in_many_ways),
        cmocka_unit_test(sizes_are_whole_bytes_or_refused),
        cmocka_unit_test(casts_go_between_real_floats_only),
        cmocka_unit_test(elements_have_the_value_that_torch_gives_them),
        cmocka_unit_test(sub_byte_elements_are_read_across_byte_borders),
        cmocka_unit_test(the_index_counts_elements),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
