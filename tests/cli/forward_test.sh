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
says "exists already"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o3 --tp 3
exits 3
is_not_there o3 o3.ferry-partial

it "a layout that does not divide is refused with the number and its divisor"
says "num_attention_heads 4 is not divisible by tensor parallel size 3"

it "experts need enough ranks to lie on"
run forward "$golden/qwen3-moe" --input-ids "$golden/qwen3-moe/logits.safetensors" --out o3 --ep 2 --dp 1
exits 3
says "TP1 CP1 DP1: a pipeline stage has 1 rank, not divisible by ETP1 times EP2"
run forward "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --out o3 --ep 2
exits 3
says "the model has no experts"

it "what a config says and no op computes is refused"
cp -r "$golden/llama2" odd
chmod -R u+w odd
sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "longrope", "factor": 4.0}/' odd/config.json
run forward odd --input-ids "$golden/llama2/logits.safetensors" --out o3
exits 3
says "rope_type longrope is not supported"

it "what a checkpoint does not say of its model is asked for"
megatron=$root/tests/golden/megatron
run forward "$megatron/llama-0.16.1-tp2/checkpoint" --input-ids "$golden/llama2/logits.safetensors" --out o3
exits 5
says "its config is incomplete; --hf-config DIR completes it"
run generate "$megatron/llama-HEAD-torch-tp2pp2vpp2/checkpoint" --prompt-ids 1,2,3
exits 3
says "give --true-vocab-size N"
run generate "$megatron/llama-HEAD-torch-tp2pp2vpp2/checkpoint" --prompt-ids 1,2,3 --true-vocab-size 43
exits 0

it "logits have the dtype that is asked for, in the file and in --json"
for dtype in f32 bf16 fp16; do
    run forward "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --out o3 --dtype $dtype \
        --logits-dtype bf16 --json
    exits 0
    prints '"dtype": "BF16"'
    prints '"bytes": 21760'
    run verify "$golden/llama2" o3 --forward --dtype $dtype --input-ids "$golden/llama2/logits.safetensors"
    exits 0
    prints "forward: within rounding"
    rm o3
done
run forward "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --out o3 --dtype f64 --logits-dtype bf16
exits 2
says "--logits-dtype bf16 conflicts with --dtype f64, which gives logits in f64"
is_not_there o3

it "logits that are too large for their dtype are refused"
if command -v python3 >/dev/null; then
    cp -r "$golden/llama2" overflows
    chmod -R u+w overflows
    python3 - overflows/model.safetensors <<'PYTHON'
import json, struct, sys
f = open(sys.argv[1], "r+b")
length, = struct.unpack("<Q", f.read(8))
f.seek(8 + length + json.loads(f.read(length))["lm_head.weight"]["data_offsets"][0])
f.write(struct.pack("<e", 60000) * 64)  # a row
PYTHON
    for dtype in f32 bf16 fp16; do
        run forward overflows --input-ids "$golden/llama2/logits.safetensors" --out o3 --dtype $dtype --logits-dtype fp16
        exits 10
        [ $dtype = fp16 ] || says " elements are too large for float16"
        is_not_there o3
    done
    run forward overflows --input-ids "$golden/llama2/logits.safetensors" --out o3 --logits-dtype bf16
    exits 0
    rm o3
else
    skip "no python3"
fi

it "a dry run says what memory it takes"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --tp 2
exits 0
prints "parameters and caches"
prints "for 2 ranks; "
prints "of this host are free"
prints "It fits."
grep -q "alive in\|program 0" "$stdout" && is_wrong "it tells of internals"
[ "$(grep -c '^ *[01] ' "$stdout")" -eq 2 ] || is_wrong "not a line for each rank: $(cat "$stdout")"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --tp 2 -v
exits 0
prints "parameters and caches"
prints "are alive in"

it "a dry run fails where the results could not be written"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --out nowhere/o3
exits 4
says "nowhere/o3: folder nowhere does not exist"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --out o
exits 7
if [ "$(id -u)" -ne 0 ]; then
    mkdir -p readonly && chmod a-w readonly
    run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --out readonly/o3
    exits 4
fi
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --out ""
exits 2
says "--out is empty"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --dry-run --out o3
exits 0
is_not_there o3

