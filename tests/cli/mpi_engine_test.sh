#!/bin/sh
# mpi_engine_test.sh - the commands that compute, as ranks of mpirun: one answer, of rank 0, and the
# same as without.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/mpi.sh"
golden=$root/tests/golden/hf
model=$golden/llama3.2

# Lines of ferry's own on stderr: mpirun has something to say of failures, too.
says_once() {
    # ranks wait two seconds for rank 0; on a busy host another may print the same, too
    [ "$(grep "^ferry" "$stderr" | sort -u | wc -l)" -eq 1 ] || is_wrong "$ran: not one message:
$(cat "$stderr")"
    says "$1"
}

prints_lines() {
    [ "$(wc -l <"$stdout")" -eq "$1" ] || is_wrong "$ran: not $1 lines:
$(cat "$stdout")"
}

# One object of --json, of one rank.
answers_once() {
    [ "$(grep -c '^{$' "$stdout")/$(grep -c '"exit_code"' "$stdout")" = 1/1 ] || is_wrong "$ran: not one answer:
$(cat "$stdout")"
}

# The tokens of such an object, a line for each sequence.
ids() {
    sed -n '/"token_ids"/,/^  \]/s/^    \[\([0-9,]*\)\].*/\1/p' "$1"
}

for ranks in 2 4; do
    it "forward: $ranks ranks write one file, as one process does"
    "$ferry" forward "$model" --input-ids "$model/logits.safetensors" --out "alone$ranks" --hidden -q \
        --tp 2 --dp $((ranks / 2))
    run_ranks $ranks forward "$model" --input-ids "$model/logits.safetensors" --out "o$ranks" --hidden \
        --tp 2 --dp $((ranks / 2))
    exits 0
    says_nothing
    prints_lines 1
    prints "o$ranks: logits ["
    cmp -s "alone$ranks" "o$ranks" || is_wrong "other bytes"
    nothing_partial_in .

    it "forward: a file that is there stays, and is told of once ($ranks ranks)"
    run_ranks $ranks forward "$model" --input-ids "$model/logits.safetensors" --out "o$ranks" \
        --tp 2 --dp $((ranks / 2))
    exits 7
    says_once "o$ranks: exists already"
    cmp -s "alone$ranks" "o$ranks" || is_wrong "it has changed"

    it "perplexity: one line, as of one process ($ranks ranks)"
    printf '\1\0\2\0\3\0\4\0\5\0\6\0\7\0\1\0' >ids.u16
    "$ferry" perplexity "$golden/llama2" --data ids.u16 --data-dtype u16 --seq 2 --json >want
    run_ranks $ranks perplexity "$golden/llama2" --data ids.u16 --data-dtype u16 --seq 2 --json --pp 2 \
        --dp $((ranks / 2))
    exits 0
    answers_once
    prints '"tokens": 7,'
    sed -n 's/^ *"loss": \(.*\),$/\1/p' want "$stdout" | paste -sd' ' |
        awk '{ d = $1 - $2; exit !(NF == 2 && d < 1e-5 && d > -1e-5 && $1 > 1) }' ||
        is_wrong "$(cat want) and $(cat "$stdout")"
    says_nothing

    it "generate: one answer, as of one process ($ranks ranks)"
    run generate "$model" --prompt-ids '1,2,3;7,8,9' --max-new-tokens 5 --json
    cp "$stdout" want
    run_ranks $ranks generate "$model" --prompt-ids '1,2,3;7,8,9' --max-new-tokens 5 --json \
        --dp $ranks
    exits 0
    answers_once
    ids want >want.ids
    ids "$stdout" | cmp -s - want.ids || is_wrong "$(cat "$stdout") is not $(cat want)"
    run_ranks $ranks generate "$model" --prompt-ids '1,2,3' --max-new-tokens 5 --tp 2 \
        --dp $((ranks / 2))
    exits 0
    prints_lines 1
    prints "$(sed -n 1p want.ids)"

    it "bench: one table ($ranks ranks)"
    run_ranks $ranks bench "$model" --seq 8 --repeats 1 --tp 2 --dp $((ranks / 2))
    exits 0
    [ "$(grep -c "% of roofline" "$stdout")" -eq 1 ] || is_wrong "$(cat "$stdout")"
    run_ranks $ranks bench "$model" --seq 8 --repeats 1 --json --dp $ranks
    exits 0
    answers_once

    it "a dry run prints one plan ($ranks ranks)"
    run_ranks $ranks forward "$model" --input-ids "$model/logits.safetensors" --dry-run --dp $ranks
    exits 0
    [ "$(grep -c "parameters and caches" "$stdout")" -eq 1 ] || is_wrong "$(cat "$stdout")"

    it "verify --forward: rank 0 compares, as if it were alone ($ranks ranks)"
    run_ranks $ranks verify "$model" "$model" --forward
    exits 0
    [ "$(grep -c "^forward: identical" "$stdout")" -eq 1 ] || is_wrong "$(cat "$stdout")"
    run_ranks $ranks verify "$model" "$model/logits.safetensors" --forward --tp 2 --json
    exits 0
    answers_once
    run_ranks $ranks verify "$model" "$golden/qwen3" --forward
    exits 3
    says_once "has hidden_size"

done

