#include "common/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/count.h"
#include "tests/folder.h"

static void put(const char *name, const char *text)
{
    assert_int_equal(file_write_all(in_folder(name), text, strlen(text), false, &err), OK);
}

static void assert_holds(const char *name, const char *text)
{
    struct strbuf got = {0};
    assert_int_equal(file_read_all(in_folder(name), 1 << 20, &got, &err), OK);
    assert_string_equal(got.data, text);
    strbuf_release(&got);
}

/* The message of err is what fmt says of the path of `name`. */
static void assert_message(const char *fmt, const char *name)
{
    char expected[512];
    const char *path = in_folder(name);
    snprintf(expected, sizeof expected, "%s%s", path, fmt);
    assert_string_equal(err.text, expected);
}

static void what_was_written_is_read_at_any_offset(void **state)
{
    (void)state;
    int fd;
    char got[4] = {0};
    assert_int_equal(file_create(in_folder("f"), &fd, &err), OK);
    assert_int_equal(file_write(fd, "f", "weights", 7, 3, &err), OK);
    assert_int_equal(file_sync(fd, "f", &err), OK);
    assert_int_equal(file_read(fd, "f", got, 4, 1, &err), OK);
    assert_memory_equal(got, "\0\0we", 4);
    assert_int_equal(file_read(fd, "f", got, 0, 100, &err), OK);
    close(fd);
}

static void a_file_that_ends_early_is_corrupt_and_says_where(void **state)
{
    (void)state;
    int fd;
    char got[8];
    put("f", "12345");
    assert_int_equal(file_open(in_folder("f"), &fd, NULL, &err), OK);
    assert_int_equal(file_read(fd, "m.bin", got, 8, 2, &err), ERR_CORRUPT);
    assert_string_equal(err.text, "m.bin: ends at 5, 8 bytes at 2 were expected");
    close(fd);
}

static void only_regular_files_are_opened(void **state)
{
    (void)state;
    int fd;
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_int_equal(file_open(in_folder("pipe"), &fd, NULL, &err), ERR_IO);
    assert_message(": a device or pipe, not a file", "pipe");
    assert_int_equal(fd, -1);
    assert_int_equal(file_open(folder, &fd, NULL, &err), ERR_IO);
    assert_non_null(strstr(err.text, ": a folder, not a file"));
    assert_int_equal(file_open(in_folder("none"), &fd, NULL, &err), ERR_IO);
    assert_message(": No such file or directory", "none");
}

static void an_existing_file_is_never_created_again(void **state)
{
    (void)state;
    int fd;
    put("f", "old");
    assert_int_equal(file_create(in_folder("f"), &fd, &err), ERR_IO);
    assert_message(": File exists", "f");
    assert_int_equal(file_write_all(in_folder("f"), "new", 3, false, &err), ERR_IO);
    assert_holds("f", "old");
}

static void a_stamp_tells_a_changed_file(void **state)
{
    (void)state;
    int fd;
    struct file_stamp opened, later;
    put("f", "12345");
    assert_int_equal(file_open(in_folder("f"), &fd, &opened, &err), OK);
    close(fd);
    assert_int_equal(opened.size_bytes, 5);
    assert_int_equal(file_stamp(in_folder("f"), &later, &err), OK);
    assert_true(file_stamp_equal(&opened, &later));
    assert_int_equal(file_replace_all(in_folder("f"), "54321", 5, false, &err), OK);
    assert_int_equal(file_stamp(in_folder("f"), &later, &err), OK);
    assert_false(file_stamp_equal(&opened, &later));
}

static void a_file_larger_than_allowed_is_refused_before_it_is_read(void **state)
{
    (void)state;
    struct strbuf got = {0};
    put("f", "12345");
    assert_int_equal(file_read_all(in_folder("f"), 4, &got, &err), ERR_CORRUPT);
    assert_message(": 5 bytes, at most 4 were expected", "f");
    assert_int_equal(got.length, 0);
    assert_int_equal(file_read_all(in_folder("f"), 5, &got, &err), OK);
    strbuf_release(&got);
}

static void an_empty_file_is_an_empty_text(void **state)
{
    (void)state;
    put("f", "");
    assert_holds("f", "");
}

