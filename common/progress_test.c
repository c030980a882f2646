#include "common/count.h"
#include "common/json.h"
#include "common/progress.h"

#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the text of a line ---- */

static void assert_text(enum progress_style style, struct progress_view v, const char *expected)
{
    struct strbuf text = {0};
    progress_text(&text, style, &v);
    assert_string_equal(text.data, expected);
    strbuf_release(&text);
}

static void a_line_tells_percent_bytes_rate_and_time_left(void **state)
{
    (void)state;
    struct progress_view v = {
        .what = "converting",
        .detail = "model-00002-of-00030.safetensors",
        .done = 12300000000,
        .total = 29100000000,
        .seconds = 10,
        .per_second = 1.434e9,
    };
    assert_text(PROGRESS_BAR, v,
                "converting   42%  12.3 of 29.1 GB  1.43 GB/s  14 s left  "
                "model-00002-of-00030.safetensors");
    v.detail = NULL;
    v.seconds = 1000;
    assert_text(PROGRESS_PLAIN, v,
                "converting   42%  12.3 of 29.1 GB  1.43 GB/s  22 min 46 s left");
    v.seconds = 100000;
    assert_text(PROGRESS_PLAIN, v,
                "converting   42%  12.3 of 29.1 GB  1.43 GB/s  37 h 56 min left");
    v.seconds = 10;
    v.skipped = 11100000000; /* of the 12.3 */
    assert_text(PROGRESS_PLAIN, v, "converting   42%  12.3 of 29.1 GB  1.43 GB/s  2 min 20 s left");
    v.skipped = v.done;
    assert_text(PROGRESS_PLAIN, v, "converting   42%  12.3 of 29.1 GB  1.43 GB/s");
}

static void units_are_decimal_and_numbers_have_three_digits(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "x  0.00 B  0.00 B/s"},
        {999, "x  999 B  999 B/s"},
        {1000, "x  1.00 kB  1.00 kB/s"},
        {99949, "x  99.9 kB  99.9 kB/s"},
        {99950, "x  100 kB  100 kB/s"},
        {999499, "x  999 kB  999 kB/s"},
        {999500, "x  1.00 MB  1.00 MB/s"},
        {5000000000000, "x  5.00 TB  5.00 TB/s"},
        {5000000000000000000, "x  5000 PB  5000 PB/s"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct progress_view v = {.what = "x", .done = cases[i].bytes};
        v.per_second = (double)cases[i].bytes;
        assert_text(PROGRESS_PLAIN, v, cases[i].text);
    }
}

static void nothing_is_100_percent_before_it_is_done(void **state)
{
    (void)state;
    struct progress_view v = {.what = "x", .total = 1000000, .seconds = 1};
    assert_text(PROGRESS_BAR, v, "x    0%  0.00 of 1.00 MB  0.00 B/s");
    v.done = 999999;
    assert_text(PROGRESS_BAR, v, "x   99%  1.00 of 1.00 MB  0.00 B/s  1 s left");
    v.done = 1000000;
    assert_text(PROGRESS_BAR, v, "x  100%  1.00 MB  0.00 B/s");
    v.done = 2000000;
    assert_text(PROGRESS_BAR, v, "x  100%  2.00 MB  0.00 B/s");
}

static void the_last_line_tells_whether_all_was_done(void **state)
{
    (void)state;
    struct progress_view v = {
        .what = "converting",
        .detail = "not shown",
        .done = 29100000000,
        .total = 29100000000,
        .seconds = 19.2,
        .per_second = 1.51e9,
        .event = PROGRESS_DONE,
    };
    assert_text(PROGRESS_PLAIN, v, "converting done: 29.1 GB in 20 s, 1.51 GB/s");
    v.event = PROGRESS_STOPPED;
    v.done = 1000000000;
    assert_text(PROGRESS_PLAIN, v, "converting stopped: 1.00 of 29.1 GB in 20 s, 1.51 GB/s");
}

static void plain_lines_begin_with_the_time(void **state)
{
    (void)state;
    struct strbuf text = {0};
    setenv("TZ", "UTC-2", 1);
    progress_time(&text, 86400 + 3600);
    assert_string_equal(text.data, "[1970-01-02 03:00:00] ");
    unsetenv("TZ");
    strbuf_release(&text);
}

static void a_json_line_is_exact(void **state)
{
    (void)state;
    struct progress_view v = {
        .what = "converting",
        .detail = "a \"b\"",
        .done = 9007199254740993,
        .total = UINT64_MAX,
        .seconds = 1.5,
        .per_second = 1234567.8,
    };
    assert_text(PROGRESS_JSON, v,
                "{\"event\":\"progress\",\"what\":\"converting\",\"done_bytes\":9007199254740993,"
                "\"total_bytes\":18446744073709551615,\"seconds\":1.500,"
                "\"bytes_per_second\":1234568,\"file\":\"a \\\"b\\\"\"}");
    v.event = PROGRESS_STOPPED;
    v.detail = NULL;
    assert_text(PROGRESS_JSON, v,
                "{\"event\":\"stopped\",\"what\":\"converting\",\"done_bytes\":9007199254740993,"
                "\"total_bytes\":18446744073709551615,\"seconds\":1.500,"
                "\"bytes_per_second\":1234568,\"file\":null}");
}

