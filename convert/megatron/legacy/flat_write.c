#include "convert/megatron/legacy/flat_write.h"

#include <inttypes.h>
#include <string.h>

#include "convert/megatron/optim/flat_place.h"
#include "convert/megatron/optim/flat_states.h"

static const char tied_head[] = "output_layer.weight", gaps_name[] = "flat buffers.gaps.padding";

/* ---- the parameters ---- */

/* Adds a parameter of the source. */
static enum status add_trained_param(struct flat_write *w, const struct tensor *x,
                                     struct error *err)
{
    struct target *t = w->t;
    struct param p;
    for (size_t i = 0; i < t->num_states; i++) {
        const struct tensor *state = target_state(t, x, i);
        if (state && dtype_bytes(state->dtype) > dtype_bytes(DT_F32))
            return fail(err, ERR_UNSUPPORTED,
                        "%s has dtype %s, but the optimizer's flat buffers are F32", state->name,
                        dtype_infos[state->dtype].name);
    }
    if (!param_find(t->source->params, x->name, &p))
        return fail(err, ERR_UNSUPPORTED, "%s: unknown parameter of Megatron-Core", x->name);
    if (p.spec->buffer) return OK;
    uint64_t *shape = arena_array(&t->plan.arena, x->num_dims, sizeof *shape);
    param_padded_shape(p.spec, x->num_dims, x->shape, t->facts.padded_vocab, shape);
    w->params[w->num_params++] = (struct trained_param){.name = x->name,
                                                        .param = p,
                                                        .dtype = target_dtype(t, x),
                                                        .num_dims = x->num_dims,
                                                        .shape = shape};
    return OK;
}

/* Notes flags by which Megatron-LM finds the states, but which it does not take
 * from a checkpoint. */
static void note_buckets(struct target *t, const struct bucket_rules *r)
{
    struct arena *a = &t->plan.arena;
    if (!r->bucket_size && !r->high_bandwidth) return;
    const char *size =
        arena_printf(a, " --overlap-grad-reduce --ddp-bucket-size %" PRIu64, r->bucket_size);
    notes_add(&t->notes, a,
              "distrib_optim.pt has buckets by args; Megatron-LM finds its states only with the "
              "same flags:%s%s",
              r->bucket_size ? size : "",
              r->high_bandwidth ? " --ddp-pad-buckets-for-high-nccl-busbw" : "");
}

enum status flat_write_begin(struct flat_write *w, struct target *t, const struct value *args,
                             struct error *err)
{
    size_t count;
    *w = (struct flat_write){.t = t};
    w->rules = bucket_rules_of_args(args, t->options.transformer_engine);
    w->rules.grouped_gemm = t->options.grouped_gemm;
    note_buckets(t, &w->rules);
    w->experts_split = buckets_split_experts(&t->layout, w->rules.experts_apart_by_etp);
    const struct tensor **all = megatron_parameters(t, &count);
    w->params = arena_array(&t->plan.arena, count, sizeof *w->params);
    for (size_t i = 0; i < count; i++)
        TRY(add_trained_param(w, all[i], err));
    return OK;
}

/* ---- files ---- */

static void add_spots(struct flat_write *w, const struct flat_cell *c)
{
    struct arena *a = &w->t->plan.arena;
    for (size_t b = 0; b < c->num_buffers; b++)
        for (size_t k = 0; k < c->buffers[b].num_params; k++) {
            const struct placed_param *p = &c->buffers[b].params[k];
            const char *name = p->copy == COPY_AS_HEAD ? tied_head : p->of->name;
            (void)map_add(&w->by_name, flat_key(a, name, &c->cell), w->num_spots, NULL);
            *ARENA_PUSH(a, w->spots, w->num_spots, w->spots_capacity) =
                (struct flat_spot){c, b, p->start_unpadded};
        }
}

/* The key (torch.bfloat16, torch.float32): dtypes of weights and of gradients,
 * which Megatron sums in F32 unless args say otherwise. */
static struct value *dtypes_key(const struct flat_write *w, enum dtype weights)
{
    struct arena *a = &w->t->plan.arena;
    bool in_f32 = true;
    const struct value *args = value_get(w->t->source->training.common, "args");
    (void)value_as_bool(value_get(args, "accumulate_allreduce_grads_in_fp32"), &in_f32);
    if (weights == DT_BF16) in_f32 = true;
    struct value *pair[] = {value_global(a, "torch", dtype_infos[weights].torch),
                            value_global(a, "torch", dtype_infos[in_f32 ? DT_F32 : weights].torch)};
    return value_list(a, VALUE_TUPLE, 2, pair);
}

