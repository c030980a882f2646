#include "train/trainer/log_jsonl.h"

#include <math.h>
#include <signal.h>

#include "common/json.h"
#include "tests/folder.h"
#include "train/trainer/flops.h"

static const struct peak unknown;

static struct step_record record(uint64_t iteration)
{
    return (struct step_record){.iteration = iteration,
                                .consumed_samples = 8 * iteration,
                                .tokens = 256,
                                .lr = 0.00125,
                                .weight_decay = 0.1,
                                .logged_lr = 1e-05,
                                .loss = {"lm loss", 4.964262008666992},
                                .has_grad_norm = true,
                                .grad_norm = 1.5,
                                .loss_scale = 1,
                                .seconds = 0.5,
                                .flops = 4e12};
}

static const char *contents(const char *path)
{
    struct strbuf text = {0};
    assert_ok(file_read_all(path, 1 << 20, &text, &err));
    const char *out = arena_text(&arena, text.data ? text.data : "", text.length);
    strbuf_release(&text);
    return out;
}

static void add_lines(const char *path, uint64_t resumed, uint64_t last)
{
    struct log_jsonl l;
    assert_ok(log_jsonl_open(&l, path, resumed, 1, unknown, &err));
    for (uint64_t i = resumed + 1; i <= last; i++) {
        const struct step_record s = record(i);
        assert_ok(log_jsonl_add(&l, &s, &err));
    }
    log_jsonl_close(&l);
}

/* The iterations of the file, as "1 2 3 ". */
static const char *iterations_in(const char *path)
{
    const char *out = "";
    for (const char *at = contents(path), *end; (end = strchr(at, '\n')); at = end + 1) {
        cJSON *line;
        uint64_t iteration;
        assert_ok(json_parse(at, (size_t)(end - at), JSON_STRICT, &line, &err));
        assert_true(json_as_u64(json_get(line, "iteration"), &iteration));
        out = arena_printf(&arena, "%s%d ", out, (int)iteration);
        cJSON_Delete(line);
    }
    return out;
}

static void a_line_has_all_members(void **state)
{
    (void)state;
    const char *path = in_folder("log.jsonl");
    struct log_jsonl l;
    struct step_record s = record(3);
    assert_ok(log_jsonl_open(&l, path, 0, 2, (struct peak){40, "in a test"}, &err));
    s.has_params_norm = true;
    s.params_norm = 23.25;
    assert_ok(log_jsonl_add(&l, &s, &err));
    assert_string_equal(
        contents(path),
        "{\"iteration\":3,\"consumed_samples\":24,\"lr\":0.00125,\"weight_decay\":0.1,"
        "\"logged_lr\":1e-05,\"loss\":4.964262008666992,\"grad_norm\":1.5,\"params_norm\":23.25,"
        "\"loss_scale\":1.0,\"skipped\":false,\"elapsed_ms\":500.0,\"tokens_per_s\":512.0,"
        "\"tflops\":4.0,\"flops_counted\":\"" FLOPS_COUNTED
        "\",\"mfu\":0.1,\"peak_tflops\":40.0,\"peak_counted\":\"in a test\"}\n");
    log_jsonl_close(&l);
}

static void a_skipped_iteration_has_no_grad_norm(void **state)
{
    (void)state;
    const char *path = in_folder("log.jsonl");
    struct log_jsonl l;
    struct step_record s = record(1);
    assert_ok(log_jsonl_open(&l, path, 0, 1, unknown, &err));
    s.skipped = true;
    s.loss.value = NAN;
    s.num_router_losses = 1;
    s.router_losses[0] = (struct named_loss){"load_balancing_loss", 1.5};
    assert_ok(log_jsonl_add(&l, &s, &err));
    const char *line = contents(path);
    assert_non_null(strstr(line, "\"loss\":null,\"load_balancing_loss\":1.5,\"grad_norm\":null,"
                                 "\"loss_scale\":1.0,\"skipped\":true,"));
    assert_non_null(strstr(line, "\"mfu\":null,\"peak_tflops\":null,\"peak_counted\":null}"));
    log_jsonl_close(&l);
}

