#!/bin/sh
# forward_test.sh - the commands that compute: forward, generate, perplexity, bench.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"
golden=$root/tests/golden/hf

it "logits and hidden states are those of transformers"
run forward "$golden/llama3.1" --input-ids "$golden/llama3.1/logits.safetensors" --out o --hidden
exits 0
run verify o "$golden/llama3.1/logits.safetensors" --only logits --only 'hidden.*' \
    --only final_norm --atol 1e-5
exits 0
prints "5 within tolerance"

it "the same bits come from Megatron's checkpoints of any layout"
for layout in "--tp 2" "--tp 2 --to torch" "--pp 3"; do
    # shellcheck disable=SC2086 # words
    run convert "$golden/llama3.1" ckpt $layout --overwrite -q
    exits 0
    run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o2 --hidden
    exits 0
    cmp -s o o2 || is_wrong "$layout: other bits"
    rm -f o2
done

it "ranks are started where nobody has started them"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o2 --hidden --tp 2 --cp 2 \
    --sp --dtype f64
exits 0
run verify o2 o --rtol 1e-4 --atol 1e-5
exits 0
rm -f o2

it "what is there is not overwritten, and nothing is left behind by a failure"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o
exits 7
says "is there already"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o3 --tp 3
exits 3
is_not_there o3 o3.ferry-partial

it "a layout that does not divide is refused with the number and its divisor"
says "num_attention_heads 4 is not divisible by tensor parallel size 3"

it "experts need enough ranks to lie on"
run forward "$golden/qwen3-moe" --input-ids "$golden/qwen3-moe/logits.safetensors" --out o3 --ep 2 --dp 1
exits 3
says "TP1 CP1 DP1 are 1 ranks a stage, which ETP1 times EP2 does not divide"
run forward "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --out o3 --ep 2
exits 3
says "the model has no experts"

it "what a config says and no op computes is refused"
cp -r "$golden/llama2" odd
chmod -R u+w odd
sed -i 's/"rms_norm_eps"/"partial_rotary_factor": 64, "rms_norm_eps"/' odd/config.json
run forward odd --input-ids "$golden/llama2/logits.safetensors" --out o3
exits 5
says "rotary positions on 64 of each head"
sed -i 's/"partial_rotary_factor": 64, //' odd/config.json
sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4}/' odd/config.json
run forward odd --input-ids "$golden/llama2/logits.safetensors" --out o3
exits 3
says "yarn with beta_fast 4"

it "what a checkpoint does not say of its model is asked for"
megatron=$root/tests/golden/megatron
run forward "$megatron/llama-0.16.1-tp2/checkpoint" --input-ids "$golden/llama2/logits.safetensors" --out o3
exits 5
says "--hf-config DIR may say more"
run generate "$megatron/llama-HEAD-torch-tp2pp2vpp2/checkpoint" --prompt-ids 1,2,3
exits 3
says "--true-vocab-size N says it"
run generate "$megatron/llama-HEAD-torch-tp2pp2vpp2/checkpoint" --prompt-ids 1,2,3 --true-vocab-size 43
exits 0

it "a dry run says what memory it takes"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --tp 2
exits 0
prints "parameters and caches"
prints "are alive in"

it "token ids that the model has not are refused"
run generate "$golden/gpt2" --prompt-ids 1,100000
exits 2
says "token 1 of sequence 0 is 100000"
run generate "$golden/gpt2" --prompt-ids 1,x
exits 2
run generate "$golden/gpt2" --prompt-ids '1,2;3'
exits 2
says "must be of one length"
run generate "$golden/gpt2"
exits 2

it "sizes that do not fit are refused before anything is allocated"
run generate "$golden/llama2" --prompt-ids 1,2 --max-new-tokens 4611686018427387904
exits 2
run generate "$golden/llama2" --prompt-ids 1 --max-new-tokens 2000000000
exits 3
run generate "$golden/llama2" --prompt-ids 1 --max-new-tokens 1000000000
exits 6
says "are free"
run forward "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --out o3 --trace-layer 99
exits 2
says "there is no layer 99: the model has 2"

it "what no memory holds is refused at once, with its plan and what would fit"
run synth big --model llama --sparse --layers 20 --hidden 65536 --heads 128 --kv-heads 8 \
    --ffn-hidden-size 262144 --vocab-size 1000 --max-shard-size 500GB -q
exits 0
started=$(date +%s)
run bench big --seq 1000000 --batch 8
exits 6
says "parameters and caches: 4853848.08 MB"
says "alive in layers.0.activation"
says "ferry bench: rank 0 needs "
says " GB are free; "
says "--tp"
run bench big --seq 64 --tp 2 -q
exits 6
says "rank 0 needs 2427."
grep -q "alive in" "$stderr" && is_wrong "-q prints the plan"
[ $(($(date +%s) - started)) -lt 20 ] || is_wrong "it took longer than a plan does"
rm -r big

