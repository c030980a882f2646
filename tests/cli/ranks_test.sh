#!/bin/sh
# ranks_test.sh - several processes share a conversion, and one of them dies.
. "$(dirname "$0")/lib.sh"
synth_model m --layers 8 --hidden 256 --ffn-hidden-size 1024 --vocab-size 4000
layout="--pp 4 --pipeline-model-parallel-layout Et|t|tttt|ttL" # of two, rank 1 has stages 0 and 3
# shellcheck disable=SC2086 # words
"$ferry" convert -q m want $layout

# Rank $1 of $2, in the background; its exit code goes to the file rank-$1.
start() {
    rank=$1 size=$2
    shift 2
    (
        RANK=$rank WORLD_SIZE=$size "$ferry" convert "$@" >"said-$rank" 2>&1 </dev/null
        echo $? >"rank-$rank"
    ) &
}

# The same by a slow one, which is killed by kill_rank.
slow="strace -f -E ASAN_OPTIONS=detect_leaks=0 -o /dev/null -e trace=pwrite64 -e inject=pwrite64:delay_enter=30000"
start_slow() {
    rank=$1 size=$2
    shift 2
    (
        # shellcheck disable=SC2086 # words
        RANK=$rank WORLD_SIZE=$size $slow "$ferry" convert "$@" >"said-$rank" 2>&1 </dev/null
        echo $? >"rank-$rank"
    ) &
}

# Waits until a journal has at least one record.
until_noted() {
    tries=0
    until [ -s "$1" ] && [ "$(wc -c <"$1")" -gt 300 ]; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || is_wrong "nothing is noted in $1"
        [ $tries -lt 3000 ] || return 0
        sleep 0.1
    done
}

# Kills rank $1, whose lock is $2, in the middle of its work.
kill_rank() {
    rm -f "rank-$1"
    kill -9 "$(awk 'NR == 1 {print $2}' "$2")"
    while [ ! -e "rank-$1" ]; do sleep 0.1; done
}

# The exit codes of ranks 0 to $1 - 1 are $2.
all_exit() {
    wait
    rank=0
    while [ $rank -lt "$1" ]; do
        [ "$(cat "rank-$rank")" = "$2" ] || is_wrong "rank $rank: exit code $(cat "rank-$rank"), wanted $2: $(cat "said-$rank")"
        rank=$((rank + 1))
    done
}

nothing_private_in() {
    left=$(find "$1" -name '.ferry-*')
    [ -z "$left" ] || is_wrong "left behind: $left"
}

# Waits, at most 5 minutes, until a file has a line with this text.
until_it_says() {
    tries=0
    until grep -qs -e "$2" "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || is_wrong "$1 does not say '$2'"
        [ $tries -lt 3000 ] || return 0
        sleep 0.1
    done
}

it "any number of processes makes the same bytes, in any order, whatever the format"
for format in torch_dist torch hf; do
    options="--to $format"
    [ $format = hf ] || options="$options $layout"
    [ $format = hf ] && options="$options --max-shard-size 3MB"
    # shellcheck disable=SC2086 # words
    "$ferry" convert -q m "one_$format" $options
    for size in 2 3 8; do
        rm -f rank-*
        rank=$size
        while [ "$rank" -gt 0 ]; do
            rank=$((rank - 1))
            # shellcheck disable=SC2086 # words
            start $rank $size m "many_$format" $options
        done
        all_exit "$size" 0
        grep -q "^converted .* by $size processes, .* by rank 0, in " said-0 || is_wrong "rank 0 said $(cat said-0)"
        same_files "one_$format" "many_$format"
        nothing_private_in "many_$format"
        rm -r "many_$format"
    done
done
nothing_partial_in .

it "one process of one is as alone"
# shellcheck disable=SC2086 # words
RANK=0 WORLD_SIZE=1 run convert m alone $layout
exits 0
same_files alone want

it "their digests are those of one process, also where values are cast"
# shellcheck disable=SC2086 # words
run convert m cast --torch-dtype float16 --json $layout
exits 0
for rank in 1 0; do
    # shellcheck disable=SC2086 # words
    start $rank 2 m cast2 --torch-dtype float16 --json $layout
done
all_exit 2 0
same_files cast cast2
for what in digest tensors source_digest source_tensors; do
    for folder in cast cast2; do
        sed -n "/\"$what\": {/,/}/p" $folder/iter_0000000/ferry.json >$folder.$what
        [ -s $folder.$what ] || is_wrong "$folder has no $what"
    done
    cmp cast.$what cast2.$what || is_wrong "$what differs"
