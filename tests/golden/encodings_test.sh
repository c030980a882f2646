#!/bin/sh
# encodings_test.sh FERRY - encoded weights (FP8, MXFP4, NVFP4, INT8, INT4), as transformers, compressed-tensors and
# ModelOpt write them, become what they decode to, byte by byte, directly and by way of Megatron; broken ones are
# refused by name, and nothing is written. README.md beside it says what is there.
encodings=$(realpath "$(dirname "$0")")/encodings
. "$(dirname "$0")/../cli/lib.sh"

# Whether a folder is what a case decodes to, and no word of the encoding is left.
is_decoded() { # FOLDER CASE
    cmp -s "$1/model.safetensors" "$2/expected/model.safetensors" || is_wrong "$1/model.safetensors is not what $2 holds"
    [ "$(cat "$1/config.json")" = "$(cat "$2/expected/config.json")" ] || is_wrong "$1/config.json is not $2/expected's"
    [ ! -e "$1/hf_quant_config.json" ] || is_wrong "$1/hf_quant_config.json is there"
}

# Options of a layout of two ranks that a case can have.
layout_of() {
    case $1 in
    *deepseek-v3* | *kimi*) echo --ep 2 ;;
    *moe* | *deepseek-v4* | *gpt-oss*) echo --tp 2 --ep 2 ;;
    *padded* | nvfp4-ct-*) ;; # 37 rows, 3 heads
    *) echo --tp 2 ;;
    esac
}

# Whether a folder has the codes, scales and config of a case.
same_encoded() { # FOLDER CASE
    if [ -e "$2/model.safetensors" ]; then
        cmp -s "$1/model.safetensors" "$2/model.safetensors" || is_wrong "$1/model.safetensors is not $2's"
    else # in two files there
        run verify "$1" "$2"
        exits 0
    fi
    cmp -s "$1/config.json" "$2/config.json" || is_wrong "$1/config.json is not $2's"
    [ ! -e "$2/hf_quant_config.json" ] || cmp -s "$1/hf_quant_config.json" "$2/hf_quant_config.json" ||
        is_wrong "$1/hf_quant_config.json is not $2's"
}

# Whether elements differ by no more than a step of the encoding: within_a_step FOLDER OF CASE
within_a_step() {
    case $3 in
    *fp4*) step=0.25 ;; # of E2M1, one bit of mantissa
    *) step=0.0625 ;;   # of E4M3, three
    esac
    run verify "$1" "$2" --rtol "$step" --atol 0.02
    exits 0
}

for case in "$encodings"/[!b]*; do
    [ -d "$case" ] || continue
    name=$(basename "$case")
    it "$name is decoded"
    run convert "$case" out --to hf --overwrite
    exits 0
    says "encoded weights are read as BF16: "
    is_decoded out "$case"
    run verify "$case" "$case/expected"
    exits 0
    prints "identical: "

    it "$name comes back from Megatron's layout, and keeps its scales there"
    # shellcheck disable=SC2046 # words
    run convert "$case" dist --overwrite $(layout_of "$name")
    exits 0
    run convert dist out --to hf --overwrite
    exits 0
    is_decoded out "$case"
    run verify "$case" dist
    exits 0
    prints "identical: "
done

for case in "$encodings"/bad-*; do
    it "$(basename "$case") is refused"
    rm -rf out
    run convert "$case" out --to hf
    case $code in 3 | 5) ;; *) is_wrong "exit code $code" ;; esac
    [ ! -e out ] || is_wrong "out is there"
    says "$(grep "^$(basename "$case"):" "$encodings/bad.txt" | cut -d : -f 2- | sed 's/^ //')"
done

