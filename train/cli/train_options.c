#include "train/cli/train_options.h"

#include <math.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/cli/megatron_options.h"
#include "convert/cli/options.h"
#include "train/cli/train_finish.h"
#include "train/cli/train_names.h"

// clang-format off
#define AT(field) offsetof(struct train_options, field)
#define FLAG(names, field, help) {names, ARG_FLAG, AT(field), NULL, NULL, help}
#define OFF(names, field, help) {names, ARG_FLAG_OFF, AT(field), NULL, NULL, help}
#define UINT(names, field, help) {names, ARG_UINT, AT(field), "N", NULL, help}
#define UINT_OR_0(names, field, help) {names, ARG_UINT_OR_0, AT(field), "N", NULL, help}
#define REAL(names, field, help) {names, ARG_FLOAT, AT(field), "X", NULL, help}
#define TEXT(names, field, value, help) {names, ARG_TEXT, AT(field), value, NULL, help}
#define CHOICE(names, field, choices, help) {names, ARG_CHOICE, AT(field), NULL, choices, help}
#define WORDS(names, field, value, help) {names, ARG_WORDS, AT(field), value, NULL, help}

static const struct arg recipe_args[] = {
    {"--config", ARG_CONFIG, AT(config), "FILE", NULL, "YAML file of options by name, with lists for several values; the command line takes precedence"},
};

static const struct arg source_model_args[] = {
    TEXT("--hf-config", hf_config, "PATH", "Hugging Face folder or config.json: the model to train from scratch"),
};

static const struct arg model_args[] = {
    REAL("--hidden-dropout", hidden_dropout, "dropout of hidden states; default 0.1 with --num-layers, else 0"),
    REAL("--attention-dropout", attention_dropout, "dropout of attention probabilities; default 0.1 with --num-layers, else 0"),
    REAL("--init-method-std", init_method_std, "standard deviation of initial weights; default 0.02"),
    REAL("--embedding-init-method-std", embedding_init_method_std, "standard deviation of the embedding's initial weights; default: --init-method-std"),
    OFF("--no-initialization", perform_initialization, NULL),
};

static const struct arg expert_args[] = {
    REAL("--moe-router-bias-update-rate", moe_router_bias_update_rate, "change of the bias per step; default 0.001"),
    WORDS("--moe-router-load-balancing-type", moe_router_load_balancing_types, "NAME...", "balance experts over a micro-batch (aux_loss), each sequence (seq_aux_loss), all micro-batches of a step so far (global_aux_loss) or not at all (none); default aux_loss"),
    WORDS("--moe-aux-loss-coeff", moe_aux_loss_coeffs, "X...", "coefficient of the load balancing loss; default 0"),
    REAL("--moe-z-loss-coeff", moe_z_loss_coeff, "coefficient of the router's z-loss; default: none"),
    FLAG("--moe-grouped-gemm", moe_grouped_gemm, "save experts under the names of Transformer Engine's grouped experts; default: as in --load"),
    CHOICE("--moe-router-dtype", moe_router_dtype, "fp32|fp64", "accepted and ignored: routing runs in float32, or in float64 with --dtype f64, which fp64 needs"),
};

static const struct arg vocabulary_args[] = {
    UINT("--vocab-size", vocab_size, "vocabulary size without padding"),
    UINT("--make-vocab-size-divisible-by", make_vocab_size_divisible_by, "with --num-layers, pad the embedding to a multiple of N times --tp rows; default 128"),
    UINT("--padded-vocab-size", padded_vocab_size, "rows of the embedding; default: by --make-vocab-size-divisible-by"),
    OFF("--no-pad-vocab-size --disable-pad-vocab-size", pad_vocab_size, "do not pad the embedding"),
    REAL("--padding-rows-value", padding_rows_value, "value of the padding rows that --num-layers adds to a folder's embedding; default 0"),
    TEXT("--tokenizer-type", tokenizer_type, "NAME", "NullTokenizer sets the end-of-document id to --vocab-size - 1; no tokenizer runs"),
    UINT_OR_0("--null-tokenizer-eod-id", null_tokenizer_eod_id, "end-of-document id of NullTokenizer"),
    UINT_OR_0("--eod-id", eod_id, "end-of-document id; default: NullTokenizer's, else the folder's end-of-text id"),
};

