#!/bin/sh
# mpi_test.sh - ranks that mpirun starts: what train/comm/comm_test.c does, over MPI.
. "$(dirname "$0")/mpi.sh"
comm_test=$build/train/comm/comm_test

# Runs comm_test mpi $2 as $1 ranks, which has $3 seconds.
run_test() {
    run_program timeout "$3" mpirun -np "$1" "$comm_test" mpi "$2"
}

it "calls of ranks over MPI do what they say, of any size and in any group"
for size in 1 2 3 4; do
    run_test $size calls 300
    exits 0
    prints "all is well"
done

it "messages over MPI come in order"
run_test 3 messages 300
exits 0

it "messages over MPI that are too large to be sent ahead cross one another"
for size in 2 3; do
    run_test $size large 300
    exits 0
    prints "all is well"
done

it "a rank that fails ends the job over MPI, with its message and exit code"
run_test 4 failure 120
exits 10
prints "rank 1: loss is NaN"

it "its message is not lost where rank 0, which says it, is slow"
run_test 3 late 120
exits 10
prints "rank 1: loss is NaN"

it "ranks over MPI that call different things are told which"
run_test 3 disagreement 120
exits 9
prints "all_reduce of 12 bytes of f32 among 3 ranks"
run_test 2 exchange 120
exits 9
prints "sends 5 bytes to rank"

it "a rank that is killed ends the job over MPI"
run_test 3 death 120
case $code in 0 | 124) is_wrong "exit code $code" ;; esac

it "a rank that is interrupted ends the job over MPI"
run_test 3 interrupt 120
exits 130
prints "interrupted"

it "without the library MPI is refused, and said to be missing"
cp "$comm_test" alone
LD_LIBRARY_PATH='' run_program ./alone mpi calls
exits 3
prints "MPI: this build has none"
