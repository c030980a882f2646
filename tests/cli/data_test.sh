#!/bin/sh
# data_test.sh - ferry data: JSON lines of token ids as Megatron's indexed datasets.
. "$(dirname "$0")/lib.sh"

# bytes FILE - its bytes in hexadecimal, without blanks.
bytes() {
    od -An -v -tx1 "$1" | tr -d ' \n'
}

# holds FILE HEX
holds() {
    [ "$(bytes "$1")" = "$2" ] || is_wrong "$1 holds $(bytes "$1"), wanted $2"
}

cat >ids.jsonl <<'EOF'
{"ids": [1, 2, 3]}

{"input_ids": [4, 500]}
{"tokens": []}
EOF
cat >masked.jsonl <<'EOF'
{"ids": [1, 2, 3], "loss_mask": [0, 1, 1]}
{"ids": [4, 65500], "labels": [-100, 65500]}
{"ids": [5]}
EOF

it "writes ids as u16, a document for each line that has some"
run data ids.jsonl out
exits 0
prints "out.bin, out.idx: 2 documents, 5 tokens, u16"
prints "left out: 1 document without ids"
says_nothing
holds out.bin 0100020003000400f401
holds out.idx 4d4d4944494458000001000000000000000802000000000000000300000000000000030000000200000000000000000000000600000000000000000000000000000001000000000000000200000000000000
is_not_there out.mask.bin out.mask.idx

it "writes masks beside them, and i32 where ids are large"
run data masked.jsonl masked.idx --append-eod --eod-id 7
exits 0
prints "masked.bin, masked.idx: 3 documents, 9 tokens, i32"
prints "masked.mask.bin, masked.mask.idx: 7 tokens count for the loss"
holds masked.bin 0100000002000000030000000700000004000000dcff0000070000000500000007000000
holds masked.mask.bin 000101010001010101

it "takes the type of the vocabulary"
run data ids.jsonl wide --vocab-size 65500
exits 0
holds wide.bin 01000000020000000300000004000000f4010000
run data ids.jsonl narrow --vocab-size 65499 -q
exits 0
prints_nothing
holds narrow.bin 0100020003000400f401

it "refuses to replace files, unless it is told to"
run data masked.jsonl out
exits 7
says "out.bin: exists already"
holds out.bin 0100020003000400f401
run data masked.jsonl out --overwrite
exits 0
is_there out.mask.bin out.mask.idx

it "does not leave masks of another dataset behind"
rm out.bin out.idx
run data ids.jsonl out
exits 7
says "out.mask.idx exists already, but the new documents have no masks; --overwrite removes it"
is_not_there out.bin out.idx
run data ids.jsonl out --overwrite
exits 0
is_not_there out.mask.bin out.mask.idx
[ "$(find . -name 'out*' | wc -l)" -eq 2 ] || is_wrong "files are left: $(echo out*)"

it "names a bad line, and writes nothing"
printf '{"ids": [1]}\n{"ids": [1, -1]}\n' >bad.jsonl
run data bad.jsonl new
exits 5
says "bad.jsonl: line 2: ids: element 1 is not a token id"
is_not_there new.bin new.idx
run data ids.jsonl new --vocab-size 500
exits 5
says "ids.jsonl: line 3: element 1: id 500 is not below --vocab-size 500"
echo '{"ids": []}' >empty.jsonl
run data empty.jsonl new
exits 5
says "empty.jsonl: no line has a token id"
run data nosuch.jsonl new
exits 4
is_not_there new.bin new.idx
run data ids.jsonl nosuch/new
exits 4
says "folder nosuch does not exist"

it "refuses options that contradict one another"
run data ids.jsonl new --append-eod
exits 2
says "--append-eod needs --hf-config FOLDER of the model, or --eod-id N"
run data ids.jsonl new --eod-id 3
exits 2
says "--eod-id needs --append-eod"
run data ids.jsonl new --hf-config .
exits 2
says "--hf-config needs --append-eod"
run data ids.jsonl new --append-eod --eod-id 600 --vocab-size 600
exits 2
says "--eod-id 600 is not below --vocab-size 600"
run data ids.jsonl ''
exits 2

# ends_with FILE ID - ids.jsonl in 32 bits, with this id in hexadecimal behind each document
ends_with() {
    holds "$1" "010000000200000003000000${2}04000000f4010000$2"
}

mkdir llama base none
echo '{"eos_token_id": 2}' | tee llama/config.json >base/config.json
echo '{"eos_token_id": [128001, 128008, 128009]}' >llama/generation_config.json
echo '{"eos_token_id": null}' >none/config.json

it "takes the end of a document from the folder of the model: of a list the first, as ferry train does"
run data ids.jsonl eod --append-eod --hf-config llama
exits 0
prints "each document ends with id 128001"
says_nothing
ends_with eod.bin 01f40100
run data ids.jsonl eod-base --append-eod --hf-config base --vocab-size 70000
exits 0
ends_with eod-base.bin 02000000

it "prefers --eod-id, and notes that the folder has another"
run data ids.jsonl eod-given --append-eod --hf-config llama --eod-id 128009
exits 0
prints "each document ends with id 128009"
says "note: --eod-id 128009 ends documents; eos_token_id of llama is 128001"
ends_with eod-given.bin 09f40100
run data ids.jsonl eod-same --append-eod --hf-config llama --eod-id 128001
exits 0
says_nothing

it "refuses a folder without such a token, or with one that does not fit"
run data ids.jsonl new --append-eod --hf-config none
exits 2
says "--hf-config none: no eos_token_id in generation_config.json or config.json; give --eod-id N"
run data ids.jsonl new --append-eod --hf-config nosuch
exits 4
says "--hf-config nosuch: no such folder"
run data ids.jsonl new --append-eod --hf-config llama --vocab-size 128000
exits 2
says "eos_token_id 128001 is not below --vocab-size 128000"
is_not_there new.bin new.idx
