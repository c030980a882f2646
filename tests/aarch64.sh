#!/bin/sh
# aarch64.sh FERRY - whether FERRY, of another CPU or emulated, writes and computes what $FERRY_NATIVE does. TAP.
golden=$(realpath "$(dirname "$0")/golden")
. "$(dirname "$0")/cli/lib.sh"
native=$FERRY_NATIVE

it "is a program for aarch64"
run_program od -An -tx1 -j18 -N2 "$(dirname "$ferry")/ferry"
prints "b7 00"

it "makes the same model of random numbers"
run synth -q hf --model qwen3-moe --layers 2 --experts 4 --topk 2
run_program "$native" synth -q hf-native --model qwen3-moe --layers 2 --experts 4 --topk 2
same_files hf-native hf

for format in torch_dist torch; do
    it "converts it to the same bytes of $format"
    run convert -q hf "$format" --to $format --tp 2 --pp 2 --ep 2
    exits 0
    run_program "$native" convert -q hf "$format-native" --to $format --tp 2 --pp 2 --ep 2
    exits 0
    same_files "$format-native" "$format"

    it "and $format back"
    run convert -q "$format-native" "back-$format" --to hf
    exits 0
    run_program cmp hf/model.safetensors "back-$format/model.safetensors"
    exits 0
done

it "computes the same checksums"
run_program "$native" digest hf
exits 0
cp "$stdout" model.digest
run digest torch --check model.digest
exits 0

it "finds no difference where there is none, and one where there is one"
run verify hf-native torch
exits 0
run synth -q hf-other --model qwen3-moe --layers 2 --experts 4 --topk 2 --seed 2
run verify hf-native hf-other
exits 1

it "inspects it with the same answer"
run_program "$native" inspect --json torch_dist
exits 0
grep -v '"seconds"' "$stdout" >native.json
run inspect --json torch_dist
exits 0
grep -v '"seconds"' "$stdout" >ours.json
run_program diff native.json ours.json
exits 0

for model in gpt2 llama3.1 mixtral qwen3; do
    it "computes of $model what the other CPU and transformers compute"
    run forward "$golden/hf/$model" --input-ids "$golden/hf/$model/logits.safetensors" --hidden --tp 2 --out "$model.st"
    exits 0
    run_program "$native" verify "$golden/hf/$model" "$model.st" --forward \
        --input-ids "$golden/hf/$model/logits.safetensors"
    exits 0
    run verify "$golden/hf/$model" "$golden/hf/$model/logits.safetensors" --forward
    exits 0
done
