#include "ckpt/held.h"

bool tensor_is_held(const struct tensor *t)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (piece_origin(&t->pieces[i])->is_memory) return true;
    return false;
}

static void add_holder(struct output_file *f, unsigned rank)
{
    if (!f->held) f->rank = rank;
    f->shared |= f->rank != rank;
    f->held = true;
    if (f->shared) f->rank = 0;
}

static void add_holders(struct plan *p, const struct plan_copy *c)
{
    for (size_t i = 0; i < c->num_pieces; i++) {
        struct output_file *f = &p->files[p->segments[c->pieces[i].segment].file];
        const struct pair target = pair_unpack(&c->pieces[i].pair);
        for (size_t k = 0; k < c->source->num_pieces && !f->shared; k++) {
            const struct pair held = pair_unpack(&c->source->pieces[k].pair);
            if (pair_overlap(&target, &held)) add_holder(f, c->source->pieces[k].holder);
        }
    }
}

void held_set_ranks(struct plan *p)
{
    for (size_t i = 0; i < p->num_files; i++)
        p->files[i].held = p->files[i].shared = false;
    for (size_t i = 0; i < p->num_copies; i++)
        if (tensor_is_held(p->copies[i].source)) add_holders(p, &p->copies[i]);
}

struct pair *held_parts(const struct tensor *t, unsigned rank, struct arena *a, size_t *count)
{
    struct pair *parts = arena_array(a, t->num_pieces + 1, sizeof *parts);
    *count = 0;
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].holder == rank) parts[(*count)++] = pair_unpack(&t->pieces[i].pair);
    return parts;
}

/* A copy that gets the target pieces of a rank's parts. */
struct restricting {
    struct plan_copy *copy;
    struct arena *arena;
    uint32_t segment;
};

static enum status add_held(void *context, const struct pair *p, struct error *err)
{
    struct restricting *r = context; /* p.a: the segment, p.b: the tensor */
    struct plan_copy *c = r->copy;
    struct pair pair = *p;
    TRY(pair_turn(&pair, c->source->name, err));
    *ARENA_PUSH(r->arena, c->pieces, c->num_pieces, c->pieces_capacity) =
        (struct target_piece){pair_pack(r->arena, &pair), r->segment};
    return OK;
}

static enum status restrict_copy(struct plan_copy *c, unsigned rank, struct arena *a,
                                 struct error *err)
{
    const struct plan_copy whole = *c;
    size_t num_parts;
    struct pair *parts = held_parts(c->source, rank, a, &num_parts);
    *c = (struct plan_copy){.source = whole.source};
    for (size_t i = 0; i < whole.num_pieces; i++) {
        struct restricting r = {c, a, whole.pieces[i].segment};
        const struct pair target = pair_unpack(&whole.pieces[i].pair);
        for (size_t k = 0; k < num_parts; k++) {
            const struct pair part = pair_onto_itself(&parts[k]);
            TRY(pair_join(&target, &part, c->source->name, add_held, &r, err));
        }
    }
    return OK;
}

enum status held_copies(const struct plan *p, unsigned rank, struct arena *a,
                        const struct plan_copy **out, struct error *err)
{
    struct plan_copy *restricted = NULL;
    *out = p->copies;
    for (size_t i = 0; i < p->num_copies; i++) {
        if (!tensor_is_held(p->copies[i].source)) continue;
        if (!restricted)
            *out = restricted = arena_copy(a, p->copies, p->num_copies * sizeof *restricted);
        TRY(restrict_copy(&restricted[i], rank, a, err));
    }
    return OK;
}
