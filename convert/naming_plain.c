/* naming_plain.c - native tensors are logical ones, under their own names. */
#include <inttypes.h>
#include <string.h>

#include "convert/naming.h"
#include "convert/states.h"

static enum status add_plain(struct catalog *all, const struct native_tensor *native,
                             const char *name, struct error *err)
{
    struct tensor *logical;
    const struct pair whole = pair_whole(0, 0, native->numel);
    TRY(catalog_add(all, name, native->dtype, native->num_dims, native->shape, &logical, err));
    if (!native->state) native_add_logical(all, native, logical->name);
    return catalog_add_part(all, logical, native, &whole, err);
}

static enum status import_plain(const struct naming_import *in, struct error *err)
{
    struct catalog *all = &in->c->catalog;
    for (size_t i = 0; i < all->num_native; i++) {
        const struct native_tensor *native = &all->native[i];
        if (native->state) continue;
        if (name_is_optimizer(native->name) || name_is_padding(native->name))
            return fail(err, ERR_UNSUPPORTED,
                        "%s: tensor %s: a parameter of this name can only be read with the model's "
                        "config: --hf-config DIR",
                        in->c->path, native->name);
        TRY(add_plain(all, native, native->name, err));
    }
    return OK;
}

static enum status import_states_plain(const struct naming_import *in, struct error *err)
{
    struct checkpoint *c = in->c;
    struct catalog *all = &c->catalog;
    for (size_t i = 0; i < all->num_native; i++) {
        const struct native_tensor *native = &all->native[i];
        if (!native->state) continue;
        const struct native_tensor *of = catalog_find_native(all, native->name, NULL);
        if (!of)
            states_unread(c, "%s is a state of %s, which is not a parameter of the checkpoint",
                          native->state, native->name);
        else if (of->numel != native->numel)
            states_unread(c, "%s of %s has shape %s, its parameter %s", native->state, native->name,
                          shape_text(&c->arena, native->num_dims, native->shape),
                          shape_text(&c->arena, of->num_dims, of->shape));
        else
            TRY(add_plain(all, native, state_name(&c->arena, native->state, native->name), err));
    }
    return OK;
}

static enum status export_one(struct target *t, const struct tensor *x, const char *name,
                              const char *state, export_visit *visit, void *context,
                              struct error *err)
{
    const struct native_output native = {
        .name = name,
        .state = state,
        .dtype = target_dtype(t, x),
        .num_dims = x->num_dims,
        .shape = x->shape,
        .parts = {{x, pair_whole(0, 0, x->numel)}},
        .num_parts = 1,
    };
    return visit(context, &native, err);
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
