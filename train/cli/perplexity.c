/* perplexity.c - ferry perplexity: how well a model foretells the tokens of a dataset. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "convert/inspect.h"
#include "formats/indexed_dataset.h"
#include "train/cli/commands.h"
#include "train/cli/options.h"

struct perplexity_flags {
    struct compute_flags compute;
    const char *data, *data_dtype;
    uint64_t seq, batch, max_tokens;
};

// clang-format off
#define AT(field) offsetof(struct perplexity_flags, field)
static const struct arg perplexity_args[] = {
    {"--data",                 ARG_TEXT,   AT(data),         "PATH", NULL, "Megatron indexed dataset (PREFIX, .bin or .idx), or a file of token ids"},
    {"--data-dtype",           ARG_CHOICE, AT(data_dtype),   NULL, "u16|u32", "the file is raw ids of this type, little-endian; default: an indexed dataset"},
    {"--seq-length --seq",     ARG_UINT,   AT(seq),          "N", NULL, "tokens of a window; default: what the model was made for, at most 2048"},
    {"--micro-batch-size --batch", ARG_UINT, AT(batch),      "N", NULL, "windows at a time; default 1"},
    {"--max-tokens",           ARG_UINT,   AT(max_tokens),   "N", NULL, "stop after so many; default: all"},
};
static const struct arg_group perplexity_groups[] = {
    {"Data", perplexity_args, sizeof perplexity_args / sizeof *perplexity_args, 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS, AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_defaults(void *options)
{
    struct perplexity_flags *f = options;
    compute_defaults(&f->compute);
    f->batch = 1;
    f->max_tokens = UINT64_MAX;
}

/* The stream of all tokens in windows of seq + 1, of which the last token of one is the first of
 * the next: each token but the first of all is foretold once. */
struct windows {
    const struct perplexity_flags *flags;
    struct indexed_dataset data;
    uint64_t seq, batch, num_tokens, num_windows;
    int32_t *tokens, *ids, *targets; /* [seq + 1], [batch, seq], [batch, seq] */
    double sum;
};

/* Window number `window`, in row `row` of the batch; behind the data there is nothing to foretell.
 */
static enum status read_window(struct windows *w, uint64_t window, uint64_t row, struct error *err)
{
    uint64_t first = window * w->seq;
    uint64_t count = first < w->num_tokens ? min_u64(w->seq + 1, w->num_tokens - first) : 0;
    int32_t *ids = w->ids + row * w->seq, *targets = w->targets + row * w->seq;
    for (uint64_t i = 0; i < w->seq; i++) {
        ids[i] = 0;
        targets[i] = -1;
    }
    if (count < 2) return OK;
    TRY(indexed_dataset_read_stream(&w->data, first, count, DT_I32, w->tokens, err));
    memcpy(ids, w->tokens, (count - 1) * sizeof *ids);
    memcpy(targets, w->tokens + 1, (count - 1) * sizeof *targets);
    return OK;
}

static enum status next_batch(void *context, uint64_t number, struct batch *b, bool *more,
                              struct error *err)
{
    struct windows *w = context;
    uint64_t first = number * w->batch;
    *more = first < w->num_windows;
    for (uint64_t i = 0; i < w->batch && *more; i++)
        TRY(read_window(w, first + i, i, err));
    *b = (struct batch){
        .num_sequences = w->batch, .length = w->seq, .ids = w->ids, .targets = w->targets};
    return OK;
}

/* Losses are 0 where nothing is foretold. */
static enum status add_losses(void *context, const struct collected *c, struct error *err)
{
    struct windows *w = context;
    (void)err;
    for (uint64_t i = 0; i < c->rows * c->columns; i++)
        w->sum += c->wide ? ((const double *)c->data)[i] : (double)((const float *)c->data)[i];
    return OK;
}

