#include "convert/megatron/optim/dist_states.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/text.h"
#include "convert/states.h"

enum { FEW_FRAGMENTS = 1024 };

static const char low_precision_master[] = "fp32_param", prefix[] = "optimizer.state.";

bool dist_key_is_optimizer(const char *key)
{
    return text_starts_with(key, "optimizer.") ||
           fnmatch("chained_[0-9]*.optimizer.*", key, 0) == 0;
}

unsigned dist_key_chain(const char *key)
{
    unsigned chain = 0;
    return sscanf(key, "chained_%3u.", &chain) == 1 ? chain : 0;
}

bool dist_key_is_flat(const char *key)
{
    return fnmatch("*optimizer.distributed.*", key, 0) == 0;
}

const char *dist_state_key(struct arena *a, const char *state, const char *key, bool low_precision,
                           int chained)
{
    if (low_precision && strcmp(state, master_state) == 0) state = low_precision_master;
    const char *chain = chained < 0 ? "" : arena_printf(a, "chained_%d.", chained);
    return arena_printf(a, "%s%s%s.%s", chain, prefix, state, key);
}

/* The parameter's key in a state's key; sets *state, in arena a. NULL: another
 * form. */
static const char *parse_key(struct arena *a, const char *key, const char **state)
{
    const char *chained = strstr(key, ".optimizer.");
    if (fnmatch("chained_[0-9]*.optimizer.*", key, 0) == 0) key = chained + 1;
    if (!text_skip_prefix(&key, prefix)) return NULL;
    const char *dot = strchr(key, '.');
    if (!dot || dot == key) return NULL;
    *state = arena_text(a, key, (size_t)(dot - key));
    if (strcmp(*state, low_precision_master) == 0) *state = master_state;
    return dot + 1;
}

/* ---- flattened states ---- */

/* A parameter stored in fragments. */
struct fragments {
    const struct stored_tensor *whole, *flat;
    uint64_t size[MAX_AXES]; /* of a fragment */
    uint64_t numel;          /* of a fragment */
};

static bool is_flattened(const struct stored_tensor *whole, const struct stored_tensor *state)
{
    return whole && state->num_dims == whole->num_dims + 1 && whole->num_dims <= MAX_AXES;
}

static bool find_fragments(struct fragments *f)
{
    const unsigned n = f->whole->num_dims;
    f->numel = 1;
    for (unsigned d = 0; d < n; d++) {
        const uint64_t parts = f->flat->shape[d];
        if (!parts || f->whole->shape[d] % parts) return false;
        f->size[d] = f->whole->shape[d] / parts;
        f->numel *= f->size[d];
    }
    return f->numel == f->flat->shape[n];
}

/* Sets start of fragment i, the last dimension fastest. */
static void start_of(const struct fragments *f, uint64_t i, uint64_t *start)
{
    for (unsigned d = f->whole->num_dims; d-- > 0;) {
        start[d] = i % f->flat->shape[d] * f->size[d];
        i /= f->flat->shape[d];
    }
}

static enum status add_flattened(struct checkpoint *c, const char *key, const char *state,
                                 struct fragments *f, struct error *err)
{
    struct native_tensor *native;
    uint64_t start[MAX_AXES], count = 1;
    if (!find_fragments(f))
        return fail(
            err, ERR_CORRUPT,
            "%s has shape %s, which does not divide its parameter of shape %s into fragments",
            f->flat->name, shape_text(&c->arena, f->flat->num_dims, f->flat->shape),
            shape_text(&c->arena, f->whole->num_dims, f->whole->shape));
    TRY(catalog_add_native(&c->catalog, key, state, f->flat->dtype, f->whole->num_dims,
                           f->whole->shape, &native, err));
    for (unsigned d = 0; d < f->whole->num_dims; d++)
        count *= f->flat->shape[d];
    if (count > FEW_FRAGMENTS && count > f->flat->num_pieces)
        return fail(err, ERR_CORRUPT, "%s: %" PRIu64 " fragments in %zu chunks", f->flat->name,
                    count, f->flat->num_pieces);
    for (uint64_t i = 0; i < count && f->numel; i++) {
        struct pair pair;
        start_of(f, i, start);
        if (!pair_of_box(&pair, f->whole->num_dims, f->whole->shape, start, f->size, i * f->numel,
                         NULL))
            return fail(err, ERR_UNSUPPORTED, "%s: too many dimensions", f->flat->name);
        TRY(catalog_add_native_part(&c->catalog, native, f->flat, &pair, err));
    }
    return OK;
}

/* ---- all ---- */

static enum status add_dist_state(struct checkpoint *c, const struct hybrid_stack *hybrid,
                                  size_t stored, struct error *err)
{
    const struct stored_tensor *s = &c->catalog.stored.tensors[stored];
    const char *state, *key = parse_key(&c->arena, s->name, &state);
    if (!key && dist_key_is_optimizer(s->name) && !dist_key_is_flat(s->name))
        states_unread(c, "%s is not a parameter's state", s->name);
    if (!key) return OK;
    const struct stored_tensor *whole = stored_find(&c->catalog.stored, key);
    if (hybrid) key = hybrid_gpt_key(hybrid, &c->arena, key);
    if (!is_flattened(whole, s)) return catalog_native_stored(&c->catalog, key, state, s, err);
    return add_flattened(c, key, state, &(struct fragments){.whole = whole, .flat = s}, err);
}

enum status dist_states_add(struct checkpoint *c, const struct hybrid_stack *hybrid,
                            struct error *err)
{
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        TRY(add_dist_state(c, hybrid, i, err));
    return OK;
}
