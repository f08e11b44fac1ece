/* SPDX-License-Identifier: MIT */
/* Allocations: each may fail, none leaks, and a forward with its own workspace makes none. The program brings its own
 * malloc in front of the C library's. */
#include <rowfold.h>

#include <errno.h>
#include <malloc.h> /* memalign */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__)
int main(void) { return 77; } /* needs glibc's entry points behind malloc, and to be the only one that replaces it */
#else

#include "check.h"
#include "ranks.h"
#include "shard.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *old);

static atomic_long allocations, living;
static atomic_long failing = -1;            /* how many more may succeed before one fails; negative: all succeed */
static _Thread_local long own_failing = -1; /* the same of this thread */
static atomic_int failed;

static int refuse(void) {
    allocations++;
    if (own_failing < 0 || own_failing-- > 0) {
        if (atomic_load(&failing) < 0) return 0;
        if (atomic_fetch_sub(&failing, 1) > 0) return 0;
        atomic_store(&failing, -1);
    }
    failed = 1;
    errno = ENOMEM;
    return 1;
}

static void *count(void *block) {
    if (block) living++;
    return block;
}

void *malloc(size_t size) { return refuse() ? NULL : count(__libc_malloc(size)); }
void *calloc(size_t number, size_t size) { return refuse() ? NULL : count(__libc_calloc(number, size)); }
void *memalign(size_t alignment, size_t size) { return refuse() ? NULL : count(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **block, size_t alignment, size_t size) {
    void *found = memalign(alignment, size);
    if (!found) return 12; /* ENOMEM */
    *block = found;
    return 0;
}
void *realloc(void *old, size_t size) {
    if (refuse()) return NULL;
    void *moved = __libc_realloc(old, size);
    if (moved && !old) living++;
    return moved;
}
void free(void *block) {
    if (block) living--;
    __libc_free(block);
}

/* Large enough that two threads have something to do. */
enum { BATCH = 32, K = 200, N = 700 };
static float weight[N * K], bias[N], scale[N], x[BATCH * K], y[BATCH], wanted[BATCH];
static uint16_t half_weight[N * K];
static const float poison = -7.25f;

static const char *const chains[] = {
    "linear | mul(@scale) | softplus | logsumexp | gelu",
    "linear | mul(@scale) | add(1) | sum",
    "linear | mul(@scale) | max",
};

typedef struct subject {
    const char *backend, *chain;
    rf_dtype dtype;
} subject;

static char text[1 << 14];
static int said, wanted_said;

/* How many objects the lists of an explanation have. */
static int elements_of(const char *json) {
    int count = 0;
    for (const char *c = json; *c; c++)
        count += !strncmp(c, "\"index\": ", 9) + !strncmp(c, "\"rule\": ", 8) + !strncmp(c, "\"name\": ", 8);
    return count;
}

/* Everything a program does with a model. RF_OK, or the first status that was not. */
static rf_status life(const subject *s) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = s->chain,
        .in_features = K,
        .out_features = N,
        .weight_dtype = s->dtype,
        .x_dtype = RF_FLOAT32,
        .backend = s->backend,
        .threads = 2};
    const rf_vector vector = {.size = sizeof vector, .name = "scale", .data = scale, .length = N, .dtype = RF_FLOAT32};
    const rf_weights weights = {.size = sizeof weights,
        .weight = s->dtype == RF_FLOAT32 ? (const void *)weight : half_weight,
        .bias = bias,
        .bias_dtype = RF_FLOAT32,
        .vectors = &vector,
        .num_vectors = 1};
    size_t needed = 0;
    rf_status status = rf_model_create(&model, &config);
    if (status) {
        CHECK(!model, "create failed and wrote a model");
        return status;
    }
    status = rf_model_load_weights_ex(model, &weights);
    if (!status) status = rf_model_explain(model, BATCH, RF_FORMAT_TEXT, NULL, 0, &needed);
    if (!status) status = rf_model_explain(model, BATCH, RF_FORMAT_JSON, text, sizeof text, &needed);
    if (!status) said = elements_of(text);
    if (!status) status = rf_model_forward(model, x, BATCH, y);
    rf_model_destroy(model);
    return status;
}

static void fill(float *values, size_t n, float step) {
    for (size_t i = 0; i < n; i++) values[i] = (float)((i * 7919) % 101) * step - 50 * step;
}

