/* testing_args.h - for tests of the command line: two commands and a program
 * with them, called in this process. */
#ifndef FERRY_COMMON_TESTING_ARGS_H
#define FERRY_COMMON_TESTING_ARGS_H

#include <sys/mman.h>
#include <unistd.h>

#include "common/args.h"
#include "common/count.h"
#include "common/json.h"
#include "common/result.h"
#include "tests/testing.h"

/* ---- two commands ---- */

struct layout {
    uint64_t tp, pp;
};

struct convert {
    bool overwrite;
    uint64_t max_memory, seed;
    double lr;
    const char *dtype, *progress;
    struct arg_list allow, noted;
    struct layout layout;
};

static const struct arg layout_args[] = {
    {"--tensor-model-parallel-size --tp", ARG_UINT, offsetof(struct layout, tp), "N", NULL,
     "the source's own"},
    {"--pipeline-model-parallel-size --pp", ARG_UINT, offsetof(struct layout, pp), "N", NULL,
     "the source's own"},
};

static const struct arg convert_args[] = {
    {"--overwrite -f", ARG_FLAG, offsetof(struct convert, overwrite), NULL, NULL,
     "replace what is there"},
    {"--max-memory", ARG_SIZE, offsetof(struct convert, max_memory), "SIZE", NULL,
     "buffers; 2GiB. A phrase that is long enough to need more than one line, so that it is broken "
     "between words and goes on below"},
    {"--seed", ARG_UINT_OR_0, offsetof(struct convert, seed), "N", NULL, "default 0"},
    {"--lr", ARG_FLOAT, offsetof(struct convert, lr), "X", NULL, "learning rate"},
    {"--torch-dtype", ARG_TEXT, offsetof(struct convert, dtype), "DTYPE", NULL, "as stored"},
    {"--progress --progress-style", ARG_CHOICE, offsetof(struct convert, progress), NULL,
     "auto|bar|torch_dist", "auto"},
    {"--allow-missing", ARG_LIST, offsetof(struct convert, allow), "GLOB_OF_THE_NAMES", NULL,
     "tensors that may be missing"},
    {"--load --load-dir", ARG_POSITIONAL, 0, "SOURCE", NULL, NULL},
    {"--source", ARG_POSITIONAL, 0, "SOURCE", NULL, NULL},
    {"--save", ARG_POSITIONAL, 1, "DESTINATION", NULL, NULL},
    {"--bf16", ARG_NOTED, offsetof(struct convert, noted), NULL, NULL, NULL},
    {"--context-size --cp", ARG_NOTED, offsetof(struct convert, noted), "N", NULL, NULL},
    {"--auto-detect-ckpt-format", ARG_IGNORED, 0, NULL, NULL, NULL},
    {"--distributed-backend", ARG_IGNORED, 0, "NAME", NULL, NULL},
};

static const struct arg_group convert_groups[] = {
    {"Layout", layout_args, COUNT(layout_args), offsetof(struct convert, layout)},
    {"Other", convert_args, COUNT(convert_args), 0},
};

static const struct arg_spelling spellings[] = {{"--progress", "mcore", "torch_dist", NULL},
                                                {"--progress", "gguf", NULL, "make it of hf"}};

static void convert_defaults(void *options)
{
    struct convert *o = options;
    o->max_memory = 2ull << 30;
    o->progress = "auto";
}

/* Status and message of the command when args_main() runs it. */
static enum status outcome;
static const char *outcome_text;

static enum status convert_run(void *options, const char *const *positional, size_t num_positional,
                               struct error *err)
{
    const struct convert *o = options;
    printf("%zu %s %s tp %llu\n", num_positional, positional[0], positional[1],
           (unsigned long long)o->layout.tp);
    if (outcome && outcome_text) return fail(err, outcome, "%s", outcome_text);
    return outcome;
}

