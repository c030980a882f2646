#include "train/trainer/log_line.h"

#include <math.h>

#include "common/count.h"
#include "train/trainer/testing_run.h"

/* All runs of tests/golden/train. */
static const char *const runs[] = {
    "bf16",
    "bf16-dp2",
    "fp16-overflow",
    "fp16-overflow-tp2-dp2",
    "fp32",
    "fp32-batch-schedule",
    "fp32-blend",
    "fp32-dp2",
    "fp32-eod-mask-dp2",
    "fp32-per-token-loss-eod",
    "fp32-plain-optimizer",
    "fp32-pp2-vpp2",
    "fp32-tp2-dp2",
    "fp32-tp2-padded-vocab",
    "fp32-tp2-pp2",
    "fp32-tp2-sp",
    "gpt2",
    "moe",
    "moe-ep2",
    "qwen2-tied-pp2",
};

/* ---- the golden lines ---- */

/* Moves *at behind the next line, which it returns, NUL in place of its end;
 * NULL: no more. */
static char *next_line(char **at)
{
    char *line = *at, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = '\0';
    *at = end + 1;
    return line;
}

/* The number behind `name` in a line; false if it has none. */
static bool value_in(const char *line, const char *name, double *value)
{
    const char *at = strstr(line, name);
    *value = 0;
    if (!at) return false;
    *value = strtod(at + strlen(name), NULL);
    return true;
}

/* Replaces the time stamp and the time of an iteration, which differ from run
 * to run. */
static void mask_times(char *line)
{
    static const char name[] = "elapsed time per iteration (ms): ";
    char *at = strchr(line, '[');
    while (at && *++at != ']')
        if (*at >= '0' && *at <= '9') *at = '9';
    at = strstr(line, name);
    assert_non_null(at);
    at += strlen(name);
    memmove(at, strchr(at, ' '), strlen(strchr(at, ' ')) + 1);
}

/* Reads numbers that steps.jsonl lacks off the line: zeros of the gradient, and
 * the router's loss, whose mean over the first two iterations is in the second
 * line. */
static void take_from_line(struct step_record *s, const char *line, double *first_router_loss)
{
    double loss;
    s->has_num_zeros = value_in(line, " num zeros: ", &s->num_zeros);
    if (!value_in(line, " load_balancing_loss: ", &loss)) return;
    if (s->iteration == 1) *first_router_loss = loss;
    if (s->iteration == 2) loss = 2 * loss - *first_router_loss;
    s->router_losses[0] = (struct named_loss){"load_balancing_loss", loss};
    s->num_router_losses = 1;
}

static struct step_record record_of(const struct golden_run *run, size_t i)
{
    const struct golden_step *g = &run->steps[i];
    return (struct step_record){
        .iteration = g->iteration,
        .consumed_samples = g->consumed_samples,
        .batch_size = g->consumed_samples - (i ? run->steps[i - 1].consumed_samples : 0),
        .logged_lr = g->logged_lr,
        .loss = {"lm loss", g->loss},
        .skipped = g->skipped,
        .has_grad_norm = g->has_grad_norm,
        .has_params_norm = true,
        .grad_norm = g->grad_norm,
        .params_norm = g->params_norm,
        .loss_scale = g->loss_scale,
        .seconds = 0.1,
    };
}

/* The line of Megatron-LM is computed from a router's loss that was rounded
 * once more. */
static void compare_lines(const char *run, char *ours, char *theirs)
{
    static const char name[] = " load_balancing_loss: ";
    double x, y;
    mask_times(ours);
    mask_times(theirs);
    if (value_in(ours, name, &x) && value_in(theirs, name, &y)) {
        assert_true(fabs(x - y) < 2.5e-6);
        memcpy(strstr(ours, name), strstr(theirs, name), sizeof name - 1 + 12);
    }
    if (strcmp(ours, theirs)) fail_msg("%s:\n%s\ninstead of\n%s", run, ours, theirs);
}

/* The three lines of an evaluation, of which `first` is the first. */
static void compare_evaluation(const char *run, const char *first, char **at)
{
    const char *line = next_line(at), *last = next_line(at);
    const char *where = strstr(line, " on ");
    struct strbuf ours = {0}, theirs = {0};
    double iteration = 0, loss = 0, x = 0, y = 0;
    assert_true(value_in(line, " validation loss at iteration ", &iteration));
    assert_true(value_in(line, " lm loss value: ", &loss));
    where = !where ? "" : strstr(where, "test") ? " on test set" : " on validation set";
    log_line_add_evaluation((uint64_t)iteration, where, &(struct named_loss){"lm loss", loss}, 1,
                            &ours);
    strbuf_printf(&theirs, "%s\n%s\n%s\n", first, line, last);
    /* The loss has seven known digits, its exponential fewer. */
    assert_true(value_in(ours.data, "PPL: ", &x) && value_in(theirs.data, "PPL: ", &y));
    assert_true(fabs(x - y) < 1e-6 * y);
    memcpy(strstr(ours.data, "PPL: "), strstr(theirs.data, "PPL: "), strlen("PPL: 1.082328E+02"));
    if (strcmp(ours.data, theirs.data)) fail_msg("%s:\n%s%s", run, ours.data, theirs.data);
    strbuf_release(&ours);
    strbuf_release(&theirs);
}

