/* train_names.c - names of Megatron-LM's parser
 * (megatron/training/arguments.py, with the fields of its config classes)
 * without a field in struct train_options. */
#include "train/cli/train_names.h"

#include <stdlib.h>
#include <string.h>

#include "common/count.h"

// clang-format off
/* Names, name of the value, reason. The last rows are names of older versions
 * and other tools. */
#define REFUSED(X) \
    X("--multi-latent-attention", NULL, "multi-latent attention is not implemented") \
    X("--experimental-attention-variant --linear-attention-freq", "VALUE", "linear and sparse attention are not implemented") \
    X("--attention-output-gate", NULL, "a gate behind attention is not implemented") \
    X("--fp8-format --fp4-format --te-precision-config-file --kitchen-config-file --kitchen-recipe-number", "VALUE", "FP8 and FP4 are not implemented; --bf16 is the nearest") \
    X("--fp8-param-gather --fp4-param-gather", NULL, "FP8 and FP4 are not implemented; --bf16 is the nearest") \
    X("--mtp-standalone", NULL, "multi-token prediction is not implemented") \
    X("--hybrid-layer-pattern --hybrid-override-pattern --mtp-hybrid-override-pattern", "VALUE", "hybrid models (Mamba) are not implemented") \
    X("--is-hybrid-model", NULL, "hybrid models (Mamba) are not implemented") \
    X("--heterogeneous-layers-config-path --heterogeneous-layers-config-encoded-json", "VALUE", "layers of different sizes are not implemented") \
    X("--spec", "VALUE...", "layer specifications are Python code of Megatron-LM") \
    X("--vision-pretraining", NULL, "vision models are not implemented") \
    X("--mrope-section", "VALUE...", "vision models are not implemented") \
    X("--ict-load --bert-load --titles-data-path --evidence-data-path --block-data-path", "VALUE", "retrieval and BERT models are not implemented") \
    X("--apply-layernorm-1p", NULL, "norms with weights around 0 are not implemented") \
    X("--qk-l2-norm", NULL, "L2 normalization of queries and keys is not implemented; --qk-layernorm is") \
    X("--qk-clip", NULL, "QK-clip is not implemented") \
    X("--apply-residual-connection-post-layernorm --enable-mhc-connections", NULL, "other residual connections are not implemented") \
    X("--fp32-residual-connection", NULL, "the residual stream has the dtype of the activations") \
    X("--use-mup", NULL, "muP is not implemented") \
    X("--activation-func-clamp-value", "VALUE", "a clamped activation is not implemented") \
    X("--no-rope-freq", "VALUE", "layers without rotary positions are not implemented") \
    X("--decoder-seq-length --decoder-num-layers", "VALUE", "encoder-decoder models are not implemented") \
    X("--init-method-xavier-uniform", NULL, "initial weights follow a normal distribution (--init-method-std)") \
    X("--init-model-with-meta-device --data-parallel-random-init", NULL, "all ranks start with the same weights") \
    X("--moe-shared-expert-intermediate-size", "VALUE", "shared experts are not implemented") \
    X("--moe-shared-expert-gate", NULL, "shared experts are not implemented") \
    X("--moe-router-force-load-balancing --moe-enable-routing-replay", NULL, "this kind of routing is not implemented") \
    X("--moe-router-num-groups --moe-router-group-topk --moe-router-force-biased --moe-input-jitter-eps", "VALUE", "this kind of routing is not implemented") \
    X("--moe-expert-capacity-factor --moe-expert-rank-capacity-factor", "VALUE", "experts take all tokens routed to them; none is dropped") \
    X("--moe-apply-probs-on-input", NULL, "routing weights scale the outputs of experts") \
    X("--moe-latent-size", "VALUE", "experts in a latent space are not implemented") \
    X("--moe-use-upcycling", NULL, "upcycling a dense model to experts is not implemented") \
    X("--decoupled-lr --decoupled-min-lr", "VALUE", "all parameters share one learning rate") \
    X("--apply-wd-to-qk-layernorm", NULL, "norms have no weight decay") \
    X("--no-weight-decay-cond-type", "VALUE", "norms have no weight decay") \
    X("--freeze-all-layers", NULL, "all parameters are trained") \
    X("--use-precision-aware-optimizer", NULL, "masters, moments and gradients of the optimizer are in float32") \
    X("--grad-reduce-in-bf16", NULL, "gradients of bfloat16 weights are summed in float32") \
    X("--fp16-lm-cross-entropy", NULL, "the loss is computed in float32") \
    X("--output-logit-dtype", "VALUE", "logits have the dtype of the activations") \
    X("--fim-data", NULL, "fill-in-the-middle is not implemented") \
    X("--sft", NULL, "`ferry data` writes datasets with loss masks for --data-path") \
    X("--perform-rl-step --rl-use-sequence-packing", NULL, "reinforcement learning is not implemented") \
    X("--logits-load-dir --logits-save-dir", "VALUE", "distillation is not implemented") \
    X("--data-args-path --per-split-data-args-path", "VALUE", "give the contents of that file to --data-path") \
    X("--phase-transition-iterations --iterations-to-skip", "VALUE...", "samples follow the order of one dataset, without gaps") \
    X("--full-validation --multiple-validation-sets", NULL, "an evaluation runs --eval-iters steps on one dataset") \
    X("--validation-set-names", "VALUE...", "an evaluation runs --eval-iters steps on one dataset") \
    X("--skip-train", NULL, "`ferry train` always trains; `ferry perplexity` evaluates") \
    X("--dataloader-inter-document-masking", NULL, "--reset-attention-mask and --reset-position-ids keep documents apart") \
    X("--pretrained-checkpoint", "VALUE", "--load PATH --finetune starts from its weights") \
    X("--load-main-params-from-ckpt", NULL, "masters are loaded with the optimizer") \
    X("--non-persistent-save-interval --non-persistent-ckpt-type", "VALUE", "all checkpoints are of one kind; see --save-interval and --keep-last") \
    X("--override-ckpt-iteration", "VALUE", "--ckpt-step selects an iteration, --finetune starts at 0") \
    X("--ckpt-convert-format --ckpt-convert-save", "VALUE", "`ferry convert` converts checkpoints") \
    X("--use-megatron-fsdp --use-torch-fsdp2", NULL, "fully sharded data parallelism is not implemented") \
    X("--hybrid-context-parallel", NULL, "context parallel ranks share all samples") \
    X("--hierarchical-context-parallel-sizes", "VALUE...", "context parallelism has one level") \
    X("--tensor-parallel-num-weight-shards --expert-tensor-parallel-num-weight-shards", "VALUE", "weights are sharded by tensor parallelism alone") \
    X("--decrease-batch-size-if-needed", NULL, "--global-batch-size must be a multiple of --micro-batch-size times --dp") \
    X("--yaml-cfg", "VALUE", "--config reads a YAML file of options") \
    X("--batch-size", "VALUE", "use --micro-batch-size") \
    X("--warmup", "VALUE", "use --lr-warmup-fraction") \
    X("--model-parallel-size", "VALUE", "use --tensor-model-parallel-size") \
    X("--checkpoint-activations", NULL, "use --recompute-activations") \
    X("--load-dir --source --src --input --input-dir", "VALUE", "use --load") \
    X("--save-dir --dest --output --output-dir", "VALUE", "use --save") \
    X("--hf-save-dir", "VALUE", "use --save-hf") \
    X("--epochs --num-epochs --num-train-epochs", "VALUE", "use --train-iters or --train-samples: epochs times the samples of the data") \
    X("--max-steps", "VALUE", "use --train-iters") \
    X("--per-device-train-batch-size", "VALUE", "use --micro-batch-size") \
    X("--gradient-accumulation-steps", "VALUE", "use --global-batch-size: micro-batch size x data parallel ranks x accumulation steps") \
    X("--per-device-eval-batch-size", "VALUE", "use --eval-global-batch-size") \
    X("--learning-rate", "VALUE", "use --lr") \
    X("--lr-scheduler-type", "VALUE", "use --lr-decay-style") \
    X("--warmup-steps", "VALUE", "use --lr-warmup-iters") \
    X("--warmup-ratio", "VALUE", "use --lr-warmup-fraction") \
    X("--adam-epsilon", "VALUE", "use --adam-eps") \
    X("--max-grad-norm", "VALUE", "use --clip-grad") \
    X("--logging-steps", "VALUE", "use --log-interval") \
    X("--logging-dir", "VALUE", "use --tensorboard-dir") \
    X("--eval-steps", "VALUE", "use --eval-interval") \
    X("--save-steps", "VALUE", "use --save-interval") \
    X("--save-total-limit", "VALUE", "use --keep-last") \
    X("--model-name-or-path --resume-from-checkpoint", "VALUE", "use --load") \
    X("--max-seq-length --block-size", "VALUE", "use --seq-length") \
    X("--gradient-checkpointing", NULL, "use --recompute-granularity") \
    X("--lora-dim --lora-rank --lora-r --lora-alpha --lora-dropout --peft-scheme", "VALUE", "adapters (LoRA) are not implemented: all parameters are trained") \
    X("--lora-target-modules", "VALUE...", "adapters (LoRA) are not implemented: all parameters are trained")

