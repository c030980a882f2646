/* testing_layout.h - made-up layouts. */
#ifndef FERRY_CKPT_TESTING_LAYOUT_H
#define FERRY_CKPT_TESTING_LAYOUT_H

#include "ckpt/layout.h"
#include "ckpt/testing_view.h"
#include "common/checked.h"
#include "common/strbuf.h"

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

/* A random layout of any kind, which may or may not fit the model. Its text
 * lies in arena a. */
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

#endif
