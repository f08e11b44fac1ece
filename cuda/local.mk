# SPDX-License-Identifier: MIT
# The CUDA backend, or the stub with the same interface.
noinst_LTLIBRARIES += cuda/libcuda.la
cuda_libcuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
cuda_libcuda_la_CFLAGS = $(AM_CFLAGS)
cuda_libcuda_la_SOURCES =

cuda_c = cuda/affine.c cuda/backend.c cuda/choose.c cuda/collapsed.c cuda/device.c cuda/forward.c cuda/layout.c \
	cuda/partials.c cuda/passes.c cuda/programs.c cuda/run.c cuda/searches.c cuda/shards.c cuda/terms.c cuda/weights.c
# Those that take long come first, so that no processor is left with one at the end.
cuda_cu = \
	cuda/sm80/mma.cu \
	cuda/sm80/stream.cu \
	cuda/sm80/mma_f64.cu \
	cuda/sm80/few_tiles.cu \
	cuda/sm80/narrow.cu \
	cuda/sm80/narrow_tiles.cu \
	cuda/common/prepare.cu \
	cuda/sm80/fma.cu \
	cuda/common/collapse.cu \
	cuda/sm80/few_f64.cu \
	cuda/common/shards.cu \
	cuda/sm80/irregular.cu \
	cuda/common/answers.cu \
	cuda/common/copies.cu \
	cuda/common/survey.cu \
	cuda/common/convert.cu
cuda_sm90_cu = \
	cuda/sm90/answers_128x256.cu \
	cuda/sm90/answers_128x256_terms.cu \
	cuda/sm90/answers_128x128.cu \
	cuda/sm90/answers_64x128.cu \
	cuda/sm90/answers_small_8.cu \
	cuda/sm90/answers_small_16.cu \
	cuda/sm90/answers_small_64.cu \
	cuda/sm90/answers_turned.cu \
	cuda/sm90/answers_thirds.cu \
	cuda/sm90/answers_quarters.cu \
	cuda/sm90/answers_eighths.cu \
	cuda/sm90/answers_whole.cu \
	cuda/sm90/asked.cu \
	cuda/sm90/finish.cu \
	cuda/sm90/fold_128x128.cu \
	cuda/sm90/fold_128x192.cu \
	cuda/sm90/fold_128x256.cu \
	cuda/sm90/fold_64x128.cu \
	cuda/sm90/fold_64x64.cu \
	cuda/sm90/halves.cu \
	cuda/sm90/searches_128x256.cu \
	cuda/sm90/searches_128x256_terms.cu \
	cuda/sm90/searches_64x128.cu \
	cuda/sm90/stores.cu \
	cuda/sm90/small_8.cu \
	cuda/sm90/small_16.cu \
	cuda/sm90/small_64.cu \
	cuda/sm90/thirds.cu \
	cuda/sm90/quarters.cu \
	cuda/sm90/eighths.cu \
	cuda/sm90/turned.cu \
	cuda/sm90/whole.cu
cuda_h = \
	cuda/affine.h \
	cuda/answers.h \
	cuda/choose.h \
	cuda/device.h \
	cuda/kernels.def \
	cuda/kernels.h \
	cuda/layout.h \
	cuda/partials.h \
	cuda/passes.h \
	cuda/prepared.h \
	cuda/run.h \
	cuda/shards.h \
	cuda/terms.h \
	cuda/turned.h \
	cuda/whole.h \
	cuda/common/clear.cuh \
	cuda/common/epilogue.cuh \
	cuda/common/irregular_infinities.cuh \
	cuda/common/irregular_pieces.cuh \
	cuda/common/irregular_plain.cuh \
	cuda/common/irregular_rows.cuh \
	cuda/common/irregular_stage.cuh \
	cuda/common/irregular_sums.cuh \
	cuda/common/irregular_tile.cuh \
	cuda/common/launch.cuh \
	cuda/common/pieces.cuh \
	cuda/common/primitives.cuh \
	cuda/common/scaling.cuh \
	cuda/common/ptx.cuh \
	cuda/common/squares.cuh \
	cuda/common/states.cuh \
	cuda/common/typed.cuh \
	cuda/sm80/splits.cuh \
	cuda/sm80/stages.cuh \
	cuda/sm90/family.h \
	cuda/sm90/config.cuh \
	cuda/sm90/epilogue.cuh \
	cuda/sm90/finish.cuh \
	cuda/sm90/fold.cuh \
	cuda/sm90/halves.cuh \
	cuda/sm90/halves_launch.cuh \
	cuda/sm90/irregular.cuh \
	cuda/sm90/kernels.def \
	cuda/sm90/launch.cuh \
	cuda/sm90/ptx.cuh \
	cuda/sm90/searches.cuh \
	cuda/sm90/small.cuh \
	cuda/sm90/small_launch.cuh \
	cuda/sm90/small_ring.cuh \
	cuda/sm90/states.cuh \
	cuda/sm90/turned.cuh \
	cuda/sm90/turned_fold.cuh \
	cuda/sm90/turned_launch.cuh \
	cuda/sm90/turned_ring.cuh \
	cuda/sm90/whole.cuh \
	cuda/sm90/whole_launch.cuh \
	cuda/sm90/wgmma.cuh
