/* SPDX-License-Identifier: MIT */
/* Several results and row inputs through the public interface: the values, and every wrong call with its sentence,
 * after which nothing is written. */
#include <rowfold.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define OK(call)                                                                                 \
    do {                                                                                         \
        rf_status status_ = (call);                                                              \
        CHECK(status_ == RF_OK, #call ": %s (%s)", rf_status_message(status_), rf_last_error()); \
    } while (0)

enum { BATCH = 3, K = 2, N = 4 };

static const char chain[] =
    "linear(2, 4) | mul(#scale) | logprob(#target), argmax, (neg | max | sub(#scale)), pick(#target32)";
static const float x[BATCH][K] = {{1, 0}, {0, 1}, {2, -1}};
static const float w[N][K] = {{1, 0}, {0, 1}, {1, 1}, {-1, 2}}, b[N] = {0, 0.5f, -0.5f, 1};
static const float scale[BATCH] = {1, 2, -0.5f};
static const int64_t target[BATCH] = {0, -100, 3};
static const int32_t target32[BATCH] = {1, 0, 3};

/* What a call writes to, and what it reads; a wrong one changes a field. */
typedef struct buffers {
    float logprob[BATCH], max[BATCH], pick[BATCH];
    int64_t argmax[BATCH];
} buffers;

static buffers out;
static rf_result results[4];
static rf_row_input rows[3];
static rf_forward_args args;

static void set_up(void) {
    memset(&out, 0x5a, sizeof out);
    void *const data[] = {out.logprob, out.argmax, out.max, out.pick};
    for (int i = 0; i < 4; i++) results[i] = (rf_result){.size = sizeof *results, .data = data[i]};
    rows[0] =
        (rf_row_input){.size = sizeof *rows, .name = "target32", .data = target32, .length = BATCH, .dtype = RF_INT32};
    rows[1] = (rf_row_input){.size = sizeof *rows, .name = "scale", .data = scale, .length = BATCH};
    rows[2] = (rf_row_input){.size = sizeof *rows, .name = "target", .data = target, .length = BATCH};
    args = (rf_forward_args){.size = sizeof args,
        .x = x,
        .batch = BATCH,
        .results = results,
        .num_results = 4,
        .row_inputs = rows,
        .num_row_inputs = 3};
}

static rf_model *loaded(const char *text, const char *backend) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config, .chain = text, .backend = backend, .threads = 1};
    OK(rf_model_create(&model, &config));
    OK(rf_model_load_weights(model, w, b, NULL, 0));
    return model;
}

static void values(const char *backend) {
    rf_model *model = loaded(chain, backend);
    set_up();
    OK(rf_model_forward_ex(model, &args));
    for (int i = 0; i < BATCH; i++) {
        double z[N], t = 0, lowest = INFINITY;
        int best = 0;
        for (int j = 0; j < N; j++) {
            z[j] = scale[i] * ((double)x[i][0] * w[j][0] + (double)x[i][1] * w[j][1] + b[j]);
            t += exp(z[j]);
            lowest = fmin(lowest, z[j]);
            if (z[j] > z[best]) best = j;
        }
        const double wanted = target[i] < 0 ? 0 : z[target[i]] - log(t);
        CHECK(fabs(out.logprob[i] - wanted) < 1e-6, "%s: row %d: log-probability %g, expected %g", backend, i,
            (double)out.logprob[i], wanted);
        CHECK(out.argmax[i] == best, "%s: row %d: argmax %lld", backend, i, (long long)out.argmax[i]);
        CHECK(fabs(out.max[i] - (-lowest - scale[i])) < 1e-6, "%s: row %d: max %g", backend, i, (double)out.max[i]);
        CHECK(fabs(out.pick[i] - z[target32[i]]) < 1e-6, "%s: row %d: pick %g", backend, i, (double)out.pick[i]);
    }
    /* The same with rows apart, of another type. */
    double wide[BATCH][3];
    memset(wide, 0, sizeof wide);
    const buffers dense = out;
    results[0] = (rf_result){.size = sizeof *results, .data = &wide[0][1], .ld = 3, .dtype = RF_FLOAT64};
    struct {
        int64_t column, other;
    } pairs[BATCH];
    for (int i = 0; i < BATCH; i++) pairs[i].column = target[i], pairs[i].other = -5;
    rows[2].data = pairs, rows[2].ld = 2;
    OK(rf_model_forward_ex(model, &args));
    for (int i = 0; i < BATCH; i++)
        CHECK(wide[i][0] == 0 && wide[i][1] == (double)dense.logprob[i] && wide[i][2] == 0, "%s: row %d: %g", backend,
            i, wide[i][1]);
    rf_model_destroy(model);
}

