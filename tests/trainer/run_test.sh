#!/bin/sh
# run_test.sh FERRY - what a training run measures of itself, when it ends, and its samples where batch sizes change.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
enter run

# The model of the golden runs on their data, with schedules in samples, which fit any batch size: runs OPTION...
runs() {
    train --load "$models/llama" --data-path u16 --seq-length 32 --lr 5e-3 --min-lr 5e-4 --lr-decay-style cosine \
        --lr-warmup-samples 24 --lr-decay-samples 144 --train-samples 160 --eval-iters 0 --log-interval 1 --log-params-norm \
        --log-jsonl log.jsonl "$@"
}

it "mfu is the speed of the model over the peak of a large product on this CPU"
runs --micro-batch-size 4 --exit-interval 3
exits 0
python3 - log.jsonl <<'EOF' || is_wrong "the log: $(cat log.jsonl)"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) == 3
for line in lines:
    assert abs(line["mfu"] - line["tflops"] / line["peak_tflops"]) < 1e-12 and 0 < line["mfu"], line
    assert line["peak_tflops"] == lines[0]["peak_tflops"] and 1e-4 < line["peak_tflops"] < 1e3, line
    assert line["peak_counted"].startswith("measured, of a large product in f32: CPU"), line
EOF

it "--exit-duration-in-mins ends the run at that age, saved, and the next run goes on"
ages() { # OPTION...
    started=$(date +%s%N)
    train --load "$models/llama" --mock-data --seq-length 32 --micro-batch-size 2 --train-iters 1000000 --lr 1e-3 \
        --save aged --log-interval 1000000 "$@"
    milliseconds=$((($(date +%s%N) - started) / 1000000))
}
for part in first second; do
    ages --exit-duration-in-mins 0.01
    exits 0
    at=$(cat aged/latest_checkpointed_iteration.txt)
    says "the run ends at iteration $at by --exit-duration-in-mins"
    [ "$milliseconds" -ge 600 ] || is_wrong "$ran: it has ended after $milliseconds ms"
    if [ $part = first ]; then
        before=$at
    else
        says "note: the run resumes from aged/iter_$(printf %07d "$before"), iteration $before"
        [ "$at" -gt "$before" ] || is_wrong "$ran: it went from $before to $at"
    fi
done
rm -r aged
ages --exit-duration-in-mins 60 --exit-interval 3
says "the run ends at iteration 3 by --exit-interval"
ages --exit-duration-in-mins -1
exits 2
says "--exit-duration-in-mins -1 is below 0"

# One run of 20 iterations: 10 of 4 samples, then 10 of 8.
mkdir straight
runs --micro-batch-size 2 --step-batch-size-schedule 0:4,1280:8 --exit-interval 20 --save straight/out \
    --log-jsonl straight/log.jsonl

# first OPTION... - the first iterations of it, for another run to go on
first() {
    rm -rf out log.jsonl
    runs --micro-batch-size 2 --save out "$@"
    exits 0
}

it "a run goes on with another --global-batch-size at the sample where it was"
first --global-batch-size 4 --exit-interval 10
runs --micro-batch-size 2 --global-batch-size 8 --save out
exits 0
says "the run resumes from out/iter_0000010, iteration 10"
matches bits straight/log.jsonl log.jsonl
same_checkpoints out straight/out

it "a run goes on with another --micro-batch-size"
first --global-batch-size 4 --exit-interval 10
runs --micro-batch-size 8 --global-batch-size 8 --save out
exits 0
matches steps straight/log.jsonl log.jsonl 1e-6 1e-5

it "a run goes on within a schedule of batch sizes, also with micro-batches that its first sizes are no multiple of"
for at in 5 13; do
    tries 2 || continue
    first --step-batch-size-schedule 0:4,1280:8 --exit-interval $at
    runs --micro-batch-size 2 --step-batch-size-schedule 0:4,1280:8 --save out --exit-interval 20
    exits 0
    matches bits straight/log.jsonl log.jsonl
    same_checkpoints out straight/out
done
first --step-batch-size-schedule 0:4,1280:8 --exit-interval 13
runs --micro-batch-size 8 --step-batch-size-schedule 0:4,1280:8 --save out --exit-interval 20
exits 0
matches steps straight/log.jsonl log.jsonl 1e-6 1e-5
rm -rf out
runs --micro-batch-size 8 --step-batch-size-schedule 0:4,1280:8 --save out
exits 2
says "global batch size 4 is not a multiple of micro batch size 8 times data parallel size 1"
is_not_there out

# accumulates MICRO OPTION... - a step of 8 samples, so many at a time, in f64
accumulates() {
    micro=$1
    shift
    rm -f log.jsonl
    runs --micro-batch-size "$micro" --global-batch-size 8 --dtype f64 "$@"
    exits 0
}

it "a step in 1, 2, 4 or 8 micro-batches is the same, where each token counts the same"
for options in "" "--calculate-per-token-loss" "--calculate-per-token-loss --eod-mask-loss --eod-id 3"; do
    tries 3 || continue
    # shellcheck disable=SC2086 # words
    accumulates 8 $options
    mv log.jsonl whole.jsonl
    for micro in 4 2 1; do
        # shellcheck disable=SC2086 # words
        accumulates $micro $options
        matches steps whole.jsonl log.jsonl 1e-11 1e-10
    done
done

it "masked tokens make the mean of micro-batches another one than the mean of the step"
accumulates 8 --eod-mask-loss --eod-id 3
mv log.jsonl whole.jsonl
accumulates 2 --eod-mask-loss --eod-id 3
difference=$(python3 "$tests_folder/trainer/same_run.py" steps whole.jsonl log.jsonl 1e-6 1e-6)
case $difference in
"iteration "*": loss "*) ;;
*) is_wrong "it is the same, so the test before this one shows nothing: $difference" ;;
esac
