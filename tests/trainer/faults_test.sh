#!/bin/sh
# faults_test.sh FERRY - what ferry train refuses, with exit code and message, and what it says and goes on.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
llama=$models/llama
enter faults
ln -s "$data/wide.bin" "$data/wide.idx" .

# The golden run from its model, and nothing else in this folder but data: starts OPTION...
starts() {
    rm -rf cache out log.jsonl
    trains_as fp32 --load "$llama" --save out --log-jsonl log.jsonl "$@"
}

# Refused before anything was written.
refused() { # EXIT_CODE MESSAGE
    exits "$1"
    says "$2"
    prints_nothing
    is_not_there out log.jsonl
}

it "--load without a model is refused, and not a random start"
starts --load nowhere
refused 4 "--load nowhere: no such folder"
mkdir empty
starts --load empty
refused 4 "--load empty has no model"
starts --load "$tests_folder/golden/megatron-training/fp32-plain-optimizer" --ckpt-step 7
exits 4
says "7"

it "an iteration that is not of this run is refused before anything is loaded, or replaced with --overwrite"
for at in 10 20; do
    starts --save hf --save-hf out --exit-interval 1
    rm -rf hf && mkdir hf
    mv out/iter_0000001 hf/iter_00000$at
    starts --save-hf hf
    refused 7 "hf/iter_00000$at: exists and is not empty; --overwrite replaces it"
    starts --save-hf hf --overwrite
    exits 0
    same_checkpoints hf/iter_00000$at out/iter_00000$at --no-optim
    rm -r hf
done
starts --save-interval 20
mv out theirs
starts --load theirs --save theirs --finetune
refused 7 "theirs/iter_0000020: exists and is not empty; --overwrite replaces it"
rm -r theirs
mkdir -p own/iter_0000010
echo text >own/iter_0000010/notes
starts --save own --overwrite
refused 7 "own/iter_0000010: --overwrite does not replace it"
[ "$(cat own/iter_0000010/notes)" = text ] || is_wrong "the file of a user"

it "a dataset that is cut off is refused by name, before weights are loaded"
head -c 1000 u16.bin >short.bin
cp u16.idx short.idx
starts --data-path short
refused 5 "sequence 15 is 490 bytes at 816 of short.bin, which has 1000"
head -c 100 u16.idx >short.idx
starts --data-path short
refused 5 "short.idx"
starts --data-path gone
refused 4 "gone.idx: No such file or directory"

it "an id beyond the vocabulary is refused, and its document named"
starts --data-path wide --split 8,1,1
exits 5
says "wide.bin: document 29 (sequence of the index), element 73 is 56689: the model has 128 tokens"
is_not_there out

it "samples longer than the positions that the model has learned are refused"
starts --load "$models/gpt2" --seq-length 128 --max-position-embeddings 128
exits 3
is_not_there out
rm -rf cache
train --load "$models/gpt2" --seq-length 128 --micro-batch-size 2 --train-iters 3 --lr 1e-3 --data-path u16
refused 3 "--seq-length 128 is above the model's 64 learned positions"

it "samples longer than the rotary positions of the folder are refused, since Megatron-LM refuses what is saved"
for model in "--load" "--hf-config"; do
    for more in "" "--dry-run"; do
        # shellcheck disable=SC2086 # words
        train $model "$models/llama" --seq-length 96 --micro-batch-size 2 --train-iters 3 --lr 1e-3 --data-path u16 $more
        refused 3 "--seq-length 96 is above the model's 64 positions, which Megatron-LM refuses: raise max_position_embeddings in $models/llama/config.json"
    done
done

it "a micro-batch of more tokens than ops can number is refused, one that no memory has after its plan"
starts --micro-batch-size 33554432 --global-batch-size 33554432
refused 3 "--micro-batch-size 33554432 is above the maximum of 33554431 for --seq-length 32"
starts --micro-batch-size 80000000000000000 --global-batch-size 80000000000000000 --dry-run
refused 3 "--micro-batch-size 80000000000000000 is above the maximum of 33554431 for --seq-length 32"
starts --seq-length 1073741824 --max-position-embeddings 1073741824
refused 3 "--seq-length 1073741824 is above the maximum of 1073741823"
trains_as moe --load "$models/mixtral" --save out --micro-batch-size 16777216 --global-batch-size 16777216
refused 3 "--micro-batch-size 16777216 is above the maximum of 16777215 for --seq-length 32"
starts --micro-batch-size 12000000 --global-batch-size 12000000
exits 6
says "the run needs 2.49 TB"
is_not_there out log.jsonl

