#!/bin/sh
# deaths_test.sh - a rank that dies, or is interrupted, while the others load or compute: the command
# ends soon, with its name and exit code, and leaves nothing behind. Without that it would go on for minutes.
#
# Loading takes long where tests/faults/inject.c makes reads slow; computing where the model is large.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"
build=$(dirname "$ferry")
ids=$root/tests/golden/hf/llama3.2/logits.safetensors

if [ ! -e "$build/inject.so" ]; then
    it "a death is noticed while the others load"
    skip "nothing makes reads slow here"
    exit
fi
synth_model m --layers 48 --hidden 256 --heads 8 --ffn-hidden-size 512 --vocab-size 1000

now_ms() {
    date +%s%3N
}

# The ranks that the process in the file pid has started, one a line.
children() {
    pgrep -P "$(cat pid)"
}

# when_busy SECONDS COMMAND SIGNAL ARGUMENT...: does COMMAND SIGNAL so long after ferry has begun, and
# started its ranks if it has --dp or --tp. $took: the milliseconds that ferry went on from there.
when_busy() {
    pause=$1 act=$2 signal=$3
    shift 3
    rm -f pid marked
    (
        case "$*" in *--[dt]p*) until [ -s pid ] && [ -n "$(children)" ]; do sleep 0.05; done ;; esac
        sleep "$pause"
        now_ms >marked
        $act "$signal"
    ) &
    # shellcheck disable=SC2016 # for the inner shell
    sh -c 'echo $$ >pid; exec "$@"' - "$ferry" "$@" >"$stdout" 2>"$stderr"
    code=$? ran="ferry $*"
    end=$(now_ms)
    wait
    took=$((end - $(cat marked)))
}

kill_a_child() {
    children | head -n 1 | xargs kill "$1"
}

kill_it() {
    kill "$1" "$(cat pid)"
}

ends_soon() {
    [ "$took" -ge 0 ] || is_wrong "$ran: it had ended before"
    [ "$took" -le 40000 ] || is_wrong "$ran: it went on for $took ms"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(pgrep -f "$ferry forward [mb]")" ] || break
        sleep 0.1
    done
    pgrep -f "$ferry forward [mb]" >left && is_wrong "$ran: processes are left: $(cat left)"
    is_not_there o
    nothing_partial_in .
}

# ---- while they load: each read of a tensor takes half a second ----

slowly() {
    LD_PRELOAD=$build/inject.so FERRY_SLOW=100000:500 when_busy 1 "$@"
}

for layout in "--dp 2" "--tp 2 --pp 2"; do
    it "a rank that is killed while the others load is named at once ($layout)"
    # shellcheck disable=SC2086 # words
    slowly kill_a_child -KILL forward m --input-ids "$ids" --out o $layout
    exits 9
    says "has died: signal 9"
    ends_soon

    it "a rank that is interrupted while the others load ends them ($layout)"
    # shellcheck disable=SC2086
    slowly kill_a_child -TERM forward m --input-ids "$ids" --out o $layout
    exits 130
    says "interrupted"
    ends_soon
done

it "rank 0 that is interrupted while it loads ends all"
slowly kill_it -INT forward m --input-ids "$ids" --out o --tp 2
exits 130
says "interrupted"
ends_soon

it "of one process that is killed while it loads nothing is left, nor of its ranks"
for name in KILL QUIT; do
    slowly kill_it "-$name" forward m --input-ids "$ids" --out o --tp 2
    [ "$code" -gt 128 ] || is_wrong "exit code $code"
    ends_soon
done

# ---- while they compute: one product takes seconds ----

"$ferry" synth -q big --model llama --layers 1 --hidden 2048 --heads 16 --ffn-hidden-size 12288 \
    --vocab-size 20000 --sparse || is_wrong "synth fails"

it "a rank that is killed while another computes is named at once"
when_busy 3 kill_a_child -KILL bench big --seq 6144 --repeats 100 --dp 2 --threads 2
exits 9
says "has died: signal 9"
ends_soon

it "rank 0 that is interrupted within a product does not finish it"
when_busy 3 kill_it -INT bench big --seq 6144 --repeats 100 --threads 2
exits 130
ends_soon

# ---- ranks of mpirun ----

if ! command -v mpirun >/dev/null || [ ! -e "$build/libferry_mpi.so" ]; then
    it "a rank of mpirun that fails while others load ends them"
    skip "no mpirun, or no libferry_mpi.so"
    exit
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

ranks_of_m() {
    pgrep -f "^$ferry forward m "
}

# mpi_when_busy SIGNAL: of two ranks that load, the last one gets the signal; $took: the milliseconds
# until there is none.
mpi_when_busy() {
    : >"$stderr"
    LD_LIBRARY_PATH=$build mpirun -np 2 -x LD_LIBRARY_PATH -x LD_PRELOAD="$build/inject.so" -x FERRY_SLOW=100000:500 \
        "$ferry" forward m --input-ids "$ids" --out o --tp 2 >"$stdout" 2>"$stderr" &
    mpirun=$! ran="mpirun ferry forward m"
    until grep -q loading "$stderr"; do sleep 0.1; done
    ranks_of_m | tail -n 1 | xargs kill "$1"
    start=$(now_ms)
    while [ -n "$(ranks_of_m)" ]; do sleep 0.05; done
    took=$(($(now_ms) - start))
    wait $mpirun
    code=$?
}

it "a rank of mpirun that is interrupted while others load ends them, and rank 0 says it"
mpi_when_busy -TERM
exits 130
[ "$(grep -c "^ferry forward: .*interrupted" "$stderr")" -eq 1 ] || is_wrong "$(cat "$stderr")"
ends_soon

it "a rank of mpirun that is killed while others load ends them"
mpi_when_busy -KILL
[ "$code" -ne 0 ] || is_wrong "exit code 0"
ends_soon
