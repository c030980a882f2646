#include "train/trainer/batch_size.h"

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

static struct batch_size parsed(const char *schedule, uint64_t seq_length)
{
    struct batch_size b;
    assert_ok(batch_size_parse(&b, schedule, seq_length, &arena, &err));
    return b;
}

static void samples_are_consumed_as_in_megatron(void **state)
{
    (void)state;
    const struct batch_size b = parsed("0:4,1536:8", 32);
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

static void thresholds_are_whole_samples_in_any_order(void **state)
{
    (void)state;
    struct batch_size b = parsed(" 1.5K:8  0:2,\t63:4 ", 32);
    assert_true(b.num_steps == 3 && b.steps[1].from_samples == 1 && b.steps[2].from_samples == 46);
    assert_int_equal(batch_size_at(&b, 0), 2);
    assert_int_equal(batch_size_at(&b, 45), 4);
    assert_int_equal(batch_size_at(&b, 1000), 8);
    assert_int_equal(batch_size_last(&b), 8);
    b = parsed("0:768 250B:1536 500b:3K 1T:2e4", 4096);
    assert_int_equal(b.steps[1].from_samples, 61035156);
    assert_int_equal(b.steps[2].batch_size, 3000);
    assert_int_equal(b.steps[3].from_samples, 244140625);
    assert_int_equal(b.steps[3].batch_size, 20000);
}

static void bad_schedules_are_refused_by_entry(void **state)
{
    (void)state;
    struct batch_size b;
#define REFUSED(text, part)                                                                        \
    assert_fails(batch_size_parse(&b, text, 32, &arena, &err), ERR_USAGE, part)
    REFUSED("", "no entry has the threshold 0");
    REFUSED("32:4", "no entry has the threshold 0");
    REFUSED("0:4,8", "\"8\" is not THRESHOLD:BATCH_SIZE");
    REFUSED("0:4,8:", "\"8:\" is not");
    REFUSED("0:4,:8", "\":8\" is not");
    REFUSED("0:4,-8:8", "\"-8:8\" is not");
    REFUSED("0:4,inf:8", "\"inf:8\" is not");
    REFUSED("0:4,0x8:8", "\"0x8:8\" is not");
    REFUSED("0:4,1e20:8", "\"1e20:8\" is not");
    REFUSED("0:4,64:8:9", "\"64:8:9\" is not");
    REFUSED("0:4,K:8", "\"K:8\" is not");
    REFUSED("0:4,64:0", "\"64:0\" has a batch size of 0");
    REFUSED("0:4,33:8,63:16", "two entries begin at sample 1");
#undef REFUSED
    assert_fails(batch_size_parse(&b, "0:4", 0, &arena, &err), ERR_USAGE, "--seq-length");
}

static void a_constant_size_is_whole_micro_batches(void **state)
{
    (void)state;
    struct batch_size b;
    uint64_t n;
    assert_ok(batch_size_constant(&b, 64, 2, 4, false, &arena, &err));
    assert_true(batch_size_at(&b, 0) == 64 && batch_size_at(&b, 1u << 30) == 64);
    assert_ok(batch_size_iterations(&b, 191, &n, &err));
    assert_int_equal(n, 2);
    assert_int_equal(batch_size_samples(&b, 3), 192);
    assert_int_equal(batch_size_samples(&b, UINT64_MAX), UINT64_MAX);
    assert_fails(batch_size_iterations(&b, 63, &n, &err), ERR_USAGE, "less than a batch of 64");
    assert_fails(batch_size_constant(&b, 63, 2, 4, false, &arena, &err), ERR_USAGE,
                 "global batch size 63 is no multiple of micro batch size 2 times data parallel "
                 "size 4");
    assert_ok(batch_size_constant(&b, 63, 2, 4, true, &arena, &err));
    assert_int_equal(batch_size_at(&b, 0), 56);
    assert_fails(batch_size_constant(&b, 7, 2, 4, true, &arena, &err), ERR_USAGE, "size 7");
    assert_fails(batch_size_constant(&b, 7, 0, 4, true, &arena, &err), ERR_USAGE, "size 0");
}

static void a_schedule_of_one_step_still_reaches_its_samples(void **state)
{
    (void)state;
    const struct batch_size b = parsed("0:8", 32);
    uint64_t n;
    assert_ok(batch_size_iterations(&b, 17, &n, &err));
    assert_int_equal(n, 3);
}

static void only_sizes_to_come_must_fit_the_layout(void **state)
{
    (void)state;
    struct batch_size b = parsed("0:2,64:8,128:16", 1);
    assert_fails(batch_size_check(&b, 0, 2, 4, &err), ERR_USAGE, "global batch size 2 is no");
    assert_fails(batch_size_check(&b, 63, 2, 4, &err), ERR_USAGE, "global batch size 2 is no");
    assert_ok(batch_size_check(&b, 64, 2, 4, &err));
    assert_fails(batch_size_check(&b, 64, 2, 8, &err), ERR_USAGE, "global batch size 8 is no");
    assert_ok(batch_size_check(&b, 128, 2, 8, &err));
    assert_int_equal(batch_size_micro_batches(&b, 127, 2, 4), 1);
    assert_int_equal(batch_size_micro_batches(&b, 128, 2, 4), 2);
    b = parsed("0:8,64:4", 1);
    assert_fails(batch_size_check(&b, 0, 2, 2, &err), ERR_USAGE,
                 "falls from 8 to 4 at sample 64; Megatron-LM lets it grow only");
    assert_ok(batch_size_check(&b, 64, 2, 2, &err));
}

static void a_ramp_up_must_be_three_whole_numbers(void **state)
{
    (void)state;
    assert_ok(batch_rampup_check((const char *const[]){"16", "8", "300000"}, &err));
    assert_fails(batch_rampup_check((const char *const[]){"16", "x", "3"}, &err), ERR_USAGE,
                 "--rampup-batch-size: increment x is no whole number");
    assert_non_null(strstr(batch_rampup_note, "--step-batch-size-schedule"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_consumed_as_in_megatron),
        cmocka_unit_test(thresholds_are_whole_samples_in_any_order),
        cmocka_unit_test(bad_schedules_are_refused_by_entry),
        cmocka_unit_test(a_constant_size_is_whole_micro_batches),
        cmocka_unit_test(a_schedule_of_one_step_still_reaches_its_samples),
        cmocka_unit_test(only_sizes_to_come_must_fit_the_layout),
        cmocka_unit_test(a_ramp_up_must_be_three_whole_numbers),
    };
    return cmocka_run_group_tests_name("batch_size", tests, make_arena, release_arena);
}
