#include "train/trainer/shard.h"

#include "common/count.h"
#include "tests/testing.h"

enum { ALIGNMENT = 64, MAX_NUMEL = 1 << 16, NUM_RANGES = 4 };

/* Ranges of dense parameters and of experts in turn. */
static void make_ranges(struct param_range ranges[NUM_RANGES], const struct groups *g)
{
    static const uint64_t units[NUM_RANGES] = {7, 3, 1, 50};
    uint64_t at = 0;
    for (unsigned i = 0; i < NUM_RANGES; i++) {
        const enum group_kind kind = i % 2 ? GROUP_EDP : GROUP_DP;
        ranges[i] =
            (struct param_range){.first = at, .copies = (unsigned)(g->of[kind].size > 1) << kind};
        ranges[i].end = at += units[i] * shard_unit(g) * ALIGNMENT;
    }
    assert_true(at <= MAX_NUMEL);
}

/* How many ranks of a group have each element in their parts. */
static unsigned char owners[MAX_NUMEL];

static void check_buckets(const struct shard *s)
{
    uint64_t behind = 0, parts = 0;
    for (size_t i = 0; i < s->num_buckets; i++) {
        const struct shard_bucket *b = &s->buckets[i];
        assert_int_equal(b->first, behind);
        assert_true(b->first <= b->own && b->own < b->own_end && b->own_end <= b->end);
        assert_true(b->own % ALIGNMENT == 0 && b->own_end % ALIGNMENT == 0);
        assert_int_equal(b->at, s->is_sharded ? parts : b->own);
        behind = b->end;
        parts += b->own_end - b->own;
    }
    assert_int_equal(behind, s->ranges[NUM_RANGES - 1].end);
    assert_int_equal(s->numel, s->is_sharded ? parts : behind);
}

static void see_owner(const struct shard *s, unsigned odd)
{
    for (size_t i = 0; i < s->num_buckets; i++)
        if ((s->buckets[i].range - s->ranges) % 2 == odd)
            for (uint64_t e = s->buckets[i].own; e < s->buckets[i].own_end; e++)
                owners[e]++;
}

static void check_sizes(unsigned dp, unsigned edp, const struct shard_options *o)
{
    struct groups g = {.of = {[GROUP_DP] = {.size = dp}, [GROUP_EDP] = {.size = edp}}};
    struct param_range ranges[NUM_RANGES];
    struct arena a;
    struct shard s;
    arena_init(&a);
    make_ranges(ranges, &g);
    memset(owners, 0, sizeof owners);
    for (unsigned odd = 0; odd < 2; odd++) {
        struct comm_group *group = &g.of[odd ? GROUP_EDP : GROUP_DP];
        for (group->index = 0; group->index < group->size; group->index++) {
            shard_make(&s, ranges, NUM_RANGES, &g, o, &a);
            assert_int_equal(s.is_sharded, o->shards && (dp > 1 || edp > 1));
            check_buckets(&s);
            see_owner(&s, odd);
        }
        group->index = 0;
    }
    for (uint64_t e = 0; e < ranges[NUM_RANGES - 1].end; e++)
        assert_int_equal(owners[e], 1);
    arena_release(&a);
}

static void each_element_is_the_part_of_one_rank(void **state)
{
    static const unsigned sizes[][2] = {{1, 1}, {2, 2}, {6, 2}, {1, 2}, {4, 3}};
    static const uint64_t buckets[] = {0, 1, 500, 2000};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (size_t k = 0; k < 2 * COUNT(buckets); k++) {
            const struct shard_options o = {k % 2, buckets[k / 2], ALIGNMENT};
            check_sizes(sizes[i][0], sizes[i][1], &o);
        }
}

static void buckets_are_those_of_megatron_unless_told(void **state)
{
    struct groups g = {.of = {[GROUP_DP] = {.size = 50}, [GROUP_EDP] = {.size = 1}}};
    const struct param_range r = {.end = 120u << 20, .copies = 1u << GROUP_DP};
    const struct shard_options o = {.alignment = ALIGNMENT},
                               small = {.bucket_numel = 1 << 20, .alignment = ALIGNMENT};
    struct param_range one = {.end = r.end};
    struct arena a;
    struct shard s;
    (void)state;
    arena_init(&a);
    shard_make(&s, &r, 1, &g, &o, &a);
    assert_int_equal(s.num_buckets, 3);
    assert_int_equal(s.buckets[0].end, (50000000 + 3199) / 3200 * 3200);
    shard_make(&s, &r, 1, &g, &small, &a);
    assert_int_equal(s.num_buckets, 120);
    shard_make(&s, &one, 1, &g, &small, &a);
    assert_int_equal(s.num_buckets, 1);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_is_the_part_of_one_rank),
        cmocka_unit_test(buckets_are_those_of_megatron_unless_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
