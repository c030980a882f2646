#!/bin/sh
# ranks_test.sh FERRY - training runs of several ranks: the numbers and the weights of one rank, in f64; checkpoints
# that go on at another layout; ranks that are stopped or lost; mpirun.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
hf=$tests_folder/golden/hf
build=$(dirname "$ferry")

refused() { # EXIT_CODE MESSAGE
    exits "$1"
    says "$2"
    prints_nothing
}

# begins MODEL OPTION...: of 8 samples a step
begins() {
    model=$1
    shift
    train --load "$hf/$model" --mock-data --seq-length 16 --micro-batch-size 1 --global-batch-size 8 --train-iters 6 \
        --lr 1e-3 --lr-decay-style constant --weight-decay 0.1 --dtype f64 --log-interval 1 --log-params-norm \
        --eval-iters 2 --eval-interval 3 "$@"
}

# alone MODEL OPTION...: what one rank computes, in the folder one
alone() {
    rm -rf one.jsonl one one-hf
    begins "$@" --save one --save-hf one-hf --log-jsonl one.jsonl
    exits 0
    grep validation "$stdout" >one.validation
}

# is_one_rank MODEL OPTION...: a run of several ranks gives the same
is_one_rank() {
    rm -rf some.jsonl some some-hf
    begins "$@" --save some --save-hf some-hf --log-jsonl some.jsonl
    exits 0
    [ "$code" -eq 0 ] || return
    matches steps one.jsonl some.jsonl 1e-10 1e-10
    grep validation "$stdout" | cmp -s - one.validation || is_wrong "$ran: another validation loss"
    same_checkpoints one some --atol 1e-10
    same_checkpoints one-hf/iter_0000006 some-hf/iter_0000006 --atol 1e-10
    nothing_partial_in .
}

it "dense models at layouts of tensor, sequence and data parallelism"
for name in $(some gpt2 llama3.2 qwen3); do
    alone "$name"
    for layout in "--dp 2" "--tp 2" "--tp 2 --sequence-parallel" "--tp 2 --dp 2" \
        "--tp 2 --sequence-parallel --dp 4 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"; do
        # shellcheck disable=SC2086 # words
        ! tries 5 || is_one_rank "$name" $layout
    done
done
alone llama3.2 --use-distributed-optimizer
is_one_rank llama3.2 --use-distributed-optimizer --tp 2 --dp 2
is_one_rank llama3.2 --use-distributed-optimizer --pp 3 --dp 2

it "pipeline stages: in turn, interleaved, one by one, uneven"
alone qwen3
for layout in "--pp 2 --decoder-first-pipeline-num-layers 1" "--pp 3 --dp 2" \
    "--pp 2 --tp 2 --sequence-parallel --pipeline-model-parallel-layout Et|ttL" \
    "--pp 2 --pipeline-model-parallel-layout E|t|tt|L --recompute-granularity selective" \
    "--pp 2 --pipeline-model-parallel-layout E|t|tt|L --pipeline-schedule one-by-one" \
    "--pp 3 --pipeline-model-parallel-layout Ett||tL --pipeline-schedule one-by-one"; do
    # shellcheck disable=SC2086 # words
    ! tries 6 || is_one_rank qwen3 $layout
done

# The norm of gradients adds up other parts on each rank; without it nothing does.
it "stages change no bit of an update that is not clipped"
for layout in "" "--pp 3" "--pp 2 --pipeline-model-parallel-layout E|t|tt|L" "--pp 2 --decoder-first-pipeline-num-layers 1"; do
    rm -rf some
    # shellcheck disable=SC2086 # words
    begins llama3.1 --dtype f32 --clip-grad 0 --save some $layout
    exits 0
    [ -n "$layout" ] || mv some unclipped
    [ -z "$layout" ] || same_checkpoints unclipped some
done

it "the order of parts changes no bit"
rm -rf in-turn one-by-one in-turn.jsonl one-by-one.jsonl
for schedule in in-turn one-by-one; do
    [ $schedule = in-turn ] && more_options="" || more_options="--pipeline-schedule one-by-one"
    # shellcheck disable=SC2086 # words
    begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --save $schedule --log-jsonl $schedule.jsonl \
        $more_options
    exits 0
done
matches bits in-turn.jsonl one-by-one.jsonl
same_checkpoints in-turn one-by-one

it "experts at layouts of expert, tensor and data parallelism"
alone mixtral
grep -q '| load_balancing_loss: 0.000000E+00 | loss scale' "$stdout" || is_wrong "the loss without a coefficient"
for layout in "--ep 2" "--pp 2 --dp 2 --ep 2" "--dp 4 --ep 4" "--tp 2 --ep 2 --dp 2" "--tp 2 --ep 2 --etp 1" \
    "--tp 2 --sequence-parallel --dp 2 --ep 2 --etp 2 --recompute-granularity selective --recompute-modules moe"; do
    # shellcheck disable=SC2086 # words
    ! tries 6 || is_one_rank mixtral $layout
