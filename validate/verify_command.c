/* verify_command.c - ferry verify: compares two checkpoints and reports where
 * and why they differ. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/colour.h"
#include "common/count.h"
#include "common/html_report.h"
#include "common/ranks.h"
#include "common/result.h"
#include "convert/cli/options.h"
#include "train/cli/engine_flags.h"
#include "validate/hints/hints.h"
#include "validate/report/report_html.h"
#include "validate/trained/trained.h"
#include "validate/validate_commands.h"

enum { USUAL_BATCH = 2 };
#define USUAL_LR 1e-4
/* The results of all steps are kept. */
#define MAX_TRAIN_STEPS 1000000
#define NOT_GIVEN UINT64_MAX

struct verify_flags {
    struct compute_flags compute;   /* its source and output options hold for comparisons too */
    struct forward_options forward; /* options of tokens; its model is set from `compute` */
    struct run_flags run;
    bool runs;            /* --forward */
    uint64_t train_steps; /* 0: not given */
    double lr;            /* NaN: not given */
    uint64_t max_ulp;     /* UINT64_MAX: not given */
    double atol, rtol;    /* NaN: not given */
    struct arg_list only, ignore, ignore_config, ignore_training;
    bool no_optim;
    const char *report;
};

// clang-format off
#define AT(field) offsetof(struct verify_flags, field)
static const struct arg verify_args[] = {
    {"--max-ulp", ARG_UINT_OR_0, AT(max_ulp), "N", NULL, "pass elements that are at most N ulps apart (steps of their dtype); for equal dtypes only"},
    {"--atol", ARG_FLOAT, AT(atol), "X", NULL, "pass elements with |a - b| <= X + Y * |b|; default 0"},
    {"--rtol", ARG_FLOAT, AT(rtol), "Y", NULL, "Y of --atol; default 0. Floats of two dtypes are compared by value"},
    {"--only", ARG_LIST, AT(only), "GLOB", NULL, "compare only tensors whose name matches, or the name of one of their stored tensors"},
    {"--ignore", ARG_LIST, AT(ignore), "GLOB", NULL, "leave out tensors whose name matches, or the names of all of their stored tensors"},
    {"--no-optim --no-load-optim", ARG_FLAG, AT(no_optim), NULL, NULL, "leave out the optimizer and the training state on both sides"},
    {"--ignore-config", ARG_LIST, AT(ignore_config), "FIELD", NULL, "leave out config fields whose name matches this glob, such as rotary_base or 'rope_*'"},
    {"--ignore-training", ARG_LIST, AT(ignore_training), "FIELD", NULL, "leave out fields of the training state whose name matches this glob, such as 'groups*' (parameter groups) or groups[0].lr"},
    {"--report", ARG_TEXT, AT(report), "FILE", NULL, "write a report as an HTML page; replaces an older report"},
};
static const struct arg forward_args[] = {
    {"--forward", ARG_FLAG, AT(runs), NULL, NULL, "also run both on the same tokens and compare the results; B may be a file of results"},
    {"--input-ids", ARG_TEXT, AT(forward.input_ids), "FILE", NULL, "safetensors file with input_ids [sequences, length]; default: the input_ids of B's results, else random tokens"},
};
static const struct arg tokens_args[] = {
    {"--batch --micro-batch-size", ARG_UINT, AT(forward.num_sequences), "N", NULL, "number of random sequences, or of mock sequences per training step; default 2"},
    {"--seq --seq-length", ARG_UINT, AT(forward.length), "N", NULL, "tokens per sequence; default 64, or the model's maximum if that is smaller"},
};
static const struct arg trained_args[] = {
    {"--train-steps", ARG_UINT, AT(train_steps), "N", NULL, "train both for N steps, and compare loss and gradient norm of each step and all weights after the last, instead of the files"},
    {"--lr", ARG_FLOAT, AT(lr), "X", NULL, "learning rate of --train-steps, constant; default 1e-4"},
};
static const struct arg_group verify_groups[] = {
    {"Comparison", verify_args, COUNT(verify_args), 0},
    {"Forward consistency", forward_args, COUNT(forward_args), 0},
    {"Training consistency", trained_args, COUNT(trained_args), 0},
    {"Tokens of --forward and --train-steps", tokens_args, COUNT(tokens_args), 0},
    {"Layout of --forward", layout_args, NUM_LAYOUT_ARGS, AT(compute.engine.layout)},
    {"Engine of --forward (--dtype and --device also of --train-steps)", engine_args, NUM_PARALLEL_ARGS, AT(compute.engine)},
    {"Sources", source_args, NUM_SOURCE_ARGS, AT(compute.source)},
    {"Work", run_args, NUM_READ_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(compute.output)},
};
// clang-format on

