#include "convert/own_outputs.h"

#include <inttypes.h>
#include <string.h>

void own_outputs_init(struct own_outputs *x, struct target *t)
{
    *x = (struct own_outputs){.t = t};
}

void own_outputs_release(struct own_outputs *x)
{
    map_release(&x->out.names);
    map_release(&x->own_names);
}

uint64_t out_tensor_bytes(const struct out_tensor *o)
{
    return o->numel * dtype_bytes(o->dtype);
}

static const char *own_key(struct arena *a, const char *name, const char *state)
{
    return state ? arena_printf(a, "%s\x1f%s", state, name) : name;
}

enum status own_outputs_add(struct own_outputs *x, const char *name, const struct own_output *own,
                            size_t *at, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const size_t count = x->out.count, index = out_tensors_add(&x->out, a, name, own);
    struct out_tensor *o = &x->out.items[index];
    if (index == count)
        (void)map_add(&x->own_names, own_key(a, o->own_name, o->state), index, NULL);
    if (at) *at = index;
    if (o->dtype != own->dtype)
        return fail(err, ERR_UNSUPPORTED, "%s would be part %s, part %s%s", o->name,
                    dtype_infos[o->dtype].name, dtype_infos[own->dtype].name,
                    own->state ? "; --no-optim leaves it out" : "; --torch-dtype casts both");
    for (unsigned i = 0; i < own->num_parts; i++) {
        o->filled += pair_count(&own->parts[i].pair);
        *ARENA_PUSH(a, x->parts, x->num_parts, x->parts_capacity) =
            (struct out_part){own->parts[i], SIZE_MAX};
        const size_t part = x->num_parts - 1;
        if (o->first_part == SIZE_MAX)
            o->first_part = part;
        else
            x->parts[o->last_part].next = part;
        o->last_part = part;
    }
    return OK;
}

size_t own_outputs_find(const struct own_outputs *x, const char *own_name, const char *state)
{
    struct arena scratch;
    size_t at;
    arena_init(&scratch);
    const bool found = map_get(&x->own_names, own_key(&scratch, own_name, state), &at);
    arena_release(&scratch);
    return found ? at : SIZE_MAX;
}

enum status own_outputs_check(const struct own_outputs *x, struct error *err)
{
    for (size_t i = 0; i < x->out.count; i++) {
        const struct out_tensor *o = &x->out.items[i];
        if (o->filled != o->numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: of its %" PRIu64 " elements the source has %" PRIu64, o->name,
                        o->numel, o->filled);
    }
    return OK;
}

enum status own_outputs_fill(struct own_outputs *x, size_t at, const struct pair *pair,
                             uint32_t segment, struct error *err)
{
    for (size_t i = x->out.items[at].first_part; i != SIZE_MAX; i = x->parts[i].next) {
        const struct own_output own = {.parts = {x->parts[i].source}, .num_parts = 1};
        TRY(target_fill(x->t, &own, pair, segment, err));
    }
    return OK;
}

enum dtype own_outputs_main_dtype(const struct own_outputs *x)
{
    uint64_t bytes[NUM_DTYPES] = {0};
    int most = DT_F32;
    for (size_t i = 0; i < x->out.count; i++)
        if (!x->out.items[i].state)
            bytes[x->out.items[i].dtype] += out_tensor_bytes(&x->out.items[i]);
    for (int i = 0; i < NUM_DTYPES; i++)
        if (bytes[i] > bytes[most]) most = i;
    return (enum dtype)most;
}