/* Fails the first allocation, then only the second, and so on until a whole life needs no more than succeed. */
static void each_allocation_fails(const subject *s) {
    CHECK(life(s) == RF_OK, "%s: %s", s->backend, rf_last_error()); /* threads of the pool start here, and stay */
    memcpy(wanted, y, sizeof y);
    wanted_said = said;
    CHECK(life(s) == RF_OK, "%s: %s", s->backend, rf_last_error());
    long before = living;
    for (long n = 0;; n++) {
        for (int i = 0; i < BATCH; i++) y[i] = poison;
        failed = 0;
        atomic_store(&failing, n);
        rf_status status = life(s);
        atomic_store(&failing, -1);
        CHECK(living == before, "%s, %s, allocation %ld fails: %ld blocks were left behind", s->backend, s->chain, n,
            living - before);
        if (status) {
            CHECK(failed && status == RF_OUT_OF_MEMORY, "%s, allocation %ld fails: status %d, %s", s->backend, n,
                (int)status, rf_last_error());
            CHECK(*rf_last_error(), "%s, allocation %ld fails: no sentence", s->backend, n);
            for (int i = 0; i < BATCH; i++)
                CHECK(y[i] == poison, "%s, allocation %ld fails: y[%d] was written", s->backend, n, i);
        } else {
            CHECK(!memcmp(y, wanted, sizeof y), "%s, allocation %ld fails: another result", s->backend,
                n); /* it went on without, rightly */
            CHECK(said == wanted_said, "%s, allocation %ld fails: JSON of %d elements instead of %d", s->backend, n,
                said, wanted_said);
        }
        if (!failed) break;
        if (n > 10000 || failures > 20) {
            CHECK(0, "%s: no end of allocations", s->backend);
            break;
        }
    }
}

/* A model of a file, which each allocation of fails in its turn. */
static rf_status file_life(const char *path) {
    rf_model *model = NULL;
    rf_status status = rf_model_create(&model, &shard_config);
    if (!status) status = rf_model_load_file(model, path, &shard_names);
    if (!status) status = rf_model_forward(model, shard_x, 1, y);
    rf_model_destroy(model);
    return status;
}

static void each_allocation_of_a_file_fails(const char *path) {
    CHECK(file_life(path) == RF_OK && y[0] == shard_y, "%s: %s", path, rf_last_error());
    long before = living;
    for (long n = 0;; n++) {
        failed = 0;
        y[0] = poison;
        atomic_store(&failing, n);
        rf_status status = file_life(path);
        atomic_store(&failing, -1);
        CHECK(living == before, "%s, allocation %ld fails: %ld blocks were left behind", path, n, living - before);
        CHECK(failed && status ? status == RF_OUT_OF_MEMORY && *rf_last_error() : !status && y[0] == shard_y,
            "%s, allocation %ld fails: status %d, %s", path, n, (int)status, rf_last_error());
        if (!failed || n > 10000) break;
    }
}

/* ---- a layer on three ranks, of which the second has no memory ---- */

typedef struct party {
    seat seat;
    rf_model *model;
    long failing;
    rf_status status;
    char sentence[600];
    float y[BATCH];
} party;

/* What the ranks do their exchanges with is none of the library's. */
static int32_t gather_with_memory(void *user, const void *send, void *receive, size_t bytes, double timeout,
    int32_t *rank, char *message, size_t size) {
    const long left = own_failing;
    own_failing = -1;
    const int32_t answer = gather_in_room(user, send, receive, bytes, timeout, rank, message, size);
    own_failing = left;
    return answer;
}

static void *take_part(void *at) {
    party *p = at;
    rf_collective by = collective_of(&p->seat, 20);
    by.all_gather = gather_with_memory;
    const rf_forward_args args = {.size = sizeof args, .x = x, .y = p->y, .batch = BATCH};
    own_failing = p->failing;
    p->status = rf_model_forward_sharded(p->model, &by, &args);
    own_failing = -1;
    snprintf(p->sentence, sizeof p->sentence, "%s", rf_last_error());
    return NULL;
}

