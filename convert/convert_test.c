/* ferry convert as a whole: refusals, tensors that it leaves out with a note,
 * tensors that it never loses. */
#include "formats/dcp.h"
#include "formats/torch.h"

#include "common/count.h"
#include "convert/map/testing_models.h"

/* The names in a folder's weights, a blank behind each. */
static const char *weight_names(const char *folder)
{
    struct checkpoint c;
    struct strbuf out = {0};
    strbuf_add_text(&out, "");
    open_hf_folder(&c, folder);
    for (size_t i = 0; i < c.catalog.stored.num_tensors; i++)
        strbuf_printf(&out, "%s ", c.catalog.stored.tensors[i].name);
    const char *text = arena_text(&scratch, out.data, out.length);
    strbuf_release(&out);
    checkpoint_release(&c);
    return text;
}

/* ---- missing and unexpected ---- */

static void missing_tensors_are_refused_by_name(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *out = in_scratch("out");
    const char *less = make_without("less", hf, "layers.1.self_attn.o_proj");
    assert_fails(CONVERT(less, out), ERR_UNSUPPORTED, "1 tensors missing, 0 unexpected: model.lay");
    assert_said("1 tensors are missing (--allow-missing GLOB allows them):\n"
                "  model.layers.1.self_attn.o_proj.weight\n");
    assert_false(path_exists(out));
}

/* 30 million names would be 4 GB, from 300 bytes. */
static void a_config_that_asks_for_millions_of_tensors_is_refused(void **state)
{
    (void)state;
    const char *hf = in_scratch("hf"), empty[] = "\2\0\0\0\0\0\0\0{}";
    assert_ok(folder_create(hf, &err));
    rewrite(hf, "config.json",
            json_text("{'model_type':'mixtral','vocab_size':11,'hidden_size':8,"
                      "'intermediate_size':6,'num_hidden_layers':100000,'num_attention_heads':4,"
                      "'num_key_value_heads':2,'num_local_experts':100}"));
    assert_ok(file_write_all(path_join(&scratch, hf, "model.safetensors"), empty, sizeof empty - 1,
                             false, &err));
    assert_fails(CONVERT(hf, in_scratch("out"), "--allow-missing=*"), ERR_CORRUPT,
                 "more than 100000 tensors of the model are missing; the first is "
                 "model.embed_tokens.weight");
}

/* 10,000,000 tensors would be 4 GB, from a .metadata of one entry. */
static void stacks_of_nothing_are_refused(void **state)
{
    (void)state;
    const uint64_t shape[] = {100000, 100, 0, 2}, zeros[4] = {0};
    const struct dcp_chunk chunk = {.offsets = zeros, .sizes = shape};
    const struct dcp_tensor t = {.name = "decoder.layers.mlp.experts.experts.linear_fc1.weight",
                                 .dtype = DT_BF16,
                                 .num_dims = 4,
                                 .shape = shape,
                                 .chunks = &chunk};
    const char *paths[] = {"__0_0.distcp"}, *folder = in_scratch("dist");
    assert_ok(folder_create(folder, &err));
    rewrite(folder, "metadata.json",
            json_text("{'sharded_backend':'torch_dist','sharded_backend_version':1}"));
    assert_ok(dcp_write_metadata(path_join(&scratch, folder, ".metadata"), paths, &t, 1, NULL, 0,
                                 false, &err));
    assert_fails(
        CONVERT(folder, in_scratch("out"), "--to=torch"), ERR_CORRUPT,
        "linear_fc1.weight: a stack of 100000 layers and 100 experts without any elements");
}

static void what_may_be_missing_is_left_out_and_the_rest_is_there(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *glob = "--allow-missing=*o_proj*";
    const char *less = make_without("less", hf, "layers.1.self_attn.o_proj");
    const char *dist = in_scratch("dist"), *legacy = in_scratch("legacy"), *back = in_scratch("b");
    assert_ok(CONVERT(less, in_scratch("direct"), "--to=hf", glob));
    check_same_weights(in_scratch("direct"), less);
    assert_ok(CONVERT(less, dist, glob, "--tp=2"));
    assert_fails(CONVERT(dist, back, "--to=hf"), ERR_UNSUPPORTED,
                 "1 tensors missing, 0 unexpected: decoder.layers.1.self_attention.linear_proj");
    assert_ok(CONVERT(dist, legacy, "--to=torch", "--allow-missing=*linear_proj*"));
    assert_ok(CONVERT(legacy, back, "--to=hf", "--allow-missing=*linear_proj*"));
    check_same_weights(back, less);
}

static void parts_of_an_incomplete_tensor_are_not_dropped_in_silence(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *out = in_scratch("out");
    const char *less = make_without("less", hf, "layers.1.self_attn.k_proj");
    assert_fails(CONVERT(less, out, "--to=hf"), ERR_UNSUPPORTED, "1 tensors missing, 0 unexpected");
    assert_fails(NOTED(less, out, "--to=hf", "--allow-missing=*k_proj*"), ERR_UNSUPPORTED,
                 "0 tensors missing, 2 unexpected: model.layers.1.self_attn.q_proj.weight, ...");
    assert_said("note: model.layers.1.self_attn.q_proj.weight is not converted: other parts of "
                "decoder.layers.1.self_attention.linear_qkv.weight are missing\n");
    assert_ok(CONVERT(less, out, "--to=hf", "--allow-missing=*k_proj*",
                      "--allow-unexpected=*layers.1.self_attn*"));
    check_same_weights(out, make_without("rest", less, "layers.1.self_attn.q_proj") ? out : out);
    assert_null(strstr(weight_names(out), "layers.1.self_attn.q_proj"));
    assert_non_null(strstr(weight_names(out), "layers.1.self_attn.o_proj"));
    assert_non_null(strstr(weight_names(out), "layers.0.self_attn.q_proj"));
}

