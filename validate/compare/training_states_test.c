#include "validate/compare/training_states.h"

#include <math.h>

#include "common/count.h"
#include "tests/testing.h"

struct fixture {
    struct side sides[2];
    struct arena arena;
};

static void fixture_init(struct fixture *x)
{
    arena_init(&x->arena);
    sides_init(x->sides);
}

static void fixture_release(struct fixture *x)
{
    sides_release(x->sides);
    arena_release(&x->arena);
}

static struct training *run_of(struct fixture *x, unsigned side)
{
    return &x->sides[side].checkpoint.training.run;
}

static void add_group(struct fixture *x, unsigned side, const char *members, bool experts,
                      double lr)
{
    struct param_group *g = training_add_group(run_of(x, side), &x->arena);
    g->members = members;
    g->is_expert_parallel = experts;
    g->lr = lr;
}

static void fields_that_both_give_are_compared(void **state)
{
    (void)state;
    struct fixture x;
    fixture_init(&x);
    run_of(&x, 0)->step = 10;
    run_of(&x, 1)->step = 2;
    run_of(&x, 0)->max_lr = 0.5;
    struct training_comparison c = training_states_compare(x.sides, NULL, &x.arena);
    assert_true(c.compared);
    assert_int_equal(c.count, 1);
    assert_string_equal(c.differences[0].field, "step");
    assert_string_equal(c.differences[0].values[0], "10");
    assert_string_equal(c.differences[0].values[1], "2");
    fixture_release(&x);
}

static void iterations_do_not_count(void **state)
{
    (void)state;
    struct fixture x;
    fixture_init(&x);
    run_of(&x, 0)->iteration = 10;
    run_of(&x, 1)->iteration = 77;
    struct training_comparison c = training_states_compare(x.sides, NULL, &x.arena);
    assert_int_equal(c.count, 0);
    assert_string_equal(c.iterations, "the iterations differ: 10 in A, 77 in B");
    run_of(&x, 1)->iteration = 10;
    assert_null(training_states_compare(x.sides, NULL, &x.arena).iterations);
    fixture_release(&x);
}

static void groups_of_experts_depend_on_the_layout(void **state)
{
    (void)state;
    for (unsigned split = 0; split < 2; split++) {
        struct fixture x;
        fixture_init(&x);
        for (unsigned side = 0; side < 2; side++) {
            add_group(&x, side, "matrices", false, 0.1);
            add_group(&x, side, "vectors", false, 0.2);
        }
        add_group(&x, split, "matrices", true, 0.1);
        assert_int_equal(training_states_compare(x.sides, NULL, &x.arena).count, 0);
        add_group(&x, split, "vectors", true, 0.3);
        struct training_comparison c = training_states_compare(x.sides, NULL, &x.arena);
        assert_int_equal(c.count, 1);
        assert_string_equal(c.differences[0].values[split], "0.3");
        assert_int_equal(run_of(&x, 1 - split)->num_groups, 2);
        fixture_release(&x);
    }
}

static void a_group_that_one_side_lacks_is_a_difference(void **state)
{
    (void)state;
    struct fixture x;
    fixture_init(&x);
    add_group(&x, 0, "matrices", false, 0.1);
    add_group(&x, 1, "matrices", false, 0.1);
    add_group(&x, 1, "embeddings", true, 0.1);
    assert_int_equal(training_states_compare(x.sides, NULL, &x.arena).count, 1);
    fixture_release(&x);
}

/* Counts of differences, and of ignored ones. */
static void assert_ignores(struct fixture *x, const char *glob, size_t count, size_t num_ignored)
{
    const struct arg_list ignore = {&glob, 1};
    const struct training_comparison c = training_states_compare(x->sides, &ignore, &x->arena);
    struct error err;
    assert_ok(training_check_ignored(&ignore, x->sides, &x->arena, &err));
    assert_int_equal(c.count, count);
    assert_int_equal(c.num_ignored, num_ignored);
}

static void ignored_fields_do_not_count(void **state)
{
    (void)state;
    struct fixture x;
    fixture_init(&x);
    add_group(&x, 0, "matrices", false, 0.1);
    add_group(&x, 1, "matrices", false, 0.2);
    add_group(&x, 1, "vectors", false, 0.1);
    run_of(&x, 0)->num_steps = 1;
    run_of(&x, 1)->num_steps = 2;
    run_of(&x, 0)->iteration = 1;
    run_of(&x, 1)->iteration = 2;
    assert_ignores(&x, "step", 3, 0);
    assert_ignores(&x, "groups*", 1, 2);
    assert_ignores(&x, "groups[0].lr", 2, 1);
    assert_ignores(&x, "groups[*]", 2, 1);
    assert_ignores(&x, "groups[?].*", 2, 1);
    assert_ignores(&x, "*", 0, 4);
    fixture_release(&x);
}

static enum status check_glob(struct fixture *x, const char *glob, struct error *err)
{
    return training_check_ignored(&(struct arg_list){&glob, 1}, x->sides, &x->arena, err);
}

static void a_glob_of_no_field_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"lr", "groups", "groups[1].lr", "groups[0]lr", ""};
    struct fixture x;
    struct error err;
    fixture_init(&x);
    assert_ok(check_glob(&x, "groups[0].*", &err));
    for (unsigned i = 0; i < 2; i++)
        add_group(&x, i, "matrices", false, 0.1);
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_fails(check_glob(&x, wrong[i], &err), ERR_USAGE,
                     "matches no field of the training state");
    fixture_release(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_that_both_give_are_compared),
        cmocka_unit_test(iterations_do_not_count),
        cmocka_unit_test(groups_of_experts_depend_on_the_layout),
        cmocka_unit_test(a_group_that_one_side_lacks_is_a_difference),
        cmocka_unit_test(ignored_fields_do_not_count),
        cmocka_unit_test(a_glob_of_no_field_is_refused),
    };
    return cmocka_run_group_tests_name("training_states", tests, NULL, NULL);
}
