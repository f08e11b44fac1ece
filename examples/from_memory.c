/* SPDX-License-Identifier: MIT */
/* Log-partition function of a small classifier, from weights in memory.
 *
 *     cc from_memory.c $(pkg-config --cflags --libs rowfold) && ./a.out */
#include <rowfold.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 4, IN = 16, OUT = 1000 };

static float uniform(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

int main(void) {
    static float x[BATCH * IN], weight[OUT * IN], bias[OUT], temperature[OUT], y[BATCH];
    srand(1);
    for (int i = 0; i < BATCH * IN; i++) x[i] = uniform();
    for (int i = 0; i < OUT * IN; i++) weight[i] = uniform();
    for (int j = 0; j < OUT; j++) bias[j] = uniform(), temperature[j] = 1 + 0.5f * uniform();

    rf_model *model = NULL;
    rf_config config = {.size = sizeof config, .chain = "linear(16, 1000) | div(@temperature) | logsumexp"};
    rf_vector vector = {.size = sizeof vector, .name = "temperature", .data = temperature, .length = OUT};
    if (rf_model_create(&model, &config) || rf_model_load_weights(model, weight, bias, &vector, 1) ||
        rf_model_forward(model, x, BATCH, y)) {
        fprintf(stderr, "rowfold: %s\n", rf_last_error());
        rf_model_destroy(model);
        return 1;
    }
    rf_model_info info = {.size = sizeof info};
    rf_model_get_info(model, &info);
    printf("rowfold %s on %s: %s\n", rf_version(), info.backend, info.chain);
    for (int i = 0; i < BATCH; i++) printf("log Z[%d] = %.6f\n", i, (double)y[i]);
    rf_model_destroy(model);
    return 0;
}
