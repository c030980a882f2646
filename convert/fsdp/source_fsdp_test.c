/* Contents of rank files that are read, and contents that are refused. */
#include "convert/testing_convert.h"

#include "convert/format.h"
#include "convert/source.h"
#include "formats/testing_dtensor.h"
#include "formats/torch.h"

static struct checkpoint c;
static struct model_maps maps;

static int setup(void **state)
{
    arena_init(&values);
    checkpoint_init(&c, "");
    return scratch_begin(state) || model_maps_load(&maps, NULL, &err);
}

static int teardown(void **state)
{
    checkpoint_release(&c);
    model_maps_release(&maps);
    arena_release(&values);
    return scratch_end(state);
}

/* ---- files ---- */

enum { MAX_STORAGES = 16 };

/* Writes a file whose storages all begin with 1, 2, 3 ... in F32. */
static void write_file(const char *name, const struct value *root)
{
    static float elements[64];
    const void *data[MAX_STORAGES];
    struct strbuf out = {0};
    for (size_t i = 0; i < 64; i++)
        elements[i] = (float)(i + 1);
    for (size_t i = 0; i < MAX_STORAGES; i++)
        data[i] = elements;
    assert_ok(torch_to_bytes(&out, "archive", root, data, &err));
    assert_ok(path_remove(in_scratch(name), &err));
    assert_ok(file_write_all(in_scratch(name), out.data, out.length, false, &err));
    strbuf_release(&out);
}

static struct value *dict_of(const char *name, struct value *v)
{
    struct value *dict = value_dict(&values);
    value_dict_add(&values, dict, name, v);
    return dict;
}

/* The file of one of `size` ranks with the tensor "w", [5, 3] cut by rows. */
static void write_rank(uint64_t rank, uint64_t size, uint64_t rows)
{
    struct value *v = dtensor_of("0", rows, new_mesh(size, rank), placement("Shard", 0));
    char name[64];
    snprintf(name, sizeof name, "model_world_size_%d_rank_%d.pt", (int)size, (int)rank);
    write_file(name, dict_of("w", v));
}

static enum status open_scratch(void)
{
    const struct source_options o = {0};
    checkpoint_release(&c);
    return source_open(&c, scratch_folder, &o, &maps, &err);
}

static void assert_refused(enum status code, const char *says)
{
    assert_int_equal(open_scratch(), code);
    if (!strstr(err.text, says)) fail_msg("\"%s\" is not in \"%s\"", says, err.text);
}

static const struct native_tensor *native_of(const char *name, const char *state)
{
    const struct native_tensor *native = catalog_find_native(&c.catalog, name, state);
    if (!native) fail_msg("there is no %s of %s", state ? state : "tensor", name);
    return native;
}

/* Whether a note has this part. */
static bool is_noted(const char *part)
{
    for (size_t i = 0; i < c.notes.count; i++)
        if (strstr(c.notes.lines[i], part)) return true;
    return false;
}

/* ---- files of ranks ---- */

static void boxes_of_ranks_are_one_tensor(void **state)
{
    (void)state;
    write_rank(0, 4, 2);
    write_rank(1, 4, 2);
    write_rank(2, 4, 1);
    write_rank(3, 4, 0); /* nothing is left for it */
    assert_ok(open_scratch());
    const struct native_tensor *native = native_of("w", NULL);
    assert_int_equal(native->num_parts, 3);
    assert_true(native->num_dims == 2 && native->shape[0] == 5 && native->shape[1] == 3);
    assert_string_equal(c.format->name, "fsdp");
}

static void a_missing_rank_is_named_with_what_it_held(void **state)
{
    (void)state;
    write_rank(0, 4, 2);
    write_rank(2, 4, 1);
    assert_refused(ERR_IO,
                   "model_world_size_4_rank_1.pt, model_world_size_4_rank_3.pt are missing, "
                   "of the files of 4 ranks: 1 tensor has not all its elements: w");
}

/* Ranks of which nothing is needed may be missing: the last, and replicas. */
static void a_missing_rank_without_elements_is_noted(void **state)
{
    (void)state;
    write_rank(0, 4, 2);
    write_rank(1, 4, 2);
    write_rank(2, 4, 1);
    assert_ok(open_scratch());
    assert_true(is_noted("1 of 4 rank files are missing; the others have all parts"));
}

static void ranks_that_disagree_are_refused(void **state)
{
    (void)state;
    write_rank(0, 2, 3);
    const uint64_t shape[] = {4, 3};
    write_file("model_world_size_2_rank_1.pt",
               dict_of("w", value_tensor(&values, "0", DT_F32, 2, shape)));
    assert_refused(ERR_CORRUPT,
                   "model_world_size_2_rank_1.pt: tensor w: its shape is [4, 3], but [5, 3]");
    write_file("model_world_size_2_rank_1.pt", dict_of("w", sharded_of("0", 2, 2)));
    assert_refused(ERR_CORRUPT, "tensor w: the ranks' parts overlap");
}

