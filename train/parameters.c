#include "train/parameters.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "train/memory_plan.h"

void parameters_init(struct parameters *p, const struct catalog *catalog, enum elem_type elem)
{
    *p = (struct parameters){.catalog = catalog, .elem = elem};
    arena_init(&p->arena);
}

void parameters_release(struct parameters *p)
{
    map_release(&p->names);
    arena_release(&p->arena);
}

/* Room behind what is there. */
static struct parameter *place(struct parameters *p, const char *name, unsigned num_dims,
                               const uint64_t *shape)
{
    struct parameter *x = ARENA_PUSH(&p->arena, p->items, p->count, p->capacity);
    *x = (struct parameter){.name = arena_text(&p->arena, name, strlen(name)),
                            .num_dims = num_dims,
                            .numel = 1,
                            .offset = p->bytes};
    for (unsigned d = 0; d < num_dims; d++) {
        x->shape[d] = shape[d];
        x->numel *= shape[d];
    }
    uint64_t bytes = x->numel * operand_bytes_of(OPERAND_ELEM, p->elem);
    p->bytes += ceil_div_u64(bytes, MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT;
    (void)map_add(&p->names, x->name, p->count - 1, NULL);
    return x;
}

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
                                  const struct shard *s, struct error *err)
{
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
                             const struct shard *s, struct error *err)
{
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

static enum status add_shard(struct parameters *p, struct parameter *x, const struct tensor *t,
                             const struct shard *s, unsigned num_dims, const uint64_t *shape,
                             uint64_t at, struct error *err)
{
    struct param param;
    struct pair parts[2];
    unsigned num_parts;
    uint64_t local[MAX_AXES];
    if (!param_find(t->name, &param)) return fail(err, ERR_OURS, "%s: no parameter", t->name);
    TRY(param_shard(param.rule, s->gated, t->name, t->num_dims, t->shape, s->rank, s->size, parts,
                    &num_parts, local, err));
    if (t->num_dims != num_dims || memcmp(local, shape, num_dims * sizeof *shape) != 0)
        return wrong_shape(p, t, s->size > 1 ? "a rank's part has shape" : "has shape", num_dims,
                           local, shape, err);
    for (unsigned i = 0; i < num_parts; i++)
        add_part(p, x, t, &parts[i], at);
    return OK;
}

static enum status find(const struct parameters *p, const char *name, const struct tensor **out,
                        struct error *err)
{
    *out = catalog_find(p->catalog, name);
    if (*out) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: the checkpoint has no such tensor", name);
}

enum status parameters_add(struct parameters *p, const char *name, const struct shard *s,
                           unsigned num_dims, const uint64_t *shape, uint32_t *out,
                           struct error *err)
{
    const struct tensor *t;
    size_t there;
    if (map_get(&p->names, name, &there)) {
        *out = (uint32_t)there;
        return OK;
    }
    TRY(find(p, name, &t, err));
    *out = (uint32_t)p->count;
    struct parameter *x = place(p, name, num_dims, shape);
    if (s->vocab_rows) return add_vocab_rows(p, x, t, s, err);
    if (s->heads.groups) return add_heads(p, x, t, s, err);
    return add_shard(p, x, t, s, num_dims, shape, 0, err);
}

enum status parameters_add_stack(struct parameters *p, const char *name, const char *const *tensors,
                                 uint64_t count, const struct shard *s, unsigned num_dims,
                                 const uint64_t *shape, uint32_t *out, struct error *err)
{
    uint64_t whole[OPERAND_DIMS] = {count}, each = 1;
    size_t there;
    if (map_get(&p->names, name, &there)) {
        *out = (uint32_t)there;
        return OK;
    }
    for (unsigned d = 0; d < num_dims; d++) {
        whole[d + 1] = shape[d];
        each *= shape[d];
    }
    *out = (uint32_t)p->count;
    struct parameter *x = place(p, name, num_dims + 1, whole);
    for (uint64_t i = 0; i < count; i++) {
        const struct tensor *t;
        TRY(find(p, tensors[i], &t, err));
        TRY(add_shard(p, x, t, s, num_dims, shape, i * each, err));
    }
    return OK;
}

uint32_t parameters_add_state(struct parameters *p, const char *name, unsigned num_dims,
                              const uint64_t *shape)
{
    size_t there;
    if (map_get(&p->names, name, &there)) return (uint32_t)there;
    (void)place(p, name, num_dims, shape);
    return (uint32_t)(p->count - 1);
}

/* What of parameters [first, end) goes where in memory that begins with the first of them (NULL:
 * none yet); on the heap. */
static struct load_target *list_targets(const struct parameters *p, size_t first, size_t end,
                                        char *memory, size_t *count)
{
    *count = 0;
    for (size_t i = first; i < end; i++)
        *count += p->items[i].num_parts;
    struct load_target *targets = must_calloc(*count + 1, sizeof *targets), *next = targets;
    for (size_t i = first; i < end; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++)
            *next++ = (struct load_target){
                .tensor = p->items[i].parts[k].tensor,
                .part = p->items[i].parts[k].part,
                .dtype = elem_dtype(p->elem),
                .memory = memory ? memory + (p->items[i].offset - p->items[first].offset) : NULL};
    return targets;
}

static enum status load_some(struct parameters *p, struct catalog *c, size_t first, size_t end,
                             char *memory, const struct load_options *o, struct error *err)
{
    struct load_result result;
    size_t count;
    struct load_target *targets = list_targets(p, first, end, memory, &count);
    enum status st = load_run(c, targets, count, o, &result, err);
    free(targets);
    return st;
}

enum { UPLOAD_BYTES = 1 << 30 };

static uint64_t end_of(const struct parameters *p, size_t i)
{
    return i + 1 < p->count ? p->items[i + 1].offset : p->bytes;
}

/* One past the last parameter that fits the buffer with `first`, which always does. */
static size_t last_that_fits(const struct parameters *p, size_t first)
{
    size_t end = first + 1;
    while (end < p->count && end_of(p, end) - p->items[first].offset <= UPLOAD_BYTES)
        end++;
    return end;
}

/* Padding within is 0. */
static enum status upload_some(struct parameters *p, struct catalog *c, size_t first, size_t end,
                               const struct device *device, char *region,
                               const struct load_options *o, struct error *err)
{
    uint64_t from = p->items[first].offset, bytes = end_of(p, end - 1) - from;
    char *buffer = calloc(1, bytes + 1);
    if (!buffer) return fail(err, ERR_MEMORY, "no memory to load %s", p->items[first].name);
    enum status st = load_some(p, c, first, end, buffer, o, err);
    if (!st) st = device->upload(region + from, buffer, bytes, err);
    free(buffer);
    return st;
}

enum status parameters_load(struct parameters *p, struct catalog *c, const struct device *device,
                            void *region, const struct load_options *o, struct error *err)
{
    if (device->is_host) return load_some(p, c, 0, p->count, region, o, err);
    for (size_t i = 0, end; i < p->count; i = end) {
        end = last_that_fits(p, i);
        TRY(upload_some(p, c, i, end, device, region, o, err));
    }
    return OK;
}

enum status parameters_load_bytes(const struct parameters *p, const struct device *device,
                                  const struct load_options *o, uint64_t *bytes, struct error *err)
{
    size_t count;
    struct load_target *targets = list_targets(p, 0, p->count, NULL, &count);
    enum status st = load_own_bytes(targets, count, o, bytes, err);
    uint64_t buffer = 0;
    for (size_t i = 0, end; i < p->count && !device->is_host; i = end) {
        end = last_that_fits(p, i);
        buffer = max_u64(buffer, end_of(p, end - 1) - p->items[i].offset);
    }
    *bytes += buffer;
    free(targets);
    return st;
}
