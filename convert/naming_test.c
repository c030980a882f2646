/* Namings there and back: each logical tensor of a model is exported as
 * elements of native tensors, and importing these gives the same logical
 * tensor, element by element, however the native tensors are stored. */
#include "common/count.h"
#include "convert/format.h"
#include "convert/map/testing_models.h"
#include "convert/megatron/megatron_target.h"
#include "convert/naming.h"

#define GPT2                                                                                       \
    "'model_type':'gpt2','n_embd':24,'n_layer':2,'n_head':4,'n_positions':16,'vocab_size':11"

enum { HALVES = 2, MAX_HERE = 1 << 16 };

/* A model, and a checkpoint made from its export: each logical tensor is stored
 * as two flat halves, from which native tensors are made. */
struct trip {
    struct checkpoint model, copy;
    struct target target;
    struct map stored; /* logical name -> its first half */
    const char *state; /* an optimizer state that each native tensor has too; NULL: none */
};

static void store(struct trip *x, const struct tensor *t)
{
    struct stored *s = &x->copy.catalog.stored;
    (void)map_add(&x->stored, t->name, s->num_tensors, NULL);
    for (uint64_t i = 0; i < HALVES; i++) {
        const uint64_t first = t->numel / 2, count[] = {i ? t->numel - first : first};
        const char *name = arena_printf(&scratch, "%s/%d", t->name, (int)i);
        struct stored_tensor *half;
        assert_ok(stored_add_tensor(s, name, strlen(name), t->dtype, 1, count, &half, &err));
        half->pieces = arena_array(&s->arena, 1, sizeof *half->pieces);
        half->pieces[half->num_pieces++] = (struct stored_piece){.file = (uint32_t)s->num_tensors};
    }
}

struct taking {
    struct trip *x;
    struct native_tensor *native;
    const struct stored_tensor *half;
};

static enum status take_run(void *context, const struct pair *p, struct error *e)
{
    const struct taking *t = context;
    struct pair pair = *p;
    pair_swap(&pair);
    return catalog_add_native_part(&t->x->copy.catalog, t->native, t->half, &pair, e);
}

static void take_source(struct trip *x, struct native_tensor *native,
                        const struct native_source *source)
{
    const uint64_t numel = source->logical->numel, first = numel / 2;
    size_t at;
    assert_true(map_get(&x->stored, source->logical->name, &at));
    for (size_t i = 0; i < HALVES; i++) {
        struct taking t = {x, native, &x->copy.catalog.stored.tensors[at + i]};
        assert_ok(pair_clip(&source->pair, i ? first : 0, i ? numel - first : first, native->name,
                            take_run, &t, &err));
    }
}

static void take_native(struct trip *x, const struct native_output *out, const char *state)
{
    const char *name = arena_printf(&scratch, "%s", out->name);
    struct native_tensor *native;
    assert_ok(catalog_add_native(&x->copy.catalog, name, state, out->dtype, out->num_dims,
                                 out->shape, &native, &err));
    for (unsigned i = 0; i < out->num_parts; i++)
        take_source(x, native, &out->parts[i]);
}

static enum status take_output(void *context, const struct native_output *out, struct error *e)
{
    struct trip *x = context;
    (void)e;
    take_native(x, out, NULL);
    if (x->state) take_native(x, out, x->state);
    return OK;
}

/* ---- there ---- */

static void trip_begin(struct trip *x, const char *folder, const struct format *format, bool te)
{
    const struct source_options none = {0};
    *x = (struct trip){0};
    assert_ok(source_open(&x->model, folder, &none, &maps, &err));
    x->target = (struct target){.options = {.format = format,
                                            .layout = {.tp = 2},
                                            .divisible_by = 3,
                                            .transformer_engine = te},
                                .format = format,
                                .source = &x->model,
                                .map = model_map_of_family(&maps, x->model.family)};
    plan_init(&x->target.plan, &x->model.catalog);
    if (format != &format_hf) assert_ok(megatron_begin(&x->target, &err));
    checkpoint_init(&x->copy, folder);
    x->copy.folder = folder;
    x->copy.config = x->model.config;
    x->copy.params = x->model.params;
    for (size_t i = 0; i < x->model.catalog.num_tensors; i++)
        store(x, &x->model.catalog.tensors[i]);
    for (size_t i = 0; i < x->target.plan.made.num_tensors; i++)
        store(x, &x->target.plan.made.tensors[i]);
}

