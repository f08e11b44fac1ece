/* SPDX-License-Identifier: MIT */
/* Numbers as chains write them: decimal with a point in any locale. */
#ifndef ROWFOLD_NUMBER_H
#define ROWFOLD_NUMBER_H

#include <stddef.h>

enum { RFI_NUMBER_TEXT = 40 };

/* The fewest digits that read back bit for bit; inf, -inf, nan. Returns `text`. */
const char *rfi_number_format(double value, char text[RFI_NUMBER_TEXT]);

/* printf's %.*f with a point, for 0 <= value < 1e12 and 1 to 6 decimals. Returns `text`. */
const char *rfi_number_fixed(double value, int decimals, char text[RFI_NUMBER_TEXT]);

typedef enum rfi_number_status {
    RFI_NUMBER_OK,
    RFI_NUMBER_NONE,      /* no number starts here */
    RFI_NUMBER_TOO_LONG,  /* more digits than anyone needs */
    RFI_NUMBER_TOO_LARGE, /* it would become infinite */
    RFI_NUMBER_TOO_SMALL  /* it is not zero, and would become zero */
} rfi_number_status;

/* Reads [+-]digits[.digits][e[+-]digits] at the start of `text`, correctly rounded. *length is what it takes (0 for
 * NONE). */
rfi_number_status rfi_number_read(const char *text, double *value, size_t *length);

#endif
