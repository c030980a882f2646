#!/bin/sh
# optimizer_test.sh - the state of the optimizer in Megatron's formats: read in every layout that it has
# had, written, and refused by name. tests/cli/optimizer_hf_test.sh has Hugging Face folders.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/megatron
plain=$here/../golden/megatron-training/fp32-plain-optimizer
truth=$golden/llama-HEAD-fully-reshardable-tp2dp2/expected # optimizer.safetensors lies beside it
dp_reshardable=$golden/llama-HEAD-dp-reshardable-tp2dp2/checkpoint
. "$(dirname "$0")/lib.sh"

it "weights, masters and moments of each format are those that Megatron held"
for case in llama-HEAD-dp-reshardable-tp2dp2 llama-0.12.0-model-space-tp2dp2 \
    llama-HEAD-torch-optimizer-tp2pp2; do
    run verify "$golden/$case/checkpoint" "$truth"
    exits 0
    prints "identical: 108 tensors"
done

it "they are the same behind every format and layout"
"$ferry" convert -q "$dp_reshardable" first --hf-config "$truth" || is_wrong "convert"
"$ferry" digest first >want
for to in "torch_dist --tp 4 --pp 2" "torch_dist --optim-format fully_sharded_model_space --tp 2" \
    "torch_dist --optim-format not_distributed --tp 2 --pp 2" \
    "torch --optim-format distributed --tp 2 --pp 2 --vpp 2" "torch --optim-format not_distributed --pp 4" \
    "hf --optim"; do
    rm -rf out
    # shellcheck disable=SC2086 # words
    run convert first out --verify full --to $to
    exits 0
    run digest out --check want
    exits 0
    run convert out back --overwrite --verify full --to torch_dist --tp 1 --pp 3 \
        --decoder-first-pipeline-num-layers 2
    exits 0
    run digest back --check want
    exits 0
done

it "an optimizer that is not distributed stays so, unless asked"
for to in "torch_dist --tp 2" "torch --tp 2"; do
    rm -rf out
    # shellcheck disable=SC2086 # words
    run convert "$plain" out --true-vocab-size 128 --to $to
    exits 0
    says "as not_distributed"
    run inspect out --args
    prints "use_distributed_optimizer                 False"
done
rm -rf out
run convert "$plain" out --true-vocab-size 128 --to torch_dist --optim-format fully_reshardable
exits 0
run inspect out --args
prints "use_distributed_optimizer                 True"

it "weight decay that changes is lossy, both ways"
synth_model ds-run --optim --to deepspeed --zero 3 --dp 2
run convert ds-run decayed --to torch_dist
exits 0
says "weight decay 0.1 of parameters of one dimension becomes 0"
run convert decayed fsdp --to dcp
exits 0
says "weight decay 0 of parameters of one dimension becomes 0.1"

it "an optimizer in F32 has its weights as masters"
run inspect "$plain"
exits 0
prints "optimizer  not distributed"
"$ferry" digest "$plain" >want.f32
for to in "torch_dist --tp 2" "torch_dist --optim-format not_distributed --pp 2" "torch --tp 2" "torch --optim-format distributed --pp 2" "hf --optim"; do
    rm -rf out
    # shellcheck disable=SC2086 # words
    run convert "$plain" out --verify full --true-vocab-size 128 --to $to
    exits 0
    run digest out --check want.f32
    exits 0
done

it "args, iteration and tracker say that the optimizer is there"
run convert "$dp_reshardable" said --overwrite --tp 1 --pp 2
exits 0
[ "$(cat said/latest_checkpointed_iteration.txt)" = 10 ] || is_wrong "tracker"
run inspect said --args
prints "no_save_optim                             False"
prints "use_distributed_optimizer                 True"
run convert "$truth" from-hf --overwrite --lr 0.01 --min-lr 0.001 --iteration 7
exits 0
[ "$(cat from-hf/latest_checkpointed_iteration.txt)" = 7 ] || is_wrong "tracker of --iteration"