done
alone qwen3-moe --moe-aux-loss-coeff 0.01
for layout in "--dp 2 --ep 2" "--tp 2 --sequence-parallel --ep 2 --etp 1" "--tp 2" \
    "--tp 2 --sequence-parallel --dp 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"; do
    # shellcheck disable=SC2086 # words
    ! tries 4 || is_one_rank qwen3-moe --moe-aux-loss-coeff 0.01 $layout
done

it "losses of routers at these layouts"
routers="--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.01 --moe-z-loss-coeff 0.001"
# shellcheck disable=SC2086 # words
alone mixtral $routers
for layout in "--dp 2 --ep 2" "--tp 2" "--tp 2 --sequence-parallel --dp 2 --ep 2" "--dp 2 --calculate-per-token-loss"; do
    # shellcheck disable=SC2086 # words
    ! tries 4 || is_one_rank mixtral $routers $layout
done
grep -q 'lm loss: [^|]*| load_balancing_loss: 0.000000E+00 | seq_load_balancing_loss: [1-9][^|]*| z_loss: [1-9][^|]*| loss scale' "$stdout" || is_wrong "losses in the log"

it "per-token losses count the tokens of all ranks"
alone llama3.2 --calculate-per-token-loss
is_one_rank llama3.2 --calculate-per-token-loss --dp 2 --tp 2

it "a run goes on at another layout, and on one rank"
alone llama3.2
for format in torch_dist torch; do
    rm -rf saved log.jsonl
    begins llama3.2 --tp 2 --dp 2 --exit-interval 2 --save saved --ckpt-format $format --log-jsonl log.jsonl
    exits 0
    begins llama3.2 --pp 3 --exit-interval 2 --save saved --ckpt-format $format --log-jsonl log.jsonl
    exits 0
    says "the run resumes from saved/iter_0000002"
    says "the checkpoint has TP2 PP1 DP2"
    begins llama3.2 --save saved --ckpt-format $format --log-jsonl log.jsonl
    exits 0
    matches steps one.jsonl log.jsonl 1e-10 1e-10
    same_checkpoints one saved --atol 1e-10
done

it "the same layout goes on bit for bit, with the states of its random numbers"
rm -rf straight saved straight.jsonl log.jsonl
begins llama3.2 --tp 2 --dp 2 --save straight --log-jsonl straight.jsonl
exits 0
begins llama3.2 --tp 2 --dp 2 --exit-interval 3 --save saved --log-jsonl log.jsonl
begins llama3.2 --tp 2 --dp 2 --save saved --log-jsonl log.jsonl
exits 0
grep -q "states of random number generators" "$stderr" && is_wrong "states of random numbers began anew"
matches bits straight.jsonl log.jsonl
same_checkpoints straight saved

# begins_long NAME: on two stages, of two tensor and two data parallel ranks each
begins_long() {
    begins qwen3 --dtype f32 --tp 2 --pp 2 --dp 2 --decoder-first-pipeline-num-layers 1 --use-distributed-optimizer \
        --ddp-bucket-size 3000 --train-iters $((2 * half_steps)) --save-interval "$half_steps" --save "$1" \
        --log-jsonl "$1.jsonl"
}

# killed_half_way: a rank of that run, unless the run is faster
killed_half_way() {
    rm -rf killed killed.jsonl
    (begins_long killed && exit "$code") &
    shell=$!
    until [ -e killed/latest_checkpointed_iteration.txt ] || ! kill -0 $shell; do sleep 0.02; done
    pgrep -P "$(pgrep -P $shell)" | tail -n 1 | xargs kill -KILL
    wait $shell
    code=$?
}

it "pipeline stages that are killed after $half_steps of $((2 * half_steps)) steps go on bit for bit"
rm -rf straight straight.jsonl
begins_long straight
exits 0
code=0
for _ in 1 2 3 4 5; do
    [ $code -eq 9 ] || killed_half_way 2>/dev/null
done
exits 9
begins_long killed
exits 0
says "the run resumes from killed/iter_00000$half_steps"
matches bits straight.jsonl killed.jsonl
same_checkpoints straight killed

