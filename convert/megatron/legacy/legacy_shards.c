/* legacy_shards.c - places ranks' shards in native tensors. */
#include <inttypes.h>
#include <string.h>

#include "convert/megatron/legacy/legacy_source.h"

uint64_t legacy_etp_rank(const struct layout *l, const struct rank *r)
{
    return r->tp % l->etp;
}

/* Pairs (our order, the version's) of the rows of query_key_value in a rank's
 * tensor: n heads of d rows, 3 tensors, `columns` elements a row. */
static struct pair qkv_order(double version, uint64_t heads, uint64_t d, uint64_t columns)
{
    uint64_t head = 3 * d * columns, third = d * columns;
    struct pair p = {.num_axes = 3};
    if (version < 1) { /* [3, heads, d] */
        p.axes[0] = (struct axis){heads, head, third};
        p.axes[1] = (struct axis){3, third, heads * third};
        p.axes[2] = (struct axis){d * columns, 1, 1};
        return p;
    }
    p.num_axes = 4; /* [heads, d, 3] */
    p.axes[0] = (struct axis){heads, head, head};
    p.axes[1] = (struct axis){3, third, columns};
    p.axes[2] = (struct axis){d, columns, 3 * columns};
    p.axes[3] = (struct axis){columns, 1, 1};
    return p;
}

struct placing {
    struct catalog *c;
    struct native_tensor *native;
    const struct stored_tensor *stored;
};

static enum status add_reordered(void *context, const struct pair *p, struct error *err)
{
    const struct placing *x = context;
    return catalog_add_native_part(x->c, x->native, x->stored, p, err);
}

/* Adds a shard's part of a parameter: joins (whole, local) with (local,
 * stored). */
static enum status add_shard_part(struct placing *to, const struct pair *part,
                                  const struct pair *order, struct error *err)
{
    struct pair by_local = *part;
    TRY(pair_turn(&by_local, to->native->name, err));
    if (!pair_count(&by_local)) return add_reordered(to, part, err); /* adds the name only */
    return pair_join(&by_local, order, to->native->name, add_reordered, to, err);
}

/* Records a weight's place in its storage, which may be a distributed
 * optimizer's buffer. */
static void add_weight_place(struct legacy *x, const struct shard *s, const char *name,
                             const struct param *p)
{
    const struct layout *l = &x->m->c->layout;
    const unsigned chained = buckets_split_experts(l, true) ? 2 : 1;
    const unsigned optimizer = chained > 1 && p->spec && param_of_expert(p->spec);
    const struct bucket_cell cell =
        flat_cell_of_rank(l, s->rank->tp, s->rank->pp, s->rank->ep, optimizer, chained);
    flat_states_add_weight(&x->flat, x->m->c, name, &cell, s->storage, s->offset);
}

/* Adds a rank's shard to the native tensor `name`, a parameter. local_shape:
 * the shard's; order: its elements in the stored tensor. Of ranks with the
 * same elements, uses the first. */
static enum status add_param_shard(struct legacy *x, const struct shard *s, const char *name,
                                   unsigned num_dims, const uint64_t *local_shape,
                                   const struct pair *order, struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct layout *l = &c->layout;
    const struct stored_tensor *stored = &c->catalog.stored.tensors[s->stored];
    struct param p;
    struct param_parts parts;
    uint64_t shape[MAX_AXES];
    if (!param_find(c->params, name, &p)) {
        gaps_add_unexpected(&c->gaps, &c->arena, stored->name);
        return OK;
    }
    bool by_etp = p.spec->group == PARAM_ETP;
    uint64_t ranks = by_etp ? l->etp : l->tp;
    uint64_t rank = by_etp ? legacy_etp_rank(l, s->rank) : s->rank->tp;
    const char *key = arena_printf(&c->arena, "%s:%s:%" PRIu64, s->state ? s->state : "", name,
                                   p.spec->split < 0 ? 0 : rank);
    size_t first = s->stored;
    if (!s->state) add_weight_place(x, s, name, &p);
    if (!map_add(&x->seen, key, s->stored, &first)) {
        if (p.spec->split < 0 && !s->state)
            *ARENA_PUSH(&c->arena, x->copies, x->num_copies, x->copies_capacity) =
                (struct copy){s->stored, first};
        return OK;
    }
    TRY(param_whole_shape(p.spec, stored->name, num_dims, local_shape, ranks, shape, err));
    TRY(param_shard(p.spec, name, num_dims, shape, rank, ranks, PARAM_STORED, &parts, err));
    struct placing to = {.c = &c->catalog, .stored = stored};
    TRY(catalog_add_native(to.c, name, s->state, stored->dtype, num_dims, shape, &to.native, err));
    for (unsigned i = 0; i < parts.count; i++)
        TRY(add_shard_part(&to, &parts.pairs[i], order, err));
    return OK;
}

/* Adds GroupedMLP's experts, one tensor, in memory [experts, hidden, rows] or
 * [experts, columns, hidden], whatever its shape. So each is the transpose of a
 * sequential expert's tensor. */
static enum status add_grouped(struct legacy *x, const struct shard *s, uint64_t layer,
                               struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct stored_tensor *t = &c->catalog.stored.tensors[s->stored];
    bool fc1 = s->name.kind == MEMORY_GROUPED_FC1;
    uint64_t experts = x->experts_a_rank, hidden = c->config.hidden_size, n = stored_numel(t);
    if (!experts)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its args lack the number of experts; --hf-config DIR gives it", t->name);
    if (!hidden || n % (experts * hidden))
        return fail(err, ERR_CORRUPT,
                    "%s: %" PRIu64 " elements for %" PRIu64 " experts of hidden size %" PRIu64,
                    t->name, n, experts, hidden);
    uint64_t other = n / experts / hidden, shape[2] = {fc1 ? other : hidden, fc1 ? hidden : other};
    for (uint64_t e = 0; e < experts; e++) {
        struct pair order = {.num_axes = 2, .b_offset = e * hidden * other};
        order.axes[0] = (struct axis){shape[0], shape[1], 1};
        order.axes[1] = (struct axis){shape[1], 1, shape[0]};
        const char *name = memory_name_logical(&c->arena, c->params, &s->name, layer,
                                               s->rank->ep * experts + e, true);
        TRY(add_param_shard(x, s, name, 2, shape, &order, err));
    }
    return OK;
}

