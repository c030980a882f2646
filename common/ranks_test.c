#include "common/ranks.h"

#include "common/count.h"
#include "tests/testing.h"

static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "MV2_COMM_WORLD_RANK",
                                    "MV2_COMM_WORLD_SIZE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_NTASKS"};

/* Variables and their values, up to NULL, and nothing else. */
static void environment(const char *const *pairs)
{
    for (size_t i = 0; i < COUNT(names); i++)
        assert_int_equal(unsetenv(names[i]), 0);
    for (; *pairs; pairs += 2)
        assert_int_equal(setenv(pairs[0], pairs[1], 1), 0);
}

#define ENVIRONMENT(...) environment((const char *const[]){__VA_ARGS__, NULL})

static void assert_ranks(unsigned rank, unsigned size)
{
    struct ranks r;
    struct error err;
    assert_ok(ranks_from_environment(&r, &err));
    assert_int_equal(r.rank, rank);
    assert_int_equal(r.size, size);
}

static void each_launcher_is_understood(void **state)
{
    (void)state;
    environment((const char *const[]){NULL});
    assert_ranks(0, 1);
    ENVIRONMENT("RANK", "3", "WORLD_SIZE", "4");
    assert_ranks(3, 4);
    ENVIRONMENT("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2");
    assert_ranks(0, 2);
    ENVIRONMENT("MV2_COMM_WORLD_RANK", "1", "MV2_COMM_WORLD_SIZE", "2");
    assert_ranks(1, 2);
    ENVIRONMENT("PMI_RANK", "7", "PMI_SIZE", "8");
    assert_ranks(7, 8);
    ENVIRONMENT("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2");
    assert_ranks(1, 2);
}

static void a_launcher_puts_together_what_they_print(void **state)
{
    (void)state;
    struct ranks r;
    struct error err;
    ENVIRONMENT("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2");
    assert_ok(ranks_from_environment(&r, &err));
    assert_true(r.share_output);
    ENVIRONMENT("RANK", "3", "WORLD_SIZE", "8", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2");
    assert_ok(ranks_from_environment(&r, &err));
    assert_false(r.share_output);
    environment((const char *const[]){NULL});
    assert_ok(ranks_from_environment(&r, &err));
    assert_false(r.share_output);
}

static void the_nearest_launcher_counts(void **state)
{
    (void)state;
    ENVIRONMENT("RANK", "3", "WORLD_SIZE", "8", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2");
    assert_ranks(3, 8);
}

/* A batch script, and a container that has half of them. */
static void half_of_it_is_no_launcher(void **state)
{
    (void)state;
    ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "16");
    assert_ranks(0, 1);
    ENVIRONMENT("WORLD_SIZE", "16");
    assert_ranks(0, 1);
    ENVIRONMENT("RANK", "", "WORLD_SIZE", "");
    assert_ranks(0, 1);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    struct ranks r;
    struct error err;
    const char *const pairs[][2] = {{"4", "4"},    {"-1", "4"},  {"0", "0"},
                                    {"1x", "4"},   {"1", "4.5"}, {"0", "99999999999999999999"},
                                    {"0", "65537"}};
    for (size_t i = 0; i < COUNT(pairs); i++) {
        ENVIRONMENT("RANK", pairs[i][0], "WORLD_SIZE", pairs[i][1]);
        assert_fails(ranks_from_environment(&r, &err), ERR_USAGE, "are not a valid rank");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_launcher_is_understood),
        cmocka_unit_test(a_launcher_puts_together_what_they_print),
        cmocka_unit_test(the_nearest_launcher_counts),
        cmocka_unit_test(half_of_it_is_no_launcher),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
