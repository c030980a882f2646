#include "convert/megatron/native_stack.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "convert/megatron/optim/dist_states.h"

const char *native_stored_name(const struct checkpoint *c, const struct native_tensor *native)
{
    return c->catalog.stored.tensors[native->parts[0].stored].name;
}

bool native_name_is_state(const char *name)
{
    static const char *const states[] = {"rng_state*", "rerun_state*", "*_extra_state",
                                         "common_state*", "modelopt*"};
    for (size_t i = 0; i < COUNT(states); i++)
        if (fnmatch(states[i], name, 0) == 0) return true;
    return dist_key_is_optimizer(name);
}

bool native_is_parameter(const struct native_tensor *native)
{
    return !native->state && !native_name_is_state(native->name);
}

/* Limits members without elements, which a file can claim at no cost. */
static enum status check_members(const struct native_stack *k, const char *name, struct error *err)
{
    enum { MAX_EMPTY_MEMBERS = 4096 };
    uint64_t members;
    if (!mul_u64(k->layers, k->experts, &members)) members = UINT64_MAX;
    if (k->numel || members <= MAX_EMPTY_MEMBERS) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: a stack of %" PRIu64 " layers and %" PRIu64 " experts without any elements",
                name, k->layers, k->experts);
}

/* The section that the end of a name names; NULL: none. */
static const struct param_section *section_named(const struct param_spec *s, const char *name,
                                                 uint64_t *first_row)
{
    *first_row = 0;
    for (unsigned i = 0; i < s->num_sections; i++) {
        if (strcmp(s->sections[i].name, name) == 0) return &s->sections[i];
        *first_row += s->sections[i].size;
    }
    return NULL;
}

/* If the key is of a section, NAME.SECTION, makes the rest of the key that of
 * the whole parameter. */
static enum status find_section(struct checkpoint *c, struct native_stack *k, struct error *err)
{
    struct arena *a = &c->arena;
    const char *dot = strrchr(k->key.rest, '.');
    struct param p;
    if (!dot || !k->num_dims || !c->params) return OK;
    struct dist_key whole = k->key;
    whole.rest = arena_text(a, whole.rest, (size_t)(dot - whole.rest));
    const char *name = dist_key_logical(a, c->params, &whole, whole.layer, whole.expert, false);
    if (!param_find(c->params, name, &p) || !p.spec->apart) return OK;
    const struct param_section *section = section_named(p.spec, dot + 1, &k->first_row);
    if (!section) return OK;
    if (section->size != k->shape[0])
        return fail(err, ERR_UNSUPPORTED,
                    "%s has %" PRIu64 " rows, but its args or config.json give %" PRIu64,
                    native_stored_name(c, k->native), k->shape[0], section->size);
    k->key = whole;
    k->rows = p.spec->shape[0];
    return OK;
}

/* Which rows of the parameter it has. */
static enum status set_rows(struct checkpoint *c, struct native_stack *k, struct error *err)
{
    k->rows = k->num_dims ? k->shape[0] : 0;
    if (!k->key.half) return find_section(c, k, err);
    if (!mul_u64(k->rows, 2, &k->rows))
        return fail(err, ERR_CORRUPT, "%s: its rows overflow", native_stored_name(c, k->native));
    if (k->key.half == 'v' && k->num_dims) k->first_row = k->shape[0];
    return OK;
}

enum status native_stack_make(struct checkpoint *c, const struct native_tensor *native,
                              struct native_stack *out, struct error *err)
{
    *out = (struct native_stack){.native = native,
                                 .key = dist_key_parse(&c->arena, native->name),
                                 .layers = 1,
                                 .experts = 1,
                                 .numel = 1};
    out->lead = out->key.stacked_layers + out->key.stacked_experts;
    if (native->num_dims < out->lead)
        return fail(err, ERR_CORRUPT,
                    "%s: %u dimensions, too few for %u that count layers and experts",
                    native_stored_name(c, native), native->num_dims, out->lead);
    if (out->key.stacked_layers) out->layers = native->shape[0];
    if (out->key.stacked_experts) out->experts = native->shape[out->lead - 1];
    out->shape = native->shape + out->lead;
    out->num_dims = native->num_dims - out->lead;
    for (unsigned d = 0; d < out->num_dims; d++)
        out->numel *= out->shape[d];
    TRY(set_rows(c, out, err));
    return check_members(out, native_stored_name(c, native), err);
}
