/* target_torch_dist.c - writes Megatron-Core's distributed checkpoint.
 *
 *   __R_0.distcp   items that global rank R would write: a torch.save archive
 *                  per chunk
 *   .metadata      file and offset of each key's chunks
 *   common.pt      the common state (or an object of that name)
 *   metadata.json  marks the checkpoint as complete
 *
 * Layers are stacked on a leading axis unless they differ in tensors, shapes or
 * dtypes. A key's chunks are the ranks' shards, with separate sections. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/file.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "convert/carried.h"
#include "convert/dcp_items.h"
#include "convert/format.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_target.h"
#include "convert/megatron/optim/buckets.h"
#include "convert/megatron/optim/dist_states.h"
#include "convert/megatron/optim/rng_states.h"
#include "convert/megatron/optim/training_target.h"
#include "convert/states.h"
#include "formats/dcp.h"
#include "formats/torch.h"

/* Chunks of one size in a key, and their archive. */
struct chunk_kind {
    size_t key;
    const uint64_t *sizes; /* [num_dims] of the key */
    struct torch_item archive;
    struct chunk_kind *next; /* of the same key */
};

/* Small, since there may be hundreds of thousands. */
struct chunk {
    const struct chunk_kind *kind;
    uint64_t first; /* its first element, flat in the key */
};

struct key_chunks {
    struct chunk_kind *kinds;
    size_t count;
    const uint64_t *original_shape; /* of a flattened key; else NULL */
    unsigned num_original_dims;
};

struct dist_target {
    struct target *t;
    unsigned stacks;    /* STACK_*, the axes along which keys are stacked */
    struct map by_rank; /* path -> file of the plan */
    size_t num_files;   /* the first of the plan: .distcp files */
    struct out_tensors keys;
    struct key_chunks *of_keys; /* [keys] */
    size_t num_of_keys, of_keys_capacity;
    struct chunk *chunks; /* of the plan's first segments */
    size_t num_chunks, chunks_capacity;
    struct dcp_object *objects;
    size_t num_objects, objects_capacity;
    struct strbuf none_item; /* archive of [None], shared by all extra states */
    struct strbuf common;    /* archive of the common state, a file or an object */
    struct strbuf rng;       /* archives of random number generator states */
};

/* A chunk's box in its key. Room for leading axes, and for one more of a
 * flattened key. */
enum { MAX_KEY_DIMS = MAX_LEAD + MAX_AXES + 1 };
struct key_box {
    uint64_t offsets[MAX_KEY_DIMS], sizes[MAX_KEY_DIMS];
};

/* Bytes of an archive's tensors: of storages "0", "1", ... */
struct rng_bytes {
    struct arena *arena;
    const void **data;
    size_t count, capacity;
};

/* ---- stacked or layer by layer ---- */

/* Dtype and shape of a key's first tensor. */
struct like {
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t count, members; /* tensors found; members of the whole stack */
};

static bool same_like(const struct like *a, enum dtype dtype, const struct tensor *x)
{
    return a->dtype == dtype && a->num_dims == x->num_dims &&
           memcmp(a->shape, x->shape, x->num_dims * sizeof *x->shape) == 0;
}

static uint64_t members_of(const struct checkpoint *c, const struct param_spec *s)
{
    return (s->stacks & STACK_LAYERS ? c->config.num_layers : 1) *
           (s->stacks & STACK_EXPERTS ? c->config.num_experts : 1);
}

/* The key of the tensor's stack; NULL: outside layers. */
static const char *stack_of(const struct target *t, struct arena *a, const struct tensor *x,
                            struct param *p)
{
    const char *state;
    size_t length;
    const bool is_state = name_of_state(x->name, &state, &length) != NULL;
    if (is_state && !t->num_states) return NULL;
    if (!param_find(t->source->params, x->name, p) || p->spec->place != PLACE_LAYER) return NULL;
    const char *key = dist_key_of(a, t->source->params, p, STACK_LAYERS | STACK_EXPERTS, false);
    return is_state ? arena_printf(a, "%.*s.%s", (int)length, state, key) : key;
}

