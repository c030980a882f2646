#include "validate/compare/training_states.h"

#include <math.h>

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
    struct training_comparison c = training_states_compare(x.sides, &x.arena);
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
    struct training_comparison c = training_states_compare(x.sides, &x.arena);
    assert_int_equal(c.count, 0);
    assert_string_equal(c.iterations, "the iterations differ: 10 in A, 77 in B");
    run_of(&x, 1)->iteration = 10;
    assert_null(training_states_compare(x.sides, &x.arena).iterations);
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
        assert_int_equal(training_states_compare(x.sides, &x.arena).count, 0);
        add_group(&x, split, "vectors", true, 0.3);
        struct training_comparison c = training_states_compare(x.sides, &x.arena);
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
    assert_int_equal(training_states_compare(x.sides, &x.arena).count, 1);
    fixture_release(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_that_both_give_are_compared),
        cmocka_unit_test(iterations_do_not_count),
        cmocka_unit_test(groups_of_experts_depend_on_the_layout),
        cmocka_unit_test(a_group_that_one_side_lacks_is_a_difference),
    };
    return cmocka_run_group_tests_name("training_states", tests, NULL, NULL);
}
