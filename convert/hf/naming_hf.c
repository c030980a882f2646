/* naming_hf.c - Hugging Face's names: a model map's rows make native tensors
 * logical ones, and logical tensors native ones. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/panel.h"
#include "convert/carried.h"
#include "convert/format.h"
#include "convert/hf/states_hf.h"
#include "convert/map/quantization.h"
#include "convert/naming.h"
#include "convert/states.h"

struct importing {
    struct checkpoint *c;
    const struct naming_import *in;
    uint64_t *taken;     /* [native tensors] elements that rows took */
    const char **dtypes; /* "DTYPE NAME" of published names, of tensors with a sum; "LABEL NAME" of
                            encoded ones */
    size_t num_dtypes, dtypes_capacity;
    size_t num_widened; /* tensors whose parts differ in dtype */
    const char *first_widened;
};

/* state: NULL, or the state of the parameter. */
static const struct native_tensor *find_native(const struct importing *x, const char *name,
                                               const char *state)
{
    return catalog_find_native(&x->c->catalog, name, state);
}

static bool has_native(const void *context, const char *name)
{
    return find_native(context, name, NULL) != NULL;
}

static bool fits_native(const void *context, const char *name, unsigned num_dims,
                        const uint64_t *shape)
{
    const struct native_tensor *t = find_native(context, name, NULL);
    return !t || (t->num_dims == num_dims && !memcmp(t->shape, shape, num_dims * sizeof *shape));
}

static const struct stored_tensor *stored_of(const struct importing *x,
                                             const struct native_tensor *native)
{
    return &x->c->catalog.stored.tensors[native->parts[0].stored];
}

static const char *native_place(const struct importing *x, const struct native_tensor *native)
{
    return hf_place_of(x->c, stored_of(x, native));
}

static bool has_shape(const struct native_tensor *native, const struct mapped_part *part)
{
    return native->num_dims == part->num_dims &&
           memcmp(native->shape, part->shape, native->num_dims * sizeof *native->shape) == 0;
}

/* Whether a logical tensor is a buffer, which may have numbers of any kind. */
static bool is_named_buffer(const struct importing *x, const char *logical)
{
    struct param p;
    return param_find(x->c->params, logical, &p) && p.spec->buffer;
}

static enum status check_part(const struct importing *x, const char *logical,
                              const struct mapped_part *part, const struct native_tensor *s,
                              struct error *err)
{
    struct arena *a = &x->c->arena;
    bool same = has_shape(s, part);
    x->c->contradicts = !same;
    if (!same)
        return fail(err, ERR_UNSUPPORTED, "%s has shape %s, expected %s by config.json",
                    native_place(x, s), shape_text(a, s->num_dims, s->shape),
                    shape_text(a, part->num_dims, part->shape));
    if (!dtype_is_float(s->dtype) && !is_named_buffer(x, logical))
        return fail(err, ERR_UNSUPPORTED, "%s has dtype %s, expected F16, BF16, F32 or F64",
                    native_place(x, s), dtype_infos[s->dtype].name);
    return OK;
}

/* The smallest dtype that holds all values of both; F16 and BF16 need F32. */
static enum dtype wider_dtype(enum dtype a, enum dtype b)
{
    if (dtype_bytes(a) != dtype_bytes(b)) return dtype_bytes(a) > dtype_bytes(b) ? a : b;
    return a == b ? a : DT_F32;
}

/* The dtype of a logical tensor: that of its parts if they agree, else the one
 * that all are cast to. Parts of a state are read as the widest: --torch-dtype
 * is for weights. */
static enum status common_dtype(struct importing *x, const struct mapped_tensor *t,
                                const char *state, enum dtype *dtype, struct error *err)
{
    const struct source_options *o = x->in->o;
    const struct native_tensor *first = find_native(x, t->parts[0].hf_name, state);
    const bool casts = o->casts && !state;
    bool widened = false;
    *dtype = first->dtype;
    for (size_t i = 1; i < t->num_parts; i++) {
        const struct native_tensor *other = find_native(x, t->parts[i].hf_name, state);
        if (other->dtype == first->dtype) continue;
        if (!casts && !o->widest && !state)
            return fail(err, ERR_UNSUPPORTED,
                        "%s is %s and %s is %s, but both are parts of %s; --torch-dtype casts them",
                        first->name, dtype_infos[first->dtype].name, other->name,
                        dtype_infos[other->dtype].name, t->name);
        *dtype = casts ? o->dtype : wider_dtype(*dtype, other->dtype);
        widened = !casts;
    }
    if (widened && x->num_widened++ == 0)
        x->first_widened = state ? state_name(&x->c->arena, state, t->name)
                                 : arena_copy_text(&x->c->arena, t->name);
    return OK;
}

