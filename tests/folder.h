/* folder.h - a new folder for each test, an arena and an error: for cmocka's set-up and tear-down.
 */
#ifndef FERRY_TESTS_FOLDER_H
#define FERRY_TESTS_FOLDER_H

#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct arena arena;
static struct error err;
static char *folder; /* its path */

static int folder_set_up(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH];
    arena_init(&arena);
    if (!temporary_folder(path)) return -1;
    folder = arena_copy_text(&arena, path);
    return 0;
}

static int folder_tear_down(void **state)
{
    (void)state;
    enum status st = path_remove(folder, &err);
    arena_release(&arena);
    return (int)st;
}

static inline const char *in_folder(const char *name)
{
    return path_join(&arena, folder, name);
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, folder_set_up, folder_tear_down)

#endif
