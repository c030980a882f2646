#include "kernels/cpu/digest_sums.h"

#include "common/count.h"
#include "tests/testing.h"

__extension__ typedef unsigned __int128 u128;

static const uint64_t p = 2305843009213693951;
static const uint64_t roots[2] = {499170133717692731, 2276945000874400884};
static const unsigned widths[] = {4, 8, 16, 32, 64};

#define EACH_WIDTH(w)                                                                              \
    size_t w = 0;                                                                                  \
    w < COUNT(widths);                                                                             \
    w++
#define EACH_KIND(kind)                                                                            \
    enum digest_kind kind = 0;                                                                     \
    kind < NUM_DIGEST_KINDS;                                                                       \
    kind++

/* Longer than any implementation's block. */
enum { MANY_BYTES = 250000 };

static uint64_t times(uint64_t a, uint64_t b)
{
    return (uint64_t)((u128)a * b % p);
}

static uint64_t power(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;
    for (; exponent; exponent /= 2, base = times(base, base))
        if (exponent % 2) result = times(result, base);
    return result;
}

static uint64_t element(const unsigned char *x, unsigned bits, uint64_t i)
{
    if (bits == 4) return i % 2 ? x[i / 2] / 16 : x[i / 2] % 16;
    uint64_t e = 0;
    for (unsigned byte = bits / 8; byte-- > 0;)
        e = e << 8 | x[i * bits / 8 + byte];
    return e;
}

/* The definition, element by element. */
static struct digest slow_digest(const unsigned char *x, unsigned bits, uint64_t count,
                                 uint64_t first)
{
    struct digest d = {{0, 0}};
    if (bits == 64) bits = 32, count *= 2, first *= 2;
    for (int k = 0; k < 2; k++) {
        uint64_t factor = power(roots[k], first);
        for (uint64_t i = 0; i < count; i++, factor = times(factor, roots[k]))
            d.d[k] = (uint64_t)(((u128)element(x, bits, i) * factor + d.d[k]) % p);
    }
    return d;
}

static const char *const kind_names[NUM_DIGEST_KINDS] = {"plain", "avx2", "avx512"};

static void assert_same(struct digest got, struct digest want, enum digest_kind kind, unsigned bits,
                        uint64_t count, uint64_t first)
{
    for (int k = 0; k < 2; k++)
        if (got.d[k] != want.d[k])
            fail_msg(
                "%s, seed %llu: %llu elements of %u bits from %llu on: sum %d is %llu, not %llu",
                kind_names[kind], (unsigned long long)test_seed(), (unsigned long long)count, bits,
                (unsigned long long)first, k, (unsigned long long)got.d[k],
                (unsigned long long)want.d[k]);
}

static void every_kind_gives(const unsigned char *x, unsigned bits, uint64_t count, uint64_t first,
                             struct digest want)
{
    for (EACH_KIND(kind)) {
        struct digest d = {{0, 0}};
        if (!digest_kind_works(kind)) continue;
        digest_add_by(kind, &d, x, bits, count, first);
        assert_same(d, want, kind, bits, count, first);
    }
    struct digest d = {{0, 0}};
    digest_add(&d, x, bits, count, first);
    assert_same(d, want, DIGEST_PLAIN, bits, count, first);
}

/* Exactly sized, so that sanitizers see reads past the end. */
static unsigned char *random_bytes(uint64_t *seed, size_t size)
{
    unsigned char *x = malloc(size ? size : 1);
    assert_non_null(x);
    for (size_t i = 0; i < size; i++)
        x[i] = (unsigned char)test_random(seed);
    return x;
}

static uint64_t random_first(uint64_t *seed)
{
    return test_below(seed, (uint64_t)1 << test_below(seed, 62)) & ~(uint64_t)1;
}

/* Expected values: digest_sums.h's Python on b[i] = (i * i + 37 * i + 11 ^ i >>
 * 3) & 255. */
