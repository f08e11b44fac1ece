/* SPDX-License-Identifier: MIT */
#include "mpi/rowfold_mpi.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "link.h"

/* Messages up to this size go from each rank to each, so that it is known which one is missing; with larger ones MPI
 * knows better ways. Statuses are of the first kind, and before any states. */
enum { SMALL = 4096, TAG = 0x526f };

typedef struct link {
    MPI_Comm comm; /* a duplicate, which returns its errors */
    int rank, ranks;
    int broken; /* an exchange has failed: what is under way cannot be told from what comes */
} link_state;

/* Of an exchange. What MPI may still write to after a time limit must stay where it is, so it is none of the caller's
 * memory. */
typedef struct exchange {
    const link_state *link;
    char *send, *receive;
    MPI_Request *requests;
    int count;
    double end; /* MPI_Wtime, or 0 for no limit */
} exchange;

static int mpi_failed(int code, const char *what, char *message, size_t size) {
    if (code == MPI_SUCCESS) return 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    say(message, size, "%s: %s", what, text);
    return 1;
}

/* Until all requests are done or the time is over: 1 done, 0 late, -1 an error of MPI. */
static int wait_all(exchange *e, char *message, size_t size) {
    if (e->end == 0)
        return mpi_failed(MPI_Waitall(e->count, e->requests, MPI_STATUSES_IGNORE), "MPI_Waitall", message, size) ? -1
                                                                                                                 : 1;
    for (long turn = 0;; turn++) {
        int done = 0;
        if (mpi_failed(MPI_Testall(e->count, e->requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall", message, size))
            return -1;
        if (done) return 1;
        if (MPI_Wtime() > e->end) return 0;
        /* Others come soon, or not for long. */
        if (turn > 2000) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* Receives first, rank by rank, then sends. */
static int start_small(exchange *e, size_t bytes, char *message, size_t size) {
    const link_state *l = e->link;
    e->count = 2 * l->ranks;
    for (int i = 0; i < e->count; i++) e->requests[i] = MPI_REQUEST_NULL;
    for (int r = 0; r < l->ranks; r++) {
        if (r == l->rank) continue;
        if (mpi_failed(
                MPI_Irecv(e->receive + (size_t)r * bytes, (int)bytes, MPI_BYTE, r, TAG, l->comm, &e->requests[r]),
                "MPI_Irecv", message, size) ||
            mpi_failed(MPI_Isend(e->send, (int)bytes, MPI_BYTE, r, TAG, l->comm, &e->requests[l->ranks + r]),
                "MPI_Isend", message, size))
            return -1;
    }
    memcpy(e->receive + (size_t)l->rank * bytes, e->send, bytes);
    return 0;
}

static int start_large(exchange *e, size_t bytes, char *message, size_t size) {
    const size_t item = bytes % sizeof(uint64_t) ? 1 : sizeof(uint64_t);
    const MPI_Datatype type = item == 1 ? MPI_BYTE : MPI_UINT64_T;
    if (bytes / item > INT_MAX) {
        say(message, size, "%zu bytes of each rank are more than one message of MPI holds", bytes);
        return -1;
    }
    e->count = 1;
    const int count = (int)(bytes / item);
    return mpi_failed(MPI_Iallgather(e->send, count, type, e->receive, count, type, e->link->comm, e->requests),
               "MPI_Iallgather", message, size)
        ? -1
        : 0;
}

/* The first rank that nothing has come from, or -1. MPI_Testall leaves requests alone until all are done. */
static int first_missing(const exchange *e) {
    for (int r = 0; e->count > 1 && r < e->link->ranks; r++) {
        int done = 0;
        if (MPI_Test(&e->requests[r], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return r;
    }
    return -1;
}

static void release(exchange *e) {
    free(e->send);
    free(e->receive);
    free(e->requests);
}

static int32_t all_gather(void *user, const void *send, void *receive, size_t bytes, double timeout, int32_t *failed,
    char *message, size_t size) {
    link_state *l = user;
    if (is_broken(l->broken, message, size)) return 1;
    const size_t ranks = (size_t)l->ranks;
    if (!bytes || bytes > SIZE_MAX / ranks) return bytes != 0;
    exchange e = {.link = l, .end = timeout > 0 ? MPI_Wtime() + timeout : 0};
    e.send = malloc(bytes);
    e.receive = malloc(bytes * ranks);
    e.requests = malloc(2 * ranks * sizeof *e.requests);
    if (!e.send || !e.receive || !e.requests) {
        /* The others wait until their time is over. */
        release(&e);
        l->broken = 1;
        *failed = l->rank;
        say(message, size, "no memory for messages of %zu bytes", bytes);
        return 1;
    }
    memcpy(e.send, send, bytes);
    const int small = bytes <= SMALL;
    if ((small ? start_small : start_large)(&e, bytes, message, size)) {
        l->broken = 1;
        return 1;
    }
    const int done = wait_all(&e, message, size);
    if (done == 1) {
        memcpy(receive, e.receive, bytes * ranks);
        release(&e);
        return 0;
    }
    l->broken = 1;
    *failed = first_missing(&e);
    if (!done) say(message, size, "it took longer than %g seconds", timeout);
    /* A receive can be taken back, which leaves MPI_Finalize nothing to wait for. The rest is leaked: see above. */
    for (int r = 0; small && r < l->ranks; r++)
        if (e.requests[r] != MPI_REQUEST_NULL && MPI_Cancel(&e.requests[r]) == MPI_SUCCESS)
            MPI_Wait(&e.requests[r], MPI_STATUS_IGNORE);
    return 1;
}

static rf_status duplicate(link_state *l, MPI_Comm comm, char *message, size_t size) {
    int began = 0, ended = 0;
    if (MPI_Initialized(&began) != MPI_SUCCESS || !began || MPI_Finalized(&ended) != MPI_SUCCESS || ended) {
        say(message, size, "MPI is not running: expected a call between MPI_Init and MPI_Finalize");
        return RF_INVALID_ARGUMENT;
    }
    if (mpi_failed(MPI_Comm_dup(comm, &l->comm), "MPI_Comm_dup", message, size)) return RF_COMMUNICATION;
    if (mpi_failed(MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", message, size) ||
        mpi_failed(MPI_Comm_rank(l->comm, &l->rank), "MPI_Comm_rank", message, size) ||
        mpi_failed(MPI_Comm_size(l->comm, &l->ranks), "MPI_Comm_size", message, size))
        return RF_COMMUNICATION;
    return RF_OK;
}

rf_status rf_mpi_open(rf_collective *collective, MPI_Comm comm, double timeout, char *message, size_t size) {
    const char *const none = comm == MPI_COMM_NULL ? "MPI_COMM_NULL" : NULL;
    rf_status status = check_opening(collective, none, timeout, message, size);
    if (status) return status;
    link_state *l = new_link(sizeof *l, message, size);
    if (!l) return RF_OUT_OF_MEMORY;
    status = duplicate(l, comm, message, size);
    return end_opening(collective, status,
        &(rf_collective){
            .user = l, .rank = l->rank, .num_ranks = l->ranks, .timeout = timeout, .all_gather = all_gather});
}

void rf_mpi_close(rf_collective *collective) {
    if (!collective || collective->all_gather != all_gather) return;
    link_state *l = collective->user;
    if (!l->broken) MPI_Comm_free(&l->comm);
    free(l);
    collective->user = NULL;
    collective->all_gather = NULL;
}
