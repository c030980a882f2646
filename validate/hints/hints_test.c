/* hints_test.c - each hint is reported if it holds, and is not after one
 * element is changed. */
#include "common/count.h"
#include "validate/testing_validate.h"

/* Whether the tensor has the hint `id` with a text that contains `part`. */
static bool tells(const struct compared *t, const char *id, const char *part)
{
    return t->hint && strcmp(t->hint->id, id) == 0 && strstr(t->hint->text, part);
}

static const char *hint_text(const struct compared *t)
{
    return t->hint ? arena_printf(&scratch, "%s: %s", t->hint->id, t->hint->text) : "nothing";
}

static void check_tensor(const struct made *a, const struct made *b, const char *name,
                         const char *id, const char *part, bool told)
{
    struct compared_sides x;
    struct compare_options o = plain_options();
    const struct compared *t = compared_find(compare_sides(&x, a, b, &o), name);
    if (tells(t, id, part) != told)
        fail_msg("%s: %s is told, and \"%s: %s\" %s wanted", name, hint_text(t), id, part,
                 told ? "was" : "was not");
    release_sides(&x);
}

/* Checks that the single tensor gets the hint, and does not after one element
 * of B is changed. */
static void check_hint(const struct made *a, const struct made *b, const char *id, const char *part,
                       uint64_t *seed)
{
    const char *name = a->tensors[0].name;
    check_tensor(a, b, name, id, part, true);
    struct made *nearly = made_copy(b);
    made_set(&nearly->tensors[0], test_below(seed, nearly->tensors[0].numel), 7.25);
    check_tensor(a, nearly, name, id, "", false);
}

/* ---- arrangements ---- */

/* 8 query heads of 8 rows, in 2 groups; the same in 4 and in 8; half of each
 * head rotated. */
static const char heads_2[] = "{'num_attention_heads': 8, 'num_key_value_heads': 2, "
                              "'hidden_size': 64}";
static const char heads_4[] = "{'text_config': {'num_attention_heads': 8, "
                              "'num_key_value_heads': 4, 'head_dim': 8}}";
static const char heads_8[] = "{'n_head': 8, 'n_embd': 64}";
static const char heads_partial[] = "{'num_attention_heads': 8, 'num_key_value_heads': 2, "
                                    "'hidden_size': 64, 'partial_rotary_factor': 0.5}";

/* Llama 3; a model of 64 query heads in 8 groups; one without groups; one with
 * a single group. */
static const char llama_3[] = "{'num_attention_heads': 32, 'num_key_value_heads': 8, "
                              "'head_dim': 128}";
static const char gqa_8[] = "{'num_attention_heads': 64, 'num_key_value_heads': 8, "
                            "'head_dim': 128}";
static const char mha[] = "{'num_attention_heads': 32, 'head_dim': 128}";
static const char mqa[] = "{'num_attention_heads': 32, 'num_key_value_heads': 1, "
                          "'head_dim': 128}";

/* The element of A that is element i of B. `s` is A's shape. */
typedef uint64_t source_of(const uint64_t *s, uint64_t i);

#define ROWS(name, expression)                                                                     \
    static uint64_t name(const uint64_t *s, uint64_t i)                                            \
    {                                                                                              \
        uint64_t n = s[0], m = s[1] ? s[1] : 1, r = i / m;                                         \
        (void)n;                                                                                   \
        return (expression)*m + i % m;                                                             \
    }

static uint64_t transposed(const uint64_t *s, uint64_t i) /* B is [s1, s0] */
{
    return i % s[0] * s[1] + i / s[0];
}

static uint64_t transposed_back(const uint64_t *s, uint64_t i)
{
    return i % s[1] * s[0] + i / s[1];
}

static uint64_t inner_transposed(const uint64_t *s, uint64_t i) /* B is [s0, s2, s1] */
{
    uint64_t slice = s[1] * s[2], in = i % slice;
    return i / slice * slice + in % s[1] * s[2] + in / s[1];
}

static uint64_t outer_transposed(const uint64_t *s, uint64_t i) /* B is [s1, s0, s2] */
{
    uint64_t k = i % s[2], j = i / s[2] % s[0], l = i / s[2] / s[0];
    return (j * s[1] + l) * s[2] + k;
}

static uint64_t inner_swapped(const uint64_t *s, uint64_t i)
{
    uint64_t slice = s[1] * s[2];
    return i / slice * slice + (i % slice + slice / 2) % slice;
}

static uint64_t columns_in_turn(const uint64_t *s, uint64_t i) /* gate and up in [h, 2i] */
{
    uint64_t column = i % s[1];
    return i / s[1] * s[1] + column % 2 * (s[1] / 2) + column / 2;
}

/* Row j of a head of d rows, interleaved. */
static uint64_t in_turn(uint64_t j, uint64_t d)
{
    return j % 2 * (d / 2) + j / 2;
}

ROWS(halves_swapped, (r + n / 2) % n)
ROWS(rows_in_turn, r % 2 * (n / 2) + r / 2)
ROWS(rows_out_of_turn, r % (n / 2) * 2 + r / (n / 2))
ROWS(by_2_ranks, r / (n / 4) % 2 * (n / 2) + r / (n / 2) * (n / 4) + r % (n / 4))
ROWS(by_8_ranks, r / (n / 16) % 2 * (n / 2) + r / (n / 8) * (n / 16) + r % (n / 16))
ROWS(from_4_ranks, r % (n / 2) / (n / 8) * (n / 4) + r / (n / 2) * (n / 8) + r % (n / 8))
ROWS(rotary, r / 8 * 8 + in_turn(r % 8, 8))
ROWS(rotary_back, r / 8 * 8 + r % 4 * 2 + r % 8 / 4)
ROWS(rotary_of_64, r / 64 * 64 + in_turn(r % 64, 64))
ROWS(rotary_half, r % 8 < 4 ? r / 8 * 8 + in_turn(r % 8, 4) : r)
ROWS(rotary_groups, r % 48 < 40 ? r / 8 * 8 + in_turn(r % 8, 8) : r)
ROWS(rotary_groups_back, r % 48 < 40 ? r / 8 * 8 + r % 4 * 2 + r % 8 / 4 : r)
ROWS(rotary_groups_half, r % 48 < 40 && r % 8 < 4 ? r / 8 * 8 + in_turn(r % 8, 4) : r)
ROWS(rotary_concat, r < 80 ? r / 8 * 8 + in_turn(r % 8, 8) : r)
ROWS(concat_of_groups, r < 64   ? r / 32 * 48 + r % 32
                       : r < 80 ? (r - 64) / 8 * 48 + 32 + r % 8
                                : (r - 80) / 8 * 48 + 40 + r % 8)
