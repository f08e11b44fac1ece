/* SPDX-License-Identifier: MIT */
/* One model, many callers: threads that forward at once, a child after fork, a child forked while other threads are
 * inside forward or measure, and whoever comes after a thread that was cancelled, all get the same bits, and nobody
 * hangs: an alarm ends the program if somebody does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <rowfold.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "slow.h"

enum { BATCH = 64, K = 256, N = 2048, CALLERS = 6, ROUNDS = 20, FORKS = 8, CANCELLED = 100 };

/* Seconds, for some of work: a machine may have much else to do, and the sanitizer takes thirty times as long. It ends
 * a child that makes a thread where the parent had one, so under it a child's calls make none. */
#ifdef __SANITIZE_THREAD__
enum { PATIENCE_S = 900, CHILD_THREADS = 1 };
#else
enum { PATIENCE_S = 120, CHILD_THREADS = 4 };
#endif

static float x[BATCH * K], weight[N * K], expected[BATCH];
static rf_model *model, *in_child; /* the same, but for the threads of a call */
static atomic_int stop, failures;
static int slower = 1;

/* At least two: the first call of a child or a thread is not like the others. */
static int times(int most) { return most / slower > 2 ? most / slower : 2; }

static int agrees(const rf_model *called) {
    float y[BATCH];
    return !rf_model_forward(called, x, BATCH, y) && !memcmp(y, expected, sizeof y);
}

static int forward_agrees(void) { return agrees(model); }

static void *call_rounds(void *unused) {
    (void)unused;
    for (int i = 0; i < times(ROUNDS); i++) failures += !forward_agrees();
    return NULL;
}

static void *call_until_stopped(void *unused) {
    (void)unused;
    while (!stop) failures += !forward_agrees();
    return NULL;
}

static void fork_and_forward(void) {
    pid_t child = fork();
    if (child < 0) {
        failures++;
        return;
    }
    if (!child) {
        alarm((unsigned)(slower * PATIENCE_S));
        _exit(agrees(in_child) && agrees(in_child) ? 0 : 1);
    }
    int status;
    failures += waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status);
}

static void run_threads(int count, void *(*body)(void *), void (*meanwhile)(void)) {
    pthread_t threads[CALLERS];
    int started = 0;
    while (started < count && !pthread_create(&threads[started], NULL, body, NULL)) started++;
    failures += started < count;
    if (meanwhile) meanwhile();
    stop = 1;
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    stop = 0;
}

static void fork_often(void) {
    for (int i = 0; i < times(FORKS); i++) fork_and_forward();
}

static void *call_until_cancelled(void *unused) {
    (void)unused;
    for (;;) {
        failures += !forward_agrees();
        pthread_testcancel();
    }
    return NULL;
}

/* Explaining measures the machine anew when the number of threads is another than the last time: nearly all the time is
 * measuring. */
static int explain_agrees(int threads) {
    rf_model *other = NULL;
    char text[8192];
    const rf_config config = {
        .size = sizeof config, .chain = "linear(256, 2048) | logsumexp", .device = "cpu", .threads = threads};
    int failed =
        rf_model_create(&other, &config) || rf_model_explain(other, BATCH, RF_FORMAT_TEXT, text, sizeof text, NULL);
    rf_model_destroy(other);
    return !failed && strstr(text, "GB/s read");
}

static void *explain_until_stopped(void *unused) {
    (void)unused;
    for (int threads = 1; !stop; threads = 3 - threads) failures += !explain_agrees(threads);
    return NULL;
}

static void fork_and_explain(void) {
    for (int i = 0; i < times(FORKS); i++) {
        usleep((useconds_t)(10000 + 5000 * i));
        pid_t child = fork();
        if (!child) {
            alarm((unsigned)(slower * PATIENCE_S));
            _exit(!explain_agrees(CHILD_THREADS < 2 ? CHILD_THREADS : 2));
        }
        int status = 0;
        failures += child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status);
    }
}

/* What the parent was computing at the time of a fork is the parent's: the child's own threads leave it alone. Several
 * callers, so that some have fewer threads of the pool than they would like. */
enum { LONG_CALLERS = 3, LONG_BATCH = 2048, LONG_N = 512 };
static const size_t long_values = (size_t)LONG_CALLERS * LONG_BATCH * LONG_N;
static atomic_int long_callers;
static float *long_x, *long_y;
static rf_model *long_model;
static const float untouched = -7.25f;

static void *call_for_long(void *unused) {
    (void)unused;
    float *y = long_y + (size_t)long_callers++ * LONG_BATCH * LONG_N;
    while (!stop) failures += rf_model_forward(long_model, long_x, LONG_BATCH / slower, y) != RF_OK;
    return NULL;
}

