/* States of an optimizer in Hugging Face folders: which are read, and why
 * others are not. */
#include "convert/hf/states_hf.h"
#include "convert/map/testing_models.h"

#define TIED LLAMA ",'tie_word_embeddings':true"

/* A tensor of optimizer.safetensors, of which the elements are 1, 2, ... */
struct row {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    uint64_t shape[2];
};

struct rows {
    struct row items[256];
    size_t count;
};

static void add_row(struct rows *r, struct row row)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->items[i].name, row.name) == 0) {
            r->items[i] = row;
            return;
        }
    assert_true(r->count < COUNT(r->items));
    r->items[r->count++] = row;
}

/* Adds STATE.NAME of each tensor of the model. */
static void add_state(struct rows *r, const char *folder, const char *state, enum dtype dtype)
{
    struct checkpoint c;
    open_hf_folder(&c, folder);
    for (size_t i = 0; i < c.catalog.stored.num_tensors; i++) {
        const struct stored_tensor *s = &c.catalog.stored.tensors[i];
        struct row row = {arena_printf(&scratch, "%s.%s", state, s->name), dtype, s->num_dims, {0}};
        memcpy(row.shape, s->shape, s->num_dims * sizeof *s->shape);
        add_row(r, row);
    }
    checkpoint_release(&c);
}

static void drop_row(struct rows *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->items[i].name, name) == 0) r->items[i] = r->items[--r->count];
}

static void write_rows(const struct rows *r, const char *path)
{
    struct safetensors_out *out = arena_array(&scratch, r->count, sizeof *out);
    struct strbuf file = {0};
    uint64_t bytes, n = 0;
    for (size_t i = 0; i < r->count; i++)
        out[i] = (struct safetensors_out){r->items[i].name, r->items[i].dtype, r->items[i].num_dims,
                                          r->items[i].shape, 0};
    assert_ok(safetensors_layout(out, r->count, &file, &bytes, &err));
    for (n = 1; file.length < bytes; n++)
        strbuf_add(&file, &n, bytes - file.length < 8 ? bytes - file.length : 8);
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, file.data, file.length, false, &err));
    strbuf_release(&file);
}

static void write_states(const struct rows *r, const char *folder)
{
    write_rows(r, path_join(&scratch, folder, "optimizer.safetensors"));
}

static struct rows some_states(const char *folder)
{
    struct rows r = {0};
    add_row(&r, (struct row){"step", DT_I64, 0, {0}}); /* the first of the file: 1 */
    add_state(&r, folder, "exp_avg", DT_BF16);
    add_state(&r, folder, "fp32", DT_F32);
    return r;
}

static void open_model(struct checkpoint *c, const char *folder)
{
    const struct source_options none = {0};
    assert_ok(source_open(c, folder, &none, &maps, &err));
}

static size_t count_optimizer(const struct checkpoint *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        n += name_is_optimizer(c->catalog.tensors[i].name);
    return n;
}

static bool has_note(const struct checkpoint *c, const char *part)
{
    for (size_t i = 0; i < c->notes.count; i++)
        if (strstr(c->notes.lines[i], part)) return true;
    return false;
}

/* ---- what is read ---- */

static void states_become_tensors_of_the_optimizer(void **state)
{
    (void)state;
    static const char qkv[] = "optimizer.exp_avg.decoder.layers.1.self_attention.linear_qkv.weight";
    const char *folder = make("hf", LLAMA, NULL);
    const struct rows r = some_states(folder);
    struct checkpoint c;
    write_states(&r, folder);
    open_model(&c, folder);
    assert_null(c.training.optimizer.unread);
    assert_true(c.training.optimizer.present);
    assert_string_equal(c.training.optimizer.kind, "in optimizer.safetensors");
    assert_int_equal(c.training.run.step, 1);
    assert_int_equal(catalog_find(&c.catalog, qkv)->dtype, DT_BF16);
    assert_int_equal(catalog_find(&c.catalog, qkv)->shape[0], 16);
    assert_non_null(catalog_find(&c.catalog, "optimizer.param.embedding.word_embeddings.weight"));
    assert_int_equal(count_optimizer(&c) * 3, c.catalog.num_tensors * 2);
    checkpoint_release(&c);
}

static void masters_have_an_older_name(void **state)
{
    (void)state;
    const char *folder = make("hf", LLAMA, NULL);
    struct rows r = {0};
    struct checkpoint c;
    add_state(&r, folder, "master", DT_F32);
    write_states(&r, folder);
    open_model(&c, folder);
    assert_null(c.training.optimizer.unread);
    assert_non_null(catalog_find(&c.catalog, "optimizer.param.embedding.word_embeddings.weight"));
    assert_int_equal(c.training.run.step, 0);
    checkpoint_release(&c);
}

