#include "common/library.h"

#include "tests/testing.h"

static const char ferry[] = "data of this program";

static void a_file_beside_the_program_is_found(void **state)
{
    char path[LIBRARY_PATH];
    (void)state;
    assert_true(library_find(path, "library_test", NULL));
    assert_int_equal(*path, '/');
    assert_true(library_find(path, "library_test", ferry));
    assert_string_equal(strrchr(path, '/'), "/library_test");
}

static void a_file_in_neither_folder_is_not_found(void **state)
{
    char path[LIBRARY_PATH];
    (void)state;
    assert_false(library_find(path, "libferry_none.so", NULL));
    assert_false(library_find(path, "libferry_none.so", ferry));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_beside_the_program_is_found),
        cmocka_unit_test(a_file_in_neither_folder_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
