#!/bin/sh
# verify_forward_test.sh - verify --forward: checkpoints that compute the same, whatever their format
# and dtype, beside what transformers computed; and where those that do not begin to differ.
golden=$(cd "$(dirname "$0")/../golden/hf" && pwd)
. "$(dirname "$0")/lib.sh"

python=$(command -v python3)
cat >"$scratch/change.py" <<'PYTHON'
# change.py FILE TENSOR FACTOR [ELEMENT] - multiplies elements of a tensor in a safetensors file of
# F32, F16 or BF16: all, or the one of that number.
import json, struct, sys

path, name, factor, *element = sys.argv[1:]
data = bytearray(open(path, "rb").read())
begin = 8 + struct.unpack("<Q", data[:8])[0]
tensor = json.loads(data[8:begin])[name]
low, high = (begin + x for x in tensor["data_offsets"])
size, form = {"F32": (4, "<f"), "F16": (2, "<e"), "BF16": (2, None)}[tensor["dtype"]]
for at in [low + size * int(element[0])] if element else range(low, high, size):
    bits = bytes(data[at : at + size])
    value = struct.unpack(form or "<f", bits if form else b"\0\0" + bits)[0] * float(factor)
    data[at : at + size] = struct.pack(form or "<f", value)[-size:]
open(path, "wb").write(data)
PYTHON

cat >"$scratch/widen.py" <<'PYTHON'
# widen.py FROM TO - the logits of FROM, which are BF16, stored as F32.
import json, struct, sys

data = open(sys.argv[1], "rb").read()
begin = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:begin])
low, high = (begin + x for x in header["logits"]["data_offsets"])
wide = b"".join(b"\0\0" + data[at : at + 2] for at in range(low, high, 2))
ids = header["input_ids"]
ids_bytes = data[begin + ids["data_offsets"][0] : begin + ids["data_offsets"][1]]
new = {
    "logits": {"dtype": "F32", "shape": header["logits"]["shape"], "data_offsets": [0, len(wide)]},
    "input_ids": {**ids, "data_offsets": [len(wide), len(wide) + len(ids_bytes)]},
}
text = json.dumps(new).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + wide + ids_bytes)
PYTHON

# Machines that run tests have better things to do than to wait for threads.
compare() {
    run verify "$@" --forward --threads 1
}

# A copy of a golden model with one tensor changed: changed MODEL COPY TENSOR FACTOR [ELEMENT]
changed() {
    rm -rf "$2"
    cp -r "$golden/$1" "$2"
    copy=$2
    shift 2
    "$python" "$scratch/change.py" "$(grep -al "\"$1\":" "$copy"/model*.safetensors)" "$@" || is_wrong "change.py $*"
}

# The first divergence that is told: diverges MODEL TENSOR TEXT [FACTOR [ELEMENT]]
diverges() {
    changed "$1" x "$2" "${4:-1.25}" ${5:+"$5"}
    compare "$golden/$1" x
    exits 1
    prints "forward: DIFFERENT: $3"
}

models="gpt2 llama2 llama3.1 llama3.2 mistral qwen2.5 qwen3 mixtral qwen3-moe"

it "nine models compute what transformers computed"
for model in $models; do
    compare "$golden/$model" "$golden/$model/logits.safetensors"
    exits 0
    prints "forward: within rounding: "
    prints "same top-1 for 40 of 40 tokens"
done

it "and so they do at other layouts, in f64 and in fp16"
for layout in "--tp 2 --sp" "--pp 2" "--cp 2" "--dp 2"; do
    # shellcheck disable=SC2086 # words
    compare "$golden/gpt2" "$golden/gpt2/logits.safetensors" $layout
    exits 0
done
compare "$golden/qwen3-moe" "$golden/qwen3-moe/logits.safetensors" --ep 2
exits 0
compare "$golden/llama3.2" "$golden/llama3.2/logits.safetensors" --dtype fp16 --tp 2
exits 0
prints "rounding  3 times the difference between A in fp16 and A in f32"

it "what transformers computed in bf16 is that, however it is stored, and computed in what"
for model in $models; do
    "$python" "$scratch/widen.py" "$golden/$model/logits_bf16.safetensors" wide.safetensors || is_wrong "widen.py"
    for file in "$golden/$model/logits_bf16.safetensors" wide.safetensors; do
        for dtype in f32 bf16; do
            compare "$golden/$model" "$file" --dtype $dtype
            exits 0
            prints "forward: within rounding: "
        done
    done
    compare "$golden/$model" wide.safetensors
    prints "one side is stored in BF16"
    prints "forward: within rounding: 2 of "
