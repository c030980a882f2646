/* worker.c - steps of one rank in all requests: memory plan, loading, the end.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "common/numbers.h"
#include "train/loop/engine_internal.h"
#include "train/model/fit.h"
#include "train/model/rope.h"

unsigned worker_threads(const struct worker *w)
{
    return comm_threads(&w->comm, w->q->threads);
}

enum { MAX_WORK = 4 };

/* passes: memory for f.passes. */
static struct fit fit_of(const struct worker *w, const struct work *work, size_t count,
                         const struct pass *passes[MAX_WORK])
{
    for (size_t i = 0; i < count; i++)
        passes[i] = work[i].pass;
    return (struct fit){&w->model, passes, count, w->taking, worker_threads(w)};
}

static void print_memory(FILE *out, const struct worker *w, const struct work *work, size_t count)
{
    struct strbuf text = {0};
    const struct pass *passes[MAX_WORK];
    const struct fit f = fit_of(w, work, count, passes);
    if (w->comm.rank) return;
    strbuf_printf(&text, "memory, each rank of %u (this is rank 0):\n", w->comm.size);
    for (size_t i = 0; i < count; i++) {
        if (count > 1) strbuf_printf(&text, "  %s:\n", work[i].what);
        pass_print_memory(work[i].pass, &text);
    }
    fit_print(&f, &text);
    fputs(text.data, out);
    strbuf_release(&text);
}

enum status worker_give_plan(const struct worker *w, const struct work *work, size_t count,
                             bool dry_run, plan_visit *visit, void *context, struct error *err)
{
    struct comm_group world = w->model.groups.of[GROUP_WORLD];
    const struct pass *passes[MAX_WORK];
    const struct fit f = fit_of(w, work, count, passes);
    const struct fit_memory own = fit_memory(&f);
    if (!visit && dry_run) print_memory(stdout, w, work, count);
    if (!visit) return OK;
    struct fit_memory *all = must_calloc(world.size, sizeof *all);
    enum status st = world.comm->backend->all_gather(&world, &own, all, sizeof own, err);
    if (!st && world.index == 0) st = visit(context, all, world.size, err);
    free(all);
    return st;
}

void worker_note_positions(const struct worker *w, uint64_t positions)
{
    const uint64_t most = rope_max_positions(&w->opened.checkpoint.config);
    if (w->comm.rank || w->q->quiet || w->q->is_known || !most || positions <= most) return;
    const bool own = most == w->opened.checkpoint.config.max_position_embeddings;
    fprintf(stderr,
            "note: %" PRIu64 " positions, but the model was made for %" PRIu64
            "%s: results beyond them may be poor\n",
            positions, most, own ? " (max_position_embeddings)" : " (by its rope scaling)");
}

/* The weights of a rank; the first that is decoded, and why. */
struct coded_note {
    struct coded_summary weights;
    char decoded[256];
};

static void print_codes(const struct coded_note *ranks, unsigned num_ranks)
{
    struct coded_summary sum = {.coded = 0};
    const char *decoded = "";
    for (unsigned i = num_ranks; i-- > 0;) {
        sum.coded += ranks[i].weights.coded;
        sum.bytes += ranks[i].weights.bytes;
        sum.decoded_bytes += ranks[i].weights.decoded_bytes;
        sum.not_coded += ranks[i].weights.not_coded;
        sum.not_coded_bytes += ranks[i].weights.not_coded_bytes;
        if (ranks[i].weights.not_coded) decoded = ranks[i].decoded;
    }
    fprintf(stderr, "note: %" PRIu64 " weights stay coded", sum.coded);
    if (num_ranks > 1) fprintf(stderr, " on %u ranks", num_ranks);
    if (sum.coded)
        fprintf(stderr, ", in %s instead of %s", bytes_text(sum.bytes),
                bytes_text(sum.decoded_bytes));
    if (sum.not_coded)
        fprintf(stderr, "; %" PRIu64 " are decoded, to %s, as %s", sum.not_coded,
                bytes_text(sum.not_coded_bytes), decoded);
    if (!sum.coded && !sum.not_coded) fprintf(stderr, ": the checkpoint has no codes");
    fprintf(stderr, "\n");
}

/* Prints on rank 0 how many weights stay coded. */
static enum status note_codes(const struct worker *w, struct error *err)
{
    struct comm_group world = w->model.groups.of[GROUP_WORLD];
    struct coded_note own = {.weights = coded_summarise(&w->model.parameters)};
    const struct parameter *first = own.weights.first;
    if (!w->model.options.keeps_codes) return OK;
    if (first)
        (void)snprintf(own.decoded, sizeof own.decoded, "%s: %s", first->name, coded_reason(first));
    struct coded_note *all = must_calloc(world.size, sizeof *all);
    enum status st = world.comm->backend->all_gather(&world, &own, all, sizeof own, err);
    if (!st && world.index == 0 && !w->q->quiet) print_codes(all, world.size);
    free(all);
    return st;
}

enum status worker_fit(struct worker *w, const struct work *work, size_t count, bool dry_run,
                       struct error *err)
{
    const struct pass *passes[MAX_WORK];
    const struct fit f = fit_of(w, work, count, passes);
    TRY(note_codes(w, err));
    enum status st = fit_check(&f, err);
    if (st == ERR_MEMORY && !dry_run && !w->q->quiet) print_memory(stderr, w, work, count);
    return st;
}

enum status worker_load(struct worker *w, struct error *err)
{
    struct load_options o = {.threads = worker_threads(w),
                             .progress = w->comm.rank ? PROGRESS_NONE : w->q->progress,
                             .what = w->q->loading};
    return model_load(&w->model, &o, err);
}

enum status worker_end(struct worker *w, const struct work *work, size_t count, enum status st,
                       struct error *err)
{
    if (!st) return OK;
    comm_fail(&w->comm, err);
    for (size_t i = 0; i < count; i++)
        pass_release_graphs(work[i].pass);
    collectives_close(&w->model.collectives);
    return st;
}
