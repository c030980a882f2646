/* target_torch.c - writes Megatron-LM's legacy format, which source_torch.c reads: a file for each
 * model-parallel rank. Megatron-LM loads it strictly by the names in memory.
 *
 * A file is named by tensor, pipeline and expert parallel rank. The expert tensor parallel rank
 * must follow from these: it is tp_rank % etp, if etp divides tp. The files are those of the
 * (tensor, expert) rank pairs that some rank of a stage has. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_target.h"
#include "formats/torch.h"

/* A state dict that is being filled; a map finds names, since there may be tens of thousands. */
struct state_dict {
    struct value **names, **values; /* side by side */
    size_t num_names, num_values, names_capacity, values_capacity;
    struct map seen;
};

struct rank_file {
    uint64_t tp, pp, ep;
    struct state_dict *chunks; /* [vpp] */
    uint32_t *segments;        /* of the storages "0", "1", ... */
    size_t num_segments, segments_capacity;
    struct torch_out out;
    bool laid_out;
};

struct legacy_target {
    struct target *t;
    struct rank_file *files; /* one each file of the plan */
    size_t num_files, files_capacity;
    uint32_t **by_place; /* [pp] the files of each pipeline rank */
    size_t *num_by_place;
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
    size_t capacity = 4; /* number of pairs, a power of two: formats/value.h */
    while (capacity < d->num_names)
        capacity *= 2;
    struct value *dict = value_dict(a);
    dict->items = arena_array(a, 2 * capacity, sizeof *dict->items);
    dict->count = (uint32_t)d->num_names;
    for (size_t i = 0; i < d->num_names; i++) {
        dict->items[2 * i] = d->names[i];
        dict->items[2 * i + 1] = d->values[i];
    }
    return dict;
}

/* ---- rank files ---- */

static void add_rank_file(struct legacy_target *x, uint64_t tp, uint64_t pp, uint64_t ep)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    struct strbuf name = {0};
    strbuf_printf(&name, "mp_rank_%02" PRIu64, tp);
    if (l->pp > 1) strbuf_printf(&name, "_%03" PRIu64, pp);
    if (l->ep > 1) strbuf_printf(&name, "_%03" PRIu64, ep);
    strbuf_add_text(&name, "/model_optim_rng.pt");
    x->by_place[pp][x->num_by_place[pp]++] = plan_add_file(&x->t->plan, name.data);
    strbuf_release(&name);
    struct rank_file *f = ARENA_PUSH(a, x->files, x->num_files, x->files_capacity);
    *f = (struct rank_file){.tp = tp, .pp = pp, .ep = ep};
    f->chunks = arena_array(a, l->vpp, sizeof *f->chunks);
}

static enum status add_rank_files(struct legacy_target *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    if (l->tp % l->etp)
        return fail(err, ERR_UNSUPPORTED,
                    "the legacy format names files by tensor and expert rank; expert tensor "
                    "parallel size %" PRIu64 " does not divide tensor parallel size %" PRIu64
                    ", so that names would clash",
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

static bool holds(const struct layout *l, const struct rank_file *f, const struct megatron_part *p)
{
    const struct param_spec *s = p->param.spec;
    uint64_t rank = s->group == PARAM_ETP ? f->tp % l->etp : f->tp;
    if (param_of_expert(s) && f->ep != p->ep_rank) return false;
    return s->split < 0 || rank == p->tp_rank;
}

static const char *name_of(const struct legacy_target *x, const struct megatron_part *p)
{
    struct arena *a = &x->t->plan.arena;
    const struct layout *l = &x->t->layout;
    const struct stage *stage = layout_stage(l, p->chunk, p->pp_rank);
    uint64_t experts =
        param_of_expert(p->param.spec) ? x->t->source->config.num_experts / l->ep : 1;
    return memory_name_of(a, &p->param, p->param.layer - stage->first_layer,
                          p->param.expert % experts, x->t->options.transformer_engine,
                          x->t->options.grouped_gemm);
}

static struct value *new_tensor(struct legacy_target *x, uint32_t file, enum dtype dtype,
                                unsigned num_dims, const uint64_t *shape, uint32_t *segment)
{
    struct arena *a = &x->t->plan.arena;
    struct rank_file *f = &x->files[file];
    uint64_t numel = 1;
    char key[24];
    for (unsigned d = 0; d < num_dims; d++)
        numel *= shape[d];
    *segment = plan_add_segment(&x->t->plan, file, dtype, numel, true);
    snprintf(key, sizeof key, "%zu", f->num_segments);
    *ARENA_PUSH(a, f->segments, f->num_segments, f->segments_capacity) = *segment;
    return value_tensor(a, key, dtype, num_dims, shape);
}

/* Linear layers have an extra state in memory too: empty under Transformer Engine, None under the
 * local spec. A grouped linear layer has one for all its experts. */
static void add_extra_state(struct legacy_target *x, uint32_t file, struct state_dict *model,
                            const struct megatron_part *p, const char *name)
{
    static const uint64_t empty[] = {0};
    struct arena *a = &x->t->plan.arena;
    const char *key = arena_printf(a, "%s._extra_state", module_of(a, name));
    uint32_t segment;
    if (!p->param.spec->linear || state_dict_has(model, key)) return;
    state_dict_add(a, model, key,
                   x->t->options.transformer_engine ? new_tensor(x, file, DT_U8, 1, empty, &segment)
                                                    : value_none(a));
}

static enum status add_to_file(struct legacy_target *x, uint32_t file, uint64_t chunk,
                               const struct megatron_part *p, const char *name, struct error *err)
{
    uint32_t segment;
    struct state_dict *model = &x->files[file].chunks[chunk];
    state_dict_add(&x->t->plan.arena, model, name,
                   new_tensor(x, file, p->own->dtype, p->num_dims, p->parts->shape, &segment));
    for (unsigned i = 0; i < p->parts->count; i++)
        TRY(target_fill(x->t, p->own, &p->parts->pairs[i], segment, err));
    add_extra_state(x, file, model, p, name);
    return OK;
}

static enum status add_to_stage(struct legacy_target *x, uint64_t pp, uint64_t chunk,
                                const struct megatron_part *p, const char *name, struct error *err)
{
    for (size_t i = 0; i < x->num_by_place[pp]; i++) {
        uint32_t file = x->by_place[pp][i];
        if (holds(&x->t->layout, &x->files[file], p))
            TRY(add_to_file(x, file, chunk, p, name, err));
    }
    return OK;
}

/* The last stage of a tied model keeps a copy of the embedding as its head, where the first stage
 * is another one. */
static enum status add_tied_head(struct legacy_target *x, const struct megatron_part *p,
                                 struct error *err)
{
    const struct layout *l = &x->t->layout;
    if (x->t->source->config.untie_embeddings_and_output_weights ||
        strcmp(p->param.rest, "embedding.word_embeddings.weight"))
        return OK;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++)
        if (l->stages[s].loss && !l->stages[s].embedding)
            return add_to_stage(x, s % l->pp, s / l->pp, p, "output_layer.weight", err);
    return OK;
}

static enum status add_part(void *context, const struct megatron_part *p, struct error *err)
{
    struct legacy_target *x = context;
    TRY(add_to_stage(x, p->pp_rank, p->chunk, p, name_of(x, p), err));
    return add_tied_head(x, p, err);
}

/* The head is never Transformer Engine's, so its extra state is None, tied or not. */
static void add_head_states(struct legacy_target *x)
{
    const struct layout *l = &x->t->layout;
    struct arena *a = &x->t->plan.arena;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++)
        for (size_t i = 0; l->stages[s].loss && i < x->num_by_place[s % l->pp]; i++)
            state_dict_add(a, &x->files[x->by_place[s % l->pp][i]].chunks[s / l->pp],
                           "output_layer._extra_state", value_none(a));
}