static void unexpected_tensors_are_refused_by_name(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *out = in_scratch("out");
    rewrite(hf, "config.json", json_text("{" LLAMA ",'tie_word_embeddings':false}"));
    assert_ok(CONVERT(hf, out));
    const char *fewer = json_text("{'model_type':'llama','vocab_size':11,'hidden_size':8,"
                                  "'intermediate_size':6,'num_hidden_layers':1,"
                                  "'num_attention_heads':4,'num_key_value_heads':2,'head_dim':2}");
    rewrite(hf, "config.json", fewer);
    assert_fails(CONVERT(hf, in_scratch("o2")), ERR_UNSUPPORTED, "0 tensors missing, 9 unexpected");
    assert_said("9 tensors of the source have no place in the model and would be left out "
                "(--allow-unexpected GLOB allows them):\n  model.layers.1.");
    assert_ok(CONVERT(hf, in_scratch("o2"), "--allow-unexpected=model.layers.1.*"));
}

/* A converter must not silently drop tensors that its table lacks. */
static void parameters_that_the_family_has_no_name_for_are_not_dropped(void **state)
{
    (void)state;
    const char *hf = make("hf", QWEN2, NULL), *ckpt = in_scratch("ckpt"), *out = in_scratch("out");
    const char *as_llama = in_scratch("as_llama");
    assert_ok(CONVERT(hf, ckpt));
    assert_ok(path_remove(path_join(&scratch, ckpt, "iter_0000000/ferry-hf"), &err));
    assert_ok(folder_create(as_llama, &err));
    rewrite(as_llama, "config.json",
            json_text("{'model_type':'llama','vocab_size':11,'hidden_size':8,'intermediate_size':6,"
                      "'num_hidden_layers':2,'num_attention_heads':4,'num_key_value_heads':2}"));
    const char *config = arena_printf(&scratch, "--hf-config=%s", as_llama);
    assert_fails(
        CONVERT(ckpt, out, "--to=hf", config), ERR_UNSUPPORTED,
        "0 tensors missing, 2 unexpected: decoder.layers.0.self_attention.linear_qkv.bias");
    assert_false(path_exists(out));
    assert_ok(CONVERT(ckpt, out, "--to=hf", config, "--allow-unexpected=*linear_qkv.bias"));
    assert_null(strstr(weight_names(out), "bias"));
    /* nor may config.json claim another model than the tensors are of */
    assert_fails(
        CONVERT(ckpt, in_scratch("o2"), "--to=hf", "--model=llama", "--true-vocab-size=11"),
        ERR_UNSUPPORTED, "family llama cannot express add_proj_bias false");
}

/* ---- dtypes ---- */

static void parts_of_one_tensor_must_be_of_one_dtype_or_cast(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *out = in_scratch("out");
    struct checkpoint c;
    /* two models: q of one, the rest of the other */
    const char *f32 = make("f32", LLAMA ",'x':1", by_layer);
    open_hf_folder(&c, hf);
    checkpoint_release(&c);
    const char *mixed = in_scratch("mixed");
    assert_ok(folder_create(mixed, &err));
    const char *rest = make_without("rest", hf, "layers.1.self_attn.q_proj");
    const char *others[] = {"layers.0", "k_proj", "v_proj", "o_proj",
                            "mlp",      "norm",   "embed",  "lm_"};
    const char *only = f32;
    for (size_t i = 0; i < COUNT(others); i++)
        only = make_without(arena_printf(&scratch, "only%zu", i), only, others[i]);
    assert_ok(file_copy(path_join(&scratch, rest, "model.safetensors"),
                        path_join(&scratch, mixed, "model-00001-of-00002.safetensors"), false,
                        &err));
    assert_ok(file_copy(path_join(&scratch, only, "model.safetensors"),
                        path_join(&scratch, mixed, "model-00002-of-00002.safetensors"), false,
                        &err));
    assert_ok(file_copy(path_join(&scratch, hf, "config.json"),
                        path_join(&scratch, mixed, "config.json"), false, &err));
    assert_fails(CONVERT(mixed, out), ERR_UNSUPPORTED,
                 "model.layers.1.self_attn.q_proj.weight is F32 and "
                 "model.layers.1.self_attn.k_proj.weight is BF16, but both are parts of "
                 "decoder.layers.1.self_attention.linear_qkv.weight; --torch-dtype casts them");
    assert_ok(CONVERT(mixed, out, "--torch-dtype=float32"));
    assert_ok(CONVERT(out, in_scratch("back"), "--to=hf"));
    open_hf_folder(&c, in_scratch("back"));
    for (size_t i = 0; i < c.catalog.stored.num_tensors; i++)
        assert_int_equal(c.catalog.stored.tensors[i].dtype, DT_F32);
    struct checkpoint source;
    open_hf_folder(&source, only);
    const char *q = "model.layers.1.self_attn.q_proj.weight";
    check_same_stored(&c, stored_find(&c.catalog.stored, q), &source,
                      stored_find(&source.catalog.stored, q), UINT64_MAX);
    checkpoint_release(&source);
    checkpoint_release(&c);
    assert_non_null(strstr(read_text(path_join(&scratch, in_scratch("back"), "config.json")),
                           "\"torch_dtype\": \"float32\""));
}

/* The common state that a torch_dist folder has in common.pt. */
static bool content_says(const char *folder, const char *name)
{
    struct stored s;
    struct torch_file t;
    bool truth = false;
    stored_init(&s);
    assert_ok(torch_open(&t, &s, path_join(&scratch, folder, "iter_0000000/common.pt"), 0,
                         UINT64_MAX, &err));
    (void)value_as_bool(value_get(value_get(t.root, "content_metadata"), name), &truth);
    torch_close(&t);
    stored_release(&s);
    return truth;
}