/* Names, name of the value, supported value, reason. */
#define LIMITED(X) \
    X("--mtp-num-layers", "N", "0", "multi-token prediction is not implemented") \
    X("--softmax-type", "NAME", "vanilla", "only the plain softmax is implemented") \
    X("--glu-linear-offset", "X", "0", "an offset in gated units is not implemented") \
    X("--rope-type", "NAME", "rope", "YaRN is not implemented for a model that the options describe") \
    X("--main-grads-dtype", "DTYPE", "fp32", "gradients of the optimizer are in float32") \
    X("--main-params-dtype", "DTYPE", "fp32", "masters are in float32") \
    X("--exp-avg-dtype", "DTYPE", "fp32", "moments are in float32") \
    X("--exp-avg-sq-dtype", "DTYPE", "fp32", "moments are in float32") \
    X("--dataloader-type", "NAME", "single", "samples are read in one pass (single)") \
    X("--null-tokenizer-pad-id", "N", "-1", "no token is padding") \
    X("--vocab-extra-ids", "N", "0", "--vocab-size counts all ids") \
    X("--moe-dispatch-fwd-dtype --moe-combine-bwd-dtype", "DTYPE", "bf16", "tokens move between experts in the dtype of the activations") \
    X("--sample-rate --head-lr-mult", "X", "1", "only 1 is supported")