done

it "what another model computes is not, in bf16 too"
changed llama3.2 another model.layers.0.self_attn.v_proj.weight 1.25
cp -r "$golden/qwen3-moe" another-moe
chmod -R u+w another-moe
sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 100.0/' another-moe/config.json
for dtype in f32 bf16; do
    compare another "$golden/llama3.2/logits_bf16.safetensors" --dtype $dtype
    exits 1
    prints "forward: DIFFERENT"
    compare another-moe "$golden/qwen3-moe/logits_bf16.safetensors" --dtype $dtype
    exits 1
    prints "forward: DIFFERENT"
done

it "and what they computed in f32, where Ferry computes in f64"
for model in $models; do
    compare "$golden/$model" "$golden/$model/logits.safetensors" --dtype f64
    exits 0
    prints "one side is stored in F32: 8 times the difference between A and A in f32"
done

it "what was computed in f32 is judged as that, though its embeddings are numbers of bf16 or f16"
for model in llama2 llama3.2 mistral qwen2.5 qwen3; do
    changed $model x model.layers.1.self_attn.v_proj.weight 1.02
    compare x "$golden/$model/logits.safetensors"
    exits 1
    prints "forward: DIFFERENT: layer 1 diverges"
    prints "rounding  8 times the difference between A in f32 and A in f64"
    compare x "$golden/$model/logits.safetensors" --dtype f64
    exits 1
done

it "an expert that is broken shows, in bf16 too, where more than a few tokens go to it"
for expert in 1 2 3 5 6; do
    changed qwen3-moe x model.layers.1.mlp.experts.$expert.down_proj.weight 0
    compare x "$golden/qwen3-moe/logits.safetensors"
    exits 1
    for dtype in f32 bf16; do
        compare x "$golden/qwen3-moe/logits_bf16.safetensors" --dtype $dtype
        exits 1
    done
done
for expert in 0 1 2 3; do
    changed mixtral x model.layers.1.block_sparse_moe.experts.$expert.w2.weight 0
    compare x "$golden/mixtral/logits_bf16.safetensors" --dtype bf16
    exits 1
done

it "to Megatron and back they are identical"
for model in $models; do
    pp=2
    [ "$(grep -c '"num_hidden_layers": 3' "$golden/$model/config.json")" -eq 1 ] && pp=3
    "$ferry" convert -q "$golden/$model" there --tp 2 --pp $pp 2>"$stderr" ||
        is_wrong "convert $model: $(cat "$stderr")"
    "$ferry" convert -q there back --to hf || is_wrong "convert $model back"
    for copy in there back; do
        compare "$golden/$model" $copy
        exits 0
        prints "forward: identical: "
    done
    rm -rf there back
done
"$ferry" convert -q "$golden/llama2" there --tp 2 --pp 2
compare there "$golden/llama2" --tp 2 --pp 2
exits 0
prints "forward: identical: "

it "a cast is within rounding, though the weights differ"
"$ferry" convert -q "$golden/gpt2" gpt2-bf16 --torch-dtype bf16 --to hf
"$ferry" convert -q "$golden/gpt2" gpt2-f16 --torch-dtype float16 --to hf
for pair in "$golden/gpt2 gpt2-bf16" "gpt2-bf16 $golden/gpt2" "gpt2-f16 $golden/gpt2"; do
    # shellcheck disable=SC2086 # words
    compare $pair
    exits 0
    head -n 1 "$stdout" | grep -q "^within rounding: the forward pass; weights DIFFERENT: 28 of 28 tensors, " ||
        is_wrong "the first line is $(head -n 1 "$stdout")"
    prints "forward: within rounding: "
    prints "times the difference between A and A in bf16"
done

it "weights are compared in memory, too, on the ranks that hold them"
compare "$golden/gpt2" "$golden/gpt2" --tp 2 --pp 2
exits 0
prints "  weights   in memory: 28 tensors, equal in A and B; 28 are equal to both files"
compare "$golden/qwen3-moe" "$golden/qwen3-moe" --dtype bf16 --tp 2 --ep 2 --etp 1
exits 0
prints "equal in A and B; "
prints " are equal to both files"
compare "$golden/llama3.2" "$golden/llama3.2"
exits 0
grep -qx "  weights   in memory: [0-9]* tensors, equal in A and B" "$stdout" || is_wrong "bf16 in f32"
compare "$golden/gpt2" gpt2-bf16
exits 0
prints "  weights   in memory: 0 of 28 tensors equal in A and B; 28 are different as in the files"
compare "$golden/gpt2" "$golden/gpt2/logits.safetensors"
exits 0
prints "  weights   in memory: 28 tensors of A"

