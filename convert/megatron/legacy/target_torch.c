/* target_torch.c - writes Megatron-LM's legacy format, which source_torch.c
 * reads: a file per model parallel rank. Megatron-LM loads it strictly by names
 * in memory.
 *
 * A file is named by tensor, pipeline and expert parallel rank, from which the
 * expert tensor parallel rank must follow: tp_rank % etp, if etp divides tp.
 * Files are those of the (tensor, expert) rank pairs that some rank of a stage
 * has. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "convert/carried.h"
#include "convert/format.h"
#include "convert/megatron/legacy/flat_write.h"
#include "convert/megatron/legacy/rank_write.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_target.h"
#include "convert/megatron/optim/rng_states.h"
#include "convert/megatron/optim/training_target.h"
#include "convert/states.h"
#include "convert/torch_archive.h"

/* A state dict under construction; a map finds names, of which there may be
 * tens of thousands. */
struct state_dict {
    struct value **names, **values; /* parallel arrays */
    size_t num_names, num_values, names_capacity, values_capacity;
    size_t tied_head; /* index of the head that copies the embedding and is registered last;
                         SIZE_MAX: none */
    struct map seen;
};

struct rank_file {
    uint64_t tp, pp, ep;
    const char *folder;        /* mp_rank_... */
    struct state_dict *chunks; /* [vpp] */
    struct torch_archive archive;
    struct rank_write states;
};

struct legacy_target {
    struct target *t;
    struct rank_file **files;
    size_t num_files, files_capacity;
    struct rank_file ***by_place; /* [pp] files of each pipeline rank */
    size_t *num_by_place;
    struct value *common;
    struct tensor_data data; /* of tensors in common */
    struct flat_write flat;
    bool is_distributed; /* optimizer states are flat, in separate files */
};

/* ---- state dicts ---- */

static bool state_dict_has(const struct state_dict *d, const char *name)
{
    size_t at;
    return map_get(&d->seen, name, &at);
}

/* Adds a new name. */
static void state_dict_add(struct arena *a, struct state_dict *d, const char *name, struct value *v)
{
    struct value *key = value_text(a, name);
    (void)map_add(&d->seen, key->text, d->num_names, NULL);
    *ARENA_PUSH(a, d->names, d->num_names, d->names_capacity) = key;
    *ARENA_PUSH(a, d->values, d->num_values, d->values_capacity) = v;
}

static struct value *state_dict_value(struct arena *a, const struct state_dict *d)
{
    size_t capacity = 4; /* pairs, a power of two: formats/value.h */
    while (capacity < d->num_names)
        capacity *= 2;
    struct value *dict = value_dict(a);
    dict->items = arena_array(a, 2 * capacity, sizeof *dict->items);
    dict->count = (uint32_t)d->num_names;
    for (size_t i = 0, at = 0; i <= d->num_names; i++) {
        const size_t from = i < d->num_names ? i : d->tied_head;
        if (i == d->tied_head || from == SIZE_MAX) continue;
        dict->items[2 * at] = d->names[from];
        dict->items[2 * at++ + 1] = d->values[from];
    }
    return dict;
}

/* ---- rank files ---- */

/* Begins a rank's file. Its first storages are tensors of the common state. */
static void add_rank_file(struct legacy_target *x, uint64_t tp, uint64_t pp, uint64_t ep)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    const uint64_t one = 1;
    struct rank_file *f = arena_alloc(a, sizeof *f);
    *f = (struct rank_file){
        .tp = tp, .pp = pp, .ep = ep, .folder = megatron_rank_folder(a, l, tp, pp, ep)};
    archive_begin(&f->archive, &x->t->plan, arena_printf(a, "%s/model_optim_rng.pt", f->folder));
    for (size_t i = 0; i < x->data.count; i++)
        (void)archive_bytes(&f->archive, DT_F32, 1, &one, x->data.data[i]);
    f->chunks = arena_array(a, l->vpp, sizeof *f->chunks);
    for (uint64_t v = 0; v < l->vpp; v++)
        f->chunks[v].tied_head = SIZE_MAX;
    *ARENA_PUSH(a, x->files, x->num_files, x->files_capacity) = f;
    x->by_place[pp][x->num_by_place[pp]++] = f;
}

