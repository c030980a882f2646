# shellcheck shell=sh
# lib.sh - for the tests beside it, which begin with:  . "$(dirname "$0")/lib.sh"
#
# A test is a sentence, a run of ferry, and what is wanted of it:
#
#     it "refuses a destination that is not empty"
#     run convert model there
#     exits 7
#     says "exists and is not empty"
#
# The first argument of the script is the program. The current folder is the script's own, and goes
# with it. Output is TAP.
set -u
tests_of_all=$(dirname "$0")
[ -e "$tests_of_all/share.sh" ] || tests_of_all=$tests_of_all/..
# shellcheck source=../share.sh
. "$tests_of_all/share.sh"
ferry=$(realpath "$1")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/ferry-cli.XXXXXX")
stdout=$scratch/stdout stderr=$scratch/stderr
mkdir "$scratch/work" && cd "$scratch/work" || exit 1
number=0 sentence='' wrong='' skipped=''

verdict() {
    [ -n "$sentence" ] || return 0
    number=$((number + 1))
    if [ -n "$wrong" ]; then
        echo "not ok $number - $sentence"
        printf '%s\n' "$wrong" | sed 's/^/# /'
    else
        echo "ok $number - $sentence${skipped:+ # SKIP $skipped}"
    fi
}

# The end of a script: its last verdict, and whatever it mounted or left running goes.
finish() {
    verdict
    cd /
    grep -o "${scratch}[^ ]*" /proc/mounts | xargs -r umount -l
    chmod -R u+w "$scratch"
    rm -rf "$scratch"
}
trap finish EXIT
trap 'is_wrong "the script was ended by a signal"; exit 1' INT TERM

it() {
    verdict
    sentence=$1 wrong='' skipped='' nth_try=0
}

skip() {
    skipped=$1
}

is_wrong() {
    wrong="$wrong$*
"
}

# Runs ferry, or any program: $code, and the files $stdout and $stderr.
run() {
    run_program "$ferry" "$@"
}

run_program() {
    ran=$*
    "$@" >"$stdout" 2>"$stderr" </dev/null
    code=$?
}

# As a user whom file modes mean something to: run_as_nobody ARG...
run_as_nobody() {
    if [ "$(id -u)" -ne 0 ]; then
        run "$@"
    else
        chmod 755 "$scratch" .
        cp "$ferry" "$scratch/program"
        run_program setpriv --reuid=65534 --regid=65534 --clear-groups "$scratch/program" "$@"
    fi
}

exits() {
    [ "$code" -eq "$1" ] || is_wrong "$ran: exit code $code, wanted $1
$(tail -n 5 "$stderr")"
}

# On stderr, on stdout: a line with this text (a fixed string, no pattern).
says() {
    grep -qF -e "$1" "$stderr" || is_wrong "$ran: stderr lacks '$1':
$(tail -n 5 "$stderr")"
}

prints() {
    grep -qF -e "$1" "$stdout" || is_wrong "$ran: stdout lacks '$1':
$(tail -n 5 "$stdout")"
}

says_nothing() {
    [ ! -s "$stderr" ] || is_wrong "$ran: stderr is not empty:
$(tail -n 5 "$stderr")"
}

prints_nothing() {
    [ ! -s "$stdout" ] || is_wrong "$ran: stdout is not empty:
$(tail -n 5 "$stdout")"
}

is_there() {
    for path; do [ -e "$path" ] || is_wrong "$path is not there"; done
}

is_not_there() {
    for path; do [ ! -e "$path" ] || is_wrong "$path is there"; done
}

# The same bytes in both folders, but for the record, which has the time.
same_files() {
    difference=$(diff -r -x ferry.json "$1" "$2" 2>&1) || is_wrong "$1 and $2 differ: $difference"
}

# No staging folder was left in this folder, or below.
nothing_partial_in() {
    left=$(find "$1" -name '*.ferry-partial*')
    [ -z "$left" ] || is_wrong "left behind: $left"
}

# A model of random numbers: synth_model NAME [OPTION]...
synth_model() {
    model=$1
    shift
    "$ferry" synth -q --model llama "$@" "$model" || is_wrong "ferry synth $* $model fails"
}
