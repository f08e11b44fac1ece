/* SPDX-License-Identifier: MIT */
/* Constants and polynomials of vmath_typed.h, written by tools/minimax.py: change that, not this. */
#ifndef ROWFOLD_VMATH_POLY_H
#define ROWFOLD_VMATH_POLY_H

#define RFI_LOG2E_f32 0x1.715476p+0f
#define RFI_LN2_HI_f32 0x1.62e4p-1f
#define RFI_LN2_LO_f32 0x1.7f7d1cp-20f
#define RFI_TANH_CUT_f32 0x1.19999ap-1f
#define RFI_NORMCDF_K_f32 0x1.cp+1f
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

/* (z + 1.25) Phi(-z) exp(z^2 / 2), t = (z - k) / (z + k) on [-1.0, 0.6111]: relative error 2^-25.26 */
#define RFI_POLY_NORMCDF_f32(t) \
    (0x1.02a1a4p-1f + (t) * \
    (-0x1.27ee5p-3f + (t) * \
    (0x1.083376p-5f + (t) * \
    (0x1.72e7cep-6f + (t) * \
    (-0x1.a1b922p-6f + (t) * \
    (0x1.472a1p-7f + (t) * \
    (-0x1.c27cbp-15f + (t) * \
    (-0x1.54c22p-10f + (t) * \
    (0x1.0d8bc8p-13f + (t) * \
    0x1.2efbd6p-13f)))))))))

/* Phi(-z) exp(z^2 / 2), t = z / (z + 3), for CUDA on [0.0, 0.8286]: relative error 2^-24.0 (1 + z^2) */
#define RFI_POLY_TAIL_f32(t) \
    (0x1p-1f + (t) * \
    (-0x1.32634ep+0f + (t) * \
    (0x1.0da0cap+0f + (t) * \
    (-0x1.273bbcp-2f + (t) * \
    (-0x1.30219p-3f + (t) * \
    (0x1.4b743cp-6f + (t) * \
    (0x1.b76c9ep-4f + (t) * \
    -0x1.82a64cp-5f)))))))

#define RFI_LOG2E_f64 0x1.71547652b82fep+0
#define RFI_LN2_HI_f64 0x1.62e42fefa4p-1
#define RFI_LN2_LO_f64 -0x1.8432a1b0e2634p-43
#define RFI_TANH_CUT_f64 0x1.199999999999ap-1
#define RFI_NORMCDF_K_f64 0x1p+2
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

/* (z + 1.25) Phi(-z) exp(z^2 / 2), t = (z - k) / (z + k) on [-1.0, 0.8126]: relative error 2^-55.36 */
#define RFI_POLY_NORMCDF_f64(t) \
    (0x1.fb8d36288361ep-2 + (t) * \
    (-0x1.1d4ad7c6f13b1p-3 + (t) * \
    (0x1.7169e9b96108ep-5 + (t) * \
    (0x1.5dbfe8f510338p-7 + (t) * \
    (-0x1.911b6cec9bc0cp-6 + (t) * \
    (0x1.0314d6800b5dap-6 + (t) * \
    (-0x1.3f851dd2aed12p-8 + (t) * \
    (-0x1.081296f2791afp-13 + (t) * \
    (0x1.53caa61bbb86ap-11 + (t) * \
    (-0x1.bbd6419b9f31ap-14 + (t) * \
    (-0x1.527169603c285p-14 + (t) * \
    (0x1.77f14035b9385p-16 + (t) * \
    (0x1.a5243c2d1b0dcp-17 + (t) * \
    (-0x1.e87b08a521602p-19 + (t) * \
    (-0x1.4881a37c93c29p-19 + (t) * \
    (0x1.e9675b6ea125bp-22 + (t) * \
    (0x1.1bbc5d4933239p-21 + (t) * \
    (-0x1.89c28cb94be02p-27 + (t) * \
    (-0x1.d2d14eb2f889ap-24 + (t) * \
    (-0x1.272e80bfcc4ffp-26 + (t) * \
    (0x1.2ff0fa95cacdbp-26 + (t) * \
    (0x1.9318f7c6d384ep-28 + (t) * \
    (-0x1.b4a5eb4e1d32p-30 + (t) * \
    -0x1.a756e2a1485dfp-31)))))))))))))))))))))))

#define RFI_QUARTERS_0_0 0x1.45f306cp-1
#define RFI_QUARTERS_0_1 0x1.c9c882ap-29
#define RFI_QUARTERS_0_2 0x1.4fe13abe8fa9ap-59
#define RFI_QUARTERS_1_0 0x1.b72722p-2
#define RFI_QUARTERS_1_1 0x1.529fc2p-31
#define RFI_QUARTERS_1_2 0x1.d5f47d4d37703p-57
#define RFI_QUARTERS_2_0 0x1.1054a7ep+0
#define RFI_QUARTERS_2_1 0x1.09d5f47p-28
#define RFI_QUARTERS_2_2 0x1.a9a6ee06db14bp-57
#define RFI_QUARTERS_3_0 0x1.fc2757cp-1
#define RFI_QUARTERS_3_1 0x1.1f534dcp-29
#define RFI_QUARTERS_3_2 0x1.c0db6295993c4p-57
#define RFI_QUARTERS_4_0 0x1.7d1f534p+0
#define RFI_QUARTERS_4_1 0x1.bb81b6cp-29
#define RFI_QUARTERS_4_2 0x1.4acc9e21c821p-59

/* sin(pi t / 2) / t, t^2 on [0.0, 0.255]: relative error 2^-37.53 */
#define RFI_POLY_SIN_f64(t) \
    (0x1.921fb5443a21bp+0 + (t) * \
    (-0x1.4abbce554bb56p-1 + (t) * \
    (0x1.466bb9cfa644bp-4 + (t) * \
    (-0x1.32ca2f21c206bp-8 + (t) * \
    0x1.4baa234889d59p-13))))

/* cos(pi t / 2), t^2 on [0.0, 0.255]: relative error 2^-33.91 */
#define RFI_POLY_COS_f64(t) \
    (0x1.ffffffff775aap-1 + (t) * \
    (-0x1.3bd3cc6a9ed9ap+0 + (t) * \
    (0x1.03c1d94da8073p-2 + (t) * \
    (-0x1.55c44ca0cd802p-6 + (t) * \
    0x1.d973f57859f9fp-11))))

#endif
