/* naming_hf.c - Hugging Face's names: by the rows of a model map, own tensors become logical ones,
 * and logical ones own ones. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "convert/naming.h"

struct importing {
    struct checkpoint *c;
    const struct naming_import *in;
    uint64_t *taken;    /* [own tensors] number of elements that rows have taken */
    size_t num_widened; /* tensors whose parts differ in dtype */
    const char *first_widened;
};

static const struct own_tensor *find_own(const struct importing *x, const char *name)
{
    return catalog_find_own(&x->c->catalog, name, NULL);
}

static bool has_own(const void *context, const char *name)
{
    return find_own(context, name) != NULL;
}

static const struct stored_tensor *stored_of(const struct importing *x,
                                             const struct own_tensor *own)
{
    return &x->c->catalog.stored.tensors[own->parts[0]->stored];
}

/* "model.safetensors: tensor NAME" */
static const char *place_of(const struct importing *x, const struct own_tensor *own)
{
    const struct stored_tensor *s = stored_of(x, own);
    const char *path =
        s->num_pieces ? x->c->catalog.stored.files[s->pieces[0].file].path : x->c->folder;
    return arena_printf(&x->c->arena, "%s: tensor %s", path, own->name);
}

static enum status check_part(const struct importing *x, const struct mapped_part *part,
                              const struct own_tensor *s, struct error *err)
{
    struct arena *a = &x->c->arena;
    const char *why = x->in->quantised
                          ? "; config.json says that the weights are quantised, which is not "
                            "supported: dequantise them first"
                          : "";
    bool same = s->num_dims == part->num_dims &&
                memcmp(s->shape, part->shape, s->num_dims * sizeof *s->shape) == 0;
    x->c->contradicts = !same && !x->in->quantised;
    if (!same)
        return fail(err, ERR_UNSUPPORTED, "%s is %s; by config.json it should be %s%s",
                    place_of(x, s), shape_text(a, s->num_dims, s->shape),
                    shape_text(a, part->num_dims, part->shape), why);
    if (!dtype_is_float(s->dtype))
        return fail(err, ERR_UNSUPPORTED, "%s is of dtype %s; a weight is F16, BF16, F32 or F64%s",
                    place_of(x, s), dtype_infos[s->dtype].name, why);
    return OK;
}

/* The smaller dtype that can hold all values of both; neither F16 nor BF16 can. */
static enum dtype wider_dtype(enum dtype a, enum dtype b)
{
    if (dtype_bytes(a) != dtype_bytes(b)) return dtype_bytes(a) > dtype_bytes(b) ? a : b;
    return a == b ? a : DT_F32;
}

/* The dtype of a logical tensor: that of its parts if they agree, else the dtype that all are cast
 * to. */
static enum status common_dtype(struct importing *x, const struct mapped_tensor *t,
                                enum dtype *dtype, struct error *err)
{
    const struct own_tensor *first = find_own(x, t->parts[0].hf_name);
    bool widened = false;
    *dtype = first->dtype;
    for (size_t i = 1; i < t->num_parts; i++) {
        const struct own_tensor *other = find_own(x, t->parts[i].hf_name);
        if (other->dtype == first->dtype) continue;
        if (!x->in->o->casts && !x->in->o->widest)
            return fail(
                err, ERR_UNSUPPORTED,
                "%s is %s and %s is %s: they become one tensor, %s; --torch-dtype casts both",
                first->name, dtype_infos[first->dtype].name, other->name,
                dtype_infos[other->dtype].name, t->name);
        *dtype = x->in->o->casts ? x->in->o->dtype : wider_dtype(*dtype, other->dtype);
        widened = !x->in->o->casts;
    }
    if (widened && x->num_widened++ == 0)
        x->first_widened = arena_printf(&x->c->arena, "%s", t->name);
    return OK;
}

