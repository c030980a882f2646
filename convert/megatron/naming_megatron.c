/* naming_megatron.c - Megatron-Core's keys: splits stacks of layers and
 * experts, and cuts off rows past the true vocabulary; and back. */
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_target.h"
#include "convert/megatron/native_stack.h"
#include "convert/megatron/optim/remainders.h"
#include "convert/naming.h"
#include "convert/states.h"

struct importing {
    struct checkpoint *c;
    const struct naming_import *in;
    bool *moe;    /* [layers] */
    bool mtp_moe; /* layers of multi-token prediction have experts */
};

/* Finds layers with a router, if layers have separate keys. */
static void find_moe_layers(struct importing *x)
{
    struct checkpoint *c = x->c;
    uint64_t layers = c->config.num_layers;
    bool all = true;
    x->moe = arena_array(&c->arena, layers, sizeof *x->moe);
    for (size_t i = 0; i < c->catalog.num_native; i++) {
        struct dist_key k = dist_key_parse(&c->arena, c->catalog.native[i].name);
        if (c->catalog.native[i].state || strcmp(k.rest, "mlp.router.weight")) continue;
        x->mtp_moe |= k.in_mtp;
        if (!k.in_layers) continue;
        for (uint64_t l = 0; l < layers; l++)
            if (k.stacked_layers || k.layer == l) x->moe[l] = true;
    }
    for (uint64_t l = 0; l < layers; l++)
        all &= x->moe[l];
    if (c->config.num_experts && !all && !x->in->moe_layers_known) c->config.moe_layers = x->moe;
}

static bool has_experts(const struct importing *x, const struct dist_key *key, uint64_t layer)
{
    if (key->in_mtp) return x->mtp_moe;
    return key->in_layers && layer < x->c->config.num_layers && x->moe[layer];
}

/* ---- one parameter ---- */

struct adding_rows {
    struct catalog *catalog;
    struct tensor *t;
    const struct native_tensor *native;
};

static enum status add_row_part(void *context, const struct pair *part, struct error *err)
{
    struct adding_rows *x = context;
    return catalog_add_part(x->catalog, x->t, x->native, part, err);
}

/* Adds the elements of `part` in rows [first_row, first_row + rows) to the
 * tensor `name` of these rows. */
static enum status add_vocab_rows(struct catalog *c, const char *name, uint64_t rows,
                                  const uint64_t *shape, unsigned num_dims, uint64_t first_row,
                                  const struct native_tensor *native, const struct pair *part,
                                  struct error *err)
{
    uint64_t of_rows[MAX_AXES], row = 1;
    struct adding_rows x = {.catalog = c, .native = native};
    for (unsigned d = 0; d < num_dims; d++)
        of_rows[d] = d ? shape[d] : rows;
    for (unsigned d = 1; d < num_dims; d++)
        row *= shape[d];
    TRY(catalog_add(c, name, native->dtype, num_dims, of_rows, &x.t, err));
    return pair_clip(part, first_row * row, rows * row, name, add_row_part, &x, err);
}

static enum status check_native(const struct importing *x, const char *logical,
                                const struct native_tensor *native, unsigned num_dims,
                                struct error *err)
{
    struct param p;
    if (num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s: %u dimensions", native_stored_name(x->c, native),
                    num_dims);
    if (dtype_is_float(native->dtype) || remainders_are_stored(native->state, native->dtype))
        return OK;
    if (param_find(x->c->params, logical, &p) && p.spec->buffer) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s has dtype %s; weights must be F16, BF16, F32 or F64",
                native_stored_name(x->c, native), dtype_infos[native->dtype].name);
}

/* Adds a part of a logical tensor: part.a flat in the logical tensor of
 * `shape`, part.b flat in native. Rows past the true vocabulary become
 * NAME.padding. */