/* Whether all layers (and experts) have the same tensors, shapes and dtypes. */
static bool layers_are_alike(const struct target *t, struct arena *a)
{
    const struct checkpoint *c = t->source;
    struct map names = {0};
    struct like *likes = arena_array(a, c->catalog.num_tensors, sizeof *likes);
    bool alike = !model_layers_differ(&c->config) && !t->hybrid;
    size_t count = 0;
    for (size_t i = 0; i < c->catalog.num_tensors && alike; i++) {
        const struct tensor *x = &c->catalog.tensors[i];
        struct param p;
        size_t at = count;
        const char *stack = stack_of(t, a, x, &p);
        if (!stack) continue;
        enum dtype dtype = target_dtype(t, x);
        if (map_add(&names, stack, count, &at))
            likes[count++] = (struct like){dtype, x->num_dims, x->shape, 0, members_of(c, p.spec)};
        alike = same_like(&likes[at], dtype, x);
        likes[at].count++;
    }
    for (size_t i = 0; i < count && alike; i++)
        alike = likes[i].count == likes[i].members;
    map_release(&names);
    return alike;
}

/* ---- files and keys ---- */

static uint32_t file_of_rank(struct dist_target *x, uint64_t rank)
{
    struct plan *plan = &x->t->plan;
    char path[40];
    size_t file;
    snprintf(path, sizeof path, "__%" PRIu64 "_0.distcp", rank);
    if (map_get(&x->by_rank, path, &file)) return (uint32_t)file;
    file = plan_add_file(plan, path);
    (void)map_add(&x->by_rank, plan->files[file].path, file, NULL);
    x->num_files++;
    return (uint32_t)file;
}

/* Whether a state is written as in fully_sharded_model_space
 * (optim/dist_states.h). */
static bool is_flattened(const struct dist_target *x, const struct native_output *native)
{
    return native->state && x->t->options.optim_format == OPTIM_fully_sharded_model_space;
}

/* Whether to write an optimizer that is not distributed. */
static bool is_not_distributed(const struct dist_target *x)
{
    return x->t->options.optim_format == OPTIM_not_distributed;
}

/* Whether the parameter's optimizer keeps masters as if it were not
 * distributed: none is, or it is the run's of a split one. */
static bool has_own_master(const struct dist_target *x, const struct megatron_part *p)
{
    return is_not_distributed(x) || training_target_is_split_off(x->t, p->tensor->name);
}

/* Whether a native tensor is the master of an F32 weight, which is its own
 * master. */
static bool is_weight_itself(const struct dist_target *x, const struct megatron_part *p)
{
    const char *state;
    size_t length;
    if (!p->native->state || strcmp(p->native->state, master_state)) return false;
    const char *name = name_of_state(p->tensor->name, &state, &length);
    const struct tensor *weight = catalog_find(&x->t->source->catalog, name);
    return weight && dtype_bytes(target_dtype(x->t, weight)) >= dtype_bytes(DT_F32);
}

/* The parameter's optimizer in a chain; -1: a single one, or keys do not say
 * it. */
static int chained_optimizer(const struct dist_target *x, const struct megatron_part *p)
{
    if (!is_flattened(x, p->native) || !buckets_split_experts(&x->t->layout, false)) return -1;
    return param_of_expert(p->param.spec);
}

/* Index of a part's key in x->keys and x->of_keys. native: its output, which may
 * be flattened. */
static size_t index_of_key(struct dist_target *x, const struct megatron_part *p,
                           const struct native_output *native)
{
    struct arena *a = &x->t->plan.arena;
    const char *name = native->name;
    if (native->state)
        name = dist_state_key(a, native->state, native->name,
                              is_flattened(x, native) || has_own_master(x, p),
                              chained_optimizer(x, p));
    size_t at = out_tensors_add(&x->keys, a, name, native);
    if (at == x->num_of_keys) (void)ARENA_PUSH(a, x->of_keys, x->num_of_keys, x->of_keys_capacity);
    return at;
}

