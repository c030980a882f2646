#!/bin/sh
# packed_experts_test.sh - experts of transformers 5, packed in tensors of three dimensions: read in
# every format. The golden files are by transformers and torch; expected/ has the published names.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/packed
. "$(dirname "$0")/lib.sh"

for case in mixtral qwen3-moe; do
    ckpt=$golden/$case/ckpt expected=$golden/$case/expected
    it "$case: what torch saved is what transformers saved, with the moments"
    run verify "$ckpt" "$expected" --hf-config "$expected"
    exits 0
    prints "identical: "

    it "$case: a Hugging Face folder gets the names that were published"
    rm -rf out
    run convert "$golden/$case/hf" out --to hf --no-optim
    exits 0
    run verify out "$expected" --no-optim
    exits 0
    grep -qF mlp.experts.gate_up_proj out/model.safetensors || is_wrong "no packed names"
    rm -rf out
    run convert "$ckpt" out --to hf --optim --hf-config "$expected"
    exits 0
    run verify out "$expected" --no-optim
    exits 0
    prints "identical: "
    grep -qF .experts.2. out/model.safetensors || is_wrong "no published names"
    if grep -qF gate_up_proj out/model.safetensors; then is_wrong "packed names"; fi

    it "$case: moments and groups come back from ranks of experts"
    run convert "$ckpt" dist --to torch_dist --tp 2 --ep 3 --overwrite --hf-config "$expected"
    exits 0
    run verify dist "$expected"
    exits 0
    prints "identical: "

    for to in "dcp --dp 2" fsdp "deepspeed --zero 0" "deepspeed --zero 2 --dp 2" "deepspeed --zero 3 --dp 3" \
        deepspeed-universal; do
        it "$case: $to keeps the names of its source, and the groups"
        rm -rf out
        # shellcheck disable=SC2086 # words
        run convert "$ckpt" out --to $to --hf-config "$expected"
        exits 0
        says "2 groups: matrices (lr 0.01, weight decay 0.1), vectors (lr 0.01, weight decay 0)"
        run verify out "$expected" --hf-config "$expected"
        exits 0
        prints "identical: "
        grep -rqF mlp.experts.gate_up_proj out || is_wrong "$to: no packed names"
        if grep -rqF experts.0. out --exclude=ferry.json; then is_wrong "$to: published names"; fi
    done
done

it "from published names other formats get these, with the groups"
run convert "$golden/mixtral/ckpt" there --to hf --optim --hf-config "$golden/mixtral/expected"
exits 0
run verify there "$golden/mixtral/expected"
exits 0
run convert there there-dcp --to dcp
exits 0
run verify there-dcp "$golden/mixtral/expected"
exits 0
grep -qF block_sparse_moe.experts.0.w1.weight there-dcp/.metadata || is_wrong "other names"

rename_tensors() {
    python3 "$here/rename_tensors.py" "$@" || is_wrong "rename_tensors.py $* fails"
}

copy_of() {
    rm -rf other
    cp -r "$golden/$1/hf" other
    chmod -R u+w other
}

if ! command -v python3 >/dev/null; then
    it "packed experts that do not fit"
    skip "no python3"
    exit 0
fi

it "an expert that is packed and alone is refused by name"
copy_of mixtral
rename_tensors other/model.safetensors +model.layers.1.block_sparse_moe.experts.1.w2.weight \
    model.layers.1.mlp.experts.down_proj
run convert other out2 --to hf
exits 3
says "model.layers.1.block_sparse_moe.experts.1.w2.weight"
copy_of mixtral
rename_tensors other/model.safetensors +model.layers.1.block_sparse_moe.gate.weight model.layers.1.mlp.gate.weight
run convert other out2 --to hf
exits 3
says "1 unexpected: model.layers.1.mlp.gate.weight"

it "packed experts of another shape are refused"
copy_of qwen3-moe
rename_tensors other/model.safetensors 'layers.0.mlp.experts.down_proj' x 'layers.0.mlp.experts.gate_up_proj' \
    layers.0.mlp.experts.down_proj 'model.x' model.layers.0.mlp.experts.gate_up_proj
run convert other out3 --to hf
exits 3
says "has shape [3, 16, 12], expected [3, 24, 16] by config.json"

it "a missing packed tensor is missing by its published names"
copy_of qwen3-moe
rename_tensors other/model.safetensors 'layers.0.mlp.experts.down_proj' layers.0.mlp.experts.other
run convert other out4 --to hf
exits 3
says "3 tensors missing, 1 unexpected: model.layers.0.mlp.experts.0.down_proj.weight, ..."