static const struct arg training_args[] = {
    UINT("--micro-batch-size", micro_batch_size, "samples per forward pass"),
    UINT("--global-batch-size", global_batch_size, "samples per step; default: --micro-batch-size times --dp"),
    TEXT("--step-batch-size-schedule", step_batch_size_schedule, "T:N,...", "global batch sizes N, each from T tokens on, such as 0:768,250B:1536"),
    WORDS("--rampup-batch-size", rampup_batch_size, "N N N", "ignored, as by Megatron-Core 0.18.2 and later; a note has the schedule of releases before"),
    UINT("--train-iters", train_iters, "number of steps"),
    UINT("--train-samples", train_samples, "number of samples, instead of --train-iters"),
    UINT("--seq-length --encoder-seq-length", seq_length, "tokens per sample"),
    UINT_OR_0("--exit-interval", exit_interval, "save and exit after the first step that N divides"),
    REAL("--exit-duration-in-mins", exit_duration_in_mins, "save and exit after the step in which the run reaches X minutes, such as 0.5"),
    UINT_OR_0("--eval-interval", eval_interval, "evaluate every N steps; default: only at the end"),
    UINT_OR_0("--eval-iters", eval_iters, "steps per evaluation; default 100; with --mock-data none"),
    UINT_OR_0("--start-eval-at-iter", start_eval_at_iter, "do not evaluate before step N"),
    UINT("--eval-global-batch-size", eval_global_batch_size, "samples per evaluation step; default: --global-batch-size"),
    UINT("--eval-micro-batch-size", eval_micro_batch_size, "--eval-global-batch-size must be a multiple of N times --dp; forward passes have --micro-batch-size samples; default: --micro-batch-size"),
    FLAG("--calculate-per-token-loss", calculate_per_token_loss, "average the loss over all tokens of a step instead of over micro-batches"),
};

static const struct arg optimizer_args[] = {
    TEXT("--optimizer", optimizer, "NAME", "optimizer: adam (AdamW) or sgd; default adam"),
    REAL("--lr", lr, "peak learning rate"),
    REAL("--min-lr", min_lr, "minimum learning rate; default 0"),
    CHOICE("--lr-decay-style", lr_decay_style, "constant|linear|cosine|inverse-square-root|WSD", "decay of the learning rate; default linear"),
    UINT("--lr-decay-iters", lr_decay_iters, "steps from the start to --min-lr; default: --train-iters"),
    UINT("--lr-decay-samples", lr_decay_samples, "samples from the start to --min-lr; default: --train-samples"),
    UINT_OR_0("--lr-warmup-iters", lr_warmup_iters, "warmup steps; default 0"),
    UINT_OR_0("--lr-warmup-samples", lr_warmup_samples, "warmup samples; default 0"),
    REAL("--lr-warmup-fraction", lr_warmup_fraction, "warmup as a fraction of the decay"),
    REAL("--lr-warmup-init", lr_warmup_init, "learning rate at the start of the warmup; default 0"),
    CHOICE("--lr-wsd-decay-style", lr_wsd_decay_style, "exponential|linear|cosine|minus_sqrt", "decay in the last part of WSD; default exponential"),
    UINT("--lr-wsd-decay-iters", lr_wsd_decay_iters, "steps in the last part of WSD"),
    UINT("--lr-wsd-decay-samples", lr_wsd_decay_samples, "samples in the last part of WSD"),
    REAL("--weight-decay", weight_decay, "weight decay; default 0.01"),
    REAL("--start-weight-decay", start_weight_decay, "weight decay at the start; with --weight-decay-incr-style"),
    REAL("--end-weight-decay", end_weight_decay, "weight decay at the end; with --weight-decay-incr-style"),
    CHOICE("--weight-decay-incr-style", weight_decay_incr_style, "constant|linear|cosine", "increase of the weight decay; default constant"),
    REAL("--adam-beta1", adam_beta1, "Adam's beta1; default 0.9"),
    REAL("--adam-beta2", adam_beta2, "Adam's beta2; default 0.999"),
    REAL("--adam-eps", adam_eps, "Adam's epsilon; default 1e-8"),
    REAL("--sgd-momentum", sgd_momentum, "momentum of SGD; default 0.9"),
    REAL("--clip-grad", clip_grad, "maximum global norm of the gradient; default 1; 0: no clipping"),
    FLAG("--override-opt-param-scheduler", override_opt_param_scheduler, "use the schedule of the command line, not of the checkpoint"),
    FLAG("--use-checkpoint-opt-param-scheduler", use_checkpoint_opt_param_scheduler, "use the schedule of the checkpoint, not of the command line"),
};