/* ---- chunks ---- */

static const struct chunk_kind *kind_of_chunk(struct dist_target *x, size_t key,
                                              const uint64_t *sizes)
{
    const struct out_tensor *k = &x->keys.items[key];
    struct chunk_kind **first = &x->of_keys[key].kinds, *kind = *first;
    while (kind && memcmp(kind->sizes, sizes, k->num_dims * sizeof *sizes))
        kind = kind->next;
    if (kind) return kind;
    kind = arena_alloc(&x->t->plan.arena, sizeof *kind);
    kind->key = key;
    kind->sizes = arena_copy(&x->t->plan.arena, sizes, k->num_dims * sizeof *sizes);
    torch_item_layout(&kind->archive, k->dtype, k->num_dims, sizes);
    kind->next = *first;
    return *first = kind;
}

static uint64_t flat_in_key(const struct out_tensor *k, const uint64_t *at)
{
    uint64_t flat = 0;
    for (unsigned d = 0; d < k->num_dims; d++)
        flat = flat * k->shape[d] + at[d];
    return flat;
}

static void place_in_key(const struct out_tensor *k, uint64_t flat, uint64_t *at)
{
    for (unsigned d = k->num_dims; d-- > 0;) {
        const uint64_t size = k->shape[d] ? k->shape[d] : 1;
        at[d] = flat % size;
        flat /= size;
    }
}

/* Adds a chunk at the end of a file, and its segment. */
static uint32_t add_item(struct dist_target *x, uint32_t file, size_t key,
                         const struct key_box *box, uint64_t numel)
{
    struct plan *plan = &x->t->plan;
    struct out_tensor *k = &x->keys.items[key];
    const struct chunk_kind *kind = kind_of_chunk(x, key, box->sizes);
    const uint32_t segment = plan_add_segment(plan, file, k->dtype, numel, true);
    *ARENA_PUSH(&plan->arena, x->chunks, x->num_chunks, x->chunks_capacity) =
        (struct chunk){kind, flat_in_key(k, box->offsets)};
    x->of_keys[key].count++;
    plan->segments[segment].offset_bytes = plan->files[file].size_bytes + kind->archive.data_offset;
    plan->files[file].size_bytes += kind->archive.total_bytes;
    k->filled += numel;
    return segment;
}

static enum status check_key(const struct megatron_part *p, const struct out_tensor *k,
                             struct error *err)
{
    if (k->dtype != p->native->dtype)
        return fail(err, ERR_UNSUPPORTED,
                    "%s has dtype %s, but other parts of its stacked tensor %s have %s; "
                    "--torch-dtype casts them",
                    p->tensor->name, dtype_infos[p->native->dtype].name, k->name,
                    dtype_infos[k->dtype].name);
    if (k->num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s: %u dimensions", p->tensor->name, p->num_dims);
    return OK;
}

/* The box of a part in its key: one step along each leading axis. */
static void box_in_key(struct dist_target *x, const struct megatron_part *p, unsigned part,
                       struct key_box *box)
{
    uint64_t lead_sizes[MAX_LEAD];
    unsigned lead =
        dist_key_lead(&x->t->source->config, &p->param, x->stacks, lead_sizes, box->offsets);
    for (unsigned d = 0; d < lead; d++)
        box->sizes[d] = 1;
    memcpy(box->offsets + lead, p->parts->start[part], p->num_dims * sizeof *box->offsets);
    memcpy(box->sizes + lead, p->parts->extent[part], p->num_dims * sizeof *box->sizes);
}

/* Flattens a key to a shape, and a chunk's box in it: every box must be a
 * fragment of one size. */
static enum status flatten_key(const struct megatron_part *p, struct native_output *native,
                               uint64_t shape[MAX_KEY_DIMS], struct key_box *box, struct error *err)
{
    const unsigned n = native->num_dims;
    uint64_t numel = 1;
    if (n + 1 > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s: %u dimensions", p->tensor->name, n + 1);
    for (unsigned d = 0; d < n; d++) {
        const uint64_t size = box->sizes[d];
        if (!size || native->shape[d] % size || box->offsets[d] % size)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: fully_sharded_model_space requires shards of equal size",
                        p->tensor->name);
        shape[d] = native->shape[d] / size;
        box->offsets[d] /= size;
        box->sizes[d] = 1;
        numel *= size;
    }
    shape[n] = box->sizes[n] = numel;
    box->offsets[n] = 0;
    native->shape = shape;
    native->num_dims = n + 1;
    return OK;
}

/* The sizes of a parameter's sections, of which only the proportions are
 * known. */
static void section_sizes(const struct param_spec *s, uint64_t whole, uint64_t *sizes)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < s->num_sections; i++)
        sum += s->even ? 1 : s->sections[i].size;
    for (unsigned i = 0; i < s->num_sections; i++)
        sizes[i] = sum ? whole / sum * (s->even ? 1 : s->sections[i].size) : 0;
}