static void print_result(const struct windows *w, bool json)
{
    uint64_t count = w->num_tokens - 1;
    double loss = w->sum / (double)count;
    if (json)
        printf("{\"tokens\":%" PRIu64 ",\"loss\":%.9g,\"perplexity\":%.9g,\"seq_length\":%" PRIu64
               "}\n",
               count, loss, exp(loss), w->seq);
    else
        printf("perplexity %.6g, loss %.6f nats (%.6f bits) a token, over %" PRIu64
               " tokens in windows of %" PRIu64 "\n",
               exp(loss), loss, loss / M_LN2, count, w->seq);
}

/* ---- the command ---- */

static enum status open_data(struct windows *w, struct error *err)
{
    const struct perplexity_flags *f = w->flags;
    const char *dtype = f->data_dtype;
    if (dtype)
        TRY(token_file_open(&w->data, f->data, strcmp(dtype, "u16") ? DT_U32 : DT_U16, err));
    else
        TRY(indexed_dataset_open(&w->data, f->data, err));
    w->num_tokens = min_u64(w->data.num_tokens, f->max_tokens);
    if (w->num_tokens >= 2) return OK;
    indexed_dataset_close(&w->data);
    return fail(err, ERR_USAGE, "%s: %" PRIu64 " tokens; at least two are needed", f->data,
                w->num_tokens);
}

/* How long windows are where nobody says so: the model's positions, as far as that is sensible. */
static enum status choose_length(struct windows *w, const char *path, struct error *err)
{
    enum { LONGEST = 2048 };
    struct opened o;
    w->seq = w->flags->seq;
    if (w->seq) return OK;
    enum status st = opened_open(&o, path, &w->flags->compute.source, false, true, err);
    if (!st) {
        uint64_t positions = o.catalog.config.max_position_embeddings;
        w->seq = positions && positions < LONGEST ? positions : LONGEST;
        w->seq = min_u64(w->seq, w->num_tokens - 1);
    }
    opened_close(&o);
    return st;
}

static enum status run(struct windows *w, const char *path, struct error *err)
{
    const struct engine *engine;
    struct forward_request q = {.pass = {.loss = true, .trace_layer = -1},
                                .dry_run = w->flags->compute.engine.dry_run,
                                .next = next_batch,
                                .visit = add_losses,
                                .context = w};
    TRY(choose_length(w, path, err));
    w->num_windows = ceil_div_u64(w->num_tokens - 1, w->seq);
    w->batch = min_u64(w->flags->batch ? w->flags->batch : 1, w->num_windows);
    if (w->seq > INT32_MAX || w->batch > INT32_MAX / w->seq)
        return fail(err, ERR_USAGE, "--seq-length and --batch: too many tokens at a time");
    q.shape = (struct batch){.num_sequences = w->batch, .length = w->seq};
    TRY(engine_model_of(path, &w->flags->compute, &q.model, err));
    TRY(engine_open(&engine, err));
    w->tokens = must_calloc(w->seq + 1, sizeof *w->tokens);
    w->ids = must_calloc(w->batch * w->seq, sizeof *w->ids);
    w->targets = must_calloc(w->batch * w->seq, sizeof *w->targets);
    TRY(engine->forward(&q, err));
    if (!q.dry_run) print_result(w, w->flags->compute.output.json);
    return OK;
}

static enum status perplexity(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    struct windows w = {.flags = options};
    (void)num_positional;
    if (!w.flags->data) return fail(err, ERR_USAGE, "--data is missing");
    TRY(open_data(&w, err));
    enum status st = run(&w, positional[0], err);
    free(w.tokens);
    free(w.ids);
    free(w.targets);
    indexed_dataset_close(&w.data);
    return st;
}

const struct command command_perplexity = {
    .name = "perplexity",
    .summary = "how well a model foretells the tokens of a dataset",
    .positional = "MODEL",
    .text = "All sequences of the dataset are one stream, cut into windows; what stands before a "
            "window is not seen from it.\n\n"
            "  ferry perplexity model --data data/test_text_document --seq-length 1024",
    .groups = perplexity_groups,
    .num_groups = sizeof perplexity_groups / sizeof *perplexity_groups,
    .options_bytes = sizeof(struct perplexity_flags),
    .defaults = set_defaults,
    .run = perplexity,
};
