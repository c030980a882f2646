#include "train/trainer/lr_schedule.h"

#include <math.h>

#include "common/count.h"
#include "train/trainer/testing_run.h"

static struct error err;

static double number_of(const cJSON *object, const char *name)
{
    double x;
    assert_true(json_as_double(json_get(object, name), &x));
    return x;
}

static struct lr_schedule schedule_of(const cJSON *arguments)
{
    return (struct lr_schedule){
        .init_lr = number_of(arguments, "init_lr"),
        .max_lr = number_of(arguments, "max_lr"),
        .min_lr = number_of(arguments, "min_lr"),
        .warmup_steps = number_of(arguments, "lr_warmup_steps"),
        .decay_steps = (uint64_t)number_of(arguments, "lr_decay_steps"),
        .wsd_decay_steps = (uint64_t)number_of(arguments, "wsd_decay_steps"),
        .decay_style = json_as_text(json_get(arguments, "lr_decay_style")),
        .wsd_style = json_as_text(json_get(arguments, "lr_wsd_decay_style")),
        .start_wd = number_of(arguments, "start_wd"),
        .end_wd = number_of(arguments, "end_wd"),
        .wd_incr_steps = (uint64_t)number_of(arguments, "wd_incr_steps"),
        .wd_incr_style = json_as_text(json_get(arguments, "wd_incr_style")),
    };
}

static void check_row(const struct lr_schedule *s, const cJSON *row)
{
    double steps, lr, weight_decay;
    assert_true(json_as_double(cJSON_GetArrayItem(row, 0), &steps));
    assert_true(json_as_double(cJSON_GetArrayItem(row, 1), &lr));
    assert_true(json_as_double(cJSON_GetArrayItem(row, 2), &weight_decay));
    if (s->num_steps != (uint64_t)steps || s->lr != lr || s->weight_decay != weight_decay)
        fail_msg("%s %s, weight decay %s, at %g: lr %.17g, weight decay %.17g", s->decay_style,
                 s->wsd_style ? s->wsd_style : "", s->wd_incr_style, steps, s->lr, s->weight_decay);
}

static void all_styles_equal_those_of_megatron_bit_for_bit(void **state)
{
    (void)state;
    cJSON *cases, *one, *row;
    unsigned rows = 0;
    assert_ok(
        json_read_file("tests/golden/train/schedules.json", 1 << 20, JSON_STRICT, &cases, &err));
    cJSON_ArrayForEach(one, cases)
    {
        struct lr_schedule s = schedule_of(json_get(one, "arguments"));
        assert_ok(lr_schedule_start(&s, &err));
        cJSON_ArrayForEach(row, json_get(one, "steps_lr_wd"))
        {
            check_row(&s, row);
            rows++;
            lr_schedule_step(&s, 8);
        }
    }
    assert_int_equal(rows, 24 * 23);
    cJSON_Delete(cases);
}

static struct lr_schedule cosine(void)
{
    return (struct lr_schedule){.max_lr = 0.01,
                                .min_lr = 0.001,
                                .warmup_steps = 24,
                                .decay_steps = 144,
                                .decay_style = "cosine",
                                .start_wd = 0.01,
                                .end_wd = 0.1,
                                .wd_incr_steps = 160,
                                .wd_incr_style = "linear"};
}

/* A run of Megatron-LM: cosine after a warm-up, from 5e-3 to 5e-4. */
struct run_lengths {
    const char *name;
    struct lr_lengths lengths;
};

static void check_run(const struct run_lengths *r)
{
    struct golden_run run;
    struct lr_schedule s = {.max_lr = 0.005,
                            .min_lr = 0.0005,
                            .decay_style = "cosine",
                            .start_wd = 0.01,
                            .end_wd = 0.1,
                            .wd_incr_style = "cosine"};
    golden_read(&run, r->name);
    assert_ok(lr_schedule_set_lengths(&s, &r->lengths, 8, &err));
    assert_ok(lr_schedule_start(&s, &err));
    for (size_t i = 0; i < run.num_steps; i++) {
        const struct golden_step *g = &run.steps[i];
        const uint64_t batch = g->consumed_samples - (i ? g[-1].consumed_samples : 0);
        if (s.lr != g->lr || s.weight_decay != g->weight_decay)
            fail_msg("%s, iteration %zu: lr %.17g, weight decay %.17g", r->name, i + 1, s.lr,
                     s.weight_decay);
        lr_schedule_step(&s, g->skipped ? 0 : batch);
        assert_true(s.lr == g->logged_lr);
    }
}

static void each_step_of_a_run_has_megatrons_values(void **state)
{
    (void)state;
    static const struct run_lengths runs[] = {
        {"fp32", {.train_iters = 20, .warmup_iters = 4, .warmup_fraction = NAN}},
        {"bf16-dp2", {.train_iters = 20, .warmup_iters = 4, .warmup_fraction = NAN}},
        {"fp16-overflow", {.train_iters = 40, .warmup_iters = 4, .warmup_fraction = NAN}},
        {"fp32-batch-schedule",
         {.train_samples = 160,
          .decay_samples = 144,
          .warmup_samples = 24,
          .warmup_fraction = NAN}},
    };
    for (size_t i = 0; i < COUNT(runs); i++)
        check_run(&runs[i]);
}

