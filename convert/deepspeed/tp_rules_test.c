#include "convert/deepspeed/tp_rules.h"

#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

static struct arena a;

static struct value *texts(const char *first, const char *second)
{
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL);
    value_append(&a, list, value_text(&a, first));
    if (second) value_append(&a, list, value_text(&a, second));
    return list;
}

static struct value *numbers(unsigned count, const int64_t *of)
{
    struct value *list = value_list(&a, VALUE_TUPLE, 0, NULL);
    for (unsigned i = 0; i < count; i++)
        value_append(&a, list, value_int(&a, of[i]));
    return list;
}

/* The rule of rank 1 of 2 for a part of shape [6, 4]. */
static enum status rule_of(const struct value *info, const char *name, struct tp_rule *rule,
                           struct error *err)
{
    struct tp_rules *rules = NULL;
    enum status st = tp_rules_read(&rules, &a, info, 1, 2, err);
    if (!st) st = tp_rule_of(rules, &a, name, 2, (const uint64_t[]){6, 4}, rule, err);
    tp_rules_release(rules);
    return st;
}

static void patterns_are_pythons_and_anchored_at_the_start(void **state)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {{"^model\\.norm\\.weight$", "model.norm.weight", true},
                 {"^model\\.norm\\.weight$", "model.norm.weight.x", false},
                 {"model\\.norm", "model.norm.weight", true},
                 {"norm", "model.norm.weight", false},
                 {"model.norm.weight", "model_norm.weight", true},
                 {"layers\\.\\d+\\.o", "layers.12.o_proj", true},
                 {"layers\\.\\d+\\.o", "layers.x.o_proj", false},
                 {"(?:a|b)\\.weight$", "b.weight", true},
                 {"a|b", "xb", false},
                 {".*?\\.dense\\.weight", "h.0.dense.weight", true},
                 {"h\\.[0-9]{1,2}?\\.w", "h.12.w", true},
                 {".*lm_head", "model.lm_head.weight", true}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct value *info = value_dict(&a);
        struct tp_rule rule;
        struct error err;
        value_dict_add(&a, info, "tp_replicated_parameter_patterns",
                       texts("never", cases[i].pattern));
        assert_ok(rule_of(info, cases[i].name, &rule, &err));
        if ((rule.kind == TP_COPY) != cases[i].matches)
            fail_msg("%s and %s", cases[i].pattern, cases[i].name);
    }
}

static void other_regular_expressions_are_refused(void **state)
{
    static const char *const patterns[] = {"a(?=b)", "(?P<x>a)", "\\Aab", "a[", "a\\", "[\\d.]+"};
    (void)state;
    for (size_t i = 0; i < COUNT(patterns); i++) {
        struct value *info = value_dict(&a);
        struct tp_rule rule;
        struct error err;
        value_dict_add(&a, info, "vocabulary_parameter_patterns", texts(patterns[i], NULL));
        assert_fails(rule_of(info, "x", &rule, &err), ERR_UNSUPPORTED, patterns[i]);
    }
}

static void what_matches_nothing_joins_along_dimension_0(void **state)
{
    struct value *info = value_dict(&a);
    struct tp_rule rule;
    struct error err;
    (void)state;
    value_dict_add(&a, info, "parameter_with_row_parallelism_patterns", texts("o_proj", NULL));
    value_dict_add(&a, info, "vocabulary_parameter_patterns", texts("head", NULL));
    value_dict_add(&a, info, "original_vocab_size", value_int(&a, 11));
    assert_ok(rule_of(info, "q_proj", &rule, &err));
    assert_int_equal(rule.kind, TP_CONCAT);
    assert_int_equal(rule.dim, 0);
    assert_int_equal(rule.num_subs, 1);
    assert_int_equal(rule.widths[0], 6);
    assert_int_equal(rule.max_rows, 0);
    assert_ok(rule_of(info, "o_proj", &rule, &err));
    assert_int_equal(rule.dim, 1);
    assert_int_equal(rule.widths[0], 4);
    assert_ok(rule_of(info, "head", &rule, &err));
    assert_int_equal(rule.max_rows, 11);
}

static void sub_parameters_have_widths(void **state)
{
    struct value *info = value_dict(&a), *even = value_dict(&a), *uneven = value_dict(&a),
                 *number = value_dict(&a), *items = value_list(&a, VALUE_LIST, 0, NULL),
                 *widths = value_dict(&a), *subs = value_list(&a, VALUE_LIST, 0, NULL);
    struct value *sized[] = {numbers(2, (const int64_t[]){8, 4}), value_int(&a, 4)};
    struct value *counted[] = {value_int(&a, 3), value_int(&a, 4)};
    struct tp_rule rule;
    struct error err;
    (void)state;
    value_dict_add(&a, even, "patterns", texts("qkv", NULL));
    value_dict_add(&a, even, "shape", value_list(&a, VALUE_TUPLE, 2, sized));
    value_dict_add(&a, even, "partition_dim", value_int(&a, 0));
    value_dict_add(&a, uneven, "patterns", texts("kv", NULL));
    value_dict_add(&a, uneven, "shape", value_list(&a, VALUE_TUPLE, 2, sized));
    value_dict_add(&a, uneven, "partition_dim", value_int(&a, 0));
    value_dict_add(&a, number, "patterns", texts("n", NULL));
    value_dict_add(&a, number, "shape", value_list(&a, VALUE_TUPLE, 2, counted));
    value_dict_add(&a, number, "partition_dim", value_int(&a, 0));
    value_append(&a, items, even);
    value_append(&a, items, uneven);
    value_append(&a, items, number);
    value_append(&a, subs, numbers(2, (const int64_t[]){3, 5}));
    value_append(&a, subs, numbers(2, (const int64_t[]){3, 1}));
    value_dict_add(&a, widths, "kv", subs);
    value_dict_add(&a, info, "parameter_with_sub_params", items);
    value_dict_add(&a, info, "sub_param_shard_widths", widths);
    value_dict_add(&a, info, "parameter_with_2_sub_params_cat_dim_0", texts("gate_up", NULL));
    assert_ok(rule_of(info, "qkv", &rule, &err));
    assert_int_equal(rule.num_subs, 2);
    assert_int_equal(rule.widths[0], 4);
    assert_int_equal(rule.widths[1], 2);
    assert_ok(rule_of(info, "kv", &rule, &err));
    assert_int_equal(rule.widths[0], 5);
    assert_int_equal(rule.widths[1], 1);
    assert_ok(rule_of(info, "n", &rule, &err));
    assert_int_equal(rule.num_subs, 3);
    assert_int_equal(rule.widths[2], 2);
    assert_ok(rule_of(info, "gate_up", &rule, &err));
    assert_int_equal(rule.num_subs, 2);
    assert_int_equal(rule.widths[1], 3);
}

