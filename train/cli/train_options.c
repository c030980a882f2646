#include "train/cli/train_options.h"

#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/cli/options.h"
#include "train/cli/train_finish.h"
#include "train/cli/train_names.h"

// clang-format off
#define AT(field) offsetof(struct train_options, field)
#define LINE(field) AT(line.field)
#define FLAG(names, field, help) {names, ARG_FLAG, AT(field), NULL, NULL, help}
#define OFF(names, field, help) {names, ARG_FLAG_OFF, AT(field), NULL, NULL, help}
#define UINT(names, field, help) {names, ARG_UINT, AT(field), "N", NULL, help}
#define UINT_OR_0(names, field, help) {names, ARG_UINT_OR_0, AT(field), "N", NULL, help}
#define REAL(names, field, help) {names, ARG_FLOAT, AT(field), "X", NULL, help}
#define TEXT(names, field, value, help) {names, ARG_TEXT, AT(field), value, NULL, help}
#define CHOICE(names, field, choices, help) {names, ARG_CHOICE, AT(field), NULL, choices, help}
#define WORDS(names, field, value, help) {names, ARG_WORDS, AT(field), value, NULL, help}

static const struct arg recipe_args[] = {
    {"--config", ARG_CONFIG, AT(config), "FILE", NULL, "YAML file with options by their names, lists for several values; the options of the line win"},
};

static const struct arg model_args[] = {
    TEXT("--hf-config", hf_config, "PATH", "folder or config.json of Hugging Face: the model, if training starts from scratch"),
    UINT("--num-layers --encoder-num-layers", line.num_layers, "layers; with it, the line alone describes the model, by the defaults of pretrain_gpt.py; default: the model of --load or --hf-config"),
    UINT("--hidden-size", line.hidden_size, "hidden size"),
    UINT("--ffn-hidden-size", line.ffn_hidden_size, "hidden size of the MLP; default: 4 times --hidden-size, with --swiglu 2/3 of that, rounded down to a multiple of 64"),
    UINT("--num-attention-heads", line.num_attention_heads, "attention heads"),
    UINT("--kv-channels", line.kv_channels, "size of a head; default: --hidden-size by --num-attention-heads"),
    FLAG("--group-query-attention", line.group_query_attention, "several heads share keys and values"),
    UINT("--num-query-groups", line.num_query_groups, "key/value heads with --group-query-attention; default 1"),
    UINT("--max-position-embeddings", line.max_position_embeddings, "positions that the model is made for"),
    CHOICE("--position-embedding-type", line.position_embedding_type, "learned_absolute|rope|none", "default learned_absolute"),
    OFF("--no-position-embedding", line.add_position_embedding, NULL),
    FLAG("--use-rotary-position-embeddings", line.use_rotary_position_embeddings, "--position-embedding-type rope"),
    REAL("--rotary-base", line.rotary_base, "base of the rotary frequencies; default 10000"),
    REAL("--rotary-percent", line.rotary_percent, "part of a head that is rotated, 0 to 1; default 1"),
    FLAG("--rotary-interleaved", line.rotary_interleaved, "rotate neighbouring elements, not the halves of a head"),
    UINT("--rotary-seq-len-interpolation-factor", line.rotary_seq_len_interpolation_factor, "divide positions by N"),
    FLAG("--use-rope-scaling", line.use_rope_scaling, "scale rotary frequencies as Llama 3.1 does"),
    REAL("--rope-scaling-factor", line.rope_scaling_factor, "factor of --use-rope-scaling; default 8"),
    CHOICE("--normalization", line.normalization, "LayerNorm|RMSNorm", "default LayerNorm"),
    REAL("--norm-epsilon --layernorm-epsilon", line.norm_epsilon, "epsilon of norms; default 1e-5"),
    FLAG("--qk-layernorm", line.qk_layernorm, "normalize queries and keys"),
    FLAG("--swiglu", line.swiglu, "gated MLP with SiLU"),
    FLAG("--quick-geglu", line.quick_geglu, "gated MLP with the sigmoid approximation of GELU"),
    FLAG("--squared-relu", line.squared_relu, "squared ReLU"),
    FLAG("--openai-gelu", line.openai_gelu, "tanh approximation of GELU"),
    OFF("--no-bias-gelu-fusion", line.bias_gelu_fusion, "GELU by erf; the fused kernel of Megatron-LM, its default for an MLP with biases, computes the tanh approximation"),
    OFF("--disable-bias-linear", line.add_bias_linear, "no biases in attention and MLP"),
    FLAG("--add-qkv-bias", line.add_qkv_bias, "biases of query, key and value nevertheless"),
    FLAG("--untie-embeddings-and-output-weights", line.untie_embeddings_and_output_weights, "an output layer of its own; default: it is the embedding"),
    TEXT("--window-size", line.window_size, "L,R", "sliding window: L positions before the current one, R must be 0"),
    TEXT("--window-attn-skip-freq", line.window_attn_skip_freq, "FREQ", "every Nth layer attends to all positions; or a list with 1 for layers that have the window, such as ([1]*3+[0])*2"),
    REAL("--hidden-dropout", hidden_dropout, "default 0.1 with --num-layers, else 0"),
    REAL("--attention-dropout", attention_dropout, "default 0.1 with --num-layers, else 0"),
    REAL("--init-method-std", init_method_std, "standard deviation of the first weights; default 0.02"),
    REAL("--embedding-init-method-std", embedding_init_method_std, "the same of the embedding; default: as --init-method-std"),
    OFF("--no-initialization", perform_initialization, NULL),
};

