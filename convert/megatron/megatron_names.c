#include "convert/megatron/megatron_names.h"
#include "common/text.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 9 }; /* of a layer's or expert's number */

/* Parses "12.rest": *number is 12, *text points behind the dot. */
static bool parse_index(const char **text, uint64_t *number)
{
    char *end;
    if (!isdigit((unsigned char)**text)) return false;
    *number = strtoull(*text, &end, 10);
    if (*end != '.' || end - *text > MAX_DIGITS) return false;
    *text = end + 1;
    return true;
}

static const char of_layers[] = "decoder.layers.", of_mtp[] = "mtp.layers.";

/* Parses "mtp.layers.3.transformer_layer.rest": *layer is 3, *rest "rest". */
static bool parse_mtp(const char *name, uint64_t *layer, const char **rest)
{
    uint64_t number;
    if (!text_skip_prefix(&name, of_mtp) || !parse_index(&name, &number)) return false;
    if (!text_skip_prefix(&name, "transformer_layer.") &&
        !text_skip_prefix(&name, "mtp_model_layer."))
        return false;
    *layer = number;
    *rest = name;
    return true;
}

/* A parameter's name behind its layer, in one of multi-token prediction, too. */
static const char *rest_of(const struct param *p)
{
    const char *rest = p->rest;
    (void)(p->spec->mtp && text_skip_prefix(&rest, "transformer_layer."));
    return rest;
}

/* How such names begin. model: the inner layer. */
static const char *layer_of(struct arena *a, const struct param *p, uint64_t number,
                            const char *model)
{
    const bool inner = p->spec->mtp && rest_of(p) != p->rest;
    return arena_printf(a, "%s%llu.%s", p->spec->mtp ? of_mtp : of_layers,
                        (unsigned long long)number, inner ? model : "");
}

static bool is_layered(const struct param *p)
{
    return p->spec->place == PLACE_LAYER || p->spec->mtp;
}

/* ---- torch_dist ---- */

struct dist_key dist_key_parse(struct arena *a, const char *key)
{
    struct dist_key k = {0};
    while (text_skip_prefix(&key, "module.")) {
    }
    k.rest = key;
    k.in_mtp = parse_mtp(key, &k.layer, &k.rest);
    k.in_layers = !k.in_mtp && text_skip_prefix(&k.rest, of_layers);
    if (!k.in_layers && !k.in_mtp) return k;
    k.stacked_layers = k.in_layers && !parse_index(&k.rest, &k.layer);
    if (text_skip_prefix(&k.rest, "mlp.experts.experts.")) {
        k.of_expert = true;
        k.stacked_experts = !parse_index(&k.rest, &k.expert);
    }
    if (text_ends_with(k.rest, "_w") || text_ends_with(k.rest, "_v")) {
        k.half = k.rest[strlen(k.rest) - 1];
        k.rest = arena_text(a, k.rest, strlen(k.rest) - 2);
    }
    return k;
}

/* The spelling of a layer with a router (moe), or without. */
static const char *beside_router(struct arena *a, const struct param_table *t, const char *rest,
                                 bool moe)
{
    const struct param_spellings *s = params_spellings(t);
    for (size_t i = 0; i < s->num_beside_router; i++) {
        const struct param_spelling *x = &s->beside_router[i];
        const char *kind = rest;
        if (text_skip_prefix(&kind, moe ? x->theirs : x->ours))
            return arena_printf(a, "%s%s", moe ? x->ours : x->theirs, kind);
    }
    return rest;
}

/* of: of_layers or of_mtp; NULL: outside of layers. */
static const char *logical_of(struct arena *a, const struct param_table *t, const char *of,
                              bool of_expert, const char *rest, uint64_t layer, uint64_t expert,
                              bool moe)
{
    const char *inner = of == of_mtp ? "transformer_layer." : "";
    if (!of) return rest;
    if (of_expert)
        return arena_printf(a, "%s%llu.%smlp.experts.experts.%llu.%s", of,
                            (unsigned long long)layer, inner, (unsigned long long)expert, rest);
    return arena_printf(a, "%s%llu.%s%s", of, (unsigned long long)layer, inner,
                        beside_router(a, t, rest, moe));
}

