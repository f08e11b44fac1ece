/* SPDX-License-Identifier: MIT */
/* Backends, instruction sets, types, rewrites, threads, layouts against each other: a chain and a shape from the input,
 * on data of small integers, whose sums and products are exact in every type. Promises: with operators that are exact
 * on such data all results have the same bits as the reference's without rewrites; with any operators a backend gives
 * the same bits for a row alone, in any batch, with gaps between the rows, in a workspace of the caller's and with any
 * number of threads. */
#include "fuzz.h"

#include <math.h>

enum { MOST_ROWS = 70, MOST_K = 70, MOST_N = 150, MOST_OPS = 8 };

/* Operators that are exact as long as values have few bits; how many more bits each may take; and whether which of +0
 * and -0 it gives is not promised, where it is given both. */
static const struct {
    const char *text;
    int bits, either;
} exact[] = {{"relu", 0, 1}, {"abs", 0, 0}, {"neg", 0, 0}, {"mul(2)", 1, 0}, {"mul(-1)", 0, 0}, {"mul(0.5)", 1, 0},
    {"add(3)", 0, 0}, {"sub(5)", 0, 0}, {"minimum(7)", 0, 1}, {"maximum(-6)", 0, 1}, {"clamp(-20, 20)", 0, 1},
    {"hardtanh(-4, 30)", 0, 1}, {"leaky_relu(0.25)", 2, 0}, {"div(4)", 2, 0}, {"mul(@v)", 2, 0}, {"add(@v)", 0, 0},
    {"maximum(@v)", 0, 1}, {"save", 0, 0}, {"add_saved", 1, 0}, {"sum", 0, 0}, {"max", 0, 1}, {"min", 0, 1}};
static const char *const others[] = {"gelu", "gelu(tanh)", "silu", "mish", "softplus", "sigmoid", "logsigmoid", "tanh",
    "elu", "hardswish", "hardsigmoid", "softcap(30)", "exp", "log", "sqrt", "square", "reciprocal", "mul_saved", "mean",
    "logsumexp"};

static const rf_dtype dtypes[] = {RF_FLOAT32, RF_FLOAT64, RF_FLOAT16, RF_BFLOAT16};

/* Integers from -4 to 4: with K and N as above a sum of logits has 18 bits, so BITS more fit into float32. */
enum { BITS = 6 };
static uint64_t state;
static double small(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int)((state >> 40) % 9) - 4);
}

static size_t width(rf_dtype dtype) { return dtype == RF_FLOAT64 ? 8 : dtype == RF_FLOAT32 ? 4 : 2; }

/* Those values exactly, in any type. */
static void put(void *at, rf_dtype dtype, double value) {
    const float single = (float)value;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &single, sizeof bits);
    if (dtype == RF_FLOAT64) {
        memcpy(at, &value, sizeof value);
    } else if (dtype == RF_FLOAT32) {
        memcpy(at, &bits, sizeof bits);
    } else {
        if (dtype == RF_BFLOAT16) half = (uint16_t)(bits >> 16);
        else
            half = (uint16_t)((bits >> 16 & 0x8000) | (bits & 0x7fffffff ? ((bits >> 13) & 0x3ffff) - (112 << 10) : 0));
        memcpy(at, &half, sizeof half);
    }
}

static void fill(void *at, rf_dtype dtype, size_t count) {
    for (size_t i = 0; i < count; i++) put((char *)at + i * width(dtype), dtype, small());
}

typedef struct subject {
    char chain[256];
    int64_t batch, k, n;
    rf_dtype w_dtype, x_dtype, y_dtype;
    int bias, vectors, columns;
    void *w, *b, *x;
    double *v;
} subject;

static rf_model *model_of(const subject *s, const char *backend, rf_simplify simplify, int threads) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = s->chain,
        .weight_dtype = s->w_dtype,
        .x_dtype = s->x_dtype,
        .y_dtype = s->y_dtype,
        .simplify = simplify,
        .backend = backend,
        .threads = threads};
    rf_status status = rf_model_create(&model, &config);
    if (status == RF_UNSUPPORTED || status == RF_UNAVAILABLE) return NULL;
    REQUIRE(!status, "%s on %s: %s", s->chain, backend, rf_last_error());
    const rf_vector vector = {.size = sizeof vector, .name = "v", .data = s->v, .length = s->n, .dtype = RF_FLOAT64};
    const rf_weights weights = {.size = sizeof weights,
        .weight = s->w,
        .bias = s->bias ? s->b : NULL,
        .vectors = &vector,
        .num_vectors = (size_t)s->vectors};
    status = rf_model_load_weights_ex(model, &weights);
    REQUIRE(!status, "%s on %s: %s", s->chain, backend, rf_last_error());
    return model;
}

