# SPDX-License-Identifier: MIT
# The CUDA backend, or the stub with the same interface.
noinst_LTLIBRARIES += cuda/libcuda.la
cuda_libcuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
cuda_libcuda_la_CFLAGS = $(AM_CFLAGS)
cuda_libcuda_la_SOURCES =

cuda_c = cuda/affine.c cuda/backend.c cuda/choose.c cuda/collapsed.c cuda/device.c cuda/forward.c cuda/layout.c \
	cuda/passes.c cuda/weights.c
cuda_cu = \
	cuda/collapse.cu \
	cuda/convert.cu \
	cuda/few_tiles.cu \
	cuda/portable_fma.cu \
	cuda/portable_mma.cu \
	cuda/portable_mma_f64.cu \
	cuda/prepare.cu \
	cuda/small_batch.cu
cuda_h = \
	cuda/affine.h \
	cuda/choose.h \
	cuda/device.h \
	cuda/epilogue.cuh \
	cuda/fma_tile.cuh \
	cuda/hopper_config.cuh \
	cuda/hopper_epilogue.cuh \
	cuda/hopper_fold.cuh \
	cuda/hopper_irregular.cuh \
	cuda/hopper_launch.cuh \
	cuda/hopper_ptx.cuh \
	cuda/hopper_small.cuh \
	cuda/hopper_small_launch.cuh \
	cuda/hopper_wgmma.cuh \
	cuda/kernels.def \
	cuda/kernels.h \
	cuda/launch.cuh \
	cuda/layout.h \
	cuda/passes.h \
	cuda/pieces.cuh \
	cuda/prepared.h \
	cuda/primitives.cuh \
	cuda/ptx.cuh \
	cuda/splits.cuh \
	cuda/stages.cuh \
	cuda/states.cuh \
	cuda/typed.cuh
cuda_hopper_cu = cuda/hopper_128x256.cu cuda/hopper_128x128.cu cuda/hopper_64x128.cu cuda/hopper_64x64.cu \
	cuda/hopper_answers_128x256.cu cuda/hopper_answers_64x128.cu cuda/hopper_answers_small.cu \
	cuda/hopper_small.cu
cuda_stub = cuda/stub.c

if HAVE_CUDA
cuda_libcuda_la_SOURCES += $(cuda_c) $(cuda_cu)
if BUILD_HOPPER
cuda_libcuda_la_SOURCES += $(cuda_hopper_cu)
endif
else
cuda_libcuda_la_SOURCES += $(cuda_stub)
endif
EXTRA_DIST += $(cuda_c) $(cuda_cu) $(cuda_h) $(cuda_hopper_cu) $(cuda_stub)

# libtool runs nvcc like any compiler once nvcc passes on what it does not know (-fPIC). Automake's dependency tracking does not cover .cu
# files, so their dependency files are made and cleaned here. Files named hopper_*.cu use instructions of sm_90a alone.
SUFFIXES += .cu .lo
cuda_deps = cuda/$(DEPDIR)
NVCC_COMPILE = $(NVCC) -forward-unknown-to-host-compiler -std=c++17 -Wall -Xfatbin=-compress-all $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS)
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =

.cu.lo:
	@$(MKDIR_P) $(cuda_deps)
	$(AM_V_NVCC)case $(<F) in hopper_*) arch='$(NVCC_GENCODE_HOPPER)';; *) arch='$(NVCC_GENCODE)';; esac; \
	$(LIBTOOL) $(AM_V_lt) --tag=CC $(AM_LIBTOOLFLAGS) $(LIBTOOLFLAGS) --mode=compile \
	  $(NVCC_COMPILE) $$arch $(NVCCFLAGS) -MD -MT $@ -MF $(cuda_deps)/$(*F).cu.d $(NVCC_LIBTOOLFLAGS) -c -o $@ $<

-include $(wildcard $(cuda_deps)/*.cu.d)

# After another configure: with kernels, without, for other GPUs.
EXTRA_cuda_libcuda_la_DEPENDENCIES = cuda/flags
$(cuda_cu:.cu=.lo) $(cuda_hopper_cu:.cu=.lo): cuda/flags
cuda/flags: FORCE
	@$(MKDIR_P) $(@D)
	@text='$(cuda_libcuda_la_SOURCES) $(NVCC) $(NVCC_GENCODE) $(NVCC_GENCODE_HOPPER) $(NVCCFLAGS)' && $(write_text)
CLEANFILES += cuda/flags

mostlyclean-local: mostlyclean-cuda
mostlyclean-cuda:
	-rm -f $(cuda_deps)/*.cu.d