# A case with one tensor changed by a line of Python, where t is its entry of the header and `data` its bytes; without a
# line it is left out: spoil CASE TENSOR [LINE]
spoil() {
    rm -rf spoilt out
    mkdir spoilt
    cp "$encodings/$1/config.json" spoilt
    python3 - "$encodings/$1/model.safetensors" spoilt/model.safetensors "$2" "${3-}" <<'P'
import json, struct, sys
stored = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", stored[:8])[0]
header, body = json.loads(stored[8:8 + length]), b""
for name, t in list(header.items()):
    if name == "__metadata__":
        continue
    first, last = t["data_offsets"]
    data = bytearray(stored[8 + length + first:8 + length + last])
    if name == sys.argv[3] and not sys.argv[4]:
        del header[name]
        continue
    if name == sys.argv[3]:
        exec(sys.argv[4])
    t["data_offsets"] = [len(body), len(body) + len(data)]
    body += data
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)
P
    run convert spoilt out --to hf
    case $code in 3 | 5) ;; *) is_wrong "exit code $code" ;; esac
    [ ! -e out ] || is_wrong "out is there"
}
q=model.layers.0.self_attn.q_proj

it "packed codes that do not fit what is beside them are refused"
for name in gptq-int4-llama awq-int4-llama; do
    spoil $name $q.scales
    says "$q.qweight is I32, encoding ${name%-llama}, and $q.scales, its scale, is missing"
    spoil $name $q.qzeros
    says "$q.qweight is I32, encoding ${name%-llama}, and $q.qzeros, its zero point, is missing"
    spoil $name $q.qweight
    says "is there without $q.qweight, which it belongs to"
    spoil $name $q.qzeros "t['shape'] = [4, 2]"
    says "$q.qzeros is I32 [4, 2], expected I32 [2, 4] for groups of $q.qweight"
    spoil $name $q.scales "t['shape'] = [4, 16]"
    says "$q.scales has shape [4, 16], expected [2, 32]: one scale for each 16 x 1 elements of $q.qweight"
    spoil $name $q.scales "data[2:4] = b'\x00\x7e'"
    says "$q.scales: scale 1 is nan"
    spoil $name $q.qweight "t['dtype'] = 'F32'"
    says "$q.qweight is F32, and no codes of encoding ${name%-llama}"
done
spoil gptq-int4-llama $q.qweight "t['shape'] = [2, 64]"
says "$q.scales has shape [2, 32], expected [1, 64]"
spoil gptq-int4-llama $q.g_idx
says "$q.qweight is I32, encoding gptq-int4, and $q.g_idx, its index of groups, is missing"
spoil gptq-int4-llama $q.g_idx "data[4:8] = b'\x02\0\0\0'"
says "$q.g_idx: row 1 is of group 2 of 2"
spoil gptq-int4-llama $q.g_idx "data[4:8] = b'\xff' * 4"
says "$q.g_idx: row 1 is of group -1 of 2"
spoil gptq-int4-llama $q.g_idx "t['shape'], t['dtype'] = [16], 'I64'"
says "$q.g_idx is I64 [16], expected I32 [32], as $q.qweight has rows"

