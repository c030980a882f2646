#!/bin/sh
# wall.sh COMMAND... - runs the command, then prints "wall: S s", its seconds from start to end, as its user
# waits. Exits with its code.
begun=$(date +%s%N)
"$@"
code=$?
echo "wall: $(awk -v ns=$(($(date +%s%N) - begun)) 'BEGIN { printf "%.2f", ns / 1e9 }') s"
exit "$code"