static enum status add_rank_files(struct legacy_target *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    if (l->tp % l->etp)
        return fail(err, ERR_UNSUPPORTED,
                    "the legacy format names files by tensor and expert rank: expert tensor "
                    "parallel size %" PRIu64 " must divide tensor parallel size %" PRIu64
                    ", or names would clash",
                    l->etp, l->tp);
    x->by_place = arena_array(a, l->pp, sizeof *x->by_place);
    x->num_by_place = arena_array(a, l->pp, sizeof *x->num_by_place);
    for (uint64_t pp = 0; pp < l->pp; pp++) {
        x->by_place[pp] = arena_array(a, l->tp * l->ep, sizeof **x->by_place);
        for (uint64_t tp = 0; tp < l->tp; tp++)
            for (uint64_t ep = 0; ep < l->ep; ep++)
                if (l->ep == 1 || layout_has_rank(l, tp, ep)) add_rank_file(x, tp, pp, ep);
    }
    return OK;
}

/* ---- tensors ---- */

static bool file_holds(const struct layout *l, const struct rank_file *f,
                       const struct megatron_part *p)
{
    const struct param_spec *s = p->param.spec;
    uint64_t rank = s->group == PARAM_ETP ? f->tp % l->etp : f->tp;
    if (param_of_expert(s) && f->ep != p->ep_rank) return false;
    return s->split < 0 || rank == p->tp_rank;
}

static const char *name_in_memory(const struct legacy_target *x, const struct megatron_part *p)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    const struct stage *stage = layout_stage(l, p->chunk, p->pp_rank);
    uint64_t experts =
        param_of_expert(p->param.spec) ? x->t->source->config.num_experts / l->ep : 1;
    const char *name = memory_name_of(
        a, x->t->source->params, &p->param, p->param.layer - stage->first_layer,
        p->param.expert % experts, x->t->options.transformer_engine, x->t->options.grouped_gemm);
    return x->t->hybrid ? hybrid_key(x->t->hybrid, a, name) : name;
}

/* Adds a linear layer's extra state: empty under Transformer Engine, None under
 * the local spec. A grouped linear layer has one for all its experts. */
static void add_extra_state(struct legacy_target *x, struct rank_file *f, struct state_dict *model,
                            const struct megatron_part *p, const char *name)
{
    static const uint64_t empty[] = {0};
    struct arena *a = &x->t->plan.arena;
    const char *key = arena_printf(a, "%s._extra_state", module_of(a, name));
    uint32_t segment;
    if (!p->param.spec->linear || state_dict_has(model, key)) return;
    state_dict_add(a, model, key,
                   x->t->options.transformer_engine
                       ? archive_tensor(&f->archive, DT_U8, 1, empty, &segment)
                       : value_none(a));
}

/* Adds a tensor of the part's shape to a rank's file. */
static enum status add_shard_tensor(struct legacy_target *x, struct rank_file *f,
                                    const struct megatron_part *p, struct value **out,
                                    struct error *err)
{
    uint32_t segment;
    *out = archive_tensor(&f->archive, p->native->dtype, p->num_dims, p->parts->shape, &segment);
    for (unsigned i = 0; i < p->parts->count; i++)
        TRY(target_fill(x->t, p->native, &p->parts->pairs[i], segment, err));
    return OK;
}

/* A weight, or a state of the preceding weight. */
struct legacy_part {
    const struct megatron_part *part;
    uint64_t chunk;
    const char *name, *logical; /* in memory; logical, or of a tied head */
    bool is_tied_head;
};

static size_t state_of(const struct target *t, const char *state)
{
    size_t i = 0;
    while (strcmp(t->states[i], state))
        i++;
    return i;
}

/* Whether a state is the master of an F32 weight. It is in no file, since the
 * weight is its own master. */
static bool is_weight_itself(const struct rank_file *f, const char *state)
{
    return state && strcmp(state, master_state) == 0 &&
           dtype_bytes(f->states.items[f->states.count - 1].dtype) >= dtype_bytes(DT_F32);
}

static enum status add_to_file(struct legacy_target *x, struct rank_file *f,
                               const struct legacy_part *l, struct error *err)
{
    struct state_dict *model = &f->chunks[l->chunk];
    struct value *tensor = NULL;
    const bool in_file = !is_weight_itself(f, l->part->native->state);
    if (in_file) TRY(add_shard_tensor(x, f, l->part, &tensor, err));
    if (!l->part->native->state) {
        if (l->is_tied_head) model->tied_head = model->num_names;
        state_dict_add(&x->t->plan.arena, model, l->name, tensor);
        rank_write_weight(&f->states, x->t, l->logical, l->part, l->chunk, l->is_tied_head);
        add_extra_state(x, f, model, l->part, l->name);
        return OK;
    }
    rank_write_state(&f->states, state_of(x->t, l->part->native->state), tensor);
    return OK;
}

