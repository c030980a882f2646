#!/bin/sh
# disk_test.sh - disks that are full, read-only, or fail; folders that may not be read or written.
. "$(dirname "$0")/lib.sh"
synth_model m --hidden 256 --ffn-hidden-size 1024 --vocab-size 20000

# mount_tmpfs FOLDER OPTIONS
mount_tmpfs() {
    mkdir "$1" && mount -t tmpfs -o "$2" ferry-test "$1" 2>/dev/null
}

it "a disk without enough space is refused before anything is written"
if mount_tmpfs small size=2m; then
    run convert m small/out --tp 2
    exits 4
    says "no space"
    says "short by"
    run convert m small/out --tp 2 --max-memory 1MiB --dry-run
    exits 4
    says "short by"
    says "; and --max-memory 1 MiB is not enough"
    [ -z "$(ls -A small)" ] || is_wrong "small holds $(ls -A small)"
else
    skip "cannot mount a tmpfs"
fi

it "an empty disk is a destination itself, a used one is not"
if mount_tmpfs disk size=100m; then
    for to in hf torch; do
        run convert m disk --to $to
        exits 0
        run convert disk back --to hf --overwrite
        exits 0
        same_files m back
        nothing_partial_in disk
        run convert m disk --to hf --overwrite
        exits 7
        rm -r disk/*
    done
else
    skip "cannot mount a tmpfs"
fi

it "a disk that fills up meanwhile is exit code 4, and nothing is left on it"
if mount_tmpfs inodes nr_inodes=5; then # room for bytes, but soon not for one more file
    run convert m inodes/out --tp 4 --pp 4
    exits 4
    says "No space left on device"
    [ -z "$(ls -A inodes)" ] || is_wrong "inodes holds $(ls -A inodes)"
else
    skip "cannot mount a tmpfs"
fi

it "a write that fails in the middle of a file is exit code 4, and nothing is left"
# shellcheck disable=SC2016 # for the inner shell
run_program sh -c 'ulimit -f 4000; exec "$@"' - "$ferry" convert m limited
exits 4
says "limited"
says "File too large"
[ -z "$(ls -d limited .limited* 2>/dev/null)" ] || is_wrong "left: $(ls -Ad .*)"

it "a read-only disk is exit code 4, and is named"
if mount_tmpfs readonly size=100m && mount -o remount,ro readonly; then
    run convert m readonly/out
    exits 4
    says "readonly"
    says "ead-only"
    says "cannot create a folder beside it"
else
    skip "cannot mount a tmpfs"
fi

it "a source on a read-only disk is as good as any"
if mount_tmpfs source size=40m && cp -r m source && mount -o remount,ro source; then
    run convert source/m from_readonly --tp 2
    exits 0
else
    skip "cannot mount a tmpfs"
fi

it "a folder without the right to write is exit code 4"
mkdir closed
chmod 555 closed
run_as_nobody convert m closed/out
exits 4
says "ermission denied"

it "a file without the right to read is exit code 4"
mkdir open
chmod 777 open
cp -r m unreadable
chmod 000 unreadable/model.safetensors
run_as_nobody convert unreadable open/out
exits 4
says "ermission denied"
is_not_there open/out

it "a destination in /dev/null or below a file is exit code 4 or 7"
touch file
run convert m file/below
[ "$code" -eq 4 ] || [ "$code" -eq 7 ] || is_wrong "exit code $code"
run convert m /dev/null
[ "$code" -eq 4 ] || [ "$code" -eq 7 ] || is_wrong "exit code $code"