/* Lists the parts of the tensor that are missing. */
static enum status note_missing(const struct importing *x, const struct mapped_tensor *t,
                                bool *missing, struct error *err)
{
    *missing = false;
    for (size_t i = 0; i < t->num_parts; i++) {
        const char *name = t->parts[i].hf_name;
        bool again = i > 0 && strcmp(name, t->parts[i - 1].hf_name) == 0;
        if (find_own(x, name)) continue;
        if (!again) TRY(gaps_add_missing(&x->c->gaps, &x->c->arena, name, err));
        *missing = true;
    }
    return OK;
}

static void take(const struct importing *x, const struct own_tensor *own, const struct pair *part)
{
    x->taken[own - x->c->catalog.own] += pair_count(part);
}

/* Parts of an incomplete tensor belong nowhere. If the missing parts are allowed to be missing, the
 * present ones are listed as unexpected; if not, the missing ones alone are reported. */
static void leave_parts(const struct importing *x, const struct mapped_tensor *t)
{
    bool allowed = true;
    for (size_t i = 0; i < t->num_parts; i++)
        allowed &= find_own(x, t->parts[i].hf_name) ||
                   globs_match(x->in->o->allow_missing, t->parts[i].hf_name);
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct own_tensor *part = find_own(x, t->parts[i].hf_name);
        if (part && !allowed) take(x, part, &t->parts[i].pair);
        if (part && allowed)
            checkpoint_note(
                x->c, "%s cannot be converted: it is one part of %s, and other parts are missing",
                part->name, t->name);
    }
}

static enum status add_mapped(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct importing *x = context;
    struct tensor *logical;
    enum dtype dtype;
    bool missing;
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct own_tensor *part = find_own(x, t->parts[i].hf_name);
        if (part) TRY(check_part(x, &t->parts[i], part, err));
    }
    TRY(note_missing(x, t, &missing, err));
    if (missing) {
        leave_parts(x, t);
        return OK;
    }
    TRY(common_dtype(x, t, &dtype, err));
    TRY(catalog_add(&x->c->catalog, t->name, dtype, t->num_dims, t->shape, &logical, err));
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct own_tensor *part = find_own(x, t->parts[i].hf_name);
        take(x, part, &t->parts[i].pair);
        TRY(catalog_add_part(&x->c->catalog, logical, part, &t->parts[i].pair, err));
    }
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

/* The own tensor of a logical name; NULL if the files have none. */
static const struct own_tensor *own_of(const struct importing *x, const char *logical)
{
    struct head_search search = {.logical = logical};
    struct model_config one = x->c->config; /* one layer is enough for tensors outside of layers */
    struct hf_names names = {has_own, x};
    one.num_layers = 1;
    one.num_experts = one.num_experts ? 1 : 0;
    one.untie_embeddings_and_output_weights = true;
    if (model_map_expand(x->in->map, &one, &names, find_name, &search, NULL)) return NULL;
    return find_own(x, search.name);
}

/* A head that is stored although it is tied must equal the embedding; then it is ignored. */
static enum status check_tied_head(struct importing *x, struct error *err)
{
    struct checkpoint *c = x->c;
    const struct own_tensor *head = own_of(x, "output_layer.weight");
    const struct tensor *embedding = catalog_find(&c->catalog, "embedding.word_embeddings.weight");
    bool same;
    uint64_t at;
    if (c->config.untie_embeddings_and_output_weights || !head || !embedding) return OK;
    const struct own_tensor *embedded = find_own(x, embedding->stored_name);
    x->taken[head - c->catalog.own] = head->numel;
    c->num_ignored++;
    TRY(source_same_stored(c, stored_of(x, head), stored_of(x, embedded), &same, &at, err));
    if (same) return OK;
    c->contradicts = true;
    if (head->dtype == embedded->dtype && head->numel == embedded->numel)
        return fail(err, ERR_UNSUPPORTED,
                    "%s and %s differ at element %" PRIu64
                    ", but config.json says that they are tied (tie_word_embeddings)",
                    place_of(x, head), embedded->name, at);
    return fail(err, ERR_UNSUPPORTED,
                "%s is %s %s, and by config.json (tie_word_embeddings) it is %s, which is %s %s",
                place_of(x, head), dtype_infos[head->dtype].name,
                shape_text(&c->arena, head->num_dims, head->shape), embedded->name,
                dtype_infos[embedded->dtype].name,
                shape_text(&c->arena, embedded->num_dims, embedded->shape));
}

