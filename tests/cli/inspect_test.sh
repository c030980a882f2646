#!/bin/sh
# inspect_test.sh - inspect, print and models.
here=$(realpath "$(dirname "$0")")
golden=$here/../golden
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

it "without a config nothing is said of the model, and what is not read is not called frozen"
mkdir nameless
cp -r "$golden/dcp/torchtitan-fused-dp2/ckpt/"* nameless
run inspect nameless -v
exits 0
prints "model      not known without a config.json (--hf-config DIR)"
prints "fuses q, k and v; splitting it takes a config.json"
! grep -q "embeddings\|0 layers" "$stdout" || is_wrong "$ran: $(cat "$stdout")"
! grep -q "frozen" "$stderr" || is_wrong "$ran: $(cat "$stderr")"

it "inspect says what the config does, and counts in groups of three digits"
run inspect m
prints "vocabulary 1,000, embeddings untied, 2,048 positions"
prints "rope       base 10000, no scaling"
prints "attention  no bias"
prints "mlp        silu, gated, no bias"
prints "norm       RMSNorm, eps 1e-06"
prints "parameters 268 K (267,840), 536 kB, BF16"
prints "  embeddings                    1 tensor       128 kB"
prints "  BF16                         27 tensors      536 kB"
run inspect "$golden/hf/mistral"
prints "attention  no bias, sliding window 8"
run inspect "$golden/hf/gpt2"
prints "position   learned_absolute"
prints "attention  bias of qkv and proj"
prints "mlp        gelu_tanh, not gated, bias"
prints "norm       LayerNorm, eps"
run inspect "$golden/hf/llama3.1"
prints "llama3 scaling, factor"
run inspect "$golden/megatron/mixtral-te-names-ep2/checkpoint"
prints "experts    4, top-2 per token, ffn 12, softmax after top-k"
run inspect "$golden/hf/qwen3"
prints "attention  no bias, qk norm"
run inspect "$golden/hf/qwen2.5"
prints "attention  bias of qkv"

run inspect "$golden/arch/gpt-oss-tp2ep2/checkpoint"
prints "features   attention_sinks, activation_func_clamp_value 7.0, glu_linear_offset 1.0"

it "--report writes a page of everything, and prints the same as without it"
run inspect ckpt
cp "$stdout" without
run inspect ckpt --report page.html
exits 0
cmp -s "$stdout" without || is_wrong "other text: $(cat "$stdout")"
for text in '<b>llama</b><span>torch_dist</span><span>parameters: 268 K (267,840), 536 kB, BF16</span>' \
    '<dt>layout</dt><dd>TP2 PP2, parameter naming of the TE spec</dd>' '<dt>rope</dt><dd>base 10000, no scaling</dd>' \
    '<td class="s">BF16</td><td class="bar"><i style="width:100.0%">' '<td class="t">hidden_size</td><td class="s">64<' \
    '<td class="t">num_layers</td>' '<summary>Args' '<summary>Files'; do
    grep -qF "$text" page.html || is_wrong "the page lacks $text"
done
[ "$(grep -c '<td class="t">[a-z]*.<wbr>' page.html)" -ge 27 ] || is_wrong "not all tensors"
! grep -q '<th class="n">std' page.html || is_wrong "statistics"
run inspect ckpt --report page.html --stats --tensors '*norm*' -q
exits 0
grep -q '<th class="n">std' page.html || is_wrong "no statistics"
! grep -q 'word_<wbr>*embeddings' page.html || is_wrong "other tensors"
printf '\113\0\0\0\0\0\0\0{"<img src=x>": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}    \0\0\0\0' >img.safetensors
run inspect img.safetensors --report page.html
exits 0
grep -q '&lt;img src=x&gt;' page.html || is_wrong "no name of a tensor"
! grep -q '<img' page.html || is_wrong "a name is markup"
run inspect ckpt --report m/config.json
exits 7
says "--report m/config.json: exists and is not a report"
run inspect nosuch --report nosuch/page.html
exits 4
says "--report nosuch/page.html: its folder does not exist"

