/* model_map_check.c - checks a model map when it is loaded: evaluates every row
 * with sizes of sample models. */
#include <inttypes.h>
#include <string.h>

#include "common/text.h"
#include "convert/map/params_internal.h"

const struct model_config map_samples[NUM_MAP_SAMPLES] = {
    {.num_layers = 2,
     .hidden_size = 48,
     .ffn_hidden_size = 56,
     .num_attention_heads = 6,
     .num_query_groups = 2,
     .kv_channels = 4,
     .vocab_size = 97,
     .max_position_embeddings = 31,
     .num_experts = 3,
     .moe_router_topk = 2,
     .moe_ffn_hidden_size = 28},
    {.num_layers = 3,
     .hidden_size = 60,
     .ffn_hidden_size = 22,
     .num_attention_heads = 5,
     .num_query_groups = 5,
     .kv_channels = 14,
     .vocab_size = 41,
     .max_position_embeddings = 67,
     .num_experts = 2,
     .moe_router_topk = 1,
     .moe_ffn_hidden_size = 26},
};
enum status map_bad_in(const struct map_loader *l)
{
    (void)!fail_in(l->err, "model map %s: %s", l->map->family, l->where);
    l->err->code = ERR_USAGE;
    return ERR_USAGE;
}

/* ---- the config ---- */

enum status map_check_unsupported(const struct map_loader *l, const struct unsupported *u)
{
    cJSON *hf = cJSON_CreateObject();
    const struct map_names names = {.map = l->map,
                                    .config = &map_samples[0],
                                    .file = hf,
                                    .member = "hf",
                                    .layer = -1,
                                    .expert = -1};
    bool holds;
    enum status st = map_condition(&names, u->when, &holds, l->err);
    if (!st) st = map_condition(&names, u->value, &holds, l->err);
    cJSON_Delete(hf);
    return st ? map_bad_in(l) : OK;
}

/* ---- one row of the tensors ---- */

/* One part of a row with the numbers of a sample. */
struct sample_part {
    struct pattern_view logical, hf;
    struct pair pair;
};

static enum status eval_part(const struct map_loader *l, const struct tensor_row *row,
                             unsigned part, const struct model_config *c, int64_t expert,
                             struct sample_part *out)
{
    struct map_names names = {
        .map = l->map, .config = c, .row = row, .layer = row->per_layer ? 1 : -1, .expert = -1};
    struct expr_names e = map_names_for(&names);
    if (row->per_expert) names.expert = expert;
    TRY(pattern_eval(row->parts[part].megatron, &e, &out->logical, l->err));
    TRY(pattern_eval(row->parts[part].hf, &e, &out->hf, l->err));
    return pattern_pair(&out->logical, &out->hf, &out->pair, l->err);
}

static bool same_view_shape(const struct pattern_view *a, const struct pattern_view *b)
{
    return a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0;
}

static uint64_t view_numel(const struct pattern_view *v)
{
    uint64_t numel = 1;
    for (unsigned d = 0; d < v->num_dims; d++)
        numel *= v->shape[d];
    return numel;
}

/* Checks that the a sides of pairs tile a tensor. */
static enum status check_tiling(const struct map_loader *l, struct pair *pairs, size_t num_pairs,
                                const char *tensor, uint64_t numel)
{
    uint64_t covered;
    size_t bad_pair;
    if (pairs_tile(pairs, num_pairs, numel, &bad_pair, &covered)) return OK;
    if (bad_pair < num_pairs)
        return map_bad(l, arena_printf(l->a, "its parts of %s overlap", tensor));
    return map_bad(l, arena_printf(l->a, "its parts hold %" PRIu64 " of %" PRIu64 " elements of %s",
                                   covered, numel, tensor));
}

/* Checks that the parts of one row tile its logical tensor. */
static enum status check_logical(const struct map_loader *l, const struct tensor_row *row,
                                 const struct param_row *param, const struct model_config *c)
{
    struct pair *pairs = arena_array(l->a, row->num_parts, sizeof *pairs);
    struct sample_part first = {0}, part;
    for (unsigned i = 0; i < row->num_parts; i++) {
        if (eval_part(l, row, i, c, 1, &part)) return map_bad_in(l);
        if (i == 0) first = part;
        if (!same_view_shape(&first.logical, &part.logical))
            return map_bad(l, "its parts belong to tensors of different shapes");
        pairs[i] = part.pair;
    }
    if (row->add != 0 && first.logical.num_dims != 1)
        return map_bad(l, "add is for a tensor of one dimension");
    if (param->split >= (int)first.logical.num_dims)
        return map_bad(l,
                       arena_printf(l->a, "it has %u dimensions, but Megatron splits dimension %d",
                                    first.logical.num_dims, param->split));
    return check_tiling(l, pairs, row->num_parts, row->megatron, view_numel(&first.logical));
}

