#include "train/cli/testing_train_line.h"

/* ---- contradictions ---- */

static void all_contradictions_are_in_one_message(void **state)
{
    (void)state;
    refused(
        "--load m --bf16 --fp16 --train-iters 10 --train-samples 80 --micro-batch-size 3 "
        "--global-batch-size 8 --lr 1e-4 --min-lr 1e-3 --seq-length 16",
        "the options do not fit together:\n"
        "  no data: give --data-path, --train-data-path or --mock-data\n"
        "  give one of --train-iters and --train-samples\n"
        "  --global-batch-size 8 is not a multiple of --micro-batch-size 3 times 1 data parallel "
        "rank\n"
        "  --min-lr 0.001 is above --lr 0.0001\n"
        "  give one of bfloat16 and float16 (--bf16, --fp16, --dtype)");
    refused("", "the options do not fit together:\n"
                "  no model: give --load, --hf-config or --num-layers\n"
                "  --seq-length is missing\n"
                "  no data: give --data-path, --train-data-path or --mock-data\n"
                "  the length of the run is missing: --train-iters or --train-samples\n"
                "  --micro-batch-size is missing\n"
                "  --lr is missing");
}

static void more_than_a_message_holds_is_counted(void **state)
{
    (void)state;
    struct strbuf text = {0};
    for (int i = 0; i < 40; i++)
        strbuf_printf(&text, "--recompute-modules-of-%d ", i);
    strbuf_clear(&text);
    strbuf_add_text(&text, GOOD "--recompute-granularity selective --recompute-modules");
    for (int i = 0; i < 30; i++)
        strbuf_printf(&text, " module_%d", i);
    strbuf_add_text(&text, " --rampup-batch-size 1 1 8");
    struct line *x = line_of(text.data);
    assert_int_equal(x->st, ERR_USAGE);
    assert_non_null(strstr(x->err.text, "module_0 is not supported"));
    size_t above = 0;
    for (const char *at = x->notes.data; (at = strchr(at, '\n')); at++)
        above++;
    assert_int_equal(above, strtoul(strstr(x->err.text, "\n  and ") + 7, NULL, 10));
    assert_null(strstr(x->err.text, "module_29 is not supported"));
    assert_non_null(strstr(x->notes.data, "\n--recompute-modules module_29 is not supported"));
    assert_non_null(strstr(x->err.text, "\n  and "));
    assert_string_equal(x->err.text + strlen(x->err.text) - strlen(" more, above"), " more, above");
    line_free(x);
    strbuf_release(&text);
}

static void schedules_that_contradict_themselves(void **state)
{
    (void)state;
    refused(GOOD "--lr-warmup-iters 10", "--lr-warmup-iters 10 is not below --lr-decay-iters 10");
    refused(GOOD "--lr-warmup-iters 5 --lr-decay-iters 5",
            "--lr-warmup-iters 5 is not below --lr-decay-iters 5");
    refused(GOOD "--lr-warmup-fraction 0.1 --lr-warmup-iters 2",
            "give one of --lr-warmup-fraction and --lr-warmup-iters");
    refused(GOOD "--lr-decay-samples 10",
            "--train-iters conflicts with a schedule in samples (--lr-decay-samples, "
            "--lr-warmup-samples, --lr-wsd-decay-samples)");
    refused(GOOD "--lr-decay-style WSD", "--lr-decay-style WSD needs --lr-wsd-decay-iters");
    refused(GOOD "--start-weight-decay 0",
            "--start-weight-decay needs --weight-decay-incr-style linear or cosine");
    refused(GOOD "--weight-decay-incr-style linear --start-weight-decay 0",
            "--weight-decay-incr-style linear needs --start-weight-decay and --end-weight-decay");
    refused(GOOD "--lr -1", "--lr -1 is below 0");
    refused(GOOD "--min-lr -1", "--min-lr -1 is below 0");
    refused(GOOD "--lr-warmup-init -1", "--lr-warmup-init -1 is below 0");
    refused(GOOD "--moe-z-loss-coeff -1", "--moe-z-loss-coeff -1 is below 0");
    refused(GOOD "--weight-decay -1", "--weight-decay -1 is below 0");
    refused(GOOD "--weight-decay-incr-style linear --start-weight-decay -1 --end-weight-decay 0",
            "--start-weight-decay -1 is below 0");
    refused(GOOD "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
            "give one of --override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler");
}

