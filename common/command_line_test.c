#include "common/command_line.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/testing.h"

/* Run again with words of its own, it prints them. */
static void words_are_quoted_for_a_shell(void **state)
{
    (void)state;
    char self[PATH_MAX] = "", command[PATH_MAX + 128], line[PATH_MAX + 128] = "";
    if (test_is_emulated()) skip(); /* a shell cannot start it */
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command,
             "'%s' --print a=1,b 'two words' \"it's\" '' '$x' --restart end", self);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    assert_non_null(fgets(line, sizeof line, child));
    pclose(child);
    const char *words = strstr(line, " --print ");
    assert_non_null(words);
    assert_string_equal(words, " --print a=1,b 'two words' 'it'\\''s' '' '$x' end\n");
}

int main(int argc, char **argv)
{
    static const char *const without[] = {"--restart", NULL};
    struct arena a;
    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        arena_init(&a);
        puts(command_line_text(&a, without));
        arena_release(&a);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_are_quoted_for_a_shell)};
    return cmocka_run_group_tests_name("command_line", tests, NULL, NULL);
}
