/* ferry convert from and to Megatron's formats: missing ranks and experts;
 * facts from args and run_config.yaml, and facts that these lack. */
#include "common/count.h"
#include "convert/map/testing_models.h"

#define GPT2                                                                                       \
    "'model_type':'gpt2','n_embd':24,'n_layer':2,'n_head':4,'n_positions':16,'vocab_size':11"

static const char *unit_of(const char *root)
{
    return path_join(&scratch, root, "iter_0000000");
}

static void drop(const char *folder, const char *name)
{
    assert_ok(path_remove(path_join(&scratch, folder, name), &err));
}

/* ---- what is missing ---- */

static void experts_of_ranks_that_are_not_there_are_missed(void **state)
{
    (void)state;
    const char *hf = make("hf", MIXTRAL, NULL), *ckpt = in_scratch("ckpt");
    assert_ok(CONVERT(hf, ckpt, "--to=torch", "--ep=2"));
    drop(unit_of(ckpt), "mp_rank_00_001");
    assert_fails(CONVERT(ckpt, in_scratch("out")), ERR_CORRUPT,
                 "missing folder of expert rank 1, expert tensor rank 0, pipeline rank 0 with its "
                 "experts; args give TP1 EP2");
    assert_ok(
        CONVERT(hf, in_scratch("both"), "--to=torch", "--ep=2", "--tp=2", "--etp=1", "--pp=2"));
    drop(unit_of(in_scratch("both")), "mp_rank_01_001_001");
    assert_fails(CONVERT(in_scratch("both"), in_scratch("out")), ERR_CORRUPT,
                 "missing folder of tensor rank 1, pipeline rank 1");
    assert_false(path_exists(in_scratch("out")));
}

static void a_key_with_a_hole_is_not_written(void **state)
{
    (void)state;
    const char *hf = make_without("some", make("hf", MIXTRAL, NULL), "experts.3.w2");
    assert_fails(CONVERT(hf, in_scratch("out"), "--allow-missing=*experts.3.w2.weight"),
                 ERR_UNSUPPORTED,
                 "decoder.layers.0.mlp.experts.experts.linear_fc2.weight [4, 8, 6]: the source has "
                 "144 of its 192 elements; some layers or experts are missing");
    assert_false(path_exists(in_scratch("out")));
    /* rank files hold each expert under a name of its own */
    assert_ok(CONVERT(hf, in_scratch("out"), "--allow-missing=*experts.3.w2.weight", "--to=torch"));
    drop(unit_of(in_scratch("out")), "ferry-hf");
    drop(unit_of(in_scratch("out")), "run_config.yaml");
    assert_fails(CONVERT(in_scratch("out"), in_scratch("again"), "--to=torch"), ERR_UNSUPPORTED,
                 "2 tensors missing, 0 unexpected: "
                 "decoder.layers.0.mlp.experts.experts.3.linear_fc2.weight, ...");
}

/* ---- a tied head ---- */

static enum dtype all_f16(void *context, const char *logical)
{
    (void)context, (void)logical;
    return DT_F16;
}

static void a_copy_of_the_embedding_must_be_one(void **state)
{
    (void)state;
    const char *a = make("a", GPT2, NULL), *b = make("b", GPT2 ",'x':1", all_f16), *one, *two;
    assert_ok(CONVERT(a, in_scratch("one"), "--to=torch", "--pp=2", "--tp=2"));
    assert_ok(
        CONVERT(b, in_scratch("two"), "--to=torch", "--pp=2", "--tp=2", "--torch-dtype=bfloat16"));
    assert_ok(CONVERT(in_scratch("one"), in_scratch("same"), "--to=hf"));
    /* the last stage of another model, whose head is a copy of another
     * embedding */
    one = path_join(&scratch, unit_of(in_scratch("one")), "mp_rank_00_001/model_optim_rng.pt");
    two = path_join(&scratch, unit_of(in_scratch("two")), "mp_rank_00_001/model_optim_rng.pt");
    assert_ok(path_remove(one, &err));
    assert_ok(file_copy(two, one, false, &err));
    assert_fails(
        CONVERT(in_scratch("one"), in_scratch("out"), "--to=hf"), ERR_UNSUPPORTED,
        "mp_rank_00_001/model.output_layer.weight and "
        "mp_rank_00_000/model.embedding.word_embeddings.weight differ at element 0, but its "
        "args tie them (untie_embeddings_and_output_weights)");
}

