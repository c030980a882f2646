#!/bin/sh
# verify_test.sh - verify: checkpoints that are the same in any format and layout, what is said of
# those that are not, and why.
here=$(realpath "$(dirname "$0")")
golden=$here/../golden/megatron
. "$(dirname "$0")/lib.sh"
synth_model m
synth_model other --seed 2
"$ferry" convert -q m ckpt --tp 2 --pp 2
"$ferry" convert -q m legacy --tp 2 --to torch

python=$(command -v python3)
cat >"$scratch/break.py" <<'PYTHON'
# break.py FROM TO CHANGE NAME.. - copies a safetensors file of BF16 tensors with one of them, or two,
# changed. Rows are lists of two-byte elements.
import json, struct, sys

source, target, change, *names = sys.argv[1:]
data = open(source, "rb").read()
end = 8 + struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:end]), bytearray(data[end:])


def rows(name):
    low, high = header[name]["data_offsets"]
    n = header[name]["shape"][0]
    size = (high - low) // n
    lines = [body[low + i * size : low + (i + 1) * size] for i in range(n)]
    return [[bytes(line[k : k + 2]) for k in range(0, size, 2)] for line in lines]


def put(name, lines):
    low, high = header[name]["data_offsets"]
    body[low:high] = b"".join(b"".join(line) for line in lines)


def number(element):
    return struct.unpack("<f", b"\0\0" + element)[0]


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


if change == "exchange":
    a, b = names
    header[a], header[b] = header[b], header[a]
elif change == "drop":
    del header[names[0]]
elif change == "widen":  # to F32
    old, body = body, bytearray()
    for key in header:
        low, high = header[key].get("data_offsets", (0, 0))
        data_of = old[low:high]
        if key in names:
            header[key]["dtype"] = "F32"
            data_of = b"".join(b"\0\0" + data_of[k : k + 2] for k in range(0, high - low, 2))
        if key != "__metadata__":
            header[key]["data_offsets"] = [len(body), len(body) + len(data_of)]
            body += data_of
