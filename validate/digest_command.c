/* digest_command.c - ferry digest: prints a digest of each tensor, and checks a
 * checkpoint against such a list.
 *
 * After the lists of ckpt/digest.h come up to two lines about the config, each
 * the SHA-256 of a text of config_text()
 * (convert/megatron/config_difference.h):
 *
 *   config.args  the fields that Megatron's args can express: equal in every format
 *   config       all fields of config.json, if the checkpoint has one
 *
 * Some formats cannot express them. So "*" does not cover these lines, and
 * --check compares them only if both sides have them.
 *
 * A list covers a whole model: the command fails if tensors are missing or
 * unexpected. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"
#include "ckpt/encoding.h"
#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/result.h"
#include "convert/cli/options.h"
#include "convert/cli/record_write.h"
#include "convert/megatron/config_difference.h"
#include "convert/open.h"
#include "validate/compare/optimizer.h"
#include "validate/validate_commands.h"

enum { CHECK_CAP = 1 << 30, MAX_LISTED = 50 };

struct digest_flags {
    struct source_flags source;
    struct run_flags run;
    struct output_flags output;
    const char *check;
    bool no_optim, encoded;
};

// clang-format off
#define AT(field) offsetof(struct digest_flags, field)
static const struct arg digest_args[] = {
    {"--check", ARG_TEXT, AT(check), "FILE", NULL, "compare with a printed list or a ferry.json; exit code 1 if something differs"},
    {"--no-optim --no-load-optim", ARG_FLAG, AT(no_optim), NULL, NULL, "leave out the optimizer"},
    {"--encoded", ARG_FLAG, AT(encoded), NULL, NULL, "digests of tensors as the files have them, under their names there: of encoded weights the codes"},
};
static const struct arg_group digest_groups[] = {
    {"Digest", digest_args, COUNT(digest_args), 0},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Work", run_args, NUM_READ_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

static void set_digest_defaults(void *options)
{
    struct digest_flags *f = options;
    f->source.ckpt_step = UINT64_MAX;
    f->run.max_memory = DEFAULT_MAX_MEMORY;
}

/* ---- the list of --check ---- */