static const struct command convert = {
    .name = "convert",
    .summary = "carry a checkpoint to another format or layout",
    .positional = "SOURCE DESTINATION",
    .text = "The first paragraph, whose\nlines are joined.\n\n  ferry convert a b --tp 2\n"
            "  ferry convert 'c' \"d\" \\\n\n.A second one - with ~ and ^.\n",
    .groups = convert_groups,
    .num_groups = COUNT(convert_groups),
    .spellings = spellings,
    .num_spellings = COUNT(spellings),
    .options_bytes = sizeof(struct convert),
    .defaults = convert_defaults,
    .run = convert_run,
};

static enum status verify_run(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    (void)options, (void)positional;
    cJSON *fields = cJSON_CreateObject();
    json_add_u64(fields, "words", num_positional);
    result_set(fields);
    if (!result_is_wanted()) printf("%zu\n", num_positional);
    if (outcome && outcome_text) return fail(err, outcome, "%s", outcome_text);
    return outcome;
}

static const struct arg verify_args[] = {
    {"--json", ARG_FLAG, 0, NULL, NULL, "as JSON"},
};
static const struct arg_group verify_groups[] = {{"Output", verify_args, 1, 0}};

static const struct command verify = {
    .name = "verify",
    .summary = "compare two checkpoints",
    .positional = "A [B...]",
    .groups = verify_groups,
    .num_groups = 1,
    .options_bytes = sizeof(bool),
    .run = verify_run,
};

static const struct command *const commands[] = {&convert, &verify};
static const struct arg_hint hints[] = {
    {"doctor", "ferry verify does that"},
    {"--from --into", "SOURCE and DESTINATION are words without an option"},
};
static const struct arg_alias aliases[] = {
    {"import", "convert", NULL, NULL},
    {"export", "convert", "--tp 7 --pp=2", "--path --source --out-path --save"},
    {"diff", "verify", NULL, NULL},
};
static const struct arg_section sections[] = {
    {"EXIT STATUS", "0 done; 1 different.", "Exit codes"},
    {"FILES", "ferry.json\n\n  an example", NULL},
};

static void add_values(struct strbuf *out, const char *value)
{
    if (strcmp(value, "DTYPE") == 0) strbuf_add_text(out, "f32 bf16");
}

static void add_build(cJSON *o)
{
    cJSON_AddStringToObject(o, "compiler", "cc 7");
    cJSON_AddNullToObject(o, "cuda");
}

static const struct arg_program ferry = {
    .name = "ferry",
    .version = "1.2",
    .add_build = add_build,
    .about = "carries checkpoints between formats\n\nIt needs no GPU.",
    .commands = commands,
    .num_commands = COUNT(commands),
    .hints = hints,
    .num_hints = COUNT(hints),
    .aliases = aliases,
    .num_aliases = COUNT(aliases),
    .sections = sections,
    .num_sections = COUNT(sections),
    .add_values = add_values,
};

/* ---- the program ---- */

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct {
    int code;
    char out[4096], err[4096];
} ran;

/* Leads fd into an unnamed file; returns what it was. */
static int capture(int fd, int *file)
{
    int old = dup(fd);
    *file = memfd_create("captured", 0);
    assert_true(old >= 0 && *file >= 0 && dup2(*file, fd) >= 0);
    return old;
}

static void restore(int fd, int old, int file, char *text, size_t size)
{
    ssize_t n = pread(file, text, size - 1, 0);
    assert_true(n >= 0 && dup2(old, fd) >= 0);
    text[n] = '\0';
    close(old);
    close(file);
}

static int call_main(const char *const *words)
{
    char program[] = "ferry", *argv[16] = {program};
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    return args_main(&ferry, argc, argv);
}

static void run_main(const char *const *words)
{
    int out, err;
    fflush(stdout);
    int old_out = capture(STDOUT_FILENO, &out), old_err = capture(STDERR_FILENO, &err);
    ran.code = call_main(words);
    restore(STDOUT_FILENO, old_out, out, ran.out, sizeof ran.out);
    restore(STDERR_FILENO, old_err, err, ran.err, sizeof ran.err);
}

#endif