static void replacing_leaves_no_temporary_file(void **state)
{
    (void)state;
    struct name_list names;
    put("f", "old");
    assert_int_equal(file_replace_all(in_folder("f"), "new", 3, true, &err), OK);
    assert_holds("f", "new");
    assert_int_equal(mkdir(in_folder("d"), 0777), 0);
    assert_int_equal(file_replace_all(in_folder("d"), "new", 3, false, &err), ERR_IO);
    assert_message(": Is a directory", "d");
    assert_int_equal(folder_list(folder, &arena, &names, &err), OK);
    assert_int_equal(names.count, 2);
}

static void a_copy_is_whole_and_never_on_top_of_something(void **state)
{
    (void)state;
    enum { BYTES = 3 * 65536 + 1 };
    char *data = arena_alloc(&arena, BYTES);
    struct strbuf got = {0};
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (char)(i * 31 >> 3);
    assert_int_equal(file_write_all(in_folder("f"), data, BYTES, false, &err), OK);
    assert_int_equal(file_copy(in_folder("f"), in_folder("g"), true, &err), OK);
    assert_int_equal(file_read_all(in_folder("g"), BYTES, &got, &err), OK);
    assert_int_equal(got.length, BYTES);
    assert_memory_equal(got.data, data, BYTES);
    assert_int_equal(file_copy(in_folder("f"), in_folder("g"), false, &err), ERR_IO);
    assert_message(": File exists", "g");
    strbuf_release(&got);
}

static void writing_to_a_full_device_says_so(void **state)
{
    (void)state;
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) skip();
    assert_int_equal(file_write(fd, "out.bin", "x", 1, 0, &err), ERR_IO);
    assert_string_equal(err.text, "out.bin: writing 1 bytes at 0: No space left on device");
    close(fd);
}

static void what_a_path_is_follows_links_but_existing_does_not(void **state)
{
    (void)state;
    put("f", "");
    assert_int_equal(symlink(in_folder("f"), in_folder("to-f")), 0);
    assert_int_equal(symlink(folder, in_folder("to-folder")), 0);
    assert_int_equal(symlink("nowhere", in_folder("dangling")), 0);
    assert_true(path_is_file(in_folder("to-f")) && !path_is_folder(in_folder("to-f")));
    assert_true(path_is_folder(in_folder("to-folder")) && !path_is_file(in_folder("to-folder")));
    assert_true(path_exists(in_folder("dangling")) && !path_is_file(in_folder("dangling")));
    assert_false(path_exists(in_folder("nowhere")));
    assert_string_equal(path_real(&arena, in_folder("to-f")), path_real(&arena, in_folder("f")));
    assert_null(path_real(&arena, in_folder("dangling")));
    assert_string_equal(path_link_target(&arena, in_folder("dangling")), "nowhere");
    assert_null(path_link_target(&arena, in_folder("f")));
}

