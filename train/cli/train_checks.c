/* train_checks.c - contradictions of a command line. Each check reports its
 * problems; the line is refused with all of them. Most rules are those of
 * megatron/training/arguments.py (validate_args) and
 * core/optimizer_param_scheduler.py. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/ranks.h"
#include "common/text.h"
#include "common/threads.h"
#include "train/cli/train_finish.h"

/* ---- precision ---- */

static void check_precision(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const char *flag = o->bf16 ? "bf16" : "fp16";
    if (o->bf16 && o->fp16)
        train_problem(x, "give one of bfloat16 and float16 (--bf16, --fp16, --dtype)");
    else if ((o->bf16 || o->fp16) && strcmp(o->dtype, flag) != 0)
        train_problem(x, "--%s conflicts with --dtype %s", flag, o->dtype);
    if (o->loss_scale <= 0) train_problem(x, "--loss-scale %g is not above 0", o->loss_scale);
    if (o->min_loss_scale <= 0)
        train_problem(x, "--min-loss-scale %g is not above 0", o->min_loss_scale);
    else if (o->initial_loss_scale < o->min_loss_scale)
        train_problem(x, "--initial-loss-scale %g is below --min-loss-scale %g",
                      o->initial_loss_scale, o->min_loss_scale);
}

/* ---- length of the run ---- */

static void check_length(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (!o->train_iters && !o->train_samples)
        train_problem(x, "the length of the run is missing: --train-iters or --train-samples");
    if (o->train_iters && o->train_samples)
        train_problem(x, "give one of --train-iters and --train-samples");
    if (o->train_iters && (o->lr_decay_samples || o->lr_warmup_samples || o->lr_wsd_decay_samples))
        train_problem(x, "--train-iters conflicts with a schedule in samples (--lr-decay-samples, "
                         "--lr-warmup-samples, --lr-wsd-decay-samples)");
    if (o->train_samples && (o->lr_decay_iters || o->lr_warmup_iters || o->lr_wsd_decay_iters))
        train_problem(x,
                      "--train-samples conflicts with a schedule in iterations (--lr-decay-iters, "
                      "--lr-warmup-iters, --lr-wsd-decay-iters)");
}

/* ---- batches ---- */

static void check_divides(struct train_finish *x, const char *name, uint64_t size,
                          const char *micro_name, uint64_t micro)
{
    const uint64_t dp = x->o->layout.dp ? x->o->layout.dp : 1;
    uint64_t unit;
    if (!micro || !size) return;
    if (!mul_u64(micro, dp, &unit) || size % unit)
        train_problem(x,
                      "%s %" PRIu64 " is not a multiple of %s %" PRIu64 " times %" PRIu64
                      " data parallel rank%s",
                      name, size, micro_name, micro, dp, dp == 1 ? "" : "s");
}

/* The last size of the schedule that the run reaches. The trainer checks the
 * sizes before it: the run may resume behind them. */
static const struct batch_size_step *last_reached(const struct train_options *o)
{
    const struct batch_size_step *const steps = o->batch_size_steps;
    const uint64_t samples = o->train_samples ? o->train_samples : UINT64_MAX;
    uint64_t iterations = o->train_iters ? o->train_iters : UINT64_MAX, consumed = 0;
    size_t reached = 0;
    for (size_t i = 1; i < o->num_batch_size_steps; i++) {
        const uint64_t size = steps[i - 1].global_batch_size, from = steps[i].from_sample,
                       n = from > consumed ? ceil_div_u64(from - consumed, size) : 0;
        uint64_t taken;
        if (n >= iterations || !mul_u64(n, size, &taken) || !add_u64(consumed, taken, &consumed) ||
            consumed >= samples)
            break;
        iterations -= n;
        reached = i;
    }
    return &steps[reached];
}

