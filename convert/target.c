#include "convert/target.h"

#include "convert/format.h"
#include "convert/naming.h"

bool is_parameter(const struct tensor *x)
{
    return !name_is_optimizer(x->name) && !name_is_padding(x->name);
}

enum dtype target_dtype(const struct target *t, const struct tensor *x)
{
    return t->options.casts && dtype_is_float(x->dtype) ? t->options.dtype : x->dtype;
}

enum status target_plan(struct target *t, const struct target_options *o,
                        const struct checkpoint *source, const struct model_maps *maps,
                        struct error *err)
{
    *t = (struct target){.options = *o, .source = source, .format = o->format, .maps = maps};
    plan_init(&t->plan, &source->catalog);
    if (source->family) t->map = model_map_of_family(maps, source->family);
    TRY(t->format->target->plan(t, err));
    for (size_t i = 0; i < t->plan.num_carries; i++) {
        const struct tensor *x = t->plan.carries[i].source;
        t->facts.cast_tensors += target_dtype(t, x) != x->dtype;
    }
    return plan_finish(&t->plan, err);
}

/* ---- own tensors ---- */

size_t out_tensors_add(struct out_tensors *all, struct arena *a, const struct own_output *own)
{
    size_t at = all->count;
    if (map_get(&all->names, own->name, &at)) return at;
    struct out_tensor *o = ARENA_PUSH(a, all->items, all->count, all->capacity);
    *o = (struct out_tensor){
        .name = arena_copy_text(a, own->name),
        .dtype = own->dtype,
        .num_dims = own->num_dims,
        .shape = arena_copy(a, own->shape, own->num_dims * sizeof *own->shape),
        .numel = 1,
    };
    for (unsigned d = 0; d < own->num_dims; d++)
        o->numel *= own->shape[d];
    (void)map_add(&all->names, o->name, at, NULL);
    return at;
}

struct filling {
    struct target *t;
    const struct tensor *logical;
    uint32_t segment;
};

static enum status add_filling(void *context, const struct pair *p, struct error *err)
{
    const struct filling *f = context; /* p.a: the tensor, p.b: the segment */
    (void)err;
    plan_add_piece(&f->t->plan, f->logical, f->segment, p);
    return OK;
}

enum status target_fill(struct target *t, const struct own_output *own, const struct pair *pair,
                        uint32_t segment, struct error *err)
{
    for (unsigned i = 0; i < own->num_parts; i++) {
        struct filling f = {t, own->parts[i].logical, segment};
        struct pair by_own = own->parts[i].pair;
        TRY(pair_turn(&by_own, f.logical->name, err));
        TRY(pair_join_nested(&by_own, pair, f.logical->name, add_filling, &f, err));
    }
    return OK;
}

void target_release(struct target *t)
{
    if (t->own && t->format->target->release) t->format->target->release(t);
    plan_release(&t->plan);
}