static void means_and_shapes_that_do_not_fit_are_refused(void **state)
{
    struct value *info = value_dict(&a), *item = value_dict(&a),
                 *items = value_list(&a, VALUE_LIST, 0, NULL);
    struct value *sized[] = {numbers(2, (const int64_t[]){8, 6}), value_int(&a, 4)};
    struct tp_rule rule;
    struct error err;
    (void)state;
    value_dict_add(&a, info, "parameter_to_average_patterns", texts("norm", NULL));
    value_dict_add(&a, item, "patterns", texts("qkv", NULL));
    value_dict_add(&a, item, "shape", value_list(&a, VALUE_TUPLE, 2, sized));
    value_dict_add(&a, item, "partition_dim", value_int(&a, 0));
    value_append(&a, items, item);
    value_dict_add(&a, info, "parameter_with_sub_params", items);
    struct value *reasons = value_dict(&a);
    value_dict_add(&a, reasons, "^odd$", value_text(&a, "uneven heads"));
    value_dict_add(&a, info, "autotp_unsupported_parameter_patterns", reasons);
    assert_fails(rule_of(info, "odd", &rule, &err), ERR_UNSUPPORTED,
                 "odd: its parts cannot be joined, says DeepSpeed: uneven heads");
    assert_fails(rule_of(info, "norm", &rule, &err), ERR_UNSUPPORTED,
                 "norm is the mean of the ranks' values");
    assert_fails(rule_of(info, "qkv", &rule, &err), ERR_CORRUPT,
                 "which its sub-parameters do not add up to");
}

/* affine_map with one piece of rank 1, at `dest` and `source` with these strides. */
static struct value *map_of(int64_t dest, int64_t source, int64_t stride)
{
    struct value *info = value_dict(&a), *map = value_dict(&a), *params = value_dict(&a),
                 *entry = value_dict(&a), *ranks = value_dict(&a), *rank = value_dict(&a),
                 *piece = value_dict(&a), *pieces = value_list(&a, VALUE_LIST, 0, NULL);
    struct value *to[] = {value_int(&a, dest), numbers(2, (const int64_t[]){4, 1})};
    struct value *from[] = {value_int(&a, source), numbers(2, (const int64_t[]){stride, 1})};
    value_dict_add(&a, piece, "shape", numbers(2, (const int64_t[]){6, 4}));
    value_dict_add(&a, piece, "dest", value_list(&a, VALUE_LIST, 2, to));
    value_dict_add(&a, piece, "source", value_list(&a, VALUE_LIST, 2, from));
    value_dict_add(&a, piece, "locations", numbers(1, (const int64_t[]){1}));
    value_append(&a, pieces, piece);
    value_dict_add(&a, rank, "pieces", pieces);
    value_dict_add(&a, rank, "shard_shape", numbers(2, (const int64_t[]){6, 4}));
    value_dict_put(&a, ranks, value_int(&a, 1), rank);
    value_dict_add(&a, entry, "logical_shape", numbers(2, (const int64_t[]){6, 8}));
    value_dict_add(&a, entry, "ranks", ranks);
    value_dict_add(&a, params, "^w$", entry);
    value_dict_add(&a, map, "params", params);
    value_dict_add(&a, info, "affine_map", map);
    return info;
}

static void pieces_of_the_map_lie_within_both_tensors(void **state)
{
    struct tp_rule rule;
    struct error err;
    (void)state;
    assert_ok(rule_of(map_of(0, 4, 8), "w", &rule, &err));
    assert_int_equal(rule.kind, TP_PLACED);
    assert_int_equal(rule.num_pieces, 1);
    assert_int_equal(rule.pieces[0].b_offset, 4);
    assert_int_equal(rule.whole[1], 8);
    const struct value *const wrong[] = {map_of(1, 4, 8), map_of(0, 5, 8), map_of(0, 4, 9),
                                         map_of(-1, 4, 8), map_of(0, 4, INT64_MAX)};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_fails(rule_of(wrong[i], "w", &rule, &err), ERR_CORRUPT,
                     "a piece of w for rank 1 lies outside of it");
    }
}

static int begin(void **state)
{
    (void)state;
    arena_init(&a);
    return 0;
}

static int end(void **state)
{
    (void)state;
    arena_release(&a);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_are_pythons_and_anchored_at_the_start),
        cmocka_unit_test(other_regular_expressions_are_refused),
        cmocka_unit_test(what_matches_nothing_joins_along_dimension_0),
        cmocka_unit_test(sub_parameters_have_widths),
        cmocka_unit_test(means_and_shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(pieces_of_the_map_lie_within_both_tensors),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
