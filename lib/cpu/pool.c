/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "cpu/features.h"
#include "sizes.h"

/* The next call of a program that calls in a loop comes sooner than a sleeping thread wakes up. That takes 5 to 50
 * microseconds, and on a virtual machine, whose resting processor may be lent to others, a millisecond and more. */
static const int64_t SPIN_NS = 200000;

/* A call is not over when one of its threads has nothing left to do: who waits for another's last task stays awake,
 * too, but no longer than this. */
static const int64_t SPIN_IN_CALL_NS = 1000000;

enum { PARTS = 64, LINE = 64 };

/* Some of the tasks, in their order. */
typedef struct part {
    _Atomic int64_t next; /* first task that nobody has taken */
    int64_t end;
    char apart[LINE - 2 * sizeof(int64_t)];
} part;

/* One call of rfi_pool_run; lives on its caller's stack, so nobody may touch it once `helpers` is 0 and it has left the
 * list. */
typedef struct job {
    rfi_pool_task run;
    void *context;
    part parts[PARTS];
    int num_parts;
    int slots, taken_slots; /* under pool.lock; slot 0 is the caller's */
    _Atomic int helpers;    /* pool threads at work on it; changed under pool.lock */
    struct job *below;
} job;

/* A thread of the pool, on its stack. */
typedef struct worker {
    int number; /* from 1 on */
    int called;
    pthread_cond_t call;
    struct worker *next;
} worker;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t done;                       /* some job lost its last helper */
    job *jobs;                                 /* newest first */
    worker *asleep;                            /* by number */
    int threads, spinning;                     /* spinning: those that look for a job without sleeping */
    int may_spin;                              /* no more threads than processors */
    int processor_of[RFI_CPU_MAX_THREADS + 1]; /* where each thread worked last, or -1; that of number 0 called */
    _Atomic unsigned changes;                  /* jobs added so far */
    _Atomic int running;                       /* jobs in the list */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* fork copies the pool's memory but not its threads. The lock is held across it, so the child sees a consistent pool,
 * and starts with an empty one: the jobs belong to threads of the parent that do not exist here. */
static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&pool.lock); }

static void after_fork_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.jobs = NULL;
    pool.asleep = NULL;
    pool.threads = 0;
    pool.spinning = 0;
    pool.running = 0;
}

/* When the library is loaded: a process that forks while its first call installs them would have them twice, or not at
 * all. */
__attribute__((constructor)) static void install_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* A thread's own part first, so that from call to call it reads the same of W, which may still be in its cache; then
 * what others have not come to. */
static void work_on(job *j, int slot, int number) {
    for (int p = 0; p < j->num_parts; p++) {
        part *own = &j->parts[(number + p) % j->num_parts];
        /* Counted on only by those who saw some: no number of threads that come late makes it overflow. */
        while (atomic_load_explicit(&own->next, memory_order_relaxed) < own->end) {
            const int64_t task = atomic_fetch_add_explicit(&own->next, 1, memory_order_relaxed);
            if (task < own->end) j->run(j->context, task, slot);
        }
    }
}

static int has_tasks(const job *j) {
    for (int p = 0; p < j->num_parts; p++)
        if (atomic_load_explicit(&j->parts[p].next, memory_order_relaxed) < j->parts[p].end) return 1;
    return 0;
}

static job *find_job(void) {
    for (job *j = pool.jobs; j; j = j->below)
        if (j->taken_slots < j->slots && has_tasks(j)) return j;
    return NULL;
}