it "what was written is said, in a line or as JSON"
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o3 --hidden
exits 0
prints "o3: logits [2, 20, 272] and 5 other results, 0.09 MB, in "
rm o3
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o3 -q
exits 0
prints_nothing
rm o3
json() { # EXPRESSION: what is true of j, the object that was printed
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); assert eval(sys.argv[2]), j' "$stdout" "$1" 2>parsed ||
        is_wrong "$1: $(tail -n 1 parsed)"
}
run forward ckpt --input-ids "$golden/llama3.1/logits.safetensors" --out o3 --json --tp 2
exits 0
json 'j["path"] == "ckpt" and not j["dry_run"] and j["out"] == "o3" and j["input_ids"].endswith("logits.safetensors")'
json 'j["outputs"] == [{"name": "logits", "dtype": "F32", "shape": [2, 20, 272]}] and j["bytes"] == 2 * 20 * 272 * 4'
json '[r["rank"] for r in j["memory_bytes"]] == [0, 1] and j["layout"]["tp"] == 2 and j["seconds"] > 0'
rm o3

it "a dry run says what memory each rank takes as JSON"
printf '\1\0\2\0\3\0\4\0' >few.u16
for command in "forward --input-ids $golden/llama3.1/logits.safetensors --out o3" "generate --prompt-ids 1,2,3" \
    "perplexity --data few.u16 --data-dtype u16"; do
    # shellcheck disable=SC2086 # words
    run $command ckpt --dry-run --json --pp 3
    exits 0
    json 'j["dry_run"] and len(j["memory_bytes"]) == 3 and "outputs" not in j'
    json 'all(r["peak_device"] >= r["parameters_and_caches"] > 0 for r in j["memory_bytes"])'
    json 'j["sequences"] * j["length"] in (40, 3)'
done
is_not_there o3

it "token ids that the model has not are refused"
run generate "$golden/gpt2" --prompt-ids 1,100000
exits 2
says "token 1 of sequence 0 is 100000"
run generate "$golden/gpt2" --prompt-ids 1,x
exits 2
for id in 2147483648 99999999999 99999999999999999999; do
    run generate "$golden/gpt2" --prompt-ids 1,$id,2
    exits 2
    says "token id $id is above the maximum of 2147483647"
done
run generate "$golden/gpt2" --prompt-ids '1,2;'
exits 2
says 'ends with ";"'
run generate "$golden/gpt2" --prompt-ids '1;;2'
exits 2
run generate "$golden/gpt2"
exits 2
run generate "$golden/gpt2" --prompt-ids 1 --input-ids nope.safetensors
exits 2
says "give one of --prompt-ids and --input-ids"
run generate "$golden/gpt2" --input-ids nope.safetensors
exits 4
says "nope.safetensors: no such file"
run generate "$golden/gpt2" --input-ids ''
exits 2
says "the file name of the token ids is empty"
mkdir folder && cp "$golden/llama2/config.json" folder && mkdir folder/model.safetensors
run generate folder --prompt-ids 1
exits 5
says "folder/model.safetensors: a folder, expected a file of weights"

it "an option that is 0 where that means nothing is refused"
for command in "perplexity --seq-length" "perplexity --micro-batch-size" "perplexity --max-tokens" "bench --repeats" \
    "bench --batch" "bench --seq" "generate --max-new-tokens" "forward --threads" "forward --cp" "forward --dp" "forward --tp"; do
    # shellcheck disable=SC2086 # words
    run $command 0 "$golden/gpt2"
    exits 2
    says "${command#* }: \"0\" is not a whole number from 1 to"
done
run bench "$golden/gpt2" --repeats 10001
exits 2
says "--repeats 10001 is above the maximum of 10000"
run bench "$golden/gpt2" --batch 2000000 --seq 2000
exits 2
says "--batch 2000000 times --seq 2000 exceeds 2147483647 tokens"
run generate "$golden/gpt2" --prompt-ids 1 --max-new-tokens 1 --seed 0 --top-k 0 --temperature 1
exits 0