static void a_resumed_run_drops_later_lines_and_goes_on(void **state)
{
    (void)state;
    const char *path = in_folder("log.jsonl");
    add_lines(path, 0, 7);
    add_lines(path, 4, 6);
    assert_string_equal(iterations_in(path), "1 2 3 4 5 6 ");
    add_lines(path, 6, 7);
    assert_string_equal(iterations_in(path), "1 2 3 4 5 6 7 ");
    add_lines(path, 0, 2);
    assert_string_equal(iterations_in(path), "1 2 ");
}

/* A run may be killed after any byte. */
static void an_unfinished_line_is_removed(void **state)
{
    (void)state;
    const char *path = in_folder("log.jsonl");
    add_lines(path, 0, 2);
    const char *whole = contents(path);
    for (size_t length = (size_t)(strchr(whole, '\n') - whole) + 1; whole[length + 1]; length++) {
        assert_ok(file_replace_all(path, whole, length, false, &err));
        add_lines(path, 2, 3);
        assert_string_equal(iterations_in(path), "1 3 ");
    }
}

static void another_file_is_refused_and_kept(void **state)
{
    (void)state;
    static const char *const others[] = {"1\n",   "{\"iteration\":-1}\n",       "{\"loss\":1}\n",
                                         "notes", "{\"iteration\":1}\nnotes\n", "{\"iterations",
                                         "\n"};
    const char *path = in_folder("notes");
    struct log_jsonl l;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_ok(file_replace_all(path, others[i], strlen(others[i]), false, &err));
        assert_fails(log_jsonl_open(&l, path, 5, 1, unknown, &err), ERR_CORRUPT,
                     "notes is not a log of training steps: line ");
        log_jsonl_close(&l);
        assert_string_equal(contents(path), others[i]);
    }
}

static void what_cannot_be_written_is_an_error_each_time(void **state)
{
    (void)state;
    struct log_jsonl l;
    const struct step_record s = record(1);
    assert_fails(log_jsonl_open(&l, in_folder("no/log"), 0, 1, unknown, &err), ERR_IO, "/no/log: ");
    log_jsonl_close(&l);
    assert_ok(log_jsonl_open(&l, "/dev/full", 0, 1, unknown, &err));
    for (int i = 0; i < 2; i++)
        assert_fails(log_jsonl_add(&l, &s, &err), ERR_IO, "/dev/full: No space left");
    log_jsonl_close(&l);
}

/* A disk that is full within a line leaves whole lines, and later ones can be
 * added. */
static void a_part_of_a_line_is_taken_back(void **state)
{
    (void)state;
    const char *path = in_folder("log.jsonl");
    struct log_jsonl l;
    struct rlimit old, small;
    struct step_record s = record(2);
    add_lines(path, 0, 1);
    assert_ok(log_jsonl_open(&l, path, 1, 1, unknown, &err));
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){strlen(contents(path)) + 10, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_fails(log_jsonl_add(&l, &s, &err), ERR_IO, "log.jsonl: ");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_string_equal(iterations_in(path), "1 ");
    assert_int_equal(strlen(contents(path)), small.rlim_cur - 10);
    s.iteration = 3;
    assert_ok(log_jsonl_add(&l, &s, &err));
    assert_string_equal(iterations_in(path), "1 3 ");
    log_jsonl_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(a_line_has_all_members),
        FOLDER_TEST(a_skipped_iteration_has_no_grad_norm),
        FOLDER_TEST(a_resumed_run_drops_later_lines_and_goes_on),
        FOLDER_TEST(an_unfinished_line_is_removed),
        FOLDER_TEST(another_file_is_refused_and_kept),
        FOLDER_TEST(what_cannot_be_written_is_an_error_each_time),
        FOLDER_TEST(a_part_of_a_line_is_taken_back),
    };
    return cmocka_run_group_tests_name("log_jsonl", tests, NULL, NULL);
}
