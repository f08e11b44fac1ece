/* SPDX-License-Identifier: MIT */
/* One layer on the ranks of MPI_COMM_WORLD: tests/mpi.sh runs it. Every rank checks; the largest status is that of all.
 */
#include <mpi/rowfold_mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { K = 7, N = 5000, BATCH = 20 };

static float x[BATCH * K], weight[N * K];

static rf_model *model_of(int64_t first, int64_t count) {
    char text[80];
    snprintf(text, sizeof text, "linear(%d, %lld) | logsumexp | gelu, argmax", K, (long long)count);
    rf_model *model = NULL;
    const rf_config config = {
        .size = sizeof config, .chain = text, .threads = 1, .first_column = first, .total_columns = N};
    CHECK(!rf_model_create(&model, &config) && !rf_model_load_weights(model, weight + first * K, NULL, NULL, 0), "%s",
        rf_last_error());
    return model;
}

typedef struct answer {
    float y[BATCH];
    int64_t index[BATCH];
} answer;

static rf_status ask(const rf_model *model, const rf_collective *by, int64_t batch, answer *to) {
    memset(to, 0, sizeof *to);
    const rf_result results[2] = {
        {.size = sizeof *results, .data = to->y}, {.size = sizeof *results, .data = to->index}};
    const rf_forward_args args = {.size = sizeof args, .x = x, .batch = batch, .results = results, .num_results = 2};
    return by ? rf_model_forward_sharded(model, by, &args) : rf_model_forward_ex(model, &args);
}

static void numbers(const rf_collective *by) {
    static answer right, got;
    rf_model *whole = model_of(0, N);
    CHECK(!ask(whole, NULL, BATCH, &right), "%s", rf_last_error());
    rf_model_destroy(whole);
    /* As even as groups allow, and all on the last rank. */
    for (int way = 0; way < 2; way++) {
        int64_t first = 0, count = 0;
        rf_shard_columns(N, by->rank, by->num_ranks, &first, &count);
        const int last = by->rank + 1 == by->num_ranks;
        rf_model *model = way ? model_of(0, last ? N : 0) : model_of(first, count);
        CHECK(!ask(model, by, BATCH, &got) && !memcmp(&got, &right, sizeof got), "rank %d: %s", by->rank,
            rf_last_error());
        CHECK(!ask(model, by, 0, &got), "rank %d, no rows: %s", by->rank, rf_last_error());
        rf_model_destroy(model);
    }
}

static void errors(const rf_collective *by) {
    static answer got;
    int64_t first = 0, count = 0;
    rf_shard_columns(N, by->rank, by->num_ranks, &first, &count);
    rf_model *model = model_of(first, count);
    char says[80];
    for (int wrong = 0; wrong < by->num_ranks; wrong++) {
        snprintf(says, sizeof says, "rank %d failed: batch is -1", wrong);
        CHECK(ask(model, by, by->rank == wrong ? -1 : BATCH, &got) == RF_INVALID_ARGUMENT &&
                strstr(rf_last_error(), says),
            "rank %d: %s", by->rank, rf_last_error());
    }
    rf_collective none = {.size = sizeof none}, small = {.size = 8};
    char why[200];
    CHECK(rf_mpi_open(NULL, MPI_COMM_WORLD, 0, why, sizeof why) == RF_INVALID_ARGUMENT &&
            !strcmp(why, "collective is NULL"),
        "%s", why);
    CHECK(rf_mpi_open(&small, MPI_COMM_WORLD, 0, why, sizeof why) == RF_INVALID_ARGUMENT &&
            !strncmp(why, "collective.size is 8", 20),
        "%s", why);
    CHECK(rf_mpi_open(&none, MPI_COMM_NULL, 0, why, sizeof why) == RF_INVALID_ARGUMENT && strstr(why, "MPI_COMM_NULL"),
        "%s", why);
    CHECK(rf_mpi_open(&none, MPI_COMM_WORLD, -1, NULL, 0) == RF_INVALID_ARGUMENT, "a negative time limit");
    rf_mpi_close(&none), rf_mpi_close(NULL);
    /* A rank that is late for longer than the others wait. */
    rf_collective hasty = {.size = sizeof hasty};
    CHECK(!rf_mpi_open(&hasty, MPI_COMM_WORLD, 4, why, sizeof why), "%s", why);
    MPI_Barrier(MPI_COMM_WORLD);
    if (by->num_ranks > 1 && by->rank != 1) {
        const double start = MPI_Wtime();
        CHECK(ask(model, &hasty, BATCH, &got) == RF_COMMUNICATION &&
                strstr(rf_last_error(), "the exchange of shapes failed, for rank 1: it took longer than 4 seconds"),
            "rank %d: %s", by->rank, rf_last_error());
        CHECK(MPI_Wtime() - start < 60, "rank %d: %g seconds", by->rank, MPI_Wtime() - start);
        CHECK(ask(model, &hasty, BATCH, &got) == RF_COMMUNICATION && strstr(rf_last_error(), "before has failed"),
            "rank %d: %s", by->rank, rf_last_error());
    }
    rf_mpi_close(&hasty);
    rf_model_destroy(model);
}

/* The last rank dies while the others wait for it. mpirun ends these. */
static int dying(void) {
    char why[200] = "";
    rf_collective by = {.size = sizeof by};
    CHECK(!rf_mpi_open(&by, MPI_COMM_WORLD, 0, why, sizeof why), "%s", why);
    MPI_Barrier(MPI_COMM_WORLD);
    if (by.rank + 1 == by.num_ranks) raise(SIGKILL);
    static answer got;
    int64_t first = 0, count = 0;
    rf_shard_columns(N, by.rank, by.num_ranks, &first, &count);
    ask(model_of(first, count), &by, BATCH, &got);
    printf("rank %d went on\n", by.rank);
    return 0;
}

int main(int argc, char **argv) {
    char why[200] = "";
    rf_collective by = {.size = sizeof by};
    CHECK(rf_mpi_open(&by, MPI_COMM_WORLD, 0, why, sizeof why) == RF_INVALID_ARGUMENT && strstr(why, "not running"),
        "%s", why);
    MPI_Init(&argc, &argv);
    uint32_t seed = 1;
    for (int i = 0; i < N * K; i++) seed = seed * 1664525u + 1013904223u, weight[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    for (int i = 0; i < BATCH * K; i++) seed = seed * 1664525u + 1013904223u, x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    if (argc > 1 && !strcmp(argv[1], "dying")) return dying();
    for (int limited = 0; limited < 2; limited++) {
        by = (rf_collective){.size = sizeof by};
        CHECK(!rf_mpi_open(&by, MPI_COMM_WORLD, limited ? 60 : 0, why, sizeof why), "%s", why);
        numbers(&by);
        if (limited) errors(&by);
        rf_mpi_close(&by);
    }
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return all != 0;
}
