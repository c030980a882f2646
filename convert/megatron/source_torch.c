/* source_torch.c - reads Megatron-LM's legacy format: a torch.save file for each model-parallel
 * rank, with the rank's shards under their names in memory.
 *
 *   iter_NNNNNNN/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt    PPP if pp > 1, EEE if ep > 1
 *   {args, checkpoint_version, iteration, model | model0, model1, ... (virtual stages), optimizer,
 *   ...}
 *
 * checkpoint_version before 2.0: the rows of query_key_value have other orders
 * (megatron/training/checkpointing.py:fix_query_key_value_ordering); from 2.0 on, the order of
 * linear_qkv. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/checked.h"
#include "common/count.h"
#include "convert/megatron/args_tree.h"
#include "convert/megatron/describe.h"
#include "convert/megatron/megatron_args.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_source.h"
#include "convert/megatron/optim/flat_place.h"
#include "convert/megatron/optim/rank_states.h"
#include "convert/megatron/optim/training_source.h"
#include "convert/states.h"
#include "formats/torch.h"

enum { MAX_CHUNKS = 1024, MAX_STAGES = 1 << 20 };

struct rank {
    const char *folder;  /* mp_rank_... */
    uint64_t numbers[3]; /* the numbers in its name */
    unsigned num_numbers;
    uint64_t tp, pp, ep;
};

/* One tensor of one rank's file: a weight, or a state of one. */
struct shard {
    size_t stored; /* index of the stored tensor */
    const struct rank *rank;
    uint64_t chunk;
    struct memory_name name;
    const char *state;   /* of the optimizer; NULL: a weight */
    const char *storage; /* of a weight: identifies the storage that it is a view of, */
    uint64_t offset;     /* and its first element there */
};

/* A tensor that several tensor parallel ranks hold whole: the one of a rank other than the first,
 * whose copy is used. */
struct copy {
    size_t stored, first; /* indices of stored tensors */
};

struct legacy {
    struct megatron_source *m;
    struct rank *ranks;
    size_t num_ranks, ranks_capacity;
    struct shard *shards;
    size_t num_shards, shards_capacity;
    double version;
    uint64_t experts_a_rank;
    struct map seen; /* "NAME:RANK" of shards that were added -> index */
    struct copy *copies;
    size_t num_copies, copies_capacity;
    struct rank_states states; /* of optimizers in the rank files, */
    struct flat_states flat;   /* and in distrib_optim.pt beside them */
    bool has_flat;             /* there is one beside any rank file */
    size_t num_optimizers;     /* rank files with an optimizer */
    const char *without;       /* path of a rank file that has none; NULL: none */
    struct training_source training;
};

/* ---- rank files ---- */

static bool parse_rank(const char *name, struct rank *r)
{
    const char *at = name + strlen("mp_rank");
    *r = (struct rank){.folder = name};
    if (strncmp(name, "mp_rank_", strlen("mp_rank_"))) return false;
    while (*at == '_' && isdigit((unsigned char)at[1]) && r->num_numbers < 3) {
        char *end;
        r->numbers[r->num_numbers++] = strtoull(at + 1, &end, 10);
        at = end;
    }
    return *at == '\0' && r->num_numbers;
}

static const char *flat_path(struct legacy *x, const struct rank *r)
{
    struct arena *a = &x->m->c->arena;
    return path_join(a, path_join(a, x->m->c->folder, r->folder), "distrib_optim.pt");
}

static enum status list_ranks(struct legacy *x, struct error *err)
{
    struct arena *a = &x->m->c->arena;
    struct name_list list;
    struct rank r;
    TRY(folder_list(x->m->c->folder, a, &list, err));
    for (size_t i = 0; i < list.count; i++)
        if (parse_rank(list.names[i], &r))
            *ARENA_PUSH(a, x->ranks, x->num_ranks, x->ranks_capacity) = r;
    for (size_t i = 0; i < x->num_ranks; i++)
        x->has_flat |= path_exists(flat_path(x, &x->ranks[i]));
    if (x->num_ranks) return OK;
    return fail(err, ERR_IO, "%s: no folder mp_rank_*", x->m->c->folder);
}

