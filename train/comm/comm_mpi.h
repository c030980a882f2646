/* comm_mpi.h - the one function of libferry_mpi.so. */
#ifndef FERRY_TRAIN_COMM_COMM_MPI_H
#define FERRY_TRAIN_COMM_COMM_MPI_H

#include <stdbool.h>

#include "train/comm/comm.h"

/* interrupted: the program's, of common/threads.h. */
typedef enum status comm_mpi_start_fn(struct comm *c, bool (*interrupted)(void), struct error *err);
comm_mpi_start_fn comm_mpi_start;

#endif
