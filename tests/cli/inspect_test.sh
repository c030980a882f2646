#!/bin/sh
# inspect_test.sh - inspect, print and models.
. "$(dirname "$0")/lib.sh"
synth_model m
"$ferry" convert -q m ckpt --tp 2 --pp 2
"$ferry" convert -q m legacy --tp 2 --to torch

it "inspect says format, layout and sizes, of all formats"
run inspect m
exits 0
prints "hf"
prints "4 layers, hidden 64, 8 heads, 2 key/value heads of 8, ffn 128"
run inspect ckpt
exits 0
prints "torch_dist"
prints "TP2"
prints "PP2"
run inspect legacy
exits 0
prints "TP2"

it "inspect lists logical tensors, the same of all formats, or those stored"
for path in m ckpt legacy; do
    run inspect $path --tensors 'decoder.layers.[12].mlp.linear_fc?.weight'
    exits 0
    sed -n 's/^\(  decoder.*\]\).*/\1/p' "$stdout" | sort >"$path.tensors"
done
[ "$(wc -l <m.tensors)" -eq 4 ] || is_wrong "not four tensors: $(cat m.tensors)"
same_files m.tensors ckpt.tensors
same_files m.tensors legacy.tensors
run inspect m --stored --tensors '*gate_proj*'
prints "model.layers.3.mlp.gate_proj.weight"
run inspect ckpt --stored --tensors '*'
prints "decoder.layers.mlp.linear_fc1.weight"
run inspect legacy --stored --tensors '*'
prints "linear_fc1.weight"

it "names of the files are taken too, and a list of nothing says so"
run inspect m --tensors 'model.layers.3.*q_proj*'
exits 0
prints "tensors, as the files call them"
prints "  model.layers.3.self_attn.q_proj.weight  BF16 [64, 64]"
run inspect m --tensors '*no_such_name*'
exits 0
prints '  none matches "*no_such_name*"'

it "what wrote a checkpoint is told without JSON's quotes"
run inspect ckpt
exits 0
grep -qE '^record     written 20[0-9T:Z+-]* by ferry [0-9.]* from m$' "$stdout" || is_wrong "$(grep record "$stdout")"
grep -qE '^digest     [0-9a-z:]*$' "$stdout" || is_wrong "$(grep digest "$stdout")"

it "print gives the same values by logical names in all formats"
for name in 'decoder.layers.3.mlp.linear_fc1.weight[126:130,60:64]' 'decoder.final_layernorm.weight' \
    'embedding.word_embeddings.weight[999:1000]' 'decoder.layers.0.self_attention.linear_qkv.weight[:2]'; do
    for path in m ckpt legacy; do
        run print $path "$name"
        exits 0
        cp "$stdout" "$path.values"
    done
    [ -s m.values ] || is_wrong "$name: no values"
    same_files m.values ckpt.values
    same_files m.values legacy.values
done

it "print takes names of the files, several of them, and refuses what is not there"
run print m 'model.norm.weight[0:2]' 'lm_head.weight[999,0:2]'
exits 0
[ "$(wc -l <"$stdout")" -eq 2 ] || is_wrong "not two lines: $(cat "$stdout")"
run print m 'model.norm.weight[0:2,0]'
exits 2
run print m 'model.norm.weight[64]'
exits 2
run print m 'model.norm.weight[x]'
exits 2

it "print refuses what lies outside of a tensor, however large the number, and ranges that are empty"
for range in 64 9223372036854775807 9223372036854775808 99999999999999999999 -65 \
    -9223372036854775808 -99999999999999999999 65: 3:2 0:-65; do
    run print m "model.norm.weight[$range]"
    exits 2
    says "[$range]: outside of a dimension of 64"
    prints_nothing
done
for range in '' ',0:2' '0:2,'; do
    run print m "lm_head.weight[$range]"
    exits 2
    says 'lm_head.weight: a range is empty: ":" is the whole of a dimension'
done
for range in + 1:2:3 0x1 - 1-; do
    run print m "model.norm.weight[$range]"
    exits 2
    says "[$range]: no range"
done
run print m 'model.norm.weight[62:99999999999999999999]'
exits 0
cp "$stdout" to_the_end
for range in -2: 62:64 62:; do
    run print m "model.norm.weight[$range]"
    exits 0
    cmp -s "$stdout" to_the_end || is_wrong "$range: $(cat "$stdout")"
done

it "print --json is one object of all that was asked for; NaN and infinity are texts"
if command -v python3 >/dev/null; then
    python3 - <<SCRIPT
import json, struct
header = json.dumps({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                     "b": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]}}).encode()
with open("odd.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    f.write(struct.pack("<4fq", float("nan"), float("inf"), float("-inf"), 1.5, 2**63 - 1))
SCRIPT
    run print odd.safetensors a 'a[1]' b --json
    exits 0
    python3 - "$stdout" <<SCRIPT || is_wrong "$(cat "$stdout")"
import json, sys
def refuse(word): raise ValueError(word)
read = json.load(open(sys.argv[1]), parse_constant=refuse)
assert read["tensors"] == {"a": [["NaN", "Infinity"], ["-Infinity", 1.5]], "a[1]": [["-Infinity", 1.5]],
                           "b": 2**63 - 1}, read
SCRIPT
else
    skip "no python3"
fi

it "models lists the families, and shows the map of one"
run models
exits 0
prints "llama"
prints "Qwen3MoeForCausalLM"
run models --show gpt2
exits 0
prints "attn.c_attn.weight"
run models --show nosuch
exits 3

it "what is printed with --json is JSON"
if command -v python3 >/dev/null; then
    for line in "inspect m --tensors *" "inspect ckpt --stored --tensors *" "models" "models --show llama" \
        "print m lm_head.weight" "convert m out --dry-run" "convert m out"; do
        set -f
        # shellcheck disable=SC2086 # words
        run $line --json
        set +f
        exits 0
        python3 -m json.tool "$stdout" >parsed 2>&1 || is_wrong "$line --json: $(cat parsed)"
    done
else
    skip "no python3"
fi
