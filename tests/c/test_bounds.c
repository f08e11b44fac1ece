/* SPDX-License-Identifier: MIT */
/* No byte beside a caller's memory is read or written: everything that a call is given ends, and then begins, beside a
 * page that cannot be touched. Sanitizers see this too, but not with the vector kernels as they are compiled for users.
 */
#define _GNU_SOURCE
#include <rowfold.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "random.h"
#include "slow.h"

enum { TOP = 2, ASKED = 3, MOST = 24 };

typedef struct fence {
    char *map, *data;
    size_t mapped;
} fence;

static fence fences[MOST];
static int num_fences, at_end;
static size_t page;

/* Memory of this many bytes with such a page behind its last byte, or before its first one. */
static void *fenced(size_t bytes) {
    const size_t inside = (bytes + page - 1) / page * page, mapped = inside + 2 * page;
    char *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || num_fences == MOST || mprotect(map, page, PROT_NONE) ||
        mprotect(map + page + inside, page, PROT_NONE)) {
        perror("mmap");
        exit(1);
    }
    char *data = map + page + (at_end ? inside - bytes : 0);
    memset(data, 0x5a, bytes);
    fences[num_fences++] = (fence){map, data, mapped};
    return data;
}

static void release_fences(void) {
    while (num_fences) {
        const fence *f = &fences[--num_fences];
        munmap(f->map, f->mapped);
    }
}

/* Small numbers, as all types have them. */
static void fill(void *values, size_t count, rf_dtype dtype) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = next_random();
        const float v = (float)(bits >> 40) * 0x1p-23f - 1;
        if (dtype == RF_FLOAT64) ((double *)values)[i] = (double)v;
        else if (dtype == RF_FLOAT32) ((float *)values)[i] = v;
        else ((uint16_t *)values)[i] = (uint16_t)((bits & 0x8000) | 0x2800 | (bits >> 40 & 0x3ff));
    }
}

static size_t item_of(rf_dtype dtype) { return dtype == RF_FLOAT64 ? 8 : dtype == RF_FLOAT32 ? 4 : 2; }

typedef struct subject {
    const char *backend, *chain;
    rf_dtype dtype;
    int64_t batch, k, n;
    int64_t gap; /* elements between rows of x and of y */
} subject;

/* Calls the model with a workspace of its own or none, and with results where it has several. */
static int call(const subject *s, rf_model *model, const void *x, int with_workspace) {
    rf_forward_args args = {.size = sizeof args, .x = x, .batch = s->batch, .ldx = s->k + s->gap};
    rf_result results[MOST];
    rf_row_input inputs[2];
    rf_model_info info = {.size = sizeof info};
    int failed = rf_model_get_info(model, &info);
    if (strstr(s->chain, "#")) {
        int64_t *asked = fenced((size_t)(s->batch * ASKED) * sizeof *asked);
        int64_t *target = fenced((size_t)s->batch * sizeof *target);
        for (int64_t i = 0; i < s->batch * ASKED; i++) asked[i] = i * 7 % s->n;
        for (int64_t i = 0; i < s->batch; i++) target[i] = i % 5 ? i * 3 % s->n : s->n - 1;
        const int64_t widths[] = {1, 1, TOP, TOP, ASKED};
        const size_t items[] = {item_of(info.y_dtype), 8, item_of(info.y_dtype), 8, item_of(info.y_dtype)};
        for (int i = 0; i < 5; i++)
            results[i] = (rf_result){.size = sizeof *results,
                .data = fenced((size_t)((s->batch - 1) * (widths[i] + s->gap) + widths[i]) * items[i]),
                .ld = widths[i] + s->gap};
        inputs[0] = (rf_row_input){.size = sizeof *inputs, .name = "target", .data = target, .length = s->batch};
        inputs[1] = (rf_row_input){
            .size = sizeof *inputs, .name = "asked", .data = asked, .length = s->batch, .columns = ASKED};
        args.results = results, args.num_results = 5, args.row_inputs = inputs, args.num_row_inputs = 2;
    } else {
        args.ldy = info.output_features + s->gap;
        args.y = fenced((size_t)((s->batch - 1) * args.ldy + info.output_features) * item_of(info.y_dtype));
    }
    if (with_workspace) {
        failed |= rf_model_workspace_size(model, s->batch, &args.workspace_size) != RF_OK;
        /* It begins at a multiple of 256, and so ends at a page's end if its size is one, too. */
        args.workspace_size = (args.workspace_size + 255) / 256 * 256;
        if (args.workspace_size) args.workspace = fenced(args.workspace_size);
    }
    return failed || rf_model_forward_ex(model, &args);
}

