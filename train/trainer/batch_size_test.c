#include "train/trainer/batch_size.h"

#include "common/count.h"
#include "train/trainer/testing_run.h"

static struct error err;
static struct arena arena;

static int make_arena(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int release_arena(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

#define SCHEDULE(...)                                                                              \
    scheduled((const struct batch_size_step[]){__VA_ARGS__},                                       \
              COUNT(((const struct batch_size_step[]){__VA_ARGS__})))

static struct batch_size scheduled(const struct batch_size_step *steps, size_t num_steps)
{
    struct batch_size b;
    batch_size_schedule(&b, steps, num_steps);
    return b;
}

static void samples_are_consumed_as_in_megatron(void **state)
{
    (void)state;
    const struct batch_size b = SCHEDULE({0, 4}, {48, 8});
    struct golden_run run;
    uint64_t iterations, consumed = 0;
    golden_read(&run, "fp32-batch-schedule");
    assert_ok(batch_size_iterations(&b, 160, &iterations, &err));
    assert_int_equal(iterations, run.num_steps);
    for (size_t i = 0; i < run.num_steps; i++) {
        assert_int_equal(batch_size_samples(&b, i), consumed);
        consumed += batch_size_at(&b, consumed);
        assert_int_equal(consumed, run.steps[i].consumed_samples);
    }
}

static void a_size_holds_from_its_sample_on(void **state)
{
    (void)state;
    const struct batch_size b = SCHEDULE({0, 2}, {1, 4}, {46, 8});
    assert_int_equal(batch_size_at(&b, 0), 2);
    assert_int_equal(batch_size_at(&b, 45), 4);
    assert_int_equal(batch_size_at(&b, 46), 8);
    assert_int_equal(batch_size_at(&b, 1000), 8);
    assert_int_equal(batch_size_last(&b), 8);
}

static void a_constant_size_is_whole_micro_batches(void **state)
{
    (void)state;
    struct batch_size b;
    uint64_t n;
    assert_ok(batch_size_constant(&b, 64, 2, 4, &arena, &err));
    assert_true(batch_size_at(&b, 0) == 64 && batch_size_at(&b, 1u << 30) == 64);
    assert_ok(batch_size_iterations(&b, 191, &n, &err));
    assert_int_equal(n, 2);
    assert_int_equal(batch_size_samples(&b, 3), 192);
    assert_int_equal(batch_size_samples(&b, UINT64_MAX), UINT64_MAX);
    assert_fails(batch_size_iterations(&b, 63, &n, &err), ERR_USAGE, "less than a batch of 64");
    assert_fails(batch_size_constant(&b, 63, 2, 4, &arena, &err), ERR_USAGE,
                 "global batch size 63 is not a multiple of micro batch size 2 times data parallel "
                 "size 4");
    assert_fails(batch_size_constant(&b, 7, 0, 4, &arena, &err), ERR_USAGE, "size 0");
}

static void a_schedule_of_one_step_still_reaches_its_samples(void **state)
{
    (void)state;
    const struct batch_size b = SCHEDULE({0, 8});
    uint64_t n;
    assert_ok(batch_size_iterations(&b, 17, &n, &err));
    assert_int_equal(n, 3);
}

static void only_sizes_to_come_must_fit_the_layout(void **state)
{
    (void)state;
    struct batch_size b = SCHEDULE({0, 2}, {64, 8}, {128, 16});
    assert_fails(batch_size_check(&b, 0, UINT64_MAX, 2, 4, &err), ERR_USAGE,
                 "global batch size 2 is no");
    assert_fails(batch_size_check(&b, 63, UINT64_MAX, 2, 4, &err), ERR_USAGE,
                 "global batch size 2 is no");
    assert_ok(batch_size_check(&b, 64, UINT64_MAX, 2, 4, &err));
    assert_fails(batch_size_check(&b, 64, UINT64_MAX, 2, 8, &err), ERR_USAGE,
                 "global batch size 8 is no");
    assert_ok(batch_size_check(&b, 128, UINT64_MAX, 2, 8, &err));
    assert_ok(batch_size_check(&b, 0, 64, 2, 1, &err));
    assert_ok(batch_size_check(&b, 64, 128, 4, 2, &err));
    assert_fails(batch_size_check(&b, 64, 129, 16, 1, &err), ERR_USAGE,
                 "global batch size 8 is no");
    b = SCHEDULE({0, 4}, {64, 6});
    assert_ok(batch_size_check(&b, 0, 64, 4, 1, &err));
    assert_fails(batch_size_check(&b, 0, 65, 4, 1, &err), ERR_USAGE, "global batch size 6 is no");
    b = SCHEDULE({0, 2}, {64, 8}, {128, 16});
    assert_int_equal(batch_size_micro_batches(&b, 127, 2, 4), 1);
    assert_int_equal(batch_size_micro_batches(&b, 128, 2, 4), 2);
    b = SCHEDULE({0, 8}, {64, 4});
    assert_fails(batch_size_check(&b, 0, UINT64_MAX, 2, 2, &err), ERR_USAGE,
                 "falls from 8 to 4 at sample 64; it may only grow, as in Megatron-LM");
    assert_ok(batch_size_check(&b, 64, UINT64_MAX, 2, 2, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_consumed_as_in_megatron),
        cmocka_unit_test(a_size_holds_from_its_sample_on),
        cmocka_unit_test(a_constant_size_is_whole_micro_batches),
        cmocka_unit_test(a_schedule_of_one_step_still_reaches_its_samples),
        cmocka_unit_test(only_sizes_to_come_must_fit_the_layout),
    };
    return cmocka_run_group_tests_name("batch_size", tests, make_arena, release_arena);
}
