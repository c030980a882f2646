#include "common/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/folder.h"

static size_t count_files(void)
{
    struct name_list names;
    assert_ok(folder_list(folder, &arena, &names, &err));
    return names.count;
}

static void assert_text(const char *path, const char *text)
{
    struct strbuf got = {0};
    assert_ok(file_read_all(path, 100, &got, &err));
    assert_string_equal(got.data, text);
    strbuf_release(&got);
}

static void begin(struct new_file *f, bool nameless)
{
    assert_ok(new_file_open(f, in_folder("out"), nameless, &err));
    assert_ok(file_write(f->fd, f->path, "whole", 5, 0, &err));
}

static void it_is_there_when_it_is_published(void **state)
{
    (void)state;
    for (int nameless = 0; nameless < 2; nameless++) {
        struct new_file f;
        struct stat s;
        begin(&f, nameless);
        assert_false(path_exists(in_folder("out")));
        assert_ok(new_file_publish(&f, &err));
        new_file_close(&f);
        assert_text(in_folder("out"), "whole");
        assert_int_equal(count_files(), 1);
        assert_int_equal(stat(in_folder("out"), &s), 0);
        mode_t mask = umask(0);
        (void)umask(mask);
        assert_int_equal(s.st_mode & 0777, 0666 & ~mask);
        assert_int_equal(unlink(in_folder("out")), 0);
    }
}

static void what_is_closed_before_is_gone(void **state)
{
    (void)state;
    for (int nameless = 0; nameless < 2; nameless++) {
        struct new_file f;
        begin(&f, nameless);
        assert_int_equal(count_files(), !nameless);
        new_file_close(&f);
        assert_int_equal(count_files(), 0);
    }
}

static void what_is_there_is_never_replaced(void **state)
{
    (void)state;
    for (int nameless = 0; nameless < 2; nameless++) {
        struct new_file f;
        begin(&f, nameless);
        assert_ok(file_write_all(in_folder("out"), "first", 5, false, &err));
        assert_fails(new_file_publish(&f, &err), ERR_EXISTS, "exists already");
        new_file_close(&f);
        assert_text(in_folder("out"), "first");
        assert_fails(new_file_open(&f, in_folder("out"), nameless, &err), ERR_EXISTS,
                     "exists already");
        new_file_close(&f);
        assert_int_equal(count_files(), 1);
        assert_int_equal(unlink(in_folder("out")), 0);
    }
}

static void a_folder_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct new_file f;
    assert_fails(new_file_open(&f, in_folder("none/out"), true, &err), ERR_IO, "does not exist");
    assert_non_null(strstr(err.text, "/none"));
    new_file_close(&f);
}

/* A process that is killed while it writes. */
static void leave_behind(bool nameless)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct new_file f;
        begin(&f, nameless);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_killed_process_leaves_nothing(void **state)
{
    (void)state;
    leave_behind(true);
    assert_int_equal(count_files(), 0);
}

static void what_a_killed_process_leaves_goes_with_the_next(void **state)
{
    (void)state;
    struct new_file f, other;
    leave_behind(false);
    assert_int_equal(count_files(), 1);
    assert_ok(file_write_all(in_folder("out.txt"), "", 0, false, &err));
    assert_ok(file_write_all(in_folder("out2.h.1.ferry-partial"), "", 0, false, &err));
    begin(&f, false);
    assert_int_equal(count_files(), 3);

    /* A living process keeps its file. */
    pid_t pid = fork();
    if (pid == 0) {
        begin(&other, false);
        assert_int_equal(count_files(), 4);
        new_file_close(&other);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    assert_ok(new_file_publish(&f, &err));
    new_file_close(&f);
    assert_int_equal(count_files(), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(it_is_there_when_it_is_published),
        FOLDER_TEST(what_is_closed_before_is_gone),
        FOLDER_TEST(what_is_there_is_never_replaced),
        FOLDER_TEST(a_folder_that_is_not_there_is_named),
        FOLDER_TEST(a_killed_process_leaves_nothing),
        FOLDER_TEST(what_a_killed_process_leaves_goes_with_the_next),
    };
    return cmocka_run_group_tests_name("new_file", tests, NULL, NULL);
}
