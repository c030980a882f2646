#!/bin/sh
# convert_test.sh - round trips: every family, through layouts and formats, comes back as it was.
. "$(dirname "$0")/lib.sh"

there_and_back() { # MODEL OPTION...: to Megatron with these options, and back
    from=$1
    shift
    run convert "$from" there --overwrite "$@"
    exits 0
    run convert there back --to hf --overwrite
    exits 0
    same_files "$from" back
}

# Of these options those that the family has sizes for.
layouts() {
    cat <<END
--tp 1
--tp 2 --pp 2
--tp 2 --pp 2 --vpp 2
--tp 4 --make-vocab-size-divisible-by 3
--pp 4 --to torch
--tp 2 --pp 2 --to torch --transformer-impl local
--pp 2 --decoder-first-pipeline-num-layers 1 --transformer-impl local
--pp 2 --pipeline-model-parallel-layout Et|tt|t|L
END
    case $1 in
    *moe* | mixtral*)
        echo "--ep 4"
        echo "--tp 2 --ep 2 --etp 1"
        echo "--ep 2 --pp 2 --to torch"
        echo "--ep 2 --to torch --moe-grouped-gemm"
        ;;
    esac
}

"$ferry" models | cut -d ' ' -f 1 >families
[ -s families ] || exit 1
while read -r family; do
    it "$family comes back from every layout and format as it was"
    "$ferry" synth -q --model "$family" --vocab-size 1001 "$family" || is_wrong "synth fails"
    layouts "$family" >list
    while read -r options; do
        # shellcheck disable=SC2086 # words
        there_and_back "$family" $options
    done <list
done <families

it "resharding step by step is the same as going there at once"
synth_model m --layers 8
run convert m a --tp 2 --pp 4
run convert a b --tp 8 --pp 1 --make-vocab-size-divisible-by 128
exits 0
run convert b c --tp 1 --pp 2 --to torch
exits 0
run convert c d --tp 4 --pp 1 --to torch_dist
exits 0
run convert d back --to hf --overwrite
exits 0
same_files m back

it "all dtypes, tied or not, in one file or many, come back as they were"
for dtype in bf16 float16 float32 float64; do
    for more in --tied --untied "--max-shard-size 100kB"; do
        # shellcheck disable=SC2086 # words
        synth_model "m_$dtype" --dtype $dtype --overwrite $more
        run convert "m_$dtype" there --tp 2 --overwrite
        exits 0
        run convert there back --to hf --overwrite --max-shard-size 100kB
        exits 0
        run convert back again --tp 2 --overwrite
        exits 0
        same_files there again
    done
done

it "bytes depend on the source and the options only: not on threads, memory, place or time"
run convert m one --tp 2 --threads 1 --max-memory 32MiB
exits 0
run convert m other --tp 2 --threads 7 --direct-io --no-fsync
exits 0
same_files one other

it "a lossy cast is counted, and a cast that loses nothing goes back exactly"
synth_model f32 --dtype float32
run convert f32 narrow --torch-dtype bfloat16
exits 0
says "of them changed their value"
run convert m wide --torch-dtype float32
exits 0
run convert wide back --to hf --torch-dtype bfloat16 --overwrite
exits 0
same_files m back

it "padded rows of the vocabulary are cut on export, and the plan says how many"
run convert m padded --make-vocab-size-divisible-by 1024
exits 0
run convert padded x --to hf --dry-run
exits 0
says "24 rows of padding cut"
