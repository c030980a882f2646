#!/bin/sh
# log_test.sh FERRY - the lines about checkpoints, read as a monitor of Megatron-LM's runs reads them, and where they
# are printed.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
enter log

# Nine steps, or fewer: goes OPTION...
goes() {
    train --mock-data --seq-length 16 --micro-batch-size 1 --global-batch-size 2 --train-iters 9 --lr 1e-3 \
        --lr-decay-style constant --log-interval 3 "$@"
}

# The patterns of monitors in the field: "KIND ITERATION DIR" of each line of a log.
events() { # FILE
    python3 - "$1" <<'EOF'
import re, sys
TIME = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] "
RANK = r"\[ t 1/(\d+), p 1/(\d+) \]"
PATTERNS = (
    ("loading", r" loading(?: distributed)? checkpoint from (?P<dir>\S+) at iteration (?P<n>\d+)"),
    ("loading", r" loading release(?: distributed)? checkpoint from (?P<dir>\S+)"),
    ("loaded", r"  successfully loaded checkpoint from (?P<dir>\S+) " + RANK + r" at iteration +(?P<n>\d+)"),
    ("saving", TIME + r"saving checkpoint at iteration +(?P<n>\d+) to (?P<dir>\S+) in \w+ format"),
    ("scheduled", "  " + TIME + r"scheduled an async checkpoint save at iteration +(?P<n>\d+) to (?P<dir>\S+)"),
    ("saved", "  " + TIME + r"successfully saved checkpoint from iteration +(?P<n>\d+) to (?P<dir>\S+) " + RANK),
    ("step", " " + TIME + r"iteration +(?P<n>\d+)/ +(?P<dir>\d+) \| .*"),
)
for line in open(sys.argv[1]).read().splitlines():
    for kind, pattern in PATTERNS:
        found = re.fullmatch(pattern, line)
        if found:
            print(kind, found.groupdict().get("n", "-"), found["dir"])
            break
    else:
        print("unknown", line)
EOF
}

# logs FILE LINE... - these lines and no other
logs() {
    file=$1
    shift
    got=$(events "$file") want=$(printf '%s\n' "$@")
    [ "$got" = "$want" ] || is_wrong "$ran: logs
$got
wanted
$want"
}

it "a monitor sees what a run loads and saves, and what the next one goes on from"
for layout in "" "--tp 2" "--pp 2" "--dp 2 --use-distributed-optimizer"; do
    rm -rf out
    # shellcheck disable=SC2086 # words
    goes --load "$models/llama" --save out --save-interval 4 --exit-interval 4 --eval-iters 0 $layout
    exits 0
    logs "$stdout" "loading - $models/llama" "loaded 0 $models/llama" "step 1 9" "step 3 9" "saving 4 out" "saved 4 out"
    # shellcheck disable=SC2086 # words
    goes --load "$models/llama" --save out --save-interval 4 --eval-iters 0 $layout
    exits 0
    logs "$stdout" "loading 4 out" "loaded 4 out" "step 5 9" "step 6 9" "saving 8 out" "saved 8 out" "step 9 9" \
        "saving 9 out" "saved 9 out"
done

it "the ranks of the run, and the iteration where it begins"
goes --load out --finetune --exit-interval 1 --tp 2 --pp 2 --sp
exits 0
prints "  successfully loaded checkpoint from out [ t 1/2, p 1/2 ] at iteration 0"
logs "$stdout" "loading 9 out" "loaded 0 out" "step 1 9"

it "a run from scratch loads nothing; each destination is named, in its format"
rm -rf out
goes --hf-config "$models/llama" --save out --ckpt-format torch --save-hf out-hf --exit-interval 2
exits 0
logs "$stdout" "step 1 9" "saving 2 out" "saving 2 out-hf" "saved 2 out" "saved 2 out-hf"
prints "to out in torch format"
prints "to out-hf in hf format"

it "an asynchronous save is logged when it is complete, while the run goes on"
rm -rf out
"$ferry" train --threads 1 --load "$models/llama" --mock-data --seq-length 16 --micro-batch-size 1 --train-iters 1000000 \
    --lr 1e-3 --save out --async-save --save-interval 100 --log-interval 100 >"$stdout" 2>"$stderr" </dev/null &
run=$! tries=0
until grep -q "successfully saved checkpoint from iteration *100 " "$stdout" || [ $tries -eq 6000 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -TERM $run
wait $run
events "$stdout" | grep " 100 " | head -n 4 >seen
printf '%s\n' "step 100 1000000" "saving 100 out" "scheduled 100 out" "saved 100 out" | diff - seen >difference ||
    is_wrong "$(cat difference)"
last=$(cat out/latest_checkpointed_iteration.txt)
[ "$(events "$stdout" | tail -n 1)" = "saved $last out" ] || is_wrong "saved $last, and printed $(tail -n 3 "$stdout")"

it "a save that fails is not said to be successful"
rm -rf out
mkdir -p out/iter_0000004 && : >out/iter_0000004/.metadata
goes --load "$models/llama" --save out --save-interval 4
exits 7
! grep -q "successfully saved" "$stdout" || is_wrong "$ran: $(cat "$stdout")"

it "with --json all lines go to stderr, with --quiet nothing else does; a dry run has none"
rm -rf out
goes --load "$models/llama" --save out --exit-interval 2 --json -q
exits 0
python3 -m json.tool "$stdout" >/dev/null || is_wrong "no JSON: $(cat "$stdout")"
logs "$stderr" "loading - $models/llama" "loaded 0 $models/llama" "step 1 9" "saving 2 out" "saved 2 out"
rm -rf out
goes --load "$models/llama" --save out --exit-interval 2 -q
exits 0
says_nothing
goes --load out --dry-run
exits 0
! grep -q " checkpoint from " "$stdout" || is_wrong "$ran: $(cat "$stdout")"

it "--progress has the modes of other commands: none unless given, a note in each line, the end of the run"
rm -rf out
goes --load "$models/llama" --save out --exit-interval 4
exits 0
! grep -q training "$stderr" || is_wrong "$ran: $(cat "$stderr")"
goes --load "$models/llama" --save out --progress json --eval-iters 0
exits 0
python3 - "$stderr" <<'EOF' || is_wrong "$ran: $(cat "$stderr")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
last = lines[-1]
assert last["event"] == "done" and last["what"] == "training" and "loading" in lines[0]["what"], lines
assert last["done_steps"] == last["total_steps"] == 9 and last["note"].startswith("loss "), last
EOF
goes --load "$models/llama" --progress none -q
exits 0
says_nothing
goes --load "$models/llama" --progress fast
exits 2
says '--progress: "fast" is not one of auto|bar|plain|json|none'