/* Two results of topk, several columns of each row, a count, and some of the rows. */
static void more_values(const char *backend) {
    static const int64_t kept[BATCH][3] = {{3, 0, 9}, {1, 1, 9}, {2, 3, 9}}, wanted[4] = {2, 0, 2, 1};
    float values[4][2], gathered[4][2], spread[4];
    int64_t indices[4][2], rank[4];
    rf_model *model = loaded("linear(2, 4) | topk(2), gather(#kept), rank(#target), var(0)", backend);
    const rf_result to[] = {
        {.size = sizeof *to, .data = values},
        {.size = sizeof *to, .data = indices},
        {.size = sizeof *to, .data = gathered},
        {.size = sizeof *to, .data = rank},
        {.size = sizeof *to, .data = spread},
    };
    int64_t asked[BATCH] = {0, 1, 3};
    const rf_row_input of[] = {
        {.size = sizeof *of, .name = "kept", .data = kept, .length = BATCH, .ld = 3, .columns = 2},
        {.size = sizeof *of, .name = "target", .data = asked, .length = BATCH},
    };
    rf_forward_args call = {.size = sizeof call,
        .x = x,
        .batch = BATCH,
        .results = to,
        .num_results = 5,
        .row_inputs = of,
        .num_row_inputs = 2,
        .rows = wanted,
        .num_rows = 4};
    OK(rf_model_forward_ex(model, &call));
    for (int i = 0; i < 4; i++) {
        const int64_t row = wanted[i];
        double z[N], mean = 0, squares = 0;
        int before[N] = {0};
        for (int j = 0; j < N; j++)
            z[j] = (double)x[row][0] * w[j][0] + (double)x[row][1] * w[j][1] + b[j], mean += z[j] / N;
        for (int j = 0; j < N; j++) {
            squares += (z[j] - mean) * (z[j] - mean);
            for (int k = 0; k < N; k++) before[j] += z[k] > z[j] || (z[k] == z[j] && k < j);
        }
        for (int k = 0; k < 2; k++) {
            CHECK(before[indices[i][k]] == k && fabs(values[i][k] - z[indices[i][k]]) < 1e-6,
                "%s: row %d: number %d is column %lld, %g", backend, i, k, (long long)indices[i][k],
                (double)values[i][k]);
            CHECK(fabs(gathered[i][k] - z[kept[row][k]]) < 1e-6, "%s: row %d: gather %g", backend, i,
                (double)gathered[i][k]);
        }
        CHECK(rank[i] == before[asked[row]], "%s: row %d: rank %lld", backend, i, (long long)rank[i]);
        CHECK(fabs(spread[i] - squares / N) < 1e-6, "%s: row %d: var %g", backend, i, (double)spread[i]);
    }
    /* What was not asked for is not looked at: an empty list wants nothing. */
    call.num_rows = 0;
    asked[0] = 99;
    OK(rf_model_forward_ex(model, &call));
    size_t some = 0, all = 0;
    call.num_rows = 1;
    OK(rf_model_workspace_size_ex(model, &call, &some));
    OK(rf_model_workspace_size(model, 1, &all));
    CHECK(some <= all, "a row of a list needs %zu bytes, alone %zu", some, all);
    rf_model_destroy(model);
}

