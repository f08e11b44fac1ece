/* SPDX-License-Identifier: MIT */
#include "cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

/* One call of rfi_pool_run; lives on its caller's stack, so nobody may touch it once `helpers` is 0 and it has left the
 * list. */
typedef struct job {
    rfi_pool_task run;
    void *context;
    int64_t tasks;
    _Atomic int64_t next;   /* first task that nobody has taken */
    int slots, taken_slots; /* under pool.lock; slot 0 is the caller's */
    int helpers;            /* pool threads at work on it; under pool.lock */
    struct job *below;
} job;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* a job was added */
    pthread_cond_t done; /* some job lost its last helper */
    job *jobs;           /* newest first */
    int threads;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* fork copies the pool's memory but not its threads. The lock is held across it, so the child sees a consistent pool,
 * and starts with an empty one: the jobs belong to threads of the parent that do not exist here. */
static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&pool.lock); }

static void after_fork_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.jobs = NULL;
    pool.threads = 0;
}

/* When the library is loaded: a process that forks while its first call installs them would have them twice, or not at
 * all. */
__attribute__((constructor)) static void install_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void work_on(job *j, int slot) {
    for (int64_t task; (task = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->tasks;)
        j->run(j->context, task, slot);
}

static job *find_job(void) {
    for (job *j = pool.jobs; j; j = j->below)
        if (j->taken_slots < j->slots && atomic_load_explicit(&j->next, memory_order_relaxed) < j->tasks) return j;
    return NULL;
}

static void *thread_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = find_job();
        if (!j) {
            pthread_cond_wait(&pool.work, &pool.lock);
            continue;
        }
        int slot = j->taken_slots++;
        j->helpers++;
        pthread_mutex_unlock(&pool.lock);
        work_on(j, slot);
        pthread_mutex_lock(&pool.lock);
        if (!--j->helpers) pthread_cond_broadcast(&pool.done);
    }
    return NULL;
}

/* With pool.lock held. Signals that are sent to the program are for its own threads: the pool's block them. Those that
 * a thread causes by what it does go to that thread and no other; blocked, the first page of x that a program maps from
 * its handler would end the process. */
static void start_threads(int wanted) {
    static const int caused[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t sent, before;
    sigfillset(&sent);
    for (size_t i = 0; i < sizeof caused / sizeof *caused; i++) sigdelset(&sent, caused[i]);
    if (pthread_sigmask(SIG_SETMASK, &sent, &before)) return;
    while (pool.threads < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, thread_main, NULL)) break;
        pthread_detach(thread);
        pool.threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void rfi_pool_run(int threads, int64_t tasks, rfi_pool_task run, void *context) {
    job j = {.run = run,
        .context = context,
        .tasks = tasks,
        .slots = tasks < threads ? (int)tasks : threads,
        .taken_slots = 1};
    if (j.slots <= 1) {
        work_on(&j, 0);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    start_threads(j.slots - 1);
    j.below = pool.jobs;
    pool.jobs = &j;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);

    work_on(&j, 0);

    pthread_mutex_lock(&pool.lock);
    job **link = &pool.jobs;
    while (*link != &j) link = &(*link)->below;
    *link = j.below;
    while (j.helpers) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}