it "-v adds all fields of the config, and the files with their sizes"
run inspect m -v
prints "  layernorm_epsilon                       1e-06"
prints "  sliding_window                          -"
grep -qE '^  m/model.safetensors +[0-9.]+ kB$' "$stdout" || is_wrong "no file: $(tail -n 3 "$stdout")"

it "inspect says of an optimizer what kind it is, and what it holds"
run inspect "$golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint"
prints "optimizer  distributed, fully_reshardable, 42.8 kB, param, exp_avg, exp_avg_sq of 9 parameters in F32"
run inspect m
prints "optimizer  none"
if grep -q '^training' "$stdout"; then is_wrong "a training state of a model that was not trained"; fi

it "inspect says how far the training is, and with what settings"
run inspect "$golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint"
prints "training   step 2, iteration 10, 40 samples"
prints "           adam, 2 groups: matrices (lr 0.01, weight decay 0.01), vectors (lr 0.01, weight decay 0)"
prints "           schedule: constant, lr 0.01 to 0.001, decay over 400, at sample 40"
prints "           states of random number generators"

# A folder of weights in F32 with moments and without masters: own.
own_masters() {
    source=$golden/megatron/llama-HEAD-fully-reshardable-dp2
    run convert "$source/checkpoint" own --to hf --optim --torch-dtype float32 --hf-config "$source/expected"
    exits 0
    python3 "$here/strip_tensors.py" own/optimizer.safetensors 'fp32\.' || is_wrong "strip_tensors.py"
}

it "a weight that is its own master is not counted as stored twice"
if command -v python3 >/dev/null; then
    own_masters
    run inspect own
    exits 0
    prints "exp_avg, exp_avg_sq of 9 parameters in F32; 9 weights are their own masters"
    prints "  optimizer                    18 tensors     27.3 kB"
    prints "  F32                          27 tensors     40.9 kB"
    run inspect own --tensors '*final_layernorm*'
    prints "  optimizer.param.decoder.final_layernorm.weight  F32 [16]  = decoder.final_layernorm.weight"
    prints "  optimizer.exp_avg.decoder.final_layernorm.weight  F32 [16]  <- exp_avg.model.norm.weight"
    run inspect own --json --tensors '*final_layernorm*'
    python3 - "$stdout" 2>checked <<'SCRIPT' || is_wrong "$(cat checked)"
import json, sys
t = json.load(open(sys.argv[1]))
o = t["optimizer"]
assert o["own_masters"] == 9 and set(o["states"]) == {"exp_avg", "exp_avg_sq"}, o
assert o["states"]["exp_avg"] == {"parameters": 9, "bytes": 13632, "dtypes": ["F32"]}, o
assert o["exp_avg"] == {"tensors": 9, "bytes": 13632} and "param" not in o, o
assert (o["inferred"], o["proved_by"]) == (False, 0), o
assert t["training"]["step"] == 2 and t["training"]["groups"][1]["weight_decay"] == 0, t["training"]
assert t["groups"]["optimizer"]["tensors"] == 18, t["groups"]
same = {x["name"]: (x["same_as"], x["shards"], x["stored_names"]) for x in t["tensors"] if "same_as" in x}
assert same == {"optimizer.param.decoder.final_layernorm.weight": ("decoder.final_layernorm.weight", 0, [])}, same
SCRIPT
    run print own 'optimizer.param.decoder.final_layernorm.weight[0:4]' --json
    exits 0
else
    skip "no python3"
fi