static void trip_end(struct trip *x)
{
    map_release(&x->stored);
    checkpoint_release(&x->copy);
    plan_release(&x->target.plan);
    checkpoint_release(&x->model);
}

/* ---- and back ---- */

/* Checks that each element of `t` is that of the tensor stored as `name`. */
static void check_elements(const struct trip *x, const struct tensor *t, const char *name)
{
    static bool seen[MAX_HERE];
    size_t at;
    assert_true(map_get(&x->stored, name, &at));
    assert_in_range(t->numel, 1, MAX_HERE);
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < t->num_pieces; i++) {
        const struct piece *p = &t->pieces[i];
        const bool second = p->file == at + 2;
        assert_true(second || p->file == at + 1);
        const struct pair pair = pair_unpack(&p->pair);
        for (uint64_t n = 0; n < pair_count(&pair); n++) {
            uint64_t a = pair.a_offset, b = pair.b_offset, rest = n;
            for (unsigned k = pair.num_axes; k-- > 0; rest /= pair.axes[k].extent) {
                a += rest % pair.axes[k].extent * pair.axes[k].a_stride;
                b += rest % pair.axes[k].extent * pair.axes[k].b_stride;
            }
            assert_int_equal(a, b + (second ? t->numel / 2 : 0));
            assert_false(seen[a]);
            seen[a] = true;
        }
    }
    for (uint64_t a = 0; a < t->numel; a++)
        assert_true(seen[a]);
}

static void check_copy(const struct trip *x)
{
    const struct catalog *from = &x->model.catalog, *to = &x->copy.catalog;
    size_t count = from->num_tensors;
    assert_int_equal(x->copy.gaps.num_missing + x->copy.gaps.num_unexpected, 0);
    for (size_t i = 0; i < from->num_tensors; i++) {
        const struct tensor *t = &from->tensors[i], *copy = catalog_find(to, t->name);
        assert_non_null(copy);
        assert_int_equal(copy->dtype, t->dtype);
        assert_int_equal(copy->num_dims, t->num_dims);
        assert_memory_equal(copy->shape, t->shape, t->num_dims * sizeof *t->shape);
        check_elements(x, copy, t->name);
        const char *moment = arena_printf(&scratch, "optimizer.%s.%s", x->state, t->name);
        if (x->state) assert_non_null(catalog_find(to, moment));
        if (x->state) check_elements(x, catalog_find(to, moment), t->name);
        const char *padding = arena_printf(&scratch, "%s.padding", t->name);
        const char *made = arena_printf(&scratch, "%s.target.padding", t->name);
        copy = catalog_find(to, padding);
        assert_int_equal(copy != NULL, map_get(&x->stored, made, NULL));
        if (copy) check_elements(x, copy, made);
        count += copy != NULL;
    }
    assert_int_equal(to->num_tensors, count * (x->state ? 2 : 1));
}

static void go(const char *folder, const struct naming *naming, unsigned stacks, bool te,
               const char *state)
{
    const struct source_options none = {0};
    struct trip x;
    trip_begin(&x, folder, naming == &naming_hf ? &format_hf : &format_torch_dist, te);
    x.state = state;
    const struct naming_export out = {&x.target, stacks};
    const struct naming_import in = {.c = &x.copy, .o = &none, .map = x.target.map};
    assert_ok(naming->export(&out, take_output, &x, &err));
    assert_ok(naming->import(&in, &err));
    assert_ok(naming->import_states(&in, &err));
    assert_null(x.copy.training.optimizer.unread);
    check_copy(&x);
    trip_end(&x);
}

static void what_is_exported_is_imported_again(void **state)
{
    (void)state;
    static const char *const models[] = {LLAMA, MIXTRAL, QWEN2, GPT2};
    for (size_t i = 0; i < COUNT(models); i++) {
        const char *folder = make(arena_printf(&scratch, "hf%zu", i), models[i], NULL);
        go(folder, &naming_hf, 0, true, NULL);
        go(folder, &naming_hf, 0, true, "exp_avg");
        for (unsigned stacks = 0; stacks < 4; stacks++)
            for (unsigned k = 0; k < 4; k++)
                go(folder, &naming_megatron, stacks, k % 2, k / 2 ? "exp_avg" : NULL);
    }
}

/* ---- names ---- */

struct expecting {
    const char *name, *shape;
    bool found;
};

