#!/bin/sh
# checkpoints_test.sh FERRY - what a run saves, as Megatron-LM with the same line would: names of parameters, the
# form of the optimizer, args.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
enter checkpoints

# One iteration of a golden run: begins NAME MODEL OPTION...
begins() {
    name=$1 model=$2
    shift 2
    rm -rf out log.jsonl
    trains_as "$name" --load "$models/$model" --save out --log-jsonl log.jsonl --exit-interval 1 "$@"
    exits 0
}

# What inspect says of it.
shows() {
    run inspect out
    for line; do prints "$line"; done
}

it "names of parameters are those of --transformer-impl, or of the checkpoint that the run began with"
for format in torch_dist torch; do
    begins moe mixtral --ckpt-format $format
    shows "parameter naming of the local spec"
    mv out local
    begins moe mixtral --ckpt-format $format --transformer-impl transformer_engine
    shows "parameter naming of the TE spec"
    same_checkpoints out local
    rm -r out log.jsonl
    train --load local --ckpt-format $format --seq-length 32 --micro-batch-size 2 --train-iters 20 --lr 5e-3 --data-path u16 \
        --save out --exit-interval 2 --override-opt_param-scheduler
    exits 0
    shows "parameter naming of the local spec"
    rm -r local
done

it "--moe-grouped-gemm names experts so"
begins moe mixtral --ckpt-format torch --transformer-impl transformer_engine --moe-grouped-gemm
grep -q 'linear_fc1.weight0' out/iter_0000001/mp_rank_00/model_optim_rng.pt || is_wrong "names of experts"
begins moe mixtral --ckpt-format torch --transformer-impl transformer_engine
grep -q 'local_experts.0.linear_fc1' out/iter_0000001/mp_rank_00/model_optim_rng.pt || is_wrong "names of experts"

it "the optimizer is kept as --use-distributed-optimizer says"
for precision in "" --bf16; do
    # shellcheck disable=SC2086 # a word or none
    begins fp32 llama $precision
    shows "optimizer  distributed, fully_reshardable"
    # shellcheck disable=SC2086
    begins fp32 llama $precision --ckpt-format torch
    shows "optimizer  distributed, in distrib_optim.pt"
    # shellcheck disable=SC2086
    begins fp32-plain-optimizer llama $precision
    shows "optimizer  not distributed"
    # shellcheck disable=SC2086
    begins fp32-plain-optimizer llama $precision --ckpt-format torch
    shows "optimizer  not distributed, in the rank files"
done

# A run of 20 steps, and one that is saved at 10 and goes on, are the same: goes_on OPTION...
goes_on() {
    for how in "" "--exit-interval 10"; do
        rm -rf out log.jsonl
        # shellcheck disable=SC2086 # words or none
        trains_as fp32-plain-optimizer --load "$models/llama" --save out --log-jsonl log.jsonl "$@" $how
        exits 0
        [ -n "$how" ] || { rm -rf straight && mkdir straight && mv out log.jsonl straight; }
    done
    trains_as fp32-plain-optimizer --save out --log-jsonl log.jsonl "$@"
    exits 0
    matches bits straight/log.jsonl log.jsonl
    same_checkpoints out straight/out
}

it "an optimizer that is not distributed goes on, bit for bit"
for format in torch_dist torch; do
    goes_on --ckpt-format $format
    goes_on --ckpt-format $format --bf16
    goes_on --ckpt-format $format --optimizer sgd --lr 0.05
done

it "so does SGD without momentum, which has no states"
for format in torch_dist torch; do
    goes_on --ckpt-format $format --optimizer sgd --lr 0.05 --sgd-momentum 0
    shows "optimizer  none" "schedule: cosine, lr 0.05"
    goes_on --ckpt-format $format --optimizer sgd --lr 0.05 --sgd-momentum 0 --bf16
done

it "args of a checkpoint say how it was trained"
trains_as fp32 --load "$models/llama" --save said
run inspect said --args
for line in "lr                                        0.005" "min_lr                                    0.0005" \
    "seq_length                                32" "global_batch_size                         8" \
    "train_iters                               20" "seed                                      1234" \
    "use_distributed_optimizer                 True"; do
    prints "  $line"
done
