#include "convert/deepspeed/zero_layout.h"

#include "common/count.h"
#include "tests/testing.h"

/* Group sizes and parts that DeepSpeed 0.14.4 wrote for 2 ranks. */
static void a_group_is_padded_to_twice_the_ranks(void **state)
{
    (void)state;
    assert_int_equal(zero_padded(50, 2), 52);
    assert_int_equal(zero_rank_padding(50, 2, 0), 0);
    assert_int_equal(zero_rank_padding(50, 2, 1), 2);
    assert_int_equal(zero_padded(5, 2), 8);
    assert_int_equal(zero_rank_padding(5, 2, 0), 0);
    assert_int_equal(zero_rank_padding(5, 2, 1), 3);
    assert_int_equal(zero_padded(52, 2), 52);
    assert_int_equal(zero_padded(0, 2), 0);
}

static void trailing_ranks_may_be_padding_alone(void **state)
{
    (void)state;
    assert_int_equal(zero_padded(3, 4), 8);
    assert_int_equal(zero_rank_padding(3, 4, 0), 0);
    assert_int_equal(zero_rank_padding(3, 4, 1), 1);
    assert_int_equal(zero_rank_padding(3, 4, 2), 2);
    assert_int_equal(zero_rank_padding(3, 4, 3), 2);
}

/* DeepSpeed 0.19.8 with parameter_alignment: numel 738, 324, 108 have paddings
 * of 6, 4, 4; the group ends at 3474 + 40, and is 3516 long for 2 ranks. */
static void parameters_are_aligned_by_the_copy_that_computes(void **state)
{
    (void)state;
    static const uint64_t numels[] = {738, 324, 108, 108, 324, 378, 378, 378, 738};
    static const uint64_t begins[] = {0, 744, 1072, 1184, 1296, 1624, 2008, 2392, 2776};
    struct zero_place places[COUNT(numels)];
    uint64_t padding[COUNT(numels)] = {0};
    assert_int_equal(zero_alignment_padding(738, 2), 6);
    assert_int_equal(zero_alignment_padding(324, 2), 4);
    assert_int_equal(zero_alignment_padding(108, 2), 4);
    assert_int_equal(zero_alignment_padding(738, 4), 2);
    assert_int_equal(zero_alignment_padding(744, 2), 0);
    for (size_t i = 0; i < COUNT(numels); i++) {
        places[i].numel = numels[i];
        padding[i] = i + 1 < COUNT(numels) ? zero_alignment_padding(numels[i], 2) : 0;
    }
    const uint64_t end = zero_place_group(places, COUNT(numels), padding);
    for (size_t i = 0; i < COUNT(numels); i++)
        assert_int_equal(places[i].begin, begins[i]);
    assert_int_equal(end, 3474 + 40);
    assert_int_equal(zero_padded(end, 2), 3516);
    assert_int_equal(zero_rank_padding(end, 2, 1), 2);
}

static void parameters_without_alignment_have_no_gaps(void **state)
{
    (void)state;
    struct zero_place places[] = {{15, 0}, {35, 0}, {UINT64_MAX, 0}, {1, 0}};
    assert_int_equal(zero_place_group(places, 2, NULL), 50);
    assert_int_equal(places[1].begin, 15);
    assert_int_equal(zero_place_group(places, 4, NULL), UINT64_MAX);
    assert_int_equal(zero_place_group(places, 0, NULL), 0);
}

static void stage_3_pads_each_parameter(void **state)
{
    (void)state;
    assert_int_equal(zero3_part(15, 2), 8);
    assert_int_equal(zero3_part(35, 2), 18);
    assert_int_equal(zero3_part(5, 2), 3);
    assert_int_equal(zero3_part(1, 4), 1);
}

/* It closes with the parameter that reaches the size; the sum is of a rank's
 * parts. */
static void a_sub_group_closes_when_it_reaches_its_size(void **state)
{
    (void)state;
    static const uint64_t numels[] = {738, 324, 1500, 4, 4};
    size_t sub_group[COUNT(numels)];
    assert_int_equal(zero3_sub_groups(numels, COUNT(numels), 4, 260, sub_group), 3);
    static const size_t wanted[] = {0, 0, 1, 2, 2};
    for (size_t i = 0; i < COUNT(numels); i++)
        assert_int_equal(sub_group[i], wanted[i]);
    assert_int_equal(zero3_sub_groups(numels, 3, 4, 1, sub_group), 3);
    assert_int_equal(zero3_sub_groups(numels, 0, 4, 1, sub_group), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_padded_to_twice_the_ranks),
        cmocka_unit_test(trailing_ranks_may_be_padding_alone),
        cmocka_unit_test(parameters_are_aligned_by_the_copy_that_computes),
        cmocka_unit_test(parameters_without_alignment_have_no_gaps),
        cmocka_unit_test(stage_3_pads_each_parameter),
        cmocka_unit_test(a_sub_group_closes_when_it_reaches_its_size),
    };
    return cmocka_run_group_tests_name("zero_layout", tests, NULL, NULL);
}