static enum status add_to_stage(struct legacy_target *x, uint64_t pp, const struct legacy_part *l,
                                struct error *err)
{
    for (size_t i = 0; i < x->num_by_place[pp]; i++) {
        struct rank_file *f = x->by_place[pp][i];
        if (file_holds(&x->t->layout, f, l->part)) TRY(add_to_file(x, f, l, err));
    }
    return OK;
}

/* Adds a tied model's copy of the embedding as the head of the last stage,
 * unless it is the first stage. */
static enum status add_tied_head(struct legacy_target *x, const struct megatron_part *p,
                                 struct error *err)
{
    static const char head[] = "output_layer.weight";
    const struct layout *l = &x->t->layout;
    if (x->t->source->config.untie_embeddings_and_output_weights ||
        strcmp(p->param.rest, "embedding.word_embeddings.weight"))
        return OK;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++)
        if (l->stages[s].loss && !l->stages[s].embedding)
            return add_to_stage(x, s % l->pp, &(struct legacy_part){p, s / l->pp, head, head, true},
                                err);
    return OK;
}

/* Adds the copy of the embedding that layers of multi-token prediction have on
 * the last stage, unless it is the first stage. */
static enum status add_mtp_embedding(struct legacy_target *x, const struct megatron_part *p,
                                     struct error *err)
{
    const struct layout *l = &x->t->layout;
    const char *name = p->tensor->name;
    if (!model_mtp_layers(&x->t->source->config) || p->param.spec->place != PLACE_EMBEDDING)
        return OK;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++) {
        if (!l->stages[s].loss || l->stages[s].embedding) continue;
        if (x->t->num_states && !x->t->source->config.untie_embeddings_and_output_weights)
            return fail(err, ERR_UNSUPPORTED,
                        "the legacy format with an optimizer, layers of multi-token prediction, a "
                        "tied head and several pipeline stages is not supported: write torch_dist");
        return add_to_stage(x, s % l->pp, &(struct legacy_part){p, s / l->pp, name, name, false},
                            err);
    }
    return OK;
}

static enum status add_legacy_part(void *context, const struct megatron_part *p, struct error *err)
{
    struct legacy_target *x = context;
    if (p->native->state && x->is_distributed)
        return flat_write_part(&x->flat, p, state_of(x->t, p->native->state), err);
    const struct legacy_part l = {p, p->chunk, name_in_memory(x, p), p->tensor->name, false};
    TRY(add_to_stage(x, p->pp_rank, &l, err));
    TRY(add_mtp_embedding(x, p, err));
    return add_tied_head(x, p, err);
}

/* Adds the head's extra state: None, since the head is never Transformer
 * Engine's, tied or not. */
static void add_head_states(struct legacy_target *x)
{
    const struct layout *l = &x->t->layout;
    struct arena *a = &x->t->plan.arena;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++)
        for (size_t i = 0; l->stages[s].loss && i < x->num_by_place[s % l->pp]; i++)
            state_dict_add(a, &x->by_place[s % l->pp][i]->chunks[s / l->pp],
                           "output_layer._extra_state", value_none(a));
}

/* ---- containers ---- */

static struct value *rng_tensor_of(void *archive, const void *bytes, uint64_t count)
{
    return archive_bytes(archive, DT_U8, 1, &count, bytes);
}

static void add_rng(struct legacy_target *x, struct rank_file *f, struct value *root)
{
    struct arena *a = &x->t->plan.arena;
    const struct rng_place at = {f->pp, f->tp, f->ep, f->tp % x->t->layout.etp};
    if (x->t->outcomes[TRAINING_RNG].outcome != OUTCOME_MADE) return;
    value_dict_set(
        a, root, "rng_state",
        rng_states_value(&x->t->source->training.rng, &at, rng_tensor_of, &f->archive, a));
}

