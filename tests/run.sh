#!/bin/sh
# run.sh FERRY TEST... - runs unit tests (cmocka programs) and shell tests (X.sh FERRY) side by
# side, in this order. Both speak TAP. Says how far it is while they run: on a terminal in one line, else
# every 15 seconds. Then prints failures, skipped tests, the time of the slowest twenty, and a line of sums.
# FERRY_EMULATOR is a command in front of unit tests, FERRY_TEST_THREADS how many threads each computes with. Writes
# beside FERRY: costs (seconds, those of CPUs, test), skipped (tests that skipped something).
set -u
ferry=$1
shift
work=$(mktemp -d)
reporter=
trap '[ -z "$reporter" ] || kill "$reporter" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
FERRY_EMULATOR=${FERRY_EMULATOR-}
# Tests compute and print the same on any machine: its settings of threads and language do not count.
unset OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS OPENBLAS_VERBOSE GOTO_NUM_THREADS OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES \
    OMP_DYNAMIC OMP_SCHEDULE GOMP_CPU_AFFINITY LANGUAGE
export LC_ALL=C.UTF-8
[ -z "${FERRY_TEST_THREADS-}" ] || export OMP_NUM_THREADS="$FERRY_TEST_THREADS"
# Wrappers of python3, such as pyenv's, take longer to start than most tests' programs take.
mkdir "$work/bin"
[ ! -x /usr/bin/python3 ] || ln -s /usr/bin/python3 "$work/bin/python3"
PATH=$work/bin:$PATH
# More golden files than the repository has, where they lie beside it.
FERRY_FIXTURES=${FERRY_FIXTURES:-$(pwd)/../shared/fixtures}
export ferry work FERRY_EMULATOR FERRY_FIXTURES

progress() { # SECONDS PROGRAMS
    codes=$(cat "$work"/*.code 2>/dev/null)
    printf 'tests: %d of %d programs done, %d failed, ' \
        "$(echo "$codes" | grep -c .)" "$2" "$(echo "$codes" | grep -c '[1-9]')"
    [ "$1" -lt 60 ] || printf '%d min ' $(($1 / 60))
    printf '%d s' $(($1 % 60))
}

report() { # PROGRAMS
    seconds=0
    while sleep 1 && [ -d "$work" ]; do
        seconds=$((seconds + 1))
        if [ -t 1 ]; then
            printf '\r%s\033[K' "$(progress $seconds "$1")"
        elif [ $((seconds % 15)) -eq 0 ]; then
            printf '%s\n' "$(progress $seconds "$1")"
        fi
    done
}

# One more than there are CPUs, since some tests mostly wait. Threads of OpenMP would wait by spinning, on the CPUs
# that the tests beside them compute on.
jobs=$(($(env -u OMP_NUM_THREADS nproc) + 1))
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
echo "running $# test programs, $jobs at a time"
report $# &
reporter=$!
# shellcheck disable=SC2016 # for the inner shell
printf '%s\n' "$@" | CMOCKA_MESSAGE_OUTPUT=TAP xargs -P "$jobs" -I '{}' sh -c '
    said=$work/$(echo "$1" | tr / _) start=$(date +%s)
    case $1 in
    *.sh) timeout 1800 sh "$1" "$ferry" ;;
    *) timeout 1800 $FERRY_EMULATOR "$1" ;;
    esac >"$said" 2>&1 </dev/null
    echo $? >"$said.code"
    times >"$said.times"
    echo "$(($(date +%s) - start))" >"$said.seconds"' - '{}'
kill "$reporter"
reporter=
[ ! -t 1 ] || printf '\r\033[K'

passed=0 failed=0 skipped=0
build=$(dirname "$ferry")
: >"$build/skipped"
for test; do
    said=$work/$(echo "$test" | tr / _)
    code=$(cat "$said.code" || echo none)
    # cmocka calls a skipped test "not ok 3 # SKIP name", ours "ok 3 - name # SKIP reason".
    skips=$(grep -ac '# SKIP' "$said")
    good=$(grep -a '^ok ' "$said" | grep -acv '# SKIP')
    bad=$(grep -a '^not ok ' "$said" | grep -acv '# SKIP')
    # One that crashes has no line for it; one that says nothing tested nothing.
    [ "$bad" -eq 0 ] && { [ "$code" != 0 ] || [ $((good + skips)) -eq 0 ]; } && bad=1
    if [ "$bad" -gt 0 ]; then
        echo "FAILED $test (exit code $code)"
        grep -av '^ok \|^1\.\.\|# SKIP' "$said" | sed 's/^/    /'
    fi
    sed -n -e 's/^ok [0-9]* - \(.*\) # SKIP \(.*\)/skipped: \1 (\2)/' \
        -e "s,^not ok [0-9]* # SKIP \(.*\),skipped: \1 (in $test)," -e '/^skipped/p' "$said"
    [ "$skips" -eq 0 ] || echo "$test" >>"$build/skipped"
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skips))
done
# X.times has two lines of minutes and seconds, of a shell and of its children: 0m0.01s 0m0.02s
for test; do
    said=$work/$(echo "$test" | tr / _)
    sed 's/[ms]/ /g' "$said.times" | awk -v seconds="$(cat "$said.seconds")" -v test="$test" \
        '{ cpu += 60 * ($1 + $3) + $2 + $4 } END { printf "%d %.1f %s\n", seconds, cpu, test }'
done >"$work/costs"
touch "$build/costs"
awk 'NR == FNR { known[$3] } NR == FNR || !($3 in known)' "$work/costs" "$build/costs" >"$work/all-costs"
cp "$work/all-costs" "$build/costs"
echo "seconds, and those of CPUs, of the slowest twenty:"
sort -rn "$work/costs" | head -n 20 | while read -r wall cpu test; do printf '%6d %8.1f  %s\n' "$wall" "$cpu" "$test"; done
echo "CPUs: $(awk '{ sum += $2 } END { print int(sum) }' "$work/costs") s"
echo "test: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
