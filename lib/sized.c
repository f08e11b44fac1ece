/* SPDX-License-Identifier: MIT */
#include "sized.h"

#include <stdio.h>
#include <string.h>

#include "error.h"

/* No struct will be so large. A size that was never set is refused before anything is read by it. */
enum { MOST = 4096 };

static size_t size_of(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

rf_status rfi_sized_check(const char *name, const char *type, const void *given, size_t known) {
    if (!given) return rfi_error(RF_INVALID_ARGUMENT, "%s is NULL", name);
    const size_t size = size_of(given);
    /* Every header's struct ends at a multiple of its alignment. Half a pointer must not be taken for one. */
    if (size < sizeof size || size % sizeof size || size > MOST)
        return rfi_error(RF_INVALID_ARGUMENT, "%s.size is %zu; expected sizeof(%s), %zu", name, size, type, known);
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)given)[i])
            return rfi_error(RF_INVALID_ARGUMENT,
                "%s.size is %zu: this library knows %zu bytes of %s, and byte %zu is not zero; expected zeros there, or a newer library",
                name, size, known, type, i);
    return RF_OK;
}

rf_status rfi_sized_read(const char *name, const char *type, const void *given, void *own, size_t known) {
    rf_status status = rfi_sized_check(name, type, given, known);
    if (status) return status;
    const size_t size = size_of(given);
    memset(own, 0, known);
    memcpy(own, given, size < known ? size : known);
    return RF_OK;
}

rf_status rfi_sized_item(
    const char *array, const char *type, const void *first, size_t index, void *own, size_t known) {
    const char *given = (const char *)first + index * size_of(first);
    char name[60];
    snprintf(name, sizeof name, "%s[%zu]", array, index);
    rf_status status = rfi_sized_read(name, type, given, own, known);
    if (!status && size_of(given) != size_of(first))
        return rfi_error(RF_INVALID_ARGUMENT, "%s.size is %zu; expected that of %s[0], %zu", name, size_of(given),
            array, size_of(first));
    return status;
}

void rfi_sized_write(void *given, const void *own, size_t known) {
    const size_t size = size_of(given), end = size < known ? size : known;
    memcpy((char *)given + sizeof size, (const char *)own + sizeof size, end - sizeof size);
}
