#include "tests/temporary.h"
#include "train/cli/testing_train_line.h"

#include <unistd.h>

#define GOLDEN "tests/golden/train/"

/* ---- golden runs ---- */

/* The command of a golden run, without its first word. On the heap. */
static char *golden_command(const char *name)
{
    FILE *f = fopen(GOLDEN "commands.txt", "r");
    char *row = NULL, *command_line = NULL;
    size_t capacity = 0;
    assert_non_null(f);
    while (!command_line && getline(&row, &capacity, f) > 0) {
        char *tab = strchr(row, '\t');
        *tab = '\0';
        row[strlen(tab + 1) + (size_t)(tab - row)] = '\0'; /* the line end */
        if (strcmp(row, name) == 0) command_line = must_strdup(strchr(tab + 1, ' ') + 1);
    }
    free(row);
    fclose(f);
    assert_non_null(command_line);
    return command_line;
}

static struct line *golden(const char *name)
{
    char *text = golden_command(name);
    struct line *x = complete_line(text);
    free(text);
    return x;
}

static void every_golden_command_is_taken(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDEN "commands.txt", "r");
    char *row = NULL;
    size_t capacity = 0, n = 0;
    assert_non_null(f);
    for (; getline(&row, &capacity, f) > 0; n++) {
        row[strcspn(row, "\n")] = '\0';
        struct line *x = complete_line(strchr(strchr(row, '\t'), ' ') + 1);
        assert_true(x->o.has_model);
        assert_int_equal(x->o.model.num_layers, 4);
        assert_string_equal(x->o.device, "cpu");
        line_free(x);
    }
    assert_int_equal(n, 30);
    free(row);
    fclose(f);
}

/* The values are those of args in the golden checkpoint. */
static void options_are_those_of_args(void **state)
{
    (void)state;
    struct line *x = golden("fp32");
    const struct train_options *o = &x->o;
    assert_int_equal(o->micro_batch_size, 2);
    assert_int_equal(o->global_batch_size, 8);
    assert_int_equal(o->train_iters, 20);
    assert_int_equal(o->train_samples, 0);
    assert_int_equal(o->seq_length, 32);
    near(o->lr, 0.005);
    near(o->min_lr, 0.0005);
    assert_string_equal(o->lr_decay_style, "cosine");
    assert_int_equal(o->lr_warmup_iters, 4);
    assert_int_equal(o->lr_warmup_samples, 0);
    assert_true(isnan(o->lr_warmup_fraction));
    near(o->lr_warmup_init, 0);
    assert_string_equal(o->lr_wsd_decay_style, "exponential");
    near(o->weight_decay, 0.1);
    near(o->start_weight_decay, 0.01);
    near(o->end_weight_decay, 0.1);
    assert_string_equal(o->weight_decay_incr_style, "cosine");
    near(o->adam_beta1, 0.9);
    near(o->adam_beta2, 0.95);
    near(o->adam_eps, 1e-8);
    near(o->sgd_momentum, 0.9);
    near(o->clip_grad, 1);
    assert_string_equal(o->optimizer, "adam");
    assert_string_equal(o->dtype, "f32");
    assert_false(o->accumulate_allreduce_grads_in_fp32);
    assert_true(o->check_for_nan_in_loss_and_grad);
    near(o->initial_loss_scale, 4294967296.0);
    near(o->min_loss_scale, 1);
    assert_int_equal(o->loss_scale_window, 1000);
    assert_int_equal(o->hysteresis, 2);
    assert_true(isnan(o->loss_scale));
    line_free(x);
}

