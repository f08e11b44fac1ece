/* SPDX-License-Identifier: MIT */
/* Scores a batch with weights from a safetensors file, with the caller's own workspace.
 *
 *     cc score_file.c $(pkg-config --cflags --libs rowfold) && ./a.out model.safetensors linear.weight linear.bias
 *
 * x is read from standard input, one row of in_features numbers after the other; a line with logsumexp(W x + b) is
 * written for each. */
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
            .chain = "linear | logsumexp",
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

/* Up to ROWS rows; returns how many. */
static int64_t read_rows(void *x, int wide, int64_t columns) {
    for (int64_t i = 0; i < ROWS * columns; i++) {
        double value;
        if (scanf("%lf", &value) != 1) return i / columns;
        if (wide) ((double *)x)[i] = value;
        else ((float *)x)[i] = (float)value;
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
        double y[ROWS];
        rf_forward_args args = {.size = sizeof args,
            .x = x,
            .y = y,
            .batch = read_rows(x, wide, info.in_features),
            .workspace = workspace,
            .workspace_size = bytes};
        if (rf_model_forward_ex(model, &args)) status = fail(rf_last_error());
        for (int64_t i = 0; !status && i < args.batch; i++) printf("%.9g\n", y[i]);
        if (args.batch < ROWS) break;
    }
    free(workspace);
    free(x);
    rf_model_destroy(model);
    return status;
}