/* Lists the missing parts of the tensor. */
static enum status note_missing(const struct importing *x, const struct mapped_tensor *t,
                                bool *missing, struct error *err)
{
    *missing = false;
    for (size_t i = 0; i < t->num_parts; i++) {
        const char *name = t->parts[i].hf_name;
        bool again = i > 0 && strcmp(name, t->parts[i - 1].hf_name) == 0;
        if (find_native(x, name, NULL)) continue;
        if (!again) TRY(gaps_add_missing(&x->c->gaps, &x->c->arena, name, err));
        *missing = true;
    }
    return OK;
}

static void take_elements(const struct importing *x, const struct native_tensor *native,
                          const struct pair *part)
{
    x->taken[native - x->c->catalog.native] += pair_count(part);
}

/* Parts of an incomplete tensor belong nowhere. If the missing parts are
 * allowed, the present ones are noted, and stay unexpected; else only the
 * missing ones are reported. */
static void leave_parts(const struct importing *x, const struct mapped_tensor *t)
{
    bool allowed = true;
    for (size_t i = 0; i < t->num_parts; i++)
        allowed &= find_native(x, t->parts[i].hf_name, NULL) ||
                   globs_match(x->in->o->allow_missing, t->parts[i].hf_name);
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct native_tensor *part = find_native(x, t->parts[i].hf_name, NULL);
        if (part && !allowed) take_elements(x, part, &t->parts[i].pair);
        if (part && allowed)
            checkpoint_note(x->c, "%s is not converted: other parts of %s are missing", part->name,
                            t->name);
    }
}

static const char head_name[] = "output_layer.weight",
                  embedding_logical[] = "embedding.word_embeddings.weight";

/* The dtype of the embedding, which is that of most weights. */
static enum dtype usual_dtype(const struct catalog *c, enum dtype absent)
{
    const struct tensor *embedding = catalog_find(c, embedding_logical);
    return embedding ? embedding->dtype : absent;
}

static const char *dtype_text(struct arena *a, enum dtype dtype, const char *name)
{
    return arena_printf(a, "%s %s", dtype_infos[dtype].name, name);
}

/* Adds a number to the elements of a complete logical tensor. A weight gets the
 * first dtype in which the sums are exact. */
static enum status add_number(struct importing *x, const struct mapped_tensor *m, struct tensor *t,
                              struct error *err)
{
    struct arena *a = &x->c->arena;
    const struct catalog *all = &x->c->catalog;
    const enum dtype usual = usual_dtype(all, t->dtype);
    tensor_add_number(t, m->add);
    if (name_is_optimizer(t->name)) return OK;
    if (t->dtype != usual)
        *ARENA_PUSH(a, x->dtypes, x->num_dtypes, x->dtypes_capacity) =
            dtype_text(a, t->dtype, m->parts[0].hf_name);
    return panel_exact_dtype(all, t, 0, usual, &t->dtype, err);
}

/* Adds a logical tensor of the parts: the parameter, or a state of it. */
static enum status add_logical(struct importing *x, const struct mapped_tensor *t,
                               const char *state, struct error *err)
{
    struct checkpoint *c = x->c;
    struct tensor *logical;
    enum dtype dtype;
    const char *name = state ? state_name(&c->arena, state, t->name) : t->name;
    TRY(common_dtype(x, t, state, &dtype, err));
    TRY(catalog_add(&c->catalog, name, dtype, t->num_dims, t->shape, &logical, err));
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct native_tensor *part = find_native(x, t->parts[i].hf_name, state);
        take_elements(x, part, &t->parts[i].pair);
        if (!state) native_add_logical(&c->catalog, part, logical->name);
        TRY(catalog_add_part(&c->catalog, logical, part, &t->parts[i].pair, err));
    }
    if (t->add != 0 && (!state || strcmp(state, master_state) == 0))
        return add_number(x, t, logical, err);
    return OK;
}

/* The tensor that a row's is a copy of; a tied head's is one of the embedding. */
static const char *copied_name(const struct model_config *c, const struct mapped_tensor *t)
{
    const bool is_head = strcmp(t->name, head_name) == 0;
    return is_head && !c->untie_embeddings_and_output_weights ? embedding_logical : t->name;
}