static void data_and_checkpoints_are_those_of_args(void **state)
{
    (void)state;
    struct line *x = golden("fp32");
    const struct train_options *o = &x->o;
    assert_int_equal(o->data_path.count, 1);
    assert_string_equal(o->data_path.items[0], "u16");
    assert_string_equal(o->split, "969,30,1");
    assert_string_equal(o->data_cache_path, "cache");
    assert_int_equal(o->seed, 1234);
    assert_true(o->create_attention_mask_in_dataloader);
    near(o->mid_level_dataset_surplus, 0.005);
    assert_int_equal(o->eval_iters, 2);
    assert_true(o->is_eval_iters_given);
    assert_int_equal(o->eval_interval, 10);
    assert_int_equal(o->eval_global_batch_size, 8);
    assert_int_equal(o->eval_micro_batch_size, 2);
    assert_string_equal(o->save, "checkpoint");
    assert_null(o->load);
    assert_int_equal(o->save_interval, 10);
    assert_string_equal(o->ckpt_format, "torch_dist");
    assert_int_equal(o->log_interval, 1);
    assert_true(o->log_params_norm && o->log_throughput && o->log_num_zeros_in_grad);
    assert_true(o->use_distributed_optimizer);
    assert_int_equal(o->layout.tp, 1);
    assert_int_equal(o->layout.pp, 1);
    assert_string_equal(o->tokenizer_type, "NullTokenizer");
    assert_int_equal(o->vocab_size, 128);
    assert_true(o->null_tokenizer_eod_id == UINT64_MAX && o->eod_id == UINT64_MAX);
    assert_string_equal(o->moe_router_load_balancing_type, "aux_loss");
    line_free(x);
}

static void model_of_a_llama_is_that_of_args(void **state)
{
    (void)state;
    struct line *x = golden("fp32");
    const struct model_config *c = &x->o.model;
    assert_int_equal(c->hidden_size, 32);
    assert_int_equal(c->ffn_hidden_size, 48);
    assert_int_equal(c->num_attention_heads, 4);
    assert_int_equal(c->num_query_groups, 2);
    assert_int_equal(c->kv_channels, 8);
    assert_int_equal(c->vocab_size, 128);
    assert_int_equal(c->padded_vocab_size, 128);
    assert_int_equal(c->make_vocab_size_divisible_by, 64);
    assert_int_equal(c->max_position_embeddings, 64);
    assert_string_equal(c->normalization, "RMSNorm");
    near(c->layernorm_epsilon, 1e-6);
    assert_string_equal(c->activation_func, "silu");
    assert_true(c->gated_linear_unit && c->untie_embeddings_and_output_weights);
    assert_false(c->add_bias_linear || c->add_qkv_bias || c->add_mlp_bias || c->qk_layernorm);
    assert_string_equal(c->position_embedding_type, "rope");
    assert_string_equal(c->rope_type, "default");
    near(c->rotary_base, 10000);
    near(c->rotary_percent, 1);
    near(c->hidden_dropout, 0);
    near(c->init_method_std, 0.02);
    assert_int_equal(c->num_experts, 0);
    assert_int_equal(c->sliding_window, 0);
    line_free(x);
}

static void models_of_other_families(void **state)
{
    (void)state;
    struct line *x = golden("gpt2");
    assert_string_equal(x->o.model.activation_func, "gelu");
    assert_true(x->o.model.add_bias_linear && x->o.model.add_qkv_bias);
    assert_false(x->o.model.untie_embeddings_and_output_weights);
    assert_string_equal(x->o.model.position_embedding_type, "learned_absolute");
    assert_string_equal(x->o.model.normalization, "LayerNorm");
    assert_int_equal(x->o.model.num_query_groups, 4);
    line_free(x);
    x = golden("qwen2-tied-pp2");
    assert_true(x->o.model.add_qkv_bias && !x->o.model.add_proj_bias && !x->o.model.add_mlp_bias);
    assert_false(x->o.model.untie_embeddings_and_output_weights);
    assert_int_equal(x->o.layout.pp, 2);
    line_free(x);
    x = golden("moe-ep2");
    assert_int_equal(x->o.model.num_experts, 4);
    assert_int_equal(x->o.model.moe_router_topk, 2);
    assert_int_equal(x->o.model.moe_ffn_hidden_size, 24);
    assert_false(x->o.model.moe_router_pre_softmax);
    assert_null(x->o.model.moe_router_score_function);
    assert_false(x->o.model.moe_router_enable_expert_bias);
    near(x->o.model.moe_router_topk_scaling_factor, 0);
    near(x->o.model.moe_aux_loss_coeff, 0.01);
    near(x->o.moe_aux_loss_coeff, 0.01);
    assert_string_equal(x->o.moe_router_dtype, "fp32");
    assert_int_equal(x->o.layout.ep, 2);
    assert_int_equal(x->o.layout.etp, 1);
    near(x->o.model.rotary_base, 1e6);
    line_free(x);
    x = golden("moe-bias");
    assert_string_equal(x->o.model.moe_router_score_function, "sigmoid");
    assert_true(x->o.model.moe_router_enable_expert_bias);
    near(x->o.model.moe_router_topk_scaling_factor, 2.5);
    near(x->o.moe_router_bias_update_rate, 0.01);
    line_free(x);
}