it "a sequence ends with what the model's configs say, or --end-id"
run generate "$golden/qwen3-moe" --prompt-ids 1,2 --max-new-tokens 6 --ignore-eos
exits 0
third=$(cut -d, -f3 "$stdout") whole=$(cat "$stdout")
first=$(cut -d, -f1 "$stdout")
cp -r "$golden/qwen3-moe" ends
chmod -R u+w ends
sed -i "s/\"eos_token_id\": 1/\"eos_token_id\": [999, $third]/" ends/config.json
run generate ends --prompt-ids 1,2 --max-new-tokens 6
exits 0
want=$(echo "$whole" | awk -F, -v end="$third" '{ for (i = 1; i <= NF; i++) { printf("%s%s", (i > 1 ? "," : ""), $i); if ($i == end) break } print "" }')
[ "$(cat "$stdout")" = "$want" ] || is_wrong "$(cat "$stdout") is not $want"
echo "{\"eos_token_id\": $first}" >ends/generation_config.json
run generate ends --prompt-ids 1,2 --max-new-tokens 6
[ "$(cat "$stdout")" = "$first" ] || is_wrong "$(cat "$stdout") is not $first"
run generate ends --prompt-ids 1,2 --max-new-tokens 6 --ignore-eos
[ "$(cat "$stdout")" = "$whole" ] || is_wrong "$(cat "$stdout") is not $whole"
run generate ends --prompt-ids 1,2 --max-new-tokens 6 --end-id "250,$third"
[ "$(cat "$stdout")" = "$want" ] || is_wrong "$(cat "$stdout") is not $want"
run generate ends --prompt-ids 1,2 --end-id 5,99999
exits 2
says "--end-id: token id 99999 is not below the vocabulary size, 272"
run generate ends --prompt-ids 1,2 --end-id 5 --ignore-eos
exits 2
run convert ends ends-ckpt --tp 2 -q
run generate ends-ckpt --prompt-ids 1,2 --max-new-tokens 6
[ "$(cat "$stdout")" = "$first" ] || is_wrong "of the converted model: $(cat "$stdout") is not $first"

it "what changes nothing is said"
run generate "$golden/gpt2" --prompt-ids 1,2 --max-new-tokens 2 --top-k 5
exits 0
says "decoding is greedy at --temperature 0, the default"
run generate "$golden/gpt2" --prompt-ids 1,2 --max-new-tokens 2 --top-k 5 --temperature 0.5
says_nothing

it "prompts of several lengths go on as each would alone"
: >want
for prompt in 1,2,3 7,8,9,10,11 5; do
    run generate "$golden/qwen3" --prompt-ids $prompt --max-new-tokens 4
    cat "$stdout" >>want
done
run generate "$golden/qwen3" --prompt-ids '1,2,3;7,8,9,10,11;5' --max-new-tokens 4
exits 0
cmp -s "$stdout" want || is_wrong "$(cat "$stdout") is not $(cat want)"

it "an attention_mask tells which ids are padding, at either end"
python3 - <<'PYTHON' || is_wrong "no python3"
import json, struct
def write(path, ids, mask):
    data = b"".join(struct.pack("<q", x) for row in ids + mask for x in row)
    shape, half = [len(ids), len(ids[0])], len(data) // 2
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": shape, "data_offsets": [0, half]},
                         "attention_mask": {"dtype": "I64", "shape": shape, "data_offsets": [half, 2 * half]}}).encode()
    open(path, "wb").write(struct.pack("<Q", len(header)) + header + data)
write("left", [[0, 0, 0, 1, 2, 3], [0, 7, 8, 9, 10, 11], [0, 0, 0, 0, 0, 5]],
      [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]])
write("right", [[1, 2, 3, 0, 0], [7, 8, 9, 10, 11], [5, 0, 0, 0, 0]], [[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]])
write("holes", [[1, 2, 3]], [[1, 0, 1]])
write("none", [[1, 2], [3, 4]], [[1, 1], [0, 0]])
write("all", [[1, 2, 3]], [[1, 1, 1]])
write("twos", [[1, 2, 3]], [[1, 2, 1]])
write("large", [[1, 60000, 3]], [[1, 1, 1]])
PYTHON
for side in left right; do
    run generate "$golden/qwen3" --input-ids $side --max-new-tokens 4
    exits 0
    cmp -s "$stdout" want || is_wrong "$side: $(cat "$stdout") is not $(cat want)"
done
for bad in holes none; do
    run generate "$golden/qwen3" --input-ids $bad
    exits 3
    says "$bad: attention_mask: row"
done
run generate "$golden/qwen3" --input-ids twos
exits 5
says "twos: attention_mask: element 1 is 2, neither 0 nor 1"
run forward "$golden/qwen3" --input-ids right --out padded
exits 3
says "attention_mask gives rows of different lengths"
run forward "$golden/qwen3" --input-ids all --out padded
exits 0