static bool has_key(const char *folder, const char *key)
{
    struct stored s;
    stored_init(&s);
    assert_ok(dcp_open(&s, path_join(&scratch, folder, "iter_0000000"), true, &err));
    bool there = stored_find(&s, key) != NULL;
    stored_release(&s);
    return there;
}

static void layers_that_differ_in_dtype_are_named_one_by_one(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, by_layer), *out = in_scratch("out");
    const char *alike = in_scratch("alike");
    assert_ok(CONVERT(hf, out, "--tp=2"));
    assert_true(has_key(out, "decoder.layers.1.mlp.linear_fc2.weight"));
    assert_true(content_says(out, "non_homogeneous_layers"));
    assert_ok(CONVERT(out, in_scratch("back"), "--to=hf"));
    check_same_weights(in_scratch("back"), hf);
    assert_ok(CONVERT(hf, alike, "--tp=2", "--torch-dtype=bf16"));
    assert_true(has_key(alike, "decoder.layers.mlp.linear_fc2.weight"));
    assert_false(content_says(alike, "non_homogeneous_layers"));
}

static void experts_that_differ_in_dtype_have_no_place_in_torch_dist(void **state)
{
    (void)state;
    const char *hf = make("hf", MIXTRAL, by_expert), *legacy = in_scratch("legacy");
    assert_fails(
        CONVERT(hf, in_scratch("out")), ERR_UNSUPPORTED,
        "decoder.layers.0.mlp.experts.experts.1.linear_fc1.weight has dtype F16, but other "
        "parts of its stacked tensor decoder.layers.0.mlp.experts.experts.linear_fc1.weight "
        "have BF16; --torch-dtype casts them");
    assert_ok(CONVERT(hf, in_scratch("cast"), "--torch-dtype=float32"));
    assert_ok(CONVERT(hf, legacy, "--to=torch", "--ep=2"));
    assert_ok(CONVERT(legacy, in_scratch("back"), "--to=hf"));
    check_same_weights(in_scratch("back"), hf);
}

static void config_json_says_the_dtype_that_weights_have(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, by_layer), *ckpt = in_scratch("ckpt");
    const char *config = arena_printf(&scratch, "--hf-config=%s", in_scratch("c"));
    assert_ok(CONVERT(hf, ckpt, "--torch-dtype=float32"));
    assert_non_null(
        strstr(read_text(path_join(&scratch, ckpt, "iter_0000000/ferry-hf/config.json")),
               "\"torch_dtype\": \"float32\""));
    assert_ok(folder_create(in_scratch("c"), &err));
    rewrite(in_scratch("c"), "config.json",
            json_text("{" LLAMA ",'quantization_config':{'a':1},'other':[1]}"));
    assert_ok(CONVERT(ckpt, in_scratch("out"), "--to=hf", config));
    const char *text = read_text(path_join(&scratch, in_scratch("out"), "config.json"));
    assert_non_null(strstr(text, "\"torch_dtype\": \"float32\""));
    assert_null(strstr(text, "quantization"));
    assert_non_null(strstr(text, "\"other\": ["));
}

/* ---- what a checkpoint does not say ---- */

static void exporting_without_a_config_says_all_that_is_wanted_at_once(void **state)
{
    (void)state;
    const char *golden = "tests/golden/megatron/llama-0.16.1-tp2/checkpoint";
    const char *out = in_scratch("out");
    assert_fails(
        CONVERT(golden, out, "--to=hf"), ERR_UNSUPPORTED,
        "no model family fits its args or run_config.yaml; the nearest is llama, "
        "except for position_embedding_type not given; --hf-config DIR takes the config from a "
        "config.json");
    assert_fails(CONVERT(golden, out, "--to=hf", "--model=llama"), ERR_UNSUPPORTED,
                 "its args or run_config.yaml lack: vocab_size, activation_func, "
                 "layernorm_epsilon, rotary_base; --hf-config DIR takes the config from a "
                 "config.json");
    assert_fails(CONVERT(golden, out, "--to=hf", "--model=llama", "--true-vocab-size=43"),
                 ERR_UNSUPPORTED, "lack: activation_func, layernorm_epsilon, rotary_base; --hf-c");
    const char *full = "tests/golden/megatron/llama-0.12.0-tp2pp2/checkpoint";
    assert_fails(CONVERT(full, out, "--to=hf"), ERR_UNSUPPORTED,
                 "the size of the vocabulary without padding is unknown (48 rows are "
                 "stored): give --true-vocab-size N or --hf-config DIR");
    assert_fails(CONVERT(full, out, "--to=hf", "--true-vocab-size=49"), ERR_UNSUPPORTED,
                 "embedding.word_embeddings.weight has 48 rows, but --true-vocab-size gives a "
                 "vocabulary of 49");
    assert_fails(CONVERT(full, out, "--to=hf", "--model=zzz"), ERR_USAGE,
                 "--model zzz: unknown family");
    assert_false(path_exists(out));
}

static void rows_of_an_unknown_vocabulary_are_all_kept(void **state)
{
    (void)state;
    const char *golden = "tests/golden/megatron/llama-0.12.0-tp2pp2/checkpoint";
    const char *ckpt = in_scratch("ckpt"), *legacy = in_scratch("legacy");
    const char *all = "--true-vocab-size=48";
    assert_ok(CONVERT(golden, ckpt, "--to=torch_dist", "--tp=1", "--pp=4"));
    assert_ok(CONVERT(ckpt, legacy, "--to=torch", "--make-vocab-size-divisible-by=50"));
    assert_ok(CONVERT(golden, in_scratch("a"), "--to=hf", all));
    assert_ok(CONVERT(ckpt, in_scratch("b"), "--to=hf", all));
    assert_ok(CONVERT(legacy, in_scratch("c"), "--to=hf", all));
    check_same_weights(in_scratch("b"), in_scratch("a"));
    check_same_weights(in_scratch("c"), in_scratch("a"));
    assert_ok(NOTED(golden, in_scratch("d"), "--dry-run", "--tp=4"));
    assert_said("vocab    true size not known: all stored rows are kept, 64 with padding "
                "(0 rows from the source, 16 new, zero)");
}