static const struct arg expert_args[] = {
    UINT_OR_0("--num-experts", line.num_experts, "experts of a layer; default: none"),
    TEXT("--moe-layer-freq", line.moe_layer_freq, "FREQ", "which layers have experts: every Nth, or a list of 0 and 1 such as ([0]+[1]*23); default 1"),
    UINT("--moe-ffn-hidden-size", line.moe_ffn_hidden_size, "hidden size of an expert; default: --ffn-hidden-size"),
    UINT("--moe-router-topk", line.moe_router_topk, "experts of a token; default 2"),
    FLAG("--moe-router-pre-softmax", line.moe_router_pre_softmax, "softmax over all experts, before the choice"),
    CHOICE("--moe-router-score-function", line.moe_router_score_function, "softmax|sigmoid", "scores of experts; of sigmoid those of the chosen experts are divided by their sum; default softmax"),
    FLAG("--moe-router-enable-expert-bias", line.moe_router_enable_expert_bias, "experts are chosen by their score and a bias, which each step moves up where an expert has fewer tokens than the mean, and down where it has more; with sigmoid"),
    REAL("--moe-router-bias-update-rate", moe_router_bias_update_rate, "what a step moves the bias by; default 0.001"),
    REAL("--moe-router-topk-scaling-factor", line.moe_router_topk_scaling_factor, "the weights of experts are multiplied by it; default 1"),
    WORDS("--moe-router-load-balancing-type", moe_router_load_balancing_types, "NAME...", "experts are balanced within a micro-batch (aux_loss), each sequence (seq_aux_loss), all micro-batches of a step so far (global_aux_loss) or not at all (none); default aux_loss"),
    WORDS("--moe-aux-loss-coeff", moe_aux_loss_coeffs, "X...", "coefficient of the load balancing loss; default 0"),
    REAL("--moe-z-loss-coeff", moe_z_loss_coeff, "coefficient of the z-loss of the router; default: none"),
    FLAG("--moe-grouped-gemm", moe_grouped_gemm, "name experts as Transformer Engine's grouped ones in what is saved; default: as --load does"),
    CHOICE("--moe-router-dtype", moe_router_dtype, "fp32|fp64", "dtype of routing: float32, whatever is said; float64 in runs of --dtype f64"),
};

static const struct arg vocabulary_args[] = {
    UINT("--vocab-size", vocab_size, "true vocabulary size, without padding"),
    UINT("--make-vocab-size-divisible-by", line.make_vocab_size_divisible_by, "with --num-layers, the rows of the embedding are a multiple of N times --tp; default 128"),
    UINT("--padded-vocab-size", line.padded_vocab_size, "rows of the embedding; default: by the option above"),
    OFF("--no-pad-vocab-size --disable-pad-vocab-size", line.pad_vocab_size, "as many rows as --vocab-size"),
    REAL("--padding-rows-value", padding_rows_value, "value of the rows that --num-layers adds to the embedding of a folder; default 0"),
    TEXT("--tokenizer-type", tokenizer_type, "NAME", "NullTokenizer: its end-of-document id is --vocab-size - 1; no tokenizer is run"),
    UINT_OR_0("--null-tokenizer-eod-id", null_tokenizer_eod_id, "end-of-document id of NullTokenizer"),
    UINT_OR_0("--eod-id", eod_id, "end-of-document id; default: NullTokenizer's, else the end-of-text id of the folder"),
};