/* Returns the number of evaluations. */
static size_t compare_run(const char *name)
{
    struct golden_run run;
    struct log_line l = {.log_interval = 1, .world_size = 1, .log_throughput = true};
    struct strbuf log = {0}, ours = {0};
    size_t i = 0, evaluations = 0;
    double first_router_loss = 0;
    golden_read(&run, name);
    golden_read_file(name, "log.txt", &log);
    l.train_iters = run.num_steps;
    char *at = log.data;
    for (char *line; (line = next_line(&at));) {
        if (line[0] == '-') {
            compare_evaluation(name, line, &at);
            evaluations++;
            continue;
        }
        assert_true(i < run.num_steps);
        struct step_record s = record_of(&run, i++);
        take_from_line(&s, line, &first_router_loss);
        strbuf_clear(&ours);
        assert_true(log_line_add(&l, &s, (struct timespec){0}, &ours));
        ours.data[ours.length - 1] = '\0'; /* the end of the line */
        compare_lines(name, ours.data, line);
    }
    assert_int_equal(i, run.num_steps);
    strbuf_release(&log);
    strbuf_release(&ours);
    return evaluations;
}

static void lines_are_those_of_megatron_to_the_letter(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(runs); i++)
        assert_true(compare_run(runs[i]) >= 4);
}

/* ---- what the golden runs do not have ---- */

static struct step_record plain(uint64_t iteration, double loss)
{
    return (struct step_record){.iteration = iteration,
                                .loss = {"lm loss", loss},
                                .seconds = 0.25,
                                .flops = 1e12,
                                .loss_scale = 1};
}

/* The text that the iteration adds; "" if no line is due. Valid until the next
 * call. */
static const char *line_of(struct log_line *l, struct step_record s)
{
    static char text[1024];
    struct strbuf out = {0};
    const bool due = log_line_add(l, &s, (struct timespec){0}, &out);
    snprintf(text, sizeof text, "%s", due ? out.data : "");
    assert_true(due == (out.length > 0));
    strbuf_release(&out);
    return text;
}

#define assert_has(text, part)                                                                     \
    do {                                                                                           \
        const char *text_ = (text);                                                                \
        if (!strstr(text_, part)) fail_msg("\"%s\" lacks \"%s\"", text_, part);                    \
    } while (0)

static void an_interval_has_one_line_but_for_the_first_iteration(void **state)
{
    (void)state;
    struct log_line l = {.train_iters = 9, .log_interval = 3, .world_size = 2};
    assert_has(line_of(&l, plain(1, 6)), " lm loss: 6.000000E+00 |");
    assert_true(l.is_first);
    assert_string_equal(line_of(&l, plain(2, 2)), "");
    assert_has(line_of(&l, plain(3, 1)), " lm loss: 3.000000E+00 |");
    assert_false(l.is_first);
    assert_true(l.seconds_per_iteration == 0.25 && l.throughput == 2);
    assert_string_equal(line_of(&l, plain(4, 2)), "");
    assert_string_equal(line_of(&l, plain(5, 4)), "");
    assert_has(line_of(&l, plain(6, 9)), " lm loss: 5.000000E+00 |");
    assert_null(strstr(line_of(&l, plain(9, 9)), "throughput"));
}

static void a_resumed_run_begins_with_a_line(void **state)
{
    (void)state;
    struct log_line l = {.train_iters = 200, .log_interval = 100, .world_size = 1};
    assert_has(line_of(&l, plain(51, 6)), " iteration       51/     200 |");
    assert_string_equal(line_of(&l, plain(52, 6)), "");
}

static void skipped_iterations_count_in_time_and_not_in_the_loss(void **state)
{
    (void)state;
    struct log_line l = {.train_iters = 9, .log_interval = 2, .world_size = 1};
    struct step_record skipped = plain(2, NAN);
    skipped.skipped = true;
    line_of(&l, plain(1, 6));
    assert_has(line_of(&l, skipped), " lm loss: 6.000000E+00 | loss scale: 1.0 | number of skipped "
                                     "iterations:   1 | number of nan iterations:   1 |\n");
    assert_true(l.seconds_per_iteration == 0.25);
}