static void the_true_vocabulary_cannot_contradict_config_json(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *ckpt = in_scratch("ckpt");
    assert_fails(CONVERT(hf, ckpt, "--true-vocab-size=10"), ERR_USAGE,
                 "--true-vocab-size 10: the vocabulary of ");
    assert_ok(CONVERT(hf, ckpt, "--true-vocab-size=11"));
    assert_fails(CONVERT(ckpt, in_scratch("out"), "--to=hf", "--true-vocab-size=10"), ERR_USAGE,
                 "ferry-hf/config.json has 11 entries");
    assert_ok(CONVERT(ckpt, in_scratch("out"), "--to=hf", "--true-vocab-size=11"));
}

static void a_config_of_another_model_is_refused(void **state)
{
    (void)state;
    const char *hf = make("hf", MIXTRAL ",'tie_word_embeddings':false", NULL);
    const char *ckpt = in_scratch("ckpt"), *c = in_scratch("c");
    const char *config = arena_printf(&scratch, "--hf-config=%s", c);
    static const char *const wrong[][2] = {
        {"'num_hidden_layers':3", "num_layers is 2 in the checkpoint, 3 by "},
        {"'hidden_size':16", "hidden_size is 8 in the checkpoint, 16 by "},
        {"'num_local_experts':2", "num_experts is 4 in the checkpoint, 2 by "},
        {"'num_key_value_heads':4", "num_query_groups is 2 in the checkpoint, 4 by "},
        {"'head_dim':4", "kv_channels is 2 in the checkpoint, 4 by "},
        {"'tie_word_embeddings':true", "has a separate head (output_layer.weight), but "},
    };
    assert_ok(CONVERT(hf, ckpt));
    assert_ok(folder_create(c, &err));
    for (size_t i = 0; i < COUNT(wrong); i++) {
        cJSON *tree = json_tree("{" MIXTRAL ",'tie_word_embeddings':false}"),
              *patch = json_tree(arena_printf(&scratch, "{%s}", wrong[i][0]));
        struct strbuf text = {0};
        cJSON_DeleteItemFromObjectCaseSensitive(tree, patch->child->string);
        cJSON_AddItemToObject(tree, patch->child->string, cJSON_Duplicate(patch->child, true));
        json_print(&text, tree, 2);
        rewrite(c, "config.json", text.data);
        assert_fails(CONVERT(ckpt, in_scratch("out"), "--to=torch", config), ERR_UNSUPPORTED,
                     wrong[i][1]);
        strbuf_release(&text);
        cJSON_Delete(tree);
        cJSON_Delete(patch);
    }
    rewrite(c, "config.json",
            json_text("{" MIXTRAL ",'tie_word_embeddings':false,"
                      "'rms_norm_eps':0.5,'rope_theta':3}"));
    assert_ok(NOTED(ckpt, in_scratch("out"), "--to=hf", config));
    assert_said("note: layernorm_epsilon is 1e-05 in the checkpoint's args, 0.5 in ");
    assert_said("note: rotary_base is 1000000 in the checkpoint's args, 3 in ");
}

/* ---- tied heads ---- */

static void a_tied_head_that_is_stored_must_equal_the_embedding(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA ",'tie_word_embeddings':false", NULL);
    const char *out = in_scratch("out");
    rewrite(hf, "config.json", json_text("{" LLAMA ",'tie_word_embeddings':true}"));
    assert_fails(CONVERT(hf, out), ERR_UNSUPPORTED,
                 "model.safetensors: tensor lm_head.weight and model.embed_tokens.weight differ at "
                 "element 0, but config.json says that they are tied (tie_word_embeddings)");
}

/* pytorch_model.bin with an embedding and a head that is stored by columns. */
static const char *make_bin(const char *name, bool same)
{
    const char *hf = make(arena_printf(&scratch, "%s-st", name), LLAMA, NULL);
    const char *folder = in_scratch(name);
    struct value *root = value_dict(&scratch), *head;
    struct strbuf file = {0};
    struct checkpoint c;
    const void *data[64];
    size_t n = 0;
    open_hf_folder(&c, hf);
    for (size_t i = 0; i < c.catalog.stored.num_tensors; i++) {
        const struct stored_tensor *s = &c.catalog.stored.tensors[i];
        char key[8];
        if (strcmp(s->name, "lm_head.weight") == 0) continue;
        snprintf(key, sizeof key, "%zu", n);
        value_dict_set(&scratch, root, s->name,
                       value_tensor(&scratch, key, s->dtype, s->num_dims, s->shape));
        data[n++] = stored_elements(&c, s);
    }
    const struct stored_tensor *e = stored_find(&c.catalog.stored, "model.embed_tokens.weight");
    const uint16_t *rows = stored_elements(&c, e);
    uint64_t V = e->shape[0], h = e->shape[1], *stride = arena_array(&scratch, 2, sizeof *stride);
    uint16_t *columns = arena_array(&scratch, V * h, sizeof *columns);
    for (uint64_t i = 0; i < V * h; i++)
        columns[i % h * V + i / h] = rows[i];
    if (!same) columns[3 * V + 5] ^= 1;
    char key[8];
    snprintf(key, sizeof key, "%zu", n);
    head = value_tensor(&scratch, key, e->dtype, 2, e->shape);
    stride[0] = 1;
    stride[1] = V;
    head->tensor->stride = stride;
    value_dict_set(&scratch, root, "lm_head.weight", head);
    data[n++] = columns;
    assert_ok(torch_to_bytes(&file, "archive", root, data, &err));
    assert_ok(folder_create(folder, &err));
    assert_ok(file_write_all(path_join(&scratch, folder, "pytorch_model.bin"), file.data,
                             file.length, false, &err));
    rewrite(folder, "config.json", json_text("{" LLAMA ",'tie_word_embeddings':true}"));
    strbuf_release(&file);
    checkpoint_release(&c);
    return folder;
}

