#include "convert/target.h"

#include "convert/companions.h"
#include "convert/format.h"
#include "convert/naming.h"
#include "convert/states.h"

#include <inttypes.h>
#include <string.h>

#define OPTIM_NAME(name) [OPTIM_##name] = #name,
const char *const optim_format_names[NUM_OPTIM_FORMATS] = {OPTIM_FORMATS(OPTIM_NAME, OPTIM_NAME)};

enum optim_format optim_format_find(const char *name)
{
    unsigned i = NUM_OPTIM_FORMATS;
    while (--i && strcmp(optim_format_names[i], name)) {
    }
    return (enum optim_format)i;
}

bool is_parameter(const struct tensor *x)
{
    return !name_is_optimizer(x->name) && !name_is_padding(x->name) && !name_is_carried(x->name) &&
           !name_is_of_encoding(x->name);
}

/* Megatron keeps the dtype of buffers, whatever its parameters have. */
static bool is_buffer(const struct checkpoint *c, const struct tensor *x)
{
    struct param p;
    return c && c->params && param_find(c->params, x->name, &p) && p.spec->buffer;
}

enum dtype target_dtype(const struct target *t, const struct tensor *x)
{
    if (name_is_optimizer(x->name))
        return t->widens_states && dtype_bytes(x->dtype) < dtype_bytes(DT_F32) ? DT_F32 : x->dtype;
    const bool casts = t->options.casts && dtype_is_float(x->dtype);
    return casts && !is_buffer(t->source, x) ? t->options.dtype : x->dtype;
}

/* ---- the optimizer ---- */

const struct tensor *target_state(struct target *t, const struct tensor *x, size_t i)
{
    const char *name = state_name(&t->plan.arena, t->states[i], x->name);
    const struct tensor *stored = catalog_find(&t->source->catalog, name);
    return stored ? stored : catalog_find(&t->plan.made, name);
}

static bool has_states(struct target *t, const struct tensor *x)
{
    for (size_t i = 0; i < t->num_states; i++)
        if (target_state(t, x, i)) return true;
    return false;
}

/* Makes a tensor of x's elements under another name. */
static enum status make_same(struct target *t, const struct tensor *x, const char *name,
                             struct error *err)
{
    struct tensor *made;
    TRY(catalog_add(&t->plan.made, name, x->dtype, x->num_dims, x->shape, &made, err));
    made->stored_name = x->stored_name;
    tensor_add_pieces(&t->plan.arena, made, x);
    return OK;
}

/* Makes the master of each parameter, or padding, with states but no master. */
static enum status make_masters(struct target *t, struct error *err)
{
    const struct catalog *all = &t->source->catalog;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *x = &all->tensors[i];
        const char *name = state_name(&t->plan.arena, master_state, x->name);
        if (name_is_optimizer(x->name) || catalog_find(all, name) || !has_states(t, x)) continue;
        TRY(make_same(t, x, name, err));
        t->facts.made_masters += !name_is_padding(x->name);
    }
    return OK;
}

const struct tensor *target_weight(const struct target *t, const struct tensor *x)
{
    const struct tensor *made = catalog_find(&t->plan.made, x->name);
    return made ? made : x;
}

/* Whether weights are cast from their masters. Where the optimizer is left out,
 * its masters are used all the same, unless they cannot be trusted. */
static bool casts_masters(struct target *t)
{
    const struct optimizer_info *o = &t->source->training.optimizer;
    if (!t->options.casts) return false;
    if (t->options.optimizer) return true;
    if (!o->present) return false;
    const char *why = o->unread                                 ? o->unread
                      : o->shifted && !t->options.allow_shifted ? "they are shifted"
                                                                : NULL;
    if (why)
        notes_add(&t->notes, &t->plan.arena,
                  "the weights are cast as they are, not from their masters: %s", why);
    return !why;
}

/* Makes each weight, or padding, that is to be cast anew from its master. */
static enum status make_weights(struct target *t, struct error *err)
{
    const struct catalog *all = &t->source->catalog;
    if (!casts_masters(t)) return OK;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *x = &all->tensors[i];
        const char *name = state_name(&t->plan.arena, master_state, x->name);
        const struct tensor *master = catalog_find(all, name);
        if (name_is_optimizer(x->name) || !master || master->same_as ||
            target_dtype(t, x) == x->dtype)
            continue;
        TRY(make_same(t, master, x->name, err));
        t->facts.cast_masters += !name_is_padding(x->name);
    }
    if (!t->options.optimizer && t->facts.cast_masters)
        notes_add(&t->notes, &t->plan.arena, "%" PRIu64 " weights are cast from their masters",
                  t->facts.cast_masters);
    return OK;
}