static void shards_of_old_torch_are_read(void **state)
{
    (void)state;
    write_file("pytorch_model_fsdp_0_rank0.bin", dict_of("w", sharded_of("0", 0, 3)));
    write_file("pytorch_model_fsdp_0_rank1.bin", dict_of("w", sharded_of("0", 3, 2)));
    assert_ok(open_scratch());
    assert_int_equal(native_of("w", NULL)->num_parts, 2);
    assert_ok(path_remove(in_scratch("pytorch_model_fsdp_0_rank1.bin"), &err));
    assert_refused(ERR_CORRUPT, "tensor w: the files have 9 elements of [5, 3]");
}

static void two_sets_of_files_are_refused(void **state)
{
    (void)state;
    write_rank(0, 1, 5);
    write_rank(0, 2, 3);
    assert_refused(ERR_UNSUPPORTED, "belong to two sets of rank files");
}

static void a_hostile_number_of_ranks_is_refused(void **state)
{
    (void)state;
    write_file("model_rank_999999.pt", dict_of("w", sharded_of("0", 0, 5)));
    assert_refused(ERR_UNSUPPORTED, "only 1 files for 1000000 ranks");
}

/* ---- flattened parameters ---- */

static void write_flat(const char *name, uint64_t numel, bool named)
{
    struct value *dict = value_dict(&values);
    if (named)
        value_dict_add(&values, dict, "layer.weight",
                       value_tensor(&values, "0", DT_F32, 1, &numel));
    value_dict_add(&values, dict, "layer._flat_param", sharded_of("1", 0, 5));
    write_file(name, dict);
}

static void flattened_parameters_without_names_or_config_are_refused(void **state)
{
    (void)state;
    write_flat("model_world_size_2_rank_0.pt", 4, false);
    write_flat("model_world_size_2_rank_1.pt", 4, false);
    assert_refused(ERR_UNSUPPORTED, "flat parameters of FSDP1 without names");
    write_flat("model_world_size_2_rank_0.pt", 4, true);
    write_flat("model_world_size_2_rank_1.pt", 5, true);
    assert_refused(ERR_UNSUPPORTED,
                   "without their shapes: give the model's config.json, --hf-config DIR");
}

/* ---- names ---- */

static void wrappers_are_no_part_of_a_name(void **state)
{
    (void)state;
    struct value *dict = dict_of("module._orig_mod.layers.0._fsdp_wrapped_module.w",
                                 value_tensor(&values, "0", DT_F32, 1, &(uint64_t){3}));
    value_dict_add(&values, dict, "layers.0.module.w",
                   value_tensor(&values, "1", DT_F32, 1, &(uint64_t){3}));
    write_file("model.pt", dict);
    assert_ok(open_scratch());
    (void)native_of("layers.0.w", NULL);
    (void)native_of("layers.0.module.w", NULL);
    assert_true(is_noted("1 name has modules that wrap the model"));
    value_dict_add(&values, dict, "layers.0.w",
                   value_tensor(&values, "2", DT_F32, 1, &(uint64_t){3}));
    write_file("model.pt", dict);
    assert_refused(ERR_UNSUPPORTED, "and layers.0.w become the same name");
}

/* ---- full states ---- */

/* {"w": [2, 3], "b": [3]}, below a key. */
static struct value *weights(const char *key)
{
    const uint64_t shape[] = {2, 3};
    struct value *dict = dict_of("w", value_tensor(&values, "0", DT_F32, 2, shape));
    value_dict_add(&values, dict, "b", value_tensor(&values, "1", DT_F32, 1, shape + 1));
    value_dict_add(&values, dict, "_extra_state", value_bytes(&values, "x", 1));
    return key ? dict_of(key, dict) : dict;
}

static struct value *key_of(const char *name, int64_t number)
{
    return name ? value_text(&values, name) : value_int(&values, number);
}

/* The states of w and b, by names or by the numbers 0 and 1; groups: one, or
 * one each. */
static struct value *optimizer(const char *w, const char *b, bool apart, bool swapped)
{
    const uint64_t shape[] = {2, 3};
    struct value *root = value_dict(&values), *state = value_dict(&values), *groups[2], *params[2];
    struct value *of_w = value_dict(&values), *of_b = value_dict(&values);
    value_dict_add(&values, of_w, "step", value_tensor(&values, "4", DT_F32, 0, NULL));
    value_dict_add(&values, of_w, "exp_avg", value_tensor(&values, "2", DT_F32, 2, shape));
    value_dict_add(&values, of_b, "step", value_int(&values, 1));
    value_dict_add(&values, of_b, "exp_avg", value_tensor(&values, "3", DT_F32, 1, shape + 1));
    struct value *key_w = key_of(w, swapped ? 1 : 0), *key_b = key_of(b, swapped ? 0 : 1);
    value_dict_put(&values, state, key_w, of_w);
    value_dict_put(&values, state, key_b, of_b);
    for (unsigned g = 0; g < 2; g++) {
        groups[g] = value_dict(&values);
        params[g] = value_list(&values, VALUE_LIST, 0, NULL);
        value_dict_add(&values, groups[g], "lr", value_float(&values, 0.5 + g));
        value_dict_add(&values, groups[g], "params", params[g]);
    }
    value_append(&values, params[0], swapped ? key_b : key_w);
    value_append(&values, params[apart], swapped ? key_w : key_b);
    value_dict_add(&values, root, "state", state);
    value_dict_add(&values, root, "param_groups",
                   value_list(&values, VALUE_LIST, apart ? 2 : 1, groups));
    return root;
}