done
grep '"c.*_elements"' "$stdout" >casts
grep '"c.*_elements"' said-0 | cmp - casts || is_wrong "rank 0 counts $(grep _elements said-0), not $(cat casts)"

if command -v strace >/dev/null; then
    it "a rank that died is run again, and the others go on"
    # shellcheck disable=SC2086 # words
    start 0 2 m revived $layout
    # shellcheck disable=SC2086 # words
    start_slow 1 2 m revived --threads 1 --journal-every 1kB $layout
    until_noted .revived.ferry-partial/.ferry-journal-1
    kill_rank 1 .revived.ferry-partial/.ferry-lock-1
    until_it_says said-0 "rank 1 .* is dead: run its command again within 600 s"
    [ ! -e revived ] || is_wrong "published too early"
    # shellcheck disable=SC2086 # words
    start 1 2 m revived -v $layout
    all_exit 2 0
    same_files revived want
    nothing_private_in revived
    grep -q 'were kept from an interrupted run' said-1 || is_wrong "rank 1 began anew: $(cat said-1)"

    it "rank 0 that died is run again by the same command, and the others go on"
    # shellcheck disable=SC2086 # words
    start_slow 0 2 m back --threads 1 --journal-every 1kB $layout
    # shellcheck disable=SC2086 # words
    start 1 2 m back $layout
    until_it_says .back.ferry-partial/.ferry-lock-1 "done"
    until_noted .back.ferry-partial/.ferry-journal
    kill_rank 0 .back.ferry-partial/.ferry-lock
    until_it_says said-1 "rank 0 .* is dead: run its command again"
    # shellcheck disable=SC2086 # words
    start 0 2 m back $layout
    all_exit 2 0
    same_files back want
    nothing_private_in back
    grep -q 'were kept from an interrupted run' said-0 || is_wrong "rank 0 began anew: $(cat said-0)"

    it "rank 0 that died before it had done anything is run again, and the others go on"
    # shellcheck disable=SC2086 # words
    start_slow 0 2 m early --threads 1 --journal-every 1GiB $layout
    # shellcheck disable=SC2086 # words
    start 1 2 m early $layout
    until_it_says .early.ferry-partial/.ferry-lock-1 "done"
    kill_rank 0 .early.ferry-partial/.ferry-lock
    # shellcheck disable=SC2086 # words
    start 0 2 m early $layout
    all_exit 2 0
    same_files early want
    nothing_partial_in .

    it "all of them die, and the same commands continue each one's share"
    for rank in 0 1; do
        # shellcheck disable=SC2086 # words
        start_slow $rank 2 m all --threads 1 --journal-every 1kB $layout
    done
    until_noted .all.ferry-partial/.ferry-journal
    until_noted .all.ferry-partial/.ferry-journal-1
    kill_rank 0 .all.ferry-partial/.ferry-lock
    kill_rank 1 .all.ferry-partial/.ferry-lock-1
    is_not_there all
    for rank in 1 0; do
        # shellcheck disable=SC2086 # words
        start $rank 2 m all -v $layout
    done
    all_exit 2 0
    same_files all want
    grep -q 'were kept from an interrupted run' said-1 || is_wrong "rank 1 began anew: $(cat said-1)"
    grep -q 'continuing an interrupted run: ' said-0 || is_wrong "rank 0 does not say it: $(cat said-0)"
    kept=$(sed -n 's/^\(.*\) were kept from an interrupted run$/\1/p' said-0)
    grep -q "^continuing an interrupted run: ${kept%% *} of " said-0 || is_wrong "rank 0 kept $kept: $(cat said-0)"
    whole=$(sed -n 's/^target .* files*  \(.*\)  -> all$/\1/p' said-0)
    ! grep -q "^converted $whole by" said-0 || is_wrong "rank 0 counts what was kept: $(cat said-0)"

    it "the share of a rank that was done is not done again, whether that comes before rank 0 or after it has published"
    for late in 0 1; do
        rm -f rank-*
        # shellcheck disable=SC2086 # words
        start 1 2 m "done$late" $layout
        # shellcheck disable=SC2086 # words
        start_slow 0 2 m "done$late" --threads 1 --journal-every 1kB $layout
        until_it_says ".done$late.ferry-partial/.ferry-lock-1" "done"
        kill_rank 1 ".done$late.ferry-partial/.ferry-lock-1"
        kill_rank 0 ".done$late.ferry-partial/.ferry-lock"
        # shellcheck disable=SC2086 # words
        start $((1 - late)) 2 m "done$late" $layout
        [ $late -eq 0 ] || until_it_says rank-0 0
        # shellcheck disable=SC2086 # words
        start $late 2 m "done$late" $layout
        all_exit 2 0
        same_files "done$late" want
        nothing_private_in "done$late"
    done

    it "what all have done is discarded by rank 0 alone, and no rank works on the old"
    for rank in 1 0; do
        # shellcheck disable=SC2086 # words
        start_slow $rank 2 m new --threads 1 --journal-every 1kB $layout
    done
    until_noted .new.ferry-partial/.ferry-journal
    until_noted .new.ferry-partial/.ferry-journal-1
    kill_rank 0 .new.ferry-partial/.ferry-lock
    kill_rank 1 .new.ferry-partial/.ferry-lock-1
    for rank in 1 0; do # of other arguments: refused, by each of them
        start $rank 2 m new --pp 2
    done
    all_exit 2 7
    is_there .new.ferry-partial/.ferry-journal-1
    for rank in 1 0; do
        start $rank 2 m new -v --pp 2 --overwrite
    done
    all_exit 2 0
    grep -q 'discarding .* of an interrupted run with other arguments' said-0 || is_wrong "$(cat said-0)"
    "$ferry" convert -q m want2 --pp 2
    same_files new want2
    nothing_partial_in .

    it "an interrupt of all keeps what each has written, and the command is printed"
    for rank in 0 1; do
        (
            # shellcheck disable=SC2086 # words
            RANK=$rank WORLD_SIZE=2 strace -f -E ASAN_OPTIONS=detect_leaks=0 -o /dev/null -e trace=pwrite64 -e inject=pwrite64:delay_enter=100000 \
                "$ferry" convert m both --threads 1 $layout >said-$rank 2>&1
            echo $? >rank-$rank
        ) &
    done
    until_it_says .both.ferry-partial/.ferry-lock-1 "at work"
    sleep 0.8
    for lock in .ferry-lock-1 .ferry-lock; do
        kill -TERM "$(awk 'NR == 1 {print $2}' .both.ferry-partial/$lock)"
    done
    wait
    grep -qE '^(130|9)$' rank-0 || is_wrong "rank 0: $(cat rank-0): $(cat said-0)"
    grep -q ' are kept in .both.ferry-partial; the same command, run again by 2 processes, continues:' said-0 ||
        is_wrong "rank 0 says $(cat said-0)"
    grep -q "^  .*ferry convert m both --threads 1 " said-0 || is_wrong "no command: $(cat said-0)"
    is_there .both.ferry-partial/.ferry-journal .both.ferry-partial/.ferry-journal-1
    for rank in 1 0; do
        # shellcheck disable=SC2086 # words
        start $rank 2 m both -v $layout
    done
    all_exit 2 0
    for rank in 0 1; do
        grep -q 'were kept from an interrupted run' said-$rank || is_wrong "rank $rank began anew: $(cat said-$rank)"
    done
    same_files both want
