/* Prefixes and wrappers in names of parameters, states and groups. */
#include "convert/hf/module_names.h"
#include "convert/map/testing_models.h"
#include "convert/torch_groups.h"

static struct checkpoint c;
static struct source_options options;
static struct naming_import import;

static void begin(void)
{
    cJSON *config = json_tree("{" LLAMA "}");
    options = (struct source_options){0};
    checkpoint_init(&c, "run");
    import = (struct naming_import){.c = &c, .o = &options};
    assert_ok(model_map_of_config(&maps, config, &import.map, &err));
    assert_ok(model_config_from_hf(import.map, config, &c.arena, &c.config, &err));
    cJSON_Delete(config);
}

static void add(const char *name, const char *state)
{
    struct native_tensor *native;
    assert_ok(catalog_add_native(&c.catalog, arena_copy_text(&c.arena, name), state, DT_F32, 1,
                                 (uint64_t[]){1}, &native, &err));
}

static const char *left_out; /* a parameter that add_model() leaves out; NULL: none */

static enum status add_parts(void *prefix, const struct mapped_tensor *t, struct error *e)
{
    (void)e;
    for (size_t i = 0; i < t->num_parts; i++)
        if (!left_out || strcmp(left_out, t->parts[i].hf_name))
            add(arena_printf(&scratch, "%s%s", (const char *)prefix, t->parts[i].hf_name), NULL);
    return OK;
}

/* Adds all parameters of the model behind a prefix. */
static void add_model(const char *prefix)
{
    assert_ok(model_map_expand(import.map, &c.config, NULL, add_parts, (void *)prefix, &err));
}

static bool is_there(const char *name, const char *state)
{
    return catalog_find_native(&c.catalog, name, state) != NULL;
}

static void states_and_groups_are_renamed_like_parameters(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"model.", "net.inner.", "_forward_module.model."};
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        begin();
        add_model(prefixes[i]);
        add(arena_printf(&scratch, "%smodel.norm.weight", prefixes[i]), "exp_avg");
        add("probe.weight", NULL);
        assert_ok(torch_groups_add(&c, NULL, NULL, NULL, &err));
        torch_groups_add_param(&c, arena_printf(&scratch, "%slm_head.weight", prefixes[i]), 3);
        torch_groups_add_param(&c, "probe.weight", 3);
        assert_ok(module_names_strip(&import, &err));
        assert_true(is_there("model.norm.weight", NULL));
        assert_true(is_there("model.norm.weight", "exp_avg"));
        assert_false(is_there("norm.weight", NULL));
        assert_true(is_there("probe.weight", NULL));
        assert_string_equal(c.training.torch_groups[0].names[0], "lm_head.weight");
        assert_string_equal(c.training.torch_groups[0].names[1], "probe.weight");
        assert_int_equal(c.notes.count, 1);
        assert_non_null(strstr(c.notes.lines[0], prefixes[i]));
        checkpoint_release(&c);
    }
}

static void names_of_a_model_alone_stay(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"", "model."};
    begin();
    add_model("");
    add_model("ref."); /* another model beside it is not taken for it */
    assert_ok(module_names_strip(&import, &err));
    assert_true(is_there("model.norm.weight", NULL));
    assert_true(is_there("ref.model.norm.weight", NULL));
    assert_int_equal(c.notes.count, 0);
    checkpoint_release(&c);
    for (size_t i = 0; i < COUNT(prefixes); i++) { /* an incomplete model has no prefix */
        begin();
        add(arena_printf(&scratch, "%smodel.norm.weight", prefixes[i]), NULL);
        assert_ok(module_names_strip(&import, &err));
        assert_true(is_there(arena_printf(&scratch, "%smodel.norm.weight", prefixes[i]), NULL));
        checkpoint_release(&c);
    }
}

static void a_parameter_may_be_missing_behind_a_prefix_if_it_is_allowed(void **state)
{
    (void)state;
    struct arg_list globs = {.items = (const char *[]){"lm_head.*"}, .count = 1};
    for (int allowed = 0; allowed < 2; allowed++) {
        begin();
        options.allow_missing = allowed ? &globs : NULL;
        left_out = "lm_head.weight";
        add_model("policy.");
        left_out = NULL;
        assert_ok(module_names_strip(&import, &err));
        assert_int_equal(is_there("model.norm.weight", NULL), allowed);
        checkpoint_release(&c);
    }
}

static void what_could_be_two_models_is_refused(void **state)
{
    (void)state;
    begin();
    add_model("policy.");
    add_model("ref.");
    assert_fails(module_names_strip(&import, &err), ERR_UNSUPPORTED,
                 "run: two models of this config: policy.model.embed_tokens.weight and "
                 "ref.model.embed_tokens.weight; only one can be read");
    checkpoint_release(&c);
    begin();
    add_model("model.");
    add("model.norm.weight", NULL);
    assert_fails(module_names_strip(&import, &err), ERR_UNSUPPORTED,
                 "run: model.norm.weight and model.model.norm.weight: two tensors for one "
                 "parameter");
    checkpoint_release(&c);
    begin();
    add_model("");
    add("_orig_mod.model.norm.weight", NULL);
    assert_fails(module_names_strip(&import, &err), ERR_UNSUPPORTED,
                 "run: model.norm.weight and _orig_mod.model.norm.weight become the same name");
    checkpoint_release(&c);
    begin();
    add_model("policy.");
    add("policy.extra", NULL);
    add("extra", NULL);
    assert_fails(module_names_strip(&import, &err), ERR_UNSUPPORTED,
                 "run: without the prefix policy.: policy.extra and extra become the same name");
    checkpoint_release(&c);
}

static void adapters_are_called_by_name(void **state)
{
    (void)state;
    static const char *const rows[] = {"m.q_proj.lora_A.default.weight", "m.q_proj.lora_B.weight",
                                       "m.embed_tokens.lora_embedding_A.default"};
    for (size_t i = 0; i < COUNT(rows); i++) {
        begin();
        add("m.q_proj.base_layer.weight", NULL);
        add(rows[i], NULL);
        assert_fails(module_names_strip(&import, &err), ERR_UNSUPPORTED,
                     arena_printf(&scratch,
                                  "run: this has a LoRA adapter that is not merged (%s): merge it "
                                  "first",
                                  rows[i]));
        checkpoint_release(&c);
    }
    begin();
    add_model("");
    add("flora_A.weight", NULL); /* not of PEFT */
    assert_ok(module_names_strip(&import, &err));
    checkpoint_release(&c);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(states_and_groups_are_renamed_like_parameters),
        TEST(names_of_a_model_alone_stay),
        TEST(a_parameter_may_be_missing_behind_a_prefix_if_it_is_allowed),
        TEST(what_could_be_two_models_is_refused),
        TEST(adapters_are_called_by_name),
    };
    return cmocka_run_group_tests_name("module_names", tests, load_maps, release_maps);
}