static void check_subject(const subject *s) {
    static const rf_simplify rewrites[] = {RF_SIMPLIFY_NONE, RF_SIMPLIFY_ALGEBRAIC};
    for (int i = 0; i < 4; i++) {
        const size_t item = item_of(s->dtype);
        at_end = i & 1;
        rf_model *model = NULL;
        const rf_config config = {.size = sizeof config,
            .chain = s->chain,
            .in_features = s->k,
            .out_features = s->n,
            .weight_dtype = s->dtype,
            .simplify = rewrites[i / 2],
            .backend = s->backend,
            .threads = 2};
        void *x = fenced((size_t)((s->batch - 1) * (s->k + s->gap) + s->k) * item);
        void *weight = fenced((size_t)(s->n * s->k) * item), *bias = fenced((size_t)s->n * item),
             *scale = fenced((size_t)s->n * item);
        fill(x, (size_t)((s->batch - 1) * (s->k + s->gap) + s->k), s->dtype);
        fill(weight, (size_t)(s->n * s->k), s->dtype);
        fill(bias, (size_t)s->n, s->dtype);
        fill(scale, (size_t)s->n, s->dtype);
        const rf_vector vector = {
            .size = sizeof vector, .name = "v", .data = scale, .length = s->n, .dtype = (int32_t)s->dtype};
        const rf_weights weights = {.size = sizeof weights,
            .weight = weight,
            .bias = bias,
            .vectors = &vector,
            .num_vectors = strstr(s->chain, "@v") != NULL};
        CHECK(!rf_model_create(&model, &config) && !rf_model_load_weights_ex(model, &weights) &&
                !call(s, model, x, 0) && !call(s, model, x, 1),
            "%s, %s: %s", s->backend, s->chain, rf_last_error());
        rf_model_destroy(model);
        release_fences();
    }
}

int main(void) {
    static const char *const chains[] = {
        "linear | logsumexp | gelu",
        "linear | mul(@v) | save | add_saved | mean",
        "linear | sum",
        "linear | mul(@v) | tanh",
        "linear | logprob(#target), rank(#target), topk(2), gather(#asked)",
    };
    /* Narrow layers and others, on both sides of the edges of slivers, panels and chunks; batches that end within a
     * group of rows. */
    static const int64_t shapes[][3] = {
        {1, 3, 2}, {5, 7, 33}, {67, 21, 13}, {33, 513, 4}, {49, 130, 48}, {20, 30, 49}, {15, 512, 256}, {29, 513, 257}};
    const int slower = times_slower("the cases");
    unsigned number = 0;
    page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t b = 0; b < rf_backend_count(); b++) {
        subject s = {.backend = rf_backend_name(b)};
        if (!strncmp(s.backend, "cuda", 4) || !rf_backend_available(b, NULL)) {
            printf("backend %s skipped\n", s.backend);
            continue;
        }
        for (s.dtype = RF_FLOAT32; s.dtype <= RF_BFLOAT16; s.dtype++)
            for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
                for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                    s.chain = chains[c], s.batch = shapes[i][0], s.k = shapes[i][1], s.n = shapes[i][2];
                    s.gap = (int64_t)(i % 2) * 3;
                    if (is_among(number++, slower)) check_subject(&s);
                }
    }
    return failures != 0;
}
