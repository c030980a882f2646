#!/bin/sh
# optimizer_hf_test.sh - states of the optimizer in Hugging Face folders: written, read again, and
# refused by name.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/megatron/llama-HEAD-fully-reshardable-dp2
tiny=$here/../golden/hf-tiny
. "$(dirname "$0")/lib.sh"

cat >"$scratch/edit.py" <<'PYTHON'
# edit.py FROM TO NAME=ENTRY... - copies a safetensors file with other entries: DTYPE:SHAPE has
# another dtype or shape, @NAME another name, a new one 8 bytes of data: 3, 0, 0, ...
import json, struct, sys

source, target, *edits = sys.argv[1:]
data = open(source, "rb").read()
end = 8 + struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:end]), data[end:]
for edit in edits:
    name, entry = edit.split("=")
    if entry.startswith("@"):
        header[entry[1:]] = header.pop(name)
        continue
    if name not in header:
        header[name] = {"data_offsets": [len(body), len(body) + 8]}
        body += struct.pack("<q", 3)
    dtype, shape = entry.split(":")
    header[name].update(dtype=dtype, shape=json.loads(shape))
text = json.dumps(header).encode()
open(target, "wb").write(struct.pack("<Q", len(text)) + text + body)
PYTHON

edit() {
    rm -rf "$2"
    cp -r "$1" "$2"
    from=$1/optimizer.safetensors to=$2/optimizer.safetensors
    shift 2
    python3 "$scratch/edit.py" "$from" "$to" "$@" || is_wrong "edit.py fails"
}

# convert MODEL OUT [OPTION]..., to Hugging Face
to_hf() {
    model=$1 out=$2
    shift 2
    rm -rf "$out"
    run convert -q "$model" "$out" --to hf "$@"
}

same_file() {
    cmp -s "$1" "$2" || is_wrong "$1 is not $2"
}

it "asks whether the optimizer is written"
run convert "$golden/checkpoint" hf --to hf
exits 3
says "--optim writes it beside the weights, --no-optim leaves it out"
is_not_there hf

it "refuses --optim with --no-optim"
run convert "$golden/checkpoint" hf --to hf --optim --no-optim
exits 2
says "exclude each other"

it "refuses --optim where there are no states"
run convert "$tiny" hf --to hf --optim
exits 3
says "holds no optimizer state"

it "leaves the optimizer out"
to_hf "$golden/checkpoint" plain --no-optim --hf-config "$golden/expected"
exits 0
is_there plain/model.safetensors
is_not_there plain/optimizer.safetensors plain/training.json

it "writes the states beside the weights"
to_hf "$golden/checkpoint" hf --optim --hf-config "$golden/expected"
exits 0
is_there hf/optimizer.safetensors
same_file hf/model.safetensors "$golden/expected/model.safetensors"
run verify hf "$golden/checkpoint"
exits 0
prints identical

it "shows them"
run inspect hf
exits 0
prints "optimizer  in optimizer.safetensors"

it "reads them again"
run convert -q hf ckpt --tp 2
exits 0
to_hf ckpt again --optim
exits 0
same_file again/optimizer.safetensors hf/optimizer.safetensors
same_file again/model.safetensors hf/model.safetensors

it "splits them into shards with an index"
to_hf hf shards --optim --max-shard-size 4KB
exits 0
is_there shards/model.safetensors.index.json shards/optimizer.safetensors.index.json
is_there shards/optimizer-00002-of-*.safetensors
is_not_there shards/optimizer.safetensors
to_hf shards whole --optim
exits 0
same_file whole/optimizer.safetensors hf/optimizer.safetensors

it "reads shards without an index"
mv shards/optimizer.safetensors.index.json index.json
to_hf shards whole --optim
exits 0
same_file whole/optimizer.safetensors hf/optimizer.safetensors

it "refuses an index that names a file outside of the folder"
sed 's,optimizer-00002-of,../optimizer-00002-of,' index.json >shards/optimizer.safetensors.index.json
to_hf shards none --optim
exits 3
says "which is outside the folder"

it "refuses a set of shards of which one is missing"
cp index.json shards/optimizer.safetensors.index.json
rm shards/optimizer-00002-of-*
to_hf shards none --optim
exits 3
says "missing, but named by"
rm shards/optimizer.safetensors.index.json
to_hf shards none --optim
exits 3
says "shard 2 of"

it "converts the weights beside states that cannot be read, with --no-optim"
to_hf shards weights --no-optim
exits 0
is_not_there weights/optimizer.safetensors

