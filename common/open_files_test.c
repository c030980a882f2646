#include "common/open_files.h"

#include <errno.h>

#include "common/threads.h"
#include "tests/testing.h"

enum { FILES = 20 };

/* Files that are only counted. */
struct counted {
    struct open_files files;
    _Atomic unsigned open[FILES], opens, refusals, limit;
    bool closes_badly;
};
static struct counted x;
static struct error err;

static unsigned num_open(void)
{
    unsigned n = 0;
    for (size_t i = 0; i < FILES; i++)
        n += x.open[i];
    return n;
}

static enum status open_one(void *context, size_t file, struct error *e)
{
    struct counted *c = context;
    if (c->limit && num_open() >= c->limit) {
        c->refusals++;
        errno = EMFILE;
        return fail_errno(e, ERR_IO, "file %zu", file);
    }
    c->open[file]++;
    c->opens++;
    return OK;
}

static enum status close_one(void *context, size_t file, struct error *e)
{
    struct counted *c = context;
    c->open[file]--;
    return c->closes_badly ? fail(e, ERR_IO, "file %zu: close", file) : OK;
}

static void begin(size_t max_open)
{
    memset(&x, 0, sizeof x);
    open_files_init(&x.files, FILES, max_open, &x, open_one, close_one);
}

static void end(void)
{
    x.closes_badly = false;
    open_files_end(&x.files);
    assert_int_equal(num_open(), 0);
}

static void use(size_t file)
{
    assert_ok(open_files_acquire(&x.files, file, &err));
    assert_int_equal(x.open[file], 1);
    open_files_release(&x.files, file);
}

static void the_file_of_the_longest_rest_is_closed(void **state)
{
    (void)state;
    begin(3);
    for (size_t i = 0; i < 3; i++)
        use(i);
    use(0);
    assert_int_equal(x.opens, 3);
    use(3);
    assert_int_equal(x.open[0], 1);
    assert_int_equal(x.open[1], 0);
    use(4);
    assert_int_equal(x.open[2], 0);
    assert_int_equal(num_open(), 3);
    end();
}

static void acquired_files_stay_open_even_if_they_are_too_many(void **state)
{
    (void)state;
    begin(2);
    for (size_t i = 0; i < 4; i++)
        assert_ok(open_files_acquire(&x.files, i, &err));
    assert_ok(open_files_acquire(&x.files, 0, &err)); /* twice */
    assert_int_equal(num_open(), 4);
    for (size_t i = 0; i < 4; i++)
        open_files_release(&x.files, i);
    assert_ok(open_files_close(&x.files, 0, &err));
    assert_int_equal(x.open[0], 1); /* still used */
    use(5);
    assert_int_equal(num_open(), 2);
    open_files_release(&x.files, 0);
    assert_ok(open_files_close(&x.files, 0, &err));
    assert_ok(open_files_close(&x.files, 0, &err));
    assert_int_equal(x.open[0], 0);
    end();
}

static void at_the_limit_of_the_process_fewer_are_kept(void **state)
{
    (void)state;
    begin(10);
    x.limit = 4;
    for (size_t i = 0; i < 200; i++)
        use(i * 7 % FILES);
    assert_int_equal(x.refusals, 1);
    assert_int_equal(num_open(), 4);
    for (size_t i = 0; i < 4; i++)
        assert_ok(open_files_acquire(&x.files, i, &err));
    assert_fails(open_files_acquire(&x.files, 4, &err), ERR_IO, "file 4: Too many open files");
    for (size_t i = 0; i < 4; i++)
        open_files_release(&x.files, i);
    end();
}

static void a_close_that_fails_is_told(void **state)
{
    (void)state;
    begin(1);
    use(0);
    x.closes_badly = true;
    assert_fails(open_files_acquire(&x.files, 1, &err), ERR_IO, "file 0: close");
    assert_ok(open_files_acquire(&x.files, 1, &err));
    open_files_release(&x.files, 1);
    assert_fails(open_files_close(&x.files, 1, &err), ERR_IO, "file 1: close");
    end();
}

static enum status use_some(void *context, size_t index, unsigned worker, struct error *e)
{
    (void)context, (void)worker;
    const size_t file = index * 7 % FILES;
    TRY(open_files_acquire(&x.files, file, e));
    const bool open = x.open[file] == 1;
    open_files_release(&x.files, file);
    return open ? OK : fail(e, DIFFERENT, "file %zu is not open", file);
}

static void threads_share_the_files(void **state)
{
    (void)state;
    begin(2);
    assert_ok(threads_run(4, 4000, use_some, NULL, &err));
    use(0);
    assert_true(num_open() <= 2);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_of_the_longest_rest_is_closed),
        cmocka_unit_test(acquired_files_stay_open_even_if_they_are_too_many),
        cmocka_unit_test(at_the_limit_of_the_process_fewer_are_kept),
        cmocka_unit_test(a_close_that_fails_is_told),
        cmocka_unit_test(threads_share_the_files),
    };
    return cmocka_run_group_tests_name("open_files", tests, NULL, NULL);
}
