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

/* W, bias and vectors on the host, where the sums are taken: as they are, or copies in `own`. */
typedef struct host_copy {
    rfi_weight_view view;
    const void *vectors[RF_MAX_OPS];
    char *own;
} host_copy;

static int any_on_device(const rfi_spec *spec, const rfi_weight_view *weights) {
    for (int i = 0; weights->on_device && i < 1 + spec->plan.num_vectors; i++)
        if (weights->on_device[i].data) return 1;
    return weights->memory == RF_MEMORY_DEVICE;
}

static rf_status weights_on_host(
    const rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, host_copy *host) {
    *host = (host_copy){.view = *weights};
    if (!any_on_device(spec, weights)) return RF_OK;
    const size_t item = rfi_dtype_size(spec->weight_dtype), width = (size_t)spec->plan.in_features * item,
                 n = (size_t)spec->plan.out_features, row = n * rfi_dtype_size(spec->compute_dtype),
                 w = weights->memory == RF_MEMORY_DEVICE ? (width * n + 15) / 16 * 16 : 0;
    host->own = malloc(w + p->columns_bytes + 1);
    if (!host->own)
        return rfi_error(
            RF_OUT_OF_MEMORY, "no memory to fetch %zu bytes of weights from the device", w + p->columns_bytes);
    char *columns = host->own + w;
    host->view.bias = columns;
    for (int v = 0; v < spec->plan.num_vectors; v++) host->vectors[v] = columns + (size_t)(v + 1) * row;
    host->view.vectors = host->vectors;
    rf_status status = RF_OK;
    if (p->columns_bytes)
        status = rfi_cuda_status(
            cudaMemcpyAsync(columns, p->columns, p->columns_bytes, cudaMemcpyDeviceToHost, weights->stream),
            "fetching the bias and the vectors");
    if (w && !status)
        status = rfi_cuda_status(cudaMemcpy2DAsync(host->own, width, weights->weight, (size_t)weights->ld * item, width,
                                     n, cudaMemcpyDeviceToHost, weights->stream),
            "fetching the weights");
    if (weights->memory == RF_MEMORY_DEVICE) {
        host->view.weight = host->own;
        host->view.ld = spec->plan.in_features;
        host->view.memory = RF_MEMORY_HOST;
    }
    return status ? status : rfi_cuda_status(cudaStreamSynchronize(weights->stream), "fetching the weights");
}

/* The sums, with zeros up to a whole piece of x, then the signs. */
static rf_status upload(rfi_cuda_prepared *p, const rfi_collapse *collapse, cudaStream_t stream) {
    size_t k = (size_t)collapse->in_features, sums = padded(collapse->in_features) * sizeof(double);
    rf_status status = RF_OK;
    if (!p->sums) status = rfi_cuda_status(cudaMalloc(&p->sums, sums + k), "memory for the summed weights");
    if (!status) p->sums_bytes = sums + k;
    if (status || !k) return status;
    status = rfi_cuda_status(cudaMemsetAsync(p->sums, 0, sums, stream), "clearing the summed weights' place");
    if (!status)
        status = rfi_cuda_status(
            cudaMemcpyAsync(p->sums, collapse->weight_sum, k * sizeof(double), cudaMemcpyHostToDevice, stream),
            "copying the summed weights");
    if (!status)
        status =
            rfi_cuda_status(cudaMemcpyAsync((char *)p->sums + sums, collapse->sign, k, cudaMemcpyHostToDevice, stream),
                "copying the signs of the weights");
    return status;
}

rf_status rfi_cuda_collapse_prepare(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    host_copy host;
    rfi_collapse collapse = {0};
    if (!spec->plan.collapsible) return RF_OK;
    p->collapsed = 0;
    rf_status status = weights_on_host(p, spec, weights, &host);
    if (!status)
        status = rfi_collapse_prepare(&spec->plan, &host.view, spec->weight_dtype, spec->compute_dtype, &collapse);
    if (!status && collapse.usable) {
        status = upload(p, &collapse, weights->stream);
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
    free(host.own);
    return status;
}

rf_status rfi_cuda_collapse_launch(const rfi_cuda_prepared *p, const rfi_cuda_fold *fold, cudaStream_t stream) {
    rfi_cuda_collapse call = p->collapse;
    call.fold = *fold;
    call.aligned = (uintptr_t)fold->product.x.data % 16 == 0 &&
        (size_t)fold->product.x.ld * rfi_dtype_size((rf_dtype)fold->product.x.dtype) % 16 == 0;
    return rfi_cuda_status(rfi_cuda_launch_collapse(&call, stream), "launching the collapsed sum");
}