/* Splits boxes in the whole (not the pairs) into sections, which a single rank
 * holds as one part: Megatron stores those with keys of their own separately,
 * and flattens gate and up separately
 * (transformer/mlp.py:apply_swiglu_sharded_factory). */
static void split_sections(const struct param_spec *s, struct param_parts *parts)
{
    const unsigned count = s->num_sections;
    uint64_t sizes[MAX_SECTIONS], start = 0;
    if (parts->count != 1 || s->split < 0 || s->repeat != 1 || count < 2) return;
    if (!s->even && !s->apart) return;
    section_sizes(s, parts->extent[0][s->split], sizes);
    for (unsigned i = 0; i < count; i++) {
        memcpy(parts->start[i], parts->start[0], sizeof parts->start[0]);
        memcpy(parts->extent[i], parts->extent[0], sizeof parts->extent[0]);
        parts->start[i][s->split] += start;
        parts->extent[i][s->split] = sizes[i];
        start += sizes[i];
    }
    parts->count = count;
}

/* Makes section `part` of a parameter, and a box of it, those of a key of its
 * own, NAME.SECTION (ssm/mamba_mixer.py, ssm/gated_delta_net.py:
 * _split_tensor_factory). */
static void use_section(struct arena *a, const struct megatron_part *p, unsigned part,
                        struct native_output *native, uint64_t *offsets)
{
    const struct param_spec *s = p->param.spec;
    const unsigned d = native->num_dims - p->num_dims; /* sections split dimension 0 */
    uint64_t sizes[MAX_SECTIONS], *shape;
    shape = arena_copy(a, native->shape, native->num_dims * sizeof *shape);
    section_sizes(s, shape[d], sizes);
    for (unsigned i = 0; i < part; i++)
        offsets[d] -= sizes[i];
    shape[d] = sizes[part];
    native->shape = shape;
    native->name = arena_printf(a, "%s.%s", native->name, s->sections[part].name);
}

static enum status add_chunk(struct dist_target *x, const struct megatron_part *p, unsigned part,
                             uint32_t file, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    struct native_output native = *p->native;
    struct pair pair; /* here each box is a separate tensor */
    struct key_box box;
    uint64_t flat_shape[MAX_KEY_DIMS];
    box_in_key(x, p, part, &box);
    if (!pair_of_box(&pair, native.num_dims, native.shape, box.offsets, box.sizes, 0, NULL))
        return fail(err, ERR_OURS, "%s: a shard is not a view", p->tensor->name);
    if (p->param.spec->apart) use_section(a, p, part, &native, box.offsets);
    const struct native_output whole = native;
    if (is_flattened(x, &native)) TRY(flatten_key(p, &native, flat_shape, &box, err));
    const size_t key = index_of_key(x, p, &native);
    struct key_chunks *chunks = &x->of_keys[key];
    TRY(check_key(p, &x->keys.items[key], err));
    if (is_flattened(x, &native) && !chunks->original_shape) {
        chunks->original_shape = arena_copy(a, whole.shape, whole.num_dims * sizeof *whole.shape);
        chunks->num_original_dims = whole.num_dims;
    }
    return target_fill(x->t, p->native, &pair, add_item(x, file, key, &box, pair_count(&pair)),
                       err);
}