for name in names if change not in ("exchange", "drop", "widen") else []:
    r = rows(name)
    n = len(r)
    if change == "transpose":
        r = [list(column) for column in zip(*r)]
    elif change == "interleave":  # heads of 8 rows
        r = [r[i // 8 * 8 + i % 2 * 4 + i % 8 // 2] for i in range(n)]
    elif change == "plus-one":
        r = [[bf16(number(x) + 1) for x in line] for line in r]
    elif change == "zero":
        r = [line if i < n // 2 else [b"\0\0"] * len(line) for i, line in enumerate(r)]
    elif change == "flip":
        r[1][2 % len(r[1])] = bytes([r[1][2 % len(r[1])][0] ^ 1]) + r[1][2 % len(r[1])][1:]
    elif change == "nan":
        r[1][2 % len(r[1])] = b"\xc0\x7f"
    put(name, r)
text = json.dumps(header).encode()
if change == "drop":  # its bytes must not be left: that is refused
    low, high = json.loads(data[8:end])[names[0]]["data_offsets"]
    del body[low:high]
    for key in header:
        if key != "__metadata__" and header[key]["data_offsets"][0] >= high:
            header[key]["data_offsets"] = [x - (high - low) for x in header[key]["data_offsets"]]
    text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(target, "wb").write(struct.pack("<Q", len(text)) + text + body)
PYTHON

# A copy of a model with tensors changed: broken MODEL COPY CHANGE NAME..
broken() {
    from=$1 to=$2
    shift 2
    rm -rf "$to"
    cp -r "$from" "$to"
    "$python" "$scratch/break.py" "$from/model.safetensors" "$to/model.safetensors" "$@" ||
        is_wrong "break.py $*"
}

it "a model is identical in all formats and layouts"
"$ferry" convert -q ckpt ckpt4 --tp 4 --pp 1 --iteration 7
for path in m ckpt legacy ckpt4 ckpt4/iter_0000007; do
    run verify m $path
    exits 0
    prints "identical: 27 tensors"
    run verify $path ckpt
    exits 0
done
prints "TP2 PP2"

it "so are models with experts, fused attention and tied heads"
for family in qwen3-moe gpt2 mixtral; do
    "$ferry" synth -q --model $family "$family" || is_wrong "synth $family"
    case $family in
    gpt2) "$ferry" convert -q gpt2 gpt2-ckpt --tp 2 --pp 4 ;;
    *) "$ferry" convert -q $family $family-ckpt --tp 2 --ep 4 --etp 1 ;;
    esac
    run verify $family $family-ckpt
    exits 0
    prints "identical"
done

it "optimizer state is compared, or said to be left out, or refused where it cannot be read"
trained=$golden/llama-HEAD-fully-reshardable-dp2/checkpoint
"$ferry" convert -q "$trained" without --no-optim
"$ferry" convert -q "$trained" unread --no-optim --to torch
echo "no state" >unread/iter_0000010/mp_rank_00/distrib_optim.pt
run verify "$trained" "$trained"
exits 0
prints "identical: 36 tensors"
run verify "$trained" "$trained" --no-optim
exits 0
prints "identical: 9 tensors"
says "27 tensors of the optimizer in B are not compared: by --no-optim"
run verify "$trained" without
exits 0
says "27 tensors of the optimizer in A are not compared: the other side has none"
for pair in "$trained unread" "unread $trained"; do
    # shellcheck disable=SC2086 # words
    run verify $pair
    exits 3
    prints_nothing
    says "both sides have optimizer state, and that of "
    says " (unread: distributed, in distrib_optim.pt; 9 B) cannot be read"
    says "; use --no-optim to compare the weights alone"
    # shellcheck disable=SC2086 # words
    run verify $pair --no-load-optim
    exits 0
    prints "identical: 9 tensors"
    says "(distributed, in distrib_optim.pt) is not compared: by --no-optim"
done
run verify without unread
exits 0
says "the optimizer in B (distributed, in distrib_optim.pt) is not compared: the other side has none"

it "masters that are the weights themselves are compared as those that are stored"
expected=$golden/llama-HEAD-fully-reshardable-dp2/expected
if [ -n "$python" ]; then
    "$ferry" convert -q "$trained" stored --to hf --optim --torch-dtype float32 --hf-config "$expected" 2>"$stderr" ||
        is_wrong "convert stored"
    cp -r stored own
    "$python" "$here/strip_tensors.py" own/optimizer.safetensors 'fp32\.' || is_wrong "strip_tensors.py"
    for pair in "own stored" "stored own"; do
        # shellcheck disable=SC2086 # words
        run verify $pair
        exits 0
        prints "identical: 36 tensors"
    done
    "$ferry" convert -q own own-tp2 --tp 2 2>"$stderr" || is_wrong "convert own"
    run verify own-tp2 own
    exits 0
    prints "identical: 36 tensors"
else
    skip "no python3"
fi

it "states that one side lacks are different"
if [ -n "$python" ]; then
    for states in 'exp_avg_sq\.:9' 'exp_avg_sq\.model\.norm\.:1' '(exp_avg|exp_avg_sq)\.model\.norm\.:3'; do
        rm -rf less
        cp -r own less
        "$python" "$here/strip_tensors.py" less/optimizer.safetensors "${states%:*}" || is_wrong "strip_tensors.py"
        run verify own less
        exits 1
        prints "DIFFERENT: ${states##*:} of 36 tensors"
        prints "only in A: F32 "
        run verify less own
        exits 1
        run verify own less --no-optim
        exits 0
    done
else
    skip "no python3"
fi

it "training states that differ are different, where states of the optimizer are compared"
"$ferry" convert -q "$trained" run --to hf --optim --hf-config "$expected" 2>"$stderr" || is_wrong "convert run"
run verify run "$trained"
exits 0
prints "identical: 36 tensors"
cp -r run later
sed -i 's/"num_steps": 40/"num_steps": 60/; s/"lr": 0.01/"lr": 0.02/; s/"iteration": 10/"iteration": 12/' later/training.json
run verify run later
exits 1
prints "TRAINING DIFFERS: 3 fields of the training state, 0 of 36 tensors"
prints "training: num_steps 40 in A, 60 in B"
prints "training: groups[1].lr 0.01 in A, 0.02 in B"
says "note: the iterations differ: 10 in A, 12 in B"
run verify run later -q --report run.html
grep -q "to leave out fields that may differ: --ignore-training &#39;num_steps&#39;" run.html || is_wrong "no way on"
rm run.html
run verify run later
prints "training: to leave out fields that may differ: --ignore-training 'num_steps'"
run verify run later --ignore-training num_steps --ignore-training 'groups[1].lr' --json
exits 1
run verify run later --ignore-training num_steps --ignore-training 'groups*'
exits 0
prints "identical: 36 tensors"
says "note: 3 differences of the training states left out by --ignore-training: num_steps (40 in A, 60 in B), groups[0].lr"
run verify run later --ignore-training 'lr*x'
exits 2
says "--ignore-training lr*x: matches no field of the training state"
for options in --no-optim "--only decoder*"; do
    # shellcheck disable=SC2086 # words
    run verify run later $options
    exits 0
    prints "identical: "
done
run verify later without
exits 0
prints "identical: 9 tensors"
if [ -n "$python" ]; then
    run verify run later --json --report later_page
    exits 1
    "$python" - "$stdout" 2>parsed <<'PYTHON' || is_wrong "$(cat parsed)"
import json, sys
t = json.load(open(sys.argv[1]))
assert t["verdict"] == "training differs" and t["counts"]["identical"] == 36, t["verdict"]
assert {"field": "num_steps", "a": "40", "b": "60"} in t["training_differences"], t["training_differences"]
assert len(t["training_differences"]) == 3, t["training_differences"]
PYTHON
    grep -q '<td class="t">groups\[0\].lr</td><td class="s">0.01</td><td class="s">0.02</td>' later_page ||
        is_wrong "the page does not have groups[0].lr"
    grep -q '<b>TRAINING DIFFERS</b>' later_page || is_wrong "$(grep verdict later_page)"
    rm later_page
fi
sed -i 's/"iteration": 12/"iteration": 10/; s/"num_steps": 60/"num_steps": 40/; s/"lr": 0.02/"lr": 0.01/' later/training.json
"$ferry" convert -q later numbered --iteration 77 2>"$stderr" || is_wrong "convert later"
run verify later numbered
exits 0
prints "identical: 36 tensors"

it "padding of the vocabulary is left out, and said to be"
run verify m ckpt
says "2 tensors of vocabulary padding in B are not compared"

it "a vocabulary that one side does not know is that of the other"
cp -r ckpt bare && rm -rf bare/*/ferry-hf bare/*/run_config.yaml
"$ferry" convert -q bare wide --tp 1 --make-vocab-size-divisible-by 1500 || is_wrong "convert bare"
run verify m bare
exits 0
says "vocabulary size taken from m: 1000"
run verify bare wide
exits 1
prints " more rows: the first "
prints "the vocabulary size is not known, so rows of padding are compared, too: --true-vocab-size N leaves out"
run verify bare wide --true-vocab-size 1000
exits 0
if [ -n "$python" ]; then # padding of the same size, of other values
    "$ferry" convert -q bare narrow --to torch --tp 1 --pp 1 || is_wrong "convert bare"
    "$ferry" convert -q narrow padded --to torch_dist || is_wrong "convert narrow"
    "$python" - padded/release/__0_0.distcp m/model.safetensors <<'PYTHON' || is_wrong "no padding to change"
import json, struct, sys

data, model = bytearray(open(sys.argv[1], "rb").read()), open(sys.argv[2], "rb").read()
end = 8 + struct.unpack("<Q", model[:8])[0]
low, high = json.loads(model[8:end])["lm_head.weight"]["data_offsets"]
at = data.index(model[end + low : end + high]) + high - low  # the padding follows the 1000 rows
data[at : at + 256] = b"\x80\x3f" * 128
open(sys.argv[1], "wb").write(data)
PYTHON
    run verify bare padded
    exits 1
    prints "DIFFERENT: 1 of 27 tensors"
    prints "--true-vocab-size N leaves out"
    run verify bare padded --true-vocab-size 1000
    exits 0
    run verify m other
    ! grep -q "true-vocab-size" "$stdout" || is_wrong "--true-vocab-size is told where the size is known"
fi

it "another model differs everywhere, and that is exit code 1"
run verify m other
exits 1
prints "DIFFERENT: 27 of 27 tensors"
prints "layers 0 to 3 "
prints "and 7 more (-v, or --json)"
prints "    A, B    model.layers.*.mlp.{gate,up}_proj.weight"
[ "$(grep -c "^layer" "$stdout")" -eq 1 ] || is_wrong "layers that differ alike are a line each"
[ "$(awk 'length > 100' "$stdout" | wc -l)" -eq 0 ] || is_wrong "a line is longer than 100 columns"
prints "no hint holds for 27 tensors"
run verify m other -v
exits 1
[ "$(grep -c '^decoder.*\[' "$stdout")" -eq 25 ] || is_wrong "not all tensors with -v"
run verify m other -q
exits 1
prints_nothing
says_nothing

it "the verdict is red or green on a terminal, and nowhere else"
if command -v script >/dev/null; then
    escape=$(printf '\033')
    TERM=xterm script -qec "'$ferry' verify m other" /dev/null >typed </dev/null
    grep -q "^$escape\[1;31mDIFFERENT$escape\[0m: 27 of 27" typed || is_wrong "$(head -n 1 typed)"
    TERM=xterm script -qec "'$ferry' verify m m" /dev/null >typed </dev/null
    grep -q "^$escape\[1;32midentical$escape\[0m: 27 " typed || is_wrong "$(head -n 1 typed)"
    for refused in "NO_COLOR=1 TERM=xterm" "TERM=dumb"; do
        script -qec "$refused '$ferry' verify m other" /dev/null >typed </dev/null
        grep -q "$escape\[[0-9;]*m" typed && is_wrong "$refused: $(head -n 1 typed)"
    done
    TERM=xterm script -qec "'$ferry' verify m other | cat" /dev/null >typed </dev/null
    grep -q "$escape\[[0-9;]*m" typed && is_wrong "in a pipe: $(head -n 1 typed)"
else
    skip "no script(1)"
fi

it "of two models of other sizes the configs come first, and layers are told together"
"$ferry" synth -q --model qwen3 --layers 40 --hidden 96 larger || is_wrong "synth qwen3"
run verify m larger
exits 1
sed -n 2p "$stdout" | grep -q "^config  " || is_wrong "configs do not come first"
prints "layers 0 to 39 "
prints "decoder.layers.*.self_attention.q_layernorm.weight (40) "
prints "  only in B: BF16 ["
[ "$(wc -l <"$stdout")" -lt 80 ] || is_wrong "$(wc -l <"$stdout") lines"
[ "$(sed '/^hints/,$d' "$stdout" | awk 'length > 100' | wc -l)" -eq 0 ] || is_wrong "a line is longer than 100 columns"
run verify m larger -v
prints "decoder.layers.39.self_attention.q_layernorm.weight"

it "one bit is found, whoever has it"
cp -r m bit && printf '\001' | dd of=bit/model.safetensors bs=1 seek=300000 conv=notrunc 2>/dev/null
run verify bit ckpt
exits 1
prints "DIFFERENT: 1 of 27 tensors"
run verify legacy bit
exits 1

it "a tolerance lets small differences pass"
run verify bit m --atol 1000
exits 0
prints "within tolerance: 27 tensors, 1 within tolerance"
run verify bit m --max-ulp 60000
exits 0
run verify bit m --atol 0 --rtol 0
exits 1
run verify m other --rtol 0.001
exits 1
run verify m other --atol=-1
exits 2
says "cannot be negative"

it "globs choose what is compared"
run verify m other --only '*nosuch*'
exits 2
says "--only and --ignore leave out all 27 tensors"
run verify m other --ignore '*'
exits 2
run verify bit m --ignore '*layers*' --ignore 'embedding*' --ignore 'output*'
exits 0
says "left out by --only and --ignore"
run verify m ckpt --only '*linear_fc1*' --only '*norm*'
exits 0
prints "identical: 13 tensors"

it "globs match each stored part of a fused tensor"
if [ -n "$python" ]; then
    k=model.layers.1.self_attn.k_proj.weight qkv=decoder.layers.1.self_attention.linear_qkv.weight
    broken m x flip $k
    for pair in "m x" "x ckpt" "ckpt x"; do
        # shellcheck disable=SC2086 # words
        run verify $pair --only '*k_proj*'
        exits 1
        prints "DIFFERENT: 1 of 4 tensors"
        for glob in '*.1.*q_proj*' '*.1.*k_proj*'; do
            # shellcheck disable=SC2086 # words
            run verify $pair --ignore "$glob"
            exits 1
            prints "DIFFERENT: 1 of 27 tensors"
            says "note: --ignore '$glob' matches only a part of $qkv, which is compared"
        done
        for glob in '*.1.self_attn.[qkv]_proj*' '*.1.*linear_qkv.weight'; do
            # shellcheck disable=SC2086 # words
            run verify $pair --ignore "$glob"
            exits 0
            prints "identical: 26 tensors"
        done
        # shellcheck disable=SC2086 # words
        run verify $pair --ignore '*.1.*q_proj*' --ignore '*k_proj*' --ignore '*v_proj*'
        exits 0
        prints "identical: 26 tensors"
        says "note: --ignore '*k_proj*' matches only a part of decoder.layers.0.self_attention.linear_qkv.weight and 2 more, which are compared"
    done
else
    skip "no python3"
fi

# A copy of a model whose config.json has one line changed: configured MODEL COPY KEY VALUE
configured() {
    rm -rf "$2"
    cp -r "$1" "$2"
    sed -i "s|\"$3\": *[^,]*|\"$3\": $4|" "$2/config.json"
    cmp -s "$1/config.json" "$2/config.json" && is_wrong "$1/config.json has no $3 to change"
}

it "configs that compute something else are a difference, and said first"
"$ferry" synth -q --model mistral mistral || is_wrong "synth mistral"
while read -r model key value field; do
    configured "$model" x "$key" "$value"
    for pair in "$model x" "x $model"; do
        # shellcheck disable=SC2086 # words
        run verify $pair
        exits 1
        head -n 1 "$stdout" | grep -q "^CONFIGS DIFFER: [0-9]* fields\{0,1\} of the configs, 0 of " ||
            is_wrong "$key: the first line is $(head -n 1 "$stdout")"
        grep -q "^$field  " "$stdout" || is_wrong "$key: $(cat "$stdout")"
    done
    run verify "$model" x -q
    exits 1
    says_nothing
    run verify "$model" x --ignore-config "$field" --ignore-config 'rope_*'
    exits 0
    prints "identical: "
done <<'FIELDS'
m rope_theta 20000.0 rotary_base
m rms_norm_eps 0.001 layernorm_epsilon
m hidden_act "gelu" activation_func
mixtral num_experts_per_tok 1 moe_router_topk
mistral sliding_window 8 sliding_window
FIELDS
configured m x rope_theta 20000.0
run verify ckpt x
exits 1
prints "CONFIGS DIFFER: 1 field of the configs, 0 of 27 tensors"
configured other x rope_theta 20000.0
run verify m x
exits 1
prints "DIFFERENT: 1 field of the configs, 27 of 27 tensors"
run verify m x --forward --threads 1 --ignore-config 'no*such'
exits 2
says "--ignore-config no*such: matches no config field"

it "what only a training depends on is a note"
configured m x initializer_range 0.5
run verify m x
exits 0
says "the configs differ in init_method_std: 0.02 in A, 0.5 in B; no logit depends on it"
run verify m x --ignore-config init_method_std
exits 0
says_nothing

it "JSON and the page list the fields that differ"
if [ -n "$python" ]; then
    configured m x rope_theta 20000.0
    sed -i 's|"initializer_range": *[^,]*|"initializer_range": 0.5|' x/config.json
    run verify m x --json --report fields.html
    exits 1
    "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]))
assert t["verdict"] == "configs differ", t["verdict"]
assert t["config_differences"] == [
    {"field": "rotary_base", "a": "10000", "b": "20000", "effect": "computes"},
    {"field": "init_method_std", "a": "0.02", "b": "0.5", "effect": "harmless"}], t["config_differences"]' \
        "$stdout" 2>parsed || is_wrong "--json: $(cat parsed)"
    grep -q '<b>CONFIGS DIFFER</b><span>1 field of the configs' fields.html || is_wrong "no verdict on the page"
    [ "$(grep -c '<tr class="differs"><td class="t">rotary_base' fields.html)" -eq 2 ] ||
        is_wrong "the page marks no row"
    grep -q '<tr class="harmless"><td class="t">init_method_std</td><td class="s">0.02</td><td class="s">0.5</td><td class="s">no logit' fields.html ||
        is_wrong "the page does not mark what is harmless"
    "$python" - fields.html <<'PYTHON' 2>parsed || is_wrong "the page: $(cat parsed)"
import re, sys
page = open(sys.argv[1]).read()
table = page[page.index("<summary>Configs") :]
rows = re.findall(r'<tr(?: class="(\w+)")?><td class="t">(\w+)</td><td class="s">([^<]*)<', table[: table.index("</details>")])
assert [r[1] for r in rows[:2]] == ["rotary_base", "init_method_std"], rows[:3]
assert not [r for r in rows if r[2] in ("0", "-", "nan")], rows
assert [r for r in rows if r[1] == "num_layers" and r[2] == "4"], rows
assert len(rows) == len({r[1] for r in rows}), rows
PYTHON
    rm fields.html
else
    skip "no python3"
fi

it "what has no model map is compared by the names of the files"
for copy in a b; do
    mkdir $copy && cp m/* $copy
    sed 's/"llama"/"novel"/' m/config.json >$copy/config.json
done
run verify a b
exits 0
prints "identical: 39 tensors"
prints "by stored names"
run verify a/model.safetensors m
exits 0
run verify a/model.safetensors bit/model.safetensors
exits 1
prints "DIFFERENT: 1 of 39 tensors"
run verify m/model.safetensors ckpt
exits 3
says "have no tensor name in common"
run verify a ckpt
exits 3
says '"novel" is not supported'

it "of a family without a model map, members of config.json that differ count as fields do"
configured a x rope_theta 20000.0
for pair in "x b" "b x"; do
    # shellcheck disable=SC2086 # words
    run verify $pair
    exits 1
    head -n 1 "$stdout" | grep -q "^CONFIGS DIFFER: 2 fields of the configs, 0 of 39 tensors" ||
        is_wrong "the first line is $(head -n 1 "$stdout")"
    prints "rope_parameters.rope_theta "
    # shellcheck disable=SC2086 # words
    run verify $pair --ignore-config '*rope_theta'
    exits 0
    prints "identical: 39 tensors"
done
run verify x b --ignore-config 'no*such'
exits 2
says "--ignore-config no*such: matches no config field"
configured a x initializer_range 0.5
run verify x b
exits 0
says "note: the configs differ in initializer_range: 0.5 in A, 0.02 in B; no logit depends on it"
sed 's/^{/{"novel_switch": false, "eos_token_id": 7,/' a/config.json >x/config.json
run verify x b
exits 0
says "the configs differ in novel_switch: false in A, not given in B"
sed 's/^{/{"novel_switch": true,/' a/config.json >x/config.json
run verify x b
exits 1
prints "CONFIGS DIFFER: 1 field of the configs, 0 of 39 tensors"
run verify x/model.safetensors b
exits 0

it "a config that contradicts its own tensors is no model, whatever they are called"
while read -r key value; do
    configured m x "$key" "$value"
    for pair in "m x" "x m" "x ckpt" "x a"; do
        # shellcheck disable=SC2086 # words
        run verify $pair
        exits 3
        prints_nothing
        says "(x) cannot be read as the model of its config: "
        says "config.json"
    done
    run verify x m/model.safetensors
    exits 0
    cp -r x y
    run verify x y
    if [ "$key" = rope_scaling ]; then # not read, and no contradiction
        exits 0
        says "note: A: "
    else
        exits 3
        prints_nothing
        says "A (x) cannot be read as the model of its config: "
    fi
    rm -rf y
done <<'FIELDS'
num_attention_heads 2
hidden_size 128
vocab_size 999
tie_word_embeddings true
intermediate_size 100
FIELDS

it "tensors that both sides have too few or too many of are told"
configured m x num_hidden_layers 3
run verify x x
exits 0
says "note: 9 tensors in A that the model map does not know: model.layers.3."
says "note: 9 tensors in B that the model map does not know: model.layers.3."
configured m x num_hidden_layers 5
run verify x x
exits 0
says "note: 9 tensors missing in A: model.layers.4."
says "note: 9 tensors missing in B: model.layers.4."

it "folders of torch.distributed.checkpoint are compared, too"
for copy in c d; do
    mkdir $copy && cp ckpt/release/.metadata ckpt/release/*.distcp $copy
done
run verify c d
exits 0
prints "DCP folder"
for file in d/*.distcp; do size=$(wc -c <"$file"); done
printf '\377\377' | dd of="$file" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
run verify c d
exits 1

it "what is not there, or broken, is an error and no difference"
run verify m nosuch
exits 4
run verify m
exits 2
says "B"
cp -r m cut && truncate -s 300000 cut/model.safetensors
run verify m cut
exits 5
prints_nothing

it "an iteration is asked for on the side that has some"
run verify m ckpt4 --ckpt-step 7
exits 0
run verify m ckpt4 --ckpt-step 8
exits 4
run verify m m --ckpt-step 7
exits 2
says "Hugging Face folders have no iterations"

it "a folder without config.json has that of --hf-config, another its own"
cp -r m bald && rm bald/config.json
for pair in "bald m" "m bald"; do
    # shellcheck disable=SC2086 # words
    run verify $pair --hf-config m
    exits 0
    prints "identical: 27 tensors"
done
configured m x rope_theta 20000.0
run verify m x --hf-config m
exits 1
prints "CONFIGS DIFFER: 1 field"

it "memory and threads can be bounded"
run verify m ckpt --threads 1 --max-memory 1MiB
exits 6
says "threads need at least"
run verify m ckpt --threads 3 --max-memory 64MiB --direct-io
exits 0

it "--json prints JSON and nothing else"
if [ -n "$python" ]; then
    for pair in "m ckpt" "m other" "a b" "bit m --max-ulp 60000"; do
        # shellcheck disable=SC2086 # words
        run verify $pair --json
        "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]), parse_constant=lambda x: 1 / 0)
assert len(t["tensors"]) == t["num_tensors"] == sum(t["counts"].values())' "$stdout" 2>parsed ||
            is_wrong "verify $pair --json: $(cat parsed)"
    done
else
    skip "no python3"
fi

it "--report writes a page, replaces one, and nothing else"
run verify m ckpt --report page.html -q
exits 0
[ "$(head -c 15 page.html)" = '<!DOCTYPE html>' ] || is_wrong "no page"
grep -q '<b>identical</b>' page.html || is_wrong "no verdict"
run verify m other --report page.html -q
exits 1
grep -q '<b>DIFFERENT</b>' page.html || is_wrong "no other verdict"
grep -q 'show passing tensors' page.html || is_wrong "passing tensors cannot be shown"
sed 's/<wbr>//g' page.html | grep -q '<div class="stored"><i></i> model.layers.3.mlp.{gate,up}_proj.weight</div>' ||
    is_wrong "the page lacks stored names"
[ "$(grep -n '<h2>Hints' page.html | cut -d : -f 1)" -lt "$(grep -n 'class="cards"' page.html | cut -d : -f 1)" ] ||
    is_wrong "hints do not follow the verdict"
if command -v node >node.path; then
    sed '1,/^<script>/d; /^<\/script>/,$d' page.html >script.js
    node --check script.js 2>parsed || is_wrong "the script: $(cat parsed)"
fi
run verify m other --report m/config.json
exits 7
says "exists and is not a report"
run verify m other --report ckpt
exits 7
run verify m other --report nosuch/page.html
exits 4
run verify m nosuch --report '' # told at once, too
exits 2
says "--report: empty file name"
run verify m nosuch --report /proc/page.html # where not even root can make a file: told at once
exits 4
says "--report /proc/page.html: "
[ "$(find . -name '*.html*' | wc -l)" -eq 1 ] || is_wrong "left behind: $(find . -name '*.html*')"

# ---- hints: each is proven in its unit test; here is what whole models look like ----

it "hints say what happened to a model"
if [ -n "$python" ]; then
    layers="0 1 2 3"
    set --
    for l in $layers; do
        set -- "$@" "model.layers.$l.self_attn.q_proj.weight" "model.layers.$l.self_attn.k_proj.weight"
    done
    broken m x interleave "$@"
    run verify ckpt x
    exits 1
    prints "in 4 of 4 layers, self_attention.linear_qkv.weight: A has the rotary halves of each q and k head of 8 rows one after the other, B interleaved"
    broken m x transpose model.layers.1.self_attn.o_proj.weight
    run verify m x
    prints "decoder.layers.1.self_attention.linear_proj.weight: B is A transposed"
    broken m x plus-one model.norm.weight
    run verify x legacy
    prints "decoder.final_layernorm.weight: A is B plus one"
    broken m x zero lm_head.weight
    run verify m x
    prints "output_layer.weight: B is zero wherever they differ, first in row 500, last in row 999"
    broken m x exchange model.layers.2.mlp.gate_proj.weight model.layers.2.mlp.up_proj.weight
    run verify m x
    prints "decoder.layers.2.mlp.linear_fc1.weight: the halves of its rows are swapped (gate and up)"
    cp -r x y && broken y x exchange model.layers.0.mlp.down_proj.weight model.layers.1.mlp.down_proj.weight
    run verify m x
    prints "decoder.layers.0.mlp.linear_fc2.weight of B is decoder.layers.1.mlp.linear_fc2.weight of A"
    prints "the halves of its rows"
else
    skip "no python3"
fi

it "what differs is told under the names of the files, too"
if [ -n "$python" ]; then
    broken m x flip model.layers.1.self_attn.k_proj.weight
    for pair in "m x" "x ckpt" "legacy x"; do
        # shellcheck disable=SC2086 # words
        run verify $pair
        exits 1
        prints "  decoder.layers.1.self_attention.linear_qkv.weight"
        prints "    differ  model.layers.1.self_attn.k_proj.weight"
        prints "    first   model.layers.1.self_attn.k_proj.weight [1, 2]"
    done
    run verify x ckpt
    prints "    A       model.layers.1.self_attn.{q,k,v}_proj.weight"
    prints "    B       decoder.layers.self_attention.linear_qkv.weight"
    run verify x ckpt -v
    qkv=$(sed -n 's/^decoder.layers.1.self_attention.linear_qkv.weight .*\[\([0-9]*\), 2\].*/\1/p' "$stdout")
    prints "    first   decoder.layers.self_attention.linear_qkv.weight [1, $qkv, 2]"
    rows=$("$ferry" inspect legacy --stored --tensors '*.1.*linear_qkv.weight' |
        sed -n 's/.*mp_rank_00.*\[\([0-9]*\), .*/\1/p')
    run verify x legacy
    prints "    first   mp_rank_0$((qkv / rows))/model.decoder.layers.1.self_attention.linear_qkv.weight [$((qkv % rows)), 2]"
    run verify a x
    lacks_stored_names=$(grep -c "^stored as" "$stdout")
    [ "$lacks_stored_names" -eq 0 ] || is_wrong "names of files that are the logical ones are told twice"
else
    skip "no python3"
fi

it "a hint that all but one element would prove is not told"
if [ -n "$python" ]; then
    broken m x transpose model.layers.1.self_attn.o_proj.weight
    cp -r x y && broken y x nan model.layers.1.self_attn.o_proj.weight
    run verify m x
    exits 1
    prints "NaN or Inf"
    prints "no hint holds for 1 tensor"
else
    skip "no python3"
fi

it "layers and experts under wrong numbers are told in a sentence"
if [ -n "$python" ]; then
    set --
    for w in $("$ferry" inspect mixtral --stored --tensors '*.layers.1.*experts.0.*' | sed -n 's/^  \(model[^ ]*\) .*/\1/p'); do
        set -- "$@" "$w" "$(echo "$w" | sed 's/experts\.0/experts.5/')"
    done
    [ $# -eq 6 ] || is_wrong "no six weights: $*"
    broken mixtral y exchange "$1" "$2"
    broken y z exchange "$3" "$4"
    broken z x exchange "$5" "$6"
    run verify mixtral-ckpt x
    exits 1
    prints "in 1 of 4 layers (1), the experts are permuted: 0 5 of B are 5 0 of A"
else
    skip "no python3"
fi

it "parts of one tensor may differ in dtype: it is read in the widest"
if [ -n "$python" ]; then
    broken m x widen model.layers.1.self_attn.k_proj.weight
    run convert x cast --torch-dtype bfloat16
    run verify x cast
    exits 1
    prints "DIFFERENT: 1 of 27 tensors"
    prints "F32 against BF16"
    says "A: parts of 1 tensor differ in dtype, and are read as the widest: decoder.layers.1.self_attention.linear_qkv.weight"
    run verify x cast --rtol 0
    exits 0
    run verify x x
    exits 0
    run digest x
    exits 0
    prints "decoder.layers.1.self_attention.linear_qkv.weight	F32["
    cp "$stdout" x.digest
    run convert x cast --torch-dtype float32 --overwrite
    "$ferry" digest -q cast | grep 'layers.1.*qkv.weight' >wide.digest
    grep -qFf wide.digest x.digest || is_wrong "the digest is not that of the cast tensor"
    run convert x y
    exits 3
    says "--torch-dtype casts them"
    attention=model.layers.1.self_attn
    broken m all widen $attention.q_proj.weight $attention.k_proj.weight $attention.v_proj.weight
    broken m q widen $attention.q_proj.weight
    for pair in "x all" "all x" "x q"; do
        # shellcheck disable=SC2086 # words
        run verify $pair
        exits 1
        prints "DIFFERENT: 1 of 27 tensors"
        prints "B is A in other dtypes: the same values"
        for tolerance in "--max-ulp 0" "--max-ulp 7"; do
            # shellcheck disable=SC2086 # words
            run verify $pair $tolerance
            exits 1
        done
        # shellcheck disable=SC2086 # words
        run verify $pair --rtol 0
        exits 0
        prints "within tolerance: 27 tensors, 1 within tolerance"
    done
    run verify x all
    prints "BF16 and F32 against F32"
    run verify x q
    prints "BF16 and F32 against BF16 and F32"
    run verify x q --json --report page.html
    "$python" -c 'import json, sys
t, = (t for t in json.load(open(sys.argv[1]))["tensors"] if t["outcome"] != "identical")
assert t["outcome"] == "dtype" and t["different"] == 0, t
assert t["stored_dtypes_a"] == t["stored_dtypes_b"] == ["BF16", "F32"], t' "$stdout" 2>parsed || is_wrong "$(cat parsed)"
    grep -q '>BF16 and F32<' page.html || is_wrong "the page has not both dtypes"
    cp -r q again
    run verify q again
    exits 0
else
    skip "no python3"
fi

it "a tensor that one side lacks is a difference"
if [ -n "$python" ]; then
    broken a x drop model.norm.weight
    run verify a x
    exits 1
    prints "only in A: BF16 [64]"
    run verify x a
    prints "only in B: BF16 [64]"
    broken m x drop model.norm.weight
    run verify m x
    exits 1
    says "note: 1 tensor missing in B: model.norm.weight"
else
    skip "no python3"
fi

it "a model of a type without a map is another model, even with the same tensors"
mkdir types && synth_model types/llama && cp -r types/llama types/novel
sed -i 's/"model_type": "llama"/"model_type": "novel"/' types/novel/config.json
run verify types/llama types/novel
exits 1
prints "CONFIGS DIFFER"
grep -q '^model_type  *llama  *novel$' "$stdout" || is_wrong "$(cat "$stdout")"
run verify types/llama types/novel --ignore-config model_type
exits 0
