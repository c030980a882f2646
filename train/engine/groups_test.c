#include "train/engine/groups.h"

#include "tests/testing.h"

static void check_group(const struct group_sizes *s, enum group_kind kind, unsigned rank,
                        const unsigned *expected, unsigned count)
{
    unsigned ranks[64], index;
    assert_int_equal(groups_members(s, kind, rank, ranks, &index), count);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(ranks[i], expected[i]);
    assert_int_equal(ranks[index], rank);
}

/* The example of megatron/core/parallel_state.py:initialize_model_parallel. */
static void sixteen_ranks_are_grouped_as_megatron_groups_them(void **state)
{
    (void)state;
    struct group_sizes s = {.tp = 2, .cp = 1, .dp = 2, .pp = 4, .etp = 2, .ep = 1};
    check_group(&s, GROUP_TP, 3, (unsigned[]){2, 3}, 2);
    check_group(&s, GROUP_DP, 0, (unsigned[]){0, 2}, 2);
    check_group(&s, GROUP_DP, 7, (unsigned[]){5, 7}, 2);
    check_group(&s, GROUP_PP, 0, (unsigned[]){0, 4, 8, 12}, 4);
    check_group(&s, GROUP_PP, 5, (unsigned[]){1, 5, 9, 13}, 4);
}

static void experts_have_a_grid_of_their_own(void **state)
{
    (void)state;
    struct group_sizes s = {.tp = 2, .cp = 1, .dp = 4, .pp = 1, .etp = 1, .ep = 4};
    check_group(&s, GROUP_EP, 1, (unsigned[]){0, 1, 2, 3}, 4);
    check_group(&s, GROUP_EP, 6, (unsigned[]){4, 5, 6, 7}, 4);
    check_group(&s, GROUP_EDP, 6, (unsigned[]){2, 6}, 2);
    check_group(&s, GROUP_ETP, 6, (unsigned[]){6}, 1);
    s.etp = 2;
    s.ep = 2;
    check_group(&s, GROUP_ETP, 3, (unsigned[]){2, 3}, 2);
    check_group(&s, GROUP_EP, 3, (unsigned[]){1, 3}, 2);
}

static void each_rank_is_in_one_group_of_each_kind(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 64; n++) {
        struct group_sizes s = {.tp = 1 + n % 2,
                                .cp = 1 + n / 2 % 2,
                                .pp = 1 + n / 4 % 2,
                                .etp = 1 + n / 8 % 2,
                                .ep = 1 + n / 16 % 4};
        s.dp = groups_least_dp(&s);
        unsigned world = groups_world_size(&s), ranks[64], index;
        for (unsigned k = 0; k < NUM_GROUP_KINDS; k++) {
            unsigned firsts = 0, size = 0;
            for (unsigned r = 0; r < world; r++) {
                size = groups_members(&s, (enum group_kind)k, r, ranks, &index);
                firsts += index == 0;
            }
            assert_int_equal(firsts * size, world);
        }
        for (unsigned r = 0; r < world; r++) {
            struct group_place at = groups_place(&s, r);
            assert_int_equal(at.tp + s.tp * (at.cp + s.cp * (at.dp + s.dp * at.pp)), r);
        }
    }
}

static void the_fewest_ranks_that_hold_all_experts_are_found(void **state)
{
    (void)state;
    struct group_sizes s = {.tp = 2, .cp = 1, .pp = 1, .etp = 1, .ep = 8};
    assert_int_equal(groups_least_dp(&s), 4);
    s.tp = 1;
    s.etp = 2;
    s.ep = 2;
    assert_int_equal(groups_least_dp(&s), 4);
    s.ep = 1;
    s.etp = 1;
    assert_int_equal(groups_least_dp(&s), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_ranks_are_grouped_as_megatron_groups_them),
        cmocka_unit_test(experts_have_a_grid_of_their_own),
        cmocka_unit_test(each_rank_is_in_one_group_of_each_kind),
        cmocka_unit_test(the_fewest_ranks_that_hold_all_experts_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