static enum status add_dist_part(void *context, const struct megatron_part *p, struct error *err)
{
    struct dist_target *x = context;
    const struct layout *l = &x->t->layout;
    if (has_own_master(x, p) && is_weight_itself(x, p)) return OK;
    uint64_t rank = p->pp_rank * layout_stage_ranks(l) + megatron_stage_rank(l, p);
    const uint32_t file = file_of_rank(x, rank);
    struct param_parts parts = *p->parts;
    struct megatron_part split = *p;
    split.parts = &parts;
    if (is_flattened(x, p->native) || p->param.spec->apart) split_sections(p->param.spec, &parts);
    for (unsigned i = 0; i < parts.count; i++)
        TRY(add_chunk(x, &split, i, file, err));
    return OK;
}

/* ---- objects ---- */

static enum status none_archive(struct dist_target *x, struct error *err)
{
    struct arena a;
    arena_init(&a);
    struct value *none = value_none(&a), *list = value_list(&a, VALUE_LIST, 1, &none);
    enum status st = torch_to_bytes(&x->none_item, "archive", list, NULL, err);
    arena_release(&a);
    return st;
}

static enum status common_archive(struct dist_target *x, struct error *err)
{
    bool object = x->t->options.common_as_object;
    struct tensor_data data = {0};
    struct value *common = megatron_common_state(x->t, !(x->stacks & STACK_LAYERS), &data);
    if (object) common = value_list(&x->t->plan.arena, VALUE_LIST, 1, &common);
    return torch_to_bytes(&x->common, object ? "archive" : "common", common, data.data, err);
}

/* Bytes of the common state as an object in the first file. */
static size_t common_length(const struct dist_target *x)
{
    return x->t->options.common_as_object ? x->common.length : 0;
}

static void add_dist_object(struct dist_target *x, const char *name, uint64_t offset,
                            uint64_t length)
{
    *ARENA_PUSH(&x->t->plan.arena, x->objects, x->num_objects, x->objects_capacity) =
        (struct dcp_object){.name = name, .offset_bytes = offset, .length_bytes = length};
}

static const uint64_t MAX_RNG_BYTES = 1 << 20; /* each generator's state is some kilobytes */

/* Copies the source's random number generator states after the first file's
 * other objects. */
static enum status copy_rng(struct dist_target *x, uint64_t offset, struct error *err)
{
    const struct stored *s = &x->t->source->catalog.stored;
    struct stored_reader *r = stored_reader_create(s, 1);
    enum status st = OK;
    for (size_t i = 0; i < s->num_objects && !st; i++) {
        const struct stored_object *o = &s->objects[i];
        if (!training_object_is_rng(o->name)) continue;
        if (o->size_bytes > MAX_RNG_BYTES) {
            st = fail(err, ERR_UNSUPPORTED,
                      "%s: random number state %s is too large, %s; --no-optim leaves it out",
                      s->files[o->file].path, o->name, bytes_text(o->size_bytes));
            break;
        }
        char *bytes = must_calloc(o->size_bytes + 1, 1);
        st = stored_read(r, o->file, o->offset_bytes, bytes, o->size_bytes, err);
        if (!st) add_dist_object(x, o->name, offset + x->rng.length, o->size_bytes);
        strbuf_add(&x->rng, bytes, o->size_bytes);
        free(bytes);
    }
    stored_reader_free(r);
    return st;
}