const char *dist_key_logical(struct arena *a, const struct param_table *t, const struct dist_key *k,
                             uint64_t layer, uint64_t expert, bool moe)
{
    const char *of = k->in_mtp ? of_mtp : k->in_layers ? of_layers : NULL;
    return logical_of(a, t, of, k->of_expert, k->rest, layer, expert, moe);
}

/* The name behind "mlp.experts.experts.E." */
static const char *behind_expert(const struct param *p)
{
    const char *rest = rest_of(p);
    uint64_t expert;
    (void)(text_skip_prefix(&rest, "mlp.experts.experts.") && parse_index(&rest, &expert));
    return rest;
}

const char *dist_key_of(struct arena *a, const struct param_table *t, const struct param *p,
                        unsigned stacks, bool local)
{
    const char *rest = rest_of(p);
    if (!is_layered(p)) return rest;
    if (p->spec->stacks & stacks & STACK_EXPERTS)
        rest = arena_printf(a, "mlp.experts.experts.%s", behind_expert(p));
    else if (local)
        rest = beside_router(a, t, rest, false);
    if (p->spec->stacks & stacks & STACK_LAYERS) return arena_printf(a, "%s%s", of_layers, rest);
    return arena_printf(a, "%s%s", layer_of(a, p, p->layer, "transformer_layer."), rest);
}

unsigned dist_key_lead(const struct model_config *c, const struct param *p, unsigned stacks,
                       uint64_t sizes[MAX_LEAD], uint64_t at[MAX_LEAD])
{
    unsigned n = 0;
    if (p->spec->stacks & stacks & STACK_LAYERS) {
        sizes[n] = c->num_layers;
        at[n++] = p->layer;
    }
    if (p->spec->stacks & stacks & STACK_EXPERTS) {
        sizes[n] = c->num_experts;
        at[n++] = p->expert;
    }
    return n;
}

const char *module_of(struct arena *a, const char *key)
{
    const char *dot = strrchr(key, '.');
    return arena_text(a, key, dot ? (size_t)(dot - key) : strlen(key));
}

/* ---- in memory ---- */

/* Parses an expert's name: sequential (local_experts.E.REST), grouped
 * (linear_fc1.weightE) or GroupedMLP's two. */
static void parse_expert(struct arena *a, const char *rest, struct memory_name *m)
{
    m->of_expert = true;
    m->rest = rest;
    if (strcmp(rest, "weight1") == 0 || strcmp(rest, "weight2") == 0) {
        m->kind = rest[6] == '1' ? MEMORY_GROUPED_FC1 : MEMORY_GROUPED_FC2;
        m->rest = rest[6] == '1' ? "linear_fc1.weight" : "linear_fc2.weight";
    } else if (text_skip_prefix(&m->rest, "local_experts.") && parse_index(&m->rest, &m->expert)) {
        m->kind = MEMORY_PARAM;
    } else {
        size_t n = strlen(rest), name = n;
        while (name > 0 && isdigit((unsigned char)rest[name - 1]))
            name--;
        m->kind = name < n && n - name <= MAX_DIGITS ? MEMORY_PARAM : MEMORY_UNKNOWN;
        m->expert = strtoull(rest + name, NULL, 10);
        m->rest = arena_text(a, rest, name);
    }
}

/* Our name for a name that begins with a spelling; NULL: none. */
static const char *respell(struct arena *a, const struct param_spelling *items, size_t count,
                           const char *name, const struct param_spelling **spelling)
{
    for (size_t i = 0; i < count; i++) {
        const char *kind = name;
        *spelling = &items[i];
        if (text_skip_prefix(&kind, items[i].theirs))
            return arena_printf(a, "%s%s", items[i].ours, kind);
    }
    return NULL;
}

