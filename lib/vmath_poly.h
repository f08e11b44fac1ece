/* Constants and polynomials of vmath_typed.h. Written by tools/minimax.py, which says how: change that, not this. */
#ifndef ROWFOLD_VMATH_POLY_H
#define ROWFOLD_VMATH_POLY_H

#define RFI_LOG2E_f32 0x1.715476p+0f
#define RFI_LN2_HI_f32 0x1.62e4p-1f
#define RFI_LN2_LO_f32 0x1.7f7d1cp-20f
#define RFI_TANH_CUT_f32 0x1.19999ap-1f
#define RFI_NORMCDF_K_f32 0x1.4p+1f
#define RFI_NORMCDF_C_f32 0x1p+0f
#define RFI_NORMCDF_END_f32 0x1.dp+3f

/* (expm1(t) - t) / t^2 on [-0.3469, 0.3469]: relative error 2^-22.77 */
#define RFI_POLY_EXPM1_f32(t) \
    (0x1p-1f + (t) * \
    (0x1.5554dcp-3f + (t) * \
    (0x1.5555bap-5f + (t) * \
    (0x1.120b9ap-7f + (t) * \
    0x1.6c69fp-10f))))

/* (log1p(t) - t + t^2 / 2) / t^3 on [-0.2929, 0.4142]: relative error 2^-23.65 */
#define RFI_POLY_LOG1P_f32(t) \
    (0x1.555554p-2f + (t) * \
    (-0x1.fffff8p-3f + (t) * \
    (0x1.999d5ap-3f + (t) * \
    (-0x1.555cap-3f + (t) * \
    (0x1.23d37ap-3f + (t) * \
    (-0x1.fcba92p-4f + (t) * \
    (0x1.de4a4ep-4f + (t) * \
    (-0x1.d7a3cap-4f + (t) * \
    0x1.2043b4p-4f))))))))

/* (tanh(x) - x) / x^3, t = x^2 on [0.0, 0.3025]: relative error 2^-24.0 */
#define RFI_POLY_TANH_f32(t) \
    (-0x1.555554p-2f + (t) * \
    (0x1.110feap-3f + (t) * \
    (-0x1.b9a04ep-5f + (t) * \
    (0x1.5d2278p-6f + (t) * \
    -0x1.b137fap-8f))))

/* (z + c) Phi(-z) exp(z^2 / 2), t = (z - k) / (z + k) on [-1.0, 0.7059]: relative error 2^-26.42 */
#define RFI_POLY_NORMCDF_f32(t) \
    (0x1.fa881p-2f + (t) * \
    (-0x1.77246ep-4f + (t) * \
    (-0x1.34f98ap-5f + (t) * \
    (0x1.7958dcp-5f + (t) * \
    (-0x1.1d1494p-7f + (t) * \
    (-0x1.8c5402p-8f + (t) * \
    (0x1.50ba04p-10f + (t) * \
    (0x1.4b493p-10f + (t) * \
    (-0x1.0e7cd2p-25f + (t) * \
    (-0x1.dc1c28p-13f + (t) * \
    -0x1.07c6aap-14f))))))))))

#define RFI_LOG2E_f64 0x1.71547652b82fep+0
#define RFI_LN2_HI_f64 0x1.62e42fefa4p-1
#define RFI_LN2_LO_f64 -0x1.8432a1b0e2634p-43
#define RFI_TANH_CUT_f64 0x1.199999999999ap-1
#define RFI_NORMCDF_K_f64 0x1.2p+2
#define RFI_NORMCDF_C_f64 0x1.4p-1
#define RFI_NORMCDF_END_f64 0x1.359999999999ap+5

/* (expm1(t) - t) / t^2 on [-0.3469, 0.3469]: relative error 2^-51.98 */
#define RFI_POLY_EXPM1_f64(t) \
    (0x1.0000000000001p-1 + (t) * \
    (0x1.555555555554dp-3 + (t) * \
    (0x1.5555555553d51p-5 + (t) * \
    (0x1.11111111144fp-7 + (t) * \
    (0x1.6c16c1789472ep-10 + (t) * \
    (0x1.a01a018c1246p-13 + (t) * \
    (0x1.a019b8e6f33a9p-16 + (t) * \
    (0x1.71de5a639fa36p-19 + (t) * \
    (0x1.2891b7161f256p-22 + (t) * \
    0x1.aeab0b038c364p-26)))))))))

