/* train_options.h - options of a training run, as plain data.
 *
 * Members are named after Megatron-LM's args. The command line
 * (train/cli/train_options.h) fills the struct; the trainer reads it. Lengths
 * are in tokens, batch sizes in samples, times in the unit of the name. Unless
 * a member says otherwise, a count of 0, a NaN and a NULL text are not given;
 * members with a default of Megatron's have it. Texts are borrowed from the
 * command line, or lie in `arena`. */
#ifndef FERRY_TRAIN_TRAINER_TRAIN_OPTIONS_H
#define FERRY_TRAIN_TRAINER_TRAIN_OPTIONS_H

#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "common/arena.h"
#include "common/args.h"

/* Names of --recompute-modules, and their bits in train/backward/recompute.h. */
#define TRAIN_RECOMPUTE_MODULES(X)                                                                 \
    X("core_attn", RECOMPUTE_CORE_ATTENTION)                                                       \
    X("layernorm", RECOMPUTE_NORMS)                                                                \
    X("mlp", RECOMPUTE_MLP)                                                                        \
    X("moe_act", RECOMPUTE_ACTIVATIONS)                                                            \
    X("moe", RECOMPUTE_MLP)

/* The global batch size from this sample on. */
struct batch_size_step {
    uint64_t from_sample, global_batch_size;
};

struct train_options {
    struct arena arena;

    /* ---- model ---- */
    struct scalar line[64]; /* as given: options with a group in convert/models/options.json */
    uint64_t make_vocab_size_divisible_by, padded_vocab_size; /* 128; 0: by the other */
    bool pad_vocab_size;                                      /* true */
    bool has_model;            /* the line describes the model: `model`. Else the folder does */
    struct model_config model; /* vocab_size, padded_vocab_size 0: the line does not say them */
    const char *hf_config;     /* folder or file with the config of a model to train from scratch */
    double hidden_dropout, attention_dropout; /* 0.1 with has_model, else 0, unless given */
    bool is_hidden_dropout_given, is_attention_dropout_given;
    double init_method_std, embedding_init_method_std; /* 0.02; NaN: as the other */
    bool perform_initialization;                       /* true */
    double padding_rows_value; /* of the rows that has_model adds to the folder's embedding; 0 */
    uint64_t vocab_size;       /* true size, without padding */
    const char *tokenizer_type;

    /* ---- training ---- */
    uint64_t micro_batch_size, global_batch_size; /* not given: micro_batch_size * dp */
    bool is_global_batch_size_given;
    const char *step_batch_size_schedule;
    const struct batch_size_step *batch_size_steps; /* the schedule: [num_batch_size_steps],
                                                       ascending, the first from sample 0 */
    size_t num_batch_size_steps;                    /* 0: always global_batch_size */
    struct arg_list rampup_batch_size;              /* ignored, as Megatron does */
    uint64_t train_iters, train_samples;            /* one of them */
    uint64_t exit_interval;                         /* 0: never */
    double exit_duration_in_mins;                   /* since the run was started; 0: never */
    uint64_t eval_iters;                            /* of one evaluation, 100. 0: none */
    bool is_eval_iters_given; /* without data only then there is an evaluation */
    uint64_t eval_interval;   /* 0: none while training */
    uint64_t start_eval_at_iter;
    uint64_t eval_global_batch_size, eval_micro_batch_size; /* not given: as in training */
    uint64_t seq_length;
    bool calculate_per_token_loss;

    /* ---- optimizer ---- */
    const char *optimizer;      /* adam, sgd */
    double lr, min_lr;          /* min_lr 0 */
    const char *lr_decay_style; /* constant, linear, cosine, inverse-square-root, WSD */
    uint64_t lr_decay_iters, lr_decay_samples;   /* not given: train_iters, train_samples */
    uint64_t lr_warmup_iters, lr_warmup_samples; /* 0 */
    double lr_warmup_fraction, lr_warmup_init;   /* NaN; 0 */
    const char *lr_wsd_decay_style;              /* exponential, linear, cosine, minus_sqrt */
    uint64_t lr_wsd_decay_iters, lr_wsd_decay_samples;
    double weight_decay;                         /* 0.01 */
    double start_weight_decay, end_weight_decay; /* never NaN: weight_decay if it is constant */
    const char *weight_decay_incr_style;         /* constant, linear, cosine */
    double adam_beta1, adam_beta2, adam_eps;     /* 0.9, 0.999, 1e-8 */
    double sgd_momentum;                         /* 0.9 */
    double clip_grad;                            /* 1.0; 0: no clipping */
    bool override_opt_param_scheduler, use_checkpoint_opt_param_scheduler;