#define AT(field) offsetof(struct train_options, field)
#define NO_EFFECT(value, names) {names, ARG_NAMED, AT(no_effect), value, NULL, NULL}
const struct arg train_other_args[] = {
#define X(names, value, reason) {names, ARG_NAMED, AT(refused), value, NULL, NULL},
    REFUSED(X)
#undef X
#define X(names, value, can_be, reason) {names, ARG_NOTED, AT(limited), value, NULL, NULL},
    LIMITED(X)
#undef X
    NO_EFFECT(NULL,
        "--adlr-autoresume --allow-ambiguous-pad-tokens --apply-query-key-layer-scaling "
        "--async-ckpt-use-cpu-shm --attention-softmax-in-fp32 --auto-detect-ckpt-format "
        "--batch-invariant-mode --bert-no-binary-head --biencoder-shared-query-context-model "
        "--cache-mla-latents --calc-ft-timeouts --check-for-large-grads "
        "--check-for-nan-in-loss-and-grad --check-for-spiky-loss --ckpt-assume-constant-structure "
        "--ckpt-convert-update-legacy-dist-opt-format --ckpt-drop-redundant-extra-state "
        "--ckpt-fully-parallel-load --ckpt-fully-parallel-load-per-rank-objects "
        "--ckpt-fully-parallel-save --ckpt-pg-tensors-cache-create "
        "--cpu-offloading-retain-pinned-cpu-buffers --create-all-gather-group "
        "--cross-entropy-loss-fusion --dataloader-defer-npy-index-mmap "
        "--dataloader-fast-cache-load --ddp-average-in-collective "
        "--ddp-pad-buckets-for-high-nccl-busbw --ddp-reduce-scatter-with-fp32-accumulation "
        "--decode-only-cuda-graphs --defer-embedding-wgrad-compute --delay-grad-reduce "
        "--delay-offload-until-cuda-graph --delay-param-gather --delay-wgrad-compute "
        "--deterministic-mode --dino-norm-last-layer --disable-align-grad-reduce "
        "--disable-bf16-reduced-precision-matmul --disable-ckpt-load-validate-sharding-integrity "
        "--disable-clone-scatter-output-in-embedding --disable-dsa-indexer-rotate-activation "
        "--disable-dsa-indexer-scoring-relu --disable-flight-recorder-dump-on-timeout "
        "--disable-flight-recorder-extra-dump-on-exec "
        "--disable-flight-recorder-include-only-active --disable-fp8-wgrad "
        "--disable-gloo-process-groups --disable-jit-fuser "
        "--disable-log-loss-scale-to-tensorboard --disable-mamba-mem-eff-path "
        "--disable-manual-gc-eval --disable-msc --disable-save-tokenizer-assets "
        "--disable-straggler-on-startup --disable-strict-fsdp-dtensor-load "
        "--disable-symmetric-registration "
        "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces --disable-tp-comm-bulk-dgrad "
        "--disable-tp-comm-bulk-wgrad --disable-tp-comm-overlap-ag --disable-tp-comm-overlap-rs "
        "--disable-tp-comm-split-ag --disable-tp-comm-split-rs "
        "--disable-use-tokenizer-model-from-checkpoint-args --dist-ckpt-optim-fully-reshardable "
        "--dist-ckpt-save-pre-mcore-014 --distrib-optim-fully-reshardable-mem-efficient "
        "--distribute-saved-activations --dsa-indexer-k-norm-fp32 --dsa-indexer-rope-interleaved "
        "--dsa-indexer-use-sparse-loss --enable-chunked-prefill --enable-cuda-graph "
        "--enable-experimental --enable-ft-package --enable-full-sharding-in-hsdp --enable-msc "
        "--enable-one-logger --ep-overlap-early-attn-memory-release "
        "--exit-signal-handler --exit-signal-handler-for-dataloader "
        "--exit-signal-handler-for-training --external-cuda-graph --fake-process-group "
        "--fine-grained-activation-offloading --first-last-layers-bf16 --flash-decode "
        "--flight-recorder-include-stack-trace --fp8-output-proj "
        "--fsdp-db-use-persist-buf-on-alloc-fail --fsdp-double-buffer --fsdp-manual-registration "
        "--fused-residual-rmsnorm --gdp-cutedsl-kernel --grpo-filter-groups-with-same-reward "
        "--gtp-expert-remat-nccl-ub --gtp-remat-nccl-ub "
        "--gtp-remat-reduce-scatter-with-fp32-accumulation --high-priority-a2a-comm-stream "
        "--inference-cuda-graph-all-prefills --inference-disable-ep-consensus "
        "--inference-disable-triton-nvls-kernels --inference-dynamic-batching "
        "--inference-dynamic-batching-prefix-caching "
        "--inference-dynamic-batching-track-generated-token-events "
        "--inference-dynamic-batching-track-paused-request-events "
        "--inference-fuse-tp-communication --inference-moe-disable-fused-quant-kernels "
        "--inference-rng-tracker --inference-text-gen-server-logging "
        "--inference-use-synchronous-zmq-collectives --inference-wandb-logging "
        "--inprocess-empty-cuda-cache"),
    NO_EFFECT(NULL,
        "--inprocess-restart --keep-fp8-transpose-cache --lazy-mpu-init "
        "--log-batch-size-to-tensorboard --log-device-memory-used --log-energy "
        "--log-learning-rate-to-tensorboard --log-max-attention-logit --log-memory-to-tensorboard "
        "--log-progress --log-straggler --log-timers-to-tensorboard "
        "--log-validation-ppl-to-tensorboard --log-world-size-to-tensorboard "
        "--logits-load-ignore-errors --manual-gc --megatron-fsdp-enable-fine-grained-param-gather "
        "--megatron-fsdp-max-pool-double-buffer --mla-down-proj-fusion --moe-enable-deepep "
        "--moe-extended-tp --moe-hybridep-pad-uneven-dispatch-inputs "
        "--moe-ncclep-zero-copy --moe-pad-expert-input-to-capacity "
        "--moe-pad-experts-for-cuda-graph-inference --moe-paged-stash --moe-per-layer-logging "
        "--moe-permute-fusion --moe-permute-fusion-into-hybridep --moe-router-fusion "
        "--moe-router-padding-for-fp8 --moe-router-padding-for-quantization "
        "--moe-routing-trace-capture-hidden-states --moe-routing-trace-capture-logits "
        "--moe-routing-trace-dump-weights --moe-shared-expert-overlap --moe-single-grouped-bias "
        "--moe-single-grouped-weight --moe-use-grouped-tensor --mtp-detach-heads --mtp-hsm "
        "--mtp-use-repeated-layer --muon-nesterov --muon-no-split-qkv --muon-use-syrk "
        "--nccl-all-reduce-for-prefill --no-align-grad-reduce --no-align-param-gather "
        "--no-async-tensor-model-parallel-allreduce --no-barrier-with-level-1-timing "
        "--no-bias-dropout-fusion --no-bias-swiglu-fusion --no-ckpt-fully-parallel-save "
        "--no-ckpt-load-validate-sharding-integrity --no-clone-scatter-output-in-embedding "
        "--no-contiguous-buffers-in-local-ddp --no-data-sharding --no-delay-grad-reduce "
        "--no-dsa-indexer-rotate-activation --no-dsa-indexer-scoring-relu "
        "--no-flight-recorder-dump-on-timeout --no-flight-recorder-extra-dump-on-exec "
        "--no-flight-recorder-include-only-active --no-fp8-wgrad "
        "--no-gradient-accumulation-fusion --no-gradient-reduce-div-fusion "
        "--no-inference-disable-ep-consensus --no-inference-dynamic-batching-prefix-caching "
        "--no-inference-text-gen-server-logging --no-inference-use-synchronous-zmq-collectives "
        "--no-inference-wandb-logging --no-log-loss-scale-to-tensorboard --no-manual-gc-eval "
        "--no-masked-softmax-fusion --no-mmap-bin-files --no-one-logger "
        "--no-overlap-p2p-communication --no-persist-layer-norm --no-pin-cpu-grads "
        "--no-pin-cpu-params --no-query-key-layer-scaling "
        "--no-rl-inference-logprobs-is-correction "
        "--no-rl-offload-inference-model-weights-when-idle --no-rl-partial-rollouts "
        "--no-rl-persist-cuda-graphs --no-rl-skip-bos-token --no-rl-training-cuda-graphs "
        "--no-rl-use-sequence-packing --no-rl-verify-model-weights-swap --no-rope-fusion "
        "--no-save-tokenizer-assets --no-scatter-gather-tensors-in-pipeline "
        "--no-strict-fsdp-dtensor-load --no-tokenizer-sentencepiece-ignore-extra-whitespaces "
        "--no-tp-comm-bulk-dgrad --no-tp-comm-bulk-wgrad --no-tp-comm-overlap-ag "
        "--no-tp-comm-overlap-rs --no-tp-comm-split-ag --no-tp-comm-split-rs "
        "--no-use-layer-wise-param-layout --no-use-tokenizer-model-from-checkpoint-args "
        "--no-yarn-correction-range-round-to-int --nvtx-ranges --one-logger-async "
        "--optimizer-cpu-offload --optimizer-cuda-graph --otel-enabled --output-bert-embeddings "
        "--overlap-cpu-optimizer-d2h-h2d --overlap-dispatch-backward-with-experts-wgrad "
        "--overlap-grad-reduce --overlap-moe-expert-parallel-comm "
        "--overlap-p2p-communication-warmup-flush --overlap-param-gather "
        "--overlap-param-gather-with-optimizer-step --profile "
        "--pytorch-profiler-collect-callstack --pytorch-profiler-collect-chakra "
        "--pytorch-profiler-collect-shapes --record-memory-history --record-shapes --replication "
        "--retriever-score-scaling --reuse-grad-buf-for-mxfp8-param-ag"),
    NO_EFFECT(NULL,
        "--rl-durable-rollout-bank --rl-inference-logprobs-is-correction "
        "--rl-offload-inference-model-weights-when-idle --rl-offload-optimizer-during-inference "
        "--rl-partial-rollouts --rl-persist-cuda-graphs --rl-profile --rl-skip-bos-token "
        "--rl-training-cuda-graphs --rl-verify-model-weights-swap --run-workload-inspector-server "
        "--standalone-embedding-stage --te-rng-tracker --test-mode "
        "--tokenizer-hf-no-include-special-tokens --tokenizer-hf-no-use-fast "
        "--tokenizer-sentencepiece-legacy --torch-fsdp2-no-reshard-after-forward "
        "--disable-stream-ckpt-dequant --no-stream-ckpt-dequant --muon-use-nesterov "
        "--tp-comm-overlap --tp-comm-overlap-rs-dgrad --trust-remote-code "
        "--use-cpu-initialization --use-dist-ckpt --use-flash-attn "
        "--use-fused-weighted-squared-relu --use-gigatoken --use-grouped-gemm-for-dense-mlp "
        "--use-grouped-gemm-for-shared-expert --use-kitchen-attention --use-legacy-models "
        "--use-legacy-static-engine --use-mcore-models --use-mp-args-from-checkpoint-args "
        "--use-nccl-ub --use-one-sent-docs --use-persistent-ckpt-worker --use-pytorch-profiler "
        "--use-ring-exchange-p2p --use-same-sampling-seed-across-dp-ranks --use-sharp "
        "--use-te-activation-func --use-torch-optimizer-for-cpu-offload --use-tp-pp-dp-mapping "
        "--use-transformer-engine-op-fuser --verify-integrity "
        "--yarn-correction-range-round-to-int"),
    NO_EFFECT("VALUE",
        "--activation-offload-fraction --adlr-autoresume-interval --app-tag-run-name "
        "--app-tag-run-version --async-ckpt-cpu-priority --async-ckpt-io-priority "
        "--async-strategy --attention-backend --batch-invariant-backend --bert-embedder-type "
        "--biencoder-projection-dim --chat-template "
        "--check-weight-hash-across-dp-replicas-interval --ckpt-fully-parallel-load-exchange-algo "
        "--ckpt-fully-parallel-load-process-group --ckpt-fully-parallel-save-process-group "
        "--ckpt-pg-tensors-cache-path --classes-fraction --config-logger-dir "
        "--cpu-offloading-num-layers --cross-entropy-fusion-impl --cuda-graph-impl "
        "--cuda-graph-warmup-steps --data-parallel-sharding-strategy --data-per-class-fraction "
        "--ddp-num-buckets --delta-offload-bytes-across-pp-ranks "
        "--dino-bottleneck-size --dino-freeze-last-layer --dino-head-hidden-size "
        "--dino-local-crops-number --dino-local-img-size --dino-teacher-temp "
        "--dino-warmup-teacher-temp --dino-warmup-teacher-temp-epochs --dist-ckpt-format "
        "--dist-ckpt-strictness --dist-ckpt-workers --distributed-timeout-minutes "
        "--distributed-timeout-seconds-after-init --dsa-indexer-head-dim "
        "--dsa-indexer-k-norm-epsilon --dsa-indexer-loss-coeff --dsa-indexer-n-heads "
        "--dsa-indexer-skip-topk-offset --dsa-indexer-topk --dsa-indexer-topk-freq "
        "--dsa-kernel-backend --dump-param-to-param-group-map --embedding-path "
        "--empty-unused-memory-level --error-injection-rate --error-injection-type --exit-signal "
        "--fault-injector-delay-start-iteration --fault-injector-fault-delay "
        "--fault-injector-fault-probabilities --fault-injector-fault-types "
        "--fault-injector-mtti-seconds --fault-injector-num-ranks --fault-injector-offset-seconds "
        "--fault-injector-ranks --fault-injector-seed --fim-eod-token --fim-fragment-rate "
        "--fim-middle-token --fim-no-prefix --fim-pad-token --fim-prefix-token --fim-rate "
        "--fim-split-sample --fim-spm-rate --fim-suffix-token "
        "--fine-grained-offloading-max-inflight-offloads --flash-attention-version "
        "--flight-recorder-dump-path --flight-recorder-trace-buffer-size --fp4-quantizer-factory "
        "--fp4-recipe --fp8-amax-compute-algo --fp8-amax-history-len --fp8-interval --fp8-margin "
        "--fp8-quantizer-factory --fp8-recipe --ft-num-warmup-iters "
        "--gdp-num-chunk-states-to-recompute --gdp-num-householder --gpu-sniff-test-interval "
        "--grpo-clamp-eps-lower --grpo-clamp-eps-upper --grpo-entropy-term-weight "
        "--grpo-group-size --grpo-iterations --grpo-kl-beta --grpo-prompts-per-step "
        "--ict-head-size --img-h --img-w --indexer-batch-size --indexer-log-interval "
        "--inference-batch-times-seqlen-threshold --inference-coordinator-port "
        "--inference-cuda-graph-max-tokens --inference-cuda-graph-scope "
        "--inference-dynamic-batching-async-sched-mode --inference-dynamic-batching-block-size "
        "--inference-dynamic-batching-buffer-size-gb "
        "--inference-dynamic-batching-cuda-graph-mixed-prefill-count "
        "--inference-dynamic-batching-cuda-graph-sizing-distribution "
        "--inference-dynamic-batching-logprobs-mode "
        "--inference-dynamic-batching-mamba-memory-ratio "
        "--inference-dynamic-batching-max-requests --inference-dynamic-batching-max-tokens "
        "--inference-dynamic-batching-num-cuda-graphs "
        "--inference-dynamic-batching-paused-buffer-size-gb "
        "--inference-dynamic-batching-prefix-caching-coordinator-policy "
        "--inference-dynamic-batching-prefix-caching-eviction-policy "
        "--inference-dynamic-batching-prefix-caching-mamba-gb "
        "--inference-dynamic-batching-prefix-caching-routing-alpha "
        "--inference-dynamic-batching-sampling-backend "
        "--inference-dynamic-batching-unified-memory-level --inference-grouped-gemm-backend "
        "--inference-logging-step-interval --inference-max-requests --inference-max-seq-length"),
    NO_EFFECT("VALUE",
        "--inference-moe-token-dispatcher-type --inference-shards --inprocess-active-world-size "
        "--inprocess-barrier-timeout --inprocess-completion-timeout --inprocess-granularity "
        "--inprocess-hard-timeout --inprocess-heartbeat-interval --inprocess-heartbeat-timeout "
        "--inprocess-last-call-wait --inprocess-max-iterations "
        "--inprocess-monitor-process-interval --inprocess-monitor-thread-interval "
        "--inprocess-progress-watchdog-interval --inprocess-soft-timeout "
        "--inprocess-termination-grace-time --iter-per-epoch --kitchen-attention-backend "
        "--kv-lora-rank --langrl-env-config --linear-conv-kernel-dim --linear-key-head-dim "
        "--linear-num-key-heads --linear-num-value-heads --linear-value-head-dim --lion-beta1 "
        "--lion-beta2 --local-rank --log-memory-interval --logging-level "
        "--logits-load-decode-threads --logits-load-kd-loss-alpha "
        "--logits-load-msc-prefetch-depth --logits-load-prefetch-factor --logits-save-dtype "
        "--logits-save-top-k --logits-save-top-p --logits-save-top-p-min-k --mamba-head-dim "
        "--mamba-inference-conv-states-dtype --mamba-inference-ssm-states-dtype "
        "--mamba-num-groups --mamba-num-heads --mamba-state-dim --mamba-training-ssm-states-dtype "
        "--manual-gc-interval --mask-factor --mask-prob --mask-type --max-seqlen-per-dp-cp-rank "
        "--max-tokens-to-oom --megatron-fsdp-grad-comm-dtype --megatron-fsdp-main-grads-dtype "
        "--megatron-fsdp-main-params-dtype --megatron-fsdp-version --memory-snapshot-path "
        "--merge-file --mhc-init-gating-factor --mhc-num-residual-streams "
        "--mhc-recompute-layer-num --mhc-sinkhorn-iterations "
        "--min-offloaded-tensor-size "
        "--mlp-chunks-for-prefill --mlp-chunks-for-training --moe-deepep-num-sms "
        "--moe-flex-dispatcher-backend --moe-flex-dispatcher-num-sms "
        "--moe-hybridep-num-blocks-permute --moe-hybridep-num-blocks-unpermute "
        "--moe-hybridep-num-sms --moe-hybridep-num-sms-preprocessing "
        "--moe-mlp-glu-interleave-size --moe-paged-stash-buffer-size-factor-cpu "
        "--moe-paged-stash-buffer-size-factor-cuda --moe-paged-stash-page-size "
        "--moe-router-quantile-balancing-ema "
        "--moe-routing-trace-max-training-iters --moe-routing-trace-path "
        "--moe-shared-expert-glu-interleave-size --moe-token-dispatcher-type "
        "--moe-token-drop-policy --moe-upcycling-granularity --mscale --mscale-all-dim "
        "--mtp-loss-scaling-factor --muon-coefficient-type --muon-extra-scale-factor "
        "--muon-fp32-matmul-prec --muon-momentum --muon-num-ns-steps --muon-scalar-optimizer "
        "--muon-scale-mode --muon-tp-mode --mup-attn-scale-power --mup-base-head-dim "
        "--mup-base-hidden-size --mup-embedding-mult --mup-output-mult --mup-width-mult "
        "--nccl-communicator-config-path --non-persistent-global-ckpt-dir "
        "--non-persistent-local-ckpt-algo --non-persistent-local-ckpt-dir --num-channels "
        "--num-classes --num-dataset-builder-threads --num-layers-at-end-in-bf16 "
        "--data-impl --DDP-impl --num-layers-at-start-in-bf16 --num-speculative-tokens --num-workers "
        "--object-storage-cache-path --one-logger-project --one-logger-run-name --onnx-safe "
        "--optimizer-offload-fraction --otel-service-name --otel-span-groups "
        "--outer-dp-sharding-strategy --patch-dim --per-dataset-sequences-path "
        "--pipeline-model-parallel-comm-backend --profile-step-end --profile-step-start "
        "--q-lora-rank --qk-clip-alpha --qk-clip-threshold --qk-head-dim --qk-pos-emb-head-dim "
        "--query-in-block-prob --refit-method --relative-attention-max-distance "
        "--relative-attention-num-buckets --replication-factor --replication-jump --rerun-mode "
        "--result-rejected-tracker-filename --rl-consumption-granularity --rl-default-temperature "
        "--rl-default-top-k --rl-default-top-p --rl-generation-lag"),
    NO_EFFECT("VALUE",
        "--inference-dynamic-batching-cuda-graph-max-tokens --rl-generation-batch-size "
        "--rl-num-parallel-generation-batches --rl-num-parallel-generations "
        "--rl-parallel-generation-tasks "
        "--rl-importance-sampling-truncation-coef --rl-inference-expert-model-parallel-size "
        "--rl-inference-expert-tensor-model-parallel-size "
        "--rl-inference-model-unified-memory-level --rl-inference-pipeline-model-parallel-size "
        "--rl-inference-tensor-model-parallel-size --rl-kv-cache-management-mode "
        "--rl-max-inflight-requests --rl-profile-dir --rl-prompts-per-eval --rl-rollout-bank-dir "
        "--rl-rollout-bank-max-bytes --rl-sequence-packing-algo "
        "--rl-sequence-packing-max-sequences-per-bin --rl-submission-granularity "
        "--rotary-scaling-factor --save-activations-interval --save-dgrads-interval "
        "--save-params-interval --save-retain-interval --save-tokens-per-expert-interval "
        "--save-wgrads-interval --sft-tokenizer-prompt-format --sharp-enabled-group --short-seq-prob "
        "--straggler-ctrlr-port --straggler-minmax-count --suggested-communication-unit-size "
        "--swin-backbone-type --symmetric-ar-type --tensorboard-queue-size "
        "--tiktoken-num-special-tokens --tiktoken-pattern --timing-log-level --timing-log-option "
        "--tokenizer-metadata --tokenizer-model --tp-comm-bootstrap-backend --tp-comm-overlap-cfg "
        "--train-sync-interval --v-head-dim --vision-backbone-type "
        "--vision-pretraining-type --vocab-file --wandb-entity --wandb-exp-name --wandb-project "
        "--wandb-save-dir --wgrad-deferral-limit --yarn-beta-fast --yarn-beta-slow "
        "--yarn-original-max-position-embeddings"),
    NO_EFFECT("VALUE...",
        "--cuda-graph-modules --cuda-graph-scope "
        "--ddp-param-name-patterns-for-fp32-local-accumulation --gtp-remat-opt-in-modules "
        "--high-priority-stream-groups --offload-modules --profile-ranks "
        "--retriever-report-topk-accuracies --rl-inference-parsers --tiktoken-special-tokens "
        "--tokenizer-special-tokens"),
};
// clang-format on
_Static_assert(COUNT(train_other_args) == NUM_TRAIN_OTHER_ARGS, "train_names.h");

