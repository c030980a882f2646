/* testing_layout.h - made-up layouts, and what a shard holds, worked out one element at a time. */
#ifndef FERRY_CKPT_TESTING_LAYOUT_H
#define FERRY_CKPT_TESTING_LAYOUT_H

#include "ckpt/layout.h"
#include "ckpt/testing_view.h"
#include "common/checked.h"
#include "common/strbuf.h"

/* ---- layouts ---- */

static inline uint64_t random_divisor(uint64_t *seed, uint64_t n)
{
    uint64_t d;
    do
        d = 1 + test_below(seed, n);
    while (n % d);
    return d;
}

/* "Et|tt|tL": the layers of a model on some stages. */
static inline const char *random_stages(uint64_t *seed, struct arena *a, uint64_t num_layers,
                                        uint64_t stages)
{
    struct strbuf text = {0};
    strbuf_add_char(&text, 'E');
    for (uint64_t s = 0, left = num_layers; s < stages; s++) {
        uint64_t n = s + 1 == stages ? left : test_below(seed, left + 1);
        if (s) strbuf_add_char(&text, '|');
        strbuf_add_repeated(&text, 't', n);
        left -= n;
    }
    strbuf_add_char(&text, 'L');
    const char *copy = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return copy;
}

/* A layout of any kind, which may fit the model or not. Its text lies in arena a. */
static inline struct layout_options random_layout(uint64_t *seed, struct arena *a,
                                                  const struct model_config *c)
{
    static const uint64_t some[] = {1, 1, 2, 2, 3, 4, 6, 8};
    struct layout_options o = {
        .tp = some[test_below(seed, 8)], .pp = 1 + test_below(seed, 3), .ep = 1};
    if (test_below(seed, 2)) o.tp = random_divisor(seed, c->num_attention_heads);
    if (c->num_experts && test_below(seed, 3)) o.ep = some[test_below(seed, 8)];
    if (c->num_experts && test_below(seed, 2)) o.etp = some[test_below(seed, 5)];
    switch (o.pp > 1 ? test_below(seed, 7) : 6) {
    case 0:
        o.virtual_stages = 1 + test_below(seed, 3);
        break;
    case 1:
        o.layers_per_virtual_stage = 1 + test_below(seed, 2);
        break;
    case 2:
        o.first_layers = 1 + test_below(seed, 2);
        break;
    case 3:
        o.last_layers = 1 + test_below(seed, 2);
        break;
    case 4:
        o.pipeline_layout = random_stages(seed, a, c->num_layers, o.pp * (1 + test_below(seed, 2)));
        break;
    case 5:
        o.count_embedding = test_below(seed, 2);
        o.count_loss = !o.count_embedding || test_below(seed, 2);
        break;
    default:
        break;
    }
    return o;
}

/* ---- shards ---- */

enum { MOST_SHARD_ELEMENTS = 4096 };

/* A parameter that ranks share. */
struct cut {
    const struct param_rule *rule;
    bool gated;
    unsigned num_dims; /* 1 or 2 */
    uint64_t shape[2], tp_size;
};

static inline unsigned rule_num_dims(const struct param_rule *r)
{
    if (strstr(r->name, "bias") || strstr(r->name, "norm")) return 1;
    return strstr(r->name, "_embeddings.weight") || strstr(r->name, "linear_") ||
                   strstr(r->name, "output_layer.weight")
               ? 2
               : 1;
}

/* The whole row (or column) that local one x of rank r is, of `whole` on t ranks. */
static inline uint64_t whole_index(bool halves, uint64_t whole, uint64_t t, uint64_t r, uint64_t x)
{
    if (!halves) return r * (whole / t) + x;
    /* spec/model-mappings.md 1.4.5: row x < I_r is gate[r * I_r + x], the others up[..]. */
    uint64_t inner = whole / 2, own = inner / t;
    return x < own ? r * own + x : inner + r * own + (x - own);
}

/* The whole element that element i of rank r's own tensor is. */
static inline uint64_t whole_element(const struct cut *c, const uint64_t *local, uint64_t r,
                                     uint64_t i)
{
    uint64_t columns = c->num_dims > 1 ? c->shape[1] : 1, t = c->tp_size;
    uint64_t local_columns = c->num_dims > 1 ? local[1] : 1;
    uint64_t row = i / local_columns, column = i % local_columns;
    if (c->rule->split == 0) row = whole_index(c->gated && c->rule->gated, c->shape[0], t, r, row);
    if (c->rule->split == 1) column = whole_index(false, columns, t, r, column);
    return row * columns + column;
}

/* What the parts of one shard say, element by element: which whole element each local one is. */
static inline uint64_t expand_shard(const struct pair *parts, unsigned num_parts,
                                    uint64_t *whole_of, uint64_t most)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < most; i++)
        whole_of[i] = UINT64_MAX;
    for (unsigned i = 0; i < num_parts; i++)
        for (uint64_t e = 0, a, b; e < pair_count(&parts[i]); e++, n++) {
            pair_element(&parts[i], e, &a, &b);
            assert_in_range(b, 0, most - 1);
            assert_true(whole_of[b] == UINT64_MAX);
            whole_of[b] = a;
        }
    return n;
}

/* Compares all elements of rank r's shard, and notes which it has. */
static inline void check_shard(const struct cut *c, uint64_t r, bool seen[MOST_SHARD_ELEMENTS])
{
    static uint64_t whole_of[MOST_SHARD_ELEMENTS];
    struct pair parts[2];
    unsigned num_parts;
    uint64_t local[MAX_AXES], numel;
    struct error err = {0};
    assert_ok(param_shard(c->rule, c->gated, "x", c->num_dims, c->shape, r, c->tp_size, parts,
                          &num_parts, local, &err));
    assert_true(shape_numel(local, c->num_dims, &numel) && numel <= MOST_SHARD_ELEMENTS);
    assert_int_equal(expand_shard(parts, num_parts, whole_of, numel), numel);
    for (unsigned i = 0; i < num_parts; i++)
        assert_true(pair_nest(&parts[i]));
    for (uint64_t i = 0; i < numel; i++) {
        assert_int_equal(whole_of[i], whole_element(c, local, r, i));
        seen[whole_of[i]] = true;
    }
}

/* The shards of all ranks are what they should be, and hold every element. */
static inline void check_shards(const struct cut *c)
{
    bool seen[MOST_SHARD_ELEMENTS] = {false};
    uint64_t numel;
    for (uint64_t r = 0; r < c->tp_size; r++)
        check_shard(c, r, seen);
    assert_true(shape_numel(c->shape, c->num_dims, &numel));
    for (uint64_t e = 0; e < numel; e++)
        assert_true(seen[e]);
}

#endif
