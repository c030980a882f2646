#include "ckpt/checkpoint.h"

#include "tests/testing.h"

static struct checkpoint c;
static struct error err;

static int setup(void **state)
{
    (void)state;
    checkpoint_init(&c, "some/where");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    checkpoint_release(&c);
    return 0;
}

static void a_new_one_knows_its_path_alone(void **state)
{
    (void)state;
    assert_string_equal(c.path, "some/where");
    assert_int_equal(c.training.iteration, -1);
    assert_int_equal(c.catalog.num_tensors, 0);
    assert_ok(gaps_check(&c.gaps, c.path, &err));
}

static void missing_tensors_are_not_listed_without_end(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++)
        assert_ok(gaps_add_missing(&c.gaps, &c.arena, i ? "w" : "first", &err));
    assert_fails(gaps_add_missing(&c.gaps, &c.arena, "w", &err), ERR_CORRUPT,
                 "more than 100000 tensors of the model are missing; the first is "
                 "first");
}

static void notes_and_gaps_are_copied(void **state)
{
    (void)state;
    char name[] = "w";
    checkpoint_note(&c, "%d rows are cut", 7);
    assert_ok(gaps_add_missing(&c.gaps, &c.arena, name, &err));
    gaps_add_unexpected(&c.gaps, &c.arena, name);
    name[0] = 'x';
    assert_int_equal(c.notes.count, 1);
    assert_string_equal(c.notes.lines[0], "7 rows are cut");
    assert_string_equal(c.gaps.missing[0], "w");
    assert_string_equal(c.gaps.unexpected[0], "w");
    assert_fails(gaps_check(&c.gaps, c.path, &err), ERR_UNSUPPORTED,
                 "some/where: 1 tensor that the model map does not know: w; 1 tensor missing: w");
}

static void unknown_fields_are_found_by_name_and_by_glob(void **state)
{
    (void)state;
    char name[] = "qk_l2_norm";
    assert_false(unknown_fields_refused(&c.unknown));
    assert_null(unknown_fields_text(&c.unknown, true, &c.arena));
    unknown_fields_add(&c.unknown, &c.arena, "args", name, "True", false);
    unknown_fields_add(&c.unknown, &c.arena, "config.json", "rope.sections", "[1,2]", true);
    name[0] = 'x';
    assert_true(unknown_fields_refused(&c.unknown));
    assert_string_equal(unknown_fields_find(&c.unknown, "qk_l2_norm")->value, "True");
    assert_null(unknown_fields_find(&c.unknown, "qk_*"));
    assert_true(unknown_fields_match(&c.unknown, "qk_*"));
    assert_true(unknown_fields_match(&c.unknown, "rope.*"));
    assert_false(unknown_fields_match(&c.unknown, "rope"));
    c.unknown.items[0].allowed = true;
    assert_false(unknown_fields_refused(&c.unknown));
}

static void unknown_fields_read_as_a_short_line(void **state)
{
    (void)state;
    unknown_fields_add(&c.unknown, &c.arena, "args", "qk_l2_norm", "True", true);
    unknown_fields_add(&c.unknown, &c.arena, "args", "line", "a\nb", false);
    unknown_fields_add(&c.unknown, &c.arena, "config.json", "foo", "3", false);
    assert_string_equal(unknown_fields_text(&c.unknown, true, &c.arena),
                        "args: qk_l2_norm True, line a\\x0ab; config.json: foo 3");
    assert_string_equal(unknown_fields_text(&c.unknown, false, &c.arena),
                        "args: line a\\x0ab; config.json: foo 3");
    /* bytes 48 and 49 are one character */
    unknown_fields_add(&c.unknown, &c.arena, "config.json", "long",
                       "0123456789012345678901234567890123456789\u00e9\u00e9\u00e91\u00e9\u00e9",
                       false);
    unknown_fields_add(&c.unknown, &c.arena, "config.json", "fifth", "5", false);
    unknown_fields_add(&c.unknown, &c.arena, "config.json", "sixth", "6", false);
    unknown_fields_add(&c.unknown, &c.arena, "config.json", "seventh", "7", false);
    assert_string_equal(
        unknown_fields_text(&c.unknown, true, &c.arena),
        "args: qk_l2_norm True, line a\\x0ab; config.json: foo 3, long "
        "0123456789012345678901234567890123456789\u00e9\u00e9\u00e91.., fifth 5 and 2 more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_one_knows_its_path_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_tensors_are_not_listed_without_end, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(notes_and_gaps_are_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_fields_are_found_by_name_and_by_glob, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(unknown_fields_read_as_a_short_line, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
