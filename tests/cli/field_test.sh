#!/bin/sh
# field_test.sh - a new field of models is one row of fields.json: all commands know it.
. "$(dirname "$0")/lib.sh"

# A copy of the program whose fields.json has one row more, in place of a long explanation.
mkdir program maps
cp "$ferry" program/ferry
find "$(dirname "$ferry")" -maxdepth 1 -name '*.so' -exec ln -s {} program \;
python3 - <<'PYTHON' || exit 1
about = b'"about": "dsa: an indexer chooses the keys of each query; gdn: some layers are gated delta nets; ' \
        b'dsv4_hybrid: a window, and compressed keys before it"}'
row = b'"about": ""}, {"name": "novel_scale", "type": "real", "args": "novel_scale", ' \
      b'"run_config": "novel_scale", "about": "new"}'
program = open('program/ferry', 'rb').read()
assert program.count(about) == 1 and len(row) <= len(about)
open('program/ferry', 'wb').write(program.replace(about, row.ljust(len(about))))
PYTHON
ferry=$PWD/program/ferry
cat >maps/novel.json <<'JSON'
{"family": "novel", "about": "llama with a field more", "model_type": "novel", "architecture": "NovelForCausalLM",
 "extends": "llama", "config": [{"megatron": "novel_scale", "hf": "novel_scale", "default": 0}]}
JSON
export FERRY_MODELS=maps

it "it is an option of synth, for families that have it"
run synth --model novel --novel-scale 2.5 m
exits 0
grep -q '"novel_scale": 2.5' m/config.json || is_wrong "config.json lacks it"
run synth --model llama --novel-scale 2.5 other
exits 2
says "--novel-scale 2.5: synth does not set it in models of family llama"
is_not_there other

it "inspect shows it as text, JSON and HTML"
run inspect m
prints "features   novel_scale 2.5"
run inspect -v m
grep -q '^ *novel_scale  *2.5$' "$stdout" || is_wrong "not among the fields of the config"
run inspect --json m
grep -q '"novel_scale": 2.5' "$stdout" || is_wrong "not in JSON"
run inspect m --report m.html
exits 0
grep -q 'novel_scale 2.5' m.html || is_wrong "not on the page"

it "a conversion keeps it in args and in run_config.yaml, and its plan has Megatron's option"
run convert m ck
exits 0
says "--novel-scale 2.5 (for Megatron-LM, with --use-checkpoint-args)"
run inspect --args ck
grep -q '^ *novel_scale  *2.5$' "$stdout" || is_wrong "not in args"
grep -q '^  novel_scale: 2.5$' ck/*/run_config.yaml || is_wrong "not in run_config.yaml"
rm -r ck/*/ferry-hf ck/*/*/ferry-hf 2>/dev/null
run inspect ck --model novel
prints "features   novel_scale 2.5"
run convert ck back --to hf --model novel
exits 0
grep -q '"novel_scale": 2.5' back/config.json || is_wrong "not in config.json"

it "convert compares the option of a training script with it"
run convert m out --dry-run --novel-scale 2.50
exits 0
says "note: --novel-scale 2.50: agrees with the model"
run convert m out --novel-scale 3
exits 2
says "--novel-scale 3: the model has novel_scale 2.5, read from m"
is_not_there out

it "verify compares it"
run synth --model novel n
run verify m n
exits 1
grep -q '^novel_scale  *2.5  *0$' "$stdout" || is_wrong "no line of it"

it "commands that compute refuse a model that uses it, and train refuses its option"
run bench m --seq 4 --repeats 1
exits 3
says "novel_scale 2.5: no op computes it yet"
run train --load m --mock-data --seq-length 4 --micro-batch-size 1 --train-iters 1 --lr 1
exits 3
says "novel_scale 2.5: no op computes it yet"
run train --load n --mock-data --seq-length 4 --micro-batch-size 1 --train-iters 1 --lr 1 --novel-scale 2
exits 2
says "--novel-scale: not implemented: new"
