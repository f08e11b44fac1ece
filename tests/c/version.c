/* SPDX-License-Identifier: MIT */
/* The library says which version it is, and it is the one that was configured. */
#include <rowfold.h>

#include <stdio.h>
#include <string.h>

int main(void) {
    const char *version = rf_version();
    int major, minor, patch;
    char rest;
    if (sscanf(version, "%d.%d.%d%c", &major, &minor, &patch, &rest) != 3) {
        fprintf(stderr, "rf_version() is \"%s\", not major.minor.patch\n", version);
        return 1;
    }
    if (strcmp(version, EXPECTED_VERSION) != 0) {
        fprintf(stderr, "rf_version() is \"%s\", configured was \"%s\"\n", version, EXPECTED_VERSION);
        return 1;
    }
    return 0;
}
