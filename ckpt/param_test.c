#include "ckpt/param.h"

#include "ckpt/testing_param.h"
#include "common/count.h"

/* ---- names ---- */

#define L "decoder.layers.{l}."
static const struct param_spec named[] = {
    {.name = "embedding.word_embeddings.weight", .place = PLACE_EMBEDDING},
    {.name = "output_layer.weight", .place = PLACE_LAST},
    {.name = L "input_layernorm.weight", .place = PLACE_LAYER},
    {.name = L "mlp.experts.experts.{e}.linear_fc1.weight", .place = PLACE_LAYER},
    {.name = L "mlp.experts.experts.{e}.linear_fc2.weight", .place = PLACE_LAYER},
    {.name = L "mlp.0.weight", .place = PLACE_LAYER}, /* a module of a list, no expert */
    {.name = L "mlp.2.weight", .place = PLACE_LAYER},
    {.name = "vision.blocks.{l}.norm.weight", .place = PLACE_LAYER},
};
enum { NUM_NAMED = COUNT(named) };
static const struct param_spec *by_name[NUM_NAMED];
static const struct param_table *table_of_named(void)
{
    static struct param_table t = {.specs = named, .count = NUM_NAMED, .by_name = by_name};
    param_table_sort(&t);
    return &t;
}

static void a_parameter_is_found_by_its_name_and_those_of_its_moments(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t spec;
        uint64_t layer, expert;
        const char *rest;
    } cases[] = {
        {"embedding.word_embeddings.weight", 0, 0, 0, "embedding.word_embeddings.weight"},
        {"optimizer.exp_avg.output_layer.weight", 1, 0, 0, "output_layer.weight"},
        {"optimizer.param.output_layer.weight", 1, 0, 0, "output_layer.weight"},
        {"decoder.layers.17.input_layernorm.weight", 2, 17, 0, "input_layernorm.weight"},
        {"optimizer.exp_avg_sq.decoder.layers.0.mlp.experts.experts.120.linear_fc1.weight", 3, 0,
         120, "mlp.experts.experts.120.linear_fc1.weight"},
        {"decoder.layers.9.mlp.experts.experts.0.linear_fc2.weight", 4, 9, 0,
         "mlp.experts.experts.0.linear_fc2.weight"},
        {"decoder.layers.9.mlp.0.weight", 5, 9, 0, "mlp.0.weight"},
        {"decoder.layers.9.mlp.2.weight", 6, 9, 0, "mlp.2.weight"},
        {"vision.blocks.31.norm.weight", 7, 31, 0, "norm.weight"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct param p;
        assert_true(param_find(table_of_named(), cases[i].name, &p));
        assert_ptr_equal(p.spec, &named[cases[i].spec]);
        assert_int_equal(p.layer, cases[i].layer);
        assert_int_equal(p.expert, cases[i].expert);
        assert_string_equal(p.rest, cases[i].rest);
    }
    assert_true(param_of_expert(&named[3]));
    assert_false(param_of_expert(&named[5]));
}

static void other_names_are_no_parameters(void **state)
{
    (void)state;
    struct param none;
    assert_false(param_find(NULL, "output_layer.weight", &none));
    static const char *const names[] = {
        "",
        ".",
        "decoder.layers.",
        "decoder.layers.1",
        "decoder.layers.1.",
        "decoder.layers.x.input_layernorm.weight",
        "decoder.layers.-1.input_layernorm.weight",
        "decoder.layers. 1.input_layernorm.weight",
        "decoder.layers.01.input_layernorm.weight",
        "decoder.layers.18446744073709551617.input_layernorm.weight",
        "decoder.layers.1.input_layernorm",
        "decoder.layers.1.input_layernorm.weight.",
        "decoder.layers.1.input_layernorm.weight.1",
        "decoder.layers.input_layernorm.weight",
        "input_layernorm.weight",
        "decoder.layers.1.output_layer.weight",
        "decoder.layers.1.mlp.experts.experts.linear_fc1.weight",
        "decoder.layers.1.mlp.experts.experts.3",
        "decoder.layers.1.mlp.experts.experts.3.linear_fc3.weight",
        "decoder.layers.1.mlp.experts.experts.03.linear_fc1.weight",
        "decoder.layers.1.mlp.experts.experts.{e}.linear_fc1.weight",
        "decoder.layers.1.mlp.1.weight",
        L "input_layernorm.weight",
        "optimizer.exp_avg.",
        "optimizer.exp_avg.optimizer.exp_avg.output_layer.weight",
        "optimizer.output_layer.weight",
        "output_layer.weight.padding",
    };
    for (size_t i = 0; i < COUNT(names); i++) {
        struct param p;
        if (param_find(table_of_named(), names[i], &p))
            fail_msg("\"%s\" is taken for %s", names[i], p.spec->name);
    }
}