# nan_in TENSOR ELEMENT - the model with one weight that is no number
nan_in() {
    rm -rf nan
    cp -r "$llama" nan && chmod -R u+w nan
    python3 - "$@" <<'EOF'
import json, struct, sys
file = open("nan/model.safetensors", "r+b")
size = struct.unpack("<Q", file.read(8))[0]
begin = json.loads(file.read(size))[sys.argv[1]]["data_offsets"][0]
file.seek(8 + size + begin + 4 * int(sys.argv[2]))
file.write(struct.pack("<f", float("nan")))
EOF
}

it "a weight that is no number is exit code 10, and the op is named"
nan_in model.layers.2.mlp.up_proj.weight 10
starts --load nan
exits 10
says "iteration 1: decoder.layers.2.mlp.linear_fc1.weight: has NaN or infinity (seen in layers.2.fc1"
is_not_there out
starts --load nan --no-check-for-nan-in-loss-and-grad --exit-interval 3
exits 0
says "warning: skipping iteration 1 and others like it: decoder.layers.2.mlp.linear_fc1.weight: has NaN"
prints "number of nan iterations:"
for stage in 0 1; do
    nan_in model.layers.$((2 * stage + 1)).mlp.up_proj.weight 10
    starts --load nan --pp 2
    exits 10
    says "decoder.layers.$((2 * stage + 1)).mlp.linear_fc1.weight: has NaN or infinity (seen in layers.$((2 * stage + 1)).fc1"
done

it "a loss that explodes is exit code 10, the checkpoint before it stays"
starts --lr 1e30 --clip-grad 0 --save-interval 1 --weight-decay 0 --start-weight-decay 0 --end-weight-decay 0
exits 10
says "ferry train: iteration "
says " computes NaN or infinity from finite numbers"
is_there out/iter_0000001 out/latest_checkpointed_iteration.txt

it "gradients that overflow at the smallest loss scale are said once, and change nothing"
starts --fp16 --initial-loss-scale 4294967296 --min-loss-scale 2147483648 --hysteresis 1 \
    --exit-interval 6 --save-interval 1
exits 0
[ "$(grep -c overflow "$stderr")" = 1 ] || is_wrong "$ran: said $(grep -c overflow "$stderr") times: $(cat "$stderr")"
says "note: iteration 2: gradients overflow at the minimum loss scale, 2.14748e+09; such steps are skipped"
[ "$(grep '"grad_norm":null,' log.jsonl | grep -c '"loss_scale":2147483648.0,"skipped":true')" = 6 ] ||
    is_wrong "$ran: $(cat log.jsonl)"
same_checkpoints out/iter_0000001 out/iter_0000006 --no-optim

mount_tmpfs() {
    mkdir "$1" && mount -t tmpfs -o "$2" ferry-test "$1" 2>/dev/null
}

# Steps and lines of the golden run, whatever became of its saves.
trained_all_the_same() {
    matches steps "$runs/fp32/steps.jsonl" log.jsonl 1e-5 1e-5
    matches lines "$runs/fp32/log.txt" "$stdout" 1e-5
}

it "a disk without space for one checkpoint is said before anything is loaded, by a dry run too"
if mount_tmpfs tiny size=100k; then
    for option in --save --save-hf; do
        starts $option tiny/out
        refused 4 "$option tiny/out: no space: a checkpoint takes "
        starts $option tiny/out --dry-run
        exits 4
        says "$option tiny/out: no space: a checkpoint takes "
    done
else
    skip "cannot mount a tmpfs"
fi

