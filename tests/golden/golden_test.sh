#!/bin/sh
# golden_test.sh FERRY - what other programs wrote comes out as the model that it holds, byte by byte,
# and still does after a detour. README.md beside it says what is there.
golden=$(realpath "$(dirname "$0")")
. "$(dirname "$0")/../cli/lib.sh"

# The folder, under Hugging Face names, of what a case holds.
expected_of() {
    if [ -d "$1/expected" ]; then
        echo "$1/expected"
    else
        echo "$1/$(sed -n 's/.*"expected": "\(.*\)",/\1/p' "$1/$(basename "$1").json")"
    fi
}

same_model() { # FOLDER EXPECTED
    for file in config.json model.safetensors; do
        cmp -s "$1/$file" "$2/$file" || is_wrong "$1/$file is not $2/$file"
    done
}

back_to_hf() { # CHECKPOINT EXPECTED
    run convert "$1" out --to hf --no-optim --overwrite --hf-config "$2"
    exits 0
    same_model out "$2"
}

for case in "$golden"/*/*/checkpoint; do
    case=$(dirname "$case")
    expected=$(expected_of "$case")
    it "$(basename "$case") is what it should be, config and all"
    # args have no place for these two of latent attention's yarn and of gpt-oss's
    run verify "$case/checkpoint" "$expected" --ignore-config rope_original_max_position \
        --ignore-config position_embedding_type
    exits 0
    prints "identical: "

    it "$(basename "$case") is exported"
    back_to_hf "$case/checkpoint" "$expected"

    it "$(basename "$case") is exported after it was resharded, in either format"
    run convert "$case/checkpoint" dist --to torch_dist --no-optim --overwrite --tp 2 --pp 1
    exits 0
    back_to_hf dist "$expected"
    run convert dist legacy --to torch --overwrite --tp 1 --ep 1
    exits 0
    back_to_hf legacy "$expected"
done

for model in "$golden"/megatron/models/*; do
    it "$(basename "$model") of transformers comes back from either format"
    run convert "$model" dist --overwrite
    exits 0
    run convert dist out --to hf --overwrite
    exits 0
    same_model out "$model"
    run convert "$model" legacy --to torch --overwrite
    exits 0
    run convert legacy out --to hf --overwrite
    exits 0
    same_model out "$model"
done
