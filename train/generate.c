/* generate.c - tokens one after the other: the prompt in one program, then a program of one token a
 * sequence, over the same cache of keys and values. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "train/engine_internal.h"

struct generation {
    struct worker *w;
    const struct generate_request *q;
    struct pass prefill, decode;
    int32_t *tokens; /* [num_sequences], the newest */
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
    struct operand in[MOST_INPUTS] = {{c->data, OPERAND_REAL, 2, {c->rows, c->columns}},
                                      {&counter, OPERAND_INT, 1, {1}}};
    struct operand out[MOST_OUTPUTS] = {{g->tokens, OPERAND_INT, 1, {c->rows}}};
    const struct op_kernel *kernel = &cpu_ops(c->wide ? ELEM_F64 : ELEM_F32)[OP_SAMPLE];
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

/* Tells what is new; whether a sequence goes on. */
static enum status tell(struct generation *g, bool *more, struct error *err)
{
    uint64_t count = g->q->prompts.num_sequences;
    int32_t *shown = must_calloc(count, sizeof *shown);
    *more = false;
    for (uint64_t i = 0; i < count; i++) {
        shown[i] = g->ended[i] ? -1 : g->tokens[i];
        g->ended[i] |= g->tokens[i] == g->q->end_token;
        *more |= !g->ended[i];
    }
    enum status st = g->w->comm.rank ? OK : g->q->visit(g->q->context, shown, err);
    free(shown);
    return st;
}

static enum status step(struct generation *g, struct pass *p, const struct batch *b, uint64_t past,
                        bool *more, struct error *err)
{
    TRY(pass_set(p, b, past, err));
    TRY(pass_run(p, err));
    TRY(pass_collect(p, sample, g, err));
    TRY(share_tokens(g, err));
    g->step++;
    return tell(g, more, err);
}

static enum status generate_all(struct generation *g, struct error *err)
{
    const struct batch *prompts = &g->q->prompts;
    struct batch one = {.num_sequences = prompts->num_sequences, .length = 1, .ids = g->tokens};
    bool more = true;
    TRY(step(g, &g->prefill, prompts, 0, &more, err));
    for (uint64_t i = 1; i < g->q->max_new_tokens && more; i++)
        TRY(step(g, &g->decode, &one, prompts->length + i - 1, &more, err));
    return OK;
}

enum status generate_rank(struct worker *w, const void *request, struct error *err)
{
    const struct generate_request *q = request;
    struct generation g = {.w = w, .q = q};
    if (q->max_new_tokens > INT32_MAX || q->prompts.length > INT32_MAX)
        return fail(err, ERR_USAGE, "%" PRIu64 " new tokens are too many", q->max_new_tokens);
    struct batch one = {.num_sequences = q->prompts.num_sequences, .length = 1};
    uint64_t room = q->prompts.length + (q->max_new_tokens ? q->max_new_tokens - 1 : 0);
    struct pass_options prompt = {
        .logits = true, .trace_layer = -1, .last_only = true, .cache_rows = room};
    struct pass_options decode = prompt;
    decode.graphs = true;
    g.tokens = must_calloc(one.num_sequences, sizeof *g.tokens);
    g.ended = must_calloc(one.num_sequences, sizeof *g.ended);
    enum status st = pass_make(&g.prefill, &w->model, &q->prompts, &prompt, err);
    if (!st) st = pass_make(&g.decode, &w->model, &one, &decode, err);
    if (!st && q->dry_run) {
        worker_print_memory(w, &g.prefill, "memory of the prompt");
        worker_print_memory(w, &g.decode, "memory of a step");
    } else {
        if (!st) st = worker_fit(w, (const struct pass *[]){&g.prefill, &g.decode}, 2, err);
        if (!st) st = worker_load(w, err);
        if (!st) st = pass_allocate(&g.prefill, err);
        if (!st) st = pass_allocate(&g.decode, err);
        if (!st && q->max_new_tokens) st = generate_all(&g, err);
    }
    st = worker_end(w, (struct pass *[]){&g.prefill, &g.decode}, 2, st, err);
    if (g.prefill.model) pass_release(&g.prefill);
    if (g.decode.model) pass_release(&g.decode);
    free(g.tokens);
    free(g.ended);
    return st;
}
