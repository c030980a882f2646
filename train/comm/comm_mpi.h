/* comm_mpi.h - the one function of libferry_mpi.so. */
#ifndef FERRY_TRAIN_COMM_COMM_MPI_H
#define FERRY_TRAIN_COMM_COMM_MPI_H

#include <stdbool.h>

#include "train/comm/comm.h"

/* Functions of the program's copy of common/threads.h. */
struct comm_mpi_program {
    bool (*interrupted)(void);
    void (*work_stop)(const struct error *why);
};

typedef enum status comm_mpi_start_fn(struct comm *c, const struct comm_mpi_program *program,
                                      struct error *err);
comm_mpi_start_fn comm_mpi_start;

#endif
