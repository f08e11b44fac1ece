/* SPDX-License-Identifier: MIT */
/* The host side of a collapsed sum: its summed weights on the device, and its launch. */
#include <stdlib.h>
#include <string.h>

#include "collapse.h"
#include "device.h"
#include "dtype.h"
#include "error.h"
#include "prepared.h"

/* Values of K up to a whole piece of x, whatever its type. */
static size_t padded(int64_t in_features) { return ((size_t)in_features + 7) / 8 * 8; }

/* W on the host, where the sums are taken: as it is, or a copy in *own. */
static rf_status weights_on_host(
    const rfi_spec *spec, const rfi_weight_view *weights, rfi_weight_view *host, void **own) {
    *host = *weights;
    if (weights->memory != RF_MEMORY_DEVICE) return RF_OK;
    size_t item = rfi_dtype_size(spec->weight_dtype), width = (size_t)spec->plan.in_features * item,
           n = (size_t)spec->plan.out_features;
    *own = malloc(width * n + 1);
    if (!*own) return rfi_error(RF_OUT_OF_MEMORY, "no memory to fetch %zu bytes of weights from the device", width * n);
    host->weight = *own;
    host->ld = spec->plan.in_features;
    host->memory = RF_MEMORY_HOST;
    if (!width || !n) return RF_OK;
    rf_status status = rfi_cuda_status(cudaMemcpy2DAsync(*own, width, weights->weight, (size_t)weights->ld * item,
                                           width, n, cudaMemcpyDeviceToHost, weights->stream),
        "fetching the weights");
    return status ? status : rfi_cuda_status(cudaStreamSynchronize(weights->stream), "fetching the weights");
}

/* The sums, with zeros up to a whole piece of x, then the signs. */
static rf_status upload(rfi_cuda_prepared *p, const rfi_collapse *collapse, size_t *bytes) {
    size_t k = (size_t)collapse->in_features, sums = padded(collapse->in_features) * sizeof(double);
    rf_status status = rfi_cuda_status(cudaMalloc(&p->sums, sums + k), "memory for the summed weights");
    if (status || !k) return status;
    status = rfi_cuda_status(cudaMemset(p->sums, 0, sums), "clearing the summed weights' place");
    if (!status)
        status = rfi_cuda_status(cudaMemcpy(p->sums, collapse->weight_sum, k * sizeof(double), cudaMemcpyHostToDevice),
            "copying the summed weights");
    if (!status)
        status = rfi_cuda_status(cudaMemcpy((char *)p->sums + sums, collapse->sign, k, cudaMemcpyHostToDevice),
            "copying the signs of the weights");
    *bytes += sums + k;
    return status;
}

rf_status rfi_cuda_collapse_prepare(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    rfi_weight_view host;
    rfi_collapse collapse = {0};
    void *own = NULL;
    if (!spec->plan.collapsible) return RF_OK;
    rf_status status = weights_on_host(spec, weights, &host, &own);
    if (!status) status = rfi_collapse_prepare(&spec->plan, &host, spec->weight_dtype, spec->compute_dtype, &collapse);
    if (!status && collapse.usable) {
        status = upload(p, &collapse, bytes);
        p->collapsed = !status;
        p->collapse = (rfi_cuda_collapse){
            .weight_sum = p->sums,
            .sign = (const signed char *)p->sums + padded(collapse.in_features) * sizeof(double),
            .constant = collapse.constant,
            .divisor = collapse.divisor,
            .slope = collapse.slope,
            .offset = collapse.offset,
            .limit = collapse.limit,
            .multiprocessors = p->figures.multiprocessors,
        };
    }
    rfi_collapse_release(&collapse);
    free(own);
    return status;
}

rf_status rfi_cuda_collapse_launch(const rfi_cuda_prepared *p, const rfi_cuda_fold *fold, cudaStream_t stream) {
    rfi_cuda_collapse call = p->collapse;
    call.fold = *fold;
    call.aligned =
        (uintptr_t)fold->x.data % 16 == 0 && (size_t)fold->x.ld * rfi_dtype_size((rf_dtype)fold->x.dtype) % 16 == 0;
    return rfi_cuda_status(rfi_cuda_launch_collapse(&call, stream), "launching the collapsed sum");
}
