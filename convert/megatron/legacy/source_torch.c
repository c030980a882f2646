/* source_torch.c - reads Megatron-LM's legacy format: a torch.save file per
 * model parallel rank with its shards, by their names in memory.
 *
 *   iter_NNNNNNN/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt
 *       PPP if pp > 1, EEE if ep > 1
 *   {args, checkpoint_version, iteration,
 *    model | model0, model1, ... (virtual stages), optimizer, ...}
 *
 * checkpoint_version before 2.0: rows of query_key_value have other orders
 * (megatron/training/checkpointing.py:fix_query_key_value_ordering); since 2.0,
 * the order of linear_qkv. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"
#include "convert/megatron/args_tree.h"
#include "convert/megatron/describe.h"
#include "convert/megatron/legacy/legacy_source.h"
#include "convert/megatron/megatron_args.h"
#include "formats/pickle.h"

enum { MAX_CHUNKS = 1024, MAX_STAGES = 1 << 20 };

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
        x->has_flat |= path_exists(legacy_flat_path(x, &x->ranks[i]));
    if (x->num_ranks) return OK;
    return fail(err, ERR_IO, "%s: missing folders mp_rank_*", x->m->c->folder);
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
        .path = stored + strlen(w->prefix),
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
    return fail(err, ERR_CORRUPT, "%s: it has neither model nor model0", w->t->path);
}

/* Checks that all rank files are of one iteration. */
static enum status check_iteration(struct legacy *x, const struct torch_file *t, struct error *err)
{
    int64_t first, own;
    if (!value_as_int(value_get(x->m->c->training.common, "iteration"), &first) ||
        !value_as_int(value_get(t->root, "iteration"), &own) || own == first)
        return OK;
    return fail(err, ERR_CORRUPT, "iteration %" PRId64 ", but %s has iteration %" PRId64, own,
                x->ranks[0].folder, first);
}

/* Keeps the first rank's common state: all but model and optimizer. */
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
    if (!st) st = legacy_read_optimizer(x, &t, r, err);
    if (st) st = fail_in(err, "%s", path);
    torch_close(&t);
    return st;
}

/* ---- which rank is which ---- */

static enum status place_ranks(struct legacy *x, struct error *err)
{
    const struct layout *l = &x->m->c->layout;
    for (size_t i = 0; i < x->num_ranks; i++) {
        struct rank *r = &x->ranks[i];
        unsigned expected = 1u + (l->pp > 1) + (l->ep > 1), at = 1;
        if (r->num_numbers != expected)
            return fail(err, ERR_CORRUPT, "%s: args give %s, which requires %u numbers in its name",
                        r->folder, layout_text(l, &x->m->c->arena), expected);
        r->tp = r->numbers[0];
        if (l->pp > 1) r->pp = r->numbers[at++];
        if (l->ep > 1) r->ep = r->numbers[at];
        if (r->tp >= l->tp || r->pp >= l->pp || r->ep >= l->ep)
            return fail(err, ERR_CORRUPT, "%s: args give %s, which has no such rank", r->folder,
                        layout_text(l, &x->m->c->arena));
    }
    return OK;
}

/* ---- stages ---- */

/* Counts each stage's layers, by names in the rank files. */
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

/* Sets each stage's layers from the files: args may lack them, or be of another
 * run. */
static enum status use_stages(struct legacy *x, const struct megatron_evidence *e,
                              struct error *err)
{
    struct checkpoint *c = x->m->c;
    const struct layout_options *written = &x->m->written_layout;
    struct layout *l = &c->layout, by_files;
    struct error why;
    uint64_t pp = max_u64(written->pp, 1), vpp = max_u64(e->layout.virtual_stages, 1);
    if (pp > MAX_STAGES || vpp > MAX_CHUNKS)
        return fail(err, ERR_CORRUPT, "%s: args give %" PRIu64 " pipeline ranks, too many",
                    c->folder, pp);
    const uint64_t *layers = x->hybrid_layers ? x->hybrid_layers : count_layers(x, pp, vpp);
    if (l->stages && l->pp == pp && l->vpp == vpp && has_layers(l, layers)) return OK;
    struct layout_options o = {.tp = written->tp,
                               .pp = pp,
                               .ep = written->ep,
                               .etp = written->etp,
                               .virtual_stages = vpp,
                               .pipeline_layout = layout_of_stages(&c->arena, layers, pp * vpp)};
    if (!layout_make(&by_files, &c->arena, &o, &c->config, &why)) {
        checkpoint_note(
            c, "%s: layers are distributed over stages as in its files, %s, unlike its args",
            c->folder, o.pipeline_layout);
        *l = by_files;
        return OK;
    }
    if (l->stages) return OK; /* missing layers are named later */
    return layout_make(l, &c->arena, written, &c->config, err);
}

