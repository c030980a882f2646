#include "common/testing_args.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/clock.h"
#include "common/numbers.h"
#include "common/version.h"

/* ---- parsing ---- */

struct parsed {
    struct convert options;
    const char *positional[16];
    size_t num_positional;
    struct error err;
};

/* argv: the words of a command line, ended by NULL. */
static enum status parse(const struct command *c, struct parsed *p, const char *const *words)
{
    char *argv[16];
    int argc = 0;
    for (; words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    memset(p, 0xFF, sizeof *p);
    p->err.text[0] = '\0';
    return args_parse(c, argc, argv, &p->options, p->positional, &p->num_positional, &p->err);
}

static void defaults_hold_where_nothing_is_given(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&convert, &p, WORDS("a", "b")), OK);
    assert_int_equal(p.num_positional, 2);
    assert_string_equal(p.positional[1], "b");
    assert_int_equal(p.options.max_memory, 2ull << 30);
    assert_string_equal(p.options.progress, "auto");
    assert_false(p.options.overwrite);
    assert_null(p.options.dtype);
    assert_int_equal(p.options.layout.tp, 0);
    assert_int_equal(p.options.allow.count, 0);
    args_release(&convert, &p.options);
}

static void every_kind_of_option_sets_its_field(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&convert, &p,
                           WORDS("-f", "a", "--tp=8", "--max-memory", "1.5GiB", "--lr", "-1e-5",
                                 "--torch-dtype=", "--progress", "bar", "b")),
                     OK);
    assert_true(p.options.overwrite);
    assert_int_equal(p.options.layout.tp, 8);
    assert_int_equal(p.options.max_memory, 3ull << 29);
    assert_true(p.options.lr == -1e-5);
    assert_string_equal(p.options.dtype, "");
    assert_string_equal(p.options.progress, "bar");
    assert_string_equal(p.positional[0], "a");
    args_release(&convert, &p.options);
}

static void any_spelling_is_taken_with_underscores_too(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&convert, &p,
                           WORDS("a", "b", "--tensor_model_parallel_size", "2", "--pp", "3",
                                 "--progress_style=torch_dist")),
                     OK);
    assert_int_equal(p.options.layout.tp, 2);
    assert_int_equal(p.options.layout.pp, 3);
    assert_string_equal(p.options.progress, "torch_dist");
    args_release(&convert, &p.options);
    assert_int_equal(parse(&convert, &p, WORDS("a", "b", "--progress", "GGUF")), ERR_USAGE);
    assert_string_equal(p.err.text, "--progress GGUF: make it of hf");
    args_release(&convert, &p.options);
}

static void positional_arguments_can_be_named(void **state)
{
    (void)state;
    static const char *const lines[][5] = {
        {"--load", "a", "--save", "b"}, {"--save=b", "--load-dir=a"}, {"a", "--save", "b"},
        {"--save", "b", "a"},           {"--source", "a", "b"},       {"b", "--source", "a"},
    };
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct parsed p;
        assert_int_equal(parse(&convert, &p, lines[i]), OK);
        assert_int_equal(p.num_positional, 2);
        assert_string_equal(p.positional[0], "a");
        assert_string_equal(p.positional[1], "b");
        args_release(&convert, &p.options);
    }
}

static void options_that_are_noted_keep_their_values(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(
        parse(&convert, &p, WORDS("a", "--cp=2", "--bf16", "b", "--context_size", "3")), OK);
    static const char *const want[] = {"--context-size --cp", "2", "--bf16", NULL,
                                       "--context-size --cp", "3"};
    assert_int_equal(p.options.noted.count, COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++)
        if (want[i])
            assert_string_equal(p.options.noted.items[i], want[i]);
        else
            assert_null(p.options.noted.items[i]);
    args_release(&convert, &p.options);
}

static void a_choice_has_other_spellings(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&convert, &p, WORDS("a", "b", "--progress-style", "MCore")), OK);
    assert_string_equal(p.options.progress, "torch_dist");
    args_release(&convert, &p.options);
}

