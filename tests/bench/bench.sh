#!/bin/sh
# bench.sh FERRY [quick|optimizer|trainers|train [LLM.C]] - how fast conversions are, beside cp of the same files and beside the
# programs that people use otherwise, in the same run on the same disk (that of TMPDIR).
#
# Before each run its output is removed and the disk synced; runs of ferry and of cp alternate; the
# first of each warms up (the first writes to fresh blocks can be much slower) and does not count. The
# ratio is that of the minima. ferry waits until the disk has it all, and so does cp, by sync -f.
#
# How fast models are computed, beside transformers, is measured by forward.py; how fast they are trained, beside
# PyTorch and llm.c (a checkout of it, LLM.C), by train_speed.py; what saves cost a training run, by async_save.py.
set -eu
ferry=$(realpath "$1")
mode=${2:-full}
llmc=${3:+$(realpath "$3")}
here=$(realpath "$(dirname "$0")")
python=${FERRY_VENV:-$HOME/.cache/ferry-interop}/bin/python
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work"

free_gb() {
    echo $(($(df -Pk . | awk 'NR == 2 {print $4}') / 1000000))
}

# Seconds and peak memory in MB of a command: timed FILE COMMAND... appends a line.
timed() {
    file=$1
    shift
    code=0
    /usr/bin/time -o usage -f '%e %M' "$@" >said 2>&1 || code=$?
    awk -v code=$code 'END {print $(NF - 1), $NF / 1000, code}' usage >>"$file"
}

clear_output() {
    rm -rf "$1"
    sync
}

smallest() {
    sort -n "$1" | head -n 1 | cut -d ' ' -f 1
}

middle() {
    sort -n "$1" | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)]}'
}

# versus TITLE GB BEFORE OURS THEIRS - times two commands in turns, BEFORE before each.
versus() {
    rm -f ours theirs
    for turn in $(seq 0 "$pairs"); do
        eval "$3"
        timed ours sh -c "$4"
        [ "$(tail -n 1 ours | cut -d ' ' -f 3)" = 0 ] || { cat said; exit 1; }
        eval "$3"
        timed theirs sh -c "$5"
        [ "$turn" -gt 0 ] || rm ours theirs
    done
    clear_output out
    echo "$2 $(smallest ours) $(middle ours) $(smallest theirs) $(middle theirs) $(cut -d ' ' -f 2 ours | sort -n | tail -n 1)" |
        awk -v title="$1" '{printf "%-38s %6.2f %8.2f %8.2f %8.2f %8.2f %7.2f %8.2f %8.1f\n",
                                title, $1, $2, $3, $4, $5, $2 / $4, $1 / $2, $6}'
}

gigabytes() {
    du -sbc "$@" | awk 'END {print $1 / 1e9}'
}

# beside_cp TITLE SOURCE OPTION... - converts SOURCE to ./out, and copies it there, in turns.
beside_cp() {
    title=$1 source=$2
    shift 2
    versus "$title" "$(gigabytes "$source")" 'clear_output out' "$ferry convert $source out -q $*" \
        "cp --reflink=never -r $source out && sync -f out"
}

head_of_table() {
    printf '\n%-38s %6s %8s %8s %8s %8s %7s %8s %8s\n' "$1" GB "${2:-ferry s}" median "${3:-cp s}" median ratio GB/s 'peak MB'
}

# alone TITLE COMMAND... - time, peak memory and exit code of one run, after one that warms up.
alone() {
    title=$1
    shift
    rm -f ours
    for _ in 1 2; do
        clear_output out
        timed ours "$@"
    done
    tail -n 1 ours | awk -v title="$title" '{printf "%-38s %8.2f s %8.1f MB   exit code %s\n", title, $1, $2, $3}'
    clear_output out
}

# Time of comparing and of digests, beside reading the same bytes.
proofs() {
    head_of_table "comparing" "ferry s" "cat s"
    versus "verify HF torch_dist TP8" "$(gigabytes hf tp8)" : "$ferry verify -q hf tp8" \
        "cat hf/*.safetensors tp8/iter*/*.distcp >/dev/null"
    versus "digest of torch_dist TP8" "$(gigabytes tp8)" : "$ferry digest -q tp8" \
        "cat tp8/iter*/*.distcp >/dev/null"
    head_of_table "digests while converting" "with s" "without"
    for fsync in '' --no-fsync; do
        versus "HF -> torch_dist TP8 $fsync" "$(gigabytes hf)" 'clear_output out' \
            "$ferry convert hf out -q --tp 8 $fsync" "$ferry convert hf out -q --tp 8 --verify none $fsync"
    done
}

