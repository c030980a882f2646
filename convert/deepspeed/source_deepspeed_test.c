/* Made DeepSpeed files, each wrong in one way. tests/cli/deepspeed_test.sh
 * reads DeepSpeed's own files. */
#include "ckpt/panel.h"
#include "common/count.h"
#include "convert/format.h"
#include "convert/source.h"
#include "convert/testing_convert.h"
#include "formats/torch.h"

enum { RANKS = 2, MAX_TENSORS = 16 };

static struct model_maps maps;

/* ---- files ---- */

/* Tensors of one file, whose elements are first, first + 1, ... */
struct making {
    struct arena *a;
    struct value *tensors[MAX_TENSORS];
    double first[MAX_TENSORS];
    size_t count;
};

static struct value *tensor(struct making *m, enum dtype dtype, unsigned num_dims,
                            const uint64_t *shape, double first)
{
    assert_true(m->count < MAX_TENSORS);
    struct value *v =
        value_tensor(m->a, arena_printf(m->a, "%zu", m->count), dtype, num_dims, shape);
    m->first[m->count] = first;
    return m->tensors[m->count++] = v;
}

static struct value *vector(struct making *m, uint64_t length, double first)
{
    return tensor(m, DT_F32, 1, &length, first);
}

static struct value *list_of(struct arena *a, struct value *item)
{
    return value_list(a, VALUE_LIST, 1, &item);
}

static void save(struct making *m, const char *name, const struct value *root)
{
    struct strbuf bytes = {0};
    const void *data[MAX_TENSORS];
    for (size_t i = 0; i < m->count; i++) {
        const struct value_tensor *t = m->tensors[i]->tensor;
        float *f = arena_array(m->a, t->storage->numel, sizeof *f);
        uint16_t *half = arena_array(m->a, t->storage->numel, sizeof *half);
        for (uint64_t k = 0; k < t->storage->numel; k++) {
            uint32_t bits;
            f[k] = (float)(m->first[i] + (double)k);
            memcpy(&bits, &f[k], sizeof bits);
            half[k] = (uint16_t)(bits >> 16); /* whole numbers below 256 are exact in BF16 */
        }
        data[i] = t->dtype == DT_F32 ? (const void *)f : half;
    }
    assert_ok(torch_to_bytes(&bytes, "archive", root, data, &err));
    assert_ok(path_remove(in_scratch(name), &err));
    assert_ok(file_write_all(in_scratch(name), bytes.data, bytes.length, false, &err));
    strbuf_release(&bytes);
}

/* Changes of a case. */
struct change {
    int64_t stage;     /* 1 unless given */
    uint64_t held;     /* elements of the last rank's masters; 0: right */
    uint64_t paddings; /* numbers in param_alignment_paddings; 0: none */
    int64_t count;     /* partition_count */
    uint64_t moment;   /* elements of exp_avg of rank 1; 0: right */
    int64_t gap;       /* the first of these paddings */
    const char *group_flag, *extra_key;
    bool twice, scaled, no_shapes, tied, shared;
};

/* Parameters a [3, 2] and b [3]: N = 9, padded to 12, 6 a rank; a is 0.., b 6.. */
static const uint64_t shape_a[] = {3, 2}, shape_b[] = {3};

static struct value *size_of(struct arena *a, unsigned num_dims, const uint64_t *shape)
{
    struct value *dims[2];
    for (unsigned d = 0; d < num_dims; d++)
        dims[d] = value_int(a, (int64_t)shape[d]);
    return value_list(a, VALUE_TUPLE, num_dims, dims);
}

static void make_model(const struct change *x)
{
    struct arena *a = &scratch;
    struct making m = {.a = a};
    struct value *root = value_dict(a), *module = value_dict(a), *shapes = value_dict(a);
    value_dict_add(a, module, "a", tensor(&m, DT_BF16, 2, shape_a, 0));
    struct value *b = tensor(&m, DT_BF16, 1, shape_b, 6), *shared = value_dict(a);
    value_dict_add(a, module, "b", b);
    if (x->tied) value_dict_add(a, module, "c", b); /* the same part of the same storage */
    if (x->shared) value_dict_add(a, module, "d", tensor(&m, DT_BF16, 1, shape_b, 6));
    value_dict_add(a, shared, "d", value_text(a, "b"));
    if (x->shared) value_dict_add(a, root, "shared_params", shared);
    value_dict_add(a, shapes, "a", size_of(a, 2, shape_a));
    if (!x->twice) value_dict_add(a, shapes, "b", size_of(a, 1, shape_b));
    struct value *lists[] = {shapes, shapes};
    value_dict_add(a, root, "module", module);
    if (!x->no_shapes)
        value_dict_add(a, root, "param_shapes", value_list(a, VALUE_LIST, x->twice ? 2 : 1, lists));
    value_dict_add(a, root, "global_steps", value_int(a, 3));
    value_dict_add(a, root, "global_samples", value_int(a, 12));
    if (x->extra_key) value_dict_add(a, root, x->extra_key, value_int(a, 1));
    save(&m, "mp_rank_00_model_states.pt", root);
}

