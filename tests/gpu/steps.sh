# steps.sh - steps with a deadline, and results that are on disk after each; for tests/gpu/run.
# shellcheck shell=sh disable=SC2154 # part, out, work, deadline, capability and commit are run's
#
# 1. A step is a command with a limit of seconds, also limited by the time left until the deadline. It
#    is skipped if less is left than it needs at least.
# 2. $out has the results after every step; a killed run loses only its current step: RESULTS.md with a
#    part for each of smoke, right and fast; PART.log with their steps' output; step.log with the current
#    step's output so far.
# 3. $files has the output of each step of the current part, by the step's name. run's functions
#    smoke_results, right_results and fast_results print the excerpts for RESULTS.md. They are called
#    after each step, before later steps have output.

# Bytes that PART.log keeps of a step: half of them from its start.
MAX_LOG=1000000

# Messages of compute-sanitizer and ncu if the system denies them the GPU, and of ncu if the user may
# not read counters.
REFUSALS='Device not supported|LibraryNotLoaded|ERR_NVGPUCTRPERM'

seconds_left() {
    echo $((deadline - $(date +%s)))
}

clipped() { # FILE
    if [ "$(wc -c <"$1")" -le "$MAX_LOG" ]; then
        cat "$1"
    else
        head -c $((MAX_LOG / 2)) "$1"
        printf '\n[...]\n'
        tail -c $((MAX_LOG / 2)) "$1"
    fi
}

# Called before the first step of $part: SECONDS is its limit, NOW its start.
begin_part() { # NOW SECONDS
    deadline=$(($1 + $2))
    files=$work/$part
    mkdir "$files"
    : >"$work/table.$part"
    : >"$out/$part.log"
}

# Whether the last step failed; a skipped step did not.
has_failed() {
    tail -n 1 "$work/table.$part" | grep -q '^| [^|]* | FAILED'
}

# Adds a row to the part's table, and writes RESULTS.md.
told() { # NAME RESULT SECONDS
    echo "| $1 | $2 | $3 |" >>"$work/table.$part"
    echo "   $1: $2"
    write_results
}

# Prints the result of a step. A test skipped for lack of a GPU has failed: there is a GPU. So has one of
# kernels for compute capability 9.0 if the GPU has that.
verdict() { # NAME CODE SECONDS LIMIT
    case $1 in
    memcheck* | racecheck* | ncu*)
        refusal=$(grep -m 1 -o -E "$REFUSALS" "$files/$1") && echo "skipped: $refusal" && return
        grep -o 'No kernels were profiled' "$files/$1" | sed 's/^/FAILED: /' | grep . && return
        ;;
    sm90)
        [ "$capability" != 9.0 ] && grep -m 1 '^skipped: .*_sm90: not for' "$files/$1" && return
        ;;
    esac
    case $2 in
    0) grep -m 1 '^skipped' "$files/$1" | sed 's/^/FAILED: /' | grep . || echo ok ;;
    124 | 137) [ "$3" -lt "$4" ] && echo "FAILED ($2)" || echo "FAILED: cut after $3 s" ;;
    *) echo "FAILED ($2)" ;;
    esac
}

# LIMIT and LEAST are seconds. The command runs in the background: a shell runs its traps only when no
# command is in the foreground.
step() { # NAME LIMIT LEAST COMMAND...
    name=$1 limit=$2 least=$3
    shift 3
    left=$(seconds_left)
    if [ "$left" -lt "$least" ]; then
        told "$name" "skipped: no time left" 0
        return 1
    fi
    [ "$limit" -le "$left" ] || limit=$left
    echo "== $(date +%T) $part, $left s left: $name"
    from=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/step.log" 2>&1 &
    child=$!
    wait "$child"
    code=$?
    child=
    took=$(($(date +%s) - from))
    mv "$out/step.log" "$files/$name"
    result=$(verdict "$name" "$code" "$took" "$limit")
    {
        echo "=== $name: $result, $took s: $*"
        clipped "$files/$name"
        echo
    } >>"$out/$part.log"
    told "$name" "$result" "$took"
    case $result in
    ok) return 0 ;;
    FAILED*) tail -n 30 "$files/$name" ;;
    esac
    return 1
}

# A step of a Python program, skipped if a module is missing: Ferry itself needs none.
python_step() { # MODULES NAME LIMIT LEAST PROGRAM...
    missing=$(python3 -c 'import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1].split() if find_spec(name) is None])' "$1" 2>&1) ||
        missing="python3"
    modules=$1
    shift
    if [ -n "$missing" ]; then
        told "$1" "skipped: no $missing (of Python's $modules)" 0
        return 1
    fi
    name=$1 limit=$2 least=$3
    shift 3
    step "$name" "$limit" "$least" env PYTHONUNBUFFERED=1 python3 "$@"
}

# ---- RESULTS.md ----

part_now() {
    printf '## %s\n\n' "$part"
    echo "Written by \`tests/gpu/run $part\`, $(date -u +%F), commit $commit."
    echo
    sed 's/^/- /' "$work/gpus"
    echo
    echo "| step | | s |"
    echo "|---|---|---|"
    cat "$work/table.$part"
    echo
    "${part}_results" 2>/dev/null
}

part_before() { # PART
    sed -n "/^<!-- $1 -->/,/^<!-- end of $1 -->/p" tests/gpu/RESULTS.md 2>/dev/null | sed '1d;$d'
}

# Long lines are folded, as in all documents, except rows of tables.
fold_lines() {
    awk 'length <= 120 || /^\|/ { print; next } { fflush(); print | "fold -s -w 120"; close("fold -s -w 120") }'
}

# The other parts stay as in tests/gpu/RESULTS.md. A subshell, for local variables.
write_results() (
    {
        echo "# On a GPU"
        for each in smoke right fast; do
            printf '\n<!-- %s -->\n' "$each"
            if [ "$each" = "$part" ]; then part_now; else part_before "$each"; fi
            echo "<!-- end of $each -->"
        done
    } | fold_lines >"$work/results"
    for folder in "$out" tests/gpu; do # renamed, so that there is never half a file
        cp "$work/results" "$folder/RESULTS.md.new" && mv "$folder/RESULTS.md.new" "$folder/RESULTS.md"
    done
)
