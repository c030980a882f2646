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

it "--overwrite replaces a folder, but makes no Megatron root of one that is none"
mkdir old
touch old/x
run convert m old --to hf --overwrite
exits 0
is_not_there old/x
is_there old/config.json
run convert m full --overwrite
exits 7
is_there full/x

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

it "a name with blanks and other letters is a name"
run convert m "Übung 1/Modell *" -q
exits 0
says_nothing
is_there "Übung 1/Modell */latest_checkpointed_iteration.txt"

it "nothing half-done is left by any of these"
nothing_partial_in .