enum status legacy_global_layer(const struct legacy *x, const struct shard *s, uint64_t *layer,
                                struct error *err)
{
    const struct layout *l = &x->m->c->layout;
    const struct stage *stage = s->chunk < l->vpp ? layout_stage(l, s->chunk, s->rank->pp) : NULL;
    if (x->m->hybrid && s->name.layer < x->m->c->config.num_layers) {
        *layer = s->name.layer;
        return OK;
    }
    if (stage && !x->m->hybrid && s->name.layer < stage->num_layers) {
        *layer = stage->first_layer + s->name.layer;
        return OK;
    }
    return fail(err, ERR_CORRUPT, "%s: its args give %s %" PRIu64 " layers",
                x->m->c->catalog.stored.tensors[s->stored].name,
                x->m->hybrid ? "the model" : "this stage",
                x->m->hybrid ? x->m->c->config.num_layers
                : stage      ? stage->num_layers
                             : 0);
}

static const char embedding_name[] = "embedding.word_embeddings.weight";

/* Whether a shard is a copy of the embedding on the last stage, if that is not
 * the first: as a tied model's head, or for layers of multi-token prediction. */
static bool is_tied_copy(const struct legacy *x, const struct shard *s)
{
    const struct layout *l = &x->m->c->layout;
    const struct model_config *c = &x->m->c->config;
    const bool head =
        strcmp(s->name.rest, "output_layer.weight") == 0 && !c->untie_embeddings_and_output_weights;
    const bool of_mtp = strcmp(s->name.rest, embedding_name) == 0 && model_mtp_layers(c);
    return (head || of_mtp) && s->chunk < l->vpp &&
           !layout_stage(l, s->chunk, s->rank->pp)->embedding;
}

static const struct shard *embedding_of(const struct legacy *x, uint64_t tp)
{
    for (size_t i = 0; i < x->num_shards; i++)
        if (x->shards[i].rank->tp == tp && strcmp(x->shards[i].name.rest, embedding_name) == 0 &&
            !is_tied_copy(x, &x->shards[i]))
            return &x->shards[i];
    return NULL;
}

/* Checks that copies of the embedding on the last stage equal that on the first:
 * otherwise they were trained separately, and one would be lost. */
enum status legacy_check_tied(struct legacy *x, struct error *err)
{
    struct checkpoint *c = x->m->c;
    for (size_t i = 0; i < x->num_shards; i++) {
        const struct shard *s = &x->shards[i], *embedding = embedding_of(x, s->rank->tp);
        bool same = true;
        uint64_t at;
        if (s->state || !is_tied_copy(x, s) || !embedding) continue;
        const struct stored_tensor *head = &c->catalog.stored.tensors[s->stored],
                                   *first = &c->catalog.stored.tensors[embedding->stored];
        TRY(source_same_stored(c, head, first, &same, &at, err));
        if (!same)
            return fail(err, ERR_UNSUPPORTED,
                        "%s and %s differ at element %" PRIu64 ", but its args tie them (%s)",
                        head->name, first->name, at,
                        strcmp(s->name.rest, embedding_name) ? "untie_embeddings_and_output_weights"
                                                             : "mtp_num_layers");
    }
    return OK;
}

enum status legacy_add_native(struct legacy *x, const struct shard *s, const bool *moe,
                              struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct stored_tensor *t = &c->catalog.stored.tensors[s->stored];
    uint64_t layer = 0, expert = s->name.expert + s->rank->ep * x->experts_a_rank;
    if (s->name.kind == MEMORY_UNKNOWN) {
        gaps_add_unexpected(&c->gaps, &c->arena, t->name);
        return OK;
    }
    if (s->name.in_layers) TRY(legacy_global_layer(x, s, &layer, err));
    if (s->name.in_mtp) layer = s->name.layer;
    if (is_tied_copy(x, s)) {
        const struct param none = {0};
        if (!s->state) add_weight_place(x, s, s->name.rest, &none);
        return OK;
    }
    if (s->name.kind != MEMORY_PARAM) return add_grouped(x, s, layer, err);
    struct pair order = pair_whole(0, 0, stored_numel(t));
    if (s->name.fused_qkv && x->version < 2) {
        const uint64_t d = c->config.kv_channels, rows = t->num_dims ? t->shape[0] : 1,
                       columns = t->num_dims > 1 ? t->shape[1] : 1;
        if (c->config.num_query_groups != c->config.num_attention_heads || !d || rows % (3 * d))
            return fail(
                err, ERR_UNSUPPORTED,
                "%s: checkpoint_version %g is not supported with grouped queries or %" PRIu64
                " rows",
                t->name, x->version, rows);
        order = qkv_order(x->version, rows / (3 * d), d, columns);
    }
    const bool is_moe =
        s->name.in_layers ? moe[layer] : s->name.in_mtp && moe[c->config.num_layers - 1];
    const char *name = memory_name_logical(&c->arena, c->params, &s->name, layer, expert, is_moe);
    return add_param_shard(x, s, name, t->num_dims, t->shape, &order, err);
}
