/* SPDX-License-Identifier: MIT */
/* The primitives of vmath.h and the operators of ops.def against long double: the error over the whole range of float
 * and double, in vector code for every instruction set this processor has, and special values.
 *
 *     test_vmath [STRIDE]      of the 2^32 floats every STRIDEth is tried on the primitives, by default every 4093rd
 *
 * Corners and special values are all tried on a slow machine, too. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"
#include "slow.h"

#if LDBL_MANT_DIG < 64
int main(void) {
    puts("long double is no more precise than double here");
    return 77;
}
#else

/* ops.def once more, for long double on libm: 11 bits more than double, so an error of a formula in double shows
 * against it unless it is 2^11 times smaller there than it should be; and whatever overflows in the type does not
 * overflow in it. */
#define LIBM(name) \
    RFI_FN long double rfi_##name##_ld(long double x) { return name##l(x); }
LIBM(exp)
LIBM(expm1)
LIBM(log)
LIBM(log1p)
LIBM(tanh)
LIBM(sqrt)
LIBM(sin)
LIBM(cos)
RFI_FN long double rfi_abs_ld(long double x) { return fabsl(x); }
RFI_FN long double rfi_exp_term_ld(long double x) { return expl(x); }
RFI_FN long double rfi_quotient_ld(long double v, long double w) { return v / w; }
RFI_FN long double rfi_maxnum_ld(long double v, long double w) { return fmaxl(v, w); }
RFI_FN long double rfi_maxn_ld(long double v, long double w) { return v != v || v > w ? v : w; }
RFI_FN long double rfi_minn_ld(long double v, long double w) { return v != v || v < w ? v : w; }

/* Columns have the words of double. */
RFI_FN uint64_t rfi_bits_ld(long double x) { return rfi_bits_f64((double)x); }
RFI_FN long double rfi_from_bits_ld(uint64_t u) { return rfi_from_bits_f64(u); }

/* erfc(y + lost) / 2 for y = -x / sqrt(2) as rounded: in the tail the rounding alone would cost half an ulp of double.
 */
RFI_FN long double rfi_normcdf_ld(long double x) {
    const long double c = 0.707106781186547524400844362104849039L,
                      c_lost = LDBL_MANT_DIG == 64 ? 1.8950325588932570797e-20L : 0;
    const long double slope = 0.564189583547756286948079451560772586L; /* 1 / sqrt(pi) */
    long double y = -x * c, lost = fmal(-x, c, -y) - x * c_lost;
    return isinf(x) ? 0.5L * erfcl(y) : 0.5L * erfcl(y) - lost * slope * expl(-y * y);
}

#define RFI_T long double
#define RFI_SUFFIX _ld
#define RFI_COLUMN int64_t
#define RFI_BITS uint64_t
#define RFI_MANTISSA 52
#include "ops_typed.h"

enum { CHUNK = 4096 };
typedef void (*sweep_f32)(const float *x, float *y, float a, float b, float s);
typedef void (*sweep_f64)(const double *x, double *y, double a, double b, double s);

/* The same loop for each instruction set, as the kernels are compiled; the compiler contracts products where the set
 * has them. */
#if defined __x86_64__ && defined __GNUC__
enum { ISAS = 3 };
static const char *const isa_name[ISAS] = {"generic", "avx2", "avx512"};
#define FOR_ISAS(M, ...)                                      \
    M(generic, , __VA_ARGS__)                                 \
    M(avx2, __attribute__((target("avx2,fma"))), __VA_ARGS__) \
    M(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))), __VA_ARGS__)
#define ROW_OF(id, t) {id##_##t##_generic, id##_##t##_avx2, id##_##t##_avx512}
static int have_isa(int isa) {
    if (isa == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == 2)
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq");
    return 1;
}
#else
enum { ISAS = 1 };
static const char *const isa_name[ISAS] = {"generic"};
#define FOR_ISAS(M, ...) M(generic, , __VA_ARGS__)
#define ROW_OF(id, t) {id##_##t##_generic}
static int have_isa(int isa) { return isa == 0; }
#endif

#define LOOP(isa, target, id, t, type, call)                                              \
    target static void id##_##t##_##isa(const type *x, type *y, type a, type b, type s) { \
        (void)a, (void)b, (void)s;                                                        \
        for (int i = 0; i < CHUNK; i++) y[i] = call;                                      \
    }
