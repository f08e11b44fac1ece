/* SPDX-License-Identifier: MIT */
/* What librowfold_mpi and librowfold_nccl do alike when they fill in a collective. Inline, for each is a library of its
 * own and takes from librowfold what rowfold.h declares. */
#ifndef ROWFOLD_LINK_H
#define ROWFOLD_LINK_H

#include <rowfold.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static inline void say(char *message, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline void say(char *message, size_t size, const char *format, ...) {
    if (!message || !size) return;
    va_list args;
    va_start(args, format);
    vsnprintf(message, size, format, args);
    va_end(args);
}

/* The arguments of rf_*_open; `none` is what a communicator that is none is called, or NULL. */
static inline rf_status check_opening(
    const rf_collective *collective, const char *none, double timeout, char *message, size_t size) {
    if (!collective) say(message, size, "collective is NULL");
    else if (collective->size < sizeof *collective)
        say(message, size, "collective.size is %zu; expected %zu", collective->size, sizeof *collective);
    else if (none) say(message, size, "comm is %s", none);
    else if (!(timeout >= 0)) say(message, size, "timeout is %g; expected 0 or more", timeout);
    else return RF_OK;
    return RF_INVALID_ARGUMENT;
}

/* Zeros, for what a collective's callbacks keep; NULL with a sentence. */
static inline void *new_link(size_t bytes, char *message, size_t size) {
    void *const l = calloc(1, bytes);
    if (!l) say(message, size, "no memory for a collective");
    return l;
}

/* The end of rf_*_open: what is in `filled` goes to the caller, unless the communicator would not have it. */
static inline rf_status end_opening(rf_collective *collective, rf_status status, const rf_collective *filled) {
    if (status) {
        free(filled->user);
        return status;
    }
    const size_t size = collective->size; /* the caller's may be larger */
    *collective = *filled;
    collective->size = size;
    return RF_OK;
}

/* Of an exchange on a collective of which one has failed before. */
static inline int is_broken(int broken, char *message, size_t size) {
    if (broken) say(message, size, "an exchange before has failed on this collective; open another one");
    return broken;
}

#endif
