#!/bin/sh
# synth_test.sh - models that are made up: with the state of an optimizer, in each format and layout,
# and as sparse files.
. "$(dirname "$0")/lib.sh"

# synth FOLDER [OPTION]..., anew
synth() {
    out=$1
    shift
    rm -rf "$out"
    run synth -q "$out" "$@"
    exits 0
}

# The digests of all tensors of both models are equal, and their configs.
same_digests() {
    run verify -q "$1" "$2"
    exits 0
    for model in "$1" "$2"; do # a Megatron checkpoint has no config.json
        "$ferry" digest -q "$model" | grep -v '^config[[:space:]]' >"$model.digest" || is_wrong "ferry digest fails"
    done
    cmp -s "$1.digest" "$2.digest" || is_wrong "$1 and $2 have other digests"
}

# Converts with a proof that the files hold what they should, weights being their masters rounded.
converts() {
    from=$1
    shift
    rm -rf out
    run convert -q "$from" out --verify full "$@"
    exits 0
}

disk_kb() {
    du -sk "$1" | cut -f 1
}

it "makes the state of an optimizer beside the weights"
synth hf --model llama --optim
is_there hf/model.safetensors hf/optimizer.safetensors hf/training.json hf/config.json
run inspect hf
prints "optimizer  in optimizer.safetensors, 3.21 MB"
grep -q '"step": 1000' hf/training.json || is_wrong "training.json lacks the step"
grep -q '"members": "vectors"' hf/training.json || is_wrong "training.json lacks the groups"

it "makes second moments that are not negative"
python3 - <<'PYTHON' || is_wrong "moments are wrong"
import array, json, struct
data = open("hf/optimizer.safetensors", "rb").read()
end = 8 + struct.unpack("<Q", data[:8])[0]
for name, t in json.loads(data[8:end]).items():
    if not name.startswith("exp_avg"):
        continue
    a, b = t["data_offsets"]
    x = array.array("f", data[end + a:end + b])
    assert max(x) > 1e-4, name
    assert (min(x) > 0) == name.startswith("exp_avg_sq."), name
PYTHON

it "makes the same model in every format and layout"
synth td --model llama --optim --to torch_dist --tp 4 --pp 2
is_there td/latest_checkpointed_iteration.txt td/iter_0001000/.metadata td/iter_0001000/__7_0.distcp
is_not_there td/ferry.json
run inspect td
prints "iteration  1000"
prints "TP4 PP2"
prints "distributed, fully_reshardable"
same_digests hf td
synth weights --model llama
synth torch --model llama --to legacy --tp 2
is_there torch/release/mp_rank_01/model_optim_rng.pt
same_digests weights torch
run verify -q hf weights
exits 0

it "they convert to one another"
converts td --tp 2 --pp 1
same_digests hf out
converts hf --tp 2
same_digests td out
converts td --to hf --optim
same_files hf out

for dtype in float16 float32 float64; do
    it "weights of $dtype are their master weights rounded"
    synth hf --model llama --optim --dtype $dtype
    synth td --model llama --optim --dtype $dtype --to torch_dist --tp 2
    same_digests hf td
    converts td --tp 1
    converts td --to hf --optim
    same_digests hf out
    cmp -s hf/model.safetensors out/model.safetensors || is_wrong "weights are other ones"
done

for family in gpt2 mixtral qwen3_moe; do
    it "makes the state of a $family"
    synth hf --model $family --optim
    case $family in
    gpt2) layout='--tp 2 --pp 2' ;;
    *) layout='--tp 2 --ep 4 --etp 1' ;;
    esac
    # shellcheck disable=SC2086
    synth td --model $family --optim --to torch_dist $layout
    same_digests hf td
    converts td --to hf --optim
    for file in model.safetensors optimizer.safetensors; do
        cmp -s hf/$file out/$file || is_wrong "$file is another one"
    done
done

it "another seed makes other states"
synth hf --model llama --optim --seed 2
synth td --model llama --optim --to torch_dist
run verify -q hf td
exits 1

it "replaces what it has made"
run synth -q td --model llama --optim --to torch_dist
exits 7
run synth -q td --model llama --optim --to torch_dist --tp 2 --overwrite
exits 0
run synth -q hf --model llama --overwrite
exits 0
is_not_there hf/optimizer.safetensors hf/training.json

it "refuses options that the format does not use"
run synth none --model llama --tp 2
exits 2
says "a parallel layout (--tp, --pp, ...) does not apply to format hf"
run synth none --model llama --to torch_dist --max-shard-size 1MB
exits 2
says "--max-shard-size does not apply to format torch_dist"
run synth none --model llama --to torch_dist --tp 3
exits 3
is_not_there none

it "sparse archives are those that zeros make"
synth hf --model llama --optim --sparse
synth td --model llama --optim --sparse --to torch_dist --tp 2
converts hf --tp 2
for file in td/iter_0001000/*.distcp; do
    cmp -s "$file" "out/iter_0001000/$(basename "$file")" || is_wrong "$file is another one"
done
synth torch --model llama --sparse --to torch --tp 2
python3 - <<'PYTHON' || is_wrong "a CRC is wrong"
import glob, sys, zipfile
files = glob.glob("torch/release/*/model_optim_rng.pt")
sys.exit(len(files) != 2 or any(zipfile.ZipFile(f).testzip() for f in files))
PYTHON

set -- --model llama --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn-hidden-size 28672 --vocab-size 128000 --sparse --optim
for to in hf 'torch_dist --tp 8 --pp 4'; do
    it "makes the state of a model of 70 B in $to in megabytes"
    # shellcheck disable=SC2086
    synth big "$@" --to $to
    [ "$(disk_kb big)" -lt 200000 ] || is_wrong "$(disk_kb big) kB"
    run inspect big
    exits 0
    prints "70.5 B"
    prints "847 GB"
done
