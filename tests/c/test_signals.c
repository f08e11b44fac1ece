/* SPDX-License-Identifier: MIT */
/* What a program does with signals: the pool's threads leave those that are sent to a process to the program's own
 * threads, but run the handlers of those that they cause themselves, as a program needs that fetches pages when they
 * are first touched. */
#define _GNU_SOURCE
#include <dirent.h>
#include <rowfold.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

enum { BATCH = 448, K = 512, N = 512, X_BYTES = BATCH * K * 4, PATIENCE_S = 60 };

static float weight[N * K], expected[BATCH], y[BATCH];
static char *lazy; /* x, no page of which may be read before it was asked for */
/* Pages fetched, and how many of them for other threads than the first: several fetch at a time. */
static atomic_int faults, elsewhere;
static pid_t first_thread;

static void fetch_page(int number, siginfo_t *info, void *context) {
    char *page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)4095);
    (void)number, (void)context;
    if (page < lazy || page >= lazy + X_BYTES) _exit(3);
    mprotect(page, 4096, PROT_READ);
    faults++;
    elsewhere += (pid_t)syscall(SYS_gettid) != first_thread;
}

/* Signals that thread `name` of this process blocks, by the kernel. */
static uint64_t blocked_by(const char *name) {
    char path[300], line[200];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", name);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "SigBlk: %llx", &mask);
    if (status) fclose(status);
    return mask;
}

static const int caused[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

/* A thread that has only been made blocks everything until it runs. */
static uint64_t settled_mask(const char *name) {
    uint64_t mask = blocked_by(name);
    for (int i = 0; i < 1000 && mask >> (SIGSEGV - 1) & 1; i++, mask = blocked_by(name)) usleep(5000);
    return mask;
}

static void check_masks(void) {
    const int sent[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGPROF, SIGRTMIN};
    int seen = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        if (*entry->d_name == '.' || atoi(entry->d_name) == first_thread) continue;
        const uint64_t mask = settled_mask(entry->d_name);
        seen++;
        for (size_t i = 0; i < sizeof caused / sizeof *caused; i++)
            CHECK(!(mask >> (caused[i] - 1) & 1), "a pool's thread blocks signal %d", caused[i]);
        for (size_t i = 0; i < sizeof sent / sizeof *sent; i++)
            CHECK(mask >> (sent[i] - 1) & 1, "a pool's thread takes signal %d", sent[i]);
    }
    if (tasks) closedir(tasks);
    CHECK(seen == 2, "%d threads of the pool", seen);
}

/* The caller's own mask, which is another while threads are made, is its own again. */
static void check_own_mask(const sigset_t *before) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        CHECK(sigismember(&now, signal) == sigismember(before, signal), "signal %d is %s now", signal,
            sigismember(&now, signal) ? "blocked" : "taken");
}

int main(void) {
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    alarm(PATIENCE_S);
    first_thread = (pid_t)syscall(SYS_gettid);
    if (sysconf(_SC_PAGESIZE) != 4096 || access("/proc/self/task", R_OK)) {
        puts("skipped: needs pages of 4096 bytes and /proc");
        return 77;
    }
    lazy = mmap(NULL, X_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (lazy == MAP_FAILED) return perror("mmap"), 1;
    for (int i = 0; i < BATCH * K; i++) ((float *)(void *)lazy)[i] = (float)(i % 997) * 1e-3f;
    for (int i = 0; i < N * K; i++) weight[i] = (float)(i % 1009) * 1e-4f - 0.05f;
    const rf_config config = {.size = sizeof config,
        .chain = "linear | logsumexp",
        .in_features = K,
        .out_features = N,
        .device = "cpu",
        .threads = 3};
    rf_model *model = NULL;
    if (rf_model_create(&model, &config) || rf_model_load_weights(model, weight, NULL, NULL, 0) ||
        rf_model_forward(model, lazy, BATCH, expected)) {
        fprintf(stderr, "%s\n", rf_last_error());
        return 1;
    }
    check_masks();
    check_own_mask(&before);

    const struct sigaction action = {.sa_sigaction = fetch_page, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    /* Whichever threads find work: in some round a pool's thread touches a page first. */
    for (int round = 0; round < 100 && !elsewhere; round++) {
        mprotect(lazy, X_BYTES, PROT_NONE);
        CHECK(!rf_model_forward(model, lazy, BATCH, y) && !memcmp(y, expected, sizeof y), "round %d: %s", round,
            rf_last_error());
    }
    CHECK(faults >= X_BYTES / 4096 && elsewhere, "%d faults, %d in the pool's threads", faults, elsewhere);
    rf_model_destroy(model);
    return failures != 0;
}