enum status target_take_states(struct target *t, bool masters, struct error *err)
{
    struct arena *a = &t->plan.arena;
    TRY(make_weights(t, err));
    if (!t->options.optimizer) return OK;
    t->num_states = states_list(&t->source->catalog, a, &t->states);
    if (!masters || !t->num_states) return OK;
    TRY(make_masters(t, err));
    if (strcmp(t->states[0], master_state) == 0 || !t->facts.made_masters) return OK;
    const char **with = arena_array(a, t->num_states + 1, sizeof *with);
    with[0] = master_state;
    memcpy(with + 1, t->states, t->num_states * sizeof *with);
    t->states = with;
    t->num_states++;
    return OK;
}

/* Whether the source has masters that are no weights; masters wider than
 * weights. */
static void find_masters(const struct target *t, bool *any, bool *wider)
{
    const struct catalog *all = &t->source->catalog;
    struct arena a;
    arena_init(&a);
    *any = *wider = false;
    for (size_t i = 0; i < all->num_tensors && !*wider; i++) {
        const struct tensor *x = &all->tensors[i];
        if (!is_parameter(x)) continue;
        const struct tensor *master = catalog_find(all, state_name(&a, master_state, x->name));
        *any |= master && !master->same_as;
        *wider = master && dtype_bytes(master->dtype) > dtype_bytes(x->dtype);
    }
    arena_release(&a);
}

enum status target_take_trained(struct target *t, struct error *err)
{
    struct arena *a = &t->plan.arena;
    struct target_options *o = &t->options;
    bool any, wider;
    find_masters(t, &any, &wider);
    if (o->optimizer && any && o->casts && o->dtype != DT_F32)
        notes_add(&t->notes, a,
                  "the weights are written as %s and the source's masters are lost, since FSDP has "
                  "none; without --torch-dtype the masters are written as the weights",
                  dtype_infos[o->dtype].name);
    if (o->optimizer && wider && !o->casts) {
        o->casts = true;
        o->dtype = DT_F32;
        notes_add(&t->notes, a,
                  "the weights are written from their F32 masters, which FSDP trains; "
                  "--torch-dtype writes another dtype");
    }
    TRY(target_take_states(t, false, err));
    if (t->num_states && strcmp(t->states[0], master_state) == 0) {
        t->states++;
        t->num_states--;
    }
    return OK;
}

const char *target_encoding_of(const char *option)
{
    return option && strcmp(option, "bf16") ? option : NULL;
}

bool target_encodes_as_source(const struct target *t)
{
    return t->options.encoding && strcmp(t->options.encoding, "as-source") == 0;
}

uint64_t target_iteration(const struct target *t)
{
    const struct training_state *s = &t->source->training;
    if (t->options.has_iteration) return t->options.iteration;
    if (s->iteration > 0) return (uint64_t)s->iteration;
    if (!t->num_states) return 0;
    return s->run.iteration ? s->run.iteration : s->run.step;
}

/* Refuses shifted masters where they become weights. */
static enum status check_shifted(const struct target *t, struct error *err)
{
    const char *shifted = t->source->training.optimizer.shifted;
    const bool become = t->facts.cast_masters || (t->num_states && t->facts.masters_alone);
    if (!shifted || t->options.allow_shifted || !become) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: %s, are shifted, so weights cannot be written from these masters; --no-optim "
                "writes the weights alone, --allow-shifted goes on",
                t->source->path, shifted);
}

/* ---- the tokenizer ---- */

enum { TOKENIZER_CAP = 256 << 20, MAX_NAMED = 5 };

/* Whether the format keeps a tokenizer's files beside config.json. */
static bool keeps_tokenizer_beside(const struct target *t)
{
    return !t->format->tokenizer_in && t->format->has & FORMAT_CONFIG_JSON;
}

const char *target_tokenizer(const struct target *t)
{
    const bool carries = t->format->tokenizer_in || keeps_tokenizer_beside(t);
    return carries ? t->source->tokenizer_folder : NULL;
}

enum status target_small_files(struct target *t, const char *folder, struct error *err)
{
    const char *from = target_tokenizer(t), *in = t->format->tokenizer_in;
    TRY(t->format->target->write_small_files(t, folder, err));
    if (!from) return OK;
    return copy_tokenizer(from, in ? path_join(&t->plan.arena, folder, in) : folder,
                          keeps_tokenizer_beside(t), t->options.durable, err);
}

static bool same_bytes(const char *a, const char *b)
{
    struct strbuf x = {0}, y = {0};
    const bool same = !file_read_all(a, TOKENIZER_CAP, &x, NULL) &&
                      !file_read_all(b, TOKENIZER_CAP, &y, NULL) && x.length == y.length &&
                      (!x.length || memcmp(x.data, y.data, x.length) == 0);
    strbuf_release(&x);
    strbuf_release(&y);
    return same;
}

