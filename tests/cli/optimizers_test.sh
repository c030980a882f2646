#!/bin/sh
# optimizers_test.sh - runs of Muon and Lion, whose hidden matrices have another optimizer than the rest: what Megatron
# held is what each layout and format says, and where a format has one optimizer only they are refused by name.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/megatron-optim
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}/megatron-optim
. "$(dirname "$0")/lib.sh"

# truth_of CASE: a folder with what Megatron held, in $truth; its checkpoint in $source
truth_of() {
    source=$golden/$1/checkpoint truth=$golden/$1/expected
    [ -d "$source" ] && return 0
    source=$fixtures/$1/checkpoint truth=$PWD/truth-$1
    [ -d "$source" ] || return 1
    mkdir -p "$truth" && cp "$fixtures/$1"/expected/* "$fixtures/$1/optimizer.safetensors" "$truth"
}

for case in muon-layer-wise-tp2dp2 muon-moe-ep2 lion-layer-wise-dp2 muon-torch-dp2 muon-replicated muon-fully-reshardable-tp2dp2 \
    muon-ping-pong-dp2 muon-qwen3-pp2 muon-gpt2 muon-lion-dp2 muon-lion-fully-reshardable-dp2 \
    muon-layer-wise-0.18.2-dp2 sgd-replicated; do
    truth_of "$case" || continue

    it "$case is what Megatron held"
    run verify "$source" "$truth"
    exits 0
    prints "identical"

    it "$case stays that at other layouts, distributed or not"
    "$ferry" digest "$truth" >want 2>/dev/null
    for to in "--tp 1 --ep 1" "--tp 2 --optim-format not_distributed" "--pp 1 --ep 1 --optim-format fully_reshardable"; do
        [ "$case" = sgd-replicated ] && to=${to% --optim-format fully*}
        rm -rf out
        # shellcheck disable=SC2086 # words
        run convert "$source" out --verify full --hf-config "$truth" --to torch_dist $to
        exits 0
        run digest out --check want
        exits 0
    done

    it "$case goes to a Hugging Face folder with its groups, and back"
    rm -rf hf back
    run convert "$source" hf --to hf --optim --hf-config "$truth"
    exits 0
    says "lossy    nothing"
    run convert hf back --tp 2
    exits 0
    run digest back --check want
    exits 0
done

truth_of muon-moe-ep2

it "each group names its optimizer"
run inspect "$source"
exits 0
prints "muon, 4 groups: hidden_matrices (muon, lr 0.01, weight decay 0.01, momentum 0.95)"
prints "hidden_matrices of experts (muon, lr 0.01"
prints "matrices (adam, lr 0.01, weight decay 0.01), vectors (adam, lr 0.01, weight decay 0)"

it "a layer-wise run's args are those of Megatron-LM"
rm -rf out
run convert "$source" out --hf-config "$truth" --tp 2 --ep 1
exits 0
says "as fully_reshardable"
says "lossy    nothing"
run inspect out --args
prints "use_distributed_optimizer                 False"
prints "use_layer_wise_distributed_optimizer      True"
prints "use_layer_wise_param_layout               True"
run inspect out
prints "muon, 3 groups: hidden_matrices (muon"
rm -rf out
run convert "$source" out --hf-config "$truth" --tp 2 --optim-format not_distributed
run inspect out --args
prints "use_layer_wise_distributed_optimizer      False"

it "flags of Adam change Adam's groups alone"
rm -rf out
run convert "$source" out --hf-config "$truth" --tp 2 --adam-eps 0.5
exits 0
"$ferry" inspect out --json 2>/dev/null >json
python3 - json <<'EOF' || is_wrong "groups: $(grep -o "eps[^,]*" json)"
import json, sys
groups = json.load(open(sys.argv[1]))["training"]["groups"]
assert [g.get("eps") for g in groups] == [None if g["optimizer"] == "muon" else 0.5 for g in groups], groups
assert [g["optimizer"] for g in groups].count("muon") == 2 and len(groups) == 4
assert {g["members"] for g in groups if g["optimizer"] == "muon"} == {"hidden_matrices"}
EOF

it "a run does not go on with another optimizer unless it is asked for"
truth_of muon-layer-wise-tp2dp2
train() {
    run train --load "$source" --use-checkpoint-args --mock-data --train-iters 12 --micro-batch-size 1 \
        --global-batch-size 2 --seq-length 16 --lr 0.01 --min-lr 0.001 --bf16 "$@"
}
train
exits 3
says "has states of muon, but --optimizer is adam"
train --no-load-optim --dry-run
exits 0
truth_of lion-layer-wise-dp2
train
exits 3
says "has states of lion, but --optimizer is adam"

it "a data parallel rank's file that is missing is named"
truth_of muon-torch-dp2
cp -r "$source" part
rm part/iter_0000010/mp_rank_00/layer_wise_optimizer_1.pt
run convert part out --to torch_dist --hf-config "$truth"
exits 3
says "layer_wise_optimizer_1.pt is missing, with the states of some parameters: the run had 2 data parallel ranks"
cp part/iter_0000010/mp_rank_00/layer_wise_optimizer_0.pt part/iter_0000010/mp_rank_00/layer_wise_optimizer_1.pt
run convert part out --to torch_dist --hf-config "$truth"
exits 3
says "belongs to"
truth_of muon-moe-ep2

it "formats with one optimizer refuse two"
for to in dcp fsdp "deepspeed --zero 1" "deepspeed --zero 3 --dp 2" deepspeed-universal; do
    rm -rf out
    # shellcheck disable=SC2086 # words
    run convert "$source" out --hf-config "$truth" --to $to
    exits 3
    says "--no-optim"
    [ ! -e out ] || is_wrong "out was written"
done
run convert "$source" out --hf-config "$truth" --to torch
exits 3
says "states of muon beside another optimizer's are written in torch_dist"
run convert "$source" out --hf-config "$truth" --optim-format fully_sharded_model_space
exits 3
says "fully_reshardable or not_distributed"

it "Adam's second moment, which Megatron does not read beside Lion, is lossy"
truth_of lion-layer-wise-dp2
rm -rf out
run convert "$source" out --hf-config "$truth" --tp 2
exits 0
says "lossy    exp_avg_sq, which Megatron-Core up to 0.19 does not read beside Lion"
rm -rf out
run convert "$source" out --hf-config "$truth" --tp 2 --optim-format not_distributed
exits 0
says "lossy    nothing"

it "a second moment that Megatron did not save is named"
source=$golden/lion-fully-reshardable-dp2/saved truth=$golden/lion-fully-reshardable-dp2/expected
rm -rf out
run convert "$source" out --hf-config "$truth" --tp 2
exits 3
says "exp_avg_sq of the parameters that adam has is in no file"
run convert "$source" out --hf-config "$truth" --tp 2 --no-optim
exits 0

if [ -d "$fixtures/muon-missing-momentum" ]; then
    it "a hidden matrix without its momentum is named"
    rm -rf out
    run convert "$fixtures/muon-missing-momentum/checkpoint" out --true-vocab-size 30
    exits 3
    says "decoder.layers.0.mlp.linear_fc2.weight has no momentum_buffer"

    it "SGD's states are not written as the distributed optimizer's"
    truth_of sgd-replicated
    run convert "$source" out --hf-config "$truth" --optim-format fully_reshardable
    exits 3
    says "Megatron's distributed optimizer has Adam's only"
fi
