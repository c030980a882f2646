#include "convert/megatron/optim/flat_place.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "convert/megatron/optim/remainders.h"
#include "convert/states.h"

/* ---- rules ---- */

static uint64_t count_of(const struct value *args, const char *name, uint64_t missing)
{
    int64_t n;
    return value_as_int(value_get(args, name), &n) && n > 0 ? (uint64_t)n : missing;
}

static bool flag_of(const struct value *args, const char *name)
{
    bool truth;
    return value_as_bool(value_get(args, name), &truth) && truth;
}

struct bucket_rules bucket_rules_of_args(const struct value *args, bool transformer_engine)
{
    const uint64_t usual_bucket = 40000000, usual_of_rank = 1000000;
    const uint64_t world = count_of(args, "world_size", 1),
                   tp = count_of(args, "tensor_model_parallel_size", 1),
                   pp = count_of(args, "pipeline_model_parallel_size", 1),
                   ep = count_of(args, "expert_model_parallel_size", 1),
                   etp = count_of(args, "expert_tensor_parallel_size", tp),
                   instances = count_of(args, "num_distributed_optimizer_instances", 1);
    struct bucket_rules r = {.transformer_engine = transformer_engine,
                             .grouped_gemm = flag_of(args, "moe_grouped_gemm"),
                             .high_bandwidth =
                                 flag_of(args, "ddp_pad_buckets_for_high_nccl_busbw")};
    const uint64_t dp = max_u64(world / tp / pp, 1);
    /* each optimizer instance has the whole buffer */
    r.dp = max_u64(dp / instances, 1);
    r.expert_dp = max_u64(world / etp / ep / pp / instances, 1);
    if (flag_of(args, "overlap_grad_reduce") &&
        !flag_of(args, "overlap_param_gather_with_optimizer_step"))
        r.bucket_size =
            count_of(args, "ddp_bucket_size", max_u64(usual_bucket, usual_of_rank * dp));
    return r;
}

/* ---- parameters ---- */

static void add_trained(const struct checkpoint *c, struct arena *a, const struct tensor *t,
                        struct trained_param *out)
{
    const struct tensor *padding =
        catalog_find(&c->catalog, arena_printf(a, "%s.padding", t->name));
    uint64_t *shape = arena_copy(a, t->shape, t->num_dims * sizeof *shape);
    if (padding) shape[0] += padding->shape[0];
    *out = (struct trained_param){
        .name = t->name, .dtype = t->dtype, .num_dims = t->num_dims, .shape = shape};
    (void)param_find(c->params, t->name, &out->param);
}

enum status trained_params(const struct checkpoint *c, struct arena *a, struct trained_param **out,
                           size_t *count, struct error *err)
{
    *out = arena_array(a, c->catalog.num_tensors, sizeof **out);
    *count = 0;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        struct param p;
        if (name_is_optimizer(t->name) || name_is_padding(t->name)) continue;
        if (!param_find(c->params, t->name, &p))
            return fail(err, ERR_UNSUPPORTED, "%s: unknown parameter of Megatron-Core", t->name);
        if (!p.spec->buffer) add_trained(c, a, t, &(*out)[(*count)++]);
    }
    return OK;
}

/* ---- the states of a cell ---- */

/* A cell's states, in the order of items: [first, first + count) of the sorted
 * list. */
struct cell_states {
    const struct flat_state **items;
    size_t count;
    struct param_buffer *buffers;
    size_t num_buffers;
};

struct placing {
    const struct flat_states *f;
    struct checkpoint *c;
    struct arena scratch;
    struct trained_param *params;
    size_t num_params;
    const struct flat_state **sorted;
    struct cell_states *cells;
    size_t num_cells, cells_capacity;
    struct bucket_rules rules;
};

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_cells(const struct bucket_cell *x, const struct bucket_cell *y)
{
    if (x->experts != y->experts) return x->experts ? 1 : -1;
    if (x->pp_rank != y->pp_rank) return compare_u64(x->pp_rank, y->pp_rank);
    if (x->ep_rank != y->ep_rank) return compare_u64(x->ep_rank, y->ep_rank);
    if (x->tp_rank != y->tp_rank) return compare_u64(x->tp_rank, y->tp_rank);
    return compare_u64(x->first_chunk, y->first_chunk);
}

