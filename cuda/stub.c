/* SPDX-License-Identifier: MIT */
/* In place of the CUDA backend in a library that was configured without one: it stays in the list and says why it
 * cannot run. */
#include "backend.h"

static int available(const char **reason) {
    *reason = "this library was built without CUDA (configure --with-cuda)";
    return 0;
}

/* Nothing else is ever asked of a backend that is not available. */
const rfi_backend rfi_backend_cuda = {.name = "cuda", .is_cuda = 1, .available = available};