/* ---- containers ---- */

static enum status emit_file(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    struct legacy_target *x = context;
    struct rank_file *f = &x->files[file];
    (void)plan;
    for (size_t i = 0; i < f->out.num_storages; i++) {
        size_t number = strtoull(f->out.storages[i].key, NULL, 10);
        f->out.storages[i].crc = writer->crc(writer->context, f->segments[number]);
    }
    return torch_emit(&f->out, writer->put, writer->context, err);
}

static enum status lay_out_file(struct legacy_target *x, uint32_t file, const struct value *common,
                                struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    struct rank_file *f = &x->files[file];
    struct value *root = value_dict(a);
    for (uint32_t i = 0; i < common->count; i++) {
        const char *key = value_as_text(common->items[2 * i]);
        if (strcmp(key, "content_metadata")) value_dict_set(a, root, key, common->items[2 * i + 1]);
    }
    for (uint64_t v = 0; v < x->t->layout.vpp; v++)
        value_dict_set(a, root,
                       x->t->layout.vpp == 1 ? "model" : arena_printf(a, "model%" PRIu64, v),
                       state_dict_value(a, &f->chunks[v]));
    TRY(torch_layout(&f->out, "model_optim_rng", root, err));
    f->laid_out = true;
    for (size_t i = 0; i < f->out.num_storages; i++) {
        size_t number = strtoull(f->out.storages[i].key, NULL, 10);
        x->t->plan.segments[f->segments[number]].offset_bytes = f->out.storages[i].data_offset;
    }
    x->t->plan.files[file].size_bytes = f->out.total_bytes;
    x->t->plan.files[file].finish = emit_file;
    x->t->plan.files[file].finish_context = x;
    return OK;
}

static enum status plan_torch(struct target *t, struct error *err)
{
    struct legacy_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    struct tensor_data data = {0};
    x->t = t;
    t->own = x;
    if (t->options.grouped_gemm && !t->options.transformer_engine)
        return fail(err, ERR_UNSUPPORTED,
                    "--moe-grouped-gemm with the local spec: no release of Megatron-Core after "
                    "0.16 has such experts");
    TRY(megatron_begin(t, err));
    if (t->num_states)
        return fail(err, ERR_UNSUPPORTED, "the optimizer in the legacy format: not written yet");
    TRY(add_rank_files(x, err));
    TRY(megatron_each_part(t, 0, add_part, x, err));
    add_head_states(x);
    const struct value *common = megatron_common_state(t, false, &data);
    for (size_t i = 0; i < x->num_files; i++)
        TRY(lay_out_file(x, (uint32_t)i, common, err));
    for (size_t i = 0; i < x->num_files; i++)
        t->facts.num_target_tensors += x->files[i].num_segments;
    t->facts.num_weight_files = x->num_files;
    return OK;
}

static void release_torch(struct target *t)
{
    struct legacy_target *x = t->own;
    for (size_t i = 0; i < x->num_files; i++) {
        if (x->files[i].laid_out) torch_out_release(&x->files[i].out);
        for (uint64_t v = 0; v < t->layout.vpp; v++)
            map_release(&x->files[i].chunks[v].seen);
    }
}

const struct target_kind target_torch = {plan_torch, megatron_small_files, megatron_root_files,
                                         release_torch};