static void digests_are_those_of_the_definition_in_python(void **state)
{
    (void)state;
    static const struct {
        unsigned bits;
        uint64_t first;
        struct digest want;
    } known[] = {
        {4, 0, {{1413970160396718942u, 950886682452312105u}}},
        {4, 1000000000000000000, {{170673657626859293u, 255418331480874196u}}},
        {8, 0, {{739782512805298799u, 1296989489533470873u}}},
        {8, 1000000000000000000, {{2275805937344171611u, 1074518229446707845u}}},
        {16, 0, {{92871985080867862u, 541459205759039594u}}},
        {16, 1000000000000000000, {{978148609385718029u, 2248310502627935443u}}},
        {32, 0, {{1832464829055706680u, 228279568879656200u}}},
        {32, 1000000000000000000, {{2068693559506503301u, 534365038972720593u}}},
        {64, 0, {{1832464829055706680u, 228279568879656200u}}},
        {64, 1000000000000000000, {{901960995607278238u, 953899634660460562u}}},
    };
    unsigned char b[4000];
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (unsigned char)((i * i + 37 * i + 11) ^ i >> 3);
    for (size_t i = 0; i < COUNT(known); i++)
        every_kind_gives(b, known[i].bits, sizeof b * 8 / known[i].bits, known[i].first,
                         known[i].want);
}

static void any_count_alignment_and_first_index(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (EACH_WIDTH(w)) {
        for (size_t i = 0; i < 400; i++) {
            size_t misaligned = i % 16;
            uint64_t count = i < 200 ? i : test_below(&seed, 3000), first = random_first(&seed);
            size_t size = (count * widths[w] + 7) / 8;
            unsigned char *x = random_bytes(&seed, misaligned + size);
            every_kind_gives(x + misaligned, widths[w], count, first,
                             slow_digest(x + misaligned, widths[w], count, first));
            free(x);
        }
    }
}

static void arrays_of_several_blocks(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (EACH_WIDTH(w)) {
        size_t size = MANY_BYTES - (size_t)test_below(&seed, 10000) / 8 * 8;
        uint64_t count = size * 8 / widths[w] - test_below(&seed, 2), first = random_first(&seed);
        unsigned char *x = random_bytes(&seed, 1 + size);
        every_kind_gives(x + 1, widths[w], count, first,
                         slow_digest(x + 1, widths[w], count, first));
        free(x);
    }
}

static void no_elements_change_nothing(void **state)
{
    (void)state;
    for (EACH_WIDTH(w)) {
        for (EACH_KIND(kind)) {
            struct digest d = {{7, p - 1}};
            if (!digest_kind_works(kind)) continue;
            digest_add_by(kind, &d, "", widths[w], 0, 1 << 20);
            assert_true(d.d[0] == 7 && d.d[1] == p - 1);
        }
    }
}

/* One element repeated: a geometric series. */
static struct digest digest_of_equal(uint64_t e, unsigned bits, uint64_t count, uint64_t first)
{
    struct digest d;
    if (bits == 64) e &= UINT32_MAX, count *= 2, first *= 2;
    for (int k = 0; k < 2; k++) {
        uint64_t r = roots[k];
        uint64_t series = times(power(r, count) + p - 1, power(r - 1, p - 2));
        d.d[k] = times(e, times(series, power(r, first)));
    }
    return d;
}

static void long_arrays_of_the_largest_and_smallest_elements(void **state)
{
    (void)state;
    const size_t size = 16 << 20;
    unsigned char *x = malloc(size);
    assert_non_null(x);
    for (int ones = 0; ones < 2; ones++) {
        memset(x, ones ? 255 : 0, size);
        for (EACH_WIDTH(w)) {
            uint64_t count = size * 8 / widths[w], first = ((uint64_t)1 << 61) - 14;
            uint64_t e = ones ? UINT64_MAX >> (64 - widths[w]) : 0;
            every_kind_gives(x, widths[w], count, first,
                             digest_of_equal(e, widths[w], count, first));
        }
    }
    free(x);
}

