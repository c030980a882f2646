/* Programs carried out call by call: results, checks of numbers, clocks. */
#include "train/engine/run.h"

#include <math.h>

#include "common/count.h"
#include "train/loop/testing_run.h"

enum { N = 16 };

/* y = x + w, z = y + x */
static void make_sums(struct test_run *t, value_id *x, value_id *w, value_id *z)
{
    const uint64_t shape[] = {1, N};
    value_id y;
    test_run_open(t, 1);
    *x = test_run_input(t, OPERAND_ELEM, 1, N, "x");
    *w = program_add_value(&t->program, VALUE_PARAMETER, OPERAND_ELEM, 2, shape, "w");
    const struct emission first = {
        .op = OP_ADD, .label = "first", .in = {*x, *w}, .num_in = 2, .out = {&y}};
    assert_ok(program_emit(&t->program, &first, &err));
    *z = test_run_emit(
        t, (struct emission){.op = OP_ADD, .label = "second", .in = {y, *x}, .num_in = 2});
    test_run_allocate(t);
    for (unsigned i = 0; i < N; i++) {
        test_run_floats(t, *x)[i] = (float)i;
        test_run_floats(t, *w)[i] = 100;
    }
}

static void calls_are_carried_out_in_their_order(void **state)
{
    struct test_run t;
    value_id x, w, z;
    (void)state;
    make_sums(&t, &x, &w, &z);
    for (unsigned times = 0; times < 2; times++) {
        assert_ok(run_program(&t.run, &err));
        for (unsigned i = 0; i < N; i++)
            assert_true(test_run_floats(&t, z)[i] == (float)(100 + 2 * i));
        test_run_floats(&t, z)[3] = -1;
    }
    assert_ok(test_run_close(&t, OK));
}

static void each_call_has_its_clock(void **state)
{
    struct test_run t;
    value_id x, w, z;
    double seconds[2] = {0};
    (void)state;
    make_sums(&t, &x, &w, &z);
    t.run.seconds = seconds;
    assert_ok(run_program(&t.run, &err));
    assert_true(seconds[0] > 0 && seconds[1] > 0);
    assert_true(test_run_floats(&t, z)[1] == 102);
    assert_ok(test_run_close(&t, OK));
}

/* A bad number is of a parameter, or of the call that makes it first. */
static void the_first_bad_number_is_named(void **state)
{
    struct test_run t;
    value_id x, w, z;
    bool finite;
    (void)state;
    make_sums(&t, &x, &w, &z);
    t.run.check_numbers = true;
    assert_ok(run_program(&t.run, &err));
    assert_ok(run_is_finite(&t.run, z, &finite, &err));
    assert_true(finite);
    test_run_floats(&t, w)[5] = NAN;
    assert_fails(run_program(&t.run, &err), ERR_NUMERIC,
                 "w: has NaN or infinity (seen in first, on rank 0)");
    test_run_floats(&t, w)[5] = 100;
    test_run_floats(&t, x)[7] = 3e38f; /* twice that is too much */
    assert_fails(run_program(&t.run, &err), ERR_NUMERIC,
                 "second (add, on rank 0) computes NaN or infinity from finite numbers");
    t.run.check_numbers = false;
    assert_ok(run_program(&t.run, &err));
    assert_ok(run_is_finite(&t.run, z, &finite, &err));
    assert_false(finite);
    assert_ok(test_run_close(&t, OK));
}

/* Rows that nobody writes hold anything. */
static void rows_behind_those_that_count_are_not_checked(void **state)
{
    struct test_run t;
    bool finite;
    (void)state;
    test_run_open(&t, 1);
    value_id x = test_run_input(&t, OPERAND_ELEM, 2, N, "x"),
             rows = test_run_input(&t, OPERAND_INT, 2, 1, "rows");
    value_id y = test_run_emit(&t, (struct emission){.op = OP_PERMUTE,
                                                     .label = "permute",
                                                     .in = {x, rows},
                                                     .num_in = 2,
                                                     .sizes = {{'R', 5}}});
    test_run_allocate(&t);
    test_run_ints(&t, rows)[0] = 4;
    test_run_ints(&t, rows)[1] = 1;
    t.run.check_numbers = true;
    assert_ok(run_program(&t.run, &err));
    assert_ok(run_is_finite(&t.run, y, &finite, &err));
    assert_false(finite); /* rows 0, 2 and 3 are as they were */
    assert_true(test_run_floats(&t, y)[(size_t)4 * N] == 0);
    assert_ok(test_run_close(&t, OK));
}

static void what_may_be_infinite_is_no_mistake(void **state)
{
    struct test_run t;
    (void)state;
    test_run_open(&t, 1);
    value_id logits = test_run_input(&t, OPERAND_REAL, 3, N, "logits");
    value_id max = test_run_emit(
        &t, (struct emission){.op = OP_VOCAB_MAX, .label = "max", .in = {logits}, .num_in = 1});
    test_run_allocate(&t); /* no column is valid: all are padding */
    t.run.check_numbers = true;
    assert_ok(run_program(&t.run, &err));
    assert_true(isinf(test_run_floats(&t, max)[0]));
    assert_ok(test_run_close(&t, OK));
}

/* The largest half is no infinity; its bits are in bf16, and those of an
 * infinite half, too. */
static void types_of_16_bits_have_infinities_of_their_own(void **state)
{
    static const struct {
        enum elem_type elem;
        uint16_t bits;
        bool finite;
    } cases[] = {
        {ELEM_F16, 0x7bff, true},  {ELEM_F16, 0xfc00, false},  {ELEM_F16, 0x7e00, false},
        {ELEM_BF16, 0x7c00, true}, {ELEM_BF16, 0x7f80, false}, {ELEM_BF16, 0xffc0, false},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct test_run t;
        bool finite;
        test_run_open(&t, 1);
        t.program.elem = cases[i].elem;
        value_id x = test_run_input(&t, OPERAND_ELEM, 3, N, "x");
        value_id y = test_run_emit(
            &t, (struct emission){.op = OP_ADD, .label = "sum", .in = {x, x}, .num_in = 2});
        test_run_allocate(&t);
        uint16_t *bits = run_data(&t.run, y);
        memset(bits, 0, 3 * N * sizeof *bits);
        bits[2 * N] = cases[i].bits;
        assert_ok(run_is_finite(&t.run, y, &finite, &err));
        assert_int_equal(finite, cases[i].finite);
        assert_ok(test_run_close(&t, OK));
    }
}

static void an_op_that_a_device_lacks_is_named(void **state)
{
    static const struct op_kernel none[NUM_OPS];
    struct test_run t;
    value_id x, w, z;
    (void)state;
    make_sums(&t, &x, &w, &z);
    t.run.kernels = none;
    assert_fails(run_program(&t.run, &err), ERR_UNSUPPORTED,
                 "first: device cpu has no kernel for add");
    assert_ok(test_run_close(&t, OK));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_carried_out_in_their_order),
        cmocka_unit_test(each_call_has_its_clock),
        cmocka_unit_test(the_first_bad_number_is_named),
        cmocka_unit_test(rows_behind_those_that_count_are_not_checked),
        cmocka_unit_test(what_may_be_infinite_is_no_mistake),
        cmocka_unit_test(types_of_16_bits_have_infinities_of_their_own),
        cmocka_unit_test(an_op_that_a_device_lacks_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
