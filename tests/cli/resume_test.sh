#!/bin/sh
# resume_test.sh - the same command continues an interrupted run, and ends in the same bytes.
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

it "what was done before a failure is kept, and the command that is printed continues it"
ended "it's with blanks"
says " are kept in .it's with blanks.ferry-partial; the same command continues:"
is_there ".it's with blanks.ferry-partial/.ferry-journal"
done_=$(sed -n 's/^\(.* of .*\) are kept in .*/\1/p' "$stderr") # "6.00 of 14.7 MB"
sed -n '/the same command continues:$/{n;p;}' "$stderr" >typed
grep -qF "'it'\\''s with blanks'" typed || is_wrong "not as it can be typed: $(cat typed)"
run_program sh typed
exits 0
says "continuing an interrupted run: $done_ are done"
says "${done_%% *} MB were kept from an interrupted run"
same_files "it's with blanks" want
nothing_partial_in .

it "the same command continues, with --resume and with --overwrite too; a dry run says so"
for flag in "" --resume --overwrite; do
    rm -rf same
    ended same
    cp -r .same.ferry-partial kept
    # shellcheck disable=SC2086 # a flag or nothing
    again same $flag --dry-run --json
    exits 0
    says "continuing an interrupted run: "
    prints '"continued": true'
    same_files kept .same.ferry-partial
    rm -r kept
    # shellcheck disable=SC2086
    again same $flag --json
    exits 0
    says "continuing an interrupted run: "
    grep -q '"resumed_bytes": [1-9]' "$stdout" || is_wrong "it has begun anew"
    same_files same want
    nothing_private_in same
    nothing_partial_in .
done
ended quiet
again quiet -q
exits 0
says_nothing
same_files quiet want

it "what is kept is not discarded by another command, unless --restart or --overwrite says so"
ended anew
cp -r .anew.ferry-partial kept
for dry in --dry-run ""; do
    for resume in --resume ""; do
        # shellcheck disable=SC2086 # flags or nothing
        run convert m anew --tp 2 $dry $resume
        exits 7
        says "an interrupted run exists, started by"
        grep -qF "convert m anew $layout --threads 1" "$stderr" || is_wrong "not named: $(cat "$stderr")"
        says "anew: .anew.ferry-partial holds "
        says "of an interrupted run with other arguments; "
        says "--restart or --overwrite discards it"
        # shellcheck disable=SC2086
        run convert m anew $layout --verify none $dry $resume
        exits 7
        says "with other arguments"
    done
    # shellcheck disable=SC2086
    again anew $dry --resume --restart
    exits 2
done
run synth anew --model llama
exits 7
same_files kept .anew.ferry-partial
run convert m anew --tp 2 --overwrite --dry-run --json
exits 0
says "discarding "
says " of an interrupted run with other arguments"
prints '"same_plan": false'
prints '"discarded": true'
again anew --restart --dry-run
exits 0
grep -q '^discarding .* of an interrupted run$' "$stderr" || is_wrong "$(cat "$stderr")"
same_files kept .anew.ferry-partial
for flag in --restart --overwrite; do
    rm -rf anew .anew.ferry-partial
    cp -r kept .anew.ferry-partial
    run convert m anew --torch-dtype float32 --pp 2 --decoder-first-pipeline-num-layers 1 $flag --json
    exits 0
    says "discarding "
    prints '"resumed_bytes": 0,'
    nothing_partial_in .
done
rm -rf anew .anew.ferry-partial
cp -r kept .anew.ferry-partial
again anew --restart --json
exits 0
says "discarding "
prints '"resumed_bytes": 0,'
same_files anew want
nothing_partial_in .
rm -r kept

it "an interrupt keeps what is written, before there is any journal record"
if command -v strace >/dev/null; then
    # shellcheck disable=SC2016,SC2086 # for the inner shell; words
    run_program strace -f -E ASAN_OPTIONS=detect_leaks=0 -o /dev/null -e trace=pwrite64 -e inject=pwrite64:signal=INT:when=40 \
        "$ferry" convert m asked $layout --threads 1
    exits 130
    says "ferry convert: interrupted"
    says " are kept in .asked.ferry-partial; the same command continues:"
    [ "$(grep -c interrupted "$stderr")" -eq 1 ] || is_wrong "said twice: $(cat "$stderr")"
    grep -q 'decoder\.' "$stderr" && is_wrong "it names a tensor: $(cat "$stderr")"
    again asked --json
    exits 0
    grep -q '"resumed_bytes": [1-9]' "$stdout" || is_wrong "it has begun anew"
    same_files asked want
else
    skip "strace is not installed"
fi

it "progress ends at its total, and counts the bytes of this run only"
ended shown
# shellcheck disable=SC2086 # words
again shown --progress json
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

it "a source that changed, and another number of processes, are refused by name, and what was done stays"
ended other
cp -r .other.ferry-partial kept
cp -r m changed
mv m unchanged && mv changed m
for resume in --resume ""; do
    # shellcheck disable=SC2086 # a flag or nothing
    again other $resume
    exits 7
    says "of an interrupted run of another source, or of this source before it changed"