static void set_verify_defaults(void *options)
{
    struct verify_flags *f = options;
    compute_defaults(&f->compute);
    f->forward.num_sequences = NOT_GIVEN;
    f->run.max_memory = DEFAULT_MAX_MEMORY;
    f->max_ulp = UINT64_MAX;
    f->atol = f->rtol = f->lr = NAN;
}

/* ---- options of the comparison ---- */

static enum status tolerance_of(const struct verify_flags *f, struct tolerance *out,
                                struct error *err)
{
    *out = (struct tolerance){.by_ulps = f->max_ulp != UINT64_MAX,
                              .by_bounds = !isnan(f->atol) || !isnan(f->rtol),
                              .max_ulp = f->max_ulp,
                              .atol = isnan(f->atol) ? 0 : f->atol,
                              .rtol = isnan(f->rtol) ? 0 : f->rtol};
    if (out->atol < 0 || out->rtol < 0)
        return fail(err, ERR_USAGE, "--atol and --rtol cannot be negative");
    return OK;
}

static enum status compare_options_of(const struct verify_flags *f, struct compare_options *out,
                                      struct error *err)
{
    struct executor_options executor = executor_options_of(&f->run, &f->compute.output);
    *out = (struct compare_options){.only = &f->only,
                                    .ignore = &f->ignore,
                                    .ignore_config = &f->ignore_config,
                                    .ignore_training = &f->ignore_training,
                                    .no_optim = f->no_optim,
                                    .threads = executor.threads,
                                    .max_memory = executor.max_memory,
                                    .direct_io = executor.direct_io,
                                    .progress = executor.progress};
    return tolerance_of(f, &out->tolerance, err);
}

/* ---- notes ---- */

/* Prints a note; it may contain names of files, so control characters are
 * escaped. */
static void print_note(const char *who, const char *text)
{
    fprintf(stderr, "note: %s", who);
    for (; *text; text++)
        if (iscntrl((unsigned char)*text))
            fprintf(stderr, "\\x%02x", (unsigned)(unsigned char)*text);
        else
            putc(*text, stderr);
    putc('\n', stderr);
}

static void print_all_notes(const struct comparison *c, const struct verify_flags *f)
{
    if (f->compute.output.quiet) return;
    for (unsigned side = 0; side < 2; side++) {
        const struct checkpoint *k = &c->sides[side].checkpoint;
        for (size_t i = 0; i < k->notes.count; i++)
            print_note(side ? "B: " : "A: ", k->notes.lines[i]);
    }
    for (size_t i = 0; i < c->num_notes; i++)
        print_note("", c->notes[i]);
}

/* ---- the command ---- */

/* The page of a comparison, or of training both. */
static enum status write_report(const char *path, const struct verdict *v, const struct trained *t,
                                struct error *err)
{
    struct strbuf page = {0};
    struct arena a;
    if (!path) return OK;
    arena_init(&a);
    struct html_environment e = html_report_environment(&a);
    if (v) report_html(&page, v, &e);
    if (t) trained_html(&page, t, &e);
    enum status st = html_report_write(path, &page, err);
    strbuf_release(&page);
    arena_release(&a);
    return st;
}

static void print_verdict(const struct verdict *v, const struct output_flags *o)
{
    struct strbuf text = {0};
    if (result_is_wanted()) result_set(verdict_json(v));
    if (!o->json && !o->quiet) verdict_text(&text, v, o->verbose);
    if (text.length) fputs(text.data, stdout);
    strbuf_release(&text);
}

/* A failure to find hints does not change the verdict. */
static enum status find_hints(struct comparison *c, struct error *err)
{
    enum status st = hints_find(c, err);
    if (st != ERR_MEMORY) return st;
    compare_note(c, arena_printf(&c->arena, "the search for hints was incomplete: %s", err->text));
    return OK;
}

static enum status report_verdict(const struct verify_flags *f, const struct verdict *v,
                                  struct error *err)
{
    if (v->c) print_all_notes(v->c, f);
    print_verdict(v, &f->compute.output);
    TRY(write_report(f->report, v, NULL, err));
    if (verdict_passes(v)) return OK;
    err->text[0] = '\0'; /* the verdict was printed */
    return DIFFERENT;
}