static void a_list_keeps_all_that_was_given_and_others_the_last(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&convert, &p,
                           WORDS("a", "b", "--allow-missing", "x*", "--tp", "1",
                                 "--allow-missing=y", "--tp", "2")),
                     OK);
    assert_int_equal(p.options.allow.count, 2);
    assert_string_equal(p.options.allow.items[0], "x*");
    assert_string_equal(p.options.allow.items[1], "y");
    assert_int_equal(p.options.layout.tp, 2);
    args_release(&convert, &p.options);
    assert_null(p.options.allow.items);
}

static void two_dashes_end_the_options(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&convert, &p, WORDS("-f", "--", "--tp", "--")), OK);
    assert_string_equal(p.positional[0], "--tp");
    assert_string_equal(p.positional[1], "--");
    assert_int_equal(parse(&convert, &p, WORDS("-", "b")), OK); /* one dash is a word */
    assert_string_equal(p.positional[0], "-");
}

static void ignored_options_take_their_value_along(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(
        parse(&convert, &p,
              WORDS("--auto-detect-ckpt-format", "a", "--distributed-backend", "nccl", "b")),
        OK);
    assert_int_equal(p.num_positional, 2);
}

#define FROM_0 "a whole number from 0 to 9223372036854775807"
#define FROM_1 "a whole number from 1 to 9223372036854775807"
#define SIZE "a size of at least 1 byte, such as 4096, 5GB, 8G or 1.5GiB"

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *const words[6];
        const char *message;
    } cases[] = {
        {{"a"}, "DESTINATION is missing"},
        {{NULL}, "SOURCE is missing"},
        {{"a", "b", "c"}, "\"c\" is one argument too many"},
        {{"a", "--load", "b", "c"}, "\"c\" is one argument too many: SOURCE is given by --load b"},
        {{"--load-dir=a", "--source", "b", "c"},
         "SOURCE is given twice: --load-dir a and --source b"},
        {{"--save", "c"}, "SOURCE is missing"},
        {{"--load", "c"}, "DESTINATION is missing"},
        {{"a", "--save", ""}, "--save: the name is empty"},
        {{"a", "b", "--help=x"}, "--help takes no value"},
        {{"a", "b", "--halp"}, "unknown option --halp (did you mean --help?)"},
        {{"--tpp", "2"}, "unknown option --tpp (did you mean --tp?)"},
        {{"-tp", "2"}, "unknown option -tp (did you mean --tp?)"},
        {{"--ovrewrite"}, "unknown option --ovrewrite (did you mean --overwrite?)"},
        {{"--tensor_model_paralel_size=2"},
         "unknown option --tensor_model_paralel_size (did you mean --tensor-model-parallel-size?)"},
        {{"--pipeline"},
         "unknown option --pipeline (did you mean --pipeline-model-parallel-size?)"},
        {{"--auto-detect-ckpt-form"}, "unknown option --auto-detect-ckpt-form"}, /* never shown */
        {{"--zzz"}, "unknown option --zzz"},
        {{"--a\nb"}, "unknown option --a\\x0ab"},
        {{"-x"}, "unknown option -x"},
        {{"--tp"}, "--tp needs a value"},
        {{"--tp", "--pp", "1"}, "--tp needs a value (--tp=--pp if that is the value)"},
        {{"--overwrite=yes"}, "--overwrite takes no value"},
        {{"--tp", "two"}, "--tp: \"two\" is not " FROM_1},
        {{"--tp=-1"}, "--tp: \"-1\" is not " FROM_1},
        {{"--tp", "0"}, "--tp: \"0\" is not " FROM_1},
        {{"--tp=9223372036854775808"}, "--tp: \"9223372036854775808\" is not " FROM_1},
        {{"--tp=18446744073709551615"}, "--tp: \"18446744073709551615\" is not " FROM_1},
        {{"--tp=99999999999999999999"}, "--tp: \"99999999999999999999\" is not " FROM_1},
        {{"--seed=-1"}, "--seed: \"-1\" is not " FROM_0},
        {{"--seed=9223372036854775808"}, "--seed: \"9223372036854775808\" is not " FROM_0},
        {{"--max-memory", "5 GB"}, "--max-memory: \"5 GB\" is not " SIZE},
        {{"--max-memory=0"}, "--max-memory: \"0\" is not " SIZE},
        {{"--max-memory=0.1"}, "--max-memory: \"0.1\" is not " SIZE},
        {{"--lr", "nan"}, "--lr: \"nan\" is not a number"},
        {{"--lr", "1e999"}, "--lr: \"1e999\" is not a number"},
        {{"--lr", "1-"}, "--lr: \"1-\" is not a number"},
        {{"--progress", "BAR"}, "--progress: \"BAR\" is not one of auto|bar|torch_dist"},
        {{"--progress", "torch-dist"},
         "--progress: \"torch-dist\" is not one of auto|bar|torch_dist"},
        {{"--progress="}, "--progress: \"\" is not one of auto|bar|torch_dist"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct parsed p;
        assert_int_equal(parse(&convert, &p, cases[i].words), ERR_USAGE);
        assert_string_equal(p.err.text, cases[i].message);
        args_release(&convert, &p.options);
    }
}

