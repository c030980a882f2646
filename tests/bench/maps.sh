#!/bin/sh
# maps.sh FERRY [OTHER] - what model maps cost: their length, the time to load and prove all of them, and the time to
# plan a large model of a family with many rows, beside one of a family with few, which the build OTHER plans, too.
set -eu
ferry=$(realpath "$1")
other=${2:+$(realpath "$2")}
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work"

# Milliseconds of a command, the median of COUNT runs: milliseconds COUNT COMMAND...
milliseconds() {
    count=$1
    shift
    for _ in $(seq "$count"); do
        start=$(date +%s%N)
        "$@" >/dev/null
        echo $(($(date +%s%N) - start))
    done | sort -n | awk '{x[NR] = $1} END {printf "%.1f", x[int((NR + 1) / 2)] / 1e6}'
}

row() { # TITLE VALUE
    printf '%-62s %s\n' "$1" "$2"
}

sources() { # FOLDER...: C of the program, without tests
    find "$@" -name '*.[ch]' ! -name '*_test.c' ! -name 'testing_*'
}

# dry_run TITLE PROGRAM MODEL OPTION... - the best of three plans, and its time on CPUs, which says more on a busy
# machine. The disk may be too small for the result: exit code 4.
dry_run() {
    title=$1 program=$2 model=$3
    shift 3
    for run in 1 2 3; do
        code=0
        /usr/bin/time -o "usage.$run" -f '%e %U %S %M' "$program" convert "$model" out --dry-run --json "$@" >said 2>errors ||
            code=$?
        [ "$code" -eq 0 ] || [ "$code" -eq 4 ] || { cat errors; exit 1; }
    done
    tensors=$(sed -n 's/^    "shards": \([0-9]*\),/\1/p' said)
    row "$title" "$(tail -qn 1 usage.[123] | sort -n | awk -v tensors="$tensors" '
        NR == 1 {wall = $1}
        NR == 1 || $2 + $3 < cpu {cpu = $2 + $3}
        {peak = $4 > peak ? $4 : peak}
        END {printf "%d tensors, %.2f s, %.2f s of CPU, %d MB", tensors, wall, cpu, peak / 1000}')"
}

echo "$("$ferry" --version | head -n 1), $(uname -m), $(nproc) CPUs; load: $(cut -d ' ' -f 1-3 /proc/loadavg)"

"$ferry" models | cut -d ' ' -f 1 >families
row "families" "$(wc -l <families)"
for file in "$root"/convert/models/*.json; do
    ! grep -q '^ *"family":' "$file" || wc -l <"$file"
done | sort -n | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)], x[NR]}' >lengths
row "lines of a map: median, longest" "$(cat lengths)"
sed 's/.*/"&"/' families >quoted
row "families that C of convert/map names" "$(sources "$root/convert/map" | xargs grep -ohFf quoted | sort -u | wc -l)"
for folder in convert/map convert/cli train/cli; do
    row "lines of C in $folder" "$(sources "$root/$folder" | xargs cat | wc -l)"
done

row "load and prove all maps, ms" "$(milliseconds 20 "$ferry" models)"
row "program start, ms" "$(milliseconds 20 "$ferry" --version)"
"$ferry" synth -q small --model qwen3
row "inspect a small model, ms" "$(milliseconds 20 "$ferry" inspect small)"

"$ferry" synth -q large --model deepseek_v3 --sparse --layers 61 --hidden 7168 --heads 128 --kv-heads 128 \
    --ffn-hidden-size 18432 --vocab-size 129280 --experts 256 --topk 8 --moe-ffn-hidden-size 2048
dry_run "dry run of DeepSeek V3, 671 B, to TP8 PP16 EP32" "$ferry" large --tp 8 --pp 16 --ep 32 \
    --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 2
rm -rf large
# Layers for as many tensors as DeepSeek V3 has, within a hundredth.
"$ferry" synth -q large --model qwen3_moe --sparse --layers 58 --hidden 7168 --heads 64 --kv-heads 8 --head-dim 128 \
    --vocab-size 129280 --experts 256 --topk 8 --moe-ffn-hidden-size 2048
for program in "$ferry" ${other:+"$other"}; do
    dry_run "dry run of a Qwen 3 MoE of as many tensors, by $("$program" --version | sed -n '1s/^ferry //p')" "$program" \
        large --tp 8 --pp 16 --ep 32 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1
done