/* ---- shards ---- */

/* A parameter of up to three dimensions and eight sections, of which some are
 * shared. */
static struct param_spec random_spec(uint64_t *seed, unsigned num_dims)
{
    struct param_spec s = {.split = (int)test_below(seed, num_dims + 1) - 1, .repeat = 1};
    if (s.split < 0 || !test_below(seed, 4)) return s;
    s.num_sections = 1 + (unsigned)test_below(seed, MAX_SECTIONS);
    s.even = test_below(seed, 4) == 0;
    if (test_below(seed, 2)) s.repeat = 1 + test_below(seed, 4);
    bool shares = test_below(seed, 2);
    for (unsigned k = 0; k < s.num_sections; k++)
        s.sections[k] = (struct param_section){"x", s.even ? 0 : 1 + test_below(seed, 4),
                                               shares && test_below(seed, 2)};
    return s;
}

/* A size of ranks that the repeats of s allow, and lines that they divide. */
static struct cut random_cut(uint64_t *seed, const struct param_spec *s, unsigned num_dims)
{
    struct cut c = {.spec = s, .num_dims = num_dims, .size = 1 + test_below(seed, 4)};
    uint64_t sum = 0;
    c.use = test_below(seed, 2) ? PARAM_COMPUTED : PARAM_STORED;
    for (unsigned k = 0; k < s->num_sections; k++)
        sum += s->even ? 1 : s->sections[k].size;
    if (s->repeat > 1) c.size *= s->repeat; /* more ranks than repeats, or */
    for (uint64_t d = 1; s->repeat > 1 && d <= s->repeat; d++)
        if (s->repeat % d == 0 && test_below(seed, 3) == 0) c.size = d; /* whole repeats */
    for (unsigned d = 0; d < num_dims; d++)
        c.shape[d] =
            (int)d == s->split ? (sum ? sum * s->repeat : 1) * c.size : 1 + test_below(seed, 3);
    return c;
}

static void shards_of_any_sections_are_what_a_plain_loop_says(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    unsigned tried[2][2] = {{0}};
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 3000; i++) {
        unsigned num_dims = 1 + (unsigned)test_below(&seed, 3);
        struct param_spec s = random_spec(&seed, num_dims);
        struct cut c = random_cut(&seed, &s, num_dims);
        uint64_t numel;
        if (!shape_numel(c.shape, num_dims, &numel) || numel > MAX_SHARD_ELEMENTS) continue;
        check_shards(&c);
        tried[c.use][c.size > s.repeat && any_shared(&s)]++;
    }
    for (int i = 0; i < 4; i++)
        assert_true(tried[i / 2][i % 2] > 50);
}

static const struct param_spec qkv = {
    .split = 0,
    .repeat = 2,
    .num_sections = 3,
    .sections = {{"query", 6, 0}, {"key", 2, 1}, {"value", 2, 1}}};
static const struct param_spec gate_up = {.split = 0,
                                          .repeat = 1,
                                          .num_sections = 2,
                                          .even = true,
                                          .sections = {{"gate", 3, 0}, {"up", 3, 0}}};
static const struct param_spec columns = {.split = 1, .repeat = 1};

/* Ranks [0, 1, 2] share group 0, [3, 4, 5] group 1: a query head of 2 rows
 * each, and the group's key and value, which are one part. */