static void arguments_are_counted_as_their_names_say(void **state)
{
    (void)state;
    static const struct {
        const char *positional;
        size_t min, max; /* of 0 to 4 */
    } cases[] = {
        {NULL, 0, 0},    {"A", 1, 1},    {"A B", 2, 2},    {"[A]", 0, 1},
        {"A [B]", 1, 2}, {"A...", 1, 4}, {"[A...]", 0, 4}, {"A [B...]", 1, 4},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct command c = {.name = "x", .positional = cases[i].positional};
        for (size_t n = 0; n <= 4; n++) {
            struct parsed p;
            const char *const words[] = {n > 0 ? "1" : NULL, n > 1 ? "2" : NULL, n > 2 ? "3" : NULL,
                                         n > 3 ? "4" : NULL, NULL};
            bool fits = n >= cases[i].min && n <= cases[i].max;
            assert_int_equal(parse(&c, &p, words), fits ? OK : ERR_USAGE);
        }
    }
}

static void sizes_are_exact_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"1B", 1},
        {"5GB", 5000000000},
        {"5gb", 5000000000},
        {"256MiB", 256ull << 20},
        {"1.5GiB", 3ull << 29},
        {"1.5kB", 1500},
        {"0.1KiB", 102},
        {"4k", 4096},
        {"4K", 4096},
        {"20M", 20ull << 20},
        {"1.5g", 3ull << 29},
        {"2T", 2ull << 40},
        {"1P", 1ull << 50},
        {"2.123456789GB", 2123456789},
        {"3TB", 3000000000000},
        {"2PiB", 2ull << 50},
        {"18446744073709551615", UINT64_MAX},
    };
    static const char *const bad[] = {
        "",
        "GB",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1 GB",
        "1E",
        "1iB",
        "1.",
        ".5GB",
        "1..5GB",
        "1e3",
        "0x10",
        "1GBs",
        "18446744073709551616",
        "18446744073709551615kB",
        "20000PB",
    };
    uint64_t bytes;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_true(parse_size(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (parse_size(bad[i], &bytes)) fail_msg("%s", bad[i]);
}

static void whole_numbers_are_digits_that_fit(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "0x1",
                                      "1.0",
                                      "1e3",
                                      "18446744073709551616",
                                      "99999999999999999999999"};
    uint64_t v;
    assert_true(parse_u64("18446744073709551615", &v));
    assert_true(v == UINT64_MAX);
    assert_true(parse_u64("007", &v));
    assert_int_equal(v, 7);
    for (size_t i = 0; i < COUNT(bad); i++)
        if (parse_u64(bad[i], &v)) fail_msg("%s", bad[i]);
}