/* A and B; sides is NULL if B is stored results. */
struct subjects {
    const char *const *paths;
    const struct side *sides;
    struct results *results;
};

static enum status run_forward(const struct verify_flags *f, const struct subjects *s,
                               struct verdict *v, struct forward *forward, struct error *err)
{
    struct compute_flags compute = f->compute;
    struct forward_options o = f->forward;
    compute.engine.threads = f->run.threads;
    TRY(engine_model_of(s->paths[0], &compute, &o.model, err));
    if (o.num_sequences == NOT_GIVEN) o.num_sequences = USUAL_BATCH;
    v->forward = forward;
    return forward_run(forward, s->paths, &o, s->results, v->c, err);
}

/* Requests digests of tensors loaded without a cast, to compare memory with the
 * files. */
static enum status digest_for_forward(const struct verify_flags *f, const struct subjects *s,
                                      struct compare_options *o, struct error *err)
{
    struct engine_model model;
    TRY(engine_model_of(s->paths[0], &f->compute, &model, err));
    o->digests = true;
    o->digests_of = elem_dtype(model.options.elem);
    return OK;
}

/* Notes each FIELD of --allow-config that neither side has. */
static void note_unused(struct comparison *c, const struct arg_list *allowed)
{
    for (size_t i = 0; i < allowed->count; i++) {
        const char *glob = allowed->items[i];
        if (!unknown_fields_match(&c->sides[0].checkpoint.unknown, glob) &&
            !unknown_fields_match(&c->sides[1].checkpoint.unknown, glob))
            compare_note(c, source_unused_text(&c->arena, glob));
    }
}

static enum status compare_weights(const struct verify_flags *f, const struct subjects *s,
                                   struct comparison *c, struct error *err)
{
    struct compare_options o;
    TRY(compare_options_of(f, &o, err));
    if (f->runs) TRY(digest_for_forward(f, s, &o, err));
    TRY(compare_run(c, s->sides, &o, err));
    note_unused(c, &f->compute.source.allow_config);
    return find_hints(c, err);
}

static enum status compare_and_report(const struct verify_flags *f, const struct subjects *s,
                                      double start, struct error *err)
{
    struct comparison c = {0};
    struct forward forward;
    struct verdict v = {.c = s->sides ? &c : NULL, .coloured = colour_is_wanted(stdout)};
    enum status st = s->sides ? compare_weights(f, s, &c, err) : OK;
    if (!st && f->runs) st = run_forward(f, s, &v, &forward, err);
    v.seconds = seconds_now() - start;
    if (!st) st = report_verdict(f, &v, err);
    if (v.forward) forward_release(&forward);
    if (s->sides) compare_release(&c);
    return st;
}

/* ---- training both ---- */

static enum status trained_options_of(const struct verify_flags *f, struct trained_options *out,
                                      struct error *err)
{
    const struct forward_options *tokens = &f->forward;
    const struct executor_options run = executor_options_of(&f->run, &f->compute.output);
    *out = (struct trained_options){
        .steps = f->train_steps,
        .num_sequences = tokens->num_sequences == NOT_GIVEN ? USUAL_BATCH : tokens->num_sequences,
        .length = tokens->length,
        .lr = isnan(f->lr) ? USUAL_LR : f->lr,
        .dtype = f->compute.engine.dtype,
        .device = f->compute.engine.device,
        .threads = f->run.threads,
        .source = source_options_of(&f->compute.source),
        .model_map = f->compute.source.model_map,
        .no_optim = f->no_optim,
        .progress = run.progress};
    return tolerance_of(f, &out->tolerance, err);
}

static void print_trained(const struct trained *t, const struct output_flags *o)
{
    struct strbuf text = {0};
    if (result_is_wanted()) result_set(trained_json(t));
    if (!o->json && !o->quiet) trained_text(&text, t, colour_is_wanted(stdout), o->verbose);
    if (text.length) fputs(text.data, stdout);
    strbuf_release(&text);
}

static enum status train_and_report(const struct verify_flags *f, const struct subjects *s,
                                    struct error *err)
{
    struct trained_options o;
    struct trained t;
    TRY(trained_options_of(f, &o, err));
    enum status st = trained_run(&t, s->paths, s->sides, &o, err);
    if (!st) print_trained(&t, &f->compute.output);
    if (!st) st = write_report(f->report, NULL, &t, err);
    const bool passes = !st && outcome_passes(trained_outcome(&t));
    trained_release(&t);
    if (st || passes) return st;
    err->text[0] = '\0'; /* the verdict was printed */
    return DIFFERENT;
}