ROWS(groups_of_concat, r % 48 < 32   ? r / 48 * 32 + r % 48
                       : r % 48 < 40 ? 64 + r / 48 * 8 + r % 8
                                     : 80 + r / 48 * 8 + r % 8)
ROWS(ranks_of_groups, r % 64 < 32   ? (r / 64 * 2 + r % 64 / 16) * 32 + r % 16
                      : r % 64 < 48 ? (r / 64 * 2 + (r % 64 - 32) / 8) * 32 + 16 + r % 8
                                    : (r / 64 * 2 + (r % 64 - 48) / 8) * 32 + 24 + r % 8)
ROWS(version_1_of_groups, r / 24 * 24 + r % 3 * 8 + r % 24 / 3)
ROWS(groups_of_version_1, r / 24 * 24 + r % 8 * 3 + r % 24 / 8)
ROWS(heads_by_place, (r / 8 % 2 * 4 + r / 16) * 8 + r % 8)

/* As in real models: heads of 128 rows, q_heads query heads, a k and a v in
 * each group. B's k is A's v. */
static uint64_t kv_swapped(uint64_t r, uint64_t q_heads)
{
    uint64_t group = (q_heads + 2) * 128, in = r % group;
    if (in < q_heads * 128) return r;
    return in < (q_heads + 1) * 128 ? r + 128 : r - 128;
}
ROWS(kv_of_4_q, kv_swapped(r, 4))
ROWS(kv_of_8_q, kv_swapped(r, 8))
ROWS(kv_of_32_q, kv_swapped(r, 32))
ROWS(kv_of_1_q, kv_swapped(r, 1))
ROWS(kv_of_concat, r < 4096 ? r : r < 5120 ? r + 1024 : r - 1024)
ROWS(qk_of_1_q, r % 384 < 128 ? r + 128 : r % 384 < 256 ? r - 128 : r)
ROWS(qv_of_1_q, r % 384 < 128 ? r + 256 : r % 384 < 256 ? r : r - 256)
ROWS(turned_of_1_q, r % 384 < 256 ? r + 128 : r - 256)
ROWS(turned_back_of_1_q, r % 384 < 128 ? r + 256 : r - 128)
ROWS(concat_of_llama_3, r < 4096   ? r / 512 * 768 + r % 512
                        : r < 5120 ? (r - 4096) / 128 * 768 + 512 + r % 128
                                   : (r - 5120) / 128 * 768 + 640 + r % 128)
ROWS(rotary_of_q, r % 768 < 512 ? r / 128 * 128 + in_turn(r % 128, 128) : r)
ROWS(rotary_of_k, r % 768 / 128 == 4 ? r / 128 * 128 + in_turn(r % 128, 128) : r)
ROWS(rotary_of_q_concat, r < 4096 ? r / 128 * 128 + in_turn(r % 128, 128) : r)
ROWS(rotary_of_k_concat, r / 1024 == 4 ? r / 128 * 128 + in_turn(r % 128, 128) : r)
ROWS(rotary_of_mqa, r < 33 * 128 ? r / 128 * 128 + in_turn(r % 128, 128) : r)
ROWS(same, r)

struct arrangement_case {
    const char *name, *config, *id, *part;
    uint64_t shape[3], shape_b[3]; /* shape_b 0: the same */
    source_of *source;
};