static int by_cell_and_place(const void *a, const void *b)
{
    const struct flat_state *x = *(const struct flat_state *const *)a,
                            *y = *(const struct flat_state *const *)b;
    int order = compare_cells(&x->cell, &y->cell);
    if (!order) order = strcmp(x->state, y->state);
    if (!order) order = compare_u64(x->buffer, y->buffer);
    return order ? order : compare_u64(x->bucket, y->bucket);
}

static void sort_into_cells(struct placing *x)
{
    x->sorted = arena_array(&x->scratch, x->f->count, sizeof *x->sorted);
    for (size_t i = 0; i < x->f->count; i++)
        x->sorted[i] = &x->f->items[i];
    qsort(x->sorted, x->f->count, sizeof *x->sorted, by_cell_and_place);
    for (size_t i = 0, k; i < x->f->count; i = k) {
        for (k = i; k < x->f->count && !compare_cells(&x->sorted[i]->cell, &x->sorted[k]->cell);
             k++) {
        }
        *ARENA_PUSH(&x->scratch, x->cells, x->num_cells, x->cells_capacity) =
            (struct cell_states){.items = x->sorted + i, .count = k - i};
    }
}

static const struct stored_tensor *stored_of(const struct placing *x, const struct flat_state *s)
{
    return &x->c->catalog.stored.tensors[s->stored];
}

/* "dense, pipeline rank 1, tensor rank 0" */
static const char *cell_text(struct placing *x, const struct bucket_cell *cell)
{
    if (!cell->experts)
        return arena_printf(&x->scratch, "tensor rank %" PRIu64 ", pipeline rank %" PRIu64,
                            cell->tp_rank, cell->pp_rank);
    return arena_printf(&x->scratch,
                        "expert rank %" PRIu64 ", expert tensor rank %" PRIu64
                        ", pipeline rank %" PRIu64,
                        cell->ep_rank, cell->tp_rank, cell->pp_rank);
}

/* Number of items of a cell's first state; every state has as many. */
static size_t items_of_state(const struct cell_states *s)
{
    size_t n = 1;
    while (n < s->count && strcmp(s->items[n]->state, s->items[0]->state) == 0)
        n++;
    return n;
}

/* Sizes of each buffer's buckets by the files; NULL: unknown. */
static const struct bucket_sizes *known_sizes(struct placing *x, const struct cell_states *s,
                                              size_t *count)
{
    const size_t n = items_of_state(s);
    uint64_t *numel = arena_array(&x->scratch, n, sizeof *numel);
    struct bucket_sizes *sizes = arena_array(&x->scratch, n, sizeof *sizes);
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        const struct flat_state *item = s->items[i];
        if (item->bucket == WHOLE_BUFFER || item->padded) return NULL;
        if (item->buffer >= n) return NULL;
        if (!sizes[item->buffer].count++) sizes[item->buffer].numel = numel + i;
        numel[i] = stored_numel(stored_of(x, item));
        if (item->buffer >= *count) *count = item->buffer + 1;
    }
    return sizes;
}

/* ---- witnesses ---- */

/* Sets the expected elements of an item; false: not in the placement. */
static bool expected_numel(const struct cell_states *s, const struct flat_state *item,
                           uint64_t *numel)
{
    if (item->buffer >= s->num_buffers) return false;
    const struct param_buffer *b = &s->buffers[item->buffer];
    if (item->bucket == WHOLE_BUFFER)
        *numel = b->numel_unpadded;
    else if (item->bucket < b->num_buckets)
        *numel =
            item->padded ? b->buckets[item->bucket].numel : b->buckets[item->bucket].numel_unpadded;
    else
        return false;
    return true;
}

static const char *check_item(struct placing *x, const struct cell_states *s,
                              const struct flat_state *item)
{
    uint64_t numel;
    const struct stored_tensor *t = stored_of(x, item);
    if (!dtype_is_float(t->dtype) && !remainders_are_stored(item->state, t->dtype))
        return arena_printf(&x->scratch, "%s has dtype %s; states must be F16, BF16, F32 or F64",
                            t->name, dtype_infos[t->dtype].name);
    if (!expected_numel(s, item, &numel))
        return arena_printf(&x->scratch, "%s: by its args, %s has no such buffer or bucket",
                            t->name, cell_text(x, &item->cell));
    if (t->num_dims != 1 || stored_numel(t) != numel)
        return arena_printf(&x->scratch,
                            "%s has %" PRIu64 " elements, but the parameters of %s need %" PRIu64
                            " (flat states with frozen parameters cannot be read)",
                            t->name, stored_numel(t), cell_text(x, &item->cell), numel);
    if (item->of_weights != NUM_DTYPES && item->of_weights != s->buffers[item->buffer].dtype)
        return arena_printf(&x->scratch, "%s is for %s weights, but the model's are %s", t->name,
                            dtype_infos[item->of_weights].name,
                            dtype_infos[s->buffers[item->buffer].dtype].name);
    return NULL;
}