static const struct arg precision_args[] = {
    FLAG("--bf16", bf16, "weights and activations in bfloat16, masters and gradients in float32"),
    FLAG("--fp16", fp16, "weights and activations in float16, masters and gradients in float32, with a loss scale"),
    CHOICE("--dtype", dtype, "f32|f64|bf16|fp16", "dtype of weights and activations; default f32"),
    REAL("--loss-scale", loss_scale, "constant loss scale; default: dynamic with --fp16"),
    REAL("--initial-loss-scale", initial_loss_scale, "initial dynamic loss scale; default 4294967296"),
    REAL("--min-loss-scale", min_loss_scale, "minimum dynamic loss scale; default 1"),
    UINT("--loss-scale-window", loss_scale_window, "steps without overflow until the loss scale doubles; default 1000"),
    UINT("--hysteresis", hysteresis, "overflows until the loss scale is halved; default 2"),
    FLAG("--accumulate-allreduce-grads-in-fp32", accumulate_allreduce_grads_in_fp32, "sum gradients of float16 weights in float32"),
    OFF("--no-check-for-nan-in-loss-and-grad", check_for_nan_in_loss_and_grad, "skip steps with a gradient that is not finite; default: stop with exit code 10"),
};

static const struct arg memory_args[] = {
    CHOICE("--recompute-granularity", recompute_granularity, "full|selective", "recompute activations in backward: of whole layers (full) or of --recompute-modules (selective)"),
    CHOICE("--recompute-method", recompute_method, "uniform|block", "with full: recompute all layers in groups of --recompute-num-layers (uniform), or that many layers of each stage (block)"),
    UINT("--recompute-num-layers", recompute_num_layers, "number of layers for --recompute-method"),
    WORDS("--recompute-modules", recompute_modules, "NAME...", "modules to recompute with selective: core_attn, layernorm, mlp, moe_act, moe; default core_attn"),
    FLAG("--recompute-activations", recompute_activations, "same as --recompute-granularity selective"),
    FLAG("--moe-layer-recompute", moe_layer_recompute, "same as --recompute-modules moe"),
};

static const struct arg data_args[] = {
    WORDS("--data-path", data_path, "[W] PREFIX...", "datasets (PREFIX.bin and .idx), each after its weight, or all without weights"),
    WORDS("--train-data-path", train_data_path, "[W] PREFIX...", "datasets for training only"),
    WORDS("--valid-data-path", valid_data_path, "[W] PREFIX...", "datasets for validation"),
    WORDS("--test-data-path", test_data_path, "[W] PREFIX...", "datasets for the test after the last step"),
    WORDS("--split", split_words, "A,B,C...", "shares of --data-path for training, validation and test; default 969,30,1"),
    TEXT("--data-cache-path", data_cache_path, "DIR", "folder for the index files of datasets"),
    FLAG("--mock-data", mock_data, "train on generated numbers instead of a dataset"),
    UINT_OR_0("--seed", seed, "seed of weights, dropout and data order; default 1234"),
    FLAG("--reset-position-ids", reset_position_ids, "restart positions after each end of document"),
    FLAG("--reset-attention-mask", reset_attention_mask, "no attention across ends of documents"),
    FLAG("--eod-mask-loss", eod_mask_loss, "no loss at ends of documents"),
    OFF("--no-create-attention-mask-in-dataloader", create_attention_mask_in_dataloader, "use causal attention over whole samples, even with --reset-attention-mask"),
    REAL("--mid-level-dataset-surplus", mid_level_dataset_surplus, "share of extra samples per dataset of a blend; only 0.005 is supported"),
};