/* Adds a cell's segments and their value. */
static void add_segments(struct flat_write *w, struct flat_cell *c, struct torch_archive *archive)
{
    const struct target *t = w->t;
    struct arena *a = archive->plan ? &archive->plan->arena : NULL;
    c->segments = arena_array(a, c->num_buffers * t->num_states, sizeof *c->segments);
    c->value = value_dict(a);
    value_dict_add(a, c->value, "buckets_coalesced", value_bool(a, true));
    for (size_t b = 0; b < c->num_buffers; b++) {
        const uint64_t numel = c->buffers[b].numel_unpadded;
        struct value *states = value_dict(a), *dtypes = value_dict(a);
        for (size_t i = 0; i < t->num_states; i++)
            value_dict_add(
                a, states, t->states[i],
                archive_tensor(archive, DT_F32, 1, &numel, &c->segments[b * t->num_states + i]));
        value_dict_add(a, states, "numel_unpadded", value_int(a, (int64_t)numel));
        value_dict_put(a, dtypes, dtypes_key(w, c->buffers[b].dtype), states);
        value_dict_put(a, c->value, value_int(a, (int64_t)b), dtypes);
    }
}

static enum status add_cell(struct flat_write *w, struct flat_file *file,
                            const struct bucket_cell *cell, struct flat_cell **out,
                            struct error *err)
{
    struct target *t = w->t;
    struct flat_cell *c = *out = arena_alloc(&t->plan.arena, sizeof *c);
    c->cell = *cell;
    TRY(buckets_place(w->params, w->num_params, &t->layout, &t->source->config, &w->rules, cell,
                      NULL, 0, &t->plan.arena, &c->buffers, &c->num_buffers, err));
    add_segments(w, c, &file->archive);
    add_spots(w, c);
    return OK;
}

/* Whether a rank writes dense buffers, or experts': the first of the ranks that
 * share them (ckpt/layout.h has the order of ranks). */
static bool writes_dense(const struct layout *l, uint64_t tp, uint64_t ep)
{
    return tp / l->etp % l->ep == ep;
}

static bool writes_experts(const struct layout *l, uint64_t tp, uint64_t ep)
{
    return (tp % l->etp + l->etp * ep) % l->tp == tp;
}

enum status flat_write_add_rank(struct flat_write *w, const char *folder, uint64_t tp, uint64_t pp,
                                uint64_t ep, struct error *err)
{
    struct arena *a = &w->t->plan.arena;
    const struct layout *l = &w->t->layout;
    const bool dense = l->ep == 1 || writes_dense(l, tp, ep);
    const bool experts = w->experts_split && writes_experts(l, tp, ep);
    const struct bucket_cell of_dense = {.pp_rank = pp, .tp_rank = tp},
                             of_experts = {.experts = true,
                                           .pp_rank = pp,
                                           .tp_rank = tp % l->etp,
                                           .ep_rank = ep};
    if (!dense && !experts) return OK;
    struct flat_file *f = arena_alloc(a, sizeof *f);
    archive_begin(&f->archive, &w->t->plan, arena_printf(a, "%s/distrib_optim.pt", folder));
    *ARENA_PUSH(a, w->files, w->num_files, w->files_capacity) = f;
    if (dense) TRY(add_cell(w, f, &of_dense, &f->dense, err));
    if (experts) TRY(add_cell(w, f, &of_experts, &f->experts, err));
    return OK;
}

/* ---- gaps ---- */

/* Calls visit for each unfilled run of a buffer's flat tensor. */
static void each_gap(const struct param_buffer *b,
                     void (*visit)(void *context, uint64_t start, uint64_t count), void *context)
{
    uint64_t end = 0;
    for (size_t k = 0; k < b->num_params; k++) {
        const struct placed_param *p = &b->params[k];
        if (p->start_unpadded > end) visit(context, end, p->start_unpadded - end);
        end = p->start_unpadded + p->numel;
    }
    if (b->numel_unpadded > end) visit(context, end, b->numel_unpadded - end);
}

struct filling_gaps {
    struct flat_write *w;
    const struct flat_cell *cell;
    size_t buffer;
    const struct tensor *zeros; /* NULL: counts gaps */
    uint64_t count;             /* elements so far, of one state's gaps */
};