#define PRIMITIVE(name, limit_f32, limit_f64)                                                     \
    FOR_ISAS(LOOP, name, f32, float, rfi_##name##_f32(x[i]))                                      \
    FOR_ISAS(LOOP, name, f64, double, rfi_##name##_f64(x[i]))                                     \
    static long double name##_exact(long double x, long double a, long double b, long double s) { \
        (void)a, (void)b, (void)s;                                                                \
        return rfi_##name##_ld(x);                                                                \
    }
#define RFI_OP(id, ...)                                                                         \
    FOR_ISAS(LOOP, id, f32, float, rfi_op_##id##_f32(x[i], a, b, s))                            \
    FOR_ISAS(LOOP, id, f64, double, rfi_op_##id##_f64(x[i], a, b, s))                           \
    static long double id##_exact(long double x, long double a, long double b, long double s) { \
        return rfi_op_##id##_ld(x, a, b, s);                                                    \
    }

/* The errors vmath.h states, in ulp of float and of double. */
#define PRIMITIVES             \
    PRIMITIVE(exp, 1.1, 1.1)   \
    PRIMITIVE(expm1, 1.8, 2.2) \
    PRIMITIVE(log, 1, 1)       \
    PRIMITIVE(log1p, 1.5, 1.5) \
    PRIMITIVE(tanh, 1.5, 1.5)  \
    PRIMITIVE(normcdf, 3, 3)   \
    PRIMITIVE(sin, 0.51, 1)    \
    PRIMITIVE(cos, 0.51, 1)
PRIMITIVES
#include "ops.def"
#undef PRIMITIVE
#undef RFI_OP

/* For operators, from those. Relative to a result just below a power of two an ulp is u, half an ulp of 1; relative to
 * an intermediate just above one it is 2 u. So a primitive of L ulp can move the result by 2 L ulp, and a rounding
 * by 1. The largest sums: mish 2 * 1.1 for exp and 1 each for e + 2, e (e + 2), n + 2, the quotient and the product
 * with x; softplus 2 * 1.1 and 2 * 1.5 for exp and log1p, one for adding and one for dividing; gelu 2 * 3 and one. */
#define OP_ULPS 7.2

typedef struct {
    const char *name;
    int kind; /* 0: a primitive */
    double limit_f32, limit_f64;
    long double (*exact)(long double, long double, long double, long double);
    sweep_f32 f32[ISAS];
    sweep_f64 f64[ISAS];
} subject;

#define PRIMITIVE(name, limit_f32, limit_f64) \
    {#name, 0, limit_f32, limit_f64, name##_exact, ROW_OF(name, f32), ROW_OF(name, f64)},
#define RFI_OP(id, number, name, ...) {name, number, OP_ULPS, OP_ULPS, id##_exact, ROW_OF(id, f32), ROW_OF(id, f64)},
static const subject subjects[] = {PRIMITIVES
#include "ops.def"
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

/* What a type can hold: digits of its mantissa, exponent of its smallest normal number, of its largest number. */
typedef struct {
    int digits, least, most;
} format;
static const format float_format = {FLT_MANT_DIG, FLT_MIN_EXP - 1, FLT_MAX_EXP},
                    double_format = {DBL_MANT_DIG, DBL_MIN_EXP - 1, DBL_MAX_EXP};

typedef struct {
    long double a, b, s;
} parameters;

/* Roundings of the argument of a function that magnifies them: the constants and products of gelu(tanh), and one
 * product or quotient. */
static int argument_roundings(int kind) {
    switch (kind) {
    case RF_OP_GELU_TANH: return 7;
    case RF_OP_SOFTPLUS: return 1;
    case RF_OP_SOFTCAP: return 1;
    }
    return 0;
}

/* What an operator may be off by besides OP_ULPS: its argument's roundings, as if x had been off by as much; and where
 * a factor of its result is subnormal, that factor's absolute error (1.25 units for mish's) times the other factor. */
static long double allowance(const subject *op, const format *type, long double x, const parameters *p) {
    if (!op->kind || !isfinite(x)) return 0;
    long double unit = ldexpl(1, type->least + 1 - type->digits),
                other = fmaxl(fabsl(x), fmaxl(fabsl(p->a), fmaxl(fabsl(1 / p->a), 1)));
    long double result = op->exact(x, p->a, p->b, p->s), moved = 0;
    int roundings = argument_roundings(op->kind);
    if (roundings) {
        long double step = x * ldexpl(roundings, -type->digits);
        moved = fmaxl(fabsl(op->exact(x + step, p->a, p->b, p->s) - result),
            fabsl(op->exact(x - step, p->a, p->b, p->s) - result));
    }
    return moved + (fabsl(result) < ldexpl(other, type->least + 2) ? 1.25L * unit * other : 0);
}

/* The error of got in ulp of the exact result; INFINITY where one is NaN and the other not, or the signs differ (that
 * of a result rounded to 0 may: log(sigmoid(x)) is min(x, 0) - log1p(...) there). An exact result beyond the type's
 * range must have become an infinity. */
static double ulps(const format *type, long double exact, long double got, long double allowed) {
    long double beyond = ldexpl(1, type->most);
    if (isnan(exact) || isnan(got)) return isnan(exact) && isnan(got) ? 0 : INFINITY;
    if (signbit(exact) != signbit(got) && (exact == 0 || got != 0)) return INFINITY;
    exact = fminl(fabsl(exact), beyond), got = fminl(fabsl(got), beyond);
    int exponent = exact > 0 ? ilogbl(exact) : type->least;
    long double unit = ldexpl(1, (exponent > type->least ? exponent : type->least) + 1 - type->digits);
    return (double)(fmaxl(fabsl(got - exact) - allowed, 0) / unit);
}

typedef struct {
    double error;
    long double x;
    int isa;
} worst;

static void note(worst *w, double error, long double x, int isa) {
    if (error > w->error) *w = (worst){error, x, isa};
}

/* hardswish multiplies by 6 before it divides by it: an overflow there is PyTorch's too. */
static int may_overflow(const subject *op, const format *type, long double x) {
    return op->kind == RF_OP_HARDSWISH && fabsl(x) * 6 > ldexpl(1, type->most);
}

#define JUDGE(t, type)                                                                                               \
    static void judge_##t(const subject *op, const type *x, const parameters *p, worst *w) {                         \
        static type y[ISAS][CHUNK];                                                                                  \
        for (int isa = 0; isa < ISAS; isa++)                                                                         \
            if (have_isa(isa)) op->t[isa](x, y[isa], (type)p->a, (type)p->b, (type)p->s);                            \
        for (int i = 0; i < CHUNK; i++) {                                                                            \
            if (may_overflow(op, &type##_format, x[i])) continue;                                                    \
            long double exact = op->exact(x[i], p->a, p->b, p->s), allowed = allowance(op, &type##_format, x[i], p); \
            for (int isa = 0; isa < ISAS; isa++)                                                                     \
                if (have_isa(isa)) note(w, ulps(&type##_format, exact, y[isa][i], allowed), x[i], isa);              \
        }                                                                                                            \
    }
JUDGE(f32, float)
JUDGE(f64, double)

/* Where a formula changes over, a result leaves the normal numbers or a limit is reached. */
static const double corners[] = {0, FLT_TRUE_MIN, FLT_MIN, DBL_MIN, FLT_EPSILON / 2, DBL_EPSILON / 2, FLT_MAX, DBL_MAX,
    INFINITY, 0.34657359027997264, 0.6931471805599453, 1.0397207708399179, 0.55, 0.70710678118654746,
    1.4142135623730951, 1, 0.5, 2, 3, 5, 6, 20, 8.0, 10, 18, 18.71, 37.43, 38, 17.33, 87.33654, 88.0, 88.722839,
    103.27893, 103.97208, 104, 708.396, 709.782712893384, 710, 744.44, 745.1332191019411, 746, 12.98, 14.17, 14.5,
    37.51, 38.4857, 38.7, 1.5707963267948966, 3.1415926535897931, 4.7123889803846899, 0.78539816339744828,
    6.2831853071795862, 0x1p24, 0x1p44, 0x1p65, 0x1p86, 0x1p107, 0x1.47d0fep+34, 0x1.f9cbe2p+7, 0x1.d8ce3ep+114};
enum { CORNERS = sizeof corners / sizeof *corners, WINDOW = 128, CORNER_POINTS = 2 * CORNERS * WINDOW };

/* A window around each corner of either sign, in steps of the type. What lies below 0 or beyond infinity is a NaN: as
 * good as any. */
static void corner_point(int i, float *x, double *z) {
    double c = corners[i / (2 * WINDOW) % CORNERS];
    int step = i % WINDOW - WINDOW / 2, negative = i / WINDOW % 2;
    *x = rfi_from_bits_f32((rfi_bits_f32((float)c) + (uint32_t)step) ^ (uint32_t)negative << 31);
    *z = rfi_from_bits_f64((rfi_bits_f64(c) + (uint64_t)(int64_t)step) ^ (uint64_t)negative << 63);
}

/* The i-th of a fixed sequence that looks random: of every other one the exponent is one where functions bend,
 * elsewhere any of the type's. */
static double scattered_point(uint64_t i) {
    uint64_t h = i * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 32) * 0x94d049bb133111ebu;
    h ^= h >> 31;
    if (i & 1) h = (h & 0x800fffffffffffffu) | (DBL_MAX_EXP - 1 - 54 + (h >> 52 & 63)) << 52;
    return rfi_from_bits_f64(h);
}

static int report(const subject *op, const char *type, double limit, const worst *w) {
    int failed = !(w->error <= limit);
    printf("%-12s %s  %6.3f ulp of %g  at %.17Lg (%s)%s\n", op->name, type, w->error, limit, w->x, isa_name[w->isa],
        failed ? "  FAILED" : "");
    return failed;
}

static int sweep(const subject *op, uint64_t f32_stride, uint64_t f64_count, const parameters *sets, int set_count) {
    static float x[CHUNK];
    static double z[CHUNK];
    worst f32 = {-1, 0, 0}, f64 = {-1, 0, 0};
    for (int set = 0; set < set_count; set++) {
        for (uint64_t bits = 0; bits < (uint64_t)1 << 32;) {
            for (int i = 0; i < CHUNK; i++, bits += f32_stride) x[i] = rfi_from_bits_f32((uint32_t)bits);
            judge_f32(op, x, &sets[set], &f32);
        }
        for (uint64_t point = 0; point < f64_count;) {
            for (int i = 0; i < CHUNK; i++, point++) z[i] = scattered_point(point);
            judge_f64(op, z, &sets[set], &f64);
        }
        for (int corner = 0; corner < CORNER_POINTS;) {
            for (int i = 0; i < CHUNK; i++, corner++) corner_point(corner, &x[i], &z[i]);
            judge_f32(op, x, &sets[set], &f32);
            judge_f64(op, z, &sets[set], &f64);
        }
    }
    return report(op, "f32", op->limit_f32, &f32) + report(op, "f64", op->limit_f64, &f64);
}

/* Values that PyTorch defines, or whose bits matter elsewhere: logsumexp of one column is that column because exp(0) is
 * 1 and log(1) is 0. */
static const struct {
    int kind;
    double x, a, b, result, limit; /* in ulp */
} specials[] = {
    {RF_OP_EXP, 0, 0, 0, 1, 0},
    {RF_OP_EXP, -0.0, 0, 0, 1, 0},
    {RF_OP_LOG, 1, 0, 0, 0, 0},
    {RF_OP_LOG, 0, 0, 0, -INFINITY, 0},
    {RF_OP_LOG, -0.0, 0, 0, -INFINITY, 0},
    {RF_OP_LOG, -1, 0, 0, NAN, 0},
    {RF_OP_SQRT, -1, 0, 0, NAN, 0},
    {RF_OP_SIN, 0, 0, 0, 0, 0},
    {RF_OP_SIN, -0.0, 0, 0, -0.0, 0},
    {RF_OP_SIN, INFINITY, 0, 0, NAN, 0},
    {RF_OP_SIN, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_COS, -0.0, 0, 0, 1, 0},
    {RF_OP_COS, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_LEAKY_RELU, -0.0, 0.01, 0, -0.0, 0},
    {RF_OP_LEAKY_RELU, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_LEAKY_RELU, NAN, 0.01, 0, NAN, 0},
    {RF_OP_RELU, NAN, 0, 0, NAN, 0},
    {RF_OP_GELU, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_GELU, INFINITY, 0, 0, INFINITY, 0},
    {RF_OP_GELU, 3e38, 0, 0, 3e38, 1},
    {RF_OP_GELU, -1e-8, 0, 0, -5e-9 + 3.9894228040143268e-17, 2},
    {RF_OP_GELU_TANH, 3e38, 0, 0, 3e38, 1},
    {RF_OP_GELU_TANH, 1, 0, 0, 0.8411919906082768, 3},
    {RF_OP_GELU_TANH, -3e38, 0, 0, -0.0, 0},
    {RF_OP_SILU, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_SILU, INFINITY, 0, 0, INFINITY, 0},
    {RF_OP_MISH, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_MISH, INFINITY, 0, 0, INFINITY, 0},
    {RF_OP_MISH, -1000, 0, 0, -0.0, 0},
    {RF_OP_ELU, -INFINITY, 1, 0, -1, 0},
    {RF_OP_ELU, -1e-10, 1, 0, -1e-10 + 5e-21, 2},
    {RF_OP_LOGSIGMOID, -INFINITY, 0, 0, -INFINITY, 0},
    {RF_OP_LOGSIGMOID, 100, 0, 0, -3.7200759760208356e-44, 1},
    {RF_OP_SOFTPLUS, 21, 1, 20, 21, 0},
    {RF_OP_SOFTPLUS, 20, 1, 20, 20.000000002061153, 1},
    {RF_OP_SOFTPLUS, -100, 1, 20, 3.7200759760208356e-44, 1},
    {RF_OP_SOFTPLUS, 100, 1, 1000, 100, 0},
    {RF_OP_SIGMOID, -INFINITY, 0, 0, 0, 0},
    {RF_OP_SIGMOID, INFINITY, 0, 0, 1, 0},
    {RF_OP_TANH, -0.0, 0, 0, -0.0, 0},
    {RF_OP_TANH, -INFINITY, 0, 0, -1, 0},
    {RF_OP_CLAMP, 5, 3, 1, 1, 0},
    {RF_OP_CLAMP, 0, NAN, 1, NAN, 0},
    {RF_OP_CLAMP, 0, -1, NAN, NAN, 0},
    {RF_OP_CLAMP, NAN, -1, 1, NAN, 0},
    {RF_OP_MINIMUM, 0, NAN, 0, NAN, 0},
    {RF_OP_MAXIMUM, NAN, 0, 0, NAN, 0},
    {RF_OP_HARDSWISH, -INFINITY, 0, 0, NAN, 0},
    {RF_OP_SOFTCAP, INFINITY, 30, 0, 30, 0},
};

static int check_specials(void) {
    int failures = 0;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        int kind = specials[i].kind;
        double x = specials[i].x, a = specials[i].a, b = specials[i].b, want = specials[i].result;
        float f32 = rfi_op_apply_f32(kind, (float)x, (float)a, (float)b, 0);
        double f64 = rfi_op_apply_f64(kind, x, a, b, 0);
        if (ulps(&float_format, (float)want, f32, 0) <= specials[i].limit &&
            ulps(&double_format, want, f64, 0) <= specials[i].limit)
            continue;
        printf("operator %d of %g (%g, %g): got %.9g and %.17g, not %.17g  FAILED\n", kind, x, a, b, f32, f64, want);
        failures++;
    }
    return failures;
}

int main(int argc, char **argv) {
    static const parameters sets[] = {{1, 20, 0.75}, {-0.3125, 5, -2}, {30, -1, 0x1p68}};
    const int slower = times_slower("the numbers between corners");
    uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : (4093 * (uint64_t)slower | 1);
    int failures = check_specials();
    if (stride == 0) {
        fputs("usage: test_vmath [STRIDE]\n", stderr);
        return 2;
    }
    for (int i = 0; i < SUBJECTS; i++) {
        const subject *op = &subjects[i];
        failures += op->kind
            ? sweep(op, 65521 * (uint64_t)slower | 1, 8 * CHUNK / slower, sets, sizeof sets / sizeof *sets)
            : sweep(op, stride, 64 * CHUNK / slower, sets, 1);
    }
    return failures != 0;
}
#endif