/* The call as it is set up, with one thing wrong. */
static void refused(const rf_model *model, const char *sentence) {
    const rf_status status = rf_model_forward_ex(model, &args);
    CHECK(status == RF_INVALID_ARGUMENT && strstr(rf_last_error(), sentence), "expected \"%s\", got %d, \"%s\"",
        sentence, (int)status, rf_last_error());
    for (size_t i = 0; i < sizeof out; i++)
        CHECK(((const unsigned char *)&out)[i] == 0x5a, "\"%s\": byte %zu was written", sentence, i);
    set_up();
}

static void wrong_calls(void) {
    rf_model *model = loaded(chain, "reference");
    int64_t columns[BATCH] = {0, 1, N};
    const int32_t columns32[BATCH] = {0, -100, 1};
    const int64_t first_row = 0;
    set_up();
    args.rows = &first_row, args.num_rows = SIZE_MAX - 1; /* more than can be read */
    size_t bytes = 77;
    CHECK(rf_model_workspace_size_ex(model, &args, &bytes) == RF_INVALID_ARGUMENT && bytes == 77,
        "the workspace of a call that is refused: %zu, %s", bytes, rf_last_error());
    refused(model, "more than memory can hold");
    rows[2].data = columns;
    refused(
        model, "row input \"target\" is 4 in row 2; logprob expects a column from 0 to 3, or -100 to ignore the row");
    columns[2] = -1, rows[2].data = columns;
    refused(model, "row input \"target\" is -1 in row 2");
    rows[0].data = columns32; /* pick ignores nothing */
    refused(model, "row input \"target32\" is -100 in row 1; pick expects a column from 0 to 3");
    rows[2].length = 2;
    refused(model, "row input \"target\" has length 2; expected the batch, 3");
    rows[2].dtype = RF_FLOAT32;
    refused(model, "row input \"target\" has dtype float32 (1); expected RF_INT64 or RF_INT32");
    rows[1].dtype = RF_INT64;
    refused(model, "row input \"scale\" has dtype int64 (6); expected a floating one");
    rows[1].dtype = RF_FLOAT64;
    refused(model, "row input \"scale\" is float64 and the weights are float32; float64 goes with float64 only");
    rows[1].data = NULL;
    refused(model, "row_inputs[1].data is NULL");
    rows[1].memory = RF_MEMORY_DEVICE;
    refused(model, "row_inputs[1].memory is RF_MEMORY_DEVICE, but the model runs on backend \"reference\"");
    rows[1].name = "other";
    refused(model, "row_inputs[1] is \"other\", and the chain names no #other");
    rows[1].name = NULL;
    refused(model, "row_inputs[1].name is NULL");
    rows[1].name = "target";
    rows[1].data = target;
    refused(model, "row input \"target\" is given twice");
    args.num_row_inputs = 2;
    refused(model, "the chain names the row input #target; expected it in args.row_inputs");
    args.row_inputs = NULL;
    refused(model, "args.row_inputs is NULL, and args.num_row_inputs 3");
    args.num_results = 3;
    refused(model, "args.num_results is 3; the chain has 4 results");
    args.results = NULL;
    refused(model, "args.results is NULL, and args.num_results 4");
    args.results = NULL, args.num_results = 0, args.y = out.max;
    refused(model, "the chain has 4 results; expected them in args.results");
    args.y = out.max;
    refused(model, "args.y and args.results: expected one of them, got both");
    results[1].dtype = RF_FLOAT32;
    refused(model, "results[1].dtype is float32 (1); expected RF_INT64: argmax is a column");
    results[0].dtype = RF_INT64;
    refused(model, "results[0].dtype is 6, which is no rf_dtype of numbers");
    results[0].dtype = 77;
    refused(model, "results[0].dtype is 77, which is no rf_dtype");
    results[2].data = NULL;
    refused(model, "results[2].data is NULL");
    results[2].data = (char *)out.max + 1;
    refused(model, "results[2].data is not aligned to its type, float32");
    results[2].ld = -1;
    refused(model, "results[2].ld is -1; expected 1 or more");
    results[2].data = out.logprob;
    refused(model, "results[2] overlaps results[0]; expected separate buffers");
    args.x = out.logprob;
    refused(model, "results[0] overlaps x; expected separate buffers");
    results[2].memory = 9;
    refused(model, "results[2].memory is 9, which is no rf_memory");
    rows[1].data = out.max;
    refused(model, "results[2] overlaps row input \"scale\"; expected separate buffers");
    rows[2].columns = 2;
    refused(model, "row input \"target\" has 2 columns; expected 1: one value for each row");
    rows[2].columns = -1;
    refused(model, "row input \"target\" has -1 columns; expected 1: one value for each row");
    int64_t wanted[3] = {0, 2, 3};
    args.rows = wanted, args.num_rows = 3;
    refused(model, "rows[2] is 3; expected a row of x, of which there are 3");
    wanted[1] = -1;
    args.rows = wanted, args.num_rows = 3;
    refused(model, "rows[1] is -1; expected a row of x, of which there are 3");
    args.num_rows = 2;
    refused(model, "args.rows is NULL, and args.num_rows 2");
    args.rows = (const int64_t *)((const char *)wanted + 4), args.num_rows = 1;
    refused(model, "args.rows is not aligned to its type, int64");
    args.rows = wanted, args.num_rows = 1, args.rows_memory = 7;
    refused(model, "rows_memory is 7, which is no rf_memory");
    args.rows = wanted, args.num_rows = 1, args.rows_memory = RF_MEMORY_DEVICE;
    refused(model, "rows_memory is RF_MEMORY_DEVICE, but the model runs on backend");
    args.rows = out.argmax, args.num_rows = 0; /* no row is one of them */
    OK(rf_model_forward_ex(model, &args));
    set_up();
    wanted[0] = 0;
    memset(out.argmax, 0, sizeof out.argmax);
    args.rows = out.argmax, args.num_rows = 1;
    CHECK(rf_model_forward_ex(model, &args) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "results[1] overlaps rows; expected separate buffers"),
        "%s", rf_last_error());
    set_up();
    float y = 0;
    CHECK(rf_model_forward(model, x, 1, &y) == RF_INVALID_ARGUMENT, "rf_model_forward gave several results");
    args.batch = rows[0].length = rows[1].length = rows[2].length = 0;
    OK(rf_model_forward_ex(model, &args));
    rf_model_destroy(model);
}

