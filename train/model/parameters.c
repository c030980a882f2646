#include "train/model/parameters.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "train/engine/memory_plan.h"

bool parameter_is_trained(const struct parameter *x)
{
    return x->tensors && !x->spec->buffer;
}

enum dtype parameter_dtype(const struct parameters *p, const struct parameter *x)
{
    return x->type == OPERAND_ELEM || p->elem == ELEM_F64 ? elem_dtype(p->elem) : DT_F32;
}

unsigned parameter_copies(const struct parameter *x)
{
    const bool is_expert = x->spec->group == PARAM_ETP, is_whole = x->spec->split < 0;
    const unsigned data = is_expert ? 1u << GROUP_EDP : 1u << GROUP_DP | 1u << GROUP_CP,
                   stages = x->sums & 1u << GROUP_EMBEDDING;
    return data | stages | (unsigned)is_whole << (is_expert ? GROUP_ETP : GROUP_TP);
}

bool parameter_counts(const struct parameter *x, const struct groups *g, unsigned apart)
{
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        if (parameter_copies(x) & ~apart & 1u << k && g->of[k].index > 0) return false;
    return true;
}

void parameters_init(struct parameters *p, enum elem_type elem)
{
    *p = (struct parameters){.elem = elem, .load_bytes = 256 << 20};
    arena_init(&p->arena);
}

void parameters_release(struct parameters *p)
{
    map_release(&p->names);
    arena_release(&p->arena);
}

uint64_t parameter_bytes(const struct parameters *p, const struct parameter *x)
{
    return x->coding ? x->coding->bytes : x->numel * operand_bytes_of(x->type, p->elem);
}

static void take_room(struct parameters *p, struct parameter *x)
{
    x->offset = p->bytes;
    p->bytes += ceil_div_u64(parameter_bytes(p, x), MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT;
}

/* Adds a parameter behind the last one. */
static struct parameter *place_parameter(struct parameters *p, const char *name,
                                         enum operand_type type, unsigned num_dims,
                                         const uint64_t *shape)
{
    struct parameter *x = ARENA_PUSH(&p->arena, p->items, p->count, p->capacity);
    *x = (struct parameter){
        .name = arena_copy_text(&p->arena, name), .type = type, .num_dims = num_dims, .numel = 1};
    for (unsigned d = 0; d < num_dims; d++) {
        x->shape[d] = shape[d];
        x->numel *= shape[d];
    }
    take_room(p, x);
    (void)map_add(&p->names, x->name, p->count - 1, NULL);
    return x;
}

/* Computes a rank's shard of a tensor, in the arena. */
static enum status cut_tensor(struct parameters *p, const char *name, const struct param_spec *spec,
                              const struct cut *cut, const struct param_parts **out,
                              struct error *err)
{
    struct param_parts *parts = arena_array(&p->arena, 1, sizeof *parts);
    uint64_t whole[MAX_AXES], numel;
    if (!spec->num_dims || !shape_numel(spec->shape, spec->num_dims, &numel) || !numel)
        return fail(err, ERR_UNSUPPORTED, "%s: the config does not give its shape", name);
    param_padded_shape(spec, spec->num_dims, spec->shape, cut->rows, whole);
    *out = parts;
    return param_shard(spec, name, spec->num_dims, whole, cut->rank, cut->size, PARAM_COMPUTED,
                       parts, err);
}

static enum status add_shards(struct parameters *p, const char *name, const char *const *tensors,
                              uint64_t count, bool is_stack, const struct param_spec *spec,
                              const struct cut *cut, uint32_t *out, struct error *err)
{
    const struct param_parts *parts = NULL;
    uint64_t shape[MAX_AXES + 1] = {count};
    size_t there;
    if (map_get(&p->names, name, &there)) {
        *out = (uint32_t)there;
        return OK;
    }
    if (spec->num_dims + is_stack > OPERAND_DIMS)
        return fail(err, ERR_UNSUPPORTED, "%s: %u dimensions", name, spec->num_dims);
    TRY(cut_tensor(p, name, spec, cut, &parts, err));
    memcpy(shape + is_stack, parts->shape, spec->num_dims * sizeof *shape);
    const enum operand_type type = spec->buffer ? OPERAND_REAL : OPERAND_ELEM;
    struct parameter *x = place_parameter(p, name, type, spec->num_dims + is_stack, shape);
    const char **copies = arena_array(&p->arena, count, sizeof *copies);
    for (uint64_t i = 0; i < count; i++)
        copies[i] = arena_copy_text(&p->arena, tensors[i]);
    x->tensors = copies;
    x->num_tensors = count;
    x->spec = spec;
    x->cut = parts;
    *out = (uint32_t)(p->count - 1);
    return OK;
}

enum status parameters_add(struct parameters *p, const char *name, const struct param_spec *spec,
                           const struct cut *cut, uint32_t *out, struct error *err)
{
    return add_shards(p, name, &name, 1, false, spec, cut, out, err);
}

enum status parameters_add_stack(struct parameters *p, const char *name, const char *const *tensors,
                                 uint64_t count, const struct param_spec *spec,
                                 const struct cut *cut, uint32_t *out, struct error *err)
{
    return add_shards(p, name, tensors, count, true, spec, cut, out, err);
}

uint32_t parameters_add_state(struct parameters *p, const char *name, enum operand_type type,
                              unsigned num_dims, const uint64_t *shape)
{
    size_t there;
    if (map_get(&p->names, name, &there)) return (uint32_t)there;
    (void)place_parameter(p, name, type, num_dims, shape);
    return (uint32_t)(p->count - 1);
}

void parameters_arrange(struct parameters *p, unsigned (*rank)(const struct parameter *x),
                        uint64_t unit)
{
    struct parameter *before = p->items;
    const size_t count = p->count;
    unsigned last = 0;
    p->items = arena_array(&p->arena, p->capacity, sizeof *p->items);
    p->count = 0;
    p->bytes = 0;
    map_release(&p->names);
    p->names = (struct map){0};
    for (size_t i = 0; i < count; i++)
        if (parameter_is_trained(&before[i]))
            last = rank(&before[i]) > last ? rank(&before[i]) : last;
    for (unsigned r = 0; r <= last + 1; r++) {
        p->bytes = ceil_div_u64(p->bytes, unit) * unit;
        for (size_t i = 0; i < count; i++) {
            if ((parameter_is_trained(&before[i]) ? rank(&before[i]) : last + 1) != r) continue;
            struct parameter *x = &p->items[p->count++];
            *x = before[i];
            take_room(p, x);
            (void)map_add(&p->names, x->name, p->count - 1, NULL);
        }
    }
}
