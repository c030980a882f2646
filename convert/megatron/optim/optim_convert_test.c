/* ferry convert towards Megatron, with the states of an optimizer: keys of the
 * flattened format, and what is said of states that a run finds with the right
 * flags only, or not at all. */
#include "common/count.h"
#include "convert/map/testing_models.h"
#include "formats/dcp.h"

static void check_key(const char *ckpt, const char *key, const char *shape)
{
    struct stored s;
    stored_init(&s);
    assert_ok(dcp_open(&s, path_join(&scratch, ckpt, "iter_0000003"), false, &err));
    const struct stored_tensor *t = stored_find(&s, key);
    if (!t) fail_msg("no key %s", key);
    assert_string_equal(shape_text(&scratch, t->num_dims, t->shape), shape);
    stored_release(&s);
}

/* As Megatron-Core 0.13.1 has them: gate and up are fragments of their own on
 * one rank too, and experts that are split over ranks have an optimizer of
 * their own, which keys name. */
static void states_are_flattened_as_megatron_core_before_0_14_reads_them(void **state)
{
    (void)state;
    const char *llama = make_trained("llama", "--model=llama", "--tied"),
               *mixtral = make_trained("mixtral", "--model=mixtral", "--tied"),
               *ckpt = in_scratch("llama1");
    assert_ok(CONVERT(llama, ckpt, "--optim-format=fully_sharded_model_space", "--iteration=3"));
    check_key(ckpt, "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight",
              "[2, 2, 1, 48]");
    check_key(ckpt, "optimizer.state.fp32_param.decoder.layers.mlp.linear_fc2.weight",
              "[2, 1, 1, 48]");
    ckpt = in_scratch("mixtral2");
    assert_ok(CONVERT(mixtral, ckpt, "--optim-format=fully_sharded_model_space", "--iteration=3",
                      "--ep=2"));
    check_key(ckpt,
              "chained_1.optimizer.state.exp_avg_sq.decoder.layers.mlp.experts.experts.linear_fc1."
              "weight",
              "[2, 8, 2, 1, 48]");
    check_key(ckpt,
              "chained_0.optimizer.state.fp32_param.decoder.layers.self_attention.linear_proj."
              "weight",
              "[2, 1, 1, 64]");
    ckpt = in_scratch("mixtral1");
    assert_ok(CONVERT(mixtral, ckpt, "--optim-format=fully_sharded_model_space", "--iteration=3"));
    check_key(ckpt, "optimizer.state.exp_avg.decoder.layers.mlp.experts.experts.linear_fc1.weight",
              "[2, 8, 2, 1, 48]");
}

static void flags_that_buckets_follow_from_are_told(void **state)
{
    (void)state;
    static const char *const flags[] = {"overlap_grad_reduce",
                                        "ddp_pad_buckets_for_high_nccl_busbw"};
    const char *ckpt = in_scratch("ckpt"), *torch = in_scratch("torch");
    assert_ok(CONVERT(make_trained("hf", "--model=llama", "--tied"), ckpt, "--iteration=3"));
    assert_ok(NOTED(ckpt, torch, "--to=torch", "--dry-run"));
    assert_null(strstr(said, "distrib_optim.pt has buckets"));
    for (size_t i = 0; i < COUNT(flags); i++)
        set_common(path_join(&scratch, ckpt, "iter_0000003"), true, flags[i],
                   value_bool(&scratch, true), NULL);
    assert_ok(NOTED(ckpt, torch, "--to=torch", "--dry-run"));
    assert_said("note: distrib_optim.pt has buckets by args; Megatron-LM finds its "
                "states only with the same flags: --overlap-grad-reduce --ddp-bucket-size "
                "40000000 --ddp-pad-buckets-for-high-nccl-busbw\n");
    assert_ok(NOTED(ckpt, torch, "--to=torch", "--optim-format=not_distributed", "--dry-run"));
    assert_null(strstr(said, "distrib_optim.pt has buckets"));
}

/* Replaces a text in a file by one of its length. */
static void replace(const char *path, const char *text, const char *by)
{
    struct strbuf file = {0};
    char *at;
    assert_ok(file_read_all(path, UINT64_MAX, &file, &err));
    while ((at = memmem(file.data, file.length, text, strlen(text))))
        memcpy(at, by, strlen(by));
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, file.data, file.length, false, &err));
    strbuf_release(&file);
}

static void states_that_megatron_passes_over_are_lossy(void **state)
{
    (void)state;
    static const char note[] =
        "lossy    momenta, momenta_sq, which Megatron's distributed Adam does not read";
    const char *hf = make_trained("hf", "--model=llama", "--tied"), *ckpt = in_scratch("ckpt");
    assert_ok(NOTED(hf, ckpt, "--dry-run"));
    assert_null(strstr(said, "does not read"));
    replace(path_join(&scratch, hf, "optimizer.safetensors"), "\"exp_avg", "\"momenta");
    assert_ok(NOTED(hf, ckpt, "--dry-run"));
    assert_said(note);
    assert_ok(NOTED(hf, ckpt, "--to=torch", "--optim-format=distributed", "--dry-run"));
    assert_said(note);
    assert_ok(NOTED(hf, ckpt, "--to=torch", "--optim-format=not_distributed", "--dry-run"));
    assert_null(strstr(said, "does not read"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(states_are_flattened_as_megatron_core_before_0_14_reads_them),
        TEST(flags_that_buckets_follow_from_are_told),
        TEST(states_that_megatron_passes_over_are_lossy),
    };
    return cmocka_run_group_tests_name("optim_convert", tests, load_maps, release_maps);
}