# is_same_sharded MODEL OPTION...: with sharded states a run gives the same bits; a checkpoint of either goes on as
# either. Buckets are small, so that there are several.
is_same_sharded() {
    model=$1
    shift
    rm -rf whole shard mixed whole.jsonl shard.jsonl mixed.jsonl
    begins "$model" --ddp-bucket-size 3000 "$@" --save whole --log-jsonl whole.jsonl
    exits 0
    begins "$model" --ddp-bucket-size 3000 "$@" --save shard --log-jsonl shard.jsonl --use-distributed-optimizer
    exits 0
    begins "$model" --ddp-bucket-size 3000 "$@" --save mixed --log-jsonl mixed.jsonl --exit-interval 2
    begins "$model" --ddp-bucket-size 3000 "$@" --save mixed --log-jsonl mixed.jsonl --exit-interval 2 \
        --use-distributed-optimizer
    begins "$model" --ddp-bucket-size 3000 "$@" --save mixed --log-jsonl mixed.jsonl
    exits 0
    for other in shard mixed; do
        matches bits whole.jsonl $other.jsonl
        same_checkpoints whole $other
    done
    nothing_partial_in .
}

it "states that are sharded over data parallel ranks give the same bits, and go on with or without them"
! tries 5 || is_same_sharded llama3.2 --dtype bf16 --dp 2
! tries 5 || is_same_sharded llama3.2 --dtype bf16 --tp 2 --dp 2 --ckpt-format torch
! tries 5 || is_same_sharded qwen3 --dtype fp16 --loss-scale 1024 --tp 2 --sequence-parallel --dp 4
! tries 5 || is_same_sharded mixtral --dtype bf16 --tp 2 --ep 2 --etp 1 --dp 2
! tries 5 || is_same_sharded gpt2 --optimizer sgd --dtype bf16 --dp 3 --global-batch-size 9

# begins_small OPTION...: from scratch, with six rows of padding that are trained
begins_small() {
    train --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 \
        --vocab-size 250 --mock-data --micro-batch-size 1 --global-batch-size 4 --train-iters 6 --lr 1e-2 --bf16 \
        --lr-decay-style constant --hidden-dropout 0 --attention-dropout 0 --eval-iters 0 --log-interval 1 --tp 2 --dp 2 \
        --ddp-bucket-size 2000 "$@"
    exits 0
}

it "so do those of a run from scratch, with rows of padding"
rm -rf whole shard whole.jsonl shard.jsonl
begins_small --save whole --log-jsonl whole.jsonl
begins_small --save shard --log-jsonl shard.jsonl --use-distributed-optimizer --exit-interval 3
begins_small --save shard --log-jsonl shard.jsonl --use-distributed-optimizer
matches bits whole.jsonl shard.jsonl
same_checkpoints whole shard

it "sharded states go on at another number of data parallel ranks, and on one"
alone llama3.2
for format in torch_dist torch; do
    rm -rf saved log.jsonl
    begins llama3.2 --tp 2 --dp 2 --use-distributed-optimizer --ddp-bucket-size 3000 --exit-interval 2 --save saved \
        --ckpt-format $format --log-jsonl log.jsonl
    exits 0
    begins llama3.2 --dp 4 --use-distributed-optimizer --ddp-bucket-size 1000 --exit-interval 2 --save saved \
        --ckpt-format $format --log-jsonl log.jsonl
    exits 0
    begins llama3.2 --save saved --ckpt-format $format --log-jsonl log.jsonl
    exits 0
    matches steps one.jsonl log.jsonl 1e-10 1e-10
    same_checkpoints one saved --atol 1e-10
done

# megabytes_of PART: of the memory that a dry run has printed
megabytes_of() {
    sed -n "s/^  $1 *\([0-9.]*\) MB$/\1/p" "$stdout"
}

it "sharded states take their part of the memory"
rm -rf saved
begins llama3.2 --dtype bf16 --dp 4 --dry-run
whole=$(megabytes_of masters)
begins llama3.2 --dtype bf16 --dp 4 --use-distributed-optimizer --dry-run
for part in masters "first moments" "second moments"; do
    [ "$(megabytes_of "$part")" = "$(echo "$whole" | awk '{printf "%.2f", $1 / 4}')" ] ||
        is_wrong "$part: $(megabytes_of "$part") MB of $whole"
done
begins llama3.2 --dtype bf16 --use-distributed-optimizer --dry-run
[ "$(megabytes_of masters)" = "$whole" ] || is_wrong "one rank: $(megabytes_of masters) MB of $whole"
begins llama3.2 --dtype bf16 --dp 4 --use-distributed-optimizer --num-distributed-optimizer-instances 2 --dry-run
says "--num-distributed-optimizer-instances 2 is ignored: states are sharded over all data parallel ranks"

it "--keep-last, --no-save-optim and --async-save"
rm -rf kept
begins llama3.2 --dp 2 --save kept --save-interval 1 --keep-last 2 --no-save-optim --async-save
exits 0
says "--async-save is ignored: with several ranks training waits for each save"
[ "$(cd kept && echo iter_*)" = "iter_0000005 iter_0000006" ] || is_wrong "kept: $(ls kept)"
run inspect kept --json
! grep -q exp_avg "$stdout" || is_wrong "there is an optimizer"

