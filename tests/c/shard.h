/* SPDX-License-Identifier: MIT */
/* Files that tests of the reader share: an index of one shard, with W (2, 3) = 1 ... 6 at an address that its type does
 * not like, and b (2) = 7, 8. */
#ifndef ROWFOLD_TESTS_SHARD_H
#define ROWFOLD_TESTS_SHARD_H

#include <rowfold.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static char shard_folder[] = "/tmp/rowfold-shard-XXXXXX", shard_path[64], index_path[64];

static void write_shard(void) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]}} ";
    const unsigned char length[8] = {sizeof header - 1};
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    CHECK(mkdtemp(shard_folder) && (8 + sizeof header - 1) % 4, "no folder, or W is aligned");
    snprintf(shard_path, sizeof shard_path, "%s/shard", shard_folder);
    snprintf(index_path, sizeof index_path, "%s/index.json", shard_folder);
    FILE *shard = fopen(shard_path, "wb"), *index = fopen(index_path, "wb");
    CHECK(shard && index, "%s: cannot be written", shard_folder);
    if (!shard || !index) exit(1);
    fwrite(length, 1, 8, shard), fwrite(header, 1, sizeof header - 1, shard), fwrite(values, 1, sizeof values, shard);
    fputs("{\"weight_map\":{\"w\":\"shard\",\"b\":\"shard\"}}", index);
    CHECK(!fclose(shard) && !fclose(index), "%s: cannot be written", shard_folder);
}

static void remove_shard(void) { unlink(shard_path), unlink(index_path), rmdir(shard_folder); }

static const rf_config shard_config = {.size = sizeof shard_config,
    .chain = "linear(3, 2) | sum",
    .backend = "reference"};
static const rf_file_names shard_names = {.size = sizeof shard_names, .weight = "w", .bias = "b"};
static const float shard_x[3] = {1, 10, 100};
static const float shard_y = (1 + 20 + 300 + 7) + (4 + 50 + 600 + 8);

#endif