it "two runs do not save into one folder"
starts --train-iters 20000 --lr-decay-iters 20 --save-interval 100000 --save shared >first 2>&1 &
first=$!
tried=0
until [ -e .shared.ferry-train ] || [ $tried -eq 600 ]; do
    sleep 0.1
    tried=$((tried + 1))
done
for save in shared ./shared/; do
    trains_as fp32 --load "$llama" --save $save
    exits 7
    says "--save $save: busy: process "
done
trains_as fp32 --load "$llama" --save shared --tp 2
exits 7
kill -9 "$(head -n 1 .shared.ferry-train | cut -d ' ' -f 2)"
wait $first
starts --save shared --exit-interval 1
exits 0
is_not_there .shared.ferry-train

it "a disk without space ends no run: it is said, and the last save is exit code 4"
if mount_tmpfs small size=700k; then
    starts --save small/out
    exits 4
    says "warning: iteration 10 is not saved: small/out: no space for iteration 10"
    says "ferry train: iteration 20 is not saved: small/out: no space for iteration 20"
    trained_all_the_same
    [ -z "$(ls -A small)" ] || is_wrong "left behind: $(ls -A small)"
else
    skip "cannot mount a tmpfs"
fi

it "a disk that is full after the first save keeps that one"
if mount_tmpfs filled size=2400k; then
    starts --save filled/out --save-interval 5
    exits 4
    says "warning: iteration 10 is not saved: filled/out: no space"
    trained_all_the_same
    [ "$(cat filled/out/latest_checkpointed_iteration.txt)" = 5 ] || is_wrong "the tracker"
    starts --exit-interval 5
    exits 0
    same_checkpoints filled/out out
else
    skip "cannot mount a tmpfs"
fi

it "a save that fails in its middle is said, the run goes on and saves the next"
if can_inject; then
    counts=$PWD/calls
    starts --save-interval 5 --exit-interval 5
    counts=''
    fault="pwrite:ENOSPC:$(($(calls_of pwrite calls) + 3))"
    for how in "" --async-save; do
        # shellcheck disable=SC2086 # a word or none
        starts --save-interval 5 --eval-interval 10 $how
        exits 0
        says "warning: iteration 10 is not saved: "
        says "No space left on device"
        trained_all_the_same
        is_there out/iter_0000005 out/iter_0000015 out/iter_0000020
        is_not_there out/iter_0000010
    done
    fault=''
else
    skip "no inject.so"
fi

it "a destination that fails does not hold up the other, and is named"
if mount_tmpfs narrow size=300k; then
    for how in "" --async-save; do
        rm -rf narrow/hf
        # shellcheck disable=SC2086 # a word or none
        starts --save-hf narrow/hf -q $how
        exits 4
        says "warning: iteration 10 is not saved by --save-hf: narrow/hf: no space for iteration 10"
        says "ferry train: iteration 20 is not saved by --save-hf: narrow/hf: no space for iteration 20"
        trained_all_the_same
        is_there out/iter_0000010 out/iter_0000020
    done
else
    skip "cannot mount a tmpfs"
fi

it "a save behind the steps that fails is said, whatever ends the run"
if mount_tmpfs narrower size=300k; then
    starts --save-hf narrower/hf --async-save --save-interval 1 --lr 1e30 --min-lr 0 --lr-warmup-iters 0
    exits 10
    says "warning: iteration 1 is not saved by --save-hf: narrower/hf: no space for iteration 1"
else
    skip "cannot mount a tmpfs"
fi

it "a folder that cannot be written to is refused before anything is loaded"
if mount_tmpfs fixed size=100k,ro; then
    for option in --save --save-hf; do
        starts $option fixed/out
        refused 4 "fixed/out: checkpoints cannot be written to fixed: Read-only file system"
    done
else
    skip "cannot mount a tmpfs"
fi
touch file
starts --save file
refused 4 "file: checkpoints cannot be written to file: Not a directory"
starts --save file/out
refused 4 "file/out: checkpoints cannot be written to file: Not a directory"

it "--async-save writes the same checkpoints"
starts
mv out at-once
starts --async-save
exits 0
for at in 10 20; do same_checkpoints at-once/iter_00000$at out/iter_00000$at; done
rm -r at-once

