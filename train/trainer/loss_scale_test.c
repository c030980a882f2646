#include "train/trainer/loss_scale.h"

#include <math.h>

#include "train/trainer/testing_run.h"

static struct error err;

/* The runs of Megatron-LM overflow 13 times at first, and again later. */
static void check_run(const char *name, size_t restart)
{
    struct golden_run run;
    struct loss_scale s;
    size_t skipped = 0;
    golden_read(&run, name);
    assert_ok(loss_scale_start_dynamic(&s, 4294967296.0, 1, 5, 2, &err));
    for (size_t i = 0; i < run.num_steps; i++) {
        struct training t;
        loss_scale_update(&s, run.steps[i].skipped);
        skipped += run.steps[i].skipped;
        if ((double)s.scale != run.steps[i].loss_scale)
            fail_msg("%s, iteration %zu: %.1f instead of %.1f", name, i + 1, (double)s.scale,
                     run.steps[i].loss_scale);
        assert_false(loss_scale_is_exhausted(&s));
        if (i + 1 != restart) continue;
        training_init(&t);
        loss_scale_save(&s, &t);
        assert_ok(loss_scale_start_dynamic(&s, 65536, 1, 5, 2, &err));
        assert_ok(loss_scale_load(&s, &t, &err));
    }
    assert_true(skipped > 14 && skipped < run.num_steps);
}

static void the_scale_follows_from_skips_as_in_megatron(void **state)
{
    (void)state;
    check_run("fp16-overflow", 0);
    check_run("fp16-overflow-tp2-dp2", 0);
}

static void a_run_that_goes_on_anywhere_follows_it_too(void **state)
{
    (void)state;
    for (size_t i = 1; i < 40; i++)
        check_run("fp16-overflow", i);
}

static void the_hysteresis_is_refilled_by_growth_only(void **state)
{
    (void)state;
    struct loss_scale s;
    assert_ok(loss_scale_start_dynamic(&s, 64, 1, 3, 2, &err));
    loss_scale_update(&s, true);
    assert_true(s.scale == 64);
    loss_scale_update(&s, false);
    loss_scale_update(&s, true);
    assert_true(s.scale == 32);
    for (int i = 0; i < 3; i++)
        loss_scale_update(&s, false);
    assert_true(s.scale == 64);
    loss_scale_update(&s, true);
    assert_true(s.scale == 64);
}

static void a_scale_at_its_minimum_that_overflows_says_so(void **state)
{
    (void)state;
    struct loss_scale s;
    assert_ok(loss_scale_start_dynamic(&s, 8, 3, 2, 1, &err));
    loss_scale_update(&s, true);
    assert_true(s.scale == 4);
    loss_scale_update(&s, true);
    assert_true(s.scale == 3 && !loss_scale_is_exhausted(&s));
    loss_scale_update(&s, true);
    assert_true(s.scale == 3 && loss_scale_is_exhausted(&s));
    loss_scale_update(&s, false);
    assert_false(loss_scale_is_exhausted(&s));
}

static void a_constant_scale_stays(void **state)
{
    (void)state;
    struct loss_scale s;
    struct training t;
    assert_ok(loss_scale_start_constant(&s, 1024, &err));
    loss_scale_update(&s, false);
    assert_false(loss_scale_is_exhausted(&s));
    loss_scale_update(&s, true);
    assert_true(s.scale == 1024 && loss_scale_is_exhausted(&s));
    training_init(&t);
    loss_scale_save(&s, &t);
    assert_true(isnan(t.loss_scale));
    t.loss_scale = 2;
    assert_ok(loss_scale_load(&s, &t, &err));
    assert_true(s.scale == 1024);
}

static void bad_values_are_refused_by_name(void **state)
{
    (void)state;
    struct loss_scale s;
    struct training t;
    assert_fails(loss_scale_start_constant(&s, 0, &err), ERR_USAGE, "--loss-scale 0");
    assert_fails(loss_scale_start_constant(&s, 1e39, &err), ERR_USAGE, "--loss-scale 1e+39");
    assert_fails(loss_scale_start_dynamic(&s, 1, 2, 1, 1, &err), ERR_USAGE, "--min-loss-scale 2");
    assert_fails(loss_scale_start_dynamic(&s, NAN, 1, 1, 1, &err), ERR_USAGE, "-scale nan");
    assert_fails(loss_scale_start_dynamic(&s, 1, 1, 0, 1, &err), ERR_USAGE, "--loss-scale-window");
    assert_fails(loss_scale_start_dynamic(&s, 1, 1, 1, 0, &err), ERR_USAGE, "--hysteresis 0");
    assert_ok(loss_scale_start_dynamic(&s, 4, 1, 1, 1, &err));
    training_init(&t);
    assert_ok(loss_scale_load(&s, &t, &err));
    t.loss_scale = 0;
    assert_fails(loss_scale_load(&s, &t, &err), ERR_CORRUPT, "0 is not above 0");
    assert_true(s.scale == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scale_follows_from_skips_as_in_megatron),
        cmocka_unit_test(a_run_that_goes_on_anywhere_follows_it_too),
        cmocka_unit_test(the_hysteresis_is_refilled_by_growth_only),
        cmocka_unit_test(a_scale_at_its_minimum_that_overflows_says_so),
        cmocka_unit_test(a_constant_scale_stays),
        cmocka_unit_test(bad_values_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("loss_scale", tests, NULL, NULL);
}
