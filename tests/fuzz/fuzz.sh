#!/bin/sh
# fuzz.sh BUILD SECONDS - runs every fuzz target of a build for so long, from its corpus (and model
# maps from those of the program), JOBS at a time. What it finds stays in BUILD/findings.
#
# Nothing that is read is worth 64 MiB at once, nor 512 MiB in all: the inputs have a few KiB, so what
# takes more has believed a length that a file claims. (Of what is freed, ASan keeps 64 MiB.)
set -u
build=$1
here=$(dirname "$0")
export build here seconds="$2"
mkdir -p "$build/findings"
rm -f "$build/findings/"*.log

# Plans and folders are written and removed a thousand times a second: in memory, where that is easy.
where=/tmp
[ -w /dev/shm ] && where=/dev/shm
TMPDIR=$(mktemp -d -p "${TMPDIR:-$where}" ferry-fuzz-XXXXXX)
trap 'rm -rf "$TMPDIR"' EXIT
ASAN_OPTIONS=quarantine_size_mb=64:${ASAN_OPTIONS:-}
export TMPDIR ASAN_OPTIONS

# shellcheck disable=SC2016 # for the inner shell
printf '%s\n' "$here"/*_fuzz.c | xargs -P "${JOBS:-$(nproc)}" -I '{}' sh -c '
    name=$(basename "$1" _fuzz.c)
    seeds=$here/corpus/$name
    [ "$name" = model_map ] && seeds="$seeds convert/models"
    grown=$build/corpus/$name
    mkdir -p "$grown"
    "$build/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -malloc_limit_mb=64 -rss_limit_mb=512 \
        -timeout=120 -print_final_stats=1 -artifact_prefix="$build/findings/$name-" "$grown" $seeds \
        >"$build/findings/$name.log" 2>&1 </dev/null
    echo "exit code $?" >>"$build/findings/$name.log"' - '{}'

passed=0 failed=0
for log in "$build"/findings/*.log; do
    name=$(basename "$log" .log)
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(grep -ao ' cov: [0-9]*' "$log" | tail -n 1 | tr -dc 0-9)
    if grep -q '^exit code 0$' "$log" && [ "${runs:-0}" -gt 0 ]; then
        passed=$((passed + 1))
        echo "$name: $runs runs, $edges edges"
    else
        failed=$((failed + 1))
        echo "FAILED $name (all of it is in $log):"
        grep -aE 'ERROR|SUMMARY|runtime error|Test unit written|exit code' "$log" | sed 's/^/    /'
    fi
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
