#!/bin/sh
# demo.sh FERRY - shows a model on its way into Megatron-Core, to another layout, and back.
set -eu
exec 2>&1 # in the order in which things happen
ferry=$(realpath "$1")
needed_mb=3600

say() {
    printf '\n# %s\n' "$@"
}

# Prints a command, runs it, and says how long it took.
show() {
    printf '$ %s\n' "$*"
    start=$(date +%s%N)
    "$@"
    echo "$start $(date +%s%N)" | awk '{printf "  (%.2f s)\n", ($2 - $1) / 1e9}'
}

ferry() {
    "$ferry" "$@"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work"
free_mb=$(($(df -Pk . | awk 'NR == 2 {print $4}') / 1024))
if [ "$free_mb" -lt $needed_mb ]; then
    echo "demo: $needed_mb MB of disk are needed in $work, $free_mb MB are free (TMPDIR names another place)"
    exit 4
fi

say "A model of random numbers, with the shape of a small Llama: 6 layers, 0.9 GB in bf16. With a real
# one you would begin with its folder: \`hf download ... --local-dir hf\`."
show ferry synth hf --model llama --layers 6 --hidden 2048 --heads 32 --kv-heads 8 \
    --ffn-hidden-size 8192 --vocab-size 32000 --tied
show ls -l hf

say "What a conversion will do can be seen beforehand. Nothing is written."
show ferry convert hf megatron --tp 2 --pp 2 --dry-run

say "Into Megatron-Core's torch_dist format, for 2 tensor parallel x 2 pipeline parallel ranks."
show ferry convert hf megatron --tp 2 --pp 2
show ls -l megatron megatron/iter_0000000

say "What is this folder?"
show ferry inspect megatron

say "The same checkpoint for 4 tensor parallel ranks: resharded, without a training framework."
show ferry convert megatron megatron-tp4 --tp 4 --pp 1

say "And back to Hugging Face."
show ferry convert megatron-tp4 hf-again --to hf

say "Is it still the same model, after all that? cmp compares the files byte by byte."
for file in hf/*; do
    show cmp "$file" "hf-again/$(basename "$file")"
done

say "Bit for bit the same. All files of this demonstration are removed now."
