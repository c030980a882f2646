#include "convert/megatron_names.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool skip_prefix(const char **text, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*text, prefix, n)) return false;
    *text += n;
    return true;
}

enum { MOST_DIGITS = 9 }; /* of a layer's or an expert's number */

/* "12.rest": 12, and *text behind the dot. */
static bool take_number(const char **text, uint64_t *number)
{
    char *end;
    if (!isdigit((unsigned char)**text)) return false;
    *number = strtoull(*text, &end, 10);
    if (*end != '.' || end - *text > MOST_DIGITS) return false;
    *text = end + 1;
    return true;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* ---- torch_dist ---- */

struct dist_key dist_key_parse(struct arena *a, const char *key)
{
    struct dist_key k = {0};
    while (skip_prefix(&key, "module.")) {
    }
    k.rest = key;
    if (!skip_prefix(&k.rest, "decoder.layers.")) return k;
    k.in_layers = true;
    k.stacked_layers = !take_number(&k.rest, &k.layer);
    if (skip_prefix(&k.rest, "mlp.experts.experts.")) {
        k.of_expert = true;
        k.stacked_experts = !take_number(&k.rest, &k.expert);
    }
    if (ends_with(k.rest, "_w") || ends_with(k.rest, "_v")) {
        k.half = k.rest[strlen(k.rest) - 1];
        k.rest = arena_text(a, k.rest, strlen(k.rest) - 2);
    }
    return k;
}

static const char dense_norm[] = "mlp.linear_fc1.layer_norm_", moe_norm[] = "pre_mlp_layernorm.";

/* The norm in front of the MLP: part of linear_fc1 in a dense layer, a module of its own before a
 * router. */
static const char *norm_for(struct arena *a, const char *rest, bool moe)
{
    const char *kind = rest;
    if (moe && skip_prefix(&kind, dense_norm)) return arena_printf(a, "%s%s", moe_norm, kind);
    if (!moe && skip_prefix(&kind, moe_norm)) return arena_printf(a, "%s%s", dense_norm, kind);
    return rest;
}

static const char *logical_of(struct arena *a, bool in_layers, bool of_expert, const char *rest,
                              uint64_t layer, uint64_t expert, bool moe)
{
    if (!in_layers) return rest;
    if (of_expert)
        return arena_printf(a, "decoder.layers.%llu.mlp.experts.experts.%llu.%s",
                            (unsigned long long)layer, (unsigned long long)expert, rest);
    return arena_printf(a, "decoder.layers.%llu.%s", (unsigned long long)layer,
                        norm_for(a, rest, moe));
}

const char *dist_key_logical(struct arena *a, const struct dist_key *k, uint64_t layer,
                             uint64_t expert, bool moe)
{
    return logical_of(a, k->in_layers, k->of_expert, k->rest, layer, expert, moe);
}

/* What follows "mlp.experts.experts.E." */
static const char *behind_expert(const struct param *p)
{
    const char *rest = p->rest;
    uint64_t expert;
    (void)(skip_prefix(&rest, "mlp.experts.experts.") && take_number(&rest, &expert));
    return rest;
}

const char *dist_key_of(struct arena *a, const struct param *p, bool stacked, bool local)
{
    const char *rest = p->rest;
    if (p->rule->place != PLACE_LAYER) return rest;
    if (p->rule->expert)
        rest = arena_printf(a, "mlp.experts.experts.%s", behind_expert(p));
    else if (local)
        rest = norm_for(a, rest, false);
    if (stacked) return arena_printf(a, "decoder.layers.%s", rest);
    return arena_printf(a, "decoder.layers.%llu.%s", (unsigned long long)p->layer, rest);
}

const char *module_of(struct arena *a, const char *key)
{
    const char *dot = strrchr(key, '.');
    return arena_text(a, key, dot ? (size_t)(dot - key) : strlen(key));
}

/* ---- in memory ---- */

/* Spellings of the local spec and of Megatron-LM before Core, and ours. */
static const struct {
    const char *theirs, *ours;
    bool fused_qkv, local_spec;
} spellings[] = {
    {"input_layernorm.", "self_attention.linear_qkv.layer_norm_", false, true},
    {"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_", false, false},
    {"input_norm.", "self_attention.linear_qkv.layer_norm_", false, true},
    {"post_attention_layernorm.", "mlp.linear_fc1.layer_norm_", false, true},
    {"post_attention_norm.", "mlp.linear_fc1.layer_norm_", false, true},
    {"self_attention.query_key_value.", "self_attention.linear_qkv.", true, true},
    {"attention.query_key_value.", "self_attention.linear_qkv.", true, true},
    {"self_attention.dense.", "self_attention.linear_proj.", false, true},
    {"attention.dense.", "self_attention.linear_proj.", false, true},
    {"mlp.dense_h_to_4h.", "mlp.linear_fc1.", false, true},
    {"mlp.dense_4h_to_h.", "mlp.linear_fc2.", false, true},
};

/* Names outside of layers, of before Core. */
static const struct {
    const char *theirs, *ours;
} outer_spellings[] = {
    {"language_model.embedding.word_embeddings.", "embedding.word_embeddings."},
    {"language_model.embedding.position_embeddings.", "embedding.position_embeddings."},
    {"language_model.output_layer.", "output_layer."},
    {"final_norm.", "decoder.final_layernorm."},
    {"final_layernorm.", "decoder.final_layernorm."},
};

static const char *const stacks[] = {"decoder.", "language_model.encoder.",
                                     "language_model.transformer."};

/* Experts: sequential (local_experts.E.REST), grouped (linear_fc1.weightE) or GroupedMLP's two. */
static void parse_expert(struct arena *a, const char *rest, struct memory_name *m)
{
    m->of_expert = true;
    m->rest = rest;
    if (strcmp(rest, "weight1") == 0 || strcmp(rest, "weight2") == 0) {
        m->kind = rest[6] == '1' ? MEMORY_GROUPED_FC1 : MEMORY_GROUPED_FC2;
        m->rest = rest[6] == '1' ? "linear_fc1.weight" : "linear_fc2.weight";
    } else if (skip_prefix(&m->rest, "local_experts.") && take_number(&m->rest, &m->expert)) {
        m->kind = MEMORY_PARAM;
    } else {
        size_t n = strlen(rest), name = n;
        while (name > 0 && isdigit((unsigned char)rest[name - 1]))
            name--;
        m->kind = name < n && n - name <= MOST_DIGITS ? MEMORY_PARAM : MEMORY_UNKNOWN;
        m->expert = strtoull(rest + name, NULL, 10);
        m->rest = arena_text(a, rest, name);
    }
}

static void parse_in_layer(struct arena *a, const char *rest, struct memory_name *m)
{
    const char *expert = rest;
    m->kind = MEMORY_PARAM;
    m->rest = rest;
    if (skip_prefix(&expert, "mlp.experts.")) {
        parse_expert(a, expert, m);
        return;
    }
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        const char *kind = rest;
        if (!skip_prefix(&kind, spellings[i].theirs)) continue;
        m->rest = arena_printf(a, "%s%s", spellings[i].ours, kind);
        m->fused_qkv = spellings[i].fused_qkv;
        m->local_spec = spellings[i].local_spec;
        return;
    }
}