it "inspect --args lists what Megatron was run with, of a Namespace or of run_config.yaml"
run inspect ckpt --args
exits 0
grep -qE '^  num_attention_heads +8$' "$stdout" || is_wrong "$(grep num_att "$stdout")"
grep -qE '^  position_embedding_type +rope$' "$stdout" || is_wrong "$(grep position_emb "$stdout")"
sed -n '/^args$/,$p' "$stdout" | sed 1d >listed
[ "$(wc -l <listed)" -gt 20 ] || is_wrong "few args: $(cat listed)"
LC_ALL=C sort -c listed || is_wrong "they are not sorted"
run inspect "$golden/megatron/llama-bridge-0.3.1/checkpoint" --args
exits 0
grep -qE '^  model.num_layers +[0-9]+$' "$stdout" || is_wrong "$(grep num_layers "$stdout")"
run inspect m --args
exits 2
says "m: --args: it has neither Megatron's args nor run_config.yaml"

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
prints "tensors, as the files name them"
prints "  model.layers.3.self_attn.q_proj.weight  BF16 [64, 64]  -> decoder.layers.3.self_attention.linear_qkv.weight"
run inspect m --tensors '*.3.*linear_qkv.weight'
exits 0
prints "  decoder.layers.3.self_attention.linear_qkv.weight  BF16 [96, 64]  3 shards  <- model.layers.3.self_attn.q_proj.weight, model.layers.3.self_attn.k_proj.weight, model.layers.3.self_attn.v_proj.weight"
run inspect ckpt --stored --tensors '*linear_fc2.weight'
prints "  decoder.layers.mlp.linear_fc2.weight  BF16 [4, 64, 128]  8 shards  -> decoder.layers.0.mlp.linear_fc2.weight, "

it "on a Megatron checkpoint the names of Hugging Face are taken, too"
for path in ckpt legacy; do
    run inspect $path --tensors 'model.layers.3.*_proj.weight'
    exits 0
    prints "tensors, as Hugging Face names them"
    prints "  model.layers.3.mlp.up_proj.weight  BF16 [128, 64]"
    prints "  -> decoder.layers.3.mlp.linear_fc1.weight"
    [ "$(grep -c '^  model' "$stdout")" -eq 7 ] || is_wrong "not seven tensors"
done

it "what matches no tensor is refused, with the nearest name"
for path in m ckpt; do
    run inspect $path --tensors 'decoder.layer.3.mlp.linear_fc3.weigth'
    exits 2
    says 'no tensor matches "decoder.layer.3.mlp.linear_fc3.weigth"; the nearest name is decoder.layers.3.mlp.linear_fc1.weight'
    prints_nothing
done
run inspect m --tensors 'model.layer.*.q_proj.weight'
exits 2
says 'the nearest name is model.layers.0.self_attn.q_proj.weight'

run inspect m --tensors '*no_such_name*'
exits 2
says 'no tensor matches "*no_such_name*"; an existing name is '

it "a single file lists its tensors without being asked, the first 40 of many"
run inspect m/model.safetensors
exits 0
prints "  lm_head.weight  BF16 [1000, 64]"
prints "  model.norm.weight  BF16 [64]"
synth_model deep --layers 8
run inspect deep/model.safetensors
exits 0
prints "  ... and 35 more, --tensors '*' lists all"
[ "$(grep -c '^  [ml].*weight' "$stdout")" -eq 40 ] || is_wrong "not forty tensors"
run inspect deep/model.safetensors --tensors '*'
[ "$(grep -c '^  [ml].*weight' "$stdout")" -eq 75 ] || is_wrong "not all tensors"

it "what wrote a checkpoint is told without JSON's quotes"
run inspect ckpt
exits 0
grep -qE '^record     written 20[0-9T:Z+-]* by ferry [^ ]* from m$' "$stdout" || is_wrong "$(grep record "$stdout")"
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
[ "$(cut -c1 "$stdout" | tr -d "\n")" = "m[l[" ] || is_wrong "not two tensors under their names: $(cat "$stdout")"
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
    says "[$range]: out of range for a dimension of 64"
    prints_nothing
done
for range in '' ',0:2' '0:2,'; do
    run print m "lm_head.weight[$range]"
    exits 2
    says 'lm_head.weight: empty range: ":" selects the whole dimension'
done
for range in + 1:2:3 0x1 - 1-; do
    run print m "model.norm.weight[$range]"
    exits 2
    says "[$range]: not a range"