static void batch_sizes_that_are_no_schedule(void **state)
{
    (void)state;
    static const char *const schedules[] = {
        ",",         "0:4,x:8",    "0:4,8",      "0:4,8:",  "0:4,:8",   "0:4,-8:8",  "0:4,inf:8",
        "0:4,0x8:8", "0:4,1e20:8", "0:4,64:8:9", "0:4,K:8", "0:4,64:0", "0:4,64:0.5"};
    for (size_t i = 0; i < COUNT(schedules); i++) {
        char line[400], message[200];
        snprintf(line, sizeof line, GOOD "--step-batch-size-schedule %s", schedules[i]);
        snprintf(message, sizeof message,
                 "--step-batch-size-schedule: \"%s\" is not a list of TOKENS:SIZE such as "
                 "0:768,250B:1536",
                 schedules[i]);
        refused(line, message);
    }
    refused(GOOD "--step-batch-size-schedule 16:4,32:8",
            "--step-batch-size-schedule 16:4,32:8: the first size must start at 0 tokens");
    refused(GOOD "--step-batch-size-schedule 0:4,17:8,31:16",
            "--step-batch-size-schedule 0:4,17:8,31:16: two sizes start at sample 1");
    refused(GOOD "--step-batch-size-schedule 0:4 --global-batch-size 4",
            "give one of --step-batch-size-schedule and --global-batch-size");
    refused(
        GOOD "--step-batch-size-schedule 0:2,64:5",
        "--step-batch-size-schedule: a size of 5 is not a multiple of --micro-batch-size 2 times 1 "
        "data parallel rank");
    line_free(good_line(GOOD "--step-batch-size-schedule 0:1,64:4")); /* a run may begin behind 1 */
    /* Ten steps of 2 samples end before sample 20, which is token 320, whatever
     * comes from there. */
    line_free(good_line(GOOD "--step-batch-size-schedule 0:2,320:5"));
    refused(
        GOOD "--step-batch-size-schedule 0:2,288:5,320:6",
        "--step-batch-size-schedule: a size of 5 is not a multiple of --micro-batch-size 2 times 1 "
        "data parallel rank");
#define SAMPLES                                                                                    \
    "--load m --mock-data --seq-length 16 --micro-batch-size 2 --lr 1e-3 --train-samples "
    line_free(good_line(SAMPLES "20 --step-batch-size-schedule 0:2,320:5"));
    refused(
        SAMPLES "21 --step-batch-size-schedule 0:2,320:5",
        "--step-batch-size-schedule: a size of 5 is not a multiple of --micro-batch-size 2 times 1 "
        "data parallel rank");
#undef SAMPLES
}

static void recompute_data_and_model_that_contradict_themselves(void **state)
{
    (void)state;
    refused(GOOD "--recompute-method block",
            "--recompute-method needs --recompute-granularity full");
    refused(GOOD "--recompute-granularity full",
            "--recompute-granularity full needs --recompute-method and --recompute-num-layers");
    refused(GOOD "--recompute-granularity selective --recompute-modules attn",
            "--recompute-modules attn is not supported (core_attn, layernorm, mlp, moe_act, moe)");
    refused(GOOD "--data-path a", "--mock-data conflicts with --data-path");
    refused(GOOD "--split 1,2,x",
            "--split: \"1,2,x\" is not a list of up to three numbers such as 969,30,1");
    refused("--load m --seq-length 16 --micro-batch-size 2 --train-iters 10 --lr 1 --data-path a "
            "--train-data-path b --valid-data-path c",
            "--data-path conflicts with --train-data-path, --valid-data-path and --test-data-path");
    refused(MODEL "--max-position-embeddings 8",
            "--seq-length 16 is above --max-position-embeddings 8");
    refused(MODEL "--max-position-embeddings 8 --position-embedding-type rope",
            "--seq-length 16 is above --max-position-embeddings 8");
    refused(MODEL_WITHOUT_VOCABULARY "--tokenizer_model=x.model",
            "--vocab-size is missing: the tokenizer (--tokenizer_model) is not read yet");
    refused(MODEL_WITHOUT_VOCABULARY "--tokenizer-type GPT2BPETokenizer --vocab-file a",
            "--vocab-size is missing: the tokenizer (--tokenizer-type) is not read yet");
    refused(MODEL "--hidden-size 30",
            "--hidden-size 30 is not a multiple of --num-attention-heads 4");
    refused(MODEL "--swiglu --squared-relu",
            "give one of --swiglu, --squared-relu, --quick-geglu and --openai-gelu");
    refused(MODEL "--num-experts 1", "--moe-router-topk 2 is above --num-experts 1");
    refused(MODEL "--num-experts 4 --moe-router-enable-expert-bias",
            "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid");
    refused(MODEL "--num-experts 4 --moe-layer-freq [1]*3",
            "--moe-layer-freq: the list has 3 layers, but --num-layers is 4");
    refused(MODEL "--num-layers 100000000000",
            "the model exceeds 100000 layers, 100000 experts, 1048576 heads or a hidden size of "
            "32 bits");
    refused(MODEL "--window-size 8", "--window-size: \"8\" is not two numbers such as 128,0");
    refused(GOOD "--dtype f32 --bf16", "--bf16 conflicts with --dtype f32");
    refused(GOOD "--fp16 --min-loss-scale 0", "--min-loss-scale 0 is not above 0");
    refused(GOOD "--fp16 --min-loss-scale 2 --initial-loss-scale 1",
            "--initial-loss-scale 1 is below --min-loss-scale 2");
    refused(GOOD "--ckpt-format zarr", "--ckpt-format: \"zarr\" is not one of torch_dist|torch");
}

