#!/bin/sh
# recipes_test.sh FERRY - the commands of RECIPES.md, in their order and as they are written there, on a
# model of random numbers. What other programs would do there is left out.
recipes=$(cd "$(dirname "$0")/../.." && pwd)/RECIPES.md
. "$(dirname "$0")/lib.sh"
mkdir ../bin && ln -s "$ferry" ../bin/ferry
PATH=$(cd ../bin && pwd):$PATH
for _ in $(seq 90); do echo '{"ids": [5, 6, 7, 8, 9, 10, 11]}'; done >ids.jsonl # by the tokenizer

# Each command that begins with ferry, or runs it in a loop; a line that ends with \ goes on in the next one.
sed -e :join -e '/\\$/{N;s/ *\\\n */ /;b join' -e '}' "$recipes" | grep -E '^    (ferry|for) ' | sed 's/^    //' >commands

it "most recipes are commands that can be tried here"
[ "$(wc -l <commands)" -ge 15 ] || is_wrong "RECIPES.md has only $(wc -l <commands) of them"

while read -r line; do
    it "$line"
    case $line in
    *logits.safetensors*) skip "the results are another program's" && continue ;;
    esac
    run_program sh -c "$line"
    exits 0
    case $line in
    "ferry synth hf "*) sed -i 's/"vocab_size"/"eos_token_id": 2, &/' hf/config.json ;; # as real models have
    esac
done <commands

it "no recipe leaves anything half done"
nothing_partial_in .
