#!/bin/sh
# model_and_data_test.sh FERRY - a run trains the model and the data that its line names, or refuses, naming both.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
enter model-and-data
synth_model hf --layers 2
synth_model hf3 --layers 3
cp -r hf rope
sed -i 's/10000\.0/50000.0/g' rope/config.json

steps="--seq-length 16 --micro-batch-size 2 --global-batch-size 4 --lr 1e-3 --lr-decay-style constant --log-interval 1"
layers="--hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 8 --group-query-attention --num-query-groups 2
    --position-embedding-type rope --max-position-embeddings 2048 --normalization RMSNorm --norm-epsilon 1e-6 --swiglu
    --disable-bias-linear --untie-embeddings-and-output-weights --make-vocab-size-divisible-by 8"

# Few steps: trains OPTION..., of mock data: mocks OPTION...
trains() {
    # shellcheck disable=SC2086 # words
    train $steps "$@"
}

mocks() {
    trains --mock-data "$@"
}

# With the model of hf on the line: describes LAYERS OPTION...
describes() {
    number_of_layers=$1
    shift
    # shellcheck disable=SC2086 # words
    mocks --num-layers "$number_of_layers" $layers --hidden-dropout 0 --attention-dropout 0 "$@"
}

refused() { # EXIT_CODE MESSAGE
    exits "$1"
    says "$2"
    is_not_there out
    rm -rf out
}

# ---- a run that goes on ----

mocks --load hf --train-iters 2 --save run
cp -r run begun
goes_on() {
    rm -rf run
    cp -r begun run
    "$@" --train-iters 4 --save run --override-opt_param-scheduler
}

it "a beta of the checkpoint that is none is refused"
mocks --load hf --train-iters 2 --save-hf states
sed -i 's/"beta2":[^,]*/"beta2": 1.5/' states/iter_0000002/training.json
mocks --load states/iter_0000002 --train-iters 4 --override-opt_param-scheduler --save out
refused 5 "states/iter_0000002: a parameter group has 1.5 as --adam-beta2, out of range"

it "--save is no model, and no iteration"
mocks --load hf --train-iters 2 --save hf/
refused 7 "--save hf/ is a model, not a folder of checkpoints"
is_not_there hf/iter_0000002
mocks --load hf --train-iters 4 --save begun/iter_0000002
refused 7 "--save begun/iter_0000002 is an iteration, not a folder of checkpoints"
is_not_there begun/iter_0000002/iter_0000004

it "a --save of another model than --load is not continued"
goes_on mocks --load hf3
refused 3 "--save run has a run of another model than --load hf3: num_layers is 2 in --save, 3 in --load hf3"
goes_on mocks --load rope
refused 3 "another model than --load rope: rotary_base is 10000 in --save, 50000 in --load rope"
synth_model vocabulary --layers 2 --vocab-size 512
goes_on mocks --load vocabulary
refused 3 "vocab_size is 1000 in --save, 512 in --load vocabulary"
[ "$(cat run/latest_checkpointed_iteration.txt)" = 2 ] || is_wrong "it was continued"

it "a --save of another model than --hf-config is not continued"
goes_on mocks --hf-config hf3
refused 3 "--save run has a run of another model than --hf-config hf3: num_layers is 2 in --save, 3 in"
goes_on mocks --hf-config rope
refused 3 "another model than --hf-config rope: rotary_base is 10000 in --save, 50000 in --hf-config rope"
goes_on mocks --hf-config hf
exits 0

it "a --hf-config with fields that are not known is refused, unless they are allowed"
mkdir scaled
sed 's/"hidden_size"/"residual_multiplier": 0.3, "hidden_size"/' hf/config.json >scaled/config.json
mocks --hf-config scaled --train-iters 1
refused 3 "scaled: unknown fields may change what the model computes (--allow-config FIELD computes without them): config.json: residual_multiplier 0.3"
mocks --hf-config scaled --train-iters 1 --allow-config 'residual*' --allow-config nothing
exits 0
says "--allow-config nothing"

it "a --save of another model than the line's is not continued"
goes_on describes 1 --vocab-size 1000
refused 3 "--save run has a run of another model than the command line: num_layers is 2 in --save, 1 in"
goes_on describes 2 --vocab-size 1000 --rotary-base 50000
refused 3 "another model than the command line: rotary_base is 10000 in --save, 50000 in"
goes_on describes 2 --load hf
exits 0
says "the run resumes from run/iter_0000002, iteration 2"
goes_on describes 1 --load run
refused 3 "another model than the command line: num_layers is 2 in --save, 1 in"

