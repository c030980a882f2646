#!/bin/sh
# late.sh FERRY INJECT.so - two processes share a conversion, and each sees what the other writes two
# seconds late, one name after the other. Whatever is late, the same bytes must come out.
set -u
ferry=$(realpath "$1")
inject=$(realpath "$2")
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-late.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1
passed=0 failed=0

"$ferry" synth -q hf --model llama --layers 2 --vocab-size 500 || exit 1
"$ferry" convert -q hf want --tp 4 || exit 1

# one PATTERN OF_RANK - what rank OF_RANK does not see yet.
one() {
    rm -rf out .out.ferry-partial
    start=$(date +%s)
    for rank in 1 0; do
        late=none:0
        [ $rank -ne "$2" ] || late=$1:2
        LD_PRELOAD=$inject FERRY_LATE=$late RANK=$rank WORLD_SIZE=2 \
            "$ferry" convert -q hf out --tp 4 --timeout 30 2>"said-$rank" || echo "rank $rank: $?" >>codes &
    done
    wait
    if [ -s codes ] || ! diff -r -x ferry.json want out >difference 2>&1; then
        echo "FAILED: $1 late for rank $2: $(cat codes said-0 said-1 difference 2>/dev/null | head -n 4)"
        failed=$((failed + 1))
    elif [ $(($(date +%s) - start)) -lt 2 ]; then
        echo "FAILED: $1 was not late for rank $2"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
    rm -f codes
}

one .ferry-lock 1      # whether rank 0 has begun
one .ferry-lock-1 0    # whether rank 1 is there
one .ferry-journal-1 0 # what it has done
one '__[12]_0.distcp' 0 # and written: of four files, two are the other's
one ferry.json 1       # whether it is published
echo "late: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
