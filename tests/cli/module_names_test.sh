#!/bin/sh
# module_names_test.sh - models that are part of another module, or wrapped: names have a prefix that
# no file lists. The golden files are Lightning's; its program said what they hold. More of them, with
# $FERRY_FIXTURES (default ../shared/fixtures beside the checkout).
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/lightning
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}/lightning
. "$(dirname "$0")/lib.sh"

prefixed="the model is part of another module: the prefix model. of its names is stripped (model."

# The model and its optimizer, as the program had them: is_the_run_of CHECKPOINT EXPECTED
is_the_run_of() {
    rm -rf out
    run convert "$1" out --to hf --optim --hf-config "$2"
    exits 0
    says "$prefixed"
    cmp -s out/model.safetensors "$2/model.safetensors" || run verify out "$2" --no-optim
    exits 0
    run verify out "$2"
    exits 0
    prints "identical: "
}

for case in fsdp-sharded-dp2 deepspeed-zero3-bf16-dp2; do
    it "Lightning's folder $case is its model, with the optimizer"
    is_the_run_of "$golden/$case/ckpt" "$golden/$case/expected"
    run inspect "$golden/$case/ckpt" --hf-config "$golden/$case/expected"
    exits 0
    says "$prefixed"
    prints "step 3"
done
for case in mp-sharded-dp2-tp2 deepspeed-zero2-dp2; do
    [ -d "$fixtures/$case" ] || continue
    it "Lightning's folder $case is its model, with the optimizer"
    is_the_run_of "$fixtures/$case/ckpt/epoch=1-step=3.ckpt" "$fixtures/$case/expected"
done

it "Lightning's meta.pt is not lost in silence"
lightning=$golden/fsdp-sharded-dp2
run convert "$lightning/ckpt" out2 --to hf --optim --hf-config "$lightning/expected"
exits 0
says "meta.pt is not read: Lightning's epoch, step, loops, callbacks"

# Without a config names stay as they are, so that every format gets the prefix.
for to in dcp fsdp "deepspeed --zero 0" "deepspeed --zero 1" "deepspeed --zero 2 --dp 2" "deepspeed --zero 3 --dp 3" \
    deepspeed-universal; do
    it "the prefix is found in $to"
    rm -rf named
    # shellcheck disable=SC2086 # words
    run convert -q "$lightning/ckpt" named --to $to
    exits 0
    is_the_run_of named "$lightning/expected"
done

it "from DCP to DCP each group keeps its parameters"
run convert -q "$lightning/ckpt" there --to dcp --hf-config "$lightning/expected"
exits 0
run inspect there
exits 0
prints "2 groups: matrices (lr 0.00793892626, weight decay 0.1), vectors (lr 0.00793892626, weight decay 0)"

it "the model's own prefix is another one"
run inspect "$lightning/expected"
exits 0
says_nothing

rename_tensors() {
    python3 "$here/rename_tensors.py" "$@" || is_wrong "rename_tensors.py $* fails"
}

# A Hugging Face folder with other names: renamed PATTERN NEW...
renamed() {
    rm -rf other
    cp -r "$lightning/expected" other
    chmod -R u+w other
    rm other/optimizer.safetensors
    rename_tensors other/model.safetensors "$@"
}

is_the_model() {
    run verify other "$lightning/expected" --no-optim
    exits 0
    prints "identical: 9 tensors"
}

if ! command -v python3 >/dev/null; then
    it "names in Hugging Face folders"
    skip "no python3"
    exit 0
fi

it "a prefix of any program is stripped from names in Hugging Face folders"
for prefix in model. pretrained_model. _forward_module. base_model.model. net.inner. a.b.c.d.; do
    renamed '^' "$prefix"
    is_the_model
    says "the prefix $prefix of its names is stripped (${prefix}lm_head.weight)"
done

it "wrappers are stripped from names in Hugging Face folders, wherever they are"
for pair in '^=_orig_mod.' '^=module.' '(layers\.\d+\.)=\1_checkpoint_wrapped_module.' '^=module._orig_mod.'; do
    renamed "${pair%%=*}" "${pair#*=}"
    is_the_model
    says "names have modules that wrap the model, stripped ("
done
renamed '^' 'policy._orig_mod.'
is_the_model
says "the prefix policy. of its names is stripped (policy.lm_head.weight)"

it "a value head beside the model is the one unexpected tensor"
renamed '^' pretrained_model. +v_head.summary.weight pretrained_model.model.norm.weight
run convert other out3 --to hf
exits 3
says "1 unexpected: v_head.summary.weight"
run convert other out3 --to hf --allow-unexpected v_head.summary.weight
exits 0
run verify out3 "$lightning/expected" --no-optim
exits 0

it "a parameter with and without the prefix is refused by name"
renamed '^' model. +model.norm.weight model.model.norm.weight
run convert other out4 --to hf
exits 3
says "model.norm.weight and model.model.norm.weight: two tensors for one parameter"
is_not_there out4

it "two models are refused by name"
names='lm_head.weight model.embed_tokens.weight model.norm.weight'
for name in input_layernorm post_attention_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj \
    self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj; do
    names="$names model.layers.0.$name.weight"
done
copies=
for name in $names; do copies="$copies +ref.$name policy.$name"; done
# shellcheck disable=SC2086 # words
renamed '^' policy. $copies
run convert other out5 --to hf
exits 3
says "two models of this config: "
says "policy.model.embed_tokens.weight"
says "ref.model.embed_tokens.weight"

it "a prefix that not all parameters have is none"
renamed 'model\.norm' policy.model.norm
run convert other out6 --to hf
exits 3
says "1 tensors missing, 1 unexpected: model.norm.weight"

it "a whole model beside another with a prefix is the model"
copies=
for name in $names; do copies="$copies +ref.$name $name"; done
# shellcheck disable=SC2086 # words
renamed $copies
run convert other out7 --to hf
exits 3
says "12 unexpected: "
run convert other out7 --to hf --allow-unexpected 'ref.*'
exits 0
run verify out7 "$lightning/expected" --no-optim
exits 0

it "names that wrappers make equal are refused"
renamed +_orig_mod.model.norm.weight model.norm.weight
run convert other out8 --to hf
exits 3
says "_orig_mod.model.norm.weight become the same name without the modules that wrap the model"

it "parameters of LoRA are called an adapter, in any format"
renamed '(q_proj)' '\1.base_layer' '^' base_model.model. \
    +base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight base_model.model.model.norm.weight
run convert other out9 --to hf
exits 3
says "this has a LoRA adapter that is not merged (base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight)"
says "merge it first: merge_and_unload() of peft, then save_pretrained()"