/* The largest element where its factor is in the lower half of the numbers
 * modulo p, the smallest in the upper half, and vice versa: signed sums
 * grow fastest. */
static void elements_that_follow_the_sign_of_their_factors(void **state)
{
    (void)state;
    static unsigned char x[MANY_BYTES];
    for (unsigned variant = 0; variant < 4; variant++) {
        uint64_t root = roots[variant / 2], factor = 1;
        for (size_t i = 0; i < MANY_BYTES; i += 2, factor = times(factor, root))
            x[i] = x[i + 1] = (factor > p / 2) == variant % 2 ? 255 : 0;
        every_kind_gives(x, 16, MANY_BYTES / 2, 0, slow_digest(x, 16, MANY_BYTES / 2, 0));
    }
}

static void parts_in_any_order_make_the_whole(void **state)
{
    (void)state;
    enum { PARTS = 9 };
    uint64_t seed = test_seed();
    unsigned char *x = random_bytes(&seed, MANY_BYTES);
    for (EACH_WIDTH(w)) {
        uint64_t count = (uint64_t)MANY_BYTES * 8 / widths[w], first = random_first(&seed);
        uint64_t cuts[PARTS + 1] = {0};
        struct digest whole = {{0, 0}}, joined = {{0, 0}}, added = {{0, 0}};
        digest_add(&whole, x, widths[w], count, first);
        for (size_t i = 1; i <= PARTS; i++) /* even, so that nibbles are whole bytes */
            cuts[i] =
                i == PARTS ? count : count * i / PARTS / 256 * 256 + 2 * test_below(&seed, 99);
        for (size_t i = 0; i < PARTS; i++) {
            size_t part = i * 5 % PARTS;
            const unsigned char *at = x + cuts[part] * widths[w] / 8;
            struct digest d = {{0, 0}};
            digest_add(&d, at, widths[w], cuts[part + 1] - cuts[part], first + cuts[part]);
            digest_join(&joined, &d);
            digest_add(&added, at, widths[w], cuts[part + 1] - cuts[part], first + cuts[part]);
        }
        assert_same(joined, whole, DIGEST_PLAIN, widths[w], count, first);
        assert_same(added, whole, DIGEST_PLAIN, widths[w], count, first);
    }
    free(x);
}

static void one_changed_element_changes_both_sums(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    unsigned char *x = random_bytes(&seed, 5000);
    for (EACH_WIDTH(w)) {
        uint64_t count = 5000 * 8 / widths[w];
        struct digest before = {{0, 0}};
        digest_add(&before, x, widths[w], count, 0);
        for (int i = 0; i < 200; i++) {
            size_t byte = (size_t)test_below(&seed, 5000);
            unsigned char bit = (unsigned char)(1 << test_below(&seed, 8));
            struct digest after = {{0, 0}};
            x[byte] ^= bit;
            digest_add(&after, x, widths[w], count, 0);
            x[byte] ^= bit;
            assert_true(after.d[0] != before.d[0] && after.d[1] != before.d[1]);
        }
    }
    free(x);
}

/* Shows in the list of tests which kinds this machine lacks. */
static void this_cpu_runs_avx2(void **state)
{
    (void)state;
    if (!digest_kind_works(DIGEST_AVX2)) skip();
}

static void this_cpu_runs_avx512(void **state)
{
    (void)state;
    if (!digest_kind_works(DIGEST_AVX512)) skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_cpu_runs_avx2),
        cmocka_unit_test(this_cpu_runs_avx512),
        cmocka_unit_test(digests_are_those_of_the_definition_in_python),
        cmocka_unit_test(any_count_alignment_and_first_index),
        cmocka_unit_test(arrays_of_several_blocks),
        cmocka_unit_test(no_elements_change_nothing),
        cmocka_unit_test(long_arrays_of_the_largest_and_smallest_elements),
        cmocka_unit_test(elements_that_follow_the_sign_of_their_factors),
        cmocka_unit_test(parts_in_any_order_make_the_whole),
        cmocka_unit_test(one_changed_element_changes_both_sums),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
