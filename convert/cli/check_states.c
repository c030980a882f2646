#include "convert/cli/check_states.h"

#include <inttypes.h>

enum status check_states(const struct checkpoint *c, const struct states_wanted *w,
                         struct error *err)
{
    const struct optimizer_info *has = &c->training.optimizer;
    if (w->optim && !has->present)
        return fail(err, ERR_UNSUPPORTED, "--optim: %s holds no optimizer state", c->path);
    if (!has->present || w->no_optim) return OK;
    if (has->unread)
        return fail(
            err, ERR_UNSUPPORTED,
            "%s holds optimizer state (%s) that cannot be read: %s; --no-optim leaves it out",
            c->path, has->kind, has->unread);
    if (w->to->has & FORMAT_ASKS_OPTIM && !w->optim)
        return fail(
            err, ERR_UNSUPPORTED,
            "%s holds optimizer state (%s): --optim writes it beside the weights, --no-optim "
            "leaves it out",
            c->path, has->kind);
    return OK;
}

enum status check_masters(struct checkpoint *c, const struct masters_options *o, struct error *err)
{
    const struct optimizer_info *has = &c->training.optimizer;
    struct masters_result m;
    TRY(masters_compare(&c->catalog, o, &m, err));
    if (!m.differ || has->shifted) return OK;
    const char *what = arena_printf(
        &c->arena,
        "%zu of %zu weights are not their master weights rounded: %s at element %" PRIu64 "%s",
        m.differ, m.compared, m.first, m.at, m.differ > 1 ? ", ..." : "");
    if (has->inferred)
        return fail(
            err, ERR_CORRUPT,
            "%s: %s; so the optimizer states cannot be assigned to weights; --no-optim leaves "
            "them out",
            c->path, what);
    checkpoint_note(
        c,
        "%s; both are copied unchanged. Possible causes: training in FP8 or FP4, states edited by "
        "hand, or saved wrong by Megatron-Core before 0.20 (fully_reshardable, with gradients "
        "reduced in several buckets by overlap_grad_reduce)",
        what);
    return OK;
}
