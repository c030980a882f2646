#!/bin/sh
# destination_test.sh - what may be written where, and what is left alone.
. "$(dirname "$0")/lib.sh"
synth_model m

it "a dry run prints the plan and writes nothing"
before=$(find . | sort)
run convert m new --tp 2 --dry-run
exits 0
for part in source target mapping vocab memory disk lossy "nothing written"; do says "$part"; done
run convert m deep/er/new --dry-run --json
exits 0
[ "$before" = "$(find . | sort)" ] || is_wrong "something was written: $(find . | sort)"

it "folders above the destination are made"
run convert m deep/er/new
exits 0
is_there deep/er/new/latest_checkpointed_iteration.txt

it "an empty folder is taken, a full one or a file refused"
mkdir empty full
touch file full/x
run convert m empty
exits 0
run convert m file
exits 7
for to in hf torch_dist torch; do
    run convert m full --to $to
    exits 7
done
[ "$(ls -A full)" = x ] || is_wrong "full holds $(ls -A full)"

# refuses FOLDER TEXT OPTION... - convert m with --overwrite, dry and not, says TEXT and touches nothing.
refuses() {
    where=$1 text=$2
    shift 2
    find "$where" -printf '%p %i %T@ %s\n' | sort >before
    for dry in --dry-run ""; do
        # shellcheck disable=SC2086 # a flag or nothing
        run convert m "$where" --overwrite $dry "$@"
        exits 7
        says "$text"
    done
    find "$where" -printf '%p %i %T@ %s\n' | sort >after
    diff before after >difference || is_wrong "$where is not as it was: $(cat difference)"
    nothing_partial_in .
}

