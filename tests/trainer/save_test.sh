#!/bin/sh
# save_test.sh FERRY - saves of a training run (resave) that are killed at one call of libc after another,
# or one of whose calls fails: the tracker always names a complete checkpoint, and the next save
# succeeds and leaves nothing beside it. Takes each FERRY_TEST_EVERYth call, by default the 40th, or a share of these.
golden=$(realpath "$(dirname "$0")/../golden/megatron-training/fp32-plain-optimizer")
. "$(dirname "$0")/../cli/lib.sh"
build=$(dirname "$ferry")
resave=$build/tests/trainer/resave inject=$build/inject.so
of_all=${FERRY_TEST_EVERY:-40}
every=$((of_all * ${share#*/})) first=$((of_all * ${share%/*})) calls_seen=0

# The iteration that the tracker names is complete, and what was loaded; without a tracker there is
# no iteration that looks complete. A folder of Hugging Face's is one, whatever its name.
whole() { # DIR
    if [ -e "$1/latest_checkpointed_iteration.txt" ]; then
        "$ferry" verify -q "$golden" "$1" >difference 2>&1 || is_wrong "$fault: $1: $(head -n 3 difference)"
    elif [ -n "$had_one" ] && [ "$format" != hf ]; then
        is_wrong "$fault: the tracker is gone"
    fi
    [ "$format" = hf ] || return 0
    for folder in "$1"/iter_*; do
        [ ! -e "$folder" ] || "$ferry" verify -q "$golden" "$folder" >difference 2>&1 ||
            is_wrong "$fault: $folder: $(head -n 3 difference)"
    done
}

newest() { # DIR
    if [ "$format" = hf ]; then
        find "$1" -maxdepth 1 -name 'iter_*' | sort | tail -n 1 | sed 's/.*iter_0*//'
    else
        cat "$1/latest_checkpointed_iteration.txt" 2>/dev/null
    fi
}

# The save that follows: of the same iteration, which may be there by now; then of the next one.
save_again() {
    "$resave" "$golden" out --format "$format" "$@" >said 2>&1
    code=$?
    if [ $code -eq 7 ] && [ "$(newest out)" = "$iteration" ]; then
        iteration=$((iteration + 1))
        "$resave" "$golden" out --format "$format" "$@" --first "$iteration" >said 2>&1
        code=$?
    fi
    [ $code -eq 0 ] || is_wrong "$fault: the next save: exit code $code: $(tail -n 1 said)"
    [ "$(newest out)" = "$iteration" ] || is_wrong "$fault: the next save is not the newest"
    whole out
    left=$(find . -maxdepth 2 -name '.*ferry-*')
    [ -z "$left" ] || is_wrong "$fault: left behind: $left"
}

one() { # CALL ERROR NUMBER OPTION...
    fault=$1:$2:$3 error=$2
    shift 3
    iteration=$written
    rm -rf out .out.*
    [ -z "$had_one" ] || cp -r start out
    LD_PRELOAD=$inject FERRY_FAULT=$fault "$resave" "$golden" out --format "$format" "$@" >said 2>&1
    code=$?
    case $error in
    KILL) [ $code -eq 137 ] || [ $code -eq 0 ] || is_wrong "$fault: exit code $code: $(tail -n 1 said)" ;;
    *)
        [ $code -eq 0 ] || [ $code -eq 4 ] || is_wrong "$fault: exit code $code: $(tail -n 1 said)"
        [ $code -eq 0 ] || grep -q '^resave: .*: ' said || is_wrong "$fault: no file is named: $(cat said)"
        left=$(find . -maxdepth 2 -name '.*ferry-partial')
        [ -z "$left" ] || is_wrong "$fault: left behind: $left"
        ;;
    esac
    whole out
    save_again "$@"
}

# all CALLS ERRORS OPTION... - every call of these kinds that comes after the load.
all() {
    calls=$1 errors=$2
    shift 2
    rm -rf out
    [ -z "$had_one" ] || cp -r start out
    LD_PRELOAD=$inject FERRY_FAULT_COUNT=$PWD/loading "$resave" "$golden" out --count 0 >said 2>&1 ||
        is_wrong "$(tail -n 1 said)"
    LD_PRELOAD=$inject FERRY_FAULT_COUNT=$PWD/counts "$resave" "$golden" out --format "$format" "$@" \
        >said 2>&1 || is_wrong "$(tail -n 1 said)"
    while read -r call count; do
        case " $calls " in *" $call "*) ;; *) continue ;; esac
        for what in $errors; do
            n=$(sed -n "s/^$call //p" loading)
            while [ "$n" -lt "$count" ]; do
                n=$((n + 1)) calls_seen=$((calls_seen + 1))
                [ $((calls_seen % every)) -ne $((first % every)) ] || one "$call" "$what" $n "$@"
            done
        done
    done <counts
}

writing="pwrite open ftruncate rename mkdir symlink unlink"

# With and without an iteration that is there before.
each() { # CALLS ERRORS
    before=$calls_seen
    for format in torch_dist torch hf; do
        had_one='' written=20
        all "$1" "$2" --first 20
        had_one=yes
        rm -rf start
        "$resave" "$golden" start --format $format >said 2>&1 || is_wrong "$(tail -n 1 said)"
        all "$1" "$2" --first 20 --keep-last 1
        written=10
        all "$1" "$2" --overwrite
    done
    [ "$calls_seen" -gt "$before" ] || is_wrong "no call was found that could fail"
}

it "a save that is killed at any call leaves the one before"
if [ -e "$inject" ] && [ -e "$resave" ]; then each "$writing" KILL; else skip "no inject.so or resave"; fi

it "a save on a full disk, or one of whose calls fails, leaves the one before"
if [ -e "$inject" ] && [ -e "$resave" ]; then
    each "pwrite open" "ENOSPC"
    each "rename mkdir ftruncate" "EIO"
else
    skip "no inject.so or resave"
fi