static void norms_that_ranks_hold_otherwise_are_told(void **state)
{
    (void)state;
    const char *a = make("a", LLAMA, NULL), *b = make("b", LLAMA ",'x':1", all_f16), *one, *two;
    assert_ok(CONVERT(a, in_scratch("one"), "--to=torch", "--tp=2"));
    assert_ok(CONVERT(b, in_scratch("two"), "--to=torch", "--tp=2", "--torch-dtype=bfloat16",
                      "--allow-overflow"));
    assert_ok(NOTED(in_scratch("one"), in_scratch("same"), "--to=hf"));
    assert_null(strstr(said, "differ between ranks"));
    one = path_join(&scratch, unit_of(in_scratch("one")), "mp_rank_01/model_optim_rng.pt");
    two = path_join(&scratch, unit_of(in_scratch("two")), "mp_rank_01/model_optim_rng.pt");
    assert_ok(path_remove(one, &err));
    assert_ok(file_copy(two, one, false, &err));
    assert_ok(NOTED(in_scratch("one"), in_scratch("out"), "--to=hf"));
    assert_said("note: 5 tensors that should be equal on all ranks differ; using the "
                "first rank's: mp_rank_00/model.decoder.layers.0.");
}

/* ---- what is said ---- */

static void run_config_says_what_args_have_no_words_for(void **state)
{
    (void)state;
    const char *hf = make("hf", GPT2 ",'activation_function':'relu'", NULL),
               *out = in_scratch("out");
    assert_ok(CONVERT(hf, in_scratch("ckpt")));
    drop(unit_of(in_scratch("ckpt")), "ferry-hf");
    assert_ok(CONVERT(in_scratch("ckpt"), out, "--to=hf"));
    assert_non_null(strstr(read_text(path_join(&scratch, out, "config.json")),
                           "\"activation_function\": \"relu\""));
    drop(unit_of(in_scratch("ckpt")), "run_config.yaml");
    assert_ok(CONVERT(in_scratch("ckpt"), in_scratch("o2"), "--to=hf", "--true-vocab-size=11"));
    assert_non_null(strstr(read_text(path_join(&scratch, in_scratch("o2"), "config.json")),
                           "\"activation_function\": \"gelu\""));
}

static void tensors_of_another_shape_than_args_say_are_refused(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *ckpt = in_scratch("ckpt");
    assert_ok(CONVERT(hf, ckpt));
    drop(unit_of(ckpt), "ferry-hf");
    drop(unit_of(ckpt), "common.pt");
    const char *path = path_join(&scratch, unit_of(ckpt), "run_config.yaml");
    char *text = (char *)(uintptr_t)read_text(path);
    char *at = strstr(text, "  ffn_hidden_size: 6");
    assert_non_null(at);
    at[strlen("  ffn_hidden_size: ")] = '7';
    rewrite(unit_of(ckpt), "run_config.yaml", text);
    assert_fails(CONVERT(ckpt, in_scratch("out")), ERR_UNSUPPORTED,
                 "decoder.layers.mlp.linear_fc1.weight has shape [12, 8], but its args or "
                 "run_config.yaml requires [14, 8]");
}

