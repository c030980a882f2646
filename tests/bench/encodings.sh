#!/bin/sh
# encodings.sh FERRY KERNELS - what encoded weights cost: codes a second, conversions beside `cp`, memory, plans of models
# of full size. FERRY_VENV5 names a virtual environment with transformers 5, torch and accelerate, which then loads,
# dequantises and saves the same model; without it that row is left out. 12 GB of disk.
set -eu
ferry=$(realpath "$1") kernels=$(realpath "$2")
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work"

row() { # TITLE VALUE
    printf '%-62s %s\n' "$1" "$2"
}

# measured TITLE COMMAND... - the fastest of three: seconds, of CPUs, MB
measured() {
    title=$1
    shift
    for _ in 1 2 3; do
        rm -rf out
        code=0
        /usr/bin/time -f '%e %U %S %M' -o usage "$@" >said 2>&1 || code=$?
        [ "$code" -eq 0 ] || [ "$code" -eq 4 ] || { cat said; exit 1; } # 4: a dry run for a larger disk
        tail -n 1 usage
    done | sort -n | head -n 1 | while read -r wall user system kilobytes; do
        row "$title" "$wall s, $(awk "BEGIN {print $user + $system}") s of CPUs, $((kilobytes / 1000)) MB"
    done
}

# generating TITLE MODEL - tokens a second behind 128 others, best of three; weights decoded, and as stored.
generating() {
    for weights in decoded as-stored; do
        seconds=$(for _ in 1 2 3; do
            "$ferry" bench "$2" --decode --seq 128 --dtype bf16 --weights "$weights" --json 2>said |
                sed -n '/"median_seconds"/{s/.*: *\([^,]*\),/\1/p;q}'
        done | sort -g | head -n 1)
        bytes=$("$ferry" generate "$2" --prompt-ids 1 --max-new-tokens 1 --dtype bf16 --weights "$weights" --dry-run --json \
            2>said | sed -n 's/^ *"parameters_and_caches": *\([^,]*\),*/\1/p')
        row "$1, weights $weights" "$(awk "BEGIN {printf \"%.2f tokens/s, %.0f MB\", 1 / $seconds, $bytes / 1e6}")"
    done
}

# A gpt-oss of 20 B with six of its layers: codes and scales as published, of random bytes.
make_gpt_oss() {
    python3 - <<'P'
import json, os, struct
layers, experts, hidden, inner, vocab, heads, groups, size = 6, 32, 2880, 2880, 201088, 64, 8, 64
os.mkdir("gpt-oss")
kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
json.dump({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": size,
           "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": inner, "layer_types": kinds,
           "num_attention_heads": heads, "num_key_value_heads": groups, "num_hidden_layers": layers,
           "num_local_experts": experts, "num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "rope_theta": 150000,
           "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": vocab, "max_position_embeddings": 131072,
           "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False,
                            "original_max_position_embeddings": 4096},
           "quantization_config": {"quant_method": "mxfp4"}}, open("gpt-oss/config.json", "w"))
t = {"model.embed_tokens.weight": ("BF16", [vocab, hidden]), "lm_head.weight": ("BF16", [vocab, hidden]),
     "model.norm.weight": ("BF16", [hidden])}
