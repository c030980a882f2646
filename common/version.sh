#!/bin/sh
# version.sh - prints the version of this tree: the file VERSION of a source archive; else the tag and the commits
# since; else CHANGELOG's newest version and the commit. "-dirty": tracked files have changes.
cd "$(dirname "$0")/.." || exit 1

# A folder inside another repository does not have that one's version.
describe() {
    [ -e .git ] && git -c safe.directory="$PWD" describe --abbrev=8 --dirty "$@" 2>/dev/null
}

if [ -f VERSION ]; then
    cat VERSION
elif tag=$(describe --tags --match 'v[0-9]*'); then
    echo "${tag#v}"
else
    newest=$(sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
    echo "$newest+$(describe --always --exclude '*' || echo unknown)"
fi
