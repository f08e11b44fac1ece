/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "rowfold.h"

const char *rf_version(void) { return PACKAGE_VERSION; }
