#!/bin/sh
# resume_test.sh FERRY - runs that are killed, stopped and continued are those that nothing happened to, bit for
# bit: each step's line and the last checkpoint with its optimizer.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"

# 20 steps with dropout, of 16 micro-batches, so that a step takes its time.
goes() { # OPTION...
    trains_as fp32 --load "$models/llama" --save out --global-batch-size 32 --log-jsonl log.jsonl \
        --hidden-dropout 0.1 --attention-dropout 0.1 "$@"
}

# The same run in a folder of its own: straight NAME OPTION...
straight() {
    enter "$1"
    shift
    goes "$@"
    exits 0
    validated
}

validated() {
    grep ' validation loss' "$stdout" >validation
}

# The current folder's run is that of the folder: same_run_as FOLDER
same_run_as() {
    matches bits "../$1/log.jsonl" log.jsonl
    same_checkpoints out "../$1/out"
    tail -n "$(wc -l <validation)" "../$1/validation" | cmp -s - validation ||
        is_wrong "the validation losses are others: $(cat validation)"
}

steps_done() {
    if [ -e log.jsonl ]; then wc -l <log.jsonl; else echo 0; fi
}

# Sends a signal after N steps: interrupted_at N SIGNAL OPTION... It is an error if the run was faster.
interrupted_at() {
    at=$1 signal=$2
    shift 2
    rm -rf out log.jsonl pid
    (
        while [ "$(steps_done)" -lt "$at" ]; do :; done
        kill "-$signal" "$(cat pid)"
    ) &
    # shellcheck disable=SC2046,SC2016 # words; for the inner shell
    sh -c 'echo $$ >pid; exec "$@"' - "$ferry" train --threads 1 $(line_of fp32) --load "$models/llama" \
        --save out --global-batch-size 32 --log-jsonl log.jsonl --hidden-dropout 0.1 --attention-dropout 0.1 \
        "$@" >"$stdout" 2>"$stderr"
    code=$? ran="train, in $(basename "$PWD"), SIG$signal after $at steps"
    wait
}

for kind in $(some f32:torch_dist f32:torch bf16:torch_dist bf16:torch fp16:torch_dist f32:torch_dist:--async-save); do
    kind=$(echo "$kind" | tr : ' ')
    it "killed and continued, it is the same run: $kind"
    options="--ckpt-format ${kind#* }"
    [ "${kind%% *}" = f32 ] || options="$options --${kind%% *} --initial-loss-scale 65536"
    # shellcheck disable=SC2086 # words
    straight straight $options
    enter killed
    for moment in 4 10 14; do
        # shellcheck disable=SC2086 # words
        interrupted_at $moment KILL $options
        exits 137
        saved=$(cat out/latest_checkpointed_iteration.txt 2>/dev/null)
        # shellcheck disable=SC2086 # words
        goes $options
        exits 0
        [ -z "$saved" ] || says "the run resumes from out/iter_00000$saved, iteration $saved"
        validated
        same_run_as straight
    done
    cd .. && rm -r straight killed
done

it "$((2 * half_steps)) steps are $half_steps, a kill, and the other $half_steps"
halves="--train-iters $((2 * half_steps)) --save-interval $half_steps"
# shellcheck disable=SC2086 # words
straight straight $halves
enter killed
# shellcheck disable=SC2086 # words
interrupted_at $((half_steps + 1)) KILL $halves
exits 137
# shellcheck disable=SC2086 # words
goes $halves
exits 0
says "the run resumes from out/iter_00000$half_steps, iteration $half_steps"
validated
same_run_as straight
cd .. && rm -r straight killed

# Nearly all of these calls are those of the four saves.
it "killed in the middle of a save and continued, it is the same run"
if can_inject; then
    straight straight --save-interval 5
    enter counted
    counts=$PWD/all
    goes --save-interval 5
    counts=''
    enter killed
    for call in pwrite rename mkdir open; do
        total=$(calls_of $call ../counted/all)
        for part in 3 6 9; do
            tries 12 || continue
            rm -rf out .out* log.jsonl cache
            fault="$call:KILL:$((total * part / 9))"
            goes --save-interval 5
            exits 137
            ran="$ran, $fault"
            fault=''
            goes --save-interval 5
            exits 0
            validated
            same_run_as straight
            # A last save that was complete when it was killed has its lock, and no later one removes it.
            left=$(find . -name '.*ferry-*' ! -path './out/iter_0000020/.ferry-lock')
            [ -z "$left" ] || is_wrong "$ran: left behind: $left"
        done
    done
    cd .. && rm -r straight counted killed