static void run_config_says_the_vocabulary_that_args_do_not(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *ckpt = in_scratch("ckpt");
    assert_ok(CONVERT(hf, ckpt, "--tp=2"));
    drop(unit_of(ckpt), "ferry-hf");
    assert_fails(CONVERT(ckpt, in_scratch("out"), "--to=hf", "--true-vocab-size=10"), ERR_USAGE,
                 "run_config.yaml has 11 entries");
    assert_ok(CONVERT(ckpt, in_scratch("out"), "--to=hf"));
    check_same_weights(in_scratch("out"), hf);
    drop(unit_of(ckpt), "run_config.yaml");
    assert_fails(CONVERT(ckpt, in_scratch("o2"), "--to=hf"), ERR_UNSUPPORTED,
                 "the size of the vocabulary without padding is unknown (256 rows");
}

/* Args from before expert tensor parallelism had a size of its own. */
static void folders_tell_expert_tensor_parallelism(void **state)
{
    (void)state;
    static const char name[] = "expert_tensor_parallel_size";
    const char *hf = make("hf", MIXTRAL, NULL), *ckpt = in_scratch("ckpt");
    assert_ok(CONVERT(hf, ckpt, "--to=torch", "--tp=2", "--ep=2", "--etp=1"));
    drop(unit_of(ckpt), "ferry-hf");
    for (int r = 0; r < 2; r++) {
        struct strbuf text = {0};
        const char *path =
            arena_printf(&scratch, "%s/mp_rank_0%d_00%d/model_optim_rng.pt", unit_of(ckpt), r, r);
        assert_ok(file_read_all(path, 1 << 20, &text, &err));
        char *at = memmem(text.data, text.length, name, strlen(name));
        assert_non_null(at);
        at[0] = 'x';
        assert_ok(path_remove(path, &err));
        assert_ok(file_write_all(path, text.data, text.length, false, &err));
        strbuf_release(&text);
    }
    assert_ok(CONVERT(ckpt, in_scratch("out"), "--to=hf"));
    check_same_weights(in_scratch("out"), hf);
}

static void llama_with_biases_is_told_from_its_args(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA ",'attention_bias':true,'mlp_bias':true", NULL);
    const char *ckpt = in_scratch("ckpt");
    assert_ok(CONVERT(hf, ckpt, "--tp=2"));
    drop(unit_of(ckpt), "ferry-hf");
    assert_ok(CONVERT(ckpt, in_scratch("out"), "--to=hf"));
    check_same_weights(in_scratch("out"), hf);
    const char *text = read_text(path_join(&scratch, in_scratch("out"), "config.json"));
    assert_non_null(strstr(text, "\"attention_bias\": true"));
    assert_non_null(strstr(text, "\"mlp_bias\": true"));
}

static void exact_gelu_stays_exact(void **state)
{
    (void)state;
    static const char *const acts[] = {"gelu", "gelu_new"};
    for (int i = 0; i < 2; i++) {
        const char *hf =
            make(arena_printf(&scratch, "hf%d", i),
                 arena_printf(&scratch, GPT2 ",'activation_function':'%s'", acts[i]), NULL);
        const char *ckpt = in_scratch(arena_printf(&scratch, "ckpt%d", i));
        const char *out = in_scratch(arena_printf(&scratch, "out%d", i));
        assert_ok(NOTED(hf, ckpt));
        assert_null(strstr(said, "(used)"));
        drop(unit_of(ckpt), "ferry-hf");
        assert_ok(CONVERT(ckpt, out, "--to=hf"));
        assert_non_null(strstr(read_text(path_join(&scratch, out, "config.json")),
                               arena_printf(&scratch, "\"activation_function\": \"%s\"", acts[i])));
    }
}

/* ---- what Megatron cannot say ---- */