it "--async-save writes at the lowest priority while steps are computed, and at once when none is left"
if command -v strace >/dev/null; then
    for saves in 0 1; do
        rm -rf out
        [ $saves -eq 0 ] || behind=--async-save
        # shellcheck disable=SC2046,SC2086 # words
        run_program strace -qq -f -E ASAN_OPTIONS=detect_leaks=0 -o calls -e trace=setpriority "$ferry" train --threads 1 \
            $(line_of fp32) --load "$llama" --save out ${behind-}
        exits 0
        is_there out/iter_0000010 out/iter_0000020
        [ "$(grep -c 'setpriority(PRIO_PROCESS, 0, 19) *= 0' calls)" -eq $saves ] || is_wrong "$ran: $(cat calls)"
    done
else
    skip "no strace"
fi

it "a model of another shape is refused by the field, or by the name of a tensor"
starts --num-layers 5
refused 3 "num_layers is 4 in --load, 5 in the command line"
starts --num-layers 5 --allow-mismatch num_layers
refused 3 "decoder.layers.4.self_attention.linear_qkv.weight"
starts --hidden-size 64 --allow-mismatch '*'
refused 3 "embedding.word_embeddings.weight: shape [128, 32], expected [128, 64] by the config"
starts --load "$models/gpt2" --allow-mismatch '*'
refused 3 "decoder.layers.0.self_attention.linear_qkv.weight"
starts --save-interval 20
mv out of-llama
trains_as gpt2 --load "$models/gpt2" --save of-llama
exits 3
says "of-llama"

it "unknown options are exit code 2, with the nearest one"
starts --trian-iters 5
refused 2 "unknown option --trian-iters (did you mean --train-iters?)"

it "all contradictions are in one message"
starts --num-attention-heads 5 --bf16 --fp16 --train-samples 55 --min-lr 1 --global-batch-size 7
refused 2 "the options do not fit together:"
says "  --num-attention-heads 5 is not a multiple of --num-query-groups 2"
says "  give one of --train-iters and --train-samples"
says "  --global-batch-size 7 is not a multiple of --micro-batch-size 2 times 1 data parallel rank"
says "  --min-lr 1 is above --lr 0.005"
says "  give one of bfloat16 and float16 (--bf16, --fp16, --dtype)"

it "context parallelism is refused"
starts --cp 2 --micro-batch-size 1 --seq-length 32
refused 2 "--context-parallel-size 2: training with context parallelism is not supported; leave it out"
starts --cp 2 --bf16 --fp16
refused 2 "the options do not fit together:"
says "  --context-parallel-size 2: training with context parallelism is not supported"
says "  give one of bfloat16 and float16 (--bf16, --fp16, --dtype)"

it "a model that no family of Hugging Face computes is refused for --save-hf before it is trained"
train --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 \
    --vocab-size 64 --num-experts 4 --moe-router-score-function sigmoid --disable-bias-linear --swiglu \
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \
    --micro-batch-size 1 --train-iters 1 --lr 1e-3 --mock-data --save-hf unknown
refused 3 "--save-hf unknown: no known family of Hugging Face models computes this model"
is_not_there unknown

it "a checkpoint without optimizer is continued, and it is said"
starts --no-save-optim --exit-interval 5
exits 0
rm log.jsonl
trains_as fp32 --save out --log-jsonl log.jsonl
exits 0
says "the run resumes from out/iter_0000005, iteration 5"
says "the checkpoint has no optimizer: first moments are 0, second moments are 0"
says "the learning rate schedule starts anew"

it "another learning rate than the checkpoint's is refused, unless it is said which counts"
starts --exit-interval 5
mv out half
starts --load half --lr 0.125
exits 2
says "learning rate: 0.125 is given, but the checkpoint has 0.005; --override-opt_param-scheduler takes"
starts --load half --lr 0.125 --override-opt_param-scheduler
exits 0
starts --load half --lr 0.125 --use-checkpoint-opt_param-scheduler
exits 0
matches steps "$runs/fp32/steps.jsonl" log.jsonl 1e-5 1e-5 6

