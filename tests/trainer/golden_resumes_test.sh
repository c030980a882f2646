#!/bin/sh
# golden_resumes_test.sh FERRY - checkpoints that Megatron-LM wrote half-way, whatever their layout, continued on
# one rank with the same command line, beside what Megatron-LM itself made of them.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"

# Megatron's own second half, where it is there, is that of its straight run bit for bit.
continues() { # NAME CHECKPOINT LOSS GRAD_NORM
    enter "$1"
    trains_as "$1" --load "$2" --save out --log-jsonl log.jsonl
    exits 0
    [ "$code" -eq 0 ] || return
    matches steps "$runs/$1/steps.jsonl" log.jsonl "$3" "$4" 11
    [ ! -e "$more/$1/resumed.jsonl" ] || matches steps "$more/$1/resumed.jsonl" log.jsonl "$3" "$4"
    [ "$(cat out/latest_checkpointed_iteration.txt)" = 20 ] || is_wrong "the tracker"
    is_there out/iter_0000020
    is_not_there out/iter_0000010
    [ ! -e "$runs/$1/final" ] || same_checkpoints out "$runs/$1/final" --no-optim --atol 1e-5
}

it "a checkpoint of the plain optimizer is continued"
continues fp32-plain-optimizer "$tests_folder/golden/megatron-training/fp32-plain-optimizer" 1e-5 1e-5

# Megatron-LM takes a group of parameters as the checkpoint has it, but for its learning rate and weight decay.
it "betas and epsilon are those of the checkpoint, and another line is told so"
enter other-betas
trains_as fp32-plain-optimizer --load "$tests_folder/golden/megatron-training/fp32-plain-optimizer" --log-jsonl log.jsonl \
    --save out --adam-beta1 0.8 --adam-beta2 0.999 --adam-eps 1e-6
exits 0
says "note: --adam-beta1 is 0.9, from the checkpoint whose optimizer resumes, not 0.8"
says "note: --adam-beta2 is 0.95, from the checkpoint whose optimizer resumes, not 0.999"
says "note: --adam-eps is 1e-08, from the checkpoint whose optimizer resumes, not 1e-06"
matches steps "$runs/fp32-plain-optimizer/steps.jsonl" log.jsonl 1e-5 1e-5 11
run inspect out --json
prints '"beta2": 0.95'
! grep -qF '"beta2": 0.999' "$stdout" || is_wrong "the beta2 of the line is saved"

for run_name in $(some fp32-tp2-pp2 fp32 bf16-dp2); do
    it "the checkpoint of $run_name is continued on one rank"
    limits="1e-5 1e-5"
    [ "$run_name" != bf16-dp2 ] || limits="1e-3 1e-2"
    if [ -e "$more/$run_name/checkpoint" ]; then
        # shellcheck disable=SC2086 # words
        continues $run_name "$more/$run_name/checkpoint" $limits
    else
        skip "it is not in $more"
    fi
done

# Saved again by Ferry in the layouts that Megatron-LM has, and continued from there.
it "it is the same behind a conversion to any format and layout"
plain=$tests_folder/golden/megatron-training/fp32-plain-optimizer
enter fp32
for to in "torch_dist --tp 2 --pp 2" "torch_dist --optim-format fully_sharded_model_space --tp 2" \
    "torch --optim-format distributed --tp 2 --pp 2" "torch --optim-format not_distributed --pp 4"; do
    rm -rf moved out log.jsonl
    # shellcheck disable=SC2086 # words
    run convert -q "$plain" moved --true-vocab-size 128 --to $to
    exits 0
    trains_as fp32 --load moved --save out --log-jsonl log.jsonl
    exits 0
    matches steps "$runs/fp32/steps.jsonl" log.jsonl 1e-5 1e-5 11
done