static void check_batches(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (!o->micro_batch_size) train_problem(x, "--micro-batch-size is missing");
    if (o->step_batch_size_schedule && o->is_global_batch_size_given)
        train_problem(x, "give one of --step-batch-size-schedule and --global-batch-size");
    if (o->num_batch_size_steps)
        check_divides(x, "--step-batch-size-schedule: a size of",
                      last_reached(o)->global_batch_size, "--micro-batch-size",
                      o->micro_batch_size);
    else
        check_divides(x, "--global-batch-size", o->global_batch_size, "--micro-batch-size",
                      o->micro_batch_size);
    if (o->eval_global_batch_size != o->global_batch_size ||
        o->eval_micro_batch_size != o->micro_batch_size)
        check_divides(x, "--eval-global-batch-size", o->eval_global_batch_size,
                      "--eval-micro-batch-size", o->eval_micro_batch_size);
}

/* ---- schedule ---- */

static void check_lr(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (isnan(o->lr)) train_problem(x, "--lr is missing");
    if (o->lr >= 0 && o->min_lr > o->lr)
        train_problem(x, "--min-lr %g is above --lr %g", o->min_lr, o->lr);
    if (o->lr >= 0 && o->lr_warmup_init > o->lr)
        train_problem(x, "--lr-warmup-init %g is above --lr %g", o->lr_warmup_init, o->lr);
    if (o->override_opt_param_scheduler && o->use_checkpoint_opt_param_scheduler)
        train_problem(x, "give one of --override-opt-param-scheduler and "
                         "--use-checkpoint-opt-param-scheduler");
}

/* Warmup is part of the decay, and ends before it. */
static void check_warmup(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const bool by_samples = o->train_samples && !o->train_iters;
    const char *unit = by_samples ? "samples" : "iters";
    const uint64_t warmup = by_samples ? o->lr_warmup_samples : o->lr_warmup_iters;
    const uint64_t whole = by_samples ? o->train_samples : o->train_iters;
    const uint64_t given = by_samples ? o->lr_decay_samples : o->lr_decay_iters;
    const uint64_t decay = given ? given : whole;
    if (warmup && decay && warmup >= decay)
        train_problem(x, "--lr-warmup-%s %" PRIu64 " is not below --lr-decay-%s %" PRIu64, unit,
                      warmup, unit, decay);
    if (isnan(o->lr_warmup_fraction)) return;
    if (o->lr_warmup_iters || o->lr_warmup_samples)
        train_problem(x, "give one of --lr-warmup-fraction and --lr-warmup-%s",
                      o->lr_warmup_iters ? "iters" : "samples");
    if (o->lr_warmup_fraction < 0 || o->lr_warmup_fraction >= 1)
        train_problem(x, "--lr-warmup-fraction %g must be at least 0 and below 1",
                      o->lr_warmup_fraction);
}

static void check_wsd(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const bool is_wsd = strcmp(o->lr_decay_style, "WSD") == 0;
    if (is_wsd && !o->lr_wsd_decay_iters && !o->lr_wsd_decay_samples)
        train_problem(x, "--lr-decay-style WSD needs --lr-wsd-decay-%s",
                      o->train_samples ? "samples" : "iters");
}

static void check_weight_decay(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const bool is_constant = strcmp(o->weight_decay_incr_style, "constant") == 0;
    if (o->weight_decay < 0) train_problem(x, "--weight-decay %g is below 0", o->weight_decay);
    if (!is_constant && o->start_weight_decay < 0)
        train_problem(x, "--start-weight-decay %g is below 0", o->start_weight_decay);
    if (!is_constant && o->end_weight_decay < o->start_weight_decay)
        train_problem(x, "--end-weight-decay %g is below --start-weight-decay %g",
                      o->end_weight_decay, o->start_weight_decay);
}

/* ---- ranges ---- */

