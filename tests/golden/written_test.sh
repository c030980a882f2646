#!/bin/sh
# written_test.sh FERRY - conversions of golden files write what was recorded, byte by byte; what is
# refused is refused in the same words. For changes of structure, which must change neither.
#
# FERRY_TEST_LIST=FOLDER keeps the list of each conversion (SHA-256 of every file; of ferry.json
# without time, host and command); FERRY_TEST_RECORD=1 writes written.sha256 anew.
golden=$(realpath "$(dirname "$0")")
. "$(dirname "$0")/../cli/lib.sh"
# The fingerprint of the plan, in ferry.json, is of the times of the source's files, too: they are
# set, as a checkout has its own.
cp -r "$golden" golden
find golden -exec touch -d '2001-01-01T00:00:00Z' {} +
sums=written.sha256
: > $sums

# Names, and what they hold: files, links; of ferry.json what is the same at every run.
list_of() { # FOLDER
    [ -d "$1" ] || return 0
    (
        cd "$1" || exit 1
        find . -type l -printf '%P -> %l\n' | LC_ALL=C sort
        find . -type f ! -name ferry.json -printf '%P\n' | LC_ALL=C sort | xargs -r sha256sum
        find . -type f -name ferry.json | LC_ALL=C sort | while read -r file; do
            sed 's/^\(  "ferry": *\)"[^"]*"/\1"0.1.0"/; /^  "written"/d; /^  "host"/d; /^ *"run"/d; /^  "command"/,/^  \]/d' "$file"
        done
    )
}

keep() { # NAME FILE
    [ -z "${FERRY_TEST_LIST:-}" ] || cp "$2" "$FERRY_TEST_LIST/$1"
    echo "$(sha256sum < "$2" | cut -d' ' -f1)  $1" >> $sums
}

convert() { # NAME SOURCE OPTIONS..
    name=$1
    shift
    rm -rf out
    run convert --no-fsync --quiet "$@"
    exits 0
    list_of out > list
    "$ferry" digest out --quiet >> list 2>&1
    keep "$name" list
}

refuse() { # NAME SOURCE OPTIONS..
    name=$1
    shift
    rm -rf out
    run convert "$@"
    echo "exit $code" | cat - "$stderr" > list
    [ "$code" != 0 ] || is_wrong "$name is accepted"
    [ ! -e out ] || is_wrong "$name leaves a destination"
    keep "$name" list
}

it "conversions of golden files are those that were recorded"
while read -r name source options; do
    # shellcheck disable=SC2086
    convert "$name" "golden/$source" out $options
