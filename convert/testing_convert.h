/* testing_convert.h - for the tests of this folder: a scratch folder, and
 * ferry's commands called in this process. */
#ifndef FERRY_CONVERT_TESTING_CONVERT_H
#define FERRY_CONVERT_TESTING_CONVERT_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/arena.h"
#include "common/args.h"
#include "common/file.h"
#include "common/json.h"
#include "convert/cli/convert_commands.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct error err;
static struct arena scratch; /* of one test */
static char scratch_folder[TEMPORARY_PATH];

static inline int scratch_begin(void **state)
{
    (void)state;
    arena_init(&scratch);
    return temporary_folder(scratch_folder) ? 0 : -1;
}

static inline int scratch_end(void **state)
{
    (void)state;
    arena_release(&scratch);
    return path_remove(scratch_folder, NULL) ? -1 : 0;
}

/* PATH below the scratch folder. */
static inline const char *in_scratch(const char *name)
{
    return path_join(&scratch, scratch_folder, name);
}

static inline const char *write_scratch(const char *name, const char *text)
{
    const char *path = in_scratch(name);
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, text, strlen(text), false, &err));
    return path;
}

/* JSON from a text with ' in place of ". */
static inline char *json_text(const char *quoted)
{
    char *text = arena_printf(&scratch, "%s", quoted);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    return text;
}

static inline cJSON *json_tree(const char *quoted)
{
    cJSON *tree;
    const char *text = json_text(quoted);
    assert_ok(json_parse(text, strlen(text), JSON_NAN, &tree, &err));
    return tree;
}

/* The output of the last command, stdout and stderr. */
static char said[1 << 16];

/* Runs a command as the program does, with words[0..n), of which NULL ones are
 * left out. */
static inline enum status run_command(const struct command *c, size_t n, const char *const *words)
{
    char *argv[64], *options = calloc(1, c->options_bytes);
    const char *positional[64], *path = in_scratch("said");
    size_t num_positional = 0;
    int argc = 0, kept[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    for (size_t i = 0; i < n && argc < 63; i++)
        if (words[i]) argv[argc++] = (char *)(uintptr_t)words[i];
    err.text[0] = '\0';
    enum status st = args_parse(c, argc, argv, options, positional, &num_positional, &err);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    fflush(NULL);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    if (!st) st = c->run(options, positional, num_positional, &err);
    fflush(NULL);
    dup2(kept[0], STDOUT_FILENO);
    dup2(kept[1], STDERR_FILENO);
    ssize_t length = pread(file, said, sizeof said - 1, 0);
    said[length > 0 ? length : 0] = '\0';
    close(file);
    close(kept[0]);
    close(kept[1]);
    (void)unlink(path);
    args_release(c, options);
    free(options);
    return st;
}

#define RUN(command, ...)                                                                          \
    run_command(&command, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *),       \
                (const char *const[]){__VA_ARGS__})
/* CONVERT runs ferry convert quietly; NOTED prints notes too. */
#define CONVERT(...) NOTED("-q", __VA_ARGS__)
#define NOTED(...)                                                                                 \
    RUN(command_convert, "--no-fsync", "--threads=1", "--max-memory=4GiB", __VA_ARGS__)

static inline void assert_said(const char *part)
{
    if (!strstr(said, part)) fail_msg("\"%s\" was not said, but \"%s\"", part, said);
}

#endif