static void a_tied_head_is_compared_however_it_is_stored(void **state)
{
    (void)state;
    const char *good = make_bin("good", true), *bad = make_bin("bad", false);
    assert_ok(CONVERT(good, in_scratch("out")));
    assert_fails(CONVERT(bad, in_scratch("out2")), ERR_UNSUPPORTED, "differ at element 43, but");
}

static void tied_models_stay_tied(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA ",'tie_word_embeddings':true", NULL);
    const char *legacy = in_scratch("legacy"), *dist = in_scratch("dist");
    assert_null(strstr(weight_names(hf), "lm_head"));
    assert_ok(CONVERT(hf, legacy, "--to=torch", "--tp=2", "--pp=2"));
    assert_ok(CONVERT(legacy, dist, "--to=torch_dist", "--pp=1"));
    assert_false(has_key(dist, "output_layer.weight"));
    assert_ok(CONVERT(dist, in_scratch("out"), "--to=hf"));
    check_same_weights(in_scratch("out"), hf);
}

/* ---- where a Megatron checkpoint is ---- */

static void iterations_are_found_or_refused(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *root = in_scratch("root"), *out = in_scratch("out");
    const char *tracker = "latest_checkpointed_iteration.txt";
    const char *one = path_join(&scratch, root, "iter_0000005");
    static const char *const trackers[][2] = {
        {"", "latest_checkpointed_iteration.txt: neither a number nor \"release\""},
        {"zzz", "neither a number nor"},
        {"5x", "neither a number nor"},
        {"-5", "neither a number nor"},
        {"7", "missing folder iter_0000007, named by the tracker file"},
        {"release", "missing folder release, named by the tracker file; found iter_0000005, "
                    "iter_0000006; --ckpt-step 5 reads iter_0000005"},
    };
    assert_ok(CONVERT(hf, root, "--iteration=5"));
    assert_ok(CONVERT(hf, root, "--iteration=6"));
    assert_string_equal(read_text(path_join(&scratch, root, tracker)), "6");
    assert_ok(CONVERT(root, in_scratch("a"), "--to=hf", "--ckpt-step=5"));
    assert_ok(CONVERT(one, in_scratch("b"), "--to=hf"));
    assert_ok(CONVERT(one, in_scratch("c"), "--to=hf", "--ckpt-step=5"));
    assert_fails(CONVERT(one, out, "--to=hf", "--ckpt-step=6"), ERR_USAGE,
                 "--ckpt-step 6: the path is a single iteration");
    assert_fails(CONVERT(root, out, "--to=hf", "--ckpt-step=8"), ERR_IO,
                 "missing folder iter_0000008, named by --ckpt-step");
    assert_fails(CONVERT(hf, out, "--ckpt-step=8"), ERR_USAGE, "a Hugging Face folder has no iter");
    for (size_t i = 0; i < COUNT(trackers); i++) {
        rewrite(root, tracker, trackers[i][0]);
        assert_int_not_equal(CONVERT(root, out, "--to=hf"), OK);
        if (!strstr(err.text, trackers[i][1])) fail_msg("%s: %s", trackers[i][0], err.text);
    }
    assert_ok(path_remove(path_join(&scratch, one, ".metadata"), &err));
    assert_fails(CONVERT(one, out, "--to=hf"), ERR_CORRUPT, "metadata.json without .metadata");
}

static void trackers_say_release_where_nothing_was_trained(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *root = in_scratch("root");
    assert_ok(CONVERT(hf, root));
    const char *tracker = path_join(&scratch, root, "latest_checkpointed_iteration.txt");
    assert_string_equal(read_text(tracker), "release");
    assert_true(path_is_folder(path_join(&scratch, root, "release")));
    assert_ok(CONVERT(root, in_scratch("hf2"), "--to=hf"));
    check_same_weights(in_scratch("hf2"), hf);
}

static void a_release_whose_link_was_lost_is_iteration_0(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *root = in_scratch("root");
    const char *link = path_join(&scratch, root, "release");
    assert_ok(CONVERT(hf, root));
    assert_ok(path_remove(link, &err));
    assert_ok(NOTED(root, in_scratch("hf2"), "--to=hf"));
    assert_said("missing folder release, named by the tracker file; its only iteration, "
                "iter_0000000, is read as the release");
    check_same_weights(in_scratch("hf2"), hf);
    assert_ok(RUN(command_inspect, root));
    assert_said("iteration  release");
    assert_int_equal(symlink("/gone/iter_0000000", link), 0);
    assert_ok(NOTED(root, in_scratch("hf3"), "--to=hf"));
    assert_said("release is a link to /gone/iter_0000000, which is missing; its only iteration, ");
    assert_ok(path_remove(link, &err));
    assert_int_equal(symlink("iter_0000005", link), 0);
    assert_fails(CONVERT(root, in_scratch("out"), "--to=hf"), ERR_IO,
                 "root: release is a link to iter_0000005, which is missing; found iter_0000000; "
                 "--ckpt-step 0 reads iter_0000000");
    assert_ok(path_remove(path_join(&scratch, root, "iter_0000000/.metadata"), &err));
    assert_ok(path_remove(link, &err));
    assert_int_not_equal(CONVERT(root, in_scratch("out"), "--to=hf"), OK);
    assert_ok(path_remove(path_join(&scratch, root, "iter_0000000"), &err));
    assert_fails(CONVERT(root, in_scratch("out"), "--to=hf"), ERR_IO,
                 "root: missing folder release, named by the tracker file");
}