static const struct arg checkpoint_args[] = {
    TEXT("--load", load, "PATH", "checkpoint or model to start or resume from"),
    TEXT("--save", save, "DIR", "folder for checkpoints; training resumes from the newest one of this model in it"),
    UINT("--save-interval --persistent-save-interval", save_interval, "save every N steps"),
    TEXT("--save-hf", save_hf, "DIR", "also write Hugging Face folders DIR/iter_N, with the optimizer unless --no-save-optim"),
    CHOICE("--ckpt-format", ckpt_format, "torch_dist|torch", "format of saved checkpoints; default torch_dist"),
    CHOICE("--transformer-impl", transformer_impl, "transformer_engine|local", "parameter names in saved checkpoints (TE spec or local spec); default: as in --load, else transformer_engine"),
    UINT_OR_0("--ckpt-step", ckpt_step, "iteration of --load to use; default: the newest"),
    FLAG("--finetune", finetune, "load weights only and start at step 0"),
    FLAG("--exit-on-missing-checkpoint", exit_on_missing_checkpoint, "refuse an absent or empty --load that is --save, too, instead of beginning with random weights"),
    FLAG("--no-load-optim", no_load_optim, "do not load the optimizer"),
    FLAG("--no-load-rng", no_load_rng, "do not load the states of random number generators"),
    FLAG("--no-save-optim", no_save_optim, "do not save the optimizer"),
    FLAG("--no-save-rng", no_save_rng, "do not save the states of random number generators"),
    FLAG("--use-checkpoint-args", use_checkpoint_args, "take the model from the checkpoint, even with --num-layers"),
    FLAG("--async-save", async_save, "copy the state in memory and write it while training continues"),
    UINT("--keep-last", keep_last, "keep the newest N checkpoints of --save; default: all; --save-retain-interval has no effect"),
    FLAG("--overwrite", overwrite, "replace iterations of other runs in --save"),
};

static const struct arg log_args[] = {
    UINT("--log-interval", log_interval, "print a line every N steps; default 100"),
    FLAG("--log-params-norm", log_params_norm, "print the norm of the parameters"),
    FLAG("--log-throughput", log_throughput, "print TFLOP/s"),
    FLAG("--log-num-zeros-in-grad", log_num_zeros_in_grad, "print the number of zeros in the gradient"),
    TEXT("--log-jsonl", log_jsonl, "FILE", "append a JSON object per step to FILE"),
    TEXT("--tensorboard-dir", tensorboard_dir, "DIR", "write event files for TensorBoard"),
    UINT("--tensorboard-log-interval", tensorboard_log_interval, "write events every N steps; default 1"),
    CHOICE("--progress", progress, PROGRESS_STYLES, "progress of the steps on stderr, beside the log lines; auto: a bar on a terminal, else occasional lines; json: JSON lines; default: none, but auto while loading"),
    FLAG("-q --quiet", quiet, "print no notes on stderr"),
    FLAG("--json", json, "print the result, or the error, as one JSON object on stdout (fields: JSON.md); log lines go to stderr"),
};

