#!/bin/sh
# unknown_json_test.sh - fields of config.json that nothing here reads: they travel, and are refused where something is computed.
. "$(dirname "$0")/lib.sh"

# with_field MODEL FIELD VALUE - a copy of `plain` whose config.json has this field, too.
with_field() {
    cp -r plain "$1"
    sed -i "1s/{/{\"$2\": $3,/" "$1/config.json"
}

synth_model plain
with_field scaled logit_scale 0.5
with_field other logit_scale 0.25
field="config.json: logit_scale 0.5"
line="$field: it may change what the model computes"
refused="unknown fields may change what the model computes (--allow-config FIELD computes without them): $field"

it "an unknown field of config.json does not stop a conversion, which names it and carries it"
run convert scaled megatron --tp 2
exits 0
says "unknown  $line"
run convert megatron torch --to torch --pp 2
exits 0
says "unknown  $line"
run convert torch back --to hf
exits 0
says "unknown  $line"
same_files scaled back
run convert scaled cast --to hf --torch-dtype float32
exits 0
grep -q logit_scale cast/config.json || is_wrong "a cast drops the field: $(cat cast/config.json)"

it "inspect and --json name it"
for model in scaled megatron; do
    run inspect $model
    prints "unknown    $line"
    run inspect $model --json --allow-config logit_scale
    tr -d ' \n' <"$stdout" | grep -qF '"unknown":[{"file":"config.json","name":"logit_scale","value":"0.5","allowed":true,"other":null,"other_value":null}]' ||
        is_wrong "$ran: $(cat "$stdout")"
done

it "what computes is refused, unless --allow-config names it"
for model in scaled megatron; do
    run generate $model --prompt-ids 1,2,3 --max-new-tokens 1
    exits 3
    says "$model: $refused"
    run generate $model --prompt-ids 1,2,3 --max-new-tokens 1 --allow-config 'logit_*'
    exits 0
done
run verify scaled megatron --forward
exits 3
says "$refused"
run verify scaled megatron --forward --allow-config logit_scale
exits 0

it "a field of one side alone is no FIELD that is not there"
run verify scaled plain --allow-config logit_scale --ignore-config logit_scale
exits 0
! grep -q allow-config "$stderr" || is_wrong "$ran: $(cat "$stderr")"

it "verify compares it where both have a config.json"
run verify scaled megatron
exits 0
says "note: unknown fields in A and B may change what the model computes: $field"
run verify scaled other
exits 1
grep -q "^logit_scale  *0.5  *0.25$" "$stdout" || is_wrong "$ran: $(cat "$stdout")"
run verify plain scaled
exits 1
grep -q "^logit_scale  *not given  *0.5$" "$stdout" || is_wrong "$ran: $(cat "$stdout")"
run verify scaled other --ignore-config logit_scale
exits 0

it "it is unsaid where the other side has args alone"
run convert scaled trained --to torch --iteration 5
rm -r trained/iter_0000005/ferry-hf
run verify scaled trained
exits 0
says "note: the configs differ in logit_scale: 0.5 in A, not given in B; it is not given on one side, so it is not compared"

it "digests: config has it, config.args does not"
for model in scaled plain megatron; do
    run digest $model
    exits 0
    grep '^config\.args' "$stdout" >$model.args
    grep '^config	' "$stdout" >$model.config || is_wrong "$ran: no config"
done
cmp -s scaled.args plain.args || is_wrong "config.args differ"
cmp -s scaled.config megatron.config || is_wrong "config differs between formats"
! cmp -s scaled.config plain.config || is_wrong "config does not know the field"

it "lists and long values are compared whole"
with_field early layer_types '["sliding_attention", "full_attention"]'
with_field late layer_types '["full_attention", "sliding_attention"]'
run verify early late
exits 1
says "layer_types"
ones=$(yes 1, | head -n 200 | tr -d '\n')
with_field long_1 zz "[${ones}1]"
with_field long_2 zz "[${ones}2]"
run verify long_1 long_2
exits 1
run digest long_1
grep '^config	' "$stdout" >long_1.config
run digest long_2
! grep -qxFf long_1.config "$stdout" || is_wrong "digests of two configs are equal"

it "more fields than any config has are refused"
cp -r plain many
seq 10001 | sed 's/.*/"f&": 1,/' | tr -d '\n' >fields
sed -i "1s/{/{$(cat fields)/" many/config.json
run inspect many
exits 5
says "many: config.json: 10001 unknown fields"
