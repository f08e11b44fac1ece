/* SPDX-License-Identifier: MIT */
/* ops.def and reductions.def as one table that can be searched and shown. */
#include <math.h>

#include "chain.h"
#include "error.h"
#include "ops.h"
#include "sized.h"

#define RFI_P0 .num_params = 0
#define RFI_PV(n1) .num_params = 1, .min_params = 1, .accepts_vector = 1, .row_use = RF_ROW_NUMBER, .param_names = {#n1}
#define RFI_P1(n1, d1) .num_params = 1, .param_names = {#n1}, .param_defaults = {d1}
#define RFI_P1R(n1) .num_params = 1, .min_params = 1, .param_names = {#n1}
#define RFI_P2(n1, d1, n2, d2) .num_params = 2, .param_names = {#n1, #n2}, .param_defaults = {d1, d2}
#define RFI_PW(keyword) .word_keyword = #keyword

/* Reductions whose first parameter has no default. */
#define RFI_RF_NEEDS (RFI_RF_COLUMN | RFI_RF_COLUMNS | RFI_RF_TOP)

static const rfi_op_desc table[] = {
    /* A size that was not given is -1. */
    {.kind = RF_OP_LINEAR,
        .op_class = RF_CLASS_LINEAR,
        .name = "linear",
        .doc = "x W^T + b, the layer itself",
        RFI_P2(in_features, -1, out_features, -1)},
#define RFI_OP(id, number, text, params, flag, formula, meaning)                                            \
    {.kind = number,                                                                                        \
        .op_class = (flag) & (RFI_OPF_READS_SAVED | RFI_OPF_SAVES) ? RF_CLASS_SAVED : RF_CLASS_ELEMENTWISE, \
        .name = text,                                                                                       \
        .doc = meaning,                                                                                     \
        .flags = flag,                                                                                      \
        params},
#include "ops.def"
#undef RFI_OP
#define RFI_REDUCTION(id, number, text, flags_, peak0, peak, total0, total1, finish, meaning) \
    {.kind = number,                                                                          \
        .op_class = RF_CLASS_REDUCTION,                                                       \
        .name = text,                                                                         \
        .doc = meaning,                                                                       \
        .empty_ok = ((flags_) & RFI_RF_EMPTY) != 0,                                           \
        .gives_index = ((flags_) & (RFI_RF_INDEX | RFI_RF_COUNT)) != 0,                       \
        .row_use = (flags_) & RFI_RF_COLUMN ? RF_ROW_COLUMN                                   \
            : (flags_) & RFI_RF_COLUMNS     ? RF_ROW_COLUMNS                                  \
                                            : RF_ROW_NONE,                                        \
        .top = ((flags_) & RFI_RF_TOP) != 0,                                                  \
        .corrects = ((flags_) & RFI_RF_CORRECTION) != 0,                                      \
        .num_params = (flags_) & RFI_RF_IGNORES             ? 2                               \
            : (flags_) & (RFI_RF_NEEDS | RFI_RF_CORRECTION) ? 1                               \
                                                            : 0,                              \
        .min_params = (flags_) & RFI_RF_NEEDS ? 1 : 0,                                        \
        .param_names = {(flags_) & RFI_RF_COLUMN ? "column"                                   \
                : (flags_) & RFI_RF_COLUMNS      ? "columns"                                  \
                : (flags_) & RFI_RF_TOP          ? "k"                                        \
                : (flags_) & RFI_RF_CORRECTION   ? "correction"                               \
                                                 : NULL,                                        \
            (flags_) & RFI_RF_IGNORES ? "ignore_index" : NULL},                               \
        .param_defaults = {(flags_) & RFI_RF_CORRECTION ? 1 : 0, (flags_) & RFI_RF_IGNORES ? -100 : 0}},
#include "reductions.def"
#undef RFI_REDUCTION
};

/* A row's number is the value of its name in rowfold.h. */
#define RFI_OP(id, number, ...) _Static_assert(RF_OP_##id == (number), "operator numbers are part of the ABI");
#include "ops.def"
#undef RFI_OP
#define RFI_REDUCTION(id, number, ...) _Static_assert(RF_OP_##id == (number), "operator numbers are part of the ABI");
#include "reductions.def"
#undef RFI_REDUCTION

enum {
    INDEX_LINEAR,
#define RFI_OP(id, ...) INDEX_##id,
#include "ops.def"
#undef RFI_OP
#define RFI_REDUCTION(id, number, ...) INDEX_##id,
#include "reductions.def"
#undef RFI_REDUCTION
};

/* No default: the compiler warns of a name in rowfold.h that has no row. */
const rfi_op_desc *rfi_op_find(int kind) {
    switch ((rf_op_kind)kind) {
    case RF_OP_NONE:
    case RF_OP_RESULT: return NULL;
    case RF_OP_LINEAR: return &table[INDEX_LINEAR];
#define RFI_OP(id, ...) \
    case RF_OP_##id: return &table[INDEX_##id];
#include "ops.def"
#undef RFI_OP
#define RFI_REDUCTION(id, number, ...) \
    case RF_OP_##id: return &table[INDEX_##id];
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return NULL;
}

const rfi_op_desc *rfi_op_at(size_t index) { return &table[index]; }

size_t rf_op_count(void) { return sizeof table / sizeof *table; }

rf_status rf_op_get_info(size_t index, rf_op_info *info) {
    rf_status status = rfi_sized_check("info", "rf_op_info", info, sizeof *info);
    if (status) return status;
    if (index >= rf_op_count())
        return rfi_error(
            RF_INVALID_ARGUMENT, "index is %zu; expected less than rf_op_count(), %zu", index, rf_op_count());
    const rfi_op_desc *desc = &table[index];
    rf_op_info own = {
        .kind = desc->kind,
        .op_class = desc->op_class,
        .name = desc->name,
        .description = desc->doc,
        .num_params = desc->num_params,
        .min_params = desc->min_params,
        .accepts_vector = desc->accepts_vector,
        .row_input = desc->row_use,
        .gives_index = desc->gives_index,
    };
    for (int p = 0; p < desc->num_params; p++) {
        own.param_names[p] = desc->param_names[p];
        own.param_defaults[p] = desc->param_defaults[p];
    }
    rfi_sized_write(info, &own, sizeof own);
    return RF_OK;
}

static const struct {
    const char *name, *chain;
} presets[] = {
#define RFI_PRESET(name, chain) {name, chain},
#include "presets.def"
#undef RFI_PRESET
};

size_t rf_preset_count(void) { return sizeof presets / sizeof *presets; }

rf_status rf_preset_get(size_t index, const char **name, const char **chain) {
    if (!name || !chain) return rfi_error(RF_INVALID_ARGUMENT, "%s is NULL", name ? "chain" : "name");
    if (index >= rf_preset_count())
        return rfi_error(
            RF_INVALID_ARGUMENT, "index is %zu; expected less than rf_preset_count(), %zu", index, rf_preset_count());
    *name = presets[index].name;
    *chain = presets[index].chain;
    return RF_OK;
}