static enum status add_logical(struct importing *x, const char *logical, unsigned num_dims,
                               const uint64_t *shape, const struct native_tensor *native,
                               const struct pair *part, struct error *err)
{
    struct checkpoint *c = x->c;
    struct param p;
    uint64_t vocab = c->config.vocab_size;
    bool padded = param_find(c->params, logical, &p) && p.spec->padded && num_dims > 0;
    if (padded) c->config.padded_vocab_size = shape[0];
    if (!padded || !vocab) {
        struct tensor *t;
        TRY(catalog_add(&c->catalog, logical, native->dtype, num_dims, shape, &t, err));
        return catalog_add_part(&c->catalog, t, native, part, err);
    }
    if (vocab > shape[0])
        return fail(err, ERR_UNSUPPORTED,
                    "%s has %" PRIu64 " rows, but %s gives a vocabulary of %" PRIu64,
                    native_stored_name(c, native), shape[0],
                    x->in->o->true_vocab_size ? "--true-vocab-size"
                    : c->hf_folder            ? "config.json"
                                              : "run_config.yaml",
                    vocab);
    TRY(add_vocab_rows(&c->catalog, logical, vocab, shape, num_dims, 0, native, part, err));
    if (vocab == shape[0]) return OK;
    return add_vocab_rows(&c->catalog, arena_printf(&c->arena, "%s.padding", logical),
                          shape[0] - vocab, shape, num_dims, vocab, native, part, err);
}

/* Adds one parameter of a stack, or some of its rows. */
static enum status add_member(struct importing *x, const struct native_stack *k, const char *prefix,
                              uint64_t layer, uint64_t expert, uint64_t index, struct error *err)
{
    struct arena *a = &x->c->arena;
    uint64_t shape[MAX_AXES];
    const bool moe = has_experts(x, &k->key, layer);
    const char *name = dist_key_logical(a, x->c->params, &k->key, layer, expert, moe);
    struct pair part = pair_whole(0, index * k->numel, k->numel);
    TRY(check_native(x, name, k->native, k->num_dims, err));
    memcpy(shape, k->shape, k->num_dims * sizeof *shape);
    if (k->num_dims && k->shape[0]) {
        shape[0] = k->rows;
        part.a_offset = k->numel / k->shape[0] * k->first_row;
    }
    if (*prefix) name = arena_printf(a, "%s%s", prefix, name);
    return add_logical(x, name, k->num_dims, shape, k->native, &part, err);
}

/* ---- stacks ---- */

static enum status check_stack(const struct checkpoint *c, const struct native_stack *k,
                               struct error *err)
{
    uint64_t layers = c->config.num_layers, known = c->config.num_experts;
    uint64_t experts = k->key.stacked_experts ? k->experts : k->key.expert + 1;
    bool fits = k->key.stacked_experts ? experts == known : experts <= known;
    if (k->key.stacked_layers && k->layers != layers)
        return fail(err, ERR_UNSUPPORTED,
                    "%s stacks %" PRIu64 " layers, but the model has %" PRIu64,
                    native_stored_name(c, k->native), k->layers, layers);
    if (!k->key.of_expert || fits) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s holds %" PRIu64 " experts, but its args or config.json give %" PRIu64,
                native_stored_name(c, k->native), experts, known);
}

static enum status add_stack(struct importing *x, const struct native_stack *k, const char *prefix,
                             struct error *err)
{
    struct checkpoint *c = x->c;
    if (k->key.in_layers && !k->key.stacked_layers && k->key.layer >= c->config.num_layers) {
        gaps_add_unexpected(&c->gaps, &c->arena, native_stored_name(c, k->native));
        return OK;
    }
    TRY(check_stack(c, k, err));
    for (uint64_t l = 0; l < k->layers; l++)
        for (uint64_t e = 0; e < k->experts; e++) {
            uint64_t layer = k->key.stacked_layers ? l : k->key.layer;
            uint64_t expert = k->key.stacked_experts ? e : k->key.expert;
            TRY(add_member(x, k, prefix, layer, expert, l * k->experts + e, err));
        }
    return OK;
}

