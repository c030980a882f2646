#!/bin/sh
# convert_test.sh - round trips: every family, through layouts and formats, comes back as it was.
here=$(realpath "$(dirname "$0")")
trained=$here/../golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint
. "$(dirname "$0")/lib.sh"

there_and_back() { # MODEL OPTION...: to Megatron with these options, and back
    from=$1
    shift
    run convert "$from" there --overwrite "$@"
    exits 0
    run convert there back --to hf --overwrite
    exits 0
    same_files "$from" back
}

# The options of these layouts that divide the sizes of the family.
layouts() {
    cat <<END
--tp 1
--tp 2 --pp 2
--tp 2 --pp 2 --vpp 2
--tp 4 --make-vocab-size-divisible-by 3
--pp 4 --to torch
--tp 2 --pp 2 --to torch --transformer-impl local
--pp 2 --decoder-first-pipeline-num-layers 1 --transformer-impl local
--pp 2 --pipeline-model-parallel-layout Et|tt|t|L
END
    case $1 in
    *moe* | mixtral*)
        echo "--ep 4"
        echo "--tp 2 --ep 2 --etp 1"
        echo "--ep 2 --pp 2 --to torch"
        echo "--ep 2 --to torch --moe-grouped-gemm"
        ;;
    esac
}

# the others: convert/families_test.c
printf '%s\n' gpt2 llama mistral mixtral qwen2 qwen3 qwen3_moe >families
while read -r family; do
    it "$family comes back from every layout and format as it was"
    "$ferry" synth -q --model "$family" --vocab-size 1001 "$family" || is_wrong "synth fails"
    layouts "$family" >list
    while read -r options; do
        # shellcheck disable=SC2086 # words
        there_and_back "$family" $options
    done <list
done <families

it "synth takes the given one of two sizes that have one name in config.json"
while read -r family name size options; do
    # shellcheck disable=SC2086 # words
    "$ferry" synth -q --model "$family" --layers 1 --overwrite $options named || is_wrong "synth fails"
    grep -q "\"$name\": $size," named/config.json || is_wrong "$family $options: not $size"
done <<'LIST'
mixtral intermediate_size 32
mixtral intermediate_size 48 --moe-ffn-hidden-size 48
mixtral intermediate_size 96 --ffn-hidden-size 96
gpt2 n_head 8
gpt2 n_head 4 --heads 4
LIST

it "parameters that a map alone adds, of any sections, come back from every layout and format"
cat >mixer.json <<'JSON'
{"family": "mixer", "extends": "llama", "model_type": "mixer", "architecture": "Mixer",
 "sizes": {"H": "num_attention_heads", "z": "2 * h", "n": "2 * d", "m": "2*z + 2*n + H", "u": "g*(2*r + 2)*d"},
 "parameters": [
  {"name": "decoder.layers.{l}.mixer.in_proj.weight", "shape": "m h", "split": 0, "linear": true,
   "sections": {"z": "z", "x": "z", "B": "n", "C": "n", "dt": "H"}},
  {"name": "decoder.layers.{l}.mixer.out_proj.weight", "shape": "h z", "split": 1, "sections": {"a": "h", "b": "h"}},
  {"name": "decoder.layers.{l}.mixer.qgkv.weight", "shape": "u h", "split": 0, "repeat": "g", "shared": ["key", "value"],
   "sections": {"query": "r*d", "gate": "r*d", "key": "d", "value": "d"}},
  {"name": "decoder.layers.{l}.mixer.norm.weight", "shape": "h", "stacks": []}],
 "tensors": [
  {"megatron": "decoder.layers.{l}.mixer.in_proj.weight", "shape": "m h", "hf": "{p}layers.{l}.mixer.in.weight"},
  {"megatron": "decoder.layers.{l}.mixer.out_proj.weight", "shape": "h z", "hf": "{p}layers.{l}.mixer.out.weight"},
  {"megatron": "decoder.layers.{l}.mixer.qgkv.weight", "shape": "u h", "hf": "{p}layers.{l}.mixer.qgkv.weight"},
  {"megatron": "decoder.layers.{l}.mixer.norm.weight", "shape": "h", "hf": "{p}layers.{l}.mixer.norm.weight"}]}
JSON
"$ferry" synth -q --model mixer --model-map mixer.json --vocab-size 1001 mixed || is_wrong "synth fails"
for options in "--tp 1" "--tp 2 --pp 2" "--tp 4 --to torch" "--tp 8 --to torch --transformer-impl local"; do
    # shellcheck disable=SC2086 # words
    run convert mixed there --overwrite --model-map mixer.json $options
    exits 0
    run convert there step --overwrite --model-map mixer.json --to torch_dist --tp 4 --pp 1
    exits 0
    run convert step back --to hf --overwrite --model-map mixer.json
    exits 0
    same_files mixed back
done
run models --show mixer --model-map mixer.json
prints "sections: g times query r*d, gate r*d, key d shared, value d shared"