static enum status lay_out_file(struct legacy_target *x, struct rank_file *f, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    struct value *root = value_dict(a);
    for (uint32_t i = 0; i < x->common->count; i++) {
        const char *key = value_as_text(x->common->items[2 * i]);
        struct value *v = x->common->items[2 * i + 1];
        if (strcmp(key, "content_metadata") == 0) continue;
        if (strcmp(key, "optimizer") == 0)
            v = x->is_distributed ? rank_write_chain(v, a)
                                  : rank_write_value(&f->states, x->t, v, &f->archive);
        value_dict_set(a, root, key, v);
    }
    for (uint64_t v = 0; v < x->t->layout.vpp; v++)
        value_dict_set(a, root,
                       x->t->layout.vpp == 1 ? "model" : arena_printf(a, "model%" PRIu64, v),
                       state_dict_value(a, &f->chunks[v]));
    add_rng(x, f, root);
    return archive_lay_out(&f->archive, "model_optim_rng", root, err);
}

/* Plans a distributed optimizer's files, if its states are written. */
static enum status begin_flat(struct legacy_target *x, struct error *err)
{
    x->is_distributed = x->t->num_states && training_target_is_distributed(x->t);
    if (!x->is_distributed) return OK;
    TRY(flat_write_begin(&x->flat, x->t, value_get(x->common, "args"), err));
    for (size_t i = 0; i < x->num_files; i++) {
        const struct rank_file *f = x->files[i];
        TRY(flat_write_add_rank(&x->flat, f->folder, f->tp, f->pp, f->ep, err));
    }
    return flat_write_gaps(&x->flat, err);
}

static enum status lay_out_files(struct legacy_target *x, struct error *err)
{
    for (size_t i = 0; i < x->num_files; i++)
        TRY(lay_out_file(x, x->files[i], err));
    return x->is_distributed ? flat_write_lay_out(&x->flat, err) : OK;
}

static enum status check_options(const struct target *t, struct error *err)
{
    const enum optim_format f = t->options.optim_format;
    if (t->options.grouped_gemm && !t->options.transformer_engine)
        return fail(
            err, ERR_UNSUPPORTED,
            "--moe-grouped-gemm with the local spec: not supported by Megatron-Core after 0.16");
    if (f == OPTIM_DEFAULT || f == OPTIM_distributed || f == OPTIM_not_distributed) return OK;
    return fail(err, ERR_USAGE,
                "--optim-format %s: the legacy format supports distributed and not_distributed",
                optim_format_names[f]);
}

/* Checks that every parameter has all states, since parameters are found by
 * their places among all. */
static enum status check_states(struct target *t, struct error *err)
{
    struct param p;
    const struct catalog *c = &t->source->catalog;
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct tensor *x = &c->tensors[i];
        if (!is_parameter(x) || (param_find(t->source->params, x->name, &p) && p.spec->buffer))
            continue;
        for (size_t k = 0; k < t->num_states; k++)
            if (!target_state(t, x, k))
                return fail(err, ERR_UNSUPPORTED,
                            "%s lacks %s: the legacy format cannot mark frozen parameters; use "
                            "--to torch_dist, or --no-optim to leave the states out",
                            x->name, t->states[k]);
    }
    return OK;
}

static enum status plan_torch(struct target *t, struct error *err)
{
    struct legacy_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    x->t = t;
    t->state = x;
    TRY(check_options(t, err));
    TRY(megatron_begin(t, err));
    TRY(check_states(t, err));
    x->common = megatron_common_state(t, false, &x->data);
    TRY(add_rank_files(x, err));
    TRY(begin_flat(x, err));
    TRY(megatron_each_part(t, 0, add_legacy_part, x, err));
    add_head_states(x);
    TRY(lay_out_files(x, err));
    for (size_t i = 0; i < x->num_files; i++)
        t->facts.num_target_tensors += x->files[i]->archive.num_storages - x->data.count;
    t->facts.num_weight_files = x->num_files;
    return carried_plan(t, MEGATRON_HF_FOLDER, err);
}

static void release_torch(struct target *t)
{
    struct legacy_target *x = t->state;
    flat_write_release(&x->flat);
    for (size_t i = 0; i < x->num_files; i++) {
        archive_release(&x->files[i]->archive);
        for (uint64_t v = 0; v < t->layout.vpp; v++)
            map_release(&x->files[i]->chunks[v].seen);
    }
}

const struct target_kind target_torch = {plan_torch, megatron_small_files, megatron_root_files,
                                         release_torch};