w=$q.weight
spoil bnb-nf4-llama $w.absmax
says "$w is U8, encoding bnb-nf4, and $w.absmax, its scale, is missing"
spoil bnb-nf4-llama $w.quant_map
says "$w is U8, encoding bnb-nf4, and $w.quant_map, its table, is missing"
spoil bnb-nf4-llama $w.quant_state.bitsandbytes__nf4
says "$w is U8, encoding bnb-nf4, and $w.quant_state.bitsandbytes__nf4, its state, is missing"
spoil bnb-nf4-llama $w.absmax "t['shape'] = [8, 2]"
says "$w.absmax has shape [8, 2], expected [1, 16]: one scale for each 1 x 64 elements of $w"
spoil bnb-nf4-llama $w.absmax "data[4:8] = b'\0\0\xc0\x7f'"
says "$w.absmax: scale 1 is nan"
spoil bnb-nf4-llama $w.absmax "data[4:8] = b'\0\0\0\0'"
says "$w.absmax: a scale of row 0 is 0, but not all its codes"
spoil bnb-nf4-llama $w.quant_map "data[2:4] = b'\x70\xbf'"
says "$w.quant_map: number 0 is -0.9375, expected -1 of encoding bnb-nf4"
spoil bnb-nf4-llama $w.quant_state.bitsandbytes__nf4 "data = data.replace(b'[32, 32]', b'[32, 34]')"
says "$w.quant_state.bitsandbytes__nf4 says [32, 34], but $w has shape [512, 1], 2 elements in each U8"
spoil bnb-nf4-llama $w.quant_state.bitsandbytes__nf4 "data = data.replace(b'blocksize', b'blackbird')"
says "$w.quant_state.bitsandbytes__nf4 has no shape of two dims, blocksize, or"
spoil bnb-nf4-llama $w.quant_state.bitsandbytes__nf4 "data[0:1] = b'['"
says "$w.quant_state.bitsandbytes__nf4"
spoil bnb-nf4-double-llama $w.nested_absmax
says "$w is U8, encoding bnb-nf4, and $w.nested_absmax, its scale of scales, is missing"
spoil bnb-nf4-double-llama $w.nested_quant_map
says "$w is U8, encoding bnb-nf4, and $w.nested_quant_map, its table of scales, is missing"
spoil bnb-nf4-double-llama $w.nested_absmax "data = data + data; t['shape'] = [2]"
says "$w.nested_absmax is F32 [2], expected F32 [1]"
spoil bnb-nf4-double-llama $w.nested_absmax "data[0:4] = b'\0\0\x80\x7f'"
says "$w.absmax: scale 0 is "
spoil bnb-int8-llama $q.SCB
says "$w is I8, encoding bnb-int8, and $q.SCB, its scale, is missing"

# A case whose config says something else: reworded CASE WORDS OTHERS
reworded() {
    rm -rf spoilt out
    cp -r "$encodings/$1" spoilt
    sed -i "s/$2/$3/" spoilt/config.json
    cmp -s "$encodings/$1/config.json" spoilt/config.json && is_wrong "$2 is not in $1/config.json"
    run convert spoilt out --to hf
    exits 3
    [ ! -e out ] || is_wrong "out is there"
}

it "packings that Ferry does not know are refused"
reworded gptq-int4-llama '"bits": 4' '"bits": 3'
says 'in a way that Ferry does not know: quant_method "gptq", bits 3, checkpoint_format "gptq"; dequantise them first'
reworded gptq-int4-llama '"checkpoint_format": "gptq"' '"checkpoint_format": "marlin"'
says 'checkpoint_format "marlin"; dequantise'
reworded awq-int4-llama '"version": "gemm"' '"version": "gemv"'
says 'quant_method "awq", bits 4, version "gemv"; dequantise'
reworded gptq-int4-llama '"bits": 4' '"dynamic": {"+:.*down.*": {"bits": 3}}, "bits": 4'
says 'quantised in a way that Ferry does not know: quant_method "gptq", bits 3, '
reworded autoround-llama '"packing_format": "auto_round"' '"packing_format": "auto_round:other"'
says 'quant_method "auto-round", bits 4, packing_format "auto_round:other"; dequantise'
reworded gptq-int4-llama '"group_size": 16' '"group_size": 8'
says "_proj.scales has shape [4, 32], expected [8, 32]: one scale for each 8 x 1 elements of "

it "FBGEMM's FP8 is decoded as that of others by row, and GPTQ may leave modules out"
cp -r "$encodings/fp8-channel-modelopt-llama" fbgemm
rm -rf fbgemm/hf_quant_config.json fbgemm/expected
python3 - fbgemm/config.json <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
config["quantization_config"] = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                                 "modules_to_not_convert": ["lm_head"]}
json.dump(config, open(sys.argv[1], "w"))
P
run verify fbgemm "$encodings/fp8-channel-modelopt-llama/expected"
exits 0
says "encoded weights are read as BF16: 7 fp8-channel"
cp -r "$encodings/gptq-int4-llama" left
sed -i 's/"bits": 4/"dynamic": {"-:.*gate.*": {}}, "bits": 4/' left/config.json
run verify left "$encodings/gptq-int4-llama/expected"
exits 0

