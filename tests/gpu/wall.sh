#!/bin/sh
# wall.sh COMMAND... - the command, and then the line "wall: S s" with the seconds that it took from its
# start to its end, as its user waits for it. Its exit code.
begun=$(date +%s%N)
"$@"
code=$?
echo "wall: $(awk -v ns=$(($(date +%s%N) - begun)) 'BEGIN { printf "%.2f", ns / 1e9 }') s"
exit "$code"