it "replaces a folder with states"
run convert -q hf whole --to hf --no-optim --overwrite
exits 0
is_not_there whole/optimizer.safetensors
run convert -q hf whole --to hf --optim --max-shard-size 4KB --overwrite
exits 0
run convert -q hf whole --to hf --optim --overwrite
exits 0
same_files whole again

it "writes weights of another dtype from the master weights"
to_hf hf wide --optim --torch-dtype float32
exits 0
same_file wide/optimizer.safetensors hf/optimizer.safetensors
to_hf wide narrow --optim --torch-dtype bfloat16
same_file narrow/model.safetensors hf/model.safetensors

it "keeps the step of the optimizer"
edit hf step step=I64:[]
to_hf step step2 --optim
exits 0
grep -q '"step": 2' step2/training.json || is_wrong "training.json lacks the step"
to_hf step2 step3 --optim --max-shard-size 1
exits 0
is_there step3/optimizer-00001-of-*.safetensors
to_hf step3 step4 --optim
same_files step4 step2
grep -q '"step"' step2/optimizer.safetensors || is_wrong "no step in optimizer.safetensors"

it "does not copy training.json where the optimizer is left out"
to_hf step2 none --no-optim
exits 0
is_not_there none/training.json
rm -r none

q=exp_avg.model.layers.0.self_attn.q_proj.weight
it "refuses a step of another dtype"
edit hf bad "step=F32:[2]"
to_hf bad none --optim
exits 3
says "tensor step is F32 [2], expected I64 []"
to_hf bad none --no-optim
exits 0

it "refuses a state of another shape"
edit hf bad "$q=F32:[8,32]"
to_hf bad none --optim
exits 3
says "tensor $q has shape [8, 32], its parameter"

it "refuses a state of no parameter"
edit hf bad "exp_avg.model.norm.weight=@exp_avg.model.norm.bias"
to_hf bad none --optim
exits 3
says "tensor exp_avg.model.norm.bias is the state of model.norm.bias, which is not a parameter"

it "refuses a state that only some parts of a parameter have"
edit hf bad "$q=@exp_inf.model.layers.0.self_attn.q_proj.weight"
to_hf bad none --optim
exits 3
says "both are parts of"

it "what groups of another program have and Megatron does not is named"
"$ferry" synth -q --model llama --layers 2 --optim lost
echo '{"step": 3, "consumed_tokens": 9, "groups": [{"members": "all", "lr": 0.1, "weight_decay": 0.5, "amsgrad": true,
    "decoupled_weight_decay": false}]}' >lost/training.json
run convert lost lost-tp2 --tp 2 --lr 0.1 --min-lr 0
exits 0
says "weight decay 0.5 of all parameters is written for matrices only: Megatron has none for biases"
says "amsgrad is not written"
says "decoupled_weight_decay: false"
says "consumed_tokens is not written"

it "masters that are made of weights are the widened weights, to verify too"
"$ferry" synth -q --model llama --layers 2 --optim moments
if python3 "$here/strip_tensors.py" moments/optimizer.safetensors 'fp32\.'; then
    run convert moments masters --tp 2 --verify full
    exits 0
    says "15 masters are made from their weights"
    run verify moments masters
    exits 0
    prints "identical: 60 tensors"
    says "A: no master weights of 15 parameters: their widened weights are compared"
    run verify masters moments
    exits 0
    "$ferry" synth -q --model llama --layers 2 --optim --seed 2 other-seed
    "$ferry" convert -q other-seed other-made --tp 2
    run verify moments other-made
    exits 1
    prints "DIFFERENT: 60 of 60 tensors"
else
    skip "no python3"
fi

it "reads states that lie beside the folder if they are of the model"
mkdir beside
cp -r plain beside/expected
rm beside/expected/ferry.json
cp hf/optimizer.safetensors beside
run convert beside/expected beside2 --to hf --optim
exits 0
says "read from beside the folder"
same_file beside2/optimizer.safetensors hf/optimizer.safetensors
mkdir twin
cp -r beside/expected twin/model
python3 - twin/model/model.safetensors <<'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-1] ^= 0x40  # another exponent of the last weight
open(sys.argv[1], "wb").write(data)
PYTHON
cp hf/optimizer.safetensors twin
run convert twin/model twin2 --to hf --optim
exits 3
says "weights are not their master weights rounded"
[ ! -e twin2 ] || is_wrong "twin2 was written"
cp -r "$tiny" beside/other
run convert beside/other other --to hf --no-optim
exits 0
says "optimizer state beside the folder is not read"

it "does not give states from beside to a folder that it wrote without any"
run convert -q beside/expected beside/written --to hf --no-optim --verify full
exits 0
to_hf beside/written none --optim
exits 3
says "holds no optimizer state"
