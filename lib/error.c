/* SPDX-License-Identifier: MIT */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

/* The longest path there may be, and what is said of it. */
static _Thread_local char last_error[4096 + 1024];

rf_status rfi_error(rf_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

const char *rf_last_error(void) { return last_error; }

const char *rf_status_message(rf_status status) {
    switch (status) {
#define RFI_STATUS(name, number, sentence) \
    case RF_##name: return sentence;
#include "status.def"
#undef RFI_STATUS
    }
    return "unknown status";
}

#define RFI_STATUS(name, number, sentence) _Static_assert(RF_##name == (number), "status numbers are part of the ABI");
#include "status.def"
#undef RFI_STATUS