// clang-format off
static const struct arrangement_case arrangement_cases[] = {
    {"w", NULL, "transposed", "B is A transposed", {24, 40}, {40, 24}, transposed},
    {"w", NULL, "transposed", "B is A transposed", {32, 32}, {0}, transposed},
    {"w", NULL, "transposed", "B is A transposed", {24, 40}, {0}, transposed},
    {"w", NULL, "transposed", "A is B transposed", {24, 40}, {0}, transposed_back},
    {"experts", NULL, "transposed", "dimensions 1 and 2", {4, 6, 10}, {4, 10, 6}, inner_transposed},
    {"experts", NULL, "transposed", "dimensions 0 and 1", {4, 6, 10}, {6, 4, 10}, outer_transposed},
    {"w", NULL, "reshaped", "another shape", {24, 40}, {48, 20}, same},

    {"fc1", NULL, "gate-up-swapped", "halves", {48, 16}, {0}, halves_swapped},
    {"fc1.bias", NULL, "gate-up-swapped", "halves", {48}, {0}, halves_swapped},
    {"experts", NULL, "gate-up-swapped", "along dimension 1", {3, 20, 8}, {0}, inner_swapped},
    {"fc1", NULL, "gate-up-interleaved", "B interleaved row by row", {48, 16}, {0}, rows_in_turn},
    {"fc1", NULL, "gate-up-interleaved", "B one after", {48, 16}, {0}, rows_out_of_turn},
    {"fc1", NULL, "gate-up-interleaved", "along dimension 1", {16, 48}, {0}, columns_in_turn},
    {"fc1", NULL, "gate-up-by-rank", "B in alternating chunks for 2", {48, 16}, {0}, by_2_ranks},
    {"fc1", NULL, "gate-up-by-rank", "B in alternating chunks for 8", {48, 16}, {0}, by_8_ranks},
    {"fc1", NULL, "gate-up-by-rank", "chunks for 4 tensor-parallel ranks, B one", {48, 16}, {0}, from_4_ranks},

    {"q_proj", heads_2, "rotary-interleaved", "each head of 8 rows one after the other, B inter", {64, 16}, {0}, rotary},
    {"q_proj", heads_2, "rotary-interleaved", "each head of 8 rows interleaved", {64, 16}, {0}, rotary_back},
    {"k_proj", heads_2, "rotary-interleaved", "each head of 8 rows", {16, 16}, {0}, rotary},
    {"q_proj", heads_partial, "rotary-interleaved", "each head of 8 rows", {64, 16}, {0}, rotary_half},
    {"q_proj", NULL, "rotary-interleaved", "64 rows", {192, 6}, {0}, rotary_of_64},
    {"qkv", heads_2, "rotary-interleaved", "q and k head", {96, 16}, {0}, rotary_groups},
    {"qkv", heads_2, "rotary-interleaved", "interleaved (as Meta and GGUF), B one", {96, 16}, {0}, rotary_groups_back},
    {"qkv", heads_partial, "rotary-interleaved", "q and k head", {96, 16}, {0}, rotary_groups_half},
    {"qkv.bias", heads_2, "rotary-interleaved", "q and k head", {96}, {0}, rotary_groups},
    {"qkv", heads_2, "rotary-interleaved", "q and k head", {96, 16}, {0}, rotary_concat},

    {"qkv", heads_2, "qkv-order", "A has q, k and v group by group (as Megatron), B one after the other", {96, 16}, {0}, concat_of_groups},
    {"qkv", heads_2, "qkv-order", "A has q, k and v one after the other, B group by group", {96, 16}, {0}, groups_of_concat},
    {"qkv.bias", heads_2, "qkv-order", "B one after the other", {96}, {0}, concat_of_groups},
    {"qkv", heads_4, "qkv-order", "each of 2 tensor-parallel ranks", {128, 16}, {0}, ranks_of_groups},
    {"qkv", heads_8, "qkv-order", "B interleaved row by row", {192, 16}, {0}, version_1_of_groups},
    {"qkv", heads_8, "qkv-order", "A has q, k and v interleaved row by row", {192, 16}, {0}, groups_of_version_1},
    {"q_proj", heads_2, "query-heads", "B interleaved across groups", {64, 16}, {0}, heads_by_place},

    {"qkv", llama_3, "qkv-swapped", "k and v are swapped", {6144, 3}, {0}, kv_of_4_q},
    {"qkv.bias", llama_3, "qkv-swapped", "k and v are swapped", {6144}, {0}, kv_of_4_q},
    {"qkv", gqa_8, "qkv-swapped", "k and v are swapped", {10240, 3}, {0}, kv_of_8_q},
    {"qkv", mqa, "qkv-swapped", "k and v are swapped", {4352, 3}, {0}, kv_of_32_q},
    {"qkv", mha, "qkv-swapped", "k and v are swapped", {12288, 3}, {0}, kv_of_1_q},
    {"qkv", llama_3, "qkv-swapped", "k and v are swapped", {6144, 3}, {0}, kv_of_concat},
    {"qkv", mha, "qkv-swapped", "q and k are swapped", {12288, 3}, {0}, qk_of_1_q},
    {"qkv", mha, "qkv-swapped", "q and v are swapped", {12288, 3}, {0}, qv_of_1_q},
    {"qkv", mha, "qkv-swapped", "q, k and v of B are k, v and q of A", {12288, 3}, {0}, turned_of_1_q},
    {"qkv", mha, "qkv-swapped", "q, k and v of B are v, q and k of A", {12288, 3}, {0}, turned_back_of_1_q},
    {"qkv", llama_3, "qkv-order", "A has q, k and v group by group (as Megatron), B one after the other", {6144, 3}, {0}, concat_of_llama_3},
    {"qkv", llama_3, "rotary-interleaved", "q head of 128 rows (not those of k) one after", {6144, 3}, {0}, rotary_of_q},
    {"qkv", llama_3, "rotary-interleaved", "k head of 128 rows (not those of q) one after", {6144, 3}, {0}, rotary_of_k},
    {"qkv", llama_3, "rotary-interleaved", "q head of 128 rows (not those of k) one after", {6144, 3}, {0}, rotary_of_q_concat},
    {"qkv", llama_3, "rotary-interleaved", "k head of 128 rows (not those of q) one after", {6144, 3}, {0}, rotary_of_k_concat},
    {"qkv", mqa, "rotary-interleaved", "each q and k head of 128 rows one after", {4352, 3}, {0}, rotary_of_mqa},
    {"gate_up", llama_3, "gate-up-swapped", "halves", {28672, 2}, {0}, halves_swapped},
    {"k_proj", llama_3, "rotary-interleaved", "each head of 128 rows one after", {1024, 3}, {0}, rotary_of_q_concat},
};
// clang-format on

static unsigned dims_of(const uint64_t *shape)
{
    return shape[2] ? 3 : shape[1] ? 2 : 1;
}

/* A side of one tensor. */
static struct made *one(const char *name, enum dtype dtype, const uint64_t *shape,
                        const char *config)
{
    struct made *m = arena_alloc(&scratch, sizeof *m);
    made_add(m, name, dtype, dims_of(shape), shape);
    m->config = config;
    return m;
}