static void what_megatron_cannot_say_is_named_and_kept(void **state)
{
    (void)state;
    static const struct {
        const char *members, *note;
    } cases[] = {
        {GPT2 ",'scale_attn_weights':false", "softmax_scale 1: Megatron computes with 0"},
        {GPT2 ",'scale_attn_by_inverse_layer_idx':true",
         "softmax_scale_by_layer true: Megatron computes with false"},
        {GPT2 ",'activation_function':'relu'", "activation_func relu: Megatron computes with gelu"},
        {LLAMA ",'rope_scaling':{'rope_type':'dynamic','factor':4}",
         "rope_type dynamic: Megatron computes with default"},
        /* yarn of positions that config.json does not give */
        {LLAMA ",'rope_scaling':{'rope_type':'yarn','factor':4,'beta_fast':8}",
         "rope_type yarn: Megatron computes with default"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *hf = make(arena_printf(&scratch, "hf%zu", i), cases[i].members, NULL);
        const char *ckpt = in_scratch(arena_printf(&scratch, "ckpt%zu", i));
        const char *out = in_scratch(arena_printf(&scratch, "out%zu", i));
        assert_ok(NOTED(hf, ckpt));
        assert_said(
            arena_printf(&scratch, "note: Megatron's arguments cannot express %s", cases[i].note));
        assert_ok(CONVERT(ckpt, out, "--to=hf"));
        check_same_file(path_join(&scratch, out, "config.json"),
                        path_join(&scratch, hf, "config.json"));
    }
}

static void biases_that_megatron_has_no_place_for_stay_in_hugging_face(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA ",'attention_bias':true", NULL);
    assert_fails(CONVERT(hf, in_scratch("out")), ERR_UNSUPPORTED,
                 "its attention has biases but its MLP has none; Megatron has biases on all linear "
                 "layers or on q, k and v only");
    assert_ok(CONVERT(hf, in_scratch("out"), "--to=hf"));
    check_same_weights(in_scratch("out"), hf);
    /* unless only Ferry is to read them */
    assert_ok(NOTED(hf, in_scratch("own"), "--ferry-only"));
    assert_said("on q, k and v only: such parameters have names that only Ferry reads");
    assert_ok(CONVERT(in_scratch("own"), in_scratch("back"), "--to=hf"));
    check_same_weights(in_scratch("back"), hf);
    assert_fails(CONVERT(hf, in_scratch("none"), "--to=hf", "--ferry-only"), ERR_USAGE,
                 "--ferry-only does not apply to format hf");
}

static void parameters_that_no_model_of_megatron_has_are_refused(void **state)
{
    (void)state;
    const char *own = write_scratch(
        "own.json",
        json_text("{'family':'own','extends':'llama','model_type':'own','architecture':'Own',"
                  "'parameters':[{'name':'decoder.layers.{l}.x.weight','shape':'h'}],"
                  "'tensors':[{'megatron':'decoder.layers.{l}.x.weight','shape':'h',"
                  "'hf':'{p}layers.{l}.input_layernorm.weight'},"
                  "{'megatron':'decoder.layers.{l}.self_attention.linear_qkv.layer_norm_weight',"
                  "'shape':'h','when':'false','hf':'{p}layers.{l}.none'}]}"));
    const char *hf = make("hf", LLAMA, NULL), *map = arena_printf(&scratch, "--model-map=%s", own);
    assert_fails(CONVERT(hf, in_scratch("out"), map, "--model=own"), ERR_UNSUPPORTED,
                 "Megatron-Core has no model with 2 of its parameters, as "
                 "decoder.layers.0.x.weight; --ferry-only writes such parameters");
    assert_ok(CONVERT(hf, in_scratch("out"), map, "--model=own", "--ferry-only"));
    assert_ok(CONVERT(in_scratch("out"), in_scratch("back"), "--to=hf", "--model=own", map));
    check_same_weights(in_scratch("back"), hf);
}