static bool same_place(const struct flat_state *a, const struct flat_state *b)
{
    return a->buffer == b->buffer && a->bucket == b->bucket && strcmp(a->state, b->state) == 0;
}

static bool is_whole(const struct flat_state *s)
{
    return s->bucket == WHOLE_BUFFER;
}

/* Checks that sorted items have one of each state in each place. n: items of a
 * state. */
static const char *check_order(struct placing *x, const struct cell_states *s, size_t i, size_t n)
{
    const struct flat_state *item = s->items[i];
    const char *name = stored_of(x, item)->name;
    if (i && same_place(s->items[i - 1], item))
        return arena_printf(&x->scratch, "%s and %s have the same place",
                            stored_of(x, s->items[i - 1])->name, name);
    if (is_whole(item) != is_whole(s->items[0]))
        return arena_printf(&x->scratch, "%s is a bucket among whole buffers", name);
    if (strcmp(item->state, s->items[i - i % n]->state))
        return arena_printf(&x->scratch, "%s: its states belong to different buffers", name);
    return NULL;
}

/* Checks that every buffer and bucket has each state. */
static const char *check_items(struct placing *x, const struct cell_states *s)
{
    const size_t n = items_of_state(s);
    size_t wanted = 0;
    for (size_t b = 0; b < s->num_buffers; b++)
        wanted += s->items[0]->bucket == WHOLE_BUFFER ? 1 : s->buffers[b].num_buckets;
    if (n != wanted || s->count % n)
        return arena_printf(&x->scratch, "%s: %zu flat tensors of %s, but its parameters need %zu",
                            cell_text(x, &s->items[0]->cell), n, s->items[0]->state, wanted);
    for (size_t i = 0; i < s->count; i++) {
        const char *why = check_item(x, s, s->items[i]);
        if (!why) why = check_order(x, s, i, n);
        if (why) return why;
    }
    return NULL;
}

/* A bucket's item, of the state whose items begin at `from`, complete and
 * sorted by buffer and bucket. */
static const struct flat_state *flat_item(const struct cell_states *s, size_t from, size_t buffer,
                                          size_t bucket)
{
    if (s->items[from]->bucket == WHOLE_BUFFER) return s->items[from + buffer];
    for (size_t b = 0; b < buffer; b++)
        from += s->buffers[b].num_buckets;
    return s->items[from + bucket];
}

/* Whether a chunk of the stored tensor begins at the element. Pieces are sorted
 * by start. */
