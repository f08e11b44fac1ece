/* SPDX-License-Identifier: MIT */
/* A thread of the pool that finds itself on its caller's processor works on another one. */
#define _GNU_SOURCE
#include "cpu/pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cpu/features.h"
#include "slow.h"

enum { SKIPPED = 77, ROUNDS = 40, ATTEMPTS = 10, PATIENCE_S = 20 };

/* Both processors, and the caller's. */
static cpu_set_t both, one;
static int joins_caller;
static atomic_int started, helped_on;

int rfi_cpu_cores(void) { return 2; }

static void run(void *context, int64_t task, int slot) {
    (void)context;
    (void)task;
    if (slot && joins_caller) CHECK(!sched_setaffinity(0, sizeof one, &one), "the thread cannot be moved");
    if (slot && joins_caller) CHECK(!sched_setaffinity(0, sizeof both, &both), "the thread cannot be let go");
    if (slot) helped_on = sched_getcpu();
    started++;
    const time_t end = time(NULL) + PATIENCE_S;
    while (started < 2 && time(NULL) < end) sched_yield();
}

/* Which processor the other thread worked on. */
static int run_two(int joins) {
    started = 0;
    joins_caller = joins;
    rfi_pool_run(2, 2, run, NULL);
    CHECK(started == 2, "%d of 2 tasks", started);
    return helped_on;
}

/* In how many calls the thread works on the caller's processor, where it was put in the call before. */
static int count_together(int caller) {
    int together = 0;
    for (int i = 0; i < ROUNDS; i++) {
        run_two(1);
        together += run_two(0) == caller;
    }
    return together;
}

int main(void) {
    cpu_set_t allowed;
    int caller = -1, count = 0, together = ROUNDS;
    if (times_slower("all") > 1 || sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) < 2)
        return SKIPPED;
    CPU_ZERO(&both);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && count < 2; i++)
        if (CPU_ISSET(i, &allowed)) {
            CPU_SET(i, &both);
            if (!count++) caller = i;
        }
    CPU_SET(caller, &one);
    if (sched_setaffinity(0, sizeof both, &both)) return SKIPPED;
    run_two(0); /* starts the thread, which may run on both */
    CHECK(!sched_setaffinity(0, sizeof one, &one), "the caller cannot be moved");
    /* A busy machine may bring it back meanwhile; one that does so each time has other tests running on the other
     * processor, which end. */
    for (int i = 0; i < ATTEMPTS && together > ROUNDS / 4; i++) {
        if (i) sleep(1);
        together = count_together(caller);
    }
    CHECK(together <= ROUNDS / 4, "on the caller's processor in %d of %d calls", together, ROUNDS);
    return failures != 0;
}
