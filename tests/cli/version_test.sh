#!/bin/sh
# version_test.sh - the version of a tree, of its archive, and of the program.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"

# has_version TREE PATTERN
has_version() {
    run_program sh "$1/common/version.sh"
    grep -qxE "$2" "$stdout" || is_wrong "version of $1: $(cat "$stdout"), wanted $2"
}

# A tree that only has what makes its version.
make_tree() {
    for file in common/version.sh CHANGELOG.md Makefile ferry.c $(sed -n 's/^include //p' "$root/Makefile"); do
        mkdir -p "$1/$(dirname "$file")" && cp "$root/$file" "$1/$file"
    done
}

git_in() {
    git -C "$@" >"$scratch/git" 2>&1 || is_wrong "git $*: $(cat "$scratch/git")"
}

commit_in() {
    git_in "$1" add -A
    git_in "$1" -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -q -m one
}

it "ferry, its answers and the records of checkpoints have the version of the build"
version=$(cat "$(dirname "$ferry")/VERSION")
for word in --version -V version; do
    run $word
    exits 0
    [ "$(head -n 1 "$stdout")" = "ferry $version" ] || is_wrong "$ran: $(head -n 1 "$stdout")"
    prints "compiler  "
done
run --version --json
prints "\"ferry\": \"$version\""
run models --json
prints "\"ferry\": \"$version\""
synth_model m
run convert -q m out
grep -qF "\"ferry\": \"$version\"" out/ferry.json || is_wrong "ferry.json: $(grep '"ferry"' out/ferry.json)"

make_tree tree
newest=$(sed -n 's/^## \([0-9.]*\).*/\1/p' tree/CHANGELOG.md | head -n 1)

it "without git the version is CHANGELOG's newest"
has_version tree "$newest\+unknown"

if ! command -v git >/dev/null; then
    it "the version has the commit"
    skip "no git"
    exit
fi
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

it "a folder in another repository does not have that one's version"
git_in . init -q .
commit_in .
has_version tree "$newest\+unknown"
rm -rf .git

it "without a tag the version has the commit"
git_in tree init -q .
commit_in tree
has_version tree "$newest\+[0-9a-f]{8}"

it "a changed file marks the version, a new one does not"
echo new >tree/new
has_version tree "$newest\+[0-9a-f]{8}"
echo >>tree/CHANGELOG.md
has_version tree "$newest\+[0-9a-f]{8}-dirty"

it "the owner of the files may be another user"
if [ "$(id -u)" -eq 0 ]; then
    chmod 755 "$scratch" .
    run_program setpriv --reuid=65534 --regid=65534 --clear-groups sh tree/common/version.sh
    grep -qE '\+[0-9a-f]{8}' "$stdout" || is_wrong "$(cat "$stdout" "$stderr")"
else
    skip "not root"
fi

it "a tag of another kind is ignored, the tag of a version counts"
git_in tree tag other
has_version tree "$newest\+[0-9a-f]{8}-dirty"
git_in tree checkout -q CHANGELOG.md
git_in tree tag v7.8.9
has_version tree "7\.8\.9"
commit_in tree
has_version tree "7\.8\.9-1-g[0-9a-f]{8}"

it "the file of the version changes only with the version"
make -s -C tree ../out/VERSION BUILD=../out >"$scratch/make" 2>&1 || is_wrong "$(cat "$scratch/make")"
touch -d 2001-01-01 out/VERSION
make -s -C tree ../out/VERSION BUILD=../out >"$scratch/make" 2>&1
[ -n "$(find out/VERSION -not -newermt 2001-01-02)" ] || is_wrong "written again"
rm tree/new && commit_in tree
make -s -C tree ../out/VERSION BUILD=../out >"$scratch/make" 2>&1
[ "$(cat out/VERSION)" = "$(sh tree/common/version.sh)" ] || is_wrong "$(cat out/VERSION)"

it "an archive has the version of what is committed, without git"
version=$(sh tree/common/version.sh)
echo >>tree/CHANGELOG.md
make -s -C tree dist BUILD=../out >"$scratch/make" 2>&1 || is_wrong "$(cat "$scratch/make")"
tar xzf "out/ferry-$version.tar.gz" || is_wrong "no archive of $version"
has_version "ferry-$version" "$version"