done
run print m 'model.norm.weight[62:99999999999999999999]'
exits 0
cp "$stdout" to_the_end
for range in -2: 62:64 62:; do
    run print m "model.norm.weight[$range]"
    exits 0
    cmp -s "$stdout" to_the_end || is_wrong "$range: $(cat "$stdout")"
done

it "print elides all but the edges of what is large, as numpy does; --all and --json do not"
run print -q m lm_head.weight
exits 0
[ "$(wc -l <"$stdout")" -eq 7 ] || is_wrong "not seven lines: $(head -c 2000 "$stdout")"
[ "$(sed -n 4p "$stdout")" = " ...," ] || is_wrong "$(sed -n 4p "$stdout")"
"$ferry" print -q m 'lm_head.weight[999,61:]' >last
tail -n 1 "$stdout" | grep -qF "..., $(tr -d '[]' <last)]]" || is_wrong "$(cat last): $(tail -n 1 "$stdout")"
run print -q m 'lm_head.weight[:125,:8]' # a thousand
[ "$(tr ',' '\n' <"$stdout" | grep -c '[0-9]')" -eq 1000 ] || is_wrong "some of a thousand are left out"
run print -q m lm_head.weight --all
[ "$(tr ',' '\n' <"$stdout" | grep -c '[0-9]')" -eq 64000 ] || is_wrong "some are left out"
! grep -qF ... "$stdout" || is_wrong "there are dots"

it "print takes the names of Hugging Face on a Megatron checkpoint, and globs"
for name in 'model.layers.0.self_attn.q_proj.weight[0:2,0:4]' 'model.layers.3.mlp.up_proj.weight[60:70,:]' \
    'model.layers.*.self_attn.[kv]_proj.weight' 'model.layers.[12].*norm.weight[1:3]'; do
    for path in m ckpt legacy; do
        run print --all $path "$name"
        exits 0
        cp "$stdout" $path.values
    done
    [ -s m.values ] || is_wrong "$name: no values"
    same_files m.values ckpt.values
    same_files m.values legacy.values
done
for family in gpt2 mixtral qwen3-moe; do # transposed weights, experts
    "$ferry" convert -q "$golden/hf/$family" $family --tp 2
    names=$("$ferry" inspect -q "$golden/hf/$family" --stored --tensors '*' | sed '1,/^tensors/d; s/^  //; s/ .*//')
    # shellcheck disable=SC2086 # words
    run print --all "$golden/hf/$family" $names
    exits 0
    cp "$stdout" hf.values
    # shellcheck disable=SC2086 # words
    run print --all $family $names
    exits 0
    [ "$(wc -l <hf.values)" -gt 1000 ] || is_wrong "few values: $names"
    same_files hf.values "$stdout"