static void check_arrangement(const struct arrangement_case *x, enum dtype from, enum dtype to,
                              uint64_t *seed)
{
    const uint64_t *shape_b = x->shape_b[0] ? x->shape_b : x->shape;
    struct made *a = one(x->name, from, x->shape, x->config),
                *b = one(x->name, to, shape_b, x->config);
    made_fill(&a->tensors[0], seed);
    for (uint64_t i = 0; i < b->tensors[0].numel; i++)
        made_set(&b->tensors[0], i, made_get(&a->tensors[0], x->source(x->shape, i)));
    check_hint(a, b, x->id, x->part, seed);
}

static void other_orders_of_elements_are_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < COUNT(arrangement_cases); i++)
        check_arrangement(&arrangement_cases[i], DT_F32, DT_F32, &seed);
}

static void other_orders_are_told_across_dtypes(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (size_t i = 0; i < COUNT(arrangement_cases); i += 3) {
        check_arrangement(&arrangement_cases[i], DT_F32, DT_BF16, &seed);
        check_arrangement(&arrangement_cases[i], DT_F16, DT_F32, &seed);
    }
}

/* ---- slices ---- */

static void permuted_slices_are_told(void **state)
{
    static const uint64_t shapes[][3] = {{8, 48}, {6, 10, 12}, {40, 3}};
    static const char *const parts[] = {
        "its rows are permuted (8 of 8 moved): 0 to 5, 6 to 7 of B are 2 to 7, 0 to 1 of A",
        "its slices (experts) are permuted (6 of 6 moved): 0 to 3, 4 to 5 of B are 2 to 5, 0 to 1",
        "(40 of 40 moved): 0 to 37, 38 to 39 of B are 2 to 39, 0 to 1 of A"};
    (void)state;
    uint64_t seed = test_seed();
    for (size_t k = 0; k < 3; k++) {
        struct made *a = one("router", DT_BF16, shapes[k], NULL), *b;
        struct made_tensor *x = made_fill(&a->tensors[0], &seed), *y;
        uint64_t row = x->numel / shapes[k][0];
        b = made_copy(a);
        y = &b->tensors[0];
        for (uint64_t i = 0; i < x->numel; i++)
            made_set(y, i, made_get(x, (i + 2 * row) % x->numel));
        check_hint(a, b, "permuted", parts[k], &seed);
    }
}

/* Rows that did not move are not reported. */
static void a_permutation_is_told_from_the_first_row_that_moves(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("router", DT_BF16, (uint64_t[3]){64, 5}, NULL), *b;
    struct made_tensor *x = made_fill(&a->tensors[0], &seed), *y;
    b = made_copy(a);
    y = &b->tensors[0];
    for (uint64_t i = 20 * 5; i < 24 * 5; i++) { /* rows 20 to 23 and 40 to 43 exchanged */
        made_set(y, i, made_get(x, i + 20 * 5));
        made_set(y, i + 20 * 5, made_get(x, i));
    }
    check_hint(a, b, "permuted",
               "its rows are permuted (8 of 64 moved): 20 to 23, 40 to 43 of B are 40 to 43, "
               "20 to 23 of A",
               &seed);
    for (uint64_t i = 40 * 5; i < 64 * 5; i++) /* from 40 on in the other order */
        made_set(y, i, made_get(x, (103 - i / 5) * 5 + i % 5));
    for (uint64_t i = 20 * 5; i < 24 * 5; i++)
        made_set(y, i, made_get(x, i));
    check_hint(a, b, "permuted",
               "(24 of 64 moved): 40, 41, 42, 43, 44, 45, .. of B are 63, 62, 61, 60, 59, 58, .. "
               "of A",
               &seed);
}

/* ---- extents ---- */

static void rows_and_columns_added_or_cut_are_told(void **state)
{
    static const struct {
        uint64_t a[3], b[3];
        double rest;
        const char *part;
    } rows[] = {
        {{10, 12}, {16, 12}, 0, "B has 6 more rows: the first 10 are equal, the others all zero"},
        {{16, 12}, {10, 12}, 0, "A has 6 more rows: the first 10 are equal, the others all zero"},
        {{10, 12}, {16, 12}, 3, "B has 6 more rows: the first 10 are equal, the others not all"},
        {{16, 12}, {10, 12}, 3, "A has 6 more rows: the first 10 are equal, the others not all"},
        {{10, 12}, {10, 16}, 0, "B has 4 more columns"},
        {{10, 12, 3}, {10, 13, 3}, 0, "B has 1 more slice:"},
        {{10}, {16}, 0, "B has 6 more rows"},
    };
    (void)state;
    uint64_t seed = test_seed();
    for (size_t k = 0; k < COUNT(rows); k++) {
        struct made *a = one("embedding", DT_BF16, rows[k].a, NULL),
                    *b = one("embedding", DT_BF16, rows[k].b, NULL);
        struct made_tensor *x = &a->tensors[0], *y = &b->tensors[0];
        unsigned n = x->num_dims;
        for (uint64_t i = 0; i < 16 * 16 * 3; i++) { /* every index that either has */
            uint64_t at[3] = {i / 48, i / 3 % 16, i % 3}, in_a = 0, in_b = 0;
            bool has_a = true, has_b = true;
            for (unsigned d = 0; d < n; d++) {
                has_a &= at[d] < x->shape[d];
                has_b &= at[d] < y->shape[d];
                in_a = in_a * x->shape[d] + at[d];
                in_b = in_b * y->shape[d] + at[d];
            }
            double value = has_a && has_b ? random_normal(&seed) : rows[k].rest;
            if (has_a) made_set(x, in_a, value);
            if (has_b) made_set(y, in_b, value);
        }
        check_tensor(a, b, "embedding", "padded", rows[k].part, true);
        struct made *nearly = made_copy(b);
        made_set(&nearly->tensors[0], 2, 7.25);
        check_tensor(a, nearly, "embedding", "padded", "", false);
    }
}

