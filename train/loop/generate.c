/* generate.c - tokens one after the other: the prompt in one program, then a program of one token a
 * sequence, over the same cache of keys and values. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "train/loop/engine_internal.h"

struct generation {
    struct worker *w;
    const struct generate_request *q;
    struct pass prefill, decode;
    int32_t *tokens; /* [num_sequences], the newest */
    uint64_t *past;  /* [num_sequences], positions in the cache */
    bool *ended;
    uint64_t step;
};

/* Chooses tokens from the logits of the last positions; on rank 0. */
static enum status sample(void *context, const struct collected *c, struct error *err)
{
    struct generation *g = context;
    const struct sampling *s = &g->q->sampling;
    int32_t counter = (int32_t)(g->step * c->rows);
    union op_params params = {.sample = {.temperature = s->temperature,
                                         .top_p = s->top_p,
                                         .top_k = (uint32_t)s->top_k,
                                         .seed = s->seed}};
    struct operand in[MAX_INPUTS] = {{(void *)c->data, OPERAND_REAL, 2, {c->rows, c->columns}},
                                     {&counter, OPERAND_INT, 1, {1}}};
    struct operand out[MAX_OUTPUTS] = {{g->tokens, OPERAND_INT, 1, {c->rows}}};
    const struct op_kernel *kernel = &cpu_ops(c->dtype == DT_F64 ? ELEM_F64 : ELEM_F32)[OP_SAMPLE];
    void *workspace = NULL;
    if (kernel->workspace) workspace = must_malloc(kernel->workspace(&params, in, out) + 1);
    enum status st = kernel->run(&params, in, out, workspace, err);
    free(workspace);
    return st;
}

/* Tokens that rank 0 chose, to all. */
static enum status share_tokens(struct generation *g, struct error *err)
{
    struct comm_group *world = &g->w->model.groups.of[GROUP_WORLD];
    size_t count = g->q->prompts.num_sequences;
    if (world->comm->rank) memset(g->tokens, 0, count * sizeof *g->tokens);
    return world->comm->backend->all_reduce(world, g->tokens, count, COMM_INT32, COMM_SUM, err);
}

static bool ends(const struct generate_request *q, int32_t token)
{
    for (size_t i = 0; i < q->num_end_tokens; i++)
        if (q->end_tokens[i] == token) return true;
    return false;
}

/* Tells what is new; whether a sequence goes on. */
static enum status tell(struct generation *g, bool *more, struct error *err)
{
    uint64_t count = g->q->prompts.num_sequences;
    int32_t *shown = must_calloc(count, sizeof *shown);
    *more = false;
    for (uint64_t i = 0; i < count; i++) {
        shown[i] = g->ended[i] ? -1 : g->tokens[i];
        g->ended[i] |= ends(g->q, g->tokens[i]);
        *more |= !g->ended[i];
    }
    enum status st = g->w->comm.rank ? OK : g->q->visit(g->q->context, shown, err);
    free(shown);
    return st;
}

static enum status step(struct generation *g, struct pass *p, const struct batch *b, bool *more,
                        struct error *err)
{
    TRY(pass_set(p, b, err));
    TRY(pass_run(p, err));
    TRY(pass_collect(p, &(struct pass_taking){0}, sample, g, err));
    TRY(share_tokens(g, err));
    g->step++;
    return tell(g, more, err);
}

static uint64_t prompt_length(const struct batch *prompts, uint64_t i)
{
    return prompts->lengths ? prompts->lengths[i] : prompts->length;
}

static enum status generate_all(struct generation *g, struct error *err)
{
    const struct batch *prompts = &g->q->prompts;
    struct batch one = {
        .num_sequences = prompts->num_sequences, .length = 1, .ids = g->tokens, .past = g->past};
    bool more = true;
    TRY(step(g, &g->prefill, prompts, &more, err));
    for (uint64_t n = 1; n < g->q->max_new_tokens && more; n++) {
        for (uint64_t i = 0; i < prompts->num_sequences; i++)
            g->past[i] = prompt_length(prompts, i) + n - 1;
        TRY(step(g, &g->decode, &one, &more, err));
    }
    return OK;
}

/* The last new token is given out and never put in. */
static enum status check_room(const struct model_config *c, const struct generate_request *q,
                              uint64_t room, struct error *err)
{
    const uint64_t learned = model_learned_positions(c);
    if (!learned || room <= learned) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "a prompt of %" PRIu64 " token%s and %" PRIu64 " new one%s take %" PRIu64
                " positions, and the model has learned %" PRIu64,
                q->prompts.length, q->prompts.length == 1 ? "" : "s", q->max_new_tokens,
                q->max_new_tokens == 1 ? "" : "s", room, learned);
}

/* Its table of positions is that of the longest sequence. */
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
                "prompts of several lengths, and dynamic rope beyond %" PRIu64
                " positions depends on the length: one at a time",
                c->max_position_embeddings);
}

/* Makes both programs, loads what they need and generates, unless the run is dry. */
static enum status run_both(struct generation *g, const struct work work[2], uint64_t room,
                            struct error *err)
{
    const struct generate_request *q = g->q;
    struct batch one = {.num_sequences = q->prompts.num_sequences, .length = 1};
    struct pass_options prompt = {
        .logits = true, .trace_layer = -1, .last_only = true, .cache_rows = room};
    struct pass_options decode = prompt;
    decode.graphs = true;
    TRY(pass_make(&g->prefill, &g->w->model, &q->prompts, &prompt, err));
    TRY(pass_make(&g->decode, &g->w->model, &one, &decode, err));
    worker_note_positions(g->w, room);
    TRY(worker_tell_plan(g->w, work, 2, q->dry_run, q->visit_plan, q->context, err));
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
        return fail(err, ERR_USAGE, "%" PRIu64 " new tokens are too many", q->max_new_tokens);
    uint64_t room = q->prompts.length + (q->max_new_tokens ? q->max_new_tokens - 1 : 0);
    const struct work work[] = {{&g.prefill, "the prompt"}, {&g.decode, "a step"}};
    TRY(check_lengths(w, &q->prompts, room, err));
    TRY(check_room(&w->opened.checkpoint.config, q, room, err));
    g.tokens = must_calloc(q->prompts.num_sequences, sizeof *g.tokens);
    g.past = must_calloc(q->prompts.num_sequences, sizeof *g.past);
    g.ended = must_calloc(q->prompts.num_sequences, sizeof *g.ended);
    enum status st = worker_end(w, work, 2, run_both(&g, work, room, err), err);
    if (g.prefill.model) pass_release(&g.prefill);
    if (g.decode.model) pass_release(&g.decode);
    free(g.tokens);
    free(g.past);
    free(g.ended);
    return st;
}