it "the parts of a rank's memory add up to what is compared"
adds_up() { # RANKS
    python3 - "$stdout" "$1" <<'EOF' || is_wrong "$ran: $(cat "$stdout")"
import re, sys
text = open(sys.argv[1]).read()
parts = [float(x) for x in re.findall(r"^  [a-z ]+? +([0-9.]+) MB$", text, re.M)]
total = parts.pop()
assert abs(sum(parts) - total) < 0.05 and len(parts) > 5, parts
fits, given = re.search(r"^fits: .* takes ([0-9.]+) MB of ([0-9.]+) MB$", text, re.M).groups()
assert abs(float(fits) - total) < 0.05 and given == "900", fits
ranks = int(sys.argv[2])
whole = re.search(r"^memory of all (\d+) ranks: ([0-9.]+) MB$", text, re.M)
assert ranks == 1 and not whole or whole[1] == sys.argv[2] and abs(float(whole[2]) - ranks * total) < 0.5, whole
EOF
}
begins llama3.2 --dry-run --memory-per-rank 0.9
adds_up 1
prints "fits: the run takes "
begins llama3.2 --dry-run --memory-per-rank 0.9 --async-save --save other
adds_up 1
begins llama3.2 --dry-run --memory-per-rank 0.9 --tp 2
adds_up 2
prints "fits: a rank takes "

it "a dry run starts no ranks, and says what each takes"
begins llama3.2 --tp 2 --dp 64 --global-batch-size 64 --dry-run
exits 0
grep -q "^layout: TP2, 128 ranks; DP64" "$stdout" || is_wrong "no layout: $(cat "$stdout")"
grep -q "^memory of each rank:" "$stdout" || is_wrong "no memory: $(cat "$stdout")"
prints "  TP             2 ranks, such as 0 1 "
prints "  DP            64 ranks, such as 0 2 4 .. 126 "
prints "schedule: 1 micro-batch"
begins llama3.2 --dry-run
prints "schedule: 8 micro-batches, one after another"
! grep -q "^groups" "$stdout" || is_wrong "groups of one rank: $(cat "$stdout")"

# plan EXPRESSION: holds for j, what the dry run has printed as JSON
plan() {
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); assert eval(sys.argv[2]), j' "$stdout" "$1" ||
        is_wrong "$1"
}

it "a dry run says what each pipeline stage takes, and compares the one that takes most"
begins qwen3 --pp 4 --tp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run --json
exits 0
plan '[s["layers"] for s in j["stages"]] == [[], [0], [1, 2], []]'
plan '[s["embedding"] for s in j["stages"]] == [True, False, False, False]'
plan '[s["loss"] for s in j["stages"]] == [False, False, False, True]'
plan '[(s["first_rank"], s["ranks"]) for s in j["stages"]] == [(0, 2), (2, 2), (4, 2), (6, 2)]'
plan 'j["stages"][2]["parameters"] == 2 * j["stages"][1]["parameters"]'
plan 'j["stages"][0]["parameters"] == j["parameters"] == 272 // 2 * 48'
plan 'j["stages"][0]["peak_device"] == j["memory_bytes"][0]["peak_device"]'
plan 'all(s["peak_device"] == sum(s[k] for k in ("weights", "gradients", "states", "saved", "rest")) for s in j["stages"])'
plan '[g["name"] for g in j["groups"]] == ["TP", "PP", "embedding"]'
plan '[g["ranks"] for g in j["groups"]] == [[0, 1], [0, 2, 4, 6], [0, 6]]'
stream=$((16 * 48 * 8)) # bytes of a micro-batch between stages
plan "[s['sent']['PP'] for s in j['stages']] == [8 * $stream, 16 * $stream, 16 * $stream, 8 * $stream]"
plan '[s["sent"]["embedding"] > 0 for s in j["stages"]] == [True, False, False, True]'
plan 'j["schedule"]["name"] == "1f1b" and j["schedule"]["micro_batches"] == 8'
plan 'abs(j["schedule"]["bubble"] - 3 / 11) < 1e-12'
plan 'j["needed_per_rank"] == max(s["peak_device"] for s in j["stages"]) <= j["available_per_rank"]'
most=$(python3 -c 'import json, sys; print("%.9f" % (max(s["peak_device"] for s in json.load(open(sys.argv[1]))["stages"]) / 1e9))' "$stdout")
first=$(python3 -c 'import json, sys; print("%.9f" % (json.load(open(sys.argv[1]))["stages"][0]["peak_device"] / 1e9))' "$stdout")
[ "$most" != "$first" ] || is_wrong "stage 0 takes most"
begins qwen3 --pp 4 --tp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run --memory-per-rank "$first"
exits 6
says "each rank of pipeline stage 2 needs"
begins qwen3 --pp 4 --tp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run --memory-per-rank "${most}1"
exits 0
grep -Eq "^ +0  0-1 +E " "$stdout" || is_wrong "no stage 0: $(cat "$stdout")"
grep -Eq "^ +2  4-5 +1-2 " "$stdout" || is_wrong "no stage 2: $(cat "$stdout")"
grep -Eq "^ +3  6-7 +L " "$stdout" || is_wrong "no stage 3: $(cat "$stdout")"
prints "  embedding      2 ranks, such as 0 6 "
prints "memory of all 8 ranks: "
prints "fits: the largest rank takes "
prints "schedule: 1f1b, 8 micro-batches, bubble 27.3%"
# The advice fits all stages: the memory is just enough for stage 2, with one sample at a time.
begins qwen3 --pp 4 --tp 2 --pipeline-model-parallel-layout "E|t|tt|L" --micro-batch-size 4 --dry-run --memory-per-rank "${most}1"
exits 6
says "; --micro-batch-size 1 fits ("
begins qwen3 --pp 4 --tp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run
cat >expected <<'TEXT'
  stage 0   0 1 2 3             [0] 4 [1] 5 [2] 6 [3] 7 [4]   [5]   [6]   [7]
  stage 1     0 1 2         [0] 3 [1] 4 [2] 5 [3] 6 [4] 7 [5]   [6]   [7]
  stage 2       0 1     [0] 2 [1] 3 [2] 4 [3] 5 [4] 6 [5] 7 [6]   [7]
  stage 3         0 [0] 1 [1] 2 [2] 3 [3] 4 [4] 5 [5] 6 [6] 7 [7]