static void of_added_rows_that_are_nearly_zero_it_is_not_said(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("e", DT_BF16, (uint64_t[3]){10, 12}, NULL),
                *b = one("e", DT_BF16, (uint64_t[3]){16, 12}, NULL);
    made_fill(&a->tensors[0], &seed);
    memcpy(b->tensors[0].elements, a->tensors[0].elements, a->tensors[0].bytes);
    made_set(&b->tensors[0], 15 * 12 + 11, 1e-30);
    check_tensor(a, b, "e", "padded", "not all zero", true);
}

/* ---- values ---- */

static double times_half(double x)
{
    return x * 0.5;
}

static double times_8(double x)
{
    return (double)((float)x * 8.0F);
}

static double negated(double x)
{
    return -x;
}

static double plus_one(double x)
{
    return (double)((float)x + 1);
}

static double minus_one(double x)
{
    return (double)((float)x - 1);
}

static double as_it_is(double x)
{
    return x;
}

static double through(enum dtype dtype, double x)
{
    double stored, out;
    cast_elements(&stored, dtype, &x, DT_F64, 1);
    cast_elements(&out, DT_F64, &stored, dtype, 1);
    return out;
}

static double through_bf16(double x)
{
    return through(DT_BF16, x);
}

static double through_f16(double x)
{
    return through(DT_F16, x);
}

static double through_f32(double x)
{
    return through(DT_F32, x);
}

static double cut_to_bf16(double x)
{
    float single = (float)x;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits &= 0xFFFF0000;
    memcpy(&single, &bits, sizeof single);
    return (double)single;
}

// clang-format off
static const struct {
    const char *id, *part;
    enum dtype a, b;
    double (*make)(double);
    bool reversed; /* A is made from B */
} value_cases[] = {
    {"rounding", "A is B in F32: the same values", DT_F32, DT_BF16, as_it_is, true},
    {"rounding", "B is A rounded to BF16", DT_F32, DT_BF16, as_it_is, false},
    {"rounding", "B is A rounded to F16", DT_F64, DT_F16, as_it_is, false},
    {"rounding", "B is A in F32: the same values", DT_BF16, DT_F32, as_it_is, false},
    {"rounding", "A is B rounded to BF16", DT_BF16, DT_F32, as_it_is, true},
    {"rounding", "B is A rounded to F16", DT_BF16, DT_F16, as_it_is, false},
    {"rounding", "B is A rounded to BF16 on the way", DT_F32, DT_F32, through_bf16, false},
    {"rounding", "A is B rounded to BF16 on the way", DT_F32, DT_F32, through_bf16, true},
    {"rounding", "B is A rounded to F16 on the way", DT_F32, DT_F32, through_f16, false},
    {"rounding", "B is A rounded to F16 on the way", DT_F32, DT_BF16, through_f16, false},
    {"rounding", "B is A rounded to F32 on the way", DT_F64, DT_F64, through_f32, false},
    {"rounding", "B is A truncated to BF16", DT_F32, DT_BF16, cut_to_bf16, false},
    {"rounding", "A is B truncated to BF16", DT_F32, DT_F32, cut_to_bf16, true},
    {"plus-one", "B is A plus one", DT_BF16, DT_BF16, plus_one, false},
    {"plus-one", "A is B plus one", DT_BF16, DT_BF16, plus_one, true},
    {"plus-one", "B is A minus one", DT_BF16, DT_BF16, minus_one, false},
    {"plus-one", "A is B minus one", DT_BF16, DT_BF16, minus_one, true},
    {"plus-one", "B is A plus one", DT_F32, DT_BF16, plus_one, false},
    {"scale", "B is A times 0.5", DT_BF16, DT_BF16, times_half, false},
    {"scale", "B is A times -1", DT_F32, DT_F32, negated, false},
    {"scale", "B is A times 8", DT_BF16, DT_BF16, times_8, false},
};
// clang-format on

static void what_was_done_to_all_values_is_told(void **state)
{
    const uint64_t shape[3] = {30, 40};
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t k = 0; k < COUNT(value_cases); k++) {
        bool back = value_cases[k].reversed;
        struct made *a = one("w", value_cases[k].a, shape, NULL),
                    *b = one("w", value_cases[k].b, shape, NULL);
        struct made_tensor *from = made_fill(&(back ? b : a)->tensors[0], &seed),
                           *to = &(back ? a : b)->tensors[0];
        for (uint64_t i = 0; i < from->numel; i++) {
            made_set(from, i, made_get(from, i) * 0.05);
            made_set(to, i, value_cases[k].make(made_get(from, i)));
        }
        check_hint(a, b, value_cases[k].id, value_cases[k].part, &seed);
    }
}

static void a_factor_of_each_row_is_told(void **state)
{
    const uint64_t shape[3] = {30, 40};
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("w", DT_BF16, shape, NULL), *b = one("w", DT_BF16, shape, NULL);
    made_fill(&a->tensors[0], &seed);
    for (uint64_t i = 0; i < a->tensors[0].numel; i++)
        made_set(&b->tensors[0], i,
                 (double)((float)made_get(&a->tensors[0], i) * (0.3F + (float)(i / 40) * 0.1F)));
    check_hint(a, b, "row-scale", "each row of B is the row of A", &seed);
}

/* If one element of each row differs, any factor explains it; also if the last
 * bit of a few differs. */