static void more_ranks_than_query_groups_copy_key_and_value(void **state)
{
    (void)state;
    struct error err = {0};
    const uint64_t shape[] = {20, 5};
    for (uint64_t r = 0; r < 6; r++) {
        struct param_parts p;
        uint64_t group = r / 3 * 10;
        assert_ok(param_shard(&qkv, "qkv", 2, shape, r, 6, PARAM_COMPUTED, &p, &err));
        assert_int_equal(p.count, 2);
        assert_int_equal(p.shape[0], 6);
        assert_int_equal(p.pairs[0].a_offset, (group + r % 3 * 2) * 5);
        assert_int_equal(pair_count(&p.pairs[0]), 2 * 5);
        assert_int_equal(p.pairs[1].a_offset, (group + 6) * 5);
        assert_int_equal(p.pairs[1].b_offset, 2 * 5);
        assert_int_equal(pair_count(&p.pairs[1]), 4 * 5);
    }
}

static void whole_query_groups_are_one_part(void **state)
{
    (void)state;
    struct error err = {0};
    struct param_parts p;
    const uint64_t shape[] = {20, 5};
    for (int use = PARAM_STORED; use <= PARAM_COMPUTED; use++) {
        assert_ok(param_shard(&qkv, "qkv", 2, shape, 1, 2, (enum param_use)use, &p, &err));
        assert_int_equal(p.count, 1);
        assert_int_equal(p.start[0][0], 10);
        assert_int_equal(p.extent[0][0], 10);
    }
    assert_ok(param_shard(&qkv, "qkv", 2, shape, 3, 4, PARAM_STORED, &p, &err)); /* through heads */
    assert_int_equal(p.count, 1);
    assert_int_equal(p.start[0][0], 15);
}

static void one_rank_holds_all_as_it_is(void **state)
{
    (void)state;
    struct error err = {0};
    struct param_parts p;
    const uint64_t odd[] = {9, 4};
    assert_ok(param_shard(&gate_up, "fc1", 2, odd, 0, 1, PARAM_COMPUTED, &p, &err));
    assert_int_equal(p.count, 1);
    assert_int_equal(p.shape[0], 9);
}

static const struct param_spec mixed = {.split = 0,
                                        .repeat = 1,
                                        .num_sections = 3,
                                        .sections = {{"z", 4, 0}, {"x", 4, 0}, {"dt", 1, 0}}},
                               unknown = {.split = 0,
                                          .repeat = 1,
                                          .num_sections = 2,
                                          .sections = {{"z", 4, 0}, {"dt", 0, 0}}};

static const struct {
    const struct param_spec *spec;
    const char *name;
    unsigned num_dims;
    uint64_t shape[MAX_AXES + 1], size;
    enum param_use use;
    const char *text;
} refusals[] = {
    {&columns,
     "fc2",
     2,
     {4, 10},
     4,
     PARAM_STORED,
     "fc2: 10 columns are not divisible by tensor parallel size 4"},
    {&gate_up,
     "fc1",
     2,
     {10, 4},
     2,
     PARAM_STORED,
     "fc1: 5 rows are not divisible by tensor parallel size 2"},
    {&gate_up,
     "fc1",
     2,
     {9, 4},
     3,
     PARAM_STORED,
     "fc1: 9 rows do not split into gate and up of equal size"},
    {&columns, "fc2", 1, {8}, 2, PARAM_STORED, "fc2: has 1 dimensions, expected 2 to 8"},
    {&gate_up,
     "b",
     MAX_AXES + 1,
     {8, 1, 1, 1, 1, 1, 1, 1, 1},
     2,
     PARAM_STORED,
     "b: has 9 dimensions, expected 1 to 8"},
    {&mixed,
     "in",
     2,
     {8, 4},
     2,
     PARAM_STORED,
     "in: 8 rows do not split into z, x and dt as 4 : 4 : 1"},
    {&mixed,
     "in",
     2,
     {9, 4},
     2,
     PARAM_STORED,
     "in: 1 rows are not divisible by tensor parallel size 2"},
    {&unknown, "in", 2, {8, 4}, 2, PARAM_STORED, "in: the config does not give the size of its dt"},
    {&qkv,
     "qkv",
     2,
     {20, 4},
     3,
     PARAM_STORED,
     "qkv: 20 rows are not divisible by tensor parallel size 3"},
    {&qkv,
     "qkv",
     2,
     {20, 4},
     3,
     PARAM_COMPUTED,
     "qkv: tensor parallel size 3 is not divisible by its 2 groups of rows"},
    {&qkv,
     "qkv",
     2,
     {20, 4},
     8,
     PARAM_COMPUTED,
     "qkv: 12 rows are not divisible by tensor parallel size 8"},
    {&qkv,
     "qkv",
     2,
     {22, 4},
     4,
     PARAM_COMPUTED,
     "qkv: 22 rows do not split into query, key and value as 6 : 2 : 2, 2 times"},
};

