#!/bin/sh
# forward_whole_test.sh - who computes takes all tensors of a model, or refuses it.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"
golden=$root/tests/golden/hf
if ! command -v python3 >/dev/null; then
    it "tensors that no op takes are refused"
    skip "no python3"
    exit 0
fi

cat >add.py <<'PYTHON'
# add.py FILE NAME LENGTH.. - adds tensors of ones, F32, to a safetensors file.
import json, struct, sys

path, added = sys.argv[1], sys.argv[2:]
data = open(path, "rb").read()
begin = 8 + struct.unpack("<Q", data[:8])[0]
header, data = json.loads(data[8:begin]), data[begin:]
for name, length in zip(added[::2], map(int, added[1::2])):
    ones = struct.pack("<f", 1) * length
    header[name] = {"dtype": "F32", "shape": [length], "data_offsets": [len(data), len(data) + len(ones)]}
    data += ones
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON

# A copy of a golden model with more tensors: with_more MODEL COPY NAME LENGTH..
with_more() {
    cp -r "$golden/$1" "$2"
    chmod -R u+w "$2"
    copy=$2
    shift 2
    python3 add.py "$copy/model.safetensors" "$@" || is_wrong "add.py $*"
}

# All commands that compute refuse it, with this message: all_refuse TEXT MODEL [OPTION..]
all_refuse() {
    message=$1 ids=$golden/llama2/logits.safetensors
    shift
    printf '\1\0\2\0\3\0' >ids.u16
    for command in "forward --input-ids $ids --out out" "forward --input-ids $ids --dry-run" \
        "forward --input-ids $ids --out out --tp 2 --pp 2" "generate --prompt-ids 1,2" \
        "generate --prompt-ids 1,2 --dry-run" "perplexity --data ids.u16 --data-dtype u16" \
        "perplexity --data ids.u16 --data-dtype u16 --dry-run" "bench --seq 4 --pp 2"; do
        # shellcheck disable=SC2086 # words
        run $command "$@"
        exits 3
        says "$message"
        prints_nothing
    done
    is_not_there out
    run verify "$1" "$@" --forward --threads 1
    exits 3
    says "$message"
}

it "tensors that the model map does not know"
with_more llama2 unknown lm_head.bias 272 model.layers.1.self_attn.sinks 4
all_refuse "unknown: 2 tensors that the model map does not know: lm_head.bias, model.layers.1.self_attn.sinks" unknown

it "tensors that a map of the user's knows, and no op takes"
with_more llama2 biased lm_head.bias 272
sed -i 's/"model_type": "llama"/"model_type": "biased"/' biased/config.json
cat >biased.json <<'JSON'
{"family": "biased", "about": "Llama with a bias of its head", "extends": "llama", "model_type": "biased",
 "architecture": "Biased", "config": [],
 "tensors": [{"megatron": "output_layer.bias", "shape": "V", "hf": "lm_head.bias"}]}
JSON
all_refuse "biased: 1 tensor that no op of the engine reads: output_layer.bias" biased --model-map biased.json

it "those that Megatron's checkpoints have, in either format"
for format in torch_dist torch; do
    run convert biased biased-$format --model-map biased.json --to $format --tp 2 --pp 2 -q
    exits 0
    all_refuse "biased-$format: 1 tensor that no op of the engine reads: output_layer.bias" \
        biased-$format --hf-config "$golden/llama2"
done

# A map of Mixtral with one more row of tensors: more_rows FILE MEGATRON HF SHAPE
more_rows() {
    cat >"$1" <<JSON
{"family": "more", "about": "Mixtral with more biases", "extends": "mixtral", "model_type": "more",
 "architecture": "More", "config": [],
 "tensors": [{"megatron": "decoder.layers.{l}.mlp.$2", "hf": "model.layers.{l}.$3", "shape": "$4"}]}
JSON
}

it "five of them are named, and how many there are is said"
with_more mixtral routers model.layers.0.router.bias 4 model.layers.1.router.bias 4
set --
for layer in 0 1; do
    for expert in 0 1 2 3; do
        set -- "$@" model.layers.$layer.experts.$expert.bias 48
    done
done
with_more mixtral experts "$@"
sed -i 's/"model_type": "mixtral"/"model_type": "more"/' routers/config.json experts/config.json
more_rows routers.json router.bias router.bias E
more_rows experts.json 'experts.experts.{e}.linear_fc2.bias' 'experts.{e}.bias' h
run bench routers --model-map routers.json --seq 4
exits 3
says "2 tensors that no op of the engine reads: decoder.layers.0.mlp.router.bias, decoder.layers.1.mlp.router.bias"
run bench experts --model-map experts.json --seq 4 --ep 2
exits 3
says "8 tensors that no op of the engine reads: decoder.layers.0.mlp.experts.experts.0.linear_fc2.bias, "
says "decoder.layers.1.mlp.experts.experts.0.linear_fc2.bias and 3 more"
