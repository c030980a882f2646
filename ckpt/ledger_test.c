#include "ckpt/ledger.h"

#include <unistd.h>

#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

enum { TASKS = 6 };

static char folder[TEMPORARY_PATH];
static char paths[2][TEMPORARY_PATH + 16]; /* of two ranks' journals */

static unsigned times_durable;
static enum status disk; /* the status of writes to the disk */

static enum status make_durable(void *context, struct error *err)
{
    (void)context;
    times_durable++;
    return disk ? fail(err, disk, "the disk is full") : OK;
}

static struct ledger ledger_of(unsigned rank)
{
    const struct ledger_options o = {.path = paths[rank],
                                     .work = "test",
                                     .rank = rank,
                                     .flush_bytes = 100,
                                     .make_durable = make_durable};
    struct ledger l;
    ledger_init(&l, &o);
    return l;
}

/* One run of `bytes` for each task, in segment 7. */
static bool enter(struct ledger *l, uint64_t task, bool counts, uint64_t bytes)
{
    const struct journal_task t = {
        .task = task, .item = task, .counts = counts, .bytes = bytes, .num_runs = 1};
    const struct journal_run run = {7, 0, bytes, 0};
    return ledger_enter(l, &t, &run);
}

/* Tasks 0 to 3 are in rank 0's journal, two by two. */
static void write_journal(void)
{
    struct error err = {0};
    struct ledger l = ledger_of(0);
    times_durable = 0;
    assert_false(enter(&l, 0, true, 99));
    assert_true(enter(&l, 1, true, 1));
    assert_ok(ledger_flush(&l, &err));
    assert_true(l.in_journal);
    assert_false(enter(&l, 2, true, 10));
    assert_false(enter(&l, 3, true, 10));
    assert_ok(ledger_flush(&l, &err));
    assert_ok(ledger_flush(&l, &err)); /* of nothing */
    assert_int_equal(times_durable, 2);
    ledger_release(&l);
}

/* Counts the calls, and holds what is even. */
static enum status take_even(void *context, const struct journal_task *t,
                             const struct journal_run *runs, bool *holds, struct error *err)
{
    (void)err;
    ++*(unsigned *)context;
    assert_int_equal(t->num_runs, 1);
    assert_int_equal(runs[0].segment, 7);
    *holds = t->task % 2 == 0;
    return OK;
}

static void what_still_holds_is_gone_on_with(void **state)
{
    (void)state;
    struct error err = {0};
    unsigned taken = 0;
    write_journal();
    struct ledger l = ledger_of(0);
    assert_false(ledger_is_done(&l, 0));
    assert_ok(ledger_resume(&l, TASKS, take_even, &taken, &err));
    assert_int_equal(taken, 4);
    for (size_t i = 0; i < TASKS; i++)
        assert_int_equal(ledger_is_done(&l, i), i == 0 || i == 2);
    assert_true(l.in_journal);
    assert_false(enter(&l, 0, true, 1000)); /* it is there already */
    assert_true(enter(&l, 1, true, 1000));
    assert_ok(ledger_flush(&l, &err));
    ledger_release(&l);

    l = ledger_of(0);
    taken = 0;
    assert_ok(ledger_resume(&l, TASKS, take_even, &taken, &err));
    assert_int_equal(taken, 3); /* 0, 2 and the new 1 */
    ledger_release(&l);
}

static void nothing_is_told_before_the_disk_has_it(void **state)
{
    (void)state;
    struct error err = {0};
    struct ledger l = ledger_of(0);
    assert_true(enter(&l, 0, true, 100));
    disk = ERR_IO;
    assert_fails(ledger_flush(&l, &err), ERR_IO, "the disk is full");
    disk = OK;
    assert_false(l.in_journal);
    assert_false(path_exists(paths[0]));
    ledger_release(&l);
}

static void a_journal_of_fewer_tasks_is_refused(void **state)
{
    (void)state;
    struct error err = {0};
    unsigned taken = 0;
    write_journal();
    struct ledger l = ledger_of(0);
    assert_fails(ledger_resume(&l, 3, take_even, &taken, &err), ERR_OURS, "the run has");
    assert_int_equal(taken, 3);
    ledger_release(&l);
}

static enum status count_item(void *context, const struct journal_task *t,
                              const struct journal_run *runs, struct error *err)
{
    unsigned *counted = context;
    if (t->item == 5) return fail(err, ERR_OURS, "five");
    (void)runs;
    counted[t->item] += t->counts != 0;
    return OK;
}

static void ranks_count_every_task_once(void **state)
{
    (void)state;
    const char *const journals[] = {paths[0], paths[1]};
    struct error err = {0};
    unsigned counted[TASKS] = {0};
    write_journal();
    struct ledger l = ledger_of(1);
    (void)enter(&l, 3, false, 1); /* rank 0 counts the part that it holds */
    (void)enter(&l, 4, true, 1);
    (void)enter(&l, 4, true, 1);
    assert_ok(ledger_flush(&l, &err));
    assert_ok(ledger_join(journals, 2, "test", 5, count_item, counted, &err));
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(counted[i], 1);
    assert_fails(ledger_join(journals, 2, "test", 6, count_item, counted, &err), ERR_RANK,
                 "the ranks' journals record 5 of the plan's 6 tasks");
    assert_fails(ledger_join(journals, 2, "test", 4, count_item, counted, &err), ERR_OURS,
                 "the run has");
    assert_fails(ledger_join(journals, 2, "other", 5, count_item, counted, &err), ERR_EXISTS,
                 "with other arguments");
    (void)enter(&l, 5, true, 1);
    assert_ok(ledger_flush(&l, &err));
    assert_fails(ledger_join(journals, 2, "test", 6, count_item, counted, &err), ERR_OURS,
                 "journal-1: five");
    ledger_release(&l);
}

static int make_folder(void **state)
{
    (void)state;
    if (!temporary_folder(folder)) return -1;
    for (unsigned r = 0; r < 2; r++)
        snprintf(paths[r], sizeof paths[r], "%s/journal-%u", folder, r);
    return 0;
}

static int remove_journals(void **state)
{
    (void)state;
    for (unsigned r = 0; r < 2; r++)
        (void)unlink(paths[r]);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_still_holds_is_gone_on_with, remove_journals),
        cmocka_unit_test_teardown(nothing_is_told_before_the_disk_has_it, remove_journals),
        cmocka_unit_test_teardown(a_journal_of_fewer_tasks_is_refused, remove_journals),
        cmocka_unit_test_teardown(ranks_count_every_task_once, remove_journals),
    };
    return cmocka_run_group_tests_name("ledger", tests, make_folder, remove_folder);
}
