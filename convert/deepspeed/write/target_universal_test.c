/* Universal checkpoints: the whole of each parameter and state, and what cannot
 * be one. */
#include <string.h>

#include "convert/format.h"
#include "convert/testing_hf.h"
#include "formats/torch.h"

#define GOLDEN "tests/golden/deepspeed/zero2-fp32-dp4-tied/expected"

/* ---- files ---- */

/* Opens a file and adds its tensors by their paths in it. */
static void open_torch(struct checkpoint *c, struct torch_file *file, const char *path)
{
    checkpoint_init(c, path);
    assert_ok(torch_open(file, &c->catalog.stored, path, 0, UINT64_MAX, &err));
    assert_ok(torch_add_tensors(file, &c->catalog.stored, file->root, "", &err));
}

static void close_torch(struct checkpoint *c, struct torch_file *file)
{
    torch_close(file);
    checkpoint_release(c);
}

/* Checks zero/NAME/FILE.pt against a tensor of the source's
 * optimizer.safetensors or weights. */
static void check_state(struct checkpoint *source, const char *unit, const char *param,
                        const char *file, const char *of)
{
    struct checkpoint c;
    struct torch_file t;
    open_torch(&c, &t,
               path_join(&scratch, unit, arena_printf(&scratch, "zero/%s/%s.pt", param, file)));
    const struct stored_tensor *x = stored_find(&c.catalog.stored, "param"),
                               *y = stored_find(&source->catalog.stored, of);
    assert_non_null(x);
    assert_non_null(y);
    check_same_stored(&c, x, source, y, UINT64_MAX);
    close_torch(&c, &t);
}

static void a_parameter_has_its_states_whole(void **state)
{
    const char *const name = "model.layers.0.self_attn.k_proj.weight", *out = in_scratch("out");
    struct safetensors_info info;
    struct checkpoint states;
    (void)state;
    assert_ok(CONVERT(GOLDEN, out, "--to=deepspeed-universal"));
    const char *unit = path_join(&scratch, out, "global_step3_universal");
    checkpoint_init(&states, GOLDEN);
    assert_ok(safetensors_open(&states.catalog.stored,
                               path_join(&scratch, GOLDEN, "optimizer.safetensors"), &info, &err));
    check_state(&states, unit, name, "fp32", arena_printf(&scratch, "fp32.%s", name));
    check_state(&states, unit, name, "exp_avg", arena_printf(&scratch, "exp_avg.%s", name));
    check_state(&states, unit, name, "exp_avg_sq", arena_printf(&scratch, "exp_avg_sq.%s", name));
    checkpoint_release(&states);
}

static void the_step_is_a_bare_tensor(void **state)
{
    const char *out = in_scratch("out");
    struct checkpoint c;
    struct torch_file t;
    double step;
    (void)state;
    assert_ok(CONVERT(GOLDEN, out, "--to=deepspeed-universal"));
    const char *path =
        path_join(&scratch, out, "global_step3_universal/zero/model.norm.weight/step.pt");
    checkpoint_init(&c, path);
    assert_ok(torch_open(&t, &c.catalog.stored, path, 0, UINT64_MAX, &err));
    assert_int_equal(t.root->kind, VALUE_TENSOR);
    assert_ok(torch_numbers(path, 0, UINT64_MAX, (const struct value *[]){t.root}, 1, &step, &err));
    assert_true(step == 3);
    close_torch(&c, &t);
}

/* Stages 1 and 2 read param_groups, stage 3 optimizer_state_dict. */
static void one_file_has_the_settings_for_both_kinds_of_stages(void **state)
{
    const char *out = in_scratch("out");
    struct checkpoint c;
    struct torch_file t;
    (void)state;
    assert_ok(CONVERT(GOLDEN, out, "--to=deepspeed-universal", "--split-decay"));
    open_torch(&c, &t, path_join(&scratch, out, "global_step3_universal/zero/optimizer_state.pt"));
    const struct value *root = t.root, *optimizer = value_get(root, "optimizer_state_dict");
    assert_int_equal(value_get(root, "param_groups")->count, 2);
    assert_int_equal(value_get(optimizer, "param_groups")->count, 2);
    assert_non_null(stored_find(&c.catalog.stored, "optimizer_state_dict.state.0.step"));
    assert_string_equal(value_as_text(value_get(root, "ds_version")), "0.19.8");
    close_torch(&c, &t);
}

/* ---- refusals ---- */

/* A checkpoint of which the names alone are known, as of a model without
 * config.json. */
static void add_zeros(struct checkpoint *c, const char *name)
{
    const uint64_t shape[] = {2, 3};
    struct tensor *x;
    assert_ok(catalog_add(&c->catalog, name, DT_F32, 2, shape, &x, &err));
    const struct piece piece = {.origin = ORIGIN_ZERO, .dtype = DT_F32};
    const struct pair whole = pair_whole(0, 0, 6);
    tensor_add_piece(&c->arena, x, &piece, &whole);
}

static enum status plan_of(struct checkpoint *c, const struct format *format)
{
    const struct target_options o = {.format = format, .optimizer = true, .zero = 1};
    struct target t;
    c->format = &format_hf;
    c->names_alone = true;
    enum status st = target_plan(&t, &o, c, NULL, &err);
    target_release(&t);
    return st;
}

static void check_name(const char *name, enum status wanted)
{
    struct checkpoint c;
    checkpoint_init(&c, "test");
    add_zeros(&c, name);
    add_zeros(&c, arena_printf(&scratch, "optimizer.exp_avg.%s", name));
    assert_int_equal(plan_of(&c, &format_deepspeed_universal), wanted);
    checkpoint_release(&c);
}

static void names_that_are_no_folders_are_refused(void **state)
{
    static const char *const names[] = {"a/b", "..", ".", "/etc", "a\\b"};
    (void)state;
    check_name("a.weight", OK);
    for (size_t i = 0; i < COUNT(names); i++)
        check_name(names[i], ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "not usable as a folder name"));
}

static void a_state_that_cannot_be_a_file_is_refused(void **state)
{
    static const char *const states[] = {"step", "fp32", "x/y"};
    (void)state;
    for (size_t i = 0; i < COUNT(states); i++) {
        struct checkpoint c;
        checkpoint_init(&c, "test");
        add_zeros(&c, "a");
        add_zeros(&c, arena_printf(&scratch, "optimizer.%s.a", states[i]));
        assert_int_equal(plan_of(&c, &format_deepspeed_universal), ERR_UNSUPPORTED);
        checkpoint_release(&c);
    }
}

static void parameters_of_a_group_have_the_same_states(void **state)
{
    struct checkpoint c;
    (void)state;
    checkpoint_init(&c, "test");
    add_zeros(&c, "a");
    add_zeros(&c, "b");
    add_zeros(&c, "optimizer.exp_avg.a");
    add_zeros(&c, "optimizer.momentum.b");
    assert_int_equal(plan_of(&c, &format_deepspeed), ERR_UNSUPPORTED);
    assert_string_equal(err.text, "b lacks state exp_avg, which other parameters of its group "
                                  "have: DeepSpeed has one vector per state and group");
    checkpoint_release(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_parameter_has_its_states_whole),
        TEST(the_step_is_a_bare_tensor),
        TEST(one_file_has_the_settings_for_both_kinds_of_stages),
        TEST(names_that_are_no_folders_are_refused),
        TEST(a_state_that_cannot_be_a_file_is_refused),
        TEST(parameters_of_a_group_have_the_same_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