else
    it "ranks that die"
    skip "strace, which slows them down, is not installed"
    cp -r want all
fi

it "what is complete is refused by rank 0 alone; with --resume, it is done for each of them"
for rank in 1 0; do
    # shellcheck disable=SC2086 # words
    start $rank 2 m all $layout
done
wait
[ "$(cat rank-0)" = 7 ] || is_wrong "rank 0: $(cat rank-0)"
[ "$(cat rank-1)" = 0 ] || is_wrong "rank 1: $(cat rank-1): $(cat said-1)"
for rank in 1 0; do
    # shellcheck disable=SC2086 # words
    start $rank 2 m all --resume $layout
done
all_exit 2 0
same_files all want

it "a rank that fails ends them all at once, and says why"
for rank in 0 1; do
    (
        trap '' XFSZ
        [ $rank -eq 0 ] || ulimit -f 10000
        # shellcheck disable=SC2086 # words
        RANK=$rank WORLD_SIZE=2 "$ferry" convert m failing $layout 2>said-$rank
        echo $? >rank-$rank
    ) &
done
wait
[ "$(cat rank-1)" = 4 ] || is_wrong "rank 1: exit code $(cat rank-1)"
[ "$(cat rank-0)" = 9 ] || is_wrong "rank 0: exit code $(cat rank-0)"
grep -q 'rank 1 (.*) failed: .*distcp.*File too large' said-0 || is_wrong "rank 0 says $(cat said-0)"
is_not_there failing

it "a rank that never comes is given up"
# shellcheck disable=SC2086 # words
RANK=0 WORLD_SIZE=3 run convert m lost --timeout 1 $layout
exits 9
says "rank 0: rank 1 of 3 is lost: no sign of life for 1 s"
# shellcheck disable=SC2086 # words
RANK=1 WORLD_SIZE=3 run convert m lost2 --timeout 1 $layout
exits 9
says "rank 0 did not start within 1 s"
is_not_there lost lost2