/* Removes both trackers of a root. */
static void remove_trackers(const char *root)
{
    assert_ok(path_remove(path_join(&scratch, root, "latest_checkpointed_iteration.txt"), &err));
    assert_ok(path_remove(path_join(&scratch, root, "latest_train_state.pt"), &err));
}

static void roots_without_a_tracker_have_one_iteration_or_are_refused(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *dist = in_scratch("dist"), *torch = in_scratch("t");
    assert_ok(CONVERT(hf, dist, "--iteration=5"));
    assert_ok(folder_create(path_join(&scratch, dist, "iter_0000007-old"), &err));
    remove_trackers(dist);
    assert_ok(NOTED(dist, in_scratch("a"), "--to=hf"));
    assert_said("dist has no tracker file: its only iteration, iter_0000005, is read");
    check_same_weights(in_scratch("a"), hf);
    write_scratch("dist/iter_0000005/.ferry-lock", ""); /* unfinished */
    assert_fails(CONVERT(dist, in_scratch("out"), "--to=hf"), ERR_UNSUPPORTED,
                 "without a tracker file: give one of its folders iter_N");
    assert_ok(path_remove(in_scratch("dist/iter_0000005/.ferry-lock"), &err));
    /* a release and its link are one */
    assert_ok(CONVERT(hf, torch, "--to=torch", "--tp=2"));
    remove_trackers(torch);
    assert_ok(NOTED(torch, in_scratch("b"), "--to=hf"));
    assert_said("its only iteration, release, is read");
    const char *link = path_join(&scratch, torch, "release");
    assert_ok(path_remove(link, &err));
    assert_int_equal(rename(path_join(&scratch, torch, "iter_0000000"), link), 0);
    assert_ok(RUN(command_inspect, torch));
    assert_said("iteration  release");

    assert_ok(CONVERT(hf, dist, "--iteration=6"));
    remove_trackers(dist);
    assert_fails(CONVERT(dist, in_scratch("out"), "--to=hf"), ERR_UNSUPPORTED,
                 "dist: this is a folder of Megatron iterations without a tracker file: "
                 "--ckpt-step N reads one of them: iter_0000005, iter_0000006");
    assert_ok(CONVERT(dist, in_scratch("c"), "--to=hf", "--ckpt-step=6"));
    /* a model with an iteration in its folder stays a model */
    assert_int_equal(
        rename(path_join(&scratch, dist, "iter_0000005"), path_join(&scratch, hf, "iter_0000005")),
        0);
    assert_ok(NOTED(hf, in_scratch("d"), "--tp=2"));
    if (strstr(said, "also matches")) fail_msg("%s", said);
}

/* ---- experts ---- */

static void experts_are_counted(void **state)
{
    (void)state;
    const char *hf = make("hf", MIXTRAL, NULL), *dist = in_scratch("dist"), *c = in_scratch("c");
    assert_ok(CONVERT(hf, dist, "--to=torch_dist"));
    /* without args, run_config.yaml and config.json: sizes come from the
     * tensors */
    const char *one = path_join(&scratch, dist, "iter_0000000");
    assert_ok(path_remove(path_join(&scratch, one, "common.pt"), &err));
    assert_ok(path_remove(path_join(&scratch, one, "run_config.yaml"), &err));
    assert_ok(path_remove(path_join(&scratch, one, "ferry-hf"), &err));
    assert_fails(CONVERT(dist, in_scratch("out"), "--to=torch_dist"), ERR_UNSUPPORTED,
                 "unknown number of heads, given by neither args nor run_config.yaml; --hf-config");
    assert_ok(folder_create(c, &err));
    rewrite(c, "config.json", json_text("{" MIXTRAL "}"));
    assert_ok(CONVERT(dist, in_scratch("out"), "--to=torch_dist", "--ep=2",
                      arena_printf(&scratch, "--hf-config=%s", c)));
    assert_ok(CONVERT(in_scratch("out"), in_scratch("hf2"), "--to=hf"));
    check_same_weights(in_scratch("hf2"), hf);
    rewrite(c, "config.json",
            json_text("{'model_type':'mixtral','vocab_size':11,'hidden_size':8,"
                      "'intermediate_size':6,'num_hidden_layers':2,'num_attention_heads':4,"
                      "'num_key_value_heads':2,'head_dim':2,'num_local_experts':3}"));
    assert_fails(CONVERT(dist, in_scratch("o2"), "--to=torch_dist",
                         arena_printf(&scratch, "--hf-config=%s", c)),
                 ERR_UNSUPPORTED, "num_experts is 4 in the checkpoint, 3 by ");
}

/* ---- quantised weights ---- */

static void a_quantised_model_is_called_so(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA ",'quantization_config':{'quant_method':'fp8'}", NULL);
    assert_ok(NOTED(hf, in_scratch("out")));
    assert_said("note: config.json names a quantisation (quant_method \"fp8\"), but no weight is "
                "encoded");
    rewrite(hf, "config.json", json_text("{" LLAMA ",'quantization_config':{'quant_method':'x'}}"));
    assert_fails(CONVERT(hf, in_scratch("o2")), ERR_UNSUPPORTED,
                 "its weights are quantised in a way that Ferry does not know: quant_method \"x\"; "
                 "dequantise them first");
}

/* ---- names ---- */