/* Takes a copy of a tensor's elements. One that differs stays untaken. */
static enum status take_copy(struct importing *x, const struct mapped_tensor *t, struct error *err)
{
    const struct native_tensor *copy = find_native(x, t->parts[0].hf_name, NULL), *native = NULL;
    const char *name = copied_name(&x->c->config, t);
    bool same = false;
    uint64_t at;
    for (size_t i = 0; i < x->c->catalog.num_native && !native; i++) {
        const struct native_tensor *n = &x->c->catalog.native[i];
        if (n->num_logicals == 1 && strcmp(n->logicals[0], name) == 0) native = n;
    }
    if (native) TRY(source_same_native(x->c, copy, native, &same, &at, err));
    if (!same) return OK;
    take_elements(x, copy, &t->parts[0].pair);
    x->c->num_ignored++;
    return OK;
}

static enum status add_mapped(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct importing *x = context;
    bool missing;
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct native_tensor *part = find_native(x, t->parts[i].hf_name, NULL);
        if (part) TRY(check_part(x, t->name, &t->parts[i], part, err));
    }
    if (t->copy) return take_copy(x, t, err);
    TRY(note_missing(x, t, &missing, err));
    if (!missing) return add_logical(x, t, NULL, err);
    leave_parts(x, t);
    return OK;
}

/* ---- tied heads ---- */

struct head_search {
    const char *logical;
    char name[256];
};

static enum status find_name(void *context, const struct mapped_tensor *t, struct error *err)
{
    (void)err;
    struct head_search *search = context;
    if (strcmp(t->name, search->logical) == 0)
        snprintf(search->name, sizeof search->name, "%s", t->parts[0].hf_name);
    return OK;
}

/* The Hugging Face name of a tensor outside of layers; "" if the family has
 * none. */
static struct head_search hf_name_of(const struct importing *x, const char *logical)
{
    struct head_search search = {.logical = logical};
    struct model_config one = x->c->config; /* one layer is enough outside of layers */
    struct hf_names names = {.has = has_native, .context = x};
    one.num_layers = 1;
    one.num_experts = one.num_experts ? 1 : 0;
    one.untie_embeddings_and_output_weights = true;
    if (model_map_expand(x->in->map, &one, &names, find_name, &search, NULL)) search.name[0] = '\0';
    return search;
}

/* Checks that a stored tied head equals the embedding; then it is ignored. */
static enum status check_tied_head(struct importing *x, struct error *err)
{
    struct checkpoint *c = x->c;
    const struct head_search search = hf_name_of(x, head_name);
    const struct native_tensor *head = find_native(x, search.name, NULL);
    const struct tensor *embedding = catalog_find(&c->catalog, embedding_logical);
    bool same;
    uint64_t at;
    const struct head_search embedding_name = hf_name_of(x, embedding_logical);
    const struct native_tensor *embedded = find_native(x, embedding_name.name, NULL);
    if (c->config.untie_embeddings_and_output_weights || !head || !embedding || !embedded)
        return OK;
    x->taken[head - c->catalog.native] = head->numel;
    c->num_ignored++;
    TRY(source_same_native(c, head, embedded, &same, &at, err));
    if (same) return OK;
    c->contradicts = true;
    if (head->dtype == embedded->dtype && head->numel == embedded->numel)
        return fail(err, ERR_UNSUPPORTED,
                    "%s and %s differ at element %" PRIu64
                    ", but config.json says that they are tied (tie_word_embeddings)",
                    native_place(x, head), embedded->name, at);
    return fail(err, ERR_UNSUPPORTED,
                "%s is %s %s, but config.json (tie_word_embeddings) ties it to %s, which is %s %s",
                native_place(x, head), dtype_infos[head->dtype].name,
                shape_text(&c->arena, head->num_dims, head->shape), embedded->name,
                dtype_infos[embedded->dtype].name,
                shape_text(&c->arena, embedded->num_dims, embedded->shape));
}

/* ---- all ---- */

static enum status note_unexpected(const struct importing *x, struct error *err)
{
    struct checkpoint *c = x->c;
    for (size_t i = 0; i < c->catalog.num_native; i++) {
        const struct native_tensor *s = &c->catalog.native[i];
        if (s->state) continue;
        if (x->taken[i] && x->taken[i] != s->numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: the model map %s uses %" PRIu64 " of its %" PRIu64
                        " elements with this config.json",
                        native_place(x, s), model_map_family(x->in->map), x->taken[i], s->numel);
        if (x->taken[i]) continue;
        if (s->of_encoding)
            TRY(carried_add(c, s, err));
        else if (model_map_carries(x->in->map, &c->config, s->name))
            TRY(carried_add(c, s, err));
        else if (model_map_ignores(x->in->map, s->name))
            c->num_ignored++;
        else
            gaps_add_unexpected(&c->gaps, &c->arena, s->name);
    }
    return OK;
}