# Nothing in the page cache.
cold() {
    if ! [ -w /proc/sys/vm/drop_caches ]; then
        printf '\nwith a cold cache: skipped (it takes root to make it cold)\n'
        return
    fi
    forget='clear_output out; echo 3 >/proc/sys/vm/drop_caches'
    cp="cp --reflink=never -r hf out && sync -f out"
    head_of_table "with a cold cache"
    versus "HF -> torch_dist TP8" "$(gigabytes hf)" "$forget" "$ferry convert hf out -q --tp 8" "$cp"
    versus "the same with --direct-io" "$(gigabytes hf)" "$forget" "$ferry convert hf out -q --tp 8 --direct-io" "$cp"
    head_of_table "with a cold cache" "ferry s" "cat s"
    versus "verify HF torch_dist TP8" "$(gigabytes hf tp8)" "$forget" "$ferry verify -q hf tp8" \
        "cat hf/*.safetensors tp8/iter*/*.distcp >/dev/null"
}

conversions() { # TITLE MODEL-OPTION...
    head_of_table "$1"
    shift
    "$ferry" synth -q hf --model llama --hidden 2048 --heads 32 --kv-heads 8 --ffn-hidden-size 8192 "$@"
    beside_cp "HF -> torch_dist TP8" hf --tp 8
    beside_cp "HF -> torch TP8 (legacy)" hf --tp 8 --to torch
    "$ferry" convert -q hf tp8 --tp 8
    beside_cp "torch_dist TP8 -> HF" tp8 --to hf
    if [ "$pairs" -gt 1 ]; then
        proofs
        cold
    fi
    rm -rf tp8
    "$ferry" convert -q hf tp4pp2 --tp 4 --pp 2
    beside_cp "torch_dist TP4 PP2 -> TP2" tp4pp2 --tp 2 --pp 1
    rm -rf tp4pp2
}

# Weights of BF16 with masters and moments of F32. dp_reshardable is what Megatron-Core writes by
# default, and cannot load in another layout.
optimizer_states() {
    pairs=3
    head_of_table "0.5 B Llama with the state of Adam"
    "$ferry" synth -q adam --model llama --layers 24 --hidden 1024 --heads 16 --kv-heads 8 --ffn-hidden-size 4096 \
        --vocab-size 128256 --tied --optim --to torch_dist --tp 8
    beside_cp "TP8 -> TP2 PP2" adam --tp 2 --pp 2
    beside_cp "TP8 -> HF" adam --to hf --optim
    if [ -x "$python" ]; then
        "$python" -W ignore "$here/dp_reshardable.py" adam/iter_0001000 flat/iter_0001000
        rm -rf adam
        beside_cp "dp_reshardable -> fully_reshardable" flat/iter_0001000
    else
        echo "dp_reshardable: skipped (make interop installs what writes it)"
    fi
    cold_states
    rm -rf adam flat
}

# Checkpoints of DeepSpeed, beside its own programs, and the plan of a large one.
other_trainers() {
    pairs=3
    deepspeed=${FERRY_VENV:-$HOME/.cache/ferry-interop}-deepspeed/bin/python
    head_of_table "0.5 B Llama with the state of Adam"
    "$ferry" synth -q adam --model llama --layers 24 --hidden 1024 --heads 16 --kv-heads 8 --ffn-hidden-size 4096 \
        --vocab-size 128256 --tied --optim --to deepspeed --zero 3 --dp 8
    beside_cp "ZeRO-3 of 8 -> torch_dist TP4 PP2" adam --to torch_dist --tp 4 --pp 2
    beside_cp "ZeRO-3 of 8 -> DCP of 4" adam --to dcp --dp 4
    if [ -x "$deepspeed" ]; then
        printf '\nDeepSpeed, the same checkpoint (time and memory with its imports)\n'
        for what in zero-to-fp32 ds-to-universal; do
            DS_ACCELERATOR=cpu alone "$what" "$deepspeed" -W ignore "$here/peers.py" "$what" adam
        done
    else
        echo "DeepSpeed: skipped (make interop installs it)"
    fi
    rm -rf adam
    printf '\nplans of 70 B parameters on 256 ranks, with the state of Adam\n'
    llama70="--model llama --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn-hidden-size 28672 --vocab-size 128256"
    for to in "deepspeed --zero 3" dcp; do
        # shellcheck disable=SC2086
        "$ferry" synth -q large $llama70 --optim --sparse --max-memory 2GiB --to $to --dp 256
        alone "--to $to: to torch_dist TP8 PP8" "$ferry" convert large out --to torch_dist --tp 8 --pp 8 --dry-run
        alone "--to $to: inspect" "$ferry" inspect large
        rm -rf large
    done
}