/* ---- the program ---- */

static void a_command_is_run_and_its_status_is_the_exit_code(void **state)
{
    (void)state;
    static const struct {
        enum status status;
        const char *text, *err;
    } cases[] = {
        {OK, NULL, ""},
        {DIFFERENT, NULL, ""},
        {ERR_CORRUPT, "m.bin: ends at 5", "ferry convert: m.bin: ends at 5\n"},
        {ERR_INTERRUPTED, "interrupted", "ferry convert: interrupted\n"},
        {ERR_RANK, "tensor \033[2J\a\xC3\xA4\nb",
         "ferry convert: tensor \\x1b[2J\\x07\xC3\xA4\nb\n"},
        {ERR_RANK, NULL, ""}, /* the command has spoken already */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        outcome = cases[i].status;
        outcome_text = cases[i].text;
        run_main(WORDS("convert", "a", "--tp", "4", "b"));
        assert_int_equal(ran.code, cases[i].status);
        assert_string_equal(ran.out, "2 a b tp 4\n");
        assert_string_equal(ran.err, cases[i].err);
    }
    outcome = OK;
}

/* The answer, without the time. */
static void assert_answers(const char *const *words, const char *answer)
{
    struct error err;
    cJSON *o;
    struct strbuf text = {0};
    run_main(words);
    assert_int_equal(json_parse(ran.out, strlen(ran.out), 0, &o, &err), OK);
    assert_non_null(json_get(o, "seconds"));
    assert_string_equal(json_as_text(json_get(o, "ferry")), ferry_version);
    cJSON_DeleteItemFromObjectCaseSensitive(o, "ferry");
    cJSON_DeleteItemFromObjectCaseSensitive(o, "seconds");
    json_print(&text, o, -1);
    assert_string_equal(text.data, answer);
    strbuf_release(&text);
    cJSON_Delete(o);
}

#define HEAD "{\"schema\":1,\"command\":\"verify\","

static void with_json_a_command_answers_with_one_object_whatever_happens(void **state)
{
    (void)state;
    assert_answers(WORDS("verify", "a", "--json"),
                   HEAD "\"words\":1,\"exit_code\":0,\"error\":null}");
    outcome = DIFFERENT;
    outcome_text = "2 lines differ";
    assert_answers(WORDS("verify", "--json", "a"),
                   HEAD "\"words\":1,\"exit_code\":1,\"error\":null}");
    outcome = ERR_INTERRUPTED;
    outcome_text = "x \"y\"";
    assert_answers(WORDS("verify", "--json", "a"),
                   HEAD "\"words\":1,\"exit_code\":130,\"error\":\"x \\\"y\\\"\"}");
    outcome = OK;
    assert_answers(WORDS("verify", "--jsn", "--json"),
                   HEAD "\"exit_code\":2,\"error\":\"unknown option --jsn (did you mean "
                        "--json?)\"}");
    assert_string_equal(ran.err, "ferry verify: unknown option --jsn (did you mean --json?)\n");
    assert_answers(WORDS("verify", "--json"), HEAD "\"exit_code\":2,\"error\":\"A is missing\"}");
    run_main(WORDS("verify", "--", "--json"));
    assert_string_equal(ran.out, "1\n");
    run_main(WORDS("verify", "--jsn", "a")); /* nobody asked */
    assert_string_equal(ran.out, "");
    run_main(WORDS("convert", "a", "--json")); /* a command without it */
    assert_string_equal(ran.out, "");
}

static void of_several_processes_rank_0_alone_answers(void **state)
{
    (void)state;
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_RANK", "1", 1);
    run_main(WORDS("verify", "--json", "a"));
    assert_string_equal(ran.out, "1\n"); /* of the command itself: nobody wants an object */
    setenv("PMI_RANK", "0", 1);
    assert_answers(WORDS("verify", "a", "--json"),
                   HEAD "\"words\":1,\"exit_code\":0,\"error\":null}");
    unsetenv("PMI_RANK");
    unsetenv("PMI_SIZE");
}