static void precision_of_golden_runs(void **state)
{
    (void)state;
    struct line *x = golden("bf16");
    assert_true(x->o.bf16 && x->o.accumulate_allreduce_grads_in_fp32);
    assert_string_equal(x->o.dtype, "bf16");
    assert_true(x->o.check_for_nan_in_loss_and_grad);
    line_free(x);
    x = golden("fp16-overflow");
    assert_string_equal(x->o.dtype, "fp16");
    assert_false(x->o.accumulate_allreduce_grads_in_fp32);
    assert_false(x->o.check_for_nan_in_loss_and_grad); /* NaN is a signal to the loss scale */
    near(x->o.initial_loss_scale, 4294967296.0);
    assert_int_equal(x->o.loss_scale_window, 5);
    assert_int_equal(x->o.hysteresis, 2);
    assert_int_equal(x->o.lr_decay_iters, 40);
    line_free(x);
}

static void steps_of_batch_sizes_are_whole_samples_in_any_order(void **state)
{
    (void)state;
    struct line *x = good_line(GOOD "--step-batch-size-schedule 1.5K:8,0:2,,63:4");
    static const struct batch_size_step few[] = {{0, 2}, {3, 4}, {93, 8}};
    assert_int_equal(x->o.num_batch_size_steps, COUNT(few));
    assert_memory_equal(x->o.batch_size_steps, few, sizeof few);
    line_free(x);
    /* A word with blanks, as a shell passes it. */
    struct train_options o;
    struct strbuf notes = {0};
    struct train_finish f = {.o = &o, .notes = &notes};
    train_options_defaults(&o);
    o.seq_length = 4096;
    o.step_batch_size_schedule = " 0:768 250B:1536\t500b:3K 1T:2e4 ";
    train_complete_batch_schedule(&f);
    static const struct batch_size_step many[] = {
        {0, 768}, {61035156, 1536}, {122070312, 3000}, {244140625, 20000}};
    assert_int_equal(f.num_problems, 0);
    assert_int_equal(o.num_batch_size_steps, COUNT(many));
    assert_memory_equal(o.batch_size_steps, many, sizeof many);
    assert_int_equal(o.global_batch_size, 768);
    train_options_release(&o);
}

static void batches_of_golden_runs(void **state)
{
    (void)state;
    struct line *x = golden("fp32-batch-schedule");
    assert_int_equal(x->o.num_batch_size_steps, 2);
    assert_int_equal(x->o.batch_size_steps[0].from_sample, 0);
    assert_int_equal(x->o.batch_size_steps[0].global_batch_size, 4);
    assert_int_equal(x->o.batch_size_steps[1].from_sample, 48); /* 1536 tokens by 32 */
    assert_int_equal(x->o.batch_size_steps[1].global_batch_size, 8);
    assert_int_equal(x->o.train_samples, 160);
    assert_int_equal(x->o.lr_warmup_samples, 24);
    assert_int_equal(x->o.lr_decay_samples, 144);
    line_free(x);
    x = golden("fp32-blend");
    assert_int_equal(x->o.data_path.count, 4);
    assert_string_equal(x->o.data_path.items[2], "0.7");
    line_free(x);
    x = golden("fp32-tp2-padded-vocab");
    assert_int_equal(x->o.model.padded_vocab_size, 256);
    line_free(x);
    x = golden("fp32-per-token-loss-eod");
    assert_true(x->o.calculate_per_token_loss);
    line_free(x);
    x = golden("fp32-tp2-sp");
    assert_true(x->o.sequence_parallel);
    line_free(x);
}

