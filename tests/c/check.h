/* SPDX-License-Identifier: MIT */
/* What the C tests share. They need it and nothing else besides what they test. */
#ifndef ROWFOLD_TESTS_CHECK_H
#define ROWFOLD_TESTS_CHECK_H

#include <stdio.h>

/* main returns whether there were any. */
static int failures;

/* CHECK(condition, format, ...): counts and reports one that does not hold, and goes on. */
#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fprintf(stderr, "\n");                                          \
            failures++;                                                     \
        }                                                                   \
    } while (0)

#endif