struct known {
    char *text; /* names and digests point into it */
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
        size_t length = strlen(line);
        if (length && line[length - 1] == '\r') line[length - 1] = '\0';
        char *tab = strchr(line, '\t');
        if (!*line) continue;
        if (!tab)
            return fail(err, ERR_CORRUPT, "%s:%zu: not a line of NAME, TAB, DIGEST", path, number);
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
        return fail(err, ERR_CORRUPT, "%s: holds no digests", path);
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

/* ---- digests of the checkpoint ---- */

enum { NUM_CONFIG_LINES = 2 };
static const char *const config_lines[NUM_CONFIG_LINES] = {"config.args", "config"};

/* The digest lines of a checkpoint, and two digests of its config; "": none. */
struct found {
    struct tensor_digest *digests;
    size_t count;
    char config[NUM_CONFIG_LINES][SHA256_TEXT];
    struct strbuf text;
};

static void sum_of_text(const char *text, char sum[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    sha256_add(s, text, strlen(text));
    sha256_finish(s, sum);
}

static void find_config(struct found *x, const struct checkpoint *c, struct arena *a)
{
    for (int i = 0; i < NUM_CONFIG_LINES; i++) {
        const char *text = config_text(c, i == 0, a);
        if (!text) continue;
        sum_of_text(text, x->config[i]);
        strbuf_printf(&x->text, "%s\t%s\n", config_lines[i], x->config[i]);
    }
}

/* The catalog with each stored tensor in place of the logical ones. */
static enum status catalog_as_stored(const struct catalog *c, struct arena *a, struct catalog *out,
                                     struct error *err)
{
    *out = *c;
    out->tensors = arena_array(a, c->stored.num_tensors + 1, sizeof *out->tensors);
    for (out->num_tensors = 0; out->num_tensors < c->stored.num_tensors; out->num_tensors++) {
        struct tensor *t;
        TRY(catalog_wrap_stored(c, a, &c->stored.tensors[out->num_tensors], &t, err));
        out->tensors[out->num_tensors] = *t;
    }
    return OK;
}

static enum status find_as_stored(struct found *x, const struct checkpoint *c,
                                  const struct digest_options *o, struct arena *a,
                                  struct error *err)
{
    struct catalog stored;
    TRY(catalog_as_stored(&c->catalog, a, &stored, err));
    TRY(digest_catalog(&stored, o, a, &x->digests, &x->count, err));
    digest_print_all(&x->text, x->digests, x->count, NULL);
    return OK;
}

/* Whether a list, as of ferry.json, has codes of the checkpoint. */
static bool has_codes(const struct known *k, const struct catalog *c)
{
    for (size_t i = 0; i < c->num_native; i++) {
        const struct native_tensor *n = &c->native[i];
        const struct encoded *e = n->num_parts ? n->parts[0].encoded : NULL;
        if (e && map_get(&k->names, e->codes->name, NULL)) return true;
    }
    return false;
}

/* Digests of decoded weights, or of codes as the list has them. */
static enum status find_all(struct found *x, const struct checkpoint *c, const struct known *k,
                            const struct digest_options *o, struct arena *a, struct error *err)
{
    const struct catalog undecoded = catalog_undecoded(&c->catalog, a);
    const struct catalog *all = has_codes(k, &c->catalog) ? &undecoded : &c->catalog;
    if (!o->no_optim) TRY(optimizer_check_read(c, err));
    TRY(digest_catalog(all, o, a, &x->digests, &x->count, err));
    digest_print_all(&x->text, x->digests, x->count, NULL);
    find_config(x, c, a);
    return OK;
}

/* ---- comparing ---- */

/* A line that differs from the list; digest NULL: missing on that side. */
struct odd_line {
    const char *name, *expected, *found;
};

struct checking {
    const struct known *known;
    bool no_optim;
    struct odd_line *odd;
    size_t num_odd, odd_capacity, num_same;
    struct arena *a;
};

/* Whether a line is compared only if both sides have it. */
static bool may_be_missing(const struct checking *x, const char *name)
{
    for (int i = 0; i < NUM_CONFIG_LINES; i++)
        if (strcmp(name, config_lines[i]) == 0) return true;
    return x->no_optim && name_is_optimizer(name);
}

static void check_line(struct checking *x, const char *name, const char *expected,
                       const char *found)
{
    bool both = expected && found;
    if (both && strcmp(expected, found) == 0)
        x->num_same++;
    else if (both || !may_be_missing(x, name))
        *ARENA_PUSH(x->a, x->odd, x->num_odd, x->odd_capacity) =
            (struct odd_line){name, expected, found};
}

/* text: the lines that were found; modified. */
static void compare_digest_lines(struct checking *x, char *text)
{
    const struct known *k = x->known;
    struct map found = {0};
    size_t at;
    for (char *line; (line = strsep(&text, "\n"));) {
        char *tab = strchr(line, '\t');
        if (!tab) continue;
        *tab = '\0';
        (void)map_add(&found, line, 0, &at);
        bool known = map_get(&k->names, line, &at);
        check_line(x, line, known ? k->lines[2 * at + 1] : NULL, tab + 1);
    }
    for (size_t i = 0; i < k->count; i++)
        if (!map_get(&found, k->lines[2 * i], &at))
            check_line(x, k->lines[2 * i], k->lines[2 * i + 1], NULL);
    map_release(&found);
}

static void print_odd_lines(const struct checking *x)
{
    for (size_t i = 0; i < x->num_odd && i < MAX_LISTED; i++) {
        const struct odd_line *l = &x->odd[i];
        fprintf(stderr, "  %s: expected %s, found %s\n", l->name,
                l->expected ? l->expected : "nothing", l->found ? l->found : "nothing");
    }
    if (x->num_odd > MAX_LISTED) fprintf(stderr, "  and %zu more\n", x->num_odd - MAX_LISTED);
}

/* ---- the command ---- */

static void set_digest_result(const struct found *x, const char *path)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "path", path);
    record_add_digests(o, "digest", "tensors", x->digests, x->count);
    cJSON *whole = cJSON_GetObjectItemCaseSensitive(o, "digest");
    for (int i = 0; i < NUM_CONFIG_LINES; i++)
        if (*x->config[i]) json_add_text(whole, config_lines[i], x->config[i]);
    result_set(o);
}

