# trains.sh - checks of training on a GPU, real or emulated, for check.sh. $ferry is the program, $work a folder.
# shellcheck shell=sh disable=SC2154 # the test sets them

# Steps of training on both devices: the same losses and norms.
trains_alike() { # MODEL LIMIT OPTION...
    model=$1 limit=$2
    shift 2
    for device in cpu cuda; do
        rm -f "$work/$device.jsonl"
        "$ferry" train --load "tests/golden/hf/$model" --mock-data --seq-length 16 --micro-batch-size 2 \
            --global-batch-size 4 --train-iters 2 --lr 1e-3 --log-params-norm \
            --log-jsonl "$work/$device.jsonl" --device "$device" "$@" || return 1
    done
    python3 tests/trainer/same_run.py steps "$work/cpu.jsonl" "$work/cuda.jsonl" "$limit" "$limit"
}

# A run of Megatron-LM repeated, up to its second update: gradients overflow as there, and the loss scale
# follows.
overflows_alike() {
    head -n 16 tests/golden/train/fp16-overflow/steps.jsonl >"$work/steps.jsonl"
    # shellcheck disable=SC2046 # words
    "$ferry" train $(sed -n 's/^fp16-overflow	pretrain_gpt.py //p' tests/golden/train/commands.txt) \
        --load tests/golden/train/models/llama --data-path tests/golden/megatron-data/u16 \
        --data-cache-path "$work/indices" --save "$work/trained" --exit-interval 16 --eval-interval 100 \
        --log-jsonl "$work/log.jsonl" --device cuda &&
        python3 tests/trainer/same_run.py scales "$work/steps.jsonl" "$work/log.jsonl" 5e-2 13 5 2
}

check_training() {
    check "training, of GPT-2 with dropout" trains_alike gpt2 1e-5 --hidden-dropout 0.1 --attention-dropout 0.1
    check "training, of experts, all recomputed" trains_alike mixtral 1e-5 --moe-aux-loss-coeff 0.01 \
        --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    check "training, of norms of heads, in bf16" trains_alike qwen3 0.02 --bf16
    check "training, of experts, in fp16" trains_alike mixtral 1e-3 --fp16 --initial-loss-scale 4096
    check "training, in fp16 with gradients in f32" trains_alike qwen3 3e-3 --fp16 --loss-scale 1024 \
        --accumulate-allreduce-grads-in-fp32
    check "training, in fp16 that overflows" overflows_alike
    check "training, on four ranks" trains_alike llama3.2 1e-5 --tp 2 --dp 2 --sequence-parallel
    check "training, on four ranks that shard states" trains_alike llama3.2 1e-5 --tp 2 --dp 2 \
        --use-distributed-optimizer --ddp-bucket-size 3000
    check "training, on two pipeline stages" trains_alike qwen3 1e-5 --pp 2 --decoder-first-pipeline-num-layers 1 \
        --micro-batch-size 1
    check "training, on stages of two chunks that shard states" trains_alike qwen3 1e-5 --pp 2 --dp 2 \
        --pipeline-model-parallel-layout "E|t|tt|L" --micro-batch-size 1 --global-batch-size 8 \
        --use-distributed-optimizer --ddp-bucket-size 3000
    check "training, of experts on two ranks" trains_alike mixtral 1e-5 --ep 2 --moe-aux-loss-coeff 0.01
}
