#!/bin/sh
# mpi_test.sh - ranks that mpirun starts: what train/comm/comm_test.c does, over MPI.
. "$(dirname "$0")/lib.sh"
build=$(dirname "$ferry")
comm_test=$build/train/comm/comm_test

# For root, and for more ranks than CPUs; our own library is not installed.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# MPI keeps what it has to the end.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

# Runs comm_test mpi $2 as $1 ranks, which has $3 seconds.
run_ranks() {
    run_program timeout "$3" mpirun -np "$1" "$comm_test" mpi "$2"
}

if ! command -v mpirun >/dev/null || [ ! -e "$build/libferry_mpi.so" ] || [ ! -x "$comm_test" ]; then
    it "calls of ranks over MPI do what they say"
    skip "no mpirun, or no libferry_mpi.so"
    exit
fi

it "calls of ranks over MPI do what they say, of any size and in any group"
for size in 1 2 3 4; do
    run_ranks $size calls 120
    exits 0
    prints "all is well"
done

it "messages over MPI come in order"
run_ranks 3 messages 60
exits 0

it "a rank that fails ends the job over MPI, with its message and exit code"
run_ranks 4 failure 20
exits 10
prints "rank 1: loss is NaN"

it "ranks over MPI that call different things are told which"
run_ranks 3 disagreement 20
exits 9
prints "all_reduce of 12 bytes of f32 among 3 ranks"
run_ranks 2 exchange 20
exits 9
prints "has 5 bytes for rank"

it "a rank that is killed ends the job over MPI"
run_ranks 3 death 20
case $code in 0 | 124) is_wrong "exit code $code" ;; esac

it "a rank that is interrupted ends the job over MPI"
run_ranks 3 interrupt 20
exits 130
prints "interrupted"

it "without the library MPI is refused, and said to be missing"
cp "$comm_test" alone
LD_LIBRARY_PATH='' run_program ./alone mpi calls
exits 3
prints "MPI: this build has none"
