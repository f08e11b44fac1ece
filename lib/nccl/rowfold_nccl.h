/* SPDX-License-Identifier: MIT */
/* rowfold over NCCL: an ncclComm_t as the rf_collective that rf_model_forward_sharded takes.
 *
 *     rf_collective ranks = {.size = sizeof ranks};
 *     char why[200];
 *     if (rf_nccl_open(&ranks, comm, 30.0, why, sizeof why) != RF_OK) { fprintf(stderr, "%s\n", why); ... }
 *     rf_model_forward_sharded(model, &ranks, &args);        on every rank, with the model of its columns
 *     rf_nccl_close(&ranks);                                 before ncclCommDestroy
 *
 * A library of its own, librowfold_nccl: pkg-config --cflags --libs rowfold_nccl. It is not linked with NCCL: it takes
 * the one that the program has, or else loads libnccl.so.2.
 */
#ifndef ROWFOLD_NCCL_H
#define ROWFOLD_NCCL_H

#include <rowfold.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills in *collective, whose size is set, for the ranks of `comm`, an ncclComm_t, which stays the caller's: nobody
 * else uses it during a call. All ranks call it; each gets its rank. The models are on the communicator's devices.
 * States go from device to device, in the order of args->stream; the small messages that go before any states, by way
 * of memory that the collective keeps on the device.
 *
 * `timeout` is rf_collective's: seconds that an exchange may take, 0 for no limit. NCCL does not say which rank is
 * late. When the time is over, or NCCL reports that a rank is gone, the communicator is aborted, for nothing else takes
 * its kernels off the device: it is then no communicator any more, and not to be destroyed. With a limit a call waits
 * for its states; without one it does not. After an exchange that has failed each further one fails at once; close the
 * collective, and open another one, of another communicator, on all ranks.
 *
 * RF_INVALID_ARGUMENT, RF_OUT_OF_MEMORY, RF_UNAVAILABLE without NCCL 2.4 or newer, RF_COMMUNICATION or RF_DEVICE_ERROR
 * for what NCCL or CUDA refuses, each with a sentence in `message` (may be NULL) of message_size bytes; *collective is
 * then as it was. */
rf_status rf_nccl_open(rf_collective *collective, void *comm, double timeout, char *message, size_t message_size);

/* Frees what rf_nccl_open took; NULL, or a collective that was not opened, is fine. */
void rf_nccl_close(rf_collective *collective);

#ifdef __cplusplus
}
#endif

#endif
