/* Written files equal DeepSpeed's own of the same run, tensor by tensor. */
#include <string.h>

#include "convert/testing_hf.h"
#include "formats/torch.h"

/* A torch file, and all tensors of it by their paths in it. */
struct opened {
    struct checkpoint c;
    struct torch_file file;
};

static void open_torch(struct opened *o, const char *folder, const char *name)
{
    checkpoint_init(&o->c, folder);
    assert_ok(torch_open(&o->file, &o->c.catalog.stored, path_join(&scratch, folder, name), 0,
                         UINT64_MAX, &err));
    assert_ok(torch_add_tensors(&o->file, &o->c.catalog.stored, o->file.root, "", &err));
}

static void close_torch(struct opened *o)
{
    torch_close(&o->file);
    checkpoint_release(&o->c);
}

/* ---- values ---- */

/* Keys that depend on the config of the run, or that DeepSpeed takes from it
 * when they are missing.
 */
static bool is_of_config(const char *key)
{
    static const char *const keys[] = {"ds_config", "clip_grad", "lr_scheduler", "global_samples",
                                       "initial_lr"};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (key && strcmp(key, keys[i]) == 0) return true;
    return false;
}

static void check_value(const struct value *ours, const struct value *theirs, const char *path);

/* Every key of theirs is in ours, whatever the order. */
static void check_dict(const struct value *ours, const struct value *theirs, const char *path)
{
    assert_int_equal(ours->kind, VALUE_DICT);
    for (uint32_t i = 0; i < theirs->count; i++) {
        const struct value *key = theirs->items[2 * i], *found = NULL;
        const char *name = value_as_text(key);
        if (is_of_config(name)) continue;
        for (uint32_t k = 0; k < ours->count && !found; k++) {
            const struct value *mine = ours->items[2 * k];
            if (mine->kind != key->kind) continue;
            if (name ? strcmp(value_as_text(mine), name) == 0 : mine->integer == key->integer)
                found = ours->items[2 * k + 1];
        }
        const char *below = arena_printf(&scratch, "%s.%s", path, name ? name : "#");
        if (!found) fail_msg("%s is missing", below);
        check_value(found, theirs->items[2 * i + 1], below);
    }
}

/* Tensors are compared by check_file(). */
static void check_value(const struct value *ours, const struct value *theirs, const char *path)
{
    if (theirs->kind == VALUE_DICT) {
        check_dict(ours, theirs, path);
    } else if (theirs->kind == VALUE_LIST || theirs->kind == VALUE_TUPLE) {
        if (ours->kind != theirs->kind || ours->count != theirs->count)
            fail_msg("%s: %u items, not %u", path, ours->count, theirs->count);
        for (uint32_t i = 0; i < theirs->count; i++)
            check_value(ours->items[i], theirs->items[i], arena_printf(&scratch, "%s.%u", path, i));
    } else if (theirs->kind != VALUE_TENSOR) {
        struct strbuf x = {0}, y = {0};
        value_print(&x, ours, 1000);
        value_print(&y, theirs, 1000);
        if (strcmp(x.data, y.data)) fail_msg("%s: %s, not %s", path, x.data, y.data);
        strbuf_release(&x);
        strbuf_release(&y);
    }
}

/* ---- files ---- */

/* DeepSpeed leaves behind each parameter of the last ranks of stage 3 what was
 * in memory; ours are zeros there. */
static void check_elements(struct opened *ours, const struct stored_tensor *x,
                           struct opened *theirs, const struct stored_tensor *y, bool has_tails)
{
    const uint64_t numel = numel_of(y), bytes = dtype_bytes(y->dtype);
    uint64_t tails = 0;
    if (!has_tails) {
        check_same_stored(&ours->c, x, &theirs->c, y, UINT64_MAX);
        return;
    }
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(numel_of(x), numel);
    const char *p = stored_elements(&ours->c, x), *q = stored_elements(&theirs->c, y);
    for (uint64_t i = 0; i < numel * bytes; i += bytes) {
        static const char zero[8];
        if (memcmp(p + i, q + i, bytes) == 0) continue;
        if (memcmp(p + i, zero, bytes)) fail_msg("%s differs at byte %d", y->name, (int)i);
        tails++;
    }
    assert_true(tails <= 12); /* most of the 17 parameters are whole at 4 ranks */
}

