#!/bin/sh
# finite_test.sh - elements that are NaN or infinite, and those that a cast makes so.
. "$(dirname "$0")/lib.sh"

# poke FILE BACK OCTAL... - overwrites bytes, so many before the file's end.
poke() {
    file=$1 back=$2
    shift 2
    # shellcheck disable=SC2059 # the bytes are the format
    printf "$*" | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - back)) conv=notrunc 2>/dev/null
}

# The last tensor of the file, of 64 elements, and the one before it. All in one file.
synth_model m --dtype float32 --vocab-size 1000
weights=m/model.safetensors
poke $weights 4 '\000\044\164\111'                     # 1e6, past the largest F16, 65504
poke $weights 8 '\000\340\177\307'                     # -65504
poke $weights 12 '\000\360\177\107'                    # 65520, the least that rounds to Inf
cp -r m bad
poke bad/model.safetensors 260 '\000\000\300\177'      # NaN
poke bad/model.safetensors 264 '\000\000\200\377'      # -Inf
cp -r m max
poke max/model.safetensors 4 '\377\377\177\177'        # the largest F32, which rounds to Inf in BF16

it "a cast that makes a finite value infinite is exit code 10: nothing is published, and it is said of which tensor"
for more in "" "--verify none" "--verify full" "--tp 2 --verify none"; do
    # shellcheck disable=SC2086 # words
    run convert m out --torch-dtype float16 --json $more
    exits 10
    says "out: 2 finite elements of 1 tensor are infinite as F16: "
    says " (2); nothing was published"
    says "the same command with --allow-overflow publishes the result"
    prints '"overflowed": {'
    is_not_there out
    is_there .out.ferry-partial/.ferry-journal
    rm -r .out.ferry-partial
done
run convert max out --torch-dtype bfloat16
exits 10
says "1 finite element of 1 tensor is infinite as BF16"
rm -r .out.ferry-partial

it "--allow-overflow publishes it, and ferry.json names the tensor"
run convert m allowed --torch-dtype float16 --allow-overflow --json
exits 0
says "note: 1 tensor with finite elements that the cast made infinite: "
tensor=$(sed -n '/"overflowed": {/{n;s/^ *//p;}' "$stdout")
[ -n "$tensor" ] || is_wrong "no tensor: $(cat "$stdout")"
grep -qF "$tensor" allowed/ferry.json || is_wrong "ferry.json lacks $tensor"
case $tensor in *": 2") ;; *) is_wrong "$tensor" ;; esac

it "what was refused is continued with --allow-overflow, and nothing is written again"
run convert m later --torch-dtype float16
exits 10
run convert m later --torch-dtype float16
exits 10
says "2 finite elements of 1 tensor"
run convert m later --torch-dtype float16 --allow-overflow --json
exits 0
grep -q '"read_bytes": 0,' "$stdout" || is_wrong "it has read the source again"
grep -qF "$tensor" "$stdout" || is_wrong "the counts are lost"
same_files later allowed
nothing_partial_in .

it "processes that share the work count together"
rm -rf shared
for rank in 1 0; do
    "$ferry" convert m shared --tp 2 --pp 2 --torch-dtype float16 --rank $rank --world-size 2 2>said-$rank &
    eval "pid_$rank=$!"
done
# shellcheck disable=SC2154 # by eval
wait "$pid_0"
code=$? ran="rank 0"
cp said-0 "$stderr"
exits 10
says "2 finite elements of 1 tensor are infinite as F16"
# shellcheck disable=SC2154
wait "$pid_1"
is_not_there shared
for rank in 1 0; do
    "$ferry" convert m shared --tp 2 --pp 2 --torch-dtype float16 --rank $rank --world-size 2 \
        --allow-overflow 2>said-$rank &
    eval "pid_$rank=$!"
done
wait "$pid_0"
code=$?
wait "$pid_1"
exits 0
grep -qF "$tensor" shared/iter_0000000/ferry.json || is_wrong "ferry.json lacks $tensor"

it "NaN and Inf of the source are noted, and carried"
for more in "" "--torch-dtype bfloat16" "--torch-dtype float16 --allow-overflow"; do
    rm -rf noted
    # shellcheck disable=SC2086 # words
    run convert bad noted $more --json
    exits 0
    says "note: 1 tensor with NaN or Inf in the source: "
    says " (2)"
    sed -n '/"non_finite": {/{n;s/^ *//p;}' "$stdout" >named
    grep -q ': 2$' named || is_wrong "$(cat named)"
    grep -qF "$(cat named)" noted/iter_0000000/ferry.json || is_wrong "ferry.json lacks $(cat named)"
done
run convert m fine
exits 0
grep -q "note: " "$stderr" && is_wrong "it notes what is not: $(cat "$stderr")"
run convert bad uncounted --verify none --json
exits 0
prints '"non_finite": null'
