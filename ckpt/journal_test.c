/* Journals: what was appended is read, up to the first record that is not
 * whole. */
#include "ckpt/journal.h"

#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static const char mine[] = "0123456789abcdef rank 0 of 1", other[] = "0123456789abcdef rank 0 of 2";
static char path[TEMPORARY_PATH];

enum { TASKS = 5 };

static struct journal_task task_of(uint64_t n)
{
    return (struct journal_task){.task = n,
                                 .item = 10 * n,
                                 .counts = n % 2,
                                 .bytes = 1000 + n,
                                 .read = {{n + 1, n + 2}},
                                 .written = {{n + 3, n + 4}},
                                 .cast_elements = n + 5,
                                 .changed_elements = n + 6,
                                 .non_finite = n + 7,
                                 .overflowed = n + 8,
                                 .num_runs = n % 3};
}

static enum status check(void *context, const struct journal_task *t,
                         const struct journal_run *runs, struct error *err)
{
    uint64_t *n = context;
    struct journal_task want = task_of(*n);
    (void)err;
    assert_memory_equal(t, &want, sizeof want);
    for (uint64_t i = 0; i < t->num_runs; i++) {
        struct journal_run run = {*n, i, 100 + i, 200 + i};
        assert_memory_equal(&runs[i], &run, sizeof run);
    }
    ++*n;
    return OK;
}

/* Appends tasks 0 to TASKS - 1, two by two; ends[i]: size of the file behind
 * task i. */
static void write_journal(off_t ends[TASKS])
{
    struct error err;
    struct stat s;
    (void)unlink(path);
    for (uint64_t n = 0; n < TASKS; n++) {
        struct strbuf records = {0};
        struct journal_task t = task_of(n);
        struct journal_run runs[3] = {{n, 0, 100, 200}, {n, 1, 101, 201}, {n, 2, 102, 202}};
        journal_add(&records, &t, t.num_runs ? runs : NULL);
        assert_ok(journal_append(path, mine, &records, n % 2, &err));
        strbuf_release(&records);
        assert_int_equal(stat(path, &s), 0);
        ends[n] = s.st_size;
    }
}

static void what_is_appended_is_read(void **state)
{
    (void)state;
    off_t ends[TASKS];
    struct error err;
    uint64_t n = 0;
    write_journal(ends);
    assert_ok(journal_read(path, mine, true, check, &n, &err));
    assert_int_equal(n, TASKS);
}

static void a_journal_ends_where_a_record_is_not_whole(void **state)
{
    (void)state;
    off_t ends[TASKS];
    struct error err;
    write_journal(ends);
    for (off_t size = ends[TASKS - 1]; size >= 0; size--) {
        struct stat s;
        uint64_t n = 0, whole = 0;
        assert_int_equal(truncate(path, size), 0);
        while (whole < TASKS && ends[whole] <= size)
            whole++;
        assert_ok(journal_read(path, mine, true, check, &n, &err));
        assert_int_equal(n, whole);
        assert_int_equal(stat(path, &s), 0); /* what can be appended to again */
        if (size < ends[0]) assert_in_range(s.st_size, 0, size);
        if (whole) assert_int_equal(s.st_size, ends[whole - 1]);
        size = s.st_size < size && whole ? ends[whole - 1] : size;
    }
}

static void a_changed_byte_ends_it(void **state)
{
    (void)state;
    off_t ends[TASKS];
    struct error err;
    write_journal(ends);
    struct strbuf whole = {0};
    assert_ok(file_read_all(path, 1 << 20, &whole, &err));
    for (off_t at = ends[1]; at < ends[2]; at++) {
        uint64_t n = 0;
        whole.data[at] ^= 1;
        assert_ok(path_remove(path, &err));
        assert_ok(file_write_all(path, whole.data, whole.length, false, &err));
        whole.data[at] ^= 1;
        assert_ok(journal_read(path, mine, true, check, &n, &err));
        assert_int_equal(n, 2);
    }
    strbuf_release(&whole);
}

static void a_journal_of_another_plan_is_refused(void **state)
{
    (void)state;
    off_t ends[TASKS];
    struct error err;
    uint64_t n = 0;
    write_journal(ends);
    assert_fails(journal_read(path, other, true, check, &n, &err), ERR_EXISTS,
                 "belongs to an interrupted run with other arguments or another source");
    assert_int_equal(n, 0);
}

static void none_has_no_records(void **state)
{
    (void)state;
    struct error err;
    uint64_t n = 0;
    (void)unlink(path);
    assert_ok(journal_read(path, mine, true, check, &n, &err));
    assert_int_equal(n, 0);
}

/* In each length that a kill can leave it in. */
static void a_summary_adds_up_what_whole_records_wrote(void **state)
{
    (void)state;
    off_t ends[TASKS];
    struct arena a;
    arena_init(&a);
    (void)unlink(path);
    assert_null(journal_summarize(path, &a).work);
    write_journal(ends);
    for (off_t size = ends[TASKS - 1]; size >= 0; size--) {
        uint64_t bytes = 0;
        assert_int_equal(truncate(path, size), 0);
        for (uint64_t n = 0; n < TASKS && ends[n] <= size; n++)
            bytes += 1000 + n;
        struct journal_summary s = journal_summarize(path, &a);
        assert_int_equal(s.bytes, bytes);
        if (bytes) assert_true(s.known && strcmp(s.work, mine) == 0);
        if (!s.work)
            assert_in_range(size, 0, (off_t)strlen("ferry journal 4 ") + (off_t)strlen(mine));
    }
    (void)unlink(path);
    struct error err;
    assert_ok(file_write_all(path, "ferry journal 3 x\n", 18, false, &err));
    struct journal_summary s = journal_summarize(path, &a);
    assert_true(s.work && !s.known && !s.bytes);
    arena_release(&a);
}

static int make_name(void **state)
{
    (void)state;
    int fd = temporary_file(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_name(void **state)
{
    (void)state;
    (void)unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_appended_is_read),
        cmocka_unit_test(a_journal_ends_where_a_record_is_not_whole),
        cmocka_unit_test(a_changed_byte_ends_it),
        cmocka_unit_test(a_journal_of_another_plan_is_refused),
        cmocka_unit_test(none_has_no_records),
        cmocka_unit_test(a_summary_adds_up_what_whole_records_wrote),
    };
    return cmocka_run_group_tests_name("journal", tests, make_name, remove_name);
}