it "a token that the model has not is a wrong file, where a file has it"
for command in "generate --input-ids large" "forward --input-ids large --out new" "forward --input-ids large --out new --tp 2" \
    "verify $golden/qwen3 --forward --input-ids large"; do
    # shellcheck disable=SC2086 # words
    run $command "$golden/qwen3"
    exits 5
    says "large: token 1 of sequence 0 is 60000: the model has 272 tokens"
done
is_not_there new

it "more tensor parallel ranks than key and value heads share them"
run convert "$golden/llama3.2" wide --tp 4 -q
exits 0
run verify "$golden/llama3.2" wide --forward --tp 4
exits 0
prints "forward: "
run forward wide --input-ids "$golden/llama3.2/logits.safetensors" --out wide.out --tp 4
exits 0
run verify wide.out "$golden/llama3.2/logits.safetensors" --only logits --atol 1e-4
exits 0
run forward "$golden/llama2" --input-ids "$golden/llama2/logits.safetensors" --out o3 --tp 8
exits 3
says "num_attention_heads 4 is not divisible by tensor parallel size 8"

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
says "layer 99 does not exist: the model has 2 layers"

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
run generate big --prompt-ids 1,2,3 --dry-run
exits 6
prints "of this host are free"
grep -q "It fits\|alive in" "$stdout" && is_wrong "$(cat "$stdout")"
says " GB are free; "
says "--tp"
run bench big --seq 64 --tp 2 -q
exits 6
says " needs 2427."
grep -q "alive in" "$stderr" && is_wrong "-q prints the plan"
run verify big "$golden/llama2/logits.safetensors" --forward
exits 6
says "alive in layers.0.activation"
run verify big "$golden/llama2/logits.safetensors" --forward -q
exits 6
grep -q "alive in" "$stderr" && is_wrong "-q prints the plan"
[ $(($(date +%s) - started)) -lt 20 ] || is_wrong "it took longer than a plan does"
rm -r big

it "products use the instructions of this CPU, whether or not OpenBLAS knows its model number"
core=''
grep -qw fma /proc/cpuinfo && grep -qw GenuineIntel /proc/cpuinfo && core=Haswell
grep -qw avx512bw /proc/cpuinfo && core=SkylakeX
run_program env -u OPENBLAS_CORETYPE OPENBLAS_VERBOSE=2 "$ferry" bench "$golden/gpt2" --seq 16 --repeats 1
exits 0
if [ -n "$core" ] && grep -q "^Core: " "$stderr"; then
    says "Core: $core"
    OPENBLAS_CORETYPE=Nehalem run_program env OPENBLAS_VERBOSE=2 "$ferry" bench "$golden/gpt2" --seq 16 --repeats 1
    says "Core: Nehalem"
else
    skip "another CPU, or an OpenBLAS for one kind of CPU"
fi

it "what a limit of address space leaves is judged before it is computed"
# shellcheck disable=SC3045 # dash knows it
if [ "$(ulimit -v)" != unlimited ] || [ "$(nproc)" -gt 8 ] || nm -D "$ferry" | grep -q __asan; then
    skip "another limit, many CPUs, or sanitizers, which take all of it"
else
    synth_model little --layers 4 --hidden 512 --heads 8 --ffn-hidden-size 2048 --vocab-size 32000 --sparse
    for limit in 100000 400000 800000 1000000 1400000 2000000 4000000; do
        tries 7 || [ $limit -eq 4000000 ] || continue
        # shellcheck disable=SC2016,SC3045 # for the inner shell
        run_program sh -c 'ulimit -v "$1"; shift; exec timeout 300 "$@"' - $limit "$ferry" bench little --seq 512 --repeats 1
        case $code in
        0 | 6) ;;
        *) is_wrong "with $limit KB: exit code $code: $(tail -n 1 "$stderr")" ;;
        esac
        [ $limit -ne 100000 ] || says "ulimit -v leaves"
    done
    exits 0
    # Each process has its own: two ranks may have twice as much. Libraries take some for each CPU.
    synth_model mid --layers 4 --hidden 1024 --heads 8 --ffn-hidden-size 4096 --vocab-size 64000 --sparse
    limit=$((1250000 + ($(nproc) - 2) * 131072))
    for options in "--threads 1" "--tp 2 --threads 2"; do
        # shellcheck disable=SC2016,SC3045,SC2086 # for the inner shell; words
        run_program sh -c 'ulimit -v "$1"; shift; exec timeout 300 "$@"' - $limit \
            "$ferry" bench mid --seq 16 --repeats 1 $options
        if [ "$options" = "--threads 1" ]; then
            exits 6
            says "GB of address space (ulimit -v)"
        else
            exits 0
        fi
    done
