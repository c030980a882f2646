#include "train/model/unused.h"

#include "convert/target.h"
#include "train/model/model.h"

/* Marks the tensors that fill parameters. */
static void mark_taken(const struct parameters *p, const struct checkpoint *c, bool *taken)
{
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++)
            taken[p->items[i].parts[k].tensor - c->catalog.tensors] = true;
}

static enum status check_taken(const struct checkpoint *c, const bool *taken, const char *what,
                               struct arena *a, struct error *err)
{
    const char **left = arena_array(a, c->catalog.num_tensors + 1, sizeof *left);
    size_t count = 0;
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        if (!taken[i] && is_parameter(&c->catalog.tensors[i]))
            left[count++] = c->catalog.tensors[i].name;
    if (!count) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: %s", c->path, count_names_text(a, what, left, count));
}

/* A single rank has the whole model; its program for one token is the same. */
static enum status mark_all(const struct checkpoint *c, const struct model_config *config,
                            bool *taken, struct error *err)
{
    const struct model_options one_rank = {.elem = ELEM_F32, .config = config};
    const struct batch one_token = {.num_sequences = 1, .length = 1};
    const struct pass_options logits = {.logits = true, .trace_layer = -1};
    struct model m;
    struct pass p = {0};
    enum status st = model_simulate(&m, c, &one_rank, 0, err);
    if (!st) st = pass_make(&p, &m, &one_token, &logits, err);
    if (!st) mark_taken(&m.parameters, c, taken);
    if (p.model) pass_release(&p);
    model_close(&m);
    return st;
}

/* config NULL: the checkpoint's. what: the fault of unused tensors. */
static enum status check_all_used(const struct checkpoint *c, const struct model_config *config,
                                  const char *what, struct error *err)
{
    struct arena scratch;
    TRY(gaps_check(&c->gaps, c->path, err));
    arena_init(&scratch);
    bool *taken = arena_array(&scratch, c->catalog.num_tensors + 1, sizeof *taken);
    enum status st = mark_all(c, config, taken, err);
    if (!st) st = check_taken(c, taken, what, &scratch, err);
    arena_release(&scratch);
    return st;
}

enum status unused_check(const struct checkpoint *c, struct error *err)
{
    return check_all_used(c, NULL, "that no op of the engine reads", err);
}

enum status unused_check_line(const struct checkpoint *c, const struct model_config *config,
                              struct error *err)
{
    return check_all_used(c, config, "missing in the model of the command line", err);
}