static void a_base_models_names_are_read_and_written_in_every_family(void **state)
{
    (void)state;
#define SIZES                                                                                      \
    "'vocab_size':11,'hidden_size':8,'intermediate_size':6,'num_hidden_layers':2,"                 \
    "'num_attention_heads':4,'num_key_value_heads':2,'tie_word_embeddings':true"
    static const char *const families[] = {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "mixtral','num_local_experts':2,'x':'",
        "qwen3_moe','num_experts':8,'moe_intermediate_size':4,'x':'"};
    for (size_t i = 0; i < COUNT(families); i++) {
        const char *members = arena_printf(&scratch, "'model_type':'%s'," SIZES, families[i]);
        const char *whole = make(arena_printf(&scratch, "whole%zu", i), members, NULL);
        const char *base = make(arena_printf(&scratch, "base%zu", i), members, NULL);
        const char *out = in_scratch(arena_printf(&scratch, "out%zu", i));
        take_off(base, "model.");
        const char *there = in_scratch(arena_printf(&scratch, "there%zu", i));
        assert_ok(CONVERT(base, out, "--to=hf"));
        check_same_weights(out, base);
        assert_ok(CONVERT(base, there));
        assert_ok(CONVERT(there, in_scratch("back"), "--to=hf"));
        check_same_weights(in_scratch("back"), base);
        assert_ok(path_remove(path_join(&scratch, there, "iter_0000000/ferry-hf/ferry-names.json"),
                              &err));
        assert_ok(CONVERT(there, in_scratch("usual"), "--to=hf"));
        check_same_weights(in_scratch("usual"), whole);
        assert_ok(path_remove(in_scratch("back"), &err));
        assert_ok(path_remove(in_scratch("usual"), &err));
    }
}

/* ---- notes and flags ---- */

static void each_note_is_said_once(void **state)
{
    (void)state;
    const char *hf = make("hf",
                          LLAMA ",'rope_scaling':{'rope_type':'llama3','factor':8,"
                                "'low_freq_factor':1,'high_freq_factor':4,"
                                "'original_max_position_embeddings':32}",
                          NULL);
    const char *note = "note: Megatron's arguments cannot express rope_original_max_position 32: "
                       "Megatron computes with 8192";
    assert_ok(NOTED(hf, in_scratch("out")));
    assert_said(note);
    assert_null(strstr(strstr(said, note) + 1, note));
    assert_ok(CONVERT(hf, in_scratch("quiet")));
    assert_string_equal(said, "");
}

static void options_without_a_use_are_refused(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *out = in_scratch("out");
    static const char *const flags[][2] = {
        {"--to=hf", "--tp=2"},
        {"--to=hf", "--vpp=2"},
        {"--to=hf", "--iteration=2"},
        {"--to=hf", "--make-vocab-size-divisible-by=2"},
        {"--to=hf", "--transformer-impl=local"},
        {"--to=hf", "--common-state=object"},
        {"--to=torch", "--common-state=object"},
        {"--to=torch", "--max-shard-size=5GB"},
        {"--to=torch_dist", "--max-shard-size=5GB"},
    };
    for (size_t i = 0; i < COUNT(flags); i++)
        assert_fails(CONVERT(hf, out, flags[i][0], flags[i][1]), ERR_USAGE,
                     " does not apply to format ");
    assert_fails(CONVERT(hf, out, "--torch-dtype=int8"), ERR_USAGE, "not one of bfloat16, float16");
    assert_fails(CONVERT(hf, out, "--make-vocab-size-divisible-by=4000000000"), ERR_USAGE,
                 "is too large");
    assert_false(path_exists(out));
}

static void layouts_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *out = in_scratch("out");
    assert_fails(CONVERT(hf, out, "--tp=3"), ERR_UNSUPPORTED,
                 "num_attention_heads 4 is not divisible by tensor parallel size 3");
    assert_fails(CONVERT(hf, out, "--tp=4"), ERR_UNSUPPORTED,
                 "ffn_hidden_size 6 is not divisible by tensor parallel size 4");
    assert_fails(CONVERT(hf, out, "--pp=3"), ERR_UNSUPPORTED, "pipeline size 3");
    assert_fails(CONVERT(hf, out, "--ep=2"), ERR_UNSUPPORTED, "the model has no experts");
    assert_fails(CONVERT(hf, out, "--vpp=2"), ERR_UNSUPPORTED, "virtual pipeline");
}

/* ---- odd contents ---- */

static void tensors_in_the_common_state_do_not_stop_a_conversion(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *ckpt = in_scratch("ckpt"), *out = in_scratch("out");
    const uint64_t two = 2;
    const float data[] = {1, 2};
    assert_ok(CONVERT(hf, ckpt));
    set_common(path_join(&scratch, ckpt, "iter_0000000"), false, "ema",
               value_tensor(&scratch, "0", DT_F32, 1, &two), data);
    assert_ok(NOTED(ckpt, out, "--tp=2"));
    assert_said("note: common state: ema is left out, since it holds tensors\n");
    assert_ok(CONVERT(out, in_scratch("back"), "--to=hf"));
    check_same_weights(in_scratch("back"), hf);
}

static void norms_that_are_stored_minus_one_are_not_exported(void **state)
{
    (void)state;
    const char *hf = make("hf", LLAMA, NULL), *ckpt = in_scratch("ckpt");
    assert_ok(CONVERT(hf, ckpt));
    struct value *d = value_dict(&scratch);
    value_dict_set(&scratch, d, "apply_layernorm_1p", value_bool(&scratch, true));
    set_common(path_join(&scratch, ckpt, "iter_0000000"), false, "args",
               value_instance(&scratch, "argparse", "Namespace", d), NULL);
    assert_fails(
        CONVERT(ckpt, in_scratch("out"), "--to=hf"), ERR_UNSUPPORTED,
        "unknown fields may change what the model computes (--allow-config FIELD exports without "
        "them): args: layernorm_zero_centered_gamma true");
    assert_ok(CONVERT(ckpt, in_scratch("out"), "--to=torch"));
    assert_ok(CONVERT(ckpt, in_scratch("without"), "--to=hf", "--allow-config=*gamma"));
}