else
    skip "no inject.so"
fi

it "what a save that was killed has left goes with the next one, of whatever iteration"
if can_inject; then
    enter left
    for option in "--save-interval 5" "--save-interval 5 --save-hf out-hf"; do
        rm -rf out out-hf log.jsonl
        # shellcheck disable=SC2086 # words
        goes $option --exit-interval 5
        exits 0
        fault=pwrite:KILL:4
        # shellcheck disable=SC2086 # words
        goes $option
        exits 137
        fault=''
        [ -e out/.iter_0000010.ferry-partial ] || is_wrong "nothing is left of the save that was killed: $(ls -a out)"
        # shellcheck disable=SC2086 # words
        goes $option --save-interval 7 --exit-interval 7
        exits 0
        nothing_partial_in .
    done
    cd .. && rm -r left
else
    skip "no inject.so"
fi

it "SIGTERM ends the step, saves and exits with 130; continued, it is the same run"
straight straight
enter stopped
for signal in TERM INT; do
    interrupted_at 7 $signal
    exits 130
    done=$(steps_done)
    says "a signal ended the run after iteration $done, which is saved"
    [ "$(cat out/latest_checkpointed_iteration.txt)" = "$done" ] || is_wrong "the tracker"
    [ "$done" -lt 20 ] || is_wrong "the run was not stopped"
    goes
    exits 0
    says "the run resumes from out/iter_000000$done"
    validated
    same_run_as straight
done

it "a second signal ends it at once"
rm -rf out log.jsonl
interrupted_twice() {
    (
        while [ "$(steps_done)" -lt 1 ]; do :; done
        kill -TERM "$(cat pid)"
        sleep 0.2
        kill -TERM "$(cat pid)"
    ) &
    # shellcheck disable=SC2046,SC2016 # words; for the inner shell
    sh -c 'echo $$ >pid; exec "$@"' - "$ferry" train --threads 1 $(line_of fp32) --load "$models/llama" \
        --save out --global-batch-size 8192 --log-jsonl log.jsonl >"$stdout" 2>"$stderr"
    code=$? ran="train, two signals"
    wait
}
interrupted_twice
exits 130
says "ended at once by a second interrupt"
[ "$(steps_done)" -eq 1 ] || is_wrong "it made $(steps_done) steps"
is_not_there out/latest_checkpointed_iteration.txt
cd .. && rm -r stopped

it "a fine-tuning run that is killed goes on, and does not begin anew"
for options in "--finetune" "--no-load-optim"; do
    half=$tests_folder/golden/megatron-training/fp32-plain-optimizer
    enter tuned-straight
    rm -rf out log.jsonl
    # shellcheck disable=SC2086 # words
    goes --load "$half" $options --save-interval 6
    exits 0
    validated
    enter tuned
    rm -rf out log.jsonl
    # shellcheck disable=SC2086 # words
    goes --load "$half" $options --save-interval 6 --exit-interval 13
    exits 0
    # shellcheck disable=SC2086 # words
    goes --load "$half" $options --save-interval 6
    exits 0
    says "the run resumes from out/iter_0000013, iteration 13"
    validated
    same_run_as tuned-straight
done

it "--exit-interval saves, exits with 0, and the next run goes on"
enter exited
goes --exit-interval 7
exits 0
says "the run ends at iteration 7 by --exit-interval"
[ "$(cat out/latest_checkpointed_iteration.txt)" = 7 ] || is_wrong "the tracker"
goes
exits 0
validated
same_run_as straight