static void a_factor_that_explains_anything_is_not_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("w", DT_BF16, (uint64_t[3]){50, 1}, NULL),
                *b = one("w", DT_BF16, (uint64_t[3]){50, 1}, NULL);
    made_fill(&a->tensors[0], &seed);
    made_fill(&b->tensors[0], &seed);
    check_tensor(a, b, "w", "row-scale", "", false);

    /* 1.0025 makes 2 of 1.9921875, and leaves 1 and 1.25 as they are. */
    a = one("w", DT_BF16, (uint64_t[3]){4, 100}, NULL);
    for (uint64_t i = 0; i < 400; i++)
        made_set(&a->tensors[0], i, i % 20 == 3 ? 1.9921875 : i % 2 ? 1 : 1.25);
    b = made_copy(a);
    for (uint64_t i = 3; i < 400; i += 20)
        made_set(&b->tensors[0], i, 2);
    check_tensor(a, b, "w", "scale", "", false);
    check_tensor(a, b, "w", "row-scale", "", false);
    check_tensor(a, b, "w", "last-bit", "1 ulp", true);
    made_set(&b->tensors[0], 34, made_get(&a->tensors[0], 34) * 1.03);
    check_tensor(a, b, "w", "last-bit", "", false);
}

static void bytes_in_the_other_order_are_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("w", DT_BF16, (uint64_t[3]){20, 20}, NULL), *b;
    made_fill(&a->tensors[0], &seed);
    b = made_copy(a);
    swap_bytes(b->tensors[0].elements, 2, 400);
    check_hint(a, b, "bytes-swapped", "endianness", &seed);
}

static void what_is_zero_or_constant_is_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("w", DT_BF16, (uint64_t[3]){20, 20}, NULL), *b;
    made_fill(&a->tensors[0], &seed);
    b = made_copy(a);
    memset((char *)b->tensors[0].elements + 40 * 5, 0, 40 * 3);
    check_hint(a, b, "zero", "B is zero wherever they differ, first in row 5, last in row 7",
               &seed);
    check_tensor(b, a, "w", "zero", "A is zero wherever they differ", true);
    memset(b->tensors[0].elements, 0, 800);
    check_hint(a, b, "constant", "B is zero everywhere", &seed);
    for (uint64_t i = 0; i < 400; i++)
        made_set(&b->tensors[0], i, 1);
    check_hint(a, b, "constant", "B is 1 everywhere", &seed);
    check_tensor(b, a, "w", "constant", "A is 1 everywhere", true);
}

static void other_bits_of_zero_and_nan_are_told(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_BF16, DT_F32, DT_F64};
    uint64_t seed = test_seed();
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        struct made *a = one("w", dtypes[i], (uint64_t[3]){20, 20}, NULL), *b;
        size_t bytes = dtype_bytes(dtypes[i]);
        made_fill(&a->tensors[0], &seed);
        for (uint64_t k = 100; k < 140; k++)
            made_set(&a->tensors[0], k, 0);
        b = made_copy(a);
        for (uint64_t k = 100; k < 140; k++)
            made_set(&b->tensors[0], k, -0.0);
        check_hint(a, b, "same-number", "only the sign of zero differs", &seed);
        check_hint(b, a, "same-number", "only the sign of zero differs", &seed);
        for (uint64_t k = 200; k < 210; k++) {
            made_set(&a->tensors[0], k, NAN);
            made_set(&b->tensors[0], k, NAN);
            ((char *)b->tensors[0].elements)[k * bytes] ^= 1;
        }
        check_hint(a, b, "same-number", "only the sign of zero and the bits of NaN differ", &seed);
        for (uint64_t k = 100; k < 140; k++)
            made_set(&a->tensors[0], k, -0.0);
        check_hint(a, b, "same-number", "wherever they differ both are NaN, with other bits",
                   &seed);
    }
    /* If one side has zeros and the other numbers, the hint is still reported. */
    struct made *a = one("w", DT_F32, (uint64_t[3]){20, 20}, NULL), *b;
    made_fill(&a->tensors[0], &seed);
    b = made_copy(a);
    memset((char *)b->tensors[0].elements + 80 * 5, 0, 80 * 3);
    made_set(&a->tensors[0], 7, 0);
    made_set(&b->tensors[0], 7, -0.0);
    check_tensor(a, b, "w", "zero", "", false);
    check_tensor(a, b, "w", "same-number", "", false);
}

/* A cast without loss leaves no different element. */
static void of_equal_values_no_sign_is_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = one("w", DT_BF16, (uint64_t[3]){20, 20}, NULL),
                *b = one("w", DT_F32, (uint64_t[3]){20, 20}, NULL);
    made_fill(&a->tensors[0], &seed);
    for (uint64_t i = 0; i < 400; i++)
        made_set(&b->tensors[0], i, made_get(&a->tensors[0], i));
    check_tensor(a, b, "w", "same-number", "", false);
}

static void of_nan_everywhere_nothing_is_told(void **state)
{
    (void)state;
    struct made *a = one("w", DT_F32, (uint64_t[3]){8, 8}, NULL), *b;
    memset(a->tensors[0].elements, 0xFF, 256);
    b = made_copy(a);
    memset(b->tensors[0].elements, 0x7F, 128);
    struct compared_sides x;
    struct compare_options o = plain_options();
    const struct compared *t = compared_find(compare_sides(&x, a, b, &o), "w");
    if (t->hint) fail_msg("%s is told", hint_text(t));
    release_sides(&x);
}

/* ---- names ---- */

/* A model of 6 layers with 4 experts each. */
static struct made *model(uint64_t *seed)
{
    struct made *m = arena_alloc(&scratch, sizeof *m);
    made_fill(made_add(m, "model.embed_tokens.weight", DT_BF16, SHAPE(50, 8)), seed);
    for (int l = 0; l < 6; l++) {
        const char *p = arena_printf(&scratch, "model.layers.%d.", l);
        made_fill(
            made_add(m, arena_printf(&scratch, "%sinput_layernorm.weight", p), DT_BF16, SHAPE(32)),
            seed);
        made_fill(made_add(m, arena_printf(&scratch, "%spost_attention_layernorm.weight", p),
                           DT_BF16, SHAPE(32)),
                  seed);
        made_fill(made_add(m, arena_printf(&scratch, "%sself_attn.o_proj.weight", p), DT_BF16,
                           SHAPE(16, 24)),
                  seed);
        for (int e = 0; e < 4; e++) {
            made_fill(made_add(m, arena_printf(&scratch, "%smlp.experts.%d.up.weight", p, e),
                               DT_BF16, SHAPE(12, 24)),
                      seed);
            made_fill(made_add(m, arena_printf(&scratch, "%smlp.experts.%d.down.weight", p, e),
                               DT_BF16, SHAPE(24, 10)),
                      seed);
        }
    }
    return m;
}

