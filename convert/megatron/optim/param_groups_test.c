/* The training state of Megatron's values: of states that Megatron saved, and
 * of made ones. */
#include "convert/megatron/optim/param_groups.h"

#include <math.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/megatron/optim/testing_values.h"

#define GOLDEN "tests/golden/megatron-training/"

static const char *printed(const struct value *v)
{
    struct strbuf text = {0};
    value_print(&text, v, 1 << 16);
    const char *out = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* ---- reading ---- */

static struct training training;
static struct training_reader reader;
static double number_in_tensor;

static bool number_of_tensor(void *context, const struct value *tensor, double *out)
{
    (void)tensor;
    *out = *(const double *)context;
    return true;
}

static int begin(void **state)
{
    if (scratch_begin(state)) return -1;
    number_in_tensor = 7;
    training_reader_init(&reader, &training, &scratch, number_of_tensor, &number_in_tensor);
    return 0;
}

static int end(void **state)
{
    training_reader_release(&reader);
    return scratch_end(state);
}

static void restart(void)
{
    training_reader_release(&reader);
    training_reader_init(&reader, &training, &scratch, number_of_tensor, &number_in_tensor);
}

/* "matrices False 2; vectors False 2": members, is_expert_parallel and step of
 * the groups. */
static const char *groups_read(void)
{
    const char *out = "";
    training_reader_finish(&reader);
    for (size_t i = 0; i < training.num_groups; i++) {
        const struct param_group *g = &training.groups[i];
        out =
            arena_printf(&scratch, "%s%s%s%s %d", out, i ? "; " : "", g->members ? g->members : "-",
                         g->is_expert_parallel ? " experts" : "", (int)g->step);
    }
    return out;
}

/* The groups of an optimizer. */
static const char *groups_of(const char *optimizer)
{
    restart();
    assert_ok(training_reader_optimizer(&reader, python(optimizer), "optimizer", &err));
    return groups_read();
}

#define MATRICES "{'wd_mult': 1.0, 'lr_mult': 1.0, 'is_expert_parallel': False, 'step': 2}"
#define VECTORS "{'wd_mult': 0.0, 'lr_mult': 1.0, 'is_expert_parallel': False, 'step': 2}"
#define EXPERTS "{'wd_mult': 1.0, 'lr_mult': 1.0, 'is_expert_parallel': True, 'step': 2}"

static void every_wrapper_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *optimizer, *groups;
    } cases[] = {
        {"None", ""},
        {"{'param_state_sharding_type': 'dp_reshardable'}", ""},
        {"{'optimizer': {'param_groups': [" MATRICES "," VECTORS "]}, 'grad_scaler': {}}",
         "matrices 2; vectors 2"},
        {"{'param_groups': [" MATRICES "," VECTORS "]}", "matrices 2; vectors 2"},
        {"{'state': {'common_step': T}, 'param_groups': [{'wd_mult': 1.0}, {'wd_mult': 0.0}]}",
         "matrices 7; vectors 7"},
        {"{'state': {'common_step': 3.0}, 'param_groups': ({'wd_mult': 1.0},)}", "all 3"},
        {"{'state': {0: {'step': T}}, 'param_groups': [{'wd_mult': 1, 'params': [0]}]}", "all 7"},
        {"{'optimizer_state_dict': {'state': {}, 'param_groups': [" MATRICES "]}}", "all 2"},
        {"{0: {'optimizer': {'param_groups': [" MATRICES "," VECTORS "]}},"
         " 1: {'optimizer': {'param_groups': [" EXPERTS "]}}}",
         "matrices 2; vectors 2; matrices experts 2"},
        {"[{'param_groups': [" MATRICES "," VECTORS "]}, None, {'param_groups': [" EXPERTS "]}]",
         "matrices 2; vectors 2; matrices experts 2"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(groups_of(cases[i].optimizer), cases[i].groups);
}

static void all_settings_of_a_group_are_read(void **state)
{
    (void)state;
    groups_of("{'param_groups': [{'is_expert_parallel': True, 'pre_wd_mult': 0.5,"
              "'pre_lr_mult': 2.0, 'is_decoupled_lr': False, 'max_lr': 0.1, 'min_lr': 0, 'lr': T,"
              "'betas': [0.9, 0.95], 'eps': 1e-08, 'weight_decay': 0.01, 'momentum': None,"
              "'decoupled_weight_decay': False, 'amsgrad': True, 'step': 10.0}]}");
    const struct param_group *g = training.groups;
    assert_true(g->is_expert_parallel && !g->is_decoupled_lr && g->amsgrad);
    assert_false(g->decoupled_weight_decay);
    assert_true(g->wd_mult == 0.5 && g->lr_mult == 2 && g->max_lr == 0.1 && g->min_lr == 0);
    assert_true(g->lr == 7 && g->beta1 == 0.9 && g->beta2 == 0.95 && g->eps == 1e-8);
    assert_true(g->weight_decay == 0.01 && isnan(g->momentum));
    assert_int_equal(g->step, 10);
    assert_int_equal(training.step, 10);
}

static void equal_groups_are_added_once(void **state)
{
    (void)state;
    struct value *cell = python("{'param_groups': [" MATRICES "," VECTORS "]}");
    struct value *more = python("{'param_groups': [" VECTORS "," EXPERTS "]}");
    assert_ok(training_reader_optimizer(&reader, cell, "cell 0", &err));
    assert_ok(training_reader_optimizer(&reader, more, "cell 1", &err));
    assert_string_equal(groups_read(), "matrices 2; vectors 2; matrices experts 2");
    assert_ptr_equal(reader.native_groups[0], cell->items[1]->items[0]);
    assert_ptr_equal(reader.native_groups[2], more->items[1]->items[1]);
}

static void steps_that_differ_are_refused_with_both(void **state)
{
    (void)state;
    struct value *two = python("{'param_groups': [{'wd_mult': 0.0}, {'wd_mult': 1.0, 'step': 2}]}");
    struct value *three = python("[{'param_groups': [{'wd_mult': 1.0, 'step': 3}]}]");
    assert_ok(training_reader_optimizer(&reader, two, "a", &err));
    assert_fails(training_reader_optimizer(&reader, three, "b", &err), ERR_CORRUPT,
                 "a: param_groups[1] has made 2 steps, but b[0]: param_groups[0] 3");
}

static void an_empty_group_may_have_made_no_step(void **state)
{
    (void)state;
    assert_string_equal(groups_of("{'param_groups': [{'wd_mult': 1.0, 'step': 0},"
                                  "{'wd_mult': 0.0, 'step': 4}]}"),
                        "matrices 0; vectors 4");
    assert_string_equal(groups_of("[{'param_groups': [{'wd_mult': 1.0, 'step': 0}]},"
                                  "{'param_groups': [{'wd_mult': 1.0, 'step': 4}]}]"),
                        "all 4");
}

static void members_follow_from_megatrons_rule(void **state)
{
    (void)state;
    static const struct {
        const char *groups, *members;
    } cases[] = {
        {"{}", "all 0"},
        {"{'wd_mult': 0.0}", "all 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 1.0, 'is_expert_parallel': True}", "all 0; all experts 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 0.0}, {'wd_mult': 1.0, 'is_decoupled_lr': True}",
         "matrices 0; vectors 0; embeddings 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 1.0, 'is_decoupled_lr': True}", "all 0; embeddings 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 0.0, 'is_decoupled_lr': True}", "all 0; - 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 0.5}, {'wd_mult': 0.0}", "matrices 0; - 0; vectors 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 0.0}, {'wd_mult': 1.0, 'lr_mult': 2.0}",
         "matrices 0; vectors 0; - 0"},
        {"{'wd_mult': 1.0, 'max_lr': 1}, {'wd_mult': 0.0}, {'wd_mult': 1.0, 'max_lr': 2}",
         "- 0; vectors 0; - 0"},
        {"{'wd_mult': 1.0}, {'wd_mult': 0.0}, {'default_config': False, 'wd_mult': 1.0}",
         "matrices 0; vectors 0; - 0"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(
            groups_of(arena_printf(&scratch, "{'param_groups': [%s]}", cases[i].groups)),
            cases[i].members);
}

static void args_change_the_rule(void **state)
{
    (void)state;
    assert_ok(training_reader_common(
        &reader,
        python("{'args': {'apply_wd_to_qk_layernorm': True, 'decoupled_lr': 0.5}, 'optimizer':"
               "{'param_groups': [{'wd_mult': 1.0, 'default_config': True},"
               "{'wd_mult': 0.0}, {'wd_mult': 1.0, 'default_config': False, 'max_lr': 0.5}]}}"),
        &err));
    assert_string_equal(groups_read(),
                        "matrices_and_qk_norms 0; vectors_without_qk_norms 0; embeddings 0");
}

static void the_common_state_is_read(void **state)
{
    (void)state;
    struct value *common = python(
        "{'iteration': 12, 'num_floating_point_operations_so_far': 1.5e24, 'args':"
        "{'consumed_train_samples': 96, 'consumed_valid_samples': 8, 'skipped_train_samples': 4,"
        "'optimizer': 'adam', 'lr': 1}, 'opt_param_scheduler': {'max_lr': 0.01,"
        "'lr_warmup_steps': 12.5, 'num_steps': 96, 'lr_decay_style': 'cosine',"
        "'lr_decay_steps': 400, 'min_lr': 0.001, 'start_wd': 0.01, 'end_wd': 0.1,"
        "'wd_incr_style': 'linear', 'wd_incr_steps': 300}, 'optimizer': {'optimizer':"
        "{'param_groups': [" MATRICES "]}, 'grad_scaler': {'scale': T, 'growth_tracker': 3,"
        "'hysteresis_tracker': 2}}}");
    assert_ok(training_reader_common(&reader, common, &err));
    assert_int_equal(training.iteration, 12);
    assert_int_equal(training.step, 2);
    assert_int_equal(training.consumed_train_samples, 96);
    assert_int_equal(training.consumed_valid_samples, 8);
    assert_int_equal(training.skipped_train_samples, 4);
    assert_true(training.floating_point_operations == 1.5e24);
    assert_string_equal(training.optimizer, "adam");
    assert_true(training.max_lr == 0.01 && training.min_lr == 0.001);
    assert_string_equal(training.lr_decay_style, "cosine");
    assert_true(training.lr_warmup_steps == 12.5);
    assert_int_equal(training.lr_decay_steps, 400);
    assert_int_equal(training.num_steps, 96);
    assert_true(training.start_wd == 0.01 && training.end_wd == 0.1);
    assert_string_equal(training.wd_incr_style, "linear");
    assert_int_equal(training.wd_incr_steps, 300);
    assert_true(training.loss_scale == 7);
    assert_int_equal(training.growth_tracker, 3);
    assert_int_equal(training.hysteresis_tracker, 2);
    assert_ptr_equal(reader.native_schedule, value_get(common, "opt_param_scheduler"));
}

/* DynamicGradScaler.update() takes 1 off with every overflow until the scale
 * grows. */
static void a_hysteresis_below_0_is_0(void **state)
{
    (void)state;
    struct value *common =
        python("{'optimizer': {'optimizer': {'param_groups': [" MATRICES "]}, 'grad_scaler':"
               "{'scale': T, 'growth_tracker': 0, 'hysteresis_tracker': -7}}}");
    assert_ok(training_reader_common(&reader, common, &err));
    assert_true(training.loss_scale == 7);
    assert_int_equal(training.hysteresis_tracker, 0);
}

static void old_spellings_of_the_schedule_are_read(void **state)
{
    (void)state;
    assert_ok(training_reader_common(
        &reader,
        python("{'lr_scheduler': {'start_lr': 0.5, 'warmup_iter': 3, 'num_iters': 4,"
               "'decay_style': 'linear', 'end_iter': 5, 'min_lr': 0.0}}"),
        &err));
    assert_true(training.max_lr == 0.5 && training.min_lr == 0 && training.lr_warmup_steps == 3);
    assert_int_equal(training.num_steps, 4);
    assert_int_equal(training.lr_decay_steps, 5);
    assert_string_equal(training.lr_decay_style, "linear");
}

static void nothing_is_read_of_nothing(void **state)
{
    (void)state;
    assert_ok(training_reader_common(&reader, NULL, &err));
    assert_ok(training_reader_common(&reader, python("{'optimizer': None}"), &err));
    assert_ok(training_reader_optimizer(&reader, NULL, "x", &err));
    assert_ok(training_reader_scaler(&reader, NULL, "x", &err));
    training_reader_finish(&reader);
    for (unsigned part = 0; part < NUM_TRAINING_PARTS; part++)
        assert_false(training_has(&training, part));
}

static void what_is_no_training_state_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *common;
        enum status status;
        const char *message;
    } cases[] = {
        {"{'optimizer': X}", ERR_UNSUPPORTED, "optimizer has class pkg.optim.Wrapper, not dict"},
        {"{'optimizer': {'optimizer': X}}", ERR_UNSUPPORTED,
         "optimizer: optimizer has class pkg.optim.Wrapper, not dict"},
        {"{'optimizer': [[]]}", ERR_UNSUPPORTED, "optimizer[0] has class list, not dict"},
        {"{'optimizer': {'param_groups': X}}", ERR_UNSUPPORTED,
         "optimizer: param_groups has class pkg.optim.Wrapper, not list"},
        {"{'optimizer': {'param_groups': {}}}", ERR_UNSUPPORTED,
         "optimizer: param_groups has class dict, not list"},
        {"{'optimizer': {'param_groups': [{}, 3]}}", ERR_UNSUPPORTED,
         "optimizer: param_groups[1] has class int, not dict"},
        {"{'optimizer': {'param_to_group_meta': {}}}", ERR_UNSUPPORTED, "Megatron-FSDP"},
        {"{'optimizer': {'grad_scaler': X}}", ERR_UNSUPPORTED,
         "optimizer: grad_scaler has class pkg.optim.Wrapper, not dict"},
        {"{'opt_param_scheduler': X}", ERR_UNSUPPORTED,
         "opt_param_scheduler has class pkg.optim.Wrapper, not dict"},
        {"{'optimizer': {'param_groups': [{'lr': 'x'}]}}", ERR_CORRUPT,
         "optimizer: param_groups[0]: lr is 'x' (str), not a number"},
        {"{'optimizer': {'param_groups': [{'step': -1}]}}", ERR_CORRUPT,
         "step is -1 (int), not a whole number from 0"},
        {"{'optimizer': {'param_groups': [{'step': 2.5}]}}", ERR_CORRUPT, "step is 2.5 (float)"},
        {"{'optimizer': {'param_groups': [{'step': nan}]}}", ERR_CORRUPT, "step is nan (float)"},
        {"{'optimizer': {'param_groups': [{'betas': (0.9,)}]}}", ERR_CORRUPT, "not two numbers"},
        {"{'optimizer': {'param_groups': [{'amsgrad': 'no'}]}}", ERR_CORRUPT, "not True or False"},
        {"{'optimizer': {'state': {'common_step': 'x'}, 'param_groups': []}}", ERR_CORRUPT,
         "optimizer: the step in state is 'x' (str)"},
        {"{'args': {'consumed_train_samples': -4}}", ERR_CORRUPT,
         "args: consumed_train_samples is -4 (int)"},
        {"{'opt_param_scheduler': {'lr_decay_style': 3}}", ERR_CORRUPT,
         "opt_param_scheduler: lr_decay_style is 3 (int), not a str"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        restart();
        assert_fails(training_reader_common(&reader, python(cases[i].common), &err),
                     cases[i].status, cases[i].message);
    }
}

static void tensors_without_a_reader_are_refused(void **state)
{
    (void)state;
    reader.scalar = NULL;
    assert_fails(
        training_reader_optimizer(
            &reader, python("{'state': {'common_step': T}, 'param_groups': []}"), "x", &err),
        ERR_CORRUPT, "(torch.Tensor), not a whole number from 0");
}

/* A dict with n settings. */
static struct value *wide_group(unsigned n, unsigned first)
{
    struct value *dict = value_dict(&scratch);
    for (unsigned i = 0; i < n; i++)
        value_dict_add(&scratch, dict, arena_printf(&scratch, "x%u", first + i),
                       value_int(&scratch, 1));
    return dict;
}

static struct value *with_groups(struct value *list)
{
    struct value *optimizer = value_dict(&scratch);
    value_dict_add(&scratch, optimizer, "param_groups", list);
    return optimizer;
}

static void too_much_of_a_small_file_is_refused(void **state)
{
    (void)state;
    struct value *many = value_list(&scratch, VALUE_LIST, 0, NULL);
    struct value *wide = value_list(&scratch, VALUE_LIST, 0, NULL);
    struct value *shared = value_list(&scratch, VALUE_LIST, 0, NULL), *same = wide_group(3, 0);
    for (unsigned i = 0; i <= MAX_PARAM_GROUPS; i++)
        value_append(&scratch, many, wide_group(1, i));
    for (unsigned i = 0; i < 1 << 21; i++)
        value_append(&scratch, shared, same);
    value_append(&scratch, wide, wide_group(257, 0));
    assert_fails(training_reader_optimizer(&reader, with_groups(many), "x", &err), ERR_CORRUPT,
                 "x: param_groups[1000]: more than 1000 different groups");
    restart();
    assert_fails(training_reader_optimizer(&reader, with_groups(wide), "x", &err), ERR_CORRUPT,
                 "a group of 257 settings");
    restart();
    assert_fails(training_reader_optimizer(&reader, with_groups(shared), "x", &err), ERR_CORRUPT,
                 "a group of 3 settings");
}

/* ---- states that Megatron saved ---- */

struct opened {
    struct torch_file file;
    struct stored stored;
};

/* Reads the number in a tensor of the file. */
static bool number_in_file(void *context, const struct value *tensor, double *out)
{
    struct opened *o = context;
    const struct stored_tensor *t;
    float x = 0;
    const char *name = arena_printf(&scratch, "%zu", o->stored.num_tensors);
    if (torch_add_tensor(&o->file, &o->stored, name, tensor, &err)) return false;
    t = stored_find(&o->stored, name);
    if (!t || t->dtype != DT_F32 || stored_numel(t) != 1) return false;
    struct stored_reader *r = stored_reader_create(&o->stored, 4);
    enum status st =
        stored_read(r, t->pieces[0].file, t->pieces[0].offset_bytes, &x, sizeof x, &err);
    stored_reader_free(r);
    *out = (double)x;
    return !st;
}

static void open_file(struct opened *o, const char *path)
{
    stored_init(&o->stored);
    assert_ok(torch_open(&o->file, &o->stored, path, 0, UINT64_MAX, &err));
    training_reader_release(&reader);
    training_reader_init(&reader, &training, &scratch, number_in_file, o);
}

static void close_file(struct opened *o)
{
    torch_close(&o->file);
    stored_release(&o->stored);
}

/* The common state; newer releases have it in a list. */
static struct value *common_of(const struct opened *o)
{
    return o->file.root->kind == VALUE_LIST ? o->file.root->items[0] : o->file.root;
}

static void check_written_like(const struct value *common, enum optimizer_wrapper wrapper,
                               const char *left_out)
{
    const struct value *old = value_get(common, "optimizer");
    const struct optimizer_form form = {
        .wrapper = wrapper,
        .sharding_type = value_as_text(value_get(old, "param_state_sharding_type")),
        .native = reader.native_groups};
    struct tensor_data data = {0};
    struct value *expected = value_dict(&scratch);
    for (size_t i = 0; i < old->count; i++)
        if (strcmp(old->items[2 * i]->text, left_out))
            value_dict_add(&scratch, expected, old->items[2 * i]->text, old->items[2 * i + 1]);
    assert_string_equal(printed(optimizer_value(&training, &form, &data, &scratch)),
                        printed(expected));
    assert_string_equal(printed(schedule_value(&training, reader.native_schedule, &scratch)),
                        printed(value_get(common, "opt_param_scheduler")));
}

static void check_golden(const char *name, enum optimizer_wrapper wrapper, const char *json)
{
    struct opened o;
    struct strbuf text = {0};
    open_file(&o, arena_printf(&scratch, GOLDEN "%s.pt", name));
    assert_ok(training_reader_common(&reader, common_of(&o), &err));
    training_reader_finish(&reader);
    cJSON *tree = training_json(&training);
    json_print(&text, tree, -1);
    assert_string_equal(text.data, json_text(json));
    check_written_like(common_of(&o), wrapper, "param_state");
    cJSON_Delete(tree);
    strbuf_release(&text);
    close_file(&o);
}

#define GROUP_OF(members, step, lr, max_lr, min_lr, wd, wd_mult)                                   \
    "{'members':'" members "','is_expert_parallel':false,'step':" step ",'lr':" lr                 \
    ",'max_lr':" max_lr ",'min_lr':" min_lr                                                        \
    ",'lr_mult':1.0,'beta1':0.9,'beta2':0.95,'eps':1e-08,'weight_decay':" wd ",'wd_mult':" wd_mult \
    ",'decoupled_weight_decay':true,'amsgrad':false,'is_decoupled_lr':false}"

#define OF_HEAD                                                                                    \
    "{'iteration':10,'step':10,'consumed_train_samples':80,'consumed_valid_samples':16,"           \
    "'floating_point_operations':597688320.0,'optimizer':'adam','max_lr':0.005,'min_lr':0.0005,"   \
    "'lr_decay_style':'cosine','lr_warmup_steps':32.0,'lr_decay_steps':160,'num_steps':80,"        \
    "'start_wd':0.01,'end_wd':0.1,'wd_incr_style':'cosine','wd_incr_steps':160,"                   \
    "'groups':[" GROUP_OF("matrices", "10", "0.0036110377228214525", "0.005", "0.0005",            \
                          "0.05500000000000001",                                                   \
                          "1.0") "," GROUP_OF("vectors", "10", "0.0036110377228214525", "0.005",   \
                                              "0.0005", "0.0", "0.0") "]}"

static void states_of_megatron_are_read_and_written_as_they_were(void **state)
{
    (void)state;
    check_golden("bf16-HEAD", OPTIMIZER_DISTRIBUTED, OF_HEAD);
    check_golden("fp32-HEAD", OPTIMIZER_FP32, OF_HEAD);
    check_golden(
        "bf16-0.12.0", OPTIMIZER_DISTRIBUTED,
        "{'iteration':10,'step':2,'consumed_train_samples':40,"
        "'floating_point_operations':0.0,'optimizer':'adam','max_lr':0.01,'min_lr':0.001,"
        "'lr_decay_style':'constant','lr_warmup_steps':0.0,'lr_decay_steps':400,"
        "'num_steps':40,'start_wd':0.01,'end_wd':0.01,'wd_incr_style':'constant',"
        "'wd_incr_steps':400,'groups':[" GROUP_OF(
            "matrices", "2", "0.01", "0.01", "0.001", "0.01",
            "1.0") "," GROUP_OF("vectors", "2", "0.01", "0.01", "0.001", "0.0", "0.0") "]}");
}

static void a_cell_of_megatron_is_read(void **state)
{
    (void)state;
    struct opened o;
    open_file(&o, GOLDEN "cell-HEAD.pt");
    for (int i = 0; i < 2; i++)
        assert_ok(training_reader_optimizer(&reader, o.file.root, "dp_group_idx_1", &err));
    assert_string_equal(groups_read(), "matrices 2; vectors 2");
    close_file(&o);
}

/* ---- completing ---- */

static void flags_complete_an_empty_state(void **state)
{
    (void)state;
    struct training_given f;
    training_given_init(&f);
    assert_string_equal(training_complete(&training, &f, false, &scratch),
                        "max_lr, min_lr, lr_decay_style, lr_warmup_steps, lr_decay_steps, start_wd,"
                        " end_wd, lr, beta1, beta2, eps, weight_decay");
    restart();
    training.step = 3;
    training.consumed_train_samples = 12;
    f = (struct training_given){0.5, 0.25, 0.1, 0.9, 0.95, 1e-8, "linear", 0, 100};
    assert_null(training_complete(&training, &f, false, &scratch));
    const struct param_group *g = training.groups;
    assert_int_equal(training.num_groups, 2);
    assert_string_equal(g[0].members, "matrices");
    assert_string_equal(g[1].members, "vectors");
    assert_true(g[0].wd_mult == 1 && g[1].wd_mult == 0);
    assert_true(g[0].weight_decay == 0.1 && g[1].weight_decay == 0);
    assert_true(g[1].max_lr == 0.5 && g[1].min_lr == 0.25 && g[1].lr == 0.5 && g[1].eps == 1e-8);
    assert_int_equal(g[1].step, 3);
    assert_true(training.max_lr == 0.5 && training.end_wd == 0.1 && training.lr_warmup_steps == 0);
    assert_int_equal(training.num_steps, 12);
    assert_int_equal(training.wd_incr_steps, 100);
    assert_string_equal(training.wd_incr_style, "constant");
}

static void flags_replace_what_is_there(void **state)
{
    (void)state;
    struct training_given f;
    training_given_init(&f);
    f.lr = 0.5;
    f.weight_decay = 0.2;
    assert_ok(training_reader_common(
        &reader,
        python("{'opt_param_scheduler': {'max_lr': 0.1, 'min_lr': 0.0}, 'optimizer':"
               "{'param_groups': [{'wd_mult': 1.0, 'max_lr': 0.1, 'lr': 0.05},"
               "{'wd_mult': 0.0, 'max_lr': 0.1},"
               "{'wd_mult': 1.0, 'is_decoupled_lr': True, 'max_lr': 0.3}]}}"),
        &err));
    training_reader_finish(&reader);
    assert_string_equal(training_complete(&training, &f, true, &scratch),
                        "lr_decay_style, lr_warmup_steps, lr_decay_steps, beta1, beta2, eps");
    const struct param_group *g = training.groups;
    assert_int_equal(training.num_groups, 3);
    assert_true(training.max_lr == 0.5 && training.start_wd == 0.2 && training.end_wd == 0.2);
    assert_true(g[0].max_lr == 0.5 && g[1].max_lr == 0.5 && g[2].max_lr == 0.3);
    assert_true(g[0].lr == 0.05 && g[1].lr == 0.5 && g[2].lr == 0.3);
    assert_true(g[0].weight_decay == 0.2 && g[1].weight_decay == 0);
}

static void a_group_of_all_is_divided_for_megatron_unless_it_is_its_own(void **state)
{
    (void)state;
    struct training_given f;
    training_given_init(&f);
    for (int native = 0; native < 2; native++) {
        training_init(&training);
        struct param_group *g = training_add_group(&training, &scratch);
        g->members = "all";
        g->weight_decay = 0.1;
        (void)training_complete(&training, &f, native, &scratch);
        assert_int_equal(training.num_groups, native ? 1 : 2);
        assert_true(training.start_wd == 0.1 && training.groups[0].weight_decay == 0.1);
        assert_true(native || training.groups[1].weight_decay == 0);
    }
}

/* ---- writing ---- */

static const struct optimizer_form distributed = {.sharding_type = "fully_reshardable"};

/* A state of two groups. */
static void make_state(void)
{
    const struct training_given f = {0.5, 0.25, 0.125, 0.9, 0.95, 1e-8, "linear", 4, 100};
    training_init(&training);
    training.step = 3;
    training.num_steps = 12;
    assert_null(training_complete(&training, &f, false, &scratch));
}

static void groups_are_made_in_megatrons_order(void **state)
{
    (void)state;
    make_state();
    struct optimizer_form form = distributed;
    assert_string_equal(
        printed(param_groups_value(&training, &form, false, &scratch)),
        "[{'is_expert_parallel': False, 'default_config': True, 'wd_mult': 1.0, 'lr_mult': 1.0, "
        "'is_decoupled_lr': False, 'max_lr': 0.5, 'min_lr': 0.25, 'lr': 0.5, 'bias_correction': "
        "True, 'betas': (0.9, 0.95), 'eps': 1e-08, 'weight_decay': 0.125, 'step': 3}, "
        "{'is_expert_parallel': False, 'default_config': True, 'wd_mult': 0.0, 'lr_mult': 1.0, "
        "'is_decoupled_lr': False, 'max_lr': 0.5, 'min_lr': 0.25, 'lr': 0.5, 'bias_correction': "
        "True, 'betas': (0.9, 0.95), 'eps': 1e-08, 'weight_decay': 0.0, 'step': 3}]");
    form.torch_adam = true;
    training.num_groups = 1;
    assert_string_equal(
        printed(param_groups_value(&training, &form, false, &scratch)),
        "[{'is_expert_parallel': False, 'default_config': True, 'wd_mult': 1.0, 'lr_mult': 1.0, "
        "'is_decoupled_lr': False, 'max_lr': 0.5, 'min_lr': 0.25, 'lr': 0.5, 'betas': (0.9, 0.95), "
        "'eps': 1e-08, 'weight_decay': 0.125, 'amsgrad': False, 'maximize': False, 'foreach': "
        "None, 'capturable': False, 'differentiable': False, 'fused': None, "
        "'decoupled_weight_decay': True, 'step': 3.0}]");
}

static void a_schedule_is_made_in_megatrons_order(void **state)
{
    (void)state;
    make_state();
    assert_string_equal(
        printed(schedule_value(&training, NULL, &scratch)),
        "{'max_lr': 0.5, 'lr_warmup_steps': 4, 'num_steps': 12, 'lr_decay_style': 'linear', "
        "'lr_decay_steps': 100, 'min_lr': 0.25, 'start_wd': 0.125, 'end_wd': 0.125, "
        "'wd_incr_style': 'constant', 'wd_incr_steps': 100}");
    training_init(&training);
    training.lr_warmup_steps = 12.5;
    assert_string_equal(
        printed(schedule_value(&training, NULL, &scratch)),
        "{'max_lr': None, 'lr_warmup_steps': 12.5, 'num_steps': 0, 'lr_decay_style': None, "
        "'lr_decay_steps': 0, 'min_lr': None, 'start_wd': None, 'end_wd': None, "
        "'wd_incr_style': None, 'wd_incr_steps': 0}");
    training.max_lr = 0.5;
    assert_string_equal(printed(schedule_value(&training,
                                               python("{'start_lr': 0.1, 'mine': 1, 'x': X,"
                                                      "'min_lr': 0, 'num_iters': 3}"),
                                               &scratch)),
                        "{'start_lr': 0.5, 'mine': 1, 'min_lr': 0, 'num_iters': 3, "
                        "'lr_warmup_steps': 12.5, 'lr_decay_style': None, 'lr_decay_steps': 0, "
                        "'start_wd': None, 'end_wd': None, 'wd_incr_style': None, "
                        "'wd_incr_steps': 0}");
}

/* The groups of an optimizer as they are written with this form. */
static const char *rewritten(const char *optimizer, struct optimizer_form form, bool experts)
{
    (void)groups_of(optimizer);
    form.native = reader.native_groups;
    return printed(param_groups_value(&training, &form, experts, &scratch));
}

static void a_group_of_megatron_keeps_what_is_no_field(void **state)
{
    (void)state;
    static const char *const native =
        "{'param_groups': [{'pre_wd_mult': 1.0, 'mine': [1, 'a'], 'params': [0, 1], 'lr': T,"
        "'betas': (0.9, 0.95), 'pre_lr_mult': 1, 'object': X, 'nested': [[X]],"
        "'bias_correction': False, 'is_expert_parallel': False, 'is_decoupled_lr': False,"
        "'step': 3}]}";
    assert_string_equal(
        rewritten(native, distributed, false),
        "[{'pre_wd_mult': 1.0, 'mine': [1, 'a'], 'betas': (0.9, 0.95), 'pre_lr_mult': 1, "
        "'bias_correction': False, 'is_expert_parallel': False, 'is_decoupled_lr': False, "
        "'step': 3, 'lr': 7.0}]");
    training.groups[0].beta1 = 0.5;
    training.groups[0].wd_mult = 2;
    training.step = 5;
    const struct optimizer_form form = {.native = reader.native_groups};
    assert_string_equal(
        printed(param_groups_value(&training, &form, false, &scratch)),
        "[{'pre_wd_mult': 2.0, 'mine': [1, 'a'], 'betas': (0.5, 0.95), 'pre_lr_mult': 1, "
        "'bias_correction': False, 'is_expert_parallel': False, 'is_decoupled_lr': False, "
        "'step': 5, 'lr': 7.0}]");
}

static void every_group_has_the_step(void **state)
{
    (void)state;
    assert_string_equal(rewritten("{'param_groups': [{'wd_mult': 1.0, 'step': 0.0},"
                                  "{'wd_mult': 0.0, 'step': 4.0}]}",
                                  distributed, false),
                        "[{'wd_mult': 1.0, 'step': 4.0, 'is_expert_parallel': False, "
                        "'is_decoupled_lr': False}, {'wd_mult': 0.0, 'step': 4.0, "
                        "'is_expert_parallel': False, 'is_decoupled_lr': False}]");
}

/* "1.0 experts; 0.0": wd_mult of the written groups. */
static const char *written(const char *optimizer, struct optimizer_form form, bool experts)
{
    const char *out = "";
    (void)groups_of(optimizer);
    form.native = reader.native_groups;
    struct value *list = param_groups_value(&training, &form, experts, &scratch);
    for (uint32_t i = 0; i < list->count; i++) {
        bool expert;
        assert_true(value_as_bool(value_get(list->items[i], "is_expert_parallel"), &expert));
        out = arena_printf(&scratch, "%s%s%s%s", out, i ? "; " : "",
                           printed(value_get(list->items[i], "wd_mult")), expert ? " experts" : "");
    }
    return out;
}

static void experts_that_are_split_have_groups_of_their_own(void **state)
{
    (void)state;
    static const char *const dense = "{'param_groups': [" MATRICES "," VECTORS "]}";
    static const char *const both =
        "[{'param_groups': [" MATRICES "," VECTORS "]}, {'param_groups': [" EXPERTS "]}]";
    struct optimizer_form split = distributed;
    split.experts_split = true;
    assert_string_equal(written(dense, distributed, false), "1.0; 0.0");
    assert_string_equal(written(dense, split, false), "1.0; 0.0");
    assert_string_equal(written(dense, split, true), "1.0 experts");
    assert_string_equal(written(both, split, false), "1.0; 0.0");
    assert_string_equal(written(both, split, true), "1.0 experts");
    assert_string_equal(written(both, distributed, false), "1.0; 0.0");
    assert_string_equal(written(both, distributed, true), "");
    assert_string_equal(written("{'param_groups': [" VECTORS "," EXPERTS "]}", distributed, false),
                        "0.0; 1.0");
    split.expert_vectors = true;
    assert_string_equal(written(dense, split, true), "1.0 experts; 0.0 experts");
}

static void each_wrapper_is_written(void **state)
{
    (void)state;
    struct tensor_data data = {0};
    struct optimizer_form form = distributed;
    training_init(&training);
    training.step = 3;
    training.loss_scale = 1024;
    training.growth_tracker = 5;
    const char *scaler = "{'scale': T, 'growth_tracker': 5, 'hysteresis_tracker': 0}";
    struct value *v = optimizer_value(&training, &form, &data, &scratch);
    assert_string_equal(printed(value_get(value_get(v, "optimizer"), "param_groups")), "[]");
    assert_string_equal(value_as_text(value_get(v, "param_state_sharding_type")),
                        "fully_reshardable");
    assert_int_equal(value_get(v, "grad_scaler")->count, python(scaler)->count);
    assert_int_equal(data.count, 1);
    assert_true(*(const float *)data.data[0] == 1024);
    form.wrapper = OPTIMIZER_MIXED;
    form.torch_adam = true;
    v = optimizer_value(&training, &form, &data, &scratch);
    const struct value *step =
        value_get(value_get(value_get(v, "optimizer"), "state"), "common_step");
    assert_string_equal(step->tensor->storage->key, "1");
    assert_int_equal(step->tensor->num_dims, 0);
    assert_string_equal(value_get(value_get(v, "grad_scaler"), "scale")->tensor->storage->key, "2");
    assert_int_equal(data.count, 3);
    form.wrapper = OPTIMIZER_FP32;
    form.torch_adam = false;
    assert_string_equal(printed(optimizer_value(&training, &form, &data, &scratch)),
                        "{'state': {}, 'param_groups': []}");
    assert_int_equal(data.count, 3);
}

/* The written archive is read as the same state. */
static void chained_optimizers_are_written_and_read(void **state)
{
    (void)state;
    struct tensor_data data = {0};
    struct strbuf bytes = {0};
    struct opened o;
    struct optimizer_form form = {
        .wrapper = OPTIMIZER_MIXED, .torch_adam = true, .experts_split = true};
    make_state();
    training.loss_scale = 4096;
    const struct value *root = optimizer_value(&training, &form, &data, &scratch);
    assert_ok(torch_to_bytes(&bytes, "archive", root, data.data, &err));
    assert_int_equal(data.count, 2);
    assert_ok(file_write_all(in_scratch("x.pt"), bytes.data, bytes.length, false, &err));
    open_file(&o, in_scratch("x.pt"));
    assert_ok(training_reader_optimizer(&reader, o.file.root, "x", &err));
    assert_string_equal(groups_read(), "matrices 3; vectors 3; matrices experts 3");
    assert_true(training.loss_scale == 4096);
    close_file(&o);
    strbuf_release(&bytes);
}

#define GROUP(experts, wd_mult, rest)                                                              \
    "{'is_expert_parallel': " experts ", 'wd_mult': " wd_mult                                      \
    ", 'lr_mult': 1.0, 'is_decoupled_lr': False, 'max_lr': 0.01, 'min_lr': 0.001, 'lr': "          \
    "0.01, " rest "}"
#define MUON(experts) GROUP(experts, "1.0", "'momentum': 0.95, 'weight_decay': 0.01")
#define ADAM(wd_mult)                                                                              \
    GROUP(                                                                                         \
        "False", wd_mult,                                                                          \
        "'optimizer': 'adam', 'betas': (0.9, 0.95), 'eps': 1e-08, 'weight_decay': 0.1, 'step': 2")
#define LION(wd_mult) GROUP("False", wd_mult, "'betas': (0.9, 0.95), 'weight_decay': 0.1")

/* Where the first of a chain is of another kind, it has hidden matrices. Both
 * are written as they were. */
static void optimizers_of_a_chain_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *first, *rest, *members, *optimizer, *other;
    } cases[] = {
        {MUON("False"), ADAM("1.0") ", " ADAM("0.0"), "hidden_matrices 0; matrices 2; vectors 2",
         "muon", "adam"},
        {MUON("False") ", " MUON("True"), ADAM("1.0"),
         "hidden_matrices 0; hidden_matrices experts 0; all 2", "muon", "adam"},
        {LION("1.0"), ADAM("1.0") ", " ADAM("0.0"), "hidden_matrices 0; matrices 2; vectors 2",
         "lion", "adam"},
        {MUON("False"), LION("1.0") ", " LION("0.0"), "hidden_matrices 0; matrices 0; vectors 0",
         "muon", "lion"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct value *v = python(arena_printf(
            &scratch,
            "{0: {'optimizer': {'param_groups': [%s]}}, 1: {'optimizer': {'param_groups': [%s]}, "
            "'param_state_sharding_type': 'fully_reshardable'}}",
            cases[i].first, cases[i].rest));
        restart();
        assert_ok(training_reader_optimizer(&reader, v, "x", &err));
        assert_string_equal(groups_read(), cases[i].members);
        assert_true(training_is_split(&training));
        assert_string_equal(training.optimizer, cases[i].optimizer);
        assert_string_equal(training.groups[0].optimizer, cases[i].optimizer);
        assert_string_equal(training.groups[training.num_groups - 1].optimizer, cases[i].other);
        struct tensor_data data = {0};
        struct optimizer_form form = {.wrapper = OPTIMIZER_DISTRIBUTED,
                                      .is_mixed = true,
                                      .experts_split = i == 1,
                                      .sharding_type = "fully_reshardable",
                                      .native = reader.native_groups};
        assert_string_equal(printed(optimizer_value(&training, &form, &data, &scratch)),
                            printed(v));
    }
}

static void optimizers_of_one_kind_are_not_split(void **state)
{
    (void)state;
    assert_ok(training_reader_optimizer(&reader,
                                        python("{0: {'param_groups': [" ADAM("1.0") ", " ADAM(
                                            "0.0") "]}, 1: {'param_groups': "
                                                   "[{'is_expert_parallel': True, 'wd_mult': 1.0, "
                                                   "'eps': 1e-8, 'betas': (0.9, 0.95)}]}}"),
                                        "x", &err));
    assert_string_equal(groups_read(), "matrices 2; vectors 2; matrices experts 0");
    assert_false(training_is_split(&training));
    assert_null(training.groups[0].optimizer);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(every_wrapper_is_read),
        TEST(all_settings_of_a_group_are_read),
        TEST(equal_groups_are_added_once),
        TEST(steps_that_differ_are_refused_with_both),
        TEST(an_empty_group_may_have_made_no_step),
        TEST(members_follow_from_megatrons_rule),
        TEST(args_change_the_rule),
        TEST(the_common_state_is_read),
        TEST(a_hysteresis_below_0_is_0),
        TEST(old_spellings_of_the_schedule_are_read),
        TEST(nothing_is_read_of_nothing),
        TEST(what_is_no_training_state_is_refused_by_name),
        TEST(tensors_without_a_reader_are_refused),
        TEST(too_much_of_a_small_file_is_refused),
        TEST(states_of_megatron_are_read_and_written_as_they_were),
        TEST(a_cell_of_megatron_is_read),
        TEST(flags_complete_an_empty_state),
        TEST(flags_replace_what_is_there),
        TEST(a_group_of_all_is_divided_for_megatron_unless_it_is_its_own),
        TEST(groups_are_made_in_megatrons_order),
        TEST(a_schedule_is_made_in_megatrons_order),
        TEST(a_group_of_megatron_keeps_what_is_no_field),
        TEST(every_group_has_the_step),
        TEST(experts_that_are_split_have_groups_of_their_own),
        TEST(each_wrapper_is_written),
        TEST(chained_optimizers_are_written_and_read),
        TEST(optimizers_of_a_chain_are_told_apart),
        TEST(optimizers_of_one_kind_are_not_split),
    };
    return cmocka_run_group_tests_name("param_groups", tests, NULL, NULL);
}
