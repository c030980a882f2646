#include "train/trainer/shard.h"

#include "common/checked.h"

unsigned shard_group(const struct param_range *r)
{
    static const enum group_kind kinds[] = {GROUP_DP, GROUP_EDP};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (r->copies & 1u << kinds[i]) return kinds[i];
    return NUM_GROUP_KINDS;
}

uint64_t shard_unit(const struct groups *g)
{
    const uint64_t dp = g->of[GROUP_DP].size, edp = g->of[GROUP_EDP].size;
    return dp / gcd_u64(dp, edp) * edp;
}

/* The size of the group that shares a range, and this rank's index in it. */
struct sharing {
    uint64_t size, index;
};

static struct sharing sharing_of(const struct param_range *r, const struct groups *g)
{
    const unsigned kind = shard_group(r);
    if (kind == NUM_GROUP_KINDS) return (struct sharing){1, 0};
    return (struct sharing){g->of[kind].size, g->of[kind].index};
}

/* Elements of each bucket of a range but the last. The number of buckets is
 * bounded: each adds calls to the update. */
static uint64_t bucket_numel(const struct param_range *r, const struct sharing *x,
                             const struct groups *g, const struct shard_options *o)
{
    static const uint64_t M = 1000000, MOST_BUCKETS = 4096;
    const uint64_t numel = r->end - r->first, unit = shard_unit(g) * o->alignment,
                   asked = o->bucket_numel ? o->bucket_numel : max_u64(40 * M, x->size * M),
                   wanted = max_u64(asked, ceil_div_u64(numel, MOST_BUCKETS));
    return x->size == 1 ? numel : ceil_div_u64(wanted, unit) * unit;
}

static size_t count_buckets(const struct shard *s, const struct groups *g,
                            const struct shard_options *o)
{
    size_t count = 0;
    for (unsigned i = 0; i < s->num_ranges; i++) {
        const struct param_range *r = &s->ranges[i];
        const struct sharing x = sharing_of(r, g);
        count += ceil_div_u64(r->end - r->first, bucket_numel(r, &x, g, o));
    }
    return count;
}

static void add_buckets(struct shard *s, const struct param_range *r, const struct groups *g,
                        const struct shard_options *o)
{
    const struct sharing x = sharing_of(r, g);
    const uint64_t numel = bucket_numel(r, &x, g, o);
    for (uint64_t at = r->first; at < r->end; at += numel) {
        struct shard_bucket *b = &s->buckets[s->num_buckets++];
        *b = (struct shard_bucket){.range = r, .first = at, .end = min_u64(at + numel, r->end)};
        const uint64_t part = (b->end - b->first) / x.size;
        b->own = b->first + x.index * part;
        b->own_end = b->own + part;
        b->at = s->is_sharded ? s->numel : b->own;
        s->numel = s->is_sharded ? s->numel + part : b->end;
    }
}

void shard_make(struct shard *out, const struct param_range *ranges, unsigned num_ranges,
                const struct groups *g, const struct shard_options *o, struct arena *a)
{
    *out = (struct shard){.options = *o, .ranges = ranges, .num_ranges = num_ranges};
    for (unsigned i = 0; i < num_ranges; i++)
        out->is_sharded |= o->shards && sharing_of(&ranges[i], g).size > 1;
    out->buckets = arena_array(a, count_buckets(out, g, o) + 1, sizeof *out->buckets);
    for (unsigned i = 0; i < num_ranges; i++)
        add_buckets(out, &ranges[i], g, o);
}
