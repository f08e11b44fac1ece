/* SPDX-License-Identifier: MIT */
/* Threads that share the tasks of a forward. One pool for the process, started when first needed; it survives fork, and
 * callers in many threads may use it at once: a caller always works on its own tasks, so it never waits for a thread
 * that is busy elsewhere. */
#ifndef ROWFOLD_CPU_POOL_H
#define ROWFOLD_CPU_POOL_H

#include <stdint.h>

/* `slot` is below `threads`, and no two tasks that run at the same time have the same: per-thread scratch hangs on it.
 */
typedef void (*rfi_pool_task)(void *context, int64_t task, int slot);

/* Runs tasks 0 to tasks - 1 on at most `threads` threads (the caller's included). Each begins with a part of its own,
 * as many tasks in ascending order as others have, and then takes those that others have not come to: no thread is idle
 * while a task waits. Returns when all are done. Cannot fail: where no thread can be had the caller does the work
 * alone. */
void rfi_pool_run(int threads, int64_t tasks, rfi_pool_task run, void *context);

#endif