static const char *rank_file(const struct legacy *x, const struct rank *r)
{
    struct arena *a = &x->m->c->arena;
    const char *folder = path_join(a, x->m->c->folder, r->folder);
    const char *old = path_join(a, folder, "model_rng.pt");
    const char *path = path_join(a, folder, "model_optim_rng.pt");
    return !path_exists(path) && path_exists(old) ? old : path;
}

/* ---- tensors of one file ---- */

struct walking {
    struct legacy *x;
    struct torch_file *t;
    const struct rank *rank;
    uint64_t chunk;
    const char *prefix;
};

static enum status add_shard(void *context, const char *path, const struct value *tensor,
                             struct error *err)
{
    struct walking *w = context;
    struct checkpoint *c = w->x->m->c;
    struct memory_name name =
        memory_name_parse(&c->arena, c->params, arena_printf(&c->arena, "%s", path));
    const char *stored = arena_printf(&c->arena, "%s%s", w->prefix, path);
    if (name.kind == MEMORY_SKIP) return OK;
    TRY(torch_add_tensor(w->t, &c->catalog.stored, stored, tensor, err));
    const struct value_tensor *view = tensor->tensor;
    *ARENA_PUSH(&c->arena, w->x->shards, w->x->num_shards, w->x->shards_capacity) = (struct shard){
        .stored = c->catalog.stored.num_tensors - 1,
        .rank = w->rank,
        .chunk = w->chunk,
        .name = name,
        .storage = arena_printf(&c->arena, "%s:%s", w->rank->folder, view->storage->key),
        .offset = view->offset};
    return OK;
}

static enum status walk_model(struct walking *w, const struct value *model, const char *key,
                              struct error *err)
{
    w->prefix = arena_printf(&w->x->m->c->arena, "%s/%s.", w->rank->folder, key);
    return value_walk(model, "", add_shard, w, err);
}

static enum status walk_models(struct walking *w, struct error *err)
{
    const struct value *model = value_get(w->t->root, "model");
    char key[16];
    if (model) return walk_model(w, model, "model", err);
    for (w->chunk = 0; w->chunk < MAX_CHUNKS; w->chunk++) {
        snprintf(key, sizeof key, "model%u", (unsigned)w->chunk);
        model = value_get(w->t->root, key);
        if (!model) break;
        TRY(walk_model(w, model, key, err));
    }
    if (w->chunk) return OK;
    return fail(err, ERR_CORRUPT, "%s: neither model nor model0", w->t->path);
}

/* Adds the states of the optimizer in a rank file, and what it says of the training. */
static enum status read_optimizer(struct legacy *x, struct torch_file *t, const struct rank *r,
                                  struct error *err)
{
    struct checkpoint *c = x->m->c;
    struct optimizer_info *o = &c->training.optimizer;
    struct value *outline;
    const struct value *optimizer = value_get(t->root, "optimizer");
    const char *prefix = arena_printf(&c->arena, "%s/optimizer", r->folder);
    const size_t before = c->catalog.stored.num_tensors;
    struct stat st;
    if (stat(flat_path(x, r), &st) == 0) o->size_bytes += (uint64_t)st.st_size;
    if (!x->has_flat && !optimizer) {
        x->without = arena_copy_text(&c->arena, t->path);
        return OK;
    }
    o->present = true;
    o->kind =
        x->has_flat ? "distributed, in distrib_optim.pt" : "not distributed, in the rank files";
    if (!optimizer || optimizer->kind == VALUE_NONE) {
        x->without = arena_copy_text(&c->arena, t->path);
        return OK;
    }
    x->num_optimizers++;
    TRY(value_copy(&c->arena, rank_states_outline(optimizer, &t->arena), &outline, err));
    training_source_optimizer(&x->training, outline, t->path, 0, UINT64_MAX);
    if (!x->has_flat)
        TRY(rank_states_add(&x->states, c, t, optimizer, (size_t)(r - x->ranks), prefix, err));
    for (size_t i = before; i < c->catalog.stored.num_tensors; i++)
        o->size_bytes += stored_tensor_bytes(&c->catalog.stored.tensors[i]);
    return OK;
}

/* All rank files are of one iteration. */
static enum status check_iteration(struct legacy *x, const struct torch_file *t, struct error *err)
{
    int64_t first, own;
    if (!value_as_int(value_get(x->m->c->training.common, "iteration"), &first) ||
        !value_as_int(value_get(t->root, "iteration"), &own) || own == first)
        return OK;
    return fail(err, ERR_CORRUPT, "iteration %" PRId64 "; %s is of iteration %" PRId64, own,
                x->ranks[0].folder, first);
}

