#include "convert/dcp/titan_names.h"

#include <inttypes.h>
#include <string.h>

#include "common/count.h"
#include "common/numbers.h"
#include "common/strbuf.h"
#include "common/text.h"

enum { MAX_HEAD_COUNT = 1 << 24 }; /* of heads and head_dim, so that no product overflows */

/* ---- the table ---- */

/* A tensor's part in the fused wqkv, whose rows of q and k differ, too; or an
 * expert. */
enum titan_role { WHOLE, ROWS_Q, ROWS_K, ROWS_V, EXPERT };

/* "%": a layer's number; "#": an expert's. Of several torchtitan names the first
 * is written. */
static const struct titan_row {
    const char *titan, *hf;
    enum titan_role role;
} rows[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight", WHOLE},
    {"layers.%.attention_norm.weight", "model.layers.%.input_layernorm.weight", WHOLE},
    {"layers.%.attention.qkv_linear.wq.weight", "model.layers.%.self_attn.q_proj.weight", ROWS_Q},
    {"layers.%.attention.qkv_linear.wk.weight", "model.layers.%.self_attn.k_proj.weight", ROWS_K},
    {"layers.%.attention.qkv_linear.wv.weight", "model.layers.%.self_attn.v_proj.weight", ROWS_V},
    {"layers.%.attention.wq.weight", "model.layers.%.self_attn.q_proj.weight", ROWS_Q},
    {"layers.%.attention.wk.weight", "model.layers.%.self_attn.k_proj.weight", ROWS_K},
    {"layers.%.attention.wv.weight", "model.layers.%.self_attn.v_proj.weight", ROWS_V},
    {"layers.%.attention.q_norm.weight", "model.layers.%.self_attn.q_norm.weight", WHOLE},
    {"layers.%.attention.k_norm.weight", "model.layers.%.self_attn.k_norm.weight", WHOLE},
    {"layers.%.attention.wo.weight", "model.layers.%.self_attn.o_proj.weight", WHOLE},
    {"layers.%.ffn_norm.weight", "model.layers.%.post_attention_layernorm.weight", WHOLE},
    {"layers.%.feed_forward.w1.weight", "model.layers.%.mlp.gate_proj.weight", WHOLE},
    {"layers.%.feed_forward.w2.weight", "model.layers.%.mlp.down_proj.weight", WHOLE},
    {"layers.%.feed_forward.w3.weight", "model.layers.%.mlp.up_proj.weight", WHOLE},
    {"layers.%.moe.router.gate.weight", "model.layers.%.mlp.gate.weight", WHOLE},
    {"layers.%.moe.routed_experts.inner_experts.w1_EFD",
     "model.layers.%.mlp.experts.#.gate_proj.weight", EXPERT},
    {"layers.%.moe.routed_experts.inner_experts.w2_EDF",
     "model.layers.%.mlp.experts.#.down_proj.weight", EXPERT},
    {"layers.%.moe.routed_experts.inner_experts.w3_EFD",
     "model.layers.%.mlp.experts.#.up_proj.weight", EXPERT},
    {"norm.weight", "model.norm.weight", WHOLE},
    {"lm_head.weight", "lm_head.weight", WHOLE},
    {"output.weight", "lm_head.weight", WHOLE},
};
static const char fused_name[] = "layers.%.attention.qkv_linear.wqkv.weight";

/* Families with these names in torchtitan; whether rows of q and k differ. */
static const struct {
    const char *family;
    bool rotates;
} families[] = {{"llama", true}, {"qwen3", false}, {"qwen3_moe", false}};

/* A name's texts for "%" and "#". */
struct name_numbers {
    const char *layer, *expert; /* "": none */
};

/* Whether a name matches the pattern. */
static bool name_has(struct arena *a, const char *name, const char *pattern,
                     struct name_numbers *numbers)
{
    *numbers = (struct name_numbers){"", ""};
    for (; *pattern; pattern++) {
        if (*pattern != '%' && *pattern != '#') {
            if (*name++ != *pattern) return false;
            continue;
        }
        const size_t digits = strspn(name, "0123456789");
        if (!digits) return false;
        *(*pattern == '%' ? &numbers->layer : &numbers->expert) = arena_text(a, name, digits);
        name += digits;
    }
    return !*name;
}

static const char *with_numbers(struct arena *a, const char *pattern,
                                const struct name_numbers *numbers)
{
    struct strbuf s = {0};
    for (; *pattern; pattern++)
        if (*pattern == '%')
            strbuf_add_text(&s, numbers->layer);
        else if (*pattern == '#')
            strbuf_add_text(&s, numbers->expert);
        else
            strbuf_add_char(&s, *pattern);
    const char *text = arena_text(a, s.data ? s.data : "", s.length);
    strbuf_release(&s);
    return text;
}

