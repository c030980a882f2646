/* legacy_states.c - optimizer states of the legacy format: in the rank files,
 * or in distrib_optim.pt beside them. */
#include <string.h>
#include <sys/stat.h>

#include "convert/megatron/legacy/legacy_source.h"
#include "convert/states.h"
#include "formats/pickle.h"

enum { MAX_LAYER_WISE = 1 << 16 };

const char *legacy_flat_path(struct legacy *x, const struct rank *r)
{
    struct arena *a = &x->m->c->arena;
    return path_join(a, path_join(a, x->m->c->folder, r->folder), "distrib_optim.pt");
}

/* Counts stored tensors from `before` on as the optimizer's. */
static void count_bytes(struct checkpoint *c, size_t before)
{
    for (size_t i = before; i < c->catalog.stored.num_tensors; i++)
        c->training.optimizer.size_bytes += stored_tensor_bytes(&c->catalog.stored.tensors[i]);
}

static const char *layer_wise_path(struct legacy *x, const struct rank *r, unsigned dp)
{
    struct arena *a = &x->m->c->arena;
    return path_join(a, path_join(a, x->m->c->folder, r->folder),
                     arena_printf(a, "layer_wise_optimizer_%u.pt", dp));
}

/* Counts data parallel ranks by args, else by the files of this rank. */
static unsigned count_layer_wise(struct legacy *x, const struct rank *r)
{
    const struct layout *l = &x->m->c->layout;
    const struct value *args = value_get(x->m->c->training.common, "args");
    int64_t n;
    unsigned count = 0;
    if (value_as_int(value_get(args, "data_parallel_size"), &n) && n > 0 && n <= MAX_LAYER_WISE)
        return (unsigned)n;
    if (value_as_int(value_get(args, "world_size"), &n) && n > 0 &&
        (uint64_t)n / l->tp / l->pp <= MAX_LAYER_WISE)
        return (unsigned)((uint64_t)n / l->tp / l->pp);
    while (count < MAX_LAYER_WISE && path_exists(layer_wise_path(x, r, count)))
        count++;
    return count;
}

/* Adds the states in the files of data parallel ranks. */
static enum status read_layer_wise(struct legacy *x, const struct rank *r, struct error *err)
{
    struct checkpoint *c = x->m->c;
    const unsigned count = count_layer_wise(x, r);
    x->states.num_dp = count;
    if (c->layout.ep > 1)
        states_unread(c, "%s: layer-wise states of experts split over ranks are not read",
                      layer_wise_path(x, r, 0));
    for (unsigned dp = 0; dp < count && !c->training.optimizer.unread; dp++) {
        const char *path = layer_wise_path(x, r, dp);
        struct torch_file t;
        if (!path_exists(path)) {
            states_unread(c,
                          "%s is missing, with the states of some parameters: the run had %u "
                          "data parallel ranks",
                          path, count);
            return OK;
        }
        if (torch_open(&t, &c->catalog.stored, path, 0, UINT64_MAX, err)) {
            states_unread(c, "%s", err->text);
            return OK;
        }
        const char *prefix = arena_printf(&c->arena, "%s/layer_wise_optimizer_%u", r->folder, dp);
        const size_t before = c->catalog.stored.num_tensors;
        enum status st =
            rank_states_add(&x->states, c, &t, t.root, (size_t)(r - x->ranks), dp, prefix, err);
        torch_close(&t);
        TRY(st);
        count_bytes(c, before);
    }
    return OK;
}

/* Adds a rank file's optimizer states, and its training state. */
enum status legacy_read_optimizer(struct legacy *x, struct torch_file *t, const struct rank *r,
                                  struct error *err)
{
    struct checkpoint *c = x->m->c;
    struct optimizer_info *o = &c->training.optimizer;
    struct value *outline;
    const struct value *optimizer = value_get(t->root, "optimizer");
    const char *prefix = arena_printf(&c->arena, "%s/optimizer", r->folder);
    const size_t before = c->catalog.stored.num_tensors;
    struct stat st;
    if (stat(legacy_flat_path(x, r), &st) == 0) o->size_bytes += (uint64_t)st.st_size;
    if (!x->has_flat && !optimizer) {
        x->without = arena_copy_text(&c->arena, t->path);
        return OK;
    }
    o->present |= x->has_flat;
    o->kind =
        x->has_flat ? "distributed, in distrib_optim.pt" : "not distributed, in the rank files";
    if (!optimizer || optimizer->kind == VALUE_NONE) {
        o->present = true;
        x->without = arena_copy_text(&c->arena, t->path);
        return OK;
    }
    x->num_optimizers++;
    TRY(value_copy(&c->arena, rank_states_outline(optimizer, &t->arena), &outline, err));
    training_source_optimizer(&x->training, outline, 0, t->path, 0, UINT64_MAX);
    if (path_exists(layer_wise_path(x, r, 0))) {
        o->kind = "layer-wise, in layer_wise_optimizer_*.pt";
        x->has_layer_wise = true;
    } else if (!x->has_flat) {
        TRY(rank_states_add(&x->states, c, t, optimizer, (size_t)(r - x->ranks), 0, prefix, err));
    }
    count_bytes(c, before);
    o->present |= o->size_bytes > 0 || x->has_layer_wise; /* SGD without momentum has no states */
    return OK;
}