it "--finetune takes the weights only, and begins at the first iteration"
starts --load half --finetune --exit-interval 3
exits 0
[ "$(cat out/latest_checkpointed_iteration.txt)" = 3 ] || is_wrong "the tracker"
prints " iteration        1/      20 | consumed samples:            8 |"
rm -r half

it "--dry-run prints the plan, and writes nothing"
starts --dry-run
exits 0
prints "model: 4 layers, hidden size 32, vocabulary 128"
prints "steps: 20 iterations of 8 sequences of 32 tokens, 2 at a time"
prints "reads: $llama"
prints "writes: out"
prints "  parameters              0.16 MB"
is_not_there out log.jsonl cache

# limited KILOBYTES OPTION... - in so much address space
limited() {
    # shellcheck disable=SC2016,SC2086,SC3045 # for the inner shell; words; dash knows it
    run_program sh -c 'ulimit -v "$1"; shift; exec timeout 300 "$@"' - "$1" "$ferry" train --threads 1 --load deep \
        --mock-data --seq-length 256 --micro-batch-size 4 --train-iters 1 --lr 1e-3 --save deep-out $fitting
}

it "a run that does not fit the memory is refused with its plan, and with a run that fits"
# shellcheck disable=SC3045 # dash knows it
if [ "$(ulimit -v)" != unlimited ] || [ "$(nproc)" -gt 8 ] || nm -D "$ferry" | grep -q __asan; then
    skip "another limit, many CPUs, or sanitizers, which take all of it"
elif is_share; then
    skip "its limits are tried together"
else
    "$ferry" synth -q deep --model gpt2 --layers 16 --hidden 128 --heads 4 --ffn-hidden-size 512 --vocab-size 512 \
        --dtype f32
    advices='' libraries=$((($(nproc) + 1) * 131072))
    for over in $(seq 150000 15000 420000) 600000; do
        fitting=
        limited $((libraries + over))
        advice=$(sed -n 's/^ferry train: the run needs .* are free; \(.*\)/\1/p' "$stderr")
        case $code in
        0)
            advices="$advices|none"
            break
            ;;
        6)
            says "steps: 1 iterations of 4 sequences of 256 tokens, 4 at a time"
            says "  activations "
            is_not_there deep-out
            advices="$advices|$advice"
            case "$advice" in --*) fitting=${advice%% fits*} ;; esac
            ;;
        *) is_wrong "with $over KB: exit code $code: $(tail -n 1 "$stderr")" ;;
        esac
        if [ -n "$fitting" ]; then
            limited $((libraries + over))
            exits 0
            prints " | global batch size:     4 |"
        fi
        rm -rf deep-out
    done
    for wanted in "no smaller --micro-batch-size and no --recompute-granularity fits (at least 7?.? MB)" "|none" \
        "|--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 fits (8?.? MB)" \
        "|--micro-batch-size 1 --global-batch-size 4 fits (1[01]? MB)" \
        "|--micro-batch-size 2 --global-batch-size 4 fits (1[34]? MB)"; do
        case "$advices" in
        *$wanted*) ;; # a pattern: the last digits differ between CPUs
        *) is_wrong "at no limit it says '$wanted': $advices" ;;
        esac
    done
    rm -rf deep-out
    fitting=--async-save
    limited $((libraries + over))
    exits 6
    says "  copy of states         42.0"
    says " MB are free; without --async-save it fits (2"
fi

it "--json prints the result, and lines of training go to stderr"
starts --json
exits 0
says " iteration       20/      20 | consumed samples:          160 |"
python3 - "$stdout" <<'EOF' || is_wrong "the result: $(cat "$stdout")"
import json, sys
r = json.load(open(sys.argv[1]))
assert (r["iteration"], r["consumed_samples"], r["skipped_iterations"]) == (20, 160, 0), r
assert abs(r["loss"] - 4.378863) < 1e-5 and r["saved"] == "out" and r["exit_code"] == 0, r
EOF
starts --json --load nowhere
exits 4
prints '"error": "--load nowhere: no such folder"'
