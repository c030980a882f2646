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

for case in "$encodings"/[!b]*; do
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