static void paths_are_joined_and_taken_apart(void **state)
{
    (void)state;
    static const struct {
        const char *path, *parent, *base;
    } cases[] = {
        {"a/b", "a", "b"}, {"a/b///", "a", "b"}, {"a//b", "a", "b"}, {"b", ".", "b"},
        {"/b", "/", "b"},  {"/", "/", ""},       {"", ".", ""},      {"a/.b", "a", ".b"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_string_equal(path_parent(&arena, cases[i].path), cases[i].parent);
        assert_string_equal(path_base(&arena, cases[i].path), cases[i].base);
    }
    assert_string_equal(path_join(&arena, "a", "b"), "a/b");
    assert_string_equal(path_join(&arena, "a/", "b"), "a/b");
    assert_string_equal(path_join(&arena, "/", "b"), "/b");
    assert_string_equal(path_join(&arena, "", "b"), "b");
    assert_string_equal(path_join(&arena, ".", "b"), "b");
}

static void names_from_files_stay_below_their_folder(void **state)
{
    (void)state;
    static const char *const safe[] = {"a", "a/b", ".a", "..a", "...", "a..", "a/.b/c"};
    static const char *const unsafe[] = {"",      "/a",   "..", ".",    "../a", "a/..",
                                         "a/./b", "a//b", "a/", "a\\b", "/",    "./a"};
    for (size_t i = 0; i < COUNT(safe); i++)
        assert_true(path_is_safe(safe[i]));
    for (size_t i = 0; i < COUNT(unsafe); i++)
        assert_false(path_is_safe(unsafe[i]));
}

static void folders_are_created_with_their_parents(void **state)
{
    (void)state;
    assert_int_equal(folder_create(in_folder("a/b//c/"), &err), OK);
    assert_true(path_is_folder(in_folder("a/b/c")));
    assert_int_equal(folder_create(in_folder("a/b/c"), &err), OK);
    assert_int_equal(folder_sync(in_folder("a/b/c"), &err), OK);
    put("f", "");
    assert_int_equal(folder_create(in_folder("f/b"), &err), ERR_IO);
    assert_message(": File exists", "f");
}

static void a_folder_lists_its_names_in_byte_order(void **state)
{
    (void)state;
    struct name_list names;
    put("b", "");
    put("a10", "");
    put("a2", "");
    put(".hidden", "");
    put("B", "");
    assert_int_equal(folder_list(folder, &arena, &names, &err), OK);
    assert_int_equal(names.count, 5);
    static const char *const expected[] = {".hidden", "B", "a10", "a2", "b"};
    for (size_t i = 0; i < names.count; i++)
        assert_string_equal(names.names[i], expected[i]);
    assert_int_equal(folder_list(in_folder("none"), &arena, &names, &err), ERR_IO);
    assert_message(": No such file or directory", "none");
}

static void a_tree_is_removed_but_not_what_its_links_point_to(void **state)
{
    (void)state;
    put("kept", "kept");
    assert_int_equal(folder_create(in_folder("a/b"), &err), OK);
    put("a/b/f", "");
    assert_int_equal(folder_create(in_folder("other"), &err), OK);
    put("other/kept", "kept");
    assert_int_equal(symlink("../../kept", in_folder("a/b/link")), 0);
    assert_int_equal(symlink(in_folder("other"), in_folder("a/folder-link")), 0);
    assert_int_equal(path_remove(in_folder("a"), &err), OK);
    assert_false(path_exists(in_folder("a")));
    assert_holds("kept", "kept");
    assert_holds("other/kept", "kept");
    assert_int_equal(path_remove(in_folder("a"), &err), OK);
}

static void a_rename_never_replaces_anything(void **state)
{
    (void)state;
    put("f", "f");
    put("g", "g");
    assert_int_equal(folder_create(in_folder("empty"), &err), OK);
    assert_int_equal(folder_create(in_folder("d"), &err), OK);
    assert_int_equal(path_rename_new(in_folder("f"), in_folder("g"), &err), ERR_EXISTS);
    assert_message(": exists already", "g");
    assert_int_equal(path_rename_new(in_folder("d"), in_folder("empty"), &err), ERR_EXISTS);
    assert_message(": exists already", "empty");
    assert_holds("g", "g");
    assert_int_equal(path_rename_new(in_folder("f"), in_folder("h"), &err), OK);
    assert_holds("h", "f");
    assert_int_equal(path_rename_new(in_folder("d"), in_folder("e"), &err), OK);
    assert_true(path_is_folder(in_folder("e")) && !path_exists(in_folder("d")));
    assert_int_equal(path_rename_new(in_folder("none"), in_folder("x"), &err), ERR_IO);
    assert_message(": No such file or directory", "x");
}

static void two_paths_change_places(void **state)
{
    (void)state;
    put("f", "f");
    put("g", "g");
    if (!path_exchange(in_folder("f"), in_folder("g"))) skip(); /* the file system cannot */
    assert_holds("f", "g");
    assert_holds("g", "f");
    assert_false(path_exchange(in_folder("f"), in_folder("none")));
    assert_holds("f", "g");
}

static void free_space_is_told(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_int_equal(folder_free_bytes(folder, &bytes, &err), OK);
    assert_true(bytes > 0);
    assert_int_equal(folder_free_bytes(in_folder("none"), &bytes, &err), ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) FOLDER_TEST(name)
        T(what_was_written_is_read_at_any_offset),
        T(a_file_that_ends_early_is_corrupt_and_says_where),
        T(only_regular_files_are_opened),
        T(an_existing_file_is_never_created_again),
        T(a_stamp_tells_a_changed_file),
        T(a_file_larger_than_allowed_is_refused_before_it_is_read),
        T(an_empty_file_is_an_empty_text),
        T(replacing_leaves_no_temporary_file),
        T(a_copy_is_whole_and_never_on_top_of_something),
        T(writing_to_a_full_device_says_so),
        T(what_a_path_is_follows_links_but_existing_does_not),
        T(paths_are_joined_and_taken_apart),
        T(names_from_files_stay_below_their_folder),
        T(folders_are_created_with_their_parents),
        T(a_folder_lists_its_names_in_byte_order),
        T(a_tree_is_removed_but_not_what_its_links_point_to),
        T(a_rename_never_replaces_anything),
        T(two_paths_change_places),
        T(free_space_is_told),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
