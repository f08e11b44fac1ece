/* SPDX-License-Identifier: MIT */
/* Structs of rowfold.h that begin with their size, as the caller's header had it: an older header's struct is shorter,
 * a newer one's longer. */
#ifndef ROWFOLD_SIZED_H
#define ROWFOLD_SIZED_H

#include "rowfold.h"

/* May the caller's struct, of `type` and called `name` in the sentence, be read or written by a library that knows
 * `known` bytes of it? */
rf_status rfi_sized_check(const char *name, const char *type, const void *given, size_t known);

/* Checks a struct that the library reads, and copies it to `own` of `known` bytes: zeros, which mean default, where the
 * caller's is shorter. */
rf_status rfi_sized_read(const char *name, const char *type, const void *given, void *own, size_t known);

/* rfi_sized_read of element `index` of an array. Elements are as far apart as the first one is large, and all of that
 * size. */
rf_status rfi_sized_item(const char *array, const char *type, const void *first, size_t index, void *own, size_t known);

/* Copies `own` of `known` bytes to a struct of the caller that has passed the check, up to the caller's size, which
 * stays as it is. */
void rfi_sized_write(void *given, const void *own, size_t known);

#endif