static const struct {
    const char *names, *reason;
} refused[] = {
#define X(names, value, reason) {names, reason},
    REFUSED(X)
#undef X
};

static const struct {
    const char *names, *can_be, *reason;
} limited[] = {
#define X(names, value, can_be, reason) {names, can_be, reason},
    LIMITED(X)
#undef X
};

/* Whether the word at `name` is the option that was typed, up to its "=". */
static bool is_typed(const char *name, size_t length, const char *typed)
{
    if (strcspn(typed, "=") != length) return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] != (typed[i] == '_' ? '-' : typed[i])) return false;
    return true;
}

static bool is_one_of(const char *names, const char *typed)
{
    for (const char *at = names; *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (is_typed(at, length, typed)) return true;
        at += length;
    }
    return false;
}

const char *train_refused_reason(const char *typed)
{
    for (size_t i = 0; i < COUNT(refused); i++)
        if (is_one_of(refused[i].names, typed)) return refused[i].reason;
    return "not implemented";
}

/* "0.0" is 0. */
static bool is_same(const char *a, const char *b)
{
    char *end_a, *end_b;
    const double x = strtod(a, &end_a), y = strtod(b, &end_b);
    const bool are_numbers = end_a != a && end_b != b && !*end_a && !*end_b;
    return strcmp(a, b) == 0 || (are_numbers && !(x < y) && !(x > y));
}

const char *train_limited_reason(const char *names, const char *value)
{
    for (size_t i = 0; i < COUNT(limited); i++)
        if (strcmp(limited[i].names, names) == 0 && !is_same(value, limited[i].can_be))
            return limited[i].reason;
    return NULL;
}
