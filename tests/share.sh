# shellcheck shell=sh
# share.sh - which cases shell tests take: FERRY_TEST_SHARE=K/N, K from 0 to N - 1, is each Nth case of a test that
# has many, from case K. Unset: all cases. tests/testing.h has the same for unit tests.
share=${FERRY_TEST_SHARE:-0/1}
nth_try=0

is_share() {
    [ "${share#*/}" -gt 1 ]
}

# Whether case NUMBER of COUNT is taken; some case always is: takes NUMBER COUNT
takes() {
    of=${share#*/}
    [ "$of" -le "$2" ] || of=$2
    [ $(($1 % of)) -eq $((${share%/*} % of)) ]
}

# Whether the next of COUNT cases is taken: for case in A B; do tries 2 || continue; ...
tries() {
    nth_try=$((nth_try + 1))
    takes $(((nth_try - 1) % $1)) "$1"
}

# The words that are taken, a line each.
some() {
    nth=0
    for word; do
        ! takes $nth $# || echo "$word"
        nth=$((nth + 1))
    done
}
