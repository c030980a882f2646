#!/bin/sh
# faults.sh FERRY INJECT.so [EVERY] - makes one call after another fail in a small conversion, every
# one of them or each EVERYth, and looks at the exit code, the message, and what is left.
#
# After a short read or write, or EINTR, the conversion must succeed with the same bytes. After an
# error it must end with 4 and name a file, and leave nothing, or what a second run makes whole;
# a destination that is there must be complete. A share (share.sh) is that part of the calls.
set -u
# shellcheck source=../share.sh
. "$(dirname "$0")/../share.sh"
ferry=$(realpath "$1")
inject=$(realpath "$2")
every=${3:-1}
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-faults.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1
runs=0 failed=0

"$ferry" synth -q hf --model llama --layers 2 --vocab-size 500 --max-shard-size 100kB || exit 1
"$ferry" convert -q hf dist --tp 2 --pp 2 || exit 1
"$ferry" convert -q dist back --to hf || exit 1
"$ferry" synth -q zero --model llama --layers 1 --hidden 32 --heads 4 --vocab-size 100 --optim --to deepspeed \
    --zero 3 --dp 2 || exit 1
"$ferry" convert -q zero dcp --to dcp --dp 2 || exit 1

bad() {
    echo "FAILED: $fault: $*"
    failed=$((failed + 1))
}

same() {
    diff -r -x ferry.json "$1" "$2" >difference 2>&1
}

# one CALL ERROR NUMBER - one conversion with one fault.
one() {
    fault=$1:$2:$3
    rm -rf out .out.ferry-partial
    # shellcheck disable=SC2086 # words
    LD_PRELOAD=$inject FERRY_FAULT=$fault "$ferry" convert -q --threads 2 $arguments >said 2>&1
    code=$?
    runs=$((runs + 1))
    case $2 in
    SHORT | EINTR)
        [ $code -eq 0 ] || bad "exit code $code: $(tail -n 1 said)"
        [ $code -ne 0 ] || same "$want" out || bad "$(head -n 2 difference)"
        return
        ;;
    esac
    if [ $code -eq 0 ]; then # a call that did not matter, as removing what is not there
        same "$want" out || bad "exit code 0, and $(head -n 2 difference)"
        return
    fi
    [ $code -eq 4 ] || bad "exit code $code: $(tail -n 1 said)"
    grep -q '^ferry convert: .*: ' said || bad "no file is named: $(cat said)"
    if [ -e out ] && [ ! -e out/.ferry-lock ] && ! same "$want" out; then
        bad "half a destination: $(head -n 2 difference)"
    fi
    [ ! -e out ] || [ -e out/.ferry-lock ] || return
    # shellcheck disable=SC2086 # words
    "$ferry" convert -q $arguments >said 2>&1 || bad "a second run fails: $(tail -n 1 said)"
    same "$want" out || bad "after a second run: $(head -n 2 difference)"
}

# all WANT ARGUMENT... - every call of a conversion, with every error that it can have.
all() {
    want=$1
    shift
    arguments=$*
    rm -rf out
    # shellcheck disable=SC2086 # words
    LD_PRELOAD=$inject FERRY_FAULT_COUNT=$work/counts "$ferry" convert -q --threads 2 $arguments || exit 1
    while read -r call count; do
        case $call in
        unlink) continue ;; # of what is in the way; kills of a save are at these too
        pread | read) errors="SHORT EINTR EIO" ;;
        pwrite) errors="SHORT EINTR EIO ENOSPC EDQUOT" ;;
        open) errors="EIO EACCES" ;;
        *) errors="EIO ENOSPC" ;;
        esac
        for error in $errors; do
            n=$((1 + every * ${share%/*}))
            while [ "$n" -le "$count" ]; do
                one "$call" "$error" "$n"
                n=$((n + every * ${share#*/}))
            done
        done
    done <counts
}

all dist hf out --tp 2 --pp 2
all back dist out --to hf
all dcp zero out --to dcp --dp 2
echo "faults: $runs runs with a fault"
echo "faults: $((runs - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