/* Why a file of the tokenizer is not copied; NULL: it is, or the folder of
 * config.json has the same. */
static const char *why_left(const struct target *t, struct arena *a, const char *name)
{
    const char *folder = t->source->tokenizer_folder, *hf = t->source->hf_folder;
    const char *stays = tokenizer_file_stays(folder, name, keeps_tokenizer_beside(t));
    if (stays || !hf || !keeps_tokenizer_beside(t)) return stays;
    const char *other = path_join(a, hf, name);
    if (!path_is_file(other) || same_bytes(path_join(a, folder, name), other)) return NULL;
    return arena_printf(a, "%s is taken", other);
}

/* Notes files of the tokenizer that are left out. */
static void note_tokenizer(struct target *t)
{
    struct arena *a = &t->plan.arena;
    const char *folder = t->source->tokenizer_folder, *text = NULL;
    struct name_list list = {0};
    size_t count = 0;
    if (!folder || folder_list(folder, a, &list, NULL) || !list.count) return;
    if (!target_tokenizer(t)) {
        notes_add(&t->notes, a, "%s is not carried: copy its files", folder);
        return;
    }
    for (size_t i = 0; i < list.count; i++) {
        const char *why = why_left(t, a, list.names[i]);
        if (!why || count++ >= MAX_NAMED) continue;
        text =
            arena_printf(a, "%s%s%s (%s)", text ? text : "", text ? ", " : "", list.names[i], why);
    }
    if (count)
        notes_add(&t->notes, a, "%s: not copied: %s%s", folder, text,
                  count > MAX_NAMED ? ", ..." : "");
}

/* ---- all ---- */

enum status target_plan(struct target *t, const struct target_options *o,
                        const struct checkpoint *source, const struct model_maps *maps,
                        struct error *err)
{
    *t = (struct target){.options = *o, .source = source, .format = o->format, .maps = maps};
    plan_init(&t->plan, &source->catalog);
    t->training = training_copy(&source->training.run, &t->plan.arena);
    if (source->family) t->map = model_map_of_family(maps, source->family);
    TRY(t->format->target->plan(t, err));
    TRY(check_shifted(t, err));
    note_tokenizer(t);
    for (size_t i = 0; i < t->plan.num_copies; i++) {
        const struct tensor *x = t->plan.copies[i].source;
        const bool differs = target_dtype(t, x) != x->dtype;
        uint64_t *count =
            name_is_optimizer(x->name) ? &t->facts.widened_states : &t->facts.cast_tensors;
        *count += differs;
    }
    return plan_finish(&t->plan, err);
}

/* ---- native tensors ---- */

size_t out_tensors_add(struct out_tensors *all, struct arena *a, const char *name,
                       const struct native_output *native)
{
    size_t at = all->count;
    if (map_get(&all->names, name, &at)) return at;
    struct out_tensor *o = ARENA_PUSH(a, all->items, all->count, all->capacity);
    *o = (struct out_tensor){
        .name = arena_copy_text(a, name),
        .native_name = native->name ? arena_copy_text(a, native->name) : NULL,
        .state = native->state ? arena_copy_text(a, native->state) : NULL,
        .logical = native->num_parts ? native->parts[0].logical->name : NULL,
        .first_part = SIZE_MAX,
        .last_part = SIZE_MAX,
        .dtype = native->dtype,
        .num_dims = native->num_dims,
        .shape = arena_copy(a, native->shape, native->num_dims * sizeof *native->shape),
        .numel = 1,
    };
    for (unsigned d = 0; d < native->num_dims; d++)
        o->numel *= native->shape[d];
    (void)map_add(&all->names, o->name, at, NULL);
    return at;
}

struct filling {
    struct target *t;
    const struct tensor *logical;
    uint32_t segment;
};

static enum status add_filling(void *context, const struct pair *p, struct error *err)
{
    const struct filling *f = context; /* p.a: the tensor, p.b: the segment */
    (void)err;
    plan_add_piece(&f->t->plan, f->logical, f->segment, p);
    return OK;
}

enum status target_fill(struct target *t, const struct native_output *native,
                        const struct pair *pair, uint32_t segment, struct error *err)
{
    for (unsigned i = 0; i < native->num_parts; i++) {
        struct filling f = {t, native->parts[i].logical, segment};
        struct pair by_native = native->parts[i].pair;
        TRY(pair_turn(&by_native, f.logical->name, err));
        TRY(pair_join_nested(&by_native, pair, f.logical->name, add_filling, &f, err));
    }
    return OK;
}

void target_release(struct target *t)
{
    if (t->state && t->format->target->release) t->format->target->release(t);
    plan_release(&t->plan);
}
