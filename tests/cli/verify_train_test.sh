#!/bin/sh
# verify_train_test.sh - verify --train-steps: checkpoints that train alike, whatever their format and layout,
# and those that do not.
golden=$(cd "$(dirname "$0")/../golden/hf" && pwd)
. "$(dirname "$0")/lib.sh"
synth_model m --layers 4
"$ferry" convert -q m megatron --tp 2 --pp 2 || exit 1

# compare A B OPTION...
compare() {
    run verify "$@" --threads 1
}

# A copy of m in which a tensor has other bytes at 2 * HALF: changed COPY TENSOR HALF BYTES
changed() {
    cp -r m "$1"
    change "$1/model.safetensors" "$2" "$3" "$4"
}

# One byte is XORed: change FILE TENSOR HALF BYTES
change() {
    python3 - "$@" <<'PYTHON' || is_wrong "change $*"
import json, struct, sys
path, name, half, byte = sys.argv[1:]
data = bytearray(open(path, "rb").read())
begin = 8 + struct.unpack("<Q", data[:8])[0]
at = begin + json.loads(data[8:begin])[name]["data_offsets"][0] + 2 * int(half)
new = bytes.fromhex(byte)
data[at : at + len(new)] = new if len(new) > 1 else bytes([data[at] ^ new[0]])
open(path, "wb").write(data)
PYTHON
}

it "a model and its checkpoint of TP2 PP2 train to the same bits"
compare m megatron --train-steps 3
exits 0
prints "identical: training: 3 steps, and 27 tensors after them"
prints "  training  2 x 64 mock tokens a step, f32, lr 0.0001, AdamW with new states"
[ "$(grep -c ' identical$' "$stdout")" -eq 3 ] || is_wrong "no three steps: $(cat "$stdout")"
says_nothing

it "--report writes a page"
compare m megatron --train-steps 2 --report page.html -q
exits 0
grep -q '<b>identical</b><span>training: 2 steps' page.html || is_wrong "no verdict"
grep -q 'aria-label="Loss by step"' page.html || is_wrong "no loss"
[ "$(grep -c '<td class="t">' page.html)" -eq 27 ] || is_wrong "no 27 tensors"
run verify m megatron --train-steps 2 --report nosuch/page.html
exits 4
says "--report nosuch/page.html: its folder does not exist"

it "these are the steps that ferry train makes"
"$ferry" train -q --threads 1 --load m --mock-data --seq-length 64 --micro-batch-size 2 --train-iters 3 --lr 1e-2 \
    --lr-decay-style constant --log-jsonl steps.jsonl >log 2>&1 || is_wrong "$(cat log)"
compare m megatron --train-steps 3 --lr 1e-2 --json
python3 - "$stdout" steps.jsonl <<'PYTHON' >same 2>&1 || is_wrong "other steps: $(tail -n 1 same)"
import json, sys
mine = json.load(open(sys.argv[1]))["training"]["steps"]
train = [json.loads(line) for line in open(sys.argv[2])]
a = [(s["loss_b"], s["grad_norm_b"]) for s in mine]
b = [(s["loss"], s["grad_norm"]) for s in train]
assert a == b and len(set(a)) == 3, (a, b)
PYTHON

it "so do golden models, with padding of the vocabulary on one side"
for model in gpt2 llama3.1 qwen2.5 qwen3-moe; do
    "$ferry" convert -q "$golden/$model" "$model" --tp 2 || is_wrong "convert $model"
    compare "$golden/$model" "$model" --train-steps 2
    exits 0
done

it "and a legacy checkpoint, in bf16, fp16 and f64, at other lengths"
"$ferry" convert -q m legacy --tp 2 --to torch || is_wrong "convert"
for dtype in bf16 fp16 f64; do
    compare legacy megatron --train-steps 2 --dtype $dtype --seq-length 16 --micro-batch-size 3 --lr 0.01
    exits 0
    prints "  training  3 x 16 mock tokens a step, $dtype, lr 0.01"
done

it "states of the optimizer go on where both sides have them"
"$ferry" train -q --threads 1 --load m --save run --mock-data --seq-length 16 --micro-batch-size 2 --train-iters 3 --lr 1e-3 \
    >log 2>&1 || is_wrong "$(cat log)"
"$ferry" convert -q run run-hf --to hf --optim || is_wrong "convert"
"$ferry" convert -q run run-pp --tp 2 --pp 2 || is_wrong "convert"
for other in run-hf run-pp; do
    for dtype in f32 bf16; do
        compare run $other --train-steps 3 --dtype $dtype
        exits 0
        prints "AdamW with the states of each side"
    done
