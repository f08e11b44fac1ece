/* SPDX-License-Identifier: MIT */
/* wgmma.mma_async, m64 by N by k16, of TF32 k8: d (+)= a * b^T, both operands from shared memory, K-major. One function
 * a width and type; the register lists are what makes them long. d[4 * g + i] of thread t of the warpgroup is row 16 *
 * (t / 32) + t % 32 / 4 + (i / 2) * 8, column 8 * g + 2 * (t % 4) + i % 2. */
#ifndef ROWFOLD_CUDA_SM90_WGMMA_CUH
#define ROWFOLD_CUDA_SM90_WGMMA_CUH

#include <stdint.h>

namespace hopper {
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i)                                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define D12(i) D8(i), D4(i + 8)
#define D16(i) D8(i), D8(i + 8)
#define D24(i) D16(i), D8(i + 16)
#define D32(i) D16(i), D16(i + 16)
#define D48(i) D32(i), D16(i + 32)
#define D64(i) D32(i), D32(i + 32)
#define D96(i) D64(i), D32(i + 64)
#define D128(i) D64(i), D64(i + 64)

#define REGISTERS_8 "%0, %1, %2, %3"
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_24 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_48 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_96                                                                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_128                                                                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_192                                                                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_256                                                                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* `accumulate` 0 starts from zero. */
#define WGMMA_OF(N, HALF_N, A, B, P, TYPE, K, ENDING)                                                           \
    __device__ __forceinline__ void wgmma_##TYPE(float (&d)[HALF_N], uint64_t a, uint64_t b, bool accumulate) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                           \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." #TYPE "." #TYPE " {" REGISTERS_##N   \
            "}, %" #A ", %" #B ", p, 1, 1" ENDING ";\n}"                                                        \
            : D##HALF_N(0)                                                                                      \
            : "l"(a), "l"(b), "r"((int)accumulate));                                                            \
    }
#define WGMMA(N, HALF_N, A, B, P, TYPE) WGMMA_OF(N, HALF_N, A, B, P, TYPE, 16, ", 0, 0")
#define WGMMA_TF32(N, HALF_N, A, B, P) WGMMA_OF(N, HALF_N, A, B, P, tf32, 8, "")
WGMMA(8, 4, 4, 5, 6, f16)
WGMMA(8, 4, 4, 5, 6, bf16)
WGMMA(16, 8, 8, 9, 10, f16)
WGMMA(16, 8, 8, 9, 10, bf16)
WGMMA(24, 12, 12, 13, 14, bf16)
WGMMA(32, 16, 16, 17, 18, f16)
WGMMA(32, 16, 16, 17, 18, bf16)
WGMMA(48, 24, 24, 25, 26, bf16)
WGMMA(64, 32, 32, 33, 34, f16)
WGMMA(64, 32, 32, 33, 34, bf16)
WGMMA(96, 48, 48, 49, 50, bf16)
WGMMA(128, 64, 64, 65, 66, f16)
WGMMA(128, 64, 64, 65, 66, bf16)
WGMMA(192, 96, 96, 97, 98, f16)
WGMMA(192, 96, 96, 97, 98, bf16)
WGMMA(256, 128, 128, 129, 130, f16)
WGMMA(256, 128, 128, 129, 130, bf16)
WGMMA_TF32(32, 16, 16, 17, 18)
WGMMA_TF32(64, 32, 32, 33, 34)
WGMMA_TF32(128, 64, 64, 65, 66)
WGMMA_TF32(256, 128, 128, 129, 130)

#undef WGMMA_TF32
#undef WGMMA_OF
#undef WGMMA
#undef REGISTERS_8
#undef REGISTERS_16
#undef REGISTERS_24
#undef REGISTERS_32
#undef REGISTERS_48
#undef REGISTERS_64
#undef REGISTERS_96
#undef REGISTERS_128
#undef REGISTERS_192
#undef REGISTERS_256
#undef D4
#undef D8
#undef D12
#undef D16
#undef D24
#undef D32
#undef D48
#undef D64
#undef D128

} // namespace hopper
#endif
