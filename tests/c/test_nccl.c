/* SPDX-License-Identifier: MIT */
/* librowfold_nccl: what it refuses, which needs neither GPU nor NCCL; and one layer on as many GPUs as there are, up to
 * four, a thread each. */
#include <dlfcn.h>
#include <nccl/rowfold_nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { K = 96, N = 5000, BATCH = 70, MOST_RANKS = 4 };

static float x[BATCH * K], weight[N * K];
static int64_t target[BATCH];

typedef struct rank {
    int number, ranks;
    void *comm;
    int comes; /* to the call that has a time limit */
    pthread_t thread;
} rank;

typedef struct answer {
    float logprob[BATCH];
    int64_t index[BATCH];
} answer;
static answer right;

static rf_model *model_of(int device, int64_t first, int64_t count, const char *steps) {
    char text[80], name[20];
    snprintf(text, sizeof text, "linear(%d, %lld) | %slogprob(#target), argmax", K, (long long)count, steps);
    snprintf(name, sizeof name, "cuda:%d", device);
    rf_model *model = NULL;
    const rf_config config = {
        .size = sizeof config, .chain = text, .device = name, .first_column = first, .total_columns = N};
    CHECK(!rf_model_create(&model, &config) && !rf_model_load_weights(model, weight + first * K, NULL, NULL, 0), "%s",
        rf_last_error());
    return model;
}

static rf_status ask(const rf_model *model, const rf_collective *by, int64_t batch, answer *to) {
    memset(to, 0, sizeof *to);
    const rf_result results[2] = {
        {.size = sizeof *results, .data = to->logprob}, {.size = sizeof *results, .data = to->index}};
    const rf_row_input row = {.size = sizeof row, .name = "target", .data = target, .length = batch};
    const rf_forward_args args = {.size = sizeof args,
        .x = x,
        .batch = batch,
        .results = results,
        .num_results = 2,
        .row_inputs = &row,
        .num_row_inputs = 1};
    return rf_model_forward_sharded(model, by, &args);
}

static int32_t alone(void *user, const void *send, void *receive, size_t bytes, double timeout, int32_t *failed,
    char *message, size_t size) {
    (void)user, (void)timeout, (void)failed, (void)message, (void)size;
    memcpy(receive, send, bytes);
    return 0;
}

static void *work(void *argument) {
    const rank *own = argument;
    static const double limits[] = {0, 30};
    char why[300] = "", says[80];
    answer got;
    int64_t first = 0, count = 0;
    rf_shard_columns(N, own->number, own->ranks, &first, &count);
    rf_model *model = model_of(own->number, first, count, "");
    const int last = own->number == own->ranks - 1;
    rf_model *everything = model_of(own->number, 0, N, ""),
             *gelu = model_of(own->number, first, count, last ? "gelu | " : "");
    for (int i = 0; i < 2; i++) {
        rf_collective by = {.size = sizeof by};
        CHECK(!rf_nccl_open(&by, own->comm, limits[i], why, sizeof why), "%s", why);
        CHECK(by.rank == own->number && by.num_ranks == own->ranks, "rank %d of %d", by.rank, by.num_ranks);
        for (int turn = 0; turn < 3; turn++)
            CHECK(!ask(model, &by, BATCH, &got) && !memcmp(&got, &right, sizeof got), "rank %d: %s", own->number,
                rf_last_error());
        for (int wrong = 0; wrong < own->ranks; wrong++) {
            snprintf(says, sizeof says, "rank %d failed: batch is -1", wrong);
            CHECK(ask(model, &by, own->number == wrong ? -1 : BATCH, &got) == RF_INVALID_ARGUMENT &&
                    strstr(rf_last_error(), says),
                "rank %d: %s", own->number, rf_last_error());
        }
        /* Ranks that do not fit together; and the next call is none the worse for it. */
        if (own->ranks > 1) {
            CHECK(ask(everything, &by, BATCH, &got) == RF_INVALID_ARGUMENT &&
                    strstr(rf_last_error(), "rank 1 begins with column 0; expected 5000, where rank 0 ends"),
                "rank %d: %s", own->number, rf_last_error());
            snprintf(says, sizeof says, "rank %d computes another chain than rank 0", own->ranks - 1);
            CHECK(ask(gelu, &by, BATCH, &got) == RF_INVALID_ARGUMENT && strstr(rf_last_error(), says), "rank %d: %s",
                own->number, rf_last_error());
            CHECK(!ask(model, &by, BATCH, &got) && !memcmp(&got, &right, sizeof got), "rank %d: %s", own->number,
                rf_last_error());
        }
        rf_nccl_close(&by);
    }
    rf_model_destroy(everything), rf_model_destroy(gelu);
    /* A rank that does not come. */
    if (own->comes) {
        struct timespec begin, end;
        rf_collective hasty = {.size = sizeof hasty};
        CHECK(!rf_nccl_open(&hasty, own->comm, 2, why, sizeof why), "%s", why);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        CHECK(ask(model, &hasty, BATCH, &got) == RF_COMMUNICATION &&
                strstr(rf_last_error(), "the exchange of shapes failed: it took longer than 2 seconds"),
            "rank %d: %s", own->number, rf_last_error());
        clock_gettime(CLOCK_MONOTONIC, &end);
        CHECK(end.tv_sec - begin.tv_sec < 40, "rank %d: %d seconds", own->number, (int)(end.tv_sec - begin.tv_sec));
        CHECK(ask(model, &hasty, BATCH, &got) == RF_COMMUNICATION && strstr(rf_last_error(), "before has failed"),
            "rank %d: %s", own->number, rf_last_error());
        rf_nccl_close(&hasty);
    }
    rf_model_destroy(model);
    return NULL;
}