static enum status look(void *context, const struct native_output *out, struct error *e)
{
    struct expecting *x = context;
    (void)e;
    if (strcmp(out->name, x->name)) return OK;
    x->found = true;
    assert_string_equal(shape_text(&scratch, out->num_dims, out->shape), x->shape);
    return OK;
}

static void native_tensors_are_named_as_the_program_has_them(void **state)
{
    (void)state;
    static const struct {
        const struct naming *naming;
        unsigned stacks;
        const char *name, *shape;
    } cases[] = {
        {&naming_hf, 0, "model.layers.1.block_sparse_moe.experts.3.w2.weight", "[8, 6]"},
        {&naming_megatron, STACK_LAYERS | STACK_EXPERTS,
         "decoder.layers.mlp.experts.experts.linear_fc2.weight", "[2, 4, 8, 6]"},
        {&naming_megatron, STACK_EXPERTS, "decoder.layers.1.mlp.experts.experts.linear_fc2.weight",
         "[4, 8, 6]"},
        {&naming_megatron, 0, "decoder.layers.1.mlp.experts.experts.3.linear_fc2.weight", "[8, 6]"},
        {&naming_megatron, 0, "embedding.word_embeddings.weight", "[12, 8]"},
    };
    const char *folder = make("hf", MIXTRAL, NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const bool hf = cases[i].naming == &naming_hf;
        struct expecting want = {cases[i].name, cases[i].shape, false};
        struct trip x;
        trip_begin(&x, folder, hf ? &format_hf : &format_torch_dist, true);
        const struct naming_export out = {&x.target, cases[i].stacks};
        assert_ok(cases[i].naming->export(&out, look, &want, &err));
        if (!want.found) fail_msg("no %s", want.name);
        trip_end(&x);
    }
}

/* Why a state of this name and shape,
 * added to a copy of the model, is not read. */
static const char *why_state_is_unread(struct trip *x, const char *folder, const char *name,
                                       unsigned num_dims, const uint64_t *shape)
{
    const struct source_options none = {0};
    struct native_tensor *added;
    trip_begin(x, folder, &format_torch_dist, true);
    const struct naming_export out = {&x->target, 0};
    const struct naming_import in = {.c = &x->copy, .o = &none};
    assert_ok(naming_megatron.export(&out, take_output, x, &err));
    assert_ok(
        catalog_add_native(&x->copy.catalog, name, "row", DT_F32, num_dims, shape, &added, &err));
    assert_ok(catalog_add_native_part(&x->copy.catalog, added, &x->copy.catalog.stored.tensors[0],
                                      &(struct pair){0}, &err));
    assert_ok(naming_megatron.import(&in, &err));
    assert_ok(naming_megatron.import_states(&in, &err));
    return x->copy.training.optimizer.unread;
}

static void states_of_other_shapes_are_not_read(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned num_dims;
        const char *why;
    } cases[] = {
        {"embedding.word_embeddings.weight", 1,
         "embedding.word_embeddings.weight/0 has shape [8], its parameter [11, 8]"},
        {"decoder.layers.mlp.linear_fc2.weight", 0,
         "embedding.word_embeddings.weight/0: 0 dimensions, too few for 1 that count layers and "
         "experts"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct trip x;
        assert_string_equal(
            why_state_is_unread(&x, make(arena_printf(&scratch, "hf%zu", i), LLAMA, NULL),
                                cases[i].name, cases[i].num_dims, (const uint64_t[]){8}),
            cases[i].why);
        check_copy(&x);
        trip_end(&x);
    }
}

static void state_of_a_section_of_another_size_is_not_read(void **state)
{
    (void)state;
    static const char folder[] = "tests/golden/arch/nemotron-h-tp2ep2/expected";
    struct trip x;
    assert_string_equal(
        why_state_is_unread(&x, folder, "decoder.layers.0.mixer.in_proj.weight.dt", 2,
                            (const uint64_t[]){3, 8}),
        "embedding.word_embeddings.weight/0 has 3 rows, but its args or config.json "
        "give 4");
    trip_end(&x);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(what_is_exported_is_imported_again),
        TEST(native_tensors_are_named_as_the_program_has_them),
        TEST(states_of_other_shapes_are_not_read),
        TEST(state_of_a_section_of_another_size_is_not_read),
    };
    return cmocka_run_group_tests_name("naming", tests, load_maps, release_maps);
}
