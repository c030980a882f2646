/* naming_plain.c - own tensors are logical ones, under their own names. */
#include <inttypes.h>
#include <string.h>

#include "convert/naming.h"
#include "convert/states.h"

static enum status add_plain(struct catalog *all, const struct own_tensor *own, const char *name,
                             struct error *err)
{
    struct tensor *logical;
    const struct pair whole = pair_whole(0, 0, own->numel);
    TRY(catalog_add(all, name, own->dtype, own->num_dims, own->shape, &logical, err));
    if (!own->state) own_set_logical(all, own, logical->name);
    return catalog_add_part(all, logical, own, &whole, err);
}

static enum status import_plain(const struct naming_import *in, struct error *err)
{
    struct catalog *all = &in->c->catalog;
    for (size_t i = 0; i < all->num_own; i++) {
        const struct own_tensor *own = &all->own[i];
        if (own->state) continue;
        if (name_is_optimizer(own->name) || name_is_padding(own->name))
            return fail(err, ERR_UNSUPPORTED,
                        "%s: tensor %s: a parameter of this name needs --hf-config DIR, which says "
                        "what model it is of",
                        in->c->path, own->name);
        TRY(add_plain(all, own, own->name, err));
    }
    return OK;
}

static enum status import_states_plain(const struct naming_import *in, struct error *err)
{
    struct checkpoint *c = in->c;
    struct catalog *all = &c->catalog;
    for (size_t i = 0; i < all->num_own; i++) {
        const struct own_tensor *own = &all->own[i];
        if (!own->state) continue;
        const struct own_tensor *of = catalog_find_own(all, own->name, NULL);
        if (!of)
            states_unread(c, "%s is the state of %s, which is no parameter of the checkpoint",
                          own->state, own->name);
        else if (of->numel != own->numel)
            states_unread(c, "%s of %s is %s and the parameter %s", own->state, own->name,
                          shape_text(&c->arena, own->num_dims, own->shape),
                          shape_text(&c->arena, of->num_dims, of->shape));
        else
            TRY(add_plain(all, own, state_name(&c->arena, own->state, own->name), err));
    }
    return OK;
}

static enum status export_one(struct target *t, const struct tensor *x, const char *name,
                              const char *state, export_visit *visit, void *context,
                              struct error *err)
{
    const struct own_output own = {
        .name = name,
        .state = state,
        .dtype = target_dtype(t, x),
        .num_dims = x->num_dims,
        .shape = x->shape,
        .parts = {{x, pair_whole(0, 0, x->numel)}},
        .num_parts = 1,
    };
    return visit(context, &own, err);
}

static enum status export_plain(const struct naming_export *out, export_visit *visit, void *context,
                                struct error *err)
{
    struct target *t = out->t;
    const struct catalog *all = &t->source->catalog;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *x = &all->tensors[i];
        if (!is_parameter(x)) continue;
        TRY(export_one(t, target_weight(t, x), x->name, NULL, visit, context, err));
        for (size_t k = 0; k < t->num_states; k++) {
            const struct tensor *state = target_state(t, x, k);
            if (state) TRY(export_one(t, state, x->name, t->states[k], visit, context, err));
        }
    }
    return OK;
}

const struct naming naming_plain = {import_plain, import_states_plain, export_plain};