static const struct arg training_args[] = {
    UINT("--micro-batch-size", micro_batch_size, "samples of a forward pass"),
    UINT("--global-batch-size", global_batch_size, "samples of a step; default: --micro-batch-size times --dp"),
    TEXT("--step-batch-size-schedule", step_batch_size_schedule, "T:N,...", "global batch size N from T tokens on, such as 0:768,250B:1536"),
    WORDS("--rampup-batch-size", rampup_batch_size, "N N N", "ignored, as Megatron-LM does"),
    UINT("--train-iters", train_iters, "steps of the run"),
    UINT("--train-samples", train_samples, "samples of the run, in place of --train-iters"),
    UINT("--seq-length --encoder-seq-length", seq_length, "tokens of a sample"),
    UINT_OR_0("--exit-interval", exit_interval, "save and exit after a step that N divides"),
    REAL("--exit-duration-in-mins", exit_duration_in_mins, "save and exit after the step in which the run is X minutes old, such as 0.5"),
    UINT_OR_0("--eval-interval", eval_interval, "evaluate every N steps; default: never while training"),
    UINT_OR_0("--eval-iters", eval_iters, "steps of an evaluation; default 100, none without --data-path"),
    UINT_OR_0("--start-eval-at-iter", start_eval_at_iter, "no evaluation before step N"),
    UINT("--eval-global-batch-size", eval_global_batch_size, "default: as in training"),
    UINT("--eval-micro-batch-size", eval_micro_batch_size, "default: as in training"),
    FLAG("--calculate-per-token-loss", calculate_per_token_loss, "mean over all tokens of a step, not of the means of micro-batches"),
};

static const struct arg optimizer_args[] = {
    TEXT("--optimizer", optimizer, "NAME", "adam (AdamW) or sgd; default adam"),
    REAL("--lr", lr, "largest learning rate"),
    REAL("--min-lr", min_lr, "smallest learning rate; default 0"),
    CHOICE("--lr-decay-style", lr_decay_style, "constant|linear|cosine|inverse-square-root|WSD", "default linear"),
    UINT("--lr-decay-iters", lr_decay_iters, "steps until --min-lr is reached; default: --train-iters"),
    UINT("--lr-decay-samples", lr_decay_samples, "the same in samples; default: --train-samples"),
    UINT_OR_0("--lr-warmup-iters", lr_warmup_iters, "steps until --lr is reached; default 0"),
    UINT_OR_0("--lr-warmup-samples", lr_warmup_samples, "the same in samples"),
    REAL("--lr-warmup-fraction", lr_warmup_fraction, "the same as a fraction of the decay"),
    REAL("--lr-warmup-init", lr_warmup_init, "learning rate at the start of the warmup; default 0"),
    CHOICE("--lr-wsd-decay-style", lr_wsd_decay_style, "exponential|linear|cosine|minus_sqrt", "of the last part of WSD; default exponential"),
    UINT("--lr-wsd-decay-iters", lr_wsd_decay_iters, "steps of the last part of WSD"),
    UINT("--lr-wsd-decay-samples", lr_wsd_decay_samples, "the same in samples"),
    REAL("--weight-decay", weight_decay, "default 0.01"),
    REAL("--start-weight-decay", start_weight_decay, "weight decay at the start, with --weight-decay-incr-style"),
    REAL("--end-weight-decay", end_weight_decay, "weight decay at the end"),
    CHOICE("--weight-decay-incr-style", weight_decay_incr_style, "constant|linear|cosine", "default constant"),
    REAL("--adam-beta1", adam_beta1, "default 0.9"),
    REAL("--adam-beta2", adam_beta2, "default 0.999"),
    REAL("--adam-eps", adam_eps, "default 1e-8"),
    REAL("--sgd-momentum", sgd_momentum, "default 0.9"),
    REAL("--clip-grad", clip_grad, "largest global norm of the gradient; default 1, 0: any"),
    FLAG("--override-opt-param-scheduler", override_opt_param_scheduler, "the schedule of the line, not that of the checkpoint"),
    FLAG("--use-checkpoint-opt-param-scheduler", use_checkpoint_opt_param_scheduler, "the schedule of the checkpoint, not that of the line"),
};

