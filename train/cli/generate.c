/* generate.c - ferry generate: token ids that follow token ids. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/progress.h"
#include "train/cli/commands.h"
#include "train/cli/options.h"

struct generate_flags {
    struct compute_flags compute;
    const char *prompt_ids, *input_ids;
    uint64_t max_new_tokens, top_k, seed, end_id;
    double temperature, top_p;
};

// clang-format off
#define AT(field) offsetof(struct generate_flags, field)
static const struct arg generate_args[] = {
    {"--prompt-ids",     ARG_TEXT,  AT(prompt_ids),     "IDS",  NULL, "token ids as 1,2,3; several prompts of one length as 1,2,3;4,5,6"},
    {"--input-ids",      ARG_TEXT,  AT(input_ids),      "FILE", NULL, "the same from a tensor input_ids of a safetensors file"},
    {"--max-new-tokens", ARG_UINT,  AT(max_new_tokens), "N",    NULL, "default 32"},
    {"--temperature",    ARG_FLOAT, AT(temperature),    "T",    NULL, "0, the default: always the likeliest token"},
    {"--top-k",          ARG_UINT,  AT(top_k),          "K",    NULL, "one of the K likeliest; default: of all"},
    {"--top-p",          ARG_FLOAT, AT(top_p),          "P",    NULL, "of the fewest that have P of the probability; default 1"},
    {"--seed",           ARG_UINT,  AT(seed),           "N",    NULL, "of the random numbers; default 0"},
    {"--end-id",         ARG_UINT,  AT(end_id),         "ID",   NULL, "a sequence ends with this token; default: none"},
};
static const struct arg_group generate_groups[] = {
    {"Generation", generate_args, sizeof generate_args / sizeof *generate_args, 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS, AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_defaults(void *options)
{
    struct generate_flags *f = options;
    compute_defaults(&f->compute);
    f->max_new_tokens = 32;
    f->top_p = 1;
    f->end_id = UINT64_MAX;
}

/* What was generated so far: [num_sequences] lists. */
struct texts {
    struct strbuf *lines;
    uint64_t num_sequences, steps;
    double first_seconds, last_seconds;
    bool stream; /* one sequence, for people: as it comes */
};

static enum status take_tokens(void *context, const int32_t *tokens, struct error *err)
{
    struct texts *t = context;
    (void)err;
    t->last_seconds = seconds_now();
    if (!t->steps++) t->first_seconds = t->last_seconds;
    for (uint64_t i = 0; i < t->num_sequences; i++) {
        const char *comma = t->lines[i].length ? "," : "";
        if (tokens[i] < 0) continue;
        strbuf_printf(&t->lines[i], "%s%d", comma, tokens[i]);
        if (t->stream) printf("%s%d", comma, tokens[i]);
    }
    if (t->stream) fflush(stdout);
    return OK;
}

static void print_texts(const struct texts *t, bool json)
{
    if (t->stream) {
        putchar('\n');
        return;
    }
    if (json) printf("{\"tokens\":[");
    for (uint64_t i = 0; i < t->num_sequences; i++) {
        const char *line = t->lines[i].length ? t->lines[i].data : "";
        if (json)
            printf("%s[%s]", i ? "," : "", line);
        else
            puts(line);
    }
    if (json) puts("]}");
}

static enum status run(const struct generate_flags *f, const char *path, const struct batch *b,
                       struct error *err)
{
    const struct engine *engine;
    const struct output_flags *o = &f->compute.output;
    struct texts t = {.num_sequences = b->num_sequences,
                      .stream = b->num_sequences == 1 && !o->json};
    struct generate_request q = {.prompts = *b,
                                 .max_new_tokens = f->max_new_tokens,
                                 .sampling = {f->temperature, f->top_p, f->top_k, f->seed},
                                 .end_token = f->end_id > INT32_MAX ? -1 : (int32_t)f->end_id,
                                 .dry_run = f->compute.engine.dry_run,
                                 .visit = take_tokens,
                                 .context = &t};
    TRY(engine_model_of(path, &f->compute, &q.model, err));
    TRY(engine_open(&engine, err));
    t.lines = must_calloc(b->num_sequences, sizeof *t.lines);
    enum status st = engine->generate(&q, err);
    if (!st && !q.dry_run) print_texts(&t, o->json);
    if (!st && o->verbose && t.steps > 1)
        fprintf(stderr, "%.1f tokens/s after the prompt\n",
                (double)((t.steps - 1) * t.num_sequences) / (t.last_seconds - t.first_seconds));
    for (uint64_t i = 0; i < b->num_sequences; i++)
        strbuf_release(&t.lines[i]);
    free(t.lines);
    return st;
}

static enum status check_flags(const struct generate_flags *f, struct error *err)
{
    if (!f->prompt_ids == !f->input_ids)
        return fail(err, ERR_USAGE, "one of --prompt-ids and --input-ids is needed");
    if (f->temperature < 0) return fail(err, ERR_USAGE, "--temperature is negative");
    if (!(f->top_p > 0 && f->top_p <= 1))
        return fail(err, ERR_USAGE, "--top-p is %g; it must be above 0 and at most 1", f->top_p);
    if (f->top_k > UINT32_MAX) return fail(err, ERR_USAGE, "--top-k is too large");
    return OK;
}

static enum status generate(void *options, const char *const *positional, size_t num_positional,
                            struct error *err)
{
    const struct generate_flags *f = options;
    struct batch b;
    int32_t *ids = NULL;
    (void)num_positional;
    TRY(check_flags(f, err));
    enum status st = f->prompt_ids ? ids_parse(f->prompt_ids, &b, &ids, err)
                                   : ids_read(f->input_ids, &b, &ids, err);
    if (!st) st = run(f, positional[0], &b, err);
    free(ids);
    return st;
}

const struct command command_generate = {
    .name = "generate",
    .summary = "continue token ids, with a cache of keys and values",
    .positional = "MODEL",
    .text =
        "Ids in, ids out; the tokenizer is not Ferry's. The same seed gives the same tokens again; "
        "at another layout sums are rounded in another order.\n\n"
        "  ferry generate model --prompt-ids 1,2,3 --max-new-tokens 32",
    .groups = generate_groups,
    .num_groups = sizeof generate_groups / sizeof *generate_groups,
    .options_bytes = sizeof(struct generate_flags),
    .defaults = set_defaults,
    .run = generate,
};
