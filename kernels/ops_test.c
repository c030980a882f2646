#include "kernels/ops.h"

#include "tests/testing.h"

static const struct op_kernel *ops_of(const char *cpu, enum elem_type elem)
{
    setenv("FERRY_CPU", cpu, 1);
    return cpu_ops(elem);
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512_bf16(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
}
#else
static bool has_avx2(void)
{
    return false;
}

static bool has_avx512_bf16(void)
{
    return false;
}
#endif

#ifdef HAVE_AMX
/* As Linux reports it. */
static bool has_amx(void)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[8192];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, "flags", 5) == 0 && strstr(line, " amx_bf16");
    if (f) fclose(f);
    return found;
}
#else
static bool has_amx(void)
{
    return false;
}
#endif

/* Shows in the list of tests which instructions this machine lacks. */
static void this_cpu_has_avx2(void **state)
{
    (void)state;
    if (!has_avx2()) skip();
}

static void this_cpu_has_avx512_bf16(void **state)
{
    (void)state;
    if (!has_avx512_bf16()) skip();
}

static void this_cpu_has_amx(void **state)
{
    (void)state;
    if (!has_amx()) skip();
}

static void every_op_has_a_kernel_of_each_type(void **state)
{
    (void)state;
    static const char *const cpus[] = {"v1", "v3", "v4", "amx"};
    for (int i = 0; i < 4 * NUM_ELEM_TYPES; i++)
        for (int op = 0; op < NUM_OPS; op++)
            assert_non_null(ops_of(cpus[i % 4], (enum elem_type)(i / 4))[op].run);
}

static void the_environment_can_ask_for_a_lower_level(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_ELEM_TYPES; i++) {
        const enum elem_type elem = (enum elem_type)i;
        assert_int_equal(ops_of("v3", elem) != ops_of("v1", elem), has_avx2());
        assert_int_equal(ops_of("v4", elem) != ops_of("v3", elem),
                         elem == ELEM_BF16 && has_avx512_bf16());
        assert_int_equal(ops_of("amx", elem) != ops_of("v4", elem), elem == ELEM_BF16 && has_amx());
    }
}

static void the_highest_level_is_the_default(void **state)
{
    (void)state;
    const struct op_kernel *best = ops_of("amx", ELEM_BF16);
    unsetenv("FERRY_CPU");
    assert_true(cpu_ops(ELEM_BF16) == best);
}

static void instructions_are_told(void **state)
{
    (void)state;
    setenv("FERRY_CPU", "v1", 1);
#if defined(__x86_64__)
    assert_string_equal(cpu_instructions(), "CPU, SSE2, no bf16 instructions");
#elif defined(__aarch64__)
    assert_string_equal(cpu_instructions(), "CPU, NEON, no bf16 instructions");
#endif
    setenv("FERRY_CPU", "v3", 1);
    if (has_avx2()) assert_string_equal(cpu_instructions(), "CPU, AVX2, no bf16 instructions");
    setenv("FERRY_CPU", "v4", 1);
    if (has_avx512_bf16())
        assert_string_equal(cpu_instructions(), "CPU, AVX2, AVX-512 BF16 for bf16");
    unsetenv("FERRY_CPU");
    if (has_amx()) assert_string_equal(cpu_instructions(), "CPU, AVX2, AMX for bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_cpu_has_avx2),
        cmocka_unit_test(this_cpu_has_avx512_bf16),
        cmocka_unit_test(this_cpu_has_amx),
        cmocka_unit_test(every_op_has_a_kernel_of_each_type),
        cmocka_unit_test(the_environment_can_ask_for_a_lower_level),
        cmocka_unit_test(the_highest_level_is_the_default),
        cmocka_unit_test(instructions_are_told),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