static void set_check_result(const struct checking *x, const char *path, const char *list)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "verdict", x->num_odd ? "different" : "identical");
    json_add_text(o, "path", path);
    json_add_text(o, "list", list);
    json_add_u64(o, "same", x->num_same);
    cJSON *lines = cJSON_AddArrayToObject(o, "differences");
    for (size_t i = 0; i < x->num_odd; i++) {
        cJSON *line = cJSON_CreateObject();
        json_add_text(line, "name", x->odd[i].name);
        json_add_text(line, "expected", x->odd[i].expected);
        json_add_text(line, "found", x->odd[i].found);
        cJSON_AddItemToArray(lines, line);
    }
    result_set(o);
}

static enum status check_and_report(const struct digest_flags *f, const struct known *k,
                                    struct found *found, const char *path, struct arena *a,
                                    struct error *err)
{
    struct checking x = {.known = k, .no_optim = f->no_optim, .a = a};
    compare_digest_lines(&x, found->text.data);
    set_check_result(&x, path, f->check);
    if (!f->output.json) print_odd_lines(&x);
    if (x.num_odd)
        return fail(err, DIFFERENT, "%s: %zu line%s", path, x.num_odd,
                    x.num_odd == 1 ? " differs" : "s differ");
    if (!f->output.quiet)
        fprintf(stderr, "%s: all %zu lines equal those of %s\n", path, x.num_same, f->check);
    return OK;
}

static enum status digest_opened(const struct digest_flags *f, const struct checkpoint *c,
                                 struct error *err)
{
    struct executor_options run = executor_options_of(&f->run, &f->output);
    struct digest_options o = {run.threads, run.max_memory, run.direct_io, run.progress,
                               f->no_optim};
    struct arena a;
    struct found found = {0};
    struct known known = {0};
    arena_init(&a);
    enum status st = f->check ? known_read(&known, f->check, err) : OK;
    if (!st && f->encoded) st = find_as_stored(&found, c, &o, &a, err);
    if (!st && !f->encoded) st = find_all(&found, c, &known, &o, &a, err);
    if (!st && f->check)
        st = check_and_report(f, &known, &found, c->path, &a, err);
    else if (!st)
        set_digest_result(&found, c->path);
    if (!st && !f->check && !f->output.json) fputs(found.text.data, stdout);
    strbuf_release(&found.text);
    known_release(&known);
    arena_release(&a);
    return st;
}

static enum status run_digest(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    const struct digest_flags *f = options;
    struct opened o;
    (void)num_positional;
    const struct source_options source = source_options_of(&f->source);
    enum status st =
        opened_open(&o, positional[0], &source, f->source.model_map, false, f->output.quiet, err);
    if (!st) st = gaps_check(&o.checkpoint.gaps, o.checkpoint.path, err);
    if (!st) st = digest_opened(f, &o.checkpoint, err);
    opened_close(&o);
    return st;
}

const struct command command_digest = {
    .name = "digest",
    .summary = "print a digest of each tensor, independent of format and layout, or check them",
    .positional = "PATH",
    .text =
        "  ferry digest ckpt > model.digest\n"
        "  ferry digest elsewhere --check model.digest\n\n"
        "Prints one line for each tensor: NAME, TAB, DIGEST; then \"*\", the SHA-256 of these "
        "lines; the same for an optimizer, ended by \"optimizer.*\"; and the SHA-256 of the config "
        "fields that change the computation: \"config.args\" for the fields of Megatron's args, "
        "\"config\" for all of config.json. A checkpoint without these fields lacks the config "
        "lines; --check compares config lines only if both sides have them. A model with missing "
        "or unexpected tensors has no list (exit code 3).",
    .groups = digest_groups,
    .num_groups = COUNT(digest_groups),
    .options_bytes = sizeof(struct digest_flags),
    .defaults = set_digest_defaults,
    .run = run_digest,
};