it "what is asked for and not there, or the other way round, is refused"
run convert "$dp_reshardable" out2 --to hf --hf-config "$truth"
exits 3
says "--optim writes it beside the weights, --no-optim leaves it out"
run convert "$golden/models/llama" out2 --optim
exits 3
says "--optim: "
says " holds no optimizer state"
run convert "$dp_reshardable" out2 --optim --no-optim
exits 2
run convert "$dp_reshardable" out2 --optim-format distributed
exits 2
run convert "$dp_reshardable" out2 --to torch --optim-format fully_reshardable
exits 2
run convert "$dp_reshardable" out2 --dist-ckpt-optim-fully-reshardable --optim-format fully_sharded_model_space
exits 2
run convert "$dp_reshardable" out2 --lr much
exits 2
says "--lr much: not a number of 0 or more"
run convert "$dp_reshardable" out2 --lr-warmup-iters 3
exits 2
says "--global-batch-size N gives the samples of an iteration"
[ ! -e out2 ] || is_wrong "out2 is there"

# Copies the golden legacy checkpoint, to be damaged.
legacy() {
    rm -rf legacy && cp -r "$golden/llama-HEAD-torch-optimizer-tp2pp2/checkpoint" legacy
    chmod -R u+w legacy
}

# The states of `legacy` are refused with this reason, the weights are not.
is_refused() { # STATUS REASON
    run convert legacy out3 --to torch_dist
    exits "$1"
    says "$2"
    [ ! -e out3 ] || is_wrong "out3 is there"
    run convert legacy weights --to torch_dist --no-optim --overwrite
    exits 0
}

it "a rank's missing states are named, with the parameters that it held"
legacy
rm legacy/iter_0000010/mp_rank_01_001/distrib_optim.pt
is_refused 3 "missing states of tensor rank 1, pipeline rank 1: those of output_layer.weight and 13 more"
run inspect legacy
exits 0
prints "not read: missing states of tensor rank 1, pipeline rank 1"

it "states of another rank are not taken for its own"
legacy
cp legacy/iter_0000010/mp_rank_00_000/distrib_optim.pt legacy/iter_0000010/mp_rank_01_000/
is_refused 3 "weights are not their master weights rounded"
legacy
cp legacy/iter_0000010/mp_rank_00_000/distrib_optim.pt legacy/iter_0000010/mp_rank_00_001/
is_refused 3 "has 9984 elements, but the parameters of tensor rank 0, pipeline rank 1 need 10016"

it "rank files without an optimizer beside others that have one are named"
"$ferry" convert -q "$plain" legacy --overwrite --to torch --tp 2 --true-vocab-size 128 --no-optim
"$ferry" convert -q "$plain" ranks --to torch --tp 2 --true-vocab-size 128
cp ranks/iter_*/mp_rank_00/model_optim_rng.pt legacy/iter_*/mp_rank_00/
is_refused 3 "mp_rank_01/model_optim_rng.pt lacks an optimizer, which other rank files have"

it "frozen parameters are noted, and kept where a format can say which they are"
"$ferry" convert -q "$dp_reshardable" frozen --to hf --hf-config "$truth" --optim
python3 "$here/strip_tensors.py" frozen/optimizer.safetensors '.*model\.norm\.weight' || skip "no python3"
run convert frozen frozen2 --tp 2 --verify full
exits 0
says "1 parameter has no optimizer state, like frozen parameters: decoder.final_layernorm.weight"
for format in distributed not_distributed; do
    run convert frozen out5 --to torch --optim-format "$format"
    exits 3
    says "decoder.final_layernorm.weight lacks "
    [ ! -e out5 ] || is_wrong "out5 is there"
done

it "a file that cannot be read is named"
legacy
head -c 3000 "$golden/llama-HEAD-torch-optimizer-tp2pp2/checkpoint/iter_0000010/mp_rank_00_000/distrib_optim.pt" \
    >legacy/iter_0000010/mp_rank_00_000/distrib_optim.pt
is_refused 3 "mp_rank_00_000/distrib_optim.pt"

it "a weight that is not its master rounded is named where states are found by it"
"$ferry" convert -q "$dp_reshardable" odd --to torch --tp 1 --pp 1 --optim-format not_distributed
python3 - odd/iter_0000010/mp_rank_00/model_optim_rng.pt <<'PYTHON' || skip "no python3"
import sys, zipfile
path = sys.argv[1]
entry = next(e for e in zipfile.ZipFile(path).infolist() if e.filename.endswith("/data/1")) # a weight
data = bytearray(open(path, "rb").read())
at = entry.header_offset
start = at + 30 + int.from_bytes(data[at + 26:at + 28], "little") + int.from_bytes(data[at + 28:at + 30], "little")
data[start:start + 64] = bytes(64)
open(path, "wb").write(data)
PYTHON
run convert odd out4 --to torch_dist
exits 3
says "not their master weights rounded"

