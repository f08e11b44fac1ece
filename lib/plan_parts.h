/* SPDX-License-Identifier: MIT */
/* The parts of rfi_plan_make, each in a file of its own. */
#ifndef ROWFOLD_PLAN_PARTS_H
#define ROWFOLD_PLAN_PARTS_H

#include "plan.h"

void rfi_plan_rewrite(rfi_plan *plan);       /* rewrite.c: the rules that plan->simplify allows, until none applies */
void rfi_plan_find_constant(rfi_plan *plan); /* constant.c: sets plan->constant */

#endif