static void infos(void) {
    static const char *const names[] = {"logprob", "argmax", "max", "pick"},
                             *const inputs[] = {"scale", "target", "target32"};
    rf_model *model = loaded(chain, "reference");
    rf_model_info about = {.size = sizeof about};
    OK(rf_model_get_info(model, &about));
    CHECK(about.num_results == 4 && about.num_row_inputs == 3 && about.output_features == 1, "rf_model_info");
    for (size_t i = 0; i < 4; i++) {
        rf_result_info info = {.size = sizeof info};
        OK(rf_model_result_info(model, i, &info));
        CHECK(!strcmp(info.name, names[i]) && info.width == 1 && info.dtype == (i == 1 ? RF_INT64 : RF_FLOAT32),
            "result %zu", i);
    }
    for (size_t i = 0; i < 3; i++) {
        rf_row_input_info info = {.size = sizeof info};
        OK(rf_model_row_input_info(model, i, &info));
        CHECK(!strcmp(info.name, inputs[i]) && info.use == (i ? RF_ROW_COLUMN : RF_ROW_NUMBER), "row input %zu", i);
    }
    rf_result_info info = {.size = sizeof info};
    CHECK(rf_model_result_info(model, 4, &info) == RF_INVALID_ARGUMENT && strstr(rf_last_error(), "has 4 results"),
        "%s", rf_last_error());
    rf_row_input_info input = {.size = sizeof input};
    CHECK(
        rf_model_row_input_info(model, 3, &input) == RF_INVALID_ARGUMENT && strstr(rf_last_error(), "has 3 row inputs"),
        "%s", rf_last_error());
    rf_model_destroy(model);
    model = loaded("linear(2, 4) | max, min | neg, max", "reference");
    OK(rf_model_result_info(model, 2, &info));
    CHECK(!strcmp(info.name, "max_2"), "the second max is called %s", info.name);
    rf_model_destroy(model);
    model = loaded("linear(2, 4) | topk(3), gather(#g), rank(#r), topk(1)", "reference");
    static const struct {
        const char *name;
        int64_t width;
        int part, row_input, dtype, kind;
    } wanted[] = {
        {"topk", 3, 0, 0, RF_FLOAT32, RF_OP_TOPK},
        {"topk_indices", 3, 1, 0, RF_INT64, RF_OP_TOPK},
        {"gather", 0, 0, 1, RF_FLOAT32, RF_OP_GATHER},
        {"rank", 1, 0, 2, RF_INT64, RF_OP_RANK},
        {"topk_2", 1, 0, 0, RF_FLOAT32, RF_OP_TOPK},
        {"topk_2_indices", 1, 1, 0, RF_INT64, RF_OP_TOPK},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        OK(rf_model_result_info(model, i, &info));
        CHECK(!strcmp(info.name, wanted[i].name) && info.width == wanted[i].width && info.part == wanted[i].part &&
                info.row_input == wanted[i].row_input && info.dtype == wanted[i].dtype && info.kind == wanted[i].kind,
            "result %zu is %s", i, info.name);
    }
    OK(rf_model_row_input_info(model, 0, &input));
    CHECK(!strcmp(input.name, "g") && input.use == RF_ROW_COLUMNS, "row input %s", input.name);
    rf_model_destroy(model);
}

