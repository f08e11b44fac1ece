/* SPDX-License-Identifier: MIT */
/* The dot product of a row of x with the summed weights, for a collapsed sum. Included once for each compute type T,
 * with BITS the unsigned integer of its size, HALF_BITS all of BITS but the sign, and NAME(stem) giving the names made
 * here; no include guard on purpose. */

/* The sum in float64 of x[i] * weight[i], from SUMS independent ones that the compiler keeps in vectors, joined in a
 * fixed order. *largest is the largest |x[i]|: infinite or NaN where an x is, and the sum means nothing then. */
static double NAME(dot)(const void *values, const double *weight, int64_t n, double *largest) {
    typedef BITS bits_in_x __attribute__((may_alias));
    enum { SUMS = 32 };
    const T *x = values;
    const bits_in_x *bits = values;
    double sum[SUMS] = {0};
    BITS most[SUMS] = {0}; /* magnitudes, which as integers have the same order, with NaN above infinity */
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int l = 0; l < SUMS; l++) {
            BITS magnitude = bits[i + l] & HALF_BITS;
            sum[l] += (double)x[i + l] * weight[i + l];
            most[l] = magnitude > most[l] ? magnitude : most[l];
        }
    for (int l = 0; i < n; i++, l++) {
        BITS magnitude = bits[i] & HALF_BITS;
        sum[l] += (double)x[i] * weight[i];
        most[l] = magnitude > most[l] ? magnitude : most[l];
    }
    for (int step = SUMS / 2; step; step /= 2)
        for (int l = 0; l < step; l++) {
            sum[l] += sum[l + step];
            most[l] = most[l] > most[l + step] ? most[l] : most[l + step];
        }
    T top;
    memcpy(&top, &most[0], sizeof top);
    *largest = (double)top;
    return sum[0];
}
