/* buckets.c - places a cell's parameters in three steps: collects and sorts
 * them by registration; makes a buffer of each dtype of a chunk, in reverse
 * order; cuts each buffer into buckets. */
#include "convert/megatron/optim/buckets.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"

enum { PARAM_ALIGNMENT = 64, BUCKET_ALIGNMENT = 128, BANDWIDTH_ALIGNMENT = 1 << 16 };

/* A parameter of the cell, with its place in the order of registration. */
struct member {
    const struct trained_param *of;
    enum param_copy copy;
    uint64_t chunk;
};

struct placing {
    const struct layout *layout;
    const struct model_config *config;
    const struct bucket_rules *rules;
    const struct bucket_cell *cell;
    const struct bucket_sizes *known; /* NULL: by the rules */
    size_t num_known;
    uint64_t bucket_divisor;
    struct arena *a;
    struct error *err;
    struct member *members; /* in the order of registration */
    size_t num_members, members_capacity;
    struct param_buffer *buffers;
    size_t num_buffers, buffers_capacity;
};

/* ---- the parameters of a cell ---- */

static bool is_embedding(const struct trained_param *p)
{
    return strcmp(p->param.spec->name, "embedding.word_embeddings.weight") == 0;
}

static bool is_tied_embedding(const struct placing *x, const struct trained_param *p)
{
    return !x->config->untie_embeddings_and_output_weights && is_embedding(p);
}

bool buckets_split_experts(const struct layout *l, bool apart_by_etp)
{
    return l->ep > 1 || (apart_by_etp && l->etp != l->tp);
}

/* Whether the cell's ranks have the expert, or the dense parameter. */
static bool cell_has(const struct placing *x, const struct trained_param *p)
{
    const bool of_expert = param_of_expert(p->param.spec) &&
                           buckets_split_experts(x->layout, x->rules->experts_apart_by_etp);
    if (of_expert != x->cell->experts) return false;
    return !of_expert ||
           p->param.expert / (x->config->num_experts / x->layout->ep) == x->cell->ep_rank;
}

static bool stage_has(const struct stage *s, enum param_place place, uint64_t layer)
{
    return place == PLACE_EMBEDDING ? s->embedding
           : place == PLACE_LAST
               ? s->loss
               : layer >= s->first_layer && layer - s->first_layer < s->num_layers;
}

/* Finds the cell's chunk with a parameter of this place; false: none. */
static bool find_chunk(const struct placing *x, enum param_place place, uint64_t layer,
                       uint64_t *chunk)
{
    const struct bucket_cell *c = x->cell;
    uint64_t left = c->num_chunks ? c->num_chunks : x->layout->vpp;
    for (*chunk = c->first_chunk; *chunk < x->layout->vpp && left; ++*chunk, left--)
        if (stage_has(layout_stage(x->layout, *chunk, c->pp_rank), place, layer)) return true;
    return false;
}

static struct param_registered registration_of(const struct placing *x,
                                               const struct trained_param *p)
{
    return p->param.spec->registered[x->rules->transformer_engine ? ORDER_TE : ORDER_LOCAL];
}

static enum status check_order(const struct placing *x, const struct trained_param *p)
{
    const struct param_spec *s = p->param.spec;
    if (!registration_of(x, p).module)
        return fail(x->err, ERR_UNSUPPORTED,
                    "%s: %s, so its place in the optimizer's flat buffers is unknown", p->name,
                    s->buffer ? "it is never trained" : "its order of registration is unknown");
    if (param_of_expert(s) && x->rules->grouped_gemm && !x->rules->transformer_engine)
        return fail(x->err, ERR_UNSUPPORTED,
                    "%s: moments of the local spec's grouped experts, one parameter of several "
                    "experts, cannot be read from flat buffers",
                    p->name);
    return OK;
}

static void add_member(struct placing *x, const struct trained_param *p, uint64_t chunk,
                       enum param_copy copy)
{
    *ARENA_PUSH(x->a, x->members, x->num_members, x->members_capacity) =
        (struct member){.of = p, .copy = copy, .chunk = chunk};
}

static enum status check_numbers(const struct placing *x, const struct trained_param *p)
{
    const struct model_config *c = x->config;
    if (p->param.spec->place == PLACE_LAYER && p->param.layer >= c->num_layers)
        return fail(x->err, ERR_CORRUPT, "%s: the model has %" PRIu64 " layers", p->name,
                    c->num_layers);
    if (param_of_expert(p->param.spec) &&
        (p->param.expert >= c->num_experts || x->layout->ep > c->num_experts))
        return fail(x->err, ERR_CORRUPT, "%s: the model has %" PRIu64 " experts", p->name,
                    c->num_experts);
    return OK;
}