it "more positions than a model has learned are refused"
run bench "$golden/gpt2" --seq 100000 --repeats 1
exits 3
says "the model has learned"

it "generation is the same at every layout, and in JSON"
run generate "$golden/qwen3-moe" --prompt-ids '1,2,3;7,8,9' --max-new-tokens 6
exits 0
cp "$stdout" tokens
[ "$(wc -l <tokens)" -eq 2 ] || is_wrong "not two lines"
run generate "$golden/qwen3-moe" --prompt-ids '1,2,3;7,8,9' --max-new-tokens 6 --tp 2 --ep 2 --etp 1
exits 0
cmp -s "$stdout" tokens || is_wrong "other tokens: $(cat "$stdout")"
run generate "$golden/qwen3-moe" --prompt-ids '1,2,3;7,8,9' --max-new-tokens 6 --json
exits 0
want=$(sed 's/.*/[&]/' tokens | paste -sd, | sed 's/.*/{"tokens":[&]}/')
[ "$(cat "$stdout")" = "$want" ] || is_wrong "$(cat "$stdout") is not $want"

# The golden loss is the mean over both sequences of the file.
raw_ids() { # SEQUENCE: its tokens as little-endian u16
    "$ferry" print -q "$golden/gpt2/logits.safetensors" "input_ids[$1]" | tr -d '[]' | tr ',' '\n' |
        while read -r id; do
            printf '%b' "$(printf '\\0%03o\\0%03o' $((id % 256)) $((id / 256)))"
        done
}

it "perplexity is what transformers' loss says"
sum=0
for sequence in 0 1; do
    raw_ids $sequence >ids.u16
    run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --json
    exits 0
    sum=$(sed 's/.*"loss":\([0-9.e+-]*\).*/\1/' "$stdout" | awk -v s="$sum" '{printf "%.9g", s + $1 / 2}')
done
want=$("$ferry" print -q "$golden/gpt2/logits.safetensors" loss)
awk -v a="$sum" -v b="$want" 'BEGIN { d = a - b; exit !(d < 1e-5 && d > -1e-5) }' ||
    is_wrong "loss $sum, wanted $want"

it "a token that only follows others is one of the model's, too"
printf '\1\0\2\0\3\0\140\352' >odd.u16
run perplexity "$golden/gpt2" --data odd.u16 --data-dtype u16
exits 2
says "target 2 of sequence 0 is 60000"

it "windows, batches and layouts do not change which tokens count"
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq 5 --batch 3 --json
exits 0
prints '"tokens":19,'
cp "$stdout" one
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq 5 --batch 3 --json --tp 2 --pp 2 --dp 2
exits 0
awk -F '[:,]' 'NR == FNR { a = $4; next } { d = $4 - a; exit !(d < 1e-5 && d > -1e-5) }' one "$stdout" ||
    is_wrong "$(cat one) and $(cat "$stdout")"

it "perplexity of Megatron's indexed datasets is that of the ids in them"
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --json
cp "$stdout" raw
cp ids.u16 ids.bin
{ # one sequence of 20 in one document
    printf 'MMIDIDX\000\000\001\000\000\000\000\000\000\000\010'
    printf '\001\000\000\000\000\000\000\000\002\000\000\000\000\000\000\000\024\000\000\000'
    printf '\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000'
} >ids.idx
run perplexity "$golden/gpt2" --data ids --json
exits 0
cmp -s "$stdout" raw || is_wrong "$(cat "$stdout") is not $(cat raw)"
run perplexity "$golden/gpt2" --data "$root/tests/golden/megatron-data/wide"
exits 2
says "the model has"

it "a bench shows each op"
run bench "$golden/mixtral" --seq 8 --repeats 2
exits 0
prints "grouped_matmul"
run bench "$golden/mixtral" --seq 8 --repeats 2 --decode --json
exits 0
prints '"op":"attention"'

it "NaN in a tensor is named"
cp -r "$golden/llama2" nan
chmod -R u+w nan
size=$(wc -c <nan/model.safetensors) # f16; what lies at the end is a norm or a projection
printf '\000\176' | dd of=nan/model.safetensors bs=1 seek=$((size - 2)) conv=notrunc 2>/dev/null
run forward nan --input-ids "$golden/llama2/logits.safetensors" --out o4
exits 10
says "NaN"
says "decoder.final_layernorm.weight: has NaN"
is_not_there o4
run forward nan --input-ids "$golden/llama2/logits.safetensors" --out o4 --pp 2 --tp 2
exits 10
says "on rank"