static void parse_in_layer(struct arena *a, const struct param_spellings *s, const char *rest,
                           struct memory_name *m)
{
    const struct param_spelling *x;
    const char *expert = rest;
    m->rest = rest;
    if (text_skip_prefix(&expert, "mlp.experts.")) {
        parse_expert(a, expert, m);
        return;
    }
    const char *ours = respell(a, s->in_layers, s->num_in_layers, rest, &x);
    if (!ours) return;
    m->rest = ours;
    m->fused_qkv = x->fused_qkv;
    m->local_spec = x->local_spec;
}

struct memory_name memory_name_parse(struct arena *a, const struct param_table *t, const char *name)
{
    const struct param_spellings *s = params_spellings(t);
    const struct param_spelling *x;
    struct memory_name m = {.kind = MEMORY_PARAM};
    while (text_skip_prefix(&name, "module.")) {
    }
    if (text_ends_with(name, "._extra_state") || text_ends_with(name, "inv_freq") ||
        strncmp(name, "word_embeddings_for_head.", 25) == 0) {
        m.kind = MEMORY_SKIP;
        return m;
    }
    m.rest = name;
    if (parse_mtp(name, &m.layer, &m.rest)) {
        m.in_mtp = true;
        parse_in_layer(a, s, m.rest, &m);
        return m;
    }
    for (unsigned i = 0; i < s->num_layers; i++) {
        const char *rest = name;
        if (!text_skip_prefix(&rest, s->layers[i])) continue;
        if (i > 0) m.rest = rest;
        if (!text_skip_prefix(&rest, "layers.") || !parse_index(&rest, &m.layer)) break;
        m.in_layers = true;
        parse_in_layer(a, s, rest, &m);
        return m;
    }
    const char *ours = respell(a, s->outside, s->num_outside, m.rest, &x);
    if (ours) m.rest = ours;
    return m;
}

const char *memory_name_logical(struct arena *a, const struct param_table *t,
                                const struct memory_name *m, uint64_t layer, uint64_t expert,
                                bool moe)
{
    const char *of = m->in_mtp ? of_mtp : m->in_layers ? of_layers : NULL;
    return logical_of(a, t, of, m->of_expert, m->rest, layer, expert, moe);
}

/* Today's name in memory of a name in a layer. */
static const char *written_name(struct arena *a, const struct param_table *t, const char *rest)
{
    const struct param_spellings *s = params_spellings(t);
    for (size_t i = 0; i < s->num_in_layers; i++) {
        const char *kind = rest;
        if (s->in_layers[i].written && text_skip_prefix(&kind, s->in_layers[i].ours))
            return arena_printf(a, "%s%s", s->in_layers[i].theirs, kind);
    }
    return rest;
}

const char *memory_name_of(struct arena *a, const struct param_table *t, const struct param *p,
                           uint64_t local_layer, uint64_t local_expert, bool te, bool grouped)
{
    const char *rest = rest_of(p);
    if (!is_layered(p)) return rest;
    if (param_of_expert(p->spec) && grouped)
        rest = arena_printf(a, "mlp.experts.%s%llu", behind_expert(p),
                            (unsigned long long)local_expert);
    else if (param_of_expert(p->spec))
        rest = arena_printf(a, "mlp.experts.local_experts.%llu.%s",
                            (unsigned long long)local_expert, behind_expert(p));
    else if (!te && p->spec->local)
        rest = strstr(p->spec->local, "{l}.") + strlen("{l}.");
    rest = written_name(a, t, rest);
    const uint64_t number = p->spec->mtp ? p->layer : local_layer;
    return arena_printf(a, "%s%s", layer_of(a, p, number, "mtp_model_layer."), rest);
}

const char *megatron_rank_folder(struct arena *a, const struct layout *l, uint64_t tp, uint64_t pp,
                                 uint64_t ep)
{
    const char *stage = l->pp > 1 ? arena_printf(a, "_%03" PRIu64, pp) : "";
    const char *experts = l->ep > 1 ? arena_printf(a, "_%03" PRIu64, ep) : "";
    return arena_printf(a, "mp_rank_%02" PRIu64 "%s%s", tp, stage, experts);
}
