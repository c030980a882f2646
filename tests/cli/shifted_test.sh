#!/bin/sh
# shifted_test.sh - states that Megatron-Core before 0.20 saved under other parameters: named, never taken for weights
# unless it is asked for. The saved file lies beside what Megatron held.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/megatron-optim
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}/megatron-optim
saved=$golden/shifted-gpt2-tied-pp2/saved truth=$golden/shifted-gpt2-tied-pp2/expected
. "$(dirname "$0")/lib.sh"

are_shifted="states of 14 of 28 parameters, 39.4 % of the elements, are shifted"

it "shifted states are named, and are those that differ from what Megatron held"
run inspect "$saved"
exits 0
says "note: $are_shifted: Megatron-Core before 0.20 saves those behind the first bucket wrong"
prints "shifted: states of 14 of 28 parameters"
run inspect "$saved" --json
prints '"shifted": "states of 14 of 28 parameters, 39.4 % of the elements"'
run verify "$saved" "$truth"
exits 1
says "$are_shifted"
prints "DIFFERENT: 42 of 112 tensors"

it "they are carried as lossy"
run convert "$saved" out --tp 2 --hf-config "$truth"
exits 0
says "lossy    $are_shifted, and written so"

it "they do not become weights"
for to in "hf --optim --torch-dtype float32" dcp "fsdp" "deepspeed --zero 3" deepspeed-universal; do
    rm -rf out
    # shellcheck disable=SC2086 # words
    run convert "$saved" out --hf-config "$truth" --to $to
    exits 3
    says "$are_shifted, so weights cannot be written from these masters"
    says "--no-optim writes the weights alone, --allow-shifted goes on"
    [ ! -e out ] || is_wrong "out is there"
    # shellcheck disable=SC2086 # words
    run convert "$saved" out --hf-config "$truth" --allow-shifted --to $to
    exits 0
done

it "the weights alone are whole"
rm -rf out
run convert "$saved" out --to hf --no-optim --hf-config "$truth"
exits 0
cmp out/model.safetensors "$truth/model.safetensors" || is_wrong "the weights differ"

it "a run does not go on from them"
set -- --mock-data --seq-length 8 --micro-batch-size 1 --global-batch-size 1 --train-iters 12 --lr 0.01
run train --load "$saved" "$@"
exits 3
says "$are_shifted: a run would go on from other weights"
run train --load "$saved" "$@" --no-load-optim --exit-interval 1
exits 0

it "several buckets with padding between are told, too, and those without from these"
if [ -d "$fixtures" ]; then
    for case in buckets-fully-reshardable-dp3 buckets-busbw-dp1; do
        run inspect "$fixtures/$case/checkpoint"
        says "states of 11 of 15 parameters, 67.4 % of the elements, are shifted"
    done
    for case in buckets-dp-reshardable-dp2 adam-fully-reshardable-tp2dp2 decoupled-lr-frozen; do
        run inspect "$fixtures/$case/checkpoint"
        exits 0
        if grep -q shifted "$stdout" "$stderr"; then is_wrong "$case is not shifted"; fi
    done
else
    skip "$fixtures is not there"
fi