    /* ---- precision ---- */
    bool bf16, fp16;
    const char *dtype; /* f32, f64, bf16, fp16: never NULL, it follows --bf16 and --fp16 */
    double loss_scale; /* NaN: dynamic in fp16, none else */
    double initial_loss_scale, min_loss_scale; /* 2^32, 1 */
    uint64_t loss_scale_window, hysteresis;    /* 1000 steps, 2 */
    bool accumulate_allreduce_grads_in_fp32;   /* with bf16 always */
    bool check_for_nan_in_loss_and_grad;       /* false for fp16 with a dynamic scale */

    /* ---- recompute ---- */
    const char *recompute_granularity, *recompute_method; /* full, selective; uniform, block */
    uint64_t recompute_num_layers;
    struct arg_list recompute_modules;               /* none given: core_attn, if selective */
    bool recompute_activations, moe_layer_recompute; /* older names: selective; its module moe */

    /* ---- data ---- */
    struct arg_list data_path, train_data_path, valid_data_path, test_data_path;
    bool mock_data;
    const char *split; /* "969, 30, 1" with data_path, unless given */
    const char *data_cache_path;
    uint64_t seed; /* 1234 */
    bool is_seed_given;
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    bool create_attention_mask_in_dataloader; /* true; false: reset_attention_mask has no effect */
    uint64_t eod_id;                          /* UINT64_MAX: the trainer finds one */
    uint64_t null_tokenizer_eod_id;           /* UINT64_MAX: vocab_size - 1, of NullTokenizer */
    double mid_level_dataset_surplus;         /* 0.005 */

    /* ---- checkpoints ---- */
    const char *load, *save, *save_hf;
    uint64_t save_interval;
    const char *ckpt_format; /* torch_dist, torch */
    /* Names of saved parameters: transformer_engine, local; NULL: as in the
     * checkpoint that the run began with, else transformer_engine. */
    const char *transformer_impl;
    bool moe_grouped_gemm; /* experts are named so, with transformer_engine */
    uint64_t ckpt_step;    /* UINT64_MAX: the newest */
    bool exit_on_missing_checkpoint;
    bool finetune, no_load_optim, no_load_rng, no_save_optim, no_save_rng, async_save;
    bool use_checkpoint_args; /* the checkpoint describes the model, not the line */
    uint64_t keep_last;       /* 0: all */
    bool overwrite;

    /* ---- logging ---- */
    uint64_t log_interval; /* 100 */
    bool log_params_norm, log_throughput, log_num_zeros_in_grad;
    const char *log_jsonl, *tensorboard_dir;
    const char *progress;              /* NULL: of loading alone; train_request has the style */
    uint64_t tensorboard_log_interval; /* 1 */

    /* ---- parallel ---- */
    struct layout_options layout;   /* 0: 1 */
    uint64_t microbatch_group_size; /* of an interleaved schedule; 0: as many as pipeline stages */
    const char *pipeline_schedule;  /* 1f1b, one-by-one; NULL: 1f1b */
    bool sequence_parallel, use_distributed_optimizer;
    struct arg_list cp_comm_type;
    uint64_t num_distributed_optimizer_instances, ddp_bucket_size;

    /* ---- experts ---- */
    const char *moe_router_load_balancing_type;  /* aux_loss, seq_aux_loss, global_aux_loss, none */
    double moe_aux_loss_coeff, moe_z_loss_coeff; /* 0; NaN: none */
    double moe_router_bias_update_rate;
    const char *moe_router_dtype; /* fp32, fp64; NULL: that of the activations */

    /* ---- this process ---- */
    const char *device; /* cpu, cuda; NULL: by distributed_backend, and what is there */
    const char *distributed_backend; /* gloo: the CPU, if device is not given; nccl */
    uint64_t threads;
    double memory_per_rank;         /* of a dry run, in GB; NaN: what is free here */
    const char *timeline;           /* of a dry run: an SVG drawing of its schedule */
    bool dry_run, quiet, json;      /* json: lines of training go to stderr */
    const char *model_map, *family; /* how folders are opened: convert/source_kind.h */
    uint64_t true_vocab_size;
    struct arg_list allow_config;
    bool allow_shifted;
    struct arg_list allow_mismatch;
    struct arg_config config; /* the recipe; it is part of the line already */

    /* ---- for train_options_finish(): options with several values; without
     * effect, refused, limited to some values (train_names.h) ---- */
    struct arg_list split_words, moe_router_load_balancing_types, moe_aux_loss_coeffs;
    struct arg_list no_effect, refused, limited;
};

#endif