/* ---- the model of the line ---- */

static void defaults_of_a_line_are_those_of_pretrain_gpt(void **state)
{
    (void)state;
    struct line *x = good_line(MODEL);
    const struct model_config *c = &x->o.model;
    near(x->o.hidden_dropout, 0.1);
    near(c->attention_dropout, 0.1);
    assert_int_equal(c->ffn_hidden_size, 128);
    assert_int_equal(c->kv_channels, 8);
    assert_int_equal(c->num_query_groups, 4);
    assert_int_equal(c->padded_vocab_size, 128);
    assert_string_equal(c->normalization, "LayerNorm");
    near(c->layernorm_epsilon, 1e-5);
    near(c->rotary_base, 10000);
    assert_string_equal(c->position_embedding_type, "learned_absolute");
    assert_false(c->untie_embeddings_and_output_weights);
    assert_string_equal(x->o.dtype, "f32");
    assert_string_equal(x->o.lr_decay_style, "linear");
    near(x->o.weight_decay, 0.01);
    near(x->o.start_weight_decay, 0.01);
    near(x->o.adam_beta2, 0.999);
    assert_int_equal(x->o.global_batch_size, 2);
    assert_int_equal(x->o.eval_iters, 100);
    assert_false(x->o.is_eval_iters_given || x->o.is_seed_given);
    assert_int_equal(x->o.log_interval, 100);
    line_free(x);
}

static void check_activation(const char *options, const char *name, bool is_gated)
{
    struct strbuf text = {0};
    strbuf_printf(&text, MODEL "%s", options);
    struct line *x = good_line(text.data);
    assert_string_equal(x->o.model.activation_func, name);
    assert_int_equal(x->o.model.gated_linear_unit, is_gated);
    line_free(x);
    strbuf_release(&text);
}

/* core/fusions/fused_bias_gelu.py computes by tanh; without biases it is not
 * used. */
static void activations_of_a_line(void **state)
{
    (void)state;
    check_activation("", "gelu_tanh", false);
    check_activation("--no-bias-gelu-fusion", "gelu", false);
    check_activation("--disable-bias-linear", "gelu", false);
    check_activation("--no-bias-gelu-fusion --openai-gelu", "gelu_tanh", false);
    check_activation("--squared-relu", "squared_relu", false);
    check_activation("--quick-geglu", "quick_gelu", true);
    check_activation("--swiglu", "silu", true);
}

