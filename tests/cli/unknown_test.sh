#!/bin/sh
# unknown_test.sh - fields of a config that nothing here reads: they are named, and refused where they count.
golden=$(cd "$(dirname "$0")/../golden/megatron" && pwd)
. "$(dirname "$0")/lib.sh"

# A checkpoint of Megatron-Bridge, and the same with a norm of queries and keys that no model map has.
cp -r "$golden/llama-bridge-0.3.1/checkpoint" plain
cp -r plain normed
chmod -R u+w plain normed
sed -i 's/^  qk_l2_norm: false/  qk_l2_norm: true/' normed/iter_0000000/run_config.yaml
refused="normed: unknown fields may change what the model computes"
field="run_config.yaml: qk_l2_norm true"

it "a model whose run_config.yaml has an unknown field is not computed, unless --allow-config names it"
run bench normed --seq 4 --repeats 1
exits 3
says "$refused (--allow-config FIELD computes without them): $field"
for glob in qk_l2_norm 'qk_*'; do
    run bench normed --seq 4 --repeats 1 --allow-config "$glob"
    exits 0
done
run bench normed --seq 4 --repeats 1 --allow-config qk_layernorm
exits 3
run generate normed --prompt-ids 1,2,3 --max-new-tokens 1 --allow-config=qk_l2_norm
exits 0

it "nor is it exported, but for --allow-config"
run convert normed out --to hf
exits 3
says "$refused (--allow-config FIELD exports without them): $field"
is_not_there out
run convert normed out --to hf --allow-config other --allow-config qk_l2_norm
exits 0
says "note: --allow-config other: matches no unknown field"
run verify plain out
exits 0
prints identical

it "nor with the config.json of another model"
run convert normed again --to hf --hf-config out
exits 3
run convert normed again --to hf --hf-config out --allow-config qk_l2_norm
exits 0

it "between formats of Megatron it goes on"
run convert normed resharded --tp 2
exits 0

it "a field of --allow-config that is not there is noted, by every command that reads one checkpoint"
for command in inspect digest; do
    run $command plain --allow-config foo
    exits 0
    says "note: --allow-config foo: matches no unknown field"
    run $command normed --allow-config qk_l2_norm
    exits 0
    ! grep -q allow-config "$stderr" || is_wrong "$ran: $(cat "$stderr")"
done

it "unknown fields are named by the plan, by inspect and by verify"
line="$field: it may change what the model computes"
run convert normed resharded --tp 2 --overwrite
exits 0
says "unknown  $line"
run convert plain out --dry-run --to hf
! grep -q "^unknown" "$stderr" || is_wrong "$ran: $(cat "$stderr")"
run inspect normed
prints "unknown    $line"
run verify normed resharded
exits 0
says "note: unknown fields in A and B may change what the model computes: $field"
run verify normed resharded --allow-config qk_l2_norm --allow-config foo
exits 0
says "note: --allow-config foo: matches no unknown field"
! grep -q "allow-config qk" "$stderr" || is_wrong "$ran: $(cat "$stderr")"

it "--json has them, and whether they are allowed"
for allowed in '' '--allow-config=qk_*'; do
    # shellcheck disable=SC2086 # no word, or one
    run inspect normed --json $allowed
    tr -d ' \n' <"$stdout" | grep -qF '"unknown":[{"file":"run_config.yaml","name":"qk_l2_norm","value":"true","allowed":'"$([ -n "$allowed" ] && echo true || echo false)" ||
        is_wrong "$ran: $(cat "$stdout")"
done

it "an unknown field is a difference of the configs, one by one, and --ignore-config leaves it out"
run verify normed plain
exits 1
prints "1 field of the configs"
grep -q "^qk_l2_norm  *true  *not given$" "$stdout" || is_wrong "$ran: $(cat "$stdout")"
run verify plain normed
exits 1
grep -q "^qk_l2_norm  *not given  *true$" "$stdout" || is_wrong "$ran: $(cat "$stdout")"
run verify normed plain --ignore-config qk_l2_norm
exits 0
run verify normed normed --ignore-config 'qk_l2*'
exits 0
run verify plain plain --ignore-config no_such_field
exits 2
run verify normed plain --forward --allow-config qk_l2_norm --ignore-config qk_l2_norm
exits 0

