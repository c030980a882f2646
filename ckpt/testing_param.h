/* testing_param.h - computes the elements of a parameter that a rank holds,
 * line by line of the split dimension, one element at a time. */
#ifndef FERRY_CKPT_TESTING_PARAM_H
#define FERRY_CKPT_TESTING_PARAM_H

#include "ckpt/param.h"
#include "ckpt/testing_view.h"
#include "common/checked.h"

enum { MAX_SHARD_ELEMENTS = 8192 };

/* A parameter that ranks share. */
struct cut {
    const struct param_spec *spec;
    unsigned num_dims;
    uint64_t shape[3], size;
    enum param_use use;
};

/* The section in which line x of n is, if sections come `repeat` times; *at:
 * its place there. */
static inline unsigned section_of(const struct param_spec *s, uint64_t n, uint64_t repeat,
                                  uint64_t x, uint64_t *at, uint64_t *length)
{
    uint64_t sum = 0, k = 0;
    for (unsigned i = 0; i < s->num_sections; i++)
        sum += s->even ? 1 : s->sections[i].size;
    x %= n / repeat;
    for (uint64_t begin = 0;; begin += *length, k++) {
        *length = (s->even ? 1 : s->sections[k].size) * (n / repeat) / sum;
        *at = x - begin;
        if (x < begin + *length) return (unsigned)k;
    }
}

static inline bool any_shared(const struct param_spec *s)
{
    for (unsigned i = 0; i < s->num_sections; i++)
        if (s->sections[i].shared) return true;
    return false;
}

/* Whether rank r has line x of the split dimension. */
static inline bool has_line(const struct cut *c, uint64_t r, uint64_t x)
{
    const struct param_spec *s = c->spec;
    uint64_t n = s->split < 0 ? 0 : c->shape[s->split], size = c->size, at, length;
    bool repeats = s->repeat > 1 || any_shared(s);
    if (s->split < 0 || size == 1) return true;
    if (!s->num_sections || (repeats && c->use == PARAM_STORED)) return x / (n / size) == r;
    if (!repeats) {
        (void)section_of(s, n, 1, x, &at, &length);
        return at / (length / size) == r;
    }
    uint64_t repeat = x / (n / s->repeat);
    if (size <= s->repeat) return repeat / (s->repeat / size) == r;
    uint64_t sharing = size / s->repeat;
    if (r / sharing != repeat) return false;
    unsigned k = section_of(s, n, s->repeat, x, &at, &length);
    return s->sections[k].shared || at / (length / sharing) == r % sharing;
}

/* The elements of the whole that rank r has, in the order of its local tensor;
 * how many. */
static inline uint64_t held_elements(const struct cut *c, uint64_t r, uint64_t *out)
{
    uint64_t numel, count = 0, behind = 1;
    assert_true(shape_numel(c->shape, c->num_dims, &numel) && numel <= MAX_SHARD_ELEMENTS);
    for (unsigned d = c->num_dims; c->spec->split >= 0 && d-- > (unsigned)c->spec->split + 1;)
        behind *= c->shape[d];
    for (uint64_t e = 0; e < numel; e++) {
        uint64_t x = c->spec->split < 0 ? 0 : e / behind % c->shape[c->spec->split];
        if (has_line(c, r, x)) out[count++] = e;
    }
    return count;
}

static inline enum status cut_shard(const struct cut *c, const char *name, uint64_t r,
                                    struct param_parts *out, struct error *err)
{
    return param_shard(c->spec, name, c->num_dims, c->shape, r, c->size, c->use, out, err);
}

/* Compares all elements of rank r's shard, and notes which it has. */
static inline void check_shard(const struct cut *c, uint64_t r, bool seen[MAX_SHARD_ELEMENTS])
{
    static uint64_t expected[MAX_SHARD_ELEMENTS], whole_of[MAX_SHARD_ELEMENTS];
    struct param_parts parts;
    struct error err = {0};
    uint64_t numel, count = held_elements(c, r, expected), n = 0;
    assert_ok(cut_shard(c, "x", r, &parts, &err));
    assert_true(shape_numel(parts.shape, c->num_dims, &numel));
    assert_int_equal(numel, count);
    memset(whole_of, 0xff, sizeof whole_of);
    for (unsigned i = 0; i < parts.count; i++) {
        uint64_t extent;
        assert_true(shape_numel(parts.extent[i], c->num_dims, &extent));
        assert_int_equal(extent, pair_count(&parts.pairs[i]));
        for (uint64_t e = 0, a, b; e < pair_count(&parts.pairs[i]); e++, n++) {
            pair_element(&parts.pairs[i], e, &a, &b);
            assert_in_range(b, 0, numel - 1);
            assert_true(whole_of[b] == UINT64_MAX);
            whole_of[b] = a;
        }
    }
    assert_int_equal(n, numel);
    for (uint64_t i = 0; i < numel; i++) {
        assert_int_equal(whole_of[i], expected[i]);
        seen[expected[i]] = true;
    }
}

/* Checks the shards of all ranks, and that together they hold every element. */
static inline void check_shards(const struct cut *c)
{
    static bool seen[MAX_SHARD_ELEMENTS];
    uint64_t numel;
    memset(seen, 0, sizeof seen);
    for (uint64_t r = 0; r < c->size; r++)
        check_shard(c, r, seen);
    assert_true(shape_numel(c->shape, c->num_dims, &numel));
    for (uint64_t e = 0; e < numel; e++)
        assert_true(seen[e]);
}

#endif
