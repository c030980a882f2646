#!/bin/sh
# hybrid_test.sh FERRY - GPTModel's checkpoints become HybridModel's and the other way, optimizer states too; parts of
# hybrid models.
golden=$(realpath "$(dirname "$0")/../golden")
. "$(dirname "$0")/lib.sh"
arch=$golden/arch
trained=$golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint

it "a model of GPTModel becomes the one that HybridModel saved"
run convert "$arch/llama-tp2pp2/checkpoint" hybrid --megatron-model hybrid
exits 0
says "names of HybridModel"
run verify hybrid "$arch/llama-hybrid-tp2pp2/checkpoint"
exits 0
run inspect --args hybrid
prints "hybrid_layer_pattern                      *-|*-"
prints "TE spec, HybridModel"

it "HybridModel stays what it is, and becomes GPTModel if told"
run convert "$arch/llama-hybrid-tp2pp2/checkpoint" same --tp 1 --pp 1
exits 0
run inspect --args same
prints "hybrid_layer_pattern                      *-*-"
run convert "$arch/llama-hybrid-tp2pp2/checkpoint" gpt --megatron-model gpt
exits 0
run inspect --args gpt
prints "hybrid_layer_pattern                      None"
run verify gpt "$arch/llama-tp2pp2/checkpoint"
exits 0

it "states of the optimizer go along"
run convert "$trained" hybrid --megatron-model hybrid --optim --overwrite
exits 0
run convert hybrid gpt --megatron-model gpt --optim --overwrite
exits 0
run verify gpt "$trained"
exits 0
prints "identical: "

it "a model of single mixers is HybridModel's alone"
run convert "$arch/nemotron-h-tp2ep2/expected" single
exits 0
run inspect --args single
prints "hybrid_layer_pattern                      M*E-"
run verify single "$arch/nemotron-h-tp2ep2/checkpoint"
exits 0
run convert "$arch/nemotron-h-tp2ep2/expected" none --megatron-model gpt
exits 3
says "only HybridModel has"
[ ! -e none ] || is_wrong "there is a destination"

it "prints the weight of a delta net's norm as each of its names has it"
net=$arch/qwen3.5-tp2
run print "$net/checkpoint" decoder.layers.0.self_attention.out_norm.weight
prints "[0.0390625, -0.25390625,"
run print "$net/expected" model.layers.0.linear_attn.norm.weight
prints "[1.0390625, 0.74609375,"
run print "$net/checkpoint" model.layers.0.linear_attn.norm.weight --hf-config "$net/expected"
prints "[1.0390625, 0.74609375,"

it "a predicted layer's copy of the embedding comes back, the same or another"
cp -r "$arch/mla-mtp-pp2/expected" other && chmod -R u+w other
python3 - other/model.safetensors <<'END'
import json, struct, sys
file = open(sys.argv[1], "r+b")
size = struct.unpack("<Q", file.read(8))[0]
at = json.loads(file.read(size))["model.layers.2.embed_tokens.weight"]["data_offsets"][0]
file.seek(8 + size + at)
byte = file.read(1)
file.seek(8 + size + at)
file.write(bytes([byte[0] ^ 1]))
END
for model in "$arch/mla-mtp-pp2/expected" other; do
    run convert "$model" there --tp 2 --pp 2 --overwrite
    exits 0
    [ "$model" != other ] || says "1 tensor that Megatron has no place for"
    run convert there back --to hf --overwrite
    exits 0
    cmp -s back/model.safetensors "$model/model.safetensors" || is_wrong "$model does not come back"
done

it "a predicted layer of single mixers is a pair of its own, whatever the last layer is"
run convert "$arch/nemotron-h-mtp" there --tp 2 --pp 2 --ep 2 --overwrite
exits 0
run inspect --args there
prints "hybrid_layer_pattern                      MEM|*E-/*E"
run print there mtp.layers.0.mtp_model_layer.layers.1.pre_mlp_layernorm.weight
exits 0
run convert there back --to hf --overwrite
exits 0
cmp -s back/model.safetensors "$arch/nemotron-h-mtp/model.safetensors" || is_wrong "it does not come back"