it "one that no result shows is a difference"
if [ -n "$python" ]; then
    changed gpt2 x transformer.wpe.weight 1.5 2000 # of position 41
    compare "$golden/gpt2" x --seq 8 --report page.html
    exits 1
    prints "forward: DIFFERENT: weights in memory differ, 6 results do not; "
    prints "27 of 28 tensors equal in A and B; 1 is DIFFERENT: embedding.position_embeddings.weight"
    grep -q '<b>DIFFERENT</b><span>forward: weights in memory differ' page.html || is_wrong "no verdict"
    grep -q '1 is DIFFERENT: embedding.position_embeddings.weight' page.html || is_wrong "not on the page"
    compare "$golden/gpt2" x --seq 8 --json
    exits 1
    "$python" -c 'import json, sys
f = json.load(open(sys.argv[1]))["forward"]
w = f["weights_in_memory"]
assert f["verdict"] == "different" and {r["outcome"] for r in f["results"]} == {"identical"}
assert w["different"] == ["embedding.position_embeddings.weight"] and w["not_as_stored"] == []
assert (w["tensors"], w["equal"], w["as_stored"]) == (28, 27, 27)' \
        "$stdout" 2>parsed || is_wrong "--json: $(cat parsed)"
    compare "$golden/gpt2" x --seq 8 --atol 10
    exits 0
    prints "27 of 28 tensors equal in A and B; 1 is different as in the files; 27 are"
    compare "$golden/gpt2" x --seq 8 --ignore '*position*'
    exits 0
    prints "in memory: 27 tensors, equal in A and B; 27 are equal to both files; 1 is left out"
else
    skip "no python3"
fi

it "the first layer and op that differ are named"
if [ -n "$python" ]; then
    for part in q k v; do
        diverges llama2 model.layers.1.self_attn.${part}_proj.weight "layer 1 diverges in qkv"
    done
    diverges llama2 model.layers.0.input_layernorm.weight "layer 0 diverges in attention_norm"
    diverges llama2 model.layers.0.self_attn.o_proj.weight "layer 0 diverges in projection"
    diverges llama2 model.layers.1.post_attention_layernorm.weight "layer 1 diverges in mlp_norm"
    diverges llama2 model.layers.1.mlp.up_proj.weight "layer 1 diverges in activation"
    diverges llama2 model.layers.0.mlp.down_proj.weight "layer 0 diverges in mlp"
    diverges llama2 model.norm.weight "the final norm differs"
    diverges llama2 lm_head.weight "the output layer differs"
    diverges llama2 model.embed_tokens.weight "the embedding differs"
    diverges gpt2 transformer.h.1.mlp.c_proj.bias "layer 1 diverges (in the residual sum after its MLP)"
    diverges gpt2 transformer.h.0.attn.c_proj.bias "layer 0 diverges in mlp_norm"
    diverges qwen3 model.layers.1.self_attn.k_norm.weight "layer 1 diverges in qk_norm"
    diverges mixtral model.layers.1.block_sparse_moe.gate.weight "layer 1 diverges in router"
    diverges mixtral model.layers.0.block_sparse_moe.experts.1.w2.weight "layer 0 diverges in mlp"
else
    skip "no python3"
fi

it "a single weight is enough"
if [ -n "$python" ]; then
    diverges gpt2 transformer.h.1.attn.c_attn.weight "layer 1 diverges in qkv" 1.01 700
    diverges gpt2 transformer.h.0.mlp.c_fc.weight "layer 0 diverges in activation" 1.01 700
    compare "$golden/gpt2" x --tp 2
    exits 1
    prints "layer 0 diverges in activation"
    prints "layers.0.activation"
    compare x "$golden/gpt2/logits.safetensors"
    exits 1
    prints "layer 0 diverges (B has no results for its ops)"
else
    skip "no python3"
fi

it "tokens that differ are told, where not all do"
if [ -n "$python" ]; then
    diverges gpt2 transformer.wpe.weight "the embedding differs, for 2 of 128 tokens: the first is" 1.5 480
    prints "at position 10 of sequence 0"
else
    skip "no python3"
fi

