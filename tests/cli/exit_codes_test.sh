#!/bin/sh
# exit_codes_test.sh - every documented exit code by a real case, and what is said with it.
. "$(dirname "$0")/lib.sh"
synth_model m

# A copy of m whose config.json says something else: other_config NAME SED-EXPRESSION
other_config() {
    mkdir "$1" && cp m/*.safetensors "$1" && sed "$2" m/config.json >"$1/config.json"
}

it "0: done, and says so in one line after the plan"
run convert m good --tp 2
exits 0
says "converted"
grep -q '^source  ' "$stderr" || is_wrong "no plan: $(cat "$stderr")"
tail -n 1 "$stderr" | grep -q '^converted ' || is_wrong "the last line is $(tail -n 1 "$stderr")"
run convert m quietly --tp 2 -q
says_nothing
prints_nothing

it "2: a command line that means nothing"
run convert m m
exits 2
says "same"
run synth out --model llama --experts 8
exits 2
says "--experts"
run synth out --model llama --tied --untied
exits 2
run print m nosuch
exits 2
says 'no tensor matches "nosuch"'
run convert m out --model nosuch
exits 2

it "3: a layout that does not divide"
run convert m out --tp 3
exits 3
says "divisible"
run convert m out --pp 8
exits 3
run convert m out --ep 2
exits 3
is_not_there out

it "3: a family without a map, and how to add one"
other_config bert 's/"llama"/"bert"/'
run convert bert out
exits 3
says 'model_type "bert"'
says "--model-map"

it "3: missing tensors are listed, all of them, unless they are allowed"
other_config deeper 's/"num_hidden_layers": 4/"num_hidden_layers": 5/'
run convert deeper out
exits 3
says "model.layers.4.mlp.down_proj.weight"
says "9 tensors missing, 0 unexpected"
says "--allow-missing"

it "3: unexpected tensors are listed, all of them, unless they are allowed"
other_config shallower 's/"num_hidden_layers": 4/"num_hidden_layers": 3/'
run convert shallower out
exits 3
says "model.layers.3.mlp.down_proj.weight"
says "0 tensors missing, 9 unexpected"
is_not_there out
run convert shallower out --allow-unexpected 'model.layers.3.*'
exits 0

it "3: a tensor of another shape than the config says"
other_config wider 's/"intermediate_size": 128/"intermediate_size": 256/'
run convert wider wide
exits 3
says "gate_proj"
is_not_there wide

it "4: a source that is not there"
run convert nosuch out2
exits 4
run inspect nosuch
exits 4
run convert m/config.json out2
[ "$code" -eq 4 ] || [ "$code" -eq 3 ] || is_wrong "a file that is no checkpoint: exit code $code"

it "5: a file that is cut short"
other_config cut 's/x/x/'
head -c 100000 m/model.safetensors >cut/model.safetensors
run convert cut out2
exits 5
says "cut/model.safetensors"
says "truncated"
is_not_there out2

it "5: a config.json that is no JSON"
other_config torn 's/"llama"/"llama/'
run convert torn out2
exits 5
says "config.json"

it "6: a memory budget that cannot be met, with the least that can"
run convert m out2 --max-memory 100kB --threads 2
exits 6
says "threads need at least"
is_not_there out2
least=$(sed -n 's/.* at least \([0-9]*\) MiB$/\1/p' "$stderr")
run convert m out2 --max-memory 100kB --threads 2 --dry-run
exits 6
says " needed, more than 100 kB"
run convert m out2 --max-memory "${least:-none}MiB" --threads 2
exits 0

it "7: a destination that is not empty"
run convert m good
exits 7
says "exists and is not empty; --overwrite replaces it"
