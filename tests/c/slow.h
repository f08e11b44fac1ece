/* SPDX-License-Identifier: MIT */
/* For tests that take minutes where a program runs much slower than it should: under valgrind, ThreadSanitizer, or an
 * emulator of another processor. ROWFOLD_TEST_SLOW says about how many times slower; tools/matrix sets it. */
#ifndef ROWFOLD_TESTS_SLOW_H
#define ROWFOLD_TESTS_SLOW_H

#include <stdio.h>
#include <stdlib.h>

/* The part of its work that a test does is one in as many as this, which is said. */
static inline int times_slower(const char *what) {
    const char *text = getenv("ROWFOLD_TEST_SLOW");
    const int times = text ? atoi(text) : 1;
    if (times <= 1) return 1;
    printf("reduced: one in %d of %s (ROWFOLD_TEST_SLOW)\n", times, what);
    return times;
}

/* Is the nth case among one in as many as this? Scattered, so that no property of cases in rows and columns is left
 * out. */
static inline int is_among(unsigned n, int times) { return (n * 2654435761u >> 16) % (unsigned)times == 0; }

#endif