static void note_widened(const struct importing *x)
{
    if (!x->num_widened) return;
    checkpoint_note(x->c, "parts of %zu tensor%s differ in dtype, and are read as the widest: %s%s",
                    x->num_widened, x->num_widened == 1 ? "" : "s", x->first_widened,
                    x->num_widened > 1 ? ", ..." : "");
}

static enum status import_hf(const struct naming_import *in, struct error *err)
{
    struct importing x = {.c = in->c, .in = in};
    struct hf_names names = {.has = has_native, .context = &x, .fits = fits_native};
    x.taken = arena_array(&x.c->arena, x.c->catalog.num_native, sizeof *x.taken);
    const uint64_t predicted = model_mtp_layers(&x.c->config);
    model_map_find_mtp(in->map, &x.c->config, &names);
    if (model_mtp_layers(&x.c->config) < predicted && model_map_hf_field(in->map, "mtp_num_layers"))
        checkpoint_note(x.c,
                        "layers of multi-token prediction: %" PRIu64 " by config.json, %" PRIu64
                        " in its files",
                        predicted, model_mtp_layers(&x.c->config));
    TRY(model_map_expand(in->map, &x.c->config, &names, add_mapped, &x, err));
    note_widened(&x);
    for (size_t i = 0; in->quantization && i < in->quantization->num_chosen; i++)
        *ARENA_PUSH(&x.c->arena, x.dtypes, x.num_dtypes, x.dtypes_capacity) =
            in->quantization->chosen[i];
    if (in->c->format && in->c->format->has & FORMAT_CONFIG_JSON)
        in->c->published = model_map_published(in->map, &in->c->config, &names, x.dtypes,
                                               x.num_dtypes, &in->c->arena);
    TRY(check_tied_head(&x, err));
    return note_unexpected(&x, err);
}

/* ---- the optimizer ---- */

struct importing_states {
    struct importing x;
    const char *states[MAX_STATES];
    size_t num_states;
};

static bool is_listed(const struct importing_states *s, const char *state)
{
    for (size_t i = 0; i < s->num_states; i++)
        if (strcmp(s->states[i], state) == 0) return true;
    return false;
}

/* Lists the states of native tensors; false if there are too many. */
static bool list_states(struct importing_states *s)
{
    const struct catalog *all = &s->x.c->catalog;
    for (size_t i = 0; i < all->num_native; i++) {
        const char *state = all->native[i].state;
        if (!state || is_listed(s, state)) continue;
        if (s->num_states == MAX_STATES) {
            states_unread(s->x.c,
                          "%s is of one more optimizer state than the %d that are supported",
                          native_place(&s->x, &all->native[i]), MAX_STATES);
            return false;
        }
        s->states[s->num_states++] = state;
    }
    return true;
}

/* Why a part of a state cannot be read; NULL: it can. */
static const char *unreadable_part(const struct importing *x, const struct mapped_part *part,
                                   const struct native_tensor *native)
{
    struct arena *a = &x->c->arena;
    if (!has_shape(native, part))
        return arena_printf(a, "%s has shape %s, its parameter %s", native_place(x, native),
                            shape_text(a, native->num_dims, native->shape),
                            shape_text(a, part->num_dims, part->shape));
    if (!dtype_is_float(native->dtype))
        return arena_printf(a, "%s has dtype %s, expected F16, BF16, F32 or F64",
                            native_place(x, native), dtype_infos[native->dtype].name);
    return NULL;
}

/* Why the state of a mapped tensor, with at least one part, cannot be read;
 * NULL: it can. */
static const char *unreadable_state(const struct importing *x, const struct mapped_tensor *t,
                                    const char *state)
{
    struct arena *a = &x->c->arena;
    const struct native_tensor *there = NULL;
    const char *missing = NULL, *why = NULL;
    for (size_t i = 0; i < t->num_parts && !why; i++) {
        const struct native_tensor *native = find_native(x, t->parts[i].hf_name, state);
        if (native)
            why = unreadable_part(x, &t->parts[i], there = native);
        else
            missing = t->parts[i].hf_name;
    }
    if (why) return why;
    if (missing)
        return arena_printf(a, "%s exists but %s is missing, and both are parts of %s",
                            native_place(x, there), hf_state_name(a, state, missing), t->name);
    if (catalog_find(&x->c->catalog, t->name)) return NULL;
    return arena_printf(a, "%s is the state of %s, which is incomplete", native_place(x, there),
                        t->name);
}