TEXT
grep "^  stage [0-9] " "$stdout" | diff expected - || is_wrong "another timeline"

it "a dry run draws the timeline of an interleaved schedule"
rm -f drawn.svg
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --global-batch-size 4 --dry-run --timeline drawn.svg
exits 0
prints "schedule: interleaved, 4 micro-batches, bubble 11.1%"
cat >expected <<'TEXT'
  stage 0   0a 1a 0b 1b 2a    [ 0b]    3a [ 1b] 2b [ 0a] 3b [ 1a] [ 2b]    [ 3b] [ 2a] [ 3a]
  stage 1      0a 1a 0b [ 0b] 1b [ 1b] 2a [ 0a] 3a [ 1a] 2b [ 2b] 3b [ 3b] [ 2a] [ 3a]
TEXT
grep "^  stage [0-9] " "$stdout" | diff expected - || is_wrong "another timeline"
prints "  (0: forward of micro-batch 0; [0]: backward, twice as long; blank: waiting; a, b ..: chunk)"
# drawing FILE STAGES CHUNKS MICRO_BATCHES BUBBLE: all actions of the timeline, and what they mean
drawing() {
    python3 - "$@" <<'EOF' || is_wrong "$ran: $1"
import sys, xml.dom.minidom
d = xml.dom.minidom.parse(sys.argv[1])
stages, chunks, batches = map(int, sys.argv[2:5])
def texts(name):
    return ["".join(x.data for x in e.childNodes) for e in d.getElementsByTagName(name)]
left, top, width, height = map(int, d.documentElement.getAttribute("viewBox").split())
assert (left, top) == (0, 0) and not d.documentElement.hasAttribute("width"), "it is not scaled"
assert texts("title")[0] in texts("text"), texts("title")
assert texts("title")[0].endswith("%d stages, %d micro-batches, bubble %s of the time" % (stages, batches, sys.argv[5]))
assert "prefers-color-scheme: dark" in texts("style")[0]
words = texts("text")
for word in ["forward", "backward", "waiting (bubble)"] + ["stage %d" % i for i in range(stages)]:
    assert words.count(word) == 1, word
ticks = [int(w) for e, w in zip(d.getElementsByTagName("text"), words) if e.getAttribute("class") == "tick"]
assert ticks[0] == 0 and ticks == sorted(ticks) and 1 < len(ticks) <= 21, ticks
letters = "ab"[:chunks] if chunks > 1 else [""]
for letter in letters:
    assert chunks == 1 or words.count(letter) == 2, "the legend lacks a chunk"
    for batch in range(batches):
        n = sum(w == "%d%s" % (batch, letter) for w in words) - (chunks == 1 and ticks.count(batch))
        assert n == 2 * stages, (batch, letter, n)
for e in d.getElementsByTagName("rect")[1:]:
    assert float(e.getAttribute("x")) + float(e.getAttribute("width")) <= width, e.toxml()
    assert float(e.getAttribute("y")) + float(e.getAttribute("height")) <= height, e.toxml()
EOF
}
drawing drawn.svg 2 2 4 11.1%
# The bubble is (stages - 1) / (micro-batches + stages - 1).
for shape in "2 8 11.1% Et|ttL" "4 8 27.3% E|t|tt|L" "4 24 11.1% E|t|tt|L"; do
    # shellcheck disable=SC2086 # words
    set -- $shape
    rm -f plain.svg
    begins qwen3 --pp "$1" --pipeline-model-parallel-layout "$4" --global-batch-size "$2" --dry-run --timeline plain.svg
    exits 0
    drawing plain.svg "$1" 1 "$2" "$3"