static enum status add_param_stack(struct importing *x, const struct native_tensor *native,
                                   struct error *err)
{
    struct checkpoint *c = x->c;
    struct native_stack k;
    struct param p;
    TRY(native_stack_make(c, native, &k, err));
    const char *first =
        dist_key_logical(&c->arena, c->params, &k.key, k.key.layer, k.key.expert, false);
    const bool known = param_find(c->params, first, &p);
    if (known && !(p.spec->mtp && p.layer >= model_mtp_layers(&c->config)))
        return add_stack(x, &k, "", err);
    gaps_add_unexpected(&c->gaps, &c->arena, native_stored_name(c, native));
    return OK;
}

/* ---- the optimizer ---- */

static bool has_rows(struct checkpoint *c, const struct tensor *parameter, uint64_t rows)
{
    const char *name = arena_printf(&c->arena, "%s.padding", parameter->name);
    const struct tensor *padding = catalog_find(&c->catalog, name);
    return parameter->shape[0] + (padding ? padding->shape[0] : 0) == rows;
}

/* Whether a member of a stack of states has its parameter's shape, with
 * padding. */
static bool has_shape_of(struct checkpoint *c, const struct native_stack *k,
                         const struct tensor *parameter)
{
    if (k->num_dims != parameter->num_dims) return false;
    for (unsigned d = 1; d < k->num_dims; d++)
        if (k->shape[d] != parameter->shape[d]) return false;
    return !k->num_dims || has_rows(c, parameter, k->rows);
}

/* Counts the elements in a native tensor's parts. */
static uint64_t count_held(const struct native_tensor *native)
{
    uint64_t held = 0;
    for (size_t i = 0; i < native->num_parts; i++) {
        const struct pair pair = pair_unpack(&native->parts[i].pair);
        held += pair_count(&pair);
    }
    return held;
}

/* Why a stack's states cannot be read; NULL: they can. */
static const char *why_unread(struct importing *x, const struct native_stack *k)
{
    struct checkpoint *c = x->c;
    struct arena *a = &c->arena;
    const char *stored = native_stored_name(c, k->native);
    const bool moe = has_experts(x, &k->key, k->key.layer);
    const char *name = dist_key_logical(a, c->params, &k->key, k->key.layer, k->key.expert, moe);
    const struct tensor *parameter = catalog_find(&c->catalog, name);
    if (!dtype_is_float(k->native->dtype) &&
        !remainders_are_stored(k->native->state, k->native->dtype))
        return arena_printf(a, "%s has dtype %s; states must be F16, BF16, F32 or F64", stored,
                            dtype_infos[k->native->dtype].name);
    if (!parameter) return arena_printf(a, "%s is a state of %s, which is missing", stored, name);
    if (!has_shape_of(c, k, parameter))
        return arena_printf(a, "%s has shape %s, its parameter %s", stored,
                            shape_text(a, k->num_dims, k->shape),
                            shape_text(a, parameter->num_dims, parameter->shape));
    if (count_held(k->native) != k->native->numel)
        return arena_printf(a, "%s: %s of %s has %" PRIu64 " elements, but the ranks hold %" PRIu64,
                            stored, k->native->state, name, k->native->numel,
                            count_held(k->native));
    return NULL;
}

/* Adds a stack of states, of their parameters' shape and any float dtype. */
static enum status add_state_stack(struct importing *x, const struct native_tensor *native,
                                   struct error *err)
{
    struct checkpoint *c = x->c;
    struct native_stack k;
    struct error wrong;
    if (native_stack_make(c, native, &k, &wrong)) {
        states_unread(c, "%s", wrong.text);
        return OK;
    }
    const char *why = why_unread(x, &k);
    if (!why) return add_stack(x, &k, state_name(&c->arena, native->state, ""), err);
    states_unread(c, "%s", why);
    return OK;
}

/* ---- all ---- */

static enum status import_megatron(const struct naming_import *in, struct error *err)
{
    struct importing x = {.c = in->c, .in = in};
    const struct catalog *all = &in->c->catalog;
    find_moe_layers(&x);
    for (size_t i = 0; i < all->num_native; i++)
        if (native_is_parameter(&all->native[i])) TRY(add_param_stack(&x, &all->native[i], err));
    for (size_t i = 0; i < all->stored.num_objects; i++)
        in->c->num_ignored += native_name_is_state(all->stored.objects[i].name);
    return OK;
}