done
same_files kept .other.ferry-partial
rm -r m && mv unchanged m
for rank in 1 0; do
    again other --rank $rank --world-size 2
    exits 7
    says "rank $rank: "
    says "of an interrupted run of 1 process, not 2"
done
same_files kept .other.ferry-partial
rm -f .other.ferry-partial/.ferry-lock # as who does not believe it
again other
exits 0
says "were kept from an interrupted run"
same_files other want

it "--resume without an interrupted run begins"
again fresh --resume
exits 0
same_files fresh want

it "--resume of what is there has nothing to do; of anything else, it is refused"
cp -r fresh before
again fresh --resume
exits 0
says "fresh is already complete, from the same source and arguments"
diff -r before fresh >/dev/null || is_wrong "it was written again"
run convert m fresh --resume
exits 7
again fresh
exits 7

it "a run that was ended after its last rename is finished by the same command"
cp -r want root
echo "$(uname -n) 1 1" >root/.ferry-lock
again root --dry-run
exits 0
says "finishing an interrupted run: only its last files are missing"
is_there root/.ferry-lock
again root
exits 0
says "root lacked only its last files, which are written now"
same_files root want
again root --iteration 5
exits 0
cp -r root root5
echo "$(uname -n) 1 1" >root/iter_0000005/.ferry-lock
echo 0 >root/latest_checkpointed_iteration.txt
again root --iteration 5
exits 0
same_files root root5
mkdir root/.iter_0000005.ferry-old # what this was about to remove
echo "$(uname -n) 1 1" >root/iter_0000005/.ferry-lock
again root --iteration 5 --overwrite
exits 0
says "lacked only its last files"
same_files root root5
echo "$(uname -n) 1 1" >root/iter_0000005/.ferry-lock
again root --iteration 5 --restart
exits 0
says "replaced "
says "converted "
same_files root root5
again root --iteration 5 --restart
exits 7

if command -v strace >/dev/null; then
    it "a kill at any step of staging and publishing leaves nothing that the same command does not continue or remove"
    synth_model tiny --layers 1
    "$ferry" convert -q tiny old
    for over in "" --overwrite; do
        for call in mkdir rename,renameat2 unlinkat,rmdir; do
            step=0 killed=137
            while [ $killed -ne 0 ] && [ $step -lt 40 ]; do
                step=$((step + 1))
                rm -rf out .out.ferry-partial
                [ -z "$over" ] || cp -r old out
                # shellcheck disable=SC2086 # a flag or nothing
                {
                    strace -f -E ASAN_OPTIONS=detect_leaks=0 -o /dev/null -e trace=$call -e inject=$call:signal=KILL:when=$step \
                        "$ferry" convert -q tiny out $over
                    killed=$?
                } 2>/dev/null
                # one that was complete by then is refused
                [ -n "$over" ] || [ ! -e out ] || [ -n "$(find out -name .ferry-lock)" ] || continue
                # shellcheck disable=SC2086
                run convert tiny out $over
                exits 0
                same_files old out
                nothing_private_in out
                left=$(find . -maxdepth 1 -name '.*.ferry-*')
                [ -z "$left" ] || is_wrong "$over killed at $call $step: left $left"
            done
            case $step in 1 | 40) is_wrong "$step steps of $call" ;; esac
        done
    done
fi

it "what another command has left is not taken for this one's"
cp -r want root4
echo "$(uname -n) 1 1" >root4/.ferry-lock
for resume in --resume ""; do
    # shellcheck disable=SC2086 # a flag or nothing
    run convert m root4 --tp 2 $resume
    exits 7
    says "with other arguments or another source"
done
is_there root4/.ferry-lock
cp -r root4 root20
again root20 --iteration 20
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
again gone
exits 0
same_files gone want

it "a destination that has lost a file, or a part of one, is not taken for complete"
synth_model little --layers 2
"$ferry" convert -q little whole
for harm in "truncate -s 100 lost/iter_0000000/__0_0.distcp" "rm lost/iter_0000000/.metadata" \
    "rm lost/latest_checkpointed_iteration.txt" "rm lost/iter_0000000/ferry-hf/config.json"; do
    rm -rf lost
    cp -r whole lost
    run convert little lost --resume
    exits 0
    says "is already complete"
    $harm
    run convert little lost --resume
    exits 7
    says "was complete, but "
done

it "a source whose config or tokenizer changed is another source"
"$ferry" convert -q little with_config
sleep 0.02
sed -i 's/1e-06/1e-05/' little/config.json
run convert little with_config --resume
exits 7
says "the source has changed since"
"$ferry" convert -q little with_tokenizer
sleep 0.02
echo '{}' >little/tokenizer.json
run convert little with_tokenizer --resume
exits 7
mkdir whole/iter_0000000/tokenizer
echo '{}' >whole/iter_0000000/tokenizer/tokenizer.json
"$ferry" convert -q whole with_its_own --tp 2
run convert whole with_its_own --tp 2 --resume
exits 0
sleep 0.02
echo '{ }' >whole/iter_0000000/tokenizer/tokenizer.json
run convert whole with_its_own --tp 2 --resume
exits 7
says "the source has changed since"
