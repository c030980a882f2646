/* forward.c - ferry forward: the logits of token ids, and what enters each layer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/checked.h"
#include "train/cli/commands.h"
#include "train/cli/options.h"

struct forward_flags {
    struct compute_flags compute;
    const char *input_ids, *out;
    bool hidden;
    uint64_t trace_layer;
};

// clang-format off
#define AT(field) offsetof(struct forward_flags, field)
static const struct arg forward_args[] = {
    {"--input-ids", ARG_TEXT, AT(input_ids), "FILE", NULL, "safetensors file with a tensor input_ids [sequences, length]"},
    {"--out",       ARG_TEXT, AT(out),       "FILE", NULL, "where the results go, as safetensors; must not be there"},
    {"--hidden",    ARG_FLAG, AT(hidden),    NULL,   NULL, "also what enters each layer (hidden.N) and the final norm"},
    {"--trace-layer", ARG_UINT, AT(trace_layer), "N", NULL, "also what the ops of layer N make (layers.N.qkv, ..)"},
};
static const struct arg_group forward_groups[] = {
    {"Forward", forward_args, sizeof forward_args / sizeof *forward_args, 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS, AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_defaults(void *options)
{
    struct forward_flags *f = options;
    compute_defaults(&f->compute);
    f->trace_layer = UINT64_MAX;
}

/* ---- the file ---- */

/* A safetensors file that is written as its tensors come: the header gets its place in front, and
 * is filled in at the end. */
struct results {
    const struct batch *batch;
    struct strbuf header; /* entries so far */
    FILE *file;
    const char *path, *temp;
    uint64_t data_bytes, header_bytes;
};

static enum status results_open(struct results *r, struct arena *a, const char *path,
                                uint64_t num_tensors, struct error *err)
{
    r->path = path;
    if (path_exists(path)) return fail(err, ERR_EXISTS, "%s: is there already", path);
    r->temp = arena_printf(a, "%s.%ld.ferry-partial", path, (long)getpid());
    r->header_bytes = ceil_div_u64(4096 + num_tensors * 256, 8) * 8 - 8;
    r->file = fopen(r->temp, "wb");
    if (!r->file) return fail_errno(err, ERR_IO, "%s", r->temp);
    if (fseeko(r->file, (off_t)(8 + r->header_bytes), SEEK_SET))
        return fail_errno(err, ERR_IO, "%s", r->temp);
    return OK;
}

/* A batch's rows are [sequences, length]. */
static void add_entry(struct results *r, const struct collected *c, const char *dtype,
                      uint64_t bytes)
{
    const struct batch *b = r->batch;
    strbuf_printf(&r->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 ",%" PRIu64,
                  r->header.length ? "," : "{", c->name, dtype, b->num_sequences,
                  c->rows / b->num_sequences);
    if (strcmp(c->name, "loss") != 0) strbuf_printf(&r->header, ",%" PRIu64, c->columns);
    strbuf_printf(&r->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", r->data_bytes,
                  r->data_bytes + bytes);
    r->data_bytes += bytes;
}

static enum status write_output(void *context, const struct collected *c, struct error *err)
{
    struct results *r = context;
    size_t each = c->wide ? sizeof(double) : sizeof(float), count = c->rows * c->columns;
    add_entry(r, c, c->wide ? "F64" : "F32", each * count);
    if (fwrite(c->data, each, count, r->file) == count) return OK;
    return fail_errno(err, ERR_IO, "%s", r->temp);
}

static enum status results_finish(struct results *r, struct error *err)
{
    uint8_t length[8];
    strbuf_add_char(&r->header, '}');
    if (r->header.length > r->header_bytes)
        return fail(err, ERR_OURS, "%s: a header of %zu bytes does not fit %" PRIu64, r->path,
                    r->header.length, r->header_bytes);
    while (r->header.length < r->header_bytes)
        strbuf_add_char(&r->header, ' ');
    for (unsigned i = 0; i < 8; i++)
        length[i] = (uint8_t)(r->header_bytes >> (8 * i));
    if (fseeko(r->file, 0, SEEK_SET) || fwrite(length, 1, 8, r->file) != 8 ||
        fwrite(r->header.data, 1, r->header_bytes, r->file) != r->header_bytes || fflush(r->file) ||
        fsync(fileno(r->file)))
        return fail_errno(err, ERR_IO, "%s", r->temp);
    return path_rename_new(r->temp, r->path, err);
}

static void results_close(struct results *r)
{
    if (r->file) {
        fclose(r->file);
        (void)unlink(r->temp); /* not there where it has become the result */
    }
    strbuf_release(&r->header);
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

/* -1: not asked for. One that no model has is refused by the engine. */
static int trace_layer_of(const struct forward_flags *f)
{
    if (f->trace_layer == UINT64_MAX) return -1;
    return f->trace_layer > INT32_MAX ? INT32_MAX : (int)f->trace_layer;
}

static enum status run(const struct forward_flags *f, const char *path, const struct batch *b,
                       struct error *err)
{
    const struct engine *engine;
    struct results r = {.batch = b};
    struct arena a;
    struct forward_request q = {
        .pass = {.logits = true, .hidden = f->hidden, .trace_layer = trace_layer_of(f)},
        .shape = *b,
        .dry_run = f->compute.engine.dry_run,
        .next = only_batch,
        .visit = write_output,
        .context = &r};
    TRY(engine_model_of(path, &f->compute, &q.model, err));
    TRY(engine_open(&engine, err));
    arena_init(&a);
    enum status st = OK;
    if (!q.dry_run) st = results_open(&r, &a, f->out, f->hidden ? 8192 : 64, err);
    if (!st) st = engine->forward(&q, err);
    if (!st && !q.dry_run) st = results_finish(&r, err);
    results_close(&r);
    arena_release(&a);
    return st;
}

static enum status forward(void *options, const char *const *positional, size_t num_positional,
                           struct error *err)
{
    const struct forward_flags *f = options;
    struct batch b;
    int32_t *ids = NULL;
    (void)num_positional;
    if (!f->input_ids) return fail(err, ERR_USAGE, "--input-ids is missing");
    if (!f->out && !f->compute.engine.dry_run) return fail(err, ERR_USAGE, "--out is missing");
    enum status st = ids_read(f->input_ids, &b, &ids, err);
    if (!st) st = run(f, positional[0], &b, err);
    free(ids);
    return st;
}

const struct command command_forward = {
    .name = "forward",
    .summary = "compute logits, from any checkpoint at any parallel layout",
    .positional = "MODEL",
    .text = "MODEL is any checkpoint that convert can open, of any layout; each rank reads only "
            "what it holds. Ranks are those of mpirun or srun; where it is started alone it "
            "starts them itself.\n\n"
            "  ferry forward model --input-ids ids.safetensors --out logits.safetensors --tp 2",
    .groups = forward_groups,
    .num_groups = sizeof forward_groups / sizeof *forward_groups,
    .options_bytes = sizeof(struct forward_flags),
    .defaults = set_defaults,
    .run = forward,
};