/* Which states are shared, as explain has it. */
static void shared(void) {
    static const char *const cases[][2] = {
        {"linear(2, 4) | logprob(#t), logsumexp", "2 of them from 1 state a row"},
        {"linear(2, 4) | logsumexp, logprob(#t), logsumexp | exp", "3 of them from 1 state a row"},
        {"linear(2, 4) | logsumexp, entropy", "2 of them from 1 state a row"},
        {"linear(2, 4) | sum, mean", "2 of them from 1 state a row"},
        {"linear(2, 4) | logprob(#t), logprob(#u)", "2 of them from 2 states a row"},
        {"linear(2, 4) | logprob(#t), entropy", "2 of them from 2 states a row"},
        {"linear(2, 4) | logprob(#t), logprob(#t, -1)", "2 of them from 2 states a row"},
        {"linear(2, 4) | max, min", "2 of them from 2 states a row"},
        {"linear(2, 4) | argmax, topk(2)", "2 of them from 1 state a row"},
        {"linear(2, 4) | topk(2), max, topk(1)", "3 of them from 1 state a row"},
        {"linear(2, 4) | var, std(0)", "2 of them from 1 state a row"},
        {"linear(2, 4) | rank(#t), gather(#g)", "2 of them from 1 state a row"},
        {"linear(2, 4) | rank(#t), max", "Of each row up to 1 column is computed twice"},
        {"linear(2, 4) | (abs | sum), sum", "2 of them from 2 states a row"},
        {"linear(2, 4) | (abs | sum), (abs | mean)", "2 of them from 1 state a row"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static char text[16384];
        rf_model *model = loaded(cases[i][0], "reference");
        OK(rf_model_explain(model, 5, RF_FORMAT_TEXT, text, sizeof text, NULL));
        CHECK(strstr(text, cases[i][1]), "\"%s\": expected \"%s\" in\n%s", cases[i][0], cases[i][1], text);
        rf_model_destroy(model);
    }
}

int main(void) {
    for (size_t i = 0; i < rf_backend_count(); i++)
        if (strncmp(rf_backend_name(i), "cuda", 4) && rf_backend_available(i, NULL)) {
            values(rf_backend_name(i));
            more_values(rf_backend_name(i));
        }
    wrong_calls();
    infos();
    shared();
    return failures != 0;
}