static void work_in_another_unit_has_a_note(void **state)
{
    (void)state;
    struct progress_view v = {
        .what = "training",
        .unit = "steps",
        .detail = "loss 4.9123",
        .done = 420,
        .total = 1000,
        .skipped = 400,
        .seconds = 10,
        .per_second = 2,
    };
    assert_text(PROGRESS_BAR, v,
                "training   42%  420 of 1000 steps  2.00 steps/s  4 min 50 s left  loss 4.9123");
    assert_text(PROGRESS_JSON, v,
                "{\"event\":\"progress\",\"what\":\"training\",\"done_steps\":420,"
                "\"total_steps\":1000,\"seconds\":10.000,\"steps_per_second\":2.000,"
                "\"note\":\"loss 4.9123\"}");
    v.event = PROGRESS_DONE;
    v.done = 1000;
    assert_text(PROGRESS_PLAIN, v, "training done: 1000 steps in 10 s, 2.00 steps/s");
}

static void a_style_has_a_name(void **state)
{
    (void)state;
    assert_int_equal(progress_style_named(NULL, false), PROGRESS_AUTO);
    assert_int_equal(progress_style_named(NULL, true), PROGRESS_NONE);
    assert_int_equal(progress_style_named("auto", true), PROGRESS_AUTO);
    assert_int_equal(progress_style_named("plain", true), PROGRESS_PLAIN);
    assert_int_equal(progress_style_named("none", false), PROGRESS_NONE);
}

static void a_file_name_cannot_disturb_the_terminal(void **state)
{
    (void)state;
    struct progress_view v = {.what = "x", .detail = "a\033[2J\n"};
    assert_text(PROGRESS_BAR, v, "x  0.00 B  0.00 B/s  a\\x1b[2J\\x0a");
}

/* ---- what appears on stderr, which is `to` while the work runs ---- */

static void work_for(enum progress_style style, int to, int ms, const char *file, bool ok)
{
    int old = dup(STDERR_FILENO);
    assert_true(old >= 0 && dup2(to, STDERR_FILENO) >= 0);
    struct progress *p = progress_start(style, "testing", 4000000);
    progress_file(p, file);
    progress_add(p, 500000);
    progress_add(p, 500000);
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    progress_finish(p, ok);
    assert_true(dup2(old, STDERR_FILENO) >= 0);
    close(old);
}

/* The output of such work, not on a terminal. */
static char *output_of(enum progress_style style, int ms, bool ok)
{
    static char text[4096];
    int file = memfd_create("stderr", 0);
    work_for(style, file, ms, "model.bin", ok);
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    close(file);
    return text;
}

#define CLEAR_LINE "\r\033[K"

static void short_work_shows_nothing(void **state)
{
    (void)state;
    assert_string_equal(output_of(PROGRESS_BAR, 100, true), "");
    assert_string_equal(output_of(PROGRESS_PLAIN, 600, true), "");
    assert_string_equal(output_of(PROGRESS_AUTO, 600, false), ""); /* plain: no terminal */
    assert_string_equal(output_of(PROGRESS_NONE, 600, true), "");
}

static void the_bar_rewrites_its_line_and_clears_it_at_the_end(void **state)
{
    (void)state;
    const char *text = output_of(PROGRESS_BAR, 1250, true);
    const char *line = CLEAR_LINE "testing   25%  1.00 of 4.00 MB  ";
    assert_memory_equal(text, line, strlen(line));
    assert_non_null(strstr(text + 1, line)); /* a second one a quarter of a second later */
    assert_null(strchr(text, '\n'));
    size_t n = strlen(text), clear = strlen(CLEAR_LINE);
    assert_string_equal(text + n - clear, CLEAR_LINE);
}

static void json_always_writes_the_last_line(void **state)
{
    (void)state;
    cJSON *tree;
    double seconds, rate;
    const char *text = output_of(PROGRESS_JSON, 50, false);
    assert_int_equal(json_parse(text, strlen(text), JSON_STRICT, &tree, NULL), OK);
    assert_string_equal(json_as_text(json_get(tree, "event")), "stopped");
    assert_string_equal(json_as_text(json_get(tree, "file")), "model.bin");
    assert_true(json_as_double(json_get(tree, "seconds"), &seconds));
    assert_true(seconds >= 0.05);
    assert_true(json_as_double(json_get(tree, "bytes_per_second"), &rate));
    assert_true(rate > 0 && rate <= 1e6 / 0.05); /* of the whole time */
    cJSON_Delete(tree);
}

