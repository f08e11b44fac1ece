/* SPDX-License-Identifier: MIT */
/* The caller's floating-point mode: whatever it is when the library is called, and was when the pool's threads started,
 * the bits are those of the default mode, and the caller finds its mode as it was. A child of fork for each mode, since
 * a pool starts but once. */
#define _GNU_SOURCE
#include <fenv.h>
#include <rowfold.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "random.h"
#include "slow.h"

enum { BATCH = 48, LEAST_BATCH = 6, K = 300, N = 600, TEXT = 4096, WORDS = 16 * 3, PATIENCE_S = 400 };

/* The control word of what computes, without its sticky flags. */
#if defined __x86_64__
static uint64_t get_mode(void) {
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (uint64_t)x87 << 32 | (__builtin_ia32_stmxcsr() & ~0x3fu);
}
static void flush_subnormals(void) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }
#elif defined __aarch64__
static uint64_t get_mode(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}
static void flush_subnormals(void) { __asm__ volatile("msr fpcr, %0" : : "r"(get_mode() | 1u << 24)); }
#else
static uint64_t get_mode(void) { return (uint64_t)fegetround(); }
static void flush_subnormals(void) {}
#endif
static void upward(void) { fesetround(FE_UPWARD); }
static void downward(void) { fesetround(FE_DOWNWARD); }
static void toward_zero(void) { fesetround(FE_TOWARDZERO); }
#ifdef __GLIBC__
static void trap(void) { feenableexcept(FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT | FE_INVALID); }
#elif defined __x86_64__ /* musl has no feenableexcept: the same five of SSE alone */
static void trap(void) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~0x1e80u); }
#else
static void trap(void) {}
#endif

static const struct {
    const char *name;
    void (*set)(void);
} modes[] = {{"upward", upward}, {"downward", downward}, {"toward zero", toward_zero},
    {"subnormals are zeros", flush_subnormals}, {"traps", trap}};

static const struct {
    const char *chain;
    rf_dtype weights, x, y;
    float scale; /* of x: products that are subnormal, too */
} cases[] = {
    {"linear(300, 600) | mul(0.3) | logsumexp | gelu", RF_FLOAT32, RF_FLOAT32, RF_FLOAT32, 1},
    {"linear(300, 600) | mul(0.7)", RF_FLOAT32, RF_FLOAT32, RF_FLOAT32, 1e-38f},
    {"linear(300, 600) | mul(0.7)", RF_FLOAT32, RF_FLOAT32, RF_FLOAT16, 1e-5f},
    {"linear(300, 600) | square | sum", RF_FLOAT16, RF_FLOAT16, RF_BFLOAT16, 1},
    {"linear(300, 600) | add(0.1) | mean", RF_FLOAT32, RF_BFLOAT16, RF_FLOAT64, 1},
    {"linear(300, 600) | mul(0.3) | logsumexp", RF_FLOAT64, RF_FLOAT64, RF_FLOAT16, 1},
};
enum { CASES = sizeof cases / sizeof *cases };

static int batch = BATCH, patience_s = PATIENCE_S;
static double w[N * K], x[BATCH * K], bias[N];

typedef struct results {
    /* Of a call, of one after an update, and of states that are merged; and the states. */
    unsigned char y[CASES][BATCH * N * 8], again[CASES][BATCH * N * 8], merged[CASES][BATCH * 8];
    double states[CASES][BATCH * WORDS];
    size_t workspace[CASES];
    char chain[TEXT];
    rf_op ops[RF_MAX_OPS];
} results;

static double centred(void) { return (double)(next_random() >> 11) * 0x1p-53 - 0.5; }

/* Numbers of a type as they are stored; 16-bit ones by cutting, which is as good as any. */
static void store(void *to, rf_dtype dtype, const double *from, int n, double scale) {
    for (int i = 0; i < n; i++) {
        float f = (float)(from[i] * scale);
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (dtype == RF_FLOAT32) ((float *)to)[i] = f;
        if (dtype == RF_FLOAT64) ((double *)to)[i] = from[i] * scale;
        if (dtype == RF_BFLOAT16) ((uint16_t *)to)[i] = (uint16_t)(u >> 16);
        /* Into the subnormal ones of binary16, too. */
        if (dtype == RF_FLOAT16) ((uint16_t *)to)[i] = (uint16_t)((u >> 16 & 0x8000) | (u >> 13 & 0x3fff));
    }
}

/* From states of the whole layer, for chains whose reductions have some. */
static int in_parts(const rf_model *model, const void *x_stored, results *r, int c) {
    const rf_states states = {
        .size = sizeof states, .data = r->states[c], .bytes = sizeof r->states[c], .num_columns = N};
    rf_forward_args args = {.size = sizeof args, .x = x_stored, .batch = batch, .states = &states};
    if (!strstr(cases[c].chain, "logsumexp") && !strstr(cases[c].chain, "mean")) return 0;
    if (rf_model_forward_ex(model, &args)) return 1;
    args.states = NULL;
    args.y = r->merged[c];
    return rf_states_merge(model, &states, 1, &args) != RF_OK;
}