#define BUILD_LINES "compiler  cc 7\ncuda      none\n"

static void a_command_has_other_names_with_options_of_their_own(void **state)
{
    (void)state;
    static const struct {
        const char *const words[8];
        const char *out;
    } cases[] = {
        {{"import", "a", "b"}, "2 a b tp 0\n"},
        {{"export", "a", "b"}, "2 a b tp 7\n"},
        {{"export", "a", "b", "--tp", "3"}, "2 a b tp 3\n"},
        {{"export", "--path", "a", "--out_path=b"}, "2 a b tp 7\n"},
        {{"diff", "a"}, "1\n"},
        {{"version"}, "ferry 1.2\n" BUILD_LINES},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        run_main(cases[i].words);
        assert_int_equal(ran.code, OK);
        assert_string_equal(ran.out, cases[i].out);
    }
    run_main(WORDS("import", "--path", "a", "b")); /* of the other name */
    assert_int_equal(ran.code, ERR_USAGE);
    run_main(WORDS("exprt", "a", "b"));
    assert_string_equal(ran.err, "ferry: unknown command exprt (did you mean export?)\n");
    run_main(WORDS("import", "--help"));
    assert_int_equal(strncmp(ran.out, "usage: ferry convert ", 21), 0);
    assert_answers(WORDS("diff", "a", "--json"),
                   HEAD "\"words\":1,\"exit_code\":0,\"error\":null}");
}

static void wrong_command_lines_end_with_2(void **state)
{
    (void)state;
    static const struct {
        const char *const words[4];
        const char *err;
    } cases[] = {
        {{"convert", "--tpp", "1"}, "ferry convert: unknown option --tpp (did you mean --tp?)\n"},
        {{"convrt", "a"}, "ferry: unknown command convrt (did you mean convert?)\n"},
        {{"zzz"}, "ferry: unknown command zzz\n"},
        {{"doctor", "a"}, "ferry: unknown command doctor: ferry verify does that\n"},
        {{"convert", "--into=x"},
         "ferry convert: unknown option --into: SOURCE and DESTINATION are words without an "
         "option\n"},
        {{""}, "ferry: unknown command \n"},
        {{"--helpp"}, "ferry: unknown option --helpp\n"},
        {{"help", "verfy"}, "ferry: unknown command verfy (did you mean verify?)\n"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        run_main(cases[i].words);
        assert_int_equal(ran.code, ERR_USAGE);
        assert_string_equal(ran.out, "");
        assert_string_equal(ran.err, cases[i].err);
    }
}

/* Tries again if it took so long that it might have waited: a busy machine is
 * slow by chance, a wait is always there. */
static bool waits(const char *const *words)
{
    for (int tries = 0; tries < 5; tries++) {
        double start = seconds_now();
        run_main(words);
        if (seconds_now() - start < 1.5) return false;
    }
    return true;
}

/* Rank 0 prints long before the other processes of one launcher. */
static void of_several_processes_rank_0_says_first_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *rank;
        const char *const words[4];
        int code;
        const char *out;
        bool waits;
    } cases[] = {
        {"0", {"convrt"}, ERR_USAGE, "", false},         {"1", {"convrt"}, ERR_USAGE, "", true},
        {"1", {"verify", "--tpp"}, ERR_USAGE, "", true}, {"1", {NULL}, ERR_USAGE, "", true},
        {"1", {"verify", "x"}, OK, "1\n", false},
    };
    assert_int_equal(setenv("OMPI_COMM_WORLD_SIZE", "2", 1), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(setenv("OMPI_COMM_WORLD_RANK", cases[i].rank, 1), 0);
        assert_int_equal(waits(cases[i].words), cases[i].waits);
        assert_int_equal(ran.code, cases[i].code);
        assert_string_equal(ran.out, cases[i].out);
        assert_true((*ran.err != '\0') == (cases[i].code != OK));
    }
    /* By hand each may have a terminal of its own. */
    assert_int_equal(setenv("RANK", "1", 1) | setenv("WORLD_SIZE", "2", 1), 0);
    assert_false(waits(WORDS("convrt")));
    static const char *const names[] = {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < COUNT(names); i++)
        assert_int_equal(unsetenv(names[i]), 0);
}