static int is_zero(const char *value, rf_dtype dtype) {
    const size_t last = width(dtype) - 1; /* with the sign */
    for (size_t i = 0; i < last; i++)
        if (value[i]) return 0;
    return !(value[last] & 0x7f);
}

/* Equal but for the bits of a NaN, and where `zeros`, for the sign of a zero. */
static int same(const void *a, const void *b, rf_dtype dtype, size_t count, int zeros) {
    for (size_t i = 0; i < count; i++) {
        const char *p = (const char *)a + i * width(dtype), *q = (const char *)b + i * width(dtype);
        if (!memcmp(p, q, width(dtype))) continue;
        if (zeros && is_zero(p, dtype) && is_zero(q, dtype)) continue;
        double d[2];
        float f[2];
        uint16_t h[2];
        if (dtype == RF_FLOAT64) {
            memcpy(&d[0], p, 8), memcpy(&d[1], q, 8);
            if (!(isnan(d[0]) && isnan(d[1]))) return 0;
        } else if (dtype == RF_FLOAT32) {
            memcpy(&f[0], p, 4), memcpy(&f[1], q, 4);
            if (!(isnan(f[0]) && isnan(f[1]))) return 0;
        } else {
            const uint16_t inf = dtype == RF_BFLOAT16 ? 0x7f80 : 0x7c00;
            memcpy(&h[0], p, 2), memcpy(&h[1], q, 2);
            if (!((h[0] & 0x7fff) > inf && (h[1] & 0x7fff) > inf)) return 0;
        }
    }
    return 1;
}

static void forward(const rf_model *model, const subject *s, void *y) {
    REQUIRE(!rf_model_forward(model, s->x, s->batch, y), "%s: %s", s->chain, rf_last_error());
}

