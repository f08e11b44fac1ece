/* SPDX-License-Identifier: MIT */
/* Results that are the same for all finite inputs. */
#ifndef ROWFOLD_CONSTANT_H
#define ROWFOLD_CONSTANT_H

#include "plan.h"

enum { RFI_CONSTANT_TEXT = 200 };

/* 1 if the branch's result is one, and why as a sentence; else 0 and an empty text. */
int rfi_find_constant(const rfi_plan *plan, const rfi_branch *branch, char text[RFI_CONSTANT_TEXT]);

#endif