/* ---- all ---- */

/* The layout by names of folders and files: mp_rank_TT, mp_rank_TT_PPP. */
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

/* Whether the folders are this layout's for tensor and expert parallel
 * ranks. */
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

static struct layout_options layout_of_args(const struct legacy *x)
{
    struct megatron_facts f = {0};
    cJSON *args = args_tree(value_get(x->m->c->training.common, "args"));
    facts_from_megatron(MEGATRON_ARGS, args, &x->m->c->arena, &f);
    cJSON_Delete(args);
    return f.layout;
}

/* The expert tensor parallel size, which args before Megatron-Core 0.9 lack:
 * with several expert parallel ranks, folders show it, since with etp = tp
 * every tensor parallel rank has a folder for every expert parallel rank. 0:
 * args have it, or folders do not show it. */
static uint64_t etp_of_names(const struct legacy *x)
{
    const struct layout_options o = layout_of_args(x);
    if (o.etp || o.ep < 2 || o.tp < 2 || o.tp > MAX_STAGES || o.ep > MAX_STAGES) return 0;
    for (uint64_t etp = o.tp; etp; etp--) {
        struct layout l = {.tp = o.tp, .ep = o.ep, .etp = etp};
        if (o.tp % etp == 0 && is_layout_of_names(x, &l)) return etp;
    }
    return 0;
}

/* A name in memory with the number of its mixer in the model. mixers: of each
 * stage. */
static const char *global_key(const struct legacy *x, const struct shard *s, const uint64_t *mixers,
                              uint64_t pp)
{
    const uint64_t rank = pp > 1 && s->rank->num_numbers > 1 ? s->rank->numbers[1] : 0;
    const char *dot = s->path;
    uint64_t number = s->name.layer;
    while (text_skip_prefix(&dot, "module.")) {
    }
    if (!s->name.in_layers || !text_skip_prefix(&dot, "decoder.layers.")) return s->path;
    for (uint64_t stage = 0; rank < pp && stage < s->chunk * pp + rank; stage++)
        number += mixers[stage];
    return arena_printf(&x->m->c->arena, "decoder.layers.%" PRIu64 "%s", number, strchr(dot, '.'));
}

/* Gives HybridModel's shards GPTModel's names, if it is one. */
static void rename_hybrid(struct legacy *x)
{
    struct checkpoint *c = x->m->c;
    struct layout_options names;
    layout_of_names(x, &names);
    const uint64_t said = layout_of_args(x).pp, pp = said ? said : names.pp,
                   vpp = max_u64(names.virtual_stages, 1), stages = pp * vpp;
    if (!pp || pp > MAX_STAGES || vpp > MAX_CHUNKS) return; /* refused later */
    uint64_t *mixers = count_layers(x, pp, vpp);
    struct stored keys = {.tensors = arena_array(&c->arena, x->num_shards, sizeof *keys.tensors),
                          .num_tensors = x->num_shards};
    for (size_t i = 0; i < x->num_shards; i++)
        keys.tensors[i].name = global_key(x, &x->shards[i], mixers, pp);
    const struct value *args = value_get(c->training.common, "args");
    const struct hybrid_stack *h =
        hybrid_of_keys(&keys, value_as_text(value_get(args, "hybrid_layer_pattern")), &c->arena);
    if (!h) return;
    x->m->hybrid = h;
    c->hybrid_model = true;
    for (size_t i = 0; i < x->num_shards; i++)
        x->shards[i].name = memory_name_parse(&c->arena, c->params,
                                              hybrid_gpt_key(h, &c->arena, keys.tensors[i].name));
    for (uint64_t s = 0; s < stages; s++)
        mixers[s] /= h->paired ? 2 : 1;
    x->hybrid_layers = mixers;
}