static enum status add_cell_param(struct placing *x, const struct trained_param *p)
{
    const struct param_spec *s = p->param.spec;
    uint64_t chunk;
    TRY(check_numbers(x, p));
    if (!cell_has(x, p)) return OK;
    if (find_chunk(x, s->place, p->param.layer, &chunk)) {
        TRY(check_order(x, p));
        add_member(x, p, chunk, NO_COPY);
    }
    if (x->layout->pp == 1 || s->place != PLACE_EMBEDDING || !find_chunk(x, PLACE_LAST, 0, &chunk))
        return OK;
    if (model_mtp_layers(x->config)) add_member(x, p, chunk, COPY_FOR_MTP);
    if (is_tied_embedding(x, p)) add_member(x, p, chunk, COPY_AS_HEAD);
    return OK;
}

/* ---- the order of registration ---- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* A model registers a tied head last. */
static int by_registration(const void *a, const void *b, void *rules)
{
    const struct member *x = a, *y = b;
    const struct bucket_rules *r = rules;
    const bool x_is_head = x->copy == COPY_AS_HEAD, y_is_head = y->copy == COPY_AS_HEAD;
    if (x->chunk != y->chunk) return compare_u64(x->chunk, y->chunk);
    if (x_is_head != y_is_head) return x_is_head - y_is_head;
    return param_registered_compare(&x->of->param, &y->of->param,
                                    r->transformer_engine ? ORDER_TE : ORDER_LOCAL,
                                    r->grouped_gemm);
}

static enum status sort_members(struct placing *x)
{
    struct bucket_rules rules = *x->rules;
    if (x->num_members)
        qsort_r(x->members, x->num_members, sizeof *x->members, by_registration, &rules);
    for (size_t i = 1; i < x->num_members; i++)
        if (by_registration(&x->members[i - 1], &x->members[i], &rules) == 0)
            return fail(x->err, ERR_CORRUPT, "%s and %s name the same parameter",
                        x->members[i - 1].of->name, x->members[i].of->name);
    return OK;
}

/* ---- buffers ---- */

/* Counts the elements of a rank's shard, equal on all ranks. */
static enum status count_elements(const struct placing *x, const struct trained_param *p,
                                  uint64_t *numel)
{
    const struct param_spec *s = p->param.spec;
    const uint64_t size = s->group == PARAM_ETP ? x->layout->etp : x->layout->tp;
    struct param_parts parts;
    if (!shape_numel(p->shape, p->num_dims, numel) || !*numel || *numel > MAX_ELEMENTS)
        return fail(x->err, ERR_CORRUPT, "%s: impossible shape", p->name);
    TRY(param_shard(s, p->name, p->num_dims, p->shape, 0, size, PARAM_STORED, &parts, x->err));
    (void)shape_numel(parts.shape, p->num_dims, numel); /* a part of the whole */
    return OK;
}

/* Adds the buffer of a dtype with `count` of the members [begin, end). */
static enum status add_buffer(struct placing *x, size_t begin, size_t end, enum dtype dtype,
                              size_t count)
{
    struct param_buffer *b = ARENA_PUSH(x->a, x->buffers, x->num_buffers, x->buffers_capacity);
    *b = (struct param_buffer){.chunk = x->members[begin].chunk, .dtype = dtype};
    b->params = arena_array(x->a, count, sizeof *b->params);
    for (size_t i = end; i-- > begin;) {
        const struct member *m = &x->members[i];
        if (m->of->dtype != dtype) continue;
        struct placed_param *p = &b->params[b->num_params++];
        *p = (struct placed_param){.of = m->of, .copy = m->copy};
        TRY(count_elements(x, m->of, &p->numel));
    }
    return OK;
}

/* Makes a chunk's buffers, dtypes in the order of their first members. */
static enum status make_buffers(struct placing *x, size_t begin, size_t end)
{
    enum dtype dtypes[NUM_DTYPES];
    size_t counts[NUM_DTYPES] = {0}, num_dtypes = 0;
    for (size_t i = begin; i < end; i++)
        if (!counts[x->members[i].of->dtype]++) dtypes[num_dtypes++] = x->members[i].of->dtype;
    for (size_t k = 0; k < num_dtypes; k++)
        TRY(add_buffer(x, begin, end, dtypes[k], counts[dtypes[k]]));
    return OK;
}

/* ---- buckets ---- */

