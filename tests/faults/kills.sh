#!/bin/sh
# kills.sh FERRY [COUNT] - kills conversions at random moments (-9), runs the same command again, kills
# that too, and compares what is there at the end with an uninterrupted run. Until the program says that it
# is done, what is there must not look like a checkpoint. Some run of each conversion must have found
# something to continue. A share (share.sh) is that part of COUNT.
set -u
# shellcheck source=../share.sh
. "$(dirname "$0")/../share.sh"
ferry=$(realpath "$1")
count=$((${2:-1000} / ${share#*/}))
seed=${FERRY_TEST_SEED:-$(date +%N | sed 's/^0*//')}
first_seed=$seed
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-kills.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1
kills=0 resumed=0 failed=0

# Sets $number, below $1, from a generator that the seed repeats.
random() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    number=$((seed / 65536 % $1))
}

bad() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# After the run that got through, nothing of those that were killed is left.
nothing_partial() {
    for left in .*.ferry-partial .*.ferry-old; do
        [ ! -e "$left" ] || bad "$1: left beside it: $left: $(ls -A "$left")"
    done
}

"$ferry" synth -q hf --model qwen3_moe --layers 6 --experts 8 --topk 2 --hidden 256 --ffn-hidden-size 512 \
    --moe-ffn-hidden-size 256 --vocab-size 20000 || exit 1
"$ferry" convert -q hf dist --tp 4 --pp 2 || exit 1
"$ferry" synth -q zero --model llama --layers 4 --hidden 256 --ffn-hidden-size 512 --vocab-size 8000 --optim \
    --to deepspeed --zero 3 --dp 4 || exit 1

# converting NAME SOURCE OPTION... - one conversion, killed over and over until it gets through.
converting() {
    name=$1 source=$2
    shift 2
    "$ferry" convert -q "$source" "want_$name" --no-fsync "$@" || exit 1
    start=$(date +%s%N)
    "$ferry" convert -q "$source" time --no-fsync "$@" || exit 1
    took=$((($(date +%s%N) - start) / 1000000 + 1))
    rm -rf time
    went_on=0
    until [ "$kills" -ge "$limit" ]; do
        rm -rf out .out.ferry-partial
        while :; do
            "$ferry" convert -q "$source" out --no-fsync --journal-every 1kB --threads 2 --json "$@" \
                >result 2>said &
            pid=$!
            random $((took + took / 2))
            sleep "$(printf '0.%03d' "$number")"
            kill -9 $pid 2>/dev/null && kills=$((kills + 1))
            { wait $pid; } 2>/dev/null
            code=$?
            [ $code -ne 0 ] || break
            [ $code -eq 137 ] || bad "$name: exit code $code: $(tail -n 1 said)"
            [ $code -eq 137 ] || break
            if [ -e out ] && [ ! -e out/.ferry-lock ]; then
                # killed after the last rename: it is done, and says so
                [ -z "$(ls -d .out.ferry-partial 2>/dev/null)" ] || bad "$name: a destination beside its staging"
                break
            fi
            resumed=$((resumed + 1))
        done
        diff -r -x ferry.json "want_$name" out >difference 2>&1 || bad "$name: $(head -n 3 difference)"
        [ -z "$(find out -name '.ferry-*')" ] || bad "$name: left in it: $(find out -name '.ferry-*')"
        nothing_partial "$name"
        [ "$failed" -eq 0 ] || return
        ! grep -q '"resumed_bytes":[[:space:]]*[1-9]' result || went_on=$((went_on + 1))
    done
    [ "$went_on" -gt 0 ] || bad "$name: no run continued what another had done"
    rm -rf "want_$name"
}

# rank RANK ARGUMENT... - one of three processes, in the background; pid_RANK is its number.
rank() {
    who=$1
    shift
    RANK=$who WORLD_SIZE=3 "$ferry" convert -q --no-fsync --journal-every 1kB --threads 1 --timeout 60 "$@" \
        2>"said_$who" &
    eval "pid_$who=$!"
}

# sharing NAME SOURCE OPTION... - the same by three processes, of which one is killed and run again.
sharing() {
    name=$1
    shift
    "$ferry" convert -q --no-fsync "$1" "want_$name" "$2" "$3" "$4" "$5" || exit 1
    until [ "$kills" -ge "$limit" ]; do
        rm -rf out .out.ferry-partial
        for who in 2 1 0; do rank $who "$1" out "$2" "$3" "$4" "$5"; done
        random $((took + took / 2))
        sleep "$(printf '0.%03d' "$number")"
        random 3
        who=$number
        eval "pid=\$pid_$who"
        kill -9 "$pid" 2>/dev/null && kills=$((kills + 1))
        { wait "$pid"; } 2>/dev/null
        [ ! -e out ] || [ -e out/.ferry-lock ] || [ ! -e .out.ferry-partial ] || bad "$name: a destination beside its staging"
        again='' # a rank 0 that had published by then is refused otherwise
        [ ! -e out ] || [ -n "$(find out -name .ferry-lock)" ] || again=--resume
        # shellcheck disable=SC2086 # a flag or nothing
        rank "$who" "$1" out "$2" "$3" "$4" "$5" $again
        resumed=$((resumed + 1))
        for who in 0 1 2; do
            eval "pid=\$pid_$who"
            wait "$pid" || bad "$name: rank $who: exit code $?: $(cat said_$who)"
        done
        diff -r -x ferry.json "want_$name" out >difference 2>&1 || bad "$name: $(head -n 3 difference)"
        [ -z "$(find out -name '.ferry-*')" ] || bad "$name: left in it: $(find out -name '.ferry-*')"
        nothing_partial "$name"
        [ "$failed" -eq 0 ] || return
    done
    rm -rf "want_$name"
}

step=$((count / 8 + 1))
limit=$step
converting to_torch_dist hf --tp 2 --pp 2
limit=$((2 * step))
converting to_torch hf --tp 2 --ep 2 --to torch
limit=$((3 * step))
converting to_hf dist --to hf --max-shard-size 3MB
limit=$((4 * step))
converting reshard dist --tp 2 --pp 3 --torch-dtype float32
limit=$((5 * step))
sharing by_three hf --tp 2 --pp 3
limit=$((6 * step))
sharing by_three_to_hf dist --to hf --max-shard-size 3MB
limit=$((7 * step))
converting of_zero zero --to torch_dist --tp 2 --pp 2
limit=$((8 * step))
sharing of_zero_by_three zero --to dcp --dp 3
echo "kills: $kills runs killed, $resumed resumed, seed $first_seed"
echo "kills: $((failed == 0 ? 8 : 8 - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
