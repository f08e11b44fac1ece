/* SPDX-License-Identifier: MIT */
/* Threads that cannot be had: the program brings its own pthread_create in front of the C library's, which fails in its
 * turn. A call goes on with the threads there are, down to the caller alone; its bits stay, and the next call gets the
 * threads that are there again. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <rowfold.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) { return 77; } /* the sanitizer brings its own pthread_create */
#else

#include "check.h"

enum { BATCH = 64, K = 256, N = 2048, THREADS = 4, PATIENCE_S = 60 };
static float weight[N * K], x[BATCH * K], y[BATCH], expected[BATCH];
static atomic_int asked, granted = -1; /* how many more are granted; negative: all */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) {
        void *found = dlsym(RTLD_NEXT, "pthread_create");
        memcpy(&real, &found, sizeof real);
    }
    asked++;
    if (granted == 0) return EAGAIN;
    if (granted > 0) granted--;
    return real(thread, attributes, start, argument);
}

/* In a child, whose pool is empty: `most` threads can be had, then, for the second call, all. */
static void with_threads(const rf_model *model, int most) {
    alarm(PATIENCE_S);
    asked = 0;
    granted = most;
    memset(y, 0, sizeof y);
    CHECK(!rf_model_forward(model, x, BATCH, y) && !memcmp(y, expected, sizeof y), "with %d threads: %s", most,
        rf_last_error());
    /* One refusal ends the asking of a call. */
    CHECK(asked == (most < THREADS - 1 ? most + 1 : THREADS - 1), "%d threads were asked for where %d are granted",
        (int)asked, most);
    granted = -1;
    asked = 0;
    memset(y, 0, sizeof y);
    CHECK(!rf_model_forward(model, x, BATCH, y) && !memcmp(y, expected, sizeof y), "all threads: %s", rf_last_error());
    CHECK(asked == (most < THREADS - 1 ? THREADS - 1 - most : 0), "the call after %d threads asked for %d", most,
        (int)asked);
}

int main(void) {
    for (int i = 0; i < N * K; i++) weight[i] = (float)(i % 1009) * 1e-4f - 0.05f;
    for (int i = 0; i < BATCH * K; i++) x[i] = (float)(i % 997) * 1e-3f;
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = "linear | logsumexp",
        .in_features = K,
        .out_features = N,
        .device = "cpu",
        .threads = THREADS};
    /* Weights are packed by threads, too. */
    granted = 1;
    if (rf_model_create(&model, &config) || rf_model_load_weights(model, weight, NULL, NULL, 0) ||
        rf_model_forward(model, x, BATCH, expected)) {
        fprintf(stderr, "%s\n", rf_last_error());
        return 1;
    }
    for (int most = 0; most < THREADS; most++) {
        int status = -1;
        const pid_t child = fork();
        if (!child) {
            with_threads(model, most);
            _exit(failures != 0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status),
            "the child with %d threads: %d", most, status);
    }
    rf_model_destroy(model);
    return failures != 0;
}
#endif
