/* SPDX-License-Identifier: MIT */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "guard.h"

extern const rfi_backend rfi_backend_cuda, rfi_backend_cpu_amx_terms, rfi_backend_cpu_amx_fp16,
    rfi_backend_cpu_amx_bf16, rfi_backend_cpu_avx512_bf16, rfi_backend_cpu_avx512, rfi_backend_cpu_avx2,
    rfi_backend_cpu_generic, rfi_backend_cpu_avx512_tiles, rfi_backend_cpu_avx512_terms, rfi_backend_reference;

/* Best first, then those that are never chosen by themselves, the reference last. A backend that this build or machine
 * lacks stays in the list and says why. */
const rfi_backend *const rfi_backends[] = {
    &rfi_backend_cuda,
    &rfi_backend_cpu_amx_fp16,
    &rfi_backend_cpu_amx_bf16,
    &rfi_backend_cpu_avx512_bf16,
    &rfi_backend_cpu_avx512,
    &rfi_backend_cpu_avx2,
    &rfi_backend_cpu_generic,
    &rfi_backend_cpu_amx_terms,
    &rfi_backend_cpu_avx512_tiles,
    &rfi_backend_cpu_avx512_terms,
    &rfi_backend_reference,
};

size_t rf_backend_count(void) { return sizeof rfi_backends / sizeof *rfi_backends; }

const char *rf_backend_name(size_t index) { return index < rf_backend_count() ? rfi_backends[index]->name : NULL; }

int rf_backend_available(size_t index, const char **reason) {
    RFI_GUARDED;
    const char *why = "there is no such backend";
    const rfi_backend *backend = index < rf_backend_count() ? rfi_backends[index] : NULL;
    int available = backend && backend->available(&why);
    if (available) why = backend->chosen && !backend->chosen() ? "by name alone" : "";
    if (reason) *reason = why;
    return available;
}

/* "cpu", "cuda", "cuda:N" or NULL. */
static rf_status parse_device(const char *device, int *cpu, int *cuda, int *index) {
    *cpu = *cuda = 1;
    *index = -1;
    if (!device) return RF_OK;
    if (!strcmp(device, "cpu")) {
        *cuda = 0;
        return RF_OK;
    }
    if (!strncmp(device, "cuda", 4)) {
        *cpu = 0;
        if (!device[4]) return RF_OK;
        char *end = NULL;
        long n = device[4] == ':' && device[5] >= '0' && device[5] <= '9' ? strtol(device + 5, &end, 10) : -1;
        if (end && !*end && n >= 0 && n < 1024) {
            *index = (int)n;
            return RF_OK;
        }
    }
    return rfi_error(
        RF_INVALID_ARGUMENT, "config.device is \"%.40s\"; expected \"cpu\", \"cuda\" or \"cuda:N\"", device);
}

/* A model stays on the device that it was created for, whatever becomes the thread's current one. */
static rf_status settle(rfi_spec *spec, const rfi_backend *backend) {
    if (backend->current_device && spec->device < 0) spec->device = backend->current_device();
    return backend->supports(spec);
}

static rf_status choose_forced(
    rfi_spec *spec, const char *forced, const char *device, int cpu, int cuda, const rfi_backend **backend) {
    for (size_t i = 0; i < rf_backend_count(); i++) {
        const rfi_backend *b = rfi_backends[i];
        if (strcmp(b->name, forced)) continue;
        if (!(b->is_cuda ? cuda : cpu))
            return rfi_error(RF_INVALID_ARGUMENT, "backend \"%s\" does not run on device \"%s\"", forced, device);
        const char *why = "";
        if (!b->available(&why)) return rfi_error(RF_UNAVAILABLE, "backend \"%s\" is not available: %s", forced, why);
        *backend = b;
        return settle(spec, b);
    }
    char names[240] = "";
    for (size_t i = 0; i < rf_backend_count(); i++) {
        if (i) strncat(names, ", ", sizeof names - strlen(names) - 1);
        strncat(names, rfi_backends[i]->name, sizeof names - strlen(names) - 1);
    }
    return rfi_error(RF_INVALID_ARGUMENT, "there is no backend \"%.40s\"; there are %s", forced, names);
}

/* Whoever did not set the variable has to be told where the name comes from. */
static rf_status choose_by_environment(
    rfi_spec *spec, const char *name, int cpu, int cuda, const rfi_backend **backend) {
    char reason[600];
    rf_status status = choose_forced(spec, name, "any", cpu, cuda, backend);
    if (!status) return RF_OK;
    snprintf(reason, sizeof reason, "%s", rf_last_error());
    return rfi_error(status, "ROWFOLD_BACKEND is set: %s", reason);
}

rf_status rfi_backend_choose(rfi_spec *spec, const char *forced, const char *device, const rfi_backend **backend) {
    int cpu, cuda;
    rf_status status = parse_device(device, &cpu, &cuda, &spec->device);
    if (status) return status;
    if (forced) return choose_forced(spec, forced, device, cpu, cuda, backend);
    const char *environment = device ? NULL : getenv("ROWFOLD_BACKEND");
    if (environment && *environment) return choose_by_environment(spec, environment, cpu, cuda, backend);
    const char *why = "this build has none";
    int seen = 0;
    for (size_t i = 0; i < rf_backend_count(); i++) {
        const rfi_backend *b = rfi_backends[i];
        if (!(b->is_cuda ? cuda : cpu) || !b->available(&why) || (b->chosen && !b->chosen())) continue;
        seen = 1;
        status = settle(spec, b);
        if (!status) {
            *backend = b;
            return RF_OK;
        }
        if (status != RF_UNSUPPORTED) return status;
    }
    return seen ? status : rfi_error(RF_UNAVAILABLE, "no backend for device \"%s\": %s", device ? device : "any", why);
}