/* Keeps the first rank's common state: everything but the model and the optimizer. */
static enum status keep_common(struct legacy *x, const struct torch_file *t, struct error *err)
{
    static const char *const keys[] = {"args",
                                       "checkpoint_version",
                                       "iteration",
                                       "opt_param_scheduler",
                                       "lr_scheduler",
                                       "num_floating_point_operations_so_far",
                                       "content_metadata"};
    struct checkpoint *c = x->m->c;
    struct value *common = value_dict(&c->arena);
    for (size_t i = 0; i < COUNT(keys); i++) {
        const struct value *v = value_get(t->root, keys[i]);
        struct value *copy;
        if (!v) continue;
        TRY(value_copy(&c->arena, v, &copy, err));
        value_dict_set(&c->arena, common, keys[i], copy);
    }
    c->training.common = common;
    c->training.run.has_rng = value_get(t->root, "rng_state") != NULL;
    training_source_common(&x->training, t->path, 0, UINT64_MAX);
    (void)value_as_float(value_get(common, "checkpoint_version"), &x->version);
    return OK;
}

static enum status open_rank(struct legacy *x, const struct rank *r, struct error *err)
{
    struct torch_file t;
    struct walking w = {.x = x, .t = &t, .rank = r};
    struct checkpoint *c = x->m->c;
    const char *path = rank_file(x, r);
    TRY(torch_open(&t, &c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = c->training.common ? check_iteration(x, &t, err) : keep_common(x, &t, err);
    if (!st) st = walk_models(&w, err);
    if (!st) st = read_optimizer(x, &t, r, err);
    if (st) st = fail_in(err, "%s", path);
    torch_close(&t);
    return st;
}

/* ---- which rank is which ---- */

/* The expert tensor parallel rank of a rank file, if etp divides tp. */
static uint64_t etp_rank(const struct layout *l, const struct rank *r)
{
    return r->tp % l->etp;
}

static enum status place_ranks(struct legacy *x, struct error *err)
{
    const struct layout *l = &x->m->c->layout;
    for (size_t i = 0; i < x->num_ranks; i++) {
        struct rank *r = &x->ranks[i];
        unsigned expected = 1u + (l->pp > 1) + (l->ep > 1), at = 1;
        if (r->num_numbers != expected)
            return fail(err, ERR_CORRUPT, "%s: args say %s, for which its name has %u numbers",
                        r->folder, layout_text(l, &x->m->c->arena), expected);
        r->tp = r->numbers[0];
        if (l->pp > 1) r->pp = r->numbers[at++];
        if (l->ep > 1) r->ep = r->numbers[at];
        if (r->tp >= l->tp || r->pp >= l->pp || r->ep >= l->ep)
            return fail(err, ERR_CORRUPT, "%s: args say %s, which has no such rank", r->folder,
                        layout_text(l, &x->m->c->arena));
    }
    return OK;
}

/* ---- stages ---- */

/* The number of layers of each stage, by the names in the rank files. */
static uint64_t *count_layers(const struct legacy *x, uint64_t pp, uint64_t vpp)
{
    uint64_t *layers = arena_array(&x->m->c->arena, pp * vpp, sizeof *layers);
    for (size_t i = 0; i < x->num_shards; i++) {
        const struct shard *s = &x->shards[i];
        uint64_t rank = pp > 1 && s->rank->num_numbers > 1 ? s->rank->numbers[1] : 0;
        if (!s->name.in_layers || rank >= pp || s->chunk >= vpp) continue;
        uint64_t *n = &layers[s->chunk * pp + rank];
        *n = max_u64(*n, s->name.layer + 1);
    }
    return layers;
}

static bool has_layers(const struct layout *l, const uint64_t *layers)
{
    for (uint64_t i = 0; i < l->pp * l->vpp; i++)
        if (l->stages[i].num_layers != layers[i]) return false;
    return true;
}

/* "Et*3|t*5|t*4L" */
static const char *layout_of_stages(struct arena *a, const uint64_t *layers, uint64_t stages)
{
    struct strbuf text = {0};
    for (uint64_t i = 0; i < stages; i++) {
        strbuf_add_text(&text, i ? "|" : "E");
        if (layers[i]) strbuf_printf(&text, "t*%" PRIu64, layers[i]);
    }
    strbuf_add_char(&text, 'L');
    const char *kept = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return kept;
}

/* Sets the layers of each stage from the files: args may lack them, or be of another run. */
static enum status use_stages(struct legacy *x, const struct megatron_evidence *e,
                              struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct layout_options *written = &x->m->written_layout;
    struct layout *l = &c->layout, by_files;
    struct error why;
    uint64_t pp = max_u64(written->pp, 1), vpp = max_u64(e->layout.virtual_stages, 1);
    if (pp > MAX_STAGES || vpp > MAX_CHUNKS)
        return fail(err, ERR_CORRUPT, "%s: args say %" PRIu64 " pipeline ranks", c->folder, pp);
    const uint64_t *layers = count_layers(x, pp, vpp);
    if (l->stages && l->pp == pp && l->vpp == vpp && has_layers(l, layers)) return OK;
    struct layout_options o = {.tp = written->tp,
                               .pp = pp,
                               .ep = written->ep,
                               .etp = written->etp,
                               .virtual_stages = vpp,
                               .pipeline_layout = layout_of_stages(&c->arena, layers, pp * vpp)};
    if (!layout_make(&by_files, &c->arena, &o, &c->config, &why)) {
        checkpoint_note(
            c,
            "%s: layers are distributed over the stages as its files have them, %s; its "
            "args say otherwise",
            c->folder, o.pipeline_layout);
        *l = by_files;
        return OK;
    }
    if (l->stages) return OK; /* missing layers are named later */
    return layout_make(l, &c->arena, written, &c->config, err);
}

/* ---- own tensors: the parameters of the model ---- */

/* Pairs (our order, the version's) of the rows of query_key_value in one rank's tensor: n heads of
 * d rows, 3 tensors, `columns` elements a row. */
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
    struct own_tensor *own;
    const struct stored_tensor *stored;
};

static enum status add_reordered(void *context, const struct pair *p, struct error *err)
{
    const struct placing *x = context;
    return catalog_add_own_part(x->c, x->own, x->stored, p, err);
}

/* Adds one shard's part of a parameter: joins (whole, local) with (local, stored). */
static enum status add_part(struct placing *to, const struct pair *part, const struct pair *order,
                            struct error *err)
{
    struct pair by_local = *part;
    TRY(pair_turn(&by_local, to->own->name, err));
    if (!pair_count(&by_local)) return add_reordered(to, part, err); /* adds the name only */
    return pair_join(&by_local, order, to->own->name, add_reordered, to, err);
}

/* Tells where a weight lies in its storage: in the buffer of a distributed optimizer, if that is
 * it. */
static void tell_place(struct legacy *x, const struct shard *s, const char *name,
                       const struct param *p)
{
    const struct layout *l = &x->m->c->layout;
    const unsigned chained = l->ep > 1 || l->etp != l->tp ? 2 : 1;
    const unsigned optimizer = chained > 1 && p->spec && param_of_expert(p->spec);
    const struct bucket_cell cell =
        flat_cell_of_rank(l, s->rank->tp, s->rank->pp, s->rank->ep, optimizer, chained);
    flat_states_add_weight(&x->flat, x->m->c, name, &cell, s->storage, s->offset);
}

/* Adds a rank's shard to the own tensor `name`, a parameter. local_shape: the shard's shape; order:
 * its elements in the stored tensor. If several ranks hold the same elements, the first rank's are
 * used. */
static enum status add_param(struct legacy *x, const struct shard *s, const char *name,
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
    uint64_t rank = by_etp ? etp_rank(l, s->rank) : s->rank->tp;
    const char *key = arena_printf(&c->arena, "%s:%s:%" PRIu64, s->state ? s->state : "", name,
                                   p.spec->split < 0 ? 0 : rank);
    size_t first = s->stored;
    if (!s->state) tell_place(x, s, name, &p);
    if (!map_add(&x->seen, key, s->stored, &first)) {
        if (p.spec->split < 0 && !s->state)
            *ARENA_PUSH(&c->arena, x->copies, x->num_copies, x->copies_capacity) =
                (struct copy){s->stored, first};
        return OK;
    }
    TRY(param_whole_shape(p.spec, stored->name, num_dims, local_shape, ranks, shape, err));
    TRY(param_shard(p.spec, name, num_dims, shape, rank, ranks, PARAM_STORED, &parts, err));
    struct placing to = {.c = &c->catalog, .stored = stored};
    TRY(catalog_add_own(to.c, name, s->state, stored->dtype, num_dims, shape, &to.own, err));
    for (unsigned i = 0; i < parts.count; i++)
        TRY(add_part(&to, &parts.pairs[i], order, err));
    return OK;
}

/* GroupedMLP keeps its experts in one tensor, in memory [experts, hidden, rows] or [experts,
 * columns, hidden], whatever its shape says. So each is the transpose of a sequential expert's
 * tensor. */
static enum status add_grouped(struct legacy *x, const struct shard *s, uint64_t layer,
                               struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct stored_tensor *t = &c->catalog.stored.tensors[s->stored];
    bool fc1 = s->name.kind == MEMORY_GROUPED_FC1;
    uint64_t experts = x->experts_a_rank, hidden = c->config.hidden_size, n = stored_numel(t);
    if (!experts)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its args do not say how many experts it holds; --hf-config DIR can",
                    t->name);
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
        TRY(add_param(x, s, name, 2, shape, &order, err));
    }
    return OK;
}