done
cp "$stdout" with-states
compare run run-hf --train-steps 3 --no-optim
exits 0
prints "AdamW with new states"
"$ferry" convert -q run weights --to hf --no-optim || is_wrong "convert"
compare run weights --train-steps 3
exits 0
prints "AdamW with new states"

it "one bit of a weight is a difference, which is named"
changed bit model.layers.2.mlp.down_proj.weight 50 01
compare m bit --train-steps 3
exits 1
prints "DIFFERENT: training: "
prints "  loaded    1 tensor differs before step 1, first decoder.layers.2.mlp.linear_fc2.weight"
prints "  step      the first that differs is step "
prints "  tensor    the first that differs after step 3 is "

it "within --atol and --rtol it passes"
compare m bit --train-steps 3 --atol 1e-3
exits 0
prints "within tolerance: training: "
compare m bit --train-steps 3 --rtol 1e-12
exits 1

it "the first step that differs is told of two runs that begin alike"
compare run run-hf --train-steps 3
cp -r run-hf moments
change moments/optimizer.safetensors exp_avg_sq.model.norm.weight 1 803f # 1.0, in F32
compare run moments --train-steps 3
exits 1
prints "  loaded    all weights are the same before step 1"
prints "  step      the first that differs is step 2"

it "another rope_theta is a difference of what is computed, and is told"
cp -r m theta
sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 77.0/' theta/config.json
compare m theta --train-steps 1
exits 1
prints "  config    rotary_base: "

it "models of different shape are refused by name"
synth_model small --layers 4 --vocab-size 500
compare small megatron --train-steps 1
exits 3
says "models of different shape: A (small) has vocab_size 500, B (megatron) has 1000"
synth_model deep --layers 5
compare m deep --train-steps 1
exits 3
says "A (m) has num_layers 4, B (deep) has 5"
synth_model wide --layers 4 --ffn-hidden-size 256
compare wide m --train-steps 1
exits 3
says "models of different shape: tensor decoder.layers.0.mlp.linear_fc1.weight is "

it "padding is none of the model once --true-vocab-size says what is padding"
megatron=$golden/../megatron/llama-HEAD-torch-tp2pp2vpp2/checkpoint
"$ferry" convert -q "$megatron" padded --tp 2 --make-vocab-size-divisible-by 64 || is_wrong "convert"
compare "$megatron" padded --train-steps 2
exits 3
says "tensor embedding.word_embeddings.weight is [48, 16] in A"
says "; --true-vocab-size N leaves out padding rows"
compare "$megatron" padded --train-steps 2 --true-vocab-size 41
exits 0

it "weights that are not numbers end it with exit code 10, and the side is named"
changed nan model.layers.1.mlp.down_proj.weight 7 c07f
compare m nan --train-steps 2
exits 10
says "B (nan): iteration 1: "
prints_nothing

it "what is no checkpoint, and what is no model, is refused"
mkdir empty
compare m empty --train-steps 1
exits 3
says "empty"
compare m nowhere --train-steps 1
exits 4
compare m m/model.safetensors --train-steps 1
exits 3
says "B (m/model.safetensors) cannot be trained: Ferry does not know its model"
head -c 3000 m/model.safetensors >cut.safetensors
cp -r m cut && cp cut.safetensors cut/model.safetensors
compare m cut --train-steps 1
exits 5

it "a run that does not fit the memory is refused before it begins"
compare m megatron --train-steps 1 --batch 1000000
exits 6
says "A (m): the run needs "

it "options that do not apply are named"
for options in --forward "--tp 2" --sp "--only x" "--max-ulp 1" "--ignore-config x" "--ignore-training x"; do
    # shellcheck disable=SC2086 # words
    compare m megatron --train-steps 1 $options
    exits 2
    says "apply"
done
for options in "--lr 1" "--train-steps 0" "--train-steps 2000000" "--train-steps 1 --lr -1" "--train-steps 1 --lr nan" "--train-steps 1 --atol -1"; do
    # shellcheck disable=SC2086 # words
    compare m megatron $options
    exits 2
done
run_program env RANK=0 WORLD_SIZE=2 "$ferry" verify m megatron --train-steps 1
exits 2
says "one rank"
is_not_there r.html

it "nothing is written"
nothing_partial_in .