static void fork_in_the_midst(void) {
    for (int i = 0; i < times(FORKS); i++) {
        usleep((useconds_t)(20000 + 3000 * i));
        pid_t child = fork();
        if (!child) {
            alarm((unsigned)(slower * PATIENCE_S));
            for (size_t v = 0; v < long_values; v++) long_y[v] = untouched;
            int wrong = !agrees(in_child) || !agrees(in_child);
            usleep(50000);
            for (size_t v = 0; v < long_values; v++) wrong |= long_y[v] != untouched;
            _exit(wrong);
        }
        int status = 0;
        failures += child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status);
    }
}

static void fork_during_a_long_call(void) {
    const rf_config config = {.size = sizeof config,
        .chain = "linear | gelu",
        .in_features = K,
        .out_features = LONG_N,
        .device = "cpu",
        .threads = 4};
    long_x = malloc(sizeof *long_x * LONG_BATCH * K);
    long_y = malloc(sizeof *long_y * long_values);
    failures += !long_x || !long_y || rf_model_create(&long_model, &config) ||
        rf_model_load_weights(long_model, weight, NULL, NULL, 0);
    if (!failures) {
        for (int i = 0; i < LONG_BATCH * K; i++) long_x[i] = x[i % (BATCH * K)];
        run_threads(LONG_CALLERS, call_for_long, fork_in_the_midst);
    }
    rf_model_destroy(long_model);
    free(long_x), free(long_y);
}

static rf_model *shared;
static pthread_barrier_t gate;
static atomic_int loaded, refused;

static void *load_shared(void *unused) {
    (void)unused;
    pthread_barrier_wait(&gate);
    rf_status status = rf_model_load_weights(shared, weight, NULL, NULL, 0);
    loaded += status == RF_OK;
    refused += status == RF_ALREADY_LOADED;
    return NULL;
}

/* Of threads that load one model at once, one does. */
static void load_at_once(void) {
    const rf_config config = {.size = sizeof config,
        .chain = "linear | logsumexp | gelu",
        .in_features = K,
        .out_features = N,
        .device = "cpu",
        .threads = 1};
    for (int i = 0; i < times(ROUNDS); i++) {
        float y[BATCH];
        failures += rf_model_create(&shared, &config) != RF_OK || pthread_barrier_init(&gate, NULL, CALLERS);
        loaded = refused = 0;
        run_threads(CALLERS, load_shared, NULL);
        failures += loaded != 1 || refused != CALLERS - 1 || rf_model_forward(shared, x, BATCH, y) ||
            memcmp(y, expected, sizeof y);
        rf_model_destroy(shared);
        pthread_barrier_destroy(&gate);
    }
}

/* Cancelled in the middle of a call, a thread ends after it. */
static void cancel_often(void) {
    for (int i = 0; i < times(CANCELLED); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, call_until_cancelled, NULL)) {
            failures++;
            return;
        }
        usleep((useconds_t)(100 + 37 * i));
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        failures += !forward_agrees();
    }
}

int main(void) {
    slower = times_slower("the rounds");
    alarm((unsigned)(slower * PATIENCE_S));
    for (int i = 0; i < BATCH * K; i++) x[i] = (float)(i % 997) * 1e-3f;
    for (int i = 0; i < N * K; i++) weight[i] = (float)(i % 1009) * 1e-4f - 0.05f;
    rf_config config = {.size = sizeof config,
        .chain = "linear | logsumexp | gelu",
        .in_features = K,
        .out_features = N,
        .device = "cpu",
        .threads = 4};
    int failed = rf_model_create(&model, &config) || rf_model_load_weights(model, weight, NULL, NULL, 0) ||
        rf_model_forward(model, x, BATCH, expected);
    config.threads = CHILD_THREADS;
    if (failed || rf_model_create(&in_child, &config) || rf_model_load_weights(in_child, weight, NULL, NULL, 0)) {
        fprintf(stderr, "%s\n", rf_last_error());
        return 1;
    }
    fork_and_forward();
    run_threads(CALLERS, call_rounds, NULL);
    run_threads(2, call_until_stopped, fork_often);
    fork_during_a_long_call();
    run_threads(1, explain_until_stopped, fork_and_explain);
    load_at_once();
    cancel_often();
    failures += !forward_agrees();
    rf_model_destroy(model);
    rf_model_destroy(in_child);
    if (failures) fprintf(stderr, "%d calls failed or disagreed\n", failures);
    return failures != 0;
}
