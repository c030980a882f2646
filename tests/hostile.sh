#!/bin/sh
# hostile.sh FERRY - bad and odd files: each row of golden/hostile/cases.tsv says whether it is to be accepted.
#
# Files go through `inspect`, model folders through `convert --dry-run`. A refusal must be one of the
# documented exit codes, say something, and be quick; nothing may be written.
set -u
ferry=$1
folder=$(dirname "$0")/golden/hostile
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
tab=$(printf '\t')

tail -n +2 "$folder/cases.tsv" | cut -f1-3 >"$work/rows"
while IFS="$tab" read -r file expected reason; do
    case $file in
    hf/*) timeout 120 "$ferry" convert --dry-run "$folder/$file" "$work/out" >"$work/said" 2>&1 ;;
    *) timeout 120 "$ferry" inspect "$folder/$file" >"$work/said" 2>&1 ;;
    esac
    code=$?
    case $expected:$code in
    accept:0 | reject:[23457]) verdict=ok ;;
    *) verdict=bad ;;
    esac
    [ -e "$work/out" ] && verdict="bad (wrote something)"
    [ "$code" -ne 0 ] && ! grep -q "^ferry .*: ." "$work/said" && verdict="bad (without a word)"
    if [ "$verdict" = ok ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$file: $expected expected ($reason), exit code $code, $verdict: $(tail -n 1 "$work/said")"
    fi
done <"$work/rows"
echo "hostile: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