/* A row's bits depend on nothing but the row. */
static void rows_stand_alone(
    const rf_model *model, const subject *s, const void *y, const char *backend, uint8_t which) {
    const size_t x_row = (size_t)s->k * width(s->x_dtype), y_row = (size_t)s->columns * width(s->y_dtype);
    const int64_t row = which % s->batch;
    char *one = malloc(y_row), *apart = malloc((size_t)s->batch * (y_row + 24)),
         *x = malloc((size_t)s->batch * (x_row + 16) + 1);
    memset(x, 0xff, (size_t)s->batch * (x_row + 16));
    for (int64_t i = 0; i < s->batch; i++)
        memcpy(x + (size_t)i * (x_row + 16), (const char *)s->x + (size_t)i * x_row, x_row);
    REQUIRE(!rf_model_forward(model, (const char *)s->x + (size_t)row * x_row, 1, one), "%s", rf_last_error());
    REQUIRE(!memcmp(one, (const char *)y + (size_t)row * y_row, y_row), "%s on %s: row %d alone has other bits",
        s->chain, backend, (int)row);
    size_t bytes = 0;
    REQUIRE(!rf_model_workspace_size(model, s->batch, &bytes), "%s", rf_last_error());
    void *workspace = aligned_alloc(256, (bytes + 511) / 256 * 256);
    const rf_forward_args args = {.size = sizeof args,
        .x = x,
        .y = apart,
        .batch = s->batch,
        .ldx = s->k + 16 / (int64_t)width(s->x_dtype),
        .ldy = s->columns + 24 / (int64_t)width(s->y_dtype),
        .workspace = workspace,
        .workspace_size = bytes};
    REQUIRE(!rf_model_forward_ex(model, &args), "%s on %s: %s", s->chain, backend, rf_last_error());
    for (int64_t i = 0; i < s->batch; i++)
        REQUIRE(!memcmp(apart + (size_t)i * (y_row + 24), (const char *)y + (size_t)i * y_row, y_row),
            "%s on %s: row %d between gaps has other bits", s->chain, backend, (int)i);
    free(one), free(apart), free(x), free(workspace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    taker in = {data, size};
    subject s = {.chain = ""};
    const uint8_t how = take(&in), types = take(&in), row = take(&in);
    s.batch = 1 + take(&in) % MOST_ROWS;
    s.k = take(&in) % (MOST_K + 1);
    s.n = 1 + take(&in) % MOST_N;
    take_bytes(&in, &state, 4);
    /* Where there are no inputs the chain must say so. */
    snprintf(s.chain, sizeof s.chain, "linear(%d, %d)", (int)s.k, (int)s.n);
    s.w_dtype = dtypes[types & 3];
    s.x_dtype = s.w_dtype == RF_FLOAT64 ? RF_FLOAT64 : dtypes[types >> 2 & 3];
    if (s.x_dtype == RF_FLOAT64) s.w_dtype = RF_FLOAT64;
    s.y_dtype = s.w_dtype == RF_FLOAT64 ? RF_FLOAT64 : RF_FLOAT32;
    if (types & 16) s.y_dtype = dtypes[types >> 5 & 3];
    s.bias = how & 1;
    int all_exact = 1, either = 0, saved = 0, folds = 0, bits = 0;
    for (int i = 0; i < MOST_OPS && in.left; i++) {
        const uint8_t byte = take(&in);
        const size_t which = byte % (sizeof exact / sizeof *exact);
        const char *op = byte & 128 ? others[byte % (sizeof others / sizeof *others)] : exact[which].text;
        if (strstr(op, "_saved") ? !saved : strstr(op, "@v") && folds) continue;
        if (!(byte & 128) && (bits += exact[which].bits) > BITS) break;
        const int fold = !strcmp(op, "sum") || !strcmp(op, "max") || !strcmp(op, "min") || !strcmp(op, "mean") ||
            !strcmp(op, "logsumexp");
        saved = !fold && (saved || !strcmp(op, "save"));
        folds |= fold;
        s.vectors |= strstr(op, "@v") != NULL;
        all_exact &= !(byte & 128);
        either |= exact[which].either;
        strcat(strcat(s.chain, " | "), op);
    }
    s.columns = folds ? 1 : (int)s.n;
    s.w = malloc((size_t)(s.k * s.n) * 8 + 8), s.b = malloc((size_t)s.n * 8), s.v = malloc((size_t)s.n * 8);
    s.x = malloc((size_t)(s.batch * s.k) * 8 + 8);
    fill(s.w, s.w_dtype, (size_t)(s.k * s.n));
    fill(s.b, s.w_dtype, (size_t)s.n);
    fill(s.x, s.x_dtype, (size_t)(s.batch * s.k));
    fill(s.v, RF_FLOAT64, (size_t)s.n);

    const size_t count = (size_t)s.batch * (size_t)s.columns;
    void *wanted = malloc(count * 8), *y = malloc(count * 8), *more = malloc(count * 8);
    rf_model *model = model_of(&s, "reference", RF_SIMPLIFY_NONE, 1);
    REQUIRE(model, "%s: %s", s.chain, rf_last_error());
    forward(model, &s, wanted);
    rf_model_destroy(model);
    for (size_t i = 0; i < rf_backend_count(); i++) {
        const char *backend = rf_backend_name(i);
        const rf_simplify simplify = (rf_simplify)(how >> 1 & 3);
        if (!(model = model_of(&s, backend, simplify, 1))) continue;
        forward(model, &s, y);
        if (all_exact)
            REQUIRE(same(y, wanted, s.y_dtype, count, either),
                "%s, %d x %d -> %d, types %d %d %d, simplify %d: %s is not the reference", s.chain, (int)s.batch,
                (int)s.k, (int)s.n, s.x_dtype, s.w_dtype, s.y_dtype, (int)simplify, backend);
        rows_stand_alone(model, &s, y, backend, row);
        rf_model_destroy(model);
        if (!(how & 8) || !(model = model_of(&s, backend, simplify, 2 + (how >> 4 & 1)))) continue;
        forward(model, &s, more);
        REQUIRE(!memcmp(more, y, count * width(s.y_dtype)), "%s on %s: threads change the bits", s.chain, backend);
        rf_model_destroy(model);
    }
    free(wanted), free(y), free(more), free(s.w), free(s.b), free(s.x), free(s.v);
    return 0;
}