struct memory_name memory_name_parse(struct arena *a, const char *name)
{
    struct memory_name m = {.kind = MEMORY_PARAM};
    while (skip_prefix(&name, "module.")) {
    }
    if (ends_with(name, "._extra_state") || ends_with(name, "inv_freq") ||
        strncmp(name, "word_embeddings_for_head.", 25) == 0) {
        m.kind = MEMORY_SKIP;
        return m;
    }
    m.rest = name;
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        const char *rest = name;
        if (!skip_prefix(&rest, stacks[i])) continue;
        if (i > 0) m.rest = rest;
        if (!skip_prefix(&rest, "layers.") || !take_number(&rest, &m.layer)) break;
        m.in_layers = true;
        parse_in_layer(a, rest, &m);
        return m;
    }
    for (size_t i = 0; i < sizeof outer_spellings / sizeof *outer_spellings; i++) {
        const char *kind = m.rest;
        if (skip_prefix(&kind, outer_spellings[i].theirs))
            m.rest = arena_printf(a, "%s%s", outer_spellings[i].ours, kind);
    }
    return m;
}

const char *memory_name_logical(struct arena *a, const struct memory_name *m, uint64_t layer,
                                uint64_t expert, bool moe)
{
    return logical_of(a, m->in_layers, m->of_expert, m->rest, layer, expert, moe);
}

/* The local spec keeps norms as modules of their own. */
static const char *local_spelling(struct arena *a, const char *rest)
{
    const char *kind = rest;
    if (skip_prefix(&kind, "self_attention.linear_qkv.layer_norm_"))
        return arena_printf(a, "input_layernorm.%s", kind);
    return norm_for(a, rest, true);
}

const char *memory_name_of(struct arena *a, const struct param *p, uint64_t local_layer,
                           uint64_t local_expert, bool te, bool grouped)
{
    const char *rest = p->rest;
    if (p->rule->place != PLACE_LAYER) return rest;
    if (p->rule->expert && grouped)
        rest = arena_printf(a, "mlp.experts.%s%llu", behind_expert(p),
                            (unsigned long long)local_expert);
    else if (p->rule->expert)
        rest = arena_printf(a, "mlp.experts.local_experts.%llu.%s",
                            (unsigned long long)local_expert, behind_expert(p));
    else if (!te)
        rest = local_spelling(a, rest);
    return arena_printf(a, "decoder.layers.%llu.%s", (unsigned long long)local_layer, rest);
}