it "a predicted layer is carried if the last layer is of another kind"
cp -r "$net/expected" linear && chmod -R u+w linear
python3 - linear <<'END'
import json, struct, sys
folder = sys.argv[1]
config = json.load(open(folder + "/config.json"))
json.dump({**config, "mtp_num_hidden_layers": 1}, open(folder + "/config.json", "w"))
data = open(folder + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
header["mtp.norm.weight"] = {"dtype": "BF16", "shape": [2], "data_offsets": [len(body), len(body) + 4]}
text = json.dumps(header).encode()
open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body + b"1234")
END
run convert linear there --tp 2 --overwrite
exits 0
says "1 tensor that Megatron has no place for"
run convert there back --to hf --overwrite
exits 0
run verify linear back
exits 0

it "MiMo's predicted layer becomes Megatron's, with the halves of its projection swapped"
synth_model mimo --model mimo --layers 4
python3 - mimo <<'END'
import json, random, re, struct, sys
folder, random = sys.argv[1], random.Random(3)
config = json.load(open(folder + "/config.json"))
json.dump({**config, "num_nextn_predict_layers": 1}, open(folder + "/config.json", "w"))
data = open(folder + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
width = config["hidden_size"]
shapes = {"input_proj": [width, 2 * width], "token_layernorm": [width], "hidden_layernorm": [width], "final_layernorm": [width]}
new = {name.replace("layers.0", "mtp_layers.0"): entry["shape"] for name, entry in header.items() if ".layers.0." in name}
new.update({f"model.mtp_layers.0.{name}.weight": shape for name, shape in shapes.items()})
for name, shape in new.items():
    count = shape[0] * (shape[1] if shape[1:] else 1)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + 2 * count]}
    body += struct.pack(f"<{count}H", *(0x3C00 + random.randrange(0x400) for _ in range(count)))
text = json.dumps(header).encode()
open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
END
width=$(sed -n 's/.*"hidden_size": \([0-9]*\).*/\1/p' mimo/config.json)
run convert mimo there --tp 2 --pp 2 --overwrite
exits 0
for half in 0 "$width"; do
    run print there "mtp.layers.0.eh_proj.weight[:,$half:$((half + width))]" --all
    exits 0
    grep '[0-9]' "$stdout" | grep -v eh_proj >ours
    run print mimo "model.mtp_layers.0.input_proj.weight[:,$((width - half)):$((2 * width - half))]" --all
    exits 0
    grep '[0-9]' "$stdout" | grep -v input_proj | cmp -s - ours || is_wrong "half $half is another"
    [ "$(wc -l <ours)" -ge "$width" ] || is_wrong "half $half has $(wc -l <ours) lines"
done
run convert there back --to hf --overwrite
exits 0
run verify mimo back
exits 0
prints identical

it "writes the legacy files of HybridModel as Megatron does: names, order and bytes"
real=$arch/nemotron-h-torch-tp2pp2/checkpoint
run convert "$real" legacy --to torch --moe-grouped-gemm --make-vocab-size-divisible-by 8 --verify full \
    --hf-config "$arch/nemotron-h-tp2ep2/expected"
exits 0
says "names of HybridModel"
for rank in 00_000_000 00_001_000 01_000_001 01_001_001; do
    file=iter_0000010/mp_rank_$rank/model_optim_rng.pt
    run verify "$real/$file" "legacy/$file" --ignore '*._extra_state' # Transformer Engine's norms have one, too
    exits 0
    prints "identical: "
    for root in legacy "$real"; do # expert_bias is a buffer, which no optimizer counts
        "$ferry" inspect "$root/$file" | grep '^  model\.' | grep -v -e _extra_state -e expert_bias >"${root##*/}.names"
    done
    cmp -s legacy.names checkpoint.names || is_wrong "order: $(diff legacy.names checkpoint.names)"
done
run inspect --args legacy
prints "hybrid_layer_pattern                      M*|E-"

it "a model of GPTModel becomes HybridModel's in legacy files, and the other way"
run convert "$arch/llama-tp2pp2/checkpoint" pairs --to torch --megatron-model hybrid --tp 2 --pp 2
exits 0
run inspect pairs
prints "TE spec, HybridModel"
run verify pairs "$arch/llama-hybrid-tp2pp2/checkpoint"
exits 0
run convert pairs gpt --megatron-model gpt --overwrite
exits 0
run verify gpt "$arch/llama-tp2pp2/checkpoint"
exits 0

it "refuses what HybridModel has not, and other formats"
run convert "$golden/megatron/models/llama" none --megatron-model hybrid --to dcp
exits 2
says "does not apply to format dcp"
run convert "$golden/megatron/models/llama" none --megatron-model mamba
exits 2