done <<'LIST'
gpt2-dist                 hf/gpt2                                     --to torch_dist
gpt2-dist-tp2             hf/gpt2                                     --to torch_dist --tp 2 --make-vocab-size-divisible-by 8
gpt2-legacy-tp4           hf/gpt2                                     --to torch --tp 4
gpt2-legacy-local         hf/gpt2                                     --to torch --tp 2 --transformer-impl local
llama2-dist-tp2           hf/llama2                                   --to torch_dist --tp 2
llama2-legacy-pp2         hf/llama2                                   --to torch --pp 2
llama31-dist-tp4          hf/llama3.1                                 --to torch_dist --tp 4 --iteration 7
llama31-legacy-tp2        hf/llama3.1                                 --to torch --tp 2 --torch-dtype bfloat16
llama32-dist-tp2          hf/llama3.2                                 --to torch_dist --tp 2 --make-vocab-size-divisible-by 3
llama32-legacy-tp2        hf/llama3.2                                 --to torch --tp 2
mistral-dist-local        hf/mistral                                  --to torch_dist --tp 2 --transformer-impl local
mistral-legacy            hf/mistral                                  --to torch --tp 2
qwen25-dist               hf/qwen2.5                                  --to torch_dist --tp 2 --torch-dtype float16
qwen25-legacy-tp4         hf/qwen2.5                                  --to torch --tp 4
qwen3-dist-first          hf/qwen3                                    --to torch_dist --tp 2 --pp 2 --decoder-first-pipeline-num-layers 1
qwen3-legacy-stages       hf/qwen3                                    --to torch --tp 2 --pp 2 --pipeline-model-parallel-layout Ett|tL
mixtral-dist-ep2          hf/mixtral                                  --to torch_dist --tp 2 --ep 2 --etp 1
mixtral-legacy-ep2        hf/mixtral                                  --to torch --tp 2 --ep 2
mixtral-legacy-grouped    hf/mixtral                                  --to torch --ep 4 --moe-grouped-gemm
moe-dist-etp2             hf/qwen3-moe                                --to torch_dist --tp 2 --ep 2 --etp 2
moe-legacy-etp1           hf/qwen3-moe                                --to torch --tp 2 --ep 2 --etp 1
tiny-dist                 hf-tiny                                     --to torch_dist
v0-hf                     legacy/gpt2-v0-tp2/checkpoint               --to hf --hf-config golden/legacy/gpt2-v0-tp2/expected
v1-dist                   legacy/gpt2-v1-tp2pp2/checkpoint            --to torch_dist --tp 4
v2-legacy-tp1             legacy/llama-v2-tp2pp2/checkpoint           --to torch --tp 1 --pp 1
v3-dist-tp1               legacy/llama-v3-tp2pp2/checkpoint            --to torch_dist --tp 1 --pp 1
grouped-hf                legacy/mixtral-grouped-tp2ep2/checkpoint    --to hf --hf-config golden/legacy/mixtral-grouped-tp2ep2/expected
grouped-dist              legacy/mixtral-grouped-tp2ep2/checkpoint    --to torch_dist --tp 1 --ep 4
gpt2-head-hf              megatron/gpt2-HEAD-tp2pp2/checkpoint        --to hf --true-vocab-size 43
llama012-legacy           megatron/llama-0.12.0-tp2pp2/checkpoint     --to torch --tp 4 --pp 1
llama016-vpp-dist         megatron/llama-0.16.1-torch-pp2vpp2/checkpoint --to torch_dist --pp 1 --vpp 1
llama016-hf               megatron/llama-0.16.1-tp2/checkpoint        --to hf --hf-config golden/megatron/models/llama
resharded-optimizer       megatron/llama-HEAD-fully-reshardable-dp2/checkpoint --to torch_dist --tp 2 --no-optim
stages-dist               megatron/llama-HEAD-torch-pp2-stages/checkpoint --to torch_dist --tp 2 --pp 1
bridge-legacy             megatron/llama-bridge-0.3.1/checkpoint      --to torch --tp 2
mistral-head-legacy       megatron/mistral-HEAD-tp2/checkpoint        --to torch --tp 1
mixtral-head-dist         megatron/mixtral-HEAD-torch-tp2ep2/checkpoint --to torch_dist --tp 1 --ep 2
mixtral-te-legacy         megatron/mixtral-te-names-ep2/checkpoint    --to torch --tp 2 --ep 1
qwen2-head-hf             megatron/qwen2-HEAD-tp2pp2/checkpoint       --to hf --true-vocab-size 43
qwen3-moe-legacy          megatron/qwen3-moe-HEAD-tp2pp3/checkpoint   --to torch --tp 2 --pp 1 --ep 2
LIST

it "refusals are those that were recorded"
refuse tp-heads golden/hf/llama3.1 out --to torch_dist --tp 3
refuse tp-ffn golden/hf/gpt2 out --to torch --tp 5
refuse pp-layers golden/hf/llama3.1 out --to torch_dist --pp 2
refuse ep-experts golden/hf/mixtral out --to torch --ep 3
refuse etp-experts golden/hf/qwen3-moe out --to torch_dist --tp 1 --ep 2 --etp 5
refuse ep-dense golden/hf/qwen3 out --to torch --ep 2
refuse stages golden/hf/qwen3 out --to torch --pp 2 --pipeline-model-parallel-layout 'Et|t|L'
refuse divisor golden/hf/gpt2 out --to torch --tp 2 --make-vocab-size-divisible-by 4294967296

it "the sums are those of written.sha256"
if [ -n "${FERRY_TEST_RECORD:-}" ]; then
    cp $sums "$golden/written.sha256"
elif ! diff "$golden/written.sha256" $sums > differences; then
    is_wrong "FERRY_TEST_LIST=FOLDER keeps the lists: $(cat differences)"
fi
