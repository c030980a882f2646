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
says "what is done is kept, "
is_there .there.ferry-partial/.ferry-journal
sed -n '/this goes on:$/{n;p;}' "$stderr" >go_on
run_program sh go_on
exits 0
says "were there from an earlier run"
same_files there want
nothing_partial_in .

it "what is kept is not thrown away unless --restart says so, and a dry run tells of it"
ended anew
cp -r .anew.ferry-partial kept
for dry in --dry-run ""; do
    # shellcheck disable=SC2086 # a flag or nothing
    again anew $dry
    exits 7
    says "anew: an interrupted run of the same command has left "
    says "--resume goes on with it, --restart throws it away and begins"
    # shellcheck disable=SC2086
    run convert m anew --tp 2 $dry
    exits 7
    says "of other arguments"
    says "--restart throws it away"
    # shellcheck disable=SC2086
    again anew $dry --overwrite
    exits 7
    again anew $dry --resume --restart
    exits 2
done
same_files kept .anew.ferry-partial
rm -r kept
again anew --resume --dry-run --json
exits 0
says "kept     "
says " by an interrupted run"
prints '"same_plan": true'
run convert m anew --tp 2 --resume --dry-run
exits 3
again anew --restart --dry-run
exits 0
says "discards "
is_there .anew.ferry-partial/.ferry-journal
again anew --restart --json
exits 0
prints '"resumed_bytes": 0,'
same_files anew want
nothing_partial_in .

it "progress ends at its total, and counts the bytes of this run only"
ended shown
# shellcheck disable=SC2086 # words
again shown --resume --progress json
exits 0
number_of() { # the field of the last progress line
    sed -n "/\"event\":\"done\"/s/.*\"$1\":\([0-9.]*\).*/\1/p" "$stderr"
}
[ "$(number_of done_bytes)" = "$(number_of total_bytes)" ] || is_wrong "$(grep event "$stderr")"
awk -v rate="$(number_of bytes_per_second)" -v seconds="$(number_of seconds)" -v all="$(number_of total_bytes)" \
    'BEGIN { exit !(rate > 0 && rate * (seconds - 0.001) < all) }' || is_wrong "the rate is of more than this run wrote"
run synth sparse --model llama --sparse --progress json
exits 0
[ "$(number_of done_bytes)" = "$(number_of total_bytes)" ] || is_wrong "$(grep event "$stderr")"

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