static struct value *make_base(struct making *m, const struct change *x, unsigned rank)
{
    struct arena *a = m->a;
    struct value *base = value_dict(a), *state = value_dict(a), *all = value_dict(a),
                 *group = value_dict(a);
    value_dict_add(a, state, "step", value_int(a, 3));
    value_dict_add(a, state, "exp_avg",
                   vector(m, rank && x->moment ? x->moment : 6, 100 + 6.0 * rank));
    value_dict_put(a, all, value_int(a, 0), state);
    value_dict_add(a, group, "lr", value_float(a, 0.5));
    value_dict_add(a, group, "params", list_of(a, value_int(a, 0)));
    if (x->group_flag) value_dict_add(a, group, x->group_flag, value_bool(a, true));
    value_dict_add(a, base, "state", all);
    value_dict_add(a, base, "param_groups", list_of(a, group));
    return base;
}

static void make_rank(const struct change *x, unsigned rank)
{
    struct arena *a = &scratch;
    struct making m = {.a = a};
    const uint64_t held = !rank ? 6 : x->held ? x->held : 3;
    struct value *root = value_dict(a), *s = value_dict(a), *scaler = value_dict(a);
    value_dict_add(a, s, "zero_stage", value_int(a, x->stage ? x->stage : 1));
    value_dict_add(a, s, "partition_count", list_of(a, value_int(a, x->count ? x->count : RANKS)));
    value_dict_add(a, s, "base_optimizer_state", make_base(&m, x, rank));
    value_dict_add(a, s, "single_partition_of_fp32_groups",
                   list_of(a, vector(&m, held, 6.0 * rank)));
    if (x->paddings) {
        struct value *numbers[3] = {value_int(a, x->gap), value_int(a, 0), value_int(a, 0)};
        value_dict_add(a, s, "param_alignment_paddings",
                       list_of(a, value_list(a, VALUE_LIST, x->paddings, numbers)));
    }
    value_dict_add(a, scaler, "cur_scale", value_float(a, 1024));
    value_dict_add(a, scaler, "cur_iter", value_int(a, 7));
    value_dict_add(a, scaler, "last_overflow_iter", value_int(a, 1));
    value_dict_add(a, scaler, "scale_window", value_int(a, 1000));
    value_dict_add(a, scaler, "cur_hysteresis", value_int(a, 2));
    if (x->scaled) {
        value_dict_add(
            a, s, "loss_scaler",
            value_instance(a, "deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", scaler));
        value_dict_add(a, s, "dynamic_loss_scale", value_bool(a, true));
    }
    value_dict_add(a, root, "optimizer_state_dict", s);
    save(&m, arena_printf(a, "bf16_zero_pp_rank_%u_mp_rank_00_optim_states.pt", rank), root);
}

static enum status open_changed(struct checkpoint *c, const struct change *x)
{
    const struct source_options o = {.format = &format_deepspeed};
    make_model(x);
    for (unsigned r = 0; r < RANKS; r++)
        make_rank(x, r);
    return source_open(c, scratch_folder, &o, &maps, &err);
}

/* ---- tests ---- */

static void is_counted_from(const struct checkpoint *c, const char *name, enum dtype dtype,
                            uint64_t count, double first)
{
    const struct tensor *t = catalog_find(&c->catalog, name);
    double values[16];
    if (!t) fail_msg("no %s", name);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->numel, count);
    assert_ok(panel_read_numbers(&c->catalog, t, count, values, &err));
    for (uint64_t i = 0; i < count; i++)
        assert_true(values[i] >= first + (double)i && values[i] <= first + (double)i);
}

static void parameters_are_runs_of_the_ranks_vectors(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){0}));
    is_counted_from(&c, "a", DT_BF16, 6, 0);
    is_counted_from(&c, "b", DT_BF16, 3, 6);
    is_counted_from(&c, "optimizer.param.a", DT_F32, 6, 0);
    is_counted_from(&c, "optimizer.param.b", DT_F32, 3, 6);
    is_counted_from(&c, "optimizer.exp_avg.a", DT_F32, 6, 100);
    is_counted_from(&c, "optimizer.exp_avg.b", DT_F32, 3, 106);
    assert_null(c.training.optimizer.unread);
    assert_int_equal(c.training.iteration, 3);
    assert_int_equal(c.training.run.step, 3);
    assert_int_equal(c.training.run.consumed_train_samples, 12);
    assert_int_equal(c.training.run.num_groups, 1);
    assert_int_equal(c.training.torch_groups[0].num_names, 2);
    checkpoint_release(&c);
}

