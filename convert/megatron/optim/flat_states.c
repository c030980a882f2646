#include "convert/megatron/optim/flat_states.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "convert/megatron/optim/dist_states.h"
#include "convert/states.h"

/* MAX_STEPS: dicts, buckets and states of a file, since a short pickle may have
 * one dict in many places. */
enum { MAX_CHAINED = 16, MAX_DIGITS = 9, MAX_STEPS = 1 << 18 };

static const char numel_unpadded[] = "numel_unpadded";

void flat_states_release(struct flat_states *f)
{
    map_release(&f->by_name);
}

/* ---- cells ---- */

/* Sets the cell of a chain's optimizer: dense ones first, one or two (a
 * separate first chunk if its parameters are gathered while the optimizer
 * steps), then that of experts. */
static void choose_optimizer(const struct layout *l, unsigned optimizer, unsigned chained,
                             struct bucket_cell *cell)
{
    const bool experts_apart = chained > 1 && buckets_split_experts(l, true);
    const unsigned dense = chained - experts_apart;
    cell->experts = experts_apart && optimizer == dense;
    if (cell->experts || dense < 2) return;
    cell->first_chunk = optimizer;
    cell->num_chunks = optimizer ? l->vpp - 1 : 1;
}

struct bucket_cell flat_cell_of_rank(const struct layout *l, uint64_t tp, uint64_t pp, uint64_t ep,
                                     unsigned optimizer, unsigned chained)
{
    struct bucket_cell cell = {.pp_rank = pp, .tp_rank = tp};
    choose_optimizer(l, optimizer, chained, &cell);
    if (!cell.experts) return cell;
    cell.tp_rank = tp % l->etp;
    cell.ep_rank = ep;
    return cell;
}

static void add_flat_state(struct flat_states *f, struct checkpoint *c, const struct flat_state *s)
{
    *ARENA_PUSH(&c->arena, f->items, f->count, f->capacity) = *s;
}

/* ---- the values of distrib_optim.pt and of dp_zero_gather_scatter ---- */

/* The value of a cell's states. */
struct walking {
    struct flat_states *f;
    struct checkpoint *c;
    struct torch_file *file;
    const char *prefix;
    struct flat_state at; /* cell, buffer and so on, of the walk */
    uint64_t steps;
};

/* Whether the walk may continue with `count` more items. */
static bool take_steps(struct walking *w, uint64_t count)
{
    w->steps += count;
    if (w->steps > MAX_STEPS)
        states_unread(w->c, "%s: more than %d flat tensors and dicts", w->file->path, MAX_STEPS);
    return w->steps <= MAX_STEPS;
}

/* Adds flat tensors of a dict {STATE: tensor, numel_unpadded: int}. */
static enum status add_tensors(struct walking *w, const struct value *d, struct error *err)
{
    struct checkpoint *c = w->c;
    if (!take_steps(w, d->count)) return OK;
    for (uint32_t i = 0; i < d->count; i++) {
        const char *state = value_as_text(d->items[2 * i]);
        const struct value *tensor = d->items[2 * i + 1];
        if (!state || strcmp(state, numel_unpadded) == 0) continue;
        if (!state_is_valid(state)) {
            states_unread(c, "%s: %s.%.64s: invalid state name", w->file->path, w->prefix, state);
            continue;
        }
        const char *name = arena_printf(&c->arena, "%s.%s", w->prefix, state);
        if (tensor->kind != VALUE_TENSOR) {
            states_unread(c, "%s: %s is not a tensor", w->file->path, name);
            continue;
        }
        struct flat_state s = w->at;
        TRY(torch_add_tensor(w->file, &c->catalog.stored, name, tensor, err));
        s.state = arena_copy_text(&c->arena, state);
        s.stored = c->catalog.stored.num_tensors - 1;
        add_flat_state(w->f, c, &s);
    }
    return OK;
}

/* The first dtype of a key (torch.bfloat16, torch.float32). */
static enum dtype dtype_of_key(const struct value *key)
{
    enum dtype dtype;
    const struct value *first = key->kind == VALUE_TUPLE && key->count ? key->items[0] : key;
    if (first->kind == VALUE_GLOBAL && dtype_from_torch(first->global->name, &dtype)) return dtype;
    return NUM_DTYPES;
}

/* Adds a dtype's states: a dict, or (old) a list with a dict per bucket. */
static enum status add_dtype(struct walking *w, const struct value *v, struct error *err)
{
    w->at.bucket = WHOLE_BUFFER;
    if (v->kind == VALUE_DICT) return add_tensors(w, v, err);
    if (v->kind != VALUE_LIST) {
        states_unread(w->c, "%s: %s is neither a dict nor a list", w->file->path, w->prefix);
        return OK;
    }
    const char *prefix = w->prefix;
    for (uint32_t b = 0; b < v->count && take_steps(w, 1); b++) {
        if (v->items[b]->kind != VALUE_DICT) continue;
        w->at.bucket = b;
        w->at.padded = true;
        w->prefix = arena_printf(&w->c->arena, "%s.%" PRIu32, prefix, b);
        TRY(add_tensors(w, v->items[b], err));
    }
    w->prefix = prefix;
    return OK;
}

