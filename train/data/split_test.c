#include "train/data/split.h"

#include "tests/testing.h"

static struct error err;

/* Borders as Python has them: numpy for the shares, round() half to even. */
static const struct {
    const char *text;
    uint64_t num_sequences, borders[NUM_SPLITS + 1];
} golden[] = {
    {"969,30,1", 600, {0, 581, 599, 600}},
    {"969, 30, 1", 600, {0, 581, 599, 600}},
    {"1,1,1", 10, {0, 3, 7, 10}},
    {"0,100,0", 7, {0, 0, 7, 7}},
    {"98.5,1,0.5", 201, {0, 198, 200, 201}},
    {"1,1,0", 5, {0, 2, 5, 5}},
    {"1/1/0", 5, {0, 2, 5, 5}},
    {"100", 4, {0, 4, 4, 4}},
    {"969,30,1", 0, {0, 0, 0, 0}},
};

static void borders_are_pythons(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        struct split_shares s;
        assert_ok(split_parse(&s, golden[i].text, &err));
        for (unsigned k = 0; k < NUM_SPLITS; k++) {
            uint64_t first, past;
            split_range(&s, (enum data_split)k, golden[i].num_sequences, &first, &past);
            assert_int_equal(first, golden[i].borders[k]);
            assert_int_equal(past, golden[i].borders[k + 1]);
        }
    }
}

static void share_of_zero_is_none(void **state)
{
    struct split_shares s;
    (void)state;
    assert_ok(split_parse(&s, "0,7,0", &err));
    assert_false(split_has_share(&s, SPLIT_TRAIN));
    assert_true(split_has_share(&s, SPLIT_VALID));
    assert_false(split_has_share(&s, SPLIT_TEST));
}

static void what_is_no_split_is_refused(void **state)
{
    struct split_shares s;
    (void)state;
    assert_fails(split_parse(&s, "1,2,3,4", &err), ERR_USAGE,
                 "--split 1,2,3,4: expected at most three");
    assert_fails(split_parse(&s, "0,0,0", &err), ERR_USAGE, "add up to 0");
    assert_fails(split_parse(&s, "", &err), ERR_USAGE, "add up to 0");
    assert_fails(split_parse(&s, "90,ten", &err), ERR_USAGE, "--split 90,ten: \"ten\"");
    assert_fails(split_parse(&s, "90,-5", &err), ERR_USAGE, "\"-5\"");
    assert_fails(split_parse(&s, "1e3", &err), ERR_USAGE, "\"1e3\"");
    assert_fails(split_parse(&s, "inf", &err), ERR_USAGE, "\"inf\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borders_are_pythons),
        cmocka_unit_test(share_of_zero_is_none),
        cmocka_unit_test(what_is_no_split_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