static const char *layer_key(const struct legacy *x, const struct shard *s)
{
    return arena_printf(&x->m->c->arena, "%llu.%llu.%llu", (unsigned long long)s->rank->pp,
                        (unsigned long long)s->chunk, (unsigned long long)s->name.layer);
}

/* In a layer without a fused qkv, the norm before the mixer has a name of its
 * own in every spec. */
static void keep_own_norms(struct legacy *x)
{
    static const char qkv[] = "self_attention.linear_qkv.",
                      fused[] = "self_attention.linear_qkv.layer_norm_";
    struct map with_qkv = {0};
    for (size_t i = 0; i < x->num_shards; i++) {
        const struct shard *s = &x->shards[i];
        if (s->name.in_layers && text_starts_with(s->name.rest, qkv) &&
            !text_starts_with(s->name.rest, fused))
            (void)map_add(&with_qkv, layer_key(x, s), 0, NULL);
    }
    for (size_t i = 0; i < x->num_shards; i++) {
        struct shard *s = &x->shards[i];
        const char *rest = s->name.rest;
        size_t at;
        if (!s->name.local_spec || !text_skip_prefix(&rest, fused)) continue;
        if (map_get(&with_qkv, layer_key(x, s), &at)) continue;
        s->name.rest = arena_printf(&x->m->c->arena, "input_layernorm.%s", rest);
        s->name.local_spec = false;
    }
    map_release(&with_qkv);
}

static void gather_evidence(struct legacy *x, struct megatron_evidence *e)
{
    e->of_ranks = true;
    keep_own_norms(x);
    layout_of_names(x, &e->layout);
    e->layout.etp = etp_of_names(x);
    for (size_t i = 0; i < x->num_shards; i++) {
        const struct shard *s = &x->shards[i];
        const struct stored_tensor *t = &x->m->c->catalog.stored.tensors[s->stored];
        e->local_spec |= s->name.local_spec;
        if (s->name.in_mtp) e->mtp_layers = max_u64(e->mtp_layers, s->name.layer + 1);
        if (s->name.kind != MEMORY_PARAM || s->name.in_mtp) continue;
        evidence_add(e, s->name.rest, s->name.of_expert, 0, t->num_dims, t->shape);
        if (s->name.of_expert && s->name.expert >= e->experts) e->experts = s->name.expert + 1;
    }
}

/* Sets a rank's number of experts; no name may have a higher number. */
static enum status count_experts(struct legacy *x, const struct megatron_evidence *e,
                                 struct error *err)
{
    const struct checkpoint *c = x->m->c;
    x->experts_a_rank = c->config.num_experts / c->layout.ep;
    if (e->experts <= x->experts_a_rank) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: a rank holds at least %" PRIu64
                " experts, but its args or config.json give %" PRIu64 " (%" PRIu64 " on %" PRIu64
                " expert parallel ranks)",
                c->folder, e->experts, x->experts_a_rank, c->config.num_experts, c->layout.ep);
}

/* Sets whether the head is a tied model's copy, by args. Without args and with
 * several stages it is unknown; then it is read as a head, which gives the same
 * logits. */
static void set_tied_head(struct legacy *x, struct megatron_evidence *e)
{
    const struct value *args = value_get(x->m->c->training.common, "args");
    bool untied;
    if (value_as_bool(value_get(args, "untie_embeddings_and_output_weights"), &untied))
        e->output_layer = untied;
    else
        e->head_may_be_copy = e->layout.pp > 1;
}

/* Notes replicated tensors (norms, routers, biases) that differ between ranks:
 * a conversion keeps one. */
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
        checkpoint_note(
            c, "%zu tensors that should be equal on all ranks differ; using the first rank's: %s%s",
            differ, first, differ > 1 ? ", ..." : "");
    return OK;
}

