#!/bin/sh
# source_test.sh - what a model folder can look like, and what is said of one that is none yet.
golden=$(realpath "$(dirname "$0")/../golden")
. "$(dirname "$0")/lib.sh"
synth_model m --max-shard-size 200kB

it "a name that is not local is answered with the command that downloads it"
run convert meta-llama/Llama-3.2-1B out
exits 4
says "hf download meta-llama/Llama-3.2-1B"

it "a Git LFS pointer is called by its name"
mkdir lfs
cp m/config.json lfs
cat >lfs/model.safetensors <<POINTER
version https://git-lfs.github.com/spec/v1
oid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
size 976000
POINTER
run convert lfs out
exits 5
says "Git LFS pointer"
says "git lfs pull"

it "the cache of the Hugging Face hub is read through its links, by snapshot or by model"
cache=hub/models--someone--model
mkdir -p $cache/blobs $cache/snapshots/0abc $cache/refs
printf 0abc >$cache/refs/main
for file in m/*; do
    blob=$(sha256sum <"$file" | cut -c 1-64)
    cp "$file" "$cache/blobs/$blob"
    ln -s "../../blobs/$blob" "$cache/snapshots/0abc/${file#m/}"
done
for path in $cache/snapshots/0abc $cache; do
    run convert "$path" out --overwrite
    exits 0
    run convert out back --to hf --max-shard-size 200kB --overwrite
    same_files m back
done

it "a download that did not finish is called that"
cp -r m unfinished
rm unfinished/model-00002-of-*.safetensors
run convert unfinished out
exits 4
says "model-00002-of-"
says "did not finish"

it "an index that leaves the folder is refused"
cp -r m leaving
sed 's,"model-00001,"../m/model-00001,' m/model.safetensors.index.json >leaving/model.safetensors.index.json
run convert leaving out
exits 5
says "leaves the folder"

it "a folder without config.json says what is missing"
mkdir bare
cp m/*.safetensors bare
run convert bare out
exits 3
says "config.json"

it "one safetensors file can be looked at, but is no model"
run inspect m/model-00001-of-00003.safetensors
exits 0
prints "safetensors"
run convert m/model-00001-of-00003.safetensors out
exits 3
says "neither a Hugging Face folder"

it "expert tensor parallel ranks of a model without experts say nothing of its layout"
bridge=$golden/megatron/llama-bridge-0.3.1/checkpoint
cp -r "$bridge" dense
sed -i 's/\( tensor_model_parallel_size\): 1/\1: 2/' dense/iter_0000000/run_config.yaml
grep -q ' tensor_model_parallel_size: 2' dense/iter_0000000/run_config.yaml || is_wrong "no TP2"
run inspect dense
exits 0
prints "layout     TP2"
says_nothing

it "a Megatron checkpoint may have as many layers and experts as a Hugging Face model"
sed -i 's/num_moe_experts: null/num_moe_experts: 50000/; s/ num_layers: 4/ num_layers: 50/' dense/iter_0000000/run_config.yaml
run convert dense out --dry-run
says "stacks 4 layers; the model has 50" # this far: the numbers alone are none that cannot be
sed -i 's/ num_layers: 50/ num_layers: 201/' dense/iter_0000000/run_config.yaml
run convert dense out --dry-run
exits 5
says "no model has 201 layers"

it "other files of the folder come along to Megatron and back"
cp -r m with_tokenizer
echo '{"version": "1.0"}' >with_tokenizer/tokenizer.json
echo '{"eos_token_id": 2}' >with_tokenizer/generation_config.json
run convert with_tokenizer tokenized --tp 2
exits 0
run convert tokenized tokenized_back --to hf --max-shard-size 200kB
exits 0
same_files with_tokenizer tokenized_back

it "config.json may begin with a byte order mark, and have whole numbers written as floats"
cp -r m marked
{
    printf '\357\273\277'
    sed 's/"hidden_size": 64,/"hidden_size": 64.0,/; s/"vocab_size": 1000,/"vocab_size": 1e3,/' m/config.json
} >marked/config.json
grep -q '"hidden_size": 64.0' marked/config.json && grep -q '1e3' marked/config.json || is_wrong "$(cat m/config.json)"
run verify m marked
exits 0
says_nothing

it "fields of config.json that nobody knows come back as they were"
cp -r m extra
sed 's/^{/{"x_custom": {"a": [1, 2.50, null, "\\u00e9"]}, /' m/config.json >extra/config.json
run convert extra extra_ckpt
exits 0
run convert extra_ckpt extra_back --to hf --max-shard-size 200kB
exits 0
grep -q x_custom extra_back/config.json || is_wrong "x_custom is lost"