/* The row's parameter: a predicted layer
 * has those of any layer. */
static const struct param_row *param_of(const struct map_loader *l, const struct tensor_row *row)
{
    const char *name = row->megatron;
    if (text_skip_prefix(&name, "mtp.layers.{l}.transformer_layer."))
        name = arena_printf(l->a, "decoder.layers.{l}.%s", name);
    return param_row_find(l->map->params, name);
}

static enum status check_spelling(struct map_loader *l, const struct tensor_row *row)
{
    const struct param_row *param = param_of(l, row);
    bool applies;
    const struct map_names names = {.map = l->map,
                                    .config = &map_samples[0],
                                    .row = row,
                                    .layer = row->per_layer ? 1 : -1,
                                    .expert = -1};
    l->where = arena_printf(l->a, "tensor %s", row->megatron);
    if (!param) return map_bad(l, "Megatron-Core has no parameter of this name");
    if (map_condition(&names, row->when, &applies, l->err)) return map_bad_in(l);
    for (unsigned i = 0; i < NUM_MAP_SAMPLES; i++)
        TRY(check_logical(l, row, param, &map_samples[i]));
    return OK;
}

static enum status check_tensor_row(struct map_loader *l, const struct tensor_row *row)
{
    for (unsigned k = 0; k <= row->num_others; k++)
        TRY(check_spelling(l, row_spelling(row, k)));
    return OK;
}

/* ---- Hugging Face's tensors ---- */

/* The elements of a Hugging Face tensor of one layer that rows take. */
struct hf_cover {
    const struct tensor_row *row; /* the first row that takes elements of it */
    const char *hf;
    struct pattern_view view;
    struct pair *pairs; /* a: flat in the Hugging Face tensor */
    size_t num_pairs, capacity;
};

static enum status cover_part(const struct map_loader *l, const struct tensor_row *row,
                              unsigned part, const struct model_config *c, int64_t expert,
                              struct hf_cover *to)
{
    struct sample_part p;
    const char *hf = row->hf[row->parts[part].tensor];
    if (eval_part(l, row, part, c, expert, &p)) return map_bad_in(l);
    if (!to->hf) to->view = p.hf;
    to->hf = hf;
    if (!same_view_shape(&to->view, &p.hf))
        return map_bad(l, arena_printf(l->a, "%s has two shapes", hf));
    pair_swap(&p.pair);
    if (!pair_nest(&p.pair))
        return map_bad(l, arena_printf(l->a, "its part of %s is not a nested view", hf));
    *ARENA_PUSH(l->a, to->pairs, to->num_pairs, to->capacity) = p.pair;
    return OK;
}

/* Adds the elements that a row takes of its hf name k, expert by expert for a
 * tensor of all experts. */
static enum status cover_hf(const struct map_loader *l, const struct tensor_row *row, unsigned k,
                            const struct model_config *c, struct hf_cover *to)
{
    bool stacked = row->per_expert && !strstr(row->hf[k], "{e}");
    uint64_t experts = stacked ? c->num_experts : 1;
    for (unsigned i = 0; i < row->num_parts; i++)
        for (uint64_t e = 0; row->parts[i].tensor == k && e < experts; e++)
            TRY(cover_part(l, row, i, c, (int64_t)e, to));
    return OK;
}

static bool cover_tiles(const struct hf_cover *x)
{
    uint64_t covered;
    size_t bad_pair;
    return pairs_tile(x->pairs, x->num_pairs, view_numel(&x->view), &bad_pair, &covered);
}

/* Tensors that single rows take only in part. */
struct hf_covers {
    struct hf_cover *items;
    size_t count, capacity;
};

static enum status check_hf_name(struct map_loader *l, const struct tensor_row *row, unsigned k,
                                 const struct model_config *c, struct hf_covers *partial)
{
    struct hf_cover own = {.row = row};
    l->where = arena_printf(l->a, "tensor %s", row->megatron);
    TRY(cover_hf(l, row, k, c, &own));
    if (cover_tiles(&own)) return OK;
    for (size_t i = 0; i < partial->count; i++)
        if (strcmp(partial->items[i].hf, row->hf[k]) == 0)
            return cover_hf(l, row, k, c, &partial->items[i]);
    *ARENA_PUSH(l->a, partial->items, partial->count, partial->capacity) = own;
    return OK;
}

static enum status check_hf_names(struct map_loader *l, const struct tensor_row *row,
                                  const struct model_config *c, struct hf_covers *partial)
{
    for (unsigned k = 0; k < row->num_hf; k++)
        TRY(check_hf_name(l, row, k, c, partial));
    return OK;
}

