#!/bin/sh
# demo.sh FERRY - shows a model on its way into Megatron-Core, to another layout, and back, and proves it equal.
set -eu
exec 2>&1 # in the order in which things happen
ferry=$(realpath "$1")
needed_mb=3600

say() {
    printf '\n# %s\n' "$@"
}

# Prints a line of shell, runs it, and says how long it took.
show() {
    printf '$ %s\n' "$1"
    start=$(date +%s%N)
    eval "$1"
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
show 'ferry synth hf --model llama --layers 6 --hidden 2048 --heads 32 --kv-heads 8 --ffn-hidden-size 8192 \
    --vocab-size 32000 --tied'

say "What a conversion to Megatron-Core's torch_dist format will do, for 2 tensor parallel x 2 pipeline
# parallel ranks, can be seen beforehand. Nothing is written."
show 'ferry convert hf megatron --tp 2 --pp 2 --dry-run'

say "Now it is written."
show 'ferry convert hf megatron --tp 2 --pp 2 -q'
show 'ls -l megatron/iter_0000000'

say "What is this folder?"
show 'ferry inspect megatron'

say "The same checkpoint for 4 tensor parallel ranks: resharded, without a training framework."
show 'ferry convert megatron megatron-tp4 --tp 4 --pp 1'

say "Is it still the model that we began with? Every element of both is compared."
show 'ferry verify hf megatron-tp4'

say "And back to Hugging Face."
show 'ferry convert megatron-tp4 hf-again --to hf'

say "Digests depend on no format and no layout: a list that is made once can be checked anywhere."
show 'ferry digest hf > model.digest'
show 'tail -n 4 model.digest'
show 'ferry digest hf-again --check model.digest'

say "The same model, bit for bit. All files of this demonstration are removed now."
