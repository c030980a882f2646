/* digest_command.c - ferry digest: what a checkpoint holds, in a line a tensor, and whether it
 * still does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"
#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "convert/inspect.h"
#include "convert/options.h"
#include "convert/record.h"
#include "validate/commands.h"

enum { CHECK_CAP = 1 << 30, MOST_LISTED = 50 };

struct digest_flags {
    struct source_flags source;
    struct run_flags run;
    struct output_flags output;
    const char *check;
};

// clang-format off
#define AT(field) offsetof(struct digest_flags, field)
static const struct arg digest_args[] = {
    {"--check", ARG_TEXT, AT(check), "FILE", NULL, "compare with a list that was printed before, or with a ferry.json; exit code 1 where something differs"},
};
static const struct arg_group digest_groups[] = {
    {"Digest", digest_args, sizeof digest_args / sizeof *digest_args, 0},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Work", run_args, NUM_READ_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

static void set_defaults(void *options)
{
    struct digest_flags *f = options;
    f->source.ckpt_step = UINT64_MAX;
    f->run.max_memory = 256 << 20;
}

/* ---- the list of --check ---- */

struct known {
    char *text; /* what names and digests point into */
    struct map names;
    const char **lines; /* NAME, DIGEST, NAME, DIGEST, ... */
    size_t count, capacity;
    cJSON *tree;
    struct arena arena;
};

static void add_known(struct known *k, const char *name, const char *digest)
{
    size_t at = k->count;
    if (!map_add(&k->names, name, at, &at)) return;
    if (2 * k->count + 2 > k->capacity) {
        k->capacity = 2 * k->capacity + 64;
        k->lines = must_realloc(k->lines, k->capacity * sizeof *k->lines);
    }
    k->lines[2 * k->count] = name;
    k->lines[2 * k->count + 1] = digest;
    k->count++;
}

static enum status read_lines(struct known *k, const char *path, struct error *err)
{
    size_t number = 1;
    char *rest = k->text;
    for (char *line; (line = strsep(&rest, "\n")); number++) {
        char *tab = strchr(line, '\t');
        if (!*line) continue;
        if (!tab)
            return fail(err, ERR_CORRUPT, "%s:%zu: no line of NAME, TAB and DIGEST", path, number);
        *tab = '\0';
        add_known(k, line, tab + 1);
    }
    return OK;
}

static enum status read_record(struct known *k, const char *path, struct error *err)
{
    TRY(json_read_file(path, CHECK_CAP, 0, &k->tree, err));
    const cJSON *tensors = json_get(k->tree, "tensors"), *whole = json_get(k->tree, "digest");
    if (!cJSON_IsObject(tensors) || !cJSON_IsObject(whole))
        return fail(err, ERR_CORRUPT, "%s: it holds no digests", path);
    for (const cJSON *i = tensors->child; i; i = i->next)
        add_known(k, i->string, json_as_text(i) ? json_as_text(i) : "");
    for (const cJSON *i = whole->child; i; i = i->next)
        add_known(k, i->string, json_as_text(i) ? json_as_text(i) : "");
    return OK;
}

static enum status known_read(struct known *k, const char *path, struct error *err)
{
    struct strbuf text = {0};
    TRY(file_read_all(path, CHECK_CAP, &text, err));
    strbuf_add_char(&text, '\0');
    k->text = text.data;
    return *k->text == '{' ? read_record(k, path, err) : read_lines(k, path, err);
}

static void known_release(struct known *k)
{
    free(k->text);
    free(k->lines);
    cJSON_Delete(k->tree);
    map_release(&k->names);
}

/* ---- comparing ---- */

static void list_line(size_t *bad, const char *name, const char *expected, const char *found)
{
    if (++*bad <= MOST_LISTED)
        fprintf(stderr, "  %s: expected %s, found %s\n", name, expected, found);
}

/* text: the lines that were found; it is taken apart. */
static enum status compare(const struct known *k, char *text, const char *path, size_t *count,
                           struct error *err)
{
    struct map found = {0};
    size_t bad = 0, at;
    *count = 0;
    for (char *line; (line = strsep(&text, "\n"));) {
        char *tab = strchr(line, '\t');
        if (!tab) continue;
        *tab = '\0';
        (void)map_add(&found, line, 0, &at);
        if (!map_get(&k->names, line, &at))
            list_line(&bad, line, "nothing", tab + 1);
        else if (strcmp(k->lines[2 * at + 1], tab + 1))
            list_line(&bad, line, k->lines[2 * at + 1], tab + 1);
        else
            ++*count;
    }
    for (size_t i = 0; i < k->count; i++)
        if (!map_get(&found, k->lines[2 * i], &at))
            list_line(&bad, k->lines[2 * i], k->lines[2 * i + 1], "nothing");
    map_release(&found);
    if (bad > MOST_LISTED) fprintf(stderr, "  and %zu more\n", bad - MOST_LISTED);
    if (!bad) return OK;
    return fail(err, DIFFERENT, "%s: %zu lines differ", path, bad);
}

/* ---- the command ---- */

static void print_json(struct tensor_digest *digests, size_t count)
{
    struct strbuf text = {0};
    cJSON *o = cJSON_CreateObject();
    record_add_digests(o, "digest", "tensors", digests, count);
    json_print(&text, o, 2);
    puts(text.data);
    strbuf_release(&text);
    cJSON_Delete(o);
}

static enum status digest_opened(const struct digest_flags *f, const struct catalog *c,
                                 struct error *err)
{
    struct executor_options run = executor_options_of(&f->run, &f->output);
    struct digest_options o = {run.threads, run.max_memory, run.direct_io, run.progress};
    struct arena a;
    struct tensor_digest *digests;
    struct strbuf text = {0};
    struct known known = {0};
    size_t count, same = 0;
    arena_init(&a);
    enum status st = f->check ? known_read(&known, f->check, err) : OK;
    if (!st) st = digest_catalog(c, &o, &a, &digests, &count, err);
    if (!st) {
        digest_print_all(&text, digests, count, NULL);
        if (f->check)
            st = compare(&known, text.data, c->path, &same, err);
        else if (f->output.json)
            print_json(digests, count);
        else
            fputs(text.data, stdout);
    }
    if (!st && f->check && !f->output.quiet)
        fprintf(stderr, "%s: all %zu lines are as %s has them\n", c->path, same, f->check);
    strbuf_release(&text);
    known_release(&known);
    arena_release(&a);
    return st;
}

static enum status digest(void *options, const char *const *positional, size_t num_positional,
                          struct error *err)
{
    const struct digest_flags *f = options;
    struct opened o;
    (void)num_positional;
    enum status st = opened_open(&o, positional[0], &f->source, false, f->output.quiet, err);
    if (!st) st = digest_opened(f, &o.catalog, err);
    opened_close(&o);
    return st;
}

const struct command command_digest = {
    .name = "digest",
    .summary = "print digests of all tensors, which no format or layout changes, or check them",
    .positional = "PATH",
    .text = "  ferry digest ckpt > model.digest\n"
            "  ferry digest elsewhere --check model.digest",
    .groups = digest_groups,
    .num_groups = sizeof digest_groups / sizeof *digest_groups,
    .options_bytes = sizeof(struct digest_flags),
    .defaults = set_defaults,
    .run = digest,
};
