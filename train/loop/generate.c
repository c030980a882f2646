/* generate.c - generates tokens: a program for the prompt, then a program for
 * one token of each sequence, over the same cache of keys and values. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "train/loop/engine_internal.h"

struct generation {
    struct worker *w;
    const struct generate_request *q;
    struct pass prefill, decode;
    int32_t *tokens; /* [num_sequences], of the last step given out */
    int32_t *chosen; /* [num_sequences], of the next step */
    uint64_t *past;  /* [num_sequences], positions in the cache */
    bool *ended;
    bool runs_ahead; /* a step starts before the host knows the last tokens */
};

static bool is_end_token(const struct generate_request *q, int32_t token)
{
    for (size_t i = 0; i < q->num_end_tokens; i++)
        if (q->end_tokens[i] == token) return true;
    return false;
}

/* Gives out new tokens; *more: a sequence goes on. */
static enum status give_tokens(struct generation *g, bool *more, struct error *err)
{
    uint64_t count = g->q->prompts.num_sequences;
    int32_t *shown = must_calloc(count, sizeof *shown);
    *more = false;
    for (uint64_t i = 0; i < count; i++) {
        shown[i] = g->ended[i] ? -1 : g->tokens[i];
        g->ended[i] |= is_end_token(g->q, g->tokens[i]);
        *more |= !g->ended[i];
    }
    enum status st = g->w->comm.rank ? OK : g->q->visit(g->q->context, shown, err);
    free(shown);
    return st;
}

static uint64_t prompt_length(const struct batch *prompts, uint64_t i)
{
    return prompts->lengths ? prompts->lengths[i] : prompts->length;
}

static struct pass *pass_of_step(struct generation *g, uint64_t step)
{
    return step ? &g->decode : &g->prefill;
}

/* Sets the prompts at step 0, then the tokens of the last step, behind the
 * cache; tokens NULL: they are on the device. */
static enum status set_step(struct generation *g, uint64_t step, const int32_t *tokens,
                            struct error *err)
{
    const struct batch *prompts = &g->q->prompts;
    struct batch b = *prompts;
    for (uint64_t i = 0; i < prompts->num_sequences && step; i++)
        g->past[i] = prompt_length(prompts, i) + step - 1;
    if (step)
        b = (struct batch){
            .num_sequences = prompts->num_sequences, .length = 1, .ids = tokens, .past = g->past};
    b.counter = step * prompts->num_sequences;
    return pass_set(pass_of_step(g, step), &b, err);
}

static enum status start_step(struct generation *g, uint64_t step, struct error *err)
{
    struct pass *p = pass_of_step(g, step);
    TRY(set_step(g, step, g->runs_ahead ? NULL : g->tokens, err));
    if (!g->runs_ahead) return pass_run(p, err);
    return pass_start(p, step ? pass_of_step(g, step - 1) : NULL, step % 2, err);
}

static bool are_tokens(const struct generation *g, const int32_t *tokens)
{
    for (uint64_t i = 0; i < g->q->prompts.num_sequences; i++)
        if (tokens[i] < 0) return false;
    return true;
}

static enum status finish_step(struct generation *g, uint64_t step, bool *more, struct error *err)
{
    struct pass *p = pass_of_step(g, step);
    TRY(g->runs_ahead ? pass_wait_tokens(p, step % 2, g->chosen, err)
                      : pass_tokens(p, g->chosen, err));
    if (!are_tokens(g, g->chosen)) { /* a later step may run already */
        TRY(set_step(g, step, g->tokens, err));
        return pass_run_checked(p, err);
    }
    memcpy(g->tokens, g->chosen, g->q->prompts.num_sequences * sizeof *g->tokens);
    return give_tokens(g, more, err);
}

/* When all texts end, a step started ahead is discarded. */
static enum status generate_all(struct generation *g, struct error *err)
{
    const uint64_t all = g->q->max_new_tokens;
    bool more = true;
    g->runs_ahead = pass_runs_ahead(&g->decode);
    for (uint64_t told = 0, started = 0; told < all && more; told++) {
        const uint64_t ahead = min_u64(told + g->runs_ahead + 1, all);
        for (; started < ahead; started++)
            TRY(start_step(g, started, err));
        TRY(finish_step(g, told, &more, err));
    }
    return OK;
}