it "so does what no weight says: the config"
for change in 's/"rms_norm_eps": 1e-05/"rms_norm_eps": 1e-04/ layer 0 diverges in attention_norm' \
    's/"rope_theta": 10000.0/"rope_theta": 20000.0/ layer 0 diverges in rotary'; do
    rm -rf x && cp -r "$golden/llama2" x
    sed -i "${change%% layer*}" x/config.json
    cmp -s x/config.json "$golden/llama2/config.json" && is_wrong "not changed: $change"
    compare "$golden/llama2" x
    exits 1
    [ "$(head -n 1 "$stdout" | cut -c 1-15)" = "CONFIGS DIFFER:" ] || is_wrong "not said first"
    prints "1 field of the configs, 0 of "
    prints "layer ${change#* layer }"
done
sed -i 's/"rope_theta": 20000.0/"rope_theta": 10000.0001/' x/config.json
compare "$golden/llama2" x --report page.html
exits 1
prints "CONFIGS DIFFER: "
prints "forward: identical: "
[ "$(grep -o '<b>[^<]*</b>' page.html | head -n 1)" = "<b>CONFIGS DIFFER</b>" ] || is_wrong "not first on the page"
compare "$golden/llama2" x --ignore-config rotary_base
exits 0

it "NaN are a difference"
if [ -n "$python" ]; then
    changed llama2 x model.layers.1.mlp.down_proj.weight nan 5
    compare "$golden/llama2" x
    exits 1
    prints "forward: DIFFERENT: B: "
    compare x "$golden/llama2"
    exits 10
    cp "$golden/llama2/logits.safetensors" nan.safetensors
    "$python" "$scratch/change.py" nan.safetensors logits nan 700
    compare "$golden/llama2" nan.safetensors
    exits 1
    prints "NaN or Inf: 1"
else
    skip "no python3"
fi

it "results that forward wrote are results, too"
"$ferry" forward -q "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" \
    --out own.safetensors --hidden --trace-layer 1 --threads 1 || is_wrong "forward"
compare "$golden/llama2" own.safetensors --input-ids "$golden/llama2/logits.safetensors"
exits 0
prints "forward: identical: 6 results"
compare "$golden/llama2" own.safetensors
exits 2
says "own.safetensors has no input_ids: give the tokens of its results by --input-ids"
if [ -n "$python" ]; then
    "$python" -c 'data = open("own.safetensors", "rb").read()
open("deeper.safetensors", "wb").write(data.replace(b"\"hidden.1\"", b"\"hidden.9\""))'
    compare "$golden/llama2" deeper.safetensors --input-ids "$golden/llama2/logits.safetensors"
    exits 3
    says "B (deeper.safetensors) has hidden.9, A ("
else
    skip "no python3"
fi

it "beside results, or --input-ids, options that could not act are refused"
for option in "--batch 2" "--seq 8" "--rtol 0.1" "--only logits" "--ignore logits" "--ignore-config rotary_base" "--ignore-training step" --no-optim; do
    # shellcheck disable=SC2086 # words
    compare "$golden/llama2" "$golden/llama2/logits.safetensors" $option
    exits 2
    says "logits.safetensors has results"
done
compare "$golden/llama2" "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --batch 2
exits 2
says "--batch and --seq do not apply to --input-ids"

it "without --forward a file of results is told from a checkpoint"
run verify "$golden/llama2" "$golden/llama2/logits.safetensors"
exits 3
says "logits.safetensors has results of a model (logits or hidden states) and no weights: --forward compares them"
run verify "$golden/llama2/logits.safetensors" "$golden/llama2/logits.safetensors"
exits 0

it "results of another model are refused"
compare "$golden/mistral" "$golden/llama2/logits.safetensors"
exits 3
says "hidden.0 of A is 40 tokens by 48, in B"

it "--forward has the long names of its options, too"
compare "$golden/gpt2" "$golden/gpt2" --micro-batch-size 1 --seq-length 5
exits 0
prints "; 1 x 5 tokens"

it "what cannot be compared is refused"
compare "$golden/llama2" "$golden/mistral"
exits 3
says "llama2) has num_layers 2, B ("
run verify "$golden/gpt2" "$golden/gpt2" --seq 5
exits 2
says "--input-ids, --batch, --seq and layout options need --forward"
compare "$golden/gpt2" "$golden/gpt2" --batch 0
exits 2
says "--batch: \"0\" is not a whole number from 1 to"
compare "$golden/gpt2" "$golden/gpt2" --seq 500
exits 3
compare "$golden/gpt2" "$golden/gpt2" --input-ids "$golden/gpt2/model.safetensors"
exits 2
says "no tensor input_ids"
compare "$golden/gpt2" "$golden/gpt2/logits.safetensors" --input-ids "$golden/mistral/logits.safetensors"
exits 2
says "are for other tokens than those of --input-ids"
compare "$golden/gpt2/logits.safetensors" "$golden/gpt2"
exits 3
compare "$golden/gpt2" nosuch.safetensors
exits 4

