#include "train/model/bind.h"

#include <string.h>

/* Target of the next part. */
struct binding {
    struct parameters *p;
    struct parameter *parameter;
    const struct tensor *tensor;
    uint64_t at; /* element of the parameter */
};

static enum status add_tensor_part(void *context, const struct pair *part, struct error *err)
{
    const struct binding *b = context;
    struct parameter *x = b->parameter;
    struct parameter_part *own = ARENA_PUSH(&b->p->arena, x->parts, x->num_parts, x->capacity);
    (void)err;
    *own = (struct parameter_part){b->tensor, *part};
    own->part.b_offset += b->at;
    return OK;
}

static bool has_shape(const struct tensor *t, const struct param_spec *spec)
{
    return t->num_dims == spec->num_dims &&
           memcmp(t->shape, spec->shape, t->num_dims * sizeof *t->shape) == 0;
}

bool bind_may_lack(const struct checkpoint *c, const struct parameter *x)
{
    return x->spec->buffer && !c->config.moe_router_enable_expert_bias;
}

/* Binds tensor i of a parameter. No tensor has the padding of the vocabulary:
 * it stays 0. */
static enum status bind_tensor(struct parameters *p, struct parameter *x,
                               const struct checkpoint *c, uint64_t i, struct error *err)
{
    const struct tensor *t = catalog_find(&c->catalog, x->tensors[i]);
    if (!t && bind_may_lack(c, x)) return OK;
    if (!t)
        return fail(err, ERR_UNSUPPORTED, "%s: the checkpoint has no such tensor", x->tensors[i]);
    if (!has_shape(t, x->spec))
        return fail(err, ERR_UNSUPPORTED, "%s: shape %s, expected %s by the config", t->name,
                    shape_text(&p->arena, t->num_dims, t->shape),
                    shape_text(&p->arena, x->spec->num_dims, x->spec->shape));
    struct binding b = {p, x, t, i * (x->numel / x->num_tensors)};
    for (unsigned k = 0; k < x->cut->count; k++)
        TRY(x->spec->padded
                ? pair_clip(&x->cut->pairs[k], 0, t->numel, t->name, add_tensor_part, &b, err)
                : add_tensor_part(&b, &x->cut->pairs[k], err));
    return OK;
}

enum status parameters_bind(struct parameters *p, const struct checkpoint *c, struct error *err)
{
    for (; p->num_bound < p->count; p->num_bound++) {
        struct parameter *x = &p->items[p->num_bound];
        for (uint64_t i = 0; i < x->num_tensors; i++)
            TRY(bind_tensor(p, x, c, i, err));
    }
    return OK;
}