cuda_stub = cuda/stub.c

if HAVE_CUDA
if BUILD_SM90
cuda_libcuda_la_SOURCES += $(cuda_sm90_cu)
endif
cuda_libcuda_la_SOURCES += $(cuda_cu) $(cuda_c)
else
cuda_libcuda_la_SOURCES += $(cuda_stub)
endif
EXTRA_DIST += $(cuda_c) $(cuda_cu) $(cuda_h) $(cuda_sm90_cu) $(cuda_stub)

# libtool runs nvcc like any compiler once nvcc passes on what it does not know (-fPIC). Automake's dependency tracking does not cover .cu
# files, so their dependency files are made and cleaned here. Those in sm90/ use instructions of sm_90a alone.
SUFFIXES += .cu .lo
cuda_deps = cuda/$(DEPDIR)
NVCC_COMPILE = $(NVCC) -forward-unknown-to-host-compiler -std=c++17 -Wall -Xfatbin=-compress-all $(DEFS) $(DEFAULT_INCLUDES) -I$(srcdir)/cuda $(AM_CPPFLAGS) $(CPPFLAGS)
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =

.cu.lo:
	@$(MKDIR_P) $(cuda_deps) $(@D)
	$(AM_V_NVCC)case $< in */sm90/*) arch='$(NVCC_GENCODE_SM90)';; *) arch='$(NVCC_GENCODE)';; esac; \
	$(LIBTOOL) $(AM_V_lt) --tag=CC $(AM_LIBTOOLFLAGS) $(LIBTOOLFLAGS) --mode=compile \
	  $(NVCC_COMPILE) $$arch $(NVCCFLAGS) -MD -MP -MT $@ -MF $(cuda_deps)/$(*F).cu.d $(NVCC_LIBTOOLFLAGS) -c -o $@ $<

-include $(wildcard $(cuda_deps)/*.cu.d)

# After another configure: with kernels, without, for other GPUs.
EXTRA_cuda_libcuda_la_DEPENDENCIES = cuda/flags
$(cuda_cu:.cu=.lo) $(cuda_sm90_cu:.cu=.lo): cuda/flags
# Before anything else, and automake's marks that the directories are there: with several jobs make puts what has to wait for them behind all
# that has not, and that is what takes longest.
cuda_folders = cuda/common cuda/sm80 cuda/sm90
cuda_marks = $(cuda_folders:=/$(am__dirstamp)) $(cuda_folders:=/$(DEPDIR)/$(am__dirstamp))
$(lib_librowfold_la_OBJECTS): | cuda/flags $(cuda_marks)
cuda/flags: FORCE
	@$(MKDIR_P) $(@D)
	@text='$(cuda_libcuda_la_SOURCES) $(NVCC) $(NVCC_GENCODE) $(NVCC_GENCODE_SM90) $(NVCCFLAGS)' && $(write_text)
CLEANFILES += cuda/flags

mostlyclean-local: mostlyclean-cuda
mostlyclean-cuda:
	-rm -f $(cuda_deps)/*.cu.d cuda/*/*.lo cuda/*/*.o
	-rm -rf cuda/*/.libs
