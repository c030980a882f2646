#include "train/model/tokens.h"

#include "tests/testing.h"

enum { MAX_TOKENS = 256 };

/* A random batch, and how many rank layouts it goes to. */
struct scene {
    struct arena arena;
    struct batch batch;
    struct group_sizes sizes;
    uint64_t multiple;
};

static void make_scene(struct scene *s, uint64_t seed)
{
    uint64_t r = seed;
    int32_t *ids = NULL;
    bool *starts = NULL;
    arena_init(&s->arena);
    s->batch =
        (struct batch){.num_sequences = 1 + test_below(&r, 3), .length = 1 + test_below(&r, 30)};
    uint64_t count = s->batch.num_sequences * s->batch.length;
    s->sizes = (struct group_sizes){.tp = 1 + (unsigned)test_below(&r, 2),
                                    .cp = 1 + (unsigned)test_below(&r, 4),
                                    .dp = 1 + (unsigned)test_below(&r, 3),
                                    .pp = 1,
                                    .etp = 1,
                                    .ep = 1};
    s->multiple = s->sizes.tp;
    ids = arena_array(&s->arena, count, sizeof *ids);
    starts = arena_array(&s->arena, count, sizeof *starts);
    for (uint64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)i; /* so that a token says where it comes from */
        starts[i] = test_below(&r, 5) == 0;
    }
    s->batch.ids = ids;
    s->batch.targets = ids;
    if (test_below(&r, 2)) s->batch.starts = starts;
}

static uint64_t start_of(const struct batch *b, uint64_t token)
{
    uint64_t first = token / b->length * b->length;
    while (token > first && !(b->starts && b->starts[token]))
        token--;
    return token;
}

static struct tokens tokens_of(struct scene *s, unsigned dp, unsigned cp)
{
    struct group_place at = {.dp = dp, .cp = cp};
    struct tokens t;
    tokens_make(&t, &s->arena, &s->batch, &s->sizes, &at, s->multiple);
    return t;
}

/* Row -> token of the batch; UINT64_MAX for what is filled in. */
static uint64_t token_at(const struct scene *s, const struct tokens *t, uint64_t row)
{
    const struct token_origin *o = &t->origins[row];
    return o->sequence == UINT64_MAX ? UINT64_MAX : o->sequence * s->batch.length + o->position;
}

/* Counts the pairs that a table of spans has, with keys of ranks first.. of the
 * ring. */
static void count_pairs(struct scene *s, unsigned dp, const struct tokens *q, const int32_t *spans,
                        unsigned first_cp, uint8_t (*pairs)[MAX_TOKENS])
{
    for (const int32_t *p = spans; p[1]; p += 6) {
        for (int32_t i = 0; i < p[1]; i++) {
            for (int32_t k = 0; k < p[4]; k++) {
                unsigned cp = first_cp + (unsigned)((uint64_t)(p[3] + k) / q->shape.rows);
                uint64_t row = (uint64_t)(p[3] + k) % q->shape.rows;
                struct tokens other = tokens_of(s, dp, cp);
                uint64_t a = token_at(s, q, (uint64_t)(p[0] + i)), b = token_at(s, &other, row);
                if (p[2] + i < p[5] + k || a == UINT64_MAX) continue; /* causal */
                assert_true(b != UINT64_MAX);
                assert_int_equal(p[2] + i, a - start_of(&s->batch, a));
                assert_int_equal(p[5] + k, b - start_of(&s->batch, b));
                pairs[a][b]++;
            }
        }
    }
}

static void check_pairs(const struct scene *s, uint8_t (*pairs)[MAX_TOKENS], uint64_t seed)
{
    uint64_t count = s->batch.num_sequences * s->batch.length;
    for (uint64_t a = 0; a < count; a++)
        for (uint64_t b = 0; b < count; b++) {
            bool attends = b <= a && start_of(&s->batch, a) == start_of(&s->batch, b);
            if (pairs[a][b] != attends)
                fail_msg("seed %lu: token %lu sees token %lu %u times", (unsigned long)seed,
                         (unsigned long)a, (unsigned long)b, pairs[a][b]);
        }
}

static void each_token_sees_what_is_before_it_in_its_document_once(void **state)
{
    (void)state;
    static uint8_t gathered[MAX_TOKENS][MAX_TOKENS], ring[MAX_TOKENS][MAX_TOKENS];
    for (uint64_t n = 0; n < 60; n++) {
        struct scene s;
        make_scene(&s, test_seed() + n);
        memset(gathered, 0, sizeof gathered);
        memset(ring, 0, sizeof ring);
        for (unsigned rank = 0; rank < s.sizes.dp * s.sizes.cp; rank++) {
            unsigned dp = rank / s.sizes.cp, cp = rank % s.sizes.cp;
            struct tokens t = tokens_of(&s, dp, cp);
            count_pairs(&s, dp, &t, t.all_spans, 0, gathered);
            for (unsigned i = 0; i < s.sizes.cp; i++)
                count_pairs(&s, dp, &t, t.spans[i], (cp + s.sizes.cp - i) % s.sizes.cp, ring);
        }
        check_pairs(&s, gathered, test_seed() + n);
        check_pairs(&s, ring, test_seed() + n);
        arena_release(&s.arena);
    }
}