static void the_version_is_told(void **state)
{
    (void)state;
    static const char *const words[] = {"--version", "-V", "version"};
    for (size_t i = 0; i < COUNT(words); i++) {
        run_main(WORDS(words[i]));
        assert_int_equal(ran.code, OK);
        assert_string_equal(ran.out, "ferry 1.2\n" BUILD_LINES);
    }
    run_main(WORDS("--version", "--json"));
    assert_int_equal(ran.code, OK);
    assert_non_null(strstr(ran.out, "\"command\": \"version\",\n"
                                    "  \"compiler\": \"cc 7\",\n  \"cuda\": null,\n"));
}

/* The exit code of a child with `out` as stdout, or -signal; its stderr is in
 * ran.err. */
static int code_with_stdout(int out)
{
    int err, status;
    fflush(stdout);
    int old_err = capture(STDERR_FILENO, &err);
    pid_t child = fork();
    if (child == 0) {
        if (dup2(out, STDOUT_FILENO) < 0) _exit(99);
        _exit(call_main(WORDS("convert", "a", "b")));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    restore(STDERR_FILENO, old_err, err, ran.err, sizeof ran.err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void a_result_that_could_not_be_written_is_a_failure(void **state)
{
    (void)state;
    int ends[2], full = open("/dev/full", O_WRONLY);
    if (full < 0) skip();
    outcome = DIFFERENT;
    assert_int_equal(code_with_stdout(full), ERR_IO);
    outcome = OK;
    assert_int_equal(code_with_stdout(full), ERR_IO);
    assert_string_equal(ran.err, "ferry convert: standard output: No space left on device\n");
    close(full);

    void (*old)(int) = signal(SIGPIPE, SIG_IGN); /* as interrupt_install does */
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    assert_int_equal(code_with_stdout(ends[1]), -SIGPIPE);
    assert_string_equal(ran.err, "");
    close(ends[1]);
    signal(SIGPIPE, old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_where_nothing_is_given),
        cmocka_unit_test(every_kind_of_option_sets_its_field),
        cmocka_unit_test(any_spelling_is_taken_with_underscores_too),
        cmocka_unit_test(positional_arguments_can_be_named),
        cmocka_unit_test(options_that_are_noted_keep_their_values),
        cmocka_unit_test(a_choice_has_other_spellings),
        cmocka_unit_test(a_list_keeps_all_that_was_given_and_others_the_last),
        cmocka_unit_test(two_dashes_end_the_options),
        cmocka_unit_test(ignored_options_take_their_value_along),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(arguments_are_counted_as_their_names_say),
        cmocka_unit_test(sizes_are_exact_bytes),
        cmocka_unit_test(whole_numbers_are_digits_that_fit),
        cmocka_unit_test(a_command_is_run_and_its_status_is_the_exit_code),
        cmocka_unit_test(with_json_a_command_answers_with_one_object_whatever_happens),
        cmocka_unit_test(of_several_processes_rank_0_alone_answers),
        cmocka_unit_test(a_command_has_other_names_with_options_of_their_own),
        cmocka_unit_test(wrong_command_lines_end_with_2),
        cmocka_unit_test(of_several_processes_rank_0_says_first_what_is_wrong),
        cmocka_unit_test(the_version_is_told),
        cmocka_unit_test(a_result_that_could_not_be_written_is_a_failure),
    };
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