it "a --save is continued where --load was removed, which is said"
goes_on mocks --load gone
exits 0
says "--load gone no longer has a model; the run resumes from --save run"
[ "$(cat run/latest_checkpointed_iteration.txt)" = 4 ] || is_wrong "the tracker"

# ---- a model on the line, and a folder ----

it "a line of another model than the folder's is refused by the field"
describes 1 --load hf --train-iters 2 --save out
refused 3 "--load hf has another model than the command line: num_layers is 2 in --load, 1 in the command line"
for line in "rotary_base --rotary-base 5000" "layernorm_epsilon --norm-epsilon 1e-3" "sliding_window --window-size 4,0" \
    "rotary_interleaved --rotary-interleaved" "rotary_percent --rotary-percent 0.5"; do
    field=${line%% *}
    # shellcheck disable=SC2086 # words
    describes 2 --load hf --train-iters 2 --save out ${line#* }
    refused 3 "the command line: $field is "
    # shellcheck disable=SC2086 # words
    describes 2 --load hf --train-iters 2 --exit-interval 1 --dry-run --allow-mismatch "$field" \
        --allow-mismatch window_layers ${line#* }
    exits 0
done

it "a run of DeepSpeed's or torchtitan's goes on where it stopped: schedule, samples, iteration"
for case in deepspeed/zero2-bf16-dp2-aligned dcp/torchtitan-fused-dp2; do
    other=$tests_folder/golden/$case
    train --load "$other/ckpt" --hf-config "$other/expected" --mock-data --seq-length 16 --micro-batch-size 1 \
        --global-batch-size 4 --train-iters 30 --exit-interval 1 --lr 1e-3 --lr-decay-style cosine \
        --lr-warmup-iters 10 --lr-decay-iters 30 --log-interval 1 --log-jsonl other.jsonl
    exits 0
    says "has no schedule of Megatron's: this run's stands at sample 12"
    # the fourth of ten steps of the warm-up
    grep -q '^{"iteration":4,"consumed_samples":16,"lr":0.0003' other.jsonl || is_wrong "$case: $(cat other.jsonl)"
    rm -f other.jsonl
done

it "a script that loads what it saves begins with random weights"
scratch_run() {
    mocks --num-layers 1 --hidden-size 16 --num-attention-heads 2 --max-position-embeddings 16 --vocab-size 100 \
        --lr-decay-iters 4 --load first --save first "$@"
}
for how in absent empty; do
    rm -rf first
    [ $how = absent ] || mkdir first
    scratch_run --train-iters 4 --exit-on-missing-checkpoint
    exits 4
    scratch_run --train-iters 4 --exit-interval 2
    exits 0
    says "warning: --load first has no checkpoint: the run begins with random weights"
done
scratch_run --train-iters 4
exits 0
prints "iteration        3/       4"
rm -rf first
mkdir -p first/other
scratch_run --train-iters 2
exits 4
says "--load first has no model"

it "states of another optimizer are refused"
describes 2 --load hf --train-iters 2 --exit-interval 1 --save by-adam
exits 0
describes 2 --load by-adam --train-iters 4 --optimizer sgd --save out
refused 3 "--load by-adam has states of adam, but --optimizer is sgd: --no-load-optim leaves them out"
describes 2 --load by-adam --train-iters 4 --optimizer sgd --no-load-optim --exit-interval 2
exits 0
describes 2 --load by-adam --train-iters 4 --optimizer sgd --allow-mismatch optimizer --exit-interval 2 \
    --override-opt_param-scheduler
exits 0

it "what differs in shape, though allowed, is refused by the names of tensors"
describes 1 --load hf --train-iters 2 --save out --allow-mismatch num_layers
refused 3 "hf: 6 tensors missing in the model of the command line: decoder.layers.1."
synth_model biased --model qwen2 --layers 2
describes 2 --load biased --train-iters 2 --save out --allow-mismatch 'add_*'
refused 3 "biased: 2 tensors missing in the model of the command line: decoder.layers.0.self_attention.linear_qkv.bias"

it "a vocabulary that is not the folder's is refused"
for size in 900 2000; do
    describes 2 --load hf --vocab-size $size --train-iters 2 --save out
    refused 3 "--vocab-size $size: the vocabulary of hf has 1000 tokens"
    mocks --load hf --vocab-size $size --train-iters 2 --save out
    refused 3 "--vocab-size $size: the vocabulary of hf has 1000 tokens"
done
describes 2 --load hf --padded-vocab-size 992 --train-iters 2 --save out
refused 3 "--padded-vocab-size 992: the vocabulary of hf has 1000 tokens"
describes 2 --load hf --vocab-size 1000 --padded-vocab-size 1024 --train-iters 2 --save padded
exits 0

it "an iteration of a folder without iterations is refused"
mocks --load hf --ckpt-step 5 --train-iters 2 --save out
refused 2 "--load hf: --ckpt-step 5 does not apply to a model without iterations"
mkdir models
for at in 1 5; do cp -r hf models/iter_000000$at; done
mocks --load models/iter_0000001 --ckpt-step 5 --train-iters 2 --save out
refused 2 "--load models/iter_0000001: --ckpt-step 5 does not apply to a single iteration"
mocks --load models --ckpt-step 5 --train-iters 2
exits 0

# ---- ends of documents ----

ids() { # FILE DOCUMENTS
    python3 - "$@" <<'PY'
import json, random, sys
r = random.Random(1)
with open(sys.argv[1], "w") as f:
    for _ in range(int(sys.argv[2])):
        f.write(json.dumps({"ids": [r.randrange(0, 998) for _ in range(20)] + [999]}) + "\n")
PY
}
ids many.jsonl 2000
"$ferry" data -q many.jsonl many
ids one.jsonl 1
"$ferry" data -q one.jsonl one

it "options about ends of documents are refused where no end is known"
for option in --reset-position-ids --reset-attention-mask --eod-mask-loss; do
    trains --load hf --data-path many --train-iters 2 --save out $option
    refused 2 "$option: no end-of-document id is known; give --eod-id"
    mocks --load hf --train-iters 2 --save out $option
    refused 2 "$option: no end-of-document id is known; give --eod-id"
done
trains --load hf --data-path many --train-iters 2 --save out --eod-mask-loss --dry-run
refused 2 "--eod-mask-loss: no end-of-document id is known; give --eod-id"
mocks --load hf --train-iters 2 --eod-mask-loss --eod-id 999
exits 0
says "--eod-mask-loss has no effect: mock data have no documents"

it "NullTokenizer's end of document is the last id of the folder's vocabulary"
trains --load hf --data-path many --train-iters 2 --eod-mask-loss --eod-id 999
exits 0
sed -n 's/.*lm loss: \([^ ]*\) .*/\1/p' "$stdout" >by-id
trains --load hf --data-path many --train-iters 2 --eod-mask-loss --tokenizer-type NullTokenizer
exits 0
[ "$(sed -n 's/.*lm loss: \([^ ]*\) .*/\1/p' "$stdout")" = "$(cat by-id)" ] || is_wrong "$(cat by-id "$stdout")"

it "an end of document beyond the vocabulary is refused"
trains --load hf --data-path many --train-iters 2 --save out --eod-id 1000
refused 2 "--eod-id 1000 is not below the vocabulary size, 1000"
trains --load hf --data-path many --train-iters 2 --save out --tokenizer-type NullTokenizer --null-tokenizer-eod-id 1000
refused 2 "--null-tokenizer-eod-id 1000 is not below the vocabulary size, 1000"

# ---- data ----

it "--dry-run reads the headers of the data, and prints what they hold"
trains --load hf --data-path nodata --train-iters 2 --dry-run
refused 4 "nodata.idx: No such file or directory"
trains --load hf --data-path many --train-iters 2 --dry-run --data-cache-path cache
exits 0
prints "  many: 2000 documents, 42000 tokens"
prints "  train: "
is_not_there cache
cp many.idx cut.idx
head -c 1000 many.bin >cut.bin
trains --load hf --data-path cut --train-iters 2 --dry-run
refused 5 "cut.bin"
trains --load hf --data-path 0.5 many 0.5 many --train-iters 2 --dry-run --data-cache-path cache
exits 0
is_not_there cache
mocks --load hf --train-iters 2 --dry-run
exits 0
prints "  mock tokens"
mocks --load hf --train-iters 2 --dry-run --json
exits 0
says "  mock tokens"
python3 -m json.tool "$stdout" >/dev/null || is_wrong "no JSON: $(cat "$stdout")"
trains --load hf --data-path one.jsonl --split 1,0,0 --train-iters 2 --dry-run
exits 0
prints "  one.jsonl: 1 document, 21 tokens"

it "every recipe has a plan, and says whether it fits a given memory"
for recipe in "$tests_folder"/../recipes/*.yaml; do
    train --config "$recipe" --mock-data --dry-run --memory-per-rank 141
    exits 0
    prints "model: "
    prints "fits: "
    prints " of 141 GB"
    train --config "$recipe" --mock-data --dry-run --memory-per-rank 1
    exits 6
    says " GB of memory, but 1.00 GB are given"
done

it "a recipe has a plan with pipeline stages, each with its memory"
train --config "$tests_folder/../recipes/llama3.1-8b.yaml" --mock-data --dry-run --tp 2 --pp 2 --timeline drawn.svg
exits 0
prints "layout: TP2 PP2, 16 ranks; DP4"
grep -Eq "^ +0  0-7 +E 0-15 +2007.6 M " "$stdout" || is_wrong "no stage 0: $(cat "$stdout")"
grep -Eq "^ +1  8-15 +16-31 L +2007.6 M " "$stdout" || is_wrong "no stage 1: $(cat "$stdout")"
prints "  PP             2 ranks, such as 0 8                       1.07 GB" # 32 times 4096 x 4096 of bf16
prints "schedule: 1f1b, 32 micro-batches, bubble 3.0%"
python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' drawn.svg || is_wrong "drawn.svg"

it "a dry run of several ranks that do not fit this machine is no failure, and it is said"
train --config "$tests_folder/../recipes/qwen3-30b-a3b.yaml" --mock-data --dry-run --micro-batch-size 128 --global-batch-size 512
exits 0
prints "layout: TP2 EP8 ETP1, 8 ranks; DP4"
prints "  TP             2 ranks, such as 0 1 "
prints "  DP             4 ranks, such as 0 2 4 6 "
prints "  EP             8 ranks, such as 0 1 2 3 4 5 6 7 "
prints "schedule: 1 micro-batch"
prints "  mock tokens"
prints "does not fit this machine: each rank needs "
train --config "$tests_folder/../recipes/qwen3-30b-a3b.yaml" --mock-data --dry-run --micro-batch-size 128 --global-batch-size 512 --json
exits 0
grep -q '"fits": false' "$stdout" || is_wrong "fits: $(cat "$stdout")"
train --config "$tests_folder/../recipes/llama3.1-8b.yaml" --mock-data --dry-run --dp 64 --json
exits 0
grep -q '"fits": null' "$stdout" || is_wrong "fits: $(cat "$stdout")"
mocks --load hf --train-iters 2 --dry-run
prints "fits this machine: the run takes "
prints " GB free"
mocks --load hf --train-iters 2 --memory-per-rank 1
refused 2 "--memory-per-rank needs --dry-run"
for size in 0 -1 1e300; do
    mocks --load hf --train-iters 2 --dry-run --memory-per-rank $size
    refused 2 "--memory-per-rank"
done

it "a split without documents is refused by the option that makes it so"
trains --load hf --data-path one --train-iters 2 --save out
refused 3 "one: --split leaves no document for valid: there is 1 in all; --split 1,0,0 trains on all of them"

it "half a mask of a packed dataset is refused by name, and a mask is never left out"
for file in many.bin many.idx; do cp $file "packed.${file#*.}" && cp $file "packed.mask.${file#*.}"; done
trains --load hf --data-path packed --train-iters 2 --split 1,0,0
exits 0
says "packed"
sed -n 's/.*lm loss: \([^ ]*\) .*/\1/p' "$stdout" >by-prefix
for path in "--data-path packed.bin --split 1,0,0" "--data-path packed.idx --split 1,0,0" "--train-data-path packed"; do
    # shellcheck disable=SC2086 # words
    trains --load hf $path --train-iters 2
    exits 0
    [ "$(sed -n 's/.*lm loss: \([^ ]*\) .*/\1/p' "$stdout")" = "$(cat by-prefix)" ] || is_wrong "$path: other losses"
done
trains --load hf --data-path 0.5 packed 0.5 many --train-iters 2 --split 1,0,0 --save out
refused 3 "packed documents come from one path"
mv packed.mask.idx away
trains --load hf --data-path packed --train-iters 2 --split 1,0,0 --save out
refused 4 "packed.mask.idx: No such file or directory"
mv away packed.mask.idx
rm packed.mask.bin
trains --load hf --data-path packed --train-iters 2 --split 1,0,0 --save out
refused 4 "packed.mask.bin: No such file or directory"