done
nothing_partial_in .
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run --timeline drawn.svg
exits 7
says "--timeline: drawn.svg: exists already"
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run --timeline nowhere/drawn.svg
exits 4
says "--timeline: nowhere/drawn.svg: folder nowhere does not exist"
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --timeline other.svg
refused 2 "--timeline needs --dry-run"
begins qwen3 --dp 2 --dry-run --timeline other.svg
refused 2 "--timeline needs --pipeline-model-parallel-size above 1"
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --dry-run --timeline ""
refused 2 "--timeline is empty"
[ ! -e other.svg ] || is_wrong "other.svg is there"

# starts_long NAME OPTION...: a run without end, of llama3.2; its process is $run. With $slow, which is FERRY_SLOW of
# faults/inject.c, it reads slowly.
slow=''
starts_long() {
    name=$1
    shift
    rm -rf "$name"
    : >"$stdout" # which the process does too late for who looks at once
    env ${slow:+"LD_PRELOAD=$inject" "FERRY_SLOW=$slow"} "$ferry" train --threads 1 --load "$hf/llama3.2" --mock-data --seq-length 16 --micro-batch-size 1 \
        --global-batch-size 8 --train-iters 1000000 --lr 1e-3 --lr-decay-style constant --weight-decay 0.1 --dtype f64 \
        --log-interval 1 --save "$name" "$@" >"$stdout" 2>"$stderr" </dev/null &
    run=$! ran="train --save $name $*"
}