static void sizes_that_follow_from_others(void **state)
{
    (void)state;
    struct line *x = complete_line(MODEL "--hidden-size 96 --swiglu --tp 2 --vocab-size 257 "
                                         "--make-vocab-size-divisible-by 8 --num-query-groups 2");
    assert_int_equal(x->o.model.ffn_hidden_size, 256); /* 96 * 8 / 3 */
    assert_int_equal(x->o.model.padded_vocab_size, 272);
    assert_int_equal(x->o.model.num_query_groups, 4); /* no --group-query-attention */
    line_free(x);
    x = complete_line(MODEL "--padded-vocab-size 130 --tp 2 --num-experts 4 --moe-layer-freq "
                            "([0]+[1]*3)*1 --window-size (5,0) --window-attn-skip-freq 2 "
                            "--use-rope-scaling --use-rotary-position-embeddings "
                            "--no-position-embedding");
    assert_int_equal(x->o.model.padded_vocab_size, 130);
    assert_int_equal(x->o.model.moe_ffn_hidden_size, 128);
    assert_false(model_layer_is_moe(&x->o.model, 0));
    assert_true(model_layer_is_moe(&x->o.model, 3));
    assert_int_equal(x->o.model.sliding_window, 6); /* the current position counts */
    assert_true(model_layer_slides(&x->o.model, 0));
    assert_false(model_layer_slides(&x->o.model, 1));
    assert_string_equal(x->o.model.rope_type, "llama3");
    near(x->o.model.rope_factor, 8);
    line_free(x);
}

/* Lines of people who have a folder. */
static void lines_without_a_model(void **state)
{
    (void)state;
    struct line *x = good_line(
        "--load gpt2 --mock-data --dtype f64 --seq-length 16 --micro-batch-size 2 "
        "--global-batch-size 2 --train-iters 10 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine "
        "--lr-warmup-iters 2 --lr-decay-iters 10 --weight-decay 0.1 --adam-beta2 0.95");
    assert_string_equal(x->o.dtype, "f64");
    assert_false(x->o.has_model || x->o.is_eval_iters_given || x->o.bf16);
    assert_null(x->o.device);
    line_free(x);
    x = good_line(
        "--load Llama-3.2-1B/ --save ckpt/ --data-path 0.7 a_text_document 0.3 b_text_document "
        "--split 969,30,1 --seq-length 4096 --micro-batch-size 2 --global-batch-size 64 "
        "--train-iters 1000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 20 "
        "--weight-decay 0.1 --clip-grad 1.0 --bf16 --recompute-granularity selective "
        "--save-interval 200 --save-hf out");
    assert_int_equal(x->o.data_path.count, 4);
    assert_string_equal(x->o.save_hf, "out");
    assert_int_equal(x->o.recompute_modules.count, 0);
    line_free(x);
}

static void a_split_is_one_word_or_several(void **state)
{
    (void)state;
    static const char *const lines[][2] = {{"969,30,1", "969,30,1"},
                                           {"969 30 1", "969,30,1"},
                                           {"969, 30, 1", "969,30,1"},
                                           {"100", "100"}};
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct strbuf text = {0};
        strbuf_printf(&text, GOOD "--split %s", lines[i][0]);
        struct line *x = good_line(text.data);
        assert_string_equal(x->o.split, lines[i][1]);
        line_free(x);
        strbuf_release(&text);
    }
    refused(GOOD "--split 1,1,1,1",
            "--split: \"1,1,1,1\" is not a list of up to three numbers such as 969,30,1");
    refused(GOOD "--split 0,0",
            "--split: \"0,0\" is not a list of up to three numbers such as 969,30,1");
}

static void a_run_that_cannot_be_continued_is_noted(void **state)
{
    (void)state;
    struct line *x = good_line("--load m --seq-length 16 --micro-batch-size 2 --train-iters 10 "
                               "--lr 1 --data-path d --split 9,1,0 --save-hf out");
    assert_string_equal(x->notes.data, "no --save: a run that is stopped cannot be continued\n");
    line_free(x);
}