done
run print m 'model.layers.*.self_attn.[kv]_proj.weight[0,0:2]'
[ "$(grep -c "^\[" "$stdout")" -eq 8 ] || is_wrong "not eight tensors: $(cat "$stdout")"

it "print of a name that is not there says the nearest, and prints nothing of the others"
run print m model.norm.weight 'model.norm.wieght[0:3]'
exits 2
says 'no tensor matches "model.norm.wieght"; the nearest name is model.norm.weight'
prints_nothing

it "print of a large tensor takes little memory, and stops where nobody reads"
"$ferry" synth -q --model llama --sparse --vocab-size 4000000 large
limit=500000
! nm -D "$ferry" | grep -q __asan || limit=unlimited # the sanitizer maps terabytes
run_program sh -c "ulimit -v $limit; '$ferry' print -q large lm_head.weight[:200000] --json | wc -c"
exits 0
[ "$(cat "$stdout")" -gt 30000000 ] || is_wrong "only $(cat "$stdout") bytes: $(cat "$stderr")"
run_program sh -c "timeout 300 '$ferry' print -q large lm_head.weight --all | head -n 1 | head -c 20"
exits 0
says "cannot write to standard output"

it "print --json is one object where it fails, too, before the first value or between two"
if command -v python3 >/dev/null; then
    run print m model.norm.weight nosuch.weight --json
    exits 2
    cp "$stdout" before
    : >"$stdout"
    "$ferry" print large model.norm.weight lm_head.weight --json >"$stdout" 2>"$stderr" &
    until grep -qs lm_head.weight "$stdout" || ! kill -0 $! 2>/dev/null; do sleep 0.05; done
    kill -TERM $!
    wait $!
    code=$? ran="ferry print, ended between two values"
    exits 130
    python3 - before "$stdout" <<SCRIPT || is_wrong "$(head -c 1000 "$stdout")"
import json, sys
before, between = (json.load(open(name)) for name in sys.argv[1:])
assert before["exit_code"] == 2 and "no tensor matches" in before["error"], before
assert between["exit_code"] == 130 and between["error"].endswith("interrupted"), between["error"]
assert [t["name"] for t in between["tensors"]] == ["model.norm.weight", "lm_head.weight"]
assert len(between["tensors"][0]["values"]) == 64
SCRIPT
else
    skip "no python3"
fi

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
assert read["command"] == "print" and read["exit_code"] == 0
assert read["tensors"] == [
    {"name": "a", "dtype": "F32", "shape": [2, 2], "slice": [[0, 2], [0, 2]],
     "values": [["NaN", "Infinity"], ["-Infinity", 1.5]]},
    {"name": "a", "dtype": "F32", "shape": [2, 2], "slice": [[1, 2], [0, 2]],
     "values": [["-Infinity", 1.5]]},
    {"name": "b", "dtype": "I64", "shape": [], "slice": [], "values": 2**63 - 1}], read
SCRIPT
else
    skip "no python3"
fi

it "inspect --json says all that the text does"
if command -v python3 >/dev/null; then
    run inspect m --json --tensors '*layers.3*q_proj*'
    exits 0
    cp "$stdout" m.json
    run inspect ckpt --json --args --tensors '*.2.*linear_fc1.weight'
    exits 0
    cp "$stdout" ckpt.json
    run inspect ckpt --json --stored --tensors '*.linear_fc1.*'
    cp "$stdout" stored.json
    python3 - <<SCRIPT || is_wrong "$(cat m.json)"
import json
m, ckpt = json.load(open("m.json")), json.load(open("ckpt.json"))
assert m["command"] == "inspect" and m["exit_code"] == 0 and m["error"] is None
assert m["config"]["num_layers"] == 4 and m["config"]["rotary_base"] == 10000
assert m["config"]["sliding_window"] is None and m["config"]["moe_layers"] is None
assert m["dtypes"] == {"BF16": {"tensors": 27, "bytes": 535680}}, m["dtypes"]
assert m["optimizer"] is None and m["files"] == 1 and m["file_list"][0]["path"] == "m/model.safetensors"
name = "model.layers.3.self_attn.q_proj.weight"
assert m["tensors"] == [{"name": name, "stored_names": [name], "dtype": "BF16", "shape": [64, 64],
    "logical_names": ["decoder.layers.3.self_attention.linear_qkv.weight"], "shards": 1}], m["tensors"]
assert ckpt["args"]["num_attention_heads"] == 8 and ckpt["args"]["hidden_size"] == 64
assert list(ckpt["args"]) == sorted(ckpt["args"])
assert ckpt["tensors"][0]["stored_names"] == ["decoder.layers.mlp.linear_fc1.weight"]
stored = json.load(open("stored.json"))
assert len(stored["tensors"]) == 2 and len(stored["tensors"][0]["logical_names"]) == 4
assert len(stored["entries"]) == 4 and stored["entries"][0]["name"].endswith("_extra_state/shard_0_4")
assert ckpt["record"]["source"]["path"] == "m" and "tensors" not in ckpt["record"]
SCRIPT
else
    skip "no python3"
fi

it "inspect --stats says what the elements are, the same of all names, formats and threads"
for path in m ckpt legacy; do
    run inspect $path --stats --tensors '*linear_fc1.weight' --threads 3
    exits 0
    sed -n '/^tensors/,$p' "$stdout" >$path.stats
done
[ "$(wc -l <m.stats)" -eq 6 ] || is_wrong "not four tensors: $(cat m.stats)"
same_files m.stats ckpt.stats
same_files m.stats legacy.stats
run inspect ckpt --stats --tensors '*linear_fc1.weight' --threads 1 --max-memory 64MiB
sed -n '/^tensors/,$p' "$stdout" >one.stats
same_files m.stats one.stats
for path in m ckpt; do
    run inspect $path --stats --tensors 'model.layers.2.self_attn.k_proj.weight'
    sed -n '/^tensors/d; /k_proj/p' "$stdout" >$path.stats
done
[ -s m.stats ] || is_wrong "no k_proj"
same_files m.stats ckpt.stats
run inspect ckpt --stats --stored
grep -qE '^  output_layer.weight .* 1,536$' "$stdout" || is_wrong "no zeros of padding: $(tail -n 1 "$stdout")"
run inspect m --stats --max-memory 1MiB
exits 6
run inspect m --stats --tensors nosuch
exits 2

it "inspect --stats is what a plain loop in double precision finds, NaN and infinities left out"
if command -v python3 >/dev/null; then
    cat >stats.py <<SCRIPT
import json, math, random, struct, sys
random.seed(5)
nan, inf = float("nan"), float("inf")
odd = [nan, inf, -inf, 0.0, -0.0, nan]
def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0] >> 16
    return struct.pack("<H", bits if x == x else 0x7FC1)
