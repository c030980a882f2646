/* rng_states_test.c - states beside those that Python, numpy and torch have
 * after the same seeds. */
#include "convert/megatron/optim/rng_states.h"

#include <inttypes.h>

#include "common/count.h"
#include "tests/testing.h"

static struct arena scratch;

/* The tensors that were made, in order. */
static struct {
    const unsigned char *bytes;
    uint64_t count;
} made[8];
static size_t num_made;

static struct value *keep(void *context, const void *bytes, uint64_t count)
{
    (void)context;
    assert_true(num_made < COUNT(made));
    made[num_made].bytes = bytes;
    made[num_made++].count = count;
    return value_int(&scratch, (int64_t)num_made - 1);
}

static const struct value *states(uint64_t seed, bool on_host, struct rng_place at)
{
    const struct rng_made how = {.wanted = true, .seed = seed, .device_is_host = on_host};
    num_made = 0;
    const struct value *list = rng_states_value(&how, &at, keep, NULL, &scratch);
    assert_int_equal(list->kind, VALUE_LIST);
    assert_int_equal(list->count, 1);
    return list->items[0];
}

static uint64_t number_at(const unsigned char *bytes, unsigned count)
{
    uint64_t n = 0;
    for (unsigned i = count; i-- > 0;)
        n = n << 8 | bytes[i];
    return n;
}

/* A sum of words that tells their order. */
static uint64_t sum(uint64_t so_far, uint64_t word)
{
    return (so_far * 31 + word) % 1000000007;
}

/* random.seed(n); random.getstate() */
static void python_s_are_as_python_has_them(void **state)
{
    static const struct {
        uint64_t seed, first, last, sum;
    } cases[] = {{0, 766982754, 2902720905, 510806670},
                 {1, 163610392, 1781494222, 777374390},
                 {1234, 681931688, 343805460, 505236170},
                 {4294967295, 2159790430, 2300076184, 277115315},
                 {4294967301, 3029627165, 656747425, 17645272},
                 {9007199254741009, 1829865544, 2562455216, 461041816}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct value *v =
            value_get(states(cases[i].seed, true, (struct rng_place){0}), "random_rng_state");
        const struct value *words = v->items[1];
        uint64_t s = 0;
        assert_int_equal(v->items[0]->integer, 3);
        assert_int_equal(v->items[2]->kind, VALUE_NONE);
        assert_int_equal(words->count, 625);
        assert_int_equal(words->items[1]->integer, cases[i].first);
        assert_int_equal(words->items[623]->integer, cases[i].last);
        assert_int_equal(words->items[624]->integer, 624);
        for (unsigned k = 0; k < 624; k++)
            s = sum(s, (uint64_t)words->items[k]->integer);
        assert_int_equal(s, cases[i].sum);
    }
}

/* numpy.random.seed(n), of which torch.manual_seed(n) has the same words. */
static void numpy_s_and_torch_s_are_as_they_have_them(void **state)
{
    static const struct {
        uint64_t seed, last, sum;
    } cases[] = {{0, 1796872496, 763847882},
                 {1, 2069268389, 138952894},
                 {1234, 3064478787, 693634161},
                 {4294967295, 3413567280, 391128310}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct value *v =
            value_get(states(cases[i].seed, true, (struct rng_place){0}), "np_rng_state");
        const struct value *words = v->items[1];
        uint64_t s = 0;
        assert_string_equal(value_as_text(v->items[0]), "MT19937");
        assert_int_equal(v->items[2]->integer, 624);
        assert_int_equal(words->kind, VALUE_LIST);
        assert_int_equal(words->count, 624);
        for (unsigned k = 0; k < 624; k++)
            s = sum(s, (uint64_t)words->items[k]->integer);
        assert_int_equal(s, cases[i].sum);
        assert_int_equal(made[0].count, 5056);
        assert_int_equal(number_at(made[0].bytes, 8), cases[i].seed);
        assert_int_equal(number_at(made[0].bytes + 8, 8), UINT64_C(0x100000001)); /* left, seeded */
        assert_int_equal(number_at(made[0].bytes + 16, 8), 0);
        assert_int_equal(number_at(made[0].bytes + 24 + 8 * 623, 8), cases[i].last);
        for (unsigned k = 24 + 8 * 624; k < 5056; k++)
            assert_int_equal(made[0].bytes[k], 0);
    }
}