static const char *layer_name(int layer, const char *rest)
{
    return arena_printf(&scratch, "model.layers.%d.%s", layer, rest);
}

/* B's tensor `to` becomes A's tensor `from`. */
static void move(struct made *b, const char *to, struct made *a, const char *from)
{
    struct made_tensor *x = made_find(b, to), *y = made_find(a, from);
    assert_int_equal(x->bytes, y->bytes);
    memcpy(x->elements, y->elements, y->bytes);
}

static bool has_line(const struct comparison *c, const char *text)
{
    for (size_t i = 0; i < c->num_hints; i++)
        if (strcmp(c->hints[i].text, text) == 0) return true;
    return false;
}

/* Checks that exactly these sentences are reported. */
static void check_lines(const struct made *a, const struct made *b, size_t n,
                        const char *const *lines)
{
    struct compared_sides x;
    struct compare_options o = plain_options();
    const struct comparison *c = compare_sides(&x, a, b, &o);
    for (size_t i = 0; i < n; i++)
        if (!has_line(c, lines[i]))
            fail_msg("\"%s\" is not told, but \"%s\"", lines[i],
                     c->num_hints ? c->hints[0].text : "nothing");
    if (c->num_hints != n) fail_msg("%zu lines and not %zu", c->num_hints, n);
    release_sides(&x);
}
#define LINES(...)                                                                                 \
    sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), (const char *const[])             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static const char *const kinds[] = {
    "input_layernorm.weight",    "post_attention_layernorm.weight", "self_attn.o_proj.weight",
    "mlp.experts.0.up.weight",   "mlp.experts.1.up.weight",         "mlp.experts.2.up.weight",
    "mlp.experts.3.up.weight",   "mlp.experts.0.down.weight",       "mlp.experts.1.down.weight",
    "mlp.experts.2.down.weight", "mlp.experts.3.down.weight",
};
enum { NUM_KINDS = COUNT(kinds) };

static void layers_off_by_some_are_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    for (int l = 0; l < 2; l++)
        for (size_t k = 0; k < NUM_KINDS; k++) {
            move(b, layer_name(l + 1, kinds[k]), a, layer_name(l + 3, kinds[k]));
            move(b, layer_name(l + 3, kinds[k]), a, layer_name(l + 1, kinds[k]));
        }
    check_lines(a, b,
                LINES("layers 1 to 2 of B are layers 3 to 4 of A",
                      "layers 3 to 4 of B are layers 1 to 2 of A"));
    /* One tensor of the layer is changed: the layer did not move, but the other
     * tensors did. */
    made_set(made_find(b, layer_name(3, kinds[5])), 17, 7.25);
    struct compared_sides x;
    struct compare_options o = plain_options();
    const struct comparison *c = compare_sides(&x, a, b, &o);
    assert_true(has_line(c, "layers 1 to 2 of B are layers 3 to 4 of A"));
    assert_true(has_line(c, "layer 4 of B is layer 2 of A"));
    assert_false(has_line(c, "layers 3 to 4 of B are layers 1 to 2 of A"));
    assert_null(compared_find(c, layer_name(3, kinds[5]))->hint);
    release_sides(&x);
}

static void a_layer_that_is_another_once_more_is_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    for (size_t k = 0; k < NUM_KINDS; k++)
        move(b, layer_name(5, kinds[k]), a, layer_name(4, kinds[k]));
    check_lines(a, b, LINES("layer 5 of B is layer 4 of A"));
}

/* A layer with tensors that did not move counts as moved only if these are
 * equal in both layers. */
static void a_layer_moved_if_all_of_it_did(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b;
    for (int l = 0; l < 6; l++)
        for (uint64_t i = 0; i < 32; i++)
            made_set(made_find(a, layer_name(l, kinds[0])), i, 1);
    b = made_copy(a);
    for (size_t k = 1; k < NUM_KINDS; k++)
        move(b, layer_name(5, kinds[k]), a, layer_name(2, kinds[k]));
    check_lines(a, b, LINES("layer 5 of B is layer 2 of A"));

    made_set(made_find(a, layer_name(5, kinds[0])), 31, 2); /* on both sides alike */
    made_set(made_find(b, layer_name(5, kinds[0])), 31, 2);
    struct compared_sides x;
    struct compare_options o = plain_options();
    const struct comparison *c = compare_sides(&x, a, b, &o);
    assert_false(has_line(c, "layer 5 of B is layer 2 of A"));
    assert_true(has_line(c, layer_name(5, "self_attn.o_proj.weight of B is "
                                          "model.layers.2.self_attn.o_proj.weight of A")));
    release_sides(&x);

    b = made_copy(a); /* a single tensor is no layer */
    move(b, layer_name(5, kinds[2]), a, layer_name(2, kinds[2]));
    check_lines(a, b,
                LINES("model.layers.5.self_attn.o_proj.weight of B is "
                      "model.layers.2.self_attn.o_proj.weight of A"));

    b = made_copy(a); /* B lacks a tensor of the layer */
    for (size_t k = 1; k < NUM_KINDS; k++)
        move(b, layer_name(4, kinds[k]), a, layer_name(2, kinds[k]));
    made_find(b, layer_name(4, kinds[10]))->name = "other";
    c = compare_sides(&x, a, b, &o);
    assert_false(has_line(c, "layer 4 of B is layer 2 of A"));
    release_sides(&x);
}