static void a_dynamic_loss_scale_is_kept(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){.scaled = true}));
    assert_true(c.training.run.loss_scale >= 1024 && c.training.run.loss_scale <= 1024);
    assert_int_equal(c.training.run.growth_tracker, 5);
    assert_int_equal(c.training.run.hysteresis_tracker, 2);
    checkpoint_release(&c);
}

static void masters_with_padding_are_those_of_bf16_optimizer(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){.held = 6}));
    is_counted_from(&c, "optimizer.param.b", DT_F32, 3, 6);
    checkpoint_release(&c);
}

static void states_of_other_lengths_are_unread_and_weights_are_read(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){.moment = 2}));
    assert_non_null(strstr(c.training.optimizer.unread,
                           "exp_avg of group 0 has shape [2], expected a vector of at least 3"));
    is_counted_from(&c, "b", DT_BF16, 3, 6);
    checkpoint_release(&c);
}

static void places_behind_gaps_are_proved_by_the_weights(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){.paddings = 2, .gap = 1, .held = 4}));
    assert_true(c.training.optimizer.inferred);
    assert_non_null(strstr(c.training.optimizer.unread,
                           "1 of 2 weights are not their master weights rounded (b"));
    checkpoint_release(&c);
}

static void second_names_of_tied_parameters_are_left_out(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){.tied = true, .shared = true}));
    is_counted_from(&c, "b", DT_BF16, 3, 6);
    assert_null(catalog_find(&c.catalog, "c"));
    assert_null(catalog_find(&c.catalog, "d"));
    checkpoint_release(&c);
}

static bool has_note(const struct checkpoint *c, const char *text)
{
    for (size_t i = 0; i < c->notes.count; i++)
        if (strstr(c->notes.lines[i], text)) return true;
    return false;
}

static void state_of_the_program_is_named(void **state)
{
    struct checkpoint c;
    (void)state;
    assert_ok(open_changed(&c, &(struct change){.extra_key = "random_rng_state"}));
    assert_true(has_note(&c, "client state that is not read: random_rng_state"));
    checkpoint_release(&c);
}

static void files_that_contradict_are_refused_by_name(void **state)
{
    static const struct {
        struct change change;
        enum status code;
        const char *text;
    } cases[] = {
        {{.held = 2}, ERR_CORRUPT, "group 0: parameters need 9 elements, files hold 8"},
        {{.held = 5}, ERR_CORRUPT, "group 0: parameters need 9 elements, files hold 11"},
        {{.held = 7}, ERR_CORRUPT, "group 0: 7 elements of rank 1, and 6 of the rank before it"},
        {{.count = 3},
         ERR_CORRUPT,
         "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt is missing (2 of 3 files exist): it "
         "held elements of 1 parameter: b"},
        {{.count = 1}, ERR_CORRUPT, "2 files of optimizer states, but partition_count is 1"},
        {{.count = -1}, ERR_CORRUPT, "partition_count is not a number"},
        {{.stage = 4}, ERR_UNSUPPORTED, "zero_stage is 4; stages 1 to 3 are supported"},
        {{.stage = 3}, ERR_CORRUPT, "missing fp32_flat_groups with the master weights"},
        {{.paddings = 3},
         ERR_CORRUPT,
         "param_alignment_paddings needs a number for each of the 2 parameters of group 0"},
        {{.group_flag = "moe"}, ERR_UNSUPPORTED, "group 0: experts (moe)"},
        {{.twice = true}, ERR_CORRUPT, "param_shapes lists a twice"},
        {{.no_shapes = true}, ERR_UNSUPPORTED, "lacks param_shapes"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct checkpoint c;
        const enum status st = open_changed(&c, &cases[i].change);
        if (st != cases[i].code || !strstr(err.text, cases[i].text))
            fail_msg("case %zu: %d: %s", i, (int)st, st ? err.text : "opened");
        checkpoint_release(&c);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(parameters_are_runs_of_the_ranks_vectors),
        TEST(a_dynamic_loss_scale_is_kept),
        TEST(masters_with_padding_are_those_of_bf16_optimizer),
        TEST(states_of_other_lengths_are_unread_and_weights_are_read),
        TEST(places_behind_gaps_are_proved_by_the_weights),
        TEST(second_names_of_tied_parameters_are_left_out),
        TEST(state_of_the_program_is_named),
        TEST(files_that_contradict_are_refused_by_name),
    };
    if (model_maps_load(&maps, NULL, &err)) return 1;
    const int failed = cmocka_run_group_tests_name("source_deepspeed", tests, NULL, NULL);
    model_maps_release(&maps);
    return failed;
}