static void meet(party *parties, int ranks) {
    room r;
    pthread_t threads[MOST_RANKS];
    open_room(&r, ranks);
    for (int i = 0; i < ranks; i++) {
        parties[i].seat = (seat){.room = &r, .rank = i, .leaves_after = -1};
        for (int row = 0; row < BATCH; row++) parties[i].y[row] = poison;
        CHECK(!pthread_create(&threads[i], NULL, take_part, &parties[i]), "no thread");
    }
    for (int i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
    close_room(&r);
}

/* All ranks return that it had no memory, unless it is after the last exchange: the others have their results then. */
static void each_allocation_of_a_rank_fails(const char *backend, int ranks) {
    static party parties[MOST_RANKS];
    long told = 0;
    for (int i = 0; i < ranks; i++) {
        int64_t first = 0, count = 0;
        rf_shard_columns(N, i, ranks, &first, &count);
        const rf_config config = {.size = sizeof config,
            .chain = "linear | softplus | logsumexp | gelu",
            .in_features = K,
            .out_features = count,
            .backend = backend,
            .threads = 1,
            .first_column = first,
            .total_columns = N};
        CHECK(!rf_model_create(&parties[i].model, &config) &&
                !rf_model_load_weights(parties[i].model, weight + first * K, bias + first, NULL, 0),
            "%s", rf_last_error());
        parties[i].failing = -1;
    }
    meet(parties, ranks);
    memcpy(wanted, parties[0].y, sizeof wanted);
    for (int i = 0; i < ranks; i++)
        CHECK(
            !parties[i].status && !memcmp(parties[i].y, wanted, sizeof wanted), "rank %d: %s", i, parties[i].sentence);
    const long before = living;
    for (long n = 0; n < 1000; n++) {
        failed = 0;
        parties[1].failing = n;
        meet(parties, ranks);
        CHECK(living == before, "%s, allocation %ld of rank 1 fails: %ld blocks were left behind", backend, n,
            living - before);
        if (!failed) break;
        CHECK(parties[1].status == RF_OUT_OF_MEMORY, "%s, allocation %ld of rank 1 fails: %d, %s", backend, n,
            (int)parties[1].status, parties[1].sentence);
        told += parties[0].status != RF_OK;
        for (int i = 0; i < ranks; i += 2) {
            const party *p = &parties[i];
            CHECK(p->status ? p->status == RF_OUT_OF_MEMORY && strstr(p->sentence, "rank 1 failed: ")
                            : !memcmp(p->y, wanted, sizeof wanted),
                "%s, allocation %ld of rank 1 fails: rank %d: %d, %s", backend, n, i, (int)p->status, p->sentence);
        }
    }
    CHECK(!failed && told, "%s: %ld allocations of rank 1 were told to others", backend, told);
    for (int i = 0; i < ranks; i++) rf_model_destroy(parties[i].model);
}

static void forward_allocates_nothing(const subject *s) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = "linear | softplus | logsumexp | gelu",
        .in_features = K,
        .out_features = N,
        .backend = s->backend,
        .threads = 2};
    size_t size = 0;
    CHECK(rf_model_create(&model, &config) == RF_OK && rf_model_load_weights(model, weight, bias, NULL, 0) == RF_OK,
        "%s", rf_last_error());
    rf_model_info info = {.size = sizeof info};
    CHECK(rf_model_get_info(model, &info) == RF_OK, "%s", rf_last_error());
    CHECK(rf_model_workspace_size(model, BATCH, &size) == RF_OK, "%s", rf_last_error());
    if (info.device < 0) { /* a CUDA backend wants device memory */
        void *workspace = aligned_alloc(256, (size + 256) / 256 * 256);
        const rf_forward_args args = {
            .size = sizeof args, .x = x, .y = y, .batch = BATCH, .workspace = workspace, .workspace_size = size};
        CHECK(rf_model_forward_ex(model, &args) == RF_OK, "%s", rf_last_error());
        long before = allocations;
        for (int i = 0; i < 10; i++) CHECK(rf_model_forward_ex(model, &args) == RF_OK, "%s", rf_last_error());
        CHECK(allocations == before, "%s: forward with a workspace allocated %ld times", s->backend,
            allocations - before);
        free(workspace);
    }
    rf_model_destroy(model);
}

int main(void) {
    fill(weight, N * K, 0.002f);
    fill(bias, N, 0.01f);
    fill(scale, N, 0.02f);
    fill(x, BATCH * K, 0.01f);
    for (size_t i = 0; i < N * K; i++) half_weight[i] = (uint16_t)(0x3c00 + i % 512); /* bfloat16: 2^-7 to 2^-3 */
    for (size_t b = 0; b < rf_backend_count(); b++) {
        const char *why;
        if (!rf_backend_available(b, &why)) {
            printf("backend %s skipped: %s\n", rf_backend_name(b), why);
            continue;
        }
        for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
            for (int half = 0; half < 2; half++)
                each_allocation_fails(&(subject){rf_backend_name(b), chains[c], half ? RF_BFLOAT16 : RF_FLOAT32});
        each_allocation_of_a_rank_fails(rf_backend_name(b), 3);
        forward_allocates_nothing(&(subject){.backend = rf_backend_name(b)});
    }
    write_shard();
    each_allocation_of_a_file_fails(shard_path);
    each_allocation_of_a_file_fails(index_path);
    remove_shard();
    return failures != 0;
}
#endif