/* A buffer being cut into buckets. */
struct cutting {
    const struct placing *x;
    struct param_buffer *b;
    size_t capacity;
    size_t in_bucket; /* parameters of the open bucket, which begins at b->numel */
    uint64_t at;      /* end of the last parameter */
};

static uint64_t round_up(uint64_t n, uint64_t divisor)
{
    return ceil_div_u64(n, divisor) * divisor;
}

static enum status too_large(const struct cutting *c)
{
    return fail(c->x->err, ERR_UNSUPPORTED, "%s: its buffer is too large",
                c->b->params[0].of->name);
}

/* Ends the open bucket at `end`, without padding. */
static enum status end_bucket(struct cutting *c, uint64_t end)
{
    struct param_buffer *b = c->b;
    const uint64_t padded = round_up(end, c->x->bucket_divisor);
    if (padded > MAX_ELEMENTS) return too_large(c);
    *ARENA_PUSH(c->x->a, b->buckets, b->num_buckets, c->capacity) =
        (struct param_bucket){.start = b->numel,
                              .numel = padded - b->numel,
                              .start_unpadded = b->numel_unpadded,
                              .numel_unpadded = end - b->numel};
    b->numel_unpadded += end - b->numel;
    b->numel = c->at = padded;
    c->in_bucket = 0;
    return OK;
}

/* Puts the parameter into the open bucket. */
static enum status place_param(struct cutting *c, struct placed_param *p)
{
    p->start = round_up(c->at, PARAM_ALIGNMENT);
    p->start_unpadded = c->b->numel_unpadded + p->start - c->b->numel;
    p->bucket = c->b->num_buckets;
    c->at = p->start + p->numel;
    c->in_bucket++;
    return c->at > MAX_ELEMENTS ? too_large(c) : OK;
}

/* Whether a parameter has a separate bucket: an embedding that the last stage
 * has, too, so that both stages split it equally over data parallel ranks. */
static bool has_own_bucket(const struct placing *x, const struct placed_param *p)
{
    return x->layout->pp > 1 && is_embedding(p->of) &&
           (is_tied_embedding(x, p->of) || model_mtp_layers(x->config));
}

static enum status cut_by_rules(struct cutting *c)
{
    const struct placing *x = c->x;
    const uint64_t limit = x->cell->pp_rank == 0 && c->b->chunk == 0 ? x->rules->bucket_size : 0;
    for (size_t i = 0; i < c->b->num_params; i++) {
        struct placed_param *p = &c->b->params[i];
        const bool own = has_own_bucket(x, p);
        if (own && c->in_bucket) TRY(end_bucket(c, round_up(c->at, PARAM_ALIGNMENT)));
        TRY(place_param(c, p));
        if (own || (limit && c->at - c->b->numel >= limit)) TRY(end_bucket(c, c->at));
    }
    return c->in_bucket ? end_bucket(c, c->at) : OK;
}

static enum status wrong_size(const struct cutting *c, const struct bucket_sizes *known,
                              const struct placed_param *last)
{
    const size_t buffer = (size_t)(c->b - c->x->buffers), bucket = c->b->num_buckets;
    return fail(c->x->err, ERR_CORRUPT,
                "buffer %zu: bucket %zu of %zu has %" PRIu64
                " elements, but its last parameter, %s, ends at %" PRIu64,
                buffer, bucket, known->count, known->numel[bucket], last->of->name,
                c->at - c->b->numel);
}

static enum status no_bucket(const struct cutting *c, const struct bucket_sizes *known,
                             const struct placed_param *p)
{
    const size_t buffer = (size_t)(c->b - c->x->buffers), bucket = c->b->num_buckets;
    if (bucket == known->count)
        return fail(c->x->err, ERR_CORRUPT,
                    "buffer %zu: its %zu buckets are too small for %s of %" PRIu64 " elements",
                    buffer, known->count, p->of->name, p->numel);
    return fail(c->x->err, ERR_CORRUPT,
                "buffer %zu: bucket %zu of %zu has %" PRIu64
                " elements, but begins with %s, which has %" PRIu64,
                buffer, bucket, known->count, known->numel[bucket], p->of->name, p->numel);
}

/* Ends the bucket whose last parameter is `last`. A bucket ended by a tied
 * embedding has a parameter's alignment after its last one. */
static enum status end_known(struct cutting *c, const struct bucket_sizes *known,
                             const struct placed_param *last, const struct placed_param *next)
{
    const uint64_t end = c->b->numel + known->numel[c->b->num_buckets];
    if (end != c->at &&
        !(next && has_own_bucket(c->x, next) && end == round_up(c->at, PARAM_ALIGNMENT)))
        return wrong_size(c, known, last);
    return end_bucket(c, end);
}