for i in range(layers):
    p = f"model.layers.{i}."
    for n, rows in (("q", heads * size), ("k", groups * size), ("v", groups * size)):
        t[f"{p}self_attn.{n}_proj.weight"] = ("BF16", [rows, hidden])
        t[f"{p}self_attn.{n}_proj.bias"] = ("BF16", [rows])
    t[p + "self_attn.o_proj.weight"] = ("BF16", [hidden, heads * size])
    t[p + "self_attn.o_proj.bias"] = ("BF16", [hidden])
    t[p + "self_attn.sinks"] = ("BF16", [heads])
    t[p + "input_layernorm.weight"] = t[p + "post_attention_layernorm.weight"] = ("BF16", [hidden])
    t[p + "mlp.router.weight"], t[p + "mlp.router.bias"] = ("BF16", [experts, hidden]), ("BF16", [experts])
    for n, rows, cols in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
        t[f"{p}mlp.experts.{n}_proj_blocks"] = ("U8", [experts, rows, cols // 32, 16])
        t[f"{p}mlp.experts.{n}_proj_scales"] = ("U8", [experts, rows, cols // 32])
        t[f"{p}mlp.experts.{n}_proj_bias"] = ("BF16", [experts, rows])
header, at = {}, 0
for name, (dtype, shape) in t.items():
    count = 2 if dtype == "BF16" else 1
    for d in shape:
        count *= d
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
    at += count
text = json.dumps(header).encode()
noise = os.urandom(1 << 20)
with open("gpt-oss/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for name, (dtype, shape) in t.items():
        first, last = header[name]["data_offsets"]
        chunk = noise if name.endswith("_blocks") else bytes(100 + b % 30 for b in noise)
        chunk = chunk if dtype == "U8" else bytes(b & 0x3f for b in noise)  # small numbers
        for begin in range(first, last, len(chunk)):
            f.write(chunk[:min(len(chunk), last - begin)])
P
}

echo "$("$ferry" --version | head -n 1), $(uname -m), $(nproc) CPUs; load: $(cut -d ' ' -f 1-3 /proc/loadavg)"
"$kernels"

billion='--model llama --layers 16 --hidden 2048 --heads 32 --kv-heads 8 --ffn-hidden-size 8192 --vocab-size 128256 --tied'
# shellcheck disable=SC2086 # words
"$ferry" synth -q fp8 $billion --encoding fp8-block
# shellcheck disable=SC2086 # words
"$ferry" synth -q bf16 $billion
measured "FP8 of 1.2 B to BF16, TP8, --max-memory 32MiB" "$ferry" convert -q fp8 out --tp 8 --max-memory 32MiB
measured "BF16 of 1.2 B to BF16, TP8" "$ferry" convert -q bf16 out --tp 8
measured "cp and sync of these 2.5 GB" sh -c 'cp --reflink=never -r bf16 out && sync -f out'
measured "BF16 of 1.2 B to FP8" "$ferry" convert -q bf16 out --to hf --export-weight-dtype fp8-block
"$ferry" convert -q fp8 kept --tp 8
measured "BF16, TP8, of 1.2 B to FP8 as it came" "$ferry" convert -q kept out --to hf --export-weight-dtype as-source
if [ -x "${FERRY_VENV5:-}/bin/python" ]; then
    cat >dequantise.py <<'P'
import json, sys, torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
given = json.load(open("fp8/config.json"))["quantization_config"]
how = FineGrainedFP8Config(**{**given, "dequantize": True})
model = AutoModelForCausalLM.from_pretrained("fp8", dtype=torch.bfloat16, quantization_config=how)
model.config.quantization_config = None
torch.save(model.state_dict(), "out.pt")
P
    measured "transformers loads, dequantises and saves it" "$FERRY_VENV5/bin/python" dequantise.py
fi
rm -rf fp8 bf16 kept out out.pt

"$ferry" synth -q half --model llama --layers 8 --hidden 2048 --heads 32 --kv-heads 8 --ffn-hidden-size 8192 --vocab-size 32000 \
    --tied --encoding fp8-block
generating "tokens of 0.55 B in FP8" half
rm -rf half

make_gpt_oss
measured "6 layers of gpt-oss 20 B, MXFP4 to BF16, torch_dist" "$ferry" convert -q gpt-oss out --max-memory 256MiB
rm -rf gpt-oss out

"$ferry" synth -q large --model deepseek_v3 --sparse --layers 61 --hidden 7168 --heads 128 --kv-heads 128 \
    --ffn-hidden-size 18432 --vocab-size 129280 --experts 256 --topk 8 --moe-ffn-hidden-size 2048 --encoding fp8-block \
    --max-memory 2GiB
measured "dry run of DeepSeek V3, 671 B in FP8, to TP8 PP16 EP32" "$ferry" convert -q large out --dry-run --tp 8 --pp 16 \
    --ep 32 --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 2 --max-memory 2GiB