static enum status global_layer(const struct legacy *x, const struct shard *s, uint64_t *layer,
                                struct error *err)
{
    const struct layout *l = &x->m->c->layout;
    const struct stage *stage = s->chunk < l->vpp ? layout_stage(l, s->chunk, s->rank->pp) : NULL;
    if (stage && s->name.layer < stage->num_layers) {
        *layer = stage->first_layer + s->name.layer;
        return OK;
    }
    return fail(err, ERR_CORRUPT, "%s: by its args this stage has %" PRIu64 " layers",
                x->m->c->catalog.stored.tensors[s->stored].name, stage ? stage->num_layers : 0);
}

/* Whether a shard is the copy of the embedding that the last stage of a tied model keeps as its
 * head, if that is not the first stage. */
static bool is_tied_copy(const struct legacy *x, const struct shard *s)
{
    const struct layout *l = &x->m->c->layout;
    return strcmp(s->name.rest, "output_layer.weight") == 0 &&
           !x->m->c->config.untie_embeddings_and_output_weights && s->chunk < l->vpp &&
           !layout_stage(l, s->chunk, s->rank->pp)->embedding;
}

static const struct shard *embedding_of(const struct legacy *x, uint64_t tp)
{
    for (size_t i = 0; i < x->num_shards; i++)
        if (x->shards[i].rank->tp == tp &&
            strcmp(x->shards[i].name.rest, "embedding.word_embeddings.weight") == 0)
            return &x->shards[i];
    return NULL;
}