/* cuda_rng_state, then data-, model- and expert-parallel-rng. */
static void ranks_have_seeds_of_their_own(void **state)
{
    const struct rng_place at = {.pp_rank = 2, .tp_rank = 3, .ep_rank = 4, .etp_rank = 1};
    const uint64_t seed = 1000 + 200;
    const uint64_t seeds[] = {seed, seed, seed, seed + 2718 + 3, seed + 1024 + 400 + 1};
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        const struct value *d = states(1000, on_host, at), *t = value_get(d, "rng_tracker_states");
        assert_int_equal(num_made, 5);
        for (size_t i = 0; i < 5; i++) {
            assert_int_equal(made[i].count, on_host || i == 0 ? 5056 : 16);
            assert_int_equal(number_at(made[i].bytes, 8), seeds[i]);
            if (made[i].count == 16) assert_int_equal(number_at(made[i].bytes + 8, 8), 0);
        }
        assert_int_equal(value_get(d, "torch_rng_state")->integer, 0);
        assert_int_equal(value_get(d, "cuda_rng_state")->integer, 1);
        assert_int_equal(value_get(t, "data-parallel-rng")->integer, 2);
        assert_int_equal(value_get(t, "model-parallel-rng")->integer, 3);
        assert_int_equal(value_get(t, "expert-parallel-rng")->integer, 4);
    }
}

/* A list of a dict with states of so many bytes. */
static struct rng_kept kept_of(size_t device_bytes, size_t tracked_bytes)
{
    static const char bytes[5056];
    struct value *d = value_dict(&scratch), *tracked = value_dict(&scratch);
    value_dict_add(&scratch, tracked, "model-parallel-rng",
                   value_bytes(&scratch, bytes, tracked_bytes));
    value_dict_add(&scratch, d, "cuda_rng_state", value_bytes(&scratch, bytes, device_bytes));
    value_dict_add(&scratch, d, "rng_tracker_states", tracked);
    return (struct rng_kept){.states = value_list(&scratch, VALUE_LIST, 1, &d)};
}

static void kept_states_fit_one_kind_of_device(void **state)
{
    static const struct {
        size_t device_bytes, tracked_bytes;
        bool fits_host, fits_gpu;
    } cases[] = {{5056, 5056, true, false},
                 {16, 16, false, true},
                 {5056, 16, false, false},
                 {16, 5056, false, false},
                 {0, 0, false, false}};
    struct value *empty = value_dict(&scratch);
    const struct rng_kept none = {.states = value_list(&scratch, VALUE_LIST, 1, &empty)};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct rng_kept kept = kept_of(cases[i].device_bytes, cases[i].tracked_bytes);
        assert_int_equal(rng_states_fit(&kept, true), cases[i].fits_host);
        assert_int_equal(rng_states_fit(&kept, false), cases[i].fits_gpu);
    }
    assert_false(rng_states_fit(&none, true));
    assert_false(rng_states_fit(&none, false));
}

static int begin(void **state)
{
    (void)state;
    arena_init(&scratch);
    return 0;
}

static int end(void **state)
{
    (void)state;
    arena_release(&scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(python_s_are_as_python_has_them),
        cmocka_unit_test(numpy_s_and_torch_s_are_as_they_have_them),
        cmocka_unit_test(ranks_have_seeds_of_their_own),
        cmocka_unit_test(kept_states_fit_one_kind_of_device),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
