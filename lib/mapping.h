/* SPDX-License-Identifier: MIT */
/* A regular file, mapped. */
#ifndef ROWFOLD_MAPPING_H
#define ROWFOLD_MAPPING_H

#include "rowfold.h"

typedef struct rfi_mapping {
    char *path;                 /* owned */
    const unsigned char *bytes; /* the whole file, read-only; NULL for an empty one */
    int64_t size;
    int fd;
} rfi_mapping;

/* RF_IO_ERROR or RF_OUT_OF_MEMORY, with path and reason. Whatever comes back, *file is one that rfi_mapping_close
 * takes. */
rf_status rfi_mapping_open(const char *path, rfi_mapping *file);
void rfi_mapping_close(rfi_mapping *file);

/* Still as long as it was? Bytes that a file no longer has raise SIGBUS when they are read. */
rf_status rfi_mapping_check(const rfi_mapping *file);

#endif
