#include "explain.h"

#include <stdio.h>
#include <stdlib.h>

#include "error.h"

rf_status rfi_explain(const rfi_spec *spec, const char *backend, const rfi_estimate *estimate, size_t workspace, int64_t batch, rf_format format,
                      char **text) {
    if (format != RF_FORMAT_TEXT) return rfi_error(RF_UNSUPPORTED, "explain speaks text only");
    enum { SIZE = 1000 };
    *text = malloc(SIZE);
    if (!*text) return rfi_error(RF_OUT_OF_MEMORY, "no memory for the explanation");
    snprintf(*text, SIZE, "backend %s: %s\nbatch %lld, %lld -> %lld, workspace %zu bytes\n", backend, estimate ? estimate->kernel : "", (long long)batch,
             (long long)spec->plan.in_features, (long long)spec->plan.width, workspace);
    return RF_OK;
}
