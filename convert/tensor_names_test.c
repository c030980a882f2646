#include "convert/tensor_names.h"

#include "tests/testing.h"

static void distances_count_edits(void **state)
{
    (void)state;
    assert_int_equal(glob_distance("norm", "norm"), 0);
    assert_int_equal(glob_distance("nrm", "norm"), 1);
    assert_int_equal(glob_distance("nomr", "norm"), 2);
    assert_int_equal(glob_distance("norms", "norm"), 1);
    assert_int_equal(glob_distance("", "norm"), 4);
    assert_int_equal(glob_distance("norm", ""), 4);
}

static void a_star_takes_anything_for_nothing(void **state)
{
    (void)state;
    assert_int_equal(glob_distance("*", "norm"), 0);
    assert_int_equal(glob_distance("*", ""), 0);
    assert_int_equal(glob_distance("l*.norm", "layers.3.norm"), 0);
    assert_int_equal(glob_distance("l*.nrm", "layers.3.norm"), 1);
    assert_int_equal(glob_distance("*norm", "normal"), 2);
    assert_int_equal(glob_distance("no?m", "norm"), 0);
    assert_int_equal(glob_distance("no?", "norm"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_count_edits),
        cmocka_unit_test(a_star_takes_anything_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