static enum status find_moe_layers(struct legacy *x, bool *moe, struct error *err)
{
    for (size_t i = 0; i < x->num_shards; i++) {
        uint64_t layer;
        if (!x->shards[i].name.in_layers || strcmp(x->shards[i].name.rest, "mlp.router.weight"))
            continue;
        TRY(legacy_global_layer(x, &x->shards[i], &layer, err));
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
        if (legacy_etp_rank(&x->m->c->layout, &x->ranks[i]) == etp && x->ranks[i].ep == ep &&
            x->ranks[i].pp == pp)
            return true;
    return false;
}

/* Checks that every rank of the layout is there, or parts of tensors and
 * experts would be missing: a rank per part of tensor parallelism, and per part
 * of the experts. */
static enum status check_rank_folders(struct legacy *x, struct error *err)
{
    const struct checkpoint *c = x->m->c;
    const struct layout *l = &c->layout;
    const char *said = layout_text(l, &x->m->c->arena);
    uint64_t expert_ranks = c->config.num_experts ? l->etp * l->ep : 0;
    for (uint64_t pp = 0; pp < l->pp; pp++) {
        for (uint64_t tp = 0; tp < l->tp; tp++)
            if (!has_rank(x, tp, pp))
                return fail(err, ERR_CORRUPT,
                            "%s: missing folder of tensor rank %" PRIu64 ", pipeline rank %" PRIu64
                            "; args give %s",
                            c->folder, tp, pp, said);
        for (uint64_t r = 0; r < expert_ranks; r++)
            if (!has_expert_rank(x, r % l->etp, r / l->etp, pp))
                return fail(err, ERR_CORRUPT,
                            "%s: missing folder of expert rank %" PRIu64
                            ", expert tensor rank %" PRIu64 ", pipeline rank %" PRIu64
                            " with its experts; args give %s",
                            c->folder, r / l->etp, r % l->etp, pp, said);
    }
    return OK;
}

static enum status open_ranks(struct legacy *x, struct error *err)
{
    TRY(list_ranks(x, err));
    for (size_t i = 0; i < x->num_ranks; i++)
        TRY(open_rank(x, &x->ranks[i], err));
    return OK;
}

static enum status join_ranks(struct legacy *x, struct error *err)
{
    struct megatron_evidence evidence = {0};
    struct checkpoint *c = x->m->c;
    rename_hybrid(x);
    gather_evidence(x, &evidence);
    set_tied_head(x, &evidence);
    evidence.te_spec = !evidence.local_spec;
    TRY(megatron_describe(x->m, &evidence, err));
    TRY(use_stages(x, &evidence, err));
    TRY(count_experts(x, &evidence, err));
    TRY(place_ranks(x, err));
    TRY(check_rank_folders(x, err));
    bool *moe = arena_array(&c->arena, c->config.num_layers, sizeof *moe);
    TRY(find_moe_layers(x, moe, err));
    for (size_t i = 0; i < x->num_shards; i++)
        TRY(legacy_add_native(x, &x->shards[i], moe, err));
    TRY(megatron_import(x->m, err));
    TRY(legacy_read_states(x, moe, err));
    TRY(legacy_check_tied(x, err));
    return compare_copies(x, err);
}

static enum status read_torch(struct megatron_source *m, struct error *err)
{
    struct legacy x = {.m = m};
    training_source_begin(&x.training, m->c);
    enum status st = open_ranks(&x, err);
    training_source_end(&x.training);
    if (!st) st = join_ranks(&x, err);
    flat_states_release(&x.flat);
    map_release(&x.seen);
    return st;
}

static bool matches_torch(const char *path, const struct source_options *o)
{
    return megatron_files_of(path, o) == MEGATRON_RANKS;
}

static enum status open_torch(struct checkpoint *c, const struct source_options *o,
                              const struct model_maps *maps, struct error *err)
{
    struct megatron_source m = {.c = c, .o = o, .maps = maps};
    return megatron_open(&m, read_torch, err);
}

const struct source_kind source_torch = {matches_torch, open_torch};