static void each_token_is_somebodys_once(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 200; n++) {
        struct scene s;
        uint8_t seen[MAX_TOKENS] = {0};
        make_scene(&s, test_seed() + n);
        for (unsigned rank = 0; rank < s.sizes.dp * s.sizes.cp; rank++) {
            struct tokens t = tokens_of(&s, rank / s.sizes.cp, rank % s.sizes.cp);
            assert_int_equal(t.shape.rows % s.multiple, 0);
            for (uint64_t i = 0; i < t.shape.rows; i++) {
                uint64_t token = token_at(&s, &t, i);
                if (token == UINT64_MAX) {
                    assert_int_equal(t.targets[i], -1);
                    continue;
                }
                seen[token]++;
                assert_int_equal(t.ids[i], token);
                assert_int_equal(t.targets[i], token);
                assert_int_equal(t.positions[i], token - start_of(&s.batch, token));
            }
        }
        for (uint64_t i = 0; i < s.batch.num_sequences * s.batch.length; i++)
            assert_int_equal(seen[i], 1);
        arena_release(&s.arena);
    }
}

/* Sequences that are repeated to fill a rank up have no spans: they would need
 * more than there is room for. */
static void spans_fit_their_table(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 300; n++) {
        struct scene s;
        make_scene(&s, test_seed() + n);
        for (unsigned rank = 0; rank < s.sizes.dp * s.sizes.cp; rank++) {
            struct tokens t = tokens_of(&s, rank / s.sizes.cp, rank % s.sizes.cp);
            uint64_t count = 0;
            while (t.all_spans[count * 6 + 1])
                count++;
            assert_true(count < t.shape.num_spans);
        }
        arena_release(&s.arena);
    }
}

/* The claim of uniform_sequences about one table of spans. */
static bool spans_are_one_a_sequence(const struct tokens *t)
{
    const int32_t *spans = t->spans[0];
    const int32_t sequences = (int32_t)t->shape.sequences, length = (int32_t)t->shape.chunk;
    for (int32_t i = 0; i < sequences; i++) {
        const int32_t span[6] = {i * length, length, 0, i * length, length, 0};
        if (memcmp(spans + i * 6, span, sizeof span)) return false;
    }
    return spans[sequences * 6 + 1] == 0 && t->shape.rows == t->shape.sequences * t->shape.chunk;
}

static void sequences_are_uniform_where_all_ranks_spans_are(void **state)
{
    (void)state;
    unsigned num_uniform = 0;
    for (uint64_t n = 0; n < 300; n++) {
        struct scene s;
        make_scene(&s, test_seed() + n);
        bool uniform = s.sizes.cp == 1;
        uint32_t said = 0;
        for (unsigned rank = 0; rank < s.sizes.dp * s.sizes.cp; rank++) {
            struct tokens t = tokens_of(&s, rank / s.sizes.cp, rank % s.sizes.cp);
            uniform &= spans_are_one_a_sequence(&t);
            said = t.shape.uniform_sequences;
            assert_true(said == 0 || said == t.shape.sequences);
        }
        assert_int_equal(said != 0, uniform);
        num_uniform += uniform;
        arena_release(&s.arena);
    }
    assert_true(num_uniform > 0);
}

/* Pairs of a causal mask that a context-parallel rank has: the same for all. */
static void chunks_are_dealt_so_that_all_have_as_much_to_do(void **state)
{
    (void)state;
    struct scene s;
    make_scene(&s, test_seed());
    int32_t ids[32] = {0};
    s.batch = (struct batch){.num_sequences = 1, .length = 32, .ids = ids};
    s.sizes = (struct group_sizes){.tp = 1, .cp = 4, .dp = 1, .pp = 1, .etp = 1, .ep = 1};
    for (unsigned cp = 0; cp < 4; cp++) {
        struct tokens t = tokens_of(&s, 0, cp);
        unsigned pairs = 0;
        for (const int32_t *p = t.all_spans; p[1]; p += 6)
            for (int32_t i = 0; i < p[1]; i++)
                for (int32_t k = 0; k < p[4]; k++)
                    pairs += p[2] + i >= p[5] + k;
        assert_int_equal(pairs, 32 * 33 / 2 / 4);
    }
    arena_release(&s.arena);
}

/* order: [count] rows of `numbers`, by number, of equal ones the lower row
 * first. */
static void check_order(const int32_t *order, const int32_t *numbers, uint64_t count)
{
    for (uint64_t i = 1; i < count; i++) {
        const int32_t a = order[i - 1], b = order[i];
        assert_true((uint64_t)b < count);
        assert_true(numbers[a] < numbers[b] || (numbers[a] == numbers[b] && a < b));
    }
}

static void rows_are_sorted_for_gradients_of_tables(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 100; n++) {
        struct scene s;
        make_scene(&s, test_seed() + n);
        const uint64_t count = s.batch.num_sequences * s.batch.length;
        s.batch.weights = arena_array(&s.arena, count, sizeof *s.batch.weights);
        for (unsigned tp = 0; tp < s.sizes.tp; tp++) {
            const struct group_place at = {.tp = tp};
            struct tokens t;
            tokens_make(&t, &s.arena, &s.batch, &s.sizes, &at, s.multiple);
            const uint64_t rows = t.shape.rows, slice = rows / s.sizes.tp;
            check_order(t.id_order, t.ids, rows);
            check_order(t.position_order, t.positions, rows);
            check_order(t.slice_position_order, t.positions + tp * slice, slice);
        }
        arena_release(&s.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted_for_gradients_of_tables),
        cmocka_unit_test(each_token_sees_what_is_before_it_in_its_document_once),
        cmocka_unit_test(each_token_is_somebodys_once),
        cmocka_unit_test(spans_fit_their_table),
        cmocka_unit_test(sequences_are_uniform_where_all_ranks_spans_are),
        cmocka_unit_test(chunks_are_dealt_so_that_all_have_as_much_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