/* ---- a process that dies ---- */

typedef struct unique { /* ncclUniqueId */
    char bytes[128];
} unique;

static void *function_of(void *library, const char *name, void *to) {
    void *const function = dlsym(library, name);
    memcpy(to, &function, sizeof function);
    return function;
}

static int open_rank(void *library, const unique *id, int number, rf_collective *by) {
    int (*init)(void **, int, unique, int);
    void *comm = NULL;
    char why[300] = "";
    if (!function_of(library, "ncclCommInitRank", &init) || init(&comm, 2, *id, number)) return 1;
    const rf_status status = rf_nccl_open(by, comm, 10, why, sizeof why);
    CHECK(!status, "%s", why);
    return status != RF_OK;
}

/* Rank 1 of two, in a process that was forked before there was anything of CUDA. It sees one GPU, the second. */
static void die_after_a_call(int from) {
    const char *const seen = getenv("CUDA_VISIBLE_DEVICES"), *const second = seen ? strchr(seen, ',') : NULL;
    unique id;
    rf_collective by = {.size = sizeof by};
    answer got;
    int64_t first = 0, count = 0;
    if (read(from, &id, sizeof id) != sizeof id) _exit(0);
    setenv("CUDA_VISIBLE_DEVICES", second ? second + 1 : "1", 1);
    void *const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    rf_shard_columns(N, 1, 2, &first, &count);
    rf_model *model = model_of(0, first, count, "");
    if (!library || open_rank(library, &id, 1, &by) || ask(model, &by, BATCH, &got)) _exit(1);
    raise(SIGKILL);
}

/* Rank 0: the call after the other's last one fails in time. */
static void outlive(void *library, int to, pid_t child) {
    int (*make_id)(unique *), status = 0;
    unique id;
    rf_collective by = {.size = sizeof by};
    answer got;
    int64_t first = 0, count = 0;
    struct timespec begin, end;
    rf_shard_columns(N, 0, 2, &first, &count);
    rf_model *model = model_of(0, first, count, "");
    CHECK(function_of(library, "ncclGetUniqueId", &make_id) && !make_id(&id), "an id of NCCL");
    CHECK(write(to, &id, sizeof id) == sizeof id, "the id to the other process");
    if (!open_rank(library, &id, 0, &by)) {
        CHECK(!ask(model, &by, BATCH, &got) && !memcmp(&got, &right, sizeof got), "%s", rf_last_error());
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status), "the other process ended with %d", status);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        CHECK(ask(model, &by, BATCH, &got) == RF_COMMUNICATION &&
                strstr(rf_last_error(), "the exchange of shapes failed"),
            "%s", rf_last_error());
        clock_gettime(CLOCK_MONOTONIC, &end);
        CHECK(end.tv_sec - begin.tv_sec < 40, "%d seconds", (int)(end.tv_sec - begin.tv_sec));
        rf_nccl_close(&by);
    }
    rf_model_destroy(model);
}