static void pause_a_little(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Until the job has no helper, for a while. With pool.lock held, which is let go meanwhile. */
static void spin_for_helpers(const job *j) {
    pthread_mutex_unlock(&pool.lock);
    const int64_t end = now() + SPIN_IN_CALL_NS;
    do
        for (int i = 0; i < 16 && atomic_load_explicit(&j->helpers, memory_order_acquire); i++) pause_a_little();
    while (atomic_load_explicit(&j->helpers, memory_order_acquire) && now() < end);
    pthread_mutex_lock(&pool.lock);
}

/* Until a job was added, for a while. With pool.lock held, which is let go meanwhile. */
static void spin_for_job(void) {
    const unsigned seen = atomic_load_explicit(&pool.changes, memory_order_relaxed);
    pool.spinning++;
    pthread_mutex_unlock(&pool.lock);
    int64_t time = now(), end = time + SPIN_NS;
    const int64_t latest = time + SPIN_IN_CALL_NS;
    do {
        for (int i = 0; i < 16 && atomic_load_explicit(&pool.changes, memory_order_relaxed) == seen; i++)
            pause_a_little();
        time = now();
        if (atomic_load_explicit(&pool.running, memory_order_relaxed)) end = least(time + SPIN_NS, latest);
    } while (atomic_load_explicit(&pool.changes, memory_order_relaxed) == seen && time < end);
    pthread_mutex_lock(&pool.lock);
    pool.spinning--;
}

/* With pool.lock held. */
static void sleep_until_called(worker *w) {
    worker **link = &pool.asleep;
    while (*link && (*link)->number < w->number) link = &(*link)->next;
    w->next = *link;
    *link = w;
    w->called = 0;
    while (!w->called) pthread_cond_wait(&w->call, &pool.lock);
}

/* With pool.lock held. */
static int shares_processor(int number) {
    pool.processor_of[number] = sched_getcpu();
    for (int i = 0; i < number; i++)
        if (pool.processor_of[i] == pool.processor_of[number]) return 1;
    return 0;
}

/* A busy machine may wake a thread on the processor of the one that woke it, or of another of the pool, and leave it
 * there for as long as calls are short: its work, and even its waiting, is then time of the other's. Setting the
 * processors on which a thread may run moves it at once, and it stays there when it may run on all again: on all of
 * now, not on those that the process may be given later. With pool.lock held, which is let go meanwhile. */
static void move_away(int number) {
    cpu_set_t allowed, others;
    CPU_ZERO(&others);
    for (int i = 0; i <= pool.threads; i++)
        if (pool.processor_of[i] >= 0 && pool.processor_of[i] < CPU_SETSIZE)
            CPU_SET((size_t)pool.processor_of[i], &others);
    pthread_mutex_unlock(&pool.lock);
    if (!sched_getaffinity(0, sizeof allowed, &allowed)) {
        CPU_AND(&others, &others, &allowed);
        CPU_XOR(&others, &others, &allowed);
        if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
            sched_setaffinity(0, sizeof allowed, &allowed);
    }
    pthread_mutex_lock(&pool.lock);
    pool.processor_of[number] = sched_getcpu();
}

/* `place`: the thread's own in processor_of. */
static void *thread_main(void *place) {
    worker w = {.number = (int)((int *)place - pool.processor_of), .call = PTHREAD_COND_INITIALIZER};
    int awake = 0, placed = 0; /* awake: has worked, or was called, and has not waited for a job since */
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        if (!placed && pool.may_spin && shares_processor(w.number)) move_away(w.number);
        placed = 1;
        job *j = find_job();
        if (!j) {
            if (awake && pool.may_spin) {
                spin_for_job();
                awake = 0;
            } else {
                /* Who comes too late for a call waits for the next one. */
                sleep_until_called(&w);
                awake = 1;
            }
            placed = 0;
            continue;
        }
        int slot = j->taken_slots++;
        j->helpers++;
        pthread_mutex_unlock(&pool.lock);
        work_on(j, slot, w.number);
        pthread_mutex_lock(&pool.lock);
        awake = 1;
        if (atomic_fetch_sub_explicit(&j->helpers, 1, memory_order_release) == 1) pthread_cond_broadcast(&pool.done);
    }
    return NULL;
}

/* With pool.lock held: as many of those with the least numbers as are wanted. */
static void call_threads(int wanted) {
    for (; wanted > 0 && pool.asleep; wanted--) {
        worker *w = pool.asleep;
        pool.asleep = w->next;
        w->called = 1;
        pthread_cond_signal(&w->call);
    }
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
        if (pthread_create(&thread, NULL, thread_main, &pool.processor_of[pool.threads + 1])) break;
        pthread_detach(thread);
        pool.processor_of[++pool.threads] = -1;
    }
    pool.may_spin = pool.threads < rfi_cpu_cores();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void rfi_pool_run(int threads, int64_t tasks, rfi_pool_task run, void *context) {
    const int slots = tasks < threads ? (int)tasks : threads;
    if (slots <= 1) {
        for (int64_t task = 0; task < tasks; task++) run(context, task, 0);
        return;
    }
    job j = {
        .run = run, .context = context, .slots = slots, .taken_slots = 1, .num_parts = slots < PARTS ? slots : PARTS};
    for (int64_t p = 0, next = 0; p < j.num_parts; p++) {
        j.parts[p].next = next;
        j.parts[p].end = next += tasks / j.num_parts + (p < tasks % j.num_parts);
    }
    pthread_mutex_lock(&pool.lock);
    if (pool.threads < slots - 1) start_threads(slots - 1);
    j.below = pool.jobs;
    pool.jobs = &j;
    atomic_fetch_add_explicit(&pool.running, 1, memory_order_relaxed);
    pool.processor_of[0] = sched_getcpu();
    atomic_fetch_add_explicit(&pool.changes, 1, memory_order_relaxed);
    call_threads(slots - 1 - pool.spinning);
    pthread_mutex_unlock(&pool.lock);

    work_on(&j, 0, 0);

    pthread_mutex_lock(&pool.lock);
    job **link = &pool.jobs;
    while (*link != &j) link = &(*link)->below;
    *link = j.below;
    atomic_fetch_sub_explicit(&pool.running, 1, memory_order_relaxed);
    if (j.helpers && pool.may_spin) spin_for_helpers(&j);
    while (j.helpers) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}
