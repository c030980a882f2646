/* forward_command.c - ferry forward: logits of token ids, and the input of each
 * layer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/clock.h"
#include "common/count.h"
#include "common/file.h"
#include "common/new_file.h"
#include "common/progress.h"
#include "common/result.h"
#include "common/threads.h"
#include "train/cli/engine_commands.h"
#include "train/cli/engine_flags.h"
#include "train/cli/run_json.h"
#include "train/cli/token_ids.h"

struct forward_flags {
    struct compute_flags compute;
    const char *input_ids, *out;
    bool hidden;
    uint64_t trace_layer;
    const char *logits_dtype; /* NULL: not given */
};

// clang-format off
#define AT(field) offsetof(struct forward_flags, field)
static const struct arg forward_args[] = {
    {"--input-ids", ARG_TEXT, AT(input_ids), "FILE", NULL, "safetensors file with a tensor input_ids [sequences, length]"},
    {"--out",       ARG_TEXT, AT(out),       "FILE", NULL, "safetensors file for the results; must not exist"},
    {"--hidden",    ARG_FLAG, AT(hidden),    NULL,   NULL, "also write the input of each layer (hidden.N) and the output of the final norm"},
    {"--logits-dtype", ARG_CHOICE, AT(logits_dtype), NULL, "f32|bf16|fp16", "dtype of the written logits; default f32, or f64 with --dtype f64"},
    {"--trace-layer", ARG_UINT_OR_0, AT(trace_layer), "N", NULL, "also write the outputs of layer N's ops (layers.N.qkv, ...)"},
};
static const struct arg_group forward_groups[] = {
    {"Forward", forward_args, COUNT(forward_args), 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.engine.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS, AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_forward_defaults(void *options)
{
    struct forward_flags *f = options;
    compute_defaults(&f->compute);
    f->trace_layer = UINT64_MAX;
}

/* ---- the file ---- */

/* A safetensors file, written tensor by tensor. The space reserved in front
 * gets the header at the end. */
struct results {
    const struct batch *batch;
    const struct compute_flags *flags;
    struct strbuf header; /* entries so far */
    struct new_file file;
    uint64_t data_bytes, header_bytes;
    cJSON *json, *outputs; /* the --json result: the run, and its outputs */
    uint64_t logits_columns;
    double started;
};

static enum status results_open(struct results *r, const char *path, uint64_t num_tensors,
                                struct error *err)
{
    r->header_bytes = ceil_div_u64(4096 + num_tensors * 256, 8) * 8 - 8;
    return new_file_open(&r->file, path, true, err);
}

static bool has_columns(const struct collected *c)
{
    return strcmp(c->name, "loss") != 0;
}

static void note_output(struct results *r, const struct collected *c)
{
    cJSON *o = cJSON_CreateObject(), *shape;
    cJSON_AddStringToObject(o, "name", c->name);
    cJSON_AddStringToObject(o, "dtype", dtype_infos[c->dtype].name);
    shape = cJSON_AddArrayToObject(o, "shape");
    cJSON_AddItemToArray(shape, json_new_u64(r->batch->num_sequences));
    cJSON_AddItemToArray(shape, json_new_u64(c->rows / r->batch->num_sequences));
    if (has_columns(c)) cJSON_AddItemToArray(shape, json_new_u64(c->columns));
    cJSON_AddItemToArray(r->outputs, o);
    if (strcmp(c->name, "logits") == 0) r->logits_columns = c->columns;
}

/* A batch's rows are [sequences, length]. */
static void add_entry(struct results *r, const struct collected *c)
{
    const struct batch *b = r->batch;
    const uint64_t bytes = c->rows * c->columns * dtype_bytes(c->dtype);
    strbuf_printf(&r->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 ",%" PRIu64,
                  r->header.length ? "," : "{", c->name, dtype_infos[c->dtype].name,
                  b->num_sequences, c->rows / b->num_sequences);
    if (has_columns(c)) strbuf_printf(&r->header, ",%" PRIu64, c->columns);
    strbuf_printf(&r->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", r->data_bytes,
                  r->data_bytes + bytes);
}

enum { WRITTEN_AT_ONCE = 64 << 20 };

/* Receives an output, or its next rows. */
static enum status write_output(void *context, const struct collected *c, struct error *err)
{
    struct results *r = context;
    const uint64_t first = 8 + r->header_bytes + r->data_bytes, bytes = collected_bytes(c);
    uint64_t n;
    if (c->first_row == 0) {
        add_entry(r, c);
        note_output(r, c);
    }
    r->data_bytes += bytes;
    for (uint64_t at = 0; at < bytes; at += n) {
        n = min_u64(bytes - at, WRITTEN_AT_ONCE);
        TRY(work_check(err));
        TRY(file_write(r->file.fd, r->file.path, (const char *)c->data + at, n, first + at, err));
    }
    return OK;
}

static enum status results_finish(struct results *r, struct error *err)
{
    uint8_t length[8];
    strbuf_add_char(&r->header, '}');
    if (r->header.length > r->header_bytes)
        return fail(err, ERR_OURS, "%s: a header of %zu bytes does not fit %" PRIu64, r->file.path,
                    r->header.length, r->header_bytes);
    while (r->header.length < r->header_bytes)
        strbuf_add_char(&r->header, ' ');
    for (unsigned i = 0; i < 8; i++)
        length[i] = (uint8_t)(r->header_bytes >> (8 * i));
    TRY(file_write(r->file.fd, r->file.path, length, sizeof length, 0, err));
    TRY(file_write(r->file.fd, r->file.path, r->header.data, r->header_bytes, 8, err));
    return new_file_publish(&r->file, err);
}

static void results_close(struct results *r)
{
    new_file_close(&r->file);
    strbuf_release(&r->header);
    cJSON_Delete(r->json);
    cJSON_Delete(r->outputs);
}

/* ---- the command ---- */

static enum status only_batch(void *context, uint64_t number, struct batch *b, bool *more,
                              struct error *err)
{
    const struct results *r = context;
    (void)err;
    *b = *r->batch;
    *more = number == 0;
    return OK;
}

static enum status take_plan(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                             struct error *err)
{
    struct results *r = context;
    (void)err;
    run_json_add_plan(r->json, r->flags, ranks, num_ranks);
    return OK;
}

/* -1: not given. The engine refuses a layer that the model does not have. */
static int trace_layer_of(const struct forward_flags *f)
{
    if (f->trace_layer == UINT64_MAX) return -1;
    return f->trace_layer > INT32_MAX ? INT32_MAX : (int)f->trace_layer;
}

/* Arguments of every rank's work. */
struct asked {
    const struct forward_flags *flags;
    const char *path;
};

static void begin_json(const struct asked *x, struct results *r)
{
    const struct forward_flags *f = x->flags;
    r->json = run_json_new(x->path, &f->compute);
    cJSON_AddStringToObject(r->json, "input_ids", f->input_ids);
    if (f->out) cJSON_AddStringToObject(r->json, "out", f->out);
    run_json_add_tokens(r->json, r->batch);
    cJSON_AddBoolToObject(r->json, "dry_run", f->compute.engine.dry_run);
    r->outputs = cJSON_CreateArray();
}

static void print_line(const struct results *r, const char *path)
{
    const int count = cJSON_GetArraySize(r->outputs);
    printf("%s: logits [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", path, r->batch->num_sequences,
           r->batch->length, r->logits_columns);
    if (count > 1) printf(" and %d other result%s", count - 1, count > 2 ? "s" : "");
    printf(", %.2f MB, in %.2f s\n", (double)r->data_bytes / 1e6, seconds_now() - r->started);
}

/* A dry run has printed its plan. */
static void print_result(const struct asked *x, struct results *r)
{
    const struct forward_flags *f = x->flags;
    const bool dry = f->compute.engine.dry_run;
    if (!dry && !f->compute.output.json && !f->compute.output.quiet) print_line(r, f->out);
    if (!dry) {
        cJSON_AddItemToObject(r->json, "outputs", r->outputs);
        json_add_u64(r->json, "bytes", r->data_bytes);
        r->outputs = NULL;
    }
    result_set(r->json);
    r->json = NULL;
}

static enum status choose_logits_dtype(const struct forward_flags *f, struct pass_options *o,
                                       struct error *err)
{
    if (!f->logits_dtype) return OK;
    if (strcmp(f->compute.engine.dtype, "f64") == 0)
        return fail(err, ERR_USAGE,
                    "--logits-dtype %s conflicts with --dtype f64, which gives logits in f64",
                    f->logits_dtype);
    o->logits_dtype = elem_dtype(elem_of(f->logits_dtype));
    return OK;
}

static enum status compute(const struct asked *x, const struct engine *engine, struct results *r,
                           bool is_rank_0, struct error *err)
{
    const struct forward_flags *f = x->flags;
    struct forward_request q = {
        .pass = {.logits = true, .hidden = f->hidden, .trace_layer = trace_layer_of(f)},
        .shape = *r->batch,
        .dry_run = f->compute.engine.dry_run,
        .next = only_batch,
        .visit = write_output,
        .taking.piece_bytes = PASS_PIECE_BYTES,
        .context = r};
    TRY(engine_model_of(x->path, &f->compute, &q.model, err));
    TRY(choose_logits_dtype(f, &q.pass, err));
    begin_json(x, r);
    if (takes_plan(&f->compute)) q.visit_plan = take_plan;
    if (is_rank_0 && f->out) TRY(results_open(r, f->out, f->hidden ? 8192 : 64, err));
    TRY(engine->forward(&q, err));
    if (is_rank_0 && !q.dry_run) TRY(results_finish(r, err));
    if (is_rank_0) print_that_it_fits(&f->compute);
    if (is_rank_0) print_result(x, r);
    return OK;
}

static enum status run_forward_on_rank(void *context, const struct engine *engine, bool is_rank_0,
                                       struct error *err)
{
    const struct asked *x = context;
    const struct forward_flags *f = x->flags;
    struct token_ids t = {.ids = NULL};
    struct results r = {
        .batch = &t.batch, .flags = &f->compute, .file = {.fd = -1}, .started = seconds_now()};
    if (!f->input_ids) return fail(err, ERR_USAGE, "--input-ids is missing");
    if (f->out && !*f->out) return fail(err, ERR_USAGE, "--out is empty");
    if (!f->out && !f->compute.engine.dry_run) return fail(err, ERR_USAGE, "--out is missing");
    enum status st = ids_read(f->input_ids, &t, err);
    if (!st) st = ids_check_one_length(&t, f->input_ids, err);
    if (!st) st = compute(x, engine, &r, is_rank_0, err);
    results_close(&r);
    ids_release(&t);
    return st;
}

static enum status forward(void *options, const char *const *positional, size_t num_positional,
                           struct error *err)
{
    struct asked x = {options, positional[0]};
    (void)num_positional;
    return engine_run(run_forward_on_rank, &x, err);
}

const struct command command_forward = {
    .name = "forward",
    .summary = "compute logits of token ids, at any parallel layout",
    .positional = "MODEL",
    .text = "MODEL is any checkpoint that convert reads, in any layout. Each rank reads only its "
            "own shards. Under mpirun or srun the launched processes are the ranks; otherwise "
            "ferry starts the ranks itself.\n\n"
            "  ferry forward model --input-ids ids.safetensors --out logits.safetensors --tp 2",
    .groups = forward_groups,
    .num_groups = COUNT(forward_groups),
    .options_bytes = sizeof(struct forward_flags),
    .defaults = set_forward_defaults,
    .run = forward,
};