static void check_ranges(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const struct {
        const char *name;
        double value;
    } below_1[] = {{"--adam-beta1", o->adam_beta1},
                   {"--adam-beta2", o->adam_beta2},
                   {"--sgd-momentum", o->sgd_momentum},
                   {"--hidden-dropout", o->hidden_dropout},
                   {"--attention-dropout", o->attention_dropout}},
      from_0[] = {{"--lr", o->lr},
                  {"--min-lr", o->min_lr},
                  {"--lr-warmup-init", o->lr_warmup_init},
                  {"--adam-eps", o->adam_eps},
                  {"--clip-grad", o->clip_grad},
                  {"--init-method-std", o->init_method_std},
                  {"--moe-aux-loss-coeff", o->moe_aux_loss_coeff},
                  {"--moe-z-loss-coeff", o->moe_z_loss_coeff},
                  {"--moe-router-topk-scaling-factor", o->line.moe_router_topk_scaling_factor},
                  {"--moe-router-bias-update-rate", o->moe_router_bias_update_rate},
                  {"--exit-duration-in-mins", o->exit_duration_in_mins}};
    for (size_t i = 0; i < COUNT(below_1); i++)
        if (!(below_1[i].value >= 0 && below_1[i].value < 1))
            train_problem(x, "%s %g must be at least 0 and below 1", below_1[i].name,
                          below_1[i].value);
    for (size_t i = 0; i < COUNT(from_0); i++)
        if (from_0[i].value < 0)
            train_problem(x, "%s %g is below 0", from_0[i].name, from_0[i].value);
    if (strcmp(o->optimizer, "adam") != 0 && strcmp(o->optimizer, "sgd") != 0)
        train_problem(x, "--optimizer %s is not supported (adam, which is AdamW, or sgd)",
                      o->optimizer);
    if (o->threads > MAX_THREADS)
        train_problem(x, "--threads %" PRIu64 " is out of range (1 to %d)", o->threads,
                      MAX_THREADS);
}

/* ---- values that are not supported ---- */

static bool differs(double x, double y)
{
    return !isnan(x) && fabs(x - y) > 0;
}

/* Up to 1e9 GB: the bytes fit 64 bits. */
static void check_memory(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (isnan(o->memory_per_rank)) return;
    if (!o->dry_run) train_problem(x, "--memory-per-rank needs --dry-run");
    if (!(o->memory_per_rank > 0 && o->memory_per_rank <= 1e9))
        train_problem(x, "--memory-per-rank %g must be above 0 and at most 1e9",
                      o->memory_per_rank);
}

static void check_timeline(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (!o->timeline) return;
    if (!*o->timeline) train_problem(x, "--timeline is empty");
    if (!o->dry_run) train_problem(x, "--timeline needs --dry-run");
    if (o->layout.pp <= 1)
        train_problem(x, "--timeline needs --pipeline-model-parallel-size above 1");
}

static void check_supported(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (text_equal(o->moe_router_dtype, "fp64") && strcmp(o->dtype, "f64") != 0)
        train_problem(x, "--moe-router-dtype fp64 needs --dtype f64: routers compute in fp32");
    if (differs(o->mid_level_dataset_surplus, 0.005))
        train_problem(x, "--mid-level-dataset-surplus %g is not supported (0.005)",
                      o->mid_level_dataset_surplus);
}

/* ---- recompute ---- */

static void check_modules(struct train_finish *x)
{
#define NAME(name, bits) name,
    static const char *const known[] = {TRAIN_RECOMPUTE_MODULES(NAME)};
#undef NAME
    const struct arg_list *l = &x->o->recompute_modules;
    for (size_t i = 0; i < l->count; i++) {
        bool is_known = false;
        for (size_t k = 0; k < COUNT(known); k++)
            is_known = is_known || strcmp(l->items[i], known[k]) == 0;
        if (!is_known)
            train_problem(x,
                          "--recompute-modules %s is not supported (core_attn, layernorm, mlp, "
                          "moe_act, moe)",
                          l->items[i]);
    }
}