static void what_is_assumed_is_noted(void **state)
{
    (void)state;
    struct line *x = good_line("--load m --seq-length 16 --micro-batch-size 2 --train-iters 10 "
                               "--lr 1 --data-path d --hidden-dropout 0 --attention-dropout 0 "
                               "--rampup-batch-size 1 1 8 --save s --sp --loss-scale 0 --fp16");
    assert_string_equal(x->notes.data, "no --split: using 969,30,1, the default of Megatron-LM\n"
                                       "--rampup-batch-size is ignored, as by Megatron-Core 0.18.2 "
                                       "and later; up to 0.17.1 batches grow, as with "
                                       "--step-batch-size-schedule 0:1,128:2\n"
                                       "--sequence-parallel is ignored: it needs --tp above 1\n"
                                       "no --save-interval: the run is saved at its end only\n");
    assert_string_equal(x->o.split, "969, 30, 1");
    assert_true(isnan(x->o.loss_scale));
    assert_false(x->o.sequence_parallel || x->o.check_for_nan_in_loss_and_grad);
    line_free(x);
    x = good_line(
        "--load m --seq-length 10 --micro-batch-size 2 --train-iters 10 --lr 1 --data-path d "
        "--split '9,1,0' --hidden-dropout 0 --attention-dropout 0 --global-batch-size 8 "
        "--rampup-batch-size 2 2 10 --save s");
    assert_string_equal(x->o.split, "9,1,0");
    assert_non_null(strstr(x->notes.data, "--step-batch-size-schedule 0:2,40:4,70:6,100:8\n"));
    line_free(x);
    x = good_line(MODEL);
    assert_string_equal(x->notes.data,
                        "GELU uses its tanh approximation, as in Megatron-LM's fused kernel; "
                        "--no-bias-gelu-fusion computes it by erf\n");
    line_free(x);
    x = good_line(MODEL "--quiet --num-workers 3");
    assert_null(x->notes.data);
    line_free(x);
}

static void layouts_are_checked_as_far_as_the_line_goes(void **state)
{
    (void)state;
    struct line *x =
        complete_line(MODEL "--tp 2 --pipeline-model-parallel-size 2 --dp 2 --cp 2 --vpp 2 "
                            "--global-batch-size 8 --use-distributed-optimizer");
    assert_true(x->o.layout.tp == 2 && x->o.layout.pp == 2 && x->o.layout.dp == 2);
    assert_true(x->o.layout.cp == 2 && x->o.layout.virtual_stages == 2);
    assert_string_equal(x->err.text,
                        "--context-parallel-size 2: training with context parallelism is not "
                        "supported; leave it out (a checkpoint of any layout can be loaded)");
    assert_int_equal(x->o.model.padded_vocab_size, 256);
    line_free(x);
    refused(MODEL "--dp 3 --global-batch-size 8",
            "--global-batch-size 8 is not a multiple of --micro-batch-size 2 times 3 data parallel "
            "ranks");
    refused(MODEL "--ep 2", "--ep 2 needs --num-experts");
    refused(MODEL "--num-experts 3 --ep 2", "--num-experts 3 is not a multiple of --ep 2");
    refused_beside(GOOD "--cp 3", "\n  --seq-length 16 is not a multiple of 2 times --cp 3\n");
    static const char *const trained[] = {"--tp 1 --pp 1 --dp 1",
                                          "--ep 1 --etp 1 --cp 1",
                                          "--vpp 1 --sp",
                                          "--pp 2 --vpp 2",
                                          "--tp 2 --sp --dp 3 --global-batch-size 6",
                                          "--ep 2 --etp 2 --global-batch-size 8"};
    for (size_t i = 0; i < COUNT(trained); i++) {
        struct strbuf text = {0};
        strbuf_printf(&text, GOOD "%s", trained[i]);
        line_free(good_line(text.data));
        strbuf_release(&text);
    }
    refused(GOOD "--cp 2",
            "--context-parallel-size 2: training with context parallelism is not supported; leave "
            "it out (a checkpoint of any layout can be loaded)");
    refused(GOOD "--vpp 2", "--num-virtual-stages-per-pipeline-rank needs "
                            "--pipeline-model-parallel-size above 1");
    refused(GOOD "--num-layers-per-virtual-pipeline-stage 2",
            "--num-layers-per-virtual-pipeline-stage needs --pipeline-model-parallel-size above 1");
    refused(GOOD "--pp 4 --vpp 2 --microbatch-group-size-per-virtual-pipeline-stage 2",
            "--microbatch-group-size-per-virtual-pipeline-stage 2 is out of range "
            "(--pipeline-model-parallel-size 4 to 65536)");
    refused(GOOD "--pipeline-schedule one-by-one",
            "--pipeline-schedule needs --pipeline-model-parallel-size above 1");
    refused(GOOD "--cp-comm-type a2a", "--cp-comm-type a2a is not supported (p2p, all_gather)");
    refused(GOOD "--use-megatron-fsdp",
            "--use-megatron-fsdp: fully sharded data parallelism is not implemented");
}