static enum status compare_checkpoints(const struct verify_flags *f, const char *const *paths,
                                       double start, struct error *err)
{
    struct sides_options open = {.no_optim = f->no_optim};
    struct model_maps maps;
    struct side sides[2];
    open.source = source_options_of(&f->compute.source);
    open.source.widest = true;
    sides_init(sides);
    enum status st = model_maps_load(&maps, f->compute.source.model_map, err);
    if (!st) st = sides_open(sides, paths, &open, &maps, err);
    const struct subjects s = {paths, sides, NULL};
    if (!st)
        st = f->train_steps ? train_and_report(f, &s, err) : compare_and_report(f, &s, start, err);
    sides_release(sides);
    model_maps_release(&maps);
    return st;
}

/* Refuses options that do not apply to --train-steps; names the first. */
static enum status check_flags_of_training(const struct verify_flags *f, struct error *err)
{
    const struct engine_flags *e = &f->compute.engine;
    const struct {
        const char *name;
        bool is_given;
    } options[] = {{"--forward", f->runs},
                   {"--input-ids", f->forward.input_ids != NULL},
                   {"--max-ulp", f->max_ulp != UINT64_MAX},
                   {"--only", f->only.count > 0},
                   {"--ignore", f->ignore.count > 0},
                   {"--ignore-config", f->ignore_config.count > 0},
                   {"--ignore-training", f->ignore_training.count > 0},
                   {"a layout", layout_is_given(&e->layout) || e->sequence_parallel || e->cp_kind},
                   {"--collectives", e->collectives != NULL},
                   {"--max-memory", f->run.max_memory != DEFAULT_MAX_MEMORY},
                   {"--direct-io", f->run.direct_io}};
    struct ranks ranks;
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].is_given)
            return fail(err, ERR_USAGE, "%s does not apply to --train-steps", options[i].name);
    if (f->train_steps > MAX_TRAIN_STEPS)
        return fail(err, ERR_USAGE, "--train-steps: at most %d", MAX_TRAIN_STEPS);
    TRY(ranks_from_environment(&ranks, err));
    if (ranks.size == 1) return f->report ? html_report_check(f->report, err) : OK;
    return fail(err, ERR_USAGE, "--train-steps runs on one rank: start it without a launcher");
}

static enum status check_verify_flags(const struct verify_flags *f, struct error *err)
{
    const struct forward_options *o = &f->forward;
    bool made_up = o->length || o->num_sequences != NOT_GIVEN;
    bool given = o->input_ids || made_up || layout_is_given(&f->compute.engine.layout);
    if (f->train_steps) return check_flags_of_training(f, err);
    if (!isnan(f->lr)) return fail(err, ERR_USAGE, "--lr needs --train-steps");
    if (given && !f->runs)
        return fail(err, ERR_USAGE,
                    "--input-ids, --batch, --seq and layout options need --forward");
    if (o->input_ids && made_up)
        return fail(err, ERR_USAGE, "--batch and --seq do not apply to --input-ids");
    return f->report ? html_report_check(f->report, err) : OK;
}

/* Refuses options that do not apply to stored results: these have their own
 * tokens and no weights. */
static enum status check_flags_of_results(const struct verify_flags *f, const char *path,
                                          struct error *err)
{
    const struct forward_options *o = &f->forward;
    if (o->length || o->num_sequences != NOT_GIVEN)
        return fail(err, ERR_USAGE,
                    "%s has results, which belong to their own input_ids or to those of "
                    "--input-ids: --batch and --seq do not apply",
                    path);
    if (f->max_ulp != UINT64_MAX || !isnan(f->atol) || !isnan(f->rtol) || f->only.count ||
        f->ignore.count || f->ignore_config.count || f->ignore_training.count || f->no_optim)
        return fail(err, ERR_USAGE,
                    "%s has results, no weights and no config: --max-ulp, --atol, --rtol, --only, "
                    "--ignore, --ignore-config, --ignore-training and --no-optim do not apply",
                    path);
    return OK;
}

/* Suggests --forward in the error if B is a file of results. */
static enum status hint_at_forward(const char *path, enum status st, struct error *err)
{
    struct results results = {0};
    bool found = false;
    char why[sizeof err->text];
    if (st != ERR_UNSUPPORTED) return st;
    memcpy(why, err->text, sizeof why);
    results_open(&results, path, &found);
    results_close(&results);
    if (!found) return st;
    return fail(err, st,
                "%s has results of a model (logits or hidden states) and no weights: --forward "
                "compares them with the results of A (%s)",
                path, why);
}

