/* SPDX-License-Identifier: MIT */
/* Scores tokens with weights from a safetensors file, several results of one pass, and the caller's own workspace.
 *
 *     cc score_file.c $(pkg-config --cflags --libs rowfold) && ./a.out model.safetensors lm_head.weight
 *
 * Rows are read from standard input: the number of a token, then in_features numbers, the hidden state before it. A
 * line is written for each: the log-probability of the token under softmax(W x + b), 1 if it is the most likely one,
 * else 0, and the entropy of the softmax. A token of -100 is not scored. */
#include <inttypes.h>
#include <rowfold.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64 }; /* rows of a batch */

static int fail(const char *what) {
    fprintf(stderr, "score_file: %s\n", what);
    return 1;
}

/* The model whose sizes and type are those of the file's weight tensor. */
static rf_status create(rf_model **model, const char *path, const char *weight) {
    rf_file *file = NULL;
    rf_tensor_info tensor = {.size = sizeof tensor};
    rf_status status = rf_file_open(&file, path);
    if (!status) status = rf_file_find(file, weight, &tensor);
    if (!status) {
        rf_config config = {
            .size = sizeof config,
            .chain = "linear | logprob(#token), argmax, entropy",
            .in_features = tensor.num_dims == 2 ? tensor.shape[1] : 0,
            .out_features = tensor.num_dims == 2 ? tensor.shape[0] : 0,
            .weight_dtype = tensor.dtype,
            .x_dtype = tensor.dtype == RF_FLOAT64 ? RF_FLOAT64 : RF_FLOAT32,
            .y_dtype = RF_FLOAT64,
            .device = "cpu", /* the workspace below is host memory */
        };
        status = rf_model_create(model, &config);
    }
    rf_file_close(file);
    return status;
}

/* Up to ROWS rows; returns how many, or -1 where something else stands in the input, or it ends within a row. */
static int64_t read_rows(int64_t *tokens, void *x, int wide, int64_t columns) {
    for (int64_t row = 0; row < ROWS; row++) {
        if (scanf("%" SCNd64, &tokens[row]) != 1) return feof(stdin) ? row : -1;
        for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
            double value;
            if (scanf("%lf", &value) != 1) return -1;
            if (wide) ((double *)x)[i] = value;
            else ((float *)x)[i] = (float)value;
        }
    }
    return ROWS;
}

int main(int argc, char **argv) {
    if (argc < 3) return fail("usage: score_file FILE WEIGHT [BIAS]");
    rf_model *model = NULL;
    rf_file_names names = {.size = sizeof names, .weight = argv[2], .bias = argc > 3 ? argv[3] : NULL};
    rf_model_info info = {.size = sizeof info};
    size_t bytes = 0;
    if (create(&model, argv[1], argv[2]) || rf_model_load_file(model, argv[1], &names) ||
        rf_model_get_info(model, &info) || rf_model_workspace_size(model, ROWS, &bytes)) {
        fail(rf_last_error());
        rf_model_destroy(model);
        return 1;
    }
    int wide = info.x_dtype == RF_FLOAT64;
    void *x = malloc((size_t)(ROWS * info.in_features + 1) * (wide ? 8 : 4));
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    int status = x && workspace && info.in_features > 0 ? 0 : fail("no memory, or a layer without inputs");
    while (!status) {
        int64_t tokens[ROWS], best[ROWS], batch = read_rows(tokens, x, wide, info.in_features);
        if (batch < 0) {
            status = fail("the input is not rows of a token's number and in_features numbers");
            break;
        }
        double logprob[ROWS], entropy[ROWS];
        const rf_result results[] = {
            {.size = sizeof *results, .data = logprob},
            {.size = sizeof *results, .data = best},
            {.size = sizeof *results, .data = entropy},
        };
        const rf_row_input token = {.size = sizeof token, .name = "token", .data = tokens, .length = batch};
        rf_forward_args args = {
            .size = sizeof args,
            .x = x,
            .batch = batch,
            .workspace = workspace,
            .workspace_size = bytes,
            .results = results,
            .num_results = 3,
            .row_inputs = &token,
            .num_row_inputs = 1,
        };
        if (rf_model_forward_ex(model, &args)) status = fail(rf_last_error());
        for (int64_t i = 0; !status && i < batch; i++)
            printf("%.9g %d %.9g\n", logprob[i], best[i] == tokens[i], entropy[i]);
        if (args.batch < ROWS) break;
    }
    free(workspace);
    free(x);
    rf_model_destroy(model);
    return status;
}