/* ---- names ---- */

/* Every option of pretrain_gpt.py is known, and takes as many values as there. */
static void every_name_of_megatron_is_known(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDEN "pretrain_gpt_options.txt", "r");
    char name[128], kind[16];
    size_t n = 0;
    assert_non_null(f);
    for (; fscanf(f, "%127s %15s", name, kind) == 2; n++) {
        char text[200];
        snprintf(text, sizeof text, "%s%s", name, strcmp(kind, "flag") ? "" : "=1");
        struct line *x = line_of(text);
        const bool is_flag = strstr(x->err.text, "takes no value");
        const bool wants = strstr(x->err.text, "needs a value");
        if (strstr(x->err.text, "unknown") || is_flag == (strcmp(kind, "flag") != 0) ||
            wants == is_flag)
            print_error("%s (%s): %s\n", name, kind, x->err.text);
        assert_null(strstr(x->err.text, "unknown"));
        assert_true(is_flag == (strcmp(kind, "flag") == 0) && wants == !is_flag);
        line_free(x);
    }
    assert_in_range(n, 850, 1000);
    fclose(f);
}

/* Options of Megatron-LM 0.17.1 to 0.19.2, beside those of the golden list. */
static void names_of_releases_are_known(void **state)
{
    (void)state;
    static const char *const names[] = {
        "--no-stream-ckpt-dequant",
        "--disable-stream-ckpt-dequant",
        "--muon-use-nesterov",
        "--no-ckpt-load-validate-sharding-integrity",
        "--ckpt-convert-update-legacy-dist-opt-format",
        "--inference-dynamic-batching-cuda-graph-max-tokens 1",
        "--rl-generation-batch-size 1",
        "--rl-num-parallel-generation-batches 1",
        "--rl-num-parallel-generations 1",
        "--rl-parallel-generation-tasks 1",
        "--tiktoken-special-tokens a b",
    };
    for (size_t i = 0; i < COUNT(names); i++) {
        char text[300];
        snprintf(text, sizeof text, GOOD "%s", names[i]);
        line_free(good_line(text));
    }
}

static void options_without_effect_are_named_once(void **state)
{
    (void)state;
    struct line *x = good_line(GOOD "--hidden-dropout 0 --attention-dropout 0 --attention-backend "
                                    "local --no-rope-fusion --num-workers 4 --attention_backend=x "
                                    "--attention-backend y --profile-ranks 0 1 --num-workers=2 "
                                    "--save-retain-interval 7 --save-retain-interval 8");
    assert_string_equal(x->notes.data,
                        "without effect here: --attention-backend, --no-rope-fusion, "
                        "--num-workers, --attention_backend, --profile-ranks, "
                        "--save-retain-interval\n");
    line_free(x);
}

static void the_last_of_an_option_counts(void **state)
{
    (void)state;
    struct line *x = good_line(GOOD "--lr 1 --lr=2e-3 --seed 7 --seed 0 --no-load-optim "
                                    "--recompute-granularity selective --recompute-modules mlp moe "
                                    "--recompute_modules core_attn --mtp-num-layers 1 "
                                    "--mtp-num-layers 0 --null-tokenizer-pad-id -1");
    near(x->o.lr, 2e-3);
    assert_int_equal(x->o.seed, 0);
    assert_true(x->o.is_seed_given && x->o.no_load_optim);
    assert_int_equal(x->o.recompute_modules.count, 1);
    assert_string_equal(x->o.recompute_modules.items[0], "core_attn");
    line_free(x);
}

static void other_names_are_refused_with_the_nearest(void **state)
{
    (void)state;
    refused("--train-iter 10", "unknown option --train-iter (did you mean --train-iters?)");
    refused("--transformer-imp local",
            "unknown option --transformer-imp (did you mean --transformer-impl?)");
    refused("--colour-of-logs red", "unknown option --colour-of-logs");
}

