/* perplexity_command.c - ferry perplexity: perplexity of a model on a dataset. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/memory.h"
#include "common/result.h"
#include "formats/indexed_dataset.h"
#include "train/cli/engine_commands.h"
#include "train/cli/engine_flags.h"
#include "train/cli/run_json.h"

struct perplexity_flags {
    struct compute_flags compute;
    const char *data, *data_dtype;
    uint64_t seq, batch, max_tokens;
};

// clang-format off
#define AT(field) offsetof(struct perplexity_flags, field)
static const struct arg perplexity_args[] = {
    {"--data",                 ARG_TEXT,   AT(data),         "PATH", NULL, "Megatron indexed dataset (PREFIX, .bin or .idx), or with --data-dtype a file of token ids"},
    {"--data-dtype",           ARG_CHOICE, AT(data_dtype),   NULL, "u16|u32", "type of raw little-endian token ids in --data; default: --data is an indexed dataset"},
    {"--seq-length --seq",     ARG_UINT,   AT(seq),          "N", NULL, "tokens per window; default: the model's max_position_embeddings, at most 2048"},
    {"--micro-batch-size --batch", ARG_UINT, AT(batch),      "N", NULL, "windows per batch; default: --dp, or 1"},
    {"--max-tokens",           ARG_UINT,   AT(max_tokens),   "N", NULL, "use the first N tokens; default: all"},
};
static const struct arg_group perplexity_groups[] = {
    {"Data", perplexity_args, COUNT(perplexity_args), 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.engine.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS, AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_perplexity_defaults(void *options)
{
    struct perplexity_flags *f = options;
    compute_defaults(&f->compute);
    f->max_tokens = UINT64_MAX;
}

/* The stream of all tokens, cut into windows of seq + 1. The last token of a
 * window is the first of the next, so each token but the very first is
 * predicted once. Tokens after the last whole window form a shorter one. */
struct windows {
    const struct perplexity_flags *flags;
    const char *model;
    struct indexed_dataset data;
    uint64_t seq, batch, num_tokens, num_whole, rest; /* rest: tokens of the short window; or 0 */
    uint64_t vocab_size;                              /* of the model */
    int32_t *tokens, *ids, *targets;                  /* [seq + 1], [batch, seq], [batch, seq] */
    double sum;
    cJSON *json; /* the --json result */
};

static enum status bad_token(const struct windows *w, uint64_t at, int32_t id, struct error *err)
{
    uint64_t sequence, element;
    TRY(indexed_dataset_locate(&w->data, at, &sequence, &element, err));
    return fail(err, ERR_CORRUPT,
                "%s: token %" PRIu64 " (sequence %" PRIu64 ", element %" PRIu64
                ") is %d, not below the vocabulary size, %" PRIu64,
                w->flags->data, at, sequence, element, id, w->vocab_size);
}

/* Fills row `row` of the batch with `length` predicted tokens from token
 * `first` on. */
static enum status read_window(struct windows *w, uint64_t first, uint64_t length, uint64_t row,
                               struct error *err)
{
    TRY(indexed_dataset_read_stream(&w->data, first, length + 1, DT_I32, w->tokens, err));
    for (uint64_t i = 0; i <= length; i++)
        if (w->tokens[i] < 0 || (uint64_t)w->tokens[i] >= w->vocab_size)
            return bad_token(w, first + i, w->tokens[i], err);
    memcpy(w->ids + row * length, w->tokens, length * sizeof *w->ids);
    memcpy(w->targets + row * length, w->tokens + 1, length * sizeof *w->targets);
    return OK;
}

static enum status next_windows(void *context, uint64_t number, struct batch *b, bool *more,
                                struct error *err)
{
    struct windows *w = context;
    uint64_t first = number * w->batch, count = 0, length = w->seq;
    if (first < w->num_whole) {
        count = min_u64(w->batch, w->num_whole - first);
    } else if (w->rest && number == ceil_div_u64(w->num_whole, w->batch)) {
        first = w->num_whole;
        count = 1;
        length = w->rest;
    }
    *more = count > 0;
    for (uint64_t i = 0; i < count; i++)
        TRY(read_window(w, (first + i) * w->seq, length, i, err));
    *b = (struct batch){
        .num_sequences = count, .length = length, .ids = w->ids, .targets = w->targets};
    return OK;
}

static enum status add_batch_loss(void *context, const struct collected *c, struct error *err)
{
    struct windows *w = context;
    (void)err;
    w->sum += *(const double *)c->data;
    return OK;
}

static enum status take_plan(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                             struct error *err)
{
    struct windows *w = context;
    (void)err;
    run_json_add_plan(w->json, &w->flags->compute, ranks, num_ranks);
    return OK;
}

static void print_result(const struct windows *w, bool json)
{
    uint64_t count = w->num_tokens - 1;
    double loss = w->sum / (double)count;
    json_add_number(w->json, "loss", loss);
    json_add_number(w->json, "perplexity", exp(loss));
    if (!json)
        printf("perplexity %.6g, loss %.6f nats (%.6f bits) a token, over %" PRIu64
               " tokens in windows of %" PRIu64 "\n",
               exp(loss), loss, loss / M_LN2, count, w->seq);
}

/* ---- the command ---- */

/* A file that has the prefix as its name is not a dataset. */
static enum status open_dataset(struct windows *w, struct error *err)
{
    const char *path = w->flags->data;
    enum status st = indexed_dataset_open(&w->data, path, err);
    if (st == ERR_IO && path_exists(path) && !path_is_folder(path))
        st = fail_in(err, "%s is not an indexed dataset (raw token ids need --data-dtype)", path);
    return st;
}

