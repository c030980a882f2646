#!/bin/sh
# json_test.sh - what --json prints: one object whatever happens, and the fields that JSON.md names.
root=$(realpath "$(dirname "$0")/../..")
golden=$root/tests/golden
. "$(dirname "$0")/lib.sh"
if ! command -v python3 >/dev/null; then
    it "--json prints what JSON.md says"
    skip "no python3"
    exit
fi

# answers CODE COMMAND ARGUMENT... - its answer is one object with this exit code; it is kept.
answers() {
    want_code=$1
    shift
    run "$@" --json
    exits "$want_code"
    mkdir -p "answers/$1"
    cp "$stdout" "answers/$1/$(find "answers/$1" -type f | wc -l)"
    checked=$(python3 "$root/tests/cli/json_check.py" answer "$stdout" "$stderr" "$1" "$want_code" 2>&1) ||
        is_wrong "$ran: $(printf '%s\n' "$checked" | tail -n 3)"
}

# poke FILE OFFSET-FROM-END OCTAL - overwrites bytes.
poke() {
    # shellcheck disable=SC2059 # the bytes are the format
    printf "$3" | dd of="$1" bs=1 seek=$(($(wc -c <"$1") - $2)) conv=notrunc 2>/dev/null
}

synth_model m
cp -r "$golden/megatron/llama-bridge-0.3.1/checkpoint" unknown && chmod -R u+w unknown # with an unknown field
sed -i 's/^  qk_l2_norm: false/  qk_l2_norm: true/' unknown/iter_0000000/run_config.yaml
hf=$golden/hf
trained=$golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint

it "convert answers, planned, done, done before, interrupted and refused"
answers 0 convert m out --tp 2 --dry-run
answers 0 convert m out --tp 2
answers 7 convert m out --tp 2
answers 0 convert m out --tp 2 --resume
answers 0 convert m out --pp 2 --overwrite
answers 0 convert "$hf/llama2" stepped --iteration 5
answers 0 convert stepped back --to hf
answers 0 convert "$trained" trained-hf --to hf --optim --hf-config "$(dirname "$trained")/expected"
answers 0 convert "$trained" none --no-optim --dry-run
answers 0 convert trained-hf zero --to deepspeed --zero 2 --dp 2
answers 0 convert zero unsharded --to dcp --dp 3
answers 3 convert unknown none --to hf
answers 2 convert m --no-such-option
answers 2 convert m out --tp
answers 3 convert m three --tp 3
answers 4 convert nosuch three
sed 's/"num_hidden_layers": 4/"num_hidden_layers": 5/' m/config.json >config && mkdir deeper && cp m/*.safetensors deeper &&
    mv config deeper/config.json
answers 3 convert deeper three
python3 "$root/tests/cli/json_check.py" missing "$stdout" || is_wrong "missing tensors are not listed"
answers 2 convert m three --pp 2 --decoder-first-pipeline-num-layers 4 --make-vocab-size-divisible-by 2000000000
grep -q 'pipeline stage 1 of 0 to 1 has no layers' "$stdout" || is_wrong "the notes of a plan that fails are not answered"
synth_model huge --dtype float32
poke huge/model.safetensors 4 '\000\044\164\111' # 1e6
answers 10 convert huge half --torch-dtype float16
answers 0 convert huge half --torch-dtype float16 --dry-run
answers 0 convert huge half --torch-dtype float16 --allow-overflow --restart
answers 6 convert m three --max-memory 100kB

it "the answer of an interrupted run is one object, too"
if command -v timeout >/dev/null; then
    synth_model large --layers 16 --hidden 1024 --sparse
    run_program timeout -s INT 0.3 "$ferry" convert large slow --json --threads 1 --progress none
    if [ "$code" -ne 124 ] || [ ! -s "$stdout" ] || grep -q '"exit_code": 0' "$stdout"; then
        skip "it was too fast or too slow to be interrupted"
    else
        python3 "$root/tests/cli/json_check.py" answer "$stdout" "$stderr" convert 130 >checked 2>&1 || is_wrong "$(cat checked)"
    fi
fi

it "verify answers"
answers 0 verify m out
synth_model other --seed 2 --tied
answers 1 verify m other
answers 1 verify m huge --atol 1 --rtol 0.5 --max-ulp 0
answers 1 verify m huge --max-ulp 3
synth_model broad --hidden 128 --heads 2 --ffn-hidden-size 128
run convert broad coded --to hf --export-weight-dtype mxfp8
answers 1 verify broad coded
poke m/model.safetensors 2 '\000\177'
cp -r out turned
answers 1 verify m turned
sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 77.0/' m/config.json
answers 1 verify m turned
answers 0 verify "$trained" "$trained" --no-optim
cp -r trained-hf later
sed -i 's/"num_steps": 40/"num_steps": 60/' later/training.json
answers 1 verify trained-hf later
answers 0 verify trained-hf later --ignore-training '*'
answers 0 verify unknown unknown
answers 2 verify m out --atol nonsense
answers 4 verify m nosuch

it "verify --forward answers"
cp -r "$hf/llama2" x && chmod -R u+w x
poke x/model.safetensors 20000 '\000\074'
answers 0 verify "$hf/llama2" "$hf/llama2/logits.safetensors" --forward --threads 1
answers 1 verify "$hf/llama2" x --forward --threads 1

it "verify --train-steps answers"
"$ferry" convert -q "$hf/llama2" llama2 --tp 2 || is_wrong "convert"
answers 0 verify "$hf/llama2" llama2 --train-steps 2 --threads 1
answers 1 verify "$hf/llama2" x --train-steps 2 --threads 1
answers 2 verify "$hf/llama2" x --train-steps 0

it "digest answers"
answers 0 digest out
cp "$stdout" list
answers 0 digest out --check list
answers 1 digest other --check list
answers 0 digest "$trained"
answers 3 digest deeper
answers 5 digest out --check "$hf/llama2/model.safetensors"

it "inspect and print answer"
answers 0 inspect out --tensors '*norm*'
answers 0 inspect m --tensors '*norm*' --stored
answers 0 inspect "$trained"
answers 0 convert trained-hf wide --to hf --optim --torch-dtype float32
python3 "$root/tests/cli/strip_tensors.py" wide/optimizer.safetensors 'fp32\.' || is_wrong "strip_tensors.py"
answers 0 inspect wide --tensors '*'
answers 0 inspect zero
answers 0 inspect unknown
answers 0 inspect out --stored --tensors '*fc1*' --args --stats
answers 0 inspect m/model.safetensors
answers 4 inspect nosuch
answers 0 print m 'lm_head.weight[0:2,0:2]' 'model.norm.weight'
answers 2 print m 'lm_head.weight[0:1]' nosuch
answers 2 print m 'lm_head.weight[0:1]' 'model.norm.weight[7777]'

it "models and synth answer"
answers 0 models
answers 0 models -q --show gpt2
answers 0 models --show qwen3_moe
answers 0 models --show qwen3_vl
cat >mixer.json <<'JSON'
{"family": "mixer", "extends": "llama", "model_type": "mixer", "architecture": "Mixer",
 "config": [
  {"megatron": "softmax_scale", "hf": "scale", "when": "hf.scale", "else": null},
  {"hf": "gated", "write": "gated_linear_unit"}],
 "parameters": [
  {"name": "decoder.layers.{l}.mixer.weight", "shape": "g*s h", "split": 0, "repeat": "g", "shared": "key",
   "sections": {"query": "s - d", "key": "d"}, "sections_when": "gated_linear_unit"}]}
JSON
answers 0 models --show mixer --model-map mixer.json
answers 3 models --show nosuch
answers 0 synth s --model llama
answers 0 synth s --model llama --overwrite
answers 0 synth s-zero --model llama --to deepspeed --dp 2 --optim
answers 7 synth s --model llama
answers 3 synth s2 --model nosuch

it "the commands that compute answer"
printf '\1\0\2\0\3\0\4\0\5\0\6\0' >ids.u16
set -- forward "$hf/llama2" --input-ids "$hf/llama2/logits.safetensors" --out
answers 0 "$@" o1 --hidden --tp 2
answers 7 "$@" o1
answers 0 "$@" o2 --dry-run
answers 2 forward "$hf/llama2"
answers 0 generate "$hf/llama2" --prompt-ids '1,2,3;4,5' --max-new-tokens 3
answers 0 generate "$hf/llama2" --prompt-ids 1,2,3 --max-new-tokens 1
answers 0 generate "$hf/llama2" --prompt-ids 1,2,3 --dry-run
answers 2 generate "$hf/llama2" --prompt-ids 1,99999
answers 0 perplexity "$hf/llama2" --data ids.u16 --data-dtype u16 --pp 2
answers 0 perplexity "$hf/llama2" --data ids.u16 --data-dtype u16 --dry-run
answers 4 perplexity "$hf/llama2" --data nosuch
answers 0 bench "$hf/llama2" --seq 8 --repeats 1
answers 0 bench "$hf/llama2" --seq 8 --repeats 1 --decode
answers 2 bench "$hf/llama2" --repeats 0
echo '{"ids": [1, 2], "loss_mask": [0, 1]}' >ids.jsonl
answers 0 data ids.jsonl tokens
answers 0 data ids.jsonl ended --append-eod --hf-config "$hf/llama2"
answers 7 data ids.jsonl tokens

it "train answers, planned and done"
set -- train --load "$hf/llama2" --mock-data --seq-length 8 --micro-batch-size 2 --train-iters 2 --lr 1e-3 --threads 1 \
    --device cpu
answers 0 "$@"
answers 0 "$@" --dry-run --async-save --bf16 --save trained --save-hf trained-folders --save-interval 2
answers 0 "$@" --dry-run
answers 0 "$@" --dry-run --pp 2 --dp 2
answers 2 "$@" --cp 2

it "the version answers, and doctor, well or not"
answers 0 version
answers 0 doctor
export RANK=2 WORLD_SIZE=1
answers 3 doctor
unset RANK WORLD_SIZE

it "help with --json is help"
run convert --json --help
exits 0
prints "usage: ferry convert"

for command in convert verify digest inspect print models synth forward generate perplexity bench data train doctor version; do
    it "JSON.md names what $command prints, and nothing else"
    python3 "$root/tests/cli/json_check.py" page "$root/JSON.md" "$command" "answers/$command" >checked 2>&1 ||
        is_wrong "$(cat checked)"
done

it "JSON.md names the fields of progress lines"
run synth shown --model llama --progress json
exits 0
run synth shown --model llama --progress json --overwrite
cp "$stderr" lines
run train --load shown --mock-data --seq-length 8 --micro-batch-size 1 --train-iters 2 --lr 1e-3 --progress json
exits 0
cat "$stderr" >>lines
python3 "$root/tests/cli/json_check.py" progress "$root/JSON.md" lines >checked 2>&1 || is_wrong "$(cat checked)"