it "a process of a container that has ranks compares by itself"
run_program env RANK=0 WORLD_SIZE=2 "$ferry" verify "$golden/gpt2" "$golden/gpt2" --forward
exits 0

it "the first line and the verdict of --json are those of the exit code"
if [ -n "$python" ]; then
    changed llama2 x model.layers.1.self_attn.q_proj.weight 1.25
    while read -r flags; do
        # shellcheck disable=SC2086 # words
        compare "$golden/llama2" x $flags
        exits 1
        head -n 1 "$stdout" | grep -q "^DIFFERENT: the forward pass; weights [iw][^:]*: 1[45] tensors, " ||
            is_wrong "$flags: the first line is $(head -n 1 "$stdout")"
        prints "forward: DIFFERENT: layer 1 diverges"
        # shellcheck disable=SC2086 # words
        compare "$golden/llama2" x $flags --json
        exits 1
        "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]))
assert t["verdict"] == t["forward"]["verdict"] == "different"
assert t["weights_verdict"] in ("identical", "within tolerance")' "$stdout" 2>parsed || is_wrong "--json: $(cat parsed)"
    done <<'FLAGS'
--atol 10
--ignore *layers.1.*linear_qkv.weight
FLAGS
    compare "$golden/gpt2" gpt2-bf16 --json
    exits 0
    "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]))
assert t["verdict"] == t["forward"]["verdict"] == "within rounding" and t["weights_verdict"] == "different"' \
        "$stdout" 2>parsed || is_wrong "--json: $(cat parsed)"
else
    skip "no python3"
fi

it "-q says nothing, --json prints JSON and nothing else"
compare "$golden/gpt2" gpt2-bf16 -q
exits 0
prints_nothing
says_nothing
if [ -n "$python" ]; then
    changed llama2 x model.layers.1.self_attn.q_proj.weight 1.25
    compare "$golden/llama2" x --json
    exits 1
    "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]), parse_constant=lambda x: 1 / 0)
f = t["forward"]
assert t["verdict"] == f["verdict"] == "different"
assert (f["diverges"]["layer"], f["diverges"]["op"]) == (1, "qkv")
assert [r["name"] for r in f["results"]][:3] == ["hidden.0", "hidden.1", "hidden.2"]
assert [r["outcome"] for r in f["results"]] == ["identical"] * 2 + ["different"] * 4' \
        "$stdout" 2>parsed || is_wrong "--json: $(cat parsed)"
    compare "$golden/llama2" "$golden/llama2/logits.safetensors" --json
    exits 0
    "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]), parse_constant=lambda x: 1 / 0)
assert "a" not in t and t["verdict"] == t["forward"]["verdict"] == "within rounding"' \
        "$stdout" 2>parsed || is_wrong "--json: $(cat parsed)"
else
    skip "no python3"
fi

it "the verdict comes first in JSON, of results as of checkpoints"
if [ -n "$python" ]; then
    changed gpt2 x transformer.h.1.attn.c_attn.weight 1.25
    for pair in "$golden/gpt2 different" "$golden/gpt2/logits.safetensors different" "x identical"; do
        compare x "${pair% *}" --json
        "$python" - "$stdout" "${pair#* }" <<'PYTHON' 2>parsed || is_wrong "$pair: $(cat parsed)"
import json, sys


def refuse(word):
    raise ValueError(word)


t = json.load(open(sys.argv[1]), parse_constant=refuse)
assert list(t)[3] == "verdict" and t["verdict"] == t["forward"]["verdict"] == sys.argv[2], t["verdict"]
PYTHON
    done
else
    skip "no python3"
fi

it "--report draws it"
for b in gpt2-bf16 "$golden/gpt2/logits.safetensors"; do
    compare "$golden/gpt2" "$b" --report page.html -q
    exits 0
    grep -q '<b>within rounding</b>' page.html || is_wrong "no verdict"
    grep -q 'aria-label="error by layer"' page.html || is_wrong "no error by layer"
    grep -q 'aria-label="logits of A and B"' page.html || is_wrong "no scatter"
done
