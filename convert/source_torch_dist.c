/* source_torch_dist.c - Megatron-Core's distributed checkpoint: a DCP folder whose keys are names
 * of parameters, layers and experts stacked or not, beside objects of everything else. */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "convert/megatron_names.h"
#include "convert/megatron_source.h"
#include "formats/dcp.h"
#include "formats/torch.h"

/* One stored tensor that is a parameter, or a stack of them. */
struct stack {
    const struct stored_tensor *stored;
    struct dist_key key;
    unsigned lead;            /* axes before the parameter's own */
    uint64_t layers, experts; /* of the stack, 1 where it has no such axis */
    const uint64_t *shape;    /* of one parameter */
    unsigned num_dims;
    uint64_t numel;
};

static enum status check_backend(struct megatron_source *m, struct error *err)
{
    const char *path = path_join(&m->c->arena, m->c->folder, "metadata.json");
    cJSON *tree;
    uint64_t version = 0;
    TRY(json_read_file(path, 1 << 20, JSON_NAN, &tree, err));
    const char *backend = json_as_text(json_get(tree, "sharded_backend"));
    (void)json_as_u64(json_get(tree, "sharded_backend_version"), &version);
    enum status st = OK;
    if (!backend)
        st = fail(err, ERR_CORRUPT, "%s: sharded_backend is missing, or not a string", path);
    else if (strcmp(backend, "zarr") == 0)
        st = fail(err, ERR_UNSUPPORTED,
                  "%s: this is a Zarr checkpoint, which NeMo 1 and older releases of Megatron-Core "
                  "write: let one of these load it and save it with --ckpt-format torch_dist",
                  m->c->folder);
    else if (strcmp(backend, "torch_dist") || version != 1)
        st = fail(err, ERR_UNSUPPORTED,
                  "%s: backend %s version %" PRIu64 "; torch_dist version 1 is known", path,
                  backend, version);
    cJSON_Delete(tree);
    return st;
}

/* The common state: common.pt, else the object of newer releases, element 0 of its list. */
static enum status read_common(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    struct torch_file t;
    struct value *object;
    const char *path = path_join(&c->arena, c->folder, "common.pt");
    if (path_exists(path)) {
        TRY(torch_open(&t, &c->catalog.stored, path, 0, UINT64_MAX, err));
        enum status st = value_copy(&c->arena, t.root, &c->common, err);
        torch_close(&t);
        return st;
    }
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++) {
        if (strcmp(c->catalog.stored.objects[i].name, "common_state/shard_0_1")) continue;
        TRY(dcp_read_object(&c->catalog.stored, &c->catalog.stored.objects[i], &c->arena, &object,
                            err));
        if (object->kind == VALUE_LIST && object->count) c->common = object->items[0];
        return OK;
    }
    checkpoint_note(c, "%s: no common state (neither common.pt nor common_state)", c->folder);
    return OK;
}

/* ---- stacks ---- */

static bool is_state(const char *name)
{
    static const char *const states[] = {"optimizer.*",
                                         "rng_state*",
                                         "rerun_state*",
                                         "*_extra_state",
                                         "common_state*",
                                         "modelopt*",
                                         "chained_[0-9]*.optimizer.*"};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (fnmatch(states[i], name, 0) == 0) return true;
    return false;
}

/* Members that have no elements cost a file nothing. */
static enum status check_members(const struct stack *k, struct error *err)
{
    enum { MOST_EMPTY_MEMBERS = 4096 };
    uint64_t members;
    if (!mul_u64(k->layers, k->experts, &members)) members = UINT64_MAX;
    if (k->numel || members <= MOST_EMPTY_MEMBERS) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: a stack of %" PRIu64 " layers and %" PRIu64 " experts without any elements",
                k->stored->name, k->layers, k->experts);
}

static enum status make_stack(struct arena *a, const struct stored_tensor *s, const char *key,
                              struct stack *out, struct error *err)
{
    *out = (struct stack){
        .stored = s, .key = dist_key_parse(a, key), .layers = 1, .experts = 1, .numel = 1};
    out->lead = out->key.stacked_layers + out->key.stacked_experts;
    if (s->num_dims < out->lead)
        return fail(err, ERR_CORRUPT,
                    "%s: %u dimensions, and %u of them should count layers and experts", s->name,
                    s->num_dims, out->lead);
    if (out->key.stacked_layers) out->layers = s->shape[0];
    if (out->key.stacked_experts) out->experts = s->shape[out->lead - 1];
    out->shape = s->shape + out->lead;
    out->num_dims = s->num_dims - out->lead;
    for (unsigned d = 0; d < out->num_dims; d++)
        out->numel *= out->shape[d];
    return check_members(out, err);
}