enum status titan_names_init(struct titan_names *n, const struct checkpoint *c, struct error *err)
{
    const struct model_config *m = &c->config;
    *n = (struct titan_names){0};
    if (!c->family) return OK;
    n->known = true;
    for (size_t i = 0; i < COUNT(families); i++) {
        if (strcmp(families[i].family, c->family)) continue;
        n->rotates = families[i].rotates;
        n->groups = m->num_query_groups;
        n->head_dim = m->kv_channels;
        n->num_experts = m->num_experts;
        if (n->groups) n->heads_per_group = m->num_attention_heads / n->groups;
        if (!n->heads_per_group || !n->head_dim || m->num_attention_heads % n->groups ||
            m->num_attention_heads > MAX_HEAD_COUNT || n->head_dim > MAX_HEAD_COUNT)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: its config has attention heads that do not form groups of equal size",
                        c->path);
        if (n->rotates && n->head_dim % 2)
            return fail(err, ERR_UNSUPPORTED, "%s: torchtitan has no row order for an odd head_dim",
                        c->path);
        return OK;
    }
    return fail(err, ERR_UNSUPPORTED,
                "%s: torchtitan's names for family %s are unknown; those for llama, qwen3 and "
                "qwen3_moe are "
                "known",
                c->path, c->family);
}

/* ---- rows ---- */

/* Heads of a role in the rows of wqkv, or of a separate tensor. */
struct head_rows {
    uint64_t heads;  /* in a group */
    uint64_t first;  /* first head in the group, in torchtitan's tensor */
    uint64_t stride; /* all heads of a group there */
    bool rotates;
};

static struct head_rows rows_of(const struct titan_names *n, enum titan_role role, bool fused)
{
    const uint64_t q = n->heads_per_group;
    struct head_rows r = {role == ROWS_Q ? q : 1, 0, 0, n->rotates && role != ROWS_V};
    r.stride = fused ? q + 2 : r.heads;
    if (fused && role != ROWS_Q) r.first = role == ROWS_K ? q : q + 1;
    return r;
}

/* The pair of all rows of a role; columns: elements per row. */
static struct pair pair_of_rows(const struct titan_names *n, const struct head_rows *r,
                                uint64_t columns)
{
    const uint64_t dim = n->head_dim, half = dim / 2;
    struct pair p = {.b_offset = r->first * dim * columns};
    p.axes[p.num_axes++] =
        (struct axis){n->groups, r->heads * dim * columns, r->stride * dim * columns};
    p.axes[p.num_axes++] = (struct axis){r->heads, dim * columns, dim * columns};
    if (r->rotates) {
        p.axes[p.num_axes++] = (struct axis){2, half * columns, columns};
        p.axes[p.num_axes++] = (struct axis){half, columns, 2 * columns};
    } else {
        p.axes[p.num_axes++] = (struct axis){dim, columns, columns};
    }
    p.axes[p.num_axes++] = (struct axis){columns, 1, 1};
    return p;
}

static uint64_t numel_of(unsigned num_dims, const uint64_t *shape)
{
    uint64_t numel = 1;
    for (unsigned d = 0; d < num_dims; d++)
        numel *= shape[d];
    return numel;
}

/* Sets pair and shape of `to`, with num_rows rows, from a tensor of `shape`
 * with `expected` rows. */
static enum status set_rows(const struct titan_names *n, const struct head_rows *r,
                            const char *name, unsigned num_dims, const uint64_t *shape,
                            uint64_t expected, uint64_t num_rows, struct titan_part *to,
                            struct error *err)
{
    if (!num_dims || num_dims > MAX_AXES || shape[0] != expected)
        return fail(err, ERR_UNSUPPORTED, "%s has %" PRIu64 " rows; the config requires %" PRIu64,
                    name, num_dims ? shape[0] : 0, expected);
    memcpy(to->shape, shape, num_dims * sizeof *shape);
    to->num_dims = num_dims;
    to->shape[0] = num_rows;
    to->pair = pair_of_rows(n, r, numel_of(num_dims - 1, shape + 1));
    return pair_require_nested(&to->pair, name, err);
}

