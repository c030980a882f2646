#!/bin/sh
# interrupt_test.sh - a run that is ended in its middle, and two runs at once.
#
# The source is sparse: it takes no space, but 3 GB to write, which no disk does in a moment.
. "$(dirname "$0")/lib.sh"

if [ "$(df -Pk . | awk 'NR == 2 {print $4}')" -lt 5000000 ]; then
    for sentence in SIGINT SIGTERM SIGKILL "two at once"; do
        it "$sentence"
        skip "less than 5 GB of disk free"
    done
    exit 0
fi
synth_model m --layers 8 --hidden 4096 --heads 32 --ffn-hidden-size 12288 --sparse

# Does something with a conversion that has begun to write: when_writing DESTINATION COMMAND...
# It runs in the foreground, for a shell lets jobs in the background ignore SIGINT. COMMAND finds
# the process in $(cat pid).
when_writing() {
    destination=$1
    shift
    rm -f pid
    (
        for _ in $(seq 12000); do
            [ -n "$(find . -path "*.$destination.ferry-partial*" -size +1000k)" ] && break
            sleep 0.01
        done
        "$@"
    ) &
    # shellcheck disable=SC2016 # for the inner shell
    sh -c 'echo $$ >pid; exec "$@"' - "$ferry" convert m "$destination" --tp 2 --no-fsync \
        >"$stdout" 2>"$stderr"
    code=$? ran="ferry convert m $destination"
    wait
}

send() {
    kill "$1" "$(cat pid)"
}

try_the_same() {
    echo "$(cat pid) was writing" >first
    "$ferry" convert m twice --tp 2 >second 2>&1
    second_code=$?
    echo "$second_code" >second_code
    send -TERM
}

for signal in INT TERM; do
    it "SIG$signal ends with 130, and nothing that looks complete is there"
    when_writing "on_$signal" send "-$signal"
    exits 130
    says "interrupted"
    is_not_there "on_$signal"
    says "; the same command continues:"
    rm -r ".on_$signal.ferry-partial"
done

interrupts() {
    date +%s >sent
    send -INT
}

it "a first SIGINT is enough, and is heard in the middle of writing"
when_writing soon interrupts
exits 130
took=$(($(date +%s) - $(cat sent)))
[ "$took" -le 120 ] || is_wrong "it took $took seconds"
rm -rf .soon.ferry-partial

it "SIGKILL leaves nothing that looks complete, and the next run is not kept out by it"
when_writing killed send -KILL
exits 137
is_not_there killed
run convert m killed --dry-run
exits 0
synth_model small
run convert small killed
exits 0
nothing_partial_in .

it "a second run to the same destination is kept out while the first one lives"
when_writing twice try_the_same
exits 130
[ "$(cat second_code)" = 7 ] || is_wrong "the second: exit code $(cat second_code): $(cat second)"
grep -q busy second || is_wrong "the second does not say busy: $(cat second)"
