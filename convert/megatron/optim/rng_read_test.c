/* rng_read_test.c - states of random number generators as a file may have them:
 * what is kept, and what is refused without taking much memory. */
#include "convert/megatron/optim/rng_read.h"

#include "common/count.h"
#include "convert/format.h"
#include "convert/testing_convert.h"
#include "formats/torch.h"

enum { STATE_BYTES = 1 << 16, REFERENCES = 2000 };

static char bytes[STATE_BYTES];

/* An array of numpy.uint32: _reconstruct with the state (1, shape, dtype,
 * is_fortran, bytes). */
static struct value *array_of(uint32_t num_words)
{
    struct value *code = value_text(&scratch, "u4");
    struct value *order[] = {value_int(&scratch, 3), value_text(&scratch, "<")};
    struct value *dtype = value_instance(&scratch, "numpy", "dtype",
                                         value_list(&scratch, VALUE_TUPLE, COUNT(order), order));
    dtype->object->args = value_list(&scratch, VALUE_TUPLE, 1, &code);
    struct value *length = value_int(&scratch, num_words);
    struct value *parts[] = {value_int(&scratch, 1), value_list(&scratch, VALUE_TUPLE, 1, &length),
                             dtype, value_bool(&scratch, false),
                             value_bytes(&scratch, bytes, 4 * (size_t)num_words)};
    return value_instance(&scratch, "numpy.core.multiarray", "_reconstruct",
                          value_list(&scratch, VALUE_TUPLE, COUNT(parts), parts));
}

static struct value *tensor_of(uint64_t count)
{
    return value_tensor(&scratch, "0", DT_U8, 1, &count);
}

static struct value *text_of(uint32_t count)
{
    char *text = arena_alloc(&scratch, count + 1);
    memset(text, 'a', count);
    return value_text(&scratch, text);
}

/* A list that has v so many times. */
static struct value *times(size_t count, struct value *v)
{
    struct value *list = value_list(&scratch, VALUE_LIST, 0, NULL);
    for (size_t i = 0; i < count; i++)
        value_append(&scratch, list, v);
    return list;
}

/* Writes {'rng_state': [{'a': v}]} as the file of the only rank. */
static void write_states(struct value *v)
{
    const void *data[] = {bytes};
    struct strbuf archive = {0};
    struct value *root = value_dict(&scratch), *states = value_dict(&scratch);
    const char *path = in_scratch("mp_rank_00/model_optim_rng.pt");
    value_dict_add(&scratch, states, "a", v);
    value_dict_add(&scratch, root, "rng_state", times(1, states));
    assert_ok(torch_to_bytes(&archive, "archive", root, data, &err));
    assert_ok(path_remove(in_scratch("mp_rank_00"), &err));
    assert_ok(folder_create(in_scratch("mp_rank_00"), &err));
    assert_ok(file_write_all(path, archive.data, archive.length, false, &err));
    strbuf_release(&archive);
}

/* Reads that file into an arena of its own. *taken: the bytes of the arena. */
static const char *read_states(struct arena *a, const struct value **states, size_t *taken)
{
    struct checkpoint c;
    struct rng_kept *kept;
    size_t count;
    const char *why;
    checkpoint_init(&c, scratch_folder);
    c.folder = scratch_folder;
    c.format = &format_torch;
    c.layout = (struct layout){.tp = 1, .pp = 1, .ep = 1};
    assert_ok(rng_states_read(&c, &kept, &count, &why, a, &err));
    assert_int_equal(count, why ? 0 : 1);
    *states = why ? NULL : kept[0].states;
    *taken = a->total_bytes;
    checkpoint_release(&c);
    return why;
}

/* Returns why the value is not kept; NULL: it is, as the text. */
static const char *keeps(struct value *v, const char *text)
{
    struct arena a;
    struct strbuf printed = {0};
    const struct value *states;
    size_t taken;
    arena_init(&a);
    write_states(v);
    const char *why = read_states(&a, &states, &taken);
    if (why) why = arena_copy_text(&scratch, why);
    if (states) value_print(&printed, states, 1000);
    if (states) assert_string_equal(printed.data, text);
    if (taken > (1 << 23)) fail_msg("%zu bytes were taken", taken);
    strbuf_release(&printed);
    arena_release(&a);
    return why;
}

static void values_of_generators_are_kept(void **state)
{
    (void)state;
    memcpy(bytes, "\1\0\0\0\2\1\0\0", 8);
    assert_null(keeps(array_of(2), "[{'a': [1, 258]}]"));
    assert_null(keeps(times(2, array_of(1)), "[{'a': [[1], [1]]}]"));
    assert_null(keeps(tensor_of(2), "[{'a': b'\\x01\\x00'}]"));
    assert_null(keeps(text_of(3), "[{'a': 'aaa'}]"));
    memset(bytes, 0, sizeof bytes);
}

static void values_of_other_classes_are_refused(void **state)
{
    (void)state;
    assert_string_equal(keeps(value_bytes(&scratch, "b", 1), ""), "a state has class bytes");
}

/* Each reference to one value is a copy. */
static void many_references_to_a_large_value_are_refused(void **state)
{
    struct value *const values[] = {array_of(STATE_BYTES / 4), tensor_of(STATE_BYTES),
                                    text_of(STATE_BYTES),
                                    times(STATE_BYTES / 4, value_int(&scratch, 1))};
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        assert_string_equal(keeps(times(REFERENCES, values[i]), ""),
                            "they take more than 4 MiB per rank");
}

static void many_small_values_are_refused(void **state)
{
    struct value *const values[] = {array_of(0), tensor_of(1), text_of(0), value_dict(&scratch),
                                    value_none(&scratch)};
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        assert_string_equal(keeps(times(200000, values[i]), ""),
                            "they take more than 4 MiB per rank");
}

static void values_deep_in_one_another_are_refused(void **state)
{
    struct value *v = value_none(&scratch);
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        v = times(1, v);
    assert_string_equal(keeps(v, ""), "their values are nested too deeply");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(values_of_generators_are_kept, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(values_of_other_classes_are_refused, scratch_begin,
                                        scratch_end),
        cmocka_unit_test_setup_teardown(many_references_to_a_large_value_are_refused, scratch_begin,
                                        scratch_end),
        cmocka_unit_test_setup_teardown(many_small_values_are_refused, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(values_deep_in_one_another_are_refused, scratch_begin,
                                        scratch_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
