/* SPDX-License-Identifier: MIT */
/* A vocabulary head over MPI: each rank holds some rows of the weight, and rank 0 prints the log partition function of
 * each row of x, which come as text on its standard input.
 *
 *     cc shards_mpi.c $(pkg-config --cflags --libs rowfold_mpi) -o shards_mpi
 *     mpirun -n 4 ./shards_mpi model.safetensors lm_head.weight < rows.txt
 */
#include <rowfold_mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int stop(const char *what) {
    fprintf(stderr, "shards_mpi: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 3) return stop("usage: shards_mpi FILE TENSOR");

    char why[200];
    rf_collective ranks = {.size = sizeof ranks};
    if (rf_mpi_open(&ranks, MPI_COMM_WORLD, 60, why, sizeof why)) return stop(why);

    rf_file *file = NULL;
    rf_tensor_info tensor = {.size = sizeof tensor};
    if (rf_file_open(&file, argv[1]) || rf_file_find(file, argv[2], &tensor)) return stop(rf_last_error());
    if (tensor.num_dims != 2) return stop("expected a tensor (out_features, in_features)");
    const int64_t k = tensor.shape[1], n = tensor.shape[0];

    int64_t first = 0, count = 0;
    rf_model *model = NULL;
    const rf_file_names names = {.size = sizeof names, .weight = argv[2]};
    if (rf_shard_columns(n, ranks.rank, ranks.num_ranks, &first, &count)) return stop(rf_last_error());
    const rf_config config = {
        .size = sizeof config,
        .chain = "linear | logsumexp",
        .in_features = k,
        .out_features = count,
        .weight_dtype = tensor.dtype,
        .x_dtype = RF_FLOAT32,
        .first_column = first,
        .total_columns = n,
    };
    if (rf_model_create(&model, &config) || rf_model_load_open_file(model, file, &names)) return stop(rf_last_error());
    rf_file_close(file);

    float *x = malloc((size_t)k * sizeof *x + 1);
    for (int more = x != NULL; more;) {
        for (int64_t i = 0; i < k && more && !ranks.rank; i++) more = scanf("%f", &x[i]) == 1;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!more) break;
        MPI_Bcast(x, (int)k, MPI_FLOAT, 0, MPI_COMM_WORLD);
        float y = 0;
        const rf_forward_args args = {.size = sizeof args, .x = x, .y = &y, .batch = 1};
        if (rf_model_forward_sharded(model, &ranks, &args)) return stop(rf_last_error());
        if (!ranks.rank) printf("%.9g\n", (double)y);
    }
    free(x);
    rf_model_destroy(model);
    rf_mpi_close(&ranks);
    MPI_Finalize();
    return 0;
}
