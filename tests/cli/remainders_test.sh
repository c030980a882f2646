#!/bin/sh
# remainders_test.sh - masters that Megatron saved as the lower 16 bits beside their weights: the truth beside them,
# from memory, is what they become in every format.
golden=$(cd "$(dirname "$0")" && pwd)/../golden/megatron-optim
tests=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/lib.sh"

for case in remainders-dp-reshardable-dp2 remainders-fully-reshardable-tp2dp2; do
    source=$golden/$case/checkpoint truth=$golden/$case/expected

    it "$case is what Megatron held"
    run verify "$source" "$truth"
    exits 0
    prints "identical: 60 tensors"
    run inspect "$source"
    exits 0
    says "15 master weights are stored as remainders, their lower 16 bits (--use-precision-aware-optimizer)"
    prints "15 masters are stored as remainders"
    run inspect "$source" --json
    prints '"remainders": 15'

    it "$case is that in each format of Megatron, whose args say that masters are whole"
    "$ferry" digest "$truth" >want 2>/dev/null
    for to in "torch_dist --tp 2" "torch_dist --optim-format fully_sharded_model_space --pp 2" \
        "torch_dist --optim-format not_distributed --tp 2" "torch --optim-format distributed --tp 2 --pp 2" \
        "torch --optim-format not_distributed"; do
        rm -rf out
        # shellcheck disable=SC2086 # words
        run convert "$source" out --verify full --hf-config "$truth" --to $to
        exits 0
        run digest out --check want
        exits 0
        run inspect out --args
        prints "use_precision_aware_optimizer             False"
    done

    it "$case gives the weights of formats that have masters alone"
    for to in "hf --optim --torch-dtype float32" "dcp --dp 2" "deepspeed --zero 3 --dp 2"; do
        rm -rf out of-truth
        # shellcheck disable=SC2086 # words
        run convert "$truth" of-truth --hf-config "$truth" --to $to
        exits 0
        # shellcheck disable=SC2086 # words
        run convert "$source" out --hf-config "$truth" --to $to
        exits 0
        "$ferry" digest of-truth >want.alone
        run digest out --check want.alone
        exits 0
    done
done

it "whole numbers in distrib_optim.pt are remainders, too, where weights show their places"
cp -r "$golden/../megatron/llama-HEAD-torch-optimizer-tp2pp2/checkpoint" legacy
"$ferry" digest legacy >want
for file in legacy/iter_0000010/*/distrib_optim.pt; do
    python3 "$tests/remainders.py" "$file" || is_wrong "remainders.py"
done
run inspect legacy
says "master weights are stored as remainders"
run digest legacy --check want
exits 0

it "without the optimizer, weights alone are read"
run convert "$golden/remainders-dp-reshardable-dp2/checkpoint" alone --to hf --no-optim --hf-config "$truth"
exits 0