static struct value *add_rng_tensor(void *list, const void *bytes, uint64_t count)
{
    struct rng_bytes *r = list;
    char key[24];
    snprintf(key, sizeof key, "%zu", r->count);
    *ARENA_PUSH(r->arena, r->data, r->count, r->capacity) = bytes;
    return value_tensor(r->arena, key, DT_U8, 1, &count);
}

/* Adds the object of a pipeline and tensor parallel rank: a list of the
 * list. */
static enum status make_rng_of(struct dist_target *x, uint64_t offset, const struct rng_place *at,
                               struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    struct rng_bytes list = {.arena = a};
    const uint64_t from = x->rng.length;
    struct value *states =
        rng_states_value(&x->t->source->training.rng, at, add_rng_tensor, &list, a);
    states = value_list(a, VALUE_LIST, 1, &states);
    TRY(torch_to_bytes(&x->rng, "archive", states, list.data, err));
    add_dist_object(x,
                    arena_printf(a, "rng_state/shard_%" PRIu64 ".%" PRIu64 "_%" PRIu64 ".%" PRIu64,
                                 at->pp_rank, at->tp_rank, l->pp, l->tp),
                    offset + from, x->rng.length - from);
    return OK;
}

static enum status make_rng(struct dist_target *x, uint64_t offset, struct error *err)
{
    const struct layout *l = &x->t->layout;
    for (uint64_t pp = 0; pp < l->pp; pp++)
        for (uint64_t tp = 0; tp < l->tp; tp++) {
            const struct rng_place at = {.pp_rank = pp, .tp_rank = tp, .etp_rank = tp % l->etp};
            TRY(make_rng_of(x, offset, &at, err));
        }
    return OK;
}

/* Puts objects' archives at the beginning of the first file. */
static enum status begin_first_file(struct dist_target *x, struct error *err)
{
    TRY(none_archive(x, err));
    TRY(common_archive(x, err));
    const uint32_t first = file_of_rank(x, 0);
    const uint64_t end = x->none_item.length + common_length(x);
    if (x->t->outcomes[TRAINING_RNG].outcome == OUTCOME_COPIED) TRY(copy_rng(x, end, err));
    if (x->t->outcomes[TRAINING_RNG].outcome == OUTCOME_MADE) TRY(make_rng(x, end, err));
    x->t->plan.files[first].size_bytes = end + x->rng.length;
    return OK;
}

/* Adds the object MODULE._extra_state/shard_PLACE_SIZES; the place is the
 * layer's (and expert's) in a stack
 * (transformer/utils.py:_get_extra_state_offsets). */
static void add_extra_state(struct dist_target *x, const struct param *p, const char *module)
{
    struct arena *a = &x->t->plan.arena;
    uint64_t sizes[MAX_LEAD], at[MAX_LEAD];
    unsigned lead = dist_key_lead(&x->t->source->config, p, x->stacks, sizes, at);
    const char *shard = "0_1";
    if (lead == 1) shard = arena_printf(a, "%" PRIu64 "_%" PRIu64, at[0], sizes[0]);
    if (lead == 2)
        shard = arena_printf(a, "%" PRIu64 ".%" PRIu64 "_%" PRIu64 ".%" PRIu64, at[0], at[1],
                             sizes[0], sizes[1]);
    add_dist_object(x, arena_printf(a, "%s._extra_state/shard_%s", module, shard), 0,
                    x->none_item.length);
}

static bool is_norm_module(const char *module)
{
    const char *last = strrchr(module, '.');
    return last && strstr(last, "norm");
}

/* Adds extra states of all releases, since a missing one stops a release that
 * asks for it and others are ignored. Linear layers have one in each release,
 * norms in TE 2, core_attention up to 0.14. */
