/* SPDX-License-Identifier: MIT */
/* rowfold over MPI: an MPI_Comm as the rf_collective that rf_model_forward_sharded takes.
 *
 *     rf_collective ranks = {.size = sizeof ranks};
 *     char why[200];
 *     if (rf_mpi_open(&ranks, MPI_COMM_WORLD, 30.0, why, sizeof why) != RF_OK) { fprintf(stderr, "%s\n", why); ... }
 *     rf_model_forward_sharded(model, &ranks, &args);        on every rank, with the model of its columns
 *     rf_mpi_close(&ranks);                                  before MPI_Finalize
 *
 * A library of its own, librowfold_mpi: pkg-config --cflags --libs rowfold_mpi. librowfold does not depend on MPI.
 */
#ifndef ROWFOLD_MPI_H
#define ROWFOLD_MPI_H

#include <mpi.h>
#include <rowfold.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills in *collective, whose size is set, for the ranks of `comm`: over a duplicate of it, so that messages cannot
 * meet the caller's. All ranks call it, between MPI_Init and MPI_Finalize; each gets its rank. States go by way of host
 * memory, those of a CUDA model, too.
 *
 * `timeout` is rf_collective's: seconds that an exchange may take, 0 for no limit. A rank that is late for the small
 * messages that go before any states is named. One that has ended is MPI's business: mpirun ends the others, unless it
 * was told not to. After an exchange that has failed each further one fails at once; close the collective, and open
 * another one on all ranks.
 *
 * RF_INVALID_ARGUMENT, RF_OUT_OF_MEMORY, RF_COMMUNICATION for what MPI refuses, each with a sentence in `message` (may
 * be NULL) of message_size bytes; *collective is then as it was. */
rf_status rf_mpi_open(rf_collective *collective, MPI_Comm comm, double timeout, char *message, size_t message_size);

/* Frees what rf_mpi_open took, on all ranks; NULL, or a collective that was not opened, is fine. After an exchange that
 * has failed the duplicate and the buffers that MPI may still write to are left to the process. */
void rf_mpi_close(rf_collective *collective);

#ifdef __cplusplus
}
#endif

#endif