static void without_num_layers_the_folder_is_the_model(void **state)
{
    (void)state;
    struct line *x = good_line(GOOD "--swiglu --rotary-base 5e5 --attention-dropout 0.2");
    assert_false(x->o.has_model);
    near(x->o.hidden_dropout, 0);
    near(x->o.attention_dropout, 0.2);
    assert_string_equal(x->notes.data,
                        "without effect here, since the folder describes the model (no "
                        "--num-layers): --rotary-base, --swiglu\n");
    line_free(x);
    x = good_line(GOOD "--hidden-dropout 0 --attention-dropout 0 --normalization LayerNorm "
                       "--vocab-size 100");
    assert_string_equal(x->notes.data,
                        "without effect here, since the folder describes the model (no "
                        "--num-layers): --normalization, --vocab-size\n");
    line_free(x);
    x = good_line(GOOD "--hidden-dropout 0 --attention-dropout 0 --vocab-size 100 "
                       "--tokenizer-type NullTokenizer");
    assert_null(x->notes.data);
    line_free(x);
    x = good_line(MODEL "--load m --use-checkpoint-args --hidden-dropout 0 --attention-dropout 0");
    assert_false(x->o.has_model);
    assert_non_null(strstr(x->notes.data, "(--use-checkpoint-args): --num-layers, --hidden-size"));
    line_free(x);
}

static void a_config_file_stands_for_its_folder(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"hf/config.json", "hf"},
                                           {"config.json", "."},
                                           {"/config.json", "/"},
                                           {"hf", "hf"},
                                           {"org/name", "org/name"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char line[300];
        snprintf(line, sizeof line, GOOD "--hf-config %s", cases[i][0]);
        struct line *x = good_line(line);
        assert_string_equal(x->o.hf_config, cases[i][1]);
        line_free(x);
    }
}

static void values_that_nothing_computes_with(void **state)
{
    (void)state;
    refused(GOOD "--moe-router-dtype fp64",
            "--moe-router-dtype fp64 needs --dtype f64: routers compute in fp32");
    line_free(good_line(GOOD "--moe-router-dtype fp64 --dtype f64"));
    refused(GOOD "--mid-level-dataset-surplus 0.1",
            "--mid-level-dataset-surplus 0.1 is not supported (0.005)");
    refused(GOOD "--threads 1025", "--threads 1025 is out of range (1 to 1024)");
    line_free(good_line(GOOD "--threads 1024"));
}

static void lists_of_layers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } cases[] = {{"2", "2"},
                 {"[0]", "[0]"},
                 {"([0]+[1]*3)*2", "[0,1,1,1,0,1,1,1]"},
                 {"2*[1,0]", "[1,0,1,0]"},
                 {"[1]*0+[0, 1]", "[0,1]"},
                 {"0", NULL},
                 {"", NULL},
                 {"[1", NULL},
                 {"[2]", NULL},
                 {"[1]+", NULL},
                 {"([1]*2", NULL},
                 {"[1]*100001", NULL},
                 {"[1]*100000+[1]", NULL},
                 {"exit()", NULL}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *layers = train_layer_pattern(cases[i].text);
        char *text = layers ? cJSON_PrintUnformatted(layers) : NULL;
        if (cases[i].json)
            assert_string_equal(text, cases[i].json);
        else
            assert_null(text);
        free(text);
        cJSON_Delete(layers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_contradictions_are_in_one_message),
        cmocka_unit_test(more_than_a_message_holds_is_counted),
        cmocka_unit_test(schedules_that_contradict_themselves),
        cmocka_unit_test(batch_sizes_that_are_no_schedule),
        cmocka_unit_test(recompute_data_and_model_that_contradict_themselves),
        cmocka_unit_test(defaults_of_a_line_are_those_of_pretrain_gpt),
        cmocka_unit_test(activations_of_a_line),
        cmocka_unit_test(sizes_that_follow_from_others),
        cmocka_unit_test(lines_without_a_model),
        cmocka_unit_test(a_split_is_one_word_or_several),
        cmocka_unit_test(a_run_that_cannot_be_continued_is_noted),
        cmocka_unit_test(what_is_assumed_is_noted),
        cmocka_unit_test(layouts_are_checked_as_far_as_the_line_goes),
        cmocka_unit_test(without_num_layers_the_folder_is_the_model),
        cmocka_unit_test(a_config_file_stands_for_its_folder),
        cmocka_unit_test(values_that_nothing_computes_with),
        cmocka_unit_test(lists_of_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