static void check_file(const char *ours, const char *theirs, const char *name, bool has_tails)
{
    struct opened x, y;
    open_torch(&x, ours, name);
    open_torch(&y, theirs, name);
    check_value(x.file.root, y.file.root, name);
    assert_int_equal(x.c.catalog.stored.num_tensors, y.c.catalog.stored.num_tensors);
    for (size_t i = 0; i < y.c.catalog.stored.num_tensors; i++) {
        const struct stored_tensor *t = &y.c.catalog.stored.tensors[i];
        const struct stored_tensor *mine = stored_find(&x.c.catalog.stored, t->name);
        if (!mine) fail_msg("%s: no tensor %s", name, t->name);
        check_elements(&x, mine, &y, t, has_tails);
    }
    close_torch(&x);
    close_torch(&y);
}

/* Checks that ours has all torch files of theirs, and no other. */
static void check_files(const char *ours, const char *theirs, bool has_tails)
{
    struct name_list mine, all;
    size_t n = 0;
    assert_ok(folder_list(ours, &scratch, &mine, &err));
    assert_ok(folder_list(theirs, &scratch, &all, &err));
    for (size_t i = 0; i < mine.count; i++)
        n += strstr(mine.names[i], ".pt") != NULL;
    assert_int_equal(n, all.count);
    for (size_t i = 0; i < all.count; i++)
        check_file(ours, theirs, all.names[i], has_tails && strstr(all.names[i], "rank_3"));
}

#define GOLDEN "tests/golden/deepspeed/"
#define RUN_FLAGS "--lr=0.01", "--adam-beta1=0.9", "--adam-beta2=0.95", "--adam-eps=1e-8"

static void check_case(const char *name, const char *zero, const char *dp, const char *decay,
                       const char *split)
{
    const char *golden = arena_printf(&scratch, GOLDEN "%s", name), *out = in_scratch("out");
    assert_ok(CONVERT(path_join(&scratch, golden, "expected"), out, "--to=deepspeed", zero, dp,
                      decay, split, RUN_FLAGS));
    check_files(path_join(&scratch, out, "global_step3"),
                path_join(&scratch, golden, "ckpt/global_step3"), strcmp(zero, "--zero=3") == 0);
    check_same_file(path_join(&scratch, out, "latest"), path_join(&scratch, golden, "ckpt/latest"));
}

static void stage_1_with_two_groups_is_deepspeeds(void **state)
{
    (void)state;
    check_case("zero1-fp32-dp2", "--zero=1", "--dp=2", "--weight-decay=0.1", "--split-decay");
}

/* 4824 elements at 4 ranks: no padding; the tied head is a second name of one
 * storage. */
static void stage_2_with_a_tied_head_is_deepspeeds(void **state)
{
    (void)state;
    check_case("zero2-fp32-dp4-tied", "--zero=2", "--dp=4", "--weight-decay=0.01", NULL);
}

/* Two groups, and parameters without states, which are frozen: fragments in the
 * model's files. */
static void stage_3_with_frozen_parameters_is_deepspeeds(void **state)
{
    (void)state;
    check_case("zero3-bf16-dp4-groups-frozen", "--zero=3", "--dp=4", "--weight-decay=0.1",
               "--split-decay");
}

/* ---- padding ---- */

/* Stage 2 at 7 ranks: 4824 elements are padded to 4830, so the last rank has 6
 * of padding, in moments and not in masters. */
static void moments_end_with_padding_and_masters_do_not(void **state)
{
    const char *out = in_scratch("out"), *name = "zero_pp_rank_6_mp_rank_00_optim_states.pt";
    struct opened o;
    (void)state;
    assert_ok(CONVERT(GOLDEN "zero2-fp32-dp4-tied/expected", out, "--to=deepspeed", "--zero=2",
                      "--dp=7"));
    open_torch(&o, path_join(&scratch, out, "global_step3"), name);
    const struct stored *s = &o.c.catalog.stored;
    const struct stored_tensor *moment = stored_find(
                                   s, "optimizer_state_dict.base_optimizer_state.state.0.exp_avg"),
                               *master = stored_find(
                                   s, "optimizer_state_dict.single_partition_of_fp32_groups.0");
    assert_non_null(moment);
    assert_non_null(master);
    assert_int_equal(moment->shape[0], 690);
    assert_int_equal(master->shape[0], 684);
    const float *elements = stored_elements(&o.c, moment);
    for (size_t i = 684; i < 690; i++)
        assert_true(elements[i] == 0);
    close_torch(&o);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stage_1_with_two_groups_is_deepspeeds),
        TEST(stage_2_with_a_tied_head_is_deepspeeds),
        TEST(stage_3_with_frozen_parameters_is_deepspeeds),
        TEST(moments_end_with_padding_and_masters_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
