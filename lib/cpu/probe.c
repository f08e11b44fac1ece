/* SPDX-License-Identifier: MIT */
#include "cpu/probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cpu/features.h"
#include "cpu/pool.h"
#include "error.h"
#include "guard.h"

enum {
    ROUNDS = 4,            /* the best of so many: other work on the machine only ever slows one down */
    BURN_STEP = 20000,     /* multiply-adds between looks at the clock */
    READ_STEP = 1 << 20,   /* bytes between looks at the clock */
    LEAST_BYTES = 1 << 26, /* buffer of the quick measurement, at least and at most */
    FULL_BYTES = 1 << 28
};

static const double QUICK_SECONDS = 0.05, FULL_SECONDS = 0.12;

typedef struct burner {
    const rfi_cpu_isa *isa;
    char *buffer;
    size_t slice;   /* bytes of the buffer a thread reads */
    size_t *places; /* (threads) where in its slice each goes on: what was read a moment ago is still in the cache */
    double seconds;
    double *rates; /* (threads) what each reached */
    _Atomic uint64_t sink;
} burner;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void burn(void *context, int64_t task, int slot) {
    burner *b = context;
    (void)slot;
    double start = now(), operations = 0, elapsed;
    do operations += b->isa->burn(BURN_STEP);
    while ((elapsed = now() - start) < b->seconds);
    b->rates[task] = operations / elapsed;
}

static void touch(void *context, int64_t task, int slot) {
    burner *b = context;
    (void)slot;
    memset(b->buffer + (size_t)task * b->slice, 1, b->slice);
}

static void read_slice(void *context, int64_t task, int slot) {
    burner *b = context;
    (void)slot;
    const char *slice = b->buffer + (size_t)task * b->slice;
    double start = now(), elapsed;
    size_t place = b->places[task], bytes = 0;
    uint64_t any = 0;
    do {
        any |= b->isa->read(slice + place, READ_STEP);
        bytes += READ_STEP;
        place = place + 2 * READ_STEP <= b->slice ? place + READ_STEP : 0;
    } while ((elapsed = now() - start) < b->seconds);
    atomic_store_explicit(&b->sink, any, memory_order_relaxed);
    b->places[task] = place;
    b->rates[task] = (double)bytes / elapsed;
}

/* All threads at once; the sum of their rates in the best round. */
static double best_rate(burner *b, int threads, rfi_pool_task run) {
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double sum = 0;
        rfi_pool_run(threads, threads, run, b);
        for (int i = 0; i < threads; i++) sum += b->rates[i];
        if (sum > best) best = sum;
    }
    return best;
}

rfi_cpu_figures rfi_cpu_probe(const rfi_cpu_isa *isa, int threads, double seconds, size_t bytes) {
    rfi_cpu_figures figures = {0, 0};
    burner b = {.isa = isa,
        .seconds = seconds / (2 * ROUNDS),
        .rates = calloc((size_t)threads, sizeof(double)),
        .places = calloc((size_t)threads, sizeof(size_t))};
    void *buffer = NULL;
    if (!b.rates || !b.places) {
        free(b.rates), free(b.places);
        return figures;
    }
    figures.flops = best_rate(&b, threads, burn);
    b.slice = bytes / (size_t)threads / READ_STEP * READ_STEP;
    if (!b.slice) b.slice = READ_STEP;
    if (!posix_memalign(&buffer, 1 << 21, b.slice * (size_t)threads)) {
#ifdef MADV_HUGEPAGE
        madvise(buffer, b.slice * (size_t)threads, MADV_HUGEPAGE);
#endif
        b.buffer = buffer;
        rfi_pool_run(threads, threads, touch, &b);
        figures.bytes = best_rate(&b, threads, read_slice);
        free(buffer);
    }
    free(b.rates), free(b.places);
    return figures;
}

/* What was measured last, and for what. The lock is held while measuring, since two at a time would share the machine.
 */
static struct {
    pthread_mutex_t lock;
    const rfi_cpu_isa *isa;
    int threads;
    size_t bytes;
    rfi_cpu_figures figures;
} last = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The thread that held the lock, and may have written half of the rest, does not exist in the child. Nor should fork
 * wait for a measurement. */
static void after_fork_child(void) {
    pthread_mutex_init(&last.lock, NULL);
    last.isa = NULL;
}

__attribute__((constructor)) static void install_fork_handler(void) { pthread_atfork(NULL, NULL, after_fork_child); }

rfi_cpu_figures rfi_cpu_probe_cached(const rfi_cpu_isa *isa, int threads, double weight_bytes) {
    size_t bytes = LEAST_BYTES;
    while (bytes < FULL_BYTES && (double)bytes < weight_bytes) bytes *= 2;
    pthread_mutex_lock(&last.lock);
    if (last.isa != isa || last.threads != threads || last.bytes != bytes) {
        last.figures = rfi_cpu_probe(isa, threads, QUICK_SECONDS, bytes);
        last.bytes = bytes;
        last.isa = isa;
        last.threads = threads;
    }
    rfi_cpu_figures result = last.figures;
    pthread_mutex_unlock(&last.lock);
    return result;
}

rf_status rf_cpu_measure(int threads, double *flops_per_second, double *bytes_per_second) {
    RFI_GUARDED;
    if (!flops_per_second) return rfi_error(RF_INVALID_ARGUMENT, "flops_per_second is NULL");
    if (!bytes_per_second) return rfi_error(RF_INVALID_ARGUMENT, "bytes_per_second is NULL");
    if (threads < 0 || threads > RFI_CPU_MAX_THREADS)
        return rfi_error(
            RF_INVALID_ARGUMENT, "threads is %d; expected 0 (all cores) to %d", threads, RFI_CPU_MAX_THREADS);
    if (!threads) threads = rfi_cpu_cores();
    rfi_cpu_figures figures = rfi_cpu_probe(rfi_cpu_best_isa(), threads, FULL_SECONDS, FULL_BYTES);
    if (figures.flops <= 0 || figures.bytes <= 0) return rfi_error(RF_OUT_OF_MEMORY, "no memory to measure with");
    *flops_per_second = figures.flops;
    *bytes_per_second = figures.bytes;
    return RF_OK;
}
