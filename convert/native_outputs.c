#include "convert/native_outputs.h"

#include <inttypes.h>
#include <string.h>

void native_outputs_init(struct native_outputs *x, struct target *t)
{
    *x = (struct native_outputs){.t = t};
}

void native_outputs_release(struct native_outputs *x)
{
    map_release(&x->out.names);
    map_release(&x->native_names);
}

uint64_t out_tensor_bytes(const struct out_tensor *o)
{
    return o->numel * dtype_bytes(o->dtype);
}

static const char *native_key(struct arena *a, const char *name, const char *state)
{
    return state ? arena_printf(a, "%s\x1f%s", state, name) : name;
}

enum status native_outputs_add(struct native_outputs *x, const char *name,
                               const struct native_output *native, size_t *at, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const size_t count = x->out.count, index = out_tensors_add(&x->out, a, name, native);
    struct out_tensor *o = &x->out.items[index];
    if (index == count)
        (void)map_add(&x->native_names, native_key(a, o->native_name, o->state), index, NULL);
    if (at) *at = index;
    if (o->dtype != native->dtype)
        return fail(err, ERR_UNSUPPORTED, "%s: its parts have dtypes %s and %s%s", o->name,
                    dtype_infos[o->dtype].name, dtype_infos[native->dtype].name,
                    native->state ? "; --no-optim leaves it out" : "; --torch-dtype casts both");
    for (unsigned i = 0; i < native->num_parts; i++) {
        o->filled += pair_count(&native->parts[i].pair);
        *ARENA_PUSH(a, x->parts, x->num_parts, x->parts_capacity) =
            (struct out_part){native->parts[i], SIZE_MAX};
        const size_t part = x->num_parts - 1;
        if (o->first_part == SIZE_MAX)
            o->first_part = part;
        else
            x->parts[o->last_part].next = part;
        o->last_part = part;
    }
    return OK;
}

size_t native_outputs_find(const struct native_outputs *x, const char *native_name,
                           const char *state)
{
    struct arena scratch;
    size_t at;
    arena_init(&scratch);
    const bool found = map_get(&x->native_names, native_key(&scratch, native_name, state), &at);
    arena_release(&scratch);
    return found ? at : SIZE_MAX;
}

enum status native_outputs_check(const struct native_outputs *x, struct error *err)
{
    for (size_t i = 0; i < x->out.count; i++) {
        const struct out_tensor *o = &x->out.items[i];
        if (o->filled != o->numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: the source has %" PRIu64 " of its %" PRIu64 " elements", o->name,
                        o->filled, o->numel);
    }
    return OK;
}

enum status native_outputs_fill(struct native_outputs *x, size_t at, const struct pair *pair,
                                uint32_t segment, struct error *err)
{
    for (size_t i = x->out.items[at].first_part; i != SIZE_MAX; i = x->parts[i].next) {
        const struct native_output native = {.parts = {x->parts[i].source}, .num_parts = 1};
        TRY(target_fill(x->t, &native, pair, segment, err));
    }
    return OK;
}

enum dtype native_outputs_main_dtype(const struct native_outputs *x)
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
