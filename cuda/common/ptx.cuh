/* SPDX-License-Identifier: MIT */
/* One PTX instruction a function, for sm_80 and newer. */
#ifndef ROWFOLD_CUDA_PTX_CUH
#define ROWFOLD_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t rfi_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies `bytes` (0 to 16) of global memory to 16 bytes of shared memory, the rest zero. Both 16-byte aligned. For 0
 * bytes nothing is read, at any address; for fewer than 16 all 16 are read: they must be there. */
static __device__ __forceinline__ void rfi_copy_async_16(uint32_t shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/* The same for 8 bytes. */
static __device__ __forceinline__ void rfi_copy_async_8(uint32_t shared, const void *global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/* The same for 4 bytes, all of them. */
static __device__ __forceinline__ void rfi_copy_async_4(uint32_t shared, const void *global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

static __device__ __forceinline__ void rfi_copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most `pending` of this thread's groups are under way. */
template <int pending> static __device__ __forceinline__ void rfi_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void rfi_load_matrices(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(shared)
        : "memory");
}

/* d += a b, (16, 16) times (16, 8), sums in float32. Values of E. */
template <class E>
static __device__ __forceinline__ void rfi_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void rfi_mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <> __device__ __forceinline__ void rfi_mma<__nv_bfloat16>(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of TF32, (16, 8) times (8, 8): two values of 16 bits are one of 32. */
static __device__ __forceinline__ void rfi_mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* d += a b in float64, (16, 8) times (8, 8). Lane l has a[i] at row l / 4 + i % 2 * 8, depth l % 4 + i / 2 * 4; b[i] at
 * depth l % 4 + i * 4, column l / 4; d[i] at row l / 4 + i / 2 * 8, column l % 4 * 2 + i % 2. Before sm_90 the
 * instruction is for (8, 4) times (4, 8), a quarter of it. */
static __device__ __forceinline__ void rfi_mma_f64(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
                : "d"(a[2 * k + half]), "d"(b[k]));
#endif
}

#endif
