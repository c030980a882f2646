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
    return dtype_run_bytes(o->dtype, o->numel);
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

void native_outputs_replace(struct native_outputs *x, size_t at, const char *name,
                            const struct tensor *from)
{
    struct arena *a = &x->t->plan.arena;
    struct out_tensor *o = &x->out.items[at];
    const struct native_source all = {from, pair_whole(0, 0, from->numel)};
    *ARENA_PUSH(a, x->parts, x->num_parts, x->parts_capacity) = (struct out_part){all, SIZE_MAX};
    o->name = arena_copy_text(a, name);
    o->dtype = from->dtype;
    o->num_dims = from->num_dims;
    o->shape = from->shape;
    o->numel = o->filled = from->numel;
    o->first_part = o->last_part = x->num_parts - 1;
    (void)map_add(&x->out.names, o->name, at, NULL);
}

/* Pieces of a native tensor's elements, for a tensor of another order. */
struct joining {
    struct arena *a;
    struct tensor *to;
    const struct tensor *logical;
    size_t piece;
};

static enum status add_piece(void *context, const struct pair *p, struct error *err)
{
    const struct joining *x = context; /* p.a: the tensor, p.b: as stored */
    (void)err;
    tensor_add_piece(x->a, x->to, &x->logical->pieces[x->piece], p);
    return OK;
}

static enum status join_pieces(void *context, const struct pair *p, struct error *err)
{
    struct joining *x = context; /* p.a: logical, p.b: the tensor */
    for (x->piece = 0; x->piece < x->logical->num_pieces; x->piece++) {
        const struct pair stored = pair_unpack(&x->logical->pieces[x->piece].pair);
        if (pair_is_apart(&x->logical->pieces[x->piece].pair, p->a_offset, pair_a_span(p)))
            continue;
        TRY(pair_join_nested(p, &stored, x->logical->name, add_piece, x, err));
    }
    return OK;
}

enum status native_outputs_join(const struct native_outputs *x, size_t at, const struct pair *order,
                                struct tensor *t, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const struct out_tensor *o = &x->out.items[at];
    t->numel = o->numel;
    t->dtype = x->parts[o->first_part].source.logical->dtype;
    for (size_t i = o->first_part; i != SIZE_MAX; i = x->parts[i].next) {
        struct joining j = {a, t, x->parts[i].source.logical, 0};
        struct pair by_native = x->parts[i].source.pair;
        if (!t->stored_name) t->stored_name = j.logical->stored_name;
        TRY(pair_turn(&by_native, o->name, err));
        TRY(pair_join_nested(&by_native, order, o->name, join_pieces, &j, err));
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
