/* SPDX-License-Identifier: MIT */
/* How a forward will run and how long it should take. */
#ifndef ROWFOLD_CPU_ESTIMATE_H
#define ROWFOLD_CPU_ESTIMATE_H

#include "cpu/prepared.h"

/* `prepared` may be NULL. */
rf_status rfi_cpu_estimate(const rfi_cpu_isa *isa, const rfi_cpu_kernel *kernel, const rfi_spec *spec,
    const rfi_cpu_prepared *prepared, int64_t batch, rfi_estimate *estimate);

#endif