/* The head on the last stage of a tied model must equal the embedding on the first: otherwise the
 * two were trained apart, and one would be lost. */
static enum status check_tied_copies(struct legacy *x, struct error *err)
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
                        "%s and %s differ at element %" PRIu64
                        ", but its args say that they are tied "
                        "(untie_embeddings_and_output_weights)",
                        head->name, first->name, at);
    }
    return OK;
}

static enum status add_own(struct legacy *x, const struct shard *s, const bool *moe,
                           struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct stored_tensor *t = &c->catalog.stored.tensors[s->stored];
    uint64_t layer = 0, expert = s->name.expert + s->rank->ep * x->experts_a_rank;
    if (s->name.kind == MEMORY_UNKNOWN) {
        gaps_add_unexpected(&c->gaps, &c->arena, t->name);
        return OK;
    }
    if (s->name.in_layers) TRY(global_layer(x, s, &layer, err));
    if (is_tied_copy(x, s)) {
        const struct param none = {0};
        if (!s->state) tell_place(x, s, "output_layer.weight", &none);
        return OK;
    }
    if (s->name.kind != MEMORY_PARAM) return add_grouped(x, s, layer, err);
    struct pair order = pair_whole(0, 0, stored_numel(t));
    if (s->name.fused_qkv && x->version < 2) {
        uint64_t d = c->config.kv_channels, columns = t->num_dims > 1 ? t->shape[1] : 1;
        if (c->config.num_query_groups != c->config.num_attention_heads || !d ||
            t->shape[0] % (3 * d))
            return fail(err, ERR_UNSUPPORTED,
                        "%s: checkpoint_version %g with grouped queries or %" PRIu64 " rows",
                        t->name, x->version, t->shape[0]);
        order = qkv_order(x->version, t->shape[0] / (3 * d), d, columns);
    }
    const char *name = memory_name_logical(&c->arena, c->params, &s->name, layer, expert,
                                           s->name.in_layers && moe[layer]);
    return add_param(x, s, name, t->num_dims, t->shape, &order, err);
}

