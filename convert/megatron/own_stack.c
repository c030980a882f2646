#include "convert/megatron/own_stack.h"

#include <fnmatch.h>
#include <inttypes.h>

#include "common/checked.h"
#include "common/count.h"
#include "convert/megatron/optim/dist_states.h"

const char *own_stored_name(const struct checkpoint *c, const struct own_tensor *own)
{
    return c->catalog.stored.tensors[own->parts[0].stored].name;
}

bool own_name_is_state(const char *name)
{
    static const char *const states[] = {"rng_state*", "rerun_state*", "*_extra_state",
                                         "common_state*", "modelopt*"};
    for (size_t i = 0; i < COUNT(states); i++)
        if (fnmatch(states[i], name, 0) == 0) return true;
    return dist_key_is_optimizer(name);
}

bool own_is_parameter(const struct own_tensor *own)
{
    return !own->state && !own_name_is_state(own->name);
}

/* A file can claim any number of members without elements at no cost, so their number is
 * limited. */
static enum status check_members(const struct own_stack *k, const char *name, struct error *err)
{
    enum { MAX_EMPTY_MEMBERS = 4096 };
    uint64_t members;
    if (!mul_u64(k->layers, k->experts, &members)) members = UINT64_MAX;
    if (k->numel || members <= MAX_EMPTY_MEMBERS) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: a stack of %" PRIu64 " layers and %" PRIu64 " experts without any elements",
                name, k->layers, k->experts);
}

enum status own_stack_make(struct checkpoint *c, const struct own_tensor *own,
                           struct own_stack *out, struct error *err)
{
    *out = (struct own_stack){.own = own,
                              .key = dist_key_parse(&c->arena, own->name),
                              .layers = 1,
                              .experts = 1,
                              .numel = 1};
    out->lead = out->key.stacked_layers + out->key.stacked_experts;
    if (own->num_dims < out->lead)
        return fail(err, ERR_CORRUPT,
                    "%s: %u dimensions, and %u of them should count layers and experts",
                    own_stored_name(c, own), own->num_dims, out->lead);
    if (out->key.stacked_layers) out->layers = own->shape[0];
    if (out->key.stacked_experts) out->experts = own->shape[out->lead - 1];
    out->shape = own->shape + out->lead;
    out->num_dims = own->num_dims - out->lead;
    for (unsigned d = 0; d < out->num_dims; d++)
        out->numel *= out->shape[d];
    return check_members(out, own_stored_name(c, own), err);
}