static const struct arg precision_args[] = {
    FLAG("--bf16", bf16, "weights and activations in bfloat16, masters and gradients in float32"),
    FLAG("--fp16", fp16, "the same in float16, with a loss scale"),
    CHOICE("--dtype", dtype, "f32|f64|bf16|fp16", "dtype of weights and activations; default f32"),
    REAL("--loss-scale", loss_scale, "constant loss scale; default: dynamic with --fp16"),
    REAL("--initial-loss-scale", initial_loss_scale, "first dynamic loss scale; default 4294967296"),
    REAL("--min-loss-scale", min_loss_scale, "smallest one; default 1"),
    UINT("--loss-scale-window", loss_scale_window, "good steps until it doubles; default 1000"),
    UINT("--hysteresis", hysteresis, "overflows until it is halved; default 2"),
    FLAG("--accumulate-allreduce-grads-in-fp32", accumulate_allreduce_grads_in_fp32, "gradients of float16 weights in float32"),
    OFF("--no-check-for-nan-in-loss-and-grad", check_for_nan_in_loss_and_grad, "skip a step whose gradient is not finite; default: end with exit code 10"),
};

static const struct arg memory_args[] = {
    CHOICE("--recompute-granularity", recompute_granularity, "full|selective", "compute activations again in backward: those of whole layers, or of --recompute-modules"),
    CHOICE("--recompute-method", recompute_method, "uniform|block", "full: groups of --recompute-num-layers, or so many layers of each stage"),
    UINT("--recompute-num-layers", recompute_num_layers, "see --recompute-method"),
    WORDS("--recompute-modules", recompute_modules, "NAME...", "of selective: core_attn, layernorm, mlp, moe_act, moe; default core_attn"),
    FLAG("--recompute-activations", recompute_activations, "--recompute-granularity selective"),
    FLAG("--moe-layer-recompute", moe_layer_recompute, "module moe of --recompute-modules"),
};

static const struct arg data_args[] = {
    WORDS("--data-path", data_path, "[W] PREFIX...", "datasets (PREFIX.bin and .idx), each with its weight in front, or all without"),
    WORDS("--train-data-path", train_data_path, "[W] PREFIX...", "the same for training alone"),
    WORDS("--valid-data-path", valid_data_path, "[W] PREFIX...", "for validation"),
    WORDS("--test-data-path", test_data_path, "[W] PREFIX...", "for the test after the last step"),
    WORDS("--split", split_words, "A,B,C...", "parts of --data-path for training, validation and test; default 969,30,1"),
    TEXT("--data-cache-path", data_cache_path, "DIR", "where index files of datasets are kept"),
    FLAG("--mock-data", mock_data, "numbers by a formula, in place of a dataset"),
    UINT_OR_0("--seed", seed, "default 1234"),
    FLAG("--reset-position-ids", reset_position_ids, "positions begin anew behind an end of document"),
    FLAG("--reset-attention-mask", reset_attention_mask, "no attention across an end of document"),
    FLAG("--eod-mask-loss", eod_mask_loss, "no loss at an end of document"),
    OFF("--no-create-attention-mask-in-dataloader", create_attention_mask_in_dataloader, "causal attention over whole samples, even with --reset-attention-mask"),
    REAL("--mid-level-dataset-surplus", mid_level_dataset_surplus, "additional samples of each dataset of a blend; default 0.005"),
};

