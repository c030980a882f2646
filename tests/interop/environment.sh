# shellcheck shell=sh
# environment.sh - sourced: environments of packages that are kept, each made once.

# make_once FOLDER PINS WHAT SUMMARY - calls install, which makes FOLDER, unless it has these pins. install must end with
# its failure: the shell ignores `set -e` there. After a failure prints the log's end and SUMMARY, and exits.
make_once() {
    exec 9>"$1.lock"
    flock 9 # one who installs there at the same time
    if [ "$(cat "$1/ferry-pins" 2>/dev/null)" != "$2" ]; then
        echo "installing $3 into $1"
        if ! install >"$1.log" 2>&1; then
            tail -n 20 "$1.log"
            echo "$4"
            exit 1
        fi
        printf '%s' "$2" >"$1/ferry-pins"
    fi
    exec 9>&-
}
