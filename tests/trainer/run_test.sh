#!/bin/sh
# run_test.sh FERRY - what a training run measures of itself, when it ends, and its samples where batch sizes change.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
enter run

# The model of the golden runs on their data, with schedules in samples, which fit any batch size: runs OPTION...
runs() {
    train --load "$models/llama" --data-path u16 --seq-length 32 --lr 5e-3 --min-lr 5e-4 --lr-decay-style cosine \
        --lr-warmup-samples 24 --lr-decay-samples 144 --train-samples 160 --eval-iters 0 --log-interval 1 \
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
