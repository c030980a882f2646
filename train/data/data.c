#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "train/data/data_internal.h"

/* As in Megatron-LM's arguments.py, with blanks: part of the names of cached
 * indices. */
static const char default_split[] = "969, 30, 1";

void data_note(const struct data *d, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (!d->options.note) return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    d->options.note(d->options.context, text);
}

/* ---- options ---- */

static void copy_paths(struct arena *a, struct data_paths *p)
{
    const char **words = arena_array(a, p->count, sizeof *words);
    for (size_t i = 0; i < p->count; i++)
        words[i] = arena_copy_text(a, p->words[i]);
    p->words = words;
}

static void copy_text(struct arena *a, const char **text)
{
    if (*text) *text = arena_copy_text(a, *text);
}

static void copy_options(struct data *d, const struct data_options *options)
{
    struct data_options *o = &d->options;
    *o = *options;
    copy_paths(&d->arena, &o->paths);
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        copy_paths(&d->arena, &o->split_paths[k]);
    copy_text(&d->arena, &o->split);
    copy_text(&d->arena, &o->cache_path);
    copy_text(&d->arena, &o->tokenizer);
}

static bool has_split_paths(const struct data_options *o)
{
    size_t count = 0;
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        count += o->split_paths[k].count;
    return count > 0;
}

static enum status check_paths(const struct data_options *o, struct error *err)
{
    const bool of_splits = has_split_paths(o);
    if (o->mock && (of_splits || o->paths.count))
        return fail(err, ERR_USAGE, "mock data have no paths: omit --data-path");
    if (o->mock) return OK;
    if (!of_splits && !o->paths.count) return fail(err, ERR_USAGE, "--data-path is missing");
    if (of_splits && (o->paths.count || o->split))
        return fail(err, ERR_USAGE,
                    "--train-data-path, --valid-data-path and --test-data-path "
                    "exclude --data-path and --split");
    if (of_splits && o->samples[SPLIT_TRAIN] && !o->split_paths[SPLIT_TRAIN].count)
        return fail(err, ERR_USAGE, "--train-data-path is missing");
    return OK;
}

static enum status check_options(const struct data_options *o, struct error *err)
{
    TRY(check_paths(o, err));
    if (o->seq_length == 0 || o->seq_length >= INT32_MAX)
        return fail(err, ERR_USAGE, "sequence length %" PRIu64 ": expected 1 to %d", o->seq_length,
                    INT32_MAX - 1);
    if (o->mock && (o->vocab_size == 0 || o->vocab_size > INT32_MAX))
        return fail(err, ERR_USAGE, "mock data: vocabulary size %" PRIu64 ", expected 1 to %d",
                    o->vocab_size, INT32_MAX);
    if (!o->mock && o->seed > UINT32_MAX)
        return fail(err, ERR_USAGE, "--seed %" PRIu64 ": the data order takes at most %u", o->seed,
                    UINT32_MAX);
    return OK;
}

/* ---- open, close ---- */

enum status data_open(struct data **out, const struct data_options *options, struct error *err)
{
    *out = NULL;
    TRY(check_options(options, err));
    struct data *d = must_calloc(1, sizeof *d);
    arena_init(&d->arena);
    copy_options(d, options);
    if (!options->mock && !has_split_paths(options) && !options->split)
        d->options.split = default_split;
    d->kind = options->mock     ? &data_kind_mock
              : options->packed ? &data_kind_packed
                                : &data_kind_gpt;
    enum status st = d->kind->open(d, err);
    if (st)
        data_close(d);
    else
        *out = d;
    return st;
}

void data_close(struct data *d)
{
    if (!d) return;
    if (d->state) d->kind->close(d);
    arena_release(&d->arena);
    free(d);
}

/* ---- reading ---- */

uint64_t data_num_samples(const struct data *d, enum data_split split)
{
    return d->num_samples[split];
}

void data_describe_file(struct strbuf *out, const char *path, uint64_t documents, uint64_t tokens)
{
    strbuf_printf(out, "  %s: %" PRIu64 " document%s, %" PRIu64 " tokens\n", path, documents,
                  documents == 1 ? "" : "s", tokens);
}

void data_describe(const struct data *d, struct strbuf *out)
{
    d->kind->describe(d, out);
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        if (d->num_samples[k] && d->num_samples[k] != UINT64_MAX)
            strbuf_printf(out, "  %s: %" PRIu64 " samples\n", split_names[k], d->num_samples[k]);
}

static struct data_rows row_of_sample(const struct data_rows *r, uint64_t i, uint64_t length)
{
    const uint64_t at = i * length;
    return (struct data_rows){r->tokens + at, r->labels + at, r->positions + at, r->loss_mask + at,
                              r->starts + at};
}

enum status data_read(const struct data *d, enum data_split split, uint64_t first, uint64_t count,
                      struct data_rows *rows, struct error *err)
{
    const uint64_t all = d->num_samples[split];
    if (first > all || count > all - first)
        return fail(err, ERR_USAGE,
                    "%s data: samples %" PRIu64 " to %" PRIu64
                    " are needed, but there are %" PRIu64,
                    split_names[split], first, first + count - 1, all);
    for (uint64_t i = 0; i < count; i++) {
        struct data_rows row = row_of_sample(rows, i, d->options.seq_length);
        TRY(d->kind->read(d, split, first + i, &row, err));
    }
    return OK;
}

enum status data_rows_allocate(struct data_rows *rows, uint64_t count, uint64_t seq_length,
                               struct error *err)
{
    const uint64_t n = count * seq_length;
    *rows = (struct data_rows){.tokens = calloc(n, sizeof *rows->tokens),
                               .labels = calloc(n, sizeof *rows->labels),
                               .positions = calloc(n, sizeof *rows->positions),
                               .loss_mask = calloc(n, sizeof *rows->loss_mask),
                               .starts = calloc(n, sizeof *rows->starts)};
    if (rows->tokens && rows->labels && rows->positions && rows->loss_mask && rows->starts)
        return OK;
    data_rows_release(rows);
    return fail(err, ERR_MEMORY, "no memory for %" PRIu64 " samples of %" PRIu64 " tokens", count,
                seq_length);
}

void data_rows_release(struct data_rows *rows)
{
    free(rows->tokens);
    free(rows->labels);
    free(rows->positions);
    free(rows->loss_mask);
    free(rows->starts);
    *rows = (struct data_rows){.tokens = NULL};
}