static void optimizer_state_is_not_lost_in_silence(void **state)
{
    (void)state;
    const char *golden = "tests/golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint";
    assert_fails(CONVERT(golden, in_scratch("out"), "--to=hf"), ERR_UNSUPPORTED,
                 "holds optimizer state (distributed, fully_reshardable): --optim writes it beside "
                 "the weights, --no-optim leaves it out");
    assert_ok(CONVERT(golden, in_scratch("out"), "--to=torch"));
}

/* ---- bad configs, with tensors beside them ---- */

static void configs_that_do_not_fit_the_tensors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"hidden_size\": 8", "\"hidden_size\": 16",
         "tensor model.embed_tokens.weight has shape [16, 8], expected [16, 16] by config.json"},
        {"\"vocab_size\": 16", "\"vocab_size\": 17",
         "tensor model.embed_tokens.weight has shape [16, 8], expected [17, 8] by config.json"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2",
         "tensor model.layers.0.self_attn.k_proj.weight has shape [4, 8], expected"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "9 tensors missing"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 0", "num_layers is 0"},
        {"\"num_attention_heads\": 2", "\"num_attention_heads\": 0", "num_attention_heads is 0"},
        {"\"llama\"", "\"zzz\"", "model_type \"zzz\" is not supported"},
        {"{", "[", "config.json"},
    };
    const char *folder = in_scratch("hf"), *tiny = "tests/golden/hf-tiny";
    const char *text = read_text(path_join(&scratch, tiny, "config.json"));
    assert_ok(folder_create(folder, &err));
    assert_ok(file_copy(path_join(&scratch, tiny, "model.safetensors"),
                        path_join(&scratch, folder, "model.safetensors"), false, &err));
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        rewrite(folder, "config.json",
                arena_printf(&scratch, "%.*s%s%s", (int)(at - text), text, cases[i].to,
                             at + strlen(cases[i].from)));
        enum status st = CONVERT(folder, in_scratch("out"), "--dry-run");
        if (st != ERR_UNSUPPORTED && st != ERR_CORRUPT) fail_msg("%s: %d", cases[i].to, (int)st);
        if (!strstr(err.text, cases[i].message)) fail_msg("%s: %s", cases[i].to, err.text);
    }
}

/* Two rows share a tensor, but one of them is for models with biases alone. */
static void tensors_that_a_map_takes_a_part_of_are_refused(void **state)
{
    (void)state;
    const char *map = write_scratch(
        "map.json",
        json_text("{'family':'own','model_type':'llama','architecture':'O','extends':'llama',"
                  "'tensors':[{'megatron':'decoder.layers.{l}.mlp.router.bias','shape':'h',"
                  "'hf_shape':'h[0 of 2*h]','hf':'x.{l}'},"
                  "{'megatron':'decoder.layers.{l}.mlp.router.expert_bias','shape':'h',"
                  "'hf_shape':'h[h of 2*h]','when':'add_bias_linear','hf':'x.{l}'}]}"));
    const char *option = arena_printf(&scratch, "--model-map=%s", map), *hf = in_scratch("hf");
    struct model_maps own;
    uint64_t seed = 7;
    cJSON *config = json_tree("{" LLAMA "}");
    assert_ok(model_maps_load(&own, map, &err));
    make_hf(hf, model_maps_at(&own, 0), config, all_bf16, NULL, false, &seed);
    assert_fails(CONVERT(hf, in_scratch("out"), option), ERR_UNSUPPORTED,
                 "tensor x.0: the model map own uses 8 of its 16 elements");
    cJSON_Delete(config);
    model_maps_release(&own);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(missing_tensors_are_refused_by_name),
        TEST(a_config_that_asks_for_millions_of_tensors_is_refused),
        TEST(stacks_of_nothing_are_refused),
        TEST(what_may_be_missing_is_left_out_and_the_rest_is_there),
        TEST(parts_of_an_incomplete_tensor_are_not_dropped_in_silence),
        TEST(unexpected_tensors_are_refused_by_name),
        TEST(parameters_that_the_family_has_no_name_for_are_not_dropped),
        TEST(parts_of_one_tensor_must_be_of_one_dtype_or_cast),
        TEST(layers_that_differ_in_dtype_are_named_one_by_one),
        TEST(experts_that_differ_in_dtype_have_no_place_in_torch_dist),
        TEST(config_json_says_the_dtype_that_weights_have),
        TEST(exporting_without_a_config_says_all_that_is_wanted_at_once),
        TEST(rows_of_an_unknown_vocabulary_are_all_kept),
        TEST(the_true_vocabulary_cannot_contradict_config_json),
        TEST(a_config_of_another_model_is_refused),
        TEST(a_tied_head_that_is_stored_must_equal_the_embedding),
        TEST(a_tied_head_is_compared_however_it_is_stored),
        TEST(tied_models_stay_tied),
        TEST(iterations_are_found_or_refused),
        TEST(trackers_say_release_where_nothing_was_trained),
        TEST(a_release_whose_link_was_lost_is_iteration_0),
        TEST(roots_without_a_tracker_have_one_iteration_or_are_refused),
        TEST(experts_are_counted),
        TEST(a_base_models_names_are_read_and_written_in_every_family),
        TEST(a_quantised_model_is_called_so),
        TEST(each_note_is_said_once),
        TEST(options_without_a_use_are_refused),
        TEST(layouts_that_do_not_divide_are_refused),
        TEST(tensors_in_the_common_state_do_not_stop_a_conversion),
        TEST(norms_that_are_stored_minus_one_are_not_exported),
        TEST(optimizer_state_is_not_lost_in_silence),
        TEST(configs_that_do_not_fit_the_tensors_are_refused),
        TEST(tensors_that_a_map_takes_a_part_of_are_refused),
    };
    return cmocka_run_group_tests_name("convert", tests, load_maps, release_maps);
}