static const struct arg source_args_of_train[] = {
    TEXT("--model", family, "FAMILY", "model family (see ferry models); default: from the folder's config"),
    TEXT("--model-map", model_map, "FILE", "user-defined model map, in addition to the built-in ones"),
    UINT("--true-vocab-size", true_vocab_size, "vocabulary size without padding, if the folder lacks it"),
    {"--allow-mismatch", ARG_LIST, AT(allow_mismatch), "FIELD", NULL, "go on with the command line's value of a model field, or its optimizer, where --load has another and the name matches this glob"},
    FLAG("--allow-shifted", allow_shifted, "go on from optimizer states that Megatron-Core before 0.20 saved shifted"),
    {"--allow-config", ARG_LIST, AT(allow_config), "FIELD", NULL, "ignore unknown fields of the folder's config whose name matches this glob"},
};

static const struct arg run_args_of_train[] = {
    UINT("--context-parallel-size --cp", layout.cp, "context parallel ranks; training supports 1 only"),
    UINT("--data-parallel-size --dp", layout.dp, "data parallel ranks; default: the launcher's ranks divided by the others; without one, the fewest that --ep needs"),
    UINT("--microbatch-group-size-per-virtual-pipeline-stage", microbatch_group_size, "micro-batches that a rank passes through one chunk before the next; default: the number of pipeline stages"),
    CHOICE("--pipeline-schedule", pipeline_schedule, "1f1b|one-by-one", "order of micro-batches: forward and backward in turn (1f1b; interleaved with several chunks per rank), or each micro-batch through all stages and back before the next (one-by-one, for comparison); default 1f1b"),
    FLAG("--sequence-parallel --sp", sequence_parallel, "split norms and residuals by tokens over the tensor parallel ranks"),
    FLAG("--use-distributed-optimizer", use_distributed_optimizer, "shard masters and moments over the data parallel ranks (ZeRO-1), and save the optimizer as Megatron-LM's distributed optimizer"),
    UINT("--num-distributed-optimizer-instances", num_distributed_optimizer_instances, "accepted and ignored: states are sharded over all data parallel ranks, with the same results; default 1"),
    UINT("--ddp-bucket-size", ddp_bucket_size, "parameters per bucket of gradients that data parallel ranks sum at once; default 40M, or 1M times the ranks if larger"),
    WORDS("--cp-comm-type", cp_comm_type, "NAME...", "exchange of keys and values between context parallel ranks: p2p or all_gather; unused, since training supports --cp 1 only"),
    CHOICE("--device", device, "cpu|cuda", "compute device; default: cuda if there is a GPU"),
    CHOICE("--distributed-backend", distributed_backend, "nccl|gloo", "gloo implies --device cpu unless given, and saves checkpoints for Megatron-LM on CPUs; default nccl"),
    UINT("--threads", threads, "total CPU threads of all ranks on this host, at most 1024; default: number of CPUs"),
    FLAG("--dry-run", dry_run, "print the model, steps, inputs, outputs, the memory and traffic of each rank and the pipeline schedule, then stop; several ranks that do not fit this machine are reported, not a failure"),
    {"--memory-per-rank", ARG_FLOAT, AT(memory_per_rank), "GB", NULL, "with --dry-run: exit with code 6 if a rank needs more, regardless of the memory free here"},
    TEXT("--timeline", timeline, "FILE", "with --dry-run: draw the pipeline schedule over time as a new SVG file, which must not exist"),
};

#define GROUP(title, args) {title, args, COUNT(args), 0}
const struct arg_group train_groups[NUM_TRAIN_GROUPS] = {
    GROUP("Recipe", recipe_args),
    GROUP("Model", source_model_args),
    {"Model", NULL, 0, 0},
    GROUP("Model", model_args),
    {"Experts", NULL, 0, 0},
    GROUP("Experts", expert_args),
    GROUP("Vocabulary", vocabulary_args),
    GROUP("Training", training_args),
    GROUP("Optimizer", optimizer_args),
    GROUP("Precision", precision_args),
    GROUP("Recompute", memory_args),
    GROUP("Data", data_args),
    GROUP("Checkpoints", checkpoint_args),
    GROUP("Logs", log_args),
    GROUP("Source", source_args_of_train),
    GROUP("Parallel", run_args_of_train),
    {"Layout", layout_args, NUM_LAYOUT_ARGS, AT(layout)},
    {"Other options of Megatron-LM", NULL, 0, 0},
};
// clang-format on

