/* SPDX-License-Identifier: MIT */
/* strtod and printf follow the locale of the process, whose decimal point may be a comma. Here they only ever see
 * digits and an exponent. */
#include "number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lexical.h"

enum { MAX_DIGITS = 100, MAX_EXPONENT = 100000 };

rfi_number_status rfi_number_read(const char *text, double *value, size_t *length) {
    const char *at = text;
    char plain[MAX_DIGITS + 24]; /* sign, digits, 'e', exponent */
    size_t used = 0;
    long digits = 0;
    int nonzero = 0, point = 0;
    long exponent = 0;
    *length = 0;
    if (*at == '+' || *at == '-') plain[used++] = *at++;
    for (;; at++) {
        if (*at == '.' && !point) {
            point = 1;
            continue;
        }
        if (!rfi_is_digit(*at)) break;
        digits++;
        nonzero |= *at != '0';
        if (digits <= MAX_DIGITS) plain[used++] = *at;
        exponent -= point;
    }
    if (!digits) return RFI_NUMBER_NONE;
    if (*at == 'e' || *at == 'E') {
        const char *e = at + 1;
        int negative = *e == '-';
        if (*e == '+' || *e == '-') e++;
        if (rfi_is_digit(*e)) {
            long given = 0;
            for (; rfi_is_digit(*e); e++)
                if (given < MAX_EXPONENT) given = given * 10 + (*e - '0');
            exponent += negative ? -given : given;
            at = e;
        }
    }
    *length = (size_t)(at - text);
    if (digits > MAX_DIGITS) return RFI_NUMBER_TOO_LONG;
    snprintf(plain + used, sizeof plain - used, "e%ld", exponent);
    double v = strtod(plain, NULL);
    if (isinf(v)) return RFI_NUMBER_TOO_LARGE;
    if (v == 0 && nonzero) return RFI_NUMBER_TOO_SMALL;
    *value = v;
    return RFI_NUMBER_OK;
}

/* The shortest digits d (no point) with value = 0.d1 d2... * 10^(exponent + 1). */
static void shortest_digits(double magnitude, char digits[20], int *exponent) {
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, magnitude);
        if (strtod(text, NULL) == magnitude) break;
    }
    int n = 0;
    const char *at = text;
    for (; *at != 'e'; at++)
        if (rfi_is_digit(*at)) digits[n++] = *at;
    digits[n] = 0;
    *exponent = atoi(at + 1);
}

const char *rfi_number_format(double value, char text[RFI_NUMBER_TEXT]) {
    if (isnan(value)) return strcpy(text, "nan");
    char *at = text;
    if (signbit(value)) *at++ = '-';
    if (isinf(value)) {
        strcpy(at, "inf");
        return text;
    }
    char digits[20];
    int exponent;
    shortest_digits(fabs(value), digits, &exponent);
    int n = (int)strlen(digits);
    size_t room = RFI_NUMBER_TEXT - (size_t)(at - text);
    if (exponent >= 16 || exponent < -5) {
        snprintf(at, room, "%c%s%se%d", digits[0], n > 1 ? "." : "", digits + 1, exponent);
    } else if (exponent < 0) {
        snprintf(at, room, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if (n > exponent + 1) {
        snprintf(at, room, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    } else {
        snprintf(at, room, "%s%.*s", digits, exponent + 1 - n, "0000000000000000");
    }
    return text;
}

const char *rfi_number_fixed(double value, int decimals, char text[RFI_NUMBER_TEXT]) {
    long long scale = 1;
    for (int i = 0; i < decimals; i++) scale *= 10;
    long long parts = llround(value * (double)scale);
    snprintf(text, RFI_NUMBER_TEXT, "%lld.%0*lld", parts / scale, decimals, parts % scale);
    return text;
}
