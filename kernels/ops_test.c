#include "kernels/ops.h"

#include "tests/testing.h"

static void every_op_has_a_kernel_of_each_type(void **state)
{
    (void)state;
    static const char *const cpus[] = {"v1", "v3"};
    for (int i = 0; i < 2 * NUM_ELEM_TYPES; i++) {
        setenv("FERRY_CPU", cpus[i % 2], 1);
        for (int op = 0; op < NUM_OPS; op++)
            assert_non_null(cpu_ops((enum elem_type)(i / 2))[op].run);
    }
}

static void the_environment_can_ask_for_the_baseline(void **state)
{
    (void)state;
    unsetenv("FERRY_CPU");
    const struct op_kernel *best = cpu_ops(ELEM_F32);
    setenv("FERRY_CPU", "v1", 1);
    const struct op_kernel *baseline = cpu_ops(ELEM_F32);
    const bool same = best == baseline;
    assert_int_equal(same, !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
    assert_true(cpu_ops(ELEM_F64) != baseline && cpu_ops(ELEM_BF16) != baseline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_kernel_of_each_type),
        cmocka_unit_test(the_environment_can_ask_for_the_baseline),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