# waits_for COMMAND...: until it succeeds, or for five minutes
waits_for() {
    tries=0
    until "$@" || [ $tries -eq 6000 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}

has_iterations() { # NUMBER
    [ "$(grep -c 'iteration .*/' "$stdout")" -ge "$1" ]
}

has_ranks() {
    [ -n "$(pgrep -P "$run")" ]
}

now_ms() {
    date +%s%3N
}

is_over() {
    ! grep -q "^State:.[^Z]" "/proc/$run/status" 2>/dev/null
}

ended() {
    waits_for is_over
    is_over || kill -KILL $run
    wait $run
    code=$?
}

# One rank, at a moment that is drawn. Not rank 0, which speaks for all.
loses_a_rank() {
    sleep "0.$(shuf -n 1 -i 0-3)$(shuf -n 1 -i 0-9)"
    others=$(pgrep -P $run)
    began=$(now_ms)
    # shellcheck disable=SC2086 # words
    kill -KILL "$(shuf -n 1 -e $others)"
    ended
    took=$(($(now_ms) - began))
    exits 9
    says "has died: signal 9"
    [ "$(grep -c "^ferry" "$stderr")" -eq 1 ] || is_wrong "$ran: not one message: $(cat "$stderr")"
    [ "$took" -lt 120000 ] || is_wrong "$ran: it ended after $took ms"
    for process in $others; do
        ! kill -0 "$process" 2>/dev/null || is_wrong "$ran: ranks are left"
    done
}

# The last checkpoint is whole, and the run resumes from it: goes_on NAME OPTION...
goes_on() {
    name=$1
    shift
    run inspect "$name"
    exits 0
    last=$(cat "$name/latest_checkpointed_iteration.txt")
    begins llama3.2 --save "$name" --train-iters 1000000 --exit-interval 2 "$@"
    exits 0
    grep -q "iteration *$((last + 1))/" "$stdout" || is_wrong "$ran: after $last it printed $(cat "$stdout")"
    nothing_partial_in .
}

for layout in "--tp 2 --dp 2" "--pp 3 --dp 2 --use-distributed-optimizer"; do
    it "a signal to rank 0 ends all after the same iteration, which is saved: $layout"
    # shellcheck disable=SC2086 # words
    starts_long stopped $layout
    waits_for has_iterations 3
    kill -TERM $run
    ended
    exits 130
    says "which is saved"
    last=$(cat stopped/latest_checkpointed_iteration.txt)
    grep "/ *1000000 |" "$stdout" | tail -n 1 | grep -q "iteration *$last/" || is_wrong "saved $last, and printed $(tail "$stdout")"
    nothing_partial_in .

    it "a rank that is killed while all save ends them, and the last checkpoint is whole: $layout"
    # shellcheck disable=SC2086 # words
    starts_long killed --save-interval 1 $layout
    waits_for has_iterations 3
    loses_a_rank
    # shellcheck disable=SC2086 # words
    goes_on killed $layout
done

it "a rank that is killed while all train ends them"
starts_long killed --pp 3
waits_for has_iterations 3
loses_a_rank
is_not_there killed

it "a rank that is killed while all load ends them"
if can_inject; then
    slow=1000:500
    starts_long killed --pp 3
    slow=''
    waits_for has_ranks
    loses_a_rank
    ! has_iterations 1 || is_wrong "it had loaded before"
    is_not_there killed
else
    skip "nothing makes reads slow here"
fi

it "a full disk while ranks save is said once, and the run goes on"
if can_inject; then
    for layout in "--tp 2" "--pp 3" "--pp 3 --dp 2 --use-distributed-optimizer"; do
        rm -rf full
        fault=pwrite:ENOSPC:2 # the first is the lock of --save
        # shellcheck disable=SC2086 # words
        begins llama3.2 $layout --save-interval 2 --save full
        fault=''
        exits 0
        says "warning: iteration 2 is not saved: .ferry-lock: " # which rank 0 writes first
        says "warning: iteration 4 is not saved: rank 1: "
        [ "$(grep -c "iteration 2 is not saved" "$stderr")" -eq 1 ] || is_wrong "said by several ranks: $(cat "$stderr")"
        same_checkpoints one full --no-optim --atol 1e-10
        nothing_partial_in .
    done
else
    skip "no inject.so"
fi

it "a vocabulary that TP does not divide is saved without rows of padding, which would count"
"$ferry" synth -q --model llama --vocab-size 269 odd || is_wrong "no model"
own=$hf hf=.
alone odd
rm -rf saved log.jsonl
begins odd --tp 2 --exit-interval 3 --save saved --log-jsonl log.jsonl
exits 0
says "saving checkpoints as TP1: TP2 does not divide the 269 rows of the vocabulary"
begins odd --tp 2 --dp 2 --save saved --log-jsonl log.jsonl
exits 0
matches steps one.jsonl log.jsonl 1e-10 1e-10
same_checkpoints one saved --atol 1e-10
hf=$own

it "layouts that do not divide are refused"
begins llama3.2 --tp 3
refused 3 "num_attention_heads 4 is not divisible by tensor parallel size 3"
begins llama3.2 --dp 3
refused 2 "is not a multiple of --micro-batch-size 1 times 3 data parallel ranks"
begins llama3.2 --dp 128 --global-batch-size 128 --eval-iters 0
refused 2 "128 ranks on one machine: expected 1 to 64"
begins llama3.2 --tp 70000
refused 2 "the layout has a size of 70000, above the maximum of 65536"
begins mixtral --dp 2 --ep 8
refused 3 "num_experts 4 is not divisible by expert parallel size 8"
begins llama3.2 --pp 2
refused 3 "number of layers 3 is not divisible by pipeline size 2"
begins qwen3 --pp 2 --pipeline-model-parallel-layout "Et|tt|L"
refused 3 "the pipeline layout has 3 stages, pipeline size is 2"
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --global-batch-size 3
refused 2 "schedule interleaved: 3 micro-batches in groups of 2 leave 1, fewer than the 2 pipeline stages"
! grep -q "rank [0-9]" "$stderr" || is_wrong "ranks were started: $(cat "$stderr")"
begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --global-batch-size 3 --dry-run
refused 2 "schedule interleaved: 3 micro-batches in groups of 2 leave 1, fewer than the 2 pipeline stages"
for more in "" --dry-run; do
    # shellcheck disable=SC2086 # words
    begins llama3.2 --tp 4 $more
    refused 3 "tensor parallel size 4 exceeds num_query_groups 2: not supported in training"
    ! grep -q "rank [0-9]" "$stderr" || is_wrong "ranks were started: $(cat "$stderr")"
done
begins llama3.2 --cp 2
refused 2 "training with context parallelism is not supported"
begins mixtral --tp 2 --moe-aux-loss-coeff 0.01 --seq-length 15
refused 3 "a micro-batch of 15 tokens is not a multiple of TP 2: routers would count the padding"
begins mixtral --tp 2 --moe-z-loss-coeff 0.01 --seq-length 15
refused 3 "a micro-batch of 15 tokens is not a multiple of TP 2: routers would count the padding"

if command -v mpirun >/dev/null && [ -e "$build/libferry_mpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export LD_LIBRARY_PATH="$build" ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
    real=$ferry
    # As many ranks as $ranks of mpirun: they take the place of ferry.
    # shellcheck disable=SC2016 # for that script
    printf '#!/bin/sh\nexec timeout 300 mpirun -np "$ranks" "%s" "$@"\n' "$real" >mpi-ferry
    chmod +x mpi-ferry
    it "ranks of mpirun are data parallel, as far as the layout leaves them"
    alone llama3.2
    ferry=$PWD/mpi-ferry ranks=4
    export ranks
    rm -rf some some.jsonl
    begins llama3.2 --tp 2 --save some --log-jsonl some.jsonl
    exits 0
    [ "$(grep -c "note: the folder describes the model" "$stderr")" -eq 1 ] || is_wrong "each rank says it"
    ferry=$real
    matches steps one.jsonl some.jsonl 1e-10 1e-10
    same_checkpoints one some --atol 1e-10
    it "ranks of mpirun are pipeline stages, interleaved, with sharded states"
    alone qwen3 --use-distributed-optimizer
    ferry=$PWD/mpi-ferry
    rm -rf some some.jsonl
    begins qwen3 --pp 2 --pipeline-model-parallel-layout "E|t|tt|L" --use-distributed-optimizer --ddp-bucket-size 3000 \
        --save some --log-jsonl some.jsonl
    exits 0
    ferry=$real
    matches steps one.jsonl some.jsonl 1e-10 1e-10
    grep validation "$stdout" | cmp -s - one.validation || is_wrong "another validation loss"
    same_checkpoints one some --atol 1e-10
    nothing_partial_in .

    # differ OPTIONS OPTIONS: of two ranks
    differ() {
        # shellcheck disable=SC2086 # words
        run_program timeout 300 mpirun -np 1 "$real" $small $1 : -np 1 "$real" $small $2
        exits 2
        prints_nothing
        is_not_there some
    }
    small="train --load $hf/llama3.2 --mock-data --seq-length 16 --micro-batch-size 1 --train-iters 3 --threads 1 --save some"
    it "ranks of mpirun that were told different things are refused, with what differs"
    rm -rf some
    differ "--lr 1e-3" "--lr 2e-3"
    says "ferry train: rank 1 has another command line than rank 0 (here: --lr 1e-3)"
    differ "--lr 1e-3 --train-iters 4" "--lr 1e-3 --train-iters 5"
    says "ferry train: rank 1 has another command line than rank 0 (here: --train-iters 4)"
    differ "--lr 1e-3" "--lr 1e-3 --bf16"
    says "ferry train: rank 1 has another command line than rank 0 (here: its end)"
    differ "--lr 1e-3 --pp 1" "--lr 1e-3 --pp 2"
    says "ferry train: rank 1 has another command line than rank 0 (here: --pp 1)"
    differ "--lr 1e-3" "--min-lr 1e-3"
    says "--lr is missing"
    echo 'lr: 1e-3' >recipe0
    echo 'lr: 2e-3' >recipe1
    # shellcheck disable=SC2016,SC2086 # for the inner shell; words
    run_program timeout 300 mpirun -np 2 sh -c 'exec "$@" 3<recipe$OMPI_COMM_WORLD_RANK' - "$real" $small \
        --config /proc/self/fd/3
    exits 2
    says "ferry train: rank 1 has another --config /proc/self/fd/3 than rank 0 (here: --lr=1e-3)"
    is_not_there some

    it "ranks of mpirun that find another model under the same name are refused"
    cp -r "$hf/llama3.2" model0
    cp -r "$hf/llama3.2" model1
    chmod -R u+w model1
    sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 123.0/' model1/config.json
    # shellcheck disable=SC2016 # for the inner shell
    run_program timeout 300 mpirun -np 2 sh -c 'exec "$@" 3<model$OMPI_COMM_WORLD_RANK' - "$real" train \
        --load /proc/self/fd/3 --mock-data --seq-length 16 --micro-batch-size 1 --train-iters 3 --lr 1e-3 --threads 1 \
        --save some
    exits 2
    says "ferry train: rank 1 has another model than rank 0: they do not see the same files"
    prints_nothing
    is_not_there some

    it "ranks that MPI does not know of each other are told what to do"
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 begins llama3.2 --save some
        refused 2 "rank $rank of 2 in the environment, but rank 0 of 1 in MPI"
        says "mpirun or srun (--mpi=pmix) instead of torchrun, or unset RANK and WORLD_SIZE"
        is_not_there some
    done

    it "another number of ranks of mpirun than the layout's is refused"
    ferry=$PWD/mpi-ferry ranks=3
    begins llama3.2 --tp 2
    refused 2 "the launcher started 3 ranks, but the layout has TP 2"
    ferry=$real
else
    it "ranks of mpirun are data parallel, as far as the layout leaves them"
    skip "no mpirun, or no libferry_mpi.so"
fi