cold_states() {
    [ -w /proc/sys/vm/drop_caches ] || return 0
    from=adam/iter_0001000
    [ -d adam ] || from=flat/iter_0001000
    forget='clear_output out; echo 3 >/proc/sys/vm/drop_caches'
    head_of_table "with a cold cache"
    versus "TP8 -> TP2 PP2" "$(gigabytes $from)" "$forget" "$ferry convert $from out -q --tp 2 --pp 2" \
        "cp --reflink=never -r $from out && sync -f out"
}

# Forward passes on this CPU, beside transformers.
forward_passes() {
    "$ferry" synth -q gpt2-124M --model gpt2 --layers 12 --hidden 768 --heads 12 --ffn-hidden-size 3072 --vocab-size 50257
    "$ferry" synth -q mixtral-8x --model mixtral --layers 8 --hidden 512 --heads 8 --kv-heads 4 --moe-ffn-hidden-size 1024 \
        --vocab-size 32000
    "$ferry" synth -q llama --model llama --layers 24 --hidden 1024 --heads 16 --kv-heads 8 --ffn-hidden-size 4096 \
        --vocab-size 32000
    printf '\n%-38s %8s %8s %8s %8s %8s\n' "forward passes, 1 x 512 tokens" "ferry s" median "transf. s" median ratio
    "$python" -W ignore "$here/forward.py" "$ferry" gpt2-124M mixtral-8x llama
    rm -rf gpt2-124M mixtral-8x llama
}

# Steps of training on this CPU, beside other programs.
training_steps() {
    if [ -x "$python" ]; then
        "$python" -W ignore "$here/train_speed.py" "$ferry" gpt2-124M ${llmc:+--llmc "$llmc"}
    else
        echo "PyTorch and llm.c: skipped (make interop installs PyTorch)"
    fi
}

training() {
    "$ferry" synth -q gpt2-124M --model gpt2 --layers 12 --hidden 768 --heads 12 --ffn-hidden-size 3072 \
        --vocab-size 50257 --dtype f32
    training_steps
    if [ "$mode" = train ]; then
        echo
        python3 "$here/async_save.py" "$ferry" gpt2-124M
    fi
    rm -rf gpt2-124M
}

echo "$("$ferry" --version), $(uname -m), $(nproc) CPUs, $(awk '/MemTotal/ {printf "%.0f", $2 / 1e6}' /proc/meminfo) GB of memory"
echo "disk: $(df -PT . | awk 'NR == 2 {print $2}'), $(free_gb) GB free; load: $(cut -d ' ' -f 1-3 /proc/loadavg)"

if [ "$mode" = optimizer ]; then
    optimizer_states
    exit
fi
if [ "$mode" = trainers ]; then
    other_trainers
    exit
fi
if [ "$mode" = train ]; then
    training
    exit
fi
if [ "$mode" = quick ]; then
    pairs=3
    conversions "a small Llama, bf16" --layers 2 --vocab-size 32000 --tied
else
    pairs=5
    conversions "Llama 3.2 1B, bf16" --layers 16 --vocab-size 128256 --tied
fi

if [ -x "$python" ]; then
    printf '\nother programs, the same model (time and memory with their imports)\n'
    for what in transformers safetensors megatron-save megatron-load; do
        alone "$what" "$python" -W ignore "$here/peers.py" "$what" hf
    done
    rm -rf megatron
    forward_passes
    training
else
    printf '\nother programs: skipped (make interop installs them)\n'
fi

if [ "$mode" != quick ] && [ "$(free_gb)" -ge 30 ]; then
    rm -rf hf
    optimizer_states
    other_trainers
    pairs=1 # what it is to show is the memory
    conversions "10 GB Llama, bf16" --layers 72 --vocab-size 128256 --tied
fi
rm -rf hf

printf '\nplans and headers\n'
"$ferry" synth -q moe --model qwen3_moe --layers 61 --experts 256 --sparse
alone "61 layers x 256 experts, dry run" "$ferry" convert moe out --tp 8 --pp 4 --ep 8 --vpp 1 --decoder-last-pipeline-num-layers 16 \
    --max-memory 1GiB --dry-run
rm -rf moe
"$ferry" synth -q moe --model qwen3_moe --layers 61 --experts 256 --hidden 7168 --sparse
alone "the same, hidden 7168 (wants exit 4)" "$ferry" convert moe out --tp 8 --max-memory 1GiB --dry-run
rm -rf moe
"$ferry" synth -q shards --model llama --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --vocab-size 128256 \
    --max-shard-size 3GB --sparse
alone "inspect $(find shards -name '*.safetensors' | wc -l) shards, $(du -sb --apparent-size shards | awk '{printf "%.0f", $1 / 1e9}') GB" "$ferry" inspect shards
start=$(date +%s%N)
for _ in $(seq 100); do "$ferry" --version >/dev/null; done
echo "program start: $((($(date +%s%N) - start) / 100000)) us"
