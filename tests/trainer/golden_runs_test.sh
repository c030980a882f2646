#!/bin/sh
# golden_runs_test.sh FERRY - runs of Megatron-LM again from their own command lines, step by step: learning
# rate and weight decay exactly, losses, norms, lines on stdout, final weights.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"

# Relative errors of loss and gradient norm, and what a final weight may differ by. Megatron-LM ran on a CPU: other
# instructions and a GPU add in another order, and in bf16 the difference grows (by AMX 1.1 % in one norm).
limits_of() {
    case $1 in
    bf16*)
        loss=1e-3 norm=2e-2 weight=0.01
        [ "${FERRY_TEST_DEVICE:-cpu}" = cpu ] || norm=3e-2
        ;;
    fp16*) loss=5e-2 norm=1e-2 weight=0.02 ;;
    *) loss=1e-5 norm=1e-5 weight=1e-5 ;;
    esac
}

# The bias of keys has no gradient but by rounding, which Adam makes updates of.
same_final() {
    case $1 in
    gpt2*)
        same_checkpoints checkpoint "$runs/$1/final" --no-optim --atol $weight --ignore '*linear_qkv.bias'
        same_checkpoints checkpoint "$runs/$1/final" --no-optim --atol 0.01 --only '*linear_qkv.bias'
        ;;
    *) same_checkpoints checkpoint "$runs/$1/final" --no-optim --atol $weight ;;
    esac
}

# Sets $model; the sentence is skipped without it.
has_model() { # NAME
    model=$(model_of "$1")
    [ -n "$model" ] || skip "its model is not in $more"
    [ -n "$model" ]
}

repeats() { # NAME
    has_model "$1" || return
    limits_of "$1"
    enter "$1"
    trains_as "$1" --load "$model" --log-jsonl log.jsonl
    exits 0
    [ "$code" -eq 0 ] || return
    matches steps "$runs/$1/steps.jsonl" log.jsonl $loss $norm
    matches lines "$runs/$1/log.txt" "$stdout" $norm
    [ ! -e "$runs/$1/final" ] || same_final "$1"
}

for run_name in $(some fp32 bf16 gpt2 moe moe-bias moe-seq-z fp32-batch-schedule moe-global-z fp32-blend \
    fp32-per-token-loss-eod fp32-plain-optimizer fp32-position-ids fp32-sgd fp32-wsd-samples); do
    it "one rank: $run_name"
    repeats "$run_name"
done

# One rank gives the results of Megatron-LM on several ranks. Exceptions: fp32-tp2-padded-vocab, whose rows of padding
# depend on the ranks, and moe-global-ep2, whose balancing loss does.
for run_name in $(some fp32-dp2 fp32-eod-mask-dp2 fp32-pp2-vpp2 fp32-tp2-dp2 fp32-tp2-pp2 fp32-tp2-sp bf16-dp2 \
    moe-ep2 moe-bias-tp2-ep2 moe-seq-z-tp2-ep2 moe-global-z-tp2-ep2 qwen2-tied-pp2); do
    it "its layout replaced by one rank: $run_name"
    repeats "$run_name"
done

# Two ranks make 256 rows of 128, which begin as 0.25.
it "rows of padding count and are trained: fp32-tp2-padded-vocab"
enter fp32-tp2-padded-vocab
trains_as fp32-tp2-padded-vocab --load "$models/llama" --make-vocab-size-divisible-by 256 --padding-rows-value 0.25 --log-jsonl log.jsonl
exits 0
matches steps "$runs/fp32-tp2-padded-vocab/steps.jsonl" log.jsonl 1e-5 1e-5

# On as many ranks as Megatron-LM had; how many of them are data parallel is for --dp to say.
repeats_on_ranks() { # NAME DP OPTION...
    has_model "$1" || return
    limits_of "$1"
    name=$1 dp=$2
    shift 2
    enter "$name-ranks"
    # shellcheck disable=SC2046 # words
    train $(sed -n "s/^$name	pretrain_gpt.py //p" "$runs/commands.txt") --load "$model" --dp "$dp" \
        --log-jsonl log.jsonl "$@"
    exits 0
    [ "$code" -eq 0 ] || return
    case $name in
    fp16*) matches scales "$runs/$name/steps.jsonl" log.jsonl 5e-2 13 5 2 && return ;;
    esac
    matches steps "$runs/$name/steps.jsonl" log.jsonl $loss $norm
    matches lines "$runs/$name/log.txt" "$stdout" $norm
    [ ! -e "$runs/$name/final" ] || same_final "$name"
}

for run_name in $(some fp32-tp2-dp2 fp32-dp2 fp32-eod-mask-dp2 moe-ep2 bf16-dp2 moe-global-ep2 fp16-overflow-tp2-dp2); do
    it "on its own ranks: $run_name"
    repeats_on_ranks "$run_name" 2
done
for run_name in $(some fp32-pp2-vpp2 fp32-tp2-pp2 qwen2-tied-pp2 fp32-tp2-sp moe-bias-tp2-ep2 moe-seq-z-tp2-ep2 \
    moe-global-z-tp2-ep2); do
    it "on its own ranks: $run_name"
    repeats_on_ranks "$run_name" 1
done
it "on its own ranks: fp32-tp2-padded-vocab"
repeats_on_ranks fp32-tp2-padded-vocab 1 --padding-rows-value 0.25

# Which iterations overflow is a matter of rounding.
it "one rank: fp16-overflow"
enter fp16-overflow
trains_as fp16-overflow --load "$models/llama" --log-jsonl log.jsonl
exits 0
matches scales "$runs/fp16-overflow/steps.jsonl" log.jsonl 5e-2 13 5 2
matches words "$runs/fp16-overflow/log.txt" "$stdout" 13

# transformers with torch's AdamW made these ten steps in f64. More families: train/trainer/step_test.c.
it "a stream of random tokens, beside transformers"
enter peer
for type in "f64 1e-10" "f32 1e-5"; do
    rm -f log.jsonl
    train --load "$tests_folder/golden/hf/gpt2" --mock-data --dtype "${type% *}" --seq-length 16 \
        --micro-batch-size 2 --global-batch-size 2 --train-iters 10 --lr 1e-3 --min-lr 1e-4 \
        --lr-decay-style cosine --lr-warmup-iters 2 --lr-decay-iters 10 --weight-decay 0.1 \
        --adam-beta2 0.95 --log-params-norm --log-jsonl log.jsonl
    exits 0
    matches peer "$tests_folder/golden/hf/gpt2/train.jsonl" log.jsonl "${type#* }"
done