static void check_recompute(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const char *granularity = o->recompute_granularity;
    const bool is_full = text_equal(granularity, "full");
    if (!granularity && (o->recompute_method || o->recompute_num_layers))
        train_problem(x, "%s needs --recompute-granularity full",
                      o->recompute_method ? "--recompute-method" : "--recompute-num-layers");
    if (text_equal(granularity, "selective") && (o->recompute_method || o->recompute_num_layers))
        train_problem(x, "--recompute-granularity selective conflicts with --recompute-method and "
                         "--recompute-num-layers; give --recompute-modules");
    if (is_full && !(o->recompute_method && o->recompute_num_layers))
        train_problem(x, "--recompute-granularity full needs --recompute-method and "
                         "--recompute-num-layers");
    if (o->recompute_modules.count && !text_equal(granularity, "selective"))
        train_problem(x, "--recompute-modules needs --recompute-granularity selective");
    if (is_full && (o->recompute_activations || o->moe_layer_recompute))
        train_problem(x, "--recompute-granularity full conflicts with %s",
                      o->recompute_activations ? "--recompute-activations"
                                               : "--moe-layer-recompute");
    check_modules(x);
}

/* ---- data ---- */

static bool is_split(const char *text)
{
    int parts = 0;
    double sum = 0;
    for (const char *at = text; *at && parts < 4; parts++) {
        char number[32] = "";
        double part;
        const size_t length = strcspn(at, ",/");
        if (length >= sizeof number) return false;
        memcpy(number, at, length);
        char *end;
        part = strtod(number, &end);
        if (end == number || end[strspn(end, " ")] || !(part >= 0)) return false;
        sum += part;
        at += length + (at[length] ? 1 : 0);
    }
    return parts >= 1 && parts <= 3 && sum > 0 && isfinite(sum);
}

static void check_data(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const bool by_part =
        o->train_data_path.count || o->valid_data_path.count || o->test_data_path.count;
    const char *data = o->data_path.count ? "--data-path" : "--train-data-path";
    if (!o->data_path.count && !by_part && !o->mock_data && !o->dry_run)
        train_problem(x, "no data: give --data-path, --train-data-path or --mock-data");
    if (o->data_path.count && by_part)
        train_problem(x, "--data-path conflicts with --train-data-path, --valid-data-path and "
                         "--test-data-path");
    if (o->mock_data && (o->data_path.count || by_part))
        train_problem(x, "--mock-data conflicts with %s", data);
    if (by_part && !o->train_data_path.count)
        train_problem(x, "--valid-data-path and --test-data-path need --train-data-path");
    if (by_part && o->split)
        train_problem(x, "--split divides --data-path and does not apply to --train-data-path");
    if (o->split && !is_split(o->split))
        train_problem(x, "--split: \"%s\" is not a list of up to three numbers such as 969,30,1",
                      o->split);
}

/* ---- lengths and positions ---- */

static void check_positions(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const struct model_line *l = &o->line;
    const bool has_rope =
        l->use_rotary_position_embeddings || strcmp(l->position_embedding_type, "rope") == 0;
    if (!o->seq_length) train_problem(x, "--seq-length is missing");
    if (o->has_model && !l->max_position_embeddings)
        train_problem(x, "--max-position-embeddings is missing");
    if (o->has_model && l->max_position_embeddings && o->seq_length > l->max_position_embeddings)
        train_problem(x, "--seq-length %" PRIu64 " is above --max-position-embeddings %" PRIu64,
                      o->seq_length, l->max_position_embeddings);
    if (o->has_model && !l->add_position_embedding && !has_rope)
        train_problem(x, "--no-position-embedding: use --position-embedding-type none");
    if (o->layout.cp > 1 && o->seq_length % 2)
        train_problem(x, "--seq-length %" PRIu64 " is not a multiple of 2 times --cp %" PRIu64,
                      o->seq_length, o->layout.cp);
    else if (o->layout.cp > 1 && o->seq_length / 2 % o->layout.cp)
        train_problem(x, "--seq-length %" PRIu64 " is not a multiple of 2 times --cp %" PRIu64,
                      o->seq_length, o->layout.cp);
}