it "experts are balanced by a bias that goes on, in whatever dtype and format"
for options in "--ckpt-format torch_dist" "--bf16 --ckpt-format torch" \
    "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --sequence-parallel --dp 1 --ckpt-format torch_dist"; do
    tries 3 || continue
    enter bias
    rm -rf whole whole.jsonl parts parts.jsonl
    options="$options --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate 0.01"
    # shellcheck disable=SC2086 # words
    trains_as moe --load "$models/mixtral" --save whole --log-jsonl whole.jsonl $options
    exits 0
    # shellcheck disable=SC2086 # words
    for part in "--exit-interval 7" ""; do
        trains_as moe --load "$models/mixtral" --save parts --log-jsonl parts.jsonl $options $part
        exits 0
    done
    matches bits whole.jsonl parts.jsonl
    same_checkpoints whole parts
done

it "a model of the line goes on, though the config.json of --load cannot say it"
enter other-model
for part in "--exit-interval 7" ""; do
    # shellcheck disable=SC2086 # words
    trains_as moe --load "$models/mixtral" --save out --moe-router-pre-softmax $part
    exits 0
done
says "the run resumes from out/iter_0000007"

it "recomputed activations are the same, bit for bit"
for options in "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1" \
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 3" \
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2" \
    "--recompute-granularity selective" "--recompute-activations" \
    "--recompute-granularity selective --recompute-modules core_attn layernorm mlp"; do
    tries 6 || continue
    enter recomputed
    rm -rf out log.jsonl
    # shellcheck disable=SC2086 # words
    goes $options
    exits 0
    validated
    ran="$ran, $options"
    same_run_as straight
done

it "as many micro-batches as there are make the same step, but for rounding"
enter whole
for size in 4 16; do
    rm -rf out log.jsonl
    trains_as fp32 --load "$models/llama" --log-jsonl log.jsonl --micro-batch-size $((size / 2)) --save out
    exits 0
    matches steps "$runs/fp32/steps.jsonl" log.jsonl 1e-5 1e-5
done

it "a run that goes on saves on, though --keep-last removes the checkpoint that it went on from"
for kind in torch_dist torch "torch_dist --async-save"; do
    tries 3 || continue
    enter kept-on
    rm -rf log.jsonl out hf
    # shellcheck disable=SC2086 # words
    goes --save-interval 5 --save-hf hf --keep-last 1 --exit-interval 5 --ckpt-format $kind
    exits 0
    # shellcheck disable=SC2086 # words
    goes --save-interval 5 --save-hf hf --keep-last 1 --ckpt-format $kind
    exits 0
    ! grep -F 'not saved' "$stderr" || is_wrong "$ran: it is not saved"
    [ "$(ls hf)" = iter_0000020 ] || is_wrong "hf has $(ls hf)"
    is_there out/iter_0000020 hf/iter_0000020/config.json
    is_not_there out/iter_0000015
    same_checkpoints out ../straight/out
    same_checkpoints hf/iter_0000020 out --no-optim
done

it "a run that was killed before --save-hf had its iteration writes that first"
enter behind
rm -rf log.jsonl out hf
goes --exit-interval 10
exits 0
goes --save-hf hf --exit-interval 15
exits 0
is_there hf/iter_0000010 hf/iter_0000015
same_checkpoints hf/iter_0000015 out --no-optim
rm -r hf
goes --train-iters 15 --save-hf hf --override-opt-param-scheduler
exits 0
says "nothing is left to train: the run is at iteration 15 of 15"
is_there hf/iter_0000015

it "--save-hf writes each interval as a Hugging Face folder, --keep-last keeps the newest"
enter kept
goes --save-interval 5 --save-hf hf
exits 0
for at in 05 10 15 20; do
    same_checkpoints hf/iter_00000$at out/iter_00000$at --no-optim
done
rm -rf log.jsonl out hf
goes --save-interval 5 --save-hf hf --keep-last 2
exits 0
for folder in hf out; do
    is_there $folder/iter_0000015 $folder/iter_0000020
    is_not_there $folder/iter_0000005 $folder/iter_0000010
done
same_checkpoints hf/iter_0000015 out/iter_0000015 --no-optim
same_checkpoints out ../straight/out