static const struct arg checkpoint_args[] = {
    TEXT("--load", load, "PATH", "checkpoint or model that training starts from, or goes on from"),
    TEXT("--save", save, "DIR", "where checkpoints are written; if it has one of this model, training goes on from it"),
    UINT("--save-interval --persistent-save-interval", save_interval, "save every N steps"),
    TEXT("--save-hf", save_hf, "DIR", "also write Hugging Face folders DIR/iter_N, with the optimizer unless --no-save-optim"),
    CHOICE("--ckpt-format", ckpt_format, "torch_dist|torch", "default torch_dist"),
    CHOICE("--transformer-impl", transformer_impl, "transformer_engine|local", "parameter naming of what is saved (TE spec or local spec); default: that of --load, else transformer_engine"),
    UINT_OR_0("--ckpt-step", ckpt_step, "iteration of --load; default: the newest"),
    FLAG("--finetune", finetune, "weights only, from step 0"),
    FLAG("--no-load-optim", no_load_optim, "do not load the optimizer"),
    FLAG("--no-load-rng", no_load_rng, "do not load the states of random number generators"),
    FLAG("--no-save-optim", no_save_optim, "do not save the optimizer"),
    FLAG("--no-save-rng", no_save_rng, "do not save the states of random number generators"),
    FLAG("--use-checkpoint-args", use_checkpoint_args, "the checkpoint describes the model, even with --num-layers"),
    FLAG("--async-save", async_save, "copy to memory and write while training goes on"),
    UINT("--keep-last", keep_last, "keep the newest N checkpoints of --save; default: all, --save-retain-interval has no effect"),
    FLAG("--overwrite", overwrite, "replace iterations of another run in --save"),
};

static const struct arg log_args[] = {
    UINT("--log-interval", log_interval, "a line every N steps; default 100"),
    FLAG("--log-params-norm", log_params_norm, "print the norm of the parameters"),
    FLAG("--log-throughput", log_throughput, "print TFLOP/s"),
    FLAG("--log-num-zeros-in-grad", log_num_zeros_in_grad, "print the number of zeros in the gradient"),
    TEXT("--log-jsonl", log_jsonl, "FILE", "append an object of each step"),
    TEXT("--tensorboard-dir", tensorboard_dir, "DIR", "write event files for TensorBoard"),
    UINT("--tensorboard-log-interval", tensorboard_log_interval, "every N steps; default 1"),
    FLAG("--progress", progress, "a live line on stderr"),
    FLAG("-q --quiet", quiet, "no notes on stderr"),
    FLAG("--json", json, "print the result as one JSON object on stdout, of errors too (fields: JSON.md); lines of training go to stderr"),
};

static const struct arg source_args_of_train[] = {
    TEXT("--model", family, "FAMILY", "model family (see ferry models); default: as the folder says"),
    TEXT("--model-map", model_map, "FILE", "a model map of your own, in addition to the built-in ones"),
    UINT("--true-vocab-size", true_vocab_size, "vocabulary size without padding, if the folder does not say it"),
    {"--allow-config", ARG_LIST, AT(allow_config), "FIELD", NULL, "train without the unknown fields of the folder's config whose name matches (a glob)"},
};

static const struct arg run_args_of_train[] = {
    UINT("--context-parallel-size --cp", layout.cp, "context parallel ranks"),
    UINT("--data-parallel-size --dp", layout.dp, "data parallel ranks; default: what a launcher's ranks leave, alone the fewest that --ep takes"),
    UINT("--microbatch-group-size-per-virtual-pipeline-stage", microbatch_group_size, "micro-batches that go through one chunk of a rank before the next chunk has its turn; default: as many as pipeline stages"),
    CHOICE("--pipeline-schedule", pipeline_schedule, "1f1b|one-by-one", "order of the parts of micro-batches: forward and backward in turn (interleaved, with several chunks on a rank), or each through all stages and back before the next, to compare with; default 1f1b"),
    FLAG("--sequence-parallel --sp", sequence_parallel, "split norms and residuals by tokens over the tensor parallel ranks"),
    FLAG("--use-distributed-optimizer", use_distributed_optimizer, "shard masters and moments over the data parallel ranks (ZeRO-1), and write the optimizer as Megatron-LM's distributed one"),
    UINT("--num-distributed-optimizer-instances", num_distributed_optimizer_instances, "accepted; states are sharded over all data parallel ranks, with the same numbers; default 1"),
    UINT("--ddp-bucket-size", ddp_bucket_size, "parameters whose gradients data parallel ranks sum at once; default 40M, or 1M times the ranks if that is more"),
    WORDS("--cp-comm-type", cp_comm_type, "NAME...", "p2p or all_gather: how context parallel ranks exchange keys and values; default p2p"),
    CHOICE("--device", device, "cpu|cuda", "default: cuda if there is a GPU"),
    CHOICE("--distributed-backend", distributed_backend, "nccl|gloo", "gloo: --device cpu, unless that is given, and checkpoints for Megatron-LM on CPUs; default nccl"),
    UINT("--threads", threads, "CPU threads of all ranks on this host together, up to 1024; default: number of CPUs"),
    FLAG("--dry-run", dry_run, "print model, steps, what is read and written, the memory of each rank, what it sends to others and the schedule of pipeline stages, and stop; of several ranks that do not fit this machine it is said, and is no failure"),
    {"--memory-per-rank", ARG_FLOAT, AT(memory_per_rank), "GB", NULL, "with --dry-run: exit code 6 if a rank takes more, whatever is free here"},
    TEXT("--timeline", timeline, "FILE", "with --dry-run: draw what pipeline stages compute and when, as an SVG file; must not exist"),
};

