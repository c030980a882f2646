#include "ckpt/load.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/executor.h"
#include "common/checked.h"
#include "common/memory.h"

static int by_tensor(const void *a, const void *b)
{
    const struct load_target *x = a, *y = b;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Makes each target a segment in its own array. Tensors are read in the
 * catalog's order. */
static void add_targets(struct plan *p, const struct load_target *targets, size_t num_targets)
{
    struct load_target *sorted = must_calloc(num_targets + 1, sizeof *sorted);
    if (num_targets) memcpy(sorted, targets, num_targets * sizeof *sorted);
    qsort(sorted, num_targets, sizeof *sorted, by_tensor);
    for (size_t i = 0; i < num_targets; i++) {
        const struct load_target *t = &sorted[i];
        uint32_t file = plan_add_memory(p, t->memory);
        uint32_t segment = plan_add_segment(p, file, t->dtype, pair_count(&t->part), false);
        plan_add_piece(p, t->tensor, segment, &t->part);
    }
    free(sorted);
}

static enum status make_load_plan(struct plan *p, const struct catalog *c,
                                  const struct load_target *targets, size_t num_targets,
                                  struct error *err)
{
    plan_init(p, c);
    add_targets(p, targets, num_targets);
    return plan_finish(p, err);
}

const char *load_what(const struct load_options *o)
{
    return o->what ? o->what : "loading";
}

static struct executor_options options_of(const struct load_options *o)
{
    return (struct executor_options){.threads = o->threads,
                                     .max_memory = o->max_memory,
                                     .progress = o->progress,
                                     .what = load_what(o),
                                     .shown = o->shown};
}

enum status load_own_bytes(const struct load_target *targets, size_t num_targets,
                           const struct load_options *o, uint64_t *bytes, struct error *err)
{
    struct executor_options options = options_of(o);
    struct plan p;
    enum status st = make_load_plan(&p, NULL, targets, num_targets, err);
    if (!st) *bytes = executor_own_bytes(&p, &options);
    plan_release(&p);
    return st;
}

enum status load_run(const struct catalog *c, const struct load_target *targets, size_t num_targets,
                     const struct load_options *o, struct load_result *result, struct error *err)
{
    struct executor_options options = options_of(o);
    struct executor_result r = {0};
    struct plan p;
    enum status st = make_load_plan(&p, c, targets, num_targets, err);
    if (!st) st = executor_run(&p, NULL, &options, &r, err);
    *result = (struct load_result){.read_bytes = r.read_bytes, .loaded_bytes = r.written_bytes};
    plan_release(&p);
    return st;
}