static enum status set_whole(const char *name, unsigned num_dims, const uint64_t *shape,
                             struct titan_part *to, struct error *err)
{
    if (num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s has %u dimensions", name, num_dims);
    if (num_dims) memcpy(to->shape, shape, num_dims * sizeof *shape);
    to->num_dims = num_dims;
    to->pair = pair_whole(0, 0, numel_of(num_dims, shape));
    return OK;
}

static enum status set_titan_part(const struct titan_names *n, enum titan_role role, bool fused,
                                  bool from_titan, const char *name, unsigned num_dims,
                                  const uint64_t *shape, struct titan_part *to, struct error *err)
{
    if (role == WHOLE) return set_whole(name, num_dims, shape, to, err);
    const struct head_rows r = rows_of(n, role, fused);
    const uint64_t group = n->groups * n->head_dim;
    const uint64_t hf = group * r.heads, titan = group * r.stride;
    return set_rows(n, &r, name, num_dims, shape, from_titan ? titan : hf, from_titan ? hf : titan,
                    to, err);
}

/* The three tensors of wqkv. */
static enum status split_fused(const struct titan_names *n, struct arena *a, const char *name,
                               const struct name_numbers *numbers, unsigned num_dims,
                               const uint64_t *shape, struct titan_part *parts, size_t *count,
                               struct error *err)
{
    static const enum titan_role roles[] = {ROWS_Q, ROWS_K, ROWS_V};
    for (*count = 0; *count < COUNT(roles); ++*count) {
        const struct titan_row *row = rows;
        while (row->role != roles[*count])
            row++;
        struct titan_part *to = &parts[*count];
        to->name = with_numbers(a, row->hf, numbers);
        if (shape) TRY(set_titan_part(n, row->role, true, true, name, num_dims, shape, to, err));
    }
    return OK;
}

/* The tensors of a layer's experts. */
static enum status split_experts(const struct titan_names *n, struct arena *a, const char *name,
                                 const struct titan_row *row, const struct name_numbers *numbers,
                                 unsigned num_dims, const uint64_t *shape,
                                 struct titan_part **parts, size_t *count, struct error *err)
{
    if (shape && (num_dims < 2 || num_dims > MAX_AXES || shape[0] != n->num_experts))
        return fail(err, ERR_UNSUPPORTED,
                    "%s has %" PRIu64 " experts; the config requires %" PRIu64, name,
                    num_dims ? shape[0] : 0, n->num_experts);
    const uint64_t numel = shape ? numel_of(num_dims - 1, shape + 1) : 0;
    *count = n->num_experts;
    *parts = arena_array(a, *count, sizeof **parts);
    for (size_t e = 0; e < *count; e++) {
        struct titan_part *to = &(*parts)[e];
        const struct name_numbers of = {numbers->layer, arena_printf(a, "%zu", e)};
        to->name = with_numbers(a, row->hf, &of);
        if (!shape) continue;
        TRY(set_whole(name, num_dims - 1, shape + 1, to, err));
        to->pair.b_offset = e * numel;
    }
    return OK;
}

enum status titan_to_hf(const struct titan_names *n, struct arena *a, const char *name,
                        unsigned num_dims, const uint64_t *shape, struct titan_part **parts,
                        size_t *count, struct error *err)
{
    struct name_numbers numbers;
    *parts = arena_array(a, 3, sizeof **parts);
    if (n->known && name_has(a, name, fused_name, &numbers))
        return split_fused(n, a, name, &numbers, num_dims, shape, *parts, count, err);
    *count = 1;
    for (size_t i = 0; i < COUNT(rows) && n->known; i++) {
        const struct titan_row *row = &rows[i];
        if (!name_has(a, name, row->titan, &numbers)) continue;
        if (row->role == EXPERT)
            return split_experts(n, a, name, row, &numbers, num_dims, shape, parts, count, err);
        (*parts)->name = with_numbers(a, row->hf, &numbers);
        return shape ? set_titan_part(n, row->role, false, true, name, num_dims, shape, *parts, err)
                     : OK;
    }
    (*parts)->name = name;
    return shape ? set_whole(name, num_dims, shape, *parts, err) : OK;
}

/* Sets the tensor of a layer's experts from one of them. */
static enum status set_experts(const struct titan_names *n, const char *name, const char *expert,
                               unsigned num_dims, const uint64_t *shape, struct titan_part *part,
                               struct error *err)
{
    uint64_t e;
    TRY(set_whole(name, num_dims, shape, part, err));
    if (num_dims == MAX_AXES || !parse_u64(expert, &e) || e >= n->num_experts)
        return fail(err, ERR_UNSUPPORTED, "%s: the config has %" PRIu64 " experts", name,
                    n->num_experts);
    memmove(part->shape + 1, part->shape, num_dims * sizeof *shape);
    part->shape[0] = n->num_experts;
    part->num_dims = num_dims + 1;
    part->pair.b_offset = e * numel_of(num_dims, shape);
    return OK;
}

static const char bias_name[] = ".moe.expert_bias_E", experts_name[] = ".moe.routed_experts.";

bool titan_is_expert_bias(const char *name)
{
    return text_starts_with(name, "layers.") && text_ends_with(name, bias_name);
}

const char *titan_expert_bias(struct arena *a, const char *name)
{
    const char *at = strstr(name, experts_name);
    return at ? arena_printf(a, "%.*s%s", (int)(at - name), name, bias_name) : NULL;
}

enum status titan_from_hf(const struct titan_names *n, struct arena *a, const char *name,
                          bool fused, unsigned num_dims, const uint64_t *shape,
                          struct titan_part *part, struct error *err)
{
    struct name_numbers numbers;
    *part = (struct titan_part){.name = name};
    if (!n->known) return set_whole(name, num_dims, shape, part, err);
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (!name_has(a, name, rows[i].hf, &numbers)) continue;
        const enum titan_role role = rows[i].role;
        const bool joins = fused && (role == ROWS_Q || role == ROWS_K || role == ROWS_V);
        part->name = with_numbers(a, joins ? fused_name : rows[i].titan, &numbers);
        if (role == EXPERT) return set_experts(n, name, numbers.expert, num_dims, shape, part, err);
        return set_titan_part(n, rows[i].role, joins, false, name, num_dims, shape, part, err);
    }
    return fail(err, ERR_UNSUPPORTED, "%s: torchtitan's name of this parameter is unknown", name);
}