static enum status open_data(struct windows *w, struct error *err)
{
    const struct perplexity_flags *f = w->flags;
    const char *dtype = f->data_dtype;
    if (dtype)
        TRY(token_file_open(&w->data, f->data, strcmp(dtype, "u16") ? DT_U32 : DT_U16, err));
    else
        TRY(open_dataset(w, err));
    w->num_tokens = min_u64(w->data.num_tokens, f->max_tokens);
    if (w->num_tokens >= 2) return OK;
    indexed_dataset_close(&w->data);
    return fail(err, ERR_USAGE, "%s: %" PRIu64 " token%s; at least two are needed", f->data,
                w->num_tokens, w->num_tokens == 1 ? "" : "s");
}

/* Sets the vocabulary size and the window length; by default the model's
 * positions, up to a limit. */
static enum status look_at_model(struct windows *w, struct error *err)
{
    enum { LONGEST = 2048 };
    struct model_facts m;
    TRY(model_facts_read(w->model, &w->flags->compute.source, false, &m, err));
    uint64_t usual = m.positions && m.positions < LONGEST ? m.positions : LONGEST;
    w->seq = min_u64(w->flags->seq ? w->flags->seq : usual, w->num_tokens - 1);
    w->vocab_size = m.vocab_size;
    return OK;
}

static enum status cut_windows(struct windows *w, struct error *err)
{
    const struct perplexity_flags *f = w->flags;
    const uint64_t foretold = w->num_tokens - 1, dp = f->compute.engine.layout.dp;
    w->num_whole = foretold / w->seq;
    w->rest = foretold % w->seq;
    w->batch = min_u64(f->batch ? f->batch : dp ? dp : 1, w->num_whole);
    if (w->seq > INT32_MAX || w->batch > INT32_MAX / w->seq)
        return fail(err, ERR_USAGE,
                    "--seq-length %" PRIu64 " times --batch %" PRIu64 " exceeds %d tokens", w->seq,
                    w->batch, INT32_MAX);
    w->tokens = must_calloc(w->seq + 1, sizeof *w->tokens);
    w->ids = must_calloc(w->batch * w->seq, sizeof *w->ids);
    w->targets = must_calloc(w->batch * w->seq, sizeof *w->targets);
    return OK;
}

static cJSON *json_new(const struct windows *w, const struct batch *shape)
{
    cJSON *o = run_json_new(w->model, &w->flags->compute);
    cJSON_AddStringToObject(o, "data", w->flags->data);
    json_add_u64(o, "tokens", w->num_tokens - 1);
    run_json_add_tokens(o, shape);
    cJSON_AddBoolToObject(o, "dry_run", w->flags->compute.engine.dry_run);
    return o;
}

static enum status compute(struct windows *w, const struct engine *engine, bool is_rank_0,
                           struct error *err)
{
    struct forward_request q = {.pass = {.loss = true, .trace_layer = -1},
                                .dry_run = w->flags->compute.engine.dry_run,
                                .next = next_windows,
                                .visit = add_batch_loss,
                                .taking.piece_bytes = PASS_PIECE_BYTES,
                                .context = w};
    const bool json = w->flags->compute.output.json;
    TRY(engine_model_of(w->model, &w->flags->compute, &q.model, err));
    TRY(look_at_model(w, err));
    TRY(cut_windows(w, err));
    q.shape = (struct batch){.num_sequences = w->batch, .length = w->seq};
    w->json = json_new(w, &q.shape);
    if (takes_plan(&w->flags->compute)) q.visit_plan = take_plan;
    TRY(engine->forward(&q, err));
    if (!is_rank_0) return OK;
    if (!q.dry_run) print_result(w, json);
    print_that_it_fits(&w->flags->compute);
    result_set(w->json);
    w->json = NULL;
    return OK;
}

static enum status run_perplexity_on_rank(void *context, const struct engine *engine,
                                          bool is_rank_0, struct error *err)
{
    struct windows *w = context;
    if (!w->flags->data) return fail(err, ERR_USAGE, "--data is missing");
    if (!*w->flags->data) return fail(err, ERR_USAGE, "--data is empty");
    TRY(open_data(w, err));
    enum status st = compute(w, engine, is_rank_0, err);
    free(w->tokens);
    free(w->ids);
    free(w->targets);
    cJSON_Delete(w->json);
    indexed_dataset_close(&w->data);
    return st;
}

static enum status perplexity(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    struct windows w = {.flags = options, .model = positional[0]};
    (void)num_positional;
    return engine_run(run_perplexity_on_rank, &w, err);
}

const struct command command_perplexity = {
    .name = "perplexity",
    .summary = "compute the perplexity of a model on a dataset",
    .positional = "MODEL",
    .text = "The sequences of the dataset form one stream, cut into windows. No context crosses "
            "windows (the stride is the window).\n\n"
            "  ferry perplexity model --data data/test_text_document --seq-length 1024\n\n"
            "Write the token ids of a text as raw ids (--data-dtype u32) in Python:\n\n"
            "  python3 -c 'from transformers import AutoTokenizer as A; import numpy as n; "
            "t = A.from_pretrained(\"model\"); "
            "n.array(t(open(\"text.txt\").read()).input_ids, \"<u4\").tofile(\"ids.bin\")'",
    .groups = perplexity_groups,
    .num_groups = COUNT(perplexity_groups),
    .options_bytes = sizeof(struct perplexity_flags),
    .defaults = set_perplexity_defaults,
    .run = perplexity,
};
