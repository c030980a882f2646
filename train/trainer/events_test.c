#include "train/trainer/events.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "tests/folder.h"

static const struct timespec noon = {1000000000, 750000000};

static struct events opened(const struct events_options *options)
{
    struct events e;
    assert_ok(events_open(&e, in_folder("board"), options, noon, &err));
    return e;
}

static void read_file(const char *path, struct strbuf *out)
{
    strbuf_clear(out);
    assert_ok(file_read_all(path, 1 << 20, out, &err));
}

/* Bytes of the first record, which names the program that wrote the file. */
static size_t first_record(const struct strbuf *file)
{
    assert_true(file->length > 16 && (uint8_t)file->data[0] < 128);
    return 8 + 4 + (size_t)file->data[0] + 4;
}

/* tests/golden/make/events.py wrote the same scalars by torch's SummaryWriter. */
static void records_are_those_of_tensorboards_own_writer(void **state)
{
    (void)state;
    struct events e = opened(&(struct events_options){.interval = 1});
    struct strbuf ours = {0}, theirs = {0};
    char long_name[301] = "";
    memset(long_name, 'n', 300);
    events_add_scalar(&e, "lm loss", 4.964262008666992, 1,
                      (struct timespec){1000000001, 500000000});
    events_add_scalar(&e, "lm loss vs samples", 4.964262008666992, 8,
                      (struct timespec){1000000001, 500000000});
    events_add_scalar(&e, "loss-scale", 4294967296.0, 0, (struct timespec){1000000002, 250000000});
    events_add_scalar(&e, "grad-norm", 0, 127, (struct timespec){1000000003, 0});
    events_add_scalar(&e, "learning-rate", 0.00125, 128, (struct timespec){1000000004, 0});
    events_add_scalar(&e, "lm loss validation ppl", INFINITY, (uint64_t)1 << 40,
                      (struct timespec){1000000005, 125000000});
    events_add_scalar(&e, long_name, -1.5, 300, (struct timespec){1000000006, 0});
    assert_ok(events_flush(&e, &err));
    read_file(e.path, &ours);
    read_file("tests/golden/train/events", &theirs);
    const size_t x = first_record(&ours), y = first_record(&theirs);
    assert_int_equal(ours.length - x, theirs.length - y);
    assert_memory_equal(ours.data + x, theirs.data + y, ours.length - x);
    /* Time and version of the first record, in front of the writer's name. */
    assert_memory_equal(ours.data + 12, theirs.data + 12, 9 + 15);
    strbuf_release(&ours);
    strbuf_release(&theirs);
    events_close(&e);
}

static void files_of_one_moment_have_numbers(void **state)
{
    (void)state;
    const struct events_options options = {.interval = 1};
    struct events x = opened(&options), y = opened(&options);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    const char *name = arena_printf(&arena, "%s/events.out.tfevents.1000000000.%s.%ld.",
                                    in_folder("board"), host, (long)getpid());
    assert_string_equal(x.path, arena_printf(&arena, "%s0", name));
    assert_string_equal(y.path, arena_printf(&arena, "%s1", name));
    events_close(&x);
    events_close(&y);
}

/* ---- names ---- */

static uint64_t varint(const uint8_t **at)
{
    uint64_t n = 0;
    for (unsigned shift = 0;; shift += 7) {
        const uint8_t byte = *(*at)++;
        n |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return n;
    }
}

/* Adds "TAG STEP VALUE\n" of an event. */
static void print_event(struct strbuf *out, const uint8_t *at)
{
    uint64_t step = 0;
    float value;
    assert_int_equal(*at, 0x09);
    at += 9;
    if (*at == 0x10) at++, step = varint(&at);
    if (*at++ != 0x2A) return; /* the version */
    varint(&at);
    assert_int_equal(*at++, 0x0A);
    varint(&at);
    assert_int_equal(*at++, 0x0A);
    const uint64_t length = varint(&at);
    memcpy(&value, at + length + 1, sizeof value);
    strbuf_printf(out, "%.*s %d %g\n", (int)length, (const char *)at, (int)step, (double)value);
}

static const char *scalars_in(const char *path)
{
    struct strbuf file = {0}, text = {0};
    uint64_t length;
    read_file(path, &file);
    for (size_t at = 0; at < file.length; at += 8 + 4 + length + 4) {
        memcpy(&length, file.data + at, sizeof length);
        print_event(&text, (const uint8_t *)file.data + at + 12);
    }
    const char *out = arena_text(&arena, text.data ? text.data : "", text.length);
    strbuf_release(&file);
    strbuf_release(&text);
    return out;
}

static struct step_record record(uint64_t iteration)
{
    return (struct step_record){.iteration = iteration,
                                .consumed_samples = 8 * iteration,
                                .batch_size = 8,
                                .logged_lr = 0.5,
                                .loss = {"lm loss", 4},
                                .has_grad_norm = true,
                                .grad_norm = 2,
                                .loss_scale = 1};
}