static void what_cannot_be_done_is_refused_with_its_reason(void **state)
{
    (void)state;
    refused(GOOD "--fp8-format hybrid",
            "--fp8-format: FP8 and FP4 are not implemented; --bf16 is the nearest");
    refused(
        GOOD "--multi-latent-attention --spec a b --q-lora-rank 3",
        "the options do not fit together:\n"
        "  --multi-latent-attention: not implemented: keys and values come from a latent vector\n"
        "  --spec: layer specifications are Python code of Megatron-LM");
    refused(GOOD "--mtp-num-layers 0 --mtp-num-layers 2",
            "--mtp-num-layers 2: multi-token prediction is not implemented");
    refused(GOOD "--vision_pretraining", "--vision_pretraining: vision models are not implemented");
    refused(GOOD "--batch-size 4", "--batch-size: use --micro-batch-size");
    refused(GOOD "--save-dir x", "--save-dir: use --save");
    refused(GOOD "--load_dir=x", "--load_dir: use --load");
    refused(GOOD "--optimizer muon",
            "--optimizer muon is not supported (adam, which is AdamW, or sgd)");
    refused(GOOD "--moe-router-num-groups 2", "--moe-router-num-groups: not implemented: groups of "
                                              "experts that the router chooses first");
    refused(GOOD "--position-embedding-type yarn",
            "--position-embedding-type: \"yarn\" is not one of learned_absolute|rope|none");
    refused(GOOD "--moe-router-load-balancing-type sinkhorn",
            "--moe-router-load-balancing-type sinkhorn is not supported (one of aux_loss, "
            "seq_aux_loss, global_aux_loss, none)");
    refused(GOOD "--moe-router-load-balancing-type seq_aux_loss global_aux_loss",
            "--moe-router-load-balancing-type seq_aux_loss ... is not supported (one of aux_loss, "
            "seq_aux_loss, global_aux_loss, none)");
    refused(GOOD "--moe-aux-loss-coeff 1e-2 1e-3",
            "--moe-aux-loss-coeff: give one coefficient; there is one balancing type");
}

/* ---- recipes ---- */

static struct line *recipe_line(const char *yaml, const char *words)
{
    char path[TEMPORARY_PATH];
    const int fd = temporary_file(path);
    struct strbuf text = {0};
    assert_true(fd >= 0 && write(fd, yaml, strlen(yaml)) == (ssize_t)strlen(yaml));
    unlink(path);
    strbuf_printf(&text, "%s --config /proc/self/fd/%d", words, fd); /* path may have a blank */
    struct line *x = line_of(text.data);
    close(fd);
    strbuf_release(&text);
    return x;
}

static void a_recipe_has_the_same_options(void **state)
{
    (void)state;
    struct line *x = recipe_line("load: m\n--data-path: [0.3, u16, 0.7, i32]\nsplit: '969,30,1'\n"
                                 "seq_length: 16\nmicro-batch-size: 2\ntrain_iters: 10\nlr: 1e-3\n"
                                 "min_lr: 1.0e-4\nbf16: true\nno_save_optim: false\nsave: null\n"
                                 "num_workers: 3\nfinetune: yes\n",
                                 "--lr 2e-3 --finetune");
    if (x->st) print_error("%s\n", x->err.text);
    assert_int_equal(x->st, OK);
    near(x->o.lr, 2e-3); /* the line wins */
    near(x->o.min_lr, 1e-4);
    assert_int_equal(x->o.data_path.count, 4);
    assert_string_equal(x->o.data_path.items[0], "0.3");
    assert_true(x->o.bf16 && x->o.finetune && !x->o.no_save_optim && !x->o.save);
    line_free(x);
}