static void gather_evidence(const struct stack *k, struct megatron_evidence *e)
{
    uint64_t layers = k->key.stacked_layers ? k->layers : k->key.layer + 1;
    if (k->key.in_layers && layers > e->num_layers) e->num_layers = layers;
    if (k->key.of_expert) {
        uint64_t experts = k->key.stacked_experts ? k->experts : k->key.expert + 1;
        if (experts > e->experts) e->experts = experts;
    }
    evidence_add(e, k->key.rest, k->key.of_expert, k->key.half, k->num_dims, k->shape);
}

/* Which layers have a router, where each names its own. */
static void find_moe_layers(struct megatron_source *m, bool *moe)
{
    struct arena *a = &m->c->arena;
    uint64_t layers = m->c->config.num_layers;
    for (size_t i = 0; i < m->c->catalog.stored.num_tensors; i++) {
        struct dist_key k = dist_key_parse(a, m->c->catalog.stored.tensors[i].name);
        if (!k.in_layers || strcmp(k.rest, "mlp.router.weight")) continue;
        for (uint64_t l = 0; l < layers; l++)
            if (k.stacked_layers || k.layer == l) moe[l] = true;
    }
}

/* One parameter of a stack. A gated fc1 in halves (_w, _v) is the first or second half of its rows.
 */
static enum status add_member(struct megatron_source *m, const struct stack *k, const char *prefix,
                              uint64_t layer, uint64_t expert, uint64_t index, bool moe,
                              struct error *err)
{
    struct arena *a = &m->c->arena;
    uint64_t shape[MAX_AXES];
    const char *name = dist_key_logical(a, m->c->params, &k->key, layer, expert, moe);
    struct pair part = pair_whole(0, index * k->numel, k->numel);
    if (k->num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s: %u dimensions", k->stored->name, k->num_dims);
    memcpy(shape, k->shape, k->num_dims * sizeof *shape);
    if (k->key.half && k->num_dims) {
        shape[0] *= 2;
        if (k->key.half == 'v') part.a_offset = k->numel;
    }
    if (*prefix) name = arena_printf(a, "%s%s", prefix, name);
    return megatron_add(m, name, k->num_dims, shape, k->stored, &part, err);
}

static enum status add_stack(struct megatron_source *m, const struct stack *k, const char *prefix,
                             const bool *moe, struct error *err)
{
    uint64_t layers = m->c->config.num_layers;
    if (k->key.stacked_layers && k->layers != layers)
        return fail(err, ERR_UNSUPPORTED, "%s stacks %" PRIu64 " layers; the model has %" PRIu64,
                    k->stored->name, k->layers, layers);
    if (k->key.in_layers && !k->key.stacked_layers && k->key.layer >= layers) {
        gaps_add_unexpected(&m->c->gaps, &m->c->arena, k->stored->name);
        return OK;
    }
    uint64_t experts = k->key.stacked_experts ? k->experts : k->key.expert + 1;
    if (k->key.of_expert && (k->key.stacked_experts ? experts != m->c->config.num_experts
                                                    : experts > m->c->config.num_experts))
        return fail(err, ERR_UNSUPPORTED,
                    "%s holds %" PRIu64
                    " experts; by its args or config.json the model has %" PRIu64,
                    k->stored->name, experts, m->c->config.num_experts);
    for (uint64_t l = 0; l < k->layers; l++)
        for (uint64_t e = 0; e < k->experts; e++) {
            uint64_t layer = k->key.stacked_layers ? l : k->key.layer;
            uint64_t expert = k->key.stacked_experts ? e : k->key.expert;
            TRY(add_member(m, k, prefix, layer, expert, l * k->experts + e,
                           k->key.in_layers && moe[layer], err));
        }
    m->c->num_mapped++;
    return OK;
}

/* ---- the optimizer ---- */

/* Moments that have their parameter's shape become logical tensors; the prefix of ours. */
static const struct {
    const char *theirs, *ours;
} moments[] = {
    {"optimizer.state.exp_avg.", "optimizer.exp_avg."},
    {"optimizer.state.exp_avg_sq.", "optimizer.exp_avg_sq."},
    {"optimizer.state.param.", "optimizer.param."},
    {"optimizer.state.fp32_param.", "optimizer.param."},
};

static const char *optimizer_kind(struct checkpoint *c)
{
    const struct value *content = value_get(c->common, "content_metadata");
    const char *kind = value_as_text(value_get(content, "distrib_optim_sharding_type"));
    if (kind) return arena_printf(&c->arena, "distributed, %s", kind);
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        if (fnmatch("*optimizer.distributed.*", c->catalog.stored.tensors[i].name, 0) == 0)
            return "distributed, dp_reshardable";
    return "not distributed, or fully_sharded_model_space";
}

static bool is_optimizer(const char *name)
{
    return strncmp(name, "optimizer.", 10) == 0 ||
           fnmatch("chained_[0-9]*.optimizer.*", name, 0) == 0;
}

static void note_optimizer(struct checkpoint *c)
{
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        if (is_optimizer(c->catalog.stored.tensors[i].name))
            c->optimizer.size_bytes += stored_tensor_bytes(&c->catalog.stored.tensors[i]);
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++)
        if (fnmatch("*optimizer.distributed.*", c->catalog.stored.objects[i].name, 0) == 0)
            c->optimizer.size_bytes += c->catalog.stored.objects[i].size_bytes;
    c->optimizer.present = c->optimizer.size_bytes > 0;
    if (c->optimizer.present) c->optimizer.kind = optimizer_kind(c);
}