fi

it "what ops make is the same where several ranks have a copy of a key and value"
for model in llama3.2 qwen3; do
    for tp in 1 4; do
        "$ferry" forward "$golden/$model" --input-ids "$golden/$model/logits.safetensors" --out trace$tp \
            --trace-layer 1 --hidden --dtype f64 --tp $tp -q || is_wrong "$model: --tp $tp"
    done
    run verify trace1 trace4 --atol 1e-9
    exits 0
    rm trace1 trace4
done

it "the plan of memory is what is used, to some per cent"
synth_model little2 --layers 4 --hidden 512 --heads 8 --ffn-hidden-size 4096 --vocab-size 32000
if nm -D "$ferry" | grep -q __asan; then
    skip "sanitizers take more"
else
    for options in "" "--dtype bf16" "--tp 2"; do
        # shellcheck disable=SC2086 # words
        run forward little2 --input-ids "$golden/llama3.1/logits.safetensors" --dry-run -v $options
        exits 0
        planned=$(sed -n 's/.*peak: \([0-9.]*\) MB, plus \([0-9.]*\) MB.*/\1 + \2/p' "$stdout")
        # shellcheck disable=SC2086
        run_program env time -f %M -o used "$ferry" forward little2 -q --out used.out \
            --input-ids "$golden/llama3.1/logits.safetensors" $options
        exits 0
        rm -f used.out
        echo "$planned $(cat used)" | awk '{ plan = $1 + $3; used = $4 * 1.024e-3; exit !(used < plan * 1.05 && used > plan * 0.8) }' ||
            is_wrong "$options: planned $planned MB, used $(cat used) KiB"
    done
fi

it "more positions than a model has learned are refused"
run bench "$golden/gpt2" --seq 100000 --repeats 1
exits 3
says "the model has learned"
run generate "$golden/gpt2" --prompt-ids 1,2,3 --max-new-tokens 127
exits 3
says "a prompt of 3 tokens and 127 new ones need 129 positions; the model has learned 128"
run generate "$golden/gpt2" --prompt-ids 1,2,3 --max-new-tokens 126 --ignore-eos
exits 0

it "more rotary positions than a model was made for are worth a note"
cp -r "$golden/llama2" short
chmod -R u+w short
sed -i 's/"max_position_embeddings": 128/"max_position_embeddings": 16/' short/config.json
note="20 positions, but the model was made for 16 (max_position_embeddings)"
run forward short --input-ids "$golden/llama2/logits.safetensors" --out o3 --tp 2
exits 0
says "note: $note"
[ "$(grep -c positions "$stderr")" -eq 1 ] || is_wrong "each rank says it"
rm o3
run forward short --input-ids "$golden/llama2/logits.safetensors" --out o3 -q
says_nothing
rm o3
run generate short --prompt-ids 1,2,3,4,5 --max-new-tokens 16 --ignore-eos
exits 0
says "$note"
run generate short --prompt-ids 1,2,3,4,5 --max-new-tokens 12 --ignore-eos
says_nothing
printf '\1\0\2\0\3\0\4\0\5\0\6\0\7\0\1\0\2\0\3\0\4\0\5\0\6\0\7\0\1\0\2\0\3\0\4\0\5\0\6\0\7\0' >many.u16
run perplexity short --data many.u16 --data-dtype u16 --seq-length 20
exits 0
says "$note"
run perplexity short --data many.u16 --data-dtype u16
exits 0
says_nothing

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
want=$(sed 's/.*/[&]/' tokens | paste -sd,)
json "j['token_ids'] == [$want] and (j['sequences'], j['length'], j['max_new_tokens']) == (2, 3, 6)"

# The golden loss is the mean over both sequences of the file.
raw_ids() { # SEQUENCE: its tokens as little-endian u16
    "$ferry" print -q "$golden/gpt2/logits.safetensors" "input_ids[$1]" | tr -d '[]' | tr ',' '\n' |
        while read -r id; do
            printf '%b' "$(printf '\\0%03o\\0%03o' $((id % 256)) $((id / 256)))"
        done
}

