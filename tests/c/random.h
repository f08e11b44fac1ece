/* SPDX-License-Identifier: MIT */
/* The same numbers on every machine and in every run. */
#ifndef ROWFOLD_TESTS_RANDOM_H
#define ROWFOLD_TESTS_RANDOM_H

#include <stdint.h>

/* SplitMix64: uniform over all 64 bits. */
static uint64_t next_random(void) {
    static uint64_t seed = 20240229;
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