it "--overwrite replaces a checkpoint of Hugging Face, and says what it replaces"
run convert m old --to hf --max-shard-size 100kB
touch old/tokenizer.model old/README.md old/chat_template.jinja old/LICENSE
bytes=$(find old -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')
files=$(find old -type f | wc -l)
run convert m old --to hf --overwrite --dry-run
exits 0
says "replaces $files files"
is_there old/tokenizer.model
run convert m old --to hf --overwrite --json
exits 0
says "replaced $files files"
prints "\"bytes\": $bytes"
prints '"path": "old"'
is_not_there old/tokenizer.model
run convert m old2 --to hf --overwrite --json
grep -q replaces "$stdout" && is_wrong "it says that it replaces what was not there"
run synth old --model llama --overwrite
exits 0
says "replaced "

it "--overwrite replaces no folder that is no checkpoint, and names what is in it"
mkdir -p project/.git project/thesis
touch project/.git/HEAD project/thesis/ch1.txt project/config.json project/main.py
refuses project "it is not a Hugging Face checkpoint (it has no config.json and weights), and it holds 3 files or folders" --to hf
says ".git/, main.py, thesis/"
rm -r project/.git project/thesis
refuses project "it is not a Hugging Face checkpoint" --to hf
run synth project --model llama --overwrite
exits 7
is_there project/main.py
run convert m full --overwrite
exits 7
is_there full/x

it "--overwrite removes no file that is not of the checkpoint: the first five are named"
for foreign in notes.md notes.txt results.json train.py weights.pt model-00001-of-00009.safetensors .hidden .git/HEAD sub/x.json; do
    rm -rf mixed
    run convert m mixed --to hf --overwrite
    mkdir -p "$(dirname mixed/$foreign)"
    echo precious >mixed/$foreign
    refuses mixed "it holds 1 file or folder not part of a checkpoint: ${foreign%%/*}" --to hf
done
for n in 1 2 3 4 5 6 7; do touch mixed/$n.pt; done
refuses mixed "holds 8 files or folders not part of a checkpoint: 1.pt, 2.pt, 3.pt, 4.pt, 5.pt, ..." --to hf

it "--overwrite of an iteration removes only what Megatron, its Bridge or ferry writes there"
run convert m kinds --tp 2
cp kinds/iter_0000000/common.pt kinds/iter_0000000/modelopt_run_config.yaml
mkdir -p kinds/iter_0000000/tokenizer kinds/iter_0000000/mp_rank_00 kinds/iter_0000000/modelopt_state
touch kinds/iter_0000000/tokenizer/x.model kinds/iter_0000000/mp_rank_00/train_dataloader_dprank000.pt \
    kinds/iter_0000000/modelopt_state/__0_0.distcp
echo mine >kinds/notes
run convert m kinds --to torch --overwrite
exits 0
says "of kinds/iter_0000000"
is_there kinds/notes kinds/iter_0000000/mp_rank_00/model_optim_rng.pt
is_not_there kinds/iter_0000000/tokenizer kinds/iter_0000000/.metadata
for foreign in notes mp_rank_00/notes.txt ferry-hf/sub/x ferry-hf/x.pt tokenizer/deep/x .git/HEAD; do
    mkdir -p "$(dirname kinds/iter_0000000/$foreign)"
    touch kinds/iter_0000000/$foreign
    refuses kinds "not part of a checkpoint: "
    rm -r kinds/iter_0000000/$foreign
    rmdir -p --ignore-fail-on-non-empty "$(dirname kinds/iter_0000000/$foreign)"
done
mkdir -p plain/iter_0000000
touch plain/iter_0000000/x.json
refuses plain "it is not a Megatron checkpoint (it has no .metadata or mp_rank_* folder), and it holds 1 file"

it "ferry.json names all files of a run, and so they can be replaced"
run convert m listed --to hf --integrity
exits 0
for folder in listed old2 kinds/iter_0000000; do
    sed -n '/"files": \[/,/\]/s/^ *"\(.*\)",*$/\1/p' $folder/ferry.json | sort >named
    (cd $folder && find . -type f | sed 's,^\./,,' | sort) >there
    diff named there >difference || is_wrong "$folder: $(cat difference)"
done

it "--overwrite leaves nothing of the old one behind"
run convert m again --tp 4 --pp 2
run convert m again --tp 1 --overwrite
exits 0
run convert m fresh --tp 1
same_files again fresh

it "other iterations of a root are not touched, and the tracker goes to the new one"
run convert m root --iteration 10 --tp 2
exits 0
cp -r root/iter_0000010 kept
run convert m root --iteration 20 --to torch
exits 0
run convert m root --iteration 20
exits 7
same_files kept root/iter_0000010
[ "$(cat root/latest_checkpointed_iteration.txt)" = 20 ] || is_wrong "the tracker is not at 20"
run inspect root
prints "iteration  20"
run inspect root --ckpt-step 10
prints "iteration  10"
run inspect root/iter_0000010
prints "iteration  10"
run inspect root --ckpt-step 30
exits 4

it "a source inside the destination, or equal to it, is refused"
run convert m m --overwrite
exits 2
run convert m ./m/ --to hf --overwrite
exits 2
mkdir outer
cp -r m outer
run convert outer/m outer --to hf --overwrite
exits 2
says "source"
ln -s outer link
run convert outer/m link --to hf --overwrite
exits 2
same_files m outer/m

it "a destination inside the source is refused, in a dry run too"
cp -r m around
run convert m megatron
for source in around megatron megatron/iter_0000000; do
    for dry in --dry-run ""; do
        # shellcheck disable=SC2086 # a flag or nothing
        run convert $source $source/deep/er --to hf $dry
        exits 2
        says "this destination lies inside the source $source"
    done
done
same_files m around
run convert m around2
exits 0

it "a name with blanks and other letters is a name"
run convert m "Übung 1/Modell *" -q
exits 0
says_nothing
is_there "Übung 1/Modell */latest_checkpointed_iteration.txt"

it "nothing half-done is left by any of these"
nothing_partial_in .

it "what a shell or another program would have understood otherwise is no name of a folder"
run convert m s3://bucket/x
exits 2
says "is a URL"
run convert m --save-dir="~/x"
exits 2
says "has not expanded ~"
run convert m tracked/iter_0000020
exits 2
says "is the folder of an iteration; give the folder above it"
is_not_there s3: ./~ tracked

it "the plan says where the tracker of a root moves to"
run convert m tracked --iteration 10 -q
exits 0
run convert m tracked --iteration 3 --dry-run
exits 0
says "tracker  10 -> 3 (latest_checkpointed_iteration.txt of tracked)"
run convert m tracked --dry-run
says "tracker  10 -> release"
