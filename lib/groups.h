/* SPDX-License-Identifier: MIT */
/* Groups of columns: what shards of a layer exchange is one state for each group and row. Their borders depend on the
 * number of all columns alone, and states are joined unit by unit within a group, then group by group, however many
 * processes hold the columns: so the bits do not depend on who holds which groups.
 *
 * A shard that does not begin at a border cuts its columns into units from its own first one on; a unit belongs to the
 * group of the column that it begins with. */
#ifndef ROWFOLD_GROUPS_H
#define ROWFOLD_GROUPS_H

#include "sizes.h"

enum {
    RFI_GROUP_UNIT = 256, /* columns; every backend's unit divides it */
    RFI_MOST_GROUPS = 16
};

static inline int64_t rfi_num_groups(int64_t total_columns) {
    return least(RFI_MOST_GROUPS, ceil_div(total_columns, RFI_GROUP_UNIT));
}

/* The column that group `group` begins with; of the number of groups, total_columns. No two borders are the same. */
static inline int64_t rfi_group_border(int64_t total_columns, int64_t group) {
    const int64_t units = ceil_div(total_columns, RFI_GROUP_UNIT), groups = rfi_num_groups(total_columns);
    return group >= groups ? total_columns : group * units / groups * RFI_GROUP_UNIT;
}

/* The group of a column that there is. */
static inline int64_t rfi_group_of(int64_t total_columns, int64_t column) {
    const int64_t units = ceil_div(total_columns, RFI_GROUP_UNIT), groups = rfi_num_groups(total_columns);
    return ((column / RFI_GROUP_UNIT + 1) * groups - 1) / units;
}

/* Columns of a layer that one model holds. */
typedef struct rfi_shard {
    int64_t first, count, total;
} rfi_shard;

static inline int64_t rfi_shard_units(const rfi_shard *shard) { return ceil_div(shard->count, RFI_GROUP_UNIT); }

/* Groups that the shard has columns of: states per row that it writes. */
static inline int64_t rfi_shard_groups(const rfi_shard *shard) {
    if (!shard->count) return 0;
    const int64_t last = shard->first + (rfi_shard_units(shard) - 1) * RFI_GROUP_UNIT;
    return rfi_group_of(shard->total, last) - rfi_group_of(shard->total, shard->first) + 1;
}

/* The unit that the shard's group `group`, counted from its own first one, begins with; of the number of groups, the
 * number of units. */
static inline int64_t rfi_shard_border(const rfi_shard *shard, int64_t group) {
    const int64_t border = rfi_group_border(shard->total, rfi_group_of(shard->total, shard->first) + group);
    return group ? least(ceil_div(border - shard->first, RFI_GROUP_UNIT), rfi_shard_units(shard)) : 0;
}

#endif