it "GPTQ's layers may have bits and groups of their own"
mkdir -p dynamic/expected
python3 - "$encodings" <<'P'
import json, struct, sys
def read(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return {n: (t, data[8 + length:][slice(*t["data_offsets"])]) for n, t in header.items() if n != "__metadata__"}
for folder in "", "expected/": # down_proj of the one, the rest of the other
    four, eight = (read(f"{sys.argv[1]}/gptq-int{n}-llama/{folder}model.safetensors") for n in (4, 8))
    both = {n: (eight if "down_proj" in n else four)[n] for n in four}
    header, body = {}, b""
    for name, (t, data) in both.items():
        header[name] = {**t, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    open(f"dynamic/{folder}model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
config = json.load(open(f"{sys.argv[1]}/gptq-int4-llama/config.json"))
del config["quantization_config"]
json.dump(config, open("dynamic/expected/config.json", "w"))
config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq",
                                 "dynamic": {"+:.*down.*": {"bits": 8, "group_size": 32}, "-:.*lm_head": {}}}
json.dump(config, open("dynamic/config.json", "w"))
P
run verify dynamic dynamic/expected
exits 0
says "encoded weights are read as BF16: 6 gptq-int4, 1 gptq-int8"

it "a scale of activations that is folded into weights is refused"
rm -rf spoilt out
cp -r "$encodings/fp8-channel-modelopt-llama" spoilt
python3 - spoilt/model.safetensors <<'P'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + length]), data[8 + length:]
header["model.layers.0.self_attn.q_proj.pre_quant_scale"] = {
    "dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4]}
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + body + struct.pack("<f", 2))
P
run convert spoilt out --to hf
exits 3
says "q_proj.pre_quant_scale scales the columns of decoded weights"

it "F32 is decoded without rounding to BF16"
run convert "$encodings/fp8-scalar-llama" wide --to hf --torch-dtype float32
exits 0
run convert "$encodings/fp8-scalar-llama/expected" narrow --to hf --torch-dtype float32
exits 0
run verify wide narrow
exits 1
run convert wide back --to hf --torch-dtype bfloat16
exits 0
run verify back "$encodings/fp8-scalar-llama/expected"
exits 0

it "a digest is of what is decoded"
run digest "$encodings/mxfp4-gpt-oss/expected"
exits 0
grep -v '^#' "$stdout" | grep linear_fc >digests
run digest "$encodings/mxfp4-gpt-oss"
exits 0
while read -r line; do
    prints "$line"
done <digests

for case in "$encodings"/[!b]*; do
    [ -d "$case" ] || continue
    name=$(basename "$case")
    it "$name is encoded again as it was, from Megatron's layout and from itself"
    # shellcheck disable=SC2046 # words
    run convert "$case" dist --overwrite $(layout_of "$name")
    exits 0
    for from in dist "$case"; do
        run convert "$from" out --to hf --export-weight-dtype as-source --overwrite
        case $from/$name in
        dist/gptq-* | dist/awq-* | dist/bnb-* | dist/autoround-*)
            exits 3
            says "which Ferry reads and does not write; without --export-weight-dtype weights are written decoded"
            ;;
        *)
            exits 0
            same_encoded out "$case"
            ;;
        esac
    done
done

it "weights that were not decoded are not encoded again"
run convert "$encodings/fp8-scalar-llama/expected" out --to hf --export-weight-dtype as-source --overwrite
exits 3
says "keeps no config.json with a quantisation"
run convert "$encodings/fp8-scalar-llama" out2 --to torch_dist --export-weight-dtype as-source
exits 2
says "--export-weight-dtype does not apply to format torch_dist"

