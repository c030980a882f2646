#include "convert/megatron/optim/training_source.h"

#include "convert/megatron/optim/testing_values.h"

static struct checkpoint c;

/* Reads an optimizer of so many groups, whose learning rates are tensors. */
static void read_groups(int count)
{
    struct training_source s;
    struct value *optimizer = value_dict(&scratch),
                 *groups = value_list(&scratch, VALUE_LIST, 0, NULL);
    for (int i = 0; i < count; i++)
        value_append(&scratch, groups,
                     python(arena_printf(&scratch, "{'wd_mult': %d.5, 'lr': T}", i)));
    value_dict_add(&scratch, optimizer, "param_groups", groups);
    const char *path = write_value("optimizer.pt", optimizer);
    checkpoint_init(&c, "test");
    c.training.optimizer.present = true;
    training_source_begin(&s, &c);
    training_source_optimizer(&s, optimizer, 0, path, 0, UINT64_MAX);
    training_source_optimizer(&s, optimizer, 0, path, 0, UINT64_MAX); /* of another rank */
    training_source_end(&s);
}

static void numbers_are_read_of_the_tensors_of_their_archive(void **state)
{
    (void)state;
    read_groups(64);
    assert_null(c.training.optimizer.unread);
    assert_int_equal(c.training.run.num_groups, 64);
    assert_true(c.training.run.groups[63].lr <= 0 && c.training.run.groups[63].lr >= 0);
    assert_true(c.training.run.groups[63].wd_mult > 63);
    checkpoint_release(&c);
}

/* Each is a reading of the whole pickle. */
static void many_numbers_in_tensors_are_unread(void **state)
{
    (void)state;
    read_groups(65);
    assert_non_null(strstr(c.training.optimizer.unread,
                           "optimizer.pt: more than 64 training numbers are tensors"));
    checkpoint_release(&c);
}

/* The weights can be read all the same. */
static void what_cannot_be_read_is_noted_where_there_are_no_states(void **state)
{
    (void)state;
    struct training_source s;
    checkpoint_init(&c, "test");
    c.training.common = python("{'iteration': 'x'}");
    training_source_begin(&s, &c);
    training_source_common(&s, "common.pt", 0, UINT64_MAX);
    training_source_end(&s);
    assert_null(c.training.optimizer.unread);
    assert_int_equal(c.notes.count, 1);
    assert_non_null(strstr(c.notes.lines[0], "iteration is 'x' (str)"));
    checkpoint_release(&c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_are_read_of_the_tensors_of_their_archive),
        TEST(many_numbers_in_tensors_are_unread),
        TEST(what_cannot_be_read_is_noted_where_there_are_no_states),
    };
    return cmocka_run_group_tests_name("training_source", tests, NULL, NULL);
}
