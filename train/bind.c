#include "train/bind.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"

static void add_part(struct parameters *p, struct parameter *x, const struct tensor *t,
                     const struct pair *part, uint64_t at)
{
    struct parameter_part *own = ARENA_PUSH(&p->arena, x->parts, x->num_parts, x->capacity);
    *own = (struct parameter_part){t, *part};
    own->part.b_offset += at;
}

static enum status wrong_shape(struct parameters *p, const struct tensor *t, const char *of,
                               unsigned num_dims, const uint64_t *is, const uint64_t *expected,
                               struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "%s: %s %s, the config says %s", t->name, of,
                shape_text(&p->arena, t->num_dims, is), shape_text(&p->arena, num_dims, expected));
}

/* Rows [rank * vocab_rows, ..) as far as the tensor has them. */
static enum status add_vocab_rows(struct parameters *p, struct parameter *x, const struct tensor *t,
                                  struct error *err)
{
    const struct shard *s = &x->shard;
    uint64_t start[MAX_AXES] = {s->rank * s->vocab_rows}, extent[MAX_AXES];
    struct pair part;
    if (t->num_dims > 2 || t->num_dims != x->num_dims ||
        (t->num_dims == 2 && t->shape[1] != x->shape[1]))
        return wrong_shape(p, t, "has shape", x->num_dims, t->shape, x->shape, err);
    if (start[0] >= t->shape[0]) return OK;
    for (unsigned d = 0; d < t->num_dims; d++)
        extent[d] = t->shape[d];
    extent[0] = min_u64(s->vocab_rows, t->shape[0] - start[0]);
    if (!pair_of_box(&part, t->num_dims, t->shape, start, extent, 0, NULL))
        return fail(err, ERR_OURS, "%s: rows that are not a view", t->name);
    add_part(p, x, t, &part, 0);
    return OK;
}

/* This rank's part of its group's query heads, then the group's key and value. */
static enum status add_heads(struct parameters *p, struct parameter *x, const struct tensor *t,
                             struct error *err)
{
    const struct shard *s = &x->shard;
    const uint64_t d = s->heads.head_dim, own = s->heads.queries * d;
    const uint64_t rows = x->shape[0], columns = x->numel / rows;
    const uint64_t all = s->size * own;
    const uint64_t groups = t->shape[0] > all ? (t->shape[0] - all) / (2 * d) : 0;
    if (groups == 0 || s->size % groups)
        return wrong_shape(p, t, "has shape", x->num_dims, t->shape, x->shape, err);
    const uint64_t sharing = s->size / groups;
    const uint64_t of_group = sharing * own, first = s->rank / sharing * (of_group + 2 * d);
    const uint64_t from[] = {first + s->rank % sharing * own, first + of_group},
                   counts[] = {own, 2 * d};
    if (rows != own + 2 * d || t->numel / t->shape[0] != columns || t->num_dims != x->num_dims ||
        t->shape[0] != groups * (of_group + 2 * d))
        return wrong_shape(p, t, "has shape", x->num_dims, t->shape, x->shape, err);
    for (unsigned i = 0; i < 2; i++) {
        const struct pair part = pair_whole(from[i] * columns, 0, counts[i] * columns);
        add_part(p, x, t, &part, i * own * columns);
    }
    return OK;
}

static enum status add_shard(struct parameters *p, struct parameter *x, const struct catalog *c,
                             const struct tensor *t, unsigned num_dims, const uint64_t *shape,
                             uint64_t at, struct error *err)
{
    const struct shard *s = &x->shard;
    struct param param;
    struct param_parts parts;
    const uint64_t *local = parts.shape;
    if (!param_find(c->params, t->name, &param))
        return fail(err, ERR_OURS, "%s: no parameter", t->name);
    TRY(param_shard(param.spec, t->name, t->num_dims, t->shape, s->rank, s->size, PARAM_STORED,
                    &parts, err));
    if (t->num_dims != num_dims || memcmp(local, shape, num_dims * sizeof *shape) != 0)
        return wrong_shape(p, t, s->size > 1 ? "a rank's part has shape" : "has shape", num_dims,
                           local, shape, err);
    for (unsigned i = 0; i < parts.count; i++)
        add_part(p, x, t, &parts.pairs[i], at);
    return OK;
}

/* Tensor i of a parameter. */
static enum status bind_tensor(struct parameters *p, struct parameter *x, const struct catalog *c,
                               uint64_t i, struct error *err)
{
    const struct tensor *t = catalog_find(c, x->tensors[i]);
    const unsigned stacked = x->is_stack;
    if (!t)
        return fail(err, ERR_UNSUPPORTED, "%s: the checkpoint has no such tensor", x->tensors[i]);
    if (x->shard.vocab_rows) return add_vocab_rows(p, x, t, err);
    if (x->shard.heads.groups) return add_heads(p, x, t, err);
    return add_shard(p, x, c, t, x->num_dims - stacked, x->shape + stacked,
                     i * (x->numel / x->num_tensors), err);
}

enum status parameters_bind(struct parameters *p, const struct catalog *c, struct error *err)
{
    for (; p->num_bound < p->count; p->num_bound++) {
        struct parameter *x = &p->items[p->num_bound];
        for (uint64_t i = 0; i < x->num_tensors; i++)
            TRY(bind_tensor(p, x, c, i, err));
    }
    return OK;
}