/* The defaults of pretrain_gpt.py. */
static const struct train_options default_options = {
    .make_vocab_size_divisible_by = 128,
    .pad_vocab_size = true,
    .hidden_dropout = NAN,
    .attention_dropout = NAN,
    .init_method_std = 0.02,
    .embedding_init_method_std = NAN,
    .perform_initialization = true,
    .eval_iters = UINT64_MAX,
    .optimizer = "adam",
    .lr = NAN,
    .lr_decay_style = "linear",
    .lr_warmup_fraction = NAN,
    .lr_wsd_decay_style = "exponential",
    .weight_decay = 0.01,
    .start_weight_decay = NAN,
    .end_weight_decay = NAN,
    .weight_decay_incr_style = "constant",
    .adam_beta1 = 0.9,
    .adam_beta2 = 0.999,
    .adam_eps = 1e-8,
    .sgd_momentum = 0.9,
    .clip_grad = 1,
    .loss_scale = NAN,
    .initial_loss_scale = 4294967296.0,
    .min_loss_scale = 1,
    .loss_scale_window = 1000,
    .hysteresis = 2,
    .check_for_nan_in_loss_and_grad = true,
    .seed = UINT64_MAX,
    .create_attention_mask_in_dataloader = true,
    .eod_id = UINT64_MAX,
    .null_tokenizer_eod_id = UINT64_MAX,
    .mid_level_dataset_surplus = 0.005,
    .ckpt_format = "torch_dist",
    .ckpt_step = UINT64_MAX,
    .log_interval = 100,
    .tensorboard_log_interval = 1,
    .moe_z_loss_coeff = NAN,
    .moe_router_bias_update_rate = 0.001,
    .memory_per_rank = NAN,
};

/* An option that describes the model. */
static bool make_described(struct arg *to, const struct megatron_option *o, const char *title)
{
    static const enum arg_kind kinds[] = {[FIELD_UINT] = ARG_UINT,
                                          [FIELD_REAL] = ARG_FLOAT,
                                          [FIELD_BOOL] = ARG_FLAG,
                                          [FIELD_TEXT] = ARG_TEXT};
    to->kind = o->choices ? ARG_CHOICE : o->may_be_0 ? ARG_UINT_OR_0 : kinds[o->usual.kind];
    if (to->kind == ARG_FLAG && o->usual.truth) to->kind = ARG_FLAG_OFF;
    to->offset = AT(line) + o->slot * sizeof(struct scalar) + offsetof(struct scalar, number);
    to->value = o->choices ? NULL : o->value;
    to->choices = o->choices;
    to->help = o->help;
    return text_equal(o->group, title);
}

const struct arg_group *train_made_group(const struct arg_group *g)
{
    static struct arg_group groups[NUM_TRAIN_GROUPS];
    return megatron_options_make(&groups[g - train_groups], g,
                                 g == &train_groups[NUM_TRAIN_GROUPS - 1] ? train_other_option
                                                                          : make_described);
}

const struct arg_group *train_group(size_t i)
{
    return train_groups[i].args ? &train_groups[i] : train_made_group(&train_groups[i]);
}

_Static_assert(COUNT(((struct train_options *)NULL)->line) >= MAX_MODEL_OPTIONS,
               "megatron_options.h");

void train_options_defaults(void *options)
{
    struct train_options *o = options;
    size_t count;
    const struct megatron_option *all = megatron_options(&count);
    *o = default_options;
    for (size_t i = 0; i < count; i++)
        if (all[i].group) o->line[all[i].slot] = all[i].usual;
    arena_init(&o->arena);
}

void train_options_release(struct train_options *o)
{
    arena_release(&o->arena);
}