static bool chunk_begins(const struct stored_tensor *t, uint64_t element)
{
    size_t low = 0, high = t->num_pieces;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const uint64_t start = t->pieces[middle].start ? t->pieces[middle].start[0] : 0;
        if (start == element) return true;
        if (start < element)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

static const char *check_chunks(struct placing *x, const struct cell_states *s)
{
    for (size_t i = 0; i < s->num_buffers; i++) {
        const struct param_buffer *b = &s->buffers[i];
        for (size_t k = 0; k < b->num_params; k++) {
            const struct placed_param *p = &b->params[k];
            const struct flat_state *item = flat_item(s, 0, i, p->bucket);
            const uint64_t at = p->start - b->buckets[p->bucket].start;
            if (item->bucket == WHOLE_BUFFER || item->padded ||
                chunk_begins(stored_of(x, item), at))
                continue;
            return arena_printf(&x->scratch,
                                "%s: %s should begin at element %" PRIu64
                                ", but no chunk of .metadata begins there",
                                stored_of(x, item)->name, p->of->name, at);
        }
    }
    return NULL;
}

/* Whether all weights of the buffer are views of one storage. */
static bool share_storage(struct placing *x, const struct param_buffer *b,
                          const struct bucket_cell *cell)
{
    const char *storage = NULL;
    for (size_t k = 0; k < b->num_params; k++) {
        const char *name =
            b->params[k].copy == COPY_AS_HEAD ? "output_layer.weight" : b->params[k].of->name;
        const struct weight_place *w = flat_states_weight(x->f, &x->scratch, name, cell);
        if (!w || (storage && strcmp(storage, w->storage))) return false;
        storage = w->storage;
    }
    return b->num_params > 1;
}

static const char *check_storage(struct placing *x, const struct cell_states *s)
{
    const struct bucket_cell *cell = &s->items[0]->cell;
    for (size_t i = 0; i < s->num_buffers; i++) {
        const struct param_buffer *b = &s->buffers[i];
        if (!share_storage(x, b, cell)) continue;
        for (size_t k = 0; k < b->num_params; k++) {
            const struct placed_param *p = &b->params[k];
            const char *name = p->copy == COPY_AS_HEAD ? "output_layer.weight" : p->of->name;
            const struct weight_place *w = flat_states_weight(x->f, &x->scratch, name, cell);
            if (w->offset == p->start) continue;
            return arena_printf(&x->scratch,
                                "%s: %s should be at element %" PRIu64
                                " of its buffer, but is at element %" PRIu64 " of its storage",
                                cell_text(x, cell), name, p->start, w->offset);
        }
    }
    return NULL;
}

static const char *check_cell(struct placing *x, const struct cell_states *s)
{
    const char *why = check_items(x, s);
    if (!why) why = check_chunks(x, s);
    return why ? why : check_storage(x, s);
}

/* ---- placing ---- */

/* Places a cell's parameters by the rules; returns why that fails, NULL: it
 * does not. */
static const char *place_cell(struct placing *x, struct cell_states *s,
                              const struct bucket_rules *rules)
{
    struct error why;
    size_t num_known = 0;
    const struct bucket_sizes *known = known_sizes(x, s, &num_known);
    const enum status st = buckets_place(x->params, x->num_params, &x->c->layout, &x->c->config,
                                         rules, &s->items[0]->cell, known, num_known, &x->scratch,
                                         &s->buffers, &s->num_buffers, &why);
    if (st) return arena_printf(&x->scratch, "%s: %s", cell_text(x, &s->items[0]->cell), why.text);
    return check_cell(x, s);
}

enum { NUM_ORDERS = 4 };

/* Rules with order i of the specs' orders: 0 is that of args. */
static struct bucket_rules rules_of_order(const struct placing *x, unsigned i)
{
    struct bucket_rules rules = x->rules;
    rules.transformer_engine ^= i & 1;
    rules.grouped_gemm ^= i / 2;
    return rules;
}

/* Places all cells. Tries the orders of both specs, that of args first, since
 * args may be of another spec than the weights' run. */
static const char *place_cells(struct placing *x)
{
    const char *first = NULL;
    for (unsigned i = 0; i < NUM_ORDERS; i++) {
        const char *why = NULL;
        const struct bucket_rules rules = rules_of_order(x, i);
        for (size_t k = 0; k < x->num_cells && !why; k++)
            why = place_cell(x, &x->cells[k], &rules);
        if (!why) return NULL;
        if (!first) first = why;
    }
    return first;
}

/* ---- proof without masters ---- */

/* Whether a chunk of a bucket may begin at this element: a parameter, the gap
 * behind one, or a data parallel rank's part does. *k: the bucket's parameter
 * reached so far, since chunks come in order. */
static bool is_boundary(const struct param_buffer *b, size_t bucket, uint64_t dp, uint64_t element,
                        size_t *k)
{
    const struct param_bucket *in = &b->buckets[bucket];
    const uint64_t at = in->start + element;
    while (*k < b->num_params &&
           (b->params[*k].bucket < bucket || b->params[*k].start + b->params[*k].numel < at))
        ++*k;
    if (in->numel % dp == 0 && element % (in->numel / dp) == 0) return true;
    if (*k == b->num_params || b->params[*k].bucket != bucket) return false;
    return at == b->params[*k].start || at == b->params[*k].start + b->params[*k].numel ||
           (*k + 1 < b->num_params && at == b->params[*k + 1].start);
}

/* Whether chunks of .metadata begin where parameters and gaps do, and nowhere
 * else; check_chunks() has found the parameters' beginnings. */
static bool chunks_prove(struct placing *x, const struct cell_states *s)
{
    const uint64_t dp = s->items[0]->cell.experts ? x->rules.expert_dp : x->rules.dp;
    for (size_t i = 0; i < s->num_buffers; i++)
        for (size_t bucket = 0, k = 0; bucket < s->buffers[i].num_buckets; bucket++) {
            const struct flat_state *item = flat_item(s, 0, i, bucket);
            const struct stored_tensor *t = stored_of(x, item);
            if (is_whole(item) || item->padded) return false;
            for (size_t p = 0; p < t->num_pieces; p++) {
                const uint64_t start = t->pieces[p].start ? t->pieces[p].start[0] : 0;
                if (!is_boundary(&s->buffers[i], bucket, dp, start, &k)) return false;
            }
        }
    return true;
}

static bool storage_proves(struct placing *x, const struct cell_states *s)
{
    for (size_t i = 0; i < s->num_buffers; i++)
        if (!share_storage(x, &s->buffers[i], &s->items[0]->cell)) return false;
    return true;
}

static bool same_places(const struct cell_states *a, const struct cell_states *b)
{
    if (a->num_buffers != b->num_buffers) return false;
    for (size_t i = 0; i < a->num_buffers; i++) {
        const struct param_buffer *x = &a->buffers[i], *y = &b->buffers[i];
        if (x->num_params != y->num_params) return false;
        for (size_t k = 0; k < x->num_params; k++)
            if (x->params[k].of != y->params[k].of || x->params[k].start != y->params[k].start)
                return false;
    }
    return true;
}

/* Whether files prove the places of a cell: chunks, or storages of weights, do,
 * and no other order agrees with them. */
static bool is_proved(struct placing *x, const struct cell_states *s)
{
    if (!chunks_prove(x, s) && !storage_proves(x, s)) return false;
    for (unsigned i = 0; i < NUM_ORDERS; i++) {
        const struct bucket_rules rules = rules_of_order(x, i);
        struct cell_states other = *s;
        if (!place_cell(x, &other, &rules) && chunks_prove(x, &other) == chunks_prove(x, s) &&
            !same_places(s, &other))
            return false;
    }
    return true;
}

/* Whether masters may be remainders, which prove no place: they are I16, or
 * formats have them as F32. */
static bool may_be_remainders(const struct placing *x)
{
    for (size_t i = 0; i < x->f->count; i++) {
        const struct flat_state *item = &x->f->items[i];
        if (is_whole(item) || item->padded ||
            remainders_are_stored(item->state, stored_of(x, item)->dtype))
            return true;
    }
    return false;
}

/* Whether the states of such a cell are there, and its ranks are of the
 * layout. */
static bool has_cell(const struct placing *x, const struct bucket_cell *cell)
{
    for (size_t i = 0; i < x->num_cells; i++) {
        const struct bucket_cell *has = &x->cells[i].items[0]->cell;
        if (has->experts == cell->experts && has->pp_rank == cell->pp_rank &&
            has->tp_rank == cell->tp_rank && has->ep_rank == cell->ep_rank)
            return true;
    }
    return false;
}

/* A cell's parameters: "decoder.layers.1.mlp.linear_fc2.weight and 11 more". */
static const char *held_by(struct placing *x, const struct bucket_cell *cell)
{
    struct param_buffer *buffers;
    struct error why;
    size_t num_buffers, count = 0;
    const char *first = "";
    if (buckets_place(x->params, x->num_params, &x->c->layout, &x->c->config, &x->rules, cell, NULL,
                      0, &x->scratch, &buffers, &num_buffers, &why))
        return "its parameters";
    for (size_t i = 0; i < num_buffers; i++) {
        if (!count && buffers[i].num_params) first = buffers[i].params[0].of->name;
        count += buffers[i].num_params;
    }
    if (!count) return NULL;
    return arena_printf(&x->scratch, "%s%s", first,
                        count > 1 ? arena_printf(&x->scratch, " and %zu more", count - 1) : "");
}

/* Names a layout's cell without states; NULL: none. */
static const char *find_missing(struct placing *x, bool experts)
{
    const struct layout *l = &x->c->layout;
    const uint64_t tp = experts ? l->etp : l->tp, ep = experts ? l->ep : 1;
    for (uint64_t i = 0; i < tp * ep * l->pp; i++) {
        const struct bucket_cell cell = {
            .experts = experts, .tp_rank = i % tp, .ep_rank = i / tp % ep, .pp_rank = i / tp / ep};
        const char *held = has_cell(x, &cell) ? NULL : held_by(x, &cell);
        if (held)
            return arena_printf(&x->scratch, "missing states of %s: those of %s",
                                cell_text(x, &cell), held);
    }
    return NULL;
}

/* Adds a parameter's part of a state. */
static enum status add_flat_part(struct placing *x, const struct param_buffer *b,
                                 const struct placed_param *p, const struct flat_state *item,
                                 struct error *err)
{
    const struct trained_param *t = p->of;
    const struct bucket_cell *cell = &item->cell;
    const struct layout *l = &x->c->layout;
    const uint64_t ranks = t->param.spec->group == PARAM_ETP ? l->etp : l->tp;
    const uint64_t rank = cell->experts ? cell->tp_rank : cell->tp_rank % ranks;
    const uint64_t start =
        item->bucket == WHOLE_BUFFER ? p->start_unpadded : p->start - b->buckets[p->bucket].start;
    struct param_parts parts;
    struct native_tensor *native;
    TRY(param_shard(t->param.spec, t->name, t->num_dims, t->shape, rank, ranks, PARAM_STORED,
                    &parts, err));
    TRY(catalog_add_native(&x->c->catalog, t->name, item->state, stored_of(x, item)->dtype,
                           t->num_dims, t->shape, &native, err));
    for (unsigned i = 0; i < parts.count; i++) {
        struct pair pair = parts.pairs[i];
        pair.b_offset += start;
        TRY(catalog_add_native_part(&x->c->catalog, native, stored_of(x, item), &pair, err));
    }
    return OK;
}

/* Whether another cell's equal elements are used: the first tensor parallel
 * rank's of a replicated parameter, the embedding's of a tied head. */
static bool is_copy(const struct layout *l, const struct placed_param *p,
                    const struct bucket_cell *cell)
{
    const struct param_spec *s = p->of->param.spec;
    if (p->copy) return true;
    if (s->split < 0) return cell->tp_rank > 0;
    return s->group == PARAM_ETP && !cell->experts && cell->tp_rank >= l->etp;
}

static enum status add_cell(struct placing *x, const struct cell_states *s, struct error *err)
{
    const size_t n = items_of_state(s);
    for (size_t from = 0; from < s->count; from += n)
        for (size_t i = 0; i < s->num_buffers; i++)
            for (size_t k = 0; k < s->buffers[i].num_params; k++) {
                const struct placed_param *p = &s->buffers[i].params[k];
                const struct flat_state *item = flat_item(s, from, i, p->bucket);
                if (!is_copy(&x->c->layout, p, &item->cell))
                    TRY(add_flat_part(x, &s->buffers[i], p, item, err));
            }
    return OK;
}

/* Keeps the parameters that are in flat buffers. */
static void leave_out_matrices(struct placing *x)
{
    size_t kept = 0;
    for (size_t i = 0; i < x->num_params; i++)
        if (!training_hidden_matrix(x->params[i].name, x->params[i].num_dims))
            x->params[kept++] = x->params[i];
    x->num_params = kept;
}

static enum status place_all(struct placing *x, struct error *err)
{
    struct error why;
    const char *unread = NULL;
    if (trained_params(x->c, &x->scratch, &x->params, &x->num_params, &why))
        unread = why.text;
    else {
        if (x->f->of_the_rest) leave_out_matrices(x);
        sort_into_cells(x);
        x->rules.experts_apart_by_etp =
            x->num_cells && x->cells[x->num_cells - 1].items[0]->cell.experts;
        unread = place_cells(x);
        if (!unread) unread = find_missing(x, false);
        if (!unread && buckets_split_experts(&x->c->layout, x->rules.experts_apart_by_etp))
            unread = find_missing(x, true);
    }
    bool proved = !unread && may_be_remainders(x);
    for (size_t i = 0; i < x->num_cells && proved; i++)
        proved = is_proved(x, &x->cells[i]);
    x->c->training.optimizer.placed = proved;
    if (unread) states_unread(x->c, "%s", unread);
    for (size_t i = 0; i < x->num_cells && !unread; i++)
        TRY(add_cell(x, &x->cells[i], err));
    return OK;
}

enum status flat_states_place(const struct flat_states *f, struct checkpoint *c, struct error *err)
{
    const struct value *args = value_get(c->training.common, "args");
    struct placing x = {.f = f, .c = c};
    if (!f->count || c->training.optimizer.unread) return OK;
    x.rules = bucket_rules_of_args(args, c->transformer_engine_names);
    arena_init(&x.scratch);
    enum status st = place_all(&x, err);
    c->training.optimizer.inferred = true;
    arena_release(&x.scratch);
    return st;
}