/* ---- model ---- */

static void check_heads(struct train_finish *x)
{
    const struct model_line *l = &x->o->line;
    if (!l->hidden_size) train_problem(x, "--hidden-size is missing");
    if (!l->num_attention_heads) {
        train_problem(x, "--num-attention-heads is missing");
        return;
    }
    if (!l->kv_channels && l->hidden_size % l->num_attention_heads)
        train_problem(
            x, "--hidden-size %" PRIu64 " is not a multiple of --num-attention-heads %" PRIu64,
            l->hidden_size, l->num_attention_heads);
    if (l->group_query_attention && l->num_attention_heads % l->num_query_groups)
        train_problem(
            x, "--num-attention-heads %" PRIu64 " is not a multiple of --num-query-groups %" PRIu64,
            l->num_attention_heads, l->num_query_groups);
}

static void check_mlp(struct train_finish *x)
{
    const struct model_line *l = &x->o->line;
    if (l->swiglu + l->squared_relu + l->quick_geglu + l->openai_gelu > 1)
        train_problem(x, "give one of --swiglu, --squared-relu, --quick-geglu and "
                         "--openai-gelu");
    if (l->swiglu && !l->ffn_hidden_size && l->hidden_size && l->hidden_size < 24)
        train_problem(x, "--ffn-hidden-size is missing: 8/3 of --hidden-size is below 64");
    if (l->num_experts && l->moe_router_topk > l->num_experts)
        train_problem(x, "--moe-router-topk %" PRIu64 " is above --num-experts %" PRIu64,
                      l->moe_router_topk, l->num_experts);
    if (l->moe_router_enable_expert_bias && !text_equal(l->moe_router_score_function, "sigmoid"))
        train_problem(x, "--moe-router-enable-expert-bias needs --moe-router-score-function "
                         "sigmoid");
}

/* Whether a typed option, perhaps with "=VALUE", names the tokenizer. */
static bool names_tokenizer(const char *typed)
{
    return text_starts_with(typed, "--tokenizer") || text_starts_with(typed, "--vocab-file") ||
           text_starts_with(typed, "--vocab_file") || text_starts_with(typed, "--merge-file") ||
           text_starts_with(typed, "--merge_file");
}

/* Megatron-LM asks its tokenizer for the size. */
static void refuse_no_vocabulary(struct train_finish *x)
{
    const struct arg_list *l = &x->o->no_effect;
    const char *option = x->o->tokenizer_type ? "--tokenizer-type" : NULL;
    for (size_t i = 0; i < l->count && !option; i++)
        if (names_tokenizer(l->items[i])) option = l->items[i];
    if (option)
        train_problem(x, "--vocab-size is missing: the tokenizer (%.*s) is not read yet",
                      (int)strcspn(option, "="), option);
    else
        train_problem(x, "--vocab-size is missing");
}

static void check_vocabulary(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const uint64_t padded = o->line.padded_vocab_size;
    if (padded && o->vocab_size > padded)
        train_problem(x, "--vocab-size %" PRIu64 " is above --padded-vocab-size %" PRIu64,
                      o->vocab_size, padded);
    if (!padded && !o->vocab_size && !o->load) refuse_no_vocabulary(x);
}

static void check_model(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (!o->load && !o->hf_config && !o->line.num_layers)
        train_problem(x, "no model: give --load, --hf-config or --num-layers");
    if (o->use_checkpoint_args && !o->load) train_problem(x, "--use-checkpoint-args needs --load");
    if (o->has_model && o->hf_config)
        train_problem(x, "--hf-config and --num-layers both describe the model: give one");
    if (!o->has_model) return;
    check_heads(x);
    check_mlp(x);
    check_vocabulary(x);
}

/* ---- layout ---- */