static void check_states(void)
{
    if (c.training.optimizer.unread) fail_msg("%s", c.training.optimizer.unread);
    assert_int_equal(native_of("w", "exp_avg")->num_dims, 2);
    assert_int_equal(native_of("b", "exp_avg")->num_dims, 1);
    assert_int_equal(c.training.run.step, 1);
    assert_true(c.training.run.groups[0].lr > 0.4 && c.training.run.groups[0].lr < 0.6);
}

static void a_full_state_is_read_by_names_and_by_numbers(void **state)
{
    (void)state;
    static const char *const keys[] = {NULL, "model", "state_dict", "module"};
    for (size_t i = 0; i < 4; i++) {
        write_file("model.pt", weights(keys[i]));
        write_file("optim.pt",
                   i % 2 ? optimizer(NULL, NULL, false, false) : optimizer("w", "b", false, false));
        assert_ok(open_scratch());
        check_states();
        assert_true(is_noted("1 value that is not a tensor is not read: _extra_state"));
    }
}

/* Groups of vectors and of all else: which number is which is seen by the
 * shapes of states, in either order of the groups. */
static void numbers_of_two_groups_are_found_by_dimensions(void **state)
{
    (void)state;
    write_file("model.pt", weights(NULL));
    for (int swapped = 0; swapped < 2; swapped++) {
        write_file("optim.pt", optimizer(NULL, NULL, true, swapped));
        assert_ok(open_scratch());
        check_states();
        assert_string_equal(c.training.torch_groups[0].names[0], swapped ? "b" : "w");
    }
}

static void one_file_may_have_the_optimizer_too(void **state)
{
    (void)state;
    struct value *root = weights("model");
    value_dict_add(&values, root, "optimizer", optimizer("w", "b", false, false));
    write_file("model.pt", root);
    assert_ok(open_scratch());
    check_states();
}

/* States that cannot be read leave the weights. */
static void an_optimizer_of_another_model_is_unread(void **state)
{
    (void)state;
    struct value *more = weights(NULL);
    value_dict_add(&values, more, "c", value_tensor(&values, "5", DT_F32, 1, &(uint64_t){3}));
    write_file("model.pt", more);
    write_file("optim.pt", optimizer(NULL, NULL, false, false));
    assert_ok(open_scratch());
    (void)native_of("c", NULL);
    assert_non_null(c.training.optimizer.unread);
    assert_non_null(strstr(c.training.optimizer.unread, "shape are listed, but the model has 2"));
    struct value *twice = optimizer("w", "b", true, false);
    struct value *first = value_get(twice, "param_groups")->items[0];
    value_append(&values, value_get(first, "params"), value_text(&values, "b"));
    write_file("optim.pt", twice);
    assert_ok(open_scratch());
    assert_non_null(strstr(c.training.optimizer.unread, "the groups list b twice"));
    write_file("optim.pt", value_int(&values, 1));
    assert_ok(open_scratch());
    assert_non_null(strstr(c.training.optimizer.unread, "it has no optimizer state dict"));
}

static void a_file_without_parameters_is_refused(void **state)
{
    (void)state;
    write_file("model.pt", dict_of("epoch", value_int(&values, 3)));
    assert_refused(ERR_UNSUPPORTED, "model.pt: it has no state dict of parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(boxes_of_ranks_are_one_tensor),
        TEST(a_missing_rank_is_named_with_what_it_held),
        TEST(a_missing_rank_without_elements_is_noted),
        TEST(ranks_that_disagree_are_refused),
        TEST(shards_of_old_torch_are_read),
        TEST(two_sets_of_files_are_refused),
        TEST(a_hostile_number_of_ranks_is_refused),
        TEST(flattened_parameters_without_names_or_config_are_refused),
        TEST(wrappers_are_no_part_of_a_name),
        TEST(a_full_state_is_read_by_names_and_by_numbers),
        TEST(numbers_of_two_groups_are_found_by_dimensions),
        TEST(one_file_may_have_the_optimizer_too),
        TEST(an_optimizer_of_another_model_is_unread),
        TEST(a_file_without_parameters_is_refused),
#undef TEST
    };
    return cmocka_run_group_tests_name("source_fsdp", tests, NULL, NULL);
}
