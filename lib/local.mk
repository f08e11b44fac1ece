# SPDX-License-Identifier: MIT
include_HEADERS = lib/rowfold.h
lib_LTLIBRARIES += lib/librowfold.la

# Chain, plan and explanation: a library of their own, so that tests reach them from inside.
noinst_LTLIBRARIES += lib/libplan.la
lib_libplan_la_SOURCES = \
	lib/chain.c \
	lib/chain_text.c \
	lib/collapse.c \
	lib/constant.c \
	lib/dtype.c \
	lib/error.c \
	lib/explain.c \
	lib/explain_json.c \
	lib/explain_text.c \
	lib/guard.c \
	lib/number.c \
	lib/optable.c \
	lib/plan.c \
	lib/rewrite.c \
	lib/sized.c \
	lib/steps.c
lib_libplan_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
lib_libplan_la_LIBADD = $(PTHREAD_LIBS)

lib_librowfold_la_SOURCES = \
	lib/backends.c \
	lib/collective.c \
	lib/cpu/blocking.c \
	lib/cpu/cpu.c \
	lib/cpu/estimate.c \
	lib/cpu/features.c \
	lib/cpu/finish.c \
	lib/cpu/forward.c \
	lib/cpu/multiply.c \
	lib/cpu/narrow.c \
	lib/cpu/pool.c \
	lib/cpu/prepare.c \
	lib/cpu/probe.c \
	lib/cpu/tile.c \
	lib/cpu/tile_x.c \
	lib/cpu/reference.c \
	lib/forward.c \
	lib/load.c \
	lib/mapping.c \
	lib/model.c \
	lib/safetensors.c \
	lib/shards.c \
	lib/version.c \
	lib/weights_file.c
noinst_HEADERS += \
	lib/backend.h \
	lib/chain.h \
	lib/collapse.h \
	lib/constant.h \
	lib/cpu/amx.h \
	lib/cpu/amx_pairs_typed.h \
	lib/cpu/blocking.h \
	lib/cpu/dot_typed.h \
	lib/cpu/estimate.h \
	lib/cpu/features.h \
	lib/cpu/fold_typed.h \
	lib/cpu/forward.h \
	lib/cpu/inner_typed.h \
	lib/cpu/join.h \
	lib/cpu/kernel.h \
	lib/cpu/kernel_typed.h \
	lib/cpu/multiply_typed.h \
	lib/cpu/pair_halves.h \
	lib/cpu/pool.h \
	lib/cpu/prepared.h \
	lib/cpu/probe.h \
	lib/cpu/rows_typed.h \
	lib/cpu/tile.h \
	lib/cpu/tile_steps.h \
	lib/cpu/tiles_typed.h \
	lib/dtype.h \
	lib/error.h \
	lib/explain.h \
	lib/explain_parts.h \
	lib/groups.h \
	lib/guard.h \
	lib/lexical.h \
	lib/mapping.h \
	lib/model.h \
	lib/number.h \
	lib/ops.def \
	lib/ops.h \
	lib/states.h \
	lib/top.h \
	lib/ops_typed.h \
	lib/plan.h \
	lib/presets.def \
	lib/rewrite.h \
	lib/rows.h \
	lib/reductions.def \
	lib/safetensors.h \
	lib/shards.h \
	lib/sized.h \
	lib/sizes.h \
	lib/status.def \
	lib/steps.h \
	lib/vmath.h \
	lib/vmath_double.h \
	lib/vmath_trig.h \
	lib/vmath_poly.h \
	lib/vmath_typed.h
lib_librowfold_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
lib_librowfold_la_LDFLAGS = -version-info $(ROWFOLD_VERSION_INFO) -no-undefined $(EXPORTS_LDFLAGS) $(DEFS_LDFLAGS) \
	$(NODELETE_LDFLAGS)
EXTRA_lib_librowfold_la_DEPENDENCIES = lib/rowfold.map
EXTRA_DIST += lib/rowfold.map
lib_librowfold_la_LIBADD = lib/libplan.la lib/cpu/libgeneric.la