static void add_extra_states(struct dist_target *x)
{
    struct arena names; /* of one parameter */
    size_t count;
    const struct tensor **all = megatron_parameters(x->t, &count);
    for (size_t i = 0; i < count; i++) {
        struct param p;
        if (!param_find(x->t->source->params, all[i]->name, &p)) continue;
        arena_init(&names);
        const char *key = megatron_key(x->t, &names, &p, x->stacks);
        const char *module = module_of(&names, key);
        if (p.spec->linear || (is_norm_module(module) && strcmp(strrchr(key, '.'), ".weight") == 0))
            add_extra_state(x, &p, module);
        if (strcmp(p.rest, "self_attention.linear_proj.weight") == 0)
            add_extra_state(x, &p,
                            arena_printf(&names, "%s.core_attention", module_of(&names, module)));
        arena_release(&names);
    }
    if (x->t->hybrid)
        add_dist_object(x, "output_layer._extra_state/shard_0_1", 0, x->none_item.length);
    if (common_length(x))
        add_dist_object(x, "common_state/shard_0_1", x->none_item.length, common_length(x));
}

/* ---- writing ---- */

/* A file's items, which the caller frees. */
static struct dcp_item *items_of_file(const struct dist_target *x, const struct plan *plan,
                                      const struct output_file *f)
{
    struct dcp_item *items = must_calloc(f->num_segments + 1, sizeof *items);
    for (size_t i = 0; i < f->num_segments; i++) {
        const uint32_t segment = plan->by_file[f->first_segment + i];
        const struct chunk_kind *kind = x->chunks[segment].kind;
        const struct out_tensor *k = &x->keys.items[kind->key];
        items[i] = (struct dcp_item){segment, k->dtype, k->num_dims, kind->sizes};
    }
    return items;
}

static enum status emit_file(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    const struct dist_target *x = context;
    const struct output_file *f = &plan->files[file];
    struct dcp_item *items = items_of_file(x, plan, f);
    struct strbuf first = {0};
    if (file == 0) {
        strbuf_add(&first, x->none_item.data, x->none_item.length);
        strbuf_add(&first, x->common.data, common_length(x));
        strbuf_add(&first, x->rng.data, x->rng.length);
    }
    enum status st = dcp_items_emit(plan, items, f->num_segments, &first, writer, err);
    strbuf_release(&first);
    free(items);
    return st;
}

/* A key's chunks: numbers in dist_target.chunks. */
struct chunk_list {
    const struct dist_target *x;
    const uint32_t *numbers;
    uint64_t *offsets; /* of the last chunk given */
};

static void get_chunk(const void *context, size_t number, struct dcp_chunk *out)
{
    const struct chunk_list *list = context;
    const uint32_t chunk = list->numbers[number];
    const struct chunk_kind *kind = list->x->chunks[chunk].kind;
    const struct segment *s = &list->x->t->plan.segments[chunk];
    place_in_key(&list->x->keys.items[kind->key], list->x->chunks[chunk].first, list->offsets);
    *out =
        (struct dcp_chunk){list->offsets, kind->sizes, s->file,
                           s->offset_bytes - kind->archive.data_offset, kind->archive.total_bytes};
}

/* Each key's chunks, in the order of adding. */
static struct chunk_list *list_chunks(const struct dist_target *x)
{
    struct arena *a = &x->t->plan.arena;
    struct chunk_list *lists = arena_array(a, x->keys.count, sizeof *lists);
    uint32_t **ends = arena_array(a, x->keys.count, sizeof *ends),
             *all = arena_array(a, x->num_chunks, sizeof *all);
    uint64_t *offsets = arena_array(a, MAX_KEY_DIMS, sizeof *offsets);
    for (size_t i = 0; i < x->keys.count; all += x->of_keys[i++].count) {
        ends[i] = all;
        lists[i] = (struct chunk_list){x, all, offsets};
    }
    for (size_t i = 0; i < x->num_chunks; i++)
        *ends[x->chunks[i].kind->key]++ = (uint32_t)i;
    return lists;
}