/* ---- all ---- */

static enum status note_unexpected(const struct importing *x, struct error *err)
{
    struct checkpoint *c = x->c;
    for (size_t i = 0; i < c->catalog.num_own; i++) {
        const struct own_tensor *s = &c->catalog.own[i];
        if (x->taken[i] && x->taken[i] != s->numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: the model map %s takes %" PRIu64 " of its %" PRIu64
                        " elements for a model of this config.json",
                        place_of(x, s), model_map_family(x->in->map), x->taken[i], s->numel);
        if (x->taken[i]) continue;
        if (model_map_ignores(x->in->map, s->name))
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
    struct hf_names names = {has_own, &x};
    x.taken = arena_array(&x.c->arena, x.c->catalog.num_own, sizeof *x.taken);
    TRY(model_map_expand(in->map, &x.c->config, &names, add_mapped, &x, err));
    note_widened(&x);
    TRY(check_tied_head(&x, err));
    return note_unexpected(&x, err);
}

static enum status import_states_hf(const struct naming_import *in, struct error *err)
{
    (void)in, (void)err;
    return OK;
}

/* ---- export ---- */

struct exporting {
    struct target *t;
    bool *carried; /* [tensors of the source] */
    export_visit *visit;
    void *context;
};

/* Whether a missing logical tensor is allowed to be missing, by its own name or that of a part. */
static bool may_be_missing(const struct target *t, const struct mapped_tensor *m)
{
    bool allowed = globs_match(t->options.allow_missing, m->name);
    for (size_t i = 0; i < m->num_parts; i++)
        allowed |= globs_match(t->options.allow_missing, m->parts[i].hf_name);
    return allowed;
}

static enum status export_mapped(void *context, const struct mapped_tensor *m, struct error *err)
{
    struct exporting *x = context;
    struct arena *a = &x->t->plan.arena;
    const struct catalog *all = &x->t->source->catalog;
    const struct tensor *logical = catalog_find(all, m->name);
    if (!logical)
        return may_be_missing(x->t, m) ? OK : gaps_add_missing(&x->t->gaps, a, m->name, err);
    if (logical->num_dims != m->num_dims ||
        memcmp(logical->shape, m->shape, m->num_dims * sizeof *m->shape))
        return fail(err, ERR_UNSUPPORTED, "%s (%s) is %s; by the config it should be %s",
                    logical->stored_name ? logical->stored_name : m->name, m->name,
                    shape_text(a, logical->num_dims, logical->shape),
                    shape_text(a, m->num_dims, m->shape));
    x->carried[logical - all->tensors] = true;
    for (size_t i = 0; i < m->num_parts; i++) {
        const struct mapped_part *part = &m->parts[i];
        const struct own_output own = {.name = part->hf_name,
                                       .dtype = target_dtype(x->t, logical),
                                       .num_dims = part->num_dims,
                                       .shape = part->shape,
                                       .parts = {{logical, part->pair}},
                                       .num_parts = 1};
        TRY(x->visit(x->context, &own, err));
    }
    return OK;
}

/* Parameters without a name in the family must be reported, not lost. */
static void list_left_over(struct exporting *x)
{
    const struct catalog *all = &x->t->source->catalog;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *t = &all->tensors[i];
        if (x->carried[i] || !is_parameter(t)) continue;
        if (!globs_match(x->t->options.allow_unexpected, t->name))
            gaps_add_unexpected(&x->t->gaps, &x->t->plan.arena, t->name);
    }
}

static enum status export_hf(const struct naming_export *out, export_visit *visit, void *context,
                             struct error *err)
{
    struct target *t = out->t;
    struct exporting x = {.t = t, .visit = visit, .context = context};
    x.carried = arena_array(&t->plan.arena, t->source->catalog.num_tensors, sizeof *x.carried);
    TRY(model_map_expand(t->map, &t->source->config, NULL, export_mapped, &x, err));
    list_left_over(&x);
    return OK;
}

const struct naming naming_hf = {import_hf, import_states_hf, export_hf};