/* The last new token is never an input. */
static enum status check_room(const struct model_config *c, const struct generate_request *q,
                              uint64_t room, struct error *err)
{
    const uint64_t learned = model_learned_positions(c);
    if (!learned || room <= learned) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "a prompt of %" PRIu64 " token%s and %" PRIu64 " new one%s need %" PRIu64
                " positions; the model has learned %" PRIu64,
                q->prompts.length, q->prompts.length == 1 ? "" : "s", q->max_new_tokens,
                q->max_new_tokens == 1 ? "" : "s", room, learned);
}

/* Its table of positions is for the longest sequence. */
static enum status check_lengths(const struct worker *w, const struct batch *prompts, uint64_t room,
                                 struct error *err)
{
    const struct model_config *c = &w->opened.checkpoint.config;
    const char *rope = c->rope_type;
    bool same = true;
    for (uint64_t i = 0; i < prompts->num_sequences; i++) {
        const uint64_t length = prompt_length(prompts, i);
        if (!length || length > prompts->length)
            return fail(err, ERR_USAGE, "prompt %" PRIu64 " has no tokens", i);
        same &= length == prompts->length;
    }
    if (same || !rope || strcmp(rope, "dynamic") != 0 || room <= c->max_position_embeddings)
        return OK;
    return fail(err, ERR_UNSUPPORTED,
                "prompts of different lengths: dynamic rope beyond %" PRIu64
                " positions depends on the length; generate from one prompt at a time",
                c->max_position_embeddings);
}

/* Makes both programs, loads their parameters and generates, unless the run is
 * dry. */
static enum status run_both(struct generation *g, const struct work work[2], uint64_t room,
                            struct error *err)
{
    const struct generate_request *q = g->q;
    struct batch one = {.num_sequences = q->prompts.num_sequences, .length = 1};
    struct pass_options prompt = {.trace_layer = -1,
                                  .cache_rows = room,
                                  .begins = true,
                                  .last_only = true,
                                  .sampling = &q->sampling};
    struct pass_options decode = prompt;
    decode.begins = false;
    decode.graphs = true;
    TRY(pass_make(&g->prefill, &g->w->model, &q->prompts, &prompt, err));
    TRY(pass_make(&g->decode, &g->w->model, &one, &decode, err));
    worker_note_positions(g->w, room);
    TRY(worker_give_plan(g->w, work, 2, q->dry_run, q->visit_plan, q->context, err));
    TRY(worker_fit(g->w, work, 2, q->dry_run, err));
    if (q->dry_run) return OK;
    TRY(worker_load(g->w, err));
    TRY(pass_allocate(&g->prefill, err));
    TRY(pass_allocate(&g->decode, err));
    return q->max_new_tokens ? generate_all(g, err) : OK;
}

enum status generate_rank(struct worker *w, const void *request, struct error *err)
{
    const struct generate_request *q = request;
    struct generation g = {.w = w, .q = q};
    if (q->max_new_tokens > INT32_MAX || q->prompts.length > INT32_MAX)
        return fail(err, ERR_USAGE, "%" PRIu64 " new tokens: expected at most %d",
                    q->max_new_tokens, INT32_MAX);
    uint64_t room = q->prompts.length + (q->max_new_tokens ? q->max_new_tokens - 1 : 0);
    const struct work work[] = {{&g.prefill, "the prompt"}, {&g.decode, "a step"}};
    TRY(check_lengths(w, &q->prompts, room, err));
    TRY(check_room(&w->opened.checkpoint.config, q, room, err));
    g.tokens = must_calloc(q->prompts.num_sequences, sizeof *g.tokens);
    g.chosen = must_calloc(q->prompts.num_sequences, sizeof *g.chosen);
    g.past = must_calloc(q->prompts.num_sequences, sizeof *g.past);
    g.ended = must_calloc(q->prompts.num_sequences, sizeof *g.ended);
    enum status st = worker_end(w, work, 2, run_both(&g, work, room, err), err);
    if (g.prefill.model) pass_release(&g.prefill);
    if (g.decode.model) pass_release(&g.decode);
    free(g.tokens);
    free(g.chosen);
    free(g.past);
    free(g.ended);
    return st;
}