it "a checkpoint brings the map that it needs along, and a folder of maps is found"
run convert mixed there --overwrite --model-map mixer.json --tp 2
exits 0
run convert there step --overwrite --to torch --tp 1
exits 0
run convert step back --to hf --overwrite
exits 0
same_files mixed back
sed 's/{"family": "mixer",/& "about": "another",/' mixer.json >other.json
run convert there back --to hf --overwrite --model-map other.json
exits 0
says "the model map mixer differs from the one in there/"
run convert mixed bad --overwrite --model-map mixer.json
sed -i 's/"h z"/"h zzz"/' bad/*/ferry-hf/ferry-model.json
run convert bad back2 --to hf
exits 5
says "ferry-model.json: model map mixer: "
mkdir maps && cp mixer.json maps/
FERRY_MODELS=maps && export FERRY_MODELS
run convert mixed there --overwrite --tp 2
exits 0
run models --show mixer
exits 0
unset FERRY_MODELS
run convert mixed there --overwrite --tp 2
exits 3

it "a first map is made of the nearest, and checked"
cp -r mixed novel
sed 's/"model_type": "mixer"/"model_type": "novel", "novel_scale": 0.5, "novel-Mode": "x", "novel_list": [1]/' \
    mixed/config.json >novel/config.json
run convert novel there --overwrite
exits 3
says "the nearest is llama, which matches"
says "\`ferry models --scaffold novel\` prints a first map"
run models --scaffold novel
exits 0
says "note: novel_list [1] of config.json: read it by an expression"
cp "$stdout" novel.json
run models --check novel.json novel
exits 3
prints "unknown fields: config.json: novel_list [1]"
sed '/"family"/a "inert": {"novel_list": "*"},' novel.json >named.json
run models --check named.json novel
exits 0
run convert novel there --overwrite --model-map named.json --tp 2
exits 0
run convert there back --to hf --overwrite
exits 0
same_files novel back
run generate novel --model-map named.json --prompt-ids 1,2
exits 3
says "novel_scale 0.5: no op computes it yet"
sed 's/mixer.norm.weight", "shape": "h"/mixer.norm.weight", "shape": "V"/' mixer.json >wrong.json
run models --check wrong.json mixed
exits 3
run models --check wrong.json
exits 2
run models --scaffold nosuch
exits 4

it "resharding step by step is the same as going there at once"
synth_model m --layers 8
run convert m a --tp 2 --pp 4
run convert a b --tp 8 --pp 1 --make-vocab-size-divisible-by 128
exits 0
run convert b c --tp 1 --pp 2 --to torch
exits 0
run convert c d --tp 4 --pp 1 --to torch_dist
exits 0
run convert d back --to hf --overwrite
exits 0
same_files m back

it "all dtypes, tied or not, in one file or many, come back as they were"
for dtype in bf16 float16 float32 float64; do
    for more in --tied --untied "--max-shard-size 100kB"; do
        # shellcheck disable=SC2086 # words
        synth_model "m_$dtype" --dtype $dtype --overwrite $more
        run convert "m_$dtype" there --tp 2 --overwrite
        exits 0
        run convert there back --to hf --overwrite --max-shard-size 100kB
        exits 0
        run convert back again --tp 2 --overwrite
        exits 0
        same_files there again
    done
done

it "bytes depend on the source and the options only: not on threads, memory, place or time"
run convert m one --tp 2 --threads 1 --max-memory 48MiB
exits 0
run convert m other --tp 2 --threads 7 --direct-io --no-fsync
exits 0
same_files one other

it "a lossy cast is counted, and a cast that loses nothing goes back exactly"
synth_model f32 --dtype float32
run convert f32 narrow --torch-dtype bfloat16
exits 0
says "of them changed in value"
run convert m wide --torch-dtype float32
exits 0
run convert wide back --to hf --torch-dtype bfloat16 --overwrite
exits 0
same_files m back

it "padded rows of the vocabulary are cut on export, and the plan says how many"
run convert m padded --make-vocab-size-divisible-by 1024
exits 0
run convert padded x --to hf --dry-run
exits 0
says "24 padding rows removed"

it "the plan says what becomes of the optimizer and of the training state"
run convert "$trained" out --tp 2 --dry-run
exits 0
says "  optimizer: distributed, fully_reshardable (42.8 kB)"
says "optim    param, exp_avg, exp_avg_sq of 9 parameters in F32, as fully_reshardable"
says "training step 2, iteration 10, 40 samples"
says "         schedule: constant, lr 0.01 to 0.001, decay over 400, at sample 40"
says "         copied: progress, optimizer, schedule, parameter groups"
if grep -q "kB, left out" "$stderr"; then is_wrong "$(grep "left out" "$stderr")"; fi
run convert "$trained" out --optim-format fully_sharded_model_space --torch-dtype float16 --dry-run
says ", as fully_sharded_model_space; 9 weights are cast from their masters"
says "lossy    9 tensors are cast to F16"
run convert "$trained" out --no-optim --dry-run
exits 0
says "  optimizer: distributed, fully_reshardable (42.8 kB, left out)"
says "lossy    the optimizer is left out"
if grep -qE "^(optim|training) " "$stderr"; then is_wrong "a training state that is not written: $(cat "$stderr")"; fi

it "so it says of a Hugging Face folder, which has no place for random number states"
run convert "$trained" trained-hf --to hf --optim --hf-config "$(dirname "$trained")/expected"
exits 0
says "optim    param, exp_avg, exp_avg_sq of 9 parameters in F32, in optimizer.safetensors"
says "         translated: progress, optimizer, schedule, parameter groups; dropped: random number states (a Hugging Face folder has no place for it)"
says "lossy    dropped: random number states (a Hugging Face folder has no place for it)"
run convert trained-hf out --dry-run
says "translated: progress, optimizer, schedule, parameter groups"
says "lossy    nothing"
run convert trained-hf out --to hf --optim --dry-run
says "copied: progress, optimizer, schedule, parameter groups"
says "lossy    nothing"

it "masters that are made, and states that are widened, are counted"
if command -v python3 >/dev/null; then
    python3 "$here/strip_tensors.py" trained-hf/optimizer.safetensors 'fp32\.' || is_wrong "strip_tensors.py"
    run convert trained-hf made --tp 2
    exits 0
    says "optim    param, exp_avg, exp_avg_sq of 9 parameters in F32, as fully_reshardable; 9 masters are made from their weights"
    says " elements to F32; 0 of them changed in value"
    python3 - made/iter_0000010/ferry.json 2>checked <<'SCRIPT' || is_wrong "$(cat checked)"
import json, sys
record = json.load(open(sys.argv[1]))
assert record["lossy"] == [], record["lossy"]
assert record["source"]["optimizer"]["kind"] == "in optimizer.safetensors", record["source"]
o = record["target"]["optimizer"]
assert o["format"] == "fully_reshardable" and (o["made_masters"], o["widened_states"]) == (9, 0), o
assert o["states"]["param"] == {"parameters": 9, "bytes": 40896, "dtypes": ["F32"]}, o
assert record["target"]["training"]["step"] == 2, record["target"]["training"]
assert record["target"]["training_parts"]["schedule"] == {"fate": "translated", "why": None}, record["target"]
SCRIPT
else
    skip "no python3"
fi

it "a tokenizer inside an iteration goes along to Megatron, byte for byte"
synth_model with-tokenizer --to torch_dist
tokenizer=with-tokenizer/iter_0000000/tokenizer
mkdir $tokenizer
run convert with-tokenizer untold --to dcp
exits 0
! grep tokenizer "$stderr" || is_wrong "an empty folder is named"
printf '{"model": 1}' >$tokenizer/tokenizer.json
printf 'a\000b' >$tokenizer/any.tiktoken
run convert with-tokenizer tokenizer-1 --to torch --tp 2
exits 0
! grep tokenizer: "$stderr" || is_wrong "named, though it goes along"
same_files $tokenizer tokenizer-1/iter_0000000/tokenizer
run convert tokenizer-1 tokenizer-2 --to torch_dist
exits 0
same_files $tokenizer tokenizer-2/iter_0000000/tokenizer
run convert with-tokenizer tokenizer-1 --to torch --tp 2 --overwrite
exits 0
same_files $tokenizer tokenizer-1/iter_0000000/tokenizer

it "links and folders in it stay behind, and are named"
mkdir $tokenizer/templates
ln -s tokenizer.json $tokenizer/linked.json
touch $tokenizer/.hidden
run convert with-tokenizer tokenizer-3 --tp 2
exits 0
says "/tokenizer: not copied: .hidden (a hidden file), linked.json (a link), templates (a folder)"
same_files tokenizer-2/iter_0000000/tokenizer tokenizer-3/iter_0000000/tokenizer
rm -r $tokenizer/.hidden $tokenizer/linked.json $tokenizer/templates

it "its files lie beside the weights of a Hugging Face folder, but over none of --hf-config"
echo '{}' >$tokenizer/config.json
echo '{}' >$tokenizer/special_tokens_map.json
run convert with-tokenizer tokenizer-hf --to hf
exits 0
says "/tokenizer: not copied: any.tiktoken (not a tokenizer's file by its name), config.json (not a tokenizer's file by its name)"
cmp $tokenizer/tokenizer.json tokenizer-hf/tokenizer.json || is_wrong "tokenizer.json"
is_there tokenizer-hf/special_tokens_map.json
is_not_there tokenizer-hf/any.tiktoken tokenizer-hf/tokenizer
grep -q model_type tokenizer-hf/config.json || is_wrong "config.json"
mkdir given-config
cp tokenizer-hf/config.json tokenizer-hf/special_tokens_map.json given-config
echo '{"model": 2}' >given-config/tokenizer.json
run convert with-tokenizer tokenizer-hf2 --to hf --hf-config given-config
exits 0
says ", tokenizer.json (given-config/tokenizer.json is taken)"
! grep special_tokens_map "$stderr" || is_wrong "named, though it is the same"
cmp given-config/tokenizer.json tokenizer-hf2/tokenizer.json || is_wrong "tokenizer.json"

it "it is named where the format has no place for it"
for format in dcp fsdp; do
    run convert with-tokenizer without-tokenizer-$format --to $format
    exits 0
    says "/tokenizer is not carried: copy its files"
done
