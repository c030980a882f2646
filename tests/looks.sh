#!/bin/sh
# looks.sh FERRY FOLDER [IMAGES] - makes pages of --report and a timeline from random models, and takes screenshots of
# them into a folder; fails if anything is cut off. Copies those that documents show to IMAGES.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
ferry=$(realpath "$1")
mkdir -p "$2"
shots=$(realpath "$2")
images=${3:+$(realpath "$3")}
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-looks.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work"
PATH=$(dirname "$ferry"):$PATH # pages show the command line

# A page is wanted, whether the two sides are the same or not.
compare() {
    ferry verify -q "$@" 2>verify.log || [ $? -eq 1 ] || { cat verify.log >&2; exit 1; }
}

ferry synth -q hf --model llama --layers 8
ferry convert -q hf megatron --tp 2 --pp 2
cp -r hf broken
python3 - broken <<'PYTHON' # gate and up swapped in two layers, a row of zeros, another rotary base
import json, pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
file = folder / "model.safetensors"
data = bytearray(file.read_bytes())
begin = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:begin])
def place(name):
    first, end = header[name]["data_offsets"]
    return slice(begin + first, begin + end)
for layer in 2, 5:
    gate, up = (place(f"model.layers.{layer}.mlp.{name}_proj.weight") for name in ("gate", "up"))
    data[gate], data[up] = data[up], data[gate]
row = place("model.layers.7.self_attn.o_proj.weight").start
data[row : row + 128] = bytes(128)
file.write_bytes(data)
config = json.loads((folder / "config.json").read_text())
config["rope_theta"] = config["rope_parameters"]["rope_theta"] = 500000.0
(folder / "config.json").write_text(json.dumps(config))
PYTHON
ferry synth -q ds-run --model llama --layers 8 --optim --to deepspeed --zero 3 --dp 4
ferry convert -q ds-run from-ds --hf-config hf 2>convert.log
ferry synth -q moe --model qwen3-moe --layers 24 --experts 16 --sparse
ferry convert -q moe moe-megatron --tp 2 --ep 4 --pp 2

compare hf megatron --report identical.html
compare hf broken --report verify.html
compare hf megatron --forward --report forward-identical.html
compare hf broken --forward --report forward.html
compare hf broken --train-steps 12 --report training.html
compare moe moe-megatron --report experts.html
compare ds-run from-ds --hf-config hf --report groups.html
compare ds-run from-ds --hf-config hf --ignore-training 'groups*' --report ignored.html
ferry inspect from-ds --report inspect.html >inspect.log 2>&1
ferry inspect moe-megatron --stats --report inspect-stats.html >inspect.log 2>&1
ferry inspect hf/model.safetensors --report inspect-file.html >inspect.log 2>&1

ferry train --load hf --mock-data --seq-length 64 --micro-batch-size 1 --global-batch-size 8 --train-iters 1 --lr 1e-4 \
    --pp 4 --vpp 2 --dry-run --timeline timeline.svg --device cpu >train.log 2>&1
echo '<!DOCTYPE html><body style="margin:0"><img src="timeline.svg" style="display:block;width:100%">' >timeline.html

python3 "$here/looks.py" "$shots" ./*.html
[ -n "$images" ] || exit 0
for name in verify inspect timeline; do
    if command -v pngquant >/dev/null; then
        pngquant --force --speed 1 --output "$images/$name.png" 64 "$shots/$name.png"
    else
        cp "$shots/$name.png" "$images"
    fi
done