loss() {
    sed -n 's/^ *"loss": \([0-9.e+-]*\).*/\1/p' "$@" "$stdout"
}

# That what was printed last has the same loss: same_loss FILE
same_loss() {
    loss "$1" | paste -sd' ' | awk '{ d = $1 - $2; exit !(NF == 2 && d < 1e-5 && d > -1e-5 && $1 > 1) }' ||
        is_wrong "$(loss "$1") are two losses"
}

it "perplexity is what transformers' loss says"
sum=0
for sequence in 0 1; do
    raw_ids $sequence >ids.u16
    run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --json
    exits 0
    sum=$(loss | awk -v s="$sum" '{printf "%.9g", s + $1 / 2}')
done
want=$("$ferry" print -q "$golden/gpt2/logits.safetensors" loss)
awk -v a="$sum" -v b="$want" 'BEGIN { d = a - b; exit !(d < 1e-5 && d > -1e-5) }' ||
    is_wrong "loss $sum, wanted $want"

it "a token that only follows others is one of the model's, too"
printf '\1\0\2\0\3\0\140\352' >odd.u16
run perplexity "$golden/gpt2" --data odd.u16 --data-dtype u16
exits 5
says "odd.u16: token 3 (sequence 0, element 3) is 60000, not below the vocabulary size, 268"

printf '\1\0\0\0\377\377\377\377\2\0\0\0' >negative.u32
run perplexity "$golden/gpt2" --data negative.u32 --data-dtype u32
exits 5
says "negative.u32: byte 4: token 4294967295, or a negative one; ids go up to 2147483647"
run perplexity "$golden/gpt2" --data odd.u16
exits 4
says "odd.u16 is not an indexed dataset (raw token ids need --data-dtype)"
run perplexity "$golden/gpt2" --data odd.u16 --data-dtype u16 --max-tokens 1
exits 2
says "odd.u16: 1 token; at least two are needed"
run perplexity "$golden/gpt2" --data ''
exits 2

it "a window is as long as the data, where --seq-length says more"
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --json
cp "$stdout" all_at_once
run perplexity "$golden/llama2" --data ids.u16 --data-dtype u16 --seq-length 1000000000 --json
exits 0
prints '"length": 19,'
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq-length 1000000000 --json
exits 0
same_loss all_at_once

it "what is left behind the last window is no longer than it is"
for seq in 2 7 18; do
    run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq-length $seq --batch 4 --json
    exits 0
    prints '"tokens": 19,'
    cp "$stdout" four
    run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq-length $seq --json --dp 3
    same_loss four
done

it "windows, batches and layouts do not change which tokens count"
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq 5 --batch 3 --json
exits 0
prints '"tokens": 19,'
cp "$stdout" one
run perplexity "$golden/gpt2" --data ids.u16 --data-dtype u16 --seq 5 --batch 3 --json --tp 2 --pp 2 --dp 2
exits 0
same_loss one

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
same_loss raw
run perplexity "$golden/gpt2" --data "$root/tests/golden/megatron-data/wide"
exits 5
says ", not below the vocabulary size, "

it "a token that the model has not is named by its place in the data"
printf '%b' '\0\0\1\0\2\0\3\0\4\0\5\0\6\0\7\0\010\0\011\0\5\0\054\1\7\0' >two.bin # [0..9], [5, 300, 7]
{ # two sequences of 10 and 3, a document each
    printf 'MMIDIDX\000\000\001\000\000\000\000\000\000\000\010'
    printf '\002\000\000\000\000\000\000\000\003\000\000\000\000\000\000\000\012\000\000\000\003\000\000\000'
    printf '\000\000\000\000\000\000\000\000\024\000\000\000\000\000\000\000'
    printf '\000\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000\002\000\000\000\000\000\000\000'
} >two.idx
run perplexity "$golden/gpt2" --data two --seq-length 4
exits 5
says "two: token 11 (sequence 1, element 1) is 300, not below the vocabulary size, 268"