/* Whether a weight is a trained parameter. */
static bool is_trained(const struct legacy *x, const struct shard *s)
{
    struct param p;
    if (s->state || s->name.kind == MEMORY_UNKNOWN) return false;
    const struct checkpoint *c = x->m->c;
    struct arena scratch;
    arena_init(&scratch);
    const char *name = memory_name_logical(&scratch, c->params, &s->name, 0, 0, false);
    const bool trained = !param_find(c->params, name, &p) || !p.spec->buffer;
    arena_release(&scratch);
    return trained;
}

/* Lists a rank's trained weights, in its file's order. */
static size_t list_rank_params(struct legacy *x, const struct rank *r, size_t num_weights,
                               struct rank_param *params, size_t *shards)
{
    const struct layout *l = &x->m->c->layout;
    size_t count = 0;
    for (size_t i = 0; i < num_weights; i++) {
        const struct shard *s = &x->shards[i];
        const struct stored_tensor *t = &x->m->c->catalog.stored.tensors[s->stored];
        if (s->rank != r || !is_trained(x, s)) continue;
        params[count] = (struct rank_param){.name = t->name,
                                            .of_experts = (s->name.of_expert ||
                                                           s->name.kind == MEMORY_GROUPED_FC1 ||
                                                           s->name.kind == MEMORY_GROUPED_FC2) &&
                                                          buckets_split_experts(l, true),
                                            .dtype = t->dtype,
                                            .num_dims = t->num_dims,
                                            .shape = t->shape};
        shards[count++] = i;
    }
    return count;
}

/* Adds the states of a rank's file as shards of their weights. */
static void add_rank_states(struct legacy *x, size_t rank, size_t num_weights)
{
    struct checkpoint *c = x->m->c;
    struct arena scratch;
    arena_init(&scratch);
    struct rank_param *params = arena_array(&scratch, num_weights, sizeof *params);
    size_t *shards = arena_array(&scratch, num_weights, sizeof *shards);
    size_t *numbers = arena_array(&scratch, x->states.count, sizeof *numbers);
    const size_t count = list_rank_params(x, &x->ranks[rank], num_weights, params, shards);
    const char *why = rank_states_resolve(&x->states, c, rank, params, count, numbers, &scratch);
    if (why) states_unread(c, "%s", why);
    for (size_t i = 0; i < x->states.count && !why; i++) {
        if (x->states.items[i].rank != rank) continue;
        struct shard s = x->shards[shards[numbers[i]]];
        s.stored = x->states.items[i].stored;
        s.state = x->states.items[i].state;
        *ARENA_PUSH(&c->arena, x->shards, x->num_shards, x->shards_capacity) = s;
    }
    arena_release(&scratch);
}

/* Makes native tensors of the rank files' states. */
static enum status add_legacy_states(struct legacy *x, const bool *moe, struct error *err)
{
    const size_t num_weights = x->num_shards;
    const struct value *args = value_get(x->m->c->training.common, "args");
    enum status st = OK;
    if (!x->states.count) return OK;
    (void)value_as_bool(value_get(args, "apply_wd_to_qk_layernorm"), &x->states.decays_qk_norms);
    x->states.is_split = training_is_split(&x->m->c->training.run);
    for (size_t r = 0; r < x->num_ranks; r++)
        add_rank_states(x, r, num_weights);
    for (size_t i = num_weights; i < x->num_shards && !x->m->c->training.optimizer.unread && !st;
         i++)
        st = legacy_add_native(x, &x->shards[i], moe, err);
    return st;
}

/* Adds the flat states of every distrib_optim.pt. */
static enum status open_flat_states(struct legacy *x, struct error *err)
{
    struct checkpoint *c = x->m->c;
    for (size_t i = 0; i < x->num_ranks; i++) {
        const struct rank *r = &x->ranks[i];
        const char *path = legacy_flat_path(x, r);
        struct torch_file t;
        if (!path_exists(path)) continue;
        if (torch_open(&t, &c->catalog.stored, path, 0, UINT64_MAX, err)) {
            states_unread(c, "%s", err->text);
            continue;
        }
        const char *prefix = arena_printf(&c->arena, "%s/distrib_optim", r->folder);
        enum status st = flat_states_add_file(&x->flat, c, &t, r->tp, r->pp, r->ep, prefix, err);
        torch_close(&t);
        TRY(st);
    }
    return OK;
}

enum status legacy_read_states(struct legacy *x, const bool *moe, struct error *err)
{
    struct checkpoint *c = x->m->c;
    if (x->num_optimizers && x->without)
        states_unread(c, "%s lacks an optimizer, which other rank files have", x->without);
    for (size_t i = 0; i < x->num_ranks && x->has_layer_wise; i++)
        TRY(read_layer_wise(x, &x->ranks[i], err));
    TRY(open_flat_states(x, err));
    TRY(flat_states_place(&x->flat, c, err));
    TRY(add_legacy_states(x, moe, err));
    TRY(megatron_import_states(x->m, err));
    c->training.optimizer.inferred |= x->states.count > 0;
    return states_prove(c, err);
}