/* Everything that computes, on one backend. Inputs are stored before the mode is set. */
static int compute(const char *backend, results *r, void (*set)(void)) {
    static double stored_w[CASES][N * K], stored_b[CASES][N], stored_x[CASES][BATCH * K];
    for (int c = 0; c < CASES; c++) {
        store(stored_w[c], cases[c].weights, w, N * K, 1);
        store(stored_b[c], cases[c].weights, bias, N, cases[c].scale);
        store(stored_x[c], cases[c].x, x, BATCH * K, cases[c].scale);
    }
    if (set) set();
    const uint64_t mode = get_mode();
    int failed = 0;
    for (int c = 0; c < CASES; c++) {
        rf_model *model = NULL;
        char text[TEXT];
        const rf_config config = {.size = sizeof config,
            .chain = cases[c].chain,
            .weight_dtype = cases[c].weights,
            .x_dtype = cases[c].x,
            .y_dtype = cases[c].y,
            .backend = backend,
            .threads = 3};
        const rf_weights weights = {.size = sizeof weights, .weight = stored_w[c], .bias = stored_b[c]};
        failed |= rf_model_create(&model, &config) || rf_model_load_weights(model, stored_w[c], stored_b[c], NULL, 0) ||
            rf_model_forward(model, stored_x[c], batch, r->y[c]) || rf_model_update_weights(model, &weights) ||
            rf_model_forward(model, stored_x[c], batch, r->again[c]) || in_parts(model, stored_x[c], r, c) ||
            rf_model_workspace_size(model, 100000, &r->workspace[c]) ||
            rf_model_explain(model, batch, RF_FORMAT_TEXT, text, sizeof text, NULL);
        rf_model_destroy(model);
        failed |= get_mode() != mode;
    }
    size_t n;
    failed |=
        rf_chain_parse("linear | mul(0.1) | add(1.1e-300) | clamp(0.3, 123456789.123456789)", r->ops, RF_MAX_OPS, &n) ||
        rf_chain_format(r->ops, n, r->chain, sizeof r->chain, NULL);
    failed |= get_mode() != mode;
    fesetenv(FE_DFL_ENV);
    return failed;
}

static void check_mode(const char *backend, const char *name, void (*set)(void), const results *expected) {
    pid_t child = fork();
    if (!child) {
        static results r;
        alarm((unsigned)patience_s);
        int failed = compute(backend, &r, set);
        if (failed) fprintf(stderr, "a call failed or changed the mode: %s\n", rf_last_error());
        for (int c = 0; c < CASES; c++)
            if (memcmp(r.y[c], expected->y[c], sizeof r.y[c]) || memcmp(r.again[c], r.y[c], sizeof r.y[c]) ||
                memcmp(r.merged[c], expected->merged[c], sizeof r.merged[c]) ||
                memcmp(r.states[c], expected->states[c], sizeof r.states[c]))
                failed |= fprintf(stderr, "other bits: %s\n", cases[c].chain);
        if (memcmp(r.workspace, expected->workspace, sizeof r.workspace))
            failed |= fprintf(stderr, "another size of the workspace\n");
        if (strcmp(r.chain, expected->chain) || memcmp(r.ops, expected->ops, sizeof r.ops))
            failed |= fprintf(stderr, "another chain: %s\n", r.chain);
        _exit(failed != 0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status),
        "%s, mode \"%s\": status 0x%x", backend, name, status);
}

/* A pool that was started in one mode and is used in others. */
static void check_pool_of_another_mode(const char *backend, const results *expected) {
    pid_t child = fork();
    if (!child) {
        static results r;
        alarm((unsigned)patience_s);
        int failed = 0;
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            failed |= compute(backend, &r, modes[m].set) || memcmp(&r.y, &expected->y, sizeof r.y);
            failed |= compute(backend, &r, NULL) || memcmp(&r.y, &expected->y, sizeof r.y);
        }
        _exit(failed);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status),
        "%s, one mode after the other: status 0x%x", backend, status);
}

int main(void) {
    const int slower = times_slower("the rows, but no fewer than 6");
    patience_s *= slower;
    if (batch / slower < LEAST_BATCH) batch = LEAST_BATCH;
    else batch /= slower;
    for (int i = 0; i < N * K; i++) w[i] = centred();
    for (int i = 0; i < BATCH * K; i++) x[i] = centred();
    for (int i = 0; i < N; i++) bias[i] = centred();
    for (size_t i = 0; i < rf_backend_count(); i++) {
        const char *backend = rf_backend_name(i), *why;
        static results expected;
        /* A CUDA driver does not survive fork. */
        if (!strncmp(backend, "cuda", 4) || !rf_backend_available(i, &why)) {
            printf("backend %s skipped\n", backend);
            continue;
        }
        /* In a child, too, lest this process has a pool that its children inherit. */
        int ends[2];
        CHECK(!pipe(ends), "pipe");
        pid_t child = fork();
        if (!child) {
            alarm((unsigned)patience_s);
            if (compute(backend, &expected, NULL)) _exit(1);
            FILE *out = fdopen(ends[1], "wb");
            _exit(!(out && fwrite(&expected, sizeof expected, 1, out) == 1 && !fclose(out)));
        }
        close(ends[1]);
        FILE *in = fdopen(ends[0], "rb");
        CHECK(in && fread(&expected, sizeof expected, 1, in) == 1, "%s: no results in the default mode", backend);
        if (in) fclose(in);
        waitpid(child, NULL, 0);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
            check_mode(backend, modes[m].name, modes[m].set, &expected);
        check_pool_of_another_mode(backend, &expected);
    }
    return failures != 0;
}