/* {buckets_coalesced: True, G: {(D, D): ...}} */
static enum status add_cell(struct walking *w, const struct value *v, struct error *err)
{
    const char *prefix = w->prefix;
    int64_t buffer;
    for (uint32_t i = 0; v->kind == VALUE_DICT && i < v->count; i++) {
        const struct value *dtypes = v->items[2 * i + 1];
        if (!value_as_int(v->items[2 * i], &buffer) || buffer < 0 || dtypes->kind != VALUE_DICT)
            continue;
        w->at.buffer = (uint64_t)buffer;
        for (uint32_t k = 0; k < dtypes->count && take_steps(w, 1); k++) {
            w->at.of_weights = dtype_of_key(dtypes->items[2 * k]);
            w->prefix = arena_printf(&w->c->arena, "%s.%" PRId64 ".%" PRIu32, prefix, buffer, k);
            TRY(add_dtype(w, dtypes->items[2 * k + 1], err));
        }
    }
    w->prefix = prefix;
    return OK;
}

enum status flat_states_add_file(struct flat_states *f, struct checkpoint *c, struct torch_file *t,
                                 uint64_t tp, uint64_t pp, uint64_t ep, const char *prefix,
                                 struct error *err)
{
    struct walking w = {.f = f, .c = c, .file = t};
    const struct value *root = t->root;
    const bool is_chain = root->kind == VALUE_LIST;
    if (!is_chain && root->kind != VALUE_DICT) {
        states_unread(c, "%s: neither a dict nor a list", t->path);
        return OK;
    }
    const unsigned chained = is_chain ? (unsigned)root->count : 1;
    if (chained > MAX_CHAINED) states_unread(c, "%s: %u optimizers, too many", t->path, chained);
    for (unsigned k = 0; k < chained && chained <= MAX_CHAINED; k++) {
        w.at = (struct flat_state){.cell = flat_cell_of_rank(&c->layout, tp, pp, ep, k, chained)};
        w.prefix = is_chain ? arena_printf(&c->arena, "%s.%u", prefix, k) : prefix;
        TRY(add_cell(&w, is_chain ? root->items[k] : root, err));
    }
    return OK;
}

/* ---- keys of torch_dist ---- */

/* A parsed key: [chained_K.]optimizer.distributed.dp_group_idx_N.REST */
struct flat_key {
    unsigned optimizer;
    uint64_t cell; /* dp_group_idx */
    const char *rest;
};

/* Optimizers of the chain with flat buffers, by the keys. */
struct flat_chain {
    unsigned first, end; /* their numbers: [first, end) */
};

/* Parses "WORD123"; false: another text. */
static bool take_numbered(const char **text, const char *word, uint64_t *number)
{
    const char *at = *text;
    if (!text_skip_prefix(&at, word)) return false;
    const size_t digits = strspn(at, "0123456789");
    if (!digits || digits > MAX_DIGITS) return false;
    *number = strtoull(at, NULL, 10);
    *text = at + digits;
    return true;
}

static bool parse_key(const char *key, struct flat_key *out)
{
    uint64_t optimizer = 0;
    if (take_numbered(&key, "chained_", &optimizer) && *key++ != '.') return false;
    out->optimizer = (unsigned)optimizer;
    if (!text_skip_prefix(&key, "optimizer.distributed.") ||
        !take_numbered(&key, "dp_group_idx_", &out->cell) || *key != '.')
        return false;
    out->rest = key + 1;
    return optimizer < MAX_CHAINED;
}

/* Parses "gbuf_idx_G.dtype_(torch.bfloat16, torch.float32).bucket_idx_B.STATE". */
static bool parse_bucket(struct arena *a, const char *rest, struct flat_state *s)
{
    char dtype[40];
    if (!take_numbered(&rest, "gbuf_idx_", &s->buffer) || !text_skip_prefix(&rest, ".dtype_"))
        return false;
    s->of_weights = NUM_DTYPES;
    if (sscanf(rest, "(torch.%39[a-z0-9_]", dtype) == 1 && !dtype_from_torch(dtype, &s->of_weights))
        s->of_weights = NUM_DTYPES;
    rest = strstr(rest, ").bucket_idx_");
    if (!rest++ || !take_numbered(&rest, ".bucket_idx_", &s->bucket) || *rest++ != '.')
        return false;
    s->state = arena_copy_text(a, rest);
    return state_is_valid(rest);
}

