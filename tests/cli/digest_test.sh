#!/bin/sh
# digest_test.sh - digests: the same from every format and layout, recorded, and checked.
here=$(realpath "$(dirname "$0")")
golden=$(cd "$(dirname "$0")/../golden/megatron" && pwd)
. "$(dirname "$0")/lib.sh"
synth_model m --layers 4
synth_model moe --model qwen3_moe --experts 4 --topk 2

# The lines before those about the config, which not every format says in full.
without_config() {
    grep -v '^config' "$1"
}

it "the same lines come from every format and layout"
run digest m
exits 0
cp "$stdout" m.digest
for layout in "--tp 2" "--tp 4 --pp 2 --vpp 2" "--pp 4 --to torch" "--tp 2 --to torch --transformer-impl local"; do
    # shellcheck disable=SC2086 # words
    run convert m there $layout --overwrite
    exits 0
    run digest there
    exits 0
    cmp -s "$stdout" m.digest || is_wrong "$layout: $(diff "$stdout" m.digest)"
done
run digest moe
cp "$stdout" moe.digest
run convert moe there --tp 2 --ep 2 --overwrite
run digest there --check moe.digest
exits 0

it "they do not depend on threads, memory or how bytes are read"
run digest m --threads 1 --max-memory 64MiB --direct-io
exits 0
cmp -s "$stdout" m.digest || is_wrong "$(diff "$stdout" m.digest)"