static void recipes_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"train_iter: 3\n", ": unknown option --train_iter (did you mean --train-iters?)"},
        {"lr: [1, 2]\n", ": lr: found a list, expected one value"},
        {"lr: true\n", ": lr: found true, expected a value"},
        {"lr: fast\n", ": --lr: \"fast\" is not a number"},
        {"bf16: 3\n", ": --bf16 takes no value"},
        {"data_path: []\n", ": data_path: an empty list"},
        {"data_path: {a: b}\n", ": data_path: found a mapping, expected a value"},
        {"data_path: [--x]\n", ": data_path: list item \"--x\" looks like an option"},
        {"config: other.yaml\n", ": config: a file of options cannot name another"},
        {"- lr\n", ": not a mapping of options to values"},
        {"unknown: false\n", ": unknown option --unknown"},
        {"fp8_format: hybrid\n",
         "--fp8_format: FP8 and FP4 are not implemented; --bf16 is the nearest"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct line *x = recipe_line(cases[i].yaml, GOOD);
        assert_int_equal(x->st, ERR_USAGE);
        if (!strstr(x->err.text, cases[i].message)) print_error("%s", x->err.text);
        assert_non_null(strstr(x->err.text, cases[i].message));
        line_free(x);
    }
    refused("--config", "--config needs a value");
}

static void our_recipes_fit(void **state)
{
    (void)state;
    struct line *x = good_line("--config recipes/gpt2-124m.yaml --data-path d");
    assert_int_equal(x->o.model.num_layers, 12);
    assert_int_equal(x->o.model.hidden_size, 768);
    assert_int_equal(x->o.model.padded_vocab_size, 50304);
    line_free(x);
    x = good_line("--config recipes/llama3.2-1b.yaml --load m --data-path d");
    assert_int_equal(x->o.model.num_layers, 16);
    assert_string_equal(x->o.model.rope_type, "llama3");
    assert_true(x->o.model.rope_factor > 31 && x->o.model.rope_factor < 33);
    assert_false(x->o.model.untie_embeddings_and_output_weights);
    assert_string_equal(x->o.dtype, "bf16");
    line_free(x);
    x = good_line("--config recipes/llama3.1-8b.yaml --load m --data-path d");
    assert_int_equal(x->o.model.num_layers, 32);
    assert_int_equal(x->o.model.num_query_groups, 8);
    assert_string_equal(x->o.model.rope_type, "llama3");
    assert_true(x->o.model.rope_factor > 7 && x->o.model.rope_factor < 9);
    assert_true(x->o.model.untie_embeddings_and_output_weights);
    assert_int_equal(x->o.layout.tp, 2);
    assert_int_equal(x->o.layout.dp, 4);
    line_free(x);
    x = good_line("--config recipes/qwen3-30b-a3b.yaml --load m --data-path d");
    assert_int_equal(x->o.model.num_experts, 128);
    assert_int_equal(x->o.model.moe_router_topk, 8);
    assert_int_equal(x->o.model.moe_ffn_hidden_size, 768);
    assert_int_equal(x->o.model.kv_channels, 128);
    assert_true(x->o.model.qk_layernorm);
    assert_int_equal(x->o.model.padded_vocab_size, 151936);
    assert_int_equal(x->o.layout.ep, 8);
    line_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_command_is_taken),
        cmocka_unit_test(options_are_those_of_args),
        cmocka_unit_test(data_and_checkpoints_are_those_of_args),
        cmocka_unit_test(model_of_a_llama_is_that_of_args),
        cmocka_unit_test(models_of_other_families),
        cmocka_unit_test(precision_of_golden_runs),
        cmocka_unit_test(steps_of_batch_sizes_are_whole_samples_in_any_order),
        cmocka_unit_test(batches_of_golden_runs),
        cmocka_unit_test(every_name_of_megatron_is_known),
        cmocka_unit_test(names_of_releases_are_known),
        cmocka_unit_test(options_without_effect_are_named_once),
        cmocka_unit_test(the_last_of_an_option_counts),
        cmocka_unit_test(other_names_are_refused_with_the_nearest),
        cmocka_unit_test(what_cannot_be_done_is_refused_with_its_reason),
        cmocka_unit_test(a_recipe_has_the_same_options),
        cmocka_unit_test(recipes_that_are_refused),
        cmocka_unit_test(our_recipes_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
