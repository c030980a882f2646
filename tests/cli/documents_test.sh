#!/bin/sh
# documents_test.sh FERRY - the commands of README.md and docs/GUIDE.md print what stands there.
ferry=$(realpath "$1") here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/ferry-documents.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
mkdir "$scratch/bin" "$scratch/guide" "$scratch/readme" && ln -s "$ferry" "$scratch/bin/ferry"
export PATH="$scratch/bin:$PATH"
cd "$scratch/readme" && python3 "$here/documents.py" "$here/../../README.md" || echo "not ok - README.md"
cd "$scratch/guide" && python3 "$here/documents.py" "$here/../../docs/GUIDE.md" || echo "not ok - docs/GUIDE.md"