static void what_was_there_is_done_but_not_of_the_rate(void **state)
{
    (void)state;
    cJSON *tree;
    uint64_t done;
    double seconds, rate;
    char text[512] = "";
    int old = dup(STDERR_FILENO), file = memfd_create("stderr", 0);
    assert_true(old >= 0 && dup2(file, STDERR_FILENO) >= 0);
    struct progress *p = progress_start(PROGRESS_JSON, "testing", 4000000);
    progress_skip(p, 3000000);
    progress_add(p, 1000);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    progress_finish(p, true);
    assert_true(dup2(old, STDERR_FILENO) >= 0);
    close(old);
    assert_true(pread(file, text, sizeof text - 1, 0) > 0);
    close(file);
    assert_int_equal(json_parse(text, strlen(text), JSON_STRICT, &tree, NULL), OK);
    assert_true(json_as_u64(json_get(tree, "done_bytes"), &done));
    assert_int_equal(done, 3001000);
    assert_true(json_as_double(json_get(tree, "seconds"), &seconds));
    assert_true(json_as_double(json_get(tree, "bytes_per_second"), &rate));
    assert_true(rate > 0 && rate * seconds < 2000);
    cJSON_Delete(tree);
}

static void json_writes_a_line_each_second(void **state)
{
    (void)state;
    const char *text = output_of(PROGRESS_JSON, 1600, true), *end = strchr(text, '\n');
    static const char running[] =
        "{\"event\":\"progress\",\"what\":\"testing\",\"done_bytes\":1000000,";
    static const char done[] = "{\"event\":\"done\",\"what\":\"testing\",\"done_bytes\":1000000,";
    assert_memory_equal(text, running, strlen(running));
    assert_non_null(end);
    assert_memory_equal(end + 1, done, strlen(done));
    const char *rate = strstr(text, "\"bytes_per_second\":");
    assert_true(atof(rate + strlen("\"bytes_per_second\":")) > 1e5); /* 1 MB in a second or a few */
    assert_string_equal(strchr(end + 1, '\n'), "\n");
}

/* The same on a terminal of that many columns. */
static char *terminal_output_of(enum progress_style style, unsigned short columns, const char *file)
{
    static char text[4096];
    int ours, terminal;
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    assert_int_equal(openpty(&ours, &terminal, NULL, NULL, &size), 0);
    work_for(style, terminal, 900, file, true);
    /* A terminal hands its text over in parts. */
    size_t length = 0;
    while (poll(&(struct pollfd){.fd = ours, .events = POLLIN}, 1, 200) > 0) {
        ssize_t n = read(ours, text + length, sizeof text - 1 - length);
        assert_true(n > 0);
        length += (size_t)n;
    }
    text[length] = '\0';
    close(ours);
    close(terminal);
    return text;
}

static void on_a_terminal_the_bar_is_chosen(void **state)
{
    (void)state;
    const char *text = terminal_output_of(PROGRESS_AUTO, 200, "model.bin");
    assert_memory_equal(text, CLEAR_LINE "testing", strlen(CLEAR_LINE "testing"));
    assert_non_null(strstr(text, "  model.bin" CLEAR_LINE));
}

static void the_line_is_cut_to_the_terminal_between_characters(void **state)
{
    (void)state;
    const char *full = terminal_output_of(PROGRESS_BAR, 200, "\xC3\xA4\xC3\xB6\xC3\xBC");
    const char *name = strstr(full, "\xC3\xA4");
    assert_non_null(name);
    unsigned short columns = (unsigned short)(name - full - (ptrdiff_t)strlen(CLEAR_LINE) + 2);
    const char *text = terminal_output_of(PROGRESS_BAR, columns, "\xC3\xA4\xC3\xB6\xC3\xBC");
    assert_non_null(strstr(text, "  \xC3\xA4" CLEAR_LINE));
}

static void without_a_progress_all_calls_do_nothing(void **state)
{
    (void)state;
    assert_null(progress_start(PROGRESS_NONE, "testing", 1));
    progress_add(NULL, 1);
    progress_file(NULL, "f");
    progress_finish(NULL, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_tells_percent_bytes_rate_and_time_left),
        cmocka_unit_test(units_are_decimal_and_numbers_have_three_digits),
        cmocka_unit_test(nothing_is_100_percent_before_it_is_done),
        cmocka_unit_test(the_last_line_tells_whether_all_was_done),
        cmocka_unit_test(plain_lines_begin_with_the_time),
        cmocka_unit_test(a_json_line_is_exact),
        cmocka_unit_test(work_in_another_unit_has_a_note),
        cmocka_unit_test(a_style_has_a_name),
        cmocka_unit_test(a_file_name_cannot_disturb_the_terminal),
        cmocka_unit_test(short_work_shows_nothing),
        cmocka_unit_test(the_bar_rewrites_its_line_and_clears_it_at_the_end),
        cmocka_unit_test(json_always_writes_the_last_line),
        cmocka_unit_test(what_was_there_is_done_but_not_of_the_rate),
        cmocka_unit_test(json_writes_a_line_each_second),
        cmocka_unit_test(on_a_terminal_the_bar_is_chosen),
        cmocka_unit_test(the_line_is_cut_to_the_terminal_between_characters),
        cmocka_unit_test(without_a_progress_all_calls_do_nothing),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