/* How many GPUs there are, by what the library says of one that is not. */
static int count_devices(void) {
    for (int device = 0; device < MOST_RANKS; device++) {
        char name[20];
        snprintf(name, sizeof name, "cuda:%d", device);
        rf_model *model = NULL;
        const rf_config config = {.size = sizeof config, .chain = "linear(1, 1) | max", .device = name};
        if (rf_model_create(&model, &config)) return device;
        rf_model_destroy(model);
    }
    return MOST_RANKS;
}

static void refusals(void) {
    rf_collective none = {.size = sizeof none}, small = {.size = 8};
    char why[300] = "";
    CHECK(rf_nccl_open(NULL, &none, 0, why, sizeof why) == RF_INVALID_ARGUMENT && !strcmp(why, "collective is NULL"),
        "%s", why);
    CHECK(rf_nccl_open(&small, &none, 0, why, sizeof why) == RF_INVALID_ARGUMENT &&
            !strncmp(why, "collective.size is 8", 20),
        "%s", why);
    CHECK(rf_nccl_open(&none, NULL, 0, why, sizeof why) == RF_INVALID_ARGUMENT && !strcmp(why, "comm is NULL"), "%s",
        why);
    CHECK(rf_nccl_open(&none, &none, -1, why, sizeof why) == RF_INVALID_ARGUMENT && !strncmp(why, "timeout is -1", 13),
        "%s", why);
    CHECK(rf_nccl_open(&none, &none, -1, NULL, 0) == RF_INVALID_ARGUMENT, "without a place for a sentence");
    rf_nccl_close(&none), rf_nccl_close(NULL);
    CHECK(!none.user && !none.all_gather, "what was refused is as it was");
}

static void draw(void) {
    uint32_t seed = 1;
    for (int i = 0; i < N * K; i++) seed = seed * 1664525u + 1013904223u, weight[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    for (int i = 0; i < BATCH * K; i++) seed = seed * 1664525u + 1013904223u, x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    for (int i = 0; i < BATCH; i++) target[i] = (int64_t)i * 71;
}

int main(void) {
    int ends[2];
    refusals();
    draw();
    CHECK(!pipe(ends), "a pipe");
    const pid_t child = fork();
    if (!child) {
        close(ends[1]);
        die_after_a_call(ends[0]);
    }
    close(ends[0]);
    void *const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        rf_collective by = {.size = sizeof by};
        char why[300] = "";
        CHECK(rf_nccl_open(&by, &by, 0, why, sizeof why) == RF_UNAVAILABLE && !strncmp(why, "NCCL is not there: ", 19),
            "%s", why);
        printf("no NCCL: refusals alone\n");
        return failures != 0;
    }
    int (*init)(void **, int, const int *), (*destroy)(void *);
    void *function = dlsym(library, "ncclCommInitAll");
    memcpy(&init, &function, sizeof function);
    function = dlsym(library, "ncclCommDestroy");
    memcpy(&destroy, &function, sizeof function);
    const int ranks = count_devices();
    if (!ranks || !init || !destroy) {
        printf("no GPU: refusals alone\n");
        return failures != 0;
    }
    rf_model *whole = model_of(0, 0, N, "");
    const rf_collective one = {.size = sizeof one, .num_ranks = 1, .all_gather = alone};
    CHECK(!ask(whole, &one, BATCH, &right), "%s", rf_last_error());
    rf_model_destroy(whole);

    void *comms[MOST_RANKS];
    rank all[MOST_RANKS];
    if (init(comms, ranks, NULL)) {
        printf("NCCL finds the GPUs unfit: refusals alone\n");
        return failures != 0;
    }
    for (int r = 0; r < ranks; r++) {
        all[r] = (rank){.number = r, .ranks = ranks, .comm = comms[r], .comes = ranks > 1 && r + 1 < ranks};
        CHECK(!pthread_create(&all[r].thread, NULL, work, &all[r]), "a thread");
    }
    for (int r = 0; r < ranks; r++) pthread_join(all[r].thread, NULL);
    if (ranks == 1) destroy(comms[0]);
    if (ranks > 1 && child > 0) outlive(library, ends[1], child);
    printf("%d GPU%s\n", ranks, ranks > 1 ? "s" : "");
    return failures != 0;
}