/* The dtype of moments may be any float's, and their shape must be the parameter's: flattened ones
 * (fully_sharded_model_space) are not. */
static enum status add_moment(struct megatron_source *m, const struct stored_tensor *s,
                              const bool *moe, struct error *err)
{
    struct checkpoint *c = m->c;
    if (!is_optimizer(s->name)) return OK;
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        size_t n = strlen(moments[i].theirs);
        const struct stored_tensor *parameter = NULL;
        struct stack k;
        if (strncmp(s->name, moments[i].theirs, n)) continue;
        parameter = stored_find(&c->catalog.stored, s->name + n);
        if (parameter && parameter->num_dims == s->num_dims &&
            memcmp(parameter->shape, s->shape, s->num_dims * sizeof *s->shape) == 0) {
            TRY(make_stack(&c->arena, s, s->name + n, &k, err));
            return add_stack(m, &k, moments[i].ours, moe, err);
        }
        if (!c->optimizer.unread)
            c->optimizer.unread = arena_printf(
                &c->arena, "%s is %s and its parameter is %s", s->name,
                shape_text(&c->arena, s->num_dims, s->shape),
                parameter ? shape_text(&c->arena, parameter->num_dims, parameter->shape)
                          : "not there");
        return OK;
    }
    if (!c->optimizer.unread)
        c->optimizer.unread =
            arena_printf(&c->arena, "%s is the state of an unknown parameter", s->name);
    return OK;
}

/* ---- all ---- */

static enum status add_parameters(struct megatron_source *m, const struct stack *stacks,
                                  size_t count, const bool *moe, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        struct param p;
        const struct dist_key *k = &stacks[i].key;
        const char *first =
            dist_key_logical(&m->c->arena, m->c->params, k, k->layer, k->expert, false);
        if (param_find(m->c->params, first, &p))
            TRY(add_stack(m, &stacks[i], "", moe, err));
        else
            gaps_add_unexpected(&m->c->gaps, &m->c->arena, stacks[i].stored->name);
    }
    return OK;
}

enum status megatron_open_torch_dist(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    struct megatron_evidence evidence = {0};
    TRY(check_backend(m, err));
    TRY(dcp_open(&c->catalog.stored, c->folder, true, err));
    TRY(read_common(m, err));

    struct stack *stacks = arena_array(&c->arena, c->catalog.stored.num_tensors, sizeof *stacks);
    size_t count = 0;
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++) {
        const struct stored_tensor *s = &c->catalog.stored.tensors[i];
        if (is_state(s->name)) continue;
        TRY(make_stack(&c->arena, s, s->name, &stacks[count], err));
        gather_evidence(&stacks[count++], &evidence);
    }
    TRY(megatron_describe(m, &evidence, err));
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++)
        c->num_ignored += is_state(c->catalog.stored.objects[i].name);

    bool *moe = arena_array(&c->arena, c->config.num_layers, sizeof *moe);
    find_moe_layers(m, moe);
    megatron_use_moe_layers(m, moe);
    TRY(add_parameters(m, stacks, count, moe, err));
    note_optimizer(c);
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        TRY(add_moment(m, &c->catalog.stored.tensors[i], moe, err));
    return OK;
}
