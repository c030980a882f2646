#!/bin/sh
# run.sh BUILD SECONDS - runs every fuzz target of a build for so long, from its corpus (and model
# maps from those of the program). What it finds stays in BUILD/findings.
set -u
build=$1
here=$(dirname "$0")
export build here seconds="$2"
mkdir -p "$build/findings"
rm -f "$build/findings/"*.log

# shellcheck disable=SC2016 # for the inner shell
printf '%s\n' "$here"/*_fuzz.c | xargs -P "$(nproc)" -I '{}' sh -c '
    name=$(basename "$1" _fuzz.c)
    seeds=$here/corpus/$name
    [ "$name" = model_map ] && seeds="$seeds convert/models"
    grown=$build/corpus/$name
    mkdir -p "$grown"
    "$build/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="$build/findings/$name-" "$grown" $seeds \
        >"$build/findings/$name.log" 2>&1 </dev/null
    echo "exit code $?" >>"$build/findings/$name.log"' - '{}'

passed=0 failed=0
for log in "$build"/findings/*.log; do
    name=$(basename "$log" .log)
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if grep -q '^exit code 0$' "$log" && [ "${runs:-0}" -gt 0 ]; then
        passed=$((passed + 1))
        echo "$name: $runs runs"
    else
        failed=$((failed + 1))
        echo "FAILED $name (all of it is in $log):"
        grep -E 'ERROR|SUMMARY|runtime error|Test unit written|exit code' "$log" | sed 's/^/    /'
    fi
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