static void what_ranks_do_not_divide_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        struct error err = {0};
        struct param_parts p;
        assert_fails(param_shard(refusals[i].spec, refusals[i].name, refusals[i].num_dims,
                                 refusals[i].shape, 0, refusals[i].size, refusals[i].use, &p, &err),
                     ERR_UNSUPPORTED, refusals[i].text);
    }
}

static void the_whole_is_found_from_a_part(void **state)
{
    (void)state;
    struct error err = {0};
    const uint64_t local[] = {4, 5};
    uint64_t shape[MAX_AXES];
    assert_ok(param_whole_shape(&columns, "x", 2, local, 3, shape, &err));
    assert_int_equal(shape[0], 4);
    assert_int_equal(shape[1], 15);
    assert_fails(param_whole_shape(&columns, "x", 1, local, 3, shape, &err), ERR_UNSUPPORTED,
                 "x: has 1 dimensions, expected 2 to 8");
}

/* ---- the vocabulary ---- */

static void the_vocabulary_is_rounded_up_as_megatron_does(void **state)
{
    (void)state;
    /* calculate_padded_vocab_size(vocab, divisible_by, tp) of
     * megatron/training/vocab_utils.py */
    assert_int_equal(padded_vocab_size(128256, 128, 1), 128256);
    assert_int_equal(padded_vocab_size(128256, 128, 8), 129024);
    assert_int_equal(padded_vocab_size(50257, 128, 1), 50304);
    assert_int_equal(padded_vocab_size(50257, 128, 2), 50432);
    assert_int_equal(padded_vocab_size(1, 1, 1), 1);
    assert_int_equal(padded_vocab_size(0, 128, 4), 0);
}

struct rows_seen {
    uint64_t elements, last;
};

static enum status see_rows(void *context, const struct pair *p, struct error *err)
{
    struct rows_seen *x = context;
    (void)err;
    x->elements += pair_count(p);
    x->last = p->a_offset + pair_a_span(p);
    return OK;
}

/* 11 true rows of 3, padded to 16: rank 2 of 4 has the last three and one of
 * padding. */
static void padding_is_clipped_by_the_true_rows(void **state)
{
    (void)state;
    static const struct param_spec embedding = {.split = 0, .repeat = 1, .padded = true};
    const uint64_t shape[] = {11, 3};
    uint64_t padded[MAX_AXES];
    struct param_parts p;
    struct error err = {0};
    struct rows_seen inside = {0}, behind = {0};
    param_padded_shape(&embedding, 2, shape, 16, padded);
    assert_int_equal(padded[0], 16);
    assert_ok(param_shard(&embedding, "e", 2, padded, 2, 4, PARAM_STORED, &p, &err));
    assert_ok(pair_clip(&p.pairs[0], 0, 11 * 3, "e", see_rows, &inside, &err));
    assert_ok(pair_clip(&p.pairs[0], 11 * 3, 5 * 3, "e", see_rows, &behind, &err));
    assert_int_equal(inside.elements, 9);
    assert_int_equal(inside.last, 11 * 3);
    assert_int_equal(behind.elements, 3);
    param_padded_shape(&columns, 2, shape, 16, padded);
    assert_int_equal(padded[0], 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parameter_is_found_by_its_name_and_those_of_its_moments),
        cmocka_unit_test(other_names_are_no_parameters),
        cmocka_unit_test(shards_of_any_sections_are_what_a_plain_loop_says),
        cmocka_unit_test(more_ranks_than_query_groups_copy_key_and_value),
        cmocka_unit_test(whole_query_groups_are_one_part),
        cmocka_unit_test(one_rank_holds_all_as_it_is),
        cmocka_unit_test(what_ranks_do_not_divide_is_refused),
        cmocka_unit_test(the_whole_is_found_from_a_part),
        cmocka_unit_test(the_vocabulary_is_rounded_up_as_megatron_does),
        cmocka_unit_test(padding_is_clipped_by_the_true_rows),
    };
    return cmocka_run_group_tests_name("param", tests, NULL, NULL);
}