it "a bench shows each op"
run bench "$golden/mixtral" --seq 8 --repeats 2
exits 0
prints "grouped_matmul"
run bench "$golden/mixtral" --seq 8 --repeats 2 --decode --json
exits 0
prints '"op": "attention"'
json 'j["share_of_roofline"] == max(j["share_of_product_ceiling"], j["share_of_copy_ceiling"]) > 0'
json 'all(op["timed_by"] == "marks" and op["share_of_copy_ceiling"] > 0 for op in j["ops"])'
json 'all(abs(x["share_of_copy_ceiling"] * x["median_seconds"] * j["peak_bytes_per_second"] / x["bytes"] - 1) < 1e-6
          for x in j["ops"] + [j])'
json 'all(abs(x["share_of_product_ceiling"] * x["median_seconds"] * j["peak_flops_per_second"] - x["flops"]) < 1e-6 * x["flops"] + 1e-6
          for x in j["ops"] + [j])'
json 'abs(sum(op["bytes"] for op in j["ops"]) / j["bytes"] - 1) < 1e-9'
run bench "$golden/llama2" --seq 8 --repeats 1 --decode --json # its weights but for the embedding: 374016 bytes of f32
json '374016 < j["bytes"] < 1.1 * 374016'

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
for layout in "" "--tp 2" "--pp 2"; do
    # shellcheck disable=SC2086 # words
    run generate nan --prompt-ids "1,2,3" --max-new-tokens 3 $layout
    exits 10
    says "decoder.final_layernorm.weight: has NaN"
done

it "a bench of numbers that are none says so"
run bench nan --seq 4 --repeats 1 --tp 2
exits 0
prints "the output has NaN or infinity"
run bench nan --seq 4 --repeats 1 --json
json 'j["finite"] is False'
run bench "$golden/llama2" --seq 4 --repeats 1 --json
json 'j["finite"] is True'

encodings=$(dirname "$golden")/encodings
encoded=$encodings/fp8-channel-ct-qwen3-moe

it "weights stay codes if asked for, and a note counts them"
run generate "$encoded" --prompt-ids "1,2,3" --max-new-tokens 4 --weights as-stored
exits 0
says "note: 4 weights stay coded, in 21.7 kB instead of 64.5 kB"
cp "$stdout" coded
run generate "$encoded" --prompt-ids "1,2,3" --max-new-tokens 4
exits 0
cmp -s coded "$stdout" || is_wrong "other tokens"
run generate "$encodings/fp8-block-ct-qwen3" --prompt-ids "1,2,3" --max-new-tokens 4 --weights as-stored --tp 2
exits 0
says "6 weights stay coded on 2 ranks, in 28.4 kB instead of 77.4 kB; 2 are decoded, to 12.9 kB"
says "decoder.layers.0.self_attention.linear_proj.weight: its groups of scales are cut"
run generate "$encodings/int4-ct-qwen3" --prompt-ids 1 --max-new-tokens 1 --weights codes
exits 2
says "decoded|as-stored"
run generate "$golden/llama2" --prompt-ids 1 --max-new-tokens 1 --weights as-stored
exits 0
says "note: 0 weights stay coded: the checkpoint has no codes"
run train "$encoded" --weights as-stored
exits 2
says "--weights"

it "their memory is planned"
run generate "$encoded" --prompt-ids 1 --max-new-tokens 1 --dry-run --json
json 'j["memory_bytes"][0]["coded_weights"] == 0'
cp "$stdout" decoded.json
run generate "$encoded" --prompt-ids 1 --max-new-tokens 1 --dry-run --json --weights as-stored
json '0 < j["memory_bytes"][0]["coded_weights"] <= j["memory_bytes"][0]["parameters_and_caches"]'
json 'j["memory_bytes"][0]["parameters_and_caches"] < 0.7 * json.load(open("decoded.json"))["memory_bytes"][0]["parameters_and_caches"]'

it "a scale of 0 whose codes are not 0 is named"
cp -r "$encoded" zero
chmod -R u+w zero
python3 - <<'P'
import json, struct
path = "zero/model.safetensors"
data = bytearray(open(path, "rb").read())
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + size])
name = "model.layers.0.self_attn.o_proj.weight_scale"
entry = header[name]
width = {"F32": 4, "BF16": 2}[entry["dtype"]]
at = 8 + size + entry["data_offsets"][0] + 5 * width
data[at:at + width] = bytes(width)
open(path, "wb").write(data)
P
for weights in decoded as-stored; do
    run generate zero --prompt-ids 1 --max-new-tokens 1 --weights "$weights"
    exits 5
    says "model.layers.0.self_attn.o_proj.weight_scale: "
    says " is 0, but not all its codes"
done