static void fill_gap(void *context, uint64_t start, uint64_t count)
{
    struct filling_gaps *x = context;
    const struct target *t = x->w->t;
    for (size_t i = 0; x->zeros && i < t->num_states; i++) {
        const struct pair pair = pair_whole(x->count * t->num_states + i * count, start, count);
        plan_add_piece(&x->w->t->plan, x->zeros, x->cell->segments[x->buffer * t->num_states + i],
                       &pair);
    }
    x->count += count;
}

static void visit_gaps(struct filling_gaps *x)
{
    x->count = 0;
    for (size_t f = 0; f < x->w->num_files; f++) {
        const struct flat_cell *cells[] = {x->w->files[f]->dense, x->w->files[f]->experts};
        for (unsigned i = 0; i < 2; i++) {
            x->cell = cells[i];
            for (x->buffer = 0; cells[i] && x->buffer < cells[i]->num_buffers; x->buffer++)
                each_gap(&cells[i]->buffers[x->buffer], fill_gap, x);
        }
    }
}

enum status flat_write_gaps(struct flat_write *w, struct error *err)
{
    struct filling_gaps x = {.w = w};
    struct tensor *zeros;
    visit_gaps(&x);
    const uint64_t numel = x.count * w->t->num_states;
    if (!numel) return OK;
    TRY(catalog_add(&w->t->plan.made, gaps_name, DT_F32, 1, &numel, &zeros, err));
    const struct pair all = pair_whole(0, 0, numel);
    tensor_add_piece(&w->t->plan.arena, zeros,
                     &(struct piece){.origin = ORIGIN_ZERO, .dtype = DT_F32}, &all);
    x.zeros = zeros;
    visit_gaps(&x);
    return OK;
}

/* ---- parts ---- */

static enum status fill_spot(struct flat_write *w, const struct flat_cell *c, const char *name,
                             const struct megatron_part *p, size_t state, struct error *err)
{
    size_t at;
    struct arena *a = &w->t->plan.arena;
    if (!map_get(&w->by_name, flat_key(a, name, &c->cell), &at)) return OK;
    const struct flat_spot *spot = &w->spots[at];
    for (unsigned i = 0; i < p->parts->count; i++) {
        struct pair pair = p->parts->pairs[i];
        pair.b_offset += spot->start;
        TRY(target_fill(w->t, p->native, &pair,
                        spot->cell->segments[spot->buffer * w->t->num_states + state], err));
    }
    return OK;
}

/* Whether a cell's ranks hold the part. */
static bool cell_holds(const struct flat_write *w, const struct flat_cell *c,
                       const struct megatron_part *p)
{
    const struct param_spec *s = p->param.spec;
    const uint64_t rank =
        s->group == PARAM_ETP ? c->cell.tp_rank % w->t->layout.etp : c->cell.tp_rank;
    if (c->cell.experts && (!param_of_expert(s) || c->cell.ep_rank != p->ep_rank)) return false;
    return s->split < 0 || rank == p->tp_rank;
}

enum status flat_write_part(struct flat_write *w, const struct megatron_part *p, size_t state,
                            struct error *err)
{
    const char *name = name_of_state(p->tensor->name, NULL, NULL);
    const bool embedding = strcmp(p->param.rest, "embedding.word_embeddings.weight") == 0;
    for (size_t f = 0; f < w->num_files; f++) {
        const struct flat_cell *cells[] = {w->files[f]->dense, w->files[f]->experts};
        for (unsigned i = 0; i < 2; i++) {
            if (!cells[i] || !cell_holds(w, cells[i], p)) continue;
            TRY(fill_spot(w, cells[i], name, p, state, err)); /* the last stage's copy, too */
            if (embedding && !w->t->source->config.untie_embeddings_and_output_weights)
                TRY(fill_spot(w, cells[i], tied_head, p, state, err));
        }
    }
    return OK;
}

/* ---- layout ---- */

enum status flat_write_lay_out(struct flat_write *w, struct error *err)
{
    struct arena *a = &w->t->plan.arena;
    for (size_t i = 0; i < w->num_files; i++) {
        struct flat_file *f = w->files[i];
        struct value *cells[] = {f->dense ? f->dense->value : value_none(a),
                                 f->experts ? f->experts->value : value_none(a)};
        const struct value *root =
            w->experts_split ? value_list(a, VALUE_LIST, 2, cells) : cells[0];
        TRY(archive_lay_out(&f->archive, "distrib_optim", root, err));
    }
    return OK;
}

void flat_write_release(struct flat_write *w)
{
    for (size_t i = 0; i < w->num_files; i++)
        archive_release(&w->files[i]->archive);
    map_release(&w->by_name);
}