it "ranks that do not do the same are told so"
# shellcheck disable=SC2086 # words
start 0 2 m apart $layout
until_it_says .apart.ferry-partial/.ferry-lock "at work"
RANK=1 WORLD_SIZE=2 run convert m apart --tp 2
exits 9
says "rank 0 ("
says "runs another job"
RANK=1 WORLD_SIZE=3 run convert m apart
exits 9
kill_rank 0 .apart.ferry-partial/.ferry-lock
wait

it "two processes of one rank: the second is refused"
# shellcheck disable=SC2086 # words
start 0 3 m twice $layout
# shellcheck disable=SC2086 # words
start 1 3 m twice $layout
until_it_says .twice.ferry-partial/.ferry-lock-1 "done"
# shellcheck disable=SC2086 # words
RANK=1 WORLD_SIZE=3 run convert m twice $layout
exits 7
says "rank 1 is already running"
# shellcheck disable=SC2086 # words
start 2 3 m twice $layout
all_exit 3 0

it "what the launchers say is understood, and options come first"
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 run convert m other --timeout 0
exits 9
SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 run convert m other --timeout 0
exits 9
RANK=2 WORLD_SIZE=2 run convert m other
exits 2
RANK=1 WORLD_SIZE=2 run convert m other --world-size 1
exits 0
run convert m other2 --rank 1
exits 2
run convert m other2 --rank 1 --world-size 1
exits 2
# shellcheck disable=SC2086 # words
RANK=1 WORLD_SIZE=4 run convert m other2 --dry-run -v $layout
exits 0
says "ranks    1 of 4 writes 1 file, "

it "a rank of a run that is gone writes nothing into the next one"
if ! command -v strace >/dev/null; then
    skip "strace is not installed"
else
    synth_model other-m --seed 2 --layers 8 --hidden 256 --ffn-hidden-size 1024 --vocab-size 4000
    # shellcheck disable=SC2086 # words
    "$ferry" convert -q other-m other-want $layout
    # shellcheck disable=SC2086 # words
    rm -f rank-*
    # shellcheck disable=SC2086 # words
    start_slow 1 2 m orphan --threads 1 --no-fsync $layout
    # shellcheck disable=SC2086 # words
    start_slow 0 2 m orphan --threads 1 --no-fsync $layout
    until_it_says .orphan.ferry-partial/.ferry-lock-1 "at work"
    kill_rank 0 .orphan.ferry-partial/.ferry-lock
    # shellcheck disable=SC2086 # words
    run convert other-m orphan --no-fsync $layout
    exits 7
    says "busy: rank 1 of an earlier run ("
    rm -r .orphan.ferry-partial # as who does not believe it
    # shellcheck disable=SC2086 # words
    run convert other-m orphan --no-fsync $layout
    exits 0
    wait
    same_files orphan other-want
    [ "$(cat rank-1)" != 0 ] || is_wrong "rank 1 believes that it is done"
fi

it "a rank that was done and is started again while rank 0 publishes is done"
if ! command -v strace >/dev/null; then
    skip "strace is not installed"
else
    # rank 0 is slow to move its folder; rank 1, started again, to look at its own lock in it
    # shellcheck disable=SC2086 # words
    RANK=0 WORLD_SIZE=2 strace -f -E ASAN_OPTIONS=detect_leaks=0 -o /dev/null -e trace=renameat2 \
        -e inject=renameat2:delay_enter=4000000:when=2 \
        "$ferry" convert -q m again --no-fsync $layout 2>said-0 &
    rank_0=$!
    # shellcheck disable=SC2086 # words
    RANK=1 WORLD_SIZE=2 "$ferry" convert -q m again --no-fsync $layout 2>said-1 &
    rank_1=$!
    until_it_says .again.ferry-partial/.ferry-lock-1 "done"
    kill -9 $rank_1
    wait $rank_1
    # shellcheck disable=SC2086 # words
    RANK=1 WORLD_SIZE=2 run_program strace -f -E ASAN_OPTIONS=detect_leaks=0 -o /dev/null \
        -P .again.ferry-partial/.ferry-lock-1 -e trace=openat -e inject=openat:delay_enter=6000000:when=2 \
        "$ferry" convert -q m again --no-fsync $layout
    exits 0
    wait $rank_0 || is_wrong "rank 0 fails: $(cat said-0)"
    same_files again want
fi