static bool find_cell(struct checkpoint *c, const struct flat_key *key, struct flat_chain chain,
                      struct bucket_cell *cell)
{
    struct bucket_cell chunks = {0};
    choose_optimizer(&c->layout, key->optimizer - chain.first, chain.end - chain.first, &chunks);
    if (!bucket_cell_of_number(&c->layout, chunks.experts, key->cell, cell)) return false;
    cell->first_chunk = chunks.first_chunk;
    cell->num_chunks = chunks.num_chunks;
    return true;
}

static void add_bucket_key(struct flat_states *f, struct checkpoint *c, size_t stored,
                           struct flat_chain chain)
{
    const char *name = c->catalog.stored.tensors[stored].name;
    struct flat_key key;
    struct flat_state s = {.stored = stored};
    if (!dist_key_is_flat(name)) return;
    if (!parse_key(name, &key) || !parse_bucket(&c->arena, key.rest, &s))
        states_unread(c, "%s is not a bucket's key", name);
    else if (!find_cell(c, &key, chain, &s.cell))
        states_unread(c, "%s: the layout %s has no such ranks", name,
                      layout_text(&c->layout, &c->arena));
    else
        add_flat_state(f, c, &s);
}

/* Adds the states in the object of a cell, a list of one value. */
static enum status add_cell_object(struct flat_states *f, struct checkpoint *c, size_t object,
                                   struct flat_chain chain, struct error *err)
{
    const struct stored_object *o = &c->catalog.stored.objects[object];
    struct walking w = {.f = f, .c = c, .prefix = o->name};
    struct torch_file t;
    struct flat_key key;
    if (!parse_key(o->name, &key) || !text_starts_with(key.rest, "param_state/")) return OK;
    if (!find_cell(c, &key, chain, &w.at.cell)) {
        states_unread(c, "%s: the layout %s has no such ranks", o->name,
                      layout_text(&c->layout, &c->arena));
        return OK;
    }
    TRY(torch_open(&t, &c->catalog.stored, c->catalog.stored.files[o->file].path, o->offset_bytes,
                   o->size_bytes, err));
    w.file = &t;
    const struct value *v = t.root;
    if (v->kind == VALUE_LIST && v->count) v = v->items[0];
    enum status st = add_cell(&w, v, err);
    torch_close(&t);
    return st;
}

static void add_to_chain(struct flat_chain *chain, const char *name)
{
    struct flat_key key;
    if (!dist_key_is_flat(name) || !parse_key(name, &key)) return;
    if (key.optimizer < chain->first) chain->first = key.optimizer;
    if (key.optimizer >= chain->end) chain->end = key.optimizer + 1;
}

static struct flat_chain find_chain(const struct checkpoint *c)
{
    const struct stored *s = &c->catalog.stored;
    struct flat_chain chain = {MAX_CHAINED, 0};
    for (size_t i = 0; i < s->num_tensors; i++)
        add_to_chain(&chain, s->tensors[i].name);
    for (size_t i = 0; i < s->num_objects; i++)
        add_to_chain(&chain, s->objects[i].name);
    return chain;
}

enum status flat_states_add_keys(struct flat_states *f, struct checkpoint *c, struct error *err)
{
    const struct flat_chain chain = find_chain(c);
    const size_t tensors = c->catalog.stored.num_tensors, objects = c->catalog.stored.num_objects;
    f->of_the_rest = chain.first && chain.first < chain.end;
    for (size_t i = 0; i < tensors; i++)
        add_bucket_key(f, c, i, chain);
    for (size_t i = 0; i < objects; i++)
        if (dist_key_is_flat(c->catalog.stored.objects[i].name))
            TRY(add_cell_object(f, c, i, chain, err));
    return OK;
}

/* ---- places of weights ---- */

const char *flat_key(struct arena *a, const char *name, const struct bucket_cell *cell)
{
    return arena_printf(a, "%s %d:%" PRIu64 ":%" PRIu64 ":%" PRIu64, name, cell->experts,
                        cell->pp_rank, cell->tp_rank, cell->ep_rank);
}

void flat_states_add_weight(struct flat_states *f, struct checkpoint *c, const char *name,
                            const struct bucket_cell *cell, const char *storage, uint64_t offset)
{
    const size_t at = f->num_places;
    if (!map_add(&f->by_name, flat_key(&c->arena, name, cell), at, NULL)) return;
    *ARENA_PUSH(&c->arena, f->places, f->num_places, f->places_capacity) =
        (struct weight_place){name, storage, offset};
}

const struct weight_place *flat_states_weight(const struct flat_states *f, struct arena *a,
                                              const char *name, const struct bucket_cell *cell)
{
    size_t at;
    return map_get(&f->by_name, flat_key(a, name, cell), &at) ? &f->places[at] : NULL;
}