it "what is wrong is said once, and leaves nothing"
run_ranks 2 forward "$model" --input-ids "$model/logits.safetensors" --json
exits 2
says_once "--out is missing"
answers_once
prints '"error": "--out is missing"'
run_ranks 2 forward "$model" --input-ids "$model/logits.safetensors" --out new --tp 3 --dp 1 --json
answers_once
prints '"exit_code": 3,'
run_ranks 2 inspect "$model" --json
exits 0
answers_once
run_ranks 2 convert "$model" converted --tp 2 --json
exits 0
answers_once
run_ranks 2 convert "$model" planned --tp 2 --dry-run --json
exits 0
answers_once
run_ranks 2 forward --no-such-option
exits 2
says_once "unknown option"
run_ranks 2 forward no_such_model --input-ids "$model/logits.safetensors" --out new
exits 4
says_once "no_such_model"
run_ranks 2 forward "$model" --input-ids "$model/logits.safetensors" --out new --tp 3 --dp 1
exits 3
says_once "tensor parallel size 3"
run_ranks 2 forward "$model" --input-ids "$model/logits.safetensors" --out new --dp 3
exits 3
says_once "the layout takes 3 ranks (TP1 CP1 DP3 PP1), the job has 2"
run_ranks 2 forward "$model" --input-ids "$model/logits.safetensors" --out nowhere/new --dp 2
exits 4
says_once "nowhere"
run_ranks 2 generate "$model" --prompt-ids 1,100000 --dp 2
exits 2
says_once "token 1 of sequence 0 is 100000"
is_not_there new nowhere
nothing_partial_in .

it "who has other words than rank 0 says so, and nobody is passed over"
# each_rank N WORDS...: ferry as N ranks, with RANK in the words replaced
each_rank() {
    count=$1
    shift
    # shellcheck disable=SC2016 # for the inner shell
    run_program timeout 300 mpirun -np "$count" sh -c 'eval exec "$(echo "$@" | sed "s/RANK/$OMPI_COMM_WORLD_RANK/g")"' \
        - "$ferry" "$@"
}
ln -s "$model" model0
ln -s "$golden/qwen3" model1
each_rank 2 generate model0 --prompt-ids 5 --dp 2 --top-pRANK 1
exits 2
says "unknown option --top-p0"
each_rank 2 generate model0 --prompt-ids "'5;6'" --dp 2 --temperature 1 --seed RANK
exits 2
says_once "rank 1 has another layout, request or tokens than rank 0"
each_rank 2 verify model0 modelRANK --forward
exits 2
says_once "rank 1 has another command line than rank 0 (here: model0)"
each_rank 2 verify model0 modelRANK
[ "$code" -ne 0 ] || is_wrong "rank 1 compares other models, exit code 0"
for command in "bench --seq 8" "generate --prompt-ids 5" \
    "forward --input-ids $model/logits.safetensors --out new"; do
    # shellcheck disable=SC2086 # words
    each_rank 2 $command modelRANK --tp 2
    exits 2
    says_once "rank 1 has another model than rank 0"
done
cp -r "$model" other0
cp -r "$model" other1
chmod -R u+w other1
sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 123.0/' other1/config.json
each_rank 2 bench otherRANK --seq 8 --tp 2
exits 2
says_once "rank 1 has another model than rank 0"
cp "$model/logits.safetensors" ids0
cp "$golden/gpt2/logits.safetensors" ids1
for command in "bench --seq 8RANK --dp 2" "generate --prompt-ids 5,RANK --dp 2" \
    "generate --prompt-ids 5 --dp 2 --max-new-tokens 3RANK" "forward --dp 2 --out new --input-ids idsRANK"; do
    # shellcheck disable=SC2086 # words
    each_rank 2 $command "$model"
    exits 2
    says_once "rank 1 has another layout, request or tokens than rank 0"
done
is_not_there new
each_rank 2 inspect modelRANK
exits 0
[ "$(grep -c "^family" "$stdout")" -eq 2 ] || is_wrong "$(cat "$stdout")"

it "numbers that are none are told of once, and no file is written"
cp -r "$golden/llama2" nan
chmod -R u+w nan
size=$(wc -c <nan/model.safetensors) # f16; what lies at the end is a norm
printf '\000\176' | dd of=nan/model.safetensors bs=1 seek=$((size - 2)) conv=notrunc 2>/dev/null
run_ranks 2 forward nan --input-ids "$golden/llama2/logits.safetensors" --out new --pp 2
exits 10
says_once "on rank 1"
is_not_there new
nothing_partial_in .

it "a rank that cannot read the model is told of by rank 0, with its number"
# shellcheck disable=SC2016 # for the inner shell
run_program timeout 300 mpirun -np 3 sh -c '[ "$OMPI_COMM_WORLD_RANK" -lt 2 ] || cd /
    exec "$0" "$@"' "$ferry" bench odd --dp 3 --seq 4
exits 4
cp -r "$golden/llama2" odd
# shellcheck disable=SC2016
run_program timeout 300 mpirun -np 3 sh -c '[ "$OMPI_COMM_WORLD_RANK" -lt 2 ] || cd /
    exec "$0" "$@"' "$ferry" bench odd --dp 3 --seq 4
exits 4
says_once "rank 2: odd"

it "processes that MPI does not know of each other are told what to do"
RANK=1 WORLD_SIZE=2 run generate "$model" --prompt-ids 1,2 --dp 2
exits 2
says "rank 1 of 2 in the environment, but rank 0 of 1 in MPI"
says "unset RANK and WORLD_SIZE"
