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

static void add_holders(struct plan *p, const struct carry *c)
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
    for (size_t i = 0; i < p->num_carries; i++)
        if (tensor_is_held(p->carries[i].source)) add_holders(p, &p->carries[i]);
}

struct pair *held_parts(const struct tensor *t, unsigned rank, struct arena *a, size_t *count)
{
    struct pair *parts = arena_array(a, t->num_pieces + 1, sizeof *parts);
    *count = 0;
    for (size_t i = 0; i < t->num_pieces; i++)
        if (t->pieces[i].holder == rank) parts[(*count)++] = pair_unpack(&t->pieces[i].pair);
    return parts;
}

/* A carry that gets the target pieces of the parts that a rank holds. */
struct restricting {
    struct carry *carry;
    struct arena *arena;
    uint32_t segment;
};

static enum status add_held(void *context, const struct pair *p, struct error *err)
{
    struct restricting *r = context; /* p.a: the segment, p.b: the tensor */
    struct carry *c = r->carry;
    struct pair pair = *p;
    TRY(pair_turn(&pair, c->source->name, err));
    *ARENA_PUSH(r->arena, c->pieces, c->num_pieces, c->pieces_capacity) =
        (struct target_piece){pair_pack(r->arena, &pair), r->segment};
    return OK;
}

static enum status restrict_carry(struct carry *c, unsigned rank, struct arena *a,
                                  struct error *err)
{
    const struct carry whole = *c;
    size_t num_parts;
    struct pair *parts = held_parts(c->source, rank, a, &num_parts);
    *c = (struct carry){.source = whole.source};
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

enum status held_carries(const struct plan *p, unsigned rank, struct arena *a,
                         const struct carry **out, struct error *err)
{
    struct carry *own = NULL;
    *out = p->carries;
    for (size_t i = 0; i < p->num_carries; i++) {
        if (!tensor_is_held(p->carries[i].source)) continue;
        if (!own) *out = own = arena_copy(a, p->carries, p->num_carries * sizeof *own);
        TRY(restrict_carry(&own[i], rank, a, err));
    }
    return OK;
}