# A library of its own, so that librowfold needs no MPI.
if HAVE_MPI
include_HEADERS += lib/mpi/rowfold_mpi.h
lib_LTLIBRARIES += lib/mpi/librowfold_mpi.la
endif
EXTRA_DIST += lib/mpi/rowfold_mpi.h lib/mpi/rowfold_mpi.c lib/link.h
lib_mpi_librowfold_mpi_la_SOURCES = lib/mpi/rowfold_mpi.c
lib_mpi_librowfold_mpi_la_CFLAGS = $(AM_CFLAGS) $(MPI_CFLAGS)
lib_mpi_librowfold_mpi_la_LDFLAGS = -version-info $(ROWFOLD_VERSION_INFO) -no-undefined -export-symbols-regex '^rf_mpi_' $(DEFS_LDFLAGS)
lib_mpi_librowfold_mpi_la_LIBADD = lib/librowfold.la $(MPI_LIBS)

# Likewise, so that neither needs NCCL; this one loads it. It has the CUDA runtime in it, as librowfold has.
if HAVE_NCCL
include_HEADERS += lib/nccl/rowfold_nccl.h
lib_LTLIBRARIES += lib/nccl/librowfold_nccl.la
endif
EXTRA_DIST += lib/nccl/rowfold_nccl.h lib/nccl/rowfold_nccl.c
lib_nccl_librowfold_nccl_la_SOURCES = lib/nccl/rowfold_nccl.c
lib_nccl_librowfold_nccl_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
lib_nccl_librowfold_nccl_la_CFLAGS = $(AM_CFLAGS)
lib_nccl_librowfold_nccl_la_LDFLAGS = -version-info $(ROWFOLD_VERSION_INFO) -no-undefined -export-symbols-regex '^rf_nccl_' $(DEFS_LDFLAGS) \
	$(NODELETE_LDFLAGS)
lib_nccl_librowfold_nccl_la_LIBADD = lib/librowfold.la $(CUDA_LIBS)

# The CPU kernels: one template, a file and a library for each instruction set. A library's objects get their flags behind the user's CFLAGS,
# whose -O2 would win otherwise.
noinst_LTLIBRARIES += lib/cpu/libgeneric.la
lib_cpu_libgeneric_la_SOURCES = lib/cpu/kernel_generic.c
$(lib_cpu_libgeneric_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS)

if BUILD_AVX2
noinst_LTLIBRARIES += lib/cpu/libavx2.la
lib_librowfold_la_LIBADD += lib/cpu/libavx2.la
endif
lib_cpu_libavx2_la_SOURCES = lib/cpu/kernel_avx2.c
$(lib_cpu_libavx2_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS) $(AVX2_CFLAGS)

if BUILD_AVX512
noinst_LTLIBRARIES += lib/cpu/libavx512.la
lib_librowfold_la_LIBADD += lib/cpu/libavx512.la
endif
lib_cpu_libavx512_la_SOURCES = lib/cpu/kernel_avx512.c
$(lib_cpu_libavx512_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS) $(AVX512_CFLAGS)

if BUILD_AVX512_BF16
noinst_LTLIBRARIES += lib/cpu/libavx512_bf16.la
lib_librowfold_la_LIBADD += lib/cpu/libavx512_bf16.la
endif
lib_cpu_libavx512_bf16_la_SOURCES = lib/cpu/kernel_avx512_bf16.c lib/cpu/kernel_f16_tiles.c lib/cpu/kernel_terms.c \
	lib/cpu/kernel_tiles.c
$(lib_cpu_libavx512_bf16_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS) $(AVX512_BF16_CFLAGS)

if BUILD_AMX
noinst_LTLIBRARIES += lib/cpu/libamx.la
lib_librowfold_la_LIBADD += lib/cpu/libamx.la
endif
lib_cpu_libamx_la_SOURCES = lib/cpu/kernel_amx_bf16.c lib/cpu/kernel_amx_terms.c
$(lib_cpu_libamx_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS) $(AMX_CFLAGS)

if BUILD_AMX_FP16
noinst_LTLIBRARIES += lib/cpu/libamx_fp16.la
lib_librowfold_la_LIBADD += lib/cpu/libamx_fp16.la
endif
lib_cpu_libamx_fp16_la_SOURCES = lib/cpu/kernel_amx_fp16.c
$(lib_cpu_libamx_fp16_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS) $(AMX_FP16_CFLAGS)

# Behind the convenience libraries, which use these.
lib_librowfold_la_LIBADD += cuda/libcuda.la $(CUDA_LIBS) $(JANSSON_LIBS) $(PTHREAD_LIBS)