static void parts_of_a_state_are_read_as_the_widest(void **state)
{
    (void)state;
    const char *folder = make("hf", LLAMA, NULL);
    struct rows r = some_states(folder);
    struct checkpoint c;
    add_row(&r, (struct row){"exp_avg.model.layers.0.mlp.up_proj.weight", DT_F16, 2, {6, 8}});
    write_states(&r, folder);
    open_model(&c, folder);
    assert_null(c.training.optimizer.unread);
    const struct tensor *fc1 =
        catalog_find(&c.catalog, "optimizer.exp_avg.decoder.layers.0.mlp.linear_fc1.weight");
    assert_int_equal(fc1->dtype, DT_F32);
    assert_true(has_note(
        &c, "read as the widest: optimizer.exp_avg.decoder.layers.0.mlp.linear_fc1.weight"));
    checkpoint_release(&c);
}

static void frozen_parameters_have_no_states(void **state)
{
    (void)state;
    const char *folder = make("hf", LLAMA, NULL);
    struct rows r = some_states(folder);
    struct checkpoint c;
    drop_row(&r, "exp_avg.model.embed_tokens.weight");
    drop_row(&r, "fp32.model.embed_tokens.weight");
    write_states(&r, folder);
    open_model(&c, folder);
    assert_null(c.training.optimizer.unread);
    assert_true(has_note(&c, "1 parameter has no optimizer state"));
    checkpoint_release(&c);
}

/* ---- what is not read ---- */

static void states_that_cannot_be_read_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        struct row row;
        const char *without, *why;
    } cases[] = {
        {LLAMA, {"step", DT_F32, 0, {0}}, NULL, "tensor step is F32 [], expected I64 []"},
        {LLAMA, {"step", DT_I64, 1, {1}}, NULL, "tensor step is I64 [1], expected I64 []"},
        {LLAMA,
         {"exp_avg.lm_head.weight", DT_F32, 2, {8, 11}},
         NULL,
         "tensor exp_avg.lm_head.weight has shape [8, 11], its parameter [11, 8]"},
        {LLAMA,
         {"exp_avg.model.norm.weight", DT_F32, 0, {0}},
         NULL,
         "tensor exp_avg.model.norm.weight has shape [], its parameter [8]"},
        {LLAMA,
         {"exp_avg.model.norm.weight", DT_I32, 1, {8}},
         NULL,
         "has dtype I32, expected F16, BF16, F32 or F64"},
        {LLAMA,
         {"exp_avg.model.layers.2.mlp.up_proj.weight", DT_F32, 2, {6, 8}},
         NULL,
         "is the state of model.layers.2.mlp.up_proj.weight, which is not a parameter of the "
         "model"},
        {LLAMA, {"exp_avg", DT_F32, 1, {8}}, NULL, "tensor exp_avg is not named STATE.NAME"},
        {LLAMA, {"exp_avg.", DT_F32, 1, {8}}, NULL, "tensor exp_avg. is not named STATE.NAME"},
        {LLAMA, {".model.norm.weight", DT_F32, 1, {8}}, NULL, "is not named STATE.NAME"},
        {LLAMA, {"", DT_F32, 1, {8}}, NULL, "is not named STATE.NAME"},
        {LLAMA,
         {"master.model.norm.weight", DT_F32, 1, {8}},
         NULL,
         "tensor master.model.norm.weight is a second master weight of model.norm.weight"},
        {LLAMA,
         {"step", DT_I64, 0, {0}},
         "exp_avg.model.layers.0.self_attn.k_proj.weight",
         "but exp_avg.model.layers.0.self_attn.k_proj.weight is missing, and both are parts of"},
        {TIED,
         {"exp_avg.lm_head.weight", DT_F32, 2, {11, 8}},
         NULL,
         "is the state of lm_head.weight, which is tied to the embedding (tie_word_embeddings)"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *folder = make(arena_printf(&scratch, "hf%zu", i), cases[i].model, NULL);
        struct rows r = some_states(folder);
        struct checkpoint c;
        add_row(&r, cases[i].row);
        if (cases[i].without) drop_row(&r, cases[i].without);
        write_states(&r, folder);
        open_model(&c, folder);
        assert_true(c.training.optimizer.present);
        const char *why = c.training.optimizer.unread;
        if (!why || !strstr(why, cases[i].why))
            fail_msg("%zu: \"%s\" lacks \"%s\"", i, why ? why : "(all is read)", cases[i].why);
        checkpoint_release(&c);
    }
}

/* A file that cannot be read adds neither tensors nor files. */
static void a_broken_file_of_states_leaves_the_weights(void **state)
{
    (void)state;
    static const char index[] =
        "{\"weight_map\":{\"step\":\"optimizer-00001-of-00002.safetensors\","
        "\"exp_avg.model.norm.weight\":"
        "\"optimizer-00002-of-00002.safetensors\"}}";
    const char *folder = make("hf", LLAMA, NULL);
    struct checkpoint c;
    open_model(&c, folder);
    const size_t num_tensors = c.catalog.stored.num_tensors;
    const size_t num_files = c.catalog.stored.num_files;
    checkpoint_release(&c);
    struct rows r = {0};
    add_row(&r, (struct row){"step", DT_I64, 0, {0}});
    write_rows(&r, path_join(&scratch, folder, "optimizer-00001-of-00002.safetensors"));
    rewrite(folder, "optimizer-00002-of-00002.safetensors", "broken");
    rewrite(folder, "optimizer.safetensors.index.json", index);
    open_model(&c, folder);
    assert_true(c.training.optimizer.present);
    assert_non_null(strstr(c.training.optimizer.unread, "optimizer-00002-of-00002.safetensors"));
    assert_int_equal(c.catalog.stored.num_tensors, num_tensors);
    assert_int_equal(c.catalog.stored.num_files, num_files);
    assert_null(stored_find(&c.catalog.stored, "step"));
    assert_non_null(stored_find(&c.catalog.stored, "model.norm.weight"));
    checkpoint_release(&c);
}