/* (log1p(t) - t + t^2 / 2) / t^3 on [-0.2929, 0.4142]: relative error 2^-52.58 */
#define RFI_POLY_LOG1P_f64(t) \
    (0x1.5555555555556p-2 + (t) * \
    (-0x1.fffffffffffecp-3 + (t) * \
    (0x1.9999999998fd8p-3 + (t) * \
    (-0x1.5555555557553p-3 + (t) * \
    (0x1.249249253a245p-3 + (t) * \
    (-0x1.fffffffed2315p-4 + (t) * \
    (0x1.c71c713b8c8adp-4 + (t) * \
    (-0x1.99999960aaf83p-4 + (t) * \
    (0x1.745d3441c8b25p-4 + (t) * \
    (-0x1.55557c6baf03dp-4 + (t) * \
    (0x1.3b105db0f4154p-4 + (t) * \
    (-0x1.248b215d4fb16p-4 + (t) * \
    (0x1.1147de0f70feap-4 + (t) * \
    (-0x1.00a44ff759465p-4 + (t) * \
    (0x1.de4afe2471be8p-5 + (t) * \
    (-0x1.b77e8d251ccb7p-5 + (t) * \
    (0x1.b718baf98c6aep-5 + (t) * \
    (-0x1.f65787fbe72afp-5 + (t) * \
    (0x1.d321004f54a2ap-5 + (t) * \
    -0x1.9f82ae3a4e581p-6)))))))))))))))))))

/* (tanh(x) - x) / x^3, t = x^2 on [0.0, 0.3025]: relative error 2^-54.0 */
#define RFI_POLY_TANH_f64(t) \
    (-0x1.5555555555555p-2 + (t) * \
    (0x1.1111111111032p-3 + (t) * \
    (-0x1.ba1ba1b9fecc3p-5 + (t) * \
    (0x1.664f48771482dp-6 + (t) * \
    (-0x1.226e32f044789p-7 + (t) * \
    (0x1.d6d3393def5e7p-9 + (t) * \
    (-0x1.7d97d0719be3dp-10 + (t) * \
    (0x1.34c5ae7bc8a8ep-11 + (t) * \
    (-0x1.ec10d2a71286cp-13 + (t) * \
    (0x1.64fe544cb735p-14 + (t) * \
    -0x1.59aa4df270fe3p-16))))))))))

/* (z + c) Phi(-z) exp(z^2 / 2), t = (z - k) / (z + k) on [-1.0, 0.7917]: relative error 2^-57.35 */
#define RFI_POLY_NORMCDF_f64(t) \
    (0x1.bd0c56f3b42a8p-2 + (t) * \
    (-0x1.26bb80b693254p-5 + (t) * \
    (-0x1.5f37be52f7d28p-6 + (t) * \
    (0x1.89cf2be5fbbedp-5 + (t) * \
    (-0x1.754595df9df3bp-5 + (t) * \
    (0x1.d5b4a4edea8bap-6 + (t) * \
    (-0x1.8f0f9c0ff186bp-7 + (t) * \
    (0x1.70e251fd8b877p-9 + (t) * \
    (0x1.e31b38bb96a5dp-13 + (t) * \
    (-0x1.9a8666c05768bp-12 + (t) * \
    (0x1.1721283a5a31ap-14 + (t) * \
    (0x1.488ff197a6d38p-15 + (t) * \
    (-0x1.f6371cfb4c822p-17 + (t) * \
    (-0x1.21718fae64522p-18 + (t) * \
    (0x1.5c52e98356081p-19 + (t) * \
    (0x1.56eb8d6f4c11dp-21 + (t) * \
    (-0x1.d1936bab6a4d1p-22 + (t) * \
    (-0x1.16e4ffe4c9ap-23 + (t) * \
    (0x1.2790c52929d13p-24 + (t) * \
    (0x1.06bc43277a7fep-25 + (t) * \
    (-0x1.26b99b58fec37p-27 + (t) * \
    (-0x1.c5dc3b365509p-28 + (t) * \
    (0x1.7baaac77e1861p-33 + (t) * \
    (0x1.e90afcf6aece5p-31 + (t) * \
    0x1.8c9127024b0a6p-33))))))))))))))))))))))))

#endif