static enum status write_metadata(struct dist_target *x, const char *folder, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const char **paths = arena_array(a, x->num_files, sizeof *paths);
    struct dcp_tensor *tensors = arena_array(a, x->keys.count, sizeof *tensors);
    const struct chunk_list *lists = list_chunks(x);
    add_extra_states(x);
    for (size_t i = 0; i < x->num_files; i++)
        paths[i] = x->t->plan.files[i].path;
    for (size_t i = 0; i < x->keys.count; i++) {
        const struct out_tensor *k = &x->keys.items[i];
        tensors[i] = (struct dcp_tensor){.name = k->name,
                                         .dtype = k->dtype,
                                         .num_dims = k->num_dims,
                                         .shape = k->shape,
                                         .num_chunks = x->of_keys[i].count,
                                         .get_chunk = get_chunk,
                                         .chunk_context = &lists[i],
                                         .original_shape = x->of_keys[i].original_shape,
                                         .num_original_dims = x->of_keys[i].num_original_dims};
    }
    return dcp_write_metadata(path_join(a, folder, ".metadata"), paths, tensors, x->keys.count,
                              x->objects, x->num_objects, x->t->options.durable, err);
}

static enum status write_dist_files(struct target *t, const char *folder, struct error *err)
{
    static const char mark[] =
        "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1}";
    struct dist_target *x = t->state;
    struct arena *a = &t->plan.arena;
    if (!t->options.common_as_object)
        TRY(file_write_all(path_join(a, folder, "common.pt"), x->common.data, x->common.length,
                           t->options.durable, err));
    TRY(megatron_small_files(t, folder, err));
    TRY(write_metadata(x, folder, err));
    return file_write_all(path_join(a, folder, "metadata.json"), mark, sizeof mark - 1,
                          t->options.durable, err);
}

/* Checks that each key's chunks, which never overlap, hold all its elements:
 * Megatron would silently leave others undefined. */
static enum status check_keys(const struct dist_target *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    for (size_t i = 0; i < x->keys.count; i++) {
        const struct out_tensor *k = &x->keys.items[i];
        if (k->numel == k->filled) continue;
        return fail(err, ERR_UNSUPPORTED,
                    "%s %s: the source has %" PRIu64 " of its %" PRIu64
                    " elements; some layers or experts are missing",
                    k->name, shape_text(a, k->num_dims, k->shape), k->filled, k->numel);
    }
    return OK;
}

static enum status plan_torch_dist(struct target *t, struct error *err)
{
    struct dist_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    struct arena scratch;
    const enum optim_format f = t->options.optim_format;
    x->t = t;
    t->state = x;
    if (f == OPTIM_distributed)
        return fail(err, ERR_USAGE,
                    "--optim-format %s: torch_dist supports fully_reshardable, "
                    "fully_sharded_model_space and not_distributed",
                    optim_format_names[f]);
    TRY(megatron_begin(t, err));
    arena_init(&scratch);
    x->stacks = STACK_EXPERTS | (layers_are_alike(t, &scratch) ? STACK_LAYERS : 0);
    arena_release(&scratch);
    t->facts.per_layer_names = !(x->stacks & STACK_LAYERS);
    TRY(begin_first_file(x, err));
    TRY(megatron_each_part(t, x->stacks, add_dist_part, x, err));
    TRY(check_keys(x, err));
    for (size_t i = 0; i < x->num_files; i++) {
        t->plan.files[i].finish = emit_file;
        t->plan.files[i].finish_context = x;
    }
    t->facts.num_target_tensors = x->keys.count;
    t->facts.num_weight_files = x->num_files;
    return carried_plan(t, MEGATRON_HF_FOLDER, err);
}

static void release_torch_dist(struct target *t)
{
    struct dist_target *x = t->state;
    map_release(&x->by_rank);
    map_release(&x->keys.names);
    strbuf_release(&x->none_item);
    strbuf_release(&x->common);
    strbuf_release(&x->rng);
}

const struct target_kind target_torch_dist = {plan_torch_dist, write_dist_files,
                                              megatron_root_files, release_torch_dist};