static void the_plan_says_the_flags_that_megatron_wants_beside_its_checkpoint(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA ",'rms_norm_eps':2e-6", NULL), *ckpt = in_scratch("ckpt");
    assert_ok(NOTED(hf, in_scratch("o"), "--dry-run"));
    assert_said("flags    --norm-epsilon 2e-06 (for Megatron-LM, with --use-checkpoint-args)");
    const char *qwen = make("qwen",
                            QWEN2 ",'rms_norm_eps':1e-5,'use_sliding_window':true,"
                                  "'sliding_window':8,'max_window_layers':1",
                            NULL);
    assert_ok(NOTED(qwen, ckpt, "--iteration=5", "--dry-run"));
    assert_said("flags    --window-size 7,0 --window-attn-skip-freq [0,1] --no-load-optim "
                "--no-load-rng (for Megatron-LM");
    assert_ok(
        NOTED(make("plain", LLAMA ",'rms_norm_eps':1e-5", NULL), in_scratch("p"), "--dry-run"));
    assert_null(strstr(said, "flags"));
}

static void a_config_that_says_something_else_than_args_is_told(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *ckpt = in_scratch("ckpt");
    const char *other = make("other",
                             LLAMA ",'rms_norm_eps':1e-3,'rope_scaling':{'rope_type':"
                                   "'llama3','factor':8,'low_freq_factor':1,"
                                   "'high_freq_factor':4,"
                                   "'original_max_position_embeddings':8192}",
                             NULL);
    assert_ok(CONVERT(hf, ckpt));
    drop(unit_of(ckpt), "ferry-hf");
    assert_ok(
        NOTED(ckpt, in_scratch("out"), "--to=hf", arena_printf(&scratch, "--hf-config=%s", other)));
    assert_said("note: layernorm_epsilon is 1e-06 in the checkpoint's args, 0.001 in ");
    assert_said("note: rope_type is default in the checkpoint's args, llama3 in ");
    assert_ok(
        NOTED(ckpt, in_scratch("o2"), "--to=hf", arena_printf(&scratch, "--hf-config=%s", hf)));
    assert_null(strstr(said, "note: Megatron"));
}

static void grouped_experts_stay_grouped(void **state)
{
    (void)state;
    const char *hf = make("hf", MIXTRAL, NULL);
    assert_ok(CONVERT(hf, in_scratch("a"), "--moe-grouped-gemm"));
    assert_ok(CONVERT(in_scratch("a"), in_scratch("b"), "--ep=2"));
    assert_ok(CONVERT(hf, in_scratch("c"), "--ep=2"));
    const char *grouped = path_join(&scratch, unit_of(in_scratch("b")), "run_config.yaml"),
               *not = path_join(&scratch, unit_of(in_scratch("c")), "run_config.yaml");
    assert_non_null(strstr(read_text(grouped), "moe_grouped_gemm: true"));
    assert_non_null(strstr(read_text(not ), "moe_grouped_gemm: false"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(experts_of_ranks_that_are_not_there_are_missed),
        TEST(a_key_with_a_hole_is_not_written),
        TEST(a_copy_of_the_embedding_must_be_one),
        TEST(norms_that_ranks_hold_otherwise_are_told),
        TEST(run_config_says_what_args_have_no_words_for),
        TEST(tensors_of_another_shape_than_args_say_are_refused),
        TEST(run_config_says_the_vocabulary_that_args_do_not),
        TEST(folders_tell_expert_tensor_parallelism),
        TEST(llama_with_biases_is_told_from_its_args),
        TEST(exact_gelu_stays_exact),
        TEST(what_megatron_cannot_say_is_named_and_kept),
        TEST(biases_that_megatron_has_no_place_for_stay_in_hugging_face),
        TEST(parameters_that_no_model_of_megatron_has_are_refused),
        TEST(the_plan_says_the_flags_that_megatron_wants_beside_its_checkpoint),
        TEST(a_config_that_says_something_else_than_args_is_told),
        TEST(grouped_experts_stay_grouped),
    };
    return cmocka_run_group_tests_name("megatron_convert", tests, load_maps, release_maps);
}
