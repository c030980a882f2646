/* Flat states in values: which are found, and what makes them unread. Keys of
 * torch_dist are in flat_place_test.c. */
#include "convert/megatron/optim/flat_states.h"

#include "common/count.h"
#include "convert/megatron/optim/testing_values.h"

static struct checkpoint c;
static struct flat_states flat;

static int begin(void **state)
{
    if (scratch_begin(state)) return -1;
    checkpoint_init(&c, "test");
    c.layout = (struct layout){.tp = 2, .pp = 2, .vpp = 3, .ep = 2, .etp = 1};
    flat = (struct flat_states){0};
    return 0;
}

static int end(void **state)
{
    flat_states_release(&flat);
    checkpoint_release(&c);
    return scratch_end(state);
}

static void restart(void)
{
    checkpoint_release(&c);
    checkpoint_init(&c, "test");
    c.layout = (struct layout){.tp = 2, .pp = 2, .vpp = 3, .ep = 2, .etp = 1};
    flat = (struct flat_states){0};
}

static void add_value(const struct value *v)
{
    struct torch_file t;
    restart();
    assert_ok(torch_open(&t, &c.catalog.stored, write_value("x.pt", v), 0, UINT64_MAX, &err));
    assert_ok(flat_states_add_file(&flat, &c, &t, 1, 1, 1, "file", &err));
    torch_close(&t);
}

/* Each state as "NAME dense|experts BUFFER BUCKET DTYPE", of its stored name. */
static const char *found(const char *text)
{
    const char *out = "";
    add_value(python(text));
    for (size_t i = 0; i < flat.count; i++) {
        const struct flat_state *s = &flat.items[i];
        const char *bucket =
            s->bucket == WHOLE_BUFFER
                ? "whole"
                : arena_printf(&scratch, "%d%s", (int)s->bucket, s->padded ? " padded" : "");
        out = arena_printf(&scratch, "%s%s%s %s %d %s %s", out, i ? "; " : "",
                           c.catalog.stored.tensors[s->stored].name,
                           s->cell.experts ? "experts" : "dense", (int)s->buffer, bucket,
                           s->of_weights == NUM_DTYPES ? "-" : dtype_infos[s->of_weights].name);
    }
    return out;
}

static void states_of_buffers_and_buckets_are_found(void **state)
{
    (void)state;
    assert_string_equal(found("{'buckets_coalesced': True, 0: {1: {'param': T[4], 'exp_avg': T[4],"
                              "'numel_unpadded': 4}}, 3: {1: {'param': T[2]}}}"),
                        "file.0.0.param dense 0 whole -; file.0.0.exp_avg dense 0 whole -; "
                        "file.3.0.param dense 3 whole -");
    assert_string_equal(found("{0: {1: [{'param': T[4]}, {'param': T[2]}]}}"),
                        "file.0.0.0.param dense 0 0 padded -; file.0.0.1.param dense 0 1 padded -");
    assert_null(c.training.optimizer.unread);
    struct value *root = value_dict(&scratch), *dtypes = value_dict(&scratch),
                 *pair[] = {value_global(&scratch, "torch", "bfloat16"),
                            value_global(&scratch, "torch", "float32")};
    value_dict_put(&scratch, dtypes, value_list(&scratch, VALUE_TUPLE, 2, pair),
                   python("{'param': T[1]}"));
    value_dict_put(&scratch, root, value_int(&scratch, 0), dtypes);
    add_value(root);
    assert_int_equal(flat.items[0].of_weights, DT_BF16);
}

/* Experts are in the last; the first of two dense ones has the first model
 * chunk. */
static void optimizers_of_a_chain_have_their_cells(void **state)
{
    (void)state;
    assert_string_equal(found("[{0: {1: {'m': T[1]}}}, {0: {1: {'m': T[1]}}}]"),
                        "file.0.0.0.m dense 0 whole -; file.1.0.0.m experts 0 whole -");
    assert_int_equal(flat.items[0].cell.tp_rank, 1);
    assert_int_equal(flat.items[0].cell.pp_rank, 1);
    assert_int_equal(flat.items[0].cell.num_chunks, 0);
    assert_int_equal(flat.items[1].cell.tp_rank, 0);
    assert_int_equal(flat.items[1].cell.ep_rank, 1);
    assert_string_equal(found("[{0: {1: {'m': T[1]}}}, {0: {1: {'m': T[1]}}}, None]"),
                        "file.0.0.0.m dense 0 whole -; file.1.0.0.m dense 0 whole -");
    assert_int_equal(flat.items[0].cell.first_chunk, 0);
    assert_int_equal(flat.items[0].cell.num_chunks, 1);
    assert_int_equal(flat.items[1].cell.first_chunk, 1);
    assert_int_equal(flat.items[1].cell.num_chunks, 2);
}

static void other_values_are_unread(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"7", "neither a dict nor a list"},
        {"{0: {1: 7}}", "file.0.0 is neither a dict nor a list"},
        {"{0: {1: {'m': 7}}}", "file.0.0.m is not a tensor"},
        {"{0: {1: {'m.v': T[1]}}}", "file.0.0.m.v: invalid state name"},
        {"[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]", "17 optimizers"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_string_equal(found(cases[i].text), "");
        if (!c.training.optimizer.unread || !strstr(c.training.optimizer.unread, cases[i].why))
            fail_msg("%s: %s", cases[i].text, c.training.optimizer.unread);
    }
    assert_string_equal(found("{-1: {1: {'m': T[1]}}, 'x': {1: {'m': T[1]}}, 2: 3}"), "");
}

static struct value *many(struct value *item, int count)
{
    struct value *out = value_dict(&scratch);
    for (int i = 0; i < count; i++)
        value_dict_put(&scratch, out, value_int(&scratch, i), item);
    return out;
}

/* A small file must not become 10^9 states, or dicts without any. */
static void a_dict_in_many_places_is_unread(void **state)
{
    (void)state;
    static const char *const texts[] = {"{'m': T[1]}", "{}", "[{}]"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        add_value(many(many(python(texts[i]), 30000), 30000));
        assert_non_null(
            strstr(c.training.optimizer.unread, "x.pt: more than 262144 flat tensors and dicts"));
        assert_true(flat.count < 262144);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(states_of_buffers_and_buckets_are_found),
        TEST(optimizers_of_a_chain_have_their_cells),
        TEST(other_values_are_unread),
        TEST(a_dict_in_many_places_is_unread),
    };
    return cmocka_run_group_tests_name("flat_states", tests, NULL, NULL);
}