it "elements of four and six bits are digested, counted, carried and compared"
synth_model sub --model gemma3_text
python3 - <<'P'
import json, random, struct
tower = (("vision_tower.a", "F4", 4, [6, 3500001]), ("vision_tower.b", "F6_E2M3", 6, [4, 1000003]), ("vision_tower.c", "F6_E3M2", 6, [12]))
random = random.Random(1)
old = open("sub/model.safetensors", "rb").read()
size, = struct.unpack("<Q", old[:8])
header, data = json.loads(old[8:8 + size]), bytearray(old[8 + size:])
for name, dtype, bits, shape in tower:
    begin = len(data)
    data += random.randbytes(bits * shape[0] * (shape[1] if shape[1:] else 1) // 8)
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
open("sub/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
p, r = 2**61 - 1, 499170133717692731
total, power = 0, 1
for byte in data[header["vision_tower.a"]["data_offsets"][0]:header["vision_tower.a"]["data_offsets"][1]]:
    total = (total + ((byte & 15) + (byte >> 4) * r) * power) % p
    power = power * r % p * r % p
open("sum", "w").write(f"{total:016x}")
P
run digest sub
exits 0
cp "$stdout" sub.digest
prints "$(printf 'vision_tower.a\tF4[6,3500001]:%s' "$(cat sum)")"
run digest sub --threads 1 --max-memory 32MiB --check sub.digest
exits 0
run inspect sub --stats
exits 0
prints "F6_E3M2"
run convert sub sub-ckpt --tp 2 --ferry-only
exits 0
run convert sub-ckpt sub-back --to hf
exits 0
run digest sub-back --check sub.digest
exits 0
run verify sub sub-back
exits 0
printf '\377\376\375' | dd of=sub-back/model.safetensors bs=1 seek=9000000 conv=notrunc status=none
run digest sub-back --check sub.digest
exits 1
says "vision_tower.a: expected"
run verify sub sub-back
exits 1
prints "vision_tower.a"

it "the last line of the tensors is the SHA-256 of those before it"
want=$(without_config m.digest | sed '$d' | sha256sum | cut -d ' ' -f 1)
last=$(without_config m.digest | tail -n 1)
[ "$last" = "$(printf '*\t%s' "$want")" ] || is_wrong "$last is not $want"

it "behind it stand the sums of what args and config.json say of the model"
[ "$(tail -n 2 m.digest | cut -f 1 | tr '\n' ' ')" = "config.args config " ] || is_wrong "$(tail -n 2 m.digest)"
[ "$(tail -n 2 m.digest | cut -f 2 | grep -c '^[0-9a-f]\{64\}$')" -eq 2 ] || is_wrong "$(tail -n 2 m.digest)"
cp -r m turned && sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 20000.0/' turned/config.json
run digest turned
exits 0
diff "$stdout" m.digest | sed -n 's/^> //p' | cut -f 1 | tr '\n' ' ' >changed
[ "$(cat changed)" = "config.args config " ] || is_wrong "rope_theta changes the lines $(cat changed)"
run digest turned --check m.digest
exits 1
says "  config: expected "
says "turned: 2 lines differ"
run convert turned turned-ckpt
rm -rf turned-ckpt/*/ferry-hf
run digest turned-ckpt --true-vocab-size 1000 --check m.digest
exits 1
says "  config.args: expected "
says "turned-ckpt: 1 line differs"
run convert m bare
rm -rf bare/*/ferry-hf
run digest bare --true-vocab-size 1000 --check m.digest
exits 0
without_config m.digest >old.digest
run digest turned --check old.digest
exits 0

it "a list with line ends of Windows is the same list"
sed 's/$/\r/' m.digest >crlf.digest
run digest m --check crlf.digest
exits 0
says "all $(wc -l <m.digest) lines equal those of crlf.digest"

it "--check --json prints what differs as one object"
python=$(command -v python3)
if [ -n "$python" ]; then
    run digest turned --check m.digest --json
    exits 1
    "$python" -c 'import json, sys
t, lines = json.load(open(sys.argv[1])), dict(line.rstrip("\n").split("\t") for line in open("m.digest"))
assert (t["verdict"], t["path"], t["list"]) == ("different", "turned", "m.digest"), t
assert [d["name"] for d in t["differences"]] == ["config.args", "config"], t
assert all(d["expected"] == lines[d["name"]] != d["found"] for d in t["differences"]), t
assert t["same"] == len(lines) - 2, t' "$stdout" 2>parsed || is_wrong "$(cat parsed)"
    run digest m --check m.digest --json -q
    exits 0
    "$python" -c 'import json, sys
t = json.load(open(sys.argv[1]))
assert (t["verdict"], t["differences"]) == ("identical", []), t' "$stdout" 2>parsed || is_wrong "$(cat parsed)"
    run digest m --json
    cp "$stdout" m.json
    run digest turned --check m.json
    exits 1
    says "turned: 2 lines differ"
else
    skip "no python3"
fi

it "an optimizer that is there has lines, or is refused where it cannot be read"
trained=$golden/llama-HEAD-fully-reshardable-dp2/checkpoint
run digest "$trained"
exits 0
cp "$stdout" trained.digest
prints "optimizer.*	"
run digest "$trained" --no-load-optim
exits 0
if grep -q optimizer "$stdout"; then is_wrong "lines of the optimizer with --no-optim"; fi
run digest "$trained" --no-optim --check trained.digest
exits 0
run convert m legacy --to torch
echo "no state" >legacy/iter_0000000/mp_rank_00/distrib_optim.pt
run digest legacy
exits 3
prints_nothing
says "legacy: its optimizer state (distributed, in distrib_optim.pt; 9 B) cannot be read"
says "--no-optim leaves it out"
run digest legacy --no-optim --check m.digest
exits 0

it "a weight that is its own master has the lines of one that is stored beside it"
if [ -n "$python" ]; then
    run convert "$trained" stored --to hf --optim --torch-dtype float32 --hf-config "$(dirname "$trained")/expected"
    exits 0
    cp -r stored own
    "$python" "$here/strip_tensors.py" own/optimizer.safetensors 'fp32\.' || is_wrong "strip_tensors.py"
    run digest stored
    cp "$stdout" stored.digest
    grep -q '^optimizer.param.decoder.final_layernorm.weight' stored.digest || is_wrong "no masters: $(cat stored.digest)"
    run digest own --check stored.digest
    exits 0
    says "all $(wc -l <stored.digest) lines equal those of stored.digest"
    rm own/ferry.json
    run convert own rounded --to hf --optim --torch-dtype bfloat16 --verify full
    exits 0
    run digest rounded --check rounded/ferry.json
    exits 0
else
    skip "no python3"
fi

it "ferry.json has the masters that are the weights themselves, though they are not written"
if [ -n "$python" ]; then
    run convert "$trained" narrow --to hf --optim --hf-config "$(dirname "$trained")/expected"
    exits 0
    "$python" "$here/strip_tensors.py" narrow/optimizer.safetensors 'fp32\.' || is_wrong "strip_tensors.py"
    run convert narrow widened --to hf --optim --torch-dtype float32 --verify full
    exits 0
    if grep -q 'fp32\.' widened/optimizer.safetensors; then is_wrong "masters are written"; fi
    run digest widened --check widened/ferry.json
    exits 0
    run inspect widened
    prints "9 weights are their own masters"
else
    skip "no python3"
fi

it "what is written keeps its digests in ferry.json, and inspect shows them"
run convert m out --tp 2
exits 0
sum=$(without_config m.digest | tail -n 1 | cut -f 2)
run digest out --check out/ferry.json
exits 0
run inspect out
prints "$sum"
prints "record     written"
run convert out back --to hf
run digest back --check back/ferry.json
exits 0
is_there back/ferry.json out/iter_0000000/ferry.json

it "the record does not travel on with the model"
is_not_there out/iter_0000000/ferry-hf/ferry.json
run convert back again
exits 0
is_not_there again/iter_0000000/ferry-hf/ferry.json

it "a cast has another digest, and the record has both"
run convert m wide --torch-dtype float32
exits 0
run digest wide --check m.digest
exits 1
grep -q "$sum" wide/ferry.json || is_wrong "the source's digest is not in the record"
run digest wide --check wide/ferry.json
exits 0

it "one changed byte is seen, and its tensor named"
cp -r m bad
size=$(stat -c %s bad/model.safetensors)
printf '\377' | dd of=bad/model.safetensors bs=1 seek=$((size - 1)) conv=notrunc 2>/dev/null
run digest bad --check m.digest
exits 1
says "expected BF16"

it "a model with tensors too many or too few is refused with their names, and has no list"
configured() {
    rm -rf x && cp -r m x
    sed -i "s/\"num_hidden_layers\": *4/\"num_hidden_layers\": $1/" x/config.json
}
for check in "" "--check m.digest"; do
    configured 3
    # shellcheck disable=SC2086 # words
    run digest x $check
    exits 3
    prints_nothing
    says "x: 9 tensors that the model map does not know: model.layers.3."
    says " and 4 more"
    configured 5
    # shellcheck disable=SC2086 # words
    run digest x $check
    exits 3
    prints_nothing
    says "x: 9 tensors missing: model.layers.4."
    says " and 4 more"
done
rm -rf x && cp -r m x
LC_ALL=C sed -i 's/layers\.3\.mlp\.up_proj/layers.3.mlp.xp_proj/' x/model.safetensors
run digest x --no-optim
exits 3
prints_nothing
says "x: 1 tensor that the model map does not know: model.layers.3.mlp.xp_proj.weight; 1 tensor missing: model.layers.3.mlp.up_proj.weight"

it "lists that are none, or are of another model, are refused or differ"
echo nothing >list
run digest m --check list
exits 5
echo '{}' >list
run digest m --check list
exits 5
run digest m --check moe.digest
exits 1
run digest m --check nosuch
exits 4

it "--integrity writes the SHA-256 of each file as Megatron does"
run convert m sums --tp 2 --pp 2 --integrity
exits 0
for file in sums/iter_0000000/*.* sums/iter_0000000/.metadata; do
    [ "${file##*/}" = integrity.json ] && continue
    grep -q "\"${file##*/}\": \"$(sha256sum <"$file" | cut -c 1-64)\"" sums/iter_0000000/integrity.json ||
        is_wrong "$file is not in it"
done
run convert sums fresh --to hf
is_not_there fresh/integrity.json

it "--verify full reads what was written again, in every format"
for to in torch_dist torch hf; do
    run convert m "full_$to" --to $to --verify full
    exits 0
    run convert "full_$to" "again_$to" --verify full
    exits 0
done
run convert m none --verify none
exits 0
if grep -q '"digest"' none/ferry.json; then is_wrong "--verify none has digests"; fi
run convert m out --iteration 7 --verify full
exits 0
is_there out/iter_0000007/ferry.json