static void too_many_states_are_refused(void **state)
{
    (void)state;
    const char *folder = make("hf", LLAMA, NULL);
    struct rows r = {0};
    struct checkpoint c;
    for (int i = 0; i < 33; i++)
        add_row(&r,
                (struct row){arena_printf(&scratch, "s%d.model.norm.weight", i), DT_F32, 1, {8}});
    write_states(&r, folder);
    open_model(&c, folder);
    assert_non_null(strstr(c.training.optimizer.unread, "one more optimizer state than the 32"));
    assert_int_equal(count_optimizer(&c), 0);
    checkpoint_release(&c);
}

/* ---- files beside the folder ---- */

static void states_beside_the_folder_are_read_if_they_are_of_the_model(void **state)
{
    (void)state;
    const char *folder = make("hf", LLAMA, NULL), *beside = in_scratch("optimizer.safetensors");
    struct rows r = some_states(folder);
    struct checkpoint c;
    write_rows(&r, beside);
    open_model(&c, folder);
    assert_true(c.training.optimizer.present);
    assert_true(has_note(&c, "read from beside the folder"));
    checkpoint_release(&c);

    add_row(&r, (struct row){"exp_avg.model.norm.weight", DT_F32, 1, {9}});
    write_rows(&r, beside);
    open_model(&c, folder);
    assert_false(c.training.optimizer.present);
    assert_true(
        has_note(&c, "exp_avg.model.norm.weight is not a state of a parameter of this model"));
    checkpoint_release(&c);

    write_scratch("optimizer.safetensors", "broken");
    open_model(&c, folder);
    assert_true(has_note(&c, "optimizer state beside the folder is not read"));
    checkpoint_release(&c);
}

/* The states of a folder that is a model itself are its own. */
static void states_of_the_model_above_are_not_taken(void **state)
{
    (void)state;
    const char *above = make("hf", LLAMA, NULL), *folder = make("hf/copy", LLAMA, NULL);
    const struct rows r = some_states(above);
    struct checkpoint c;
    write_states(&r, above);
    open_model(&c, folder);
    assert_false(c.training.optimizer.present);
    checkpoint_release(&c);
}

/* ---- training.json ---- */

static void training_json_has_the_state_of_the_training(void **state)
{
    (void)state;
    const char *folder = make("hf", LLAMA, NULL);
    const struct rows r = some_states(folder);
    struct checkpoint c;
    write_states(&r, folder);
    rewrite(folder, "training.json", "{\"step\": 4, \"iteration\": 10, \"colour\": 1}");
    open_model(&c, folder);
    assert_int_equal(c.training.run.iteration, 10);
    assert_int_equal(c.training.run.step, 1);
    assert_true(has_note(&c, "tensor step is 1 and overrides the step of training.json, 4"));
    assert_true(has_note(&c, "training.json: unknown members are not read: colour"));
    checkpoint_release(&c);
    rewrite(folder, "training.json", "{\"iteration\": \"ten\"}");
    open_model(&c, folder);
    assert_non_null(strstr(c.training.optimizer.unread, "training.json: "));
    assert_non_null(strstr(c.training.optimizer.unread, "iteration"));
    checkpoint_release(&c);
    rewrite(folder, "training.json", "{\"step\": 1, \"groups\": [{\"step\": 1}, {\"step\": 3}]}");
    open_model(&c, folder);
    assert_true(has_note(&c, "groups[1] has made 3 steps, the optimizer 1"));
    checkpoint_release(&c);
    assert_ok(path_remove(path_join(&scratch, folder, "optimizer.safetensors"), &err));
    open_model(&c, folder); /* another program's: no optimizer is beside it */
    assert_int_equal(c.training.run.iteration, 0);
    checkpoint_release(&c);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(states_become_tensors_of_the_optimizer),
        TEST(masters_have_an_older_name),
        TEST(parts_of_a_state_are_read_as_the_widest),
        TEST(frozen_parameters_have_no_states),
        TEST(states_that_cannot_be_read_are_named),
        TEST(a_broken_file_of_states_leaves_the_weights),
        TEST(too_many_states_are_refused),
        TEST(states_beside_the_folder_are_read_if_they_are_of_the_model),
        TEST(states_of_the_model_above_are_not_taken),
        TEST(training_json_has_the_state_of_the_training),
    };
    return cmocka_run_group_tests_name("states_hf", tests, load_maps, release_maps);
}