static void an_iteration_has_megatrons_scalars(void **state)
{
    (void)state;
    struct events e = opened(
        &(struct events_options){.interval = 1, .with_timers = true, .with_world_size = true});
    const struct log_line line = {
        .world_size = 4, .log_throughput = true, .seconds_per_iteration = 0.25, .throughput = 40};
    struct step_record s = record(3);
    s.skipped_samples = 16;
    s.has_num_zeros = s.has_params_norm = true;
    s.num_zeros = 544, s.params_norm = 23;
    s.num_router_losses = 1;
    s.router_losses[0] = (struct named_loss){"load_balancing_loss", 1};
    events_add_step(&e, &s, &line, true, noon);
    assert_ok(events_flush(&e, &err));
    assert_string_equal(scalars_in(e.path), "learning-rate 3 0.5\nlearning-rate vs samples 24 0.5\n"
                                            "skipped-train-samples 3 16\n"
                                            "batch-size 3 8\nbatch-size vs samples 24 8\n"
                                            "lm loss 3 4\nlm loss vs samples 24 4\n"
                                            "loss-scale 3 1\nloss-scale vs samples 24 1\n"
                                            "world-size 3 4\nworld-size vs samples 24 4\n"
                                            "grad-norm 3 2\ngrad-norm vs samples 24 2\n"
                                            "num-zeros 3 544\nnum-zeros vs samples 24 544\n"
                                            "params-norm 3 23\nparams-norm vs samples 24 23\n"
                                            "load_balancing_loss 3 1\n"
                                            "iteration-time 3 0.25\nthroughput 3 40\n");
    events_close(&e);
}

static void an_interval_and_a_skipped_step_leave_scalars_out(void **state)
{
    (void)state;
    struct events e = opened(&(struct events_options){.interval = 2, .without_loss_scale = true});
    const struct log_line line = {.world_size = 1, .log_throughput = true, .is_first = true};
    struct step_record s = record(1);
    events_add_step(&e, &s, &line, true, noon);
    s = record(2);
    s.skipped = true;
    s.has_grad_norm = false;
    events_add_step(&e, &s, &line, false, noon);
    assert_ok(events_flush(&e, &err));
    assert_string_equal(scalars_in(e.path), "learning-rate 2 0.5\nlearning-rate vs samples 16 0.5\n"
                                            "batch-size 2 8\nbatch-size vs samples 16 8\n"
                                            "lm loss 2 4\nlm loss vs samples 16 4\n");
    events_close(&e);
}

static void an_evaluation_has_loss_and_perplexity(void **state)
{
    (void)state;
    struct events e = opened(&(struct events_options){.interval = 1, .with_validation_ppl = true});
    events_add_evaluation(&e, 10, 80, &(struct named_loss){"lm loss", 0}, 1, noon);
    assert_ok(events_flush(&e, &err));
    assert_string_equal(scalars_in(e.path),
                        "lm loss validation 10 0\nlm loss validation vs samples 80 0\n"
                        "lm loss validation ppl 10 1\nlm loss validation ppl vs samples 80 1\n");
    events_close(&e);
}

/* ---- faults ---- */

static void a_full_disk_leaves_whole_records(void **state)
{
    (void)state;
    struct events e = opened(&(struct events_options){.interval = 1});
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){e.size_bytes + 20, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    events_add_scalar(&e, "lm loss", 1, 1, noon);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_fails(events_flush(&e, &err), ERR_IO, "/events.out.tfevents.");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_string_equal(scalars_in(e.path), "");
    events_add_scalar(&e, "lm loss", 2, 2, noon);
    assert_ok(events_flush(&e, &err));
    assert_string_equal(scalars_in(e.path), "lm loss 2 2\n");
    events_close(&e);
}

static void a_folder_that_is_a_file_is_refused(void **state)
{
    (void)state;
    struct events e;
    assert_ok(file_write_all(in_folder("board"), "", 0, false, &err));
    assert_fails(
        events_open(&e, in_folder("board"), &(struct events_options){.interval = 1}, noon, &err),
        ERR_IO, "/board");
    events_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(records_are_those_of_tensorboards_own_writer),
        FOLDER_TEST(files_of_one_moment_have_numbers),
        FOLDER_TEST(an_iteration_has_megatrons_scalars),
        FOLDER_TEST(an_interval_and_a_skipped_step_leave_scalars_out),
        FOLDER_TEST(an_evaluation_has_loss_and_perplexity),
        FOLDER_TEST(a_full_disk_leaves_whole_records),
        FOLDER_TEST(a_folder_that_is_a_file_is_refused),
    };
    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