/* ---- all ---- */

/* The layout that the names of folders and files show: mp_rank_TT, mp_rank_TT_PPP. */
static void layout_of_names(const struct legacy *x, struct layout_options *o)
{
    *o = (struct layout_options){.tp = 1, .pp = 1};
    for (size_t i = 0; i < x->num_ranks; i++) {
        const struct rank *r = &x->ranks[i];
        if (r->numbers[0] >= o->tp) o->tp = r->numbers[0] + 1;
        if (r->num_numbers > 1 && r->numbers[1] >= o->pp) o->pp = r->numbers[1] + 1;
    }
    for (size_t i = 0; i < x->num_shards; i++)
        if (x->shards[i].chunk >= o->virtual_stages) o->virtual_stages = x->shards[i].chunk + 1;
}

/* Whether the folders are those that this layout has for its tensor and expert parallel ranks. */
static bool is_layout_of_names(const struct legacy *x, const struct layout *l)
{
    bool same = true;
    for (uint64_t tp = 0; tp < l->tp; tp++)
        for (uint64_t ep = 0; ep < l->ep; ep++) {
            bool there = false;
            for (size_t i = 0; i < x->num_ranks; i++)
                there |= x->ranks[i].numbers[0] == tp &&
                         x->ranks[i].numbers[x->ranks[i].num_numbers - 1] == ep;
            same &= there == layout_has_rank(l, tp, ep);
        }
    return same;
}

/* Args from before Megatron-Core 0.9 have no expert tensor parallel size. With several expert
 * parallel ranks, the folders show it: if etp is tp, every tensor parallel rank has a folder for
 * every expert parallel rank. 0: args have the size, or the folders do not show it. */
static uint64_t etp_of_names(const struct legacy *x)
{
    struct megatron_facts f = {0};
    cJSON *args = args_tree(value_get(x->m->c->training.common, "args"));
    facts_from_megatron(MEGATRON_ARGS, args, &x->m->c->arena, &f);
    cJSON_Delete(args);
    const struct layout_options o = f.layout;
    if (o.etp || o.ep < 2 || o.tp < 2 || o.tp > MAX_STAGES || o.ep > MAX_STAGES) return 0;
    for (uint64_t etp = o.tp; etp; etp--) {
        struct layout l = {.tp = o.tp, .ep = o.ep, .etp = etp};
        if (o.tp % etp == 0 && is_layout_of_names(x, &l)) return etp;
    }
    return 0;
}

static void gather_evidence(struct legacy *x, struct megatron_evidence *e)
{
    e->of_ranks = true;
    layout_of_names(x, &e->layout);
    e->layout.etp = etp_of_names(x);
    for (size_t i = 0; i < x->num_shards; i++) {
        const struct shard *s = &x->shards[i];
        const struct stored_tensor *t = &x->m->c->catalog.stored.tensors[s->stored];
        e->local_spec |= s->name.local_spec;
        if (s->name.kind != MEMORY_PARAM) continue;
        evidence_add(e, s->name.rest, s->name.of_expert, 0, t->num_dims, t->shape);
        if (s->name.of_expert && s->name.expert >= e->experts) e->experts = s->name.expert + 1;
    }
}

/* Sets the number of experts of one rank; no name may have a higher number. */
static enum status count_experts(struct legacy *x, const struct megatron_evidence *e,
                                 struct error *err)
{
    const struct checkpoint *c = x->m->c;
    x->experts_a_rank = c->config.num_experts / c->layout.ep;
    if (e->experts <= x->experts_a_rank) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: a rank holds %" PRIu64
                " experts or more; by its args or config.json it has %" PRIu64 " (%" PRIu64
                " on %" PRIu64 " expert parallel ranks)",
                c->folder, e->experts, x->experts_a_rank, c->config.num_experts, c->layout.ep);
}

