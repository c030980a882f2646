/* colour_test.c - colour is for terminals, and for those who want it. */
#include "common/colour.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/testing.h"

/* A pseudo terminal, as a program sees it. */
static FILE *terminal(int *other_end)
{
    *other_end = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(*other_end >= 0 && grantpt(*other_end) == 0 && unlockpt(*other_end) == 0);
    FILE *f = fopen(ptsname(*other_end), "w");
    assert_non_null(f);
    return f;
}

static void only_a_terminal_that_wants_colour_gets_it(void **state)
{
    (void)state;
    int other_end;
    FILE *tty = terminal(&other_end), *file = tmpfile();
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    assert_true(colour_is_wanted(tty));
    assert_false(colour_is_wanted(file));
    setenv("NO_COLOR", "1", 1);
    assert_false(colour_is_wanted(tty));
    setenv("NO_COLOR", "", 1); /* is as if it were not set */
    assert_true(colour_is_wanted(tty));
    setenv("TERM", "dumb", 1);
    assert_false(colour_is_wanted(tty));
    setenv("TERM", "xterm", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_false(colour_is_wanted(tty)); /* mpirun's, which goes wherever mpirun's output does */
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    assert_true(colour_is_wanted(tty));
    unsetenv("TERM");
    assert_false(colour_is_wanted(tty));
    fclose(tty);
    fclose(file);
    close(other_end);
}

static void colour_ends_where_the_text_does(void **state)
{
    (void)state;
    struct strbuf s = {0};
    strbuf_add_coloured(&s, COLOUR_RED, "DIFFERENT: 3", strlen("DIFFERENT"));
    strbuf_add_coloured(&s, COLOUR_NONE, " plain", strlen(" plain"));
    assert_string_equal(s.data, "\033[1;31mDIFFERENT\033[0m plain");
    strbuf_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_terminal_that_wants_colour_gets_it),
        cmocka_unit_test(colour_ends_where_the_text_does),
    };
    return cmocka_run_group_tests_name("colour", tests, NULL, NULL);
}