/* Whether the parameter, which begins after `at`, ends in the open bucket. */
static bool param_fits(const struct cutting *c, const struct bucket_sizes *known,
                       const struct placed_param *p)
{
    const size_t bucket = c->b->num_buckets;
    const uint64_t end = round_up(c->at, PARAM_ALIGNMENT) + p->numel;
    return bucket < known->count && end - c->b->numel <= known->numel[bucket];
}

static enum status cut_as_known(struct cutting *c, const struct bucket_sizes *known)
{
    const size_t n = c->b->num_params;
    for (size_t i = 0; i < n; i++) {
        struct placed_param *p = &c->b->params[i];
        if (c->in_bucket && !param_fits(c, known, p)) TRY(end_known(c, known, p - 1, p));
        if (!param_fits(c, known, p)) return no_bucket(c, known, p);
        TRY(place_param(c, p));
    }
    TRY(end_known(c, known, &c->b->params[n - 1], NULL));
    if (c->b->num_buckets == known->count) return OK;
    return fail(c->x->err, ERR_CORRUPT,
                "buffer %zu: %zu buckets, but the model's parameters fill %zu",
                (size_t)(c->b - c->x->buffers), known->count, c->b->num_buckets);
}

static enum status cut_buffers(struct placing *x)
{
    if (x->known && x->num_known != x->num_buffers)
        return fail(x->err, ERR_CORRUPT, "%zu flat buffers, but the parameters need %zu",
                    x->num_known, x->num_buffers);
    for (size_t i = 0; i < x->num_buffers; i++) {
        struct cutting c = {.x = x, .b = &x->buffers[i]};
        TRY(x->known ? cut_as_known(&c, &x->known[i]) : cut_by_rules(&c));
    }
    return OK;
}

/* ---- a cell ---- */

static enum status set_divisor(struct placing *x)
{
    const uint64_t dp = x->cell->experts ? x->rules->expert_dp : x->rules->dp;
    const uint64_t alignment = x->rules->high_bandwidth ? BANDWIDTH_ALIGNMENT : BUCKET_ALIGNMENT;
    const uint64_t common = dp & -dp; /* gcd with powers of two */
    if (!dp || dp > UINT32_MAX)
        return fail(x->err, ERR_UNSUPPORTED, "invalid data parallel size %" PRIu64, dp);
    x->bucket_divisor = dp / (common < alignment ? common : alignment) * alignment;
    return OK;
}

static enum status collect_members(struct placing *x, const struct trained_param *params,
                                   size_t count)
{
    for (size_t i = 0; i < count; i++)
        TRY(add_cell_param(x, &params[i]));
    return sort_members(x);
}

static enum status make_all_buffers(struct placing *x)
{
    for (size_t begin = 0, end; begin < x->num_members; begin = end) {
        for (end = begin + 1; end < x->num_members; end++)
            if (x->members[end].chunk != x->members[begin].chunk) break;
        TRY(make_buffers(x, begin, end));
    }
    return OK;
}

enum status buckets_place(const struct trained_param *params, size_t num_params,
                          const struct layout *layout, const struct model_config *config,
                          const struct bucket_rules *rules, const struct bucket_cell *cell,
                          const struct bucket_sizes *known, size_t num_known, struct arena *a,
                          struct param_buffer **out, size_t *count, struct error *err)
{
    struct arena own; /* for sorting only */
    struct placing x = {.layout = layout,
                        .config = config,
                        .rules = rules,
                        .cell = cell,
                        .known = known,
                        .num_known = num_known,
                        .a = &own,
                        .err = err};
    TRY(set_divisor(&x));
    arena_init(&own);
    enum status st = collect_members(&x, params, num_params);
    x.a = a;
    if (!st) st = make_all_buffers(&x);
    if (!st) st = cut_buffers(&x);
    arena_release(&own);
    *out = x.buffers;
    *count = x.num_buffers;
    return st;
}

/* ---- numbers of cells ---- */

bool bucket_cell_of_number(const struct layout *l, bool experts, uint64_t number,
                           struct bucket_cell *cell)
{
    const uint64_t tp = experts ? l->etp : l->tp, ep = experts ? l->ep : 1;
    cell->experts = experts;
    cell->tp_rank = number % tp;
    cell->ep_rank = number / tp % ep;
    cell->pp_rank = number / tp / ep;
    return cell->pp_rank < l->pp;
}