/* Tells whether the head is the copy of a tied model: args say it. Without args and with several
 * stages it cannot be known; then it is read as a head, which gives the same logits. */
static void tell_tied(struct legacy *x, struct megatron_evidence *e)
{
    const struct value *args = value_get(x->m->c->training.common, "args");
    bool untied;
    if (value_as_bool(value_get(args, "untie_embeddings_and_output_weights"), &untied))
        e->output_layer = untied;
    else
        e->head_may_be_copy = e->layout.pp > 1;
}

/* Notes tensors that all ranks hold (norms, routers, biases) and in which they differ: a conversion
 * keeps one. */
static enum status compare_copies(struct legacy *x, struct error *err)
{
    struct checkpoint *c = x->m->c;
    size_t differ = 0;
    const char *first = NULL;
    for (size_t i = 0; i < x->num_copies; i++) {
        const struct stored_tensor *a = &c->catalog.stored.tensors[x->copies[i].first],
                                   *b = &c->catalog.stored.tensors[x->copies[i].stored];
        bool same;
        uint64_t at;
        TRY(source_same_stored(c, a, b, &same, &at, err));
        if (!same && !differ++)
            first = arena_printf(&c->arena, "%s and %s at element %" PRIu64, a->name, b->name, at);
    }
    if (differ)
        checkpoint_note(c,
                        "%zu tensors that should be equal on all ranks differ; those of the "
                        "first rank are used: %s%s",
                        differ, first, differ > 1 ? ", ..." : "");
    return OK;
}

static enum status find_moe_layers(struct legacy *x, bool *moe, struct error *err)
{
    for (size_t i = 0; i < x->num_shards; i++) {
        uint64_t layer;
        if (!x->shards[i].name.in_layers || strcmp(x->shards[i].name.rest, "mlp.router.weight"))
            continue;
        TRY(global_layer(x, &x->shards[i], &layer, err));
        moe[layer] = true;
    }
    return OK;
}

static bool has_rank(const struct legacy *x, uint64_t tp, uint64_t pp)
{
    for (size_t i = 0; i < x->num_ranks; i++)
        if (x->ranks[i].tp == tp && x->ranks[i].pp == pp) return true;
    return false;
}

static bool has_expert_rank(const struct legacy *x, uint64_t etp, uint64_t ep, uint64_t pp)
{
    for (size_t i = 0; i < x->num_ranks; i++)
        if (etp_rank(&x->m->c->layout, &x->ranks[i]) == etp && x->ranks[i].ep == ep &&
            x->ranks[i].pp == pp)
            return true;
    return false;
}

/* Every rank of the layout must be there, or parts of tensors and experts would be missing: a rank
 * for each part of tensor parallelism, and one for each part of the experts. */
static enum status check_ranks(struct legacy *x, struct error *err)
{
    const struct checkpoint *c = x->m->c;
    const struct layout *l = &c->layout;
    const char *said = layout_text(l, &x->m->c->arena);
    uint64_t expert_ranks = c->config.num_experts ? l->etp * l->ep : 0;
    for (uint64_t pp = 0; pp < l->pp; pp++) {
        for (uint64_t tp = 0; tp < l->tp; tp++)
            if (!has_rank(x, tp, pp))
                return fail(err, ERR_CORRUPT,
                            "%s: no folder of tensor rank %" PRIu64 ", pipeline rank %" PRIu64
                            "; args say %s",
                            c->folder, tp, pp, said);
        for (uint64_t r = 0; r < expert_ranks; r++)
            if (!has_expert_rank(x, r % l->etp, r / l->etp, pp))
                return fail(err, ERR_CORRUPT,
                            "%s: no folder of expert rank %" PRIu64 ", expert tensor rank %" PRIu64
                            ", pipeline rank %" PRIu64 ": its experts are missing; args say %s",
                            c->folder, r / l->etp, r % l->etp, pp, said);
    }
    return OK;
}

/* ---- the optimizer ---- */

/* Whether a weight is a parameter that is trained. */
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

/* Lists the trained weights of a rank, in the order of its file. */
static size_t list_params(struct legacy *x, const struct rank *r, size_t num_weights,
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
                                                          (l->ep > 1 || l->etp != l->tp),
                                            .dtype = t->dtype,
                                            .num_dims = t->num_dims,
                                            .shape = t->shape};
        shards[count++] = i;
    }
    return count;
}