/* Checks that each row, or the rows that share a Hugging Face tensor together,
 * take all its elements. */
static enum status check_hf(struct map_loader *l, const struct model_config *c)
{
    struct hf_covers partial = {0};
    for (size_t i = 0; i < l->map->num_tensors; i++)
        for (unsigned k = 0; k <= l->map->tensors[i].num_others; k++)
            TRY(check_hf_names(l, row_spelling(&l->map->tensors[i], k), c, &partial));
    for (size_t i = 0; i < partial.count; i++) {
        const struct hf_cover *x = &partial.items[i];
        l->where = arena_printf(l->a, "tensor %s", x->row->megatron);
        TRY(check_tiling(l, x->pairs, x->num_pairs, x->hf, view_numel(&x->view)));
    }
    return OK;
}

/* ---- names that Megatron's files spell otherwise ---- */

static const char of_layer[] = "decoder.layers.{l}.";

/* Whether layer 1 has a tensor whose name begins so. */
static enum status layer_has(const struct map_loader *l, const struct model_config *c,
                             const char *begin, bool *out)
{
    *out = false;
    for (size_t i = 0; i < l->map->num_tensors && !*out; i++) {
        const struct tensor_row *row = &l->map->tensors[i];
        const char *rest = row->megatron;
        const struct map_names names = {
            .map = l->map, .config = c, .row = row, .layer = 1, .expert = -1};
        if (!text_skip_prefix(&rest, of_layer) || !text_starts_with(rest, begin)) continue;
        if (map_condition(&names, row->when, out, l->err)) return map_bad_in(l);
    }
    return OK;
}

/* Refuses tensors `name` in layers with, or without, tensors `beside`. */
static enum status refuse_name(const struct map_loader *l, const struct model_config *c,
                               const char *name, const char *beside, bool with, const char *other)
{
    bool there, companion;
    TRY(layer_has(l, c, name, &there));
    TRY(layer_has(l, c, beside, &companion));
    if (!there || companion != with) return OK;
    return map_bad(l, arena_printf(l->a, "Megatron's files name it %s%s* in layers %s %s%s",
                                   of_layer, other, with ? "with" : "without", of_layer, beside));
}

static enum status check_names(struct map_loader *l, const struct model_config *c)
{
    static const char qkv[] = "self_attention.linear_qkv.", router[] = "mlp.router.weight";
    const struct param_spellings *s = &l->map->params->spellings;
    for (size_t i = 0; i < s->num_in_layers; i++) {
        const struct param_spelling *x = &s->in_layers[i];
        l->where = arena_printf(l->a, "tensor %s%s*", of_layer, x->theirs);
        if (text_starts_with(x->ours, qkv))
            TRY(refuse_name(l, c, x->theirs, "self_attention.linear_qkv.weight", true, x->ours));
    }
    for (size_t i = 0; i < s->num_beside_router; i++) {
        const struct param_spelling *x = &s->beside_router[i];
        l->where = arena_printf(l->a, "tensor %s%s*", of_layer, x->theirs);
        TRY(refuse_name(l, c, x->theirs, router, true, x->ours));
        l->where = arena_printf(l->a, "tensor %s%s*", of_layer, x->ours);
        TRY(refuse_name(l, c, x->ours, router, false, x->theirs));
    }
    return OK;
}

/* Tries experts if the config can have them, and then a dense layer. */
static enum status check_all_names(struct map_loader *l)
{
    static const bool but_layer_1[] = {true, false};
    struct model_config c = map_samples[0];
    if (!config_rows_set(&l->map->config, "num_experts")) c.num_experts = 0;
    TRY(check_names(l, &c));
    if (!c.num_experts || !config_rows_set(&l->map->config, "moe_layers")) return OK;
    c.moe_layers = but_layer_1;
    return check_names(l, &c);
}

/* ---- a whole map ---- */

enum status map_check(struct map_loader *l)
{
    const struct model_map *map = l->map;
    const struct map_names names = {.map = map, .config = &map_samples[0], .layer = 1, .expert = 1};
    struct expr_names e = map_names_for(&names);
    int64_t value;
    for (size_t i = 0; i < map->num_sizes; i++) {
        l->where = arena_printf(l->a, "size %s", map->sizes[i].name);
        if (expr_eval(map->sizes[i].text, strlen(map->sizes[i].text), &e, &value, l->err))
            return map_bad_in(l);
    }
    for (size_t i = 0; i < map->num_tensors; i++)
        TRY(check_tensor_row(l, &map->tensors[i]));
    for (unsigned i = 0; i < NUM_MAP_SAMPLES; i++)
        TRY(check_hf(l, &map_samples[i]));
    return check_all_names(l);
}
