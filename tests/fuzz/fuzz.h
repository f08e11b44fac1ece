/* SPDX-License-Identifier: MIT */
/* What the fuzz targets share. Each is a LLVMFuzzerTestOneInput that tools/fuzz links with libFuzzer. */
#ifndef ROWFOLD_TESTS_FUZZ_H
#define ROWFOLD_TESTS_FUZZ_H

#include <rowfold.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A broken promise is a crash, which is what libFuzzer keeps the input of. */
#define REQUIRE(condition, ...)                                             \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fprintf(stderr, "\n");                                          \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* The input, taken from its front; zeros when it is at its end. */
typedef struct taker {
    const uint8_t *at;
    size_t left;
} taker;

static inline uint8_t take(taker *in) { return in->left ? (in->left--, *in->at++) : 0; }

static inline void take_bytes(taker *in, void *out, size_t size) {
    for (size_t i = 0; i < size; i++) ((uint8_t *)out)[i] = take(in);
}

#endif