#define GROUP(title, args) {title, args, COUNT(args), 0}
const struct arg_group train_groups[NUM_TRAIN_GROUPS] = {
    GROUP("Recipe", recipe_args),
    GROUP("Model", model_args),
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
    {"Others of Megatron-LM", train_other_args, NUM_TRAIN_OTHER_ARGS, 0},
};
// clang-format on

/* What pretrain_gpt.py assumes of a model. */
static const struct model_line default_line = {.position_embedding_type = "learned_absolute",
                                               .add_position_embedding = true,
                                               .rotary_base = 10000,
                                               .rotary_percent = 1,
                                               .rope_scaling_factor = 8,
                                               .make_vocab_size_divisible_by = 128,
                                               .pad_vocab_size = true,
                                               .normalization = "LayerNorm",
                                               .norm_epsilon = 1e-5,
                                               .bias_gelu_fusion = true,
                                               .add_bias_linear = true,
                                               .num_query_groups = 1,
                                               .moe_router_topk = 2,
                                               .moe_router_score_function = "softmax"};

static const struct train_options default_options = {
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

void train_options_defaults(void *options)
{
    struct train_options *o = options;
    *o = default_options;
    o->line = default_line;
    arena_init(&o->arena);
}

/* Whether the option was given: its field is not the default one. A text that is given lies
 * elsewhere, even if it is the same; a number that is the default cannot be told from it. */
static bool is_given(const struct arg *a, const struct train_options *o)
{
    struct train_options defaults = default_options;
    defaults.line = default_line;
    const void *field = (const char *)o + a->offset, *other = (const char *)&defaults + a->offset;
    switch (a->kind) {
    case ARG_FLAG:
    case ARG_FLAG_OFF:
        return *(const bool *)field != *(const bool *)other;
    case ARG_UINT:
    case ARG_UINT_OR_0:
        return *(const uint64_t *)field != *(const uint64_t *)other;
    case ARG_FLOAT:
        return *(const double *)field < *(const double *)other ||
               *(const double *)field > *(const double *)other;
    default:
        return *(const char *const *)field != *(const char *const *)other;
    }
}

/* NullTokenizer takes its end of document from --vocab-size, whatever describes the model. */
static bool describes_model(const struct arg *a, const struct train_options *o)
{
    if (a->offset == AT(vocab_size)) return !text_equal(o->tokenizer_type, "NullTokenizer");
    return a->offset >= AT(line) && a->offset < AT(line) + sizeof o->line;
}

void train_add_model_options(struct strbuf *out, const struct train_options *o)
{
    for (size_t g = 0; g < NUM_TRAIN_GROUPS; g++)
        for (size_t i = 0; i < train_groups[g].num_args; i++) {
            const struct arg *a = &train_groups[g].args[i];
            if (train_groups[g].offset == 0 && describes_model(a, o) && is_given(a, o))
                strbuf_printf(out, "%s%.*s", out->length ? ", " : "", (int)strcspn(a->names, " "),
                              a->names);
        }
}

void train_options_release(struct train_options *o)
{
    arena_release(&o->arena);
}