static enum status import_states_megatron(const struct naming_import *in, struct error *err)
{
    struct importing x = {.c = in->c, .in = in};
    const struct catalog *all = &in->c->catalog;
    find_moe_layers(&x);
    for (size_t i = 0; i < all->num_native; i++)
        if (all->native[i].state) TRY(add_state_stack(&x, &all->native[i], err));
    return OK;
}

/* ---- export ---- */

static enum status check_output(const struct tensor *x, const struct native_output *native,
                                struct arena *a, struct error *err)
{
    uint64_t numel;
    if (shape_numel(native->shape, native->num_dims, &numel) && numel <= MAX_ELEMENTS) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: %s of shape %s overflows", x->name, native->name,
                shape_text(a, native->num_dims, native->shape));
}

/* Exports a logical tensor as one member of a stack, followed by its rows of
 * padding. state: NULL, or the parameter's state that x is. */
static enum status export_named(const struct naming_export *out, const char *name,
                                const struct tensor *x, const struct param *p, const char *state,
                                export_visit *visit, void *context, struct error *err)
{
    struct target *t = out->t;
    uint64_t shape[MAX_LEAD + MAX_AXES], at[MAX_LEAD] = {0}, place = 0, numel = 1;
    const unsigned lead = dist_key_lead(&t->source->config, p, out->stacks, shape, at);
    param_padded_shape(p->spec, x->num_dims, x->shape, t->facts.padded_vocab, shape + lead);
    struct native_output native = {.name = name,
                                   .state = state,
                                   .dtype = target_dtype(t, x),
                                   .num_dims = lead + x->num_dims,
                                   .shape = shape,
                                   .num_parts = 1};
    TRY(check_output(x, &native, &t->plan.arena, err));
    for (unsigned d = 0; d < lead; d++)
        place = place * shape[d] + at[d];
    for (unsigned d = lead; d < native.num_dims; d++)
        numel *= shape[d];
    native.parts[0] = (struct native_source){x, pair_whole(0, place * numel, x->numel)};
    const struct tensor *padding = p->spec->padded ? megatron_padding_of(t, x) : NULL;
    if (padding)
        native.parts[native.num_parts++] = (struct native_source){
            padding, pair_whole(0, place * numel + x->numel, padding->numel)};
    return visit(context, &native, err);
}

static enum status export_tensor(const struct naming_export *out, const struct tensor *x,
                                 const struct param *p, const char *state, export_visit *visit,
                                 void *context, struct error *err)
{
    struct arena names;
    arena_init(&names);
    const char *name = megatron_key(out->t, &names, p, out->stacks);
    enum status st = export_named(out, name, x, p, state, visit, context, err);
    arena_release(&names);
    return st;
}

static enum status export_parameter(const struct naming_export *out, const struct tensor *x,
                                    export_visit *visit, void *context, struct error *err)
{
    const struct checkpoint *c = out->t->source;
    struct param p;
    if (!param_find(c->params, x->name, &p))
        return fail(err, ERR_UNSUPPORTED, "%s: unknown parameter of Megatron-Core", x->name);
    if (param_of_expert(p.spec) && p.expert >= c->config.num_experts)
        return fail(err, ERR_UNSUPPORTED, "%s: the model has only %" PRIu64 " experts", x->name,
                    c->config.num_experts);
    TRY(export_tensor(out, target_weight(out->t, x), &p, NULL, visit, context, err));
    for (size_t i = 0; i < out->t->num_states; i++) {
        const struct tensor *state = target_state(out->t, x, i);
        if (state) TRY(export_tensor(out, state, &p, out->t->states[i], visit, context, err));
    }
    return OK;
}

static enum status export_megatron(const struct naming_export *out, export_visit *visit,
                                   void *context, struct error *err)
{
    size_t count;
    const struct tensor **all = megatron_parameters(out->t, &count);
    for (size_t i = 0; i < count; i++)
        TRY(export_parameter(out, all[i], visit, context, err));
    return OK;
}

const struct naming naming_megatron = {import_megatron, import_states_megatron, export_megatron};