static void permuted_experts_are_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    for (int l = 0; l < 6; l++)
        for (size_t e = 0; e < 4; e++) {
            move(b, layer_name(l, kinds[3 + e]), a, layer_name(l, kinds[3 + (e + 2) % 4]));
            move(b, layer_name(l, kinds[7 + e]), a, layer_name(l, kinds[7 + (e + 2) % 4]));
        }
    check_lines(a, b,
                LINES("in 6 of 6 layers, the experts are permuted: 0 1 2 3 of B are 2 3 0 1 "
                      "of A"));
    /* In one layer one tensor is changed. */
    made_set(made_find(b, layer_name(2, kinds[4])), 17, 7.25);
    made_set(made_find(b, layer_name(2, kinds[8])), 17, 7.25);
    check_lines(a, b,
                LINES("in 5 of 6 layers (0 to 1, 3 to 5), the experts are permuted: 0 1 2 3 of B "
                      "are 2 3 0 1 of A",
                      "in 1 of 6 layers (2), the experts are permuted: 0 2 3 of B are 2 0 1 of A"));
}

static void exchanged_names_are_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    for (int l = 0; l < 6; l += 2) {
        move(b, layer_name(l, kinds[0]), a, layer_name(l, kinds[1]));
        move(b, layer_name(l, kinds[1]), a, layer_name(l, kinds[0]));
    }
    check_lines(a, b,
                LINES("in 3 of 6 layers (0, 2, 4), input_layernorm.weight of B is "
                      "post_attention_layernorm.weight of A",
                      "in 3 of 6 layers (0, 2, 4), post_attention_layernorm.weight of B is "
                      "input_layernorm.weight of A"));
    made_set(made_find(b, layer_name(0, kinds[0])), 5, 7.25);
    check_lines(a, b,
                LINES("in 2 of 6 layers (2, 4), input_layernorm.weight of B is "
                      "post_attention_layernorm.weight of A",
                      "in 3 of 6 layers (0, 2, 4), post_attention_layernorm.weight of B is "
                      "input_layernorm.weight of A"));
}

static void renamed_tensors_are_told_on_both_sides(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    made_find(b, "model.embed_tokens.weight")->name = "model.wte.weight";
    struct compared_sides x;
    struct compare_options o = plain_options();
    const struct comparison *c = compare_sides(&x, a, b, &o);
    assert_int_equal(compare_num_different(c), 2);
    assert_true(has_line(c, "model.wte.weight of B is model.embed_tokens.weight of A"));
    assert_non_null(compared_find(c, "model.wte.weight")->hint);
    assert_non_null(compared_find(c, "model.embed_tokens.weight")->hint);
    release_sides(&x);
}

static void of_constants_no_move_is_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b;
    for (uint64_t i = 0; i < 32; i++)
        made_set(made_find(a, layer_name(1, kinds[0])), i, 1);
    b = made_copy(a);
    move(b, layer_name(4, kinds[0]), a, layer_name(1, kinds[0]));
    check_lines(a, b, LINES("model.layers.4.input_layernorm.weight: B is 1 everywhere"));
}

/* ---- sentences ---- */

static void one_sentence_tells_of_many_tensors(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    for (int l = 0; l < 6; l++) {
        struct made_tensor *x = made_find(b, layer_name(l, kinds[0]));
        for (uint64_t i = 0; i < x->numel; i++)
            made_set(x, i, plus_one(made_get(x, i)));
        for (size_t k = 3; k < 7 && l < 3; k++) {
            x = made_find(b, layer_name(l, kinds[k]));
            for (uint64_t i = 0; i < x->numel; i++)
                made_set(x, i, made_get(x, i) * 0.5);
        }
    }
    check_lines(a, b,
                LINES("in 6 of 6 layers, input_layernorm.weight: B is A plus one",
                      "in 3 of 6 layers (0 to 2), mlp.experts.*.up.weight (12 tensors): B "
                      "is A times 0.5"));
}

static void many_kinds_of_tensors_are_told_at_once(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed), *b = made_copy(a);
    for (size_t i = 0; i < b->count; i++)
        for (uint64_t k = 0; k < b->tensors[i].numel; k++)
            made_set(&b->tensors[i], k, made_get(&b->tensors[i], k) * 0.5);
    check_lines(a, b,
                LINES("model.embed_tokens.weight, input_layernorm.weight and 4 more kinds of "
                      "tensors (67 tensors in all): B is A times 0.5"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(other_orders_of_elements_are_told),
        TEST(other_orders_are_told_across_dtypes),
        TEST(permuted_slices_are_told),
        TEST(a_permutation_is_told_from_the_first_row_that_moves),
        TEST(rows_and_columns_added_or_cut_are_told),
        TEST(of_added_rows_that_are_nearly_zero_it_is_not_said),
        TEST(what_was_done_to_all_values_is_told),
        TEST(a_factor_of_each_row_is_told),
        TEST(a_factor_that_explains_anything_is_not_told),
        TEST(bytes_in_the_other_order_are_told),
        TEST(what_is_zero_or_constant_is_told),
        TEST(other_bits_of_zero_and_nan_are_told),
        TEST(of_equal_values_no_sign_is_told),
        TEST(of_nan_everywhere_nothing_is_told),
        TEST(layers_off_by_some_are_told),
        TEST(a_layer_that_is_another_once_more_is_told),
        TEST(a_layer_moved_if_all_of_it_did),
        TEST(permuted_experts_are_told),
        TEST(exchanged_names_are_told),
        TEST(renamed_tensors_are_told_on_both_sides),
        TEST(of_constants_no_move_is_told),
        TEST(one_sentence_tells_of_many_tensors),
        TEST(many_kinds_of_tensors_are_told_at_once),
    };
    return cmocka_run_group_tests_name("hints", tests, NULL, NULL);
}