/* Adds the states of one rank's file as shards, of the weights that they belong to. */
static void add_rank_states(struct legacy *x, size_t rank, size_t num_weights)
{
    struct checkpoint *c = x->m->c;
    struct arena scratch;
    arena_init(&scratch);
    struct rank_param *params = arena_array(&scratch, num_weights, sizeof *params);
    size_t *shards = arena_array(&scratch, num_weights, sizeof *shards);
    size_t *numbers = arena_array(&scratch, x->states.count, sizeof *numbers);
    const size_t count = list_params(x, &x->ranks[rank], num_weights, params, shards);
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

/* Makes own tensors of the states in the rank files. */
static enum status add_states(struct legacy *x, const bool *moe, struct error *err)
{
    const size_t num_weights = x->num_shards;
    const struct value *args = value_get(x->m->c->training.common, "args");
    enum status st = OK;
    if (!x->states.count) return OK;
    (void)value_as_bool(value_get(args, "apply_wd_to_qk_layernorm"), &x->states.decays_qk_norms);
    for (size_t r = 0; r < x->num_ranks; r++)
        add_rank_states(x, r, num_weights);
    for (size_t i = num_weights; i < x->num_shards && !x->m->c->training.optimizer.unread && !st;
         i++)
        st = add_own(x, &x->shards[i], moe, err);
    return st;
}

/* Adds the flat states of each distrib_optim.pt. */
static enum status open_flat_states(struct legacy *x, struct error *err)
{
    struct checkpoint *c = x->m->c;
    for (size_t i = 0; i < x->num_ranks; i++) {
        const struct rank *r = &x->ranks[i];
        const char *path = flat_path(x, r);
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

static enum status read_states(struct legacy *x, const bool *moe, struct error *err)
{
    struct checkpoint *c = x->m->c;
    if (x->num_optimizers && x->without)
        states_unread(c, "%s has no optimizer, and other rank files have one", x->without);
    TRY(open_flat_states(x, err));
    TRY(flat_states_place(&x->flat, c, err));
    TRY(add_states(x, moe, err));
    TRY(megatron_import_states(x->m, err));
    c->training.optimizer.inferred |= x->states.count > 0;
    return states_prove(c, err);
}

static enum status open_all(struct legacy *x, struct error *err)
{
    struct megatron_evidence evidence = {0};
    struct checkpoint *c = x->m->c;
    TRY(list_ranks(x, err));
    for (size_t i = 0; i < x->num_ranks; i++)
        TRY(open_rank(x, &x->ranks[i], err));
    gather_evidence(x, &evidence);
    tell_tied(x, &evidence);
    evidence.te_spec = !evidence.local_spec;
    TRY(megatron_describe(x->m, &evidence, err));
    TRY(use_stages(x, &evidence, err));
    TRY(count_experts(x, &evidence, err));
    TRY(place_ranks(x, err));
    TRY(check_ranks(x, err));
    bool *moe = arena_array(&c->arena, c->config.num_layers, sizeof *moe);
    TRY(find_moe_layers(x, moe, err));
    for (size_t i = 0; i < x->num_shards; i++)
        TRY(add_own(x, &x->shards[i], moe, err));
    TRY(megatron_import(x->m, err));
    TRY(read_states(x, moe, err));
    TRY(check_tied_copies(x, err));
    return compare_copies(x, err);
}

static enum status read_torch(struct megatron_source *m, struct error *err)
{
    struct legacy x = {.m = m};
    training_source_begin(&x.training, m->c);
    enum status st = open_all(&x, err);
    training_source_end(&x.training);
    flat_states_release(&x.flat);
    map_release(&x.seen);
    return st;
}

static bool matches_torch(const char *path, const struct source_options *o)
{
    bool is_dist;
    return megatron_iteration_is_dist(path, o, &is_dist) && !is_dist;
}

static enum status open_torch(struct checkpoint *c, const struct source_options *o,
                              const struct model_maps *maps, struct error *err)
{
    struct megatron_source m = {.c = c, .o = o, .maps = maps};
    return megatron_open(&m, read_torch, err);
}

const struct source_kind source_torch = {matches_torch, open_torch};