kinds = {"F32": (lambda x: struct.pack("<f", x), lambda b: struct.unpack("<f", b)[0]),
         "F16": (lambda x: struct.pack("<e", x), lambda b: struct.unpack("<e", b)[0]),
         "BF16": (bf16, lambda b: struct.unpack("<f", b"\0\0" + b)[0]),
         "F64": (lambda x: struct.pack("<d", x), lambda b: struct.unpack("<d", b)[0]),
         "I8": (lambda x: struct.pack("<b", int(x)), lambda b: struct.unpack("<b", b)[0]),
         "I64": (lambda x: struct.pack("<q", int(x)), lambda b: struct.unpack("<q", b)[0])}
header, data, want = {}, b"", {}
for dtype, (store, load) in kinds.items():
    x = [random.gauss(3, 10) for _ in range(7001)] + (odd if dtype[0] != "I" else [0, 0])
    random.shuffle(x)
    stored = [store(v) for v in x]
    begin = len(data)
    data += b"".join(stored)
    header[dtype] = {"dtype": dtype, "shape": [len(x)], "data_offsets": [begin, len(data)]}
    x = [load(b) for b in stored]
    good = [v for v in x if math.isfinite(v)]
    mean = math.fsum(good) / len(good)
    want[dtype] = {"min": min(good), "max": max(good), "mean": mean,
                   "std": math.sqrt(math.fsum((v - mean) ** 2 for v in good) / len(good)),
                   "nan": sum(v != v for v in x), "inf": sum(v in (inf, -inf) for v in x),
                   "zeros": sum(v == 0 for v in x)}
header["none"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
want["none"] = dict.fromkeys(["min", "max", "mean", "std"]) | dict.fromkeys(["nan", "inf", "zeros"], 0)
if sys.argv[1] == "write":
    text = json.dumps(header).encode()
    open("stats.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
else:
    found = {t["name"]: t["stats"] for t in json.load(open(sys.argv[1]))["tensors"]}
    assert set(found) == set(want), found.keys()
    for name in want:
        for key, value in want[name].items():
            other = found[name][key]
            near = value == other or abs(value - other) <= 1e-12 * (abs(value) + 1)
            assert near, (name, key, value, other)
SCRIPT
    python3 stats.py write
    run inspect stats.safetensors --stats --json
    exits 0
    python3 stats.py "$stdout" || is_wrong "$(cat "$stdout")"
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
