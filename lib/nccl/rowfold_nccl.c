/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#include "nccl/rowfold_nccl.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "link.h"

/* What is used of NCCL, whose interface is the same in all of its versions 2.x. */
typedef int nccl_result;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_CHAR = 0, OLDEST = 2400 };

typedef struct nccl {
    const char *(*GetErrorString)(nccl_result);
    nccl_result (*GetVersion)(int *);
    nccl_result (*CommCount)(void *, int *);
    nccl_result (*CommUserRank)(void *, int *);
    nccl_result (*CommCuDevice)(void *, int *);
    nccl_result (*CommGetAsyncError)(void *, nccl_result *);
    nccl_result (*CommAbort)(void *);
    nccl_result (*AllGather)(const void *, void *, size_t, int, void *, cudaStream_t);
} nccl;

typedef struct link {
    nccl nccl;
    void *comm;
    int rank, ranks, device;
    int broken; /* an exchange has failed, and the communicator is aborted */
    cudaStream_t stream;
    size_t room;  /* bytes of a rank's message */
    char *host;   /* (1 + ranks, room), pinned */
    char *memory; /* (1 + ranks, room) on the device */
} link_state;

static int cuda_failed(cudaError_t error, const char *what, char *message, size_t size) {
    if (error == cudaSuccess) return 0;
    cudaGetLastError();
    say(message, size, "%s: CUDA says \"%s\"", what, cudaGetErrorString(error));
    return 1;
}

static int nccl_failed(const link_state *l, nccl_result result, const char *what, char *message, size_t size) {
    if (result == NCCL_SUCCESS) return 0;
    say(message, size, "%s: NCCL says \"%s\"", what, l->nccl.GetErrorString(result));
    return 1;
}

/* The communicator is of the NCCL that the program uses: where that is linked or loaded for all, it is found so;
 * another copy would not know it. One that was loaded for a library alone is found by its name. */
