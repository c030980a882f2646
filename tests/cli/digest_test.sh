#!/bin/sh
# digest_test.sh - digests: the same from every format and layout, recorded, and checked.
. "$(dirname "$0")/lib.sh"
synth_model m --layers 4
synth_model moe --model qwen3_moe --experts 4 --topk 2

it "the same lines come from every format and layout"
run digest m
exits 0
cp "$stdout" m.digest
for layout in "--tp 2" "--tp 4 --pp 2 --vpp 2" "--pp 4 --to torch" "--tp 2 --to torch --transformer-impl local"; do
    # shellcheck disable=SC2086 # words
    run convert m there $layout --overwrite
    exits 0
    run digest there
    exits 0
    cmp -s "$stdout" m.digest || is_wrong "$layout: $(diff "$stdout" m.digest)"
done
run digest moe
cp "$stdout" moe.digest
run convert moe there --tp 2 --ep 2 --overwrite
run digest there --check moe.digest
exits 0

it "they do not depend on threads, memory or how bytes are read"
run digest m --threads 1 --max-memory 64MiB --direct-io
exits 0
cmp -s "$stdout" m.digest || is_wrong "$(diff "$stdout" m.digest)"

it "the last line is the SHA-256 of those before it"
want=$(sed '$d' m.digest | sha256sum | cut -d ' ' -f 1)
[ "$(tail -n 1 m.digest)" = "$(printf '*\t%s' "$want")" ] || is_wrong "$(tail -n 1 m.digest) is not $want"

it "what is written keeps its digests in ferry.json, and inspect shows them"
run convert m out --tp 2
exits 0
sum=$(tail -n 1 m.digest | cut -f 2)
run digest out --check out/ferry.json
exits 0
run inspect out
prints "$sum"
prints "record     written"
run convert out back --to hf
run digest back --check back/ferry.json
exits 0
is_there back/ferry.json out/iter_0000000/ferry.json

it "the record does not travel on with the model"
is_not_there out/iter_0000000/ferry-hf/ferry.json
run convert back again
exits 0
is_not_there again/iter_0000000/ferry-hf/ferry.json

it "a cast has another digest, and the record has both"
run convert m wide --torch-dtype float32
exits 0
run digest wide --check m.digest
exits 1
grep -q "$sum" wide/ferry.json || is_wrong "the source's digest is not in the record"
run digest wide --check wide/ferry.json
exits 0

it "one changed byte is seen, and its tensor named"
cp -r m bad
size=$(stat -c %s bad/model.safetensors)
printf '\377' | dd of=bad/model.safetensors bs=1 seek=$((size - 1)) conv=notrunc 2>/dev/null
run digest bad --check m.digest
exits 1
says "expected BF16"

it "lists that are none, or are of another model, are refused or differ"
echo nothing >list
run digest m --check list
exits 5
echo '{}' >list
run digest m --check list
exits 5
run digest m --check moe.digest
exits 1
run digest m --check nosuch
exits 4

it "--integrity writes the SHA-256 of each file as Megatron does"
run convert m sums --tp 2 --pp 2 --integrity
exits 0
for file in sums/iter_0000000/*.* sums/iter_0000000/.metadata; do
    [ "${file##*/}" = integrity.json ] && continue
    grep -q "\"${file##*/}\": \"$(sha256sum <"$file" | cut -c 1-64)\"" sums/iter_0000000/integrity.json ||
        is_wrong "$file is not in it"
done
run convert sums fresh --to hf
is_not_there fresh/integrity.json

it "--verify full reads what was written again, in every format"
for to in torch_dist torch hf; do
    run convert m "full_$to" --to $to --verify full
    exits 0
    run convert "full_$to" "again_$to" --verify full
    exits 0
done
run convert m none --verify none
exits 0
if grep -q '"digest"' none/ferry.json; then is_wrong "--verify none has digests"; fi
run convert m out --iteration 7 --verify full
exits 0
is_there out/iter_0000007/ferry.json