static void a_loss_that_is_no_number_is_left_out(void **state)
{
    (void)state;
    struct log_line l = {.train_iters = 9, .log_interval = 1, .world_size = 1};
    struct step_record s = plain(1, NAN);
    s.has_grad_norm = true;
    s.grad_norm = -NAN;
    s.skipped_samples = 8;
    const char *line = line_of(&l, s);
    assert_has(line, " global batch size:     0 | loss scale: 1.0 | grad norm: nan |");
    assert_has(line, " skipped samples:            8 |");
}

static void losses_stand_in_the_order_of_their_first_values(void **state)
{
    (void)state;
    struct log_line l = {.train_iters = 9, .log_interval = 1, .world_size = 1};
    struct step_record s = plain(1, 1);
    s.skipped = true;
    s.num_router_losses = 2;
    s.router_losses[0] = (struct named_loss){"load_balancing_loss", 2};
    s.router_losses[1] = (struct named_loss){"z_loss", 4};
    assert_has(line_of(&l, s),
               " 0 | load_balancing_loss: 2.000000E+00 | z_loss: 4.000000E+00 | loss scale");
    s.iteration = 2;
    s.skipped = false;
    assert_has(line_of(&l, s), " 0 | load_balancing_loss: 4.000000E+00 | z_loss: 8.000000E+00 | "
                               "lm loss: 1.000000E+00 | loss scale");
}

static void a_perplexity_is_bounded(void **state)
{
    (void)state;
    struct strbuf out = {0};
    log_line_add_evaluation(7, "", &(struct named_loss){"lm loss", 25}, 1, &out);
    assert_has(out.data, " | lm loss value: 2.500000E+01 | lm loss PPL: 4.851652E+08 | \n");
    strbuf_release(&out);
}

static void the_time_is_local(void **state)
{
    (void)state;
    struct log_line l = {.train_iters = 9, .log_interval = 1, .world_size = 1};
    struct strbuf out = {0};
    const struct step_record s = plain(1, 1);
    setenv("TZ", "UTC-2", 1);
    tzset();
    log_line_add(&l, &s, (struct timespec){.tv_sec = 1000000000, .tv_nsec = 12345678}, &out);
    assert_has(out.data, " [2001-09-09 03:46:40.012345] iteration ");
    strbuf_release(&out);
}

/* As in checkpointing.py of d98e8a64ddf3, without its "gtp_remat". */
static void events_of_checkpoints_have_the_lines_of_megatron(void **state)
{
    (void)state;
    static const struct {
        struct checkpoint_line line;
        const char *text;
    } rows[] = {
        {{CHECKPOINT_LOADING, "in", "torch_dist", 20, 2, 4},
         " loading distributed checkpoint from in at iteration 20\n"},
        {{CHECKPOINT_LOADING, "in", "torch", 20, 2, 4},
         " loading checkpoint from in at iteration 20\n"},
        {{CHECKPOINT_LOADING, "in", "torch_dist", -1, 2, 4},
         " loading release distributed checkpoint from in\n"},
        {{CHECKPOINT_LOADING, "in", "hf", -1, 2, 4}, " loading release checkpoint from in\n"},
        {{CHECKPOINT_LOADED, "in", "torch", 20, 2, 4},
         "  successfully loaded checkpoint from in [ t 1/2, p 1/4 ] at iteration 20\n"},
        {{CHECKPOINT_SAVING, "out", "torch", 30, 2, 4},
         "[2001-09-09 01:46:40.012345] saving checkpoint at iteration      30 to out in torch "
         "format\n"},
        {{CHECKPOINT_SCHEDULED, "out", "torch", 30, 2, 4},
         "  [2001-09-09 01:46:40.012345] scheduled an async checkpoint save at iteration      30 "
         "to out\n"},
        {{CHECKPOINT_SAVED, "out", "torch", 1234567890, 2, 4},
         "  [2001-09-09 01:46:40.012345] successfully saved checkpoint from iteration 1234567890 "
         "to out [ t 1/2, p 1/4 ]\n"},
    };
    setenv("TZ", "UTC", 1);
    tzset();
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct strbuf out = {0};
        log_line_add_checkpoint(&rows[i].line,
                                (struct timespec){.tv_sec = 1000000000, .tv_nsec = 12345678}, &out);
        assert_string_equal(out.data, rows[i].text);
        strbuf_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_those_of_megatron_to_the_letter),
        cmocka_unit_test(an_interval_has_one_line_but_for_the_first_iteration),
        cmocka_unit_test(a_resumed_run_begins_with_a_line),
        cmocka_unit_test(skipped_iterations_count_in_time_and_not_in_the_loss),
        cmocka_unit_test(a_loss_that_is_no_number_is_left_out),
        cmocka_unit_test(losses_stand_in_the_order_of_their_first_values),
        cmocka_unit_test(a_perplexity_is_bounded),
        cmocka_unit_test(the_time_is_local),
        cmocka_unit_test(events_of_checkpoints_have_the_lines_of_megatron),
    };
    return cmocka_run_group_tests_name("log_line", tests, NULL, NULL);
}