/* Adds a state of a parameter, if any part of it exists. */
static enum status add_mapped_state(struct importing *x, const struct mapped_tensor *t,
                                    const char *state, struct error *err)
{
    size_t there = 0;
    for (size_t i = 0; i < t->num_parts; i++)
        there += find_native(x, t->parts[i].hf_name, state) != NULL;
    if (!there || t->copy) return OK;
    const char *why = unreadable_state(x, t, state);
    if (!why) return add_logical(x, t, state, err);
    states_unread(x->c, "%s", why);
    return OK;
}

static enum status add_mapped_states(void *context, const struct mapped_tensor *t,
                                     struct error *err)
{
    struct importing_states *s = context;
    for (size_t i = 0; i < s->num_states; i++)
        TRY(add_mapped_state(&s->x, t, s->states[i], err));
    return OK;
}

/* Reports states that no row of the map took: they must not be lost. */
static void report_untaken(const struct importing *x)
{
    const struct catalog *all = &x->c->catalog;
    const bool tied = !x->c->config.untie_embeddings_and_output_weights;
    const struct head_search head = hf_name_of(x, head_name);
    for (size_t i = 0; i < all->num_native; i++) {
        const struct native_tensor *native = &all->native[i];
        if (!native->state || x->taken[i]) continue;
        states_unread(x->c, "%s is the state of %s, which is %s", native_place(x, native),
                      native->name,
                      tied && strcmp(native->name, head.name) == 0
                          ? "tied to the embedding (tie_word_embeddings)"
                          : "not a parameter of the model");
        return;
    }
}

static enum status import_states_hf(const struct naming_import *in, struct error *err)
{
    struct importing_states s = {.x = {.c = in->c, .in = in}};
    struct hf_names names = {.has = has_native, .context = &s.x, .fits = fits_native};
    if (!list_states(&s) || !s.num_states) return OK;
    s.x.taken = arena_array(&in->c->arena, in->c->catalog.num_native, sizeof *s.x.taken);
    TRY(model_map_expand(in->map, &in->c->config, &names, add_mapped_states, &s, err));
    note_widened(&s.x);
    report_untaken(&s.x);
    return OK;
}

/* ---- export ---- */

struct exporting {
    struct target *t;
    bool *exported; /* [tensors of the source] */
    export_visit *visit;
    void *context;
};

/* Whether a logical tensor may be missing, by its name or that of a part. */
static bool may_be_missing(const struct target *t, const struct mapped_tensor *m)
{
    bool allowed = globs_match(t->options.allow_missing, m->name);
    for (size_t i = 0; i < m->num_parts; i++)
        allowed |= globs_match(t->options.allow_missing, m->parts[i].hf_name);
    return allowed;
}

/* The dtype that a tensor had in the published folder; `usual`: not kept. */
static enum dtype published_dtype(struct target *t, const char *name, enum dtype usual)
{
    const struct published_names *p = t->source->published;
    struct arena *a = &t->plan.arena;
    for (size_t i = 0; p && i < p->count; i++)
        for (int d = 0; d < NUM_DTYPES; d++)
            if (strcmp(p->spellings[i], dtype_text(a, (enum dtype)d, name)) == 0)
                return (enum dtype)d;
    return usual;
}

/* Plans that a number is taken from the elements of a logical tensor. A weight
 * is written in the published dtype, else in the first one in which that is
 * exact, unless --torch-dtype gives it. */
static enum status subtract(struct exporting *x, const struct mapped_tensor *m,
                            const struct tensor *logical, enum dtype *dtype, struct error *err)
{
    const struct catalog *all = &x->t->source->catalog;
    plan_add_number(&x->t->plan, logical, -m->add);
    if (name_is_optimizer(logical->name) || x->t->options.casts || tensor_is_hole(logical))
        return OK;
    const enum dtype from = published_dtype(x->t, m->parts[0].hf_name, usual_dtype(all, *dtype));
    return panel_exact_dtype(all, logical, -m->add, from, dtype, err);
}