static void a_warm_up_may_end_between_two_samples(void **state)
{
    (void)state;
    struct lr_schedule s = cosine();
    s.warmup_steps = 0.17 * 144; /* 24.48 */
    assert_ok(lr_schedule_start(&s, &err));
    assert_true(s.lr == 0);
    assert_true(lr_schedule_lr(&s, 24) == 0.01 * 24 / (0.17 * 144));
    assert_true(lr_schedule_lr(&s, 25) < 0.01 && lr_schedule_lr(&s, 25) > 0.0099);
    assert_true(lr_schedule_lr(&s, 144) == 0.001 && lr_schedule_lr(&s, 1000) == 0.001);
}

static void a_group_may_have_bounds_of_its_own(void **state)
{
    (void)state;
    struct lr_schedule s = cosine();
    assert_ok(lr_schedule_start(&s, &err));
    assert_true(lr_schedule_lr_between(&s, 12, 0.5, 0.25) == 0.25);
    assert_true(lr_schedule_lr_between(&s, 145, 0.5, 0.25) == 0.25);
    assert_true(lr_schedule_lr_between(&s, 24, 0.5, 0.25) == 0.5);
}

static void contradictions_are_refused_by_the_name_of_the_option(void **state)
{
    (void)state;
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        struct lr_schedule s = cosine();                                                           \
        change;                                                                                    \
        assert_fails(lr_schedule_start(&s, &err), ERR_USAGE, text);                                \
    } while (0)
    REFUSED(s.min_lr = -1, "--min-lr -1");
    REFUSED(s.max_lr = NAN, "--lr nan");
    REFUSED(s.min_lr = 0.02, "--min-lr 0.02 is above --lr 0.01");
    REFUSED(s.init_lr = 0.02, "--lr-warmup-init 0.02 is above --lr 0.01");
    REFUSED(s.warmup_steps = 144, "warm-up of 144 samples is not shorter than its decay of 144");
    REFUSED(s.warmup_steps = NAN, "warm-up of nan samples");
    REFUSED(s.decay_steps = 0, "decays over 0 samples");
    REFUSED(s.decay_style = "wsd", "--lr-decay-style wsd is not a known style");
    REFUSED(s.decay_style = NULL, "--lr-decay-style (none) is not a known style");
    REFUSED(s.decay_style = "WSD", "--lr-wsd-decay-style (none)");
    REFUSED((s.decay_style = "WSD", s.wsd_style = "cosine"), "needs --lr-wsd-decay-iters");
    REFUSED(s.wd_incr_style = "sqrt", "--weight-decay-incr-style sqrt is not a known style");
    REFUSED(s.wd_incr_style = "constant", "conflicts with a weight decay from 0.01 to 0.1");
    REFUSED(s.end_wd = 0.001, "--end-weight-decay 0.001");
    REFUSED(s.wd_incr_steps = 0, "weight decay increases over 0 samples");
#undef REFUSED
}

static void iterations_count_samples(void **state)
{
    (void)state;
    struct lr_schedule s = cosine();
    struct lr_lengths l = {.train_iters = 20, .warmup_iters = 4, .warmup_fraction = NAN};
    assert_ok(lr_schedule_set_lengths(&s, &l, 8, &err));
    assert_true(s.decay_steps == 160 && s.wd_incr_steps == 160 && s.warmup_steps == 32);
    l = (struct lr_lengths){
        .train_iters = 20, .decay_iters = 10, .warmup_fraction = 0.01, .wsd_decay_iters = 3};
    assert_ok(lr_schedule_set_lengths(&s, &l, 8, &err));
    assert_true(s.decay_steps == 80 && s.wd_incr_steps == 160 && s.wsd_decay_steps == 24);
    assert_true(s.warmup_steps == 0.01 * 80);
    l = (struct lr_lengths){
        .train_samples = 160, .decay_samples = 144, .warmup_samples = 24, .warmup_fraction = NAN};
    assert_ok(lr_schedule_set_lengths(&s, &l, 8, &err));
    assert_true(s.decay_steps == 144 && s.wd_incr_steps == 160 && s.warmup_steps == 24);
}