static enum status run_verify(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    const struct verify_flags *f = options;
    double start = seconds_now();
    struct results results = {0};
    bool stored = false, works = true;
    (void)num_positional;
    TRY(check_verify_flags(f, err));
    if (f->runs) TRY(engine_is_alone(&works, err));
    if (!works) return OK;
    if (f->runs) results_open(&results, positional[1], &stored);
    enum status st = stored ? check_flags_of_results(f, positional[1], err) : OK;
    if (!st && stored)
        st = compare_and_report(f, &(struct subjects){positional, NULL, &results}, start, err);
    else if (!st)
        st = compare_checkpoints(f, positional, start, err);
    results_close(&results);
    return f->runs ? st : hint_at_forward(positional[1], st, err);
}

const struct command command_verify = {
    .name = "verify",
    .summary =
        "compare two checkpoints of any format and layout, bit by bit, and explain differences",
    .positional = "A B",
    .text =
        "Exit code 0: both sides have the same tensors, with equal dtype, shape and bits; no "
        "config field that changes the computation differs (rotary_base, layernorm_epsilon, heads, "
        "...); and, if the states of both optimizers are compared, no field of the training states "
        "differs (step, schedule, learning rates, ...; iterations do not count). Exit code 1: they "
        "differ. The output shows where, by how much, and, if it can be proven, why: transposed, "
        "q, k and v in another order or swapped, gate and up swapped, rows added, one added, only "
        "rounding, ... A hint is shown only if all elements confirm it.\n\n"
        "A tolerance passes elements within --max-ulp, or within --atol and --rtol. NaN passes "
        "only against NaN, an infinity only against itself. Integers have no tolerance.\n\n"
        "Checkpoints of families that Ferry knows are compared by logical tensors, under the names "
        "of Megatron-Core, beside the names in the files of A and B. All others, and single files, "
        "are compared by stored names; all members of their config.json count except those that "
        "are harmless in any model (dropout, dtype, ids of special tokens, ...). A config that "
        "contradicts the tensors, and unreadable optimizer state if both sides have one, are "
        "errors (exit code 3). Rows of vocabulary padding are left out.\n\n"
        "--forward also runs both on the same tokens. It compares the inputs of each layer, the "
        "final norm, the logits, the loss, and the weights in the memory of the ranks (GPU memory "
        "with --device cuda). Exit code 0: the results are identical or differ only by rounding, "
        "configs and training states do not differ, and weights in memory differ only as their "
        "files do: in dtype, or within the tolerance. The effect of rounding is measured: A is "
        "computed a second time in a finer type (or, if the sides are stored in two dtypes, in a "
        "coarser one). In models with experts, a few tokens may differ more, as in that second "
        "run. If the results differ, the first differing layer and op are named. B may also be a "
        "safetensors file of results: input_ids, logits, hidden.N, final_norm, loss.\n\n"
        "--train-steps N trains both instead, one after the other, on one rank and in memory: N "
        "steps of AdamW on the same mock data, by the trainer of ferry train. It compares the loss "
        "and the gradient norm of each step, and all weights after the last step (the masters, "
        "with --dtype bf16). Checkpoints with the same tensors train to the same bits, whatever "
        "their format and layout; --atol and --rtol are for others, such as another dtype. If both "
        "have optimizer states, both continue with them; else both start with new states, as with "
        "--no-optim. Iteration, schedule, position in the data and vocabulary padding never count. "
        "Exit code 0: all is identical or within the tolerance; 1: something differs, and the "
        "first differing step and tensor are named; 3: models of different shape; 6: a run does "
        "not fit into memory (one run of ferry train, and a copy of A's weights); 10: a loss or "
        "gradient is not finite. fp16 uses a loss scale of 1024.\n\n"
        "  ferry verify Llama-3.2-1B ckpt\n"
        "  ferry verify a.safetensors b.safetensors --max-ulp 1 --ignore '*norm*' --report "
        "differences.html\n"
        "  ferry verify Llama-3.2-1B ckpt --forward --tp 2\n"
        "  ferry verify Llama-3.2-1B logits.safetensors --forward\n"
        "  ferry verify Llama-3.2-1B ckpt --train-steps 3",
    .groups = verify_groups,
    .num_groups = COUNT(verify_groups),
    .options_bytes = sizeof(struct verify_flags),
    .defaults = set_verify_defaults,
    .run = run_verify,
};