static void check_context_parallel(struct train_finish *x)
{
    const struct layout_options *l = &x->o->layout;
    if (l->cp > 1)
        train_problem(x,
                      "--context-parallel-size %" PRIu64
                      ": training with context parallelism is not supported; leave it out (a "
                      "checkpoint of any layout can be loaded)",
                      l->cp);
}

/* Megatron-Core's rules of pipelines (schedules.py). */
static void check_pipeline(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const struct layout_options *l = &o->layout;
    const struct {
        const char *name;
        bool is_given;
    } of_pipelines[] = {
        {"--num-virtual-stages-per-pipeline-rank", l->virtual_stages > 1},
        {"--num-layers-per-virtual-pipeline-stage", l->layers_per_virtual_stage > 0},
        {"--microbatch-group-size-per-virtual-pipeline-stage", o->microbatch_group_size > 0},
        {"--pipeline-schedule", o->pipeline_schedule != NULL}};
    for (size_t i = 0; i < COUNT(of_pipelines); i++)
        if (l->pp <= 1 && of_pipelines[i].is_given)
            train_problem(x, "%s needs --pipeline-model-parallel-size above 1",
                          of_pipelines[i].name);
    if (l->pp > 1 && o->microbatch_group_size &&
        (o->microbatch_group_size < l->pp || o->microbatch_group_size > MAX_RANKS_OF_A_JOB))
        train_problem(x,
                      "--microbatch-group-size-per-virtual-pipeline-stage %" PRIu64
                      " is out of range (--pipeline-model-parallel-size %" PRIu64 " to %d)",
                      o->microbatch_group_size, l->pp, MAX_RANKS_OF_A_JOB);
}

static void check_layout(struct train_finish *x)
{
    const struct train_options *o = x->o;
    const struct layout_options *l = &o->layout;
    if (!!l->virtual_stages + !!l->layers_per_virtual_stage + !!l->pipeline_layout > 1)
        train_problem(
            x, "give one of --num-virtual-stages-per-pipeline-rank, "
               "--num-layers-per-virtual-pipeline-stage and --pipeline-model-parallel-layout");
    if (l->ep > 1 && o->has_model && !o->line.num_experts)
        train_problem(x, "--ep %" PRIu64 " needs --num-experts", l->ep);
    else if (l->ep > 1 && o->has_model && o->line.num_experts % l->ep)
        train_problem(x, "--num-experts %" PRIu64 " is not a multiple of --ep %" PRIu64,
                      o->line.num_experts, l->ep);
    if (o->num_distributed_optimizer_instances > 1 && !o->use_distributed_optimizer)
        train_problem(x, "--num-distributed-optimizer-instances needs "
                         "--use-distributed-optimizer");
    for (size_t i = 0; i < o->cp_comm_type.count; i++)
        if (strcmp(o->cp_comm_type.items[i], "p2p") &&
            strcmp(o->cp_comm_type.items[i], "all_gather"))
            train_problem(x, "--cp-comm-type %s is not supported (p2p, all_gather)",
                          o->cp_comm_type.items[i]);
}

/* ---- checkpoints ---- */

static void check_checkpoints(struct train_finish *x)
{
    const struct train_options *o = x->o;
    if (o->ckpt_step != UINT64_MAX && !o->load) train_problem(x, "--ckpt-step needs --load");
    if (o->save && !o->save_interval)
        train_note(x, "no --save-interval: the run is saved at its end only");
    if (o->save_hf && !o->save)
        train_note(x, "no --save: a run that is stopped cannot be continued");
}

void train_check(struct train_finish *x)
{
    static void (*const checks[])(struct train_finish *) = {
        check_model,       check_positions, check_data,
        check_length,      check_batches,   check_lr,
        check_warmup,      check_wsd,       check_weight_decay,
        check_ranges,      check_precision, check_recompute,
        check_layout,      check_pipeline,  check_context_parallel,
        check_checkpoints, check_supported, check_memory,
        check_timeline,
    };
    for (size_t i = 0; i < COUNT(checks); i++)
        checks[i](x);
}