static void lengths_that_contradict_are_refused(void **state)
{
    (void)state;
    struct lr_schedule s = cosine();
    struct lr_lengths l = {.warmup_fraction = NAN};
    assert_fails(lr_schedule_set_lengths(&s, &l, 8, &err), ERR_USAGE, "give one of --train-iters");
    l.train_iters = l.train_samples = 1;
    assert_fails(lr_schedule_set_lengths(&s, &l, 8, &err), ERR_USAGE, "give one of --train-iters");
    l.train_iters = 0;
    l.warmup_iters = 1;
    assert_fails(lr_schedule_set_lengths(&s, &l, 8, &err), ERR_USAGE, "--lr-...-samples");
    l = (struct lr_lengths){.train_iters = 1, .warmup_iters = 1, .warmup_fraction = 0.5};
    assert_fails(lr_schedule_set_lengths(&s, &l, 8, &err), ERR_USAGE, "--lr-warmup-fraction");
    l = (struct lr_lengths){.train_iters = UINT64_MAX, .warmup_fraction = NAN};
    assert_fails(lr_schedule_set_lengths(&s, &l, 8, &err), ERR_USAGE, "exceeds 64 bits");
}

static void a_saved_schedule_goes_on_where_it_stood(void **state)
{
    (void)state;
    struct lr_schedule s = cosine(), again = cosine();
    struct training t;
    assert_ok(lr_schedule_start(&s, &err));
    lr_schedule_step(&s, 40);
    training_init(&t);
    lr_schedule_save(&s, &t);
    assert_true(t.num_steps == 40 && t.lr_warmup_steps == 24 && t.end_wd == 0.1);
    assert_ok(lr_schedule_start(&again, &err));
    assert_ok(lr_schedule_load(&again, &t, LR_CONFLICT_FAILS, &err));
    for (int i = 0; i < 20; i++, lr_schedule_step(&s, 8), lr_schedule_step(&again, 8))
        assert_true(again.num_steps == s.num_steps && again.lr == s.lr &&
                    again.weight_decay == s.weight_decay);
}

static void a_checkpoint_that_differs_is_refused_unless_one_option_decides(void **state)
{
    (void)state;
    struct lr_schedule s = cosine();
    struct training t;
    assert_ok(lr_schedule_start(&s, &err));
    training_init(&t);
    lr_schedule_save(&s, &t);
    t.num_steps = 40, t.consumed_train_samples = 56, t.max_lr = 0.02, t.lr_decay_style = "linear";
    t.end_wd = 0.2;
    assert_fails(lr_schedule_load(&s, &t, LR_CONFLICT_FAILS, &err), ERR_USAGE,
                 "learning rate: 0.01 is given, but the checkpoint has 0.02; "
                 "--override-opt_param-scheduler");
    assert_true(s.max_lr == 0.01 && s.num_steps == 0);
    assert_ok(lr_schedule_load(&s, &t, LR_CONFLICT_USES_GIVEN, &err));
    assert_true(s.max_lr == 0.01 && s.num_steps == 56 && s.lr == lr_schedule_lr(&s, 56));
    s = cosine();
    assert_ok(lr_schedule_load(&s, &t, LR_CONFLICT_USES_CHECKPOINT, &err));
    assert_true(s.max_lr == 0.02 && s.num_steps == 40 && s.lr == lr_schedule_lr(&s, 40));
    assert_string_equal(s.decay_style, "linear");
    /* The first weight decay is that of the command line, the next that of the
     * checkpoint. */
    const struct lr_schedule given = cosine();
    assert_true(s.end_wd == 0.2 && s.weight_decay == lr_schedule_weight_decay(&given, 40));
    lr_schedule_step(&s, 8);
    assert_true(s.weight_decay == lr_schedule_weight_decay(&s, 48));
}

static void what_a_checkpoint_lacks_is_kept(void **state)
{
    (void)state;
    struct lr_schedule s = cosine();
    struct training t;
    training_init(&t);
    t.num_steps = 16;
    assert_ok(lr_schedule_load(&s, &t, LR_CONFLICT_FAILS, &err));
    assert_true(s.max_lr == 0.01 && s.num_steps == 16);
    t.lr_decay_style = "sigmoid";
    assert_fails(lr_schedule_load(&s, &t, LR_CONFLICT_USES_CHECKPOINT, &err), ERR_USAGE,
                 "the schedule of the checkpoint: --lr-decay-style sigmoid is not a known style");
    assert_true(s.num_steps == 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_styles_equal_those_of_megatron_bit_for_bit),
        cmocka_unit_test(each_step_of_a_run_has_megatrons_values),
        cmocka_unit_test(a_warm_up_may_end_between_two_samples),
        cmocka_unit_test(a_group_may_have_bounds_of_its_own),
        cmocka_unit_test(contradictions_are_refused_by_the_name_of_the_option),
        cmocka_unit_test(iterations_count_samples),
        cmocka_unit_test(lengths_that_contradict_are_refused),
        cmocka_unit_test(a_saved_schedule_goes_on_where_it_stood),
        cmocka_unit_test(a_checkpoint_that_differs_is_refused_unless_one_option_decides),
        cmocka_unit_test(what_a_checkpoint_lacks_is_kept),
    };
    return cmocka_run_group_tests_name("lr_schedule", tests, NULL, NULL);
}