it "digests of the config know unknown fields"
for model in normed plain; do
    run digest $model
    exits 0
    grep '^\*' "$stdout" >$model.tensors
    grep '^config.args' "$stdout" >$model.config || is_wrong "$ran: no config.args"
done
cmp -s normed.tensors plain.tensors || is_wrong "the digests of the tensors differ"
! cmp -s normed.config plain.config || is_wrong "the digests of the configs are the same"

it "a word of another program for a value is an unknown field, with a config.json too"
cp -r plain forked
sed -i 's/^  position_embedding_type: rope/  position_embedding_type: rotary/' forked/iter_0000000/run_config.yaml
for more in '' '--hf-config out'; do
    # shellcheck disable=SC2086 # words
    run convert forked again --to hf --overwrite $more
    exits 3
    says "run_config.yaml: position_embedding_type rotary"
done
run bench forked --seq 4 --repeats 1 --hf-config out
exits 3
says "run_config.yaml: position_embedding_type rotary"
run convert forked again --to hf --hf-config out --overwrite --allow-config position_embedding_type
exits 0
run verify plain again
exits 0

it "two spellings of a field that contradict each other are named, and computing asks for one"
hf=$(dirname "$golden")/hf/llama2
cp -r "$hf" clash
cp -r "$hf" scaled
chmod -R u+w clash scaled
linear='{"rope_type":"linear","factor":2.0}'
sed -i 's/"rope_scaling": null/"rope_scaling": null, "rope_parameters": '"$linear/" clash/config.json
sed -i 's/"rope_scaling": null/"rope_scaling": '"$linear/" scaled/config.json
inputs="--input-ids $hf/logits.safetensors --dtype f64"
# shellcheck disable=SC2086 # words
for command in "forward clash $inputs --out no" "generate clash --prompt-ids 1,2,3" "verify clash clash --forward" \
    "train --load clash --mock-data --train-iters 1 --micro-batch-size 1 --global-batch-size 1 --lr 1e-3 --seq-length 8" \
    "train --hf-config clash --mock-data --train-iters 1 --micro-batch-size 1 --global-batch-size 1 --lr 1e-3 --seq-length 8" \
    "convert clash no --to torch_dist"; do
    run $command
    exits 3
    says "config.json: rope_scaling is null, but rope_parameters, another spelling of it, is $linear"
    says "without the first, --allow-config rope_parameters"
done
run generate clash --prompt-ids 1,2,3 --allow-config 'rope_*'
exits 3
is_not_there no

it "of the two, --allow-config names the one that is ignored"
# shellcheck disable=SC2086 # words
for ignored in rope_parameters rope_scaling; do
    run forward clash $inputs --out $ignored --allow-config $ignored
    exits 0
done
# shellcheck disable=SC2086 # words
run forward scaled $inputs --out four
exits 0
run verify rope_scaling four
exits 0
run verify rope_parameters four
exits 1
run verify clash "$hf/logits.safetensors" --forward --allow-config rope_parameters # of transformers
exits 0
run verify clash "$hf/logits.safetensors" --forward --allow-config rope_scaling
exits 1
run convert clash chosen --to torch_dist --allow-config rope_parameters
exits 0
run verify "$hf" chosen --allow-config rope_parameters --ignore-config rope_parameters
exits 0

it "a conversion that copies config.json keeps both, with a line; inspect and verify name them"
run convert clash copied --to hf --max-shard-size 100KB
exits 0
says "unknown  config.json: rope_scaling null against rope_parameters $linear"
cmp -s clash/config.json copied/config.json || is_wrong "config.json was changed"
run inspect clash
prints "config.json: rope_scaling null against rope_parameters"
run inspect clash --json
tr -d ' \n' <"$stdout" | grep -qF '"name":"rope_scaling","value":"null","allowed":false,"other":"rope_parameters"' ||
    is_wrong "$ran: $(cat "$stdout")"
run verify clash copied
exits 0
run verify clash scaled
exits 1