# Makes weights of another model the weights of a checkpoint that keeps the scales of a case: outgrow CASE FACTOR
outgrow() {
    rm -rf grown grown-dist kept
    mkdir grown
    cp "$1/expected/config.json" grown
    python3 - "$1/expected/model.safetensors" grown/model.safetensors "$2" <<'P'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
body = bytearray(data[8 + length:])
for name, t in header.items():
    if "proj" in name:  # BF16 times a power of two: its exponent
        first, last = t["data_offsets"]
        for at in range(first, last, 2):
            bits = struct.unpack_from("<H", body, at)[0]
            if bits & 0x7F80:
                struct.pack_into("<H", body, at, bits + (int(sys.argv[3]) << 7))
open(sys.argv[2], "wb").write(data[:8 + length] + body)
P
    run convert "$1" kept --to torch_dist --overwrite
    exits 0
    run convert grown grown-dist --to torch_dist
    exits 0
    cp kept/iter_0000000/ferry-hf/* grown-dist/iter_0000000/ferry-hf/
}

# A weight times four has the codes that it had, where scales become four times as large, too.
for name in fp8-block-deepseek-v3 fp8-block-ue8m0-llama fp8-scalar-llama mxfp4-ct-qwen3 mxfp4-gpt-oss mxfp8-ct-llama; do
    it "weights of $name that outgrow their scales get new ones"
    outgrow "$encodings/$name" 2
    run convert grown-dist out --to hf --export-weight-dtype as-source --overwrite
    exits 0
    grep -q "groups of .* weights have outgrown their kept scales" "$stderr" "$stdout" || is_wrong "nothing is said of new scales"
    run convert out back --to hf --overwrite
    exits 0
    within_a_step back grown "$name"
done

it "weights of NVFP4 that outgrow its global scale are refused"
outgrow "$encodings/nvfp4-ct-llama" 2
rm -rf out
run convert grown-dist out --to hf --export-weight-dtype as-source
exits 3
says "beside the kept global scale: its weights became too large for nvfp4"
[ ! -e out ] || is_wrong "out is there"

it "weights of INT4 with zero points that outgrow its scales are refused"
outgrow "$encodings/int4-asym-ct-qwen3" 2
run convert grown-dist out --to hf --export-weight-dtype as-source
exits 3
says "has no code of int4-asymmetric by the kept scale"

# Whether the tensors of a file are in another, bit for bit, and those are all with codes or scales.
same_tensors() { # FILE IN
    python3 - "$1" "$2" <<'P'
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {n: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in header.items()}
want, got = tensors(sys.argv[1]), tensors(sys.argv[2])
for name, tensor in want.items():
    if got.get(name) != tensor:
        print(f"{name} differs")
for name, (dtype, shape, _) in got.items():
    if dtype not in ("BF16",) and name not in want:
        print(f"{name} is {dtype}")
P
}

for kind in fp8-block fp8-channel fp8-tensor mxfp8 mxfp4 nvfp4 int4; do
    it "linear layers are encoded as $kind, as another program does"
    run convert "$encodings-made/model" dist --overwrite --tp 1 --ep 2
    exits 0
    for from in dist "$encodings-made/model"; do
        run convert "$from" out --to hf --export-weight-dtype $kind --overwrite
        exits 0
        says "10 weights of linear layers are encoded as $kind"
        ! grep -q "stay as they are" "$stderr" || is_wrong "weights are left out"
        differs=$(same_tensors "$encodings-made/$kind.safetensors" out/model.safetensors)
        [ -z "$differs" ] || is_wrong "$differs"
        grep -q '"model.layers.0.mlp.gate"' out/config.json || is_wrong "the router is not excluded"
        grep -q '"lm_head"' out/config.json || is_wrong "the head is not excluded"
    done
    run convert out back --to hf --overwrite
    exits 0
    run verify back "$encodings-made/model"
    exits 1
    run convert back again --to hf --export-weight-dtype $kind --overwrite
    exits 0
    case $kind in # only transformers' scales come back from what they decode to
    fp8-block) run verify again back && exits 0 ;;
    esac
    run convert out dist --overwrite --tp 1 --ep 2
    exits 0
    run convert dist again --to hf --export-weight-dtype as-source --overwrite
    exits 0
    cmp -s out/model.safetensors again/model.safetensors || is_wrong "codes differ after Megatron's layout"
done

it "verify counts the error of encoding in steps between codes, by layer"
for kind in fp8-block fp8-channel fp8-tensor mxfp8 mxfp4 nvfp4 int4; do
    run convert "$encodings-made/model" out --to hf --export-weight-dtype $kind --overwrite
    exits 0
    run verify "$encodings-made/model" out --json
    exits 1
    # rounding to BF16 adds to half a step, and NVFP4's rounded scales cut what is largest
    python3 - "$stdout" $kind <<'P' || is_wrong "$kind is further than half a step from the weights"
import json, sys
steps = [t["max_steps"] for t in json.load(open(sys.argv[1]))["tensors"] if "max_steps" in t]
most = 2 if sys.argv[2] == "nvfp4" else 0.6
sys.exit(not (len(steps) == 5 and all(0.45 < s < most for s in steps)))
P
done
run verify "$encodings-made/model" out
says "distances in steps between codes of B's encoding"
prints "worst rel. error  max steps"
run verify out "$encodings-made/model"
says "distances in steps between codes of A's encoding"

it "distances of tables are counted in steps"
run verify "$encodings/bnb-fp4-llama" "$encodings/bnb-nf4-llama" --json
exits 1
python3 - "$stdout" <<'P' || is_wrong "two roundings of one weight are 1.5 steps apart"
import json, sys
steps = [t["max_steps"] for t in json.load(open(sys.argv[1]))["tensors"] if "max_steps" in t]
sys.exit(not (len(steps) == 4 and all(0.5 < s < 1.5 for s in steps)))
P

it "a model that came in one encoding is written in another"
run convert "$encodings/fp8-block-ct-qwen3" out --to hf --export-weight-dtype mxfp8 --overwrite
exits 0
says "0 weights of linear layers are encoded as mxfp8"
says "7 weights of linear layers stay as they are"
run convert "$encodings/mxfp8-ct-llama" out --to hf --export-weight-dtype mxfp8 --overwrite
exits 0
grep -q '"format": *"mxfp8-quantized"' out/config.json || is_wrong "config.json does not name MXFP8"

it "experts of a layer are all encoded, or none"
run synth mixed --model qwen3_moe --layers 1 --hidden 256 --heads 2 --ffn-hidden-size 256 --experts 2 \
    --moe-ffn-hidden-size 96 --encoding int4
exits 0
! run digest --encoded mixed || ! grep -q 'experts.*_packed' "$stdout" || is_wrong "gate and up are encoded, down is not"
grep -q 'mlp.experts.1.up_proj"' mixed/config.json || is_wrong "experts are not excluded"

it "digests of codes differ where codes do, though weights are equal"
run digest --encoded "$encodings/mxfp8-ct-llama"
exits 0
prints "model.layers.0.mlp.down_proj.weight	F8_E4M3["
prints "model.layers.0.mlp.down_proj.weight_scale	U8["
run convert "$encodings/mxfp8-ct-llama" dist --to torch_dist --overwrite
exits 0
run convert dist out --to hf --export-weight-dtype as-source --overwrite
exits 0
run digest --encoded "$encodings/mxfp8-ct-llama"
cp "$stdout" codes
run digest --encoded out --check codes
exits 0
run convert "$encodings/mxfp8-ct-llama" out --to hf --export-weight-dtype mxfp8 --overwrite
exits 0
run digest --encoded out --check codes
exits 1

# A model under another module's prefix: prefixed CASE
prefixed() {
    rm -rf prefixed
    mkdir prefixed
    cp "$1/config.json" prefixed
    python3 - "$1/model.safetensors" prefixed/model.safetensors <<'P'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
text = json.dumps({n if n == "__metadata__" else "module." + n: t for n, t in header.items()}).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length:])
P
}

it "codes lose the prefix that their scales lose"
prefixed "$encodings/fp8-channel-ct-qwen3-moe"
run convert prefixed out --to hf --export-weight-dtype as-source --overwrite
exits 0
same_encoded out "$encodings/fp8-channel-ct-qwen3-moe"

it "written codes are read back"
run convert "$encodings-made/model" dist --overwrite
for kind in fp8-block nvfp4 int4 mxfp8; do
    run convert dist out --to hf --export-weight-dtype $kind --verify full --overwrite
    exits 0
done
run convert out again --to hf --export-weight-dtype as-source --verify full --overwrite
exits 0
run digest again --check again/ferry.json
exits 0

it "a tied head and packed experts are no layers to encode, by name"
run synth tied --model llama --tied --layers 1 --hidden 256 --heads 2 --ffn-hidden-size 256 --encoding fp8-block
exits 0
grep -q '"lm_head"' tied/config.json || is_wrong "the head is not excluded"
run synth packed --model qwen3_vl_moe --layers 1 --hidden 256 --heads 2 --ffn-hidden-size 256 --encoding fp8-block
exits 0
grep -q 'mlp.experts"' packed/config.json || is_wrong "packed experts are not excluded"

it "a model that came encoded is trained, and encoded anew"
run synth coded --model llama --layers 1 --hidden 128 --heads 1 --kv-heads 1 --ffn-hidden-size 128 --vocab-size 64 \
    --encoding fp8-block
run train --load coded --save run --mock-data --seq-length 8 --micro-batch-size 1 --global-batch-size 1 \
    --train-iters 1 --lr 1e-3
exits 0
says "7 scales and the like of encoded weights are not saved with the run"
run convert run out --to hf --no-optim --export-weight-dtype fp8-block --overwrite
exits 0
says "7 weights of linear layers are encoded as fp8-block"

it "GPT-2's Conv1D is not encoded"
run synth conv --model gpt2 --layers 1 --hidden 256 --heads 2 --encoding fp8-block
exits 0
says "0 weights of linear layers are encoded as fp8-block"

it "inspect counts what is encoded"
run inspect "$encodings/fp8-fp4-experts-deepseek-v4-names"
exits 0
prints "encoded    4 fp8-block, 6 mxfp4: read as numbers"

# A case as a program writes it that leaves the scales out, or takes the halves of bytes in the other order:
# decode_wrongly CASE HOW
decode_wrongly() {
    rm -rf wrong
    mkdir wrong
    cp "$1/expected/config.json" wrong
    python3 - "$1" wrong/model.safetensors "$2" <<'P'
import json, struct, sys
def load(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[:8 + length], bytearray(data[8 + length:])
codes, _, stored = load(sys.argv[1] + "/model.safetensors")
header, head, body = load(sys.argv[1] + "/expected/model.safetensors")
def bf16(x):  # exact: few bits
    return struct.pack("<f", x)[2:]
def e4m3(c):
    e, m = c >> 3 & 15, c & 7
    return (-1) ** (c >> 7) * (m * 2 ** -9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
E2M1 = [0.0, .5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
for name, t in header.items():
    if "proj" not in name:
        continue
    first, last = codes[name]["data_offsets"]
    raw = stored[first:last]
    if sys.argv[3] == "no-scale":
        numbers = [e4m3(c) if c & 127 else (-0.0 if c else 0.0) for c in raw]
    else:
        at = codes[name + "_scale"]["data_offsets"][0]
        numbers = [E2M1[half] * 2.0 ** (stored[at + (2 * i + k) // 32] - 127)
                   for i, c in enumerate(raw) for k, half in enumerate((c >> 4, c & 15))]
    begin = t["data_offsets"][0]
    body[begin:begin + 2 * len(numbers)] = b"".join(map(bf16, numbers))
open(sys.argv[2], "wb").write(head + body)
P
}

it "verify tells how another program has decoded wrongly"
decode_wrongly "$encodings/fp8-scalar-llama" no-scale
run verify "$encodings/fp8-scalar-llama" wrong
exits 1
prints "decoder.layers.0.mlp.linear_fc1.weight: B is A decoded without its scales"
decode_wrongly "$encodings/mxfp4-modelopt-llama" halves
run verify wrong "$encodings/mxfp4-modelopt-llama"
exits 1
prints "decoder.layers.0.mlp.linear_fc1.weight: A is B with the two codes of each byte swapped"

it "weights that are encoded though they are excluded are named"
rm -rf wrong
cp -r "$encodings/fp8-block-ue8m0-llama" wrong
sed -i 's/"lm_head"/"lm_head", "model.layers.0.mlp"/' wrong/config.json
run inspect wrong
says "3 weights are encoded, though the config excludes them from that: model.layers.0.mlp.down_proj.weight, ..."