static rf_status load(nccl *n, char *message, size_t size) {
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
        {"ncclGetErrorString", &n->GetErrorString},
        {"ncclGetVersion", &n->GetVersion},
        {"ncclCommCount", &n->CommCount},
        {"ncclCommUserRank", &n->CommUserRank},
        {"ncclCommCuDevice", &n->CommCuDevice},
        {"ncclCommGetAsyncError", &n->CommGetAsyncError},
        {"ncclCommAbort", &n->CommAbort},
        {"ncclAllGather", &n->AllGather},
    };
    void *library = RTLD_DEFAULT; /* which is NULL */
    if (!dlsym(library, "ncclAllGather") && !(library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))) {
        const char *why = dlerror();
        say(message, size, "NCCL is not there: %s", why ? why : "libnccl.so.2 was not found");
        return RF_UNAVAILABLE;
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *const function = dlsym(library, wanted[i].name);
        if (!function) {
            say(message, size, "NCCL has no %s; expected NCCL 2.4 or newer", wanted[i].name);
            return RF_UNAVAILABLE;
        }
        memcpy(wanted[i].to, &function, sizeof function);
    }
    int version = 0;
    if (n->GetVersion(&version) != NCCL_SUCCESS || version < OLDEST) {
        say(message, size, "NCCL has version code %d; expected NCCL 2.4 or newer", version);
        return RF_UNAVAILABLE;
    }
    return RF_OK;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_after(long turn) {
    if (turn > 2000) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Nothing else takes a kernel off the device that waits for a rank which does not come. */
static int32_t give_up(link_state *l) {
    l->broken = 1;
    l->nccl.CommAbort(l->comm);
    return 1;
}

/* Until the stream has done all, the time is over or NCCL knows of a rank that is gone. 0 is done. */
static int32_t wait_for(link_state *l, cudaStream_t stream, double end, double timeout, char *message, size_t size) {
    for (long turn = 0;; turn++) {
        const cudaError_t state = cudaStreamQuery(stream);
        if (state == cudaSuccess) return 0;
        if (state != cudaErrorNotReady) {
            cuda_failed(state, "an exchange", message, size);
            return give_up(l);
        }
        nccl_result result = NCCL_SUCCESS;
        if (l->nccl.CommGetAsyncError(l->comm, &result) == NCCL_SUCCESS && result != NCCL_SUCCESS &&
            result != NCCL_IN_PROGRESS) {
            nccl_failed(l, result, "an exchange", message, size);
            return give_up(l);
        }
        if (timeout > 0 && now() > end) {
            say(message, size, "it took longer than %g seconds; NCCL does not say which rank is missing", timeout);
            return give_up(l);
        }
        pause_after(turn);
    }
}

/* A communicator that does not block says later whether it could begin. */
static int32_t begin(link_state *l, const void *send, void *receive, size_t bytes, cudaStream_t stream, double end,
    double timeout, char *message, size_t size) {
    nccl_result result = l->nccl.AllGather(send, receive, bytes, NCCL_CHAR, l->comm, stream);
    for (long turn = 0; result == NCCL_IN_PROGRESS; turn++) {
        if (l->nccl.CommGetAsyncError(l->comm, &result) != NCCL_SUCCESS) break;
        if (timeout > 0 && now() > end) {
            say(message, size, "ncclAllGather did not begin within %g seconds", timeout);
            return give_up(l);
        }
        pause_after(turn);
    }
    return nccl_failed(l, result, "ncclAllGather", message, size) ? give_up(l) : 0;
}

static void free_room(link_state *l) {
    if (l->host) cudaFreeHost(l->host);
    if (l->memory) cudaFree(l->memory);
    l->host = l->memory = NULL;
    l->room = 0;
}

static int make_room(link_state *l, size_t bytes, char *message, size_t size) {
    if (bytes <= l->room) return 0;
    free_room(l);
    const size_t all = bytes * ((size_t)l->ranks + 1);
    if (cuda_failed(cudaMallocHost((void **)&l->host, all), "memory for messages", message, size) ||
        cuda_failed(cudaMalloc((void **)&l->memory, all), "memory for messages on the device", message, size)) {
        free_room(l);
        return 1;
    }
    l->room = bytes;
    return 0;
}

/* The device of the communicator is current meanwhile. */
static int enter(const link_state *l, int *before, char *message, size_t size) {
    if (cuda_failed(cudaGetDevice(before), "asking for the current device", message, size)) return 1;
    return *before != l->device && cuda_failed(cudaSetDevice(l->device), "changing the device", message, size);
}

static void leave(const link_state *l, int before) {
    if (before != l->device) cudaSetDevice(before);
}

static int32_t gather_on_host(link_state *l, const void *send, void *receive, size_t bytes, double timeout,
    int32_t *failed, char *message, size_t size) {
    if (make_room(l, bytes, message, size)) {
        /* The others wait until their time is over, or until this rank's process ends. */
        *failed = l->rank;
        return give_up(l);
    }
    const size_t all = bytes * (size_t)l->ranks;
    const double end = now() + timeout;
    memcpy(l->host, send, bytes);
    if (cuda_failed(cudaMemcpyAsync(l->memory, l->host, bytes, cudaMemcpyHostToDevice, l->stream), "copying a message",
            message, size))
        return give_up(l);
    if (begin(l, l->memory, l->memory + bytes, bytes, l->stream, end, timeout, message, size)) return 1;
    if (cuda_failed(cudaMemcpyAsync(l->host + bytes, l->memory + bytes, all, cudaMemcpyDeviceToHost, l->stream),
            "copying messages", message, size))
        return give_up(l);
    if (wait_for(l, l->stream, end, timeout, message, size)) return 1;
    memcpy(receive, l->host + bytes, all);
    return 0;
}

static int32_t all_gather(void *user, const void *send, void *receive, size_t bytes, double timeout, int32_t *failed,
    char *message, size_t size) {
    link_state *l = user;
    int before;
    if (is_broken(l->broken, message, size)) return 1;
    if (!bytes || bytes > SIZE_MAX / ((size_t)l->ranks + 1)) return bytes != 0;
    if (enter(l, &before, message, size)) return 1;
    const int32_t answer = gather_on_host(l, send, receive, bytes, timeout, failed, message, size);
    leave(l, before);
    return answer;
}

static int32_t all_gather_on_device(void *user, const void *send, void *receive, size_t bytes, void *stream,
    double timeout, int32_t *failed, char *message, size_t size) {
    link_state *l = user;
    int before;
    (void)failed;
    if (is_broken(l->broken, message, size)) return 1;
    if (!bytes) return 0;
    if (enter(l, &before, message, size)) return 1;
    const double end = now() + timeout;
    int32_t answer = begin(l, send, receive, bytes, stream, end, timeout, message, size);
    if (!answer && timeout > 0) answer = wait_for(l, stream, end, timeout, message, size);
    leave(l, before);
    return answer;
}

static rf_status describe(link_state *l, char *message, size_t size) {
    if (nccl_failed(l, l->nccl.CommCount(l->comm, &l->ranks), "ncclCommCount", message, size) ||
        nccl_failed(l, l->nccl.CommUserRank(l->comm, &l->rank), "ncclCommUserRank", message, size) ||
        nccl_failed(l, l->nccl.CommCuDevice(l->comm, &l->device), "ncclCommCuDevice", message, size))
        return RF_COMMUNICATION;
    int before;
    if (enter(l, &before, message, size)) return RF_DEVICE_ERROR;
    const int failed =
        cuda_failed(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "creating a stream", message, size);
    leave(l, before);
    return failed ? RF_DEVICE_ERROR : RF_OK;
}

rf_status rf_nccl_open(rf_collective *collective, void *comm, double timeout, char *message, size_t size) {
    rf_status status = check_opening(collective, comm ? NULL : "NULL", timeout, message, size);
    if (status) return status;
    link_state *l = new_link(sizeof *l, message, size);
    if (!l) return RF_OUT_OF_MEMORY;
    l->comm = comm;
    status = load(&l->nccl, message, size);
    if (!status) status = describe(l, message, size);
    return end_opening(collective, status,
        &(rf_collective){.user = l,
            .rank = l->rank,
            .num_ranks = l->ranks,
            .timeout = timeout,
            .all_gather = all_gather,
            .all_gather_on_device = all_gather_on_device});
}

void rf_nccl_close(rf_collective *collective) {
    if (!collective || collective->all_gather != all_gather) return;
    link_state *l = collective->user;
    int before;
    if (!enter(l, &before, NULL, 0)) {
        free_room(l);
        cudaStreamDestroy(l->stream);
        cudaGetLastError(); /* of a device that failed the caller has been told */
        leave(l, before);
    }
    free(l);
    collective->user = NULL;
    collective->all_gather = NULL;
    collective->all_gather_on_device = NULL;
}
