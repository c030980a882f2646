#include "convert/megatron/optim/remainders.h"

#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "convert/states.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/remainders.h"

enum { SAMPLE = 64 }; /* elements read of a parameter */

bool remainders_are_stored(const char *state, enum dtype dtype)
{
    return state && strcmp(state, master_state) == 0 && dtype == DT_I16;
}

/* The parameter's name, if the tensor is a master that the distributed optimizer
 * saved; else NULL. */
static const char *name_of_master(const struct tensor *t)
{
    size_t length;
    const char *state, *name = name_of_state(t->name, &state, &length);
    if (!name || strlen(master_state) != length || strncmp(state, master_state, length))
        return NULL;
    return t->stored_name && strstr(t->stored_name, "optimizer.state.fp32_param.") ? NULL : name;
}

/* ---- numbers of F32 ---- */

/* Found in the elements read of all masters. */
struct told {
    bool other;   /* some are no remainders */
    bool nonzero; /* some are not 0 */
    bool differs; /* some weights are not these numbers rounded */
};

static enum status read_sample(const struct catalog *c, const struct tensor *weight,
                               const struct tensor *master, struct told *told, struct error *err)
{
    double numbers[SAMPLE], weights[SAMPLE], rounded[SAMPLE];
    uint16_t bits[SAMPLE];
    const uint64_t count = min_u64(master->numel, SAMPLE);
    TRY(panel_read_numbers(c, master, count, numbers, err));
    TRY(panel_read_numbers(c, weight, count, weights, err));
    (void)cast_elements(bits, DT_BF16, numbers, DT_F64, count);
    (void)cast_elements(rounded, DT_F64, bits, DT_BF16, count);
    for (uint64_t i = 0; i < count; i++) {
        told->other |= !is_remainder(numbers[i]);
        told->nonzero |= numbers[i] < 0 || numbers[i] > 0;
        told->differs |= rounded[i] < weights[i] || rounded[i] > weights[i];
    }
    return OK;
}

/* The weight of a master that may be remainders in F32; NULL: it is another. */
static const struct tensor *weight_of_numbers(const struct catalog *c, const struct tensor *t)
{
    const char *name = name_of_master(t);
    const struct tensor *weight = name ? catalog_find(c, name) : NULL;
    if (!weight || t->same_as || t->dtype != DT_F32 || weight->dtype != DT_BF16) return NULL;
    return tensor_takes_cast(t) || weight->numel != t->numel ? NULL : weight;
}

/* Whether all masters of F32 beside weights of BF16 are remainders. Most
 * checkpoints' first is not. */
static enum status numbers_are_remainders(const struct checkpoint *c, bool *are, struct error *err)
{
    struct told told = {0};
    bool is_told = false;
    for (size_t i = 0; i < c->catalog.num_tensors && !told.other; i++) {
        const struct tensor *master = &c->catalog.tensors[i],
                            *weight = weight_of_numbers(&c->catalog, master);
        if (weight) TRY(read_sample(&c->catalog, weight, master, &told, err));
    }
    (void)value_as_bool(
        value_get(value_get(c->training.common, "args"), "use_precision_aware_optimizer"),
        &is_told);
    *are = !told.other && told.differs && (told.nonzero || is_told);
    return OK;
}

/* ---- all ---- */

/* Why remainders cannot be joined with a weight; NULL: they can. */
static const char *check_weight(struct checkpoint *c, const struct tensor *t,
                                const struct tensor *weight)
{
    const char *name = t->stored_name ? t->stored_name : t->name;
    if (!weight)
        return arena_printf(&c->arena,
                            "%s holds remainders, the lower 16 bits of master weights, but the "
                            "weights with the upper ones are missing",
                            name);
    if (weight->dtype != DT_BF16 || tensor_takes_cast(weight) || tensor_takes_cast(t))
        return arena_printf(&c->arena,
                            "%s holds remainders, the lower 16 bits of master weights, but its "
                            "weight is not of BF16",
                            name);
    return NULL;
}

enum status remainders_join(struct checkpoint *c, struct error *err)
{
    struct optimizer_info *o = &c->training.optimizer;
    bool numbers;
    TRY(numbers_are_remainders(c, &numbers, err));
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        struct tensor *t = &c->catalog.tensors[i];
        const char *name = name_of_master(t);
        if (!name || !(t->dtype == DT_I16 || (numbers && weight_of_numbers(&c->catalog, t))))
            continue;
        const struct tensor *weight = catalog_find(&c->catalog, name);
        const char *why = check_weight(c, t, weight);
        if (why)
            states_unread(c, "%s", why);
        else
            TRY(tensor_join_halves(&c->arena, t, weight, err));
        o->remainders += !why && !name_is_padding(name);
    }
    if (o->remainders)
        checkpoint_note(c,
                        "%zu master weights are stored as remainders, their lower 16 bits "
                        "(--use-precision-aware-optimizer); each is joined with its weight, "
                        "which has the upper ones",
                        o->remainders);
    return OK;
}
