#!/bin/sh
# run.sh [NAME]... - runs the named findings, by default all of this folder: a line each, then the sums.
#
# Fails if one has changed. `sh findings/NAME.sh` prints what a finding shows.
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || for script in *.sh; do
    [ "$script" = run.sh ] || set -- "$@" "${script%.sh}"
done

output=$(mktemp)
trap 'rm -f "$output"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
stated=0 changed=0
for name; do
    begin=$(date +%s)
    if sh "./$name.sh" >"$output" 2>&1; then
        stated=$((stated + 1))
    else
        changed=$((changed + 1))
    fi
    echo "$name ($(($(date +%s) - begin)) s): $(tail -n 1 "$output")"
done
echo "findings: $stated as stated, $changed changed"
[ $changed -eq 0 ]
