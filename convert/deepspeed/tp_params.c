#include "convert/deepspeed/tp_params.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"

enum status tp_params_add(struct tp_params *p, const struct tp_rules *rules, uint64_t rank,
                          const char *name, struct error *err)
{
    struct arena *a = p->all->arena;
    const struct stored_tensor *s = &p->all->stored.tensors[p->all->stored.num_tensors - 1];
    size_t at;
    if (map_add(&p->names, name, p->count, &at)) {
        at = p->count;
        *ARENA_PUSH(a, p->items, p->count, p->capacity) = (struct tp_param){
            .name = name, .parts = arena_array(a, p->num_ranks, sizeof *p->items->parts)};
    }
    struct tp_part *part = &p->items[at].parts[rank];
    *part = (struct tp_part){
        .num_dims = s->num_dims, .shape = s->shape, .stored = p->all->stored.num_tensors};
    if (s->num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s has %u dimensions", name, s->num_dims);
    return tp_rule_of(rules, a, name, s->num_dims, s->shape, &part->rule, err);
}

void tp_params_release(struct tp_params *p)
{
    map_release(&p->names);
}

/* ---- joining ---- */

static const struct stored_tensor *tensor_of(const struct tp_params *p, const struct tp_part *part)
{
    return &p->all->stored.tensors[part->stored - 1];
}

/* A part's shape and how it joins, for a message. */
static const char *part_text(const struct tp_params *p, const struct tp_part *part)
{
    struct arena *a = p->all->arena;
    const struct tp_rule *rule = &part->rule;
    const char *shape = shape_text(a, part->num_dims, part->shape);
    if (rule->kind == TP_COPY) return arena_printf(a, "%s, a copy", shape);
    if (rule->kind == TP_PLACED)
        return arena_printf(a, "%s, in %s", shape, shape_text(a, rule->num_dims, rule->whole));
    return arena_printf(a, "%s along dimension %u", shape, rule->dim);
}

/* Checks what parts of one parameter must agree in: all but their extent along
 * the dimension that they split. */
static enum status check_parts(const struct tp_params *p, const struct tp_param *x,
                               struct error *err)
{
    const struct tp_part *first = &x->parts[0];
    for (uint64_t r = 0; r < p->num_ranks; r++) {
        const struct tp_part *part = &x->parts[r];
        if (!part->stored)
            return fail(err, ERR_CORRUPT, "%s: rank %" PRIu64 " of %" PRIu64 " has no part of it",
                        x->name, r, p->num_ranks);
        bool alike = part->rule.kind == first->rule.kind && part->rule.dim == first->rule.dim &&
                     part->rule.num_subs == first->rule.num_subs &&
                     part->num_dims == first->num_dims &&
                     tensor_of(p, part)->dtype == tensor_of(p, first)->dtype;
        if (alike && part->rule.kind == TP_PLACED)
            alike = part->rule.num_dims == first->rule.num_dims &&
                    memcmp(part->rule.whole, first->rule.whole,
                           first->rule.num_dims * sizeof *first->rule.whole) == 0;
        for (unsigned d = 0; alike && d < part->num_dims && part->rule.kind != TP_PLACED; d++)
            alike = part->shape[d] == first->shape[d] ||
                    (part->rule.kind == TP_CONCAT && d == part->rule.dim);
        if (!alike)
            return fail(err, ERR_CORRUPT,
                        "%s: parts of ranks 0 and %" PRIu64 " do not join: %s; %s", x->name, r,
                        part_text(p, first), part_text(p, part));
    }
    return OK;
}

/* The box of a sub-parameter in the whole, of which rows past the vocabulary are
 * left out; false: all of it is. */
static bool piece_of_sub(const struct tp_param *x, const struct tp_part *part, uint64_t start,
                         uint64_t in_part, uint64_t width, struct pair *out)
{
    const unsigned dim = part->rule.dim;
    uint64_t starts[MAX_AXES] = {0}, extent[MAX_AXES], stride[MAX_AXES], step = 1;
    for (unsigned d = x->num_dims; d-- > 0;) {
        stride[d] = step;
        step *= part->shape[d];
        extent[d] = part->shape[d];
    }
    if (!width || start >= x->whole[dim]) return false;
    starts[dim] = start;
    extent[dim] = min_u64(width, x->whole[dim] - start);
    return pair_of_box(out, x->num_dims, x->whole, starts, extent, in_part * stride[dim], stride) &&
           pair_count(out);
}

/* Sets pieces of parts that follow one another, each sub-parameter by itself. */
static enum status place_joined(struct tp_params *p, struct tp_param *x, struct error *err)
{
    struct arena *a = p->all->arena;
    const struct tp_rule *first = &x->parts[0].rule;
    uint64_t *whole = arena_copy(a, x->parts[0].shape, x->num_dims * sizeof *whole);
    uint64_t *in_part = arena_array(a, p->num_ranks, sizeof *in_part), at = 0, numel;
    x->whole = whole;
    whole[first->dim] = 0;
    for (uint64_t r = 0; r < p->num_ranks; r++) {
        struct tp_rule *rule = &x->parts[r].rule;
        whole[first->dim] += x->parts[r].shape[first->dim];
        rule->pieces = arena_array(a, rule->num_subs, sizeof *rule->pieces);
    }
    if (first->max_rows && first->max_rows < whole[0]) {
        x->padding = whole[0] - first->max_rows;
        whole[0] = first->max_rows;
    }
    if (!shape_numel(whole, x->num_dims, &numel) || numel > MAX_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s would have shape %s", x->name,
                    shape_text(a, x->num_dims, whole));
    for (unsigned sub = 0; sub < first->num_subs; sub++)
        for (uint64_t r = 0; r < p->num_ranks; r++) {
            struct tp_part *part = &x->parts[r];
            struct tp_rule *rule = &part->rule;
            const uint64_t width = rule->widths[sub];
            struct pair *piece = &rule->pieces[rule->num_pieces];
            if (piece_of_sub(x, part, at, in_part[r], width, piece)) {
                TRY(pair_turn(piece, x->name, err));
                rule->num_pieces++;
            }
            in_part[r] += width;
            at += width;
        }
    return OK;
}

static enum status place(struct tp_params *p, struct tp_param *x, struct error *err)
{
    TRY(check_parts(p, x, err));
    struct tp_rule *first = &x->parts[0].rule;
    x->num_dims = first->kind == TP_PLACED ? first->num_dims : x->parts[0].num_dims;
    x->whole = first->kind == TP_PLACED ? first->whole : x->parts[0].shape;
    if (first->kind == TP_CONCAT) return place_joined(p, x, err);
    if (first->kind == TP_PLACED) return OK;
    const struct pair all =
        pair_whole(0, 0, stored_numel(tensor_of(p, &x->parts[0]))); /* others have copies */
    first->pieces = arena_copy(p->all->arena, &all, sizeof all);
    first->num_pieces = 1;
    return OK;
}

/* ---- native tensors ---- */

/* run: (in the part, in the stored tensor) */
static enum status add_run(const struct tp_rank *r, const struct tp_param *x, const char *state,
                           enum dtype dtype, size_t stored, const struct pair *run,
                           struct error *err)
{
    struct catalog *all = r->params->all;
    struct native_tensor *native;
    const struct tp_rule *rule = &x->parts[r->rank].rule;
    TRY(catalog_add_native(all, x->name, state, dtype, x->num_dims, x->whole, &native, err));
    for (size_t i = 0; i < rule->num_pieces; i++)
        TRY(zero_place_run(all, native, stored, &rule->pieces[i], run, x->name, err));
    return OK;
}

enum status tp_params_join(struct tp_params *p, struct error *err)
{
    for (size_t i = 0; i < p->count; i++) {
        struct tp_param *x = &p->items[i];
        TRY(place(p, x, err));
        for (uint64_t rank = 0; rank < p->num_ranks; rank++) {
            const struct tp_rank r = {p, rank};
            TRY(tp_add_stored(&r, x->name, NULL, x->parts[rank].stored - 1, err));
        }
    }
    return OK;
}

size_t tp_stored_part(const struct tp_rank *r, const char *name)
{
    size_t at = 0;
    (void)map_get(&r->params->names, name, &at);
    return r->params->items[at].parts[r->rank].stored - 1;
}

static enum status find_part(const struct tp_rank *r, const char *name, unsigned num_dims,
                             const uint64_t *shape, const struct tp_param **out, struct error *err)
{
    struct arena *a = r->params->all->arena;
    size_t at;
    if (!map_get(&r->params->names, name, &at))
        return fail(err, ERR_CORRUPT, "%s has no weight in the model files", name);
    const struct tp_part *part = &r->params->items[at].parts[r->rank];
    *out = &r->params->items[at];
    if (part->num_dims == num_dims && memcmp(part->shape, shape, num_dims * sizeof *shape) == 0)
        return OK;
    return fail(
        err, ERR_CORRUPT, "%s of tensor parallel rank %" PRIu64 " has shape %s, but its weight %s",
        name, r->rank, shape_text(a, num_dims, shape), shape_text(a, part->num_dims, part->shape));
}

enum status tp_add_stored(const struct tp_rank *r, const char *name, const char *state,
                          size_t stored, struct error *err)
{
    const struct stored_tensor *s = &r->params->all->stored.tensors[stored];
    const struct tp_param *x;
    TRY(find_part(r, name, s->num_dims, s->shape, &x, err));
    const struct pair all = pair_whole(0, 0, stored_numel(s));
    return add_run(r, x, state, s->dtype, stored, &all, err);
}

enum status tp_add_run(void *context, const struct ds_param *p, const char *state, enum dtype dtype,
                       size_t stored, const struct pair *run, struct error *err)
{
    const struct tp_rank *r = context;
    const struct tp_param *x;
    TRY(find_part(r, p->name, p->num_dims, p->shape, &x, err));
    return add_run(r, x, state, dtype, stored, run, err);
}
