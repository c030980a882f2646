/* generate_command.c - ferry generate: continues prompts of token ids. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/count.h"
#include "common/memory.h"
#include "common/progress.h"
#include "common/result.h"
#include "train/cli/engine_commands.h"
#include "train/cli/engine_flags.h"
#include "train/cli/run_json.h"
#include "train/cli/token_ids.h"

struct generate_flags {
    struct compute_flags compute;
    const char *prompt_ids, *input_ids, *end_ids;
    uint64_t max_new_tokens, top_k, seed;
    double temperature, top_p;
    bool ignore_eos;
};

// clang-format off
#define AT(field) offsetof(struct generate_flags, field)
static const struct arg generate_args[] = {
    {"--prompt-ids",     ARG_TEXT,  AT(prompt_ids),     "IDS",  NULL, "prompt as token ids 1,2,3; several prompts: 1,2,3;4,5"},
    {"--input-ids",      ARG_TEXT,  AT(input_ids),      "FILE", NULL, "safetensors file with a tensor input_ids; its attention_mask, if any, marks padding"},
    {"--max-new-tokens", ARG_UINT,  AT(max_new_tokens), "N",    NULL, "maximum number of tokens to generate; default 32"},
    {"--temperature",    ARG_FLOAT, AT(temperature),    "T",    NULL, "sampling temperature; default 0: greedy (argmax)"},
    {"--top-k",          ARG_UINT_OR_0, AT(top_k),      "K",    NULL, "sample from the K most probable tokens; default 0: from all"},
    {"--top-p",          ARG_FLOAT, AT(top_p),          "P",    NULL, "nucleus sampling: sample from the most probable tokens with total probability P; default 1"},
    {"--seed",           ARG_UINT_OR_0, AT(seed),       "N",    NULL, "sampling seed; default 0"},
    {"--end-id --eos-token-id", ARG_TEXT, AT(end_ids),  "IDS",  NULL, "tokens that end a sequence; default: eos_token_id of generation_config.json or config.json"},
    {"--ignore-eos",     ARG_FLAG,  AT(ignore_eos),     NULL,   NULL, "never stop at an end token"},
};
static const struct arg_group generate_groups[] = {
    {"Generation", generate_args, COUNT(generate_args), 0},
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(compute.engine.layout)},
    {"Engine", engine_args, NUM_ENGINE_ARGS, AT(compute.engine)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_generate_defaults(void *options)
{
    struct generate_flags *f = options;
    compute_defaults(&f->compute);
    f->max_new_tokens = 32;
    f->top_p = 1;
}

/* The generated tokens: [num_sequences] lists. */
struct texts {
    struct strbuf *lines;
    uint64_t num_sequences, steps;
    double first_seconds, last_seconds;
    bool stream; /* one sequence, as text: print each token at once */
    const struct compute_flags *flags;
    cJSON *json; /* the --json result */
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

static enum status take_plan(void *context, const struct fit_memory *ranks, unsigned num_ranks,
                             struct error *err)
{
    struct texts *t = context;
    (void)err;
    run_json_add_plan(t->json, t->flags, ranks, num_ranks);
    return OK;
}

static void add_token_ids(cJSON *o, const struct texts *t)
{
    cJSON *all = cJSON_AddArrayToObject(o, "token_ids");
    for (uint64_t i = 0; i < t->num_sequences; i++) {
        struct strbuf list = {0};
        strbuf_printf(&list, "[%s]", t->lines[i].length ? t->lines[i].data : "");
        cJSON_AddItemToArray(all, cJSON_CreateRaw(list.data));
        strbuf_release(&list);
    }
}

static void print_texts(const struct texts *t)
{
    if (t->stream) {
        putchar('\n');
        (void)fflush(stdout); /* before anything goes to stderr */
        return;
    }
    for (uint64_t i = 0; i < t->num_sequences; i++)
        puts(t->lines[i].length ? t->lines[i].data : "");
}

static enum status check_generate_flags(const struct generate_flags *f, struct error *err)
{
    if (!f->prompt_ids && !f->input_ids)
        return fail(err, ERR_USAGE, "no prompt: give --prompt-ids or --input-ids");
    if (f->prompt_ids && f->input_ids)
        return fail(err, ERR_USAGE, "give one of --prompt-ids and --input-ids");
    if (f->end_ids && f->ignore_eos)
        return fail(err, ERR_USAGE, "give one of --end-id and --ignore-eos");
    if (f->temperature < 0)
        return fail(err, ERR_USAGE, "--temperature %g is negative", f->temperature);
    if (!(f->top_p > 0 && f->top_p <= 1))
        return fail(err, ERR_USAGE, "--top-p %g must be above 0 and at most 1", f->top_p);
    if (f->top_k > UINT32_MAX)
        return fail(err, ERR_USAGE, "--top-k %" PRIu64 " exceeds 32 bits", f->top_k);
    return OK;
}

/* End tokens of the user must be in the vocabulary; those of the config need
 * not be. */
static enum status choose_end_tokens(const struct generate_flags *f, const char *path,
                                     struct end_tokens *out, struct error *err)
{
    struct model_facts m;
    struct token_ids t;
    TRY(model_facts_read(path, &f->compute.source, !f->end_ids && !f->ignore_eos, &m, err));
    *out = m.end_tokens;
    if (!f->end_ids) return OK;
    enum status st = ids_parse(f->end_ids, &t, err);
    if (!st && (t.batch.num_sequences > 1 || t.batch.length > MAX_END_TOKENS))
        st = fail(err, ERR_USAGE, "\"%s\" is not a list of at most %d token ids such as 1,2,3",
                  f->end_ids, MAX_END_TOKENS);
    out->count = st ? 0 : t.batch.length;
    for (size_t i = 0; i < out->count && !st; i++) {
        out->ids[i] = t.ids[i];
        if (m.vocab_size && (uint64_t)t.ids[i] >= m.vocab_size)
            st = fail(err, ERR_USAGE, "token id %d is not below the vocabulary size, %" PRIu64,
                      t.ids[i], m.vocab_size);
    }
    ids_release(&t);
    return st ? fail_in(err, "--end-id") : OK;
}

/* Notes options that have no effect. */
static void print_unused(const struct generate_flags *f)
{
    if (f->compute.output.quiet || f->temperature > 0) return;
    if (f->top_k || f->top_p < 1 || f->seed)
        fprintf(stderr, "note: --top-k, --top-p and --seed have no effect: decoding is greedy at "
                        "--temperature 0, the default\n");
}

/* Arguments of every rank's work. */
struct asked {
    const struct generate_flags *flags;
    const char *path;
};

/* The rate after the prompt. */
static double tokens_per_second(const struct texts *t)
{
    return t->steps > 1
               ? (double)((t->steps - 1) * t->num_sequences) / (t->last_seconds - t->first_seconds)
               : NAN;
}

static void print_all(const struct texts *t, const struct output_flags *o)
{
    if (!o->json) print_texts(t);
    if (o->verbose && t->steps > 1)
        fprintf(stderr, "%.1f tokens/s after the prompt\n", tokens_per_second(t));
}

static cJSON *json_new(const struct asked *x, const struct batch *prompts)
{
    cJSON *o = run_json_new(x->path, &x->flags->compute);
    run_json_add_tokens(o, prompts);
    json_add_u64(o, "max_new_tokens", x->flags->max_new_tokens);
    cJSON_AddBoolToObject(o, "dry_run", x->flags->compute.engine.dry_run);
    return o;
}

static void set_generate_result(struct texts *t, bool dry_run)
{
    if (!dry_run) {
        add_token_ids(t->json, t);
        json_add_number(t->json, "tokens_per_second", tokens_per_second(t));
    }
    result_set(t->json);
    t->json = NULL;
}

static enum status compute(const struct asked *x, const struct engine *engine,
                           const struct batch *b, bool is_rank_0, struct error *err)
{
    const struct generate_flags *f = x->flags;
    const struct output_flags *o = &f->compute.output;
    struct end_tokens end;
    struct texts t = {.flags = &f->compute,
                      .num_sequences = b->num_sequences,
                      .stream = b->num_sequences == 1 && !o->json};
    TRY(choose_end_tokens(f, x->path, &end, err));
    struct generate_request q = {.prompts = *b,
                                 .max_new_tokens = f->max_new_tokens,
                                 .sampling = {f->temperature, f->top_p, f->top_k, f->seed},
                                 .end_tokens = end.ids,
                                 .num_end_tokens = end.count,
                                 .dry_run = f->compute.engine.dry_run,
                                 .visit = take_tokens,
                                 .context = &t};
    TRY(engine_model_of(x->path, &f->compute, &q.model, err));
    if (is_rank_0) print_unused(f);
    t.lines = must_calloc(b->num_sequences, sizeof *t.lines);
    t.json = json_new(x, b);
    if (takes_plan(&f->compute)) q.visit_plan = take_plan;
    enum status st = engine->generate(&q, err);
    if (!st && !q.dry_run && is_rank_0) print_all(&t, o);
    if (!st && is_rank_0) print_that_it_fits(&f->compute);
    if (!st && is_rank_0) set_generate_result(&t, q.dry_run);
    cJSON_Delete(t.json);
    for (uint64_t i = 0; i < b->num_sequences; i++)
        strbuf_release(&t.lines[i]);
    free(t.lines);
    return st;
}

static enum status run_generate_on_rank(void *context, const struct engine *engine, bool is_rank_0,
                                        struct error *err)
{
    const struct asked *x = context;
    const struct generate_flags *f = x->flags;
    struct token_ids t;
    TRY(check_generate_flags(f, err));
    enum status st =
        f->prompt_ids ? ids_parse(f->prompt_ids, &t, err) : ids_read(f->input_ids, &t, err);
    if (!st) st = compute(x, engine, &t.batch, is_rank_0, err);
    ids_release(&t);
    return st;
}

static enum status generate(void *options, const char *const *positional, size_t num_positional,
                            struct error *err)
{
    struct asked x = {options, positional[0]};
    (void)num_positional;
    return engine_run(run_generate_on_rank, &x, err);
}

const struct command command_generate = {
    .name = "generate",
    .summary = "generate tokens after a prompt of token ids, with a KV cache",
    .positional = "MODEL",
    .text =
        "  ferry generate model --prompt-ids 1,2,3 --max-new-tokens 32\n\n"
        "Reads and prints token ids. Convert text to ids and back in Python:\n\n"
        "  python3 -c 'from transformers import AutoTokenizer as A; "
        "t = A.from_pretrained(\"model\"); print(*t(\"Hello world\").input_ids, sep=\",\")'\n"
        "  python3 -c 'from transformers import AutoTokenizer as A; "
        "t = A.from_pretrained(\"model\"); print(t.decode([1, 2, 3]))'\n\n"
        "A sequence ends with the model's eos_token_id, which is printed. Nothing else of "
        "generation_config.json is used. The same seed gives the same tokens, except that another "
        "layout rounds sums in another order. Logits in bf16 are off by a few per cent, so --top-p "
        "may keep other tokens than in f32.",
    .groups = generate_groups,
    .num_groups = COUNT(generate_groups),
    .options_bytes = sizeof(struct generate_flags),
    .defaults = set_generate_defaults,
    .run = generate,
};
