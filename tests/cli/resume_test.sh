#!/bin/sh
# resume_test.sh - runs that were ended are gone on with, and end in the same bytes.
. "$(dirname "$0")/lib.sh"
synth_model m --hidden 256 --ffn-hidden-size 1024 --vocab-size 4000 --layers 6
layout="--pp 2 --decoder-first-pipeline-num-layers 1" # the second file is larger
# shellcheck disable=SC2086 # words
"$ferry" convert -q m want $layout

# A conversion of m to $1 that a limit to the size of files ends in its middle.
ended() {
    # shellcheck disable=SC2016,SC2086 # for the inner shell; words
    run_program sh -c 'trap "" XFSZ; ulimit -f 12000; exec "$@"' - \
        "$ferry" convert m "$1" $layout --threads 1 --journal-every 1kB
    exits 4
}

# No lock and no journal is left in a destination.
nothing_private_in() {
    left=$(find "$1" -name '.ferry-*')
    [ -z "$left" ] || is_wrong "left behind: $left"
}

# The same once more, with further options.
again() {
    # shellcheck disable=SC2086 # words
    run convert m "$@" $layout
}

it "what was done before a failure is kept, and --resume goes on from there"
ended there
says "--resume goes on"
is_there .there.ferry-partial/.ferry-journal
again there --resume
exits 0
same_files there want
nothing_partial_in .

it "without --resume it is begun anew"
ended anew
again anew
exits 0
same_files anew want
nothing_partial_in .

it "other arguments, or a source that changed, are refused, and what was done stays"
ended other
cp -r .other.ferry-partial kept
rm -f kept/.ferry-lock
again other --torch-dtype float32 --resume
exits 3
says "other arguments, another number of ranks or another source"
rm -f .other.ferry-partial/.ferry-lock
same_files kept .other.ferry-partial
cp -r m changed
mv m unchanged && mv changed m
again other --resume
exits 3
rm -f .other.ferry-partial/.ferry-lock
same_files kept .other.ferry-partial
rm -r m && mv unchanged m
again other --resume
exits 0
same_files other want

it "--resume with nothing to go on with begins"
again fresh --resume
exits 0
same_files fresh want

it "--resume of what is there has nothing to do; of anything else, it is refused"
cp -r fresh before
again fresh --resume
exits 0
says "fresh is complete, of the same source and arguments"
diff -r before fresh >/dev/null || is_wrong "it was written again"
run convert m fresh --resume
exits 7
again fresh
exits 7

it "a run that was ended behind its last rename is finished"
cp -r want root
echo "$(uname -n) 1 1" >root/.ferry-lock
again root
exits 7
says "--resume"
again root --resume
exits 0
same_files root want
again root --iteration 5
exits 0
cp -r root root5
echo "$(uname -n) 1 1" >root/iter_0000005/.ferry-lock
echo 0 >root/latest_checkpointed_iteration.txt
again root --iteration 5 --resume
exits 0
same_files root root5

it "what another command has left is not taken for this one's"
cp -r want root4
echo "$(uname -n) 1 1" >root4/.ferry-lock
run convert m root4 --tp 2 --resume
exits 3
says "other arguments or another source"
is_there root4/.ferry-lock
cp -r root4 root20
again root20 --iteration 20 --resume
exits 0
is_there root20/iter_0000020/.metadata root20/iter_0000000/.metadata
nothing_private_in root20

it "--overwrite of one iteration never touches another, whoever died there"
again root4 --iteration 3 --overwrite
exits 0
echo "$(uname -n) 1 1" >root4/.ferry-lock
again root4 --iteration 7 --overwrite
exits 0
is_there root4/iter_0000000/.metadata root4/iter_0000003/.metadata root4/iter_0000007/.metadata
nothing_private_in root4

it "an output file that is gone is written again"
ended gone
first=$(find .gone.ferry-partial -name '*.distcp' | sort | head -n 1)
rm "$first"
again gone --resume
exits 0
same_files gone want