/* Exports a logical tensor: the parameter, or a state of it. */
static enum status export_tensor(struct exporting *x, const struct mapped_tensor *m,
                                 const struct tensor *logical, const char *state, struct error *err)
{
    enum dtype dtype = target_dtype(x->t, logical);
    if (m->add != 0 && (!state || strcmp(state, master_state) == 0))
        TRY(subtract(x, m, logical, &dtype, err));
    for (size_t i = 0; i < m->num_parts; i++) {
        const struct mapped_part *part = &m->parts[i];
        const struct native_output native = {.name = part->hf_name,
                                             .state = state,
                                             .dtype = dtype,
                                             .num_dims = part->num_dims,
                                             .shape = part->shape,
                                             .parts = {{logical, part->pair}},
                                             .num_parts = 1};
        TRY(x->visit(x->context, &native, err));
    }
    return OK;
}

static enum status export_mapped(void *context, const struct mapped_tensor *m, struct error *err)
{
    struct exporting *x = context;
    struct arena *a = &x->t->plan.arena;
    const struct catalog *all = &x->t->source->catalog;
    const struct tensor *logical =
        catalog_find(all, m->copy ? copied_name(&x->t->source->config, m) : m->name);
    const char *carried = arena_printf(a, "carried.%s", m->parts[0].hf_name);
    if (m->copy && (!logical || catalog_find(all, carried))) return OK; /* it differs */
    if (!logical)
        return may_be_missing(x->t, m) ? OK : gaps_add_missing(&x->t->gaps, a, m->name, err);
    if (logical->num_dims != m->num_dims ||
        memcmp(logical->shape, m->shape, m->num_dims * sizeof *m->shape))
        return fail(err, ERR_UNSUPPORTED, "%s (%s) has shape %s, expected %s by the config",
                    logical->stored_name ? logical->stored_name : m->name, m->name,
                    shape_text(a, logical->num_dims, logical->shape),
                    shape_text(a, m->num_dims, m->shape));
    x->exported[logical - all->tensors] = true;
    TRY(export_tensor(x, m, target_weight(x->t, logical), NULL, err));
    if (m->copy) return OK;
    for (size_t i = 0; i < x->t->num_states; i++) {
        const struct tensor *state = target_state(x->t, logical, i);
        if (state) TRY(export_tensor(x, m, state, x->t->states[i], err));
    }
    return OK;
}

static enum status export_carried(struct exporting *x, struct error *err)
{
    const struct catalog *all = &x->t->source->catalog;
    size_t dropped = 0;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *t = &all->tensors[i];
        dropped += name_is_of_encoding(t->name);
        if (!name_is_carried(t->name)) continue;
        const struct native_output native = {.name = carried_name(t),
                                             .dtype = t->dtype,
                                             .num_dims = t->num_dims,
                                             .shape = t->shape,
                                             .parts = {{t, pair_whole(0, 0, t->numel)}},
                                             .num_parts = 1};
        TRY(x->visit(x->context, &native, err));
    }
    if (dropped && !x->t->options.encoding)
        notes_add(&x->t->notes, &x->t->plan.arena,
                  "weights are written decoded, without the %zu scales and the like of their "
                  "encoding",
                  dropped);
    return OK;
}

/* Lists parameters without a name in the family: they must not be lost. */
static void list_left_over(struct exporting *x)
{
    const struct catalog *all = &x->t->source->catalog;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *t = &all->tensors[i];
        if (x->exported[i] || !is_parameter(t)) continue;
        if (!globs_match(x->t->options.allow_unexpected, t->name))
            gaps_add_unexpected(&x->t->gaps, &x->t->plan.arena, t->name);
    }
}

static bool source_has(const void *context, const char *name)
{
    return catalog_find_native(context, name, NULL) != NULL;
}

/* A Hugging Face folder gets the spellings that were published, else the map's
 * first; other formats keep the source's, so that the program that saved it
 * loads them. */
static enum status export_hf(const struct naming_export *out, export_visit *visit, void *context,
                             struct error *err)
{
    struct target *t = out->t;
    struct exporting x = {.t = t, .visit = visit, .context = context};
    x.exported = arena_array(&t->plan.arena, t->source->catalog.num_tensors, sizeof *x.exported);
    const struct hf_names source = {
        .has = source_has, .context = &t->source->catalog, .first_prefix = true};
    const struct hf_names published = published_hf_names(t->source->published);
    const bool is_folder = t->format->has & FORMAT_CONFIG_JSON;
    TRY(model_map_expand(t->map, &t->source->config, is_folder ? &published : &source,
                         export_mapped, &x, err));
    list_left_over(&x);
    return export_carried(&x, err);
}

const struct naming naming_hf = {import_hf, import_states_hf, export_hf};
